#pragma once

/* The functions of the plain twin, for its table in ref.c. kernels.h describes what they do. */

#include "worker-runtime/kernels/cpu/kernels.h"

void ref_conv_pack(const struct conv_shape *s, const float *weights, float *packed);
void ref_conv_forward(const struct conv_shape *s, const float *x, const float *packed, const float *bias,
                      float *y);
void ref_conv_backward_weights(const struct conv_shape *s, const float *x, const float *dy, float *dw,
                               float *db);
void ref_conv_backward_input(const struct conv_shape *s, const float *dy, const float *packed, float *dx);

void ref_moments_add(size_t n_pixels, int channels, const float *x, size_t n_before, struct moments *moments);
void ref_norm_forward(size_t n_pixels, int channels, const float *x, const float *scale, const float *shift,
                      bool relu, float *y);
void ref_norm_backward_sums(size_t n_pixels, int channels, const float *dy, const float *x, const float *y,
                            const float *mean, bool relu, double *sum_dy, double *sum_dy_x);
void ref_norm_backward_input(int height, int width, int channels, const float *dy, const float *x,
                             const float *y, const float *mean, const float *a, const float *b,
                             const float *c, bool relu, float *dx, size_t dx_stride);
void ref_norm_relu_pool_forward(const struct pool_shape *s, const float *x, const float *mean,
                                const float *scale, const float *shift, float *y, uint8_t *which,
                                float *centred);
void ref_norm_relu_pool_backward_sums(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                      const float *centred, double *sum_dy, double *sum_dy_x);
void ref_norm_relu_pool_backward_input(const struct pool_shape *s, const float *dy, const uint8_t *which,
                                       const float *x, const float *mean, const float *a, const float *b,
                                       const float *c, float *dx, size_t dx_stride);

void ref_pool_forward(const struct pool_shape *s, const float *x, float *y, uint8_t *which);
void ref_pool_backward(const struct pool_shape *s, const float *dy, const uint8_t *which, float *dx);
void ref_relu_forward(size_t count, const float *x, float *y);
void ref_relu_backward(size_t count, const float *y, const float *dy, float *dx);

void ref_linear_forward(int n, int in, int out, const float *x, const float *w, const float *bias, float *y);
void ref_linear_backward_weights(int n, int in, int out, const float *x, const float *dy, float *dw,
                                 float *db);
void ref_linear_backward_input(int n, int in, int out, const float *dy, const float *w, float *dx);
void ref_log_softmax_forward(int n, int features, const float *x, float *y);
void ref_log_softmax_backward(int n, int features, const float *y, const float *dy, float *dx);

void ref_round_bf16(size_t count, const float *x, float *y);
double ref_sum_squares(size_t count, const float *x);
void ref_scale(size_t count, float factor, float *x);
void ref_add(size_t count, const float *x, float *y);
