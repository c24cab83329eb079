#pragma once

/*
 * The step from which a generation of workers continues: the newest state with each rank's block whole in the memory of some node.
 * Pure; node 0 chooses for all nodes.
 *
 * A state: the blocks of a step, written in the same generation by all ranks of a world size. A later generation's state is newer,
 * whatever its step: a late writer, a worker of an earlier generation, brings no old state back.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blocks of a step on a node: n ranks from first on. */
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

/* The newest state first, in a state by rank. */
void block_runs_sort(struct block_run *runs, size_t n);

/* Of sorted runs. */
struct snapshot_choice snapshot_choose(const struct block_run *runs, size_t n);

/* Of sorted runs: the place of a rank's block, on the given node if possible, in the lowest tier. NULL: nowhere. */
const struct block_run *snapshot_find(const struct block_run *runs, size_t n,
                                      const struct snapshot_choice *choice, uint32_t rank, int32_t node);

/* The node that keeps copies for node i of n: the next node in the ring with a different failure domain, else the next node; -1: node i is
 * alone. domains: of each node; "": unknown, taken as different from all. */
int32_t snapshot_partner(const char *const *domains, int32_t n, int32_t i);

/* Extends a run by a block of the next rank, or begins a run. False: no room. */
bool block_runs_add(struct block_run *runs, size_t *n, size_t n_max, const struct block_run *block);
