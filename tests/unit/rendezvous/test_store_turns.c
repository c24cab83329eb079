/*
 * Requests that are cut into turns: what one call of store_apply() does is bounded, counted by its effects and not by the
 * budget that the store keeps itself; and what other clients see between two turns is what PROTOCOL.md promises.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "rendezvous/store/blob.h"
#include "rendezvous/store/store_entry.h"
#include "tests/support/c/store_harness.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_CLIENTS = 6, N_MANY = 20000, OUTPUT_MAX = 64 * 1024, LARGE = 8 << 20 };

/* A client with one request at a time. */
struct turn_client {
    struct store_client client;
    struct outbox out;
    struct buf message;
    struct wire_request request;
};

static struct store store;
static struct turn_client clients[N_CLIENTS];
static uint8_t *large; /* LARGE bytes */

static struct wire_span text(const char *s)
{
    return wire_span(s, strlen(s));
}

static int set_up(void **state)
{
    static const struct store_limits limits = STORE_LIMITS_DEFAULT;
    static const uint8_t seed[SIPHASH_SEED_SIZE] = "a fixed seed";

    (void)state;
    large = malloc(LARGE);
    if (!large || store_init(&store, &limits, seed) < 0)
        return -1;
    memset(large, 'x', LARGE);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        clients[i] = (struct turn_client){0};
        store_client_init(&clients[i].client);
    }
    return 0;
}

static void close_client(unsigned i)
{
    store_client_finish(&store, &clients[i].client);
    outbox_finish(&clients[i].out);
    buf_finish(&clients[i].message);
    clients[i] = (struct turn_client){0};
    store_client_init(&clients[i].client);
}

static int tear_down(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_CLIENTS; i++)
        close_client(i);
    store_finish(&store); /* asserts that nothing is charged any more */
    free(large);
    return 0;
}

/* The message in the client's buffer becomes its request. */
static void begin(unsigned i)
{
    static const struct wire_limits limits = WIRE_LIMITS_DEFAULT;
    struct turn_client *c = &clients[i];
    struct wire_scanner scanner = {0};
    size_t size;

    assert_int_equal(
        wire_decode(&scanner, &limits, buf_bytes(&c->message), buf_size(&c->message), &c->request, &size), 0);
    assert_int_equal(size, buf_size(&c->message));
}

static int turn(unsigned i)
{
    struct store_budget budget = {
        .units = STORE_TURN_UNITS, .turn = STORE_TURN_UNITS, .output_max = OUTPUT_MAX};

    return store_apply(&store, &clients[i].client, &clients[i].request, &clients[i].out, &budget);
}

/* What was replied, appended to `all`; the client has read it. */
static void read_replies(unsigned i, struct buf *all)
{
    struct outbox *out = &clients[i].out;

    while (outbox_size(out) > 0) {
        struct iovec iov;
        size_t size;

        assert_int_equal(outbox_iov(out, &iov, 1), 1);
        size = iov.iov_len;
        assert_int_equal(buf_append(all, iov.iov_base, size), 0);
        outbox_consume(out, size);
    }
}

static struct buf *new_message(unsigned i)
{
    buf_reset(&clients[i].message);
    return &clients[i].message;
}

/* All turns of client i's request, its replies dropped. Returns the result. */
static int finish_request(unsigned i)
{
    int r;

    do {
        r = turn(i);
        outbox_consume(&clients[i].out, outbox_size(&clients[i].out));
    } while (r == STORE_MORE);
    return r;
}

static void set_key(unsigned i, const char *key, struct wire_span value)
{
    assert_int_equal(wire_put_key_value(new_message(i), WIRE_OP_SET, text(key), value), 0);
    begin(i);
    assert_int_equal(finish_request(i), 0);
}

static void delete_key(unsigned i, const char *key)
{
    assert_int_equal(wire_put_key(new_message(i), WIRE_OP_DELETE_KEY, text(key)), 0);
    begin(i);
    assert_int_equal(finish_request(i), 0);
}

static char many_text[N_MANY][16];
static struct wire_span many[N_MANY], empty[N_MANY];

static void name_many(void)
{
    for (size_t i = 0; i < N_MANY; i++) {
        (void)snprintf(many_text[i], sizeof(many_text[i]), "/many/%zu", i);
        many[i] = text(many_text[i]);
        empty[i] = text("");
    }
}

static void set_many(unsigned i)
{
    name_many();
    assert_int_equal(wire_put_multi_set(new_message(i), many, empty, N_MANY), 0);
    begin(i);
    assert_int_equal(finish_request(i), 0);
}

/* ---- bounded turns ---- */

/* A pair that is stored costs two units. */
static void test_multi_set_is_cut(void **state)
{
    unsigned n_turns = 0;
    int r;

    (void)state;
    name_many();
    assert_int_equal(wire_put_multi_set(new_message(0), many, empty, N_MANY), 0);
    begin(0);
    do {
        uint64_t before = store.n_keys;

        r = turn(0);
        assert_true(store.n_keys - before <= STORE_TURN_UNITS / 2);
        n_turns++;
    } while (r == STORE_MORE);
    assert_int_equal(r, 0);
    assert_int_equal(store.n_keys, N_MANY);
    assert_true(n_turns >= N_MANY / (STORE_TURN_UNITS / 2));
}

static void test_list_keys_is_cut(void **state)
{
    struct buf reply = {0};
    size_t n_turns = 0, n_keys = 0;
    struct wire_span list, key;
    int r;

    (void)state;
    set_many(0);
    assert_int_equal(wire_put_plain(new_message(1), WIRE_OP_LIST_KEYS), 0);
    begin(1);
    do {
        r = turn(1);
        assert_true(outbox_size(&clients[1].out) <= OUTPUT_MAX + 64);
        read_replies(1, &reply);
        n_turns++;
    } while (r == STORE_MORE);
    assert_int_equal(r, 0);
    assert_true(n_turns >= N_MANY / STORE_TURN_UNITS);
    assert_int_equal(wire_load_u64(buf_bytes(&reply)), N_MANY);
    list = wire_span(buf_bytes(&reply) + 8, buf_size(&reply) - 8);
    while (wire_next_key(&list, &key))
        n_keys++;
    assert_int_equal(n_keys, N_MANY);
    assert_int_equal(list.size, 0);
    buf_finish(&reply);
}

/* A client that does not read has as much in memory as it may, however much it asked for. */
static void test_replies_that_are_not_read_are_bounded(void **state)
{
    (void)state;
    set_many(0);
    set_key(0, "/value", wire_span(large, OUTBOX_COPY_MAX));
    for (size_t i = 0; i < N_MANY; i++)
        many[i] = text("/value");
    assert_int_equal(wire_put_keys(new_message(1), WIRE_OP_MULTI_GET, many, N_MANY), 0);
    assert_int_equal(wire_put_plain(new_message(2), WIRE_OP_LIST_KEYS), 0);
    assert_int_equal(wire_put_compare_set(new_message(3), text("/none"), wire_span(large, LARGE), text("")),
                     0);
    for (unsigned i = 1; i <= 3; i++) {
        begin(i);
        for (int k = 0; k < 100; k++)
            assert_int_equal(turn(i), STORE_MORE);
        assert_true(outbox_size(&clients[i].out) <= OUTPUT_MAX + OUTBOX_COPY_MAX + 8);
    }
}

static void test_check_and_wait_are_cut(void **state)
{
    unsigned n_turns = 0;
    int r;

    (void)state;
    name_many();
    assert_int_equal(wire_put_keys(new_message(0), WIRE_OP_WAIT, many, N_MANY), 0);
    begin(0);
    do {
        size_t before = store.names.used;

        r = turn(0);
        assert_true(store.names.used - before <= STORE_TURN_UNITS / 2);
        n_turns++;
    } while (r == STORE_MORE);
    assert_int_equal(r, 0);
    assert_true(n_turns >= N_MANY / (STORE_TURN_UNITS / 2));
    assert_int_equal(outbox_size(&clients[0].out), 0);

    set_many(1);
    assert_false(list_is_empty(&store.released));
    list_unlink(&clients[0].client.released);
    assert_int_equal(wire_put_keys(new_message(2), WIRE_OP_CHECK, many, N_MANY), 0);
    begin(2);
    for (n_turns = 1; (r = turn(2)) == STORE_MORE; n_turns++)
        ;
    assert_true(r == 0 && n_turns >= N_MANY / STORE_TURN_UNITS);
    assert_int_equal(*buf_bytes(&clients[2].out.bytes), WIRE_CHECK_READY);
}

/* What a client leaves behind that waits for many names goes in turns as well, and ends nothing meanwhile. */
static void test_a_large_wait_is_taken_apart_in_turns(void **state)
{
    unsigned n_turns = 0;
    bool more;

    (void)state;
    name_many();
    assert_int_equal(wire_put_keys(new_message(0), WIRE_OP_WAIT, many, N_MANY), 0);
    begin(0);
    assert_int_equal(finish_request(0), 0);
    close_client(0);
    assert_int_equal(store.n_waiting, 0);
    assert_true(store.names.used > N_MANY - 100);
    set_key(1, many_text[7], text("1"));
    do {
        size_t before = store.names.used;

        more = store_clean(&store, STORE_TURN_UNITS);
        assert_true(before - store.names.used <= STORE_TURN_UNITS);
        n_turns++;
    } while (more);
    assert_true(n_turns >= N_MANY / STORE_TURN_UNITS);
    assert_int_equal(store.names.used, 1);
    assert_true(list_is_empty(&store.released));
}

enum { N_WAITERS = 10000 };

static size_t count_released(void)
{
    size_t n = 0;

    list_for_each(pos, &store.released) n++;
    return n;
}

static struct store_client *start_waiters(struct buf *message)
{
    struct store_client *waiters = calloc(N_WAITERS, sizeof(*waiters));
    static const struct wire_limits limits = WIRE_LIMITS_DEFAULT;
    struct wire_scanner scanner = {0};
    struct wire_span door = text("/door");
    struct wire_request request;
    size_t size;

    assert_non_null(waiters);
    assert_int_equal(wire_put_keys(message, WIRE_OP_WAIT, &door, 1), 0);
    assert_int_equal(wire_decode(&scanner, &limits, buf_bytes(message), buf_size(message), &request, &size),
                     0);
    for (size_t i = 0; i < N_WAITERS; i++) {
        struct store_budget budget = STORE_BUDGET_NONE;

        store_client_init(&waiters[i]);
        assert_int_equal(store_apply(&store, &waiters[i], &request, &clients[5].out, &budget), 0);
    }
    return waiters;
}

static void finish_waiters(struct store_client *waiters, struct buf *message)
{
    for (size_t i = 0; i < N_WAITERS; i++)
        store_client_finish(&store, &waiters[i]);
    free(waiters);
    buf_finish(message);
}

static void test_many_waiters_are_released_in_turns(void **state)
{
    struct buf message = {0};
    struct store_client *waiters = start_waiters(&message);
    unsigned n_turns = 0;
    int r;

    (void)state;
    assert_int_equal(wire_put_key_amount(new_message(0), WIRE_OP_ADD, text("/door"), 7), 0);
    begin(0);
    do {
        size_t before = count_released();

        r = turn(0);
        assert_true(count_released() - before <= STORE_TURN_UNITS);
        if (n_turns++ == 1)
            delete_key(1, "/door"); /* it was written: the others are released all the same */
    } while (r == STORE_MORE);
    assert_true(r == 0 && n_turns >= N_WAITERS / STORE_TURN_UNITS);
    assert_int_equal(count_released(), N_WAITERS);
    assert_int_equal(buf_size(&clients[0].out.bytes), 8); /* one reply, behind all of it */
    assert_int_equal(wire_load_u64(buf_bytes(&clients[0].out.bytes)), 7);
    assert_int_equal(store.names.used, 0);
    finish_waiters(waiters, &message);
}

/* The writer leaves in the middle: its write counts for every client that waits. */
static void test_a_writer_that_leaves_releases_all(void **state)
{
    struct buf message = {0};
    struct store_client *waiters = start_waiters(&message);

    (void)state;
    assert_int_equal(wire_put_key_value(new_message(0), WIRE_OP_SET, text("/door"), text("1")), 0);
    begin(0);
    assert_int_equal(turn(0), STORE_MORE);
    close_client(0);
    assert_int_equal(count_released(), N_WAITERS);
    finish_waiters(waiters, &message);
}

/* A value that is copied in steps is stored in one. */
static void test_a_large_value_is_stored_in_one_piece(void **state)
{
    unsigned n_turns = 1;

    (void)state;
    set_key(1, "/v", text("old"));
    assert_int_equal(wire_put_key_value(new_message(0), WIRE_OP_SET, text("/v"), wire_span(large, LARGE)), 0);
    begin(0);
    for (; turn(0) == STORE_MORE; n_turns++) {
        struct buf reply = {0};

        assert_int_equal(wire_put_key(new_message(1), WIRE_OP_GET, text("/v")), 0);
        begin(1);
        assert_int_equal(turn(1), 0);
        read_replies(1, &reply);
        assert_int_equal(buf_size(&reply), 8 + 3);
        buf_finish(&reply);
    }
    assert_true(n_turns >= LARGE / STORE_UNIT_BYTES / STORE_TURN_UNITS);
}

/* One byte behind a value of 64 MiB that is being sent: nothing is copied, and the reply ends where it began. */
static void test_append_never_copies_what_is_there(void **state)
{
    struct buf reply = {0};
    uint64_t before;

    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(
            wire_put_key_value(new_message(0), WIRE_OP_APPEND, text("/v"), wire_span(large, LARGE)), 0);
        begin(0);
        assert_int_equal(finish_request(0), 0);
    }
    assert_int_equal(wire_put_key(new_message(1), WIRE_OP_GET, text("/v")), 0);
    begin(1);
    assert_int_equal(turn(1), 0);
    before = store.account.bytes;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(wire_put_key_value(new_message(0), WIRE_OP_APPEND, text("/v"), text("y")), 0);
        begin(0);
        assert_int_equal(turn(0), 0);
    }
    assert_true(store.account.bytes - before <= 2 << 20);
    read_replies(1, &reply);
    assert_int_equal(buf_size(&reply), 8 + 8 * (size_t)LARGE);
    assert_int_equal(buf_bytes(&reply)[buf_size(&reply) - 1], 'x');
    buf_finish(&reply);
    set_key(0, "/v", text("1")); /* and the old one goes in turns */
    assert_true(store.account.bytes > 32 << 20);
    while (store_clean(&store, STORE_TURN_UNITS))
        ;
    assert_true(store.account.bytes < 1 << 20);
}

/* ---- what others see between two turns ---- */

static void check_listing(unsigned i, struct buf *reply, size_t expected)
{
    struct wire_span list, key;
    size_t n = 0;
    static bool seen[N_MANY];

    memset(seen, 0, sizeof(seen));
    read_replies(i, reply);
    assert_int_equal(wire_load_u64(buf_bytes(reply)), expected);
    list = wire_span(buf_bytes(reply) + 8, buf_size(reply) - 8);
    for (; wire_next_key(&list, &key); n++) {
        char text[32];
        size_t k;

        (void)snprintf(text, sizeof(text), "%.*s", (int)key.size, (const char *)key.data);
        k = strtoul(text + 6, NULL, 10);
        assert_true(k < N_MANY && !seen[k]);
        seen[k] = true;
    }
    assert_int_equal(n, expected);
    assert_int_equal(list.size, 0);
    buf_finish(reply);
}

static void begin_listing(unsigned i)
{
    assert_int_equal(wire_put_plain(new_message(i), WIRE_OP_LIST_KEYS), 0);
    begin(i);
    assert_int_equal(turn(i), STORE_MORE);
}

static void end_listing(unsigned i, size_t expected)
{
    struct buf reply = {0};
    int r;

    do {
        read_replies(i, &reply);
        r = turn(i);
    } while (r == STORE_MORE);
    assert_int_equal(r, 0);
    check_listing(i, &reply, expected);
}

/* A list of keys is the keys at the time of the request, whatever is created and deleted until it is read. */
static void test_list_keys_is_a_snapshot(void **state)
{
    uint64_t before;

    (void)state;
    set_many(0);
    (void)store_clean(&store, UINT64_MAX);
    begin_listing(1);
    for (size_t i = 0; i < N_MANY; i += 2)
        delete_key(0, many_text[i]);
    begin_listing(2); /* this one has the other half only */
    for (size_t i = 0; i < N_MANY; i += 4)
        set_key(0, many_text[i], text("again"));
    for (size_t i = 1; i < N_MANY; i += 4)
        delete_key(0, many_text[i]);
    begin_listing(3);
    end_listing(1, N_MANY);
    end_listing(2, N_MANY / 2);
    end_listing(3, N_MANY / 2);
    while (store_clean(&store, STORE_TURN_UNITS))
        ;
    assert_int_equal(store.ghost_bytes, 0);
    before = store.account.bytes;
    delete_key(0, many_text[3]); /* without a listing there is no ghost */
    assert_true(store.account.bytes < before);
}

/* Reads slowly while others delete without end: the store keeps a bounded part of it. */
static void test_a_listing_that_is_not_read_does_not_fill_the_store(void **state)
{
    static char name[8000];
    int r = 0;

    (void)state;
    set_many(0);
    begin_listing(1);
    assert_int_equal(clients[1].client.task.active, true);
    memset(name, 'n', sizeof(name) - 1);
    for (int i = 0; i < 20000; i++) {
        (void)snprintf(name, 16, "/churn/%08d", i);
        name[15] = 'n';
        set_key(0, name, text(""));
        if (i == 0)
            begin_listing(2); /* sees this one */
        delete_key(0, name);
        assert_true(store.ghost_bytes <= STORE_GHOSTS_MAX);
    }
    for (unsigned i = 1; i <= 2; i++) {
        do {
            outbox_consume(&clients[i].out, outbox_size(&clients[i].out));
            r = turn(i);
        } while (r == STORE_MORE);
        assert_int_equal(r, 0); /* names that no listing shows are no reason to break one */
    }
    assert_true(store.ghost_bytes < 3 * sizeof(name));
}

static void test_too_many_ghosts_break_a_listing(void **state)
{
    static char name[8000];
    int r;

    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    for (int i = 0; i < 10000; i++) {
        (void)snprintf(name, 16, "/large/%08d", i);
        name[15] = 'n';
        set_key(0, name, text(""));
    }
    begin_listing(1);
    for (int i = 0; i < 10000; i++) {
        (void)snprintf(name, 16, "/large/%08d", i);
        name[15] = 'n';
        delete_key(0, name);
        assert_true(store.ghost_bytes <= STORE_GHOSTS_MAX);
    }
    do {
        outbox_consume(&clients[1].out, outbox_size(&clients[1].out));
        r = turn(1);
    } while (r == STORE_MORE);
    assert_int_equal(r, STORE_E_LISTING);
    while (store_clean(&store, STORE_TURN_UNITS))
        ;
    assert_int_equal(store.ghost_bytes, 0);
}

/* A client whose owner has more than its share by now deletes a key: what a listing of others needs for it is not the owner's. */
static void test_a_listing_survives_an_owner_above_its_share(void **state)
{
    (void)state;
    assert_int_equal(store_share_out(&store, 2), 0);
    set_many(0);
    clients[2].client.owner = 1;
    set_key(2, "of the owner", text("v"));
    (void)store_clean(&store, UINT64_MAX);
    store.limits.bytes_max = store.account.bytes + store.account.shares[1].bytes;
    begin_listing(1);
    delete_key(2, many_text[0]);
    assert_true(store.ghost_bytes > 0);
    delete_key(2, "of the owner");
    store.limits.bytes_max = UINT64_MAX;
    outbox_consume(&clients[1].out, outbox_size(&clients[1].out));
    int r = STORE_MORE;
    while (r == STORE_MORE) {
        outbox_consume(&clients[1].out, outbox_size(&clients[1].out));
        r = turn(1);
    }
    assert_int_equal(r, 0);
}

/* The values of one turn's keys are those of one moment, however late they are read. */
static void test_multi_get_is_a_snapshot(void **state)
{
    struct wire_span keys[20];
    struct buf reply = {0};
    int r;

    (void)state;
    name_many();
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        keys[i] = many[i];
        set_key(0, many_text[i], wire_span(large, OUTBOX_COPY_MAX));
    }
    assert_int_equal(wire_put_keys(new_message(1), WIRE_OP_MULTI_GET, keys, ARRAY_SIZE(keys)), 0);
    begin(1);
    assert_int_equal(turn(1), STORE_MORE);
    set_key(0, many_text[18], text("new"));
    delete_key(0, many_text[19]);
    assert_int_equal(wire_put_key_value(new_message(0), WIRE_OP_APPEND, many[17], text("more")), 0);
    begin(0);
    assert_int_equal(turn(0), 0);
    do {
        read_replies(1, &reply);
        r = turn(1);
    } while (r == STORE_MORE);
    read_replies(1, &reply);
    assert_int_equal(r, 0);
    assert_int_equal(buf_size(&reply), ARRAY_SIZE(keys) * (8 + OUTBOX_COPY_MAX));
    buf_finish(&reply);
}

/* The value changes while it is compared: the reply is about the one that is there at the end. */
static void test_compare_set_of_a_value_that_changes(void **state)
{
    struct wire_span expected = wire_span(large, LARGE);
    struct buf reply = {0};

    (void)state;
    set_key(0, "/v", expected);
    assert_int_equal(wire_put_compare_set(new_message(1), text("/v"), expected, text("desired")), 0);
    begin(1);
    assert_int_equal(turn(1), STORE_MORE);
    set_key(0, "/v", text("other"));
    assert_int_equal(turn(1), 0);
    read_replies(1, &reply);
    assert_int_equal(buf_size(&reply), 8 + 5);
    assert_memory_equal(buf_bytes(&reply) + 8, "other", 5);
    buf_reset(&reply);

    set_key(0, "/v", expected);
    begin(1);
    while (turn(1) == STORE_MORE)
        ;
    read_replies(1, &reply);
    assert_memory_equal(buf_bytes(&reply) + 8, "desired", 7);
    buf_finish(&reply);
}

/* A number that begins, or goes on, behind the first 4 KiB of a value is none. */
static void test_numbers_are_looked_for_at_the_start(void **state)
{
    (void)state;
    memset(large, ' ', LARGE);
    memcpy(large + 5000, "5", 1);
    set_key(0, "/n", wire_span(large, LARGE));
    assert_int_equal(wire_put_key_amount(new_message(0), WIRE_OP_ADD, text("/n"), 1), 0);
    begin(0);
    assert_int_equal(turn(0), STORE_E_NUMBER);
    close_client(0);
    memcpy(large + 4000, "41 ", 3);
    set_key(0, "/n", wire_span(large, LARGE));
    assert_int_equal(wire_put_key_amount(new_message(0), WIRE_OP_ADD, text("/n"), 1), 0);
    begin(0);
    assert_int_equal(turn(0), 0);
    assert_int_equal(wire_load_u64(buf_bytes(&clients[0].out.bytes)), 42);
}

/* ---- the clock ---- */

static uint64_t thread_ns(void)
{
    struct timespec t;

    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* No assertion: the figure is for the log of the test. What bounds a turn is counted above. */
static void test_print_the_longest_turn(void **state)
{
    uint64_t longest = 0, n = 0;
    int r;

    (void)state;
    name_many();
    assert_int_equal(wire_put_multi_set(new_message(0), many, empty, N_MANY), 0);
    begin(0);
    do {
        uint64_t before = thread_ns(), spent;

        r = turn(0);
        spent = thread_ns() - before;
        longest = spent > longest ? spent : longest;
        n++;
    } while (r == STORE_MORE);
    print_message("MULTI_SET of %d new keys: %llu turns, the longest %.3f ms of thread CPU time\n", N_MANY,
                  (unsigned long long)n, (double)longest / 1e6);
    assert_int_equal(r, 0);
}

int main(void)
{
#define TURN_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TURN_TEST(test_multi_set_is_cut),
        TURN_TEST(test_list_keys_is_cut),
        TURN_TEST(test_replies_that_are_not_read_are_bounded),
        TURN_TEST(test_check_and_wait_are_cut),
        TURN_TEST(test_a_large_wait_is_taken_apart_in_turns),
        TURN_TEST(test_many_waiters_are_released_in_turns),
        TURN_TEST(test_a_writer_that_leaves_releases_all),
        TURN_TEST(test_a_large_value_is_stored_in_one_piece),
        TURN_TEST(test_append_never_copies_what_is_there),
        TURN_TEST(test_list_keys_is_a_snapshot),
        TURN_TEST(test_a_listing_that_is_not_read_does_not_fill_the_store),
        TURN_TEST(test_a_listing_survives_an_owner_above_its_share),
        TURN_TEST(test_too_many_ghosts_break_a_listing),
        TURN_TEST(test_multi_get_is_a_snapshot),
        TURN_TEST(test_compare_set_of_a_value_that_changes),
        TURN_TEST(test_numbers_are_looked_for_at_the_start),
        TURN_TEST(test_print_the_longest_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
