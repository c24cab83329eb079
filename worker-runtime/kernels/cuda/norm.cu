/*
 * Batch normalisation, alone or with relu. Twin: tests/support/c/kernel_reference.c and the arithmetic over channels in
 * model_steps.c. With pooling in the same pass: pool.cu.
 *
 * Statistics in two passes over a chunk of rows (the second one finds it in the cache), then chunks united by
 * the textbook formula in double, always in the same order.
 */

#include "worker-runtime/kernels/cuda/activation.cuh"
#include "worker-runtime/kernels/cuda/norm.cuh"

#include <climits>

namespace
{

/* Number of values, their mean, and their squared deviations from it. */
struct gathered {
    double n, mean, m2;
};

__device__ gathered unite(const gathered &a, const gathered &b)
{
    const double n = a.n + b.n;
    if (n == 0)
        return a;
    const double apart = b.mean - a.mean;
    return gathered{n, a.mean + apart * b.n / n, a.m2 + b.m2 + apart * apart * a.n * b.n / n};
}

__global__ void __launch_bounds__(REDUCE_THREADS)
    observe_chunks_kernel(int n_rows, int stored, int rows_of_chunk, const float *x, double2 *partial)
{
    __shared__ float mean_of_chunk[COLUMN_LANES];
    const int column = (int)blockIdx.y * COLUMN_LANES + (int)threadIdx.x % COLUMN_LANES;
    const int row_lane = (int)threadIdx.x / COLUMN_LANES;
    const int first = (int)blockIdx.x * rows_of_chunk;
    const int end = n_rows - first < rows_of_chunk ? n_rows : first + rows_of_chunk;
    const int end_of_column = column < stored ? end : first;
    const auto element = [&](int row) { return x[(size_t)row * (size_t)stored + (size_t)column]; };

    float sum = 0;
    for_own_rows(first, end_of_column, element, [&](float value) { sum += value; });
    const double2 sums = sum_over_row_lanes(sum, 0);
    if (row_lane == 0)
        mean_of_chunk[threadIdx.x] = (float)(sums.x / (end - first));
    __syncthreads();

    /* Any number near the mean will do to count from; that it was rounded is made good below. */
    const float origin = mean_of_chunk[threadIdx.x % COLUMN_LANES];
    float deviation = 0, squared = 0;
    for_own_rows(first, end_of_column, element, [&](float value) {
        const float d = value - origin;
        deviation += d;
        squared += d * d;
    });
    const double2 totals = sum_over_row_lanes(deviation, squared);
    if (row_lane == 0 && column < stored) {
        const double n = end - first, shift = totals.x / n;
        partial[(size_t)blockIdx.x * (size_t)stored + (size_t)column] =
            double2{origin + shift, totals.y - n * shift * shift};
    }
}

/* What both training and evaluation make of a mean and a variance. */
__device__ void set_channel(const struct cuda_norm &norm, int c, double mean, double variance, float gamma,
                            float beta)
{
    const double inverse = 1 / sqrt(variance + NORM_EPS);
    norm.mean[c] = (float)mean;
    norm.inverse_deviation[c] = (float)inverse;
    norm.scale[c] = (float)(gamma * inverse);
    norm.shift[c] = fmaf(-norm.mean[c], norm.scale[c], beta);
}

/* A stored channel that no layer knows of: it is zero and stays zero. */
__device__ void clear_channel(const struct cuda_norm &norm, int c)
{
    norm.mean[c] = norm.inverse_deviation[c] = norm.scale[c] = norm.shift[c] = 0;
}

__global__ void __launch_bounds__(ELEMENT_THREADS)
    observe_channels_kernel(struct chunks cut, int n_rows, int channels, int stored, const double2 *partial,
                            const float *gamma, const float *beta, struct cuda_norm norm)
{
    const int c = (int)first_element() / WARP, lane = (int)threadIdx.x % WARP;
    if (c >= stored)
        return; /* the whole warp */
    gathered all = {0, 0, 0};
    for (int chunk = lane; chunk < cut.n; chunk += WARP) {
        const double2 p = partial[(size_t)chunk * (size_t)stored + (size_t)c];
        const int behind = n_rows - chunk * cut.n_rows;
        all = unite(all, gathered{(double)(behind < cut.n_rows ? behind : cut.n_rows), p.x, p.y});
    }
    for (int step = WARP / 2; step > 0; step /= 2) {
        gathered other = {__shfl_xor_sync(0xffffffffu, all.n, step),
                          __shfl_xor_sync(0xffffffffu, all.mean, step),
                          __shfl_xor_sync(0xffffffffu, all.m2, step)};
        all = unite(all, other);
    }
    if (lane != 0)
        return;
    if (c >= channels) {
        clear_channel(norm, c);
        return;
    }
    norm.unbiased_variance[c] = (float)(all.m2 / (n_rows - 1));
    set_channel(norm, c, all.mean, all.m2 / n_rows, gamma[c], beta[c]);
}

__global__ void recall_kernel(int channels, int stored, const float *running_mean, const float *running_var,
                              const float *gamma, const float *beta, struct cuda_norm norm)
{
    for (int c = (int)first_element(); c < stored; c += (int)element_stride()) {
        if (c < channels)
            set_channel(norm, c, running_mean[c], running_var[c], gamma[c], beta[c]);
        else
            clear_channel(norm, c);
    }
}

__global__ void forward_kernel(int count, struct divider stored, const float *x, struct cuda_norm norm,
                               bool with_relu, float *y)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        int c;
        (void)divide(i, stored, &c);
        const float normed = fmaf(x[i], norm.scale[c], norm.shift[c]);
        y[i] = with_relu ? relu(normed) : normed;
    }
}

/* sum of dy, and of dy * (x - mean), where relu let something through. */
struct backward_values {
    const float *dy, *x, *y, *mean;
    int stored;
    bool with_relu;
    __device__ float2 operator()(int row, int column) const
    {
        const size_t i = (size_t)row * (size_t)stored + (size_t)column;
        const bool alive = lives(with_relu ? y[i] : 1);
        const float d = dy[i], product = d * (x[i] - mean[column]);
        return float2{alive ? d : 0, alive ? product : 0};
    }
};

__global__ void backward_kernel(int count, struct divider stored, const float *dy, const float *x,
                                const float *y, struct cuda_norm norm, bool with_relu, float *dx)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        int c;
        (void)divide(i, stored, &c);
        const float d = with_relu && !lives(y[i]) ? 0 : dy[i];
        dx[i] = norm.a[c] * d + norm.b[c] * (x[i] - norm.mean[c]) + norm.c[c];
    }
}

__global__ void track_kernel(const struct cuda_commit *commit, struct cuda_track t)
{
    if (!commit || commit->go)
        track(t);
}

bool countable(int n_rows, int stored)
{
    return (int64_t)n_rows * stored <= INT_MAX - ELEMENT_THREADS * ELEMENT_BLOCKS_MAX;
}

} // namespace

cudaError_t cuda_norm_observe(const struct cuda_queue *q, int n_rows, int channels, int stored,
                              const float *x, const float *gamma, const float *beta,
                              const struct cuda_norm *norm)
{
    /* The variance of one value is unknown; PyTorch refuses it, too. */
    if (n_rows < 2)
        return cudaErrorInvalidValue;
    const struct chunks cut = cut_rows(n_rows, stored);
    double2 *partial = reinterpret_cast<double2 *>(q->workspace);
    cudaError_t r = launch(q->stream, chunk_grid(cut, stored), REDUCE_THREADS, observe_chunks_kernel, n_rows,
                           stored, cut.n_rows, x, partial);
    if (r != cudaSuccess)
        return r;
    return launch(q->stream, column_grid(stored), ELEMENT_THREADS, observe_channels_kernel, cut, n_rows,
                  channels, stored, (const double2 *)partial, gamma, beta, *norm);
}

cudaError_t cuda_norm_recall(const struct cuda_queue *q, int channels, int stored, const float *running_mean,
                             const float *running_var, const float *gamma, const float *beta,
                             const struct cuda_norm *norm)
{
    return launch(q->stream, element_grid((size_t)stored), ELEMENT_THREADS, recall_kernel, channels, stored,
                  running_mean, running_var, gamma, beta, *norm);
}

cudaError_t cuda_norm_forward(const struct cuda_queue *q, int n_rows, int stored, const float *x,
                              const struct cuda_norm *norm, bool with_relu, float *y)
{
    if (!countable(n_rows, stored))
        return cudaErrorInvalidValue;
    const int count = n_rows * stored;
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, forward_kernel, count,
                  divide_by(stored), x, *norm, with_relu, y);
}

cudaError_t cuda_norm_backward_sums(const struct cuda_queue *q, int n_rows, int channels, int stored,
                                    const float *dy, const float *x, const float *y,
                                    const struct cuda_norm *norm, bool with_relu, float *dgamma, float *dbeta)
{
    const backward_values values = {dy, x, y, norm->mean, stored, with_relu};
    const norm_gradients result = {*norm, dgamma, dbeta, channels, (double)n_rows};
    return reduce_columns(q, n_rows, stored, values, result);
}

cudaError_t cuda_norm_backward_input(const struct cuda_queue *q, int n_rows, int stored, const float *dy,
                                     const float *x, const float *y, const struct cuda_norm *norm,
                                     bool with_relu, float *dx)
{
    if (!countable(n_rows, stored))
        return cudaErrorInvalidValue;
    const int count = n_rows * stored;
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, backward_kernel, count,
                  divide_by(stored), dy, x, y, *norm, with_relu, dx);
}

cudaError_t cuda_norm_track(const struct cuda_queue *q, const struct cuda_commit *commit, int channels,
                            const struct cuda_norm *norm, float *running_mean, float *running_var,
                            int64_t *n_batches_tracked)
{
    const struct cuda_track t = {*norm, running_mean, running_var, n_batches_tracked, channels};
    return launch(q->stream, dim3(1), ELEMENT_THREADS, track_kernel, commit, t);
}
