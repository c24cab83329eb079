#pragma once

/*
 * Linear layers. Both gradients are products like the convolution's. Forward multiplies rows by rows: a
 * tile of sums of vectors over k, whose lanes are added at the end, so that no weight has to be transposed.
 */

#include "worker-runtime/kernels/cpu/fast_gemm.h"
#include "worker-runtime/kernels/cpu/kernels.h"

#if CPU_LANES == 16
#define DOT_ROWS 4
#define DOT_COLUMNS 6
#else
#define DOT_ROWS 3
#define DOT_COLUMNS 4
#endif

typedef void dot_fn(int in, int out, const float *x, const float *w, const float *bias, float *y);

INLINE void dot(int in, int out, const float *x, const float *w, const float *bias, float *y, const int rows,
                const int columns)
{
    vf sum[DOT_ROWS][DOT_COLUMNS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int c = 0; c < columns; c++)
            sum[r][c] = (vf){0};
    }

    ptrdiff_t stride = in;
    int k = 0;
    for (; k + CPU_LANES <= in; k += CPU_LANES) {
        vf x_now[DOT_ROWS];
        UNROLL
        for (int r = 0; r < rows; r++)
            x_now[r] = load(x + r * stride + k);
        UNROLL
        for (int c = 0; c < columns; c++) {
            vf w_now = load(w + c * stride + k);
            UNROLL
            for (int r = 0; r < rows; r++)
                sum[r][c] += x_now[r] * w_now;
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int c = 0; c < columns; c++) {
            float total = sum_lanes(sum[r][c]);
            for (int rest = k; rest < in; rest++)
                total += x[r * stride + rest] * w[c * stride + rest];
            y[r * (ptrdiff_t)out + c] = total + bias[c];
        }
    }
}

#define DOT(rows, columns)                                                                                   \
    static void dot_##rows##x##columns(int in, int out, const float *x, const float *w, const float *bias,   \
                                       float *y)                                                             \
    {                                                                                                        \
        dot(in, out, x, w, bias, y, rows, columns);                                                          \
    }

#if CPU_LANES == 16
#define DOTS(rows) DOT(rows, 1) DOT(rows, 2) DOT(rows, 3) DOT(rows, 4) DOT(rows, 5) DOT(rows, 6)
#define DOTS_OF(rows)                                                                                        \
    [rows] = {NULL,           dot_##rows##x1, dot_##rows##x2, dot_##rows##x3,                                \
              dot_##rows##x4, dot_##rows##x5, dot_##rows##x6}
#else
#define DOTS(rows) DOT(rows, 1) DOT(rows, 2) DOT(rows, 3) DOT(rows, 4)
#define DOTS_OF(rows) [rows] = {NULL, dot_##rows##x1, dot_##rows##x2, dot_##rows##x3, dot_##rows##x4}
#endif

DOTS(1)
DOTS(2)
DOTS(3)
#if DOT_ROWS > 3
DOTS(4)
#endif

static dot_fn *const dots[DOT_ROWS + 1][DOT_COLUMNS + 1] = {
    DOTS_OF(1),
    DOTS_OF(2),
    DOTS_OF(3),
#if DOT_ROWS > 3
    DOTS_OF(4),
#endif
};

INLINE int at_most(int value, int limit)
{
    return value < limit ? value : limit;
}

static void linear_forward(int n, int in, int out, const float *x, const float *w, const float *bias,
                           float *y)
{
    for (int c = 0, columns; c < out; c += columns) {
        columns = at_most(out - c, DOT_COLUMNS);
        for (int r = 0, rows; r < n; r += rows) {
            rows = at_most(n - r, DOT_ROWS);
            dots[rows][columns](in, out, x + (ptrdiff_t)r * in, w + (ptrdiff_t)c * in, bias + c,
                                y + (ptrdiff_t)r * out + c);
        }
    }
}

/* c[rows][columns] of any number of columns. The last vector overlaps the one before; fewer columns than a
 * vector holds go one by one. */
INLINE void product_any(struct product *p, int rows, int columns, const int direction)
{
    ptrdiff_t a_row = direction == BY_ROW ? p->a_stride : 1, a_step = direction == BY_ROW ? 1 : p->a_stride;
    if (columns < CPU_LANES) {
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                float sum = 0;
                for (int k = 0; k < p->k; k++)
                    sum += p->a[r * a_row + k * a_step] * p->b[k * p->b_stride + c];
                p->c[r * p->c_stride + c] = sum;
            }
        return;
    }
    for (int c = 0; c < columns;) {
        int vectors = columns - c >= TILE_COLUMNS ? TILE_VECTORS : 1;
        int at = at_most(c, columns - vectors * CPU_LANES);
        product_rows(p, rows, vectors, p->b + at, p->c + at, NULL, direction);
        c += vectors * CPU_LANES;
    }
}

static void linear_backward_weights(int n, int in, int out, const float *x, const float *dy, float *dw,
                                    float *db)
{
    struct product p = {
        .a = dy, .a_stride = out, .b = x, .b_stride = in, .c = dw, .c_stride = in, .n_segments = 1, .k = n};
    product_any(&p, out, in, BY_STEP);
    for (int o = 0; o < out; o++)
        db[o] = 0;
    for (int s = 0; s < n; s++)
        for (int o = 0; o < out; o++)
            db[o] += dy[(ptrdiff_t)s * out + o];
}

static void linear_backward_input(int n, int in, int out, const float *dy, const float *w, float *dx)
{
    struct product p = {
        .a = dy, .a_stride = out, .b = w, .b_stride = in, .c = dx, .c_stride = in, .n_segments = 1, .k = out};
    product_any(&p, n, in, BY_ROW);
}
