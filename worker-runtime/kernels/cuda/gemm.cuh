#pragma once

/*
 * One matrix product for all layers: D[m][n] = sum over k of A(m, k) B(k, n), where A and B are small objects
 * that fetch one element (from a matrix, or from the image pixel that a convolution pairs with it) and D is
 * one that takes a finished sum away (adds a bias, stores it in the layout of its reader). A convolution is thereby
 * an implicit product: no unfolded copy of the image is ever written.
 *
 * A block of 4 warps makes a tile of 64 x 64, 16 of k at a time: the next slice is fetched into registers
 * while the present one is multiplied from shared memory. Long k is split over blocks (a number that depends
 * on the shape only); their partial sums go through the workspace and are added in order by a second kernel.
 *
 * Where it is asked for, D also gets the sums over k of A's rows, as one more column n: the gradient of a bias beside
 * that of the weights. They are added in fp32 in every precision, by the blocks that have the slices in shared memory anyway.
 *
 * A fetcher has in `k_is_contiguous` which of its indices walks through consecutive memory, so that
 * neighbouring threads fetch neighbouring floats.
 */

#include "worker-runtime/kernels/cuda/launch.cuh"
#include "worker-runtime/kernels/cuda/mma.cuh"

constexpr int TILE = 64, SLICE = 16, GEMM_THREADS = 128;
constexpr int FETCHES = TILE * SLICE / GEMM_THREADS; /* of each thread and slice */
/* Rows of 64 + 8 floats: the lanes of a warp that load a fragment (8 columns in each of 4 rows) hit 32
 * different banks. */
constexpr int ROW = TILE + 8;
constexpr int GEMM_BLOCKS_WANTED = 256, SPLITS_MAX = 64;

/* Which element (i along the tile's edge, k along its slice) thread t fetches as its number j. */
template <bool K_IS_CONTIGUOUS> static __device__ inline void fetch_place(int j, int *i, int *k)
{
    int e = (int)threadIdx.x + j * GEMM_THREADS;
    *i = K_IS_CONTIGUOUS ? e / SLICE : e % TILE;
    *k = K_IS_CONTIGUOUS ? e % SLICE : e / TILE;
}

/* fetch(i, k) for the slice that begins at (i0, k0); what lies outside is 0. */
template <class Fetch>
static __device__ inline void fetch_slice(const Fetch &fetch, int i0, int i_end, int k0, int k_end,
                                          float (&slice)[FETCHES])
{
#pragma unroll
    for (int j = 0; j < FETCHES; j++) {
        int i, k;
        fetch_place<Fetch::k_is_contiguous>(j, &i, &k);
        slice[j] = i0 + i < i_end && k0 + k < k_end ? fetch(i0 + i, k0 + k) : 0;
    }
}

template <bool K_IS_CONTIGUOUS>
static __device__ inline void store_slice(const float (&slice)[FETCHES], float (*shared)[ROW])
{
#pragma unroll
    for (int j = 0; j < FETCHES; j++) {
        int i, k;
        fetch_place<K_IS_CONTIGUOUS>(j, &i, &k);
        shared[k][i] = slice[j];
    }
}

/*
 * How the block's threads share a tile: multiply() adds a slice, and then sum(j) belongs at place(j). 32
 * sums a thread in every precision.
 */
constexpr int SUMS = TILE * TILE / GEMM_THREADS;

template <int PRECISION> struct tile;

/* Each thread 8 rows x 4 columns, k in order, one fma after the other. */
template <> struct tile<CUDA_EXACT> {
    static constexpr int ROWS = 8, COLUMNS = 4, ROW_STEP = TILE / ROWS, COLUMN_STEP = TILE / COLUMNS;
    float sums[SUMS];

    __device__ float sum(int j) const
    {
        return sums[j];
    }

    __device__ void multiply(const float (*a)[ROW], const float (*b)[ROW])
    {
        const int row = (int)threadIdx.x / COLUMN_STEP, column = (int)threadIdx.x % COLUMN_STEP;
#pragma unroll
        for (int k = 0; k < SLICE; k++) {
            float from_a[ROWS], from_b[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                from_a[r] = a[k][row + r * ROW_STEP];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                from_b[c] = b[k][column + c * COLUMN_STEP];
#pragma unroll
            for (int j = 0; j < SUMS; j++)
                sums[j] = fmaf(from_a[j / COLUMNS], from_b[j % COLUMNS], sums[j]);
        }
    }

    __device__ static void place(int j, int *m, int *n)
    {
        *m = (int)threadIdx.x / COLUMN_STEP + j / COLUMNS * ROW_STEP;
        *n = (int)threadIdx.x % COLUMN_STEP + j % COLUMNS * COLUMN_STEP;
    }
};

/* The warps are 2 x 2, each has 2 x 4 tensor-core tiles of 16 x 8. */
struct warp_tiles {
    static constexpr int DOWN = 2, ACROSS = 4, HEIGHT = 16, WIDTH = 8;
    float tiles[DOWN * ACROSS][4];

    __device__ float sum(int j) const
    {
        return tiles[j / 4][j % 4];
    }

    __device__ static int first_row(void)
    {
        return (int)threadIdx.x / WARP / 2 * (DOWN * HEIGHT);
    }

    __device__ static int first_column(void)
    {
        return (int)threadIdx.x / WARP % 2 * (ACROSS * WIDTH);
    }

    __device__ static void place(int j, int *m, int *n)
    {
        const int lane = (int)threadIdx.x % WARP, of_tile = j % 4, number = j / 4;
        *m = first_row() + number / ACROSS * HEIGHT + lane / 4 + of_tile / 2 * 8;
        *n = first_column() + number % ACROSS * WIDTH + lane % 4 * 2 + of_tile % 2;
    }
};

template <> struct tile<CUDA_TF32> : warp_tiles {
    __device__ void multiply(const float (*a)[ROW], const float (*b)[ROW])
    {
        const int group = (int)threadIdx.x % WARP / 4, member = (int)threadIdx.x % 4;
#pragma unroll
        for (int k0 = 0; k0 < SLICE; k0 += 8) {
            const int k = k0 + member;
            unsigned of_b[ACROSS][2];
#pragma unroll
            for (int t = 0; t < ACROSS; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    of_b[t][h] = round_to_tf32(b[k + 4 * h][first_column() + t * WIDTH + group]);
#pragma unroll
            for (int d = 0; d < DOWN; d++) {
                unsigned of_a[4];
#pragma unroll
                for (int h = 0; h < 4; h++)
                    of_a[h] = round_to_tf32(a[k + h / 2 * 4][first_row() + d * HEIGHT + group + h % 2 * 8]);
#pragma unroll
                for (int t = 0; t < ACROSS; t++)
                    mma_m16n8k8_tf32(tiles[d * ACROSS + t], of_a, of_b[t]);
            }
        }
    }
};

template <> struct tile<CUDA_BF16> : warp_tiles {
    __device__ void multiply(const float (*a)[ROW], const float (*b)[ROW])
    {
        const int group = (int)threadIdx.x % WARP / 4, k = (int)threadIdx.x % 4 * 2;
        unsigned of_b[ACROSS][2];
#pragma unroll
        for (int t = 0; t < ACROSS; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int column = first_column() + t * WIDTH + group;
                of_b[t][h] = round_to_bf16_pair(b[k + 8 * h][column], b[k + 8 * h + 1][column]);
            }
#pragma unroll
        for (int d = 0; d < DOWN; d++) {
            unsigned of_a[4];
#pragma unroll
            for (int h = 0; h < 4; h++) {
                int row = first_row() + d * HEIGHT + group + h % 2 * 8, at = k + h / 2 * 8;
                of_a[h] = round_to_bf16_pair(a[at][row], a[at + 1][row]);
            }
#pragma unroll
            for (int t = 0; t < ACROSS; t++)
                mma_m16n8k16_bf16(tiles[d * ACROSS + t], of_a, of_b[t]);
        }
    }
};

/* Partial sums of one split, [splits][m][n]; n: the column of row sums included. */
struct to_workspace {
    float *partial;
    int m, n;
    __device__ void operator()(int row, int column, float sum) const
    {
        partial[((size_t)blockIdx.z * (size_t)m + (size_t)row) * (size_t)n + (size_t)column] = sum;
    }
};

/* Thread i of the first TILE ones: the sum of row i of A, one slice more. */
static __device__ inline void add_row(const float (*a)[ROW], float *sum)
{
    if (threadIdx.x >= TILE)
        return;
#pragma unroll
    for (int k = 0; k < SLICE; k++)
        *sum += a[k][threadIdx.x];
}

/* ROW_SUMS: of the blocks of the first column of tiles. */
template <int PRECISION, bool ROW_SUMS, class A, class B, class D>
__global__ void __launch_bounds__(GEMM_THREADS)
    gemm_kernel(int m, int n, int k, int k_of_split, A a, B b, D d)
{
    __shared__ float slice_a[2][SLICE][ROW], slice_b[2][SLICE][ROW];
    const int m0 = (int)blockIdx.x * TILE, n0 = (int)blockIdx.y * TILE, k0 = (int)blockIdx.z * k_of_split;
    const int k_end = k - k0 < k_of_split ? k : k0 + k_of_split;
    float next_a[FETCHES], next_b[FETCHES], row_sum = 0;
    tile<PRECISION> tile = {};

    fetch_slice(a, m0, m, k0, k_end, next_a);
    fetch_slice(b, n0, n, k0, k_end, next_b);
    for (int at = k0, half = 0; at < k_end; at += SLICE, half ^= 1) {
        /* The other half may still be read by slower warps, this one no more: they have passed the barrier
         * of the slice between. */
        store_slice<A::k_is_contiguous>(next_a, slice_a[half]);
        store_slice<B::k_is_contiguous>(next_b, slice_b[half]);
        __syncthreads();
        if (at + SLICE < k_end) {
            fetch_slice(a, m0, m, at + SLICE, k_end, next_a);
            fetch_slice(b, n0, n, at + SLICE, k_end, next_b);
        }
        tile.multiply(slice_a[half], slice_b[half]);
        if (ROW_SUMS && blockIdx.y == 0)
            add_row(slice_a[half], &row_sum);
    }
    if (ROW_SUMS && blockIdx.y == 0 && threadIdx.x < TILE && m0 + (int)threadIdx.x < m)
        d(m0 + (int)threadIdx.x, n, row_sum);
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        int row, column;
        tile.place(j, &row, &column);
        if (m0 + row < m && n0 + column < n)
            d(m0 + row, n0 + column, tile.sum(j));
    }
}

/* Adds the splits up, first to last. */
template <class D> __global__ void gemm_finish_kernel(int m, int n, int n_splits, const float *partial, D d)
{
    const size_t count = (size_t)m * (size_t)n;
    for (size_t e = first_element(); e < count; e += element_stride()) {
        float sum = partial[e];
        for (int split = 1; split < n_splits; split++)
            sum += partial[(size_t)split * count + e];
        d((int)(e / (size_t)n), (int)(e % (size_t)n), sum);
    }
}

/* So many that a large card has something to do everywhere, but each with so many slices that a second kernel pays. */
constexpr int SPLIT_SLICES_MIN = 8;

static inline int count_splits(int m, int n, int k)
{
    const int64_t tiles = (int64_t)ceil_div(m, TILE) * ceil_div(n, TILE);
    const int64_t fitting = CUDA_WORKSPACE_FLOATS / ((int64_t)m * n);
    int64_t splits = GEMM_BLOCKS_WANTED / tiles;
    if (splits > k / (SPLIT_SLICES_MIN * SLICE))
        splits = k / (SPLIT_SLICES_MIN * SLICE);
    if (splits > SPLITS_MAX)
        splits = SPLITS_MAX;
    if (splits > fitting)
        splits = fitting;
    return splits < 1 ? 1 : (int)splits;
}

template <int PRECISION, bool ROW_SUMS, class A, class B, class D>
static cudaError_t gemm_at(const struct cuda_queue *q, int m, int n, int k, A a, B b, D d)
{
    const int n_columns = ROW_SUMS ? n + 1 : n, wanted = count_splits(m, n_columns, k);
    const int k_of_split = ceil_div(ceil_div(k, wanted), SLICE) * SLICE;
    const int n_splits = ceil_div(k, k_of_split);
    const dim3 grid((unsigned)ceil_div(m, TILE), (unsigned)ceil_div(n, TILE), (unsigned)n_splits);
    if (n_splits == 1)
        return launch(q->stream, grid, GEMM_THREADS, gemm_kernel<PRECISION, ROW_SUMS, A, B, D>, m, n, k,
                      k_of_split, a, b, d);

    const struct to_workspace partial = {q->workspace, m, n_columns};
    cudaError_t r =
        launch(q->stream, grid, GEMM_THREADS, gemm_kernel<PRECISION, ROW_SUMS, A, B, to_workspace>, m, n, k,
               k_of_split, a, b, partial);
    if (r != cudaSuccess)
        return r;
    return launch(q->stream, element_grid((size_t)m * (size_t)n_columns), ELEMENT_THREADS,
                  gemm_finish_kernel<D>, m, n_columns, n_splits, (const float *)q->workspace, d);
}

template <bool ROW_SUMS = false, class A, class B, class D>
static cudaError_t gemm(const struct cuda_queue *q, int m, int n, int k, A a, B b, D d)
{
    switch (q->precision) {
    case CUDA_EXACT:
        return gemm_at<CUDA_EXACT, ROW_SUMS>(q, m, n, k, a, b, d);
    case CUDA_TF32:
        return gemm_at<CUDA_TF32, ROW_SUMS>(q, m, n, k, a, b, d);
    case CUDA_BF16:
        return gemm_at<CUDA_BF16, ROW_SUMS>(q, m, n, k, a, b, d);
    case CUDA_PRECISION_COUNT:
        break;
    }
    return cudaErrorInvalidValue;
}
