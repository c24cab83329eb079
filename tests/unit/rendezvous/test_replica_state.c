/*
 * A copy that is made of a replica between two of its entries: from then on both come to the same, whatever follows.
 *
 * The seed is printed on failure; CRUN_REPLICA_SEED runs one again.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "rendezvous/relay/replica_state.h"
#include "rendezvous/store/store_entry.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/replica_nodes.h"

enum {
    N_NODES = 3,
    N_WORLDS = 60,
    N_COPIES = 20,
    N_BEFORE = 60,
    N_AFTER = 60,
    MANY_KEYS = 100,
    LONG = 70000
};

static const struct wire_limits wire_limits = {
    .key_max = 1u << 20, .value_max = 8u << 20, .keys_max = 1024, .message_max = 16u << 20};
static const uint8_t no_seed[SIPHASH_SEED_SIZE];
static unsigned seed;

struct side {
    struct store store;
    struct replica replica;
};

static struct world {
    struct side *a, *b;               /* b: the copy; NULL: there is none */
    struct replica_node *of[N_NODES]; /* on a */
    unsigned n_made;
    uint64_t last_id[N_NODES];
    struct buf unfinished[N_NODES]; /* the rest of a request of which pieces were sent */
} w;

static unsigned below(unsigned n)
{
    return (unsigned)(random() % n);
}

/* ---- sides ---- */

static struct replica_node *make_replica_node(void *data, const uint8_t *nonce)
{
    struct side *s = data;

    return new_replica_node(&s->store, &wire_limits, nonce);
}

static void free_replica_node(void *data, struct replica_node *n, int reason)
{
    struct side *s = data;

    for (unsigned i = 0; s == w.a && i < N_NODES; i++)
        if (w.of[i] == n)
            w.of[i] = NULL;
    free(n);
}

static struct side *open_side(uint64_t bytes_max)
{
    struct side *s = calloc(1, sizeof(*s));
    const struct store_limits limits = {.keys_max = 1000, .bytes_max = bytes_max, .waiters_max = 100};

    assert_non_null(s);
    const struct replica_host host = {.create = make_replica_node,
                                      .created = note_nothing,
                                      .dropped = free_replica_node,
                                      .has_output = note_nothing,
                                      .data = s};
    assert_int_equal(store_init(&s->store, &limits, no_seed), 0);
    replica_init(&s->replica, &s->store, &host);
    return s;
}

static void close_side(struct side *s)
{
    for (uint32_t i = 0; s && i < s->replica.n_numbers; i++) {
        struct replica_node *n = s->replica.by_number[i];

        if (!n)
            continue;
        replica_forget(&s->replica, n);
        relay_node_finish(&n->node);
        free(n);
    }
    if (!s)
        return;
    replica_finish(&s->replica);
    store_finish(&s->store);
    free(s);
}

static void open_world(uint64_t bytes_max)
{
    memset(&w, 0, sizeof(w));
    w.a = open_side(bytes_max);
    w.a->replica.is_alone = true;
}

static void close_world(void)
{
    close_side(w.a);
    close_side(w.b);
    for (unsigned i = 0; i < N_NODES; i++)
        buf_reset(&w.unfinished[i]);
}

/* ---- entries ---- */

static void pass_on(int result, struct wire_span entry)
{
    assert_int_equal(result, 0);
    if (w.b)
        assert_int_equal(replica_receive(&w.b->replica, entry.data, entry.size), 0);
}

static struct replica_node *node(unsigned i)
{
    const uint8_t nonce[RELAY_NONCE_SIZE] = {(uint8_t)i, (uint8_t)(w.n_made & 0xff),
                                             (uint8_t)(w.n_made >> 8)};
    struct wire_span entry;

    if (w.of[i])
        return w.of[i];
    w.n_made++;
    w.of[i] = make_replica_node(w.a, nonce);
    pass_on(replica_append_node(&w.a->replica, w.of[i], &entry), entry);
    buf_reset(&w.unfinished[i]);
    return w.of[i];
}

static void send_frame(unsigned i, enum relay_kind kind, struct wire_span head, struct wire_span rest)
{
    struct replica_node *n = node(i);
    struct relay_link peer = {0};
    struct wire_span entry;

    assert_int_equal(relay_link_put(&peer, kind, head, rest), 0);
    if (kind != RELAY_ACK) { /* as relay_link_split() */
        n->node.link.split += buf_size(&peer.unacked);
        n->node.link.arrived++;
    }
    pass_on(replica_append_frame(&w.a->replica, n,
                                 wire_span(buf_bytes(&peer.unacked), buf_size(&peer.unacked)), &entry),
            entry);
    relay_link_finish(&peer);
}

static void send_numbers(unsigned i, enum relay_kind kind, uint64_t a, uint64_t b, size_t n,
                         struct wire_span rest)
{
    struct buf head = {0};

    assert_int_equal(buf_append_u64(&head, a), 0);
    assert_int_equal(buf_append_u64(&head, b), 0);
    send_frame(i, kind, wire_span(buf_bytes(&head), 8 * n), rest);
    buf_finish(&head);
}

/* Pieces as long as they may be, or as the caller wants; the end of the request stays in w.unfinished. */
static void send_pieces(unsigned i, size_t most)
{
    struct buf *rest = &w.unfinished[i];

    for (; buf_size(rest) > 1 && (buf_size(rest) > RELAY_PIECE_MAX || most > 0); most = 0) {
        size_t n = most > 0 && most < buf_size(rest) ? most : buf_size(rest) - 1;

        n = n < RELAY_PIECE_MAX ? n : RELAY_PIECE_MAX;
        send_frame(i, RELAY_REQUEST_PIECE, wire_span(NULL, 0), wire_span(buf_bytes(rest), n));
        buf_consume(rest, n);
    }
}

static void end_pieces(unsigned i, uint64_t promise)
{
    struct buf *rest = &w.unfinished[i];

    if (buf_size(rest) == 0)
        return;
    while (buf_size(rest) > RELAY_PIECE_MAX)
        send_pieces(i, RELAY_PIECE_MAX);
    send_numbers(i, RELAY_REQUEST, ++w.last_id[i], promise, 2, wire_span(buf_bytes(rest), buf_size(rest)));
    buf_reset(rest);
}

static void request(unsigned i, struct buf *message, uint64_t promise)
{
    (void)node(i);
    end_pieces(i, 0);
    assert_int_equal(buf_append(&w.unfinished[i], buf_bytes(message), buf_size(message)), 0);
    buf_reset(message);
    end_pieces(i, promise);
}

static void acknowledge(unsigned i, uint64_t end)
{
    send_numbers(i, RELAY_ACK, end, 0, 1, wire_span(NULL, 0));
}

static void drop(unsigned i)
{
    struct wire_span entry;

    if (w.of[i] && !w.of[i]->is_dropped)
        pass_on(replica_append_drop(&w.a->replica, w.of[i], &entry), entry);
}

static void run(void)
{
    assert_int_equal(replica_run_all(&w.a->replica), 0);
    if (w.b)
        assert_int_equal(replica_run_all(&w.b->replica), 0);
}

/* ---- the copy ---- */

static void write_state(struct replica *r, struct buf *state, size_t *ret_first)
{
    struct replica_state_writer writer;

    replica_state_writer_init(&writer, r);
    while (writer.stage != REPLICA_WRITE_DONE) {
        size_t before = buf_size(state);

        assert_int_equal(replica_state_write(&writer, state), 0);
        assert_true(buf_size(state) - before <= REPLICA_STATE_PIECE_MAX);
        if (ret_first && *ret_first == 0)
            *ret_first = buf_size(state);
    }
}

static int read_state(struct side *s, const uint8_t *bytes, size_t size)
{
    struct replica_state_reader reader;

    s->replica.is_backup = true;
    replica_state_reader_init(&reader, &s->replica);
    int r = replica_state_read(&reader, wire_span(bytes, size));
    bool is_done = reader.is_done;
    replica_state_reader_finish(&reader);
    return r < 0 ? r : is_done;
}

/* What there is in the log follows. */
static void copy(void)
{
    struct buf state = {0}, again = {0};
    struct wire_span entry;
    size_t offset = 0;

    close_side(w.b);
    w.b = open_side(w.a->store.limits.bytes_max);
    write_state(&w.a->replica, &state, NULL);
    assert_int_equal(read_state(w.b, buf_bytes(&state), buf_size(&state)), 1);
    write_state(&w.b->replica, &again, NULL);
    assert_int_equal(buf_size(&state), buf_size(&again));
    buf_finish(&state);
    buf_finish(&again);
    while (replica_next_entry(&w.a->replica, &offset, &entry))
        assert_int_equal(replica_receive(&w.b->replica, entry.data, entry.size), 0);
}

static void check_bytes(const struct buf *a, const struct buf *b)
{
    assert_int_equal(buf_size(a), buf_size(b));
    if (buf_size(a) > 0)
        assert_memory_equal(buf_bytes(a), buf_bytes(b), buf_size(a));
}

static void check_keys(void)
{
    struct list *b = w.b->store.keys.next;

    list_for_each(a, &w.a->store.keys)
    {
        const struct store_entry *x =
            list_entry(list_entry(a, struct store_key, link), struct store_entry, key);
        const struct store_entry *y =
            list_entry(list_entry(b, struct store_key, link), struct store_entry, key);

        assert_true(b != &w.b->store.keys);
        assert_true(store_entry_is(x, wire_span(y->bytes, y->key_size)));
        assert_int_equal(x->value->total, y->value->total);
        assert_int_equal(x->key.born, y->key.born);
        b = b->next;
    }
    assert_true(b == &w.b->store.keys);
}

/* Both have sent each node the same, and have the same account. */
static void check_sides(void)
{
    assert_int_equal(w.a->replica.n_numbers, w.b->replica.n_numbers);
    for (uint32_t i = 0; i < w.a->replica.n_numbers; i++) {
        const struct replica_node *x = w.a->replica.by_number[i], *y = w.b->replica.by_number[i];

        assert_int_equal(!x, !y);
        if (!x)
            continue;
        assert_memory_equal(x->nonce, y->nonce, sizeof(x->nonce));
        assert_int_equal(x->node.link.next, y->node.link.next);
        assert_int_equal(x->node.link.base, y->node.link.base);
        assert_int_equal(x->node.link.arrived, y->node.link.arrived);
        assert_int_equal(x->node.link.taken, y->node.link.taken);
        assert_int_equal(x->node.n_waits, y->node.n_waits);
        assert_int_equal(x->node.stage, y->node.stage);
        check_bytes(&x->node.link.unacked, &y->node.link.unacked);
        check_bytes(&x->node.message, &y->node.message);
    }
    assert_int_equal(w.a->replica.executed, w.b->replica.executed);
    assert_int_equal(w.a->store.account.bytes, w.b->store.account.bytes);
    assert_int_equal(w.a->store.n_keys, w.b->store.n_keys);
    assert_int_equal(w.a->store.n_waiting, w.b->store.n_waiting);
    assert_int_equal(w.a->store.last_number, w.b->store.last_number);
    assert_int_equal(w.a->store.names.used, w.b->store.names.used);
    check_keys();
}

/* ---- requests ---- */

static struct wire_span text(const char *t)
{
    return wire_span(t, strlen(t));
}

static char long_text[LONG];

static struct wire_span some_key(void)
{
    static const char *const keys[] = {"/a", "/b", "", "/c", "/d", "/e", "/f"};
    unsigned i = below(ARRAY_SIZE(keys) + 1);

    return i < ARRAY_SIZE(keys) ? text(keys[i]) : wire_span(long_text, LONG);
}

static struct wire_span some_queue(void)
{
    static const char *const keys[] = {"/q", "/r"};

    return text(keys[below(2)]);
}

/* Now and then one that is copied in steps, or grows by parts. */
static struct wire_span some_value(void)
{
    static const char *const values[] = {"",  "7", "-3", "x", "some longer value, beyond a counter's room",
                                         "12"};

    return below(12) == 0 ? wire_span(long_text, below(LONG)) : text(values[below(ARRAY_SIZE(values))]);
}

static void put_many_keys(struct buf *m)
{
    char names[MANY_KEYS][8];
    struct wire_span keys[MANY_KEYS];

    for (unsigned i = 0; i < MANY_KEYS; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "/m%u", i);
        keys[i] = text(names[i]);
    }
    assert_int_equal(wire_put_keys(m, WIRE_OP_WAIT, keys, MANY_KEYS), 0);
}

static void put_random_request(struct buf *m)
{
    struct wire_span several[] = {some_key(), some_key(), some_queue()},
                     values[] = {some_value(), some_value()};
    static const enum wire_op plain[] = {WIRE_OP_GET, WIRE_OP_DELETE_KEY, WIRE_OP_DELETE_KEY};
    int r = 0;

    switch (below(16)) {
    case 0:
    case 1:
        r = wire_put_key_value(m, WIRE_OP_SET, some_key(), some_value());
        break;
    case 2:
    case 3:
    case 4:
        r = wire_put_key_value(m, WIRE_OP_APPEND, some_key(), some_value());
        break;
    case 5:
        r = wire_put_key_amount(m, WIRE_OP_ADD, some_key(), (int64_t)below(9) - 4);
        break;
    case 6:
        r = wire_put_compare_set(m, some_key(), some_value(), some_value());
        break;
    case 7:
        r = wire_put_multi_set(m, several, values, 2);
        break;
    case 8:
        r = wire_put_key_amount(m, WIRE_OP_BARRIER, text("/barrier"), below(20));
        break;
    case 9:
    case 10:
        r = wire_put_keys(m, WIRE_OP_WAIT, several, 1 + below(3));
        break;
    case 11:
        r = wire_put_keys(m, WIRE_OP_WAIT, several + 2, 1);
        break;
    case 12:
        r = wire_put_key_value(m, WIRE_OP_QUEUE_PUSH, some_queue(), some_value());
        break;
    case 13:
        put_many_keys(m);
        break;
    case 14:
        r = wire_put_plain(m, below(3) ? WIRE_OP_GETNUMKEYS : WIRE_OP_LIST_KEYS);
        break;
    default:
        r = wire_put_key(m, plain[below(ARRAY_SIZE(plain))], some_key());
        break;
    }
    assert_int_equal(r, 0);
}

static void pop(unsigned i)
{
    uint64_t promise = (UINT64_C(1) << 63) | (node(i)->node.last_promise - below(3));
    struct buf m = {0};

    assert_int_equal(wire_put_key(&m, WIRE_OP_QUEUE_POP, some_queue()), 0);
    request(i, &m, below(2) ? promise : 0);
}

static void begin_pieces(unsigned i)
{
    struct buf m = {0};

    (void)node(i);
    end_pieces(i, 0);
    assert_int_equal(wire_put_key_value(&m, WIRE_OP_SET, text("/half"), wire_span(long_text, LONG)), 0);
    assert_int_equal(buf_append(&w.unfinished[i], buf_bytes(&m), buf_size(&m)), 0);
    buf_reset(&m);
    send_pieces(i, 1 + below(LONG / 2));
}

static void random_entry(void)
{
    unsigned i = below(N_NODES);
    struct buf m = {0};

    if (w.of[i] && w.of[i]->is_dropped)
        run();
    switch (below(20)) {
    case 0:
        if (below(4) == 0)
            drop(i);
        return;
    case 1:
        begin_pieces(i);
        return;
    case 2:
    case 3:
        pop(i);
        return;
    case 4:
        send_numbers(i, RELAY_FORGET, 1 + below((unsigned)w.last_id[i] + 1), 0, 1, wire_span(NULL, 0));
        return;
    case 5:
        send_numbers(i, RELAY_FORGET, (UINT64_C(1) << 63) | (node(i)->node.last_promise - below(2)), 0, 1,
                     wire_span(NULL, 0));
        return;
    case 6:
    case 7:
        run();
        acknowledge(i, node(i)->node.link.next -
                           below(node(i)->node.link.next > node(i)->node.link.base ? 2 : 1));
        return;
    default:
        put_random_request(&m);
        request(i, &m, 0);
        return;
    }
}

/* ---- tests ---- */

static bool copy_when_quiet(void)
{
    if (!replica_state_is_quiet(&w.a->replica))
        return false;
    for (unsigned i = below(8); i > 0; i--)
        random_entry(); /* in the log */
    if (!replica_state_is_quiet(&w.a->replica))
        return false; /* they were executed */
    copy();
    return true;
}

static void test_what_follows_a_copy_is_the_same(void **state)
{
    unsigned n_copies = 0;

    for (unsigned i = 0; i < N_WORLDS; i++) {
        open_world(below(3) ? UINT64_MAX : 200000 + below(1000000));
        for (unsigned c = 0; c < N_COPIES; c++) {
            for (unsigned n = below(N_BEFORE); n > 0; n--)
                random_entry();
            run();
            if (!copy_when_quiet())
                continue;
            n_copies++;
            for (unsigned n = below(N_AFTER); n > 0; n--)
                random_entry();
            run();
            check_sides();
        }
        close_world();
    }
    assert_true(n_copies > N_WORLDS * N_COPIES / 4);
}

static void test_a_copy_of_nothing(void **state)
{
    open_world(UINT64_MAX);
    copy();
    check_sides();
    random_entry();
    run();
    check_sides();
    close_world();
}

/* A node that has not acknowledged what it was sent is between two requests only when all of the reply is sent. */
static void test_a_long_reply_is_waited_for(void **state)
{
    static char value[3 << 20];
    struct buf m = {0};

    open_world(UINT64_MAX);
    assert_int_equal(wire_put_key_value(&m, WIRE_OP_SET, text("/k"), wire_span(value, sizeof(value))), 0);
    request(0, &m, 0);
    assert_int_equal(wire_put_key(&m, WIRE_OP_GET, text("/k")), 0);
    request(0, &m, 0);
    run();
    assert_false(replica_state_is_quiet(&w.a->replica));
    while (w.of[0]->node.stage != RELAY_RECEIVING) {
        acknowledge(0, w.of[0]->node.link.next);
        run();
    }
    assert_true(replica_state_is_quiet(&w.a->replica));
    copy();
    assert_int_equal(wire_put_key(&m, WIRE_OP_GET, text("/k")), 0);
    request(1, &m, 0);
    run();
    check_sides();
    close_world();
}

static void test_nothing_is_begun_while_it_is_held(void **state)
{
    struct buf m = {0};

    open_world(UINT64_MAX);
    (void)node(0);
    run();
    w.a->replica.is_held = true;
    assert_int_equal(wire_put_plain(&m, WIRE_OP_GETNUMKEYS), 0);
    request(0, &m, 0);
    assert_false(replica_is_busy(&w.a->replica));
    run();
    assert_int_equal(w.of[0]->node.link.next, 0);
    w.a->replica.is_held = false;
    run();
    assert_int_equal(w.of[0]->node.link.next, 1);
    close_world();
}

/* Each byte of a state, and each length of it: it is refused or not, and all memory is given back. */
static void test_a_broken_state(void **state)
{
    struct buf bytes = {0};

    open_world(UINT64_MAX);
    for (unsigned i = 0; i < 40; i++)
        random_entry();
    run();
    while (!replica_state_is_quiet(&w.a->replica)) {
        for (unsigned i = 0; i < N_NODES; i++)
            acknowledge(i, node(i)->node.link.next);
        run();
    }
    write_state(&w.a->replica, &bytes, NULL);
    size_t size = buf_size(&bytes), step = size / 3000 + 1;
    for (size_t i = 0; i < size; i += i < 2000 || i > size - 2000 ? 1 : step) {
        struct side *s = open_side(UINT64_MAX);

        assert_true(read_state(s, buf_bytes(&bytes), i) != 1);
        close_side(s);
        s = open_side(UINT64_MAX);
        buf_bytes(&bytes)[i] ^= (uint8_t)(1u << below(8));
        (void)read_state(s, buf_bytes(&bytes), size);
        close_side(s);
        struct side *whole = open_side(1 + below(1000));
        (void)read_state(whole, buf_bytes(&bytes), size);
        close_side(whole);
        if (i % 7 == 0) {
            buf_reset(&bytes);
            write_state(&w.a->replica, &bytes, NULL);
        }
    }
    buf_finish(&bytes);
    close_world();
}

int main(void)
{
    const char *given = getenv("CRUN_REPLICA_SEED");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_follows_a_copy_is_the_same),
        cmocka_unit_test(test_a_copy_of_nothing),
        cmocka_unit_test(test_a_long_reply_is_waited_for),
        cmocka_unit_test(test_nothing_is_begun_while_it_is_held),
        cmocka_unit_test(test_a_broken_state),
    };

    memset(long_text, 'l', sizeof(long_text));
    seed = given ? (unsigned)atoi(given) : 4711;
    srandom(seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
