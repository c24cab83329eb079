/*
 * Which connections are taken when they are nearly used up, and which are closed for them.
 */

#include "base/err.h"
#include "rendezvous/server/admission.h"

#include "tests/support/c/cmocka_fixed.h"

static void connections_are_kept_for_agents(void **state)
{
    static const struct {
        unsigned limit, n;
        bool serves_agents;
        enum admission_place place;
    } rows[] = {
        {1000, 0, true, ADMISSION_OPEN},
        {1000, 935, true, ADMISSION_OPEN}, /* 64 are kept */
        {1000, 936, true, ADMISSION_RESERVED},
        {1000, 999, true, ADMISSION_RESERVED},
        {1000, 1000, true, ADMISSION_NO_CONNECTION},
        {1000, 999, false, ADMISSION_OPEN},
        {1000, 1000, false, ADMISSION_NO_CONNECTION},
        {80, 69, true, ADMISSION_OPEN}, /* an eighth of few */
        {80, 70, true, ADMISSION_RESERVED},
        {7, 6, true, ADMISSION_OPEN}, /* none of very few */
        {7, 7, true, ADMISSION_NO_CONNECTION},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct admission a;

        admission_init(&a, rows[i].limit, rows[i].serves_agents);
        assert_int_equal(admission_take(&a, rows[i].n, rows[i].n, UINT64_MAX), rows[i].place);
    }
}

static void descriptors_are_kept_for_agents(void **state)
{
    static const struct {
        uint64_t fd, fd_limit;
        bool serves_agents;
        enum admission_place place;
    } rows[] = {
        {934, 1000, true, ADMISSION_OPEN},
        {935, 1000, true, ADMISSION_RESERVED},
        {998, 1000, true, ADMISSION_RESERVED},
        {999, 1000, true, ADMISSION_NO_DESCRIPTOR},
        {998, 1000, false, ADMISSION_OPEN},
        {999, 1000, false, ADMISSION_NO_DESCRIPTOR},
        {97, 112, true, ADMISSION_RESERVED}, /* an eighth of few */
        {96, 112, true, ADMISSION_OPEN},
        {5, 0, true, ADMISSION_NO_DESCRIPTOR}, /* the limit was lowered */
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct admission a;

        admission_init(&a, 100000, rows[i].serves_agents);
        assert_int_equal(admission_take(&a, (unsigned)rows[i].fd - 4, rows[i].fd, rows[i].fd_limit),
                         rows[i].place);
    }
}

/* Four descriptors are of the process itself. */
static void a_low_number_does_not_hide_that_descriptors_are_scarce(void **state)
{
    struct admission a;

    admission_init(&a, 100000, true);
    for (unsigned fd = 4; fd < 1000; fd++)
        (void)admission_take(&a, fd - 4, fd, 1000); /* only the last one counts here */
    assert_int_equal(a.n_scarce, 931);
    assert_int_equal(admission_take(&a, 950, 17, 1000), ADMISSION_RESERVED);
    assert_int_equal(admission_take(&a, 931, 17, 1000), ADMISSION_RESERVED);
    assert_int_equal(admission_take(&a, 930, 17, 1000), ADMISSION_OPEN);
    assert_false(admission_is_open(&a, 932));
    assert_true(admission_is_open(&a, 931)); /* others have left */
    /* The process has closed ten of its own. */
    assert_int_equal(admission_take(&a, 945, 939, 1000), ADMISSION_RESERVED);
    assert_int_equal(a.n_scarce, 941);
}

/* A connection was closed for the one before, whose number the next one gets. */
static void a_number_that_is_given_again_is_not_a_free_one(void **state)
{
    struct admission a;

    (void)state;
    admission_init(&a, 1000, true);
    assert_int_equal(admission_take(&a, 101, 111, 112), ADMISSION_NO_DESCRIPTOR);
    assert_int_equal(admission_take(&a, 101, 10, 112), ADMISSION_NO_DESCRIPTOR);
    assert_int_equal(admission_take(&a, 100, 11, 112), ADMISSION_RESERVED);
    assert_int_equal(admission_take(&a, 75, 12, 112), ADMISSION_OPEN); /* many have left */
    assert_int_equal(admission_take(&a, 86, 70, 112), ADMISSION_OPEN);
}

static void what_is_of_little_use_is_closed(void **state)
{
    static const struct {
        enum admission_kind kind;
        uint64_t age_ms;
        enum admission_place place;
        bool with_agents, without_agents;
    } rows[] = {
        {ADMISSION_UNUSED, 1000000, ADMISSION_OPEN, false, false},
        {ADMISSION_UNUSED, 4999, ADMISSION_RESERVED, false, false},
        {ADMISSION_UNUSED, 5000, ADMISSION_RESERVED, true, true},
        {ADMISSION_SILENT, 5000, ADMISSION_RESERVED, false, false}, /* it has a deadline */
        {ADMISSION_UNJOINED, 5000, ADMISSION_RESERVED, false, false},
        {ADMISSION_UNUSED, 249, ADMISSION_NO_CONNECTION, false, false},
        {ADMISSION_UNUSED, 250, ADMISSION_NO_CONNECTION, true, false},
        {ADMISSION_UNUSED, 5000, ADMISSION_NO_CONNECTION, true, true},
        {ADMISSION_SILENT, 249, ADMISSION_NO_DESCRIPTOR, false, false},
        {ADMISSION_SILENT, 250, ADMISSION_NO_DESCRIPTOR, true, false},
        {ADMISSION_UNJOINED, 250, ADMISSION_NO_DESCRIPTOR, true, false},
        {ADMISSION_UNJOINED, 250, ADMISSION_NO_CONNECTION, true, false},
    };
    struct admission with, without;

    admission_init(&with, 1000, true);
    admission_init(&without, 1000, false);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(admission_may_close(&with, rows[i].kind, rows[i].age_ms, rows[i].place),
                         rows[i].with_agents);
        assert_int_equal(admission_may_close(&without, rows[i].kind, rows[i].age_ms, rows[i].place),
                         rows[i].without_agents);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_are_kept_for_agents),
        cmocka_unit_test(descriptors_are_kept_for_agents),
        cmocka_unit_test(a_low_number_does_not_hide_that_descriptors_are_scarce),
        cmocka_unit_test(a_number_that_is_given_again_is_not_a_free_one),
        cmocka_unit_test(what_is_of_little_use_is_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
