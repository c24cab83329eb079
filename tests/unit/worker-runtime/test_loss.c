/*
 * Losses, their gradients, which predictions are right, clipping, and what rounding to bf16 does to a layer:
 * with every table of kernels that this processor can run.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tests/unit/worker-runtime/torch_vectors.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/model/model.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N = 6, CLASSES = 5 };

static void draw(uint64_t seed, float *out, size_t count, float a, float b)
{
    struct crw_rng rng;
    crw_rng_seed(&rng, seed);
    crw_rng_uniform(&rng, out, count, a, b);
}

static struct crw_model *linear_model(int in, int out, int max_batch, const struct cpu_kernels *kernels)
{
    const struct crw_layer layers[] = {{CRW_LAYER_LINEAR, "f", in, out}};
    struct crw_model *model = NULL;
    if (crw_model_create(layers, 1, (struct crw_shape){in, 1, 1}, max_batch, NULL, &model))
        fail_msg("%s", crw_error_message());
    model->kernels = kernels;
    return model;
}

/* A network whose output is its input, having seen outputs[n][CLASSES]. */
static struct crw_model *identity_of(const float *outputs, int n, const struct cpu_kernels *kernels)
{
    struct crw_model *model = linear_model(CLASSES, CLASSES, n, kernels);
    float *weight = crw_model_parameters(model, NULL);
    for (int c = 0; c < CLASSES; c++)
        weight[c * CLASSES + c] = 1;
    assert_int_equal(crw_model_forward(model, outputs, n, true, NULL), 0);
    return model;
}

static void assert_near(const char *what, const float *a, const float *b, size_t count, double tolerance)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - b[i]) <= tolerance * fabs((double)b[i])))
            fail_msg("%s, element %zu of %zu: %.9g, PyTorch has %.9g", what, i, count, (double)a[i],
                     (double)b[i]);
}

static void test_mse(void **state)
{
    float y[N * CLASSES], targets[N * CLASSES];
    draw(80, y, N * CLASSES, -3, 3);
    draw(81, targets, N * CLASSES, -3, 3);
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++) {
        struct crw_model *model = identity_of(y, N, *kernels);
        float loss;
        assert_int_equal(crw_model_mse_loss(model, targets, &loss), 0);
        assert_near("loss", &loss, mse_loss, 1, 1e-7);
        assert_memory_equal(model->d_output, mse_gradient, sizeof(mse_gradient));
        crw_model_destroy(model);
    }
}

static void draw_classes(int64_t *targets)
{
    uint32_t order[N];
    assert_int_equal(crw_randperm(82, N, order), 0);
    for (int i = 0; i < N; i++)
        targets[i] = order[i] % CLASSES;
}

static void test_cross_entropy(void **state)
{
    float y[N * CLASSES];
    int64_t targets[N];
    draw(80, y, N * CLASSES, -3, 3);
    draw_classes(targets);
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++) {
        struct crw_model *model = identity_of(y, N, *kernels);
        float loss;
        assert_int_equal(crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, &loss), 0);
        assert_near("loss", &loss, cross_entropy_loss, 1, 2e-7);
        assert_near("gradient", model->d_output, cross_entropy_gradient, N * CLASSES, 5e-7);
        targets[2] = CLASSES;
        assert_int_equal(crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, &loss),
                         CRW_E_ARGUMENT);
        assert_non_null(strstr(crw_error_message(), "target 5 of sample 2"));
        draw_classes(targets);
        crw_model_destroy(model);
    }
}

/* Samples 2 and 4 count neither in the loss nor in the gradient; a batch of ignored samples has no mean. */
static void test_ignored_targets(void **state)
{
    static const float zeros[N * CLASSES];
    float y[N * CLASSES], loss;
    int64_t targets[N];
    draw(80, y, N * CLASSES, -3, 3);
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++) {
        struct crw_model *model = identity_of(y, N, *kernels);
        draw_classes(targets);
        assert_int_equal(crw_model_nll_loss(model, targets, 3, &loss), 0);
        assert_near("loss", &loss, nll_ignoring_loss, 1, 2e-7);
        assert_near("gradient", model->d_output, nll_ignoring_gradient, N * CLASSES, 2e-7);
        targets[2] = targets[4] = CRW_IGNORE_INDEX;
        assert_int_equal(crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, &loss), 0);
        assert_near("loss", &loss, cross_entropy_ignoring_loss, 1, 2e-7);
        assert_near("gradient", model->d_output, cross_entropy_ignoring_gradient, N * CLASSES, 5e-7);
        for (int i = 0; i < N; i++)
            targets[i] = CRW_IGNORE_INDEX;
        assert_int_equal(crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, &loss), 0);
        assert_true(isnan(loss));
        assert_memory_equal(model->d_output, zeros, sizeof(zeros));
        assert_int_equal(crw_model_backward(model), 0);
        crw_model_destroy(model);
    }
}

/* More classes than a byte can name. */
static void test_many_classes(void **state)
{
    enum { SAMPLES = 4, WIDE = 300 };
    static const int64_t targets[SAMPLES] = {299, 256, 17, 255};
    static float y[SAMPLES * WIDE];
    draw(84, y, SAMPLES * WIDE, -3, 3);
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++) {
        struct crw_model *model = linear_model(WIDE, WIDE, SAMPLES, *kernels);
        float *weight = crw_model_parameters(model, NULL), loss, norm, of_targets[SAMPLES];
        for (int c = 0; c < WIDE; c++)
            weight[c * WIDE + c] = 1;
        assert_int_equal(crw_model_forward(model, y, SAMPLES, true, NULL), 0);
        assert_int_equal(crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, &loss), 0);
        for (int s = 0; s < SAMPLES; s++)
            of_targets[s] = model->d_output[s * WIDE + (int)targets[s]];
        norm = (float)crw_gradients_norm(model->d_output, SAMPLES * WIDE);
        assert_near("loss", &loss, cross_entropy_wide_loss, 1, 3e-7);
        assert_near("norm", &norm, cross_entropy_wide_norm, 1, 1e-6);
        assert_near("targets", of_targets, cross_entropy_wide_of_targets, SAMPLES, 5e-7);
        crw_model_destroy(model);
    }
}

/* As torch.argmax answers: 1, 0, 3, 2, 0 and 4. */
static void test_correct(void **state)
{
    static const float y[N * CLASSES] = {
        0, 2,  1,   -1, 1,   5, 5, 5,         5,   5,  -4, -3, -2, -1, -1,
        9, 10, NAN, 0,  NAN, 0, 0, -INFINITY, -0., -1, 1,  2,  3,  4,  INFINITY,
    };
    static const int64_t all[N] = {1, 0, 3, 2, 0, 4}, some[N] = {1, 1, 256 + 3, 2, CRW_IGNORE_INDEX, 4};
    static const uint8_t expected[N] = {1, 0, 0, 1, 0, 1};
    uint8_t flags[N];
    struct crw_model *model = linear_model(CLASSES, CLASSES, N, cpu_kernels_best());

    model->n = N;
    memcpy(model->steps[0].y, y, sizeof(y)); /* a product would spread the NaN */
    assert_int_equal(crw_model_correct(model, all, NULL), N);
    assert_int_equal(crw_model_correct(model, some, flags), 3);
    assert_memory_equal(flags, expected, N);
    crw_model_destroy(model);
}

/* torch.nn.utils.clip_grad_norm_ to 0.5, by hand. */
static void check_clip(size_t count, const float *norm, const float *first)
{
    float *g = calloc(count, sizeof(*g));
    assert_non_null(g);
    draw(83, g, count, -1, 1);
    float measured = (float)crw_gradients_norm(g, count);
    assert_near("norm", &measured, norm, 1, 2e-7);
    crw_gradients_scale(g, count, (float)(0.5 / (crw_gradients_norm(g, count) + 1e-6)));
    assert_near("clipped", g, first, 5, 3e-7);
    g[count / 2] = INFINITY;
    assert_false(isfinite(crw_gradients_norm(g, count)));
    g[count - 1] = NAN;
    assert_false(isfinite(crw_gradients_norm(g, count)));
    free(g);
}

static void test_clipping(void **state)
{
    check_clip(22, clip_few_norm, clip_few_first);
    check_clip(5000, clip_many_norm, clip_many_first);
}

static void test_adding_and_scaling(void **state)
{
    float sums[] = {1, 2, 3}, more[] = {.5f, -2, 0};
    crw_gradients_add(sums, more, 3);
    crw_gradients_scale(sums, 3, 2);
    assert_true(sums[0] == 3 && sums[1] == 0 && sums[2] == 6);
    assert_true(crw_gradients_norm(sums, 0) == 0);
}

static void round_all(float *x, size_t count)
{
    cpu_kernels_base.round_bf16(count, x, x);
}

/* A layer in bf16 is a layer in fp32 that is given rounded numbers: output and both gradients. */
static void check_linear_in_bf16(const struct cpu_kernels *kernels)
{
    enum { IN = 37, OUT = 19, BATCH = 7 };
    struct crw_model *rounding = linear_model(IN, OUT, BATCH, kernels),
                     *plain = linear_model(IN, OUT, BATCH, kernels);
    float x[BATCH * IN], targets[BATCH * OUT];
    size_t count;
    float *parameters = crw_model_parameters(plain, &count);

    draw(90, x, BATCH * IN, -1, 1);
    draw(91, targets, BATCH * OUT, -1, 1);
    crw_model_init(rounding, 1);
    crw_model_init(plain, 1);
    round_all(parameters, (size_t)IN * OUT); /* weights, not the bias behind them */
    assert_int_equal(crw_model_set_precision(rounding, CRW_BF16), 0);
    const float *y, *plain_y;
    assert_int_equal(crw_model_forward(rounding, x, BATCH, true, &y), 0);
    round_all(x, BATCH * IN);
    assert_int_equal(crw_model_forward(plain, x, BATCH, true, &plain_y), 0);
    assert_memory_equal(y, plain_y, sizeof(targets));

    float loss, plain_loss;
    assert_int_equal(crw_model_mse_loss(rounding, targets, &loss), 0);
    assert_int_equal(crw_model_mse_loss(plain, targets, &plain_loss), 0);
    assert_true(loss == plain_loss);
    round_all(plain->d_output, BATCH * OUT);
    assert_int_equal(crw_model_backward(rounding), 0);
    assert_int_equal(crw_model_backward(plain), 0);
    assert_memory_equal(crw_model_gradients(rounding), crw_model_gradients(plain), count * sizeof(float));
    crw_model_destroy(rounding);
    crw_model_destroy(plain);
}

static void test_linear_in_bf16(void **state)
{
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++)
        check_linear_in_bf16(*kernels);
}

/* Convolutions round, too: near to fp32, and not the same; and back in fp32 nothing has changed. */
static void test_convolution_in_bf16(void **state)
{
    static const struct crw_layer layers[] = {{CRW_LAYER_CONV2D, "c1", 3, 5, 3},
                                              {CRW_LAYER_RELU},
                                              {CRW_LAYER_CONV2D, "c2", 5, 4, 2},
                                              {CRW_LAYER_FLATTEN}};
    const struct crw_shape input = {3, 6, 7};
    enum { BATCH = 3, INPUTS = BATCH * 3 * 6 * 7, OUTPUTS = BATCH * 4 * 3 * 4 };
    struct crw_model *model = NULL;
    float x[INPUTS], targets[OUTPUTS] = {0}, exact_y[OUTPUTS];
    size_t count, n_other = 0;

    draw(92, x, INPUTS, -1, 1);
    assert_int_equal(crw_model_create(layers, ARRAY_SIZE(layers), input, BATCH, NULL, &model), 0);
    (void)crw_model_parameters(model, &count);
    float *exact = calloc(count, sizeof(*exact));
    assert_non_null(exact);
    crw_model_init(model, 2);
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(crw_model_set_precision(model, turn == 1 ? CRW_BF16 : CRW_F32), 0);
        const float *y, *g = crw_model_gradients(model);
        float loss;
        assert_int_equal(crw_model_forward(model, x, BATCH, true, &y), 0);
        assert_int_equal(crw_model_mse_loss(model, targets, &loss), 0);
        assert_int_equal(crw_model_backward(model), 0);
        if (turn == 0) {
            memcpy(exact_y, y, sizeof(exact_y));
            memcpy(exact, g, count * sizeof(*exact));
        } else if (turn == 2) {
            assert_memory_equal(y, exact_y, sizeof(exact_y));
            assert_memory_equal(g, exact, count * sizeof(*exact));
        } else {
            for (size_t i = 0; i < count; i++) {
                assert_true(fabsf(g[i] - exact[i]) < 0.02f);
                n_other += g[i] != exact[i];
            }
            assert_true(n_other > count / 2);
        }
    }
    assert_int_equal(crw_model_set_precision(model, CRW_F16), CRW_E_ARGUMENT);
    free(exact);
    crw_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mse),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_ignored_targets),
        cmocka_unit_test(test_many_classes),
        cmocka_unit_test(test_correct),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_adding_and_scaling),
        cmocka_unit_test(test_linear_in_bf16),
        cmocka_unit_test(test_convolution_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
