#pragma once

/*
 * Products of matrices, one tile of the result at a time. A tile is ROWS x (VECTORS vectors) and lives in
 * registers while k runs: per step, VECTORS loads from b, and ROWS single numbers of a, each spread over a
 * vector and used VECTORS times.
 *
 * k may come in segments, and these in parts: a convolution reads `kernel` stretches of its input, one from each
 * row of pixels, or some channels of each of their pixels, and no copy of the image has to be made for it. Which of a's two directions is contiguous is known when
 * a tile is compiled, how far apart the other is, is not.
 *
 * Tile sizes: as many accumulators as there are registers, less VECTORS for b and one for a.
 */

#include <stdbool.h>

#include "worker-runtime/kernels/cpu/fast_vector.h"

#if CPU_LANES == 16 || defined(__aarch64__)
#define TILE_ROWS 13 /* of 32 registers */
#else
#define TILE_ROWS 6 /* of 16 */
#endif
#define TILE_VECTORS 2
#define TILE_COLUMNS (TILE_VECTORS * CPU_LANES)

struct product {
    const float *a;
    ptrdiff_t a_stride; /* between rows, or between steps of k: the direction that is not contiguous */
    const float *b;
    ptrdiff_t b_stride; /* between steps of k */
    float *c;
    ptrdiff_t c_stride;             /* between rows */
    bool add;                       /* onto what c holds */
    int n_segments, n_parts, k;     /* parts of a segment (0: one), steps of k in a part */
    ptrdiff_t a_segment, b_segment; /* from the start of a segment to the next one's */
    ptrdiff_t a_part, b_part;       /* and of a part */
};

/* bias: added to every row at the end, or NULL. */
typedef void tile_fn(const struct product *p, const float *a, const float *b, float *c, const float *bias);

/* by_row: rows of a are a_stride apart and k is contiguous; else the other way round. */
INLINE void tile(const struct product *p, const float *a, const float *b, float *c, const float *bias,
                 const int rows, const int vectors, const bool by_row)
{
    vf sum[TILE_ROWS][TILE_VECTORS];
    const ptrdiff_t a_row = by_row ? p->a_stride : 1, a_step = by_row ? 1 : p->a_stride;
    const ptrdiff_t b_step = p->b_stride;

    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            sum[r][v] = (vf){0};
    }

    for (int segment = 0; segment < p->n_segments; segment++) {
        int part = 0;
        do {
            const float *a_at = a + segment * p->a_segment + part * p->a_part;
            const float *b_at = b + segment * p->b_segment + part * p->b_part;
            for (int k = p->k; k > 0; k--) {
                vf b_now[TILE_VECTORS];
                UNROLL
                for (int v = 0; v < vectors; v++)
                    b_now[v] = load(b_at + v * CPU_LANES);
                UNROLL
                for (int r = 0; r < rows; r++) {
                    UNROLL
                    for (int v = 0; v < vectors; v++)
                        sum[r][v] += a_at[r * a_row] * b_now[v];
                }
                a_at += a_step;
                b_at += b_step;
            }
        } while (++part < p->n_parts);
    }

    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            float *to = c + r * p->c_stride + v * CPU_LANES;
            vf result = p->add ? load(to) + sum[r][v] : sum[r][v];
            store(to, bias ? result + load(bias + v * CPU_LANES) : result);
        }
    }
}

#define TILE(rows, vectors, by_row, name)                                                                    \
    static void name(const struct product *p, const float *a, const float *b, float *c, const float *bias)   \
    {                                                                                                        \
        tile(p, a, b, c, bias, rows, vectors, by_row);                                                       \
    }
#define TILES(rows)                                                                                          \
    TILE(rows, 1, true, tile_by_row_##rows##x1)                                                              \
    TILE(rows, 2, true, tile_by_row_##rows##x2)                                                              \
    TILE(rows, 1, false, tile_by_step_##rows##x1)                                                            \
    TILE(rows, 2, false, tile_by_step_##rows##x2)
#define TILES_OF(rows)                                                                                       \
    [rows] = {{NULL, tile_by_row_##rows##x1, tile_by_row_##rows##x2},                                        \
              {NULL, tile_by_step_##rows##x1, tile_by_step_##rows##x2}}

TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)
#if TILE_ROWS > 6
TILES(7)
TILES(8)
TILES(9)
TILES(10)
TILES(11)
TILES(12)
TILES(13)
#endif

enum { BY_ROW, BY_STEP };

static tile_fn *const tiles[TILE_ROWS + 1][2][TILE_VECTORS + 1] = {
    TILES_OF(1), TILES_OF(2), TILES_OF(3), TILES_OF(4),  TILES_OF(5),  TILES_OF(6),
#if TILE_ROWS > 6
    TILES_OF(7), TILES_OF(8), TILES_OF(9), TILES_OF(10), TILES_OF(11), TILES_OF(12), TILES_OF(13),
#endif
};

/* Rows [0, rows) of `vectors` vectors of columns, in tiles as even as can be: 16 rows are 8 + 8, not 13 + 3.
 */
INLINE void product_rows(const struct product *p, int rows, int vectors, const float *b, float *c,
                         const float *bias, const int direction)
{
    int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    ptrdiff_t a_row = direction == BY_ROW ? p->a_stride : 1;
    for (int t = 0, row = 0; t < n_tiles; t++) {
        int height = (rows - row) / (n_tiles - t);
        tiles[height][direction][vectors](p, p->a + row * a_row, b, c + row * p->c_stride, bias);
        row += height;
    }
}
