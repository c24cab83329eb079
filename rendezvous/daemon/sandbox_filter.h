#pragma once

/*
 * The system calls that a daemon needs once it listens, as a program for the kernel's seccomp filter. A list of what is
 * allowed: what is on no list fails with EPERM, and starting or inspecting another process ends the daemon, as no
 * code of it does that.
 *
 * No I/O: it only writes the program. Numbers of calls are those of the machine that it is compiled for.
 */

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sandbox_calls {
    int pid;    /* signals go to this process alone */
    bool dials; /* it opens connections of its own, over IPv4 and IPv6 */
    bool has_metrics;
};

enum { SANDBOX_FILTER_MAX = 1024 };

/* Instructions written; 0: this architecture has no list. */
size_t sandbox_filter_write(struct sock_filter to[SANDBOX_FILTER_MAX], const struct sandbox_calls *calls);
