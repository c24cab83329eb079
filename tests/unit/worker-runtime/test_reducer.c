/*
 * Gradients averaged in buckets: the same bits as one call at the end, whatever the buckets and however each
 * rank reports what is ready.
 */

#include "worker-runtime/crw.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

enum { COUNT = 10007 };

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, crw_rank(group), #condition,    \
                    crw_error_message());                                                                    \
            _exit(99);                                                                                       \
        }                                                                                                    \
    } while (0)

static void run(int (*function)(struct crw_group *group, void *data), int n)
{
    if (crw_launch(function, NULL, n) != 0)
        fail_msg("%d ranks: %s", n, crw_error_message());
}

/* Sums of these depend on the order of the ranks. */
static void fill(float *gradients, int rank, int step)
{
    for (int i = 0; i < COUNT; i++)
        gradients[i] = (float)((i + step) % 97 - 48) * (rank % 2 ? 1e-3f : 1e4f) + (float)rank;
}

/* Layers of different sizes on different ranks: only the cuts of the buckets have to agree. */
static void backward(struct crw_reducer *r, int rank, int step)
{
    size_t layer = (size_t)(1 + (rank * 977 + step * 1301) % 4000);

    for (size_t end = COUNT; end > 0 && step % 5 != 4; end = end > layer ? end - layer : 0)
        crw_reducer_ready(r, end > layer ? end - layer : 0);
}

static int reduce_in_buckets(struct crw_group *group, void *data)
{
    static const size_t sizes[] = {1, 4, 100, 4000, 4 * COUNT - 1, 4 * COUNT, 1 << 20};
    static float expected[COUNT];
    float *gradients;

    CHECK(crw_shared_alloc(group, sizeof(expected), (void **)&gradients) == 0);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct crw_reducer *r;

        CHECK(crw_reducer_create(group, gradients, COUNT, sizes[s], &r) == 0);
        CHECK(gradients[0] == 0 && gradients[COUNT - 1] == 0);
        CHECK(crw_reducer_n_buckets(r) <= 64);
        CHECK((crw_reducer_n_buckets(r) == 1) == (sizes[s] >= 4 * COUNT - 64));
        for (int step = 0; step < 10; step++) {
            fill(expected, crw_rank(group), step);
            CHECK(crw_all_reduce(group, expected, COUNT, CRW_F32, CRW_AVG) == 0);
            fill(gradients, crw_rank(group), step);
            backward(r, crw_rank(group), step);
            CHECK(crw_reducer_finish(r) == 0);
            CHECK(memcmp(gradients, expected, sizeof(expected)) == 0);
        }
        crw_reducer_destroy(r);
    }
    return 0;
}

static void buckets_change_no_bit(void **state)
{
    for (int n = 1; n <= 5; n++)
        run(reduce_in_buckets, n);
}

/* Whatever it chooses, all have chosen the same. */
static int choose(struct crw_group *group, void *data)
{
    struct crw_reducer *r;
    float *gradients;
    int64_t n[2];

    CHECK(crw_shared_alloc(group, COUNT * sizeof(*gradients), (void **)&gradients) == 0);
    CHECK(crw_reducer_create(group, gradients, COUNT, 0, &r) == 0);
    n[0] = (int64_t)crw_reducer_n_buckets(r);
    n[1] = -n[0];
    CHECK(crw_all_reduce(group, n, 2, CRW_I64, CRW_MAX) == 0);
    CHECK(n[0] == -n[1] && n[0] >= 1);
    if (2 * crw_world_size(group) > sysconf(_SC_NPROCESSORS_ONLN))
        CHECK(n[0] == 1); /* no core for a thread */
    for (int i = 0; i < COUNT; i++)
        gradients[i] = 2;
    crw_reducer_ready(r, 0);
    CHECK(crw_reducer_finish(r) == 0);
    CHECK(gradients[0] == 2 && gradients[COUNT - 1] == 2);
    crw_reducer_destroy(r);
    return 0;
}

static void a_size_can_be_chosen(void **state)
{
    for (int n = 1; n <= 4; n++)
        run(choose, n);
}

static int skip_steps(struct crw_group *group, void *data)
{
    static float gradients[COUNT];
    struct crw_reducer *r;

    CHECK(crw_reducer_create(group, gradients, COUNT, 4000, &r) == 0);
    for (int i = 0; i < COUNT; i++)
        gradients[i] = (float)crw_rank(group);
    crw_reducer_set_sync(r, false);
    crw_reducer_ready(r, 5);
    CHECK(crw_reducer_finish(r) == 0);
    CHECK(gradients[COUNT - 1] == (float)crw_rank(group));
    crw_reducer_set_sync(r, true);
    crw_reducer_ready(r, 5000);
    CHECK(crw_reducer_finish(r) == 0);
    CHECK(gradients[0] == 0.5f && gradients[COUNT - 1] == 0.5f);
    crw_reducer_ready(r, 5000);
    crw_reducer_destroy(r); /* with calls under way */
    CHECK(crw_barrier(group) == 0);
    crw_reducer_destroy(NULL);
    CHECK(crw_reducer_create(group, gradients, 0, 4000, &r) == CRW_E_ARGUMENT);
    return 0;
}

static void steps_can_go_without(void **state)
{
    run(skip_steps, 2);
}

static int lose_a_peer(struct crw_group *group, void *data)
{
    static float gradients[COUNT];
    struct crw_reducer *r;

    CHECK(crw_reducer_create(group, gradients, COUNT, 4000, &r) == 0);
    crw_reducer_ready(r, 5000);
    if (crw_rank(group) == 1)
        raise(SIGKILL);
    CHECK(crw_reducer_finish(r) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank 1 ended"));
    CHECK(crw_reducer_finish(r) == CRW_E_PEER);
    crw_reducer_destroy(r);
    return CRW_E_PEER;
}

static void a_dead_peer_ends_the_step(void **state)
{
    assert_int_equal(crw_launch(lose_a_peer, NULL, 2), CRW_E_PEER);
    assert_string_equal(crw_error_message(), "worker 1 of 2 was killed by signal 9");
}

/* ---- with a model ---- */

static const struct crw_layer layers[] = {
    {CRW_LAYER_CONV2D, "c1", 1, 3, 3},
    {CRW_LAYER_BATCHNORM2D, "n1", 3},
    {CRW_LAYER_RELU},
    {CRW_LAYER_CONV2D, "c2", 3, 5, 2},
    {CRW_LAYER_FLATTEN},
    {CRW_LAYER_LINEAR, "f1", 45, 20},
    {CRW_LAYER_RELU},
    {CRW_LAYER_LINEAR, "f2", 20, 4},
};
enum { N_LAYERS = sizeof(layers) / sizeof(layers[0]), MODEL_BATCH = 3, INPUTS = MODEL_BATCH * 36 };

struct hooked {
    struct crw_reducer *reducer;
    int n_calls;
};

static int gradients_ready(void *data, size_t begin)
{
    struct hooked *h = data;

    h->n_calls++;
    crw_reducer_ready(h->reducer, begin);
    return 0;
}

/* Rank r's own inputs. */
static void go_back(struct crw_group *group, struct crw_model *model)
{
    static const int64_t targets[MODEL_BATCH] = {3, 0, 2};
    struct crw_rng rng;
    float x[INPUTS], loss;

    crw_rng_seed(&rng, (uint64_t)crw_rank(group));
    crw_rng_uniform(&rng, x, INPUTS, -1, 1);
    CHECK(crw_model_forward(model, x, MODEL_BATCH, true, NULL) == 0);
    CHECK(crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, &loss) == 0);
    CHECK(crw_model_backward(model) == 0);
}

static int reduce_a_model(struct crw_group *group, void *data)
{
    size_t count = crw_model_count_parameters(layers, N_LAYERS);
    float *gradients, *expected = calloc(count, sizeof(*expected));
    struct crw_model *model;
    struct hooked h = {0};

    CHECK(expected);
    CHECK(crw_shared_alloc(group, count * sizeof(float), (void **)&gradients) == 0);
    CHECK(crw_model_create(layers, N_LAYERS, (struct crw_shape){1, 6, 6}, MODEL_BATCH, gradients, &model) ==
          0);
    CHECK(crw_reducer_create(group, gradients, count, 256, &h.reducer) == 0);
    CHECK(crw_reducer_n_buckets(h.reducer) > 5);
    crw_model_init(model, 1);
    go_back(group, model);
    memcpy(expected, gradients, count * sizeof(float));
    CHECK(crw_all_reduce(group, expected, count, CRW_F32, CRW_AVG) == 0);
    crw_model_set_gradient_hook(model, gradients_ready, &h);
    for (int step = 0; step < 10; step++) {
        go_back(group, model);
        CHECK(crw_reducer_finish(h.reducer) == 0);
        CHECK(memcmp(gradients, expected, count * sizeof(float)) == 0);
    }
    CHECK(h.n_calls == 10 * 4);
    crw_reducer_destroy(h.reducer);
    crw_model_destroy(model);
    free(expected);
    return 0;
}

static void backward_of_a_model_feeds_it(void **state)
{
    for (int n = 1; n <= 3; n++)
        run(reduce_a_model, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_change_no_bit),        cmocka_unit_test(a_size_can_be_chosen),
        cmocka_unit_test(steps_can_go_without),         cmocka_unit_test(a_dead_peer_ends_the_step),
        cmocka_unit_test(backward_of_a_model_feeds_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
