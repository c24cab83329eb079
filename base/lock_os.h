#pragma once

/* A mutex held until the end of a block, on each way out of the block. Inline, as time.h. */

#include <pthread.h>

#include "base/cleanup.h"

static inline pthread_mutex_t *lock_take(pthread_mutex_t *lock)
{
    (void)pthread_mutex_lock(lock); /* cannot fail on an initialised mutex */
    return lock;
}

static inline void lock_release(pthread_mutex_t *const *held)
{
    (void)pthread_mutex_unlock(*held); /* cannot fail: held */
}

/* At most one in a block. A return value is computed with the lock held. */
#define hold_lock(lock)                                                                                      \
    _cleanup_(lock_release) __attribute__((unused)) pthread_mutex_t *_held_lock = lock_take(lock)
