/*
 * Batch normalisation, relu and pooling against their twins. Statistics are compared with sums in double, the
 * passes over elements bit for bit: they are the same operations.
 */

#include "tests/unit/worker-runtime/kernel_memory.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/kernel_reference.h"

static const struct cpu_kernels *const twin = &kernel_reference;

struct rows {
    int n, channels;
};

static const struct rows sizes[] = {{2, 1}, {31, 16}, {33, 33}, {1003, 31}, {5408, 32}, {4099, 64}, {7, 100}};

static struct cuda_norm new_norm(int stored)
{
    size_t n = (size_t)stored;
    return (struct cuda_norm){
        .mean = kernel_device_floats(n),
        .inverse_deviation = kernel_device_floats(n),
        .unbiased_variance = kernel_device_floats(n),
        .scale = kernel_device_floats(n),
        .shift = kernel_device_floats(n),
        .a = kernel_device_floats(n),
        .b = kernel_device_floats(n),
        .c = kernel_device_floats(n),
    };
}

/* Values far from zero, so that a sum of squares would lose its digits. */
static float *far_from_zero(const struct rows *r, int stored)
{
    float *x = kernel_random((size_t)(r->n * stored));
    for (int i = 0; i < r->n * stored; i++)
        x[i] = i % stored < r->channels ? x[i] + 100 : 0;
    return x;
}

static void observes(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        const struct rows *r = &sizes[i];
        int stored = cpu_stored_channels(r->channels);
        size_t n = (size_t)r->channels;
        float *x = far_from_zero(r, stored), *gamma = kernel_random(n), *beta = kernel_random(n);
        struct moments *moments = kernel_device((size_t)stored * sizeof(*moments));
        float *mean = kernel_zeros(n), *unbiased = kernel_zeros(n), *inverse = kernel_zeros(n),
              *scale = kernel_zeros(n);
        struct cuda_norm norm = new_norm(stored);
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

        kernel_done(&q, cuda_norm_observe(&q, r->n, r->channels, stored, x, gamma, beta, &norm));
        memset(moments, 0, (size_t)stored * sizeof(*moments));
        twin->moments_add((size_t)r->n, stored, x, 0, moments);
        for (size_t c = 0; c < n; c++) {
            double deviation = sqrt(moments[c].m2 / r->n + 1e-5);
            mean[c] = (float)moments[c].mean;
            unbiased[c] = (float)(moments[c].m2 / (r->n - 1));
            inverse[c] = (float)(1 / deviation);
            scale[c] = (float)(gamma[c] / deviation);
        }
        kernel_check("mean", norm.mean, mean, n, 1e-7, mean);
        kernel_check("unbiased variance", norm.unbiased_variance, unbiased, n, 1e-6, unbiased);
        kernel_check("inverse deviation", norm.inverse_deviation, inverse, n, 1e-6, inverse);
        kernel_check("scale", norm.scale, scale, n, 1e-6, inverse);
        for (size_t c = 0; c < n; c++)
            beta[c] = fmaf(-norm.mean[c], norm.scale[c], beta[c]);
        kernel_check_bytes("shift", norm.shift, beta, n * sizeof(float));
        kernel_check_bytes("additional scales", norm.scale + n, kernel_zeros((size_t)stored),
                           ((size_t)stored - n) * sizeof(float));
    }
}

static void refuses_one_value(void)
{
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);
    struct cuda_norm norm = new_norm(16);
    float *x = kernel_random(16);
    assert_int_equal(cuda_norm_observe(&q, 1, 16, 16, x, x, x, &norm), cudaErrorInvalidValue);
}

/* Coefficients as a forward would leave them, and the zeros of additional channels. */
static struct cuda_norm some_norm(int channels, int stored)
{
    struct cuda_norm norm = new_norm(stored);
    size_t n = (size_t)stored;
    norm.mean = kernel_random(n);
    norm.inverse_deviation = kernel_absolute(kernel_random(n), n);
    norm.scale = kernel_random(n);
    norm.shift = kernel_random(n);
    for (int c = channels; c < stored; c++)
        norm.mean[c] = norm.inverse_deviation[c] = norm.scale[c] = norm.shift[c] = 0;
    return norm;
}

static void normalises(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (int relu = 0; relu < 2; relu++) {
            const struct rows *r = &sizes[i];
            int stored = cpu_stored_channels(r->channels);
            size_t count = (size_t)(r->n * stored);
            float *x = kernel_random(count), *y = kernel_device_floats(count),
                  *expected = kernel_zeros(count);
            struct cuda_norm norm = some_norm(r->channels, stored);
            struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

            kernel_done(&q, cuda_norm_forward(&q, r->n, stored, x, &norm, relu, y));
            twin->norm_forward((size_t)r->n, stored, x, norm.scale, norm.shift, relu, expected);
            kernel_check_bytes("normalised", y, expected, count * sizeof(float));
        }
}

/* What model_steps.c makes of the twin's sums. */
static void expected_gradients(int channels, double m, const struct cuda_norm *norm, const double *sum_dy,
                               const double *sum_dy_x, float *dgamma, float *dbeta, float *b, float *c)
{
    for (int i = 0; i < channels; i++) {
        double d = norm->inverse_deviation[i], scale = norm->scale[i];
        dgamma[i] = (float)(d * sum_dy_x[i]);
        dbeta[i] = (float)sum_dy[i];
        b[i] = (float)(-scale * d * d * sum_dy_x[i] / m);
        c[i] = (float)(-scale * sum_dy[i] / m);
    }
}

/* The tolerance of a channel's sums: the sum of what was added, in absolute values, is at most about this. */
static float *sum_scale(int channels, double n)
{
    float *scale = kernel_zeros((size_t)channels);
    for (int i = 0; i < channels; i++)
        scale[i] = (float)(20 * n);
    return scale;
}

static void check_gradients(int channels, double n, double m, const struct cuda_norm *norm,
                            const double *sum_dy, const double *sum_dy_x, const float *dgamma,
                            const float *dbeta)
{
    size_t count = (size_t)channels;
    float *dgamma_expected = kernel_zeros(count), *dbeta_expected = kernel_zeros(count);
    float *b = kernel_zeros(count), *c = kernel_zeros(count), *scale = sum_scale(channels, n);

    expected_gradients(channels, m, norm, sum_dy, sum_dy_x, dgamma_expected, dbeta_expected, b, c);
    kernel_check("dgamma", dgamma, dgamma_expected, count, 1e-7, scale);
    kernel_check("dbeta", dbeta, dbeta_expected, count, 1e-7, scale);
    kernel_check_bytes("a", norm->a, norm->scale, count * sizeof(float));
    kernel_check("b", norm->b, b, count, 1e-5, NULL);
    kernel_check("c", norm->c, c, count, 1e-5, NULL);
}

static void goes_back(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (int relu = 0; relu < 2; relu++) {
            const struct rows *r = &sizes[i];
            int stored = cpu_stored_channels(r->channels);
            size_t count = (size_t)(r->n * stored), n = (size_t)stored;
            float *x = kernel_random(count), *dy = kernel_random(count), *y = kernel_random(count);
            float *dx = kernel_device_floats(count), *dx_expected = kernel_zeros(count);
            float *dgamma = kernel_device_floats(n), *dbeta = kernel_device_floats(n);
            double *sums = kernel_device(2 * n * sizeof(*sums));
            struct cuda_norm norm = some_norm(r->channels, stored);
            struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

            y[0] = 0;   /* relu's gradient is 0 at 0 */
            y[1] = NAN; /* and 1 at NaN */
            kernel_done(&q, cuda_norm_backward_sums(&q, r->n, r->channels, stored, dy, x, y, &norm, relu,
                                                    dgamma, dbeta));
            memset(sums, 0, 2 * n * sizeof(*sums));
            twin->norm_backward_sums((size_t)r->n, stored, dy, x, y, norm.mean, relu, sums, sums + stored);
            check_gradients(r->channels, r->n, r->n, &norm, sums, sums + stored, dgamma, dbeta);

            kernel_done(&q, cuda_norm_backward_input(&q, r->n, stored, dy, x, y, &norm, relu, dx));
            twin->norm_backward_input(1, r->n, stored, dy, x, y, norm.mean, norm.a, norm.b, norm.c, relu,
                                      dx_expected, 0);
            kernel_check_bytes("dx", dx, dx_expected, count * sizeof(float));
        }
}

/* Facts section 2: PyTorch's own numbers. */
static void agrees_with_pytorch(void)
{
    enum { STORED = 16 };
    static const float xs[] = {1, 2, 4, 9}, dys[] = {1, 0, -1, 2};
    static const float ys[] = {-0.97332805f, -0.64888537f, 0, 1.6222134f};
    static const float dxs[] = {0.3415184f, -0.04268995f, -0.486664f, 0.1878355f};
    float *x = kernel_zeros(4 * STORED), *dy = kernel_zeros(4 * STORED), *y = kernel_zeros(4 * STORED);
    float *dx = kernel_zeros(4 * STORED), *gamma = kernel_zeros(1), *beta = kernel_zeros(1);
    float *dgamma = kernel_zeros(1), *dbeta = kernel_zeros(1), *mean = kernel_zeros(1),
          *variance = kernel_zeros(1);
    int64_t *count = kernel_device(sizeof(*count));
    struct cuda_commit *commit = kernel_device(sizeof(*commit));
    struct cuda_norm norm = new_norm(STORED);
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

    for (int i = 0; i < 4; i++) {
        x[i * STORED] = xs[i];
        dy[i * STORED] = dys[i];
    }
    *gamma = *variance = 1;
    *count = 0;
    kernel_done(&q, cuda_norm_observe(&q, 4, 1, STORED, x, gamma, beta, &norm));
    kernel_done(&q, cuda_norm_forward(&q, 4, STORED, x, &norm, false, y));
    kernel_done(&q, cuda_norm_backward_sums(&q, 4, 1, STORED, dy, x, y, &norm, false, dgamma, dbeta));
    kernel_done(&q, cuda_norm_backward_input(&q, 4, STORED, dy, x, y, &norm, false, dx));
    for (int i = 0; i < 4; i++) {
        kernel_check("y", &y[i * STORED], &ys[i], 1, 1e-6, NULL);
        kernel_check("dx", &dx[i * STORED], &dxs[i], 1, 1e-6, NULL);
    }
    kernel_check("dgamma", dgamma, &(float){2.27109885f}, 1, 1e-6, NULL);
    kernel_check("dbeta", dbeta, &(float){2}, 1, 1e-6, NULL);

    commit->go = 0;
    kernel_done(&q, cuda_norm_track(&q, commit, 1, &norm, mean, variance, count));
    kernel_check("untouched mean", mean, &(float){0}, 1, 0, NULL);
    kernel_check("untouched variance", variance, &(float){1}, 1, 0, NULL);
    assert_int_equal(*count, 0);
    commit->go = 1;
    kernel_done(&q, cuda_norm_track(&q, commit, 1, &norm, mean, variance, count));
    kernel_check("running mean", mean, &(float){0.4f}, 1, 1e-7, NULL);
    kernel_check("running variance", variance, &(float){2.16666675f}, 1, 1e-6, NULL);
    assert_int_equal(*count, 1);

    kernel_done(&q, cuda_norm_recall(&q, 1, STORED, mean, variance, gamma, beta, &norm));
    kernel_check("recalled mean", norm.mean, mean, 1, 0, NULL);
    kernel_check("recalled scale", norm.scale, &(float){(float)(1 / sqrt((double)*variance + 1e-5))}, 1, 0,
                 NULL);
}

/* ---- pooling ---- */

struct image {
    int n, channels, height, width;
};

static const struct image images[] = {
    {1, 16, 2, 2}, {1, 16, 31, 33}, {3, 32, 11, 11}, {2, 64, 26, 2}, {2, 16, 3, 9}};

static struct pool_shape shape_of(const struct image *i)
{
    return (struct pool_shape){
        .channels = i->channels,
        .in_height = i->height,
        .in_width = i->width,
        .out_height = i->height / 2,
        .out_width = i->width / 2,
    };
}

/* Small whole numbers, so that there are ties, and one NaN. */
static float *with_ties(size_t count)
{
    float *x = kernel_random(count);
    for (size_t i = 0; i < count; i++)
        x[i] = rintf(2 * x[i]);
    x[count / 3] = NAN;
    return x;
}

static void pools(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(images); i++) {
        struct pool_shape s = shape_of(&images[i]);
        int n = images[i].n;
        size_t in = (size_t)(s.in_height * s.in_width * s.channels),
               out = (size_t)(s.out_height * s.out_width * s.channels);
        size_t n_in = (size_t)n * in, n_out = (size_t)n * out;
        float *x = with_ties(n_in), *dy = kernel_random(n_out), *y = kernel_device_floats(n_out);
        float *dx = kernel_device_floats(n_in), *y_expected = kernel_zeros(n_out),
              *dx_expected = kernel_zeros(n_in);
        uint8_t *which = kernel_device(n_out), *which_expected = kernel_device(n_out);
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

        kernel_done(&q, cuda_pool_forward(&q, n, &s, x, y, which));
        kernel_done(&q, cuda_pool_backward(&q, n, &s, dy, which, dx));
        for (size_t k = 0; k < (size_t)n; k++) {
            twin->pool_forward(&s, x + k * in, y_expected + k * out, which_expected + k * out);
            twin->pool_backward(&s, dy + k * out, which_expected + k * out, dx_expected + k * in);
        }
        kernel_check("pooled", y, y_expected, n_out, 0, NULL);
        kernel_check_bytes("places", which, which_expected, n_out);
        kernel_check_bytes("pool dx", dx, dx_expected, n_in * sizeof(float));
    }
}

static void normalises_and_pools(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(images); i++) {
        struct pool_shape s = shape_of(&images[i]);
        int n = images[i].n;
        size_t in = (size_t)(s.in_height * s.in_width * s.channels),
               out = (size_t)(s.out_height * s.out_width * s.channels);
        size_t n_in = (size_t)n * in, n_out = (size_t)n * out;
        float *x = with_ties(n_in), *dy = kernel_random(n_out), *y = kernel_device_floats(n_out);
        float *centred = kernel_device_floats(n_out), *dx = kernel_device_floats(n_in);
        float *y_expected = kernel_zeros(n_out), *centred_expected = kernel_zeros(n_out),
              *dx_expected = kernel_zeros(n_in);
        uint8_t *which = kernel_device(n_out), *which_expected = kernel_device(n_out);
        float *dgamma = kernel_device_floats((size_t)s.channels),
              *dbeta = kernel_device_floats((size_t)s.channels);
        double *sums = kernel_device(2 * (size_t)s.channels * sizeof(*sums));
        struct cuda_norm norm = some_norm(s.channels, s.channels);
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

        x[n_in / 3] = 0; /* a NaN would hide its channel's sums */
        kernel_done(&q, cuda_norm_relu_pool_forward(&q, n, &s, x, &norm, y, which, centred));
        memset(sums, 0, 2 * (size_t)s.channels * sizeof(*sums));
        for (size_t k = 0; k < (size_t)n; k++) {
            size_t at = k * out;
            twin->norm_relu_pool_forward(&s, x + k * in, norm.mean, norm.scale, norm.shift, y_expected + at,
                                         which_expected + at, centred_expected + at);
            twin->norm_relu_pool_backward_sums(&s, dy + at, which_expected + at, centred_expected + at, sums,
                                               sums + s.channels);
        }
        kernel_check_bytes("pooled", y, y_expected, n_out * sizeof(float));
        kernel_check_bytes("places", which, which_expected, n_out);
        kernel_check_bytes("centred", centred, centred_expected, n_out * sizeof(float));

        double m = (double)n * s.in_height * s.in_width;
        kernel_done(&q, cuda_norm_relu_pool_backward_sums(&q, n, &s, s.channels, dy, which, centred, &norm,
                                                          dgamma, dbeta));
        check_gradients(s.channels, (double)n * s.out_height * s.out_width, m, &norm, sums, sums + s.channels,
                        dgamma, dbeta);

        kernel_done(&q, cuda_norm_relu_pool_backward_input(&q, n, &s, dy, which, x, &norm, dx));
        for (size_t k = 0; k < (size_t)n; k++)
            twin->norm_relu_pool_backward_input(&s, dy + k * out, which + k * out, x + k * in, norm.mean,
                                                norm.a, norm.b, norm.c, dx_expected + k * in,
                                                (size_t)(s.in_width * s.channels));
        kernel_check_bytes("dx", dx, dx_expected, n_in * sizeof(float));
    }
}

int main(void)
{
    static const struct kernel_case cases[] = {
        {"observes", observes},
        {"refuses_one_value", refuses_one_value},
        {"normalises", normalises},
        {"goes_back", goes_back},
        {"agrees_with_pytorch", agrees_with_pytorch},
        {"pools", pools},
        {"normalises_and_pools", normalises_and_pools},
    };
    return kernel_run("kernel_norm", cases, ARRAY_SIZE(cases));
}
