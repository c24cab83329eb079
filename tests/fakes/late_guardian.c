/*
 * A guardian whose reports arrive late, for LD_PRELOAD: send() waits 50 ms, or LATE_GUARDIAN_SEND_MS, in every process that crun
 * has forked and that has not executed another program. With LATE_GUARDIAN_MS it looks for events late, too: epoll_wait() waits
 * so long before; with LATE_GUARDIAN_START_MS it sees late that a worker has started: epoll_ctl() does.
 */

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static pid_t loader;

__attribute__((constructor)) static void note_process(void)
{
    loader = getpid();
}

static void be_late(const char *variable, int usual_ms)
{
    const char *ms = getenv(variable);

    if (getpid() != loader)
        (void)usleep((useconds_t)(ms ? atoi(ms) : usual_ms) * 1000);
}

ssize_t send(int socket, const void *data, size_t n, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);

    if (!real)
        real = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    be_late("LATE_GUARDIAN_SEND_MS", 50);
    return real(socket, data, n, flags);
}

int epoll_ctl(int fd, int op, int other, struct epoll_event *event)
{
    static int (*real)(int, int, int, struct epoll_event *);

    if (!real)
        real = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_NEXT, "epoll_ctl");
    if (op == EPOLL_CTL_ADD)
        be_late("LATE_GUARDIAN_START_MS", 0);
    return real(fd, op, other, event);
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    static int (*real)(int, struct epoll_event *, int, int);

    if (!real)
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    be_late("LATE_GUARDIAN_MS", 0);
    return real(fd, events, n, timeout);
}
