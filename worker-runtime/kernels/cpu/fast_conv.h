#pragma once

/*
 * Convolution as products of matrices that are never built: pixel by pixel storage makes the `kernel` pixels
 * of one row that an output pixel looks at one contiguous stretch, so they are read where they lie.
 *
 * Weights are packed into panels of TILE_COLUMNS output columns (the last may be half as wide), each
 * [kernel][kernel][in][columns]: a panel of the MNIST net's second convolution is 36 KiB and stays in the
 * first-level cache while a sample's pixels pass.
 */

#include "worker-runtime/kernels/cpu/fast_gemm.h"
#include "worker-runtime/kernels/cpu/kernels.h"

INLINE int panel_vectors(int columns_left)
{
    return columns_left >= TILE_COLUMNS ? TILE_VECTORS : 1;
}

static float weight_or_zero(const struct conv_shape *s, const float *w, int o, int i, int row, int column)
{
    if (o >= s->out_channels || i >= s->in_channels)
        return 0;
    return w[((o * s->in_channels + i) * s->kernel + row) * s->kernel + column];
}

static void conv_pack_forward(const struct conv_shape *s, const float *weights, float *packed)
{
    for (int first = 0; first < s->out_stored;) {
        int columns = panel_vectors(s->out_stored - first) * CPU_LANES;
        for (int row = 0; row < s->kernel; row++)
            for (int column = 0; column < s->kernel; column++)
                for (int i = 0; i < s->in_stored; i++)
                    for (int o = first; o < first + columns; o++)
                        *packed++ = weight_or_zero(s, weights, o, i, row, column);
        first += columns;
    }
}

/* Turned by 180 degrees, inputs and outputs exchanged. */
static void conv_pack_backward(const struct conv_shape *s, const float *weights, float *packed)
{
    for (int first = 0; first < s->in_stored;) {
        int columns = panel_vectors(s->in_stored - first) * CPU_LANES;
        for (int row = s->kernel; row-- > 0;)
            for (int column = s->kernel; column-- > 0;)
                for (int o = 0; o < s->out_stored; o++)
                    for (int i = first; i < first + columns; i++)
                        *packed++ = weight_or_zero(s, weights, o, i, row, column);
        first += columns;
    }
}

/*
 * The order of the sums is that of PyTorch's convolution (oneDNN's, for vectors of 16 or 8 floats): a block of input
 * channels after the other, in each row, column and channel of the kernel; the bias after the first block. So most
 * outputs are the same bits (docs/numerics.md), and relu and pooling decide as they do there.
 */
/* Where CPU_LANES is 8 both are. NOLINTNEXTLINE(bugprone-branch-clone) */
enum { CONV_BLOCK = CPU_LANES > 8 ? CPU_LANES : 8 };

static void conv_forward_block(const struct conv_shape *s, int begin, const float *x, const float *packed,
                               const float *bias, float *y)
{
    ptrdiff_t in_row = s->in_width * s->in_stored, out_row = s->out_width * s->out_stored;
    bool all = s->in_stored <= CONV_BLOCK; /* and a row of the kernel is one stretch */
    /* Channels of this block: the last block of a network's input may be incomplete. */
    int left = s->in_stored - begin, block = left < CONV_BLOCK ? left : CONV_BLOCK;
    struct product p = {
        .a_stride = s->in_stored,
        .c_stride = s->out_stored,
        .add = begin > 0,
        .n_segments = s->kernel,
        .n_parts = all ? 1 : s->kernel,
        .k = all ? s->kernel * s->in_stored : block,
        .a_segment = in_row,
        .a_part = s->in_stored,
    };
    for (int first = 0; first < s->out_stored;) {
        int vectors = panel_vectors(s->out_stored - first), columns = vectors * CPU_LANES;
        p.b_stride = columns;
        p.b_part = (ptrdiff_t)s->in_stored * columns;
        p.b_segment = s->kernel * p.b_part;
        for (int row = 0; row < s->out_height; row++) {
            p.a = x + row * in_row + begin;
            product_rows(&p, s->out_width, vectors, packed + (ptrdiff_t)begin * columns,
                         y + row * out_row + first, begin == 0 ? bias + first : NULL, BY_ROW);
        }
        packed += s->kernel * p.b_segment;
        first += columns;
    }
}

static void conv_forward(const struct conv_shape *s, const float *x, const float *packed, const float *bias,
                         float *y)
{
    for (int begin = 0; begin < s->in_stored; begin += CONV_BLOCK)
        conv_forward_block(s, begin, x, packed, bias, y);
}

/* Rows of the frame that are nothing but zeros are left out. */
static void conv_backward_input(const struct conv_shape *s, const float *dy, const float *packed, float *dx)
{
    ptrdiff_t frame_row = (ptrdiff_t)conv_frame_stride(s), in_row = s->in_width * s->in_stored;
    int border = s->kernel - 1;
    struct product p = {
        .a_stride = s->out_stored,
        .c_stride = s->in_stored,
        .k = s->kernel * s->out_stored,
        .a_segment = frame_row,
    };
    for (int first = 0; first < s->in_stored;) {
        int vectors = panel_vectors(s->in_stored - first), columns = vectors * CPU_LANES;
        p.b_stride = columns;
        p.b_segment = (ptrdiff_t)p.k * columns;
        for (int row = 0; row < s->in_height; row++) {
            int begin = row < border ? border - row : 0;
            int end = row < s->out_height ? s->kernel : s->kernel - (row - s->out_height + 1);
            p.n_segments = end - begin;
            p.a = dy + (row + begin) * frame_row;
            product_rows(&p, s->in_width, vectors, packed + begin * p.b_segment, dx + row * in_row + first,
                         NULL, BY_ROW);
        }
        packed += s->kernel * p.b_segment;
        first += columns;
    }
}

static void add_bias_gradient(const struct conv_shape *s, const float *dy, float *db)
{
    const float *first = dy + conv_frame_offset(s);
    for (int o = 0; o < s->out_stored; o += CPU_LANES) {
        vf sum = {0};
        for (int row = 0; row < s->out_height; row++) {
            const float *at = first + (size_t)row * conv_frame_stride(s) + o;
            for (int column = 0; column < s->out_width; column++)
                sum += load(at + column * s->out_stored);
        }
        store(db + o, load(db + o) + sum);
    }
}

/* Here k runs over the pixels, and the rows of the result are the stretch that an output pixel looks at. */
static void conv_backward_weights(const struct conv_shape *s, const float *x, const float *dy, float *dw,
                                  float *db)
{
    ptrdiff_t in_row = s->in_width * s->in_stored;
    int stretch = s->kernel * s->in_stored;
    const float *first_pixel = dy + conv_frame_offset(s);
    struct product p = {
        .a_stride = s->in_stored,
        .b_stride = s->out_stored,
        .c_stride = s->out_stored,
        .add = true,
        .n_segments = s->out_height,
        .k = s->out_width,
        .a_segment = in_row,
        .b_segment = (ptrdiff_t)conv_frame_stride(s),
    };
    for (int row = 0; row < s->kernel; row++) {
        p.a = x + row * in_row;
        for (int first = 0, vectors; first < s->out_stored; first += vectors * CPU_LANES) {
            vectors = panel_vectors(s->out_stored - first);
            product_rows(&p, stretch, vectors, first_pixel + first,
                         dw + (ptrdiff_t)row * stretch * s->out_stored + first, NULL, BY_STEP);
        }
    }
    add_bias_gradient(s, dy, db);
}
