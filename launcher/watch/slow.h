#pragma once

/*
 * Slow ranks of a job, from the share of the last minute that each rank has waited (waits.h): the ranks that the others wait for.
 * Shares of ranks on different nodes can be compared without a comparison of clocks. Pure.
 *
 *   awaited(r) = max(0, median of the shares of the other ranks - share of r), in points of percent
 *
 * The median is the lower one of two, so at least half of the other ranks have waited by so much more than r. If all ranks wait alike,
 * for a data loader or in the bubbles of a pipeline, every value is near 0. In a pipeline with one long stage, the stage stands out.
 *
 * Mark: from SLOW_PERCENT on. A share of 60 looks is off by 6.5 points (standard deviation, at 50 %), so an even rank needs an
 * error of 4.6 deviations for a mark.
 *
 * Line: slow_step() names a rank with SLOW_LINE_PERCENT or more at SLOW_TIMES checks in a row, at most once in SLOW_AGAIN_NS for a
 * rank. Shares with fewer than SLOW_WAITS waits count as 0: a few long waits are no rhythm, and stall.h is about long waits.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hang_rank;

enum {
    SLOW_PERCENT = 30,
    SLOW_LINE_PERCENT = 50,
    SLOW_TIMES = 3,
    SLOW_WAITS = 8,
    SLOW_RANKS = 32, /* that can have a line at a time */
};
#define SLOW_CHECK_NS UINT64_C(20000000000)
#define SLOW_AGAIN_NS UINT64_C(600000000000)

struct slow_rank {
    int rank, n_times; /* checks in a row; 0: the entry is empty */
    uint64_t slow_ns;  /* the last of these checks */
    uint64_t line_ns;  /* 0: no line so far */
};

/* Zeroed at the begin of a generation. */
struct slow {
    uint64_t checked_ns; /* last check; 0: there was none */
    struct slow_rank ranks[SLOW_RANKS];
    int n_slow;      /* ranks with SLOW_TIMES checks in a row */
    int32_t percent; /* awaited, of the rank with a line */
};

/* Of the shares of all ranks with a known share: the awaited percent of a rank with such a share; -1 for a single rank. */
void slow_sort(int32_t *shares, size_t n);
int32_t slow_awaited(const int32_t *sorted, size_t n, int32_t share);

bool slow_is_due(const struct slow *s, uint64_t now_ns);

/* ranks: of all nodes, in any order. Returns the rank to print a line about; NULL: no line, or the check is not due. */
const struct hang_rank *slow_step(struct slow *s, uint64_t now_ns, const struct hang_rank *ranks,
                                  size_t n_ranks);

/* "slow: the other ranks have waited for rank 5 on host-b (sleeps) for 61 % of the last minute": at most size - 1 bytes. */
void slow_text(const struct slow *s, const struct hang_rank *rank, char *out, size_t size);
