#pragma once

/*
 * Everything that a snapshot of a training run holds, and the way into one and back.
 *
 * Names in the file: model.<parameter>, optim.<parameter>.<state>, buffer.<buffer>; the counters are
 * strings in its metadata.
 */

#include <stddef.h>
#include <stdint.h>

#include "worker-runtime/crw.h"

/* Where in the training a state stands. The sums belong to the epoch in progress. */
struct train_position {
    uint64_t step;     /* optimizer steps taken */
    uint64_t epoch;    /* finished epochs */
    uint64_t consumed; /* samples of the current epoch that all ranks together have used */
    uint64_t batches;  /* of the current epoch, by rank 0 */
    double loss_sum;   /* rank 0's losses over these batches */
    double loss_all_sum;
};

enum { RECIPE_MAX = 20, RECIPE_VALUE_SIZE = 64 };

/* What must be the same for a snapshot to be continued, besides the network itself: in words, under the names
 * they have in the snapshot. */
struct train_recipe {
    struct {
        const char *key;
        char value[RECIPE_VALUE_SIZE];
    } entries[RECIPE_MAX];
    size_t n;
};

void recipe_add(struct train_recipe *recipe, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Batch norm's running statistics change in the forward pass, the parameters only in the optimizer. A step
 * that a peer's death cuts off between the two must leave no trace, so the statistics are copied to
 * `committed` when the step is complete, and snapshots hold that copy.
 */
struct train_state {
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct train_position position;
    struct train_recipe recipe;
    struct crw_tensor *tensors; /* all of the above's arrays */
    size_t n_tensors;
    char *names;        /* memory of the tensors' names */
    uint8_t *committed; /* the model's buffers after the last complete step, one behind the other */
    uint8_t *received;  /* the same of another rank, while they come */
};

/* Borrows model and optimizer. 0 or -ENOMEM. */
int state_create(struct train_state *ret, struct crw_model *model, struct crw_optimizer *optimizer,
                 const struct train_recipe *recipe);
void state_finish(struct train_state *s);

/* Of the running statistics. */
size_t state_committed_bytes(const struct train_state *s);

/* The tensors and `committed` have been filled in from elsewhere: the model and the optimizer follow. */
void state_restored(struct train_state *s, uint64_t optimizer_steps);

/* A step is complete: its running statistics belong to the state from now on. */
void state_commit(struct train_state *s);

/* Starts saving the state; world_size and batch_size are kept for information. */
int state_save(struct train_state *s, struct crw_snapshots *snapshots, int world_size, uint32_t batch_size);

/*
 * Fills the state from the newest valid snapshot of the folder. CRW_E_NOT_FOUND: there is none, the state
 * is as it was. CRW_E_MISMATCH: of another network or recipe; error[0..n) names the difference.
 */
int state_load(struct train_state *s, const char *folder, void (*warn)(void *data, const char *sentence),
               void *warn_data, char *error, size_t n);

/* All ranks get the committed running statistics of rank `from`. Collective; 0 or its result: nothing has changed. */
int state_broadcast_statistics(struct train_state *s, struct crw_group *group, int from);

/* All ranks get the state of rank `from`. Collective; 0 or its result. */
int state_broadcast(struct train_state *s, struct crw_group *group, int from);
