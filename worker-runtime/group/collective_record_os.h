#pragma once

/*
 * The record of a group's collectives in the memory that crun lends to this rank (proto/worker_memory.h): how many this rank
 * has begun, and which one it is in. crun compares the ranks when the job hangs. Writing it costs a few stores; where there
 * is no such memory, or no record left, only the number is counted, on which the names of further groups depend.
 *
 * begin and end come from one thread at a time: the collectives of a group run one after the other.
 */

#include "proto/worker_memory.h"

#include <stdbool.h>
#include <stdint.h>

struct collective_record {
    uint64_t group, number;
    struct worker_collective *at; /* NULL: none */
};

/* The name of the group of all ranks that is the n-th one of each process. */
uint64_t collective_record_world(int n);

/* The name of a group that is made in the present collective of this one: the same on all its ranks. */
uint64_t collective_record_below(const struct collective_record *r);

/* The number of the group's collectives begins at 0. */
void collective_record_init(struct collective_record *r, uint64_t group, int n_ranks, bool is_world);
/* The record is free again. Zeroed is fine. */
void collective_record_finish(struct collective_record *r);

void collective_record_begin(struct collective_record *r, enum worker_collective_kind kind);
void collective_record_end(struct collective_record *r);
