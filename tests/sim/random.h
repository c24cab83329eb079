#pragma once

/* Random numbers of a simulation: splitmix64, so that a seed is the whole state. */

#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_u64(struct random *r)
{
    uint64_t x = r->state += UINT64_C(0x9E3779B97F4A7C15);

    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* From low to high, both included. */
static inline uint64_t random_between(struct random *r, uint64_t low, uint64_t high)
{
    return low + random_u64(r) % (high - low + 1);
}

static inline bool random_percent(struct random *r, unsigned percent)
{
    return random_u64(r) % 100 < percent;
}
