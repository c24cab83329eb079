#pragma once

/*
 * Training on a GPU, for programs on crw.h. An experiment: the trainer has run on an emulation of CUDA and NCCL alone. Until
 * the trainer has run on GPUs, functions, structures and values change in any release; the symbols have the version
 * CRW_EXPERIMENTAL. Link a program again after an update of libcrw.
 *
 * Data set, model, optimizer and gradients live on the device. A step has two halves: batch, forward, loss, backward and the
 * sum over the ranks by NCCL; then, when all ranks have agreed that the sum is complete, the optimizer. A step changes
 * the state all at once, or not at all when a peer fails in the step. Model and optimizer of the options are the host's
 * copy of the state; the copy changes only at the program's request.
 *
 * Conventions are those of crw.h.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CRW_EXPORT __attribute__((visibility("default"))) /* as in crw.h */

struct crw_group;
struct crw_model;
struct crw_optimizer;

/* Number of GPUs that the process may use; 0: no GPU; negative: there are GPUs, but none can be used (the driver is too
 * old, there is no plugin, ...). *ret_why is the reason, valid until the thread's next call; ret_why may be NULL. */
CRW_EXPORT int crw_device_count(const char **ret_why);

struct crw_trainer;

/* The losses of crw_model_nll_loss(), crw_model_cross_entropy_loss() and crw_model_mse_loss(). */
enum crw_loss { CRW_NLL, CRW_CROSS_ENTROPY, CRW_MSE, CRW_LOSS_COUNT };

/* How matrix products are made: as given, or with operands rounded to tf32 or bf16 for the tensor cores. */
enum crw_products { CRW_PRODUCTS_F32, CRW_PRODUCTS_TF32, CRW_PRODUCTS_BF16, CRW_PRODUCTS_COUNT };

/* Way of averaging gradients over the ranks: NCCL between the devices; or crw_all_reduce() between the hosts, without
 * NCCL, with the same bits on all ranks and in each run with the same placement of ranks. */
enum crw_reduction { CRW_REDUCTION_NCCL, CRW_REDUCTION_HOST, CRW_REDUCTION_COUNT };

struct crw_trainer_options {
    struct crw_group *group;         /* the ranks that average gradients */
    struct crw_model *model;         /* the model's batch size is the largest; must outlive the trainer */
    struct crw_optimizer *optimizer; /* likewise; CRW_SGD, CRW_ADAMW or CRW_ADADELTA of the model's size */
    enum crw_loss loss;
    const int64_t *ignore_index;  /* as for the losses, read once; NULL: CRW_IGNORE_INDEX */
    enum crw_reduction reduction; /* the same on all ranks */
    enum crw_products products;
    double clip_norm;   /* bound of the norm of gradients; 0: no bound */
    bool accumulates;   /* steps may be of several batches */
    bool oversubscribe; /* local ranks may share a GPU, for tests; else a GPU for each */
    bool nccl_defaults; /* set NCCL's unset variables as below */
    int timeout_ms;     /* of connecting, and of a step; 0: five minutes */
};

/*
 * Collective. Takes the GPU of this rank's number on its host. nccl_defaults: sets NCCL_DEBUG=WARN,
 * NCCL_RAS_ENABLE=0 and, on one host, NCCL_SOCKET_IFNAME=lo. oversubscribe: sets NCCL's variables for
 * a shared GPU. Without both, and with CRW_REDUCTION_HOST, no variable is changed. CRW_E_NOT_FOUND: no GPU, no plugin, no NCCL.
 * CRW_E_ARGUMENT, CRW_E_PEER, CRW_E_TIMEOUT, -EIO: the device refused.
 */
CRW_EXPORT int crw_trainer_create(const struct crw_trainer_options *options, struct crw_trainer **ret);
CRW_EXPORT void crw_trainer_destroy(struct crw_trainer *t);
/* The library that averages gradients, and its speed when the ranks connected; "" for a world of size 1. Valid as long as
 * the trainer. */
CRW_EXPORT const char *crw_trainer_transport(const struct crw_trainer *t);
/* The library that computes matrix products, with version and path, or the reason for libcrw alone. Valid as long as
 * the trainer. */
CRW_EXPORT const char *crw_trainer_products(const struct crw_trainer *t);

/* A data set to be copied to the device: inputs in PyTorch's order, floats, or bytes and a table from bytes to floats.
 * Targets as for the losses: an int64_t for the class of each sample, or floats for CRW_MSE. */
struct crw_samples {
    const void *inputs;
    const float *table; /* NULL: inputs are floats */
    const void *targets;
    uint32_t n;
};

/* Once each, training first; test may be NULL. CRW_E_ARGUMENT: a target is neither a class nor ignore_index. */
CRW_EXPORT int crw_trainer_set_data(struct crw_trainer *t, const struct crw_samples *training,
                                    const struct crw_samples *test);
/* The host's copy of the state to the device. */
CRW_EXPORT int crw_trainer_load(struct crw_trainer *t);
/* And back: the state behind the last step committed. Waits for the step, but not for gradients in flight.
 * CRW_E_MISMATCH: the device has the state of another step than the optimizer counts, and the host's copy
 * stays as before. */
CRW_EXPORT int crw_trainer_save(struct crw_trainer *t);
CRW_EXPORT int crw_trainer_set_lr(struct crw_trainer *t, double lr);

/* An epoch: the numbers of this rank's samples in order of use, at most as many as the training samples. */
CRW_EXPORT int crw_trainer_start(struct crw_trainer *t, const uint32_t *samples, size_t count);
/* Queues the gradients of a batch of the next n samples. last: the batch completes the step; the gradients of all
 * batches since the step before are summed over the ranks. The state does not change. Batches must be of the same
 * sizes in the same order on all ranks. CRW_E_PEER: a rank failed, and nothing was queued. */
CRW_EXPORT int crw_trainer_step(struct crw_trainer *t, int n, bool last);

struct crw_trained {
    bool finite; /* the loss and all gradients are finite */
    double loss; /* mean over the step's batches; of crw_trainer_test(), over the samples */
    double norm; /* of the mean gradient over batches and ranks, before clipping */
    uint64_t n_samples, n_correct;
};

/* Waits for the gradients of a complete step. CRW_E_PEER: a rank failed, and the gradients may be wrong; CRW_E_TIMEOUT.
 * With CRW_REDUCTION_HOST a collective of the group, which averages the gradients; after an error the step is dropped. */
CRW_EXPORT int crw_trainer_wait(struct crw_trainer *t, struct crw_trained *ret);
enum { CRW_COMMIT_VALUES_MAX = 7 };
/*
 * Collective, behind a successful crw_trainer_wait(): where all ranks call crw_trainer_commit(), and all gradients are
 * finite, each rank takes the step. Queues the change of the state and returns; the next crw_trainer_step() may follow
 * at once. values, as many on each rank, are replaced by the means over the ranks. *ret_committed false: gradients of
 * some rank were not finite, the step is dropped and its samples belong to the next step. CRW_E_PEER, CRW_E_TIMEOUT: a
 * rank did not call, and the caller has not taken the step; other ranks may have.
 */
CRW_EXPORT int crw_trainer_commit(struct crw_trainer *t, double *values, size_t count, bool *ret_committed);
/* Test samples [first, first + count), with the running statistics. */
CRW_EXPORT int crw_trainer_test(struct crw_trainer *t, uint32_t first, uint32_t count,
                                struct crw_trained *ret);

#ifdef __cplusplus
}
#endif
