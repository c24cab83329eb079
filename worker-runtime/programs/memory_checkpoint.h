#pragma once

/*
 * The in-memory checkpoint: the training state in memory that crun keeps for each rank
 * (crw_memory_open()), so that a rank that failed costs no step.
 *
 * Parameters and optimizer state are the same on all ranks, so each rank of a host writes its part of
 * them alone: a commit copies one part in local_world_size instead of everything. What differs between
 * ranks (the position with its sums, the running statistics) each writes whole.
 */

#include <stdbool.h>
#include <stdint.h>

#include "worker-runtime/programs/recovery.h"

struct trainer;
struct crw_memory;

struct memory_checkpoint {
    struct crw_memory *memory; /* NULL: the launcher keeps none, and training goes on without */
    int part, n_parts;
    size_t begin, count; /* of this rank's part of each arena, in floats */
    uint8_t *own;        /* scratch: what is this rank's own, twice */
};

/* Call it once the state exists. 0, also where the launcher keeps no memory; -1: malloc() failed. */
int memory_checkpoint_open(struct trainer *t);
void memory_checkpoint_close(struct memory_checkpoint *c);

/* The number of the trainer's state: it grows with every commit. */
int64_t memory_checkpoint_number(const struct trainer *t);

/* Saves the state; call it after every committed step. */
void memory_checkpoint_commit(struct trainer *t);

/* What this rank can contribute to a recovery. alive: this process still has its state. */
struct recovery_offer memory_checkpoint_offer(const struct trainer *t, bool alive);

/*
 * Brings all ranks into the chosen state, which is alive or in memory. Collective. 0 or the failed
 * collective's result.
 */
int memory_checkpoint_restore(struct trainer *t, const struct recovery_choice *choice,
                              const struct recovery_offer *mine);
