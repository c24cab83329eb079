#pragma once

/*
 * Training on a GPU, for programs on crw.h. An experiment: this has run on an emulation of CUDA and NCCL alone. Functions,
 * structures and values change in any release until it has run on GPUs; the symbols have the version CRW_EXPERIMENTAL. Link
 * a program again when libcrw is another one.
 *
 * Data set, model, optimizer and gradients live on the device. A step has two halves: batch, forward, loss, backward and the
 * sum over the ranks by NCCL; then, when all ranks have agreed that theirs is complete, the optimizer. A step changes the
 * state all at once, or not at all when a peer fails in it. Model and optimizer of the options are the host's copy of that
 * state, which changes only when the program asks for it.
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

/* GPUs that this process may use; 0: there are none; negative: there are, and they cannot be used (the driver is too old,
 * there is no plugin for it, ...). *ret_why is the reason, valid until this thread's next call; it may be NULL. */
CRW_EXPORT int crw_device_count(const char **ret_why);

struct crw_trainer;

/* The losses of crw_model_nll_loss(), crw_model_cross_entropy_loss() and crw_model_mse_loss(). */
enum crw_loss { CRW_NLL, CRW_CROSS_ENTROPY, CRW_MSE, CRW_LOSS_COUNT };

/* How matrix products are made: as given, or with operands rounded to tf32 or bf16 for the tensor cores. */
enum crw_products { CRW_PRODUCTS_F32, CRW_PRODUCTS_TF32, CRW_PRODUCTS_BF16, CRW_PRODUCTS_COUNT };

/* What averages gradients over the ranks: NCCL between the devices; or crw_all_reduce() between the hosts, which needs no
 * NCCL, and has the same bits on all ranks and in each run with the same placement of ranks. */
enum crw_reduction { CRW_REDUCTION_NCCL, CRW_REDUCTION_HOST, CRW_REDUCTION_COUNT };

struct crw_trainer_options {
    struct crw_group *group;         /* gradients are averaged over it */
    struct crw_model *model;         /* its batch size is the largest; must outlive the trainer, as must */
    struct crw_optimizer *optimizer; /* this; CRW_SGD, CRW_ADAMW or CRW_ADADELTA of the model's size */
    enum crw_loss loss;
    const int64_t *ignore_index;  /* as the losses take it, read once; NULL: CRW_IGNORE_INDEX */
    enum crw_reduction reduction; /* the same on all ranks */
    enum crw_products products;
    double clip_norm;   /* gradients are scaled down to it; 0: not at all */
    bool accumulates;   /* steps may be of several batches */
    bool oversubscribe; /* local ranks may share a GPU, for tests; else each has its own */
    bool nccl_defaults; /* set NCCL's variables as below, where they are not set */
    int timeout_ms;     /* of connecting, and of a step; 0: five minutes */
};

/*
 * Collective. Takes the GPU of this rank's number on its host. nccl_defaults: sets NCCL_DEBUG=WARN,
 * NCCL_RAS_ENABLE=0 and, on one host, NCCL_SOCKET_IFNAME=lo. oversubscribe: sets what NCCL needs for a
 * shared GPU. Without both, and with CRW_REDUCTION_HOST, no variable is changed. CRW_E_NOT_FOUND: no GPU, no plugin, no NCCL.
 * CRW_E_ARGUMENT, CRW_E_PEER, CRW_E_TIMEOUT, -EIO: the device refused.
 */
CRW_EXPORT int crw_trainer_create(const struct crw_trainer_options *options, struct crw_trainer **ret);
CRW_EXPORT void crw_trainer_destroy(struct crw_trainer *t);
/* What sums gradients, and how fast it was when the ranks connected; "" for one rank. Valid as long as the trainer. */
CRW_EXPORT const char *crw_trainer_transport(const struct crw_trainer *t);
/* The library that computes matrix products, with version and path, or why it is libcrw alone. Valid as long as the
 * trainer. */
CRW_EXPORT const char *crw_trainer_products(const struct crw_trainer *t);

/* A data set to be copied to the device: inputs in PyTorch's order, floats, or bytes that
 * table maps to floats. Targets: as the losses take them, an int64_t for each sample, its class, or floats for
 * CRW_MSE. */
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
/* And back: the state behind the last step committed. Waits for it, but not for gradients in flight.
 * CRW_E_MISMATCH: the device has the state of another step than the optimizer counts, and the host's copy
 * is as it was. */
CRW_EXPORT int crw_trainer_save(struct crw_trainer *t);
CRW_EXPORT int crw_trainer_set_lr(struct crw_trainer *t, double lr);

/* An epoch: the numbers of this rank's samples in the order of their use, at most as many as there are. */
CRW_EXPORT int crw_trainer_start(struct crw_trainer *t, const uint32_t *samples, size_t count);
/* Queues the gradients of a batch of the next n of them. last: those of the step are complete, over the
 * batches since the last one, and are summed over the ranks. The state does not change. Batches must be
 * of the same sizes in the same order on all ranks. CRW_E_PEER: a rank failed, and nothing was queued. */
CRW_EXPORT int crw_trainer_step(struct crw_trainer *t, int n, bool last);

struct crw_trained {
    bool finite; /* its loss and all gradients are */
    double loss; /* mean over its batches; of crw_trainer_test(), over the samples */
    double norm; /* of the mean gradient over batches and ranks, before clipping */
    uint64_t n_samples, n_correct;
};

/* Waits for the gradients of a complete step. CRW_E_PEER: a rank failed, and they may be wrong;
 * CRW_E_TIMEOUT. With CRW_REDUCTION_HOST a collective of the group, which averages them; after an error the step is dropped. */
CRW_EXPORT int crw_trainer_wait(struct crw_trainer *t, struct crw_trained *ret);
enum { CRW_COMMIT_VALUES_MAX = 7 };
/*
 * Collective, behind a successful crw_trainer_wait(): where all ranks come here, and all gradients are
 * finite, each takes the step. Queues that and returns; the next crw_trainer_step() may follow at once.
 * values, as many on each rank, become their means over the ranks. *ret_committed false: gradients of
 * some rank were not finite, the step is dropped and its samples are the next step's. CRW_E_PEER,
 * CRW_E_TIMEOUT: a rank did not come, and this one has not taken the step; others may have.
 */
CRW_EXPORT int crw_trainer_commit(struct crw_trainer *t, double *values, size_t count, bool *ret_committed);
/* Test samples [first, first + count), with the running statistics. */
CRW_EXPORT int crw_trainer_test(struct crw_trainer *t, uint32_t first, uint32_t count,
                                struct crw_trained *ret);

#ifdef __cplusplus
}
#endif
