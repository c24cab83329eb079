/*
 * Memory runs out at the k-th allocation, for every k of a conversation that does everything. Whoever asked
 * for too much is cut off; the store stays as it was before that request, keeps answering the others, and
 * gives everything back.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tests/support/c/failing_alloc.h"
#include "tests/support/c/store_harness.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

enum { BIG = 40000, N_CLIENTS = 4 };

static const uint8_t big[BIG];

/* The messages are encoded before memory gets short. */
static struct buf messages[256];
static unsigned clients[256];
static size_t n_messages;

static struct buf *message(unsigned client)
{
    assert_true(n_messages < ARRAY_SIZE(messages));
    clients[n_messages] = client;
    return &messages[n_messages++];
}

static struct wire_span text(const char *s)
{
    return wire_span(s, strlen(s));
}

static void write_messages(void)
{
    struct wire_span names[] = {text("/a"), text("/b"), text("/c"), text("/d")};
    struct wire_span values[] = {text("1"), wire_span(big, BIG), text("3"), wire_span(big, 100)};
    int r = 0;

    for (unsigned i = 0; i < N_CLIENTS; i++)
        r |= wire_put_word(message(i), WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC);
    r |= wire_put_keys(message(1), WIRE_OP_WAIT, names, 4);
    r |= wire_put_keys(message(2), WIRE_OP_WAIT, names, 2);
    r |= wire_put_key_value(message(0), WIRE_OP_SET, names[0], values[0]);
    r |= wire_put_key_amount(message(0), WIRE_OP_ADD, names[0], 5);
    r |= wire_put_multi_set(message(0), names, values, 4);
    r |= wire_put_keys(message(3), WIRE_OP_MULTI_GET, names, 4);
    r |= wire_put_key_value(message(0), WIRE_OP_APPEND, names[1], values[1]);
    r |= wire_put_key_value(message(0), WIRE_OP_APPEND, names[3], values[1]);
    r |= wire_put_compare_set(message(3), names[3], values[0], values[1]);
    r |= wire_put_compare_set(message(3), text("/e"), text(""), values[1]);
    r |= wire_put_compare_set(message(3), text("/f"), values[1], values[0]);
    for (int i = 0; i < 3; i++)
        r |= wire_put_key_value(message(2), WIRE_OP_QUEUE_PUSH, text("/q"), values[1]);
    r |= wire_put_key(message(3), WIRE_OP_QUEUE_POP, text("/q"));
    r |= wire_put_key_amount(message(1), WIRE_OP_BARRIER, text("/barrier"), 2);
    r |= wire_put_key_amount(message(2), WIRE_OP_BARRIER, text("/barrier"), 2);
    for (unsigned i = 0; i < 120; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "/many/%u", i);
        r |= wire_put_key_value(message(0), WIRE_OP_SET, text(name), values[0]);
    }
    r |= wire_put_plain(message(3), WIRE_OP_LIST_KEYS);
    r |= wire_put_key(message(3), WIRE_OP_DELETE_KEY, names[0]);
    assert_int_equal(r, 0);
}

/* What a fresh client sees: as many keys as are counted, each readable. */
static void check_store(struct harness *h)
{
    struct buf out = {0};
    size_t cursor = 0, n_keys = 0;
    struct store_entry *name;

    while ((name = store_table_next(&h->store.names, &cursor)))
        n_keys++;
    assert_true(h->store.n_keys <= n_keys);
    harness_close(h, 5);
    assert_int_equal(wire_put_word(&out, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC), 0);
    assert_int_equal(wire_put_word(&out, WIRE_OP_PING, 5), 0);
    assert_int_equal(wire_put_key_value(&out, WIRE_OP_SET, text("/after"), text("x")), 0);
    assert_int_equal(wire_put_key(&out, WIRE_OP_GET, text("/after")), 0);
    harness_feed(h, 5, buf_bytes(&out), buf_size(&out));
    assert_int_equal(harness_pending(h, 5), 4 + 8 + 1);
    buf_finish(&out);
}

/* Plays everything with the k-th allocation failing; a client that is cut off comes back at once. */
static bool play(size_t k)
{
    size_t live = failing_alloc_live();
    struct harness h;
    bool fired;

    failing_alloc_arm(k);
    if (harness_init(&h, NULL) < 0) {
        assert_int_equal(failing_alloc_live(), live);
        return true;
    }
    for (size_t i = 0; i < n_messages; i++) {
        struct harness_client *c = &h.clients[clients[i]];
        int result;

        harness_feed(&h, clients[i], buf_bytes(&messages[i]), buf_size(&messages[i]));
        result = c->result;
        if (c->closed) {
            if (result != -ENOMEM)
                fail_msg("k = %zu, message %zu: cut off with %d", k, i, result);
            harness_close(&h, clients[i]);
            harness_feed(&h, clients[i], buf_bytes(&messages[clients[i]]), buf_size(&messages[clients[i]]));
        }
    }
    fired = failing_alloc_fired();
    failing_alloc_arm(0);
    check_store(&h);
    harness_finish(&h);
    if (failing_alloc_live() != live)
        fail_msg("k = %zu: %zu allocations were not given back", k, failing_alloc_live() - live);
    return fired;
}

static void test_every_allocation(void **state)
{
    size_t k = 1;

    write_messages();
    while (play(k))
        k++;
    print_message("%zu allocations failed, one at a time\n", k - 1);
    assert_true(k > 100);
    for (size_t i = 0; i < n_messages; i++)
        buf_finish(&messages[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
