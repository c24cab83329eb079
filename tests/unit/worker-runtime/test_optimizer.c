/*
 * Optimizers against PyTorch's: SGD and AdamW to the last bit, Adadelta to 2 units in the last place (its
 * square roots come from a vector library in PyTorch).
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tests/unit/worker-runtime/torch_vectors.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

static void draw(uint64_t seed, float *out, size_t count, float a, float b)
{
    struct crw_rng rng;
    crw_rng_seed(&rng, seed);
    crw_rng_uniform(&rng, out, count, a, b);
}

static struct crw_optimizer *optimizer_for(struct crw_optimizer_options options, size_t count)
{
    struct crw_optimizer *o = NULL;
    assert_int_equal(crw_optimizer_create(&options, count, &o), 0);
    return o;
}

/* Steps with the gradients the vectors were made with. p: count floats. */
static struct crw_optimizer *run(struct crw_optimizer_options options, float *p, size_t count, int n_steps)
{
    struct crw_optimizer *o = optimizer_for(options, count);
    float *g = calloc(count, sizeof(*g));
    assert_non_null(g);
    draw(10, p, count, -1, 1);
    for (int step = 0; step < n_steps; step++) {
        draw(11 + (uint64_t)step, g, count, -1, 1);
        crw_optimizer_step(o, p, g);
    }
    assert_int_equal(crw_optimizer_steps(o), n_steps);
    free(g);
    return o;
}

static void test_sgd_and_adamw_to_the_last_bit(void **state)
{
    float *p = calloc(OPTIMIZER_COUNT, sizeof(*p));
    assert_non_null(p);
    for (size_t i = 0; i < ARRAY_SIZE(exact_optimizers); i++) {
        crw_optimizer_destroy(run(exact_optimizers[i].options, p, OPTIMIZER_COUNT, 5));
        uint32_t crc = crw_crc32c(0, p, OPTIMIZER_COUNT * sizeof(*p));
        if (crc != exact_optimizers[i].crc)
            fail_msg("vector %zu: parameters have CRC-32C %08x, PyTorch's %08x", i, crc,
                     exact_optimizers[i].crc);
    }
    free(p);
}

/* Distance in representable floats. */
static int64_t ulps(float a, float b)
{
    int32_t ia, ib;
    memcpy(&ia, &a, sizeof(ia));
    memcpy(&ib, &b, sizeof(ib));
    int64_t la = ia < 0 ? (int64_t)INT32_MIN - ia : ia, lb = ib < 0 ? (int64_t)INT32_MIN - ib : ib;
    return llabs(la - lb);
}

static void assert_within_ulps(const float *a, const float *expected, size_t count, int64_t limit)
{
    for (size_t i = 0; i < count; i++)
        if (ulps(a[i], expected[i]) > limit)
            fail_msg("element %zu: %.9g, expected %.9g", i, (double)a[i], (double)expected[i]);
}

static void check_adadelta(struct crw_optimizer_options options, const float *p, const float *square_avg,
                           const float *acc_delta, size_t count)
{
    float mine[ARRAY_SIZE(adadelta_plain)];
    const char *name;
    struct crw_optimizer *o = run(options, mine, count, 8);
    assert_within_ulps(mine, p, count, 0);
    assert_int_equal(crw_optimizer_n_states(o), 2);
    assert_within_ulps(crw_optimizer_state(o, 0, &name), square_avg, count, 0);
    assert_string_equal(name, "square_avg");
    assert_within_ulps(crw_optimizer_state(o, 1, &name), acc_delta, count, 0);
    assert_string_equal(name, "acc_delta");
    crw_optimizer_destroy(o);
}

static void test_adadelta(void **state)
{
    struct crw_optimizer_options options = crw_optimizer_defaults(CRW_ADADELTA);
    options.lr = 0.01;
    check_adadelta(options, adadelta_plain, adadelta_plain_square_avg, adadelta_plain_acc_delta,
                   ARRAY_SIZE(adadelta_plain));
    options.lr = 1.0;
    options.weight_decay = 0.1;
    check_adadelta(options, adadelta_decay, adadelta_decay_square_avg, adadelta_decay_acc_delta,
                   ARRAY_SIZE(adadelta_decay));
}

static void test_three_elements_three_steps(void **state)
{
    static const float gradients[3][3] = {{.1f, -.2f, .3f}, {.05f, .4f, -.6f}, {-.3f, .2f, .1f}};
    const struct {
        struct crw_optimizer_options options;
        float expected[3];
        int64_t ulps;
    } vectors[] = {
        {{.kind = CRW_SGD, .lr = .1}, {1.01499999f, -2.03999996f, 0.520000041f}, 0},
        {{.kind = CRW_SGD, .lr = .1, .momentum = .9, .weight_decay = 5e-4},
         {0.993121684f, -2.04124069f, 0.522562444f},
         0},
        {{.kind = CRW_SGD, .lr = .1, .momentum = .9, .nesterov = true},
         {1.00906003f, -2.07762003f, 0.540430009f},
         0},
        {{.kind = CRW_ADAMW, .lr = 1e-2, .weight_decay = 1e-2, .beta1 = .9, .beta2 = .999, .eps = 1e-8},
         {0.98385334f, -1.99825513f, 0.495369285f},
         0},
        {{.kind = CRW_ADAMW, .lr = 1e-4, .weight_decay = 1e-2, .beta1 = .9, .beta2 = .999, .eps = 1e-8},
         {0.999838471f, -1.99998248f, 0.499953657f},
         0},
        {{.kind = CRW_ADADELTA, .lr = .01, .rho = .9, .eps = 1e-6},
         {0.999993265f, -2.00003433f, 0.499999434f},
         2},
        {{.kind = CRW_ADADELTA, .lr = 1, .rho = .9, .eps = 1e-6, .weight_decay = .1},
         {0.997468829f, -1.99892676f, 0.499280363f},
         2},
    };
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        float p[3] = {1, -2, .5f};
        struct crw_optimizer *o = optimizer_for(vectors[i].options, 3);
        for (int step = 0; step < 3; step++)
            crw_optimizer_step(o, p, gradients[step]);
        assert_within_ulps(p, vectors[i].expected, 3, vectors[i].ulps);
        crw_optimizer_destroy(o);
    }
}

/* State and step count carried into a new optimizer go on with the same bits. */
static void test_resume(void **state)
{
    const struct crw_optimizer_options all[] = {
        {.kind = CRW_SGD, .lr = .1, .momentum = .9, .dampening = .5},
        crw_optimizer_defaults(CRW_ADAMW),
        crw_optimizer_defaults(CRW_ADADELTA),
    };
    enum { COUNT = 37 };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        float p[COUNT], copy[COUNT], g[COUNT];
        struct crw_optimizer *through = run(all[i], p, COUNT, 3), *resumed = optimizer_for(all[i], COUNT);
        memcpy(copy, p, sizeof(p));
        for (size_t k = 0; k < crw_optimizer_n_states(through); k++)
            memcpy(crw_optimizer_state(resumed, k, NULL), crw_optimizer_state(through, k, NULL), sizeof(p));
        crw_optimizer_set_steps(resumed, crw_optimizer_steps(through));
        for (uint64_t step = 0; step < 3; step++) {
            draw(90 + step, g, COUNT, -1, 1);
            crw_optimizer_step(through, p, g);
            crw_optimizer_step(resumed, copy, g);
        }
        assert_memory_equal(p, copy, sizeof(p));
        crw_optimizer_destroy(through);
        crw_optimizer_destroy(resumed);
    }
}

static void test_set_lr(void **state)
{
    float p = 1, g = 1;
    struct crw_optimizer *o = optimizer_for((struct crw_optimizer_options){.kind = CRW_SGD, .lr = 0.5}, 1);
    crw_optimizer_step(o, &p, &g);
    assert_true(p == 0.5f);
    crw_optimizer_set_lr(o, 0.25);
    crw_optimizer_step(o, &p, &g);
    assert_true(p == 0.25f);
    assert_int_equal(crw_optimizer_n_states(o), 0);
    crw_optimizer_destroy(o);
}

static void test_refuses_what_pytorch_refuses(void **state)
{
    const struct crw_optimizer_options bad[] = {
        {.kind = CRW_OPTIMIZER_KIND_COUNT, .lr = 1},
        {.kind = CRW_SGD, .lr = -1},
        {.kind = CRW_SGD, .lr = NAN},
        {.kind = CRW_SGD, .lr = 1, .weight_decay = -1},
        {.kind = CRW_SGD, .lr = 1, .momentum = -.1},
        {.kind = CRW_SGD, .lr = 1, .nesterov = true},
        {.kind = CRW_SGD, .lr = 1, .momentum = .9, .dampening = .1, .nesterov = true},
        {.kind = CRW_ADAMW, .lr = 1, .beta1 = 1, .beta2 = .9},
        {.kind = CRW_ADAMW, .lr = 1, .beta1 = .9, .beta2 = -.1},
        {.kind = CRW_ADAMW, .lr = 1, .beta1 = .9, .beta2 = .9, .eps = -1},
        {.kind = CRW_ADADELTA, .lr = 1, .rho = 1.1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct crw_optimizer *o = NULL;
        assert_int_equal(crw_optimizer_create(&bad[i], 4, &o), CRW_E_ARGUMENT);
        assert_null(o);
        assert_true(crw_error_message()[0] != '\0');
    }
    crw_optimizer_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd_and_adamw_to_the_last_bit),
        cmocka_unit_test(test_adadelta),
        cmocka_unit_test(test_three_elements_three_steps),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_set_lr),
        cmocka_unit_test(test_refuses_what_pytorch_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
