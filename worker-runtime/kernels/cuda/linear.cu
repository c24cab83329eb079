/*
 * Linear layers: the three products of y = x W^T + b. Twin: tests/support/c/kernel_reference.c.
 */

#include "worker-runtime/kernels/cuda/activation.cuh"
#include "worker-runtime/kernels/cuda/gemm.cuh"
#include "worker-runtime/kernels/cuda/reduce.cuh"

namespace
{

/* Element (i, k) of a matrix whose rows are i. */
struct rows_of {
    static constexpr bool k_is_contiguous = true;
    typedef const float *place;
    const float *matrix;
    int stride;

    __device__ place find(int i) const
    {
        return matrix + (size_t)i * (size_t)stride;
    }
    __device__ int walk(int k) const
    {
        return k;
    }
    __device__ float load(place row, int k) const
    {
        return row[k];
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

/* What a relu behind the layer makes of it. */
struct store_relu : store_matrix {
    __device__ void operator()(int row, int column, float sum) const
    {
        matrix[(size_t)row * (size_t)stride + (size_t)column] = relu(sum + bias[column]);
    }
};

/* What a relu in front of the layer, whose output is y, hands back. */
struct store_where_alive : store_matrix {
    const float *y;
    __device__ void operator()(int row, int column, float sum) const
    {
        const size_t at = (size_t)row * (size_t)stride + (size_t)column;
        matrix[at] = lives(y[at]) ? sum : 0;
    }
};

/* dw, and db from the column of row sums. */
struct store_gradients {
    float *dw, *db;
    int in;
    __device__ void operator()(int row, int column, float sum) const
    {
        if (column == in)
            db[row] = sum;
        else
            dw[(size_t)row * (size_t)in + (size_t)column] = sum;
    }
};

struct matrix_values {
    const float *matrix;
    int stride;
    __device__ float2 operator()(int row, int column) const
    {
        return float2{matrix[(size_t)row * (size_t)stride + (size_t)column], 0};
    }
};

struct store_column {
    float *sums;
    __device__ void operator()(int column, const double2 &total) const
    {
        sums[column] = (float)total.x;
    }
};

} // namespace

cudaError_t cuda_linear_forward(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                const float *w, const float *bias, float *y)
{
    return gemm(q, linear_forward_shape(n, in, out), rows_of{x, in}, rows_of{w, in},
                store_matrix{y, out, bias});
}

cudaError_t cuda_linear_relu_forward(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                     const float *w, const float *bias, float *y)
{
    return gemm(q, linear_forward_shape(n, in, out), rows_of{x, in}, rows_of{w, in},
                store_relu{{y, out, bias}});
}

cudaError_t cuda_linear_backward_weights(const struct cuda_queue *q, int n, int in, int out, const float *x,
                                         const float *dy, float *dw, float *db)
{
    return gemm<true>(q, linear_backward_weights_shape(n, in, out), columns_of{dy, out}, columns_of{x, in},
                      store_gradients{dw, db, in});
}

cudaError_t cuda_linear_backward_input(const struct cuda_queue *q, int n, int in, int out, const float *dy,
                                       const float *w, float *dx)
{
    return gemm(q, linear_backward_input_shape(n, in, out), rows_of{dy, out}, columns_of{w, in},
                store_matrix{dx, in, nullptr});
}

cudaError_t cuda_linear_relu_backward_input(const struct cuda_queue *q, int n, int in, int out,
                                            const float *dy, const float *w, const float *x, float *dx)
{
    return gemm(q, linear_backward_input_shape(n, in, out), rows_of{dy, out}, columns_of{w, in},
                store_where_alive{{dx, in, nullptr}, x});
}

cudaError_t cuda_column_sums(const struct cuda_queue *q, int n_rows, int n_columns, const float *x,
                             float *sums)
{
    return reduce_columns(q, n_rows, n_columns, matrix_values{x, n_columns}, store_column{sums});
}
