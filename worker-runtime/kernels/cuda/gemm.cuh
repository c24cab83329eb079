#pragma once

/*
 * One matrix product for all layers: D[m][n] = sum over k of A(m, k) B(k, n), where A and B are small objects
 * that load an element (from a matrix, or from the pixel of a convolution's image), and D takes a finished sum away (adds a
 * bias, stores the sum in the layout of the reader). A convolution is thereby an implicit product: no unfolded copy of the
 * image is ever written.
 *
 * A block of 4 warps makes a tile of at most 64 x 64, 16 of k at a time: the next slice is fetched into registers
 * during the multiplication of the present slice from shared memory. gemm_plan.h has the tiles and chooses among them. Long k is
 * split over blocks (a number that depends on the shape only); their partial sums go through the workspace and are
 * added in order by a second kernel.
 *
 * On request D also gets the sums over k of A's rows, as column n: the gradient of a bias beside the gradient of the
 * weights. The sums are added in fp32 in every precision, by the blocks with the slices in shared memory.
 *
 * A and B split the address of an element into a `place` (from the index i along the tile's edge) and a `step` (from k), so
 * that the divisions by image sizes are made once for each, and not for each element:
 *   k_is_contiguous   consecutive k are consecutive memory: a thread has one k of a slice and many i, whose places it
 *                     finds once and for all; find(i), walk(k), load(place, step)
 *   otherwise         consecutive i are: a thread has one i and some consecutive k of each slice; also next(step)
 * load() is only called for k of the product; i beyond the end is taken for the last.
 */

#include "worker-runtime/kernels/cuda/launch.cuh"
#include "worker-runtime/kernels/cuda/mma.cuh"

constexpr int SLICE = GEMM_SLICE;

/* An operand: element (i, k) of a matrix whose columns are i. */
struct columns_of {
    static constexpr bool k_is_contiguous = false;
    typedef const float *place;
    const float *matrix;
    int stride;

    __device__ place find(int i) const
    {
        return matrix + i;
    }
    __device__ size_t walk(int k) const
    {
        return (size_t)k * (size_t)stride;
    }
    __device__ size_t next(size_t step) const
    {
        return step + (size_t)stride;
    }
    __device__ float load(place column, size_t step) const
    {
        return column[step];
    }
};

/* One operand's part of a tile, LENGTH along its edge. */
template <class Fetch, int LENGTH> struct reader {
    static constexpr int LANES = LENGTH > 32 ? 64 : LENGTH > 16 ? 32 : 16;
    static constexpr int FETCHES = LANES * SLICE / GEMM_THREADS; /* of each thread and slice */
    static constexpr int PLACES = Fetch::k_is_contiguous ? FETCHES : 1;
    /* A slice's rows in shared memory. 8 more than the lanes: those of a warp that load a fragment for a tensor core (8
     * columns in each of 4 rows) hit 32 different banks; and a multiple of 4: four floats are loaded at once. */
    static constexpr int ROW = LANES + 8;

    typename Fetch::place places[PLACES];
    float next[FETCHES];

    /* Where thread t has its number j. */
    __device__ static int edge_of(int j)
    {
        return Fetch::k_is_contiguous ? (int)threadIdx.x / SLICE + j * (GEMM_THREADS / SLICE)
                                      : (int)threadIdx.x % LANES;
    }

    __device__ static int k_of(int j)
    {
        return Fetch::k_is_contiguous ? (int)threadIdx.x % SLICE : (int)threadIdx.x / LANES * FETCHES + j;
    }

    __device__ reader(const Fetch &fetch, int first, int end)
    {
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            const int i = first + edge_of(j);
            places[j] = fetch.find(i < end ? i : end - 1);
        }
    }

    /* The slice from k0 on; behind k_end it is 0. */
    __device__ void read(const Fetch &fetch, int k0, int k_end)
    {
        auto step = fetch.walk(k0 + k_of(0));
#pragma unroll
        for (int j = 0; j < FETCHES; j++) {
            next[j] = k0 + k_of(j) < k_end ? fetch.load(places[j % PLACES], step) : 0;
            if constexpr (!Fetch::k_is_contiguous)
                step = fetch.next(step);
        }
    }

    __device__ void store(float (*slice)[ROW]) const
    {
#pragma unroll
        for (int j = 0; j < FETCHES; j++)
            slice[k_of(j)][edge_of(j)] = next[j];
    }
};

/*
 * How the block's threads share a tile of M x N: multiply() adds n_k of a slice, and then sum(j), for j below SUMS,
 * belongs at place(j).
 */
template <int PRECISION, int M, int N> struct tile;

/* Each thread ROWS rows x COLUMNS columns, k in order, one fma after the other. */
template <int M, int N> struct tile<CRW_PRODUCTS_F32, M, N> {
    static constexpr int COLUMN_LANES = N % 16 == 0 ? 16 : 4, ROW_LANES = GEMM_THREADS / COLUMN_LANES;
    static constexpr int ROWS = M / ROW_LANES, COLUMNS = N / COLUMN_LANES, SUMS = ROWS * COLUMNS;
    static constexpr int TOGETHER = ROWS % 4 == 0 ? 4 : 1; /* rows that are loaded at once */
    static_assert(ROWS * ROW_LANES == M && COLUMNS * COLUMN_LANES == N, "the threads do not divide the tile");
    float sums[SUMS];

    __device__ static int row_of(int r)
    {
        return (int)threadIdx.x / COLUMN_LANES * TOGETHER + r / TOGETHER * (ROW_LANES * TOGETHER) +
               r % TOGETHER;
    }

    __device__ static int column_of(int c)
    {
        return (int)threadIdx.x % COLUMN_LANES + c * COLUMN_LANES;
    }

    __device__ float sum(int j) const
    {
        return sums[j];
    }

    __device__ static void load_rows(const float *a, float (&rows)[ROWS])
    {
#pragma unroll
        for (int r = 0; r < ROWS; r += TOGETHER) {
            if (TOGETHER == 1) {
                rows[r] = a[row_of(r)];
                continue;
            }
            const float4 four = *reinterpret_cast<const float4 *>(&a[row_of(r)]);
            rows[r] = four.x;
            rows[(r + 1) % ROWS] = four.y;
            rows[(r + 2) % ROWS] = four.z;
            rows[(r + 3) % ROWS] = four.w;
        }
    }

    __device__ void multiply_one(const float *a, const float *b)
    {
        float from_a[ROWS], from_b[COLUMNS];
        load_rows(a, from_a);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            from_b[c] = b[column_of(c)];
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            sums[j] = fmaf(from_a[j / COLUMNS], from_b[j % COLUMNS], sums[j]);
    }

    template <int ROW_A, int ROW_B>
    __device__ void multiply(const float (*a)[ROW_A], const float (*b)[ROW_B], int n_k)
    {
        if (n_k < SLICE) {
#pragma unroll 1
            for (int k = 0; k < n_k; k++)
                multiply_one(a[k], b[k]);
            return;
        }
#pragma unroll
        for (int k = 0; k < SLICE; k++)
            multiply_one(a[k], b[k]);
    }

    __device__ static void place(int j, int *m, int *n)
    {
        *m = row_of(j / COLUMNS);
        *n = column_of(j % COLUMNS);
    }
};

/* The warps are 2 x 2, each has DOWN x ACROSS tensor-core tiles of 16 x 8. */
template <int M, int N> struct warp_tiles {
    static constexpr int HEIGHT = 16, WIDTH = 8, DOWN = M / 2 / HEIGHT, ACROSS = N / 2 / WIDTH;
    static constexpr int SUMS = DOWN * ACROSS * 4;
    static_assert(DOWN * HEIGHT * 2 == M && ACROSS * WIDTH * 2 == N, "the warps do not divide the tile");
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

template <int M, int N> struct tile<CRW_PRODUCTS_TF32, M, N> : warp_tiles<M, N> {
    using base = warp_tiles<M, N>;
    using base::ACROSS, base::DOWN, base::HEIGHT, base::WIDTH, base::first_row, base::first_column,
        base::tiles;

    template <int ROW_A, int ROW_B>
    __device__ void multiply(const float (*a)[ROW_A], const float (*b)[ROW_B], int n_k)
    {
        const int group = (int)threadIdx.x % WARP / 4, member = (int)threadIdx.x % 4;
#pragma unroll
        for (int k0 = 0; k0 < SLICE; k0 += 8) {
            const int k = k0 + member;
            if (k0 >= n_k)
                break;
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

template <int M, int N> struct tile<CRW_PRODUCTS_BF16, M, N> : warp_tiles<M, N> {
    using base = warp_tiles<M, N>;
    using base::ACROSS, base::DOWN, base::HEIGHT, base::WIDTH, base::first_row, base::first_column,
        base::tiles;

    template <int ROW_A, int ROW_B>
    __device__ void multiply(const float (*a)[ROW_A], const float (*b)[ROW_B], int)
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

/* Thread i of the first ROWS ones: the sum of row i of A, n_k more. */
template <int ROWS, int ROW> static __device__ inline void add_row(const float (*a)[ROW], int n_k, float *sum)
{
    if (threadIdx.x >= ROWS)
        return;
#pragma unroll 4
    for (int k = 0; k < n_k; k++)
        *sum += a[k][threadIdx.x];
}

/* Of a product that is not split D gets the sums; else the workspace does, [splits][m][n_columns]. */
template <class D>
static __device__ inline void put_sum(const struct gemm_shape &s, float *workspace, const D &d, int row,
                                      int column, float sum)
{
    const size_t n_columns = (size_t)s.n + s.row_sums;
    if (gridDim.z == 1)
        d(row, column, sum);
    else
        workspace[((size_t)blockIdx.z * (size_t)s.m + (size_t)row) * n_columns + (size_t)column] = sum;
}

/* ROW_SUMS: of the blocks of the first column of tiles. */
template <int PRECISION, int M, int N, bool ROW_SUMS, class A, class B, class D>
__global__ void __launch_bounds__(GEMM_THREADS)
    gemm_kernel(struct gemm_shape s, int k_of_split, float *workspace, A a, B b, D d)
{
    typedef reader<A, M> reader_a;
    typedef reader<B, N> reader_b;
    alignas(16) __shared__ float slice_a[2][SLICE][reader_a::ROW];
    alignas(16) __shared__ float slice_b[2][SLICE][reader_b::ROW];
    const int m0 = (int)blockIdx.x * M, n0 = (int)blockIdx.y * N, k0 = (int)blockIdx.z * k_of_split;
    const int k_end = s.k - k0 < k_of_split ? s.k : k0 + k_of_split;
    reader_a read_a(a, m0, s.m);
    reader_b read_b(b, n0, s.n);
    float row_sum = 0;
    tile<PRECISION, M, N> tile = {};

    read_a.read(a, k0, k_end);
    read_b.read(b, k0, k_end);
    for (int at = k0, half = 0; at < k_end; at += SLICE, half ^= 1) {
        const int n_k = k_end - at < SLICE ? k_end - at : SLICE;
        /* The other half may still be read by slower warps, this one no more: they have passed the barrier
         * of the slice between. */
        read_a.store(slice_a[half]);
        read_b.store(slice_b[half]);
        __syncthreads();
        if (at + SLICE < k_end) {
            read_a.read(a, at + SLICE, k_end);
            read_b.read(b, at + SLICE, k_end);
        }
        tile.multiply(slice_a[half], slice_b[half], n_k);
        if (ROW_SUMS && blockIdx.y == 0)
            add_row<M>(slice_a[half], n_k, &row_sum);
    }
    if (ROW_SUMS && blockIdx.y == 0 && threadIdx.x < M && m0 + (int)threadIdx.x < s.m)
        put_sum(s, workspace, d, m0 + (int)threadIdx.x, s.n, row_sum);
#pragma unroll
    for (int j = 0; j < tile.SUMS; j++) {
        int row, column;
        tile.place(j, &row, &column);
        if (m0 + row < s.m && n0 + column < s.n)
            put_sum(s, workspace, d, m0 + row, n0 + column, tile.sum(j));
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

template <int PRECISION, int M, int N, bool ROW_SUMS, class A, class B, class D>
static cudaError_t gemm_launch(const struct cuda_queue *q, const struct gemm_shape &s,
                               const struct gemm_plan &plan, A a, B b, D d)
{
    const dim3 grid((unsigned)plan.tiles_down, (unsigned)plan.tiles_across, (unsigned)plan.n_splits);
    return launch(q->stream, grid, GEMM_THREADS, gemm_kernel<PRECISION, M, N, ROW_SUMS, A, B, D>, s,
                  plan.k_of_split, q->workspace, a, b, d);
}

template <int PRECISION, bool ROW_SUMS, class A, class B, class D>
static cudaError_t gemm_at(const struct cuda_queue *q, const struct gemm_shape &s,
                           const struct gemm_plan &plan, A a, B b, D d)
{
    switch (plan.tile) {
    case GEMM_64_64:
        return gemm_launch<PRECISION, 64, 64, ROW_SUMS>(q, s, plan, a, b, d);
    case GEMM_64_32:
        return gemm_launch<PRECISION, 64, 32, ROW_SUMS>(q, s, plan, a, b, d);
    case GEMM_32_32:
        return gemm_launch<PRECISION, 32, 32, ROW_SUMS>(q, s, plan, a, b, d);
    case GEMM_32_12:
        if constexpr (PRECISION == CRW_PRODUCTS_F32)
            return gemm_launch<PRECISION, 32, 12, ROW_SUMS>(q, s, plan, a, b, d);
        break;
    case GEMM_16_64:
        if constexpr (PRECISION == CRW_PRODUCTS_F32)
            return gemm_launch<PRECISION, 16, 64, ROW_SUMS>(q, s, plan, a, b, d);
        break;
    case GEMM_TILE_COUNT:
        break;
    }
    return cudaErrorInvalidValue;
}

template <bool ROW_SUMS, class A, class B, class D>
static cudaError_t gemm_in(const struct cuda_queue *q, const struct gemm_shape &s,
                           const struct gemm_plan &plan, A a, B b, D d)
{
    switch (plan.precision) {
    case CRW_PRODUCTS_F32:
        return gemm_at<CRW_PRODUCTS_F32, ROW_SUMS>(q, s, plan, a, b, d);
    case CRW_PRODUCTS_TF32:
        return gemm_at<CRW_PRODUCTS_TF32, ROW_SUMS>(q, s, plan, a, b, d);
    case CRW_PRODUCTS_BF16:
        return gemm_at<CRW_PRODUCTS_BF16, ROW_SUMS>(q, s, plan, a, b, d);
    case CRW_PRODUCTS_COUNT:
        break;
    }
    return cudaErrorInvalidValue;
}

/* ROW_SUMS: as the shape has it. */
template <bool ROW_SUMS = false, class A, class B, class D>
static cudaError_t gemm(const struct cuda_queue *q, const struct gemm_shape &s, A a, B b, D d)
{
    const struct gemm_plan plan = gemm_plan_of(q->precision, &s);
    const int n_columns = gemm_columns(&s);
    cudaError_t r = gemm_in<ROW_SUMS>(q, s, plan, a, b, d);
    if (r != cudaSuccess || plan.n_splits == 1)
        return r;
    return launch(q->stream, element_grid((size_t)s.m * (size_t)n_columns), ELEMENT_THREADS,
                  gemm_finish_kernel<D>, s.m, n_columns, plan.n_splits, (const float *)q->workspace, d);
}
