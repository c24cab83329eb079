#pragma once

/*
 * SIGTERM as a request: finish the step, save, leave. One flag for the process.
 */

#include <stdbool.h>

/* Counts a user; the first installs the handler, but only where SIGTERM has its default action: a handler
 * of the program's own, or an ignored signal, stays what it is. */
void stop_acquire(void);

/* The last user restores SIGTERM's default action, unless the program has changed it since or a stop was
 * requested by any path: the same request may still arrive as a signal, and must not kill a process that
 * is already stopping. */
void stop_release(bool asked);

/* SIGTERM came while the handler was there. */
bool stop_requested(void);
