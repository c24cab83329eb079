#pragma once

/*
 * Sums over the rows of a [rows][columns] array, two of them for each column at once, in a fixed order and
 * without atomics: chunks of rows are summed by a block each, then one warp for each column adds the chunks.
 * Within a thread a few dozen rows meet in fp32; from there on in double.
 *
 * `values` gives what one element contributes to the two sums, without a branch around its loads; `result` takes a
 * column's sums away.
 */

#include "worker-runtime/kernels/cuda/launch.cuh"

constexpr int COLUMN_LANES = WARP, ROW_LANES = 8, REDUCE_THREADS = COLUMN_LANES * ROW_LANES;
constexpr int CHUNKS_MAX = 128, CHUNK_MIN = 32;
/* Whose loads a thread begins before it adds the first: a load from the second-level cache takes as long as 50 additions. */
constexpr int ROWS_IN_FLIGHT = 4;

/* How the rows are cut: a function of the shape only. */
struct chunks {
    int n, n_rows; /* n_rows: of each but the last */
};

static inline struct chunks cut_rows(int n_rows, int n_columns)
{
    const int64_t fitting = (int64_t)CUDA_WORKSPACE_FLOATS * (int64_t)sizeof(float) /
                            ((int64_t)n_columns * (int64_t)sizeof(double2));
    int n = ceil_div(n_rows, CHUNK_MIN);
    if (n > CHUNKS_MAX)
        n = CHUNKS_MAX;
    if (n > fitting)
        n = fitting < 1 ? 1 : (int)fitting;
    const int rows = ceil_div(n_rows, n);
    const struct chunks cut = {ceil_div(n_rows, rows), rows};
    return cut;
}

static inline dim3 chunk_grid(const struct chunks &cut, int n_columns)
{
    return dim3((unsigned)cut.n, (unsigned)ceil_div(n_columns, COLUMN_LANES));
}

/* One warp for each column. */
static inline dim3 column_grid(int n_columns)
{
    return dim3((unsigned)ceil_div(n_columns * WARP, ELEMENT_THREADS));
}

/* The row lanes' values of this thread's column, added in order; only row lane 0 may use the result.
 * All threads of the block call it; between two calls there must be a barrier. */
static __device__ inline double2 sum_over_row_lanes(double first, double second)
{
    __shared__ double2 of_lane[ROW_LANES][COLUMN_LANES];
    const int column = (int)threadIdx.x % COLUMN_LANES, lane = (int)threadIdx.x / COLUMN_LANES;
    of_lane[lane][column].x = first;
    of_lane[lane][column].y = second;
    __syncthreads();
    double2 total = of_lane[0][column];
    for (int i = 1; i < ROW_LANES; i++) {
        total.x += of_lane[i][column].x;
        total.y += of_lane[i][column].y;
    }
    return total;
}

/* add(value(row)) for this thread's rows of a chunk, in order. Rows behind the end are loaded as the last, so that nothing
 * keeps the loads from being begun together. */
template <class Value, class Add>
static __device__ inline void for_own_rows(int first, int end, Value value, Add add)
{
    const int own = first + (int)threadIdx.x / COLUMN_LANES;
    for (int row = own; row < end; row += ROW_LANES * ROWS_IN_FLIGHT) {
        decltype(value(row)) values[ROWS_IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < ROWS_IN_FLIGHT; j++) {
            const int at = row + j * ROW_LANES;
            values[j] = value(at < end ? at : end - 1);
        }
#pragma unroll
        for (int j = 0; j < ROWS_IN_FLIGHT; j++)
            if (row + j * ROW_LANES < end)
                add(values[j]);
    }
}

template <class Values>
__global__ void __launch_bounds__(REDUCE_THREADS)
    column_chunks_kernel(int n_rows, int n_columns, int rows_of_chunk, Values values, double2 *partial)
{
    const int column = (int)blockIdx.y * COLUMN_LANES + (int)threadIdx.x % COLUMN_LANES;
    const int first = (int)blockIdx.x * rows_of_chunk;
    const int behind = n_rows - first < rows_of_chunk ? n_rows : first + rows_of_chunk;
    float2 sums = {0, 0};
    for_own_rows(
        first, column < n_columns ? behind : first, [&](int row) { return values(row, column); },
        [&](const float2 &v) {
            sums.x += v.x;
            sums.y += v.y;
        });
    const double2 total = sum_over_row_lanes(sums.x, sums.y);
    if (threadIdx.x < COLUMN_LANES && column < n_columns)
        partial[(size_t)blockIdx.x * (size_t)n_columns + (size_t)column] = total;
}

template <class Result>
__global__ void __launch_bounds__(ELEMENT_THREADS)
    column_results_kernel(int n_chunks, int n_columns, const double2 *partial, Result result)
{
    const int column = (int)first_element() / WARP, lane = (int)threadIdx.x % WARP;
    if (column >= n_columns)
        return; /* the whole warp */
    double2 sums = {0, 0};
    for (int chunk = lane; chunk < n_chunks; chunk += WARP) {
        const double2 p = partial[(size_t)chunk * (size_t)n_columns + (size_t)column];
        sums.x += p.x;
        sums.y += p.y;
    }
    sums.x = warp_sum(sums.x);
    sums.y = warp_sum(sums.y);
    if (lane == 0)
        result(column, sums);
}

template <class Values, class Result>
static cudaError_t reduce_columns(const struct cuda_queue *q, int n_rows, int n_columns, Values values,
                                  Result result)
{
    const struct chunks cut = cut_rows(n_rows, n_columns);
    double2 *partial = reinterpret_cast<double2 *>(q->workspace);
    cudaError_t r = launch(q->stream, chunk_grid(cut, n_columns), REDUCE_THREADS,
                           column_chunks_kernel<Values>, n_rows, n_columns, cut.n_rows, values, partial);
    if (r != cudaSuccess)
        return r;
    return launch(q->stream, column_grid(n_columns), ELEMENT_THREADS, column_results_kernel<Result>, cut.n,
                  n_columns, (const double2 *)partial, result);
}
