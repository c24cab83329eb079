#pragma once

/*
 * The CUDA kernels, as functions that queue work on a stream. Each does for a whole batch what its plain
 * twin in kernels/cpu does for one sample, on the same layouts, except that
 *   - weights of convolutions are read and their gradients written in PyTorch's order [out][in][row][column],
 *   - gradients of a convolution's output have no frame of zeros around them: [n][height][width][stored].
 *
 * All pointers are to device memory unless their comment names the host. Nothing waits; an error is one of the launch.
 * Every sum is made in an order that depends on the shapes only, not on the card and not on the schedule.
 *
 * Matrix products come in three precisions; everything else is fp32, with double where long sums meet.
 */

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"
#include "worker-runtime/kernels/cpu/kernels.h"

/* Ten times the compute capability that the kernels need, for bf16 and tf32 products. */
enum { CUDA_CAPABILITY_MIN = 80 };

/* Floats of scratch memory that kernels of one stream share: 16 MiB. */
enum { CUDA_WORKSPACE_FLOATS = 4 << 20 };

struct cuda_queue {
    cudaStream_t stream;
    float *workspace; /* [CUDA_WORKSPACE_FLOATS], of no other stream */
    enum crw_products precision;
};

/* ---- matrix products ---- */

cudaError_t cuda_linear_forward(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                const float *w, const float *bias, float *y);
/* dw[out][in], db[out]: written, not added to. */
cudaError_t cuda_linear_backward_weights(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                         const float *dy, float *dw, float *db);
cudaError_t cuda_linear_backward_input(const struct cuda_queue *q, int n, int in, int out, const float *dy,
                                       const float *w, float *dx);

/* A relu behind the layer in the same pass. */
cudaError_t cuda_linear_relu_forward(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                     const float *w, const float *bias, float *y);
/* The way back through a relu in front of the layer, whose output x is, in the same pass. */
cudaError_t cuda_linear_relu_backward_input(const struct cuda_queue *q, int n, int in, int out,
                                            const float *dy, const float *w, const float *x, float *dx);

/* sums[n_columns] over the rows of x[n_rows][n_columns]; written. */
cudaError_t cuda_column_sums(const struct cuda_queue *q, int n_rows, int n_columns, const float *x,
                             float *sums);

/* x[n][in_height][in_width][in_stored], y[n][out_height][out_width][out_stored]. */
cudaError_t cuda_conv_forward(const struct cuda_queue *q, int n, const struct conv_shape *s, const float *x,
                              const float *w, const float *bias, float *y);
/* dw, db: written, not added to. */
cudaError_t cuda_conv_backward_weights(const struct cuda_queue *q, int n, const struct conv_shape *s,
                                       const float *x, const float *dy, float *dw, float *db);
cudaError_t cuda_conv_backward_input(const struct cuda_queue *q, int n, const struct conv_shape *s,
                                     const float *dy, const float *w, float *dx);

/* ---- batch normalisation ---- */

/* Of one layer, [stored] each: what a batch was normalised with, and the coefficients of its gradient. */
struct cuda_norm {
    float *mean, *inverse_deviation, *unbiased_variance;
    float *scale, *shift;
    float *a, *b, *c;
};

/* Statistics of x[n_rows][stored]; mean, inverse_deviation, unbiased_variance, scale and shift are written.
 * gamma, beta: [channels]. */
cudaError_t cuda_norm_observe(const struct cuda_queue *q, int n_rows, int channels, int stored,
                              const float *x, const float *gamma, const float *beta,
                              const struct cuda_norm *norm);
/* The same from the running statistics, for evaluation. */
cudaError_t cuda_norm_recall(const struct cuda_queue *q, int channels, int stored, const float *running_mean,
                             const float *running_var, const float *gamma, const float *beta,
                             const struct cuda_norm *norm);
cudaError_t cuda_norm_forward(const struct cuda_queue *q, int n_rows, int stored, const float *x,
                              const struct cuda_norm *norm, bool relu, float *y);
/* dgamma, dbeta [channels] and the coefficients a, b, c for the next. */
cudaError_t cuda_norm_backward_sums(const struct cuda_queue *q, int n_rows, int channels, int stored,
                                    const float *dy, const float *x, const float *y,
                                    const struct cuda_norm *norm, bool relu, float *dgamma, float *dbeta);
cudaError_t cuda_norm_backward_input(const struct cuda_queue *q, int n_rows, int stored, const float *dy,
                                     const float *x, const float *y, const struct cuda_norm *norm, bool relu,
                                     float *dx);

/* Normalisation, relu and 2x2 pooling in one pass; y, which, centred: [n][out_height][out_width][channels].
 */
cudaError_t cuda_norm_relu_pool_forward(const struct cuda_queue *q, int n, const struct pool_shape *s,
                                        const float *x, const struct cuda_norm *norm, float *y,
                                        uint8_t *which, float *centred);
cudaError_t cuda_norm_relu_pool_backward_sums(const struct cuda_queue *q, int n, const struct pool_shape *s,
                                              int channels, const float *dy, const uint8_t *which,
                                              const float *centred, const struct cuda_norm *norm,
                                              float *dgamma, float *dbeta);
cudaError_t cuda_norm_relu_pool_backward_input(const struct cuda_queue *q, int n, const struct pool_shape *s,
                                               const float *dy, const uint8_t *which, const float *x,
                                               const struct cuda_norm *norm, float *dx);

/* ---- elements ---- */

cudaError_t cuda_pool_forward(const struct cuda_queue *q, int n, const struct pool_shape *s, const float *x,
                              float *y, uint8_t *which);
cudaError_t cuda_pool_backward(const struct cuda_queue *q, int n, const struct pool_shape *s, const float *dy,
                               const uint8_t *which, float *dx);
cudaError_t cuda_relu_forward(const struct cuda_queue *q, size_t count, const float *x, float *y);
/* dx may be dy. */
cudaError_t cuda_relu_backward(const struct cuda_queue *q, size_t count, const float *y, const float *dy,
                               float *dx);
/* y[n][channels][n_pixels] = x[n][n_pixels][stored], PyTorch's order of features; and back, the additional
 * channels zero. */
cudaError_t cuda_flatten(const struct cuda_queue *q, int n, int n_pixels, int channels, int stored,
                         const float *x, float *y);
cudaError_t cuda_unflatten(const struct cuda_queue *q, int n, int n_pixels, int channels, int stored,
                           const float *y, float *x);

/* ---- losses and metrics ---- */

cudaError_t cuda_log_softmax_forward(const struct cuda_queue *q, int n, int features, const float *x,
                                     float *y);
cudaError_t cuda_log_softmax_backward(const struct cuda_queue *q, int n, int features, const float *y,
                                      const float *dy, float *dx);
/*
 * log_softmax and the mean negative log-likelihood in one pass: y[n][features] log-probabilities, losses[n],
 * correct[n] (the first largest is the target's), and dx = (softmax - onehot) / rows that count. y and dx may be
 * NULL. A row with a negative target does not count: its loss and its row of dx are 0. A target of `features` or more
 * gives NaN.
 */
cudaError_t cuda_nll(const struct cuda_queue *q, int n, int features, const float *x, const int32_t *targets,
                     float *y, float *losses, uint8_t *correct, float *dx);
/* losses[i] = (y - t)^2, dy = 2 (y - t) / count; dy may be NULL. */
cudaError_t cuda_mse(const struct cuda_queue *q, int count, const float *y, const float *t, float *losses,
                     float *dy);

struct cuda_tally {
    double loss_sum;                                    /* of all */
    double mean_sum;                                    /* of the batches' means */
    uint64_t n_losses, n_counted, n_correct, n_batches; /* n_counted: losses that count */
};

/* Sums up a batch; correct may be NULL, as may targets: all losses count. add: on top of what the tally holds. A batch
 * in which none counts has the mean NaN. */
cudaError_t cuda_tally(const struct cuda_queue *q, int n, const float *losses, const uint8_t *correct,
                       const int32_t *targets, bool add, struct cuda_tally *tally);

/* Both, in one launch where the batch is small. */
cudaError_t cuda_nll_tally(const struct cuda_queue *q, int n, int features, const float *x,
                           const int32_t *targets, float *losses, uint8_t *correct, float *dx, bool add,
                           struct cuda_tally *tally);

/* ---- data ---- */

/*
 * Sample i of the batch is number list[*cursor + i] of the data set: x[n][n_features] = table[pixel], and
 * its label. table: 256 floats, what each byte stands for. cursor may be NULL: 0. labels may be NULL.
 */
cudaError_t cuda_gather(const struct cuda_queue *q, int n, int n_features, const uint8_t *data,
                        const int32_t *labels, const float *table, const uint32_t *list,
                        const uint64_t *cursor, float *x, int32_t *targets);

/* The same for rows of any kind: to[i] = rows[list[*cursor + i]], row_bytes each. cursor may be NULL. */
cudaError_t cuda_gather_rows(const struct cuda_queue *q, int n, size_t row_bytes, const void *rows,
                             const uint32_t *list, const uint64_t *cursor, void *to);

/* sums[i] += g[i] */
cudaError_t cuda_add(const struct cuda_queue *q, size_t count, float *sums, const float *g);

/* ---- the end of a step ---- */

/* Kept on the device so that a captured step follows a changed learning rate. */
struct cuda_optimizer_options {
    struct crw_optimizer_options of;
    double clip_norm; /* gradients are made no longer; 0: as long as they are */
};

/* The part of the state that counts. One in device memory for each trainer. */
struct cuda_commit {
    uint64_t step;   /* steps that were taken */
    uint64_t cursor; /* samples of this rank's list that they used */
    double norm;     /* of the last step's mean gradient, where it was checked */
    int32_t go;      /* the last step's gradients were finite, or nothing checked them */
    float scale;     /* what its summed gradients are multiplied with: mean and clipping */
    union {
        struct sgd_step sgd;
        struct adamw_step adamw;
        struct adadelta_step adadelta;
    } scalars; /* of the step in flight, if go */
};

struct cuda_gradient_check {
    double sum_of_squares;
    int32_t finite;
};

cudaError_t cuda_gradient_check(const struct cuda_queue *q, size_t count, const float *gradients,
                                struct cuda_gradient_check *check);

/* Running statistics of one layer, and what they take in with the step. */
struct cuda_track {
    struct cuda_norm norm;
    float *running_mean, *running_var;
    int64_t *n_batches_tracked;
    int channels;
};

enum { CUDA_TRACKS_MAX = 16 }; /* they travel in a kernel's arguments */

struct cuda_tracks {
    int n;
    struct cuda_track of[CUDA_TRACKS_MAX];
};

/*
 * The first kernel of the change of state: counts the step and makes its scalars. The gradients are sums over n_ranks
 * ranks and over tally->n_batches batches, of tally->n_losses / losses_per_sample samples. check may be NULL unless
 * gradients are clipped; else gradients that are not finite close commit->go, and nothing behind it changes state. tracks, which may be NULL, are taken in if it is
 * open.
 */
cudaError_t cuda_commit_begin(const struct cuda_queue *q, const struct cuda_gradient_check *check,
                              const struct cuda_optimizer_options *options, const struct cuda_tally *tally,
                              int losses_per_sample, int n_ranks, const struct cuda_tracks *tracks,
                              struct cuda_commit *commit);

/* One pass over the whole arena, with gradients commit->scale * g; nothing unless commit->go. States as
 * crw_optimizer_state() orders them, NULL where the kind has none. p, g and the states must be 16-byte aligned. */
cudaError_t cuda_optimizer_step(const struct cuda_queue *q, enum crw_optimizer_kind kind,
                                const struct cuda_commit *commit, size_t count, float *p, const float *g,
                                float *state0, float *state1);

/* to[0..n_bytes) = from, n_bytes a multiple of 4; nothing unless commit->go. */
cudaError_t cuda_copy_committed(const struct cuda_queue *q, const struct cuda_commit *commit, size_t n_bytes,
                                const void *from, void *to);

/* The running statistics take the batch's in; nothing unless commit->go. commit NULL: in any case. */
cudaError_t cuda_norm_track(const struct cuda_queue *q, const struct cuda_commit *commit, int channels,
                            const struct cuda_norm *norm, float *running_mean, float *running_var,
                            int64_t *n_batches_tracked);

#ifdef __cplusplus
}
#endif
