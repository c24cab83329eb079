#pragma once

#include <pthread.h>

/* Starts a thread that no signal is delivered to: signals are the event loop's. Returns 0 or -errno. */
int masked_thread_start(pthread_t *ret, void *(*thread_main)(void *data), void *data);
