/*
 * Losses and the accuracy. Twin: model/loss.c.
 * One warp for each row of the batch: lanes walk over the features, then meet in shuffles.
 */

#include "worker-runtime/kernels/cuda/activation.cuh"
#include "worker-runtime/kernels/cuda/launch.cuh"

namespace
{

constexpr int TALLY_THREADS = 256;
/* Rows times features that one block may have; more is worth more blocks. */
constexpr int ONE_BLOCK_MAX = 4096;

/* This warp's row of n, or n when there is none left; then the whole warp has none. */
__device__ int row_of_warp(int n)
{
    const size_t row = first_element() / WARP;
    return row < (size_t)n ? (int)row : n;
}

__device__ int lane(void)
{
    return (int)threadIdx.x % WARP;
}

/* max + log(sum(exp(x - max))) in two parts, on every lane. */
__device__ void log_normaliser(int features, const float *x, float *ret_largest, float *ret_log_sum)
{
    float largest = x[0];
    for (int i = lane(); i < features; i += WARP)
        largest = x[i] > largest ? x[i] : largest;
    for (int step = WARP / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest, step);
        largest = other > largest ? other : largest;
    }
    float sum = 0;
    for (int i = lane(); i < features; i += WARP)
        sum += expf(x[i] - largest);
    *ret_largest = largest;
    *ret_log_sum = logf(warp_sum(sum));
}

__global__ void log_softmax_kernel(int n, int features, const float *x, float *y)
{
    const int row = row_of_warp(n);
    if (row == n)
        return;
    const float *from = x + (size_t)row * (size_t)features;
    float largest, log_sum;
    log_normaliser(features, from, &largest, &log_sum);
    for (int i = lane(); i < features; i += WARP)
        y[(size_t)row * (size_t)features + (size_t)i] = from[i] - largest - log_sum;
}

__global__ void log_softmax_backward_kernel(int n, int features, const float *y, const float *dy, float *dx)
{
    const int row = row_of_warp(n);
    if (row == n)
        return;
    const size_t at = (size_t)row * (size_t)features;
    float sum = 0;
    for (int i = lane(); i < features; i += WARP)
        sum += dy[at + (size_t)i];
    sum = warp_sum(sum);
    for (int i = lane(); i < features; i += WARP)
        dx[at + (size_t)i] = dy[at + (size_t)i] - expf(y[at + (size_t)i]) * sum;
}

/* The first largest of a row, over all lanes; features is a row's length, f(i) an element. */
struct leader {
    float value;
    int place;
};

__device__ leader better(const leader &a, const leader &b)
{
    if (b.place < a.place)
        return beats(a.value, b.value) ? a : b;
    return beats(b.value, a.value) ? b : a;
}

__device__ int first_largest(leader best)
{
    for (int step = WARP / 2; step > 0; step /= 2) {
        const leader other = {__shfl_xor_sync(0xffffffffu, best.value, step),
                              __shfl_xor_sync(0xffffffffu, best.place, step)};
        best = better(best, other);
    }
    return best.place;
}

/* How many rows count, by a warp. */
__device__ int count_classes(int n, const int32_t *targets)
{
    int count = 0;
    for (int i = lane(); i < n; i += WARP)
        count += targets[i] >= 0;
    return warp_sum(count);
}

/* One row, by a warp; n_counted: rows that count. */
__device__ void nll_row(int row, int n_counted, int features, const float *x, const int32_t *targets,
                        float *y, float *losses, uint8_t *correct, float *dx)
{
    const size_t at = (size_t)row * (size_t)features;
    const int target = targets[row];
    const float nan = __uint_as_float(0x7fc00000u), one = target < features ? 1 : nan;
    float largest, log_sum;
    log_normaliser(features, x + at, &largest, &log_sum);

    /* Lanes without a feature take the first one's place, which changes nothing. */
    leader best = {x[at] - largest - log_sum, 0};
    for (int i = lane(); i < features; i += WARP) {
        const float log_probability = x[at + (size_t)i] - largest - log_sum;
        best = better(best, leader{log_probability, i});
        if (y)
            y[at + (size_t)i] = log_probability;
        if (dx)
            dx[at + (size_t)i] =
                target < 0 ? 0 : (expf(log_probability) - (i == target ? one : one - 1)) / (float)n_counted;
        if (i == target)
            losses[row] = -log_probability;
    }
    const int chosen = first_largest(best);
    if (lane() == 0) {
        correct[row] = chosen == target;
        if (target < 0)
            losses[row] = 0;
        if (target >= features)
            losses[row] = nan;
    }
}

__global__ void nll_kernel(int n, int features, const float *x, const int32_t *targets, float *y,
                           float *losses, uint8_t *correct, float *dx)
{
    const int row = row_of_warp(n);
    if (row < n)
        nll_row(row, count_classes(n, targets), features, x, targets, y, losses, correct, dx);
}

__global__ void mse_kernel(int count, float factor, const float *y, const float *t, float *losses, float *dy)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        const float apart = y[i] - t[i];
        losses[i] = apart * apart;
        if (dy)
            dy[i] = factor * apart;
    }
}

struct batch_sums {
    double loss;
    int correct, counted;
};

/* One block: threads stride over the losses, warps meet in shared memory. targets NULL: all losses count. */
__device__ void tally_block(int n, const float *losses, const uint8_t *correct, const int32_t *targets,
                            bool add, struct cuda_tally *tally)
{
    __shared__ batch_sums of_warp[TALLY_THREADS / WARP];
    batch_sums sums = {0, 0, 0};
    for (int i = (int)threadIdx.x; i < n; i += TALLY_THREADS) {
        sums.loss += losses[i];
        sums.correct += correct ? correct[i] : 0;
        sums.counted += !targets || targets[i] >= 0;
    }
    sums = {warp_sum(sums.loss), warp_sum(sums.correct), warp_sum(sums.counted)};
    if (lane() == 0)
        of_warp[threadIdx.x / WARP] = sums;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < TALLY_THREADS / WARP; w++) {
        sums.loss += of_warp[w].loss;
        sums.correct += of_warp[w].correct;
        sums.counted += of_warp[w].counted;
    }
    tally->loss_sum = (add ? tally->loss_sum : 0) + sums.loss;
    tally->mean_sum = (add ? tally->mean_sum : 0) + sums.loss / sums.counted;
    tally->n_batches = (add ? tally->n_batches : 0) + 1;
    tally->n_correct = (add ? tally->n_correct : 0) + (uint64_t)sums.correct;
    tally->n_counted = (add ? tally->n_counted : 0) + (uint64_t)sums.counted;
    tally->n_losses = (add ? tally->n_losses : 0) + (uint64_t)n;
}

__global__ void __launch_bounds__(TALLY_THREADS)
    tally_kernel(int n, const float *losses, const uint8_t *correct, const int32_t *targets, bool add,
                 struct cuda_tally *tally)
{
    tally_block(n, losses, correct, targets, add, tally);
}

/* One block, whose warps take the rows in turn. */
__global__ void __launch_bounds__(TALLY_THREADS)
    nll_tally_kernel(int n, int features, const float *x, const int32_t *targets, float *losses,
                     uint8_t *correct, float *dx, bool add, struct cuda_tally *tally)
{
    const int n_counted = count_classes(n, targets);
    for (int row = (int)threadIdx.x / WARP; row < n; row += TALLY_THREADS / WARP)
        nll_row(row, n_counted, features, x, targets, nullptr, losses, correct, dx);
    __syncthreads();
    tally_block(n, losses, correct, targets, add, tally);
}

/* One warp for each row. */
dim3 row_grid(int n)
{
    return dim3((unsigned)ceil_div(n, ELEMENT_THREADS / WARP));
}

} // namespace

cudaError_t cuda_log_softmax_forward(const struct cuda_queue *q, int n, int features, const float *x,
                                     float *y)
{
    return launch(q->stream, row_grid(n), ELEMENT_THREADS, log_softmax_kernel, n, features, x, y);
}

cudaError_t cuda_log_softmax_backward(const struct cuda_queue *q, int n, int features, const float *y,
                                      const float *dy, float *dx)
{
    return launch(q->stream, row_grid(n), ELEMENT_THREADS, log_softmax_backward_kernel, n, features, y, dy,
                  dx);
}

cudaError_t cuda_nll(const struct cuda_queue *q, int n, int features, const float *x, const int32_t *targets,
                     float *y, float *losses, uint8_t *correct, float *dx)
{
    return launch(q->stream, row_grid(n), ELEMENT_THREADS, nll_kernel, n, features, x, targets, y, losses,
                  correct, dx);
}

cudaError_t cuda_mse(const struct cuda_queue *q, int count, const float *y, const float *t, float *losses,
                     float *dy)
{
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, mse_kernel, count,
                  (float)(2.0 / count), y, t, losses, dy);
}

cudaError_t cuda_tally(const struct cuda_queue *q, int n, const float *losses, const uint8_t *correct,
                       const int32_t *targets, bool add, struct cuda_tally *tally)
{
    return launch(q->stream, dim3(1), TALLY_THREADS, tally_kernel, n, losses, correct, targets, add, tally);
}

cudaError_t cuda_nll_tally(const struct cuda_queue *q, int n, int features, const float *x,
                           const int32_t *targets, float *losses, uint8_t *correct, float *dx, bool add,
                           struct cuda_tally *tally)
{
    if ((int64_t)n * features <= ONE_BLOCK_MAX)
        return launch(q->stream, dim3(1), TALLY_THREADS, nll_tally_kernel, n, features, x, targets, losses,
                      correct, dx, add, tally);
    cudaError_t r = cuda_nll(q, n, features, x, targets, nullptr, losses, correct, dx);
    return r == cudaSuccess ? cuda_tally(q, n, losses, correct, targets, add, tally) : r;
}
