/*
 * Convolution, the plain twin: the definition, written down. Sums are made in double, so that what a test
 * measures against it is the error of the fast kernel alone.
 */

#include "worker-runtime/kernels/cpu/ref.h"

#include <string.h>

/* The twin reads PyTorch's order [out][in][row][column] as it is. */
void ref_conv_pack(const struct conv_shape *s, const float *weights, float *packed)
{
    size_t count = (size_t)s->out_channels * (size_t)s->in_channels * (size_t)(s->kernel * s->kernel);
    memcpy(packed, weights, count * sizeof(*packed));
}

static float weight_at(const struct conv_shape *s, const float *w, int o, int i, int row, int column)
{
    return w[((o * s->in_channels + i) * s->kernel + row) * s->kernel + column];
}

static float x_at(const struct conv_shape *s, const float *x, int row, int column, int i)
{
    return x[(row * s->in_width + column) * s->in_stored + i];
}

/* dy of the output pixel (row, column); the frame makes it 0 outside. */
static float dy_at(const struct conv_shape *s, const float *dy, int row, int column, int o)
{
    const float *first = dy + conv_frame_offset(s);
    return first[row * (ptrdiff_t)conv_frame_stride(s) + column * s->out_stored + o];
}

static double output(const struct conv_shape *s, const float *x, const float *w, int row, int column, int o)
{
    double sum = 0;
    for (int i = 0; i < s->in_channels; i++)
        for (int r = 0; r < s->kernel; r++)
            for (int c = 0; c < s->kernel; c++)
                sum += (double)x_at(s, x, row + r, column + c, i) * weight_at(s, w, o, i, r, c);
    return sum;
}

void ref_conv_forward(const struct conv_shape *s, const float *x, const float *packed, const float *bias,
                      float *y)
{
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++) {
            float *pixel = y + (row * s->out_width + column) * s->out_stored;
            for (int o = 0; o < s->out_stored; o++)
                pixel[o] = o < s->out_channels ? (float)(bias[o] + output(s, x, packed, row, column, o)) : 0;
        }
}

static double weight_gradient(const struct conv_shape *s, const float *x, const float *dy, int o, int i,
                              int r, int c)
{
    double sum = 0;
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++)
            sum += (double)x_at(s, x, row + r, column + c, i) * dy_at(s, dy, row, column, o);
    return sum;
}

void ref_conv_backward_weights(const struct conv_shape *s, const float *x, const float *dy, float *dw,
                               float *db)
{
    for (int r = 0; r < s->kernel; r++)
        for (int c = 0; c < s->kernel; c++)
            for (int i = 0; i < s->in_channels; i++)
                for (int o = 0; o < s->out_channels; o++)
                    dw[((r * s->kernel + c) * s->in_stored + i) * s->out_stored + o] +=
                        (float)weight_gradient(s, x, dy, o, i, r, c);

    for (int o = 0; o < s->out_channels; o++) {
        double sum = 0;
        for (int row = 0; row < s->out_height; row++)
            for (int column = 0; column < s->out_width; column++)
                sum += dy_at(s, dy, row, column, o);
        db[o] += (float)sum;
    }
}

/* The input pixel (row, column) took part in the outputs (row - r, column - c). */
static double input_gradient(const struct conv_shape *s, const float *dy, const float *w, int row, int column,
                             int i)
{
    double sum = 0;
    for (int o = 0; o < s->out_channels; o++)
        for (int r = 0; r < s->kernel; r++)
            for (int c = 0; c < s->kernel; c++)
                sum += (double)dy_at(s, dy, row - r, column - c, o) * weight_at(s, w, o, i, r, c);
    return sum;
}

void ref_conv_backward_input(const struct conv_shape *s, const float *dy, const float *packed, float *dx)
{
    for (int row = 0; row < s->in_height; row++)
        for (int column = 0; column < s->in_width; column++) {
            float *pixel = dx + (row * s->in_width + column) * s->in_stored;
            for (int i = 0; i < s->in_stored; i++)
                pixel[i] = i < s->in_channels ? (float)input_gradient(s, dy, packed, row, column, i) : 0;
        }
}
