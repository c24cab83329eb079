#pragma once

/*
 * SIGTERM as a request: finish the step, save, leave. One flag for the process.
 */

#include <stdbool.h>

/* Counts a user; the first installs the handler, but only where SIGTERM has its default action: a handler
 * of the program's own, or an ignored signal, stays what it is. */
void stop_acquire(void);

/* The last user gives SIGTERM its default action back, unless somebody changed it since, or a stop has been asked for,
 * in this way or another: the same request may still come as a signal, and must not end who is obeying it. */
void stop_release(bool asked);

/* SIGTERM came while the handler was there. */
bool stop_requested(void);
