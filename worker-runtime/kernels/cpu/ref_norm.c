/*
 * Batch normalisation, relu and pooling, the plain twin.
 */

#include "worker-runtime/kernels/cpu/ref.h"

#include <math.h>

/* PyTorch's relu lets NaN through: what is not at most 0 stays. */
static float relu(float x)
{
    return x <= 0 ? 0 : x;
}

static bool lives(float y)
{
    return !(y <= 0);
}

/* Two passes over the new pixels, then the textbook union of two sets of moments. */
void ref_moments_add(size_t n_pixels, int channels, const float *x, size_t n_before, struct moments *moments)
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

void ref_norm_forward(size_t n_pixels, int channels, const float *x, const float *scale, const float *shift,
                      bool with_relu, float *y)
{
    for (size_t p = 0; p < n_pixels; p++)
        for (int c = 0; c < channels; c++) {
            size_t i = p * (size_t)channels + (size_t)c;
            float normed = fmaf(x[i], scale[c], shift[c]);
            y[i] = with_relu ? relu(normed) : normed;
        }
}

void ref_norm_backward_sums(size_t n_pixels, int channels, const float *dy, const float *x, const float *y,
                            const float *mean, bool with_relu, double *sum_dy, double *sum_dy_x)
{
    for (size_t p = 0; p < n_pixels; p++)
        for (int c = 0; c < channels; c++) {
            size_t i = p * (size_t)channels + (size_t)c;
            if (with_relu && !lives(y[i]))
                continue;
            sum_dy[c] += dy[i];
            sum_dy_x[c] += (double)dy[i] * (x[i] - mean[c]);
        }
}

void ref_norm_backward_input(int height, int width, int channels, const float *dy, const float *x,
                             const float *y, const float *mean, const float *a, const float *b,
                             const float *c, bool with_relu, float *dx, size_t dx_stride)
{
    for (int row = 0; row < height; row++)
        for (int column = 0; column < width; column++)
            for (int k = 0; k < channels; k++) {
                int i = (row * width + column) * channels + k;
                float d = with_relu && !lives(y[i]) ? 0 : dy[i];
                dx[(size_t)row * dx_stride + (size_t)(column * channels + k)] =
                    a[k] * d + b[k] * (x[i] - mean[k]) + c[k];
            }
}

/* Element number `place` (0..3) of the window of the pooled pixel (row, column). */
static size_t window_index(const struct pool_shape *s, int row, int column, int place, int c)
{
    int in_row = 2 * row + place / 2, in_column = 2 * column + place % 2;
    return (size_t)(in_row * s->in_width + in_column) * (size_t)s->channels + (size_t)c;
}

/* The first largest wins; a NaN wins over everything, and the first NaN stays. */
static bool beats(float candidate, float best)
{
    return candidate > best || (candidate != candidate && best == best);
}

void ref_norm_relu_pool_forward(const struct pool_shape *s, const float *x, const float *mean,
                                const float *scale, const float *shift, float *y, uint8_t *which,
                                float *centred)
{
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++)
            for (int c = 0; c < s->channels; c++) {
                int out = (row * s->out_width + column) * s->channels + c;
                float best = 0, best_centred = 0;
                uint8_t from = 0;
                for (int place = 0; place < 4; place++) {
                    float candidate = x[window_index(s, row, column, place, c)];
                    float normed = fmaf(candidate, scale[c], shift[c]);
                    if (place == 0 || beats(normed, best)) {
                        best = normed;
                        best_centred = candidate - mean[c];
                        from = (uint8_t)place;
                    }
                }
                y[out] = relu(best);
                which[out] = lives(best) ? from : POOL_DEAD;
                centred[out] = best_centred;
            }
}

void ref_norm_relu_pool_backward_sums(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                      const float *centred, double *sum_dy, double *sum_dy_x)
{
    for (int p = 0; p < s->out_height * s->out_width; p++)
        for (int c = 0; c < s->channels; c++) {
            int i = p * s->channels + c;
            if (which[i] == POOL_DEAD)
                continue;
            sum_dy[c] += dy[i];
            sum_dy_x[c] += (double)dy[i] * centred[i];
        }
}

void ref_norm_relu_pool_backward_input(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                       const float *x, const float *mean, const float *a, const float *b,
                                       const float *c, float *dx, size_t dx_stride)
{
    for (int row = 0; row < s->in_height; row++)
        for (int column = 0; column < s->in_width; column++)
            for (int k = 0; k < s->channels; k++) {
                int out_row = row / 2, out_column = column / 2, place = row % 2 * 2 + column % 2;
                int out = (out_row * s->out_width + out_column) * s->channels + k;
                bool pooled = out_row < s->out_height && out_column < s->out_width;
                float d = pooled && which[out] == place ? dy[out] : 0;
                float centred = x[(row * s->in_width + column) * s->channels + k] - mean[k];
                dx[(size_t)row * dx_stride + (size_t)(column * s->channels + k)] =
                    a[k] * d + b[k] * centred + c[k];
            }
}

void ref_pool_forward(const struct pool_shape *s, const float *x, float *y, uint8_t *which)
{
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++)
            for (int c = 0; c < s->channels; c++) {
                int out = (row * s->out_width + column) * s->channels + c;
                which[out] = 0;
                y[out] = x[window_index(s, row, column, 0, c)];
                for (int place = 1; place < 4; place++) {
                    float candidate = x[window_index(s, row, column, place, c)];
                    if (beats(candidate, y[out])) {
                        y[out] = candidate;
                        which[out] = (uint8_t)place;
                    }
                }
            }
}

void ref_pool_backward(const struct pool_shape *s, const float *dy, const uint8_t *which, float *dx)
{
    for (int i = 0; i < s->in_height * s->in_width * s->channels; i++)
        dx[i] = 0;
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++)
            for (int c = 0; c < s->channels; c++) {
                int out = (row * s->out_width + column) * s->channels + c;
                dx[window_index(s, row, column, which[out], c)] = dy[out];
            }
}

void ref_relu_forward(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] = relu(x[i]);
}

void ref_relu_backward(size_t count, const float *y, const float *dy, float *dx)
{
    for (size_t i = 0; i < count; i++)
        dx[i] = lives(y[i]) ? dy[i] : 0;
}
