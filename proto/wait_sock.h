#pragma once

/*
 * Blocking with an end: every wait for a descriptor here has a deadline, and the caller may have it broken
 * off from outside. Deadlines are times of CLOCK_MONOTONIC in nanoseconds.
 */

#include <stdint.h>

int64_t sock_now_ns(void);

/* timeout_ms from now; INT64_MAX is far enough for the largest int. */
int64_t sock_deadline_ns(int timeout_ms);

/* Rounded up, or the last millisecond would be spent spinning. */
int sock_left_ms(int64_t deadline_ns);

/*
 * Waits until one of the poll() events (or an error) is there on fd; fd -1: for the time alone. wake_fd: readable, or closed at
 * the other end: leave; -1: none. 0, CLIENT_E_TIMEOUT, CLIENT_E_INTERRUPTED, -errno.
 */
int sock_wait(int wake_fd, int fd, short events, int64_t deadline_ns);
