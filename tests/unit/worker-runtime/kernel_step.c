/*
 * The change of the state: everything or nothing, and the optimizers equal their twins bit for bit.
 */

#include "tests/unit/worker-runtime/kernel_memory.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_STEPS = 5, N_SAMPLES = 64 };

static const size_t counts[] = {1, 3, 4, 31, 33, 1003, 60002};

static const struct {
    struct crw_optimizer_options host;
    size_t n_states;
} recipes[] = {
    {{.kind = CRW_SGD, .lr = 0.1}, 0},
    {{.kind = CRW_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .dampening = 0.1}, 1},
    {{.kind = CRW_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = true}, 1},
    {{.kind = CRW_ADAMW, .lr = 1e-2, .weight_decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}, 2},
    {{.kind = CRW_ADAMW, .lr = 1e-4, .weight_decay = 0, .beta1 = 0.3, .beta2 = 0.99, .eps = 1e-6}, 2},
    {{.kind = CRW_ADADELTA, .lr = 0.01, .rho = 0.9, .eps = 1e-6}, 2},
    {{.kind = CRW_ADADELTA, .lr = 1, .rho = 0.95, .eps = 1e-6, .weight_decay = 0.1}, 2},
};

/* What a trainer has on the device. */
struct trainer {
    struct cuda_queue q;
    struct cuda_optimizer_options *options;
    struct cuda_commit *commit;
    struct cuda_tally *tally; /* of one batch of N_SAMPLES */
    enum crw_optimizer_kind kind;
    size_t count;
    float *p, *state[2];
};

static struct trainer new_trainer(size_t recipe, size_t count, const float *p)
{
    struct trainer t = {
        .q = kernel_queue(CRW_PRODUCTS_F32),
        .options = kernel_device(sizeof(*t.options)),
        .commit = kernel_device(sizeof(*t.commit)),
        .tally = kernel_device(sizeof(*t.tally)),
        .kind = recipes[recipe].host.kind,
        .count = count,
        .p = kernel_device_floats(count),
    };
    *t.options = (struct cuda_optimizer_options){.of = recipes[recipe].host};
    *t.commit = (struct cuda_commit){0};
    *t.tally = (struct cuda_tally){.n_losses = 2 * N_SAMPLES, .n_batches = 1};
    memcpy(t.p, p, count * sizeof(*p));
    for (size_t i = 0; i < recipes[recipe].n_states; i++)
        t.state[i] = kernel_zeros(count);
    return t;
}

static void step(const struct trainer *t, const float *g, const struct cuda_gradient_check *check)
{
    kernel_done(&t->q, cuda_commit_begin(&t->q, check, t->options, t->tally, 2, 1, NULL, t->commit));
    kernel_done(&t->q,
                cuda_optimizer_step(&t->q, t->kind, t->commit, t->count, t->p, g, t->state[0], t->state[1]));
}

static void optimizers_equal_their_twins(void)
{
    for (size_t r = 0; r < ARRAY_SIZE(recipes); r++)
        for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
            size_t count = counts[i];
            float *p = kernel_random(count);
            struct trainer t = new_trainer(r, count, p);
            struct crw_optimizer *twin;

            assert_int_equal(crw_optimizer_create(&recipes[r].host, count, &twin), 0);
            assert_int_equal(crw_optimizer_n_states(twin), recipes[r].n_states);
            for (int s = 0; s < N_STEPS; s++) {
                float *g = kernel_random(count);
                step(&t, g, NULL);
                crw_optimizer_step(twin, p, g);
            }
            kernel_check_bytes("parameters", t.p, p, count * sizeof(float));
            for (size_t k = 0; k < recipes[r].n_states; k++)
                kernel_check_bytes("state", t.state[k], crw_optimizer_state(twin, k, NULL),
                                   count * sizeof(float));
            assert_int_equal(t.commit->step, N_STEPS);
            assert_int_equal(t.commit->cursor, N_STEPS * N_SAMPLES);
            crw_optimizer_destroy(twin);
        }
}

/* A learning rate that changes on the device is used by the next step. */
static void follows_the_learning_rate(void)
{
    float *p = kernel_random(33), *g = kernel_random(33);
    struct trainer t = new_trainer(0, 33, p);

    t.options->of.lr = 0;
    step(&t, g, NULL);
    kernel_check_bytes("standing still", t.p, p, 33 * sizeof(float));
    t.options->of.lr = 1;
    step(&t, g, NULL);
    for (int i = 0; i < 33; i++)
        p[i] -= g[i];
    kernel_check("moved", t.p, p, 33, 0, NULL);
}

static void checks_gradients(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        size_t n = counts[i];
        float *g = kernel_random(n);
        struct cuda_gradient_check *check = kernel_device(sizeof(*check));
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);
        double sum = 0;

        for (size_t k = 0; k < n; k++)
            sum += (double)g[k] * g[k];
        kernel_done(&q, cuda_gradient_check(&q, n, g, check));
        assert_true(check->finite);
        assert_true(fabs(check->sum_of_squares - sum) <= 1e-12 * sum);

        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (size_t b = 0; b < ARRAY_SIZE(bad); b++) {
            g[n - 1] = bad[b];
            kernel_done(&q, cuda_gradient_check(&q, n, g, check));
            assert_false(check->finite);
        }
        g[n - 1] = 3e38f; /* its square is no float */
        kernel_done(&q, cuda_gradient_check(&q, n, g, check));
        assert_true(check->finite);
    }
}

static void gradients_that_are_not_finite_change_nothing(void)
{
    for (size_t r = 0; r < ARRAY_SIZE(recipes); r++) {
        float *p = kernel_random(1003), *g = kernel_random(1003);
        struct trainer t = new_trainer(r, 1003, p);
        float *p_before = kernel_zeros(1003), *state_before = kernel_zeros(1003);
        struct cuda_gradient_check *check = kernel_device(sizeof(*check));

        kernel_done(&t.q, cuda_gradient_check(&t.q, 1003, g, check));
        step(&t, g, check);
        memcpy(p_before, t.p, 1003 * sizeof(float));
        if (t.state[0])
            memcpy(state_before, t.state[0], 1003 * sizeof(float));
        g[7] = NAN;
        kernel_done(&t.q, cuda_gradient_check(&t.q, 1003, g, check));
        step(&t, g, check);
        kernel_check_bytes("parameters", t.p, p_before, 1003 * sizeof(float));
        if (t.state[0])
            kernel_check_bytes("state", t.state[0], state_before, 1003 * sizeof(float));
        assert_int_equal(t.commit->go, 0);
        assert_int_equal(t.commit->step, 1);
        assert_int_equal(t.commit->cursor, N_SAMPLES);
    }
}

/* Sums over two gradients, their mean no longer than clip_norm: as train does it on the CPU. */
static void scales_and_clips(void)
{
    static const double clips[] = {0, 1e-3, 1e6};
    for (size_t i = 0; i < ARRAY_SIZE(clips); i++) {
        float *p = kernel_random(1003), *g = kernel_random(1003);
        struct trainer t = new_trainer(0, 1003, p);
        struct cuda_gradient_check *check = kernel_device(sizeof(*check));
        double norm = crw_gradients_norm(g, 1003) / 2, scale = 0.5;
        struct crw_optimizer *twin;

        t.options->clip_norm = clips[i];
        kernel_done(&t.q, cuda_gradient_check(&t.q, 1003, g, check));
        /* Two batches on one rank, or one on each of two. */
        t.tally->n_batches = 1 + i % 2;
        kernel_done(&t.q,
                    cuda_commit_begin(&t.q, check, t.options, t.tally, 2, (int)(2 - i % 2), NULL, t.commit));
        kernel_done(&t.q, cuda_optimizer_step(&t.q, t.kind, t.commit, t.count, t.p, g, NULL, NULL));
        assert_true(fabs(t.commit->norm - norm) <= 1e-6 * norm);
        if (clips[i] > 0 && clips[i] < norm)
            scale *= clips[i] / (norm + 1e-6);
        assert_true(fabs(t.commit->scale - scale) <= 1e-6 * scale);
        crw_gradients_scale(g, 1003, t.commit->scale);
        assert_int_equal(crw_optimizer_create(&recipes[0].host, 1003, &twin), 0);
        crw_optimizer_step(twin, p, g);
        kernel_check_bytes("parameters", t.p, p, 1003 * sizeof(float));
        crw_optimizer_destroy(twin);
    }
}

static void adds_and_copies(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        const size_t n = counts[i];
        struct cuda_queue q = kernel_queue(CRW_PRODUCTS_F32);
        struct cuda_commit *commit = kernel_device(sizeof(*commit));
        float *sums = kernel_random(n), *g = kernel_random(n), *expected = kernel_zeros(n);
        memcpy(expected, sums, n * sizeof(float));
        crw_gradients_add(expected, g, n);
        kernel_done(&q, cuda_add(&q, n, sums, g));
        kernel_check_bytes("sums", sums, expected, n * sizeof(float));

        *commit = (struct cuda_commit){.go = 0};
        kernel_done(&q, cuda_copy_committed(&q, commit, n * sizeof(float), g, sums));
        kernel_check_bytes("not committed", sums, expected, n * sizeof(float));
        commit->go = 1;
        kernel_done(&q, cuda_copy_committed(&q, commit, n * sizeof(float), g, sums));
        kernel_check_bytes("committed", sums, g, n * sizeof(float));
    }
}

static void refuses_memory_that_is_not_aligned(void)
{
    float *p = kernel_random(33), *g = kernel_random(33);
    struct trainer t = new_trainer(0, 32, p);
    assert_int_equal(cuda_optimizer_step(&t.q, t.kind, t.commit, 32, t.p, g + 1, NULL, NULL),
                     cudaErrorInvalidValue);
}

int main(void)
{
    static const struct kernel_case cases[] = {
        {"optimizers_equal_their_twins", optimizers_equal_their_twins},
        {"follows_the_learning_rate", follows_the_learning_rate},
        {"checks_gradients", checks_gradients},
        {"gradients_that_are_not_finite_change_nothing", gradients_that_are_not_finite_change_nothing},
        {"scales_and_clips", scales_and_clips},
        {"adds_and_copies", adds_and_copies},
        {"refuses_memory_that_is_not_aligned", refuses_memory_that_is_not_aligned},
    };
    return kernel_run("kernel_step", cases, ARRAY_SIZE(cases));
}
