#pragma once

/*
 * Blocking with an end: every wait for a descriptor here has a deadline, and the caller may have it broken
 * off from outside. Deadlines are times of CLOCK_MONOTONIC in nanoseconds.
 */

#include <stdint.h>

/* How a blocked wait is left early. Zeroed with wake_fd -1: never. */
struct sock_interrupt {
    /* Watched beside the socket; -1: none. Without `interrupted`, its being readable is the interrupt. With
     * it, it only means to ask; `interrupted` then reads the descriptor empty, or the wait would spin. */
    int wake_fd;
    /* Nonzero: leave. Asked before each wait and at each wake-up (a signal is one, too). NULL: never. */
    int (*interrupted)(void *data);
    void *data;
};

int64_t sock_now_ns(void);

/* timeout_ms from now; INT64_MAX is far enough for the largest int. */
int64_t sock_deadline_ns(int timeout_ms);

/* Rounded up, or the last millisecond would be spent spinning. */
int sock_left_ms(int64_t deadline_ns);

/*
 * Waits until one of the poll() events (or an error) is there on fd; fd -1: for the time alone.
 * 0, CLIENT_E_TIMEOUT, CLIENT_E_INTERRUPTED, -errno.
 */
int sock_wait(struct sock_interrupt *interrupt, int fd, short events, int64_t deadline_ns);
