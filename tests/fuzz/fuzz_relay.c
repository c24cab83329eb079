/*
 * Fuzz target: both ends of a node's store. Input: one byte that chooses the end, then records: a byte with an action (high
 * bits) and a client (low bits), a length byte, and that many bytes.
 *
 * A node gets requests from its clients and any bytes from its server; a server gets any bytes from a node. Both are cut
 * off and connected again. Whatever comes, all memory has been given back at the end (store_finish() asserts it).
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/relay/relay.h"
#include "rendezvous/relay/relay_node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    N_CLIENTS = 4,
    ACTION_RECEIVE = 0,
    ACTION_REQUEST = 1,
    ACTION_CUT = 2,
    ACTION_CLOSE = 3,
    OUTPUT_MAX = 1 << 20
};

static const uint8_t no_seed[SIPHASH_SEED_SIZE];
static const struct wire_limits limits = {
    .key_max = 300, .value_max = 60000, .keys_max = 64, .message_max = 100000};

static void drop_output(struct relay_link *l)
{
    struct buf out = {0};

    (void)relay_link_output(l, &out); /* without memory there is nothing to drop */
    buf_finish(&out);
}

/* ---- a node ---- */

static void request(struct store_relay *r, struct relay_client *c, const uint8_t *data, size_t n)
{
    struct wire_scanner scanner = {0};
    struct wire_request q;
    struct outbox out = {0};
    size_t size;

    if (wire_decode(&scanner, &limits, data, n, &q, &size) != 0)
        return;
    int result = relay_apply(r, c, &q, data, size, &out);
    outbox_finish(&out);
    if (result != 0 && result != RELAY_LATER) {
        relay_client_finish(r, c);
        relay_client_init(c);
    }
}

static void empty_ready(struct store_relay *r)
{
    struct relay_client *c;

    while ((c = relay_next_ready(r)))
        buf_reset(&c->reply);
}

static void fuzz_node(const uint8_t *data, const uint8_t *end)
{
    struct relay_client clients[N_CLIENTS];
    struct store_relay r;

    relay_init(&r, no_seed);
    for (unsigned i = 0; i < N_CLIENTS; i++)
        relay_client_init(&clients[i]);
    (void)relay_resume(&r, 0);
    while (end - data >= 2) {
        struct relay_client *c = &clients[data[0] % N_CLIENTS];
        unsigned action = data[0] >> 6;
        size_t n = data[1] < end - data - 2 ? data[1] : (size_t)(end - data - 2);

        if (action == ACTION_RECEIVE && !r.failed) {
            (void)relay_receive(&r, data + 2, n); /* r.failed then */
        } else if (action == ACTION_REQUEST) {
            request(&r, c, data + 2, n);
        } else if (action == ACTION_CUT && n > 0) {
            relay_link_down(&r.link);
            (void)relay_resume(&r, data[2]); /* as above */
        } else if (action == ACTION_CLOSE) {
            relay_client_finish(&r, c);
            relay_client_init(c);
        }
        drop_output(&r.link);
        empty_ready(&r);
        data += 2 + n;
    }
    for (unsigned i = 0; i < N_CLIENTS; i++)
        relay_client_finish(&r, &clients[i]);
    relay_finish(&r);
}

/* ---- a server ---- */

static void run(struct store *s, struct relay_node *n)
{
    struct store_budget budget = {.units = STORE_TURN_UNITS, .turn = STORE_TURN_UNITS};

    (void)relay_node_run(n, &budget); /* n->broken then */
    while (!list_is_empty(&s->released)) {
        struct store_client *c = list_entry(s->released.next, struct store_client, released);

        list_unlink(&c->released);
        (void)relay_node_release(c); /* one of two */
    }
    drop_output(&n->link);
    (void)store_clean(s, STORE_TURN_UNITS); /* the rest in store_finish() */
}

static void fuzz_server(const uint8_t *data, const uint8_t *end)
{
    static const struct store_limits few = {.keys_max = 100, .bytes_max = 1 << 20, .waiters_max = 10};
    struct relay_node nodes[2];
    struct store s;

    if (store_init(&s, &few, no_seed) < 0)
        return;
    for (unsigned i = 0; i < 2; i++) {
        relay_node_init(&nodes[i], &s, &limits);
        (void)relay_link_resume(&nodes[i].link, 0); /* nothing was sent */
    }
    while (end - data >= 2) {
        struct relay_node *n = &nodes[data[0] % 2];
        unsigned action = data[0] >> 6;
        size_t size = data[1] < end - data - 2 ? data[1] : (size_t)(end - data - 2);

        if (action == ACTION_CUT) {
            relay_link_down(&n->link);
            (void)relay_link_resume(&n->link, size > 0 ? data[2] : 0); /* a node that lies stays down */
        } else if (action == ACTION_CLOSE) {
            relay_node_finish(n);
            relay_node_init(n, &s, &limits);
        } else if (!n->broken && relay_link_receive(&n->link, data + 2, size) == 0) {
            run(&s, n);
        }
        data += 2 + size;
    }
    for (unsigned i = 0; i < 2; i++)
        relay_node_finish(&nodes[i]);
    store_finish(&s);
}

/* What is ahead of a node's first hello: the same bytes make it again. */
static void fuzz_space(const uint8_t *data, size_t n)
{
    struct relay_space space;
    struct buf out = {0};
    int used = relay_space_decode(data, n, &space);

    if (used <= 0)
        return;
    if (relay_space_put(&out, &space) != 0 || (size_t)used > n || buf_size(&out) != (size_t)used ||
        memcmp(buf_bytes(&out), data, (size_t)used) != 0)
        abort();
    buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    fuzz_space(data + 1, size - 1);
    if (data[0] % 2)
        fuzz_node(data + 1, data + size);
    else
        fuzz_server(data + 1, data + size);
    return 0;
}
