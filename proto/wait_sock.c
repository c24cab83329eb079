/*
 * poll() with a deadline and an interrupt. A signal starts another round with the rest of the time.
 */

#include "proto/wait_sock.h"

#include <limits.h>
#include <poll.h>

#include "base/err.h"
#include "base/time.h"
#include "proto/client.h"

enum { NS_PER_MS = 1000000 };

int64_t sock_now_ns(void)
{
    return (int64_t)now_ns();
}

int64_t sock_deadline_ns(int timeout_ms)
{
    return sock_now_ns() + (int64_t)timeout_ms * NS_PER_MS;
}

int sock_left_ms(int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - sock_now_ns();
    int64_t ms = (left_ns + NS_PER_MS - 1) / NS_PER_MS;

    if (left_ns <= 0)
        return 0;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

int sock_wait(int wake_fd, int fd, short events, int64_t deadline_ns)
{
    struct pollfd fds[] = {{.fd = fd, .events = events}, {.fd = wake_fd, .events = POLLIN}};
    int n;

    do {
        n = poll(fds, ARRAY_SIZE(fds), sock_left_ms(deadline_ns));
        if (n < 0 && errno != EINTR)
            return -errno;
    } while (n <= 0 && sock_left_ms(deadline_ns) > 0);
    if (n <= 0)
        return CLIENT_E_TIMEOUT;
    return fds[1].revents ? CLIENT_E_INTERRUPTED : 0;
}
