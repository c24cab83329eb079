/*
 * 2x2 max pooling, alone or behind normalisation and relu in the same pass. Twin: tests/support/c/kernel_reference.c.
 * One thread for each output pixel and channel; channels are adjacent in memory, and so are the threads of a warp.
 */

#include "worker-runtime/kernels/cuda/activation.cuh"
#include "worker-runtime/kernels/cuda/norm.cuh"

#include <climits>

namespace
{

/* Images by element: which sample, pixel and channel number i is. */
struct elements {
    struct divider channels, width, height;

    __device__ void find(int i, int *sample, int *row, int *column, int *channel) const
    {
        int pixel = divide(i, channels, channel);
        int rows = divide(pixel, width, column);
        *sample = divide(rows, height, row);
    }
};

elements elements_of(int channels, int width, int height)
{
    return elements{divide_by(channels), divide_by(width), divide_by(height)};
}

/* A batch of images and their pooled ones. */
struct windows {
    elements in, out;
    int in_height, in_width, out_height, out_width, channels;

    /* Element number `place` (0..3, row-major) of the window of pooled pixel (row, column). */
    __device__ size_t in_window(int sample, int row, int column, int place, int channel) const
    {
        int pixel = (sample * in_height + 2 * row + place / 2) * in_width + 2 * column + place % 2;
        return (size_t)pixel * (size_t)channels + (size_t)channel;
    }

    /* Which window, if any, holds input element i, and as which place. */
    __device__ bool find_window(int i, size_t *out_element, int *place, int *channel) const
    {
        int sample, row, column;
        in.find(i, &sample, &row, &column, channel);
        int out_row = row / 2, out_column = column / 2;
        *place = row % 2 * 2 + column % 2;
        int pixel = (sample * out_height + out_row) * out_width + out_column;
        *out_element = (size_t)pixel * (size_t)channels + (size_t)*channel;
        return out_row < out_height && out_column < out_width;
    }
};

windows windows_of(const struct pool_shape *s)
{
    return windows{elements_of(s->channels, s->in_width, s->in_height),
                   elements_of(s->channels, s->out_width, s->out_height),
                   s->in_height,
                   s->in_width,
                   s->out_height,
                   s->out_width,
                   s->channels};
}

__global__ void norm_relu_pool_kernel(int count, struct windows w, const float *x, struct cuda_norm norm,
                                      float *y, uint8_t *which, float *centred)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        int sample, row, column, c;
        w.out.find(i, &sample, &row, &column, &c);
        float best = 0, best_centred = 0;
        int from = 0;
        for (int place = 0; place < 4; place++) {
            const float candidate = x[w.in_window(sample, row, column, place, c)];
            const float normed = fmaf(candidate, norm.scale[c], norm.shift[c]);
            if (place == 0 || beats(normed, best)) {
                best = normed;
                best_centred = candidate - norm.mean[c];
                from = place;
            }
        }
        y[i] = relu(best);
        which[i] = (uint8_t)(lives(best) ? from : POOL_DEAD);
        centred[i] = best_centred;
    }
}

/* Rows are pooled pixels: sum of dy, and of dy * (x - mean), where relu let something through. */
struct pooled_values {
    const float *dy, *centred;
    const uint8_t *which;
    int channels;
    __device__ float2 operator()(int row, int column) const
    {
        const size_t i = (size_t)row * (size_t)channels + (size_t)column;
        const bool alive = which[i] != POOL_DEAD;
        const float d = dy[i], product = d * centred[i];
        return float2{alive ? d : 0, alive ? product : 0};
    }
};

__global__ void norm_relu_pool_backward_kernel(int count, struct windows w, const float *dy,
                                               const uint8_t *which, const float *x, struct cuda_norm norm,
                                               float *dx)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        size_t out;
        int place, c;
        const bool pooled = w.find_window(i, &out, &place, &c);
        const float d = pooled && which[out] == place ? dy[out] : 0;
        dx[i] = norm.a[c] * d + norm.b[c] * (x[i] - norm.mean[c]) + norm.c[c];
    }
}

__global__ void pool_kernel(int count, struct windows w, const float *x, float *y, uint8_t *which)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        int sample, row, column, c;
        w.out.find(i, &sample, &row, &column, &c);
        float best = x[w.in_window(sample, row, column, 0, c)];
        int from = 0;
        for (int place = 1; place < 4; place++) {
            const float candidate = x[w.in_window(sample, row, column, place, c)];
            if (beats(candidate, best)) {
                best = candidate;
                from = place;
            }
        }
        y[i] = best;
        which[i] = (uint8_t)from;
    }
}

__global__ void pool_backward_kernel(int count, struct windows w, const float *dy, const uint8_t *which,
                                     float *dx)
{
    for (int i = (int)first_element(); i < count; i += (int)element_stride()) {
        size_t out;
        int place, c;
        const bool pooled = w.find_window(i, &out, &place, &c);
        dx[i] = pooled && which[out] == place ? dy[out] : 0;
    }
}

/* Elements of the larger side, or -1 when an int cannot count them. */
int count_in(int n, const struct pool_shape *s)
{
    int64_t count = (int64_t)n * s->in_height * s->in_width * s->channels;
    return count <= INT_MAX - ELEMENT_THREADS * ELEMENT_BLOCKS_MAX ? (int)count : -1;
}

int count_out(int n, const struct pool_shape *s)
{
    return n * s->out_height * s->out_width * s->channels;
}

} // namespace

cudaError_t cuda_norm_relu_pool_forward(const struct cuda_queue *q, int n, const struct pool_shape *s,
                                        const float *x, const struct cuda_norm *norm, float *y,
                                        uint8_t *which, float *centred)
{
    if (count_in(n, s) < 0)
        return cudaErrorInvalidValue;
    const int count = count_out(n, s);
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, norm_relu_pool_kernel, count,
                  windows_of(s), x, *norm, y, which, centred);
}

cudaError_t cuda_norm_relu_pool_backward_sums(const struct cuda_queue *q, int n, const struct pool_shape *s,
                                              int channels, const float *dy, const uint8_t *which,
                                              const float *centred, const struct cuda_norm *norm,
                                              float *dgamma, float *dbeta)
{
    const pooled_values values = {dy, centred, which, s->channels};
    const norm_gradients result = {*norm, dgamma, dbeta, channels, (double)n * s->in_height * s->in_width};
    return reduce_columns(q, n * s->out_height * s->out_width, s->channels, values, result);
}

cudaError_t cuda_norm_relu_pool_backward_input(const struct cuda_queue *q, int n, const struct pool_shape *s,
                                               const float *dy, const uint8_t *which, const float *x,
                                               const struct cuda_norm *norm, float *dx)
{
    const int count = count_in(n, s);
    if (count < 0)
        return cudaErrorInvalidValue;
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, norm_relu_pool_backward_kernel,
                  count, windows_of(s), dy, which, x, *norm, dx);
}

cudaError_t cuda_pool_forward(const struct cuda_queue *q, int n, const struct pool_shape *s, const float *x,
                              float *y, uint8_t *which)
{
    if (count_in(n, s) < 0)
        return cudaErrorInvalidValue;
    const int count = count_out(n, s);
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, pool_kernel, count, windows_of(s),
                  x, y, which);
}

cudaError_t cuda_pool_backward(const struct cuda_queue *q, int n, const struct pool_shape *s, const float *dy,
                               const uint8_t *which, float *dx)
{
    const int count = count_in(n, s);
    if (count < 0)
        return cudaErrorInvalidValue;
    return launch(q->stream, element_grid((size_t)count), ELEMENT_THREADS, pool_backward_kernel, count,
                  windows_of(s), dy, which, dx);
}
