#pragma once

/*
 * A token bucket for log lines: any client can cause them, so only so many a second are written, and the next one that is
 * written is preceded by the number of those that were left out. Zeroed: full.
 */

#include <stdbool.h>
#include <stdint.h>

struct log_tokens {
    uint64_t full_ns;    /* when the bucket will be full again */
    uint64_t suppressed; /* lines since the last one that was allowed */
};

/* A line that wants to be written at now_ns: per_s a second are, and up to burst at once after a pause. *ret_left_out: lines left
 * out since the last one that was allowed. */
static inline bool log_tokens_take(struct log_tokens *t, uint64_t now_ns, unsigned per_s, unsigned burst,
                                   unsigned long long *ret_left_out)
{
    uint64_t line_ns = UINT64_C(1000000000) / per_s;
    uint64_t full_ns = (t->full_ns > now_ns ? t->full_ns : now_ns) + line_ns;

    if (full_ns > now_ns + burst * line_ns) {
        t->suppressed++;
        return false;
    }
    t->full_ns = full_ns;
    *ret_left_out = t->suppressed;
    t->suppressed = 0;
    return true;
}
