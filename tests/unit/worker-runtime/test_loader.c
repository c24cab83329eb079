/*
 * The prefetching loader: what it hands out is what the sampler says, however far ahead it works.
 */

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_SAMPLES = 103, BATCH = 8, WORLD = 2 };

static atomic_int n_gathered;

/* Sample k has the inputs k, k + 0.5 and the target k. */
static int gather(void *data, const uint32_t *samples, size_t n, float *input, void *targets)
{
    uint8_t *target = targets;

    for (size_t i = 0; i < n; i++) {
        input[2 * i] = (float)samples[i];
        input[2 * i + 1] = (float)samples[i] + 0.5f;
        target[i] = (uint8_t)samples[i];
    }
    atomic_fetch_add(&n_gathered, 1);
    assert_string_equal(data, "mine");
    return 0;
}

static struct crw_sampler *make_sampler(void)
{
    const struct crw_sampler_options options = {
        .n_samples = N_SAMPLES, .rank = 1, .world_size = WORLD, .seed = 5, .shuffle = true};
    struct crw_sampler *sampler = NULL;

    assert_int_equal(crw_sampler_create(&options, &sampler), 0);
    return sampler;
}

static struct crw_loader *make_loader(struct crw_sampler *sampler, int n_ahead)
{
    static char mine[] = "mine";
    const struct crw_loader_options options = {.sampler = sampler,
                                               .batch_size = BATCH,
                                               .input_size = 2,
                                               .target_size = 1,
                                               .n_ahead = n_ahead,
                                               .gather = gather,
                                               .data = mine};
    struct crw_loader *loader = NULL;

    assert_int_equal(crw_loader_create(&options, &loader), 0);
    return loader;
}

static struct crw_batch next_batch(struct crw_loader *loader)
{
    struct crw_batch batch;

    assert_int_equal(crw_loader_next(loader, &batch), 0);
    return batch;
}

/* One epoch of the loader beside one of a second sampler. */
static void check_epoch(struct crw_loader *loader, uint64_t epoch, uint64_t consumed)
{
    struct crw_sampler *twin = make_sampler();
    uint32_t expected[BATCH];
    size_t n;

    assert_int_equal(crw_sampler_start(twin, epoch, consumed), 0);
    assert_int_equal(crw_loader_start(loader, epoch, consumed), 0);
    while ((n = crw_sampler_next(twin, expected, BATCH)) > 0) {
        struct crw_batch batch = next_batch(loader);

        assert_int_equal(batch.n, n);
        assert_int_equal(batch.consumed, crw_sampler_consumed(twin));
        assert_memory_equal(batch.samples, expected, n * sizeof(*expected));
        for (size_t i = 0; i < n; i++) {
            assert_true(batch.input[2 * i] == (float)expected[i]);
            assert_true(batch.input[2 * i + 1] == (float)expected[i] + 0.5f);
            assert_int_equal(((const uint8_t *)batch.targets)[i], expected[i]);
        }
    }
    for (int again = 0; again < 3; again++)
        assert_int_equal(next_batch(loader).n, 0);
    crw_sampler_destroy(twin);
}

static void test_same_batches_however_far_ahead(void **state)
{
    static const int n_aheads[] = {0, 1, 2, 50};

    for (size_t i = 0; i < ARRAY_SIZE(n_aheads); i++) {
        struct crw_sampler *sampler = make_sampler();
        struct crw_loader *loader = make_loader(sampler, n_aheads[i]);

        for (uint64_t epoch = 0; epoch < 20; epoch++)
            check_epoch(loader, epoch, epoch % 3 * 16);
        check_epoch(loader, 3, N_SAMPLES); /* nothing is left of it */
        crw_loader_destroy(loader);
        crw_sampler_destroy(sampler);
    }
}

/* Given up at every point, with batches made and not taken. */
static void test_an_epoch_is_given_up(void **state)
{
    for (int n_ahead = 0; n_ahead < 4; n_ahead++) {
        struct crw_sampler *sampler = make_sampler();
        struct crw_loader *loader = make_loader(sampler, n_ahead);

        for (int taken = 0; taken < 9; taken++) {
            assert_int_equal(crw_loader_start(loader, 7, 0), 0);
            for (int i = 0; i < taken; i++)
                (void)next_batch(loader);
            check_epoch(loader, 1, 0);
        }
        assert_int_equal(crw_loader_start(loader, 7, 0), 0);
        crw_loader_destroy(loader); /* in the middle */
        crw_sampler_destroy(sampler);
    }
}

/* Bounded: the thread does not run away while nobody takes anything. */
static void test_no_further_ahead_than_asked(void **state)
{
    struct crw_sampler *sampler = make_sampler();
    struct crw_loader *loader = make_loader(sampler, 2);

    atomic_store(&n_gathered, 0);
    assert_int_equal(crw_loader_start(loader, 0, 0), 0);
    for (int taken = 1; taken <= 3; taken++) {
        (void)next_batch(loader);
        assert_true(atomic_load(&n_gathered) <= taken + 2);
    }
    crw_loader_destroy(loader);
    crw_sampler_destroy(sampler);
}

/* The disk fails at the third batch: its result comes in its turn, behind the batches gathered before it. */
static int fail_at_third(void *data, const uint32_t *samples, size_t n, float *input, void *targets)
{
    return ++*(int *)data == 3 ? -EIO : 0;
}

static void test_a_failed_gather_ends_the_epoch(void **state)
{
    for (int n_ahead = 0; n_ahead < 4; n_ahead++) {
        struct crw_sampler *sampler = make_sampler();
        int n_calls = 0;
        const struct crw_loader_options options = {.sampler = sampler,
                                                   .batch_size = BATCH,
                                                   .input_size = 2,
                                                   .target_size = 1,
                                                   .n_ahead = n_ahead,
                                                   .gather = fail_at_third,
                                                   .data = &n_calls};
        struct crw_loader *loader = NULL;
        struct crw_batch batch;

        assert_int_equal(crw_loader_create(&options, &loader), 0);
        assert_int_equal(crw_loader_start(loader, 0, 0), 0);
        assert_int_equal(next_batch(loader).n, BATCH);
        assert_int_equal(next_batch(loader).n, BATCH);
        assert_int_equal(crw_loader_next(loader, &batch), -EIO);
        assert_int_equal(batch.n, 0);
        assert_int_equal(next_batch(loader).n, 0);
        assert_int_equal(crw_loader_start(loader, 0, 0), 0); /* the next epoch is a new attempt */
        assert_int_equal(next_batch(loader).n, BATCH);
        crw_loader_destroy(loader);
        crw_sampler_destroy(sampler);
    }
}

static void test_refuses_what_makes_no_sense(void **state)
{
    struct crw_loader_options options = {
        .batch_size = 0, .input_size = 1, .target_size = 1, .gather = gather};
    struct crw_loader *loader = NULL;

    assert_int_equal(crw_loader_create(&options, &loader), CRW_E_ARGUMENT);
    options.batch_size = 1;
    options.n_ahead = -1;
    assert_int_equal(crw_loader_create(&options, &loader), CRW_E_ARGUMENT);
    crw_loader_destroy(NULL);

    struct crw_sampler *sampler = make_sampler();
    loader = make_loader(sampler, 1);
    assert_int_equal(next_batch(loader).n, 0); /* nothing was started */
    assert_int_equal(crw_loader_start(loader, 0, N_SAMPLES + 1), CRW_E_ARGUMENT);
    assert_int_equal(next_batch(loader).n, 0);
    check_epoch(loader, 0, 0);
    crw_loader_destroy(loader);
    crw_sampler_destroy(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_batches_however_far_ahead),
        cmocka_unit_test(test_an_epoch_is_given_up),
        cmocka_unit_test(test_no_further_ahead_than_asked),
        cmocka_unit_test(test_a_failed_gather_ends_the_epoch),
        cmocka_unit_test(test_refuses_what_makes_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
