#pragma once

/*
 * SIGTERM as a request: finish the step, save, leave. One flag for the process.
 */

#include <stdbool.h>

/* Counts a user, a group. After crw_stop_enable() the first one installs the handler again. */
void stop_acquire(void);

/* The last user restores SIGTERM's default action, unless the program has changed it since or a stop was
 * requested by any path: the same request may still arrive as a signal, and must not kill a process that
 * is already stopping. */
void stop_release(bool asked);

/* SIGTERM came while the handler was there. */
bool stop_requested(void);
