/*
 * Linear layers: the three products of y = x W^T + b. Twin: kernels/cpu/ref_linear.c.
 */

#include "worker-runtime/kernels/cuda/gemm.cuh"
#include "worker-runtime/kernels/cuda/reduce.cuh"

namespace
{

/* Element (i, k) of a matrix whose rows are i. */
struct rows_of {
    static constexpr bool k_is_contiguous = true;
    const float *matrix;
    int stride;
    __device__ float operator()(int i, int k) const
    {
        return matrix[(size_t)i * (size_t)stride + (size_t)k];
    }
};

/* Element (i, k) of a matrix whose columns are i. */
struct columns_of {
    static constexpr bool k_is_contiguous = false;
    const float *matrix;
    int stride;
    __device__ float operator()(int i, int k) const
    {
        return matrix[(size_t)k * (size_t)stride + (size_t)i];
    }
};

struct store_matrix {
    float *matrix;
    int stride;
    const float *bias; /* one for each column, or NULL */
    __device__ void operator()(int row, int column, float sum) const
    {
        matrix[(size_t)row * (size_t)stride + (size_t)column] = bias ? sum + bias[column] : sum;
    }
};

} // namespace

cudaError_t cuda_linear_forward(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                const float *w, const float *bias, float *y)
{
    return gemm(q, n, out, in, rows_of{x, in}, rows_of{w, in}, store_matrix{y, out, bias});
}

cudaError_t cuda_linear_backward_weights(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                         const float *dy, float *dw, float *db)
{
    cudaError_t r =
        gemm(q, out, in, n, columns_of{dy, out}, columns_of{x, in}, store_matrix{dw, in, nullptr});
    if (r != cudaSuccess)
        return r;
    return reduce_bias(q, n, out, out, dy, db);
}

cudaError_t cuda_linear_backward_input(const struct cuda_queue *q, int n, int in, int out, const float *dy,
                                       const float *w, float *dx)
{
    return gemm(q, n, in, out, rows_of{dy, out}, columns_of{w, in}, store_matrix{dx, in, nullptr});
}
