#pragma once

/*
 * The training loop's steps on a GPU instead of the CPU. State, samples and gradients live on the device; what the
 * loop, the snapshots and the reports see is the host's copy of the state, fetched when it is asked for.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trainer;
struct device;

/* What a batch did. */
struct device_step {
    uint64_t n_samples, n_batches, consumed;
    double loss, norm;
    uint64_t n_correct;
};

/* Whether --backend asks for a GPU, or auto finds one. -1 with a sentence in t->error: it cannot be had. */
int device_wanted(struct trainer *t, bool *ret_wanted);

/* Collective, behind model, optimizer and samples: 0, or -1 with a sentence in t->error. NULL is fine to destroy. */
int device_create(struct trainer *t, struct device **ret);
void device_destroy(struct device *d);
/* As crw_trainer_transport(). */
const char *device_transport(const struct device *d);
/* As crw_trainer_products(). */
const char *device_products(const struct device *d);

/* The host's copy of the state to the device. 0, or as crw_trainer_load(). */
int device_load(struct device *d);
/* And back. */
int device_fetch(struct device *d);

/* The rest of the epoch that t->state.position is in. */
int device_start_epoch(struct device *d, double lr);
/* Queues the gradients of a step's batches; *ret_more false: the epoch is complete, and nothing was queued. */
int device_queue_step(struct device *d, struct device_step *ret, bool *ret_more);
/* Waits for them. */
int device_wait_for_step(struct device *d, struct device_step *step);
/* As crw_trainer_commit(): collective; values become their means over the ranks, and the state changes. */
int device_commit_step(struct device *d, double *values, size_t count, bool *ret_committed);

/* Test samples [begin, end). */
int device_test(struct device *d, uint32_t begin, uint32_t end, int64_t *ret_n_correct);
