/*
 * What goes element by element: relu, the order of features, and batches out of the resident data set.
 */

#include "worker-runtime/kernels/cuda/activation.cuh"
#include "worker-runtime/kernels/cuda/launch.cuh"

namespace
{

__global__ void relu_kernel(size_t count, const float *x, float *y)
{
    for (size_t i = first_element(); i < count; i += element_stride())
        y[i] = relu(x[i]);
}

__global__ void relu_backward_kernel(size_t count, const float *y, const float *dy, float *dx)
{
    for (size_t i = first_element(); i < count; i += element_stride())
        dx[i] = lives(y[i]) ? dy[i] : 0;
}

/* One block for each sample. */
__global__ void flatten_kernel(int n_pixels, int channels, int stored, const float *x, float *y)
{
    const float *from = x + (size_t)blockIdx.x * (size_t)n_pixels * (size_t)stored;
    float *to = y + (size_t)blockIdx.x * (size_t)n_pixels * (size_t)channels;
    for (int i = (int)threadIdx.x; i < n_pixels * channels; i += (int)blockDim.x)
        to[i] = from[i % n_pixels * stored + i / n_pixels];
}

__global__ void unflatten_kernel(int n_pixels, int channels, int stored, const float *y, float *x)
{
    const float *from = y + (size_t)blockIdx.x * (size_t)n_pixels * (size_t)channels;
    float *to = x + (size_t)blockIdx.x * (size_t)n_pixels * (size_t)stored;
    for (int i = (int)threadIdx.x; i < n_pixels * stored; i += (int)blockDim.x) {
        const int channel = i % stored;
        to[i] = channel < channels ? from[channel * n_pixels + i / stored] : 0;
    }
}

/* One block for each sample. */
__global__ void __launch_bounds__(ELEMENT_THREADS)
    gather_kernel(int n_features, const uint8_t *data, const int32_t *labels, const float *table,
                  const uint32_t *list, const uint64_t *cursor, float *x, int32_t *targets)
{
    __shared__ float value_of[256];
    value_of[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    const size_t number = list[(cursor ? *cursor : 0) + blockIdx.x];
    const uint8_t *from = data + number * (size_t)n_features;
    float *to = x + (size_t)blockIdx.x * (size_t)n_features;
    for (int i = (int)threadIdx.x; i < n_features; i += ELEMENT_THREADS)
        to[i] = value_of[from[i]];
    if (threadIdx.x == 0 && labels)
        targets[blockIdx.x] = labels[number];
}
static_assert(ELEMENT_THREADS == 256, "one thread for each entry of the table");

/* One block for each row; Item is what rows consist of. */
template <class Item>
__global__ void rows_kernel(size_t n_words, const Item *rows, const uint32_t *list, const uint64_t *cursor,
                            Item *to)
{
    const Item *from = rows + list[(cursor ? *cursor : 0) + blockIdx.x] * n_words;
    for (size_t i = threadIdx.x; i < n_words; i += blockDim.x)
        to[blockIdx.x * n_words + i] = from[i];
}

__global__ void add_kernel(size_t count, float *sums, const float *g)
{
    for (size_t i = first_element(); i < count; i += element_stride())
        sums[i] += g[i];
}

} // namespace

cudaError_t cuda_relu_forward(const struct cuda_queue *q, size_t count, const float *x, float *y)
{
    return launch(q->stream, element_grid(count), ELEMENT_THREADS, relu_kernel, count, x, y);
}

cudaError_t cuda_relu_backward(const struct cuda_queue *q, size_t count, const float *y, const float *dy,
                               float *dx)
{
    return launch(q->stream, element_grid(count), ELEMENT_THREADS, relu_backward_kernel, count, y, dy, dx);
}

cudaError_t cuda_flatten(const struct cuda_queue *q, int n, int n_pixels, int channels, int stored,
                         const float *x, float *y)
{
    return launch(q->stream, dim3((unsigned)n), ELEMENT_THREADS, flatten_kernel, n_pixels, channels, stored,
                  x, y);
}

cudaError_t cuda_unflatten(const struct cuda_queue *q, int n, int n_pixels, int channels, int stored,
                           const float *y, float *x)
{
    return launch(q->stream, dim3((unsigned)n), ELEMENT_THREADS, unflatten_kernel, n_pixels, channels, stored,
                  y, x);
}

cudaError_t cuda_gather(const struct cuda_queue *q, int n, int n_features, const uint8_t *data,
                        const int32_t *labels, const float *table, const uint32_t *list,
                        const uint64_t *cursor, float *x, int32_t *targets)
{
    return launch(q->stream, dim3((unsigned)n), ELEMENT_THREADS, gather_kernel, n_features, data, labels,
                  table, list, cursor, x, targets);
}

cudaError_t cuda_gather_rows(const struct cuda_queue *q, int n, size_t row_bytes, const void *rows,
                             const uint32_t *list, const uint64_t *cursor, void *to)
{
    const dim3 grid((unsigned)n);
    if (row_bytes % sizeof(uint32_t) == 0)
        return launch(q->stream, grid, ELEMENT_THREADS, rows_kernel<uint32_t>, row_bytes / sizeof(uint32_t),
                      static_cast<const uint32_t *>(rows), list, cursor, static_cast<uint32_t *>(to));
    return launch(q->stream, grid, ELEMENT_THREADS, rows_kernel<uint8_t>, row_bytes,
                  static_cast<const uint8_t *>(rows), list, cursor, static_cast<uint8_t *>(to));
}

cudaError_t cuda_add(const struct cuda_queue *q, size_t count, float *sums, const float *g)
{
    return launch(q->stream, element_grid(count), ELEMENT_THREADS, add_kernel, count, sums, g);
}
