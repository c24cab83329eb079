#pragma once

/* The time since some moment in the past, for measurements and time limits. */

#include <time.h>

static inline double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline double now_ms(void)
{
    return now_s() * 1e3;
}
