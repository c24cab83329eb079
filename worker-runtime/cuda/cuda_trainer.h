#pragma once

/*
 * Training on one device: the counterpart of crw_model and crw_optimizer. Inside of the CUDA plugin; the rest of the
 * library sees struct backend_trainer in backend_os.h and calls the functions below.
 *
 * cuda_trainer.c makes the memory, moves state in and out and waits; cuda_step.c queues the work of a step.
 *
 * Streams: compute has gradients and changes of the state in order; side makes gradients of weights beside it; comm
 * reduces gradient buckets as they become ready; copy takes staged state to the host, and waits for changes of the state only, never for a collective. State
 * (counters, parameters, optimizer, running statistics) is one piece of memory, so that staging is a copy on
 * the device. The next change of the state waits for the copy. A staged state is handed out only under the number of the step that the
 * device has counted.
 *
 *   IDLE -- step(last) --> REDUCING -- wait --> REDUCED -- end_step --> IDLE
 *
 * In REDUCING the compute stream may hang in a collective; nothing is queued behind it. With reduces_on_host there is no
 * collective on the device: comm copies the buckets to the host.
 */

#include <cuda_runtime_api.h>

#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/cuda/cuda_blas.h"
#include "worker-runtime/kernels/cuda/kernels.h"
#include "worker-runtime/model/model.h"

enum { CUDA_BUCKETS_MAX = 64, CUDA_STATES_MAX = 2, CUDA_GRAPHS_MAX = 4 };

enum cuda_phase { CUDA_IDLE, CUDA_REDUCING, CUDA_REDUCED };

/* What a step of the model has on the device. */
struct cuda_layer {
    const struct model_step *plan;
    struct cuda_blas *blas; /* the trainer's */
    const float *x;
    float *y, *dy; /* dy: NULL where no layer before it has parameters */
    float *dx;     /* the layer before's dy, or NULL */
    float *weight, *bias, *d_weight, *d_bias;
    struct cuda_norm norm;
    float *running_mean, *running_var;
    int64_t *n_batches_tracked;
    uint8_t *which;
    float *centred;
};

/* A range of the gradient arena that is reduced at once, and after which layer's backward pass it is ready.
 */
struct cuda_bucket {
    size_t begin, count;
    size_t layer;
    cudaEvent_t ready, reduced;
};

/* A piece of the state: where it lies, and the host's copy. */
struct cuda_part {
    size_t offset, n_bytes;
    void *host;
};

/* What the host learns of a step's gradients. */
struct cuda_progress {
    struct cuda_tally tally;
    struct cuda_gradient_check check;
};

/* The gradients of a batch of n samples, captured. */
struct cuda_step_graph {
    int n;
    cudaGraphExec_t exec;
};

struct cuda_data {
    void *inputs, *targets;
    bool bytes;        /* inputs are bytes, and the table has their values */
    uint32_t *numbers; /* 0, 1, 2, ... */
    uint32_t n_items;
};

/* Memory, streams and events of a trainer, in the order of their creation. */
struct cuda_owned {
    enum cuda_owned_kind {
        CUDA_OWNED_MEMORY,
        CUDA_OWNED_HOST_MEMORY,
        CUDA_OWNED_STREAM,
        CUDA_OWNED_EVENT
    } kind;
    void *thing;
};

struct backend_trainer {
    const struct crw_model *model;
    struct backend_trainer_options options;
    struct cuda_blas *blas; /* NULL: all products are libcrw's own */
    char products[CUDA_BLAS_NAME_SIZE + 64];

    struct cuda_queue q, side;
    bool side_is_busy; /* it has work that compute does not follow yet */
    cudaStream_t comm, copy;
    cudaEvent_t forked, side_done;
    enum cuda_phase phase;
    cudaEvent_t reduced, committed; /* the last step's gradients; the last change of the state */
    cudaEvent_t snapped, staged;    /* the state copied on the device; and to the host */
    cudaEvent_t evaluated;
    bool staging;

    uint8_t *state, *snapshot, *host_state; /* n_state_bytes: live, staged, on the host */
    size_t n_state_bytes;
    struct cuda_part *parts; /* behind the counters, which are the first thing in the state */
    size_t n_parts;
    struct cuda_commit *commit;
    /* Arenas of n_floats: the model's tensors in its order, each from a multiple of 256 bytes on, as products by cuBLASLt
     * want it; the floats between two tensors are 0. */
    float *parameters, *gradients, *states[CUDA_STATES_MAX];
    size_t n_floats;
    uint8_t *statistics; /* accumulates: a copy of what the state has from here on, the model's buffers */
    size_t statistics_offset;
    float *sums; /* of the gradients of a step's batches; the gradients themselves where each has only one */
    float *host_sums; /* reduces_on_host: the sums on their way to the other ranks and back; else NULL */

    struct cuda_layer *layers;
    struct cuda_bucket buckets[CUDA_BUCKETS_MAX];
    int reducer_failed; /* the reducer's result */
    size_t n_buckets;
    float *x, *raw; /* the batch as the first layer reads it; as it is stored, if that differs */
    void *targets;
    size_t target_bytes; /* of a sample */
    int n_losses_of_sample;
    uint8_t *correct;
    float *losses, *table;
    uint32_t *list;
    size_t n_listed, list_capacity;           /* n_listed: not used by a step yet */
    int n_pending_samples, n_pending_batches; /* of the step being queued */
    size_t n_step_samples;                    /* of the step whose gradients are in flight or there */
    struct cuda_data data[BACKEND_DATA_COUNT];

    struct cuda_optimizer_options *device_options, *host_options;
    struct cuda_progress *progress; /* the host's memory: the device writes it, and reads a few bytes of it */
    struct cuda_tally *evaluation, *host_evaluation;
    bool checked; /* gradients are looked at before they are taken */

    struct cuda_step_graph
        graphs[CUDA_GRAPHS_MAX];  /* they hold collectives: made and launched between the reducer's */
    size_t n_graphs;              /* enter and leave, destroyed before its communicator */
    cudaGraphExec_t commit_graph; /* the change of the state, of any step; NULL: not captured yet */

    struct cuda_owned *owned;
    size_t n_owned;
};

/* "what: CUDA's words", as -EIO. */
int cuda_fail(cudaError_t error, const char *what);

/* cuda_step.c. Queues the gradients of a batch of n samples; last: and their sum over the ranks, and the check. Steps
 * of one batch are captured once for each of the first CUDA_GRAPHS_MAX sizes and replayed from then on. */
cudaError_t cuda_step_queue(struct backend_trainer *t, int n, bool last);
/* Queues the change of the state by the gradients. */
cudaError_t cuda_step_commit(struct backend_trainer *t);
/* Forward pass over n samples from number `first` of the evaluation set, and their tally on top. */
cudaError_t cuda_step_evaluate(struct backend_trainer *t, uint32_t first, int n);

int cuda_trainer_create(const struct backend_trainer_options *options, struct backend_trainer **ret);
void cuda_trainer_destroy(struct backend_trainer *t);
const char *cuda_trainer_products(const struct backend_trainer *t);
int cuda_trainer_set_data(struct backend_trainer *t, enum backend_data which,
                          const struct crw_samples *samples);
int cuda_trainer_start(struct backend_trainer *t, const uint32_t *list, size_t count, uint64_t cursor);
int cuda_trainer_upload(struct backend_trainer *t, uint64_t steps);
int cuda_trainer_set_lr(struct backend_trainer *t, double lr);
int cuda_trainer_step(struct backend_trainer *t, int n, bool last);
int cuda_trainer_wait(struct backend_trainer *t, int timeout_ms, struct crw_trained *ret);
int cuda_trainer_end_step(struct backend_trainer *t, bool take);
float *cuda_trainer_gradients(struct backend_trainer *t, size_t *ret_count);
void cuda_trainer_reduced(struct backend_trainer *t);
int cuda_trainer_stage(struct backend_trainer *t);
int cuda_trainer_download(struct backend_trainer *t, int timeout_ms, uint64_t steps);
int cuda_trainer_evaluate(struct backend_trainer *t, uint32_t first, uint32_t count, int timeout_ms,
                          struct crw_trained *ret);

/* For the communicator, with its lock held, which is also held between enter and leave. */
bool cuda_trainer_is_reducing(struct backend_trainer *t);
/* False: there were none. */
bool cuda_trainer_forget_graphs(struct backend_trainer *t);
