/*
 * Relu, the order of features, batches, losses and the accuracy against their twins.
 */

#include "tests/unit/worker-runtime/kernel_memory.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/kernel_reference.h"
#include "worker-runtime/model/model.h"

static const struct cpu_kernels *const twin = &kernel_reference;

static const size_t counts[] = {1, 31, 33, 256, 1003, 530001};

static void relus(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        size_t n = counts[i];
        float *x = kernel_random(n), *dy = kernel_random(n), *y = kernel_device_floats(n),
              *dx = kernel_device_floats(n);
        float *expected = kernel_zeros(n);
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

        x[0] = NAN;
        x[n / 2] = n > 1 ? 0 : NAN;
        kernel_done(&q, cuda_relu_forward(&q, n, x, y));
        twin->relu_forward(n, x, expected);
        kernel_check("relu", y, expected, n, 0,
                     NULL); /* not bytes: the GPU's NaN has other bits than the CPU's */

        twin->relu_backward(n, y, dy, expected);
        kernel_done(&q, cuda_relu_backward(&q, n, y, dy, dx));
        kernel_check_bytes("relu dx", dx, expected, n * sizeof(float));
        kernel_done(&q, cuda_relu_backward(&q, n, y, dy, dy));
        kernel_check_bytes("relu dx in place", dy, expected, n * sizeof(float));
    }
}

/* PyTorch's order is [channel][pixel]; there and back is where it was. */
static void flattens(void)
{
    static const struct {
        int n, pixels, channels, stored;
    } shapes[] = {{1, 1, 1, 16}, {3, 25, 64, 64}, {2, 31, 33, 48}, {1, 1003, 3, 16}, {2, 9, 3, 3}};

    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        int n = shapes[i].n, pixels = shapes[i].pixels, channels = shapes[i].channels,
            stored = shapes[i].stored;
        size_t n_x = (size_t)(n * pixels * stored), n_y = (size_t)(n * pixels * channels);
        float *x = kernel_random(n_x), *y = kernel_device_floats(n_y), *back = kernel_device_floats(n_x);
        float *expected = kernel_zeros(n_y);
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

        for (int s = 0; s < n; s++)
            for (int p = 0; p < pixels; p++)
                for (int c = 0; c < stored; c++) {
                    float *from = &x[(s * pixels + p) * stored + c];
                    if (c >= channels)
                        *from = 0;
                    else
                        expected[(s * channels + c) * pixels + p] = *from;
                }
        kernel_done(&q, cuda_flatten(&q, n, pixels, channels, stored, x, y));
        kernel_check_bytes("flat", y, expected, n_y * sizeof(float));
        kernel_done(&q, cuda_unflatten(&q, n, pixels, channels, stored, y, back));
        kernel_check_bytes("back", back, x, n_x * sizeof(float));
    }
}

static void gathers(void)
{
    enum { N_ITEMS = 40, N_FEATURES = 784, N = 33 };
    uint8_t *data = kernel_device(N_ITEMS * N_FEATURES);
    int32_t *labels = kernel_device(N_ITEMS * sizeof(*labels)),
            *targets = kernel_device(N * sizeof(*targets));
    uint32_t *list = kernel_device(100 * sizeof(*list));
    uint64_t *cursor = kernel_device(sizeof(*cursor));
    float *table = kernel_device_floats(256), *x = kernel_device_floats(N * N_FEATURES),
          *expected = kernel_zeros(N * N_FEATURES);
    int32_t *targets_expected = kernel_device(N * sizeof(*targets_expected));
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

    for (int i = 0; i < 256; i++)
        table[i] = ((float)i / 255 - 0.1307f) / 0.3081f;
    for (int i = 0; i < N_ITEMS * N_FEATURES; i++)
        data[i] = (uint8_t)kernel_random_u32();
    for (int i = 0; i < N_ITEMS; i++)
        labels[i] = i % 3 ? 1000 * i : -1;
    for (int i = 0; i < 100; i++)
        list[i] = kernel_random_u32() % N_ITEMS;
    for (uint64_t at = 0; at < 100 - N; at += 66) {
        *cursor = at;
        for (uint64_t s = 0; s < N; s++) {
            targets_expected[s] = labels[list[at + s]];
            for (int f = 0; f < N_FEATURES; f++)
                expected[s * N_FEATURES + (uint64_t)f] = table[data[list[at + s] * N_FEATURES + (uint32_t)f]];
        }
        kernel_done(
            &q, cuda_gather(&q, N, N_FEATURES, data, labels, table, list, at ? cursor : NULL, x, targets));
        kernel_check_bytes("batch", x, expected, N * N_FEATURES * sizeof(float));
        kernel_check_bytes("targets", targets, targets_expected, N * sizeof(*targets));
    }
}

/* Rows of words and of odd numbers of bytes. */
static void gathers_rows(void)
{
    enum { N = 33, N_ROWS = 50, ROW_MAX = 68 };
    static const size_t sizes[] = {1, 4, 7, 40, ROW_MAX};
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);
    uint8_t *rows = kernel_device(N_ROWS * ROW_MAX), *to = kernel_device(N * ROW_MAX), expected[N * ROW_MAX];
    uint32_t *list = kernel_device(100 * sizeof(*list));
    uint64_t *cursor = kernel_device(sizeof(*cursor));

    for (int i = 0; i < N_ROWS * ROW_MAX; i++)
        rows[i] = (uint8_t)kernel_random_u32();
    for (int i = 0; i < 100; i++)
        list[i] = kernel_random_u32() % N_ROWS;
    *cursor = 5;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (size_t at = 0; at <= 5; at += 5) {
            for (size_t s = 0; s < N; s++)
                memcpy(expected + s * sizes[i], rows + list[at + s] * sizes[i], sizes[i]);
            kernel_done(&q, cuda_gather_rows(&q, N, sizes[i], rows, list, at ? cursor : NULL, to));
            kernel_check_bytes("rows", to, expected, N * sizes[i]);
        }
}

/* ---- losses ---- */

static const struct {
    int n, features;
} rows[] = {{1, 1}, {1, 10}, {31, 10}, {64, 10}, {33, 33}, {2, 1003}, {1000, 2}};

static void log_softmaxes(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int n = rows[i].n, features = rows[i].features;
        size_t count = (size_t)(n * features);
        float *x = kernel_random(count), *dy = kernel_random(count), *y = kernel_device_floats(count);
        float *dx = kernel_device_floats(count), *y_expected = kernel_zeros(count),
              *dx_expected = kernel_zeros(count);
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

        for (size_t k = 0; k < count; k++)
            x[k] = 10 * x[k] + 1000; /* exp() alone would overflow */
        kernel_done(&q, cuda_log_softmax_forward(&q, n, features, x, y));
        model_log_softmax_forward(n, features, x, y_expected);
        kernel_check("log_softmax", y, y_expected, count, 5e-6, NULL);
        kernel_done(&q, cuda_log_softmax_backward(&q, n, features, y_expected, dy, dx));
        model_log_softmax_backward(n, features, y_expected, dy, dx_expected);
        kernel_check("log_softmax dx", dx, dx_expected, count, 2e-5, NULL);
    }
}

/* The first largest, NaN above all. */
static int twin_argmax(const float *y, int features)
{
    int best = 0;
    for (int i = 1; i < features; i++)
        if (y[i] > y[best] || (isnan(y[i]) && !isnan(y[best])))
            best = i;
    return best;
}

/* In one launch or two, the loss and its tally are the same bits. */
static void check_both(const struct cuda_queue *q, int n, int features, const float *x,
                       const int32_t *targets, const float *losses, const uint8_t *correct, const float *dx)
{
    size_t count = (size_t)(n * features);
    float *other_losses = kernel_device_floats((size_t)n), *other_dx = kernel_device_floats(count);
    uint8_t *other_correct = kernel_device((size_t)n);
    struct cuda_tally *tally = kernel_device(sizeof(*tally)), *other = kernel_device(sizeof(*other));

    kernel_done(q, cuda_tally(q, n, losses, correct, targets, false, tally));
    kernel_done(
        q, cuda_nll_tally(q, n, features, x, targets, other_losses, other_correct, other_dx, false, other));
    kernel_check_bytes("losses of both", other_losses, losses, (size_t)n * sizeof(*losses));
    kernel_check_bytes("correct of both", other_correct, correct, (size_t)n);
    kernel_check_bytes("dx of both", other_dx, dx, count * sizeof(*dx));
    kernel_check_bytes("tally of both", other, tally, sizeof(*tally));
}

static void takes_the_likelihood(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int n = rows[i].n, features = rows[i].features;
        size_t count = (size_t)(n * features);
        float *x = kernel_random(count), *y = kernel_device_floats(count), *dx = kernel_device_floats(count);
        float *losses = kernel_device_floats((size_t)n), *y_expected = kernel_zeros(count);
        float *dx_expected = kernel_zeros(count), *dy = kernel_zeros(count);
        int32_t *targets = kernel_device((size_t)n * sizeof(*targets));
        uint8_t *correct = kernel_device((size_t)n);
        struct cuda_tally *tally = kernel_device(sizeof(*tally));
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);
        uint64_t n_correct = 0;
        double sum = 0;
        int n_counted = 0;

        for (size_t k = 0; k < count; k++)
            x[k] = rintf(3 * x[k]); /* ties */
        for (int s = 0; s < n; s++)
            targets[s] = s % 5 == 1 ? -1 : (int32_t)(kernel_random_u32() % (uint32_t)features);
        kernel_done(&q, cuda_nll(&q, n, features, x, targets, y, losses, correct, dx));
        model_log_softmax_forward(n, features, x, y_expected);
        for (int s = 0; s < n; s++)
            n_counted += targets[s] >= 0;
        for (int s = 0; s < n; s++) {
            if (targets[s] < 0) {
                assert_true(losses[s] == 0 && !correct[s]);
                continue;
            }
            sum -= y_expected[s * features + targets[s]];
            dy[s * features + targets[s]] = -1.0f / (float)n_counted;
            bool hit = twin_argmax(y + s * features, features) == targets[s];
            n_correct += hit;
            assert_int_equal(correct[s], hit);
        }
        model_log_softmax_backward(n, features, y_expected, dy, dx_expected);
        kernel_check("log-probabilities", y, y_expected, count, 5e-6, NULL);
        kernel_check("dx", dx, dx_expected, count, 1e-6, NULL);

        tally->loss_sum = 100;
        tally->n_correct = tally->n_losses = tally->n_counted = tally->n_batches = 7;
        tally->mean_sum = 3;
        kernel_done(&q, cuda_tally(&q, n, losses, correct, targets, i % 2, tally));
        assert_int_equal(tally->n_losses, n + (i % 2 ? 7 : 0));
        assert_int_equal(tally->n_counted, n_counted + (i % 2 ? 7 : 0));
        assert_int_equal(tally->n_batches, 1 + (i % 2 ? 7 : 0));
        assert_true(fabs(tally->mean_sum - sum / n_counted - (i % 2 ? 3 : 0)) <= 5e-6);
        assert_int_equal(tally->n_correct, n_correct + (i % 2 ? 7 : 0));
        assert_true(fabs(tally->loss_sum - sum - (i % 2 ? 100 : 0)) <= 5e-6 * n);
        check_both(&q, n, features, x, targets, losses, correct, dx);
    }
}

/*
 * How far the loss and its gradient may be from PyTorch's below. The host's expf() and logf() are right to 1 ulp. A GPU's are
 * right to 2 and 1, and expf(0) is 1. With S = 1 + e^-1 + e^-2 = 1.503, loss L = log S and p = e^(x - max - L):
 *   S  2 ulp of e^-1 and e^-2 (6.0e-8, 3.0e-8) and two additions (2 x 6.0e-8)                    2.1e-7
 *   L  that / S, and 1 ulp of 0.41 (3.0e-8)                                                     1.7e-7
 *   p  of the target, 0.665: 0.665 x that, and 2 ulp (1.2e-7); the other two have less          2.3e-7
 * The gradient is (p - 1) / 2 or p / 2, without rounding: half of p's. The mean of two losses adds 1.5e-8. PyTorch's numbers
 * have errors of their own: 3.6e-8 in the gradient, 4.2e-8 in the loss.
 */
#ifdef KERNEL_ON_GPU
static const double gradient_error = 1.2e-7 + 3.6e-8, loss_error = 1.7e-7 + 1.5e-8 + 4.2e-8;
#else
static const double gradient_error = 1e-7, loss_error = 1e-7;
#endif

/* Facts section 2: PyTorch's own numbers. */
static void likelihood_agrees_with_pytorch(void)
{
    static const float logits[] = {1, 2, 3, 1, -1, 0};
    static const float gradient[] = {0.0450152904f, 0.122364245f,  -0.167379498f,
                                     -0.167379558f, 0.0450152792f, 0.12236423f};
    static const int32_t classes[] = {2, 0};
    const float *x = kernel_copy(logits, sizeof(logits));
    const int32_t *targets = kernel_copy(classes, sizeof(classes));
    float *dx = kernel_device_floats(6), *losses = kernel_device_floats(2);
    uint8_t *correct = kernel_device(2);
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

    kernel_done(&q, cuda_nll(&q, 2, 3, x, targets, NULL, losses, correct, dx));
    kernel_check("dx", dx, gradient, 6, gradient_error, NULL);
    assert_true(fabs((losses[0] + losses[1]) / 2 - 0.407606006f) < loss_error);
    assert_true(correct[0] && correct[1]);
}

static void a_target_that_is_no_class_gives_nan(void)
{
    static const int32_t classes[] = {3, 0};
    const int32_t *targets = kernel_copy(classes, sizeof(classes));
    float *x = kernel_random(6), *dx = kernel_device_floats(6), *losses = kernel_device_floats(2);
    uint8_t *correct = kernel_device(2);
    struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);

    kernel_done(&q, cuda_nll(&q, 2, 3, x, targets, NULL, losses, correct, dx));
    assert_true(isnan(losses[0]) && !isnan(losses[1]));
    assert_false(correct[0]);
}

static void squares_errors(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        size_t n = counts[i];
        float *y = kernel_random(n), *t = kernel_random(n), *dy = kernel_device_floats(n),
              *losses = kernel_device_floats(n);
        float *dy_expected = kernel_zeros(n), *losses_expected = kernel_zeros(n);
        struct cuda_tally *tally = kernel_device(sizeof(*tally));
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);
        double sum = 0;

        for (size_t k = 0; k < n; k++) {
            double apart = (double)y[k] - t[k];
            losses_expected[k] = (float)(apart * apart);
            dy_expected[k] = (float)(2 * apart / (double)n);
            sum += apart * apart;
        }
        kernel_done(&q, cuda_mse(&q, (int)n, y, t, losses, dy));
        kernel_check("losses", losses, losses_expected, n, 1e-5, NULL);
        kernel_check("dy", dy, dy_expected, n, 1e-6 / (double)n, NULL);
        kernel_done(&q, cuda_tally(&q, (int)n, losses, NULL, NULL, false, tally));
        assert_true(fabs(tally->loss_sum - sum) <= 1e-6 * sum);
    }
}

int main(void)
{
    static const struct kernel_case cases[] = {
        {"relus", relus},
        {"flattens", flattens},
        {"gathers", gathers},
        {"gathers_rows", gathers_rows},
        {"log_softmaxes", log_softmaxes, .approximate = true},
        {"takes_the_likelihood", takes_the_likelihood, .approximate = true},
        {"likelihood_agrees_with_pytorch", likelihood_agrees_with_pytorch, .approximate = true},
        {"a_target_that_is_no_class_gives_nan", a_target_that_is_no_class_gives_nan},
        {"squares_errors", squares_errors},
    };
    return kernel_run("kernel_loss", cases, ARRAY_SIZE(cases));
}
