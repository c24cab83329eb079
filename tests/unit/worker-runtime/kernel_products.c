/*
 * Linear layers and convolutions in all three precisions against their twins, which add in double.
 */

#include "tests/unit/worker-runtime/kernel_memory.h"

#include <string.h>

#include "base/err.h"
#include "tests/support/c/kernel_reference.h"

static const struct cpu_kernels *const twin = &kernel_reference;

/* ---- linear ---- */

struct linear_shape {
    int n, in, out;
};

static const struct linear_shape linear_shapes[] = {
    {1, 1, 1},    {1, 31, 33},   {31, 33, 1}, {2, 1003, 10},
    {33, 64, 65}, {65, 130, 31}, {64, 10, 2}, {3, 1500, 129},
};

static void linear_forward(const struct linear_shape *s, enum crw_products precision)
{
    size_t n_x = (size_t)(s->n * s->in), n_w = (size_t)(s->in * s->out), n_y = (size_t)(s->n * s->out);
    float *x = kernel_random(n_x), *w = kernel_random(n_w), *bias = kernel_random((size_t)s->out);
    float *y = kernel_device_floats(n_y), *expected = kernel_zeros(n_y), *scale = kernel_zeros(n_y);
    struct cuda_queue q = kernel_queue(precision);

    kernel_done(&q, cuda_linear_forward(&q, s->n, s->in, s->out, x, w, bias, y));
    twin->linear_forward(s->n, s->in, s->out, x, w, bias, expected);
    twin->linear_forward(s->n, s->in, s->out, kernel_absolute(x, n_x), kernel_absolute(w, n_w),
                         kernel_absolute(bias, (size_t)s->out), scale);
    kernel_check("linear y", y, expected, n_y, kernel_tolerance(precision), scale);
}

static void linear_backward(const struct linear_shape *s, enum crw_products precision)
{
    size_t n_x = (size_t)(s->n * s->in), n_w = (size_t)(s->in * s->out), n_y = (size_t)(s->n * s->out);
    size_t n_b = (size_t)s->out;
    float *x = kernel_random(n_x), *w = kernel_random(n_w), *dy = kernel_random(n_y);
    float *dw = kernel_device_floats(n_w), *db = kernel_device_floats(n_b), *dx = kernel_device_floats(n_x);
    float *dw_expected = kernel_zeros(n_w), *db_expected = kernel_zeros(n_b),
          *dx_expected = kernel_zeros(n_x);
    float *dw_scale = kernel_zeros(n_w), *db_scale = kernel_zeros(n_b), *dx_scale = kernel_zeros(n_x);
    float *dy_absolute = kernel_absolute(dy, n_y);
    struct cuda_queue q = kernel_queue(precision);

    kernel_done(&q, cuda_linear_backward_weights(&q, s->n, s->in, s->out, x, dy, dw, db));
    kernel_done(&q, cuda_linear_backward_input(&q, s->n, s->in, s->out, dy, w, dx));
    twin->linear_backward_weights(s->n, s->in, s->out, x, dy, dw_expected, db_expected);
    twin->linear_backward_input(s->n, s->in, s->out, dy, w, dx_expected);
    twin->linear_backward_weights(s->n, s->in, s->out, kernel_absolute(x, n_x), dy_absolute, dw_scale,
                                  db_scale);
    twin->linear_backward_input(s->n, s->in, s->out, dy_absolute, kernel_absolute(w, n_w), dx_scale);
    kernel_check("linear dw", dw, dw_expected, n_w, kernel_tolerance(precision), dw_scale);
    kernel_check("linear db", db, db_expected, n_b, kernel_tolerance(CRW_PRODUCTS_F32), db_scale);
    kernel_check("linear dx", dx, dx_expected, n_x, kernel_tolerance(precision), dx_scale);
}

/* A relu behind and in front: the passes one by one, bit for bit. */
static void linear_relu(const struct linear_shape *s, enum crw_products precision)
{
    size_t n_x = (size_t)(s->n * s->in), n_w = (size_t)(s->in * s->out), n_y = (size_t)(s->n * s->out);
    float *x = kernel_random(n_x), *w = kernel_random(n_w), *bias = kernel_random((size_t)s->out);
    float *y = kernel_device_floats(n_y), *alone = kernel_device_floats(n_y),
          *expected = kernel_device_floats(n_y);
    float *dx = kernel_device_floats(n_x), *dx_alone = kernel_device_floats(n_x),
          *dx_expected = kernel_device_floats(n_x);
    struct cuda_queue q = kernel_queue(precision);

    kernel_done(&q, cuda_linear_relu_forward(&q, s->n, s->in, s->out, x, w, bias, y));
    kernel_done(&q, cuda_linear_forward(&q, s->n, s->in, s->out, x, w, bias, alone));
    kernel_done(&q, cuda_relu_forward(&q, n_y, alone, expected));
    kernel_check("linear relu y", y, expected, n_y, 0, NULL);
    kernel_done(&q, cuda_linear_relu_backward_input(&q, s->n, s->in, s->out, y, w, x, dx));
    kernel_done(&q, cuda_linear_backward_input(&q, s->n, s->in, s->out, y, w, dx_alone));
    kernel_done(&q, cuda_relu_backward(&q, n_x, x, dx_alone, dx_expected));
    kernel_check("linear relu dx", dx, dx_expected, n_x, 0, NULL);
}

static void linear_in(enum crw_products precision)
{
    for (size_t i = 0; i < ARRAY_SIZE(linear_shapes); i++) {
        linear_forward(&linear_shapes[i], precision);
        linear_backward(&linear_shapes[i], precision);
        linear_relu(&linear_shapes[i], precision);
    }
}

static void linear_exact(void)
{
    linear_in(CRW_PRODUCTS_F32);
}

static void linear_tf32(void)
{
    linear_in(CRW_PRODUCTS_TF32);
}

static void linear_bf16(void)
{
    linear_in(CRW_PRODUCTS_BF16);
}

/* ---- convolution ---- */

struct image {
    int n, in, out, kernel, height, width;
};

static const struct image images[] = {
    {1, 1, 1, 3, 3, 3},   {1, 1, 32, 3, 28, 28}, {2, 32, 64, 3, 9, 9}, {3, 3, 5, 1, 4, 5},
    {3, 17, 33, 5, 7, 9}, {1, 2, 3, 2, 31, 6},   {2, 9, 20, 3, 5, 6},  {1, 13, 16, 2, 6, 4},
};

/* first: the input is the network's own, with as many channels in memory as it has. */
static struct conv_shape shape_of(const struct image *i, bool first)
{
    return (struct conv_shape){
        .in_channels = i->in,
        .out_channels = i->out,
        .in_stored = first ? i->in : cpu_stored_channels(i->in),
        .out_stored = cpu_stored_channels(i->out),
        .kernel = i->kernel,
        .in_height = i->height,
        .in_width = i->width,
        .out_height = i->height - i->kernel + 1,
        .out_width = i->width - i->kernel + 1,
    };
}

static size_t in_size(const struct conv_shape *s)
{
    return (size_t)(s->in_height * s->in_width * s->in_stored);
}

static size_t out_size(const struct conv_shape *s)
{
    return (size_t)(s->out_height * s->out_width * s->out_stored);
}

static size_t weight_count(const struct conv_shape *s)
{
    return (size_t)(s->out_channels * s->in_channels * s->kernel * s->kernel);
}

/* Random pixels whose additional channels are zero. */
static float *random_pixels(size_t n_pixels, int channels, int stored)
{
    float *pixels = kernel_random(n_pixels * (size_t)stored);
    for (size_t p = 0; p < n_pixels; p++)
        for (int c = channels; c < stored; c++)
            pixels[p * (size_t)stored + (size_t)c] = 0;
    return pixels;
}

static void twin_forward(int n, const struct conv_shape *s, const float *x, const float *w, const float *bias,
                         float *y)
{
    float *packed = kernel_zeros(conv_packed_size(s)), *stored_bias = kernel_zeros((size_t)s->out_stored);
    twin->conv_pack_forward(s, w, packed);
    memcpy(stored_bias, bias, (size_t)s->out_channels * sizeof(*bias));
    for (int i = 0; i < n; i++)
        twin->conv_forward(s, x + (size_t)i * in_size(s), packed, stored_bias, y + (size_t)i * out_size(s));
}

static void conv_forward(const struct image *image, bool first, enum crw_products precision)
{
    struct conv_shape s = shape_of(image, first);
    size_t n = (size_t)image->n, n_x = n * in_size(&s), n_y = n * out_size(&s), n_w = weight_count(&s);
    float *x = random_pixels(n_x / (size_t)s.in_stored, s.in_channels, s.in_stored);
    float *w = kernel_random(n_w), *bias = kernel_random((size_t)s.out_channels);
    float *y = kernel_device_floats(n_y), *expected = kernel_zeros(n_y), *scale = kernel_zeros(n_y);
    struct cuda_queue q = kernel_queue(precision);

    kernel_done(&q, cuda_conv_forward(&q, image->n, &s, x, w, bias, y));
    twin_forward(image->n, &s, x, w, bias, expected);
    twin_forward(image->n, &s, kernel_absolute(x, n_x), kernel_absolute(w, n_w),
                 kernel_absolute(bias, (size_t)s.out_channels), scale);
    kernel_check("conv y", y, expected, n_y, kernel_tolerance(precision), scale);
}

/* dy of one sample within the twin's frame of zeros. */
static float *framed(const struct conv_shape *s, const float *dy)
{
    float *frame = kernel_zeros(conv_frame_size(s));
    size_t row = (size_t)(s->out_width * s->out_stored);
    for (int r = 0; r < s->out_height; r++)
        memcpy(frame + conv_frame_offset(s) + (size_t)r * conv_frame_stride(s), dy + (size_t)r * row,
               row * sizeof(*dy));
    return frame;
}

/* dw in PyTorch's order, as the kernel writes it. */
static void twin_backward(int n, const struct conv_shape *s, const float *x, const float *dy, const float *w,
                          float *dw, float *db, float *dx)
{
    int area = s->kernel * s->kernel;
    float *sums = kernel_zeros((size_t)(area * s->in_stored * s->out_stored)),
          *bias = kernel_zeros((size_t)s->out_stored);
    float *packed = kernel_zeros(conv_packed_size(s));
    twin->conv_pack_backward(s, w, packed);
    for (int i = 0; i < n; i++) {
        float *frame = framed(s, dy + (size_t)i * out_size(s));
        twin->conv_backward_weights(s, x + (size_t)i * in_size(s), frame, sums, bias);
        twin->conv_backward_input(s, frame, packed, dx + (size_t)i * in_size(s));
    }
    memcpy(db, bias, (size_t)s->out_channels * sizeof(*db));
    for (int place = 0; place < area; place++)
        for (int c = 0; c < s->in_channels; c++)
            for (int o = 0; o < s->out_channels; o++)
                dw[(o * s->in_channels + c) * area + place] =
                    sums[(place * s->in_stored + c) * s->out_stored + o];
}

static void conv_backward(const struct image *image, bool first, enum crw_products precision)
{
    struct conv_shape s = shape_of(image, first);
    size_t n = (size_t)image->n, n_x = n * in_size(&s), n_y = n * out_size(&s), n_w = weight_count(&s);
    size_t n_b = (size_t)s.out_channels;
    float *x = random_pixels(n_x / (size_t)s.in_stored, s.in_channels, s.in_stored), *w = kernel_random(n_w);
    float *dy = random_pixels(n_y / (size_t)s.out_stored, s.out_channels, s.out_stored);
    float *dw = kernel_device_floats(n_w), *db = kernel_device_floats(n_b), *dx = kernel_device_floats(n_x);
    float *dw_expected = kernel_zeros(n_w), *db_expected = kernel_zeros(n_b),
          *dx_expected = kernel_zeros(n_x);
    float *dw_scale = kernel_zeros(n_w), *db_scale = kernel_zeros(n_b), *dx_scale = kernel_zeros(n_x);
    struct cuda_queue q = kernel_queue(precision);

    kernel_done(&q, cuda_conv_backward_weights(&q, image->n, &s, x, dy, dw, db));
    kernel_done(&q, cuda_conv_backward_input(&q, image->n, &s, dy, w, dx));
    twin_backward(image->n, &s, x, dy, w, dw_expected, db_expected, dx_expected);
    twin_backward(image->n, &s, kernel_absolute(x, n_x), kernel_absolute(dy, n_y), kernel_absolute(w, n_w),
                  dw_scale, db_scale, dx_scale);
    kernel_check("conv dw", dw, dw_expected, n_w, kernel_tolerance(precision), dw_scale);
    kernel_check("conv db", db, db_expected, n_b, kernel_tolerance(CRW_PRODUCTS_F32), db_scale);
    kernel_check("conv dx", dx, dx_expected, n_x, kernel_tolerance(precision), dx_scale);
}

static void conv_in(enum crw_products precision)
{
    for (size_t i = 0; i < ARRAY_SIZE(images); i++)
        for (int first = 0; first < (images[i].in < CPU_LANES_MAX ? 2 : 1); first++) {
            conv_forward(&images[i], first, precision);
            conv_backward(&images[i], first, precision);
        }
}

static void conv_exact(void)
{
    conv_in(CRW_PRODUCTS_F32);
}

static void conv_tf32(void)
{
    conv_in(CRW_PRODUCTS_TF32);
}

static void conv_bf16(void)
{
    conv_in(CRW_PRODUCTS_BF16);
}

int main(void)
{
    static const struct kernel_case cases[] = {
        {"linear_exact", linear_exact},
        {"linear_tf32", linear_tf32, .approximate = true},
        {"linear_bf16", linear_bf16, .approximate = true},
        {"conv_exact", conv_exact},
        {"conv_tf32", conv_tf32, .approximate = true},
        {"conv_bf16", conv_bf16, .approximate = true},
    };
    return kernel_run("kernel_products", cases, ARRAY_SIZE(cases));
}
