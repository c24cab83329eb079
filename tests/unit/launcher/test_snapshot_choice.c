/* The choice of a state: tables, and random inventories beside a search that tries every state rank by rank. */

#include "launcher/snapshots/snapshot_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/random_os.h"
#include "proto/state_blocks.h"

#include "tests/support/c/cmocka_fixed.h"

enum { RUNS_MAX = 12 };

struct row {
    const char *what;
    struct block_run runs[RUNS_MAX]; /* step, generation, world, first, n, tier, node; the end: world 0 */
    struct snapshot_choice choice;
};

static const struct row rows[] = {
    {"nothing", {{0}}, {0}},
    {"one node", {{7, 0, 4, 0, 4, 1, 0}, {6, 0, 4, 0, 4, 1, 0}}, {true, 7, 0, 4}},
    {"a rank has not written the last step", {{7, 0, 4, 0, 3, 1, 0}, {6, 0, 4, 0, 4, 1, 0}}, {true, 6, 0, 4}},
    {"the first rank is the one", {{7, 0, 4, 1, 3, 1, 0}, {6, 0, 4, 0, 4, 1, 0}}, {true, 6, 0, 4}},
    {"two nodes", {{7, 0, 4, 0, 2, 1, 0}, {7, 0, 4, 2, 2, 1, 1}}, {true, 7, 0, 4}},
    {"a lost node's copies", {{7, 0, 4, 0, 2, 1, 0}, {7, 0, 4, 2, 2, 2, 0}}, {true, 7, 0, 4}},
    {"copies and originals overlap", {{7, 0, 6, 0, 4, 1, 0}, {7, 0, 6, 2, 4, 2, 0}}, {true, 7, 0, 6}},
    {"a hole", {{7, 0, 6, 0, 2, 1, 0}, {7, 0, 6, 3, 3, 1, 1}}, {0}},
    {"both holders of a shard are lost", {{7, 0, 4, 0, 2, 1, 0}, {6, 0, 4, 0, 2, 1, 0}}, {0}},
    {"a late writer of an earlier generation",
     {{9, 1, 2, 0, 2, 1, 0}, {10, 0, 2, 0, 2, 2, 1}},
     {true, 9, 1, 2}},
    {"two generations are not mixed",
     {{9, 1, 2, 0, 1, 1, 0}, {9, 0, 2, 0, 2, 2, 1}, {9, 0, 2, 1, 1, 1, 0}},
     {true, 9, 0, 2}},
    {"a state mixed of two generations is none", {{9, 1, 2, 0, 1, 1, 0}, {9, 0, 2, 1, 1, 1, 0}}, {0}},
    {"two world sizes are not mixed",
     {{9, 1, 2, 0, 1, 1, 0}, {9, 1, 3, 1, 2, 1, 0}, {8, 1, 2, 0, 2, 1, 1}},
     {true, 8, 1, 2}},
    {"ranks beyond the world size hide nothing", {{9, 1, 2, 1, 900, 1, 0}}, {0}},
    {"a run to the end of numbers", {{9, 1, 2, 0, UINT32_MAX, 1, 0}}, {true, 9, 1, 2}},
};

static bool is_same(const struct snapshot_choice *a, const struct snapshot_choice *b)
{
    return a->exists == b->exists && a->step == b->step && a->generation == b->generation &&
           a->world_size == b->world_size;
}

static void test_choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct block_run runs[RUNS_MAX];
        size_t n = 0;
        while (n < RUNS_MAX && rows[i].runs[n].world_size > 0)
            n++;
        memcpy(runs, rows[i].runs, sizeof(runs));
        block_runs_sort(runs, n);
        struct snapshot_choice got = snapshot_choose(runs, n);
        if (!is_same(&got, &rows[i].choice))
            fail_msg("%s: step %llu of generation %u", rows[i].what, (unsigned long long)got.step,
                     got.generation);
    }
}

static bool has_rank(const struct block_run *runs, size_t n, const struct snapshot_choice *c, uint32_t rank)
{
    for (size_t i = 0; i < n; i++)
        if (runs[i].step == c->step && runs[i].generation == c->generation &&
            runs[i].world_size == c->world_size && rank >= runs[i].first && rank < runs[i].first + runs[i].n)
            return true;
    return false;
}

static struct snapshot_choice choose_slowly(const struct block_run *runs, size_t n)
{
    for (uint32_t generation = 3; generation-- > 0;)
        for (uint32_t step = 4; step-- > 0;)
            for (uint32_t world = 4; world > 1; world--) {
                struct snapshot_choice c = {true, step, generation, world};
                uint32_t rank = 0;
                while (rank < world && has_rank(runs, n, &c, rank))
                    rank++;
                if (rank == world)
                    return c;
            }
    return (struct snapshot_choice){0};
}

static void test_random_inventories(void **state)
{
    (void)state;
    unsigned seed;
    int n_chosen = 0;

    assert_int_equal(random_fill(&seed, sizeof(seed)), 0);
    unsigned first_seed = seed;
    for (int i = 0; i < 20000; i++) {
        struct block_run runs[RUNS_MAX];
        size_t n = (size_t)rand_r(&seed) % (RUNS_MAX + 1);
        for (size_t k = 0; k < n; k++)
            runs[k] = (struct block_run){.step = (uint64_t)rand_r(&seed) % 4,
                                         .generation = (uint32_t)rand_r(&seed) % 3,
                                         .world_size = 2 + (uint32_t)rand_r(&seed) % 3,
                                         .first = (uint32_t)rand_r(&seed) % 4,
                                         .n = 1 + (uint32_t)rand_r(&seed) % 3,
                                         .tier = 1 + (uint32_t)rand_r(&seed) % 2,
                                         .node = rand_r(&seed) % 3};
        block_runs_sort(runs, n);
        struct snapshot_choice got = snapshot_choose(runs, n), want = choose_slowly(runs, n);
        if (!is_same(&got, &want))
            fail_msg("seed %u, inventory %d", first_seed, i);
        n_chosen += got.exists;
        for (uint32_t rank = 0; got.exists && rank < got.world_size; rank++) {
            const struct block_run *run = snapshot_find(runs, n, &got, rank, 1);
            assert_non_null(run);
            assert_true(has_rank(run, 1, &got, rank));
        }
    }
    assert_true(n_chosen > 1000);
}

static void test_the_nearest_block(void **state)
{
    (void)state;
    struct block_run runs[] = {
        {7, 0, 2, 0, 2, TIER_MEMORY, 0}, {7, 0, 2, 0, 2, TIER_PEER, 1}, {7, 0, 2, 1, 1, TIER_MEMORY, 2}};
    struct snapshot_choice choice = {true, 7, 0, 2};

    block_runs_sort(runs, ARRAY_SIZE(runs));
    assert_int_equal(snapshot_find(runs, 3, &choice, 0, 1)->node, 1);
    assert_int_equal(snapshot_find(runs, 3, &choice, 0, 2)->node, 0);
    assert_int_equal(snapshot_find(runs, 3, &choice, 1, 2)->node, 2);
    assert_null(snapshot_find(runs, 3, &choice, 2, 0));
}

static void test_partners(void **state)
{
    (void)state;
    static const char *const none[] = {"", "", ""}, *const racks[] = {"a", "a", "b", "b"},
                             *const one[] = {"a", "a"};

    assert_int_equal(snapshot_partner(none, 1, 0), -1);
    assert_int_equal(snapshot_partner(none, 3, 2), 0);
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(snapshot_partner(racks, 4, i), i < 2 ? 2 : 0);
    assert_int_equal(snapshot_partner(one, 2, 1), 0); /* no other domain: better than none */
}

static void test_runs_grow(void **state)
{
    (void)state;
    struct block_run runs[3];
    size_t n = 0;

    for (uint32_t rank = 0; rank < 5; rank++)
        for (uint64_t step = 6; step < 8; step++) {
            struct block_run block = {step, 0, 8, rank, 1, TIER_MEMORY, 0};
            if (rank != 2 || step != 7)
                assert_int_equal(block_runs_add(runs, &n, 3, &block), true);
        }
    assert_int_equal(n, 3); /* step 6: 0 to 4; step 7: 0 to 1, 3 to 4 */
    assert_int_equal(runs[0].n, 5);
    assert_int_equal(runs[2].first, 3);
    assert_false(block_runs_add(runs, &n, 3, &(struct block_run){9, 0, 8, 0, 1, TIER_MEMORY, 0}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices),           cmocka_unit_test(test_random_inventories),
        cmocka_unit_test(test_the_nearest_block), cmocka_unit_test(test_partners),
        cmocka_unit_test(test_runs_grow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
