/* Who takes which samples: PyTorch's DistributedSampler, and what ours adds, going on at another world size.
 */

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

static struct crw_sampler *sampler_for(struct crw_sampler_options options)
{
    struct crw_sampler *s = NULL;
    assert_int_equal(crw_sampler_create(&options, &s), 0);
    return s;
}

static const struct {
    const char *name;
    uint32_t n;
    int world_size;
    bool shuffle, drop_last;
    size_t per_rank;
    uint32_t expected[8][3]; /* [rank], PyTorch's output */
} dealt[] = {
    {"in order", 10, 4, false, false, 3, {{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}}},
    {"shuffled", 10, 4, true, false, 3, {{4, 3, 6}, {1, 9, 2}, {7, 0, 4}, {5, 8, 1}}},
    {"last dropped", 10, 4, true, true, 2, {{4, 3}, {1, 9}, {7, 0}, {5, 8}}},
    {"more ranks than samples", 3, 8, false, false, 1, {{0}, {1}, {2}, {0}, {1}, {2}, {0}, {1}}},
    {"more ranks than samples, dropped", 3, 8, false, true, 0, {{0}}},
    {"nothing", 0, 2, true, false, 0, {{0}}},
};

static void test_dealt_like_pytorch(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(dealt); i++)
        for (int rank = 0; rank < dealt[i].world_size; rank++) {
            struct crw_sampler *s = sampler_for((struct crw_sampler_options){
                .n_samples = dealt[i].n,
                .rank = rank,
                .world_size = dealt[i].world_size,
                .shuffle = dealt[i].shuffle,
                .drop_last = dealt[i].drop_last,
            });
            uint32_t indices[16];
            assert_int_equal(crw_sampler_start(s, 0, 0), 0);
            assert_int_equal(crw_sampler_batches_left(s, 2), (dealt[i].per_rank + 1) / 2);
            size_t n = crw_sampler_next(s, indices, ARRAY_SIZE(indices));
            if (n != dealt[i].per_rank || memcmp(indices, dealt[i].expected[rank], n * sizeof(*indices)))
                fail_msg("%s: rank %d got %zu samples, first %u", dealt[i].name, rank, n, indices[0]);
            assert_int_equal(crw_sampler_next(s, indices, ARRAY_SIZE(indices)), 0);
            crw_sampler_destroy(s);
        }
}

static void test_epoch_changes_the_order(void **state)
{
    static const uint32_t seed_1[] = {5, 6, 1, 2, 0, 8, 9, 3, 7, 4};
    uint32_t indices[10];
    struct crw_sampler *s =
        sampler_for((struct crw_sampler_options){.n_samples = 10, .world_size = 1, .shuffle = true});
    assert_int_equal(crw_sampler_start(s, 1, 0), 0); /* epoch seed = seed + epoch */
    assert_int_equal(crw_sampler_next(s, indices, 4), 4);
    assert_int_equal(crw_sampler_next(s, indices + 4, 100), 6);
    assert_memory_equal(indices, seed_1, sizeof(indices));
    crw_sampler_destroy(s);
}

/* All ranks of one world size take up to n_batches batches each; marks what they saw. */
static uint64_t run_world(uint32_t n, int world_size, uint64_t consumed, size_t batch_size, size_t n_batches,
                          bool drop_last, unsigned *seen)
{
    uint64_t position = 0;
    uint32_t *indices = calloc(batch_size, sizeof(*indices));
    for (int rank = 0; rank < world_size; rank++) {
        struct crw_sampler *s = sampler_for((struct crw_sampler_options){.n_samples = n,
                                                                         .rank = rank,
                                                                         .world_size = world_size,
                                                                         .seed = 9,
                                                                         .shuffle = true,
                                                                         .drop_last = drop_last});
        assert_int_equal(crw_sampler_start(s, 3, consumed), 0);
        for (size_t b = 0; b < n_batches; b++) {
            size_t count = crw_sampler_next(s, indices, batch_size);
            for (size_t i = 0; i < count; i++)
                seen[indices[i]]++;
        }
        if (rank > 0)
            assert_int_equal(crw_sampler_consumed(s), position);
        position = crw_sampler_consumed(s);
        crw_sampler_destroy(s);
    }
    free(indices);
    return position;
}

static void test_world_size_changes_in_the_epoch(void **state)
{
    enum { N = 1003 };
    static const int later[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < ARRAY_SIZE(later); i++) {
        unsigned seen[N] = {0};
        uint64_t at = run_world(N, 4, 0, 16, 7, false, seen);
        assert_int_equal(at, 4 * 16 * 7);
        at = run_world(N, 3, at, 10, 2, false, seen);
        assert_int_equal(at, 4 * 16 * 7 + 3 * 10 * 2);
        uint64_t left = N - at;
        at = run_world(N, later[i], at, 32, 1000, false, seen);
        assert_int_equal(at, N);

        unsigned total = 0,
                 padding = (unsigned)((uint64_t)later[i] - left % (uint64_t)later[i]) % (unsigned)later[i];
        for (int k = 0; k < N; k++) {
            assert_true(seen[k] >= 1);
            total += seen[k];
        }
        assert_int_equal(total, N + padding);
    }
}

static void test_drop_last_never_repeats(void **state)
{
    enum { N = 1003 };
    unsigned seen[N] = {0};
    uint64_t at = run_world(N, 4, 0, 16, 7, true, seen);
    at = run_world(N, 3, at, 16, 1000, true, seen);
    uint64_t total = 0;
    for (int k = 0; k < N; k++) {
        assert_true(seen[k] <= 1);
        total += seen[k];
    }
    assert_int_equal(total, at);
    assert_true(N - at < 3);
}

static void test_resume_on_a_boundary_changes_nothing(void **state)
{
    struct crw_sampler_options options = {
        .n_samples = 101, .rank = 1, .world_size = 3, .seed = 4, .shuffle = true};
    struct crw_sampler *through = sampler_for(options), *resumed = sampler_for(options);
    uint32_t a[8], b[8];
    assert_int_equal(crw_sampler_start(through, 2, 0), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(crw_sampler_next(through, a, 8), 8);
    assert_int_equal(crw_sampler_start(resumed, 2, crw_sampler_consumed(through)), 0);
    size_t n;
    do {
        n = crw_sampler_next(through, a, 8);
        assert_int_equal(crw_sampler_next(resumed, b, 8), n);
        assert_memory_equal(a, b, n * sizeof(*a));
        assert_int_equal(crw_sampler_consumed(through), crw_sampler_consumed(resumed));
    } while (n);
    crw_sampler_destroy(through);
    crw_sampler_destroy(resumed);
}

static void test_epoch_that_was_finished(void **state)
{
    uint32_t index;
    struct crw_sampler *s = sampler_for((struct crw_sampler_options){.n_samples = 5, .world_size = 2});
    assert_int_equal(crw_sampler_start(s, 0, 5), 0);
    assert_int_equal(crw_sampler_batches_left(s, 1), 0);
    assert_int_equal(crw_sampler_next(s, &index, 1), 0);
    assert_int_equal(crw_sampler_consumed(s), 5);
    assert_int_equal(crw_sampler_start(s, 0, 6), CRW_E_ARGUMENT);
    crw_sampler_destroy(s);
}

static void test_refuses_impossible_ranks(void **state)
{
    struct crw_sampler *s = NULL;
    assert_int_equal(crw_sampler_create(&(struct crw_sampler_options){.rank = 2, .world_size = 2}, &s),
                     CRW_E_ARGUMENT);
    assert_int_equal(crw_sampler_create(&(struct crw_sampler_options){.rank = -1, .world_size = 2}, &s),
                     CRW_E_ARGUMENT);
    assert_int_equal(crw_sampler_create(&(struct crw_sampler_options){.world_size = 0}, &s), CRW_E_ARGUMENT);
    assert_null(s);
    crw_sampler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dealt_like_pytorch),
        cmocka_unit_test(test_epoch_changes_the_order),
        cmocka_unit_test(test_world_size_changes_in_the_epoch),
        cmocka_unit_test(test_drop_last_never_repeats),
        cmocka_unit_test(test_resume_on_a_boundary_changes_nothing),
        cmocka_unit_test(test_epoch_that_was_finished),
        cmocka_unit_test(test_refuses_impossible_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
