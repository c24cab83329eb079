#pragma once

/* Threads beside the main one. Inline, as time.h. */

#include <pthread.h>
#include <signal.h>

/* With all signals blocked: signals belong to the program or the loop, and their handlers do not expect this thread. 0 or -errno. */
static inline int thread_start(pthread_t *ret_thread, void *(*run)(void *data), void *data)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* cannot fail for sets like these */
    int r = pthread_create(ret_thread, NULL, run, data);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}
