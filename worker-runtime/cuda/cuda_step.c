/*
 * A training step on the device: the work on each stream, and the two graphs of a step.
 *
 *              gradients                                                            change of the state
 *   compute: gather - forward - loss - backward ............. wait - (check) ||| count - optimizer, statistics
 *   side:                              gradients of weights, beside those of the layer's input on compute
 *   comm:                              each bucket as soon as the bucket is ready
 *
 * At ||| the host of each rank has seen the rank's own gradients complete, and all ranks have agreed that all gradients
 * are complete, before any rank queues the change. A device cannot decide alone: a peer that breaks a collective off
 * sends whatever the peer's buffers hold. The own part of the same collective may then complete with wrong, finite sums
 * and without an error.
 *
 * The gradients of a batch size are captured at the first batch of the size and replayed from then on, for
 * CUDA_GRAPHS_MAX sizes; batches of more sizes are queued piece by piece. The change of the state has a single graph
 * for all sizes.
 *
 * With reduces_on_host comm copies the buckets to the host instead. The host averages and checks the buckets at |||, and
 * the change of the state begins with the copy back.
 *
 * A step of several batches sums the batches' gradients and is reduced behind the last batch. Each batch changes a copy
 * of the running statistics; the change of the state puts the copy into the state.
 */

#include "base/err.h"
#include "worker-runtime/cuda/cuda_trainer.h"

#include <string.h>

static int pixels(const struct activation *a)
{
    return a->height * a->width;
}

/* ---- layers ---- */

static cudaError_t conv_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n, bool training)
{
    return cuda_conv_forward(q, n, &l->plan->conv.shape, l->x, l->weight, l->bias, l->y);
}

static cudaError_t conv_backward_weights(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    return cuda_conv_backward_weights(q, n, &l->plan->conv.shape, l->x, l->dy, l->d_weight, l->d_bias);
}

static cudaError_t conv_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    return l->dx ? cuda_conv_backward_input(q, n, &l->plan->conv.shape, l->dy, l->weight, l->dx)
                 : cudaSuccess;
}

static cudaError_t norm_coefficients(const struct cuda_queue *q, const struct cuda_layer *l, int n,
                                     bool training)
{
    const struct activation *in = &l->plan->in;
    if (!training)
        return cuda_norm_recall(q, in->channels, in->stored, l->running_mean, l->running_var, l->weight,
                                l->bias, &l->norm);
    return cuda_norm_observe(q, n * pixels(in), in->channels, in->stored, l->x, l->weight, l->bias, &l->norm);
}

static cudaError_t norm_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n, bool training)
{
    const struct activation *in = &l->plan->in;
    TRY(norm_coefficients(q, l, n, training));
    return cuda_norm_forward(q, n * pixels(in), in->stored, l->x, &l->norm, l->plan->norm.relu, l->y);
}

static cudaError_t norm_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const struct activation *in = &l->plan->in;
    const int rows = n * pixels(in);
    const bool relu = l->plan->norm.relu;
    TRY(cuda_norm_backward_sums(q, rows, in->channels, in->stored, l->dy, l->x, l->y, &l->norm, relu,
                                l->d_weight, l->d_bias));
    if (l->dx)
        TRY(cuda_norm_backward_input(q, rows, in->stored, l->dy, l->x, l->y, &l->norm, relu, l->dx));
    return cudaSuccess;
}

static cudaError_t norm_relu_pool_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n,
                                          bool training)
{
    TRY(norm_coefficients(q, l, n, training));
    return cuda_norm_relu_pool_forward(q, n, &l->plan->pool, l->x, &l->norm, l->y, l->which, l->centred);
}

static cudaError_t norm_relu_pool_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const struct pool_shape *pool = &l->plan->pool;
    TRY(cuda_norm_relu_pool_backward_sums(q, n, pool, l->plan->in.channels, l->dy, l->which, l->centred,
                                          &l->norm, l->d_weight, l->d_bias));
    if (l->dx)
        TRY(cuda_norm_relu_pool_backward_input(q, n, pool, l->dy, l->which, l->x, &l->norm, l->dx));
    return cudaSuccess;
}

static cudaError_t relu_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n, bool training)
{
    return cuda_relu_forward(q, (size_t)n * l->plan->out.size, l->x, l->y);
}

static cudaError_t relu_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    return l->dx ? cuda_relu_backward(q, (size_t)n * l->plan->out.size, l->y, l->dy, l->dx) : cudaSuccess;
}

static cudaError_t pool_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n, bool training)
{
    return cuda_pool_forward(q, n, &l->plan->pool, l->x, l->y, l->which);
}

static cudaError_t pool_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    return l->dx ? cuda_pool_backward(q, n, &l->plan->pool, l->dy, l->which, l->dx) : cudaSuccess;
}

static cudaError_t copy_floats(const struct cuda_queue *q, float *to, const float *from, size_t count)
{
    return cudaMemcpyAsync(to, from, count * sizeof(*to), cudaMemcpyDeviceToDevice, q->stream);
}

static cudaError_t flatten_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n,
                                   bool training)
{
    const struct activation *in = &l->plan->in;
    if (in->flat)
        return copy_floats(q, l->y, l->x, (size_t)n * in->size);
    return cuda_flatten(q, n, pixels(in), in->channels, in->stored, l->x, l->y);
}

static cudaError_t flatten_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const struct activation *in = &l->plan->in;
    if (!l->dx)
        return cudaSuccess;
    if (in->flat)
        return copy_floats(q, l->dx, l->dy, (size_t)n * in->size);
    return cuda_unflatten(q, n, pixels(in), in->channels, in->stored, l->dy, l->dx);
}

static cudaError_t linear_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n,
                                  bool training)
{
    const int in = l->plan->in.channels, out = l->plan->out.channels;
    cudaError_t r;
    if (cuda_blas_forward(l->blas, q, n, in, out, l->x, l->weight, l->bias, false, l->y, &r))
        return r;
    return cuda_linear_forward(q, n, in, out, l->x, l->weight, l->bias, l->y);
}

static cudaError_t linear_backward_weights(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const int in = l->plan->in.channels, out = l->plan->out.channels;
    cudaError_t r;
    if (cuda_blas_backward_weights(l->blas, q, n, in, out, l->x, l->dy, l->d_weight, l->d_bias, &r))
        return r;
    return cuda_linear_backward_weights(q, n, in, out, l->x, l->dy, l->d_weight, l->d_bias);
}

static cudaError_t linear_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const int in = l->plan->in.channels, out = l->plan->out.channels;
    cudaError_t r;
    if (!l->dx || cuda_blas_backward_input(l->blas, q, n, in, out, l->dy, l->weight, l->dx, &r))
        return l->dx ? r : cudaSuccess;
    return cuda_linear_backward_input(q, n, in, out, l->dy, l->weight, l->dx);
}

static cudaError_t log_softmax_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n,
                                       bool training)
{
    return cuda_log_softmax_forward(q, n, l->plan->out.channels, l->x, l->y);
}

static cudaError_t log_softmax_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    return l->dx ? cuda_log_softmax_backward(q, n, l->plan->out.channels, l->y, l->dy, l->dx) : cudaSuccess;
}

/* backward_weights: the gradients of weights, beside backward; NULL: backward computes both. */
static const struct {
    cudaError_t (*forward)(const struct cuda_queue *, const struct cuda_layer *, int n, bool training);
    cudaError_t (*backward)(const struct cuda_queue *, const struct cuda_layer *, int n);
    cudaError_t (*backward_weights)(const struct cuda_queue *, const struct cuda_layer *, int n);
} passes[STEP_KIND_COUNT] = {
    [STEP_CONV] = {conv_forward, conv_backward, conv_backward_weights},
    [STEP_NORM] = {norm_forward, norm_backward},
    [STEP_NORM_RELU_POOL] = {norm_relu_pool_forward, norm_relu_pool_backward},
    [STEP_RELU] = {relu_forward, relu_backward},
    [STEP_POOL] = {pool_forward, pool_backward},
    [STEP_FLATTEN] = {flatten_forward, flatten_backward},
    [STEP_LINEAR] = {linear_forward, linear_backward, linear_backward_weights},
    [STEP_LOG_SOFTMAX] = {log_softmax_forward, log_softmax_backward},
};

/* ---- the parts of a step ---- */

/* A batch out of the data set, in the first layer's order. */
static cudaError_t take_batch(struct backend_trainer *t, const struct cuda_data *data, const uint32_t *list,
                              const uint64_t *cursor, int n)
{
    const struct activation *a = &t->model->x_shape;
    const int n_features = a->channels * pixels(a);
    const bool labels = data->bytes && t->options.loss != CRW_MSE; /* taken with the pixels */
    float *to = t->raw ? t->raw : t->x;
    TRY(data->bytes
            ? cuda_gather(&t->q, n, n_features, data->inputs, labels ? data->targets : NULL, t->table, list,
                          cursor, to, t->targets)
            : cuda_gather_rows(&t->q, n, (size_t)n_features * sizeof(float), data->inputs, list, cursor, to));
    if (!labels)
        TRY(cuda_gather_rows(&t->q, n, t->target_bytes, data->targets, list, cursor, t->targets));
    return t->raw ? cuda_unflatten(&t->q, n, pixels(a), a->channels, a->stored, t->raw, t->x) : cudaSuccess;
}

/* Number of layers with a pass of their own: all, except a log_softmax before its loss (a joint pass). */
static size_t n_passed(const struct backend_trainer *t)
{
    return t->model->n_steps - (t->options.loss == CRW_NLL);
}

/* Layer i is linear and layer i + 1 a relu: both layers share a pass in each direction. */
static bool is_linear_relu(const struct backend_trainer *t, size_t i)
{
    return i + 1 < n_passed(t) && t->layers[i].plan->kind == STEP_LINEAR &&
           t->layers[i + 1].plan->kind == STEP_RELU;
}

static cudaError_t linear_relu_forward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const int in = l->plan->in.channels, out = l->plan->out.channels;
    cudaError_t r;
    if (cuda_blas_forward(l->blas, q, n, in, out, l->x, l->weight, l->bias, true, l[1].y, &r))
        return r;
    return cuda_linear_relu_forward(q, n, in, out, l->x, l->weight, l->bias, l[1].y);
}

static cudaError_t forward(struct backend_trainer *t, int n, bool training)
{
    for (size_t i = 0; i < n_passed(t); i++)
        if (is_linear_relu(t, i))
            TRY(linear_relu_forward(&t->q, &t->layers[i++], n));
        else
            TRY(passes[t->layers[i].plan->kind].forward(&t->q, &t->layers[i], n, training));
    return cudaSuccess;
}

/* add: onto the present contents of the tally. */
static cudaError_t loss(struct backend_trainer *t, int n, bool training, bool add, struct cuda_tally *tally)
{
    const struct cuda_layer *last = &t->layers[n_passed(t) - 1];
    const int n_outputs = last->plan->out.channels;
    const bool classes = t->options.loss != CRW_MSE;
    float *dy = training ? last->dy : NULL;
    if (classes)
        return cuda_nll_tally(&t->q, n, n_outputs, last->y, t->targets, t->losses, t->correct, dy, add,
                              tally);
    TRY(cuda_mse(&t->q, n * n_outputs, last->y, t->targets, t->losses, dy));
    return cuda_tally(&t->q, n * t->n_losses_of_sample, t->losses, NULL, NULL, add, tally);
}

/* Work queued on the side stream from here on waits for all work queued on compute before. */
static cudaError_t fork_side(struct backend_trainer *t)
{
    cudaError_t r = cudaEventRecord(t->forked, t->q.stream);
    if (r == cudaSuccess)
        r = cudaStreamWaitEvent(t->side.stream, t->forked, 0);
    t->side_is_busy = true;
    return r;
}

/* Work queued on `stream` from here on waits for all work queued on the side stream before. */
static cudaError_t follow_side(struct backend_trainer *t, cudaStream_t stream)
{
    if (!t->side_is_busy)
        return cudaSuccess; /* the side stream is not part of the capture */
    TRY(cudaEventRecord(t->side_done, t->side.stream));
    return cudaStreamWaitEvent(stream, t->side_done, 0);
}

static cudaError_t send_bucket(struct backend_trainer *t, const struct cuda_bucket *b)
{
    const struct backend_reducer *reducer = t->options.reducer;
    float *sums = t->sums + b->begin;
    if (t->host_sums)
        return cudaMemcpyAsync(t->host_sums + b->begin, sums, b->count * sizeof(*sums),
                               cudaMemcpyDeviceToHost, t->comm);
    int summed = reducer->sum(reducer->data, sums, b->count, t->comm);
    if (summed)
        t->reducer_failed = summed; /* waiting for the work behind never succeeds */
    return cudaSuccess;
}

/* The bucket goes to the other ranks as soon as compute and the side stream have come here. */
static cudaError_t reduce_bucket(struct backend_trainer *t, struct cuda_bucket *b)
{
    TRY(cudaEventRecord(b->ready, t->q.stream));
    TRY(cudaStreamWaitEvent(t->comm, b->ready, 0));
    TRY(follow_side(t, t->comm));
    TRY(send_bucket(t, b));
    return cudaEventRecord(b->reduced, t->comm);
}

static cudaError_t wait_for_buckets(struct backend_trainer *t)
{
    for (size_t b = 0; b < t->n_buckets; b++)
        TRY(cudaStreamWaitEvent(t->q.stream, t->buckets[b].reduced, 0));
    return cudaSuccess;
}

/* A linear layer behind a relu: the pass goes on through the relu, to the layer before the relu. */
static cudaError_t relu_linear_backward(const struct cuda_queue *q, const struct cuda_layer *l, int n)
{
    const struct cuda_layer *relu = l - 1;
    const int in = l->plan->in.channels, out = l->plan->out.channels;
    cudaError_t r;
    if (!relu->dx)
        return cudaSuccess;
    if (!cuda_blas_backward_input(l->blas, q, n, in, out, l->dy, l->weight, relu->dx, &r))
        return cuda_linear_relu_backward_input(q, n, in, out, l->dy, l->weight, relu->y, relu->dx);
    return r == cudaSuccess ? cuda_relu_backward(q, (size_t)n * (size_t)in, relu->y, relu->dx, relu->dx) : r;
}

/* Weight gradients of the last layer in backward order run on compute, all others on side, beside the next layers. */
static cudaError_t backward_weights(struct backend_trainer *t, size_t i, int n)
{
    const struct cuda_layer *l = &t->layers[i];
    if (!passes[l->plan->kind].backward_weights)
        return cudaSuccess;
    if (i == t->model->first_trained)
        return passes[l->plan->kind].backward_weights(&t->q, l, n);
    TRY(fork_side(t));
    return passes[l->plan->kind].backward_weights(&t->side, l, n);
}

static cudaError_t backward_layer(struct backend_trainer *t, size_t i, int n)
{
    const struct cuda_layer *l = &t->layers[i];
    TRY(backward_weights(t, i, n));
    if (l->plan->kind == STEP_LINEAR && i > 0 && l[-1].plan->kind == STEP_RELU)
        return relu_linear_backward(&t->q, l, n);
    if (l->plan->kind == STEP_RELU && i + 1 < n_passed(t) && l[1].plan->kind == STEP_LINEAR)
        return cudaSuccess; /* the linear layer's pass included the relu */
    return passes[l->plan->kind].backward(&t->q, l, n);
}

/* reduce: each bucket, as soon as the bucket is ready. */
static cudaError_t backward(struct backend_trainer *t, int n, bool reduce)
{
    cudaError_t r = cudaSuccess;
    size_t bucket = 0;
    t->side_is_busy = false;
    for (size_t i = n_passed(t); r == cudaSuccess && i-- > t->model->first_trained;) {
        r = backward_layer(t, i, n);
        while (r == cudaSuccess && reduce && bucket < t->n_buckets && t->buckets[bucket].layer == i)
            r = reduce_bucket(t, &t->buckets[bucket++]);
    }
    if (r == cudaSuccess)
        r = follow_side(t, t->q.stream);
    t->side_is_busy = false;
    return r;
}

/* Adds the batch's gradients to the gradients of the step's earlier batches; the last batch starts the reduction. */
static cudaError_t accumulate(struct backend_trainer *t, bool last)
{
    const size_t count = t->n_floats;
    cudaError_t r = t->n_pending_batches ? cuda_add(&t->q, count, t->sums, t->gradients)
                                         : copy_floats(&t->q, t->sums, t->gradients, count);
    for (size_t b = 0; r == cudaSuccess && last && b < t->n_buckets; b++)
        r = reduce_bucket(t, &t->buckets[b]);
    return r;
}

static cudaError_t track_layer(struct backend_trainer *t, const struct cuda_commit *commit,
                               const struct cuda_layer *l)
{
    return cuda_norm_track(&t->q, commit, l->plan->in.channels, &l->norm, l->running_mean, l->running_var,
                           l->n_batches_tracked);
}

/* In a copy of the statistics: the copy may change even if the step is dropped. */
static cudaError_t track_statistics(struct backend_trainer *t)
{
    for (size_t i = 0; i < t->model->n_steps; i++)
        if (t->layers[i].running_mean)
            TRY(track_layer(t, NULL, &t->layers[i]));
    return cudaSuccess;
}

/* Statistics of the first layers, tracked by the kernel that counts the step; *ret_next: the first layer left over. */
static struct cuda_tracks first_tracks(const struct backend_trainer *t, size_t *ret_next)
{
    struct cuda_tracks tracks = {.n = 0};
    size_t i;
    for (i = 0; i < t->model->n_steps && tracks.n < CUDA_TRACKS_MAX; i++) {
        const struct cuda_layer *l = &t->layers[i];
        if (l->running_mean)
            tracks.of[tracks.n++] = (struct cuda_track){.norm = l->norm,
                                                        .running_mean = l->running_mean,
                                                        .running_var = l->running_var,
                                                        .n_batches_tracked = l->n_batches_tracked,
                                                        .channels = l->plan->in.channels};
    }
    *ret_next = i;
    return tracks;
}

/* Copies the running statistics from the state. */
static cudaError_t recall_statistics(struct backend_trainer *t)
{
    if (!t->statistics)
        return cudaSuccess;
    return cudaMemcpyAsync(t->statistics, t->state + t->statistics_offset,
                           t->n_state_bytes - t->statistics_offset, cudaMemcpyDeviceToDevice, t->q.stream);
}

/* next: the first layer whose statistics are not tracked yet. */
static cudaError_t commit_statistics(struct backend_trainer *t, size_t next)
{
    for (size_t i = next; !t->options.accumulates && i < t->model->n_steps; i++)
        if (t->layers[i].running_mean)
            TRY(track_layer(t, t->commit, &t->layers[i]));
    if (!t->options.accumulates || !t->statistics)
        return cudaSuccess;
    return cuda_copy_committed(&t->q, t->commit, t->n_state_bytes - t->statistics_offset, t->statistics,
                               t->state + t->statistics_offset);
}

/* Reports the gradients to the host, behind the last bucket. The tally is in the host's memory already. With
 * reduces_on_host the host checks the result of the averaging. */
static cudaError_t report_gradients(struct backend_trainer *t)
{
    TRY(wait_for_buckets(t));
    if (t->checked && !t->host_sums)
        TRY(cuda_gradient_check(&t->q, t->n_floats, t->sums, &t->progress->check));
    return cudaSuccess;
}

static cudaError_t queue_commit(struct backend_trainer *t)
{
    const struct backend_reducer *reducer = t->options.reducer;
    size_t next;
    const struct cuda_tracks tracks = first_tracks(t, &next);
    TRY(t->host_sums ? cudaMemcpyAsync(t->sums, t->host_sums, t->n_floats * sizeof(*t->sums),
                                       cudaMemcpyHostToDevice, t->q.stream)
                     : cudaSuccess);
    TRY(cuda_commit_begin(&t->q, t->checked ? &t->progress->check : NULL, t->device_options,
                          &t->progress->tally, t->n_losses_of_sample, reducer ? reducer->n_ranks : 1,
                          t->options.accumulates ? NULL : &tracks, t->commit));
    TRY(cuda_optimizer_step(&t->q, t->options.optimizer.kind, t->commit, t->n_floats, t->parameters, t->sums,
                            t->states[0], t->states[1]));
    return commit_statistics(t, next);
}

static cudaError_t queue_pieces(struct backend_trainer *t, int n, bool last)
{
    const bool accumulates = t->options.accumulates;
    TRY(take_batch(t, &t->data[BACKEND_TRAIN], t->list + t->n_pending_samples, &t->commit->cursor, n));
    TRY(forward(t, n, true));
    TRY(loss(t, n, true, t->n_pending_batches > 0, &t->progress->tally));
    TRY(backward(t, n, !accumulates));
    if (accumulates) {
        TRY(track_statistics(t));
        TRY(accumulate(t, last));
    }
    return last ? report_gradients(t) : cudaSuccess;
}

/* ---- graphs ---- */

/* Ends the capture in any case: a stream left in capture mode would refuse all later work. queued: the result of
 * queueing the work for the capture. */
static cudaError_t end_capture(struct backend_trainer *t, cudaError_t queued, cudaGraphExec_t *ret)
{
    cudaGraph_t graph = NULL;
    cudaError_t ended = cudaStreamEndCapture(t->q.stream, &graph);
    cudaError_t r = queued == cudaSuccess ? ended : queued;
    if (r == cudaSuccess && t->reducer_failed)
        r = cudaErrorInvalidValue; /* a graph without collectives; the caller knows why */
    if (r == cudaSuccess)
        r = cudaGraphInstantiate(ret, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph); /* the executable graph has a copy */
    return r;
}

/* cuBLASLt loads a kernel with the first product that needs the kernel, and a capture may forbid loading: each product is
 * queued once before a capture. The contents of the buffers do not matter here, and no state is changed. */
static cudaError_t warm_up(struct backend_trainer *t, int n)
{
    cudaError_t r = t->blas ? forward(t, n, true) : cudaSuccess;
    return r == cudaSuccess && t->blas ? backward(t, n, false) : r;
}

static cudaError_t capture_gradients(struct backend_trainer *t, int n, cudaGraphExec_t *ret)
{
    TRY(warm_up(t, n));
    TRY(cudaStreamBeginCapture(t->q.stream, cudaStreamCaptureModeThreadLocal));
    return end_capture(t, queue_pieces(t, n, true), ret);
}

static cudaError_t capture_commit(struct backend_trainer *t, cudaGraphExec_t *ret)
{
    TRY(cudaStreamBeginCapture(t->q.stream, cudaStreamCaptureModeThreadLocal));
    return end_capture(t, queue_commit(t), ret);
}

/* The graph for batches of n samples, made if need be; NULL: there are enough already. */
static cudaError_t find_graph(struct backend_trainer *t, int n, cudaGraphExec_t *ret)
{
    *ret = NULL;
    for (size_t i = 0; i < t->n_graphs; i++)
        if (t->graphs[i].n == n)
            *ret = t->graphs[i].exec;
    if (*ret || t->n_graphs == CUDA_GRAPHS_MAX)
        return cudaSuccess;
    cudaError_t r = capture_gradients(t, n, ret);
    if (r == cudaSuccess)
        t->graphs[t->n_graphs++] = (struct cuda_step_graph){.n = n, .exec = *ret};
    return r;
}

static cudaError_t queue_accumulated(struct backend_trainer *t, int n, bool last)
{
    cudaError_t r = t->n_pending_batches == 0 ? recall_statistics(t) : cudaSuccess;
    if (r == cudaSuccess)
        r = queue_pieces(t, n, last);
    t->n_pending_samples = last ? 0 : t->n_pending_samples + n;
    t->n_pending_batches = last ? 0 : t->n_pending_batches + 1;
    return r;
}

cudaError_t cuda_step_queue(struct backend_trainer *t, int n, bool last)
{
    cudaGraphExec_t graph;
    if (t->options.accumulates)
        return queue_accumulated(t, n, last);
    TRY(find_graph(t, n, &graph));
    return graph ? cudaGraphLaunch(graph, t->q.stream) : queue_pieces(t, n, true);
}

cudaError_t cuda_step_commit(struct backend_trainer *t)
{
    TRY(t->commit_graph ? cudaSuccess : capture_commit(t, &t->commit_graph));
    return cudaGraphLaunch(t->commit_graph, t->q.stream);
}

cudaError_t cuda_step_evaluate(struct backend_trainer *t, uint32_t first, int n)
{
    const struct cuda_data *data = &t->data[BACKEND_EVALUATE];
    TRY(recall_statistics(t));
    TRY(take_batch(t, data, data->numbers + first, NULL, n));
    TRY(forward(t, n, false));
    return loss(t, n, false, true, t->evaluation);
}
