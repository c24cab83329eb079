#pragma once

/*
 * The training state in the memory that crun holds for each rank (crw_memory_open()), and the way back.
 *
 * Parameters and optimizer state are the same on all ranks, so each rank of a host writes its part of them alone:
 * with every commit a copy of one part in local_world_size, not of all. What is a rank's own (the position with its
 * sums, running statistics) it writes whole.
 */

#include <stdbool.h>
#include <stdint.h>

#include "worker-runtime/programs/recovery.h"

struct trainer;
struct crw_memory;

struct held {
    struct crw_memory *memory; /* NULL: nobody holds any, training goes on without */
    int part, n_parts;
    uint8_t *own; /* scratch: what is this rank's own */
};

/* Once the state exists. 0, also where there is no such memory; -1 without memory of the usual kind. */
int held_open(struct trainer *t);
void held_close(struct held *h);

/* The number of the state that the trainer is in. */
int64_t held_number(const struct trainer *t);

/* A commit: the state is to be found again from now on. */
void held_commit(struct trainer *t);

/* alive: this process goes on with its state. */
struct recovery_offer held_offer(const struct trainer *t, bool alive);

/*
 * Brings all ranks into the chosen state, which is alive or in memory. Collective. 0 or the failed collective's
 * result.
 */
int held_restore(struct trainer *t, const struct recovery_choice *choice, const struct recovery_offer *mine);
