/*
 * Bytes of incomplete messages by network: the one that holds the most is found, also when it is many connections that hold
 * little each, and what was given back counts no more.
 */

#include <stdbool.h>

#include "rendezvous/server/input_shares.h"

#include "tests/support/c/cmocka_fixed.h"

enum { KIB = 1024, MIB = 1024 * KIB };

static const uint8_t seed[SIPHASH_SEED_SIZE] = {3};
static struct input_shares shares;

static int set_up(void **state)
{
    shares = (struct input_shares){0};
    return 0;
}

static void the_network_that_holds_the_most(void **state)
{
    unsigned one = input_shares_slot(seed, 1), other = input_shares_slot(seed, 2);

    assert_int_not_equal(one, other);
    input_shares_change(&shares, other, 0, 2 * MIB);
    for (int i = 0; i < 100; i++)
        input_shares_change(&shares, one, 0, 64 * KIB);
    assert_int_equal(input_shares_largest(&shares), one);
    assert_int_equal(shares.total, 2 * MIB + 100 * 64 * KIB);
    for (int i = 0; i < 90; i++)
        input_shares_change(&shares, one, 64 * KIB, 4 * KIB);
    assert_int_equal(input_shares_largest(&shares), other);
    input_shares_change(&shares, other, 2 * MIB, 0);
    assert_int_equal(input_shares_largest(&shares), one);
    assert_int_equal(shares.total, 90 * 4 * KIB + 10 * 64 * KIB);
}

static void networks_are_spread(void **state)
{
    bool used[INPUT_SHARES_SLOTS] = {0};
    unsigned n = 0;

    for (uint64_t network = 0; network < INPUT_SHARES_SLOTS; network++) {
        unsigned slot = input_shares_slot(seed, network);

        assert_true(slot < INPUT_SHARES_SLOTS);
        n += !used[slot];
        used[slot] = true;
    }
    assert_true(n > INPUT_SHARES_SLOTS / 2); /* 63 % of the slots on average */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_network_that_holds_the_most, set_up),
        cmocka_unit_test_setup(networks_are_spread, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
