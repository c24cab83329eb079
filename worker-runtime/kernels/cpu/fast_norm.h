#pragma once

/*
 * Batch normalisation, relu and pooling. A vector is CPU_LANES channels of a pixel; the outer loop goes over
 * the channels, so that what belongs to a channel stays in registers while the pixels pass.
 */

#include "worker-runtime/kernels/cpu/fast_vector.h"
#include "worker-runtime/kernels/cpu/kernels.h"

/* PyTorch's relu lets NaN through: what is not at most 0 lives. */
INLINE vi lives(vf y)
{
    return ~(y <= 0);
}

INLINE vf relu(vf y)
{
    return keep(lives(y), y);
}

/* Sums in float over one sample's pixels, in double over the samples. */
static void moments_add(size_t n_pixels, int channels, const float *x, size_t n_before,
                        struct moments *moments)
{
    const double n = (double)n_pixels, before = (double)n_before;
    for (int c = 0; c < channels; c += CPU_LANES) {
        const float *at = x + c;
        vf sum[4] = {{0}}, squares[4] = {{0}};
        size_t p = 0;
        for (; p + 4 <= n_pixels; p += 4)
            for (size_t k = 0; k < 4; k++)
                sum[k] += load(at + (p + k) * (size_t)channels);
        for (; p < n_pixels; p++)
            sum[0] += load(at + p * (size_t)channels);
        vf mean = ((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)n_pixels;

        vf rest = {0}; /* what rounding left of the mean: sum of the deviations from it */
        for (p = 0; p + 4 <= n_pixels; p += 4)
            for (size_t k = 0; k < 4; k++) {
                vf d = load(at + (p + k) * (size_t)channels) - mean;
                squares[k] += d * d;
                rest += d;
            }
        for (; p < n_pixels; p++) {
            vf d = load(at + p * (size_t)channels) - mean;
            squares[0] += d * d;
            rest += d;
        }
        vf m2 = (squares[0] + squares[1]) + (squares[2] + squares[3]);

        for (int l = 0; l < CPU_LANES; l++) {
            struct moments *to = &moments[c + l];
            double correction = rest[l] / n;
            double apart = mean[l] + correction - to->mean;
            to->mean += apart * n / (n + before);
            to->m2 += m2[l] - correction * rest[l] + apart * apart * n * before / (n + before);
        }
    }
}

static void norm_forward(size_t n_pixels, int channels, const float *x, const float *scale,
                         const float *shift, bool with_relu, float *y)
{
    for (int c = 0; c < channels; c += CPU_LANES) {
        vf a = load(scale + c), b = load(shift + c);
        for (size_t p = 0; p < n_pixels; p++) {
            size_t i = p * (size_t)channels + (size_t)c;
            vf normed = load(x + i) * a + b;
            store(y + i, with_relu ? relu(normed) : normed);
        }
    }
}

INLINE void add_to_doubles(double *to, vf v)
{
    for (int l = 0; l < CPU_LANES; l++)
        to[l] += v[l];
}

static void norm_backward_sums(size_t n_pixels, int channels, const float *dy, const float *x, const float *y,
                               const float *mean, bool with_relu, double *sum_dy, double *sum_dy_x)
{
    for (int c = 0; c < channels; c += CPU_LANES) {
        vf m = load(mean + c), sum = {0}, sum_x = {0};
        for (size_t p = 0; p < n_pixels; p++) {
            size_t i = p * (size_t)channels + (size_t)c;
            vf d = load(dy + i);
            if (with_relu)
                d = keep(lives(load(y + i)), d);
            sum += d;
            sum_x += d * (load(x + i) - m);
        }
        add_to_doubles(sum_dy + c, sum);
        add_to_doubles(sum_dy_x + c, sum_x);
    }
}

static void norm_backward_input(int height, int width, int channels, const float *dy, const float *x,
                                const float *y, const float *mean, const float *a, const float *b,
                                const float *c, bool with_relu, float *dx, size_t dx_stride)
{
    for (int k = 0; k < channels; k += CPU_LANES) {
        vf m = load(mean + k), va = load(a + k), vb_ = load(b + k), vc = load(c + k);
        for (int row = 0; row < height; row++)
            for (int column = 0; column < width; column++) {
                int i = (row * width + column) * channels + k;
                vf d = load(dy + i);
                if (with_relu)
                    d = keep(lives(load(y + i)), d);
                store(dx + (size_t)row * dx_stride + (size_t)(column * channels + k),
                      va * d + (vb_ * (load(x + i) - m) + vc));
            }
    }
}

/* The first largest wins; a NaN wins over everything, and the first NaN stays. */
INLINE vi beats(vf candidate, vf best)
{
    return (candidate > best) | ((candidate != candidate) & (best == best));
}

static void norm_relu_pool_forward(const struct pool_shape *s, const float *x, const float *mean,
                                   const float *scale, const float *shift, float *y, uint8_t *which,
                                   float *centred)
{
    const int channels = s->channels, in_row = s->in_width * channels;
    for (int c = 0; c < channels; c += CPU_LANES) {
        vf m = load(mean + c), a = load(scale + c), b = load(shift + c);
        for (int row = 0; row < s->out_height; row++)
            for (int column = 0; column < s->out_width; column++) {
                const float *window = x + 2 * row * in_row + 2 * column * channels + c;
                int out = (row * s->out_width + column) * channels + c;
                const int offset[4] = {0, channels, in_row, in_row + channels};
                vf best_x = load(window), best = best_x * a + b;
                vi from = {0};
                UNROLL
                for (int place = 1; place < 4; place++) {
                    vf candidate = load(window + offset[place]), normed = candidate * a + b;
                    vi better = beats(normed, best);
                    best = select_f(better, normed, best);
                    best_x = select_f(better, candidate, best_x);
                    from = select_i(better, (vi){0} + place, from);
                }
                vi alive = lives(best);
                store(y + out, keep(alive, best));
                store(centred + out, best_x - m);
                store_bytes(which + out, select_i(alive, from, (vi){0} + POOL_DEAD));
            }
    }
}

static void norm_relu_pool_backward_sums(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                         const float *centred, double *sum_dy, double *sum_dy_x)
{
    const int channels = s->channels, n_pixels = s->out_height * s->out_width;
    for (int c = 0; c < channels; c += CPU_LANES) {
        vf sum = {0}, sum_x = {0};
        for (int p = 0; p < n_pixels; p++) {
            int i = p * channels + c;
            vf d = keep(load_bytes(which + i) != POOL_DEAD, load(dy + i));
            sum += d;
            sum_x += d * load(centred + i);
        }
        add_to_doubles(sum_dy + c, sum);
        add_to_doubles(sum_dy_x + c, sum_x);
    }
}

static void norm_relu_pool_backward_input(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                          const float *x, const float *mean, const float *a, const float *b,
                                          const float *c, float *dx, size_t dx_stride)
{
    const int channels = s->channels, in_row = s->in_width * channels;
    for (int k = 0; k < channels; k += CPU_LANES) {
        vf m = load(mean + k), va = load(a + k), vb_ = load(b + k), vc = load(c + k);
        for (int row = 0; row < s->out_height; row++)
            for (int column = 0; column < s->out_width; column++) {
                int out = (row * s->out_width + column) * channels + k;
                vf d = va * load(dy + out);
                vi from = load_bytes(which + out);
                UNROLL
                for (int place = 0; place < 4; place++) {
                    int in = (2 * column + place % 2) * channels + k;
                    vf centred = load(x + (2 * row + place / 2) * in_row + in) - m;
                    store(dx + (size_t)(2 * row + place / 2) * dx_stride + (size_t)in,
                          keep(from == place, d) + (vb_ * centred + vc));
                }
            }
        /* What no window covers: the last row and column of an odd image. */
        for (int row = 0; row < s->in_height; row++)
            for (int column = row < 2 * s->out_height ? 2 * s->out_width : 0; column < s->in_width;
                 column++) {
                int in = column * channels + k;
                store(dx + (size_t)row * dx_stride + (size_t)in,
                      vb_ * (load(x + row * in_row + in) - m) + vc);
            }
    }
}

static void pool_forward(const struct pool_shape *s, const float *x, float *y, uint8_t *which)
{
    const int channels = s->channels, in_row = s->in_width * channels;
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++)
            for (int c = 0; c < channels; c += CPU_LANES) {
                const float *window = x + 2 * row * in_row + 2 * column * channels + c;
                int out = (row * s->out_width + column) * channels + c;
                const int offset[4] = {0, channels, in_row, in_row + channels};
                vf best = load(window);
                vi from = {0};
                UNROLL
                for (int place = 1; place < 4; place++) {
                    vf candidate = load(window + offset[place]);
                    vi better = beats(candidate, best);
                    best = select_f(better, candidate, best);
                    from = select_i(better, (vi){0} + place, from);
                }
                store(y + out, best);
                store_bytes(which + out, from);
            }
}

static void pool_backward(const struct pool_shape *s, const float *dy, const uint8_t *which, float *dx)
{
    const int channels = s->channels, in_row = s->in_width * channels;
    memset(dx, 0, (size_t)s->in_height * (size_t)in_row * sizeof(*dx));
    for (int row = 0; row < s->out_height; row++)
        for (int column = 0; column < s->out_width; column++)
            for (int c = 0; c < channels; c += CPU_LANES) {
                float *window = dx + 2 * row * in_row + 2 * column * channels + c;
                int out = (row * s->out_width + column) * channels + c;
                const int offset[4] = {0, channels, in_row, in_row + channels};
                vf d = load(dy + out);
                vi from = load_bytes(which + out);
                UNROLL
                for (int place = 0; place < 4; place++)
                    store(window + offset[place], keep(from == place, d));
            }
}

static void relu_forward(size_t count, const float *x, float *y)
{
    size_t i = 0;
    for (; i + CPU_LANES <= count; i += CPU_LANES)
        store(y + i, relu(load(x + i)));
    for (; i < count; i++)
        y[i] = x[i] <= 0 ? 0 : x[i];
}

static void relu_backward(size_t count, const float *y, const float *dy, float *dx)
{
    size_t i = 0;
    for (; i + CPU_LANES <= count; i += CPU_LANES)
        store(dx + i, keep(lives(load(y + i)), load(dy + i)));
    for (; i < count; i++)
        dx[i] = y[i] <= 0 ? 0 : dy[i];
}
