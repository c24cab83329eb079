#pragma once

/*
 * Scope cleanup: locals release themselves, and are handed over with steal_*().
 */

#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((__cleanup__(fn)))

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
    if (*fd >= 0)
        (void)close(*fd); /* nothing can be done about it here */
}

/* Leaves -1 behind. */
static inline void close_fd(int *fd)
{
    cleanup_close(fd);
    *fd = -1;
}

/* Both ends of a pipe or of a pair of sockets. */
static inline void cleanup_close_ends(int (*ends)[2])
{
    cleanup_close(&(*ends)[0]);
    cleanup_close(&(*ends)[1]);
}

static inline int steal_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

/* Evaluates to the pointer and leaves NULL behind. */
#define steal_ptr(p)                                                                                         \
    (__extension__({                                                                                         \
        __typeof__(p) _taken = (p);                                                                          \
        (p) = NULL;                                                                                          \
        _taken;                                                                                              \
    }))

#define _cleanup_free_ _cleanup_(cleanup_free)
#define _cleanup_close_ _cleanup_(cleanup_close)
#define _cleanup_close_ends_ _cleanup_(cleanup_close_ends)
