/*
 * A kernel that does not interrupt epoll_wait(), for LD_PRELOAD: a program that was stopped by SIGSTOP sees after SIGCONT first what
 * has arrived meanwhile, and then which of its timers are due, as one that was stopped while it computed.
 */

#include <dlfcn.h>
#include <errno.h>
#include <sys/epoll.h>

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    static int (*real)(int, struct epoll_event *, int, int);
    int r;

    if (!real)
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    do
        r = real(fd, events, n, timeout);
    while (r < 0 && errno == EINTR);
    return r;
}
