#pragma once

/*
 * The CPU kernels: one table of functions for each instruction set. Tests compare each with a plain twin of the same signatures
 * (tests/support/c/kernel_reference.c).
 *
 * Layout of activations: images are stored pixel by pixel, the channels of a pixel side by side (NHWC), the
 * number of stored channels rounded up to CPU_LANES_MAX and the additional ones zero, so that a vector
 * never straddles two pixels and no kernel has a tail. Only the input of a network keeps its own number of
 * channels. Vectors of features are [n][features] without padding.
 *
 * All sums are made in an order that depends on the shapes and the instruction set only: the same bits in
 * every run on the same machine.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CPU_LANES_MAX = 16 };

/* Channels as stored. */
static inline int cpu_stored_channels(int channels)
{
    return (channels + CPU_LANES_MAX - 1) / CPU_LANES_MAX * CPU_LANES_MAX;
}

/* A convolution of one sample, stride 1, no padding. */
struct conv_shape {
    int in_channels, out_channels; /* as PyTorch counts them */
    int in_stored, out_stored;     /* as stored; out_stored is a multiple of CPU_LANES_MAX */
    int kernel;
    int in_height, in_width, out_height, out_width;
};

/*
 * Gradients of a convolution's output lie in a frame of zeros, kernel - 1 wide on all sides, so that the
 * gradient of its input is a convolution, too. Floats from one row to the next, and to the first real pixel:
 */
static inline size_t conv_frame_stride(const struct conv_shape *s)
{
    return (size_t)(s->out_width + 2 * (s->kernel - 1)) * (size_t)s->out_stored;
}

static inline size_t conv_frame_offset(const struct conv_shape *s)
{
    return (size_t)(s->kernel - 1) * (conv_frame_stride(s) + (size_t)s->out_stored);
}

static inline size_t conv_frame_size(const struct conv_shape *s)
{
    return (size_t)(s->out_height + 2 * (s->kernel - 1)) * conv_frame_stride(s);
}

/* Floats of packed weights, forward and backward, for every instruction set. */
static inline size_t conv_packed_size(const struct conv_shape *s)
{
    return (size_t)s->kernel * (size_t)s->kernel * (size_t)cpu_stored_channels(s->in_stored) *
           (size_t)s->out_stored;
}

/* An image of one sample whose 2x2 windows are pooled; an odd last row or column is left out. */
struct pool_shape {
    int channels; /* stored */
    int in_height, in_width, out_height, out_width;
};

/* Where a pooled value came from: 0..3 in row-major order of its window, or POOL_DEAD when relu cut it off,
 * so that nothing flows back. */
enum { POOL_DEAD = 4 };

/* Batch statistics of one channel while samples arrive: mean, and squared deviations from it. */
struct moments {
    double mean, m2;
};

struct sgd_step {
    float minus_lr, weight_decay, momentum, one_minus_dampening;
    bool nesterov;
    bool first; /* the momentum buffer starts as the gradient */
};

struct adamw_step {
    float decay; /* 1 - lr * weight_decay; 1 without */
    float one_minus_beta1, beta2, one_minus_beta2;
    float sqrt_correction2, eps, minus_step_size;
};

struct adadelta_step {
    float minus_lr, weight_decay, rho, one_minus_rho, eps;
};

struct cpu_kernels {
    const char *name;

    /* --- convolution, one sample --- */

    /* weights [out][in][kernel][kernel] -> what conv_forward reads. */
    void (*conv_pack_forward)(const struct conv_shape *s, const float *weights, float *packed);
    /* The same for conv_backward_input. */
    void (*conv_pack_backward)(const struct conv_shape *s, const float *weights, float *packed);
    /* y[out_height][out_width][out_stored] = convolution of x[in_height][in_width][in_stored], plus
     * bias[out_stored]. */
    void (*conv_forward)(const struct conv_shape *s, const float *x, const float *packed, const float *bias,
                         float *y);
    /* dw[kernel][kernel][in_stored][out_stored] += ..., db[out_stored] += ...; dy: start of the frame. */
    void (*conv_backward_weights)(const struct conv_shape *s, const float *x, const float *dy, float *dw,
                                  float *db);
    /* dx[in_height][in_width][in_stored] = ...; in_stored must be a multiple of CPU_LANES_MAX. */
    void (*conv_backward_input)(const struct conv_shape *s, const float *dy, const float *packed, float *dx);

    /* --- batch normalisation, one sample; x[n_pixels][channels] --- */

    /* Adds n_pixels pixels to the moments of the n_before pixels seen so far. */
    void (*moments_add)(size_t n_pixels, int channels, const float *x, size_t n_before,
                        struct moments *moments);
    /* y = scale * x + shift in one rounding, then max(0, .) if relu. */
    void (*norm_forward)(size_t n_pixels, int channels, const float *x, const float *scale,
                         const float *shift, bool relu, float *y);
    /* sum_dy += dy, sum_dy_x += dy * (x - mean), where y > 0 if relu. */
    void (*norm_backward_sums)(size_t n_pixels, int channels, const float *dy, const float *x, const float *y,
                               const float *mean, bool relu, double *sum_dy, double *sum_dy_x);
    /* dx = a * dy + b * (x - mean) + c, where dy counts as 0 unless y > 0 if relu. dx: rows of `width`
     * pixels, dx_stride floats apart. */
    void (*norm_backward_input)(int height, int width, int channels, const float *dy, const float *x,
                                const float *y, const float *mean, const float *a, const float *b,
                                const float *c, bool relu, float *dx, size_t dx_stride);

    /* --- batch normalisation, relu and 2x2 max pooling in one pass, one sample --- */

    /* y, which, centred [out_height][out_width][channels]: the pooled value, its place, and x - mean there.
     */
    void (*norm_relu_pool_forward)(const struct pool_shape *s, const float *x, const float *mean,
                                   const float *scale, const float *shift, float *y, uint8_t *which,
                                   float *centred);
    void (*norm_relu_pool_backward_sums)(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                         const float *centred, double *sum_dy, double *sum_dy_x);
    /* As norm_backward_input; dy is that of the pooled image. */
    void (*norm_relu_pool_backward_input)(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                          const float *x, const float *mean, const float *a, const float *b,
                                          const float *c, float *dx, size_t dx_stride);

    /* --- pooling by itself, one sample --- */

    void (*pool_forward)(const struct pool_shape *s, const float *x, float *y, uint8_t *which);
    void (*pool_backward)(const struct pool_shape *s, const float *dy, const uint8_t *which, float *dx);

    /* --- any shape --- */

    void (*relu_forward)(size_t count, const float *x, float *y);
    /* dx = dy where y > 0 (or NaN). dx may be dy. */
    void (*relu_backward)(size_t count, const float *y, const float *dy, float *dx);

    /* --- linear layers, n samples; w[out][in] --- */

    void (*linear_forward)(int n, int in, int out, const float *x, const float *w, const float *bias,
                           float *y);
    /* dw[out][in] = dy^T x, db[out] = sums of dy. */
    void (*linear_backward_weights)(int n, int in, int out, const float *x, const float *dy, float *dw,
                                    float *db);
    void (*linear_backward_input)(int n, int in, int out, const float *dy, const float *w, float *dx);

    /* --- over a whole arena --- */

    /* y = x rounded to the nearest bfloat16, ties to even. y may be x. */
    void (*round_bf16)(size_t count, const float *x, float *y);
    double (*sum_squares)(size_t count, const float *x);
    void (*scale)(size_t count, float factor, float *x);
    /* y += x */
    void (*add)(size_t count, const float *x, float *y);

    /* --- optimizers, over a whole arena --- */

    void (*sgd)(const struct sgd_step *s, size_t count, float *p, const float *g, float *momentum_buffer);
    void (*adamw)(const struct adamw_step *s, size_t count, float *p, const float *g, float *exp_avg,
                  float *exp_avg_sq);
    void (*adadelta)(const struct adadelta_step *s, size_t count, float *p, const float *g, float *square_avg,
                     float *acc_delta);
};

/* The table that every processor can run. */
extern const struct cpu_kernels cpu_kernels_base;

/* The best table this processor can run. */
const struct cpu_kernels *cpu_kernels_best(void);
/* Every table this processor can run, best first, then NULL. */
const struct cpu_kernels *const *cpu_kernels_all(void);
