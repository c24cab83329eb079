/*
 * poll() with a deadline and an interrupt. A wake-up that is neither the socket nor an interrupt (a signal,
 * a notice about another group) starts another round with what is left of the time.
 */

#include "proto/wait_sock.h"

#include <limits.h>
#include <poll.h>
#include <stdbool.h>

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

static bool is_interrupted(const struct sock_interrupt *i)
{
    return i->interrupted && i->interrupted(i->data);
}

/* The wake descriptor has something. With a callback the next round asks it. */
static bool is_woken(struct sock_interrupt *i, short revents)
{
    if (!i->interrupted)
        return true;
    if (revents & POLLIN)
        return false;
    if (is_interrupted(i))
        return true;
    i->wake_fd = -1; /* hung up and nothing left to read: it would be ready for ever */
    return false;
}

int sock_wait(struct sock_interrupt *interrupt, int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = fd, .events = events}, {.fd = interrupt->wake_fd, .events = POLLIN}};
        int timeout_ms = sock_left_ms(deadline_ns);
        int n;

        if (is_interrupted(interrupt))
            return CLIENT_E_INTERRUPTED;
        n = poll(fds, ARRAY_SIZE(fds), timeout_ms);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && fds[1].revents && is_woken(interrupt, fds[1].revents))
            return CLIENT_E_INTERRUPTED;
        if (n > 0 && fds[0].revents)
            return 0;
        if (sock_left_ms(deadline_ns) == 0)
            return is_interrupted(interrupt) ? CLIENT_E_INTERRUPTED : CLIENT_E_TIMEOUT;
    }
}
