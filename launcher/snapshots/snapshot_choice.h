#pragma once

/*
 * Which step a generation of workers continues from: the newest state of which each rank's block is whole in the memory of some node.
 * Pure; node 0 chooses for all nodes from what each node has.
 *
 * A state is the blocks of one step, written in one generation by all ranks of one world size. A state of a later generation is newer,
 * whatever its step: a worker of an earlier generation that still writes (a late writer) cannot bring the state of that generation back.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blocks of one step on one node: n ranks from first on. */
struct block_run {
    uint64_t step;
    uint32_t generation; /* of the writers */
    uint32_t world_size; /* of the writers */
    uint32_t first, n;
    uint32_t tier; /* enum state_tier */
    int32_t node;  /* group rank */
};

struct snapshot_choice {
    bool exists; /* false: no state is whole; the rest is 0 */
    uint64_t step;
    uint32_t generation, world_size;
};

/* Sorts the runs: the newest state first, in a state by rank. */
void snapshot_sort(struct block_run *runs, size_t n);

/* Of sorted runs. */
struct snapshot_choice snapshot_choose(const struct block_run *runs, size_t n);

/* Where the block of a rank is, of sorted runs; a run of that node if there is one, the lower tier first. NULL: nowhere. */
const struct block_run *snapshot_find(const struct block_run *runs, size_t n,
                                      const struct snapshot_choice *choice, uint32_t rank, int32_t node);

/* The node that keeps copies for node i of n: the next one in the ring with another failure domain, else the next one; -1: there is no
 * other node. domains[k]: "" unknown, which differs from none. */
int32_t snapshot_partner(const char *const *domains, int32_t n, int32_t i);

/* Adds a block to runs that are built rank by rank: extends the last run or begins another one. False: no room. */
bool block_runs_add(struct block_run *runs, size_t *n, size_t n_max, const struct block_run *block);
