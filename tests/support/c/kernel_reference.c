#include "tests/support/c/kernel_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- convolution ---- */

/* The twin reads PyTorch's order [out][in][row][column] as it is. */
static void conv_pack(const struct conv_shape *s, const float *weights, float *packed)
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

static void conv_forward(const struct conv_shape *s, const float *x, const float *packed, const float *bias,
                         float *y)
{
    for (int pixel = 0; pixel < s->out_height * s->out_width; pixel++)
        for (int o = 0; o < s->out_stored; o++)
            *y++ =
                o < s->out_channels
                    ? (float)(bias[o] + output(s, x, packed, pixel / s->out_width, pixel % s->out_width, o))
                    : 0;
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

static void conv_backward_weights(const struct conv_shape *s, const float *x, const float *dy, float *dw,
                                  float *db)
{
    for (int place = 0; place < s->kernel * s->kernel; place++)
        for (int i = 0; i < s->in_channels; i++)
            for (int o = 0; o < s->out_channels; o++)
                dw[(place * s->in_stored + i) * s->out_stored + o] +=
                    (float)weight_gradient(s, x, dy, o, i, place / s->kernel, place % s->kernel);

    for (int o = 0; o < s->out_channels; o++) {
        double sum = 0;
        for (int pixel = 0; pixel < s->out_height * s->out_width; pixel++)
            sum += dy_at(s, dy, pixel / s->out_width, pixel % s->out_width, o);
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

static void conv_backward_input(const struct conv_shape *s, const float *dy, const float *packed, float *dx)
{
    for (int pixel = 0; pixel < s->in_height * s->in_width; pixel++)
        for (int i = 0; i < s->in_stored; i++)
            *dx++ = i < s->in_channels
                        ? (float)input_gradient(s, dy, packed, pixel / s->in_width, pixel % s->in_width, i)
                        : 0;
}

/* ---- linear layers ---- */

static double dot(int n, const float *a, int a_step, const float *b, int b_step)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i * a_step] * b[i * b_step];
    return sum;
}

static void linear_forward(int n, int in, int out, const float *x, const float *w, const float *bias,
                           float *y)
{
    for (int s = 0; s < n; s++)
        for (int o = 0; o < out; o++)
            y[s * out + o] = (float)(bias[o] + dot(in, x + s * in, 1, w + o * in, 1));
}

static void linear_backward_weights(int n, int in, int out, const float *x, const float *dy, float *dw,
                                    float *db)
{
    const float one = 1;
    for (int o = 0; o < out; o++) {
        for (int i = 0; i < in; i++)
            dw[o * in + i] = (float)dot(n, dy + o, out, x + i, in);
        db[o] = (float)dot(n, dy + o, out, &one, 0);
    }
}

static void linear_backward_input(int n, int in, int out, const float *dy, const float *w, float *dx)
{
    for (int s = 0; s < n; s++)
        for (int i = 0; i < in; i++)
            dx[s * in + i] = (float)dot(out, dy + s * out, 1, w + i, in);
}

/* ---- batch normalisation ---- */

/* PyTorch's relu lets NaN through: what is not at most 0 stays. */
static bool lives(float y)
{
    return !(y <= 0);
}

static float relu(float x)
{
    return lives(x) ? x : 0;
}

/* Two passes over the new pixels, then the textbook union of two sets of moments. */
static void moments_add(size_t n_pixels, int channels, const float *x, size_t n_before,
                        struct moments *moments)
{
    double n = (double)n_pixels, before = (double)n_before;
    for (int c = 0; c < channels; c++) {
        double sum = 0, m2 = 0;
        for (size_t p = 0; p < n_pixels; p++)
            sum += x[p * (size_t)channels + (size_t)c];
        double mean = sum / n;
        for (size_t p = 0; p < n_pixels; p++) {
            double d = x[p * (size_t)channels + (size_t)c] - mean;
            m2 += d * d;
        }
        double apart = mean - moments[c].mean;
        moments[c].mean += apart * n / (n + before);
        moments[c].m2 += m2 + apart * apart * n * before / (n + before);
    }
}

static void norm_forward(size_t n_pixels, int channels, const float *x, const float *scale,
                         const float *shift, bool with_relu, float *y)
{
    for (size_t i = 0; i < n_pixels * (size_t)channels; i++) {
        size_t c = i % (size_t)channels;
        float normed = fmaf(x[i], scale[c], shift[c]);
        y[i] = with_relu ? relu(normed) : normed;
    }
}

static void norm_backward_sums(size_t n_pixels, int channels, const float *dy, const float *x, const float *y,
                               const float *mean, bool with_relu, double *sum_dy, double *sum_dy_x)
{
    for (size_t i = 0; i < n_pixels * (size_t)channels; i++) {
        size_t c = i % (size_t)channels;
        if (with_relu && !lives(y[i]))
            continue;
        sum_dy[c] += dy[i];
        sum_dy_x[c] += (double)dy[i] * (x[i] - mean[c]);
    }
}

static void norm_backward_input(int height, int width, int channels, const float *dy, const float *x,
                                const float *y, const float *mean, const float *a, const float *b,
                                const float *c, bool with_relu, float *dx, size_t dx_stride)
{
    for (int row = 0; row < height; row++)
        for (int column = 0; column < width * channels; column++) {
            int i = row * width * channels + column, k = column % channels;
            float d = with_relu && !lives(y[i]) ? 0 : dy[i];
            dx[(size_t)row * dx_stride + (size_t)column] = a[k] * d + b[k] * (x[i] - mean[k]) + c[k];
        }
}

/* ---- pooling ---- */

static int pooled_size(const struct pool_shape *s)
{
    return s->out_height * s->out_width * s->channels;
}

/* Element number `place` (0..3) of the window of element `out` of the pooled image. */
static size_t window_index(const struct pool_shape *s, int out, int place)
{
    int pixel = out / s->channels, row = 2 * (pixel / s->out_width) + place / 2;
    int column = 2 * (pixel % s->out_width) + place % 2;
    return (size_t)((row * s->in_width + column) * s->channels + out % s->channels);
}

/* The first largest wins; a NaN wins over everything, and the first NaN stays. */
static uint8_t best_place(const float window[4])
{
    uint8_t best = 0;
    for (uint8_t place = 1; place < 4; place++)
        if (window[place] > window[best] || (isnan(window[place]) && !isnan(window[best])))
            best = place;
    return best;
}

static void pool_forward(const struct pool_shape *s, const float *x, float *y, uint8_t *which)
{
    for (int i = 0; i < pooled_size(s); i++) {
        float window[4];
        for (int place = 0; place < 4; place++)
            window[place] = x[window_index(s, i, place)];
        which[i] = best_place(window);
        y[i] = window[which[i]];
    }
}

static void pool_backward(const struct pool_shape *s, const float *dy, const uint8_t *which, float *dx)
{
    memset(dx, 0, (size_t)(s->in_height * s->in_width * s->channels) * sizeof(*dx));
    for (int i = 0; i < pooled_size(s); i++)
        if (which[i] != POOL_DEAD)
            dx[window_index(s, i, which[i])] = dy[i];
}

static void norm_relu_pool_forward(const struct pool_shape *s, const float *x, const float *mean,
                                   const float *scale, const float *shift, float *y, uint8_t *which,
                                   float *centred)
{
    for (int i = 0; i < pooled_size(s); i++) {
        int c = i % s->channels;
        float normed[4];
        for (int place = 0; place < 4; place++)
            normed[place] = fmaf(x[window_index(s, i, place)], scale[c], shift[c]);
        uint8_t best = best_place(normed);
        y[i] = relu(normed[best]);
        which[i] = lives(normed[best]) ? best : POOL_DEAD;
        centred[i] = x[window_index(s, i, best)] - mean[c];
    }
}

static void norm_relu_pool_backward_sums(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                         const float *centred, double *sum_dy, double *sum_dy_x)
{
    for (int i = 0; i < pooled_size(s); i++) {
        if (which[i] == POOL_DEAD)
            continue;
        sum_dy[i % s->channels] += dy[i];
        sum_dy_x[i % s->channels] += (double)dy[i] * centred[i];
    }
}

static void norm_relu_pool_backward_input(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                          const float *x, const float *mean, const float *a, const float *b,
                                          const float *c, float *dx, size_t dx_stride)
{
    float *spread = malloc((size_t)(s->in_height * s->in_width * s->channels) * sizeof(*spread));
    if (!spread)
        abort();
    pool_backward(s, dy, which, spread);
    norm_backward_input(s->in_height, s->in_width, s->channels, spread, x, NULL, mean, a, b, c, false, dx,
                        dx_stride);
    free(spread);
}

/* ---- any shape ---- */

static void relu_forward(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] = relu(x[i]);
}

static void relu_backward(size_t count, const float *y, const float *dy, float *dx)
{
    for (size_t i = 0; i < count; i++)
        dx[i] = lives(y[i]) ? dy[i] : 0;
}

static void round_bf16(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        if (isnan(x[i]))
            bits |=
                0x400000; /* the rest of the bits may be zeros: without this one the result would be infinite */
        else
            bits += 0x7fff + ((bits >> 16) & 1);
        bits &= 0xffff0000;
        memcpy(&y[i], &bits, sizeof(bits));
    }
}

static double sum_squares(size_t count, const float *x)
{
    return dot((int)count, x, 1, x, 1);
}

static void scale(size_t count, float factor, float *x)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

static void add(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}

const struct cpu_kernels kernel_reference = {
    .name = "reference",
    .conv_pack_forward = conv_pack,
    .conv_pack_backward = conv_pack,
    .conv_forward = conv_forward,
    .conv_backward_weights = conv_backward_weights,
    .conv_backward_input = conv_backward_input,
    .moments_add = moments_add,
    .norm_forward = norm_forward,
    .norm_backward_sums = norm_backward_sums,
    .norm_backward_input = norm_backward_input,
    .norm_relu_pool_forward = norm_relu_pool_forward,
    .norm_relu_pool_backward_sums = norm_relu_pool_backward_sums,
    .norm_relu_pool_backward_input = norm_relu_pool_backward_input,
    .pool_forward = pool_forward,
    .pool_backward = pool_backward,
    .relu_forward = relu_forward,
    .relu_backward = relu_backward,
    .linear_forward = linear_forward,
    .linear_backward_weights = linear_backward_weights,
    .linear_backward_input = linear_backward_input,
    .round_bf16 = round_bf16,
    .sum_squares = sum_squares,
    .scale = scale,
    .add = add,
};
