#pragma once

/*
 * crun --check-node, the built-in health check: GPUs of NVIDIA through the driver's management library, which is opened if it
 * is there, and free disk space. The caller has given this process a deadline, as a driver may hang.
 */

/* Prints one line and returns the exit code: 0 fit, 1 not, 2 when the environment has a value that is no number. */
int node_check_run(char *const *environment);
