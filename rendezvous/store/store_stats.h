#pragma once

/*
 * Counts of a store's requests and how long they took to execute, for metrics. The time is taken once for all requests of
 * one read and divided by their number: two looks at the clock for each read, and one increment for each request. Pure.
 */

#include <stdint.h>

#include "proto/wire.h"

struct metrics_text;

/* Bounds: 1 us, 4 us, ... 1 s (each four times the one before), and what is longer. */
enum { STORE_STATS_BUCKETS = 12 };

struct store_stats {
    uint64_t n_done[WIRE_OP_COUNT];
    uint64_t n_within[STORE_STATS_BUCKETS]; /* not summed up: each request in one bucket */
    double seconds;
};

static inline void store_stats_count(struct store_stats *s, enum wire_op op)
{
    s->n_done[op]++;
}

/* n requests took ns together. */
void store_stats_time(struct store_stats *s, uint64_t n, uint64_t ns);

/* crun_store_operations_total and crun_store_operation_seconds. */
void store_stats_write(const struct store_stats *s, struct metrics_text *m);
