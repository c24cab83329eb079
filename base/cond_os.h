#pragma once

/* Condition variables whose deadlines are times of now_ns(). Inline, as time.h. */

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline void cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes); /* these do not fail on Linux */
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

/* 0, perhaps without a reason, or ETIMEDOUT. The caller holds the lock. */
static inline int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};

    return pthread_cond_timedwait(cond, lock, &until);
}
