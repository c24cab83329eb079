#pragma once

#include <pthread.h>

/* Starts a thread that no signal is delivered to: signals are the event loop's. Returns 0 or -errno. */
int masked_thread_start(pthread_t *ret, void *(*thread_main)(void *data), void *data);

/*
 * Calls run(data) in such a thread, which nothing joins. One that has returned from an earlier call is taken, if there is one:
 * a start of a job makes several short calls one after the other, and a new thread costs more than each of them. Not for
 * processes that were forked meanwhile. Returns 0, or -errno: run() is not called.
 */
int call_in_thread(void (*run)(void *data), void *data);
