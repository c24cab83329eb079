#pragma once

struct agent_host;
struct agent_observer;
struct agent_restarts;

/* 0 or -ENOMEM. */
int agent_restarts_create(struct agent_restarts **ret, struct agent_observer *observer,
                          const struct agent_host *host);

/* Why there is no further restart; "": this part does not rule out a restart. */
const char *agent_restarts_why(const struct agent_restarts *p);
