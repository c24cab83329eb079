/*
 * Turns of handshakes: an address that floods delays another one by one handshake, those of one address keep their order, and
 * one that ends while it waits is not returned.
 */

#include "base/err.h"
#include "rendezvous/agents/handshake_turns.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_FLOOD = 1000 };

static const uint8_t seed[SIPHASH_SEED_SIZE] = {7};
static struct handshake_turns turns;

static int set_up(void **state)
{
    handshake_turns_init(&turns, seed);
    return 0;
}

static void add(struct list *w, uint64_t address)
{
    list_init(w);
    assert_true(list_is_empty(w));
    handshake_turns_add(&turns, w, address);
    assert_false(list_is_empty(w));
}

static void a_flood_delays_others_by_one(void **state)
{
    static struct list flood[N_FLOOD];
    struct list others[3];
    size_t at[ARRAY_SIZE(others)] = {0};

    for (size_t i = 0; i < N_FLOOD; i++)
        add(&flood[i], 1);
    assert_ptr_equal(handshake_turns_next(&turns), &flood[0]);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        add(&others[i], 2 + i);
    for (size_t i = 1; i <= 2 * ARRAY_SIZE(others); i++) {
        struct list *w = handshake_turns_next(&turns);

        for (size_t k = 0; k < ARRAY_SIZE(others); k++)
            if (w == &others[k])
                at[k] = i;
    }
    /* One of the flood, then the others, then one of the flood again. */
    for (size_t k = 0; k < ARRAY_SIZE(others); k++)
        assert_int_equal(at[k], k + 2);
}

static void two_addresses_alternate(void **state)
{
    struct list a[4], b[4];

    for (size_t i = 0; i < ARRAY_SIZE(a); i++)
        add(&a[i], 10);
    for (size_t i = 0; i < ARRAY_SIZE(b); i++)
        add(&b[i], 20);
    for (size_t i = 0; i < ARRAY_SIZE(a); i++) {
        assert_ptr_equal(handshake_turns_next(&turns), &a[i]);
        assert_ptr_equal(handshake_turns_next(&turns), &b[i]);
    }
    assert_null(handshake_turns_next(&turns));
    assert_true(list_is_empty(&turns.ring));
}

static void one_that_ends_is_left_out(void **state)
{
    struct list a, b, c;

    add(&a, 1);
    add(&b, 1);
    add(&c, 2);
    list_unlink(&a);
    list_unlink(&a); /* twice is once */
    assert_true(list_is_empty(&a));
    assert_ptr_equal(handshake_turns_next(&turns), &b);
    list_unlink(&c);
    assert_false(list_is_empty(&turns.ring));
    assert_null(handshake_turns_next(&turns));
    assert_true(list_is_empty(&turns.ring));
    add(&a, 2); /* its queue has left the ring meanwhile */
    assert_ptr_equal(handshake_turns_next(&turns), &a);
    assert_true(list_is_empty(&a));
}

static void all_of_many_addresses_have_a_turn(void **state)
{
    static struct list many[4 * HANDSHAKE_QUEUES];
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        add(&many[i], i * 2654435761u);
    while (handshake_turns_next(&turns))
        n++;
    assert_int_equal(n, ARRAY_SIZE(many));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_flood_delays_others_by_one, set_up),
        cmocka_unit_test_setup(two_addresses_alternate, set_up),
        cmocka_unit_test_setup(one_that_ends_is_left_out, set_up),
        cmocka_unit_test_setup(all_of_many_addresses_have_a_turn, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
