#pragma once

struct agent_host;
struct agent_observer;

/* Serves metrics where --metrics-addr asks for them. Without them the job runs as well. */
void agent_metrics_open(struct agent_observer *ret, const struct agent_host *host);
