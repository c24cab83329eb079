#include "launcher/util/thread_os.h"

#include <signal.h>
#include <stddef.h>

int masked_thread_start(pthread_t *ret, void *(*thread_main)(void *data), void *data)
{
    sigset_t all, before;

    (void)sigfillset(&all); /* cannot fail, nor can the masks be wrong */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(ret, NULL, thread_main, data);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}
