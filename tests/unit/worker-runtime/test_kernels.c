/*
 * Every fast kernel against its plain twin, on shapes that are no multiple of anything. Sums: within 1e-5 of
 * the largest value of the result (the twin adds in double); what only moves or compares numbers, and the
 * optimizers: to the last bit.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/kernel_reference.h"

static const double tolerance = 1e-5;

static const struct cpu_kernels *const ref = &kernel_reference;
static const struct cpu_kernels *fast; /* the table under test */

static struct crw_rng rng;

/* Of the case that runs. */
static void *taken[64];
static size_t n_taken;

/* Memory that ends where it says, so that AddressSanitizer sees a vector that reads on. */
static void *take(size_t n_bytes)
{
    assert_true(n_taken < ARRAY_SIZE(taken));
    taken[n_taken] = malloc(n_bytes);
    assert_non_null(taken[n_taken]);
    return taken[n_taken++];
}

static void end_case(void)
{
    while (n_taken > 0)
        free(taken[--n_taken]);
}

static float *floats(size_t count)
{
    float *x = take(count * sizeof(*x));
    crw_rng_uniform(&rng, x, count, -1, 1);
    return x;
}

static float *zeros(size_t count)
{
    float *x = floats(count);
    memset(x, 0, count * sizeof(*x));
    return x;
}

static float *copy_of(const float *x, size_t count)
{
    float *copy = floats(count);
    memcpy(copy, x, count * sizeof(*x));
    return copy;
}

/* Stored channels beyond the real ones are zero. */
static float *pixels(size_t n_pixels, int channels, int stored)
{
    float *x = floats(n_pixels * (size_t)stored);
    for (size_t p = 0; p < n_pixels; p++)
        for (int c = channels; c < stored; c++)
            x[p * (size_t)stored + (size_t)c] = 0;
    return x;
}

static void compare(const char *what, const char *shape, float *mine, float *twin, size_t count, double limit)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)twin[i]));
    for (size_t i = 0; i < count; i++) {
        bool same = limit == 0 ? memcmp(&mine[i], &twin[i], sizeof(float)) == 0
                               : fabs((double)mine[i] - twin[i]) <= limit * (1 + largest);
        if (!same)
            fail_msg("%s of %s, %s: element %zu of %zu is %.9g, the twin has %.9g", what, fast->name, shape,
                     i, count, (double)mine[i], (double)twin[i]);
    }
}

static void for_each_table(void (*check)(void))
{
    for (const struct cpu_kernels *const *k = cpu_kernels_all(); *k; k++) {
        fast = *k;
        crw_rng_seed(&rng, 1);
        check();
    }
}

/* ---- convolution ---- */

static const struct {
    int in, out, kernel, height, width;
    bool slim; /* the first layer: input channels not padded */
} conv_shapes[] = {
    {1, 32, 3, 28, 28, true},
    {32, 64, 3, 13, 13, false},
    {3, 5, 3, 9, 8, true},
    {5, 7, 2, 7, 6, false},
    {17, 33, 1, 5, 5, false},
    {2, 16, 5, 5, 5, true},
    {16, 48, 3, 4, 31, false},
    {4, 3, 4, 4, 33, false},
    {1, 1, 1, 1, 1, true},
    {33, 15, 2, 2, 2, false},
    {7, 100, 3, 6, 15, true},
    /* The last block of input channels is incomplete. */
    {9, 5, 2, 4, 5, true},
    {13, 17, 3, 6, 5, true},
    {15, 16, 3, 5, 7, true},
    {17, 3, 3, 5, 4, true},
    {20, 33, 2, 4, 4, true},
    {31, 16, 3, 4, 6, true},
    {33, 7, 5, 6, 7, true},
    {47, 48, 2, 3, 4, true},
    /* All are complete. */
    {8, 5, 3, 5, 4, true},
    {16, 5, 3, 5, 4, true},
    {24, 16, 2, 4, 5, true},
    {32, 20, 3, 5, 4, true},
};

static void check_conv_shape(const struct conv_shape *s, const char *text)
{
    size_t n_in = (size_t)(s->in_height * s->in_width * s->in_stored);
    size_t n_out = (size_t)(s->out_height * s->out_width * s->out_stored);
    size_t n_weights = (size_t)(s->in_channels * s->out_channels * s->kernel * s->kernel);
    size_t n_dw = (size_t)(s->kernel * s->kernel * s->in_stored * s->out_stored);
    float *x = pixels((size_t)(s->in_height * s->in_width), s->in_channels, s->in_stored),
          *w = floats(n_weights);
    float *bias = pixels(1, s->out_channels, s->out_stored);
    float *packed = floats(conv_packed_size(s)), *twin_packed = floats(conv_packed_size(s));

    float *y = floats(n_out), *twin_y = floats(n_out);
    fast->conv_pack_forward(s, w, packed);
    ref->conv_pack_forward(s, w, twin_packed);
    fast->conv_forward(s, x, packed, bias, y);
    ref->conv_forward(s, x, twin_packed, bias, twin_y);
    compare("conv_forward", text, y, twin_y, n_out, tolerance);

    float *dy = zeros(conv_frame_size(s));
    for (int row = 0; row < s->out_height; row++) {
        float *fresh = pixels((size_t)s->out_width, s->out_channels, s->out_stored);
        memcpy(dy + conv_frame_offset(s) + (size_t)row * conv_frame_stride(s), fresh,
               (size_t)(s->out_width * s->out_stored) * sizeof(*fresh));
    }

    float *dw = zeros(n_dw), *db = zeros((size_t)s->out_stored);
    float *twin_dw = zeros(n_dw), *twin_db = zeros((size_t)s->out_stored);
    for (int sample = 0; sample < 2; sample++) { /* adds */
        fast->conv_backward_weights(s, x, dy, dw, db);
        ref->conv_backward_weights(s, x, dy, twin_dw, twin_db);
    }
    compare("conv_backward_weights", text, dw, twin_dw, n_dw, tolerance);
    compare("conv_backward_weights' bias", text, db, twin_db, (size_t)s->out_stored, tolerance);

    if (s->in_stored % CPU_LANES_MAX == 0) {
        float *dx = floats(n_in), *twin_dx = floats(n_in);
        fast->conv_pack_backward(s, w, packed);
        ref->conv_pack_backward(s, w, twin_packed);
        fast->conv_backward_input(s, dy, packed, dx);
        ref->conv_backward_input(s, dy, twin_packed, twin_dx);
        compare("conv_backward_input", text, dx, twin_dx, n_in, tolerance);
    }
    end_case();
}

static void check_conv(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(conv_shapes); i++) {
        int k = conv_shapes[i].kernel;
        struct conv_shape s = {
            .in_channels = conv_shapes[i].in,
            .out_channels = conv_shapes[i].out,
            .in_stored = conv_shapes[i].slim ? conv_shapes[i].in : cpu_stored_channels(conv_shapes[i].in),
            .out_stored = cpu_stored_channels(conv_shapes[i].out),
            .kernel = k,
            .in_height = conv_shapes[i].height,
            .in_width = conv_shapes[i].width,
            .out_height = conv_shapes[i].height - k + 1,
            .out_width = conv_shapes[i].width - k + 1,
        };
        char text[96];
        (void)snprintf(text, sizeof(text), "%d -> %d channels, kernel %d, %d x %d", s.in_channels,
                       s.out_channels, k, s.in_height, s.in_width);
        check_conv_shape(&s, text);
    }
}

/* ---- linear layers ---- */

static void check_linear_shape(int n, int in, int out)
{
    char text[64];
    size_t n_x = (size_t)(n * in), n_y = (size_t)(n * out), n_w = (size_t)(in * out);
    float *x = floats(n_x), *w = floats(n_w), *bias = floats((size_t)out), *dy = floats(n_y);
    (void)snprintf(text, sizeof(text), "%d samples, %d -> %d", n, in, out);

    float *y = floats(n_y), *twin_y = floats(n_y);
    fast->linear_forward(n, in, out, x, w, bias, y);
    ref->linear_forward(n, in, out, x, w, bias, twin_y);
    compare("linear_forward", text, y, twin_y, n_y, tolerance);

    float *dw = floats(n_w), *twin_dw = floats(n_w), *db = floats((size_t)out),
          *twin_db = floats((size_t)out);
    fast->linear_backward_weights(n, in, out, x, dy, dw, db);
    ref->linear_backward_weights(n, in, out, x, dy, twin_dw, twin_db);
    compare("linear_backward_weights", text, dw, twin_dw, n_w, tolerance);
    compare("linear_backward_weights' bias", text, db, twin_db, (size_t)out, tolerance);

    float *dx = floats(n_x), *twin_dx = floats(n_x);
    fast->linear_backward_input(n, in, out, dy, w, dx);
    ref->linear_backward_input(n, in, out, dy, w, twin_dx);
    compare("linear_backward_input", text, dx, twin_dx, n_x, tolerance);
    end_case();
}

static void check_linear(void)
{
    static const int batches[] = {1, 2, 8, 31, 33, 64, 65};
    static const int sizes[][2] = {{1600, 128}, {10, 2}, {7, 6},   {128, 10},
                                   {33, 17},    {1, 1},  {16, 16}, {47, 49}};
    for (size_t s = 0; s < ARRAY_SIZE(sizes); s++)
        for (size_t b = 0; b < ARRAY_SIZE(batches); b++)
            check_linear_shape(batches[b], sizes[s][0], sizes[s][1]);
}

/* ---- batch normalisation ---- */

static void check_moments(void)
{
    enum { CHANNELS = 48 };
    static const size_t pieces[] = {1, 2, 3, 121, 676, 5};
    struct moments mine[CHANNELS] = {{0}}, twin[CHANNELS] = {{0}};
    size_t before = 0;
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        float *x = floats(pieces[i] * CHANNELS);
        /* A mean far from zero: where a sum of squares in float has no digits left. */
        for (size_t p = 0; p < pieces[i]; p++)
            x[p * CHANNELS] += 3000;
        fast->moments_add(pieces[i], CHANNELS, x, before, mine);
        ref->moments_add(pieces[i], CHANNELS, x, before, twin);
        before += pieces[i];
        end_case();
    }
    for (int c = 0; c < CHANNELS; c++) {
        assert_true(fabs(mine[c].mean - twin[c].mean) <= 1e-6 * (1 + fabs(twin[c].mean)));
        assert_true(fabs(mine[c].m2 - twin[c].m2) <= 1e-4 * twin[c].m2);
    }
    assert_true(fabs(mine[0].mean - twin[0].mean) < 1e-5);
}

struct norm_case {
    float *mean, *scale, *shift, *a, *b, *c;
};

static struct norm_case norm_case_make(int channels)
{
    size_t n = (size_t)channels;
    return (struct norm_case){floats(n), floats(n), floats(n), floats(n), floats(n), floats(n)};
}

static void compare_sums(const char *what, const char *shape, const double *mine, const double *twin,
                         int channels)
{
    for (int c = 0; c < channels; c++)
        if (!(fabs(mine[c] - twin[c]) <= 1e-4))
            fail_msg("%s of %s, %s: channel %d is %.9g, the twin has %.9g", what, fast->name, shape, c,
                     mine[c], twin[c]);
}

static void check_norm_shape(int height, int width, int channels, bool relu)
{
    struct norm_case n = norm_case_make(channels);
    size_t n_pixels = (size_t)(height * width), count = n_pixels * (size_t)channels;
    size_t stride = (size_t)((width + 2) * channels), n_dx = (size_t)height * stride;
    float *x = floats(count), *dy = floats(count), *y = floats(count), *twin_y = floats(count);
    double sums[2][48] = {{0}}, twin_sums[2][48] = {{0}};
    char text[64];
    (void)snprintf(text, sizeof(text), "%d x %d x %d%s", channels, height, width, relu ? " with relu" : "");

    fast->norm_forward(n_pixels, channels, x, n.scale, n.shift, relu, y);
    ref->norm_forward(n_pixels, channels, x, n.scale, n.shift, relu, twin_y);
    fast->norm_backward_sums(n_pixels, channels, dy, x, twin_y, n.mean, relu, sums[0], sums[1]);
    ref->norm_backward_sums(n_pixels, channels, dy, x, twin_y, n.mean, relu, twin_sums[0], twin_sums[1]);
    compare_sums("norm_backward_sums", text, sums[0], twin_sums[0], channels);
    compare_sums("norm_backward_sums (x)", text, sums[1], twin_sums[1], channels);

    float *dx = zeros(n_dx), *twin_dx = zeros(n_dx);
    fast->norm_backward_input(height, width, channels, dy, x, twin_y, n.mean, n.a, n.b, n.c, relu, dx,
                              stride);
    ref->norm_backward_input(height, width, channels, dy, x, twin_y, n.mean, n.a, n.b, n.c, relu, twin_dx,
                             stride);
    compare("norm_backward_input", text, dx, twin_dx, n_dx, tolerance);
    compare("norm_forward", text, y, twin_y, count, tolerance);
    end_case();
}

static void check_norm(void)
{
    static const int sizes[][3] = {{26, 26, 32}, {11, 11, 48}, {1, 1, 16}, {1, 7, 16}, {5, 3, 32}};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (int relu = 0; relu < 2; relu++)
            check_norm_shape(sizes[i][0], sizes[i][1], sizes[i][2], relu);
}

/* ---- pooling ---- */

static const int pool_sizes[][3] = {{26, 26, 32}, {11, 11, 48}, {2, 2, 16},
                                    {3, 2, 16},   {2, 5, 32},   {7, 6, 16}};

static struct pool_shape pool_shape_of(const int size[3])
{
    return (struct pool_shape){size[2], size[0], size[1], size[0] / 2, size[1] / 2};
}

/* Few different values, so that most windows have ties; some NaN. */
static float *images_with_ties(size_t count)
{
    float *x = floats(count);
    for (size_t i = 0; i < count; i++) {
        uint32_t draw = crw_rng_u32(&rng) % 40;
        x[i] = draw == 39 ? NAN : draw < 20 ? (float)(draw % 4) - 1.5f : x[i];
    }
    return x;
}

static void check_pool(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(pool_sizes); i++) {
        struct pool_shape s = pool_shape_of(pool_sizes[i]);
        size_t n_in = (size_t)(s.in_height * s.in_width * s.channels);
        size_t n_out = (size_t)(s.out_height * s.out_width * s.channels);
        float *x = images_with_ties(n_in), *y = floats(n_out), *twin_y = floats(n_out), *dy = floats(n_out);
        float *dx = floats(n_in), *twin_dx = floats(n_in);
        uint8_t *which = take(n_out), *twin_which = take(n_out);
        fast->pool_forward(&s, x, y, which);
        ref->pool_forward(&s, x, twin_y, twin_which);
        assert_memory_equal(which, twin_which, n_out);
        compare("pool_forward", "ties and NaN", y, twin_y, n_out, 0);
        fast->pool_backward(&s, dy, which, dx);
        ref->pool_backward(&s, dy, which, twin_dx);
        compare("pool_backward", "ties and NaN", dx, twin_dx, n_in, 0);
        end_case();
    }
}

static void check_norm_relu_pool_shape(struct pool_shape s, const char *text)
{
    struct norm_case n = norm_case_make(s.channels);
    size_t n_in = (size_t)(s.in_height * s.in_width * s.channels);
    size_t n_out = (size_t)(s.out_height * s.out_width * s.channels);
    size_t stride = (size_t)((s.in_width + 4) * s.channels), n_dx = (size_t)s.in_height * stride;
    float *x = floats(n_in), *dy = floats(n_out), *y = floats(n_out), *twin_y = floats(n_out);
    float *centred = floats(n_out), *twin_centred = floats(n_out);
    uint8_t *which = take(n_out), *twin_which = take(n_out);
    double sums[2][48] = {{0}}, twin_sums[2][48] = {{0}};

    fast->norm_relu_pool_forward(&s, x, n.mean, n.scale, n.shift, y, which, centred);
    ref->norm_relu_pool_forward(&s, x, n.mean, n.scale, n.shift, twin_y, twin_which, twin_centred);
    assert_memory_equal(which, twin_which, n_out);
    fast->norm_relu_pool_backward_sums(&s, dy, which, centred, sums[0], sums[1]);
    ref->norm_relu_pool_backward_sums(&s, dy, which, centred, twin_sums[0], twin_sums[1]);
    compare_sums("norm_relu_pool_backward_sums", text, sums[0], twin_sums[0], s.channels);
    compare_sums("norm_relu_pool_backward_sums (x)", text, sums[1], twin_sums[1], s.channels);
    compare("norm_relu_pool_forward", text, y, twin_y, n_out, tolerance);
    compare("norm_relu_pool_forward's centred", text, centred, twin_centred, n_out, 0);

    float *dx = zeros(n_dx), *twin_dx = zeros(n_dx);
    fast->norm_relu_pool_backward_input(&s, dy, which, x, n.mean, n.a, n.b, n.c, dx, stride);
    ref->norm_relu_pool_backward_input(&s, dy, which, x, n.mean, n.a, n.b, n.c, twin_dx, stride);
    compare("norm_relu_pool_backward_input", text, dx, twin_dx, n_dx, tolerance);
    end_case();
}

static void check_norm_relu_pool(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(pool_sizes); i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "%d x %d x %d", pool_sizes[i][2], pool_sizes[i][0],
                       pool_sizes[i][1]);
        check_norm_relu_pool_shape(pool_shape_of(pool_sizes[i]), text);
    }
}

/* Two equal largest values: the first in row-major order takes the gradient, as in PyTorch. */
static void check_first_of_equals(void)
{
    enum { CHANNELS = 16 };
    static const float windows[][4] = {
        {2, 2, 2, 2}, {1, 2, 2, 1}, {1, 1, 1, 2}, {0, 0, 3, 3}, {-1, -2, -1, -3}};
    static const uint8_t expected[] = {0, 1, 3, 2, POOL_DEAD};
    const float zero[CHANNELS] = {0};
    float one[CHANNELS], x[4 * CHANNELS], y[CHANNELS], centred[CHANNELS];
    uint8_t which[CHANNELS];
    struct pool_shape s = {CHANNELS, 2, 2, 1, 1};
    for (int c = 0; c < CHANNELS; c++)
        one[c] = 1;
    for (size_t i = 0; i < ARRAY_SIZE(windows); i++) {
        for (int p = 0; p < 4; p++)
            for (int c = 0; c < CHANNELS; c++)
                x[p * CHANNELS + c] = windows[i][p];
        fast->norm_relu_pool_forward(&s, x, zero, one, zero, y, which, centred);
        assert_int_equal(which[3], expected[i]);
        ref->norm_relu_pool_forward(&s, x, zero, one, zero, y, which, centred);
        assert_int_equal(which[3], expected[i]);
    }
}

static void check_relu(void)
{
    static const size_t counts[] = {1, 7, 15, 16, 17, 31, 33, 4099};
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        size_t n = counts[i];
        float *x = images_with_ties(n), *y = floats(n), *twin_y = floats(n), *dy = floats(n),
              *dx = copy_of(dy, n);
        float *twin_dx = floats(n);
        x[0] = i % 2 ? -0.0f : NAN;
        fast->relu_forward(n, x, y);
        ref->relu_forward(n, x, twin_y);
        ref->relu_backward(n, twin_y, dy, twin_dx);
        fast->relu_backward(n, twin_y, dx, dx); /* in place */
        compare("relu_backward", "in place", dx, twin_dx, n, 0);
        compare("relu_forward", "with NaN", y, twin_y, n, 0);
        end_case();
    }
}

/* ---- optimizers ---- */

static void check_optimizers_of(size_t n)
{
    float *p = floats(n), *g = floats(n), *s1 = zeros(n), *s2 = zeros(n);
    float *q = copy_of(p, n), *t1 = zeros(n), *t2 = zeros(n);
    for (int step = 0; step < 4; step++) {
        struct sgd_step sgd = {-.1f, step % 2 ? .01f : 0, .9f, .8f, step == 2, step == 0};
        struct adamw_step adamw = {.999f, .1f, .99f, .01f, .3f, 1e-8f, -.01f};
        struct adadelta_step adadelta = {-.5f, step % 2 ? .01f : 0, .9f, .1f, 1e-6f};
        fast->sgd(&sgd, n, p, g, s1);
        cpu_kernels_base.sgd(&sgd, n, q, g, t1);
        fast->adamw(&adamw, n, p, g, s1, s2);
        cpu_kernels_base.adamw(&adamw, n, q, g, t1, t2);
        for (size_t i = 0; i < n; i++) { /* Adadelta's states are squares */
            s1[i] = t1[i] = fabsf(t1[i]);
            s2[i] = t2[i] = fabsf(t2[i]);
        }
        fast->adadelta(&adadelta, n, p, g, s1, s2);
        cpu_kernels_base.adadelta(&adadelta, n, q, g, t1, t2);
    }
    compare("optimizers", "parameters", p, q, n, 0);
    compare("optimizers", "first state", s1, t1, n, 0);
    compare("optimizers", "second state", s2, t2, n, 0);
    end_case();
}

static void check_optimizers(void)
{
    static const size_t counts[] = {1, 3, 15, 16, 17, 33, 4099};
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
        check_optimizers_of(counts[i]);
}

/* ---- over a whole arena ---- */

static void check_arena_of(size_t n)
{
    static const float odd_ones[] = {NAN,  -NAN,    INFINITY, -INFINITY,   0,
                                     -0.f, 3.4e38f, 1e-45f,   1.00390625f, 1.01171875f};
    float *x = floats(n), *y = floats(n), *twin_y;
    for (size_t i = 0; i < n && i < ARRAY_SIZE(odd_ones); i++)
        x[n - 1 - i] = odd_ones[i];
    twin_y = copy_of(y, n);
    fast->round_bf16(n, x, y);
    ref->round_bf16(n, x, twin_y);
    compare("round_bf16", "", y, twin_y, n, 0);

    x = floats(n);
    y = floats(n);
    twin_y = copy_of(y, n);
    fast->add(n, x, y);
    ref->add(n, x, twin_y);
    fast->scale(n, .3f, y);
    ref->scale(n, .3f, twin_y);
    double sum = fast->sum_squares(n, y), twin_sum = ref->sum_squares(n, y);
    if (!(fabs(sum - twin_sum) <= 1e-6 * twin_sum))
        fail_msg("sum_squares of %s, %zu elements: %.9g, the twin has %.9g", fast->name, n, sum, twin_sum);
    compare("add and scale", "", y, twin_y, n, 0);
    end_case();
}

static void check_arena(void)
{
    static const size_t counts[] = {1, 3, 15, 16, 17, 33, 1024, 4099};
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
        check_arena_of(counts[i]);
}

#define TEST(check)                                                                                          \
    static void test_##check(void **state)                                                                   \
    {                                                                                                        \
        for_each_table(check_##check);                                                                       \
    }
TEST(conv)
TEST(linear)
TEST(moments)
TEST(norm)
TEST(pool)
TEST(norm_relu_pool)
TEST(first_of_equals)
TEST(relu)
TEST(arena)
TEST(optimizers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_norm_relu_pool),
        cmocka_unit_test(test_first_of_equals),
        cmocka_unit_test(test_relu),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_optimizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
