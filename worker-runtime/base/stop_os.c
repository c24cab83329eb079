/*
 * The handler sets a flag and nothing else. Interrupted system calls of the program go on (SA_RESTART),
 * because it did not expect to be interrupted; our own waits poll and look again by themselves.
 */

#include "worker-runtime/base/stop_os.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int n_users;
static bool installed;
static atomic_bool requested; /* lock-free, so a handler may write it */

static void on_sigterm(int signal_number)
{
    atomic_store(&requested, true);
}

void stop_acquire(void)
{
    struct sigaction now, ours = {.sa_handler = on_sigterm, .sa_flags = SA_RESTART};

    pthread_mutex_lock(&lock);
    if (n_users++ == 0 && sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
        installed = sigaction(SIGTERM, &ours, NULL) == 0;
    pthread_mutex_unlock(&lock);
}

void stop_release(bool asked)
{
    struct sigaction now, standard = {.sa_handler = SIG_DFL};

    pthread_mutex_lock(&lock);
    if (--n_users == 0 && installed && !asked) {
        installed = false;
        if (sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == on_sigterm)
            (void)sigaction(SIGTERM, &standard, NULL); /* cannot fail for a signal that exists */
    }
    pthread_mutex_unlock(&lock);
}

bool stop_requested(void)
{
    return atomic_load(&requested);
}
