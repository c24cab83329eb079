/*
 * Nodes whose clients' requests are forwarded to one store, over connections that are cut anywhere. What their clients
 * receive is compared with a store that they all use directly.
 *
 * The seed is printed on failure; CRUN_RELAY_SEED runs one again.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "rendezvous/relay/relay.h"
#include "rendezvous/relay/relay_node.h"
#include "rendezvous/store/store.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_NODES = 3, N_LOCAL = 4, N_CLIENTS = N_NODES * N_LOCAL, N_STEPS = 3000 };

/* Names may be longer than a frame. */
static const struct wire_limits wire_limits = {
    .key_max = 1u << 20, .value_max = 8u << 20, .keys_max = 131072, .message_max = 128u << 20};
static const uint8_t no_seed[SIPHASH_SEED_SIZE];
static unsigned seed;

struct local {
    struct relay_client relayed;
    struct buf todo; /* requests that have to wait */
    struct buf got;
    bool closed;
    struct store_client plain;
    struct buf expected;
    bool plain_closed;
};

struct node {
    struct store_relay relay;
    struct relay_node at_server;
    struct buf up, down;   /* under way */
    uint64_t n_up, n_down; /* bytes delivered in all */
    uint64_t cut_up, cut_down;
    unsigned n_cuts;
};

static struct world {
    struct store store, plain;
    struct node nodes[N_NODES];
    struct local locals[N_CLIENTS];
    bool holds; /* nothing is delivered */
} w;

static unsigned below(unsigned n)
{
    return (unsigned)(random() % n);
}

static struct node *node_of(const struct local *l)
{
    return &w.nodes[(l - w.locals) / N_LOCAL];
}

/* ---- the network ---- */

static void connect_node(struct node *n)
{
    assert_int_equal(relay_link_resume(&n->at_server.link, n->relay.link.arrived), 0);
    assert_int_equal(relay_resume(&n->relay, n->at_server.link.arrived), 0);
}

static void cut_node(struct node *n)
{
    buf_reset(&n->up);
    buf_reset(&n->down);
    relay_link_down(&n->relay.link);
    relay_link_down(&n->at_server.link);
    n->n_cuts++;
    connect_node(n);
}

/* Up to where bytes are delivered before the connection is cut. */
static size_t piece_of(const struct buf *b, uint64_t n_before, uint64_t cut)
{
    size_t n = buf_size(b) > 1 && below(2) ? 1 + below((unsigned)buf_size(b)) : buf_size(b);

    return cut > n_before && n > cut - n_before ? (size_t)(cut - n_before) : n;
}

static void run_server(struct node *n)
{
    struct store_budget budget = {.units = 1 + below(STORE_TURN_UNITS), .turn = STORE_TURN_UNITS};

    assert_true(relay_node_run(&n->at_server, &budget) >= 0);
    while (!list_is_empty(&w.store.released)) {
        struct store_client *c = list_entry(w.store.released.next, struct store_client, released);

        list_unlink(&c->released);
        assert_true(c->relayed);
        (void)relay_node_release(c);
    }
}

/* True: something moved. */
static bool move_bytes(struct node *n)
{
    size_t up, down;

    assert_int_equal(relay_link_output(&n->relay.link, &n->up), 0);
    up = piece_of(&n->up, n->n_up, n->cut_up);
    if (up > 0)
        assert_int_equal(relay_link_receive(&n->at_server.link, buf_bytes(&n->up), up), 0);
    buf_consume(&n->up, up);
    n->n_up += up;
    run_server(n);
    assert_int_equal(relay_link_output(&n->at_server.link, &n->down), 0);
    down = piece_of(&n->down, n->n_down, n->cut_down);
    if (down > 0)
        assert_int_equal(relay_receive(&n->relay, buf_bytes(&n->down), down), 0);
    buf_consume(&n->down, down);
    n->n_down += down;
    if ((up > 0 && n->n_up == n->cut_up) || (down > 0 && n->n_down == n->cut_down))
        cut_node(n);
    return up > 0 || down > 0 || n->at_server.stage != RELAY_RECEIVING ||
           buf_size(&n->at_server.link.queue) > 0;
}

/* ---- clients ---- */

static void close_local(struct local *l)
{
    l->closed = true;
    buf_reset(&l->todo);
    relay_client_finish(&node_of(l)->relay, &l->relayed);
    relay_client_init(&l->relayed);
}

/* Gives the requests that wait, as far as they are taken. */
static void give_todo(struct local *l)
{
    while (!l->closed && buf_size(&l->todo) > 0) {
        struct wire_scanner scanner = {0};
        struct wire_request request;
        struct outbox out = {0};
        size_t size;

        assert_int_equal(
            wire_decode(&scanner, &wire_limits, buf_bytes(&l->todo), buf_size(&l->todo), &request, &size), 0);
        int r = relay_apply(&node_of(l)->relay, &l->relayed, &request, buf_bytes(&l->todo), size, &out);
        assert_int_equal(buf_append(&l->got, buf_bytes(&out.bytes), buf_size(&out.bytes)), 0);
        outbox_finish(&out);
        if (r == RELAY_LATER)
            return;
        buf_consume(&l->todo, size);
        if (r != 0)
            close_local(l);
    }
}

static void serve_ready(struct node *n)
{
    struct relay_client *c;

    while ((c = relay_next_ready(&n->relay))) {
        struct local *l = list_entry(c, struct local, relayed);

        (void)buf_append(&l->got, buf_bytes(&c->reply), buf_size(&c->reply));
        buf_reset(&c->reply);
        if (c->failure != 0)
            close_local(l);
        else
            give_todo(l);
    }
}

static void settle(void)
{
    bool moved = true;

    while (moved && !w.holds) {
        moved = false;
        for (unsigned i = 0; i < N_NODES; i++) {
            moved = move_bytes(&w.nodes[i]) || moved;
            serve_ready(&w.nodes[i]);
        }
        (void)store_clean(&w.store, STORE_TURN_UNITS);
    }
}

static void apply_plain(struct local *l, struct wire_span message)
{
    struct store_budget budget = STORE_BUDGET_NONE;
    struct wire_scanner scanner = {0};
    struct wire_request request;
    struct outbox out = {0};
    struct iovec iov[64];
    size_t size;

    assert_int_equal(wire_decode(&scanner, &wire_limits, message.data, message.size, &request, &size), 0);
    int r = store_apply(&w.plain, &l->plain, &request, &out, &budget);
    if (r == 0) {
        int n = outbox_iov(&out, iov, 64);
        for (int i = 0; i < n; i++)
            (void)buf_append(&l->expected, iov[i].iov_base, iov[i].iov_len);
    } else {
        l->plain_closed = true;
    }
    outbox_finish(&out);
    while (!list_is_empty(&w.plain.released)) {
        struct list *entry = w.plain.released.next;
        struct local *other =
            list_entry(list_entry(entry, struct store_client, released), struct local, plain);

        list_unlink(entry);
        (void)buf_append_u8(&other->expected, WIRE_WAIT_STOP);
    }
}

/* The request goes both ways. */
static void give(struct local *l, struct buf *message)
{
    apply_plain(l, wire_span(buf_bytes(message), buf_size(message)));
    assert_int_equal(buf_append(&l->todo, buf_bytes(message), buf_size(message)), 0);
    buf_reset(message);
    give_todo(l);
}

static void assert_same(const struct buf *a, const struct buf *b)
{
    if (buf_size(a) != buf_size(b))
        print_error("seed %u\n", seed);
    assert_int_equal(buf_size(a), buf_size(b));
    if (buf_size(a) > 0)
        assert_memory_equal(buf_bytes(a), buf_bytes(b), buf_size(a));
}

static void check_locals(void)
{
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        struct local *l = &w.locals[i];

        assert_int_equal(l->closed, l->plain_closed);
        if (!l->closed)
            assert_same(&l->got, &l->expected);
        buf_reset(&l->got);
        buf_reset(&l->expected);
    }
}

/* A closed client connects again. */
static void reopen(struct local *l)
{
    store_client_finish(&w.plain, &l->plain);
    store_client_init(&l->plain);
    if (!l->closed)
        close_local(l);
    l->closed = l->plain_closed = false;
    buf_reset(&l->got);
    buf_reset(&l->expected);
}

/* ---- life ---- */

static void open_world(const struct store_limits *limits)
{
    memset(&w, 0, sizeof(w));
    assert_int_equal(store_init(&w.store, limits, no_seed), 0);
    assert_int_equal(store_init(&w.plain, limits, no_seed), 0);
    for (unsigned i = 0; i < N_NODES; i++) {
        relay_init(&w.nodes[i].relay, no_seed);
        relay_node_init(&w.nodes[i].at_server, &w.store, &wire_limits);
        connect_node(&w.nodes[i]);
    }
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        relay_client_init(&w.locals[i].relayed);
        store_client_init(&w.locals[i].plain);
    }
}

static void close_world(void)
{
    settle();
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        close_local(&w.locals[i]);
        store_client_finish(&w.plain, &w.locals[i].plain);
        buf_reset(&w.locals[i].got);
        buf_reset(&w.locals[i].expected);
    }
    for (unsigned i = 0; i < N_NODES; i++) {
        (void)relay_next_ready(&w.nodes[i].relay);
        relay_finish(&w.nodes[i].relay);
        relay_node_finish(&w.nodes[i].at_server);
        buf_reset(&w.nodes[i].up);
        buf_reset(&w.nodes[i].down);
    }
    store_finish(&w.store);
    store_finish(&w.plain);
}

static const struct store_limits ample = STORE_LIMITS_DEFAULT;

/* ---- requests ---- */

static struct wire_span text(const char *t)
{
    return wire_span(t, strlen(t));
}

static void set(struct local *l, const char *key, const char *value)
{
    struct buf m = {0};

    assert_int_equal(wire_put_key_value(&m, WIRE_OP_SET, text(key), text(value)), 0);
    give(l, &m);
}

static void add(struct local *l, const char *key, int64_t amount)
{
    struct buf m = {0};

    assert_int_equal(wire_put_key_amount(&m, WIRE_OP_ADD, text(key), amount), 0);
    give(l, &m);
}

static void on_key(struct local *l, enum wire_op op, const char *key)
{
    struct buf m = {0};

    assert_int_equal(wire_put_key(&m, op, text(key)), 0);
    give(l, &m);
}

static void wait_for(struct local *l, const char *key)
{
    struct wire_span keys[] = {text(key)};
    struct buf m = {0};

    assert_int_equal(wire_put_keys(&m, WIRE_OP_WAIT, keys, 1), 0);
    give(l, &m);
}

static void plain_op(struct local *l, enum wire_op op)
{
    struct buf m = {0};

    assert_int_equal(op == WIRE_OP_PING ? wire_put_word(&m, op, 4711) : wire_put_plain(&m, op), 0);
    give(l, &m);
}

static void push(struct local *l, const char *key, const char *value)
{
    struct buf m = {0};

    assert_int_equal(wire_put_key_value(&m, WIRE_OP_QUEUE_PUSH, text(key), text(value)), 0);
    give(l, &m);
}

/* A random request of a client that does not wait. Queues are waited for by one client of a node each, as it is not
 * promised which of several is first. */
static void random_request(struct local *l, unsigned index)
{
    static const char *const keys[] = {"/a", "/b", "", "/a-longer-name", "/e"};
    static const char *const values[] = {"", "7", "-3", "x", "some longer value", "9223372036854775807"};
    static const char *const barriers[] = {"/barrier", "/another"}; /* which no WAIT names, see relay.h */
    const char *key = keys[below(ARRAY_SIZE(keys))], *value = values[below(ARRAY_SIZE(values))];
    struct wire_span several[] = {text(key), text(keys[below(ARRAY_SIZE(keys))]), text("/q")};
    struct wire_span some[] = {text(value), text(values[below(ARRAY_SIZE(values))])};
    struct buf m = {0};

    switch (below(20)) {
    case 0:
    case 1:
        set(l, key, value);
        return;
    case 2:
    case 3:
        add(l, key, (int64_t)below(9) - 4);
        return;
    case 4:
        on_key(l, WIRE_OP_GET, key);
        return;
    case 5:
        on_key(l, WIRE_OP_DELETE_KEY, key);
        return;
    case 6:
        assert_int_equal(wire_put_key_value(&m, WIRE_OP_APPEND, text(key), text(value)), 0);
        break;
    case 7:
        assert_int_equal(wire_put_compare_set(&m, text(key), text(value), some[1]), 0);
        break;
    case 8:
        assert_int_equal(wire_put_keys(&m, WIRE_OP_CHECK, several, 1 + below(3)), 0);
        break;
    case 9:
        assert_int_equal(wire_put_keys(&m, WIRE_OP_MULTI_GET, several, below(4)), 0);
        break;
    case 10:
        assert_int_equal(wire_put_multi_set(&m, several, some, below(3)), 0);
        break;
    case 11:
        plain_op(l, WIRE_OP_GETNUMKEYS);
        return;
    case 12:
        plain_op(l, WIRE_OP_PING);
        return;
    case 13:
    case 14:
        push(l, "/q", value);
        return;
    case 15:
        on_key(l, WIRE_OP_QUEUE_POP, "/q");
        return;
    case 16:
        on_key(l, WIRE_OP_QUEUE_LEN, "/q");
        return;
    case 17:
        assert_int_equal(wire_put_key_amount(&m, WIRE_OP_BARRIER, text(barriers[below(2)]), below(4)), 0);
        break;
    default:
        assert_int_equal(wire_put_keys(&m, WIRE_OP_WAIT, several, 1 + below(2)), 0);
        if (index % N_LOCAL == 0 && below(3) == 0) {
            buf_reset(&m);
            wait_for(l, "/q");
            return;
        }
        break;
    }
    give(l, &m);
}

/* ---- tests ---- */

static void cut_somewhere(struct node *n)
{
    n->cut_up = below(3) ? n->n_up + 1 + below(200) : 0;
    n->cut_down = below(3) ? n->n_down + 1 + below(60) : 0;
}

static void test_random_requests_as_with_a_plain_store(void **state)
{
    unsigned n_cuts = 0;

    open_world(&ample);
    for (unsigned i = 0; i < N_STEPS; i++) {
        unsigned index = below(N_CLIENTS);
        struct local *l = &w.locals[index];

        cut_somewhere(node_of(l));
        if (below(100) == 0)
            reopen(l);
        else if (l->plain.wait)
            plain_op(l, WIRE_OP_CANCEL_WAIT);
        else
            random_request(l, index);
        settle();
        check_locals();
        for (unsigned c = 0; c < N_CLIENTS; c++) {
            if (w.locals[c].closed)
                reopen(&w.locals[c]);
        }
        settle();
        check_locals();
    }
    for (unsigned i = 0; i < N_NODES; i++)
        n_cuts += w.nodes[i].n_cuts;
    assert_true(n_cuts > 100);
    close_world();
}

static void run_scenario(void)
{
    struct local *a = &w.locals[0], *b = &w.locals[1], *c = &w.locals[N_LOCAL];

    wait_for(a, "/k");
    wait_for(b, "/k");
    settle();
    add(c, "/n", 3);
    settle();
    add(a, "/n", 4); /* beside its wait */
    settle();
    set(c, "/k", "v");
    settle();
    push(c, "/q", "one");
    push(c, "/q", "two");
    settle();
    on_key(a, WIRE_OP_QUEUE_POP, "/q");
    settle();
    on_key(b, WIRE_OP_QUEUE_POP, "/q");
    settle();
    wait_for(b, "/q");
    settle();
    push(a, "/q", "three");
    settle();
    on_key(b, WIRE_OP_QUEUE_POP, "/q");
    on_key(a, WIRE_OP_GET, "/k");
    settle();
    wait_for(a, "/none");
    settle();
    plain_op(a, WIRE_OP_CANCEL_WAIT);
    settle();
    check_locals();
}

static void test_a_cut_behind_every_byte(void **state)
{
    uint64_t n_up, n_down;

    open_world(&ample);
    run_scenario();
    n_up = w.nodes[0].n_up;
    n_down = w.nodes[0].n_down;
    close_world();
    assert_true(n_up > 300 && n_down > 100);
    for (uint64_t i = 1; i <= n_up; i++) {
        open_world(&ample);
        w.nodes[0].cut_up = i;
        run_scenario();
        assert_true(w.nodes[0].n_cuts > 0 || w.nodes[0].n_up < i);
        close_world();
    }
    for (uint64_t i = 1; i <= n_down; i++) {
        open_world(&ample);
        w.nodes[0].cut_down = i;
        run_scenario();
        close_world();
    }
}

static void test_waits_for_one_key_are_one_request(void **state)
{
    open_world(&ample);
    for (unsigned i = 0; i < N_LOCAL; i++)
        wait_for(&w.locals[i], "/k");
    settle();
    assert_int_equal(w.nodes[0].relay.n_sent, 1);
    assert_int_equal(w.store.n_waiting, 1);
    plain_op(&w.locals[1], WIRE_OP_CANCEL_WAIT); /* one of several: the others wait on */
    settle();
    assert_int_equal(w.store.n_waiting, 1);
    set(&w.locals[N_LOCAL], "/k", "v");
    settle();
    assert_int_equal(w.store.n_waiting, 0);
    check_locals();
    close_world();
}

static void test_the_last_waiter_leaves(void **state)
{
    open_world(&ample);
    wait_for(&w.locals[0], "/k");
    wait_for(&w.locals[1], "/k");
    settle();
    reopen(&w.locals[0]);
    settle();
    assert_int_equal(w.store.n_waiting, 1);
    reopen(&w.locals[1]);
    settle();
    assert_int_equal(w.store.n_waiting, 0);
    close_world();
}

static void test_sums_that_are_added_together(void **state)
{
    open_world(&ample);
    w.holds = true;
    for (unsigned i = 0; i < N_LOCAL; i++)
        add(&w.locals[i], "/n", 1 + (int64_t)i);
    reopen(&w.locals[2]); /* what it asked for is added */
    assert_int_equal(w.nodes[0].relay.n_sent, 1);
    w.holds = false;
    settle();
    assert_int_equal(w.nodes[0].relay.n_sent, 2);
    check_locals();
    on_key(&w.locals[0], WIRE_OP_GET, "/n");
    settle();
    check_locals();
    close_world();
}

/* Found in an earlier design: the second ADD was never answered, and its call leaked. */
static void test_sums_on_a_value_that_is_no_number(void **state)
{
    open_world(&ample);
    set(&w.locals[N_LOCAL], "/n", "x");
    settle();
    w.holds = true;
    for (unsigned i = 0; i < N_LOCAL; i++)
        add(&w.locals[i], "/n", 1);
    w.holds = false;
    settle();
    for (unsigned i = 0; i < N_LOCAL; i++)
        assert_true(w.locals[i].closed);
    check_locals();
    for (unsigned i = 0; i < N_LOCAL; i++)
        reopen(&w.locals[i]);
    set(&w.locals[N_LOCAL], "/n", "5");
    settle();
    add(&w.locals[0], "/n", 1);
    settle();
    check_locals();
    close_world();
}

/* An item of a queue is one client's; when it leaves without it, the next one's. */
static void test_an_item_is_passed_on(void **state)
{
    open_world(&ample);
    wait_for(&w.locals[0], "/q");
    settle();
    wait_for(&w.locals[N_LOCAL], "/q");
    settle();
    push(&w.locals[2], "/q", "item");
    settle();
    check_locals();
    reopen(&w.locals[0]);
    settle();
    assert_int_equal(buf_size(&w.locals[N_LOCAL].got), 1);
    on_key(&w.locals[N_LOCAL], WIRE_OP_QUEUE_POP, "/q");
    settle();
    close_world();
}

/* Two clients of a node wait for a queue: an item releases one of them. */
static void test_an_item_releases_one_of_a_node(void **state)
{
    open_world(&ample);
    wait_for(&w.locals[0], "/q");
    wait_for(&w.locals[1], "/q");
    settle();
    push(&w.locals[2], "/q", "one");
    settle();
    check_locals();
    push(&w.locals[N_LOCAL], "/q", "two");
    settle();
    check_locals();
    on_key(&w.locals[0], WIRE_OP_QUEUE_POP, "/q");
    settle();
    on_key(&w.locals[1], WIRE_OP_QUEUE_POP, "/q");
    settle();
    check_locals();
    assert_int_equal(w.nodes[0].at_server.n_waits, 0);
    close_world();
}

/* Found in an earlier design: the node left while an item was kept for a client of it, and the wait was used after it was
 * freed. */
static void test_a_node_leaves_with_promises(void **state)
{
    open_world(&ample);
    for (unsigned i = 0; i < N_LOCAL; i++) {
        wait_for(&w.locals[i], "/q");
        settle();
        wait_for(&w.locals[N_LOCAL + i], "/q");
        settle();
    }
    push(&w.locals[2 * N_LOCAL], "/q", "one");
    settle();
    assert_true(w.locals[0].relayed.promise != 0);
    relay_node_finish(&w.nodes[0].at_server);
    relay_node_init(&w.nodes[0].at_server, &w.store, &wire_limits);
    assert_int_equal(relay_resume(&w.nodes[0].relay, 0), -EPROTO); /* requests were acknowledged */
    settle();
    assert_true(w.locals[N_LOCAL].relayed.promise != 0);
    close_world();
}

static void test_refused_requests_close_their_clients(void **state)
{
    static const struct store_limits few = {.keys_max = 3, .bytes_max = 4096, .waiters_max = 2};

    open_world(&few);
    for (unsigned i = 0; i < 300; i++) {
        unsigned index = below(N_CLIENTS);
        char key[8];

        (void)snprintf(key, sizeof(key), "/%u", below(6));
        if (below(2))
            set(&w.locals[index], key, "v");
        else
            add(&w.locals[index], key, 1);
        settle();
        check_locals();
        for (unsigned c = 0; c < N_CLIENTS; c++) {
            if (w.locals[c].closed)
                reopen(&w.locals[c]);
        }
        if (below(5) == 0)
            on_key(&w.locals[index], WIRE_OP_DELETE_KEY, key);
        settle();
        check_locals();
    }
    close_world();
}

enum { LARGE = 3 * RELAY_WINDOW };

static void test_values_beyond_the_window(void **state)
{
    char *large = malloc(LARGE + 1);
    struct buf m = {0};

    open_world(&ample);
    memset(large, 'v', LARGE);
    large[LARGE] = '\0';
    for (unsigned i = 0; i < 4; i++) {
        w.nodes[0].cut_up = w.nodes[0].n_up + 1 + below(LARGE);
        w.nodes[1].cut_down = w.nodes[1].n_down + 1 + below(LARGE);
        set(&w.locals[0], "/large", large);
        set(&w.locals[1], "/small", "s");
        settle();
        assert_true(buf_size(&w.nodes[0].relay.link.unacked) <= RELAY_WINDOW);
        on_key(&w.locals[N_LOCAL], WIRE_OP_GET, "/large");
        on_key(&w.locals[N_LOCAL + 1], WIRE_OP_GET, "/small");
        settle();
        check_locals();
    }
    /* A client that leaves in the middle of its request: nothing of it is executed, and others go on. */
    assert_int_equal(wire_put_key_value(&m, WIRE_OP_SET, text("/half"), text(large)), 0);
    w.holds = true;
    assert_int_equal(buf_append(&w.locals[0].todo, buf_bytes(&m), buf_size(&m)), 0);
    give_todo(&w.locals[0]);
    set(&w.locals[1], "/small", "t");
    reopen(&w.locals[0]);
    w.holds = false;
    settle();
    on_key(&w.locals[1], WIRE_OP_GET, "/small");
    on_key(&w.locals[N_LOCAL], WIRE_OP_GET, "/half");
    settle();
    check_locals();
    buf_reset(&m);
    free(large);
    close_world();
}

/* Found in review: frames that had arrived left the sender's window at each new connection, though the server could not take
 * them, and the server then had more than it allows. */
static void test_cuts_while_the_server_cannot_go_on(void **state)
{
    struct node *n = &w.nodes[0];
    char *large = malloc(LARGE + 1);

    open_world(&ample);
    memset(large, 'v', LARGE);
    large[LARGE] = '\0';
    set(&w.locals[N_LOCAL], "/large", large);
    settle();
    w.holds = true;
    on_key(&w.locals[0], WIRE_OP_GET, "/large");
    for (unsigned i = 0; i < 4; i++) {
        set(&w.locals[1], "/other", large);
        assert_int_equal(relay_link_output(&n->relay.link, &n->up), 0);
        assert_int_equal(relay_link_receive(&n->at_server.link, buf_bytes(&n->up), buf_size(&n->up)), 0);
        run_server(n); /* until the reply fills the window */
        assert_true(buf_size(&n->at_server.link.queue) <= RELAY_WINDOW + RELAY_BODY_MAX + 5);
        assert_true(buf_size(&n->at_server.link.unacked) <= RELAY_WINDOW + RELAY_BODY_MAX + 5);
        cut_node(n);
    }
    w.holds = false;
    settle();
    check_locals();
    free(large);
    close_world();
}

static void move_link(struct relay_link *from, struct relay_link *to)
{
    struct buf out = {0};

    assert_int_equal(relay_link_output(from, &out), 0);
    assert_true(buf_size(&out) <= RELAY_WINDOW + RELAY_BODY_MAX + 5);
    assert_int_equal(relay_link_receive(to, buf_bytes(&out), buf_size(&out)), 0);
    buf_finish(&out);
}

static void resume_links(struct relay_link *a, struct relay_link *b)
{
    relay_link_down(a);
    relay_link_down(b);
    assert_int_equal(relay_link_resume(a, b->arrived), 0);
    assert_int_equal(relay_link_resume(b, a->arrived), 0);
}

/* The window, and an acknowledgement that was lost: it is sent again, though nothing else is sent. */
static void test_the_window_of_a_link(void **state)
{
    const uint64_t id = 1;
    struct relay_link a = {0}, b = {0};
    char *bytes = calloc(1, RELAY_PIECE_MAX);
    struct buf lost = {0};
    struct relay_frame f;
    unsigned n_taken = 0;

    resume_links(&a, &b);
    for (unsigned i = 0; i < 3 * RELAY_WINDOW / RELAY_PIECE_MAX; i++)
        assert_int_equal(relay_link_put(&a, RELAY_REPLY, &id, 1, wire_span(bytes, RELAY_PIECE_MAX)), 0);
    for (unsigned i = 0; i < 4; i++) {
        move_link(&a, &b);
        resume_links(&a, &b);
        move_link(&a, &b);
        while (relay_link_take(&b, &f))
            n_taken++;
        assert_int_equal(relay_link_output(&b, &lost), 0);
        assert_true(buf_size(&lost) > 0 || n_taken == a.next);
        buf_reset(&lost);
        resume_links(&a, &b);
        move_link(&b, &a);
    }
    assert_int_equal(n_taken, a.next);
    assert_int_equal(buf_size(&a.unacked), 0);
    relay_link_finish(&a);
    relay_link_finish(&b);
    free(bytes);
}

/* A request of another client does not come between the pieces of a long one, also when the link has room again. */
static void test_pieces_stay_together(void **state)
{
    struct node *n = &w.nodes[0];
    char *large = malloc(LARGE + 1);

    open_world(&ample);
    memset(large, 'v', LARGE);
    large[LARGE] = '\0';
    w.holds = true;
    set(&w.locals[0], "/large", large);
    (void)move_bytes(n);
    assert_true(relay_link_has_room(&n->relay.link));
    set(&w.locals[1], "/small", "s");
    assert_true(buf_size(&w.locals[1].todo) > 0);
    w.holds = false;
    serve_ready(n);
    settle();
    on_key(&w.locals[N_LOCAL], WIRE_OP_GET, "/large");
    on_key(&w.locals[N_LOCAL + 1], WIRE_OP_GET, "/small");
    settle();
    check_locals();
    free(large);
    close_world();
}

/* Found when large values were set beside sums: what was gathered was sent between the pieces of the long request. */
static void test_a_gathered_sum_waits_for_a_long_request(void **state)
{
    char *large = malloc(LARGE + 1);

    assert_non_null(large);
    for (unsigned leaves = 0; leaves < 2; leaves++) {
        open_world(&ample);
        memset(large, 'v', LARGE);
        large[LARGE] = '\0';
        w.holds = true;
        add(&w.locals[0], "/n", 1);
        add(&w.locals[1], "/n", 2); /* gathered */
        set(&w.locals[2], "/large", large);
        assert_ptr_equal(w.nodes[0].relay.streaming, &w.locals[2].relayed);
        w.holds = false;
        while (buf_size(&w.locals[0].relayed.reply) == 0)
            assert_true(move_bytes(&w.nodes[0]));
        if (leaves)
            reopen(&w.locals[2]);
        settle();
        on_key(&w.locals[N_LOCAL], WIRE_OP_GET, "/n");
        settle();
        check_locals();
        close_world();
    }
    free(large);
}

/* A sum that is gathered is replied to later than what other clients request behind it. */
static void test_replies_stay_in_order(void **state)
{
    open_world(&ample);
    set(&w.locals[0], "/k", "some value");
    settle();
    w.holds = true;
    add(&w.locals[0], "/n", 1);
    add(&w.locals[1], "/n", 2);
    on_key(&w.locals[1], WIRE_OP_GET, "/k");
    w.holds = false;
    settle();
    check_locals();
    close_world();
}

/* An ADD whose name needs several frames is not joined with others. */
static void test_a_long_name(void **state)
{
    char *name = malloc(3 * RELAY_PIECE_MAX + 1);

    open_world(&ample);
    memset(name, 'n', 3 * RELAY_PIECE_MAX);
    name[3 * RELAY_PIECE_MAX] = '\0';
    for (unsigned i = 0; i < 3; i++) {
        w.holds = true;
        add(&w.locals[0], name, 2);
        w.holds = false;
        settle();
        add(&w.locals[1], name, 3);
        wait_for(&w.locals[N_LOCAL], name);
        settle();
        check_locals();
    }
    free(name);
    close_world();
}

static void test_spaces(void **state)
{
    struct relay_space space = {.instance = UINT64_C(0xfedcba9876543210), .key_space = 77}, got;
    struct buf out = {0};

    for (size_t n = 1; n <= RELAY_JOB_MAX; n += RELAY_JOB_MAX - 1) {
        memset(space.job, 'j', n);
        space.job[n] = '\0';
        assert_int_equal(relay_space_put(&out, &space), 0);
        for (size_t size = 0; size < buf_size(&out); size++)
            assert_int_equal(relay_space_decode(buf_bytes(&out), size, &got), 0);
        assert_int_equal(relay_space_decode(buf_bytes(&out), buf_size(&out), &got), (int)buf_size(&out));
        assert_string_equal(got.job, space.job);
        assert_true(got.instance == space.instance && got.key_space == space.key_space);
        buf_bytes(&out)[buf_size(&out) - 1] = 0; /* a zero would name another job */
        assert_int_equal(relay_space_decode(buf_bytes(&out), buf_size(&out), &got), -EPROTO);
        buf_bytes(&out)[0]++;
        assert_int_equal(relay_space_decode(buf_bytes(&out), 1, &got), -EPROTO);
        buf_reset(&out);
    }
    space.job[0] = '\0';
    assert_int_equal(relay_space_put(&out, &space), -EINVAL);
    assert_int_equal(relay_space_put(&out, &(struct relay_space){.job = "job"}), 0);
    buf_bytes(&out)[RELAY_SPACE_HEAD - 1] = 1; /* longer than any id */
    assert_int_equal(relay_space_decode(buf_bytes(&out), buf_size(&out), &got), -EPROTO);
    buf_reset(&out);
}

static void test_hellos(void **state)
{
    struct relay_hello hello = {.nonce = {1, [RELAY_NONCE_SIZE - 1] = 2},
                                .is_known = true,
                                .arrived = 1ull << 40},
                       got;
    struct relay_link link = {0};
    struct buf out = {0};

    assert_int_equal(relay_hello_put(&out, &hello), 0);
    assert_int_equal(buf_size(&out), RELAY_HELLO_SIZE);
    assert_true(relay_hello_decode(buf_bytes(&out), &got));
    assert_memory_equal(got.nonce, hello.nonce, RELAY_NONCE_SIZE);
    assert_true(got.is_known);
    assert_true(got.arrived == hello.arrived);
    out.data[out.begin + 8 + RELAY_NONCE_SIZE] |= 2; /* the question of an older node */
    assert_false(relay_hello_decode(buf_bytes(&out), &got));
    out.data[out.begin + 8 + RELAY_NONCE_SIZE] &= 1;
    assert_true(relay_hello_decode(buf_bytes(&out), &got));
    out.data[out.begin]++;
    assert_false(relay_hello_decode(buf_bytes(&out), &got));
    buf_reset(&out);
    /* Only a node that was answered is known, and none goes on at a server that has forgotten it. */
    assert_false(link.known);
    assert_int_equal(relay_link_resume(&link, RELAY_FORGOTTEN), -EPROTO);
    assert_false(link.known);
    assert_int_equal(relay_link_resume(&link, 0), 0);
    relay_link_down(&link);
    assert_true(link.known);
    assert_int_equal(relay_link_resume(&link, RELAY_FORGOTTEN), -EPROTO);
    relay_link_finish(&link);
}

/* The reply proves that what the client has sent before is executed. */
static void test_a_ping_waits_for_what_was_sent_before(void **state)
{
    open_world(&ample);
    w.holds = true;
    set(&w.locals[0], "/k", "v");
    plain_op(&w.locals[0], WIRE_OP_PING);
    assert_int_equal(buf_size(&w.locals[0].got), 0);
    w.holds = false;
    settle();
    assert_int_equal(buf_size(&w.locals[0].got), 4);
    check_locals();
    close_world();
}

static void wait_for_two(struct local *l)
{
    struct wire_span keys[] = {text("/a"), text("/b")};
    struct buf m = {0};

    assert_int_equal(wire_put_keys(&m, WIRE_OP_WAIT, keys, 2), 0);
    give(l, &m);
    settle();
}

/* Of two names one was set and deleted before the second wait began, which has to wait for it again. */
static void test_waits_for_several_names_are_not_joined(void **state)
{
    open_world(&ample);
    wait_for_two(&w.locals[0]);
    set(&w.locals[N_LOCAL], "/a", "v");
    settle();
    on_key(&w.locals[N_LOCAL], WIRE_OP_DELETE_KEY, "/a");
    settle();
    wait_for_two(&w.locals[1]);
    set(&w.locals[N_LOCAL], "/b", "v");
    settle();
    assert_int_equal(buf_size(&w.locals[0].got), 1);
    assert_int_equal(buf_size(&w.locals[1].got), 0);
    check_locals();
    close_world();
}

/* Clients at once, with cuts: each request is applied exactly once. */
static void test_concurrent_requests_are_applied_once(void **state)
{
    enum { ROUNDS = 40 };
    bool seen[N_CLIENTS * ROUNDS + 1] = {0};
    unsigned n_seen = 0;

    open_world(&ample);
    for (unsigned i = 0; i < ROUNDS; i++) {
        w.holds = true;
        for (unsigned c = 0; c < N_CLIENTS; c++) {
            struct buf m = {0};

            cut_somewhere(node_of(&w.locals[c]));
            assert_int_equal(wire_put_key_value(&m, WIRE_OP_APPEND, text("/text"), text("t")), 0);
            give(&w.locals[c], &m);
            push(&w.locals[c], "/q", "item");
            add(&w.locals[c], "/n", 1);
        }
        w.holds = false;
        settle();
        for (unsigned c = 0; c < N_CLIENTS; c++) {
            struct buf *got = &w.locals[c].got;

            assert_int_equal(buf_size(got), 8);
            uint64_t number = wire_load_u64(buf_bytes(got));
            assert_in_range(number, 1, N_CLIENTS * ROUNDS);
            assert_false(seen[number]);
            seen[number] = true;
            n_seen++;
            buf_reset(got);
            buf_reset(&w.locals[c].expected);
        }
    }
    assert_int_equal(n_seen, N_CLIENTS * ROUNDS);
    on_key(&w.locals[0], WIRE_OP_GET, "/text");
    on_key(&w.locals[1], WIRE_OP_QUEUE_LEN, "/q");
    settle();
    check_locals();
    close_world();
}

static void test_a_broken_peer(void **state)
{
    static const uint8_t frames[][13] = {
        {8, 0, 0, 0, RELAY_ACK, 1},         /* more than was sent */
        {8, 0, 0, 0, RELAY_KIND_COUNT},     /* no kind */
        {0, 0, 0, 1, RELAY_REPLY},          /* too long */
        {4, 0, 0, 0, RELAY_REPLY, 0, 0, 0}, /* without an id */
    };

    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        open_world(&ample);
        assert_int_equal(relay_receive(&w.nodes[0].relay, frames[i], sizeof(frames[i])), -EPROTO);
        assert_true(w.nodes[0].relay.failed);
        w.holds = true; /* nothing of it goes to the server */
        close_world();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_requests_as_with_a_plain_store),
        cmocka_unit_test(test_a_cut_behind_every_byte),
        cmocka_unit_test(test_waits_for_one_key_are_one_request),
        cmocka_unit_test(test_the_last_waiter_leaves),
        cmocka_unit_test(test_sums_that_are_added_together),
        cmocka_unit_test(test_sums_on_a_value_that_is_no_number),
        cmocka_unit_test(test_an_item_is_passed_on),
        cmocka_unit_test(test_an_item_releases_one_of_a_node),
        cmocka_unit_test(test_a_node_leaves_with_promises),
        cmocka_unit_test(test_refused_requests_close_their_clients),
        cmocka_unit_test(test_values_beyond_the_window),
        cmocka_unit_test(test_cuts_while_the_server_cannot_go_on),
        cmocka_unit_test(test_a_ping_waits_for_what_was_sent_before),
        cmocka_unit_test(test_waits_for_several_names_are_not_joined),
        cmocka_unit_test(test_the_window_of_a_link),
        cmocka_unit_test(test_pieces_stay_together),
        cmocka_unit_test(test_a_gathered_sum_waits_for_a_long_request),
        cmocka_unit_test(test_replies_stay_in_order),
        cmocka_unit_test(test_a_long_name),
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_hellos),
        cmocka_unit_test(test_concurrent_requests_are_applied_once),
        cmocka_unit_test(test_a_broken_peer),
    };
    const char *chosen = getenv("CRUN_RELAY_SEED");

    seed = chosen ? (unsigned)strtoul(chosen, NULL, 10) : 20;
    srandom(seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
