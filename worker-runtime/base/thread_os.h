#pragma once

/*
 * Threads of the library.
 */

#include <pthread.h>

/* With all signals blocked: they are the program's, and its handlers must not run on a thread that it does
 * not know. 0 or -errno. */
int thread_start(pthread_t *ret_thread, void *(*run)(void *data), void *data);
