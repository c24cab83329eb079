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

ssize_t send(int socket, const void *data, size_t n, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);
    const char *late_ms = getenv("LATE_GUARDIAN_SEND_MS");

    if (!real)
        real = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    if (getpid() != loader)
        (void)usleep(late_ms ? (useconds_t)atoi(late_ms) * 1000 : 50000);
    return real(socket, data, n, flags);
}

int epoll_ctl(int fd, int op, int other, struct epoll_event *event)
{
    static int (*real)(int, int, int, struct epoll_event *);
    const char *late_ms = getenv("LATE_GUARDIAN_START_MS");

    if (!real)
        real = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_NEXT, "epoll_ctl");
    if (late_ms && op == EPOLL_CTL_ADD && getpid() != loader)
        (void)usleep((useconds_t)atoi(late_ms) * 1000);
    return real(fd, op, other, event);
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    static int (*real)(int, struct epoll_event *, int, int);
    const char *late_ms = getenv("LATE_GUARDIAN_MS");

    if (!real)
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    if (late_ms && getpid() != loader)
        (void)usleep((useconds_t)atoi(late_ms) * 1000);
    return real(fd, events, n, timeout);
}
