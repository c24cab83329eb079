/*
 * The quota of connections of an address: what one address may have, that others are not concerned, and that ends are counted once.
 */

#include "rendezvous/address_quota.h"

#include "tests/support/c/cmocka_fixed.h"

enum { HERE = 0x0100000a, THERE = 0x0200000a };

static void an_address_has_so_many(void **state)
{
    struct address_quota q = {.max = 3};

    for (int fd = 5; fd < 8; fd++)
        assert_true(address_quota_take(&q, fd, HERE));
    assert_false(address_quota_take(&q, 8, HERE));
    assert_true(address_quota_take(&q, 9, THERE));

    address_quota_release(&q, 8); /* it was not counted */
    assert_false(address_quota_take(&q, 8, HERE));
    address_quota_release(&q, 6);
    address_quota_release(&q, 6);
    assert_true(address_quota_take(&q, 1000, HERE));
    assert_true(address_quota_take(&q, 1000, HERE)); /* the one before was given away */
    assert_false(address_quota_take(&q, 6, HERE));
    address_quota_finish(&q);
}

static void without_a_quota_nothing_is_counted(void **state)
{
    struct address_quota q = {.max = 0};

    for (int fd = 5; fd < 100; fd++)
        assert_true(address_quota_take(&q, fd, HERE));
    address_quota_release(&q, 7);
    assert_null(q.counter_of_fd);
    address_quota_finish(&q);
}

/* Sockets come and go in any order, and all counters are as at the start. */
static void nothing_is_left(void **state)
{
    struct address_quota q = {.max = 1000};

    for (int round = 0; round < 50; round++) {
        for (int fd = 3; fd < 900; fd++)
            assert_true(address_quota_take(&q, fd, (uint64_t)(fd % 37)));
        for (int fd = 899; fd >= 3; fd--)
            address_quota_release(&q, (fd * 7 + round) % 897 + 3);
        for (int fd = 3; fd < 900; fd++)
            address_quota_release(&q, fd);
    }
    for (int i = 0; i < ADDRESS_QUOTA_COUNTERS; i++)
        assert_int_equal(q.counts[i], 0);
    address_quota_finish(&q);
}

/* Owner 0 shares its counter with no other one. */
static void counters_of_owners(void **state)
{
    struct address_quota q = {.max = 100000};

    assert_true(address_quota_take(&q, 3, 0));
    assert_int_equal(address_quota_counter(&q, 3), 0);
    for (uint64_t owner = 1; owner < 3 * ADDRESS_QUOTA_COUNTERS; owner++) {
        assert_true(address_quota_take(&q, 4, owner));
        assert_in_range(address_quota_counter(&q, 4), 1, ADDRESS_QUOTA_COUNTERS - 1);
    }
    assert_int_equal(q.counts[0], 1);
    assert_int_equal(address_quota_counter(&q, 5), 0);
    assert_int_equal(address_quota_counter(&q, 100000), 0);
    address_quota_finish(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_has_so_many),
        cmocka_unit_test(without_a_quota_nothing_is_counted),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(counters_of_owners),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
