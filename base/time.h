#pragma once

/* The clocks of the system, in nanoseconds. Inline: a core that includes this for its types reads no clock. */

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t); /* cannot fail for the clocks named below */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC: for durations and deadlines. It never jumps, and is the same in all processes of a machine. */
static inline uint64_t now_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

/* CLOCK_BOOTTIME: goes on while the machine is suspended. */
static inline uint64_t boot_ns(void)
{
    return clock_read_ns(CLOCK_BOOTTIME);
}

/* CLOCK_MONOTONIC in microseconds, for measurements. */
static inline double now_us(void)
{
    return (double)now_ns() / 1e3;
}

/* Shorter after a signal. */
static inline void sleep_ns(uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

    (void)nanosleep(&t, NULL);
}

/* CLOCK_REALTIME at the moment at which CLOCK_MONOTONIC was at_ns: nanoseconds since 1970. */
static inline int64_t wall_clock_ns(uint64_t at_ns)
{
    return (int64_t)(clock_read_ns(CLOCK_REALTIME) - (now_ns() - at_ns));
}
