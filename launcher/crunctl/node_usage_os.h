#pragma once

/* What this machine has about the workers of its node beside what their agent reports: /proc, the ends of log files. */

struct node_status;

void node_usage_read(struct node_status *n);
