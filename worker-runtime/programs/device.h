#pragma once

/*
 * The training loop's steps on a GPU instead of the CPU. State, samples and gradients live on the device; what the
 * loop, the snapshots and the reports see is the host's copy of the state, fetched when it is asked for.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crw_trainer;
struct step;
struct trainer;

struct device {
    struct trainer *t;
    struct crw_trainer *trainer;

    /* The epoch's samples of this rank, batch by batch. */
    uint32_t *samples;
    struct device_batch {
        int n;
        uint64_t consumed; /* where the batch leaves the epoch */
    } * batches;
    size_t n_batches, next;
    size_t capacity; /* of both, in batches */
};

/* Whether --backend asks for a GPU, or auto finds one. -1 with a sentence in t->error: it cannot be had. */
int device_wanted(struct trainer *t, bool *ret_wanted);

/* Collective, behind model, optimizer and samples: 0, or -1 with a sentence in t->error. NULL is fine to destroy. */
int device_create(struct trainer *t, struct device **ret);
void device_destroy(struct device *d);

/* The rest of the epoch that t->state.position is in. */
int device_start_epoch(struct device *d, double lr);
/* Queues the gradients of a step's batches and counts these in the zeroed s; none: the epoch is complete. */
int device_queue_step(struct device *d, struct step *s);
