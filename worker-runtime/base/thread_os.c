#include "worker-runtime/base/thread_os.h"

#include <signal.h>

int thread_start(pthread_t *ret_thread, void *(*run)(void *data), void *data)
{
    sigset_t all, before;
    int e;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* cannot fail for sets like these */
    e = pthread_create(ret_thread, NULL, run, data);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -e;
}
