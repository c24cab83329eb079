#include "base/err.h"
#include "worker-runtime/base/file_limit_os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

/* The signal goes to the thread that made the call, so it is enough to block it there and to take it back. */
struct held_signal {
    sigset_t before;
    bool was_pending; /* from elsewhere: it stays */
};

static void hold_signal(struct held_signal *h)
{
    sigset_t set;

    (void)sigpending(&set); /* none of these calls can fail */
    h->was_pending = sigismember(&set, SIGXFSZ) == 1;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &set, &h->before);
}

/* Returns result, or the -errno of the call that was made. */
static ssize_t release_signal(const struct held_signal *h, ssize_t result)
{
    const struct timespec now = {0};
    ssize_t r = result < 0 ? -errno : result;
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGXFSZ);
    if (r == -EFBIG && !h->was_pending)
        (void)sigtimedwait(&set, NULL, &now); /* nothing is pending when the program ignores it */
    (void)pthread_sigmask(SIG_SETMASK, &h->before, NULL);
    return r;
}

int file_limit_allocate(int fd, uint64_t at, uint64_t size)
{
    struct held_signal held;

    hold_signal(&held);
    /* tmpfs starts over after a signal */
    return (int)release_signal(&held, RETRY(fallocate(fd, 0, (off_t)at, (off_t)size)));
}

int file_limit_resize(int fd, uint64_t size)
{
    struct held_signal held;

    hold_signal(&held);
    return (int)release_signal(&held, ftruncate(fd, (off_t)size));
}

ssize_t file_limit_write(int fd, const void *bytes, size_t n)
{
    struct held_signal held;

    hold_signal(&held);
    return release_signal(&held, write(fd, bytes, n));
}
