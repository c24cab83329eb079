#pragma once

struct agent_host;
struct agent_observer;

/* Serves metrics where --metrics-addr asks for metrics. The job runs without metrics as well. */
void agent_metrics_open(struct agent_observer *ret, const struct agent_host *host);
