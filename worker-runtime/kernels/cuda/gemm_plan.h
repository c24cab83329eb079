#pragma once

/*
 * How a matrix product D[m][n] = sum over k of A(m, k) B(k, n) is cut into blocks: a pure function of its shape and
 * precision, used by the launches (gemm.cuh) and by tests.
 *
 * Long k is split over blocks. The number of splits decides the order of the sums and depends on the shape alone; the
 * tile does not change any bit, so it is chosen for speed: little of it may lie outside the product, and a large card
 * should have a block for each multiprocessor.
 */

#include <stdbool.h>
#include <stdint.h>

#include "worker-runtime/kernels/cuda/kernels.h"

enum {
    GEMM_SLICE = 16, /* of k at a time */
    GEMM_THREADS = 128,
    GEMM_BLOCKS_WANTED = 256,
    GEMM_BLOCKS_FEW = 128, /* smaller tiles are better than fewer blocks than this */
    GEMM_SPLIT_TILE = 64,  /* splits are counted as if all tiles were of this size */
    GEMM_SPLITS_MAX = 64,
    GEMM_SPLIT_SLICES_MIN = 8, /* with fewer slices in each, a second kernel does not pay */
    GEMM_TENSOR_CORES_MIN =
        16, /* they multiply 16 x 8 x 8 or 16 x 8 x 16 at once: padding, where m, n or k is less */
};

/* Large tiles first. The last two are for a product with few columns or few rows, and not for tensor cores. */
enum gemm_tile { GEMM_64_64, GEMM_64_32, GEMM_32_32, GEMM_32_12, GEMM_16_64, GEMM_TILE_COUNT };

struct gemm_size {
    int m, n;
};

static inline struct gemm_size gemm_tile_size(enum gemm_tile tile)
{
    static const struct gemm_size sizes[GEMM_TILE_COUNT] = {{64, 64}, {64, 32}, {32, 32}, {32, 12}, {16, 64}};
    return sizes[tile];
}

struct gemm_shape {
    int m, n, k;
    bool
        row_sums; /* the sums over k of A's rows as well: the gradient of a bias beside that of the weights */
    int64_t useful; /* multiply-adds, without those with what is only padding */
};

struct gemm_plan {
    enum crw_products precision;
    enum gemm_tile tile;
    int tiles_down, tiles_across, n_splits;
    int k_of_split; /* of each but the last */
};

static inline int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* ---- the products of the layers ---- */

static inline struct gemm_shape gemm_of(int m, int n, int k, bool row_sums)
{
    const struct gemm_shape shape = {m, n, k, row_sums, (int64_t)m * n * k};
    return shape;
}

static inline struct gemm_shape linear_forward_shape(int n, int in, int out)
{
    return gemm_of(n, out, in, false);
}

static inline struct gemm_shape linear_backward_weights_shape(int n, int in, int out)
{
    return gemm_of(out, in, n, true);
}

static inline struct gemm_shape linear_backward_input_shape(int n, int in, int out)
{
    return gemm_of(n, in, out, false);
}

/* All three products of a convolution multiply the same pairs. */
static inline struct gemm_shape conv_product(int n, const struct conv_shape *s, struct gemm_shape shape)
{
    const int64_t weights = (int64_t)s->kernel * s->kernel * s->in_channels * s->out_channels;
    shape.useful = weights * n * s->out_height * s->out_width;
    return shape;
}

static inline struct gemm_shape conv_forward_shape(int n, const struct conv_shape *s)
{
    return conv_product(n, s,
                        gemm_of(n * s->out_height * s->out_width, s->out_stored,
                                s->kernel * s->kernel * s->in_channels, false));
}

static inline struct gemm_shape conv_backward_weights_shape(int n, const struct conv_shape *s)
{
    return conv_product(n, s,
                        gemm_of(s->out_channels, s->kernel * s->kernel * s->in_channels,
                                n * s->out_height * s->out_width, true));
}

static inline struct gemm_shape conv_backward_input_shape(int n, const struct conv_shape *s)
{
    return conv_product(n, s,
                        gemm_of(n * s->in_height * s->in_width, s->in_stored,
                                s->kernel * s->kernel * s->out_channels, false));
}

/* ---- the plan ---- */

/* Columns of the result, that of the row sums included. */
static inline int gemm_columns(const struct gemm_shape *s)
{
    return s->n + s->row_sums;
}

/* So many that a large card has something to do everywhere, but each with so many slices that a second kernel pays. */
static inline int gemm_count_splits(const struct gemm_shape *s)
{
    const int64_t tiles =
        (int64_t)ceil_div(s->m, GEMM_SPLIT_TILE) * ceil_div(gemm_columns(s), GEMM_SPLIT_TILE);
    const int64_t fitting = CUDA_WORKSPACE_FLOATS / ((int64_t)s->m * gemm_columns(s));
    int64_t splits = GEMM_BLOCKS_WANTED / tiles;
    if (splits > s->k / (GEMM_SPLIT_SLICES_MIN * GEMM_SLICE))
        splits = s->k / (GEMM_SPLIT_SLICES_MIN * GEMM_SLICE);
    if (splits > GEMM_SPLITS_MAX)
        splits = GEMM_SPLITS_MAX;
    if (splits > fitting)
        splits = fitting;
    return splits < 1 ? 1 : (int)splits;
}

static inline bool gemm_tile_fits(enum gemm_tile tile, enum crw_products precision,
                                  const struct gemm_shape *s)
{
    if (tile == GEMM_32_12)
        return precision == CRW_PRODUCTS_F32 && s->n <= gemm_tile_size(tile).n;
    if (tile == GEMM_16_64)
        return precision == CRW_PRODUCTS_F32 && s->m <= gemm_tile_size(tile).m;
    return true;
}

static inline int64_t gemm_count_tiles(enum gemm_tile tile, const struct gemm_shape *s)
{
    return (int64_t)ceil_div(s->m, gemm_tile_size(tile).m) * ceil_div(s->n, gemm_tile_size(tile).n);
}

/* Elements of D and of what lies around it in its tiles. */
static inline int64_t gemm_area(enum gemm_tile tile, const struct gemm_shape *s)
{
    return gemm_count_tiles(tile, s) * gemm_tile_size(tile).m * gemm_tile_size(tile).n;
}

/* The largest tile that computes at most a quarter more than the best one, or a smaller one where blocks are few. */
static inline enum gemm_tile gemm_choose_tile(enum crw_products precision, const struct gemm_shape *s,
                                              int n_splits)
{
    int64_t least = INT64_MAX, n_blocks = 0;
    int best = GEMM_64_64;
    for (int i = 0; i < GEMM_TILE_COUNT; i++)
        if (gemm_tile_fits((enum gemm_tile)i, precision, s) && gemm_area((enum gemm_tile)i, s) < least)
            least = gemm_area((enum gemm_tile)i, s);
    for (int i = 0; i < GEMM_TILE_COUNT; i++) {
        const enum gemm_tile tile = (enum gemm_tile)i;
        const int64_t n = gemm_count_tiles(tile, s) * n_splits;
        if (!gemm_tile_fits(tile, precision, s) || gemm_area(tile, s) > least + least / 4)
            continue;
        if (n_blocks == 0 || (n_blocks < GEMM_BLOCKS_FEW && n > n_blocks)) {
            best = i;
            n_blocks = n;
        }
    }
    return (enum gemm_tile)best;
}

static inline struct gemm_plan gemm_plan_of(enum crw_products wanted, const struct gemm_shape *s)
{
    const bool small =
        s->m < GEMM_TENSOR_CORES_MIN || s->n < GEMM_TENSOR_CORES_MIN || s->k < GEMM_TENSOR_CORES_MIN;
    const int splits_wanted = gemm_count_splits(s);
    struct gemm_plan plan;
    plan.precision = small ? CRW_PRODUCTS_F32 : wanted;
    plan.k_of_split = ceil_div(ceil_div(s->k, splits_wanted), GEMM_SLICE) * GEMM_SLICE;
    plan.n_splits = ceil_div(s->k, plan.k_of_split);
    plan.tile = gemm_choose_tile(plan.precision, s, plan.n_splits);
    plan.tiles_down = ceil_div(s->m, gemm_tile_size(plan.tile).m);
    plan.tiles_across = ceil_div(s->n, gemm_tile_size(plan.tile).n);
    return plan;
}
