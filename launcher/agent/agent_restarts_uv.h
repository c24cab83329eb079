#pragma once

struct agent_host;
struct agent_observer;
struct agent_restarts;

struct agent_restarts *agent_restarts_create(struct agent_observer *observer, const struct agent_host *host);

/* Why there is no further restart; "": this part does not rule out a restart. */
const char *agent_restarts_why(const struct agent_restarts *p);
