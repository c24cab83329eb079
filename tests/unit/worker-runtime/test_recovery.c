/*
 * Where ranks that come together take their state from: by hand, and then every combination of what up to four
 * ranks can have, against a plain reading of the rules.
 */

#include "worker-runtime/programs/recovery.h"

#include "tests/support/c/cmocka_fixed.h"

enum { NONE = RECOVERY_NONE };

static void check(const struct recovery_offer *offers, int n, enum recovery_kind kind, int64_t number,
                  int from, int n_parts)
{
    struct recovery_choice c = recovery_choose(offers, n);

    assert_int_equal(c.kind, kind);
    assert_int_equal(c.number, number);
    if (kind == RECOVERY_ALIVE)
        assert_int_equal(c.from, from);
    if (kind == RECOVERY_MEMORY)
        assert_int_equal(c.n_parts, n_parts);
}

static void test_nobody_has_anything(void **state)
{
    static const struct recovery_offer offers[] = {{NONE, {NONE, NONE}, 1}, {NONE, {NONE, NONE}, 1}};

    check(offers, 2, RECOVERY_FRESH, NONE, 0, 0);
    assert_false(recovery_has(&offers[0], NONE));
}

/* The dead rank's successor has what it left in memory, which may be a commit behind or ahead. */
static void test_the_living_have_it(void **state)
{
    static const struct recovery_offer offers[] = {{NONE, {41, 40}, 3}, {40, {40, 39}, 3}, {41, {41, 40}, 3}};

    check(offers, 3, RECOVERY_ALIVE, 41, 2, 0);
    assert_true(recovery_has(&offers[0], 41));
    assert_true(recovery_has(&offers[0], 40));
    assert_false(recovery_has(&offers[0], 39));
    assert_true(recovery_has(&offers[1], 40));
}

static void test_all_died_and_one_was_a_commit_behind(void **state)
{
    static const struct recovery_offer offers[] = {{NONE, {41, 40}, 2}, {NONE, {NONE, 40}, 2}};

    check(offers, 2, RECOVERY_MEMORY, 40, 0, 2);
}

static void test_a_part_is_missing(void **state)
{
    static const struct recovery_offer offers[] = {{NONE, {41, 40}, 2}, {NONE, {NONE, NONE}, 2}};

    check(offers, 2, RECOVERY_FRESH, NONE, 0, 0);
}

/* The ranks of another host are new: those of the first have it all between them. */
static void test_one_host_has_all_parts(void **state)
{
    static const struct recovery_offer offers[] = {
        {NONE, {8, 7}, 2}, {NONE, {7, 8}, 2}, {NONE, {NONE, NONE}, 2}, {NONE, {3, NONE}, 2}};

    check(offers, 4, RECOVERY_MEMORY, 8, 0, 2);
}

/* What a rank says of its host is a number from outside. */
static void test_parts_that_cannot_be(void **state)
{
    static const int64_t n_parts[] = {0, NONE, 3, INT64_MIN};

    for (size_t i = 0; i < sizeof(n_parts) / sizeof(n_parts[0]); i++) {
        struct recovery_offer offers[] = {{NONE, {5, 4}, n_parts[i]}, {NONE, {5, 4}, n_parts[i]}};

        check(offers, 2, RECOVERY_FRESH, NONE, 0, 0);
    }
}

/* The same rules, said without regard to how they are computed. */
static void check_choice(const struct recovery_offer *offers, int n)
{
    struct recovery_choice c = recovery_choose(offers, n);
    int64_t alive = NONE, memory = NONE;

    for (int i = 0; i < n; i++)
        alive = offers[i].alive > alive ? offers[i].alive : alive;
    for (int64_t number = 0; number < 3; number++) {
        int n_have = 0;

        for (int i = 0; i < offers[0].n_parts; i++)
            n_have += offers[i].memory[0] == number || offers[i].memory[1] == number;
        memory = n_have == offers[0].n_parts ? number : memory;
    }
    if (alive != NONE) {
        assert_int_equal(c.kind, RECOVERY_ALIVE);
        assert_int_equal(c.number, alive);
        assert_int_equal(offers[c.from].alive, alive);
    } else {
        assert_int_equal(c.kind, memory == NONE ? RECOVERY_FRESH : RECOVERY_MEMORY);
        assert_int_equal(c.number, memory);
    }
}

/* Each rank has one of 3 x 7 things: dead or alive at 1 or 2; nothing, one or two of states 0 to 2 in memory. */
static void test_every_combination(void **state)
{
    static const int64_t memories[][2] = {{NONE, NONE}, {0, NONE}, {NONE, 1}, {2, NONE},
                                          {0, 1},       {2, 1},    {1, 2}};
    static const int64_t alive[] = {NONE, 1, 2};
    enum { KINDS = 21, RANKS = 4 };
    struct recovery_offer offers[RANKS];

    for (int parts = 1; parts <= 3; parts++)
        for (int code = 0; code < KINDS * KINDS * KINDS * KINDS; code++) {
            int rest = code;

            for (int i = 0; i < RANKS; i++, rest /= KINDS)
                offers[i] = (struct recovery_offer){
                    alive[rest % KINDS / 7], {memories[rest % 7][0], memories[rest % 7][1]}, parts};
            check_choice(offers, RANKS);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_has_anything),
        cmocka_unit_test(test_the_living_have_it),
        cmocka_unit_test(test_a_part_is_missing),
        cmocka_unit_test(test_all_died_and_one_was_a_commit_behind),
        cmocka_unit_test(test_one_host_has_all_parts),
        cmocka_unit_test(test_parts_that_cannot_be),
        cmocka_unit_test(test_every_combination),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
