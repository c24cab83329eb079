/*
 * The handler sets a flag and nothing else. Interrupted system calls of the program go on (SA_RESTART),
 * because it did not expect to be interrupted; our own waits poll and look again by themselves.
 */

#include "worker-runtime/base/stop_os.h"

#include "base/lock_os.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int n_users;
static bool enabled, installed;
static atomic_bool requested; /* lock-free, so a handler may write it */

static void on_sigterm(int signal_number)
{
    atomic_store(&requested, true);
}

/* A handler of the program's own, or an ignored signal, stays what it is. Caller holds lock. */
static int install_handler(void)
{
    struct sigaction now, ours = {.sa_handler = on_sigterm, .sa_flags = SA_RESTART};

    if (sigaction(SIGTERM, NULL, &now) < 0)
        return -errno;
    if (now.sa_handler != SIG_DFL)
        return 0;
    if (sigaction(SIGTERM, &ours, NULL) < 0)
        return -errno;
    installed = true;
    return 0;
}

int crw_stop_enable(void)
{
    hold_lock(&lock);
    enabled = true;
    int r = install_handler();
    return r == 0 ? 0 : crw_fail_errno(r, "cannot make SIGTERM a request to stop");
}

void stop_acquire(void)
{
    hold_lock(&lock);
    if (n_users++ == 0 && enabled && !installed)
        (void)install_handler(); /* worked in crw_stop_enable() */
}

void stop_release(bool asked)
{
    struct sigaction now, standard = {.sa_handler = SIG_DFL};

    hold_lock(&lock);
    if (--n_users == 0 && installed && !asked) {
        installed = false;
        if (sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == on_sigterm)
            (void)sigaction(SIGTERM, &standard, NULL); /* cannot fail for a signal that exists */
    }
}

bool stop_requested(void)
{
    return atomic_load(&requested);
}
