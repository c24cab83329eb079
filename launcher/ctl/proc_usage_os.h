#pragma once

/* What /proc has about a process: crunctl reads it, so that crun need not. */

struct worker_status;

/* Sets has_usage, and CPU time and memory. No usage: the process is gone, or a zombie. */
void proc_usage_read(struct worker_status *w);
