/* When stacks are looked at for the hint about a worker store that no worker opens, with virtual time. */

#include "launcher/watch/store_hint.h"

#include "tests/support/c/cmocka_fixed.h"

enum { AT_WORK = 1, UNUSED = 2 };

/* Steps once a second, from begin to end; returns the second of the first look, or -1. */
static int step(struct store_hint *h, uint32_t generation, int begin, int end, int facts)
{
    int first = -1;

    for (int s = begin; s <= end; s++)
        if (store_hint_step(h, (uint64_t)(s + 1000) * 1000000000u, generation, facts & AT_WORK,
                            facts & UNUSED) &&
            first < 0)
            first = s;
    return first;
}

static void test_looks_come_every_half_minute(void **state)
{
    struct store_hint h = {.generation = 0};

    assert_int_equal(step(&h, 0, 0, 29, AT_WORK | UNUSED), -1);
    assert_int_equal(step(&h, 0, 30, 31, AT_WORK | UNUSED), 30);
    assert_int_equal(step(&h, 0, 32, 100, AT_WORK | UNUSED), 60);
    assert_int_equal(step(&h, 0, 101, 299, AT_WORK | UNUSED), 120);
    assert_int_equal(step(&h, 0, 300, 5000, AT_WORK | UNUSED), 300);
    assert_int_equal(h.n_looks, STORE_HINT_LOOKS);
    assert_int_equal(step(&h, 1, 5001, 5100, AT_WORK | UNUSED), 5031);
}

static void test_a_client_ends_the_looks_of_the_generation(void **state)
{
    struct store_hint h = {.generation = 0};

    assert_int_equal(step(&h, 0, 0, 20, AT_WORK | UNUSED), -1);
    assert_int_equal(step(&h, 0, 21, 21, AT_WORK), -1);
    assert_int_equal(step(&h, 0, 22, 500, AT_WORK | UNUSED), -1);
    assert_int_equal(step(&h, 1, 501, 540, AT_WORK | UNUSED), 531);
}

static void test_the_time_counts_while_all_workers_run(void **state)
{
    struct store_hint h = {.generation = 0};

    assert_int_equal(step(&h, 0, 0, 25, AT_WORK | UNUSED), -1);
    assert_int_equal(step(&h, 0, 26, 200, UNUSED), -1);
    assert_int_equal(step(&h, 0, 201, 240, AT_WORK | UNUSED), 231);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looks_come_every_half_minute),
        cmocka_unit_test(test_a_client_ends_the_looks_of_the_generation),
        cmocka_unit_test(test_the_time_counts_while_all_workers_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
