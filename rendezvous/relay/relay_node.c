/*
 * One request after another: the pieces are collected, the request is executed in turns, and the reply leaves in frames as
 * the link has room; then the next frame is taken.
 */

#include "rendezvous/relay/relay_node.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct relay_wait {
    struct store_client client;
    struct list link; /* in relay_node.waits */
    struct relay_node *node;
    uint64_t id;
    uint64_t wait_id; /* once an item was promised: id of the wait before */
    int failure;      /* then: result with which nothing waits on under wait_id */
};

enum { IOV_BATCH = 16 };

/* In ids given by the server; a node counts from 1. */
#define PROMISE_BIT (UINT64_C(1) << 63)

/* ---- frames to the node ---- */

static int put_failure(struct relay_node *n, uint64_t id, int result)
{
    uint32_t code = htole32((uint32_t)result);

    return relay_link_put(&n->link, RELAY_FAILED, &id, 1, wire_span(&code, sizeof(code)));
}

/* ---- waits ---- */

static struct relay_wait *find_wait(struct relay_node *n, uint64_t id)
{
    list_for_each_entry(struct relay_wait, w, &n->waits, link)
    {
        if (w->id == id)
            return w;
    }
    return NULL;
}

static struct relay_wait *create_wait(struct relay_node *n, uint64_t id)
{
    struct relay_wait *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    store_client_init(&w->client);
    w->client.relayed = true;
    w->node = n;
    w->id = id;
    list_init(&w->link);
    list_append(&n->waits, &w->link);
    n->n_waits++;
    return w;
}

static void free_wait(struct relay_wait *w)
{
    list_unlink(&w->link);
    w->node->n_waits--;
    store_client_finish(w->node->store, &w->client);
    free(w);
}

struct relay_node *relay_node_release(struct store_client *c)
{
    static const uint8_t stop = WIRE_WAIT_STOP;
    struct relay_wait *w = list_entry(c, struct relay_wait, client);
    struct relay_node *n = w->node;
    int r;

    if (!c->promised)
        r = relay_link_put(&n->link, RELAY_REPLY, &w->id, 1, wire_span(&stop, 1));
    else
        r = relay_link_put(&n->link, RELAY_PROMISED, (uint64_t[]){w->wait_id, w->id}, 2, wire_span(NULL, 0));
    if (r == 0 && c->promised && w->failure != 0)
        r = put_failure(n, w->wait_id, w->failure);
    if (r < 0)
        n->broken = true;
    if (!c->promised)
        free_wait(w);
    return n;
}

/* The wait keeps the item under a new id; clients of the node with the same wait go on waiting under the old id. */
static void renew_wait(struct store_client *c)
{
    struct relay_wait *w = list_entry(c, struct relay_wait, client), *next;
    struct relay_node *n = w->node;

    w->wait_id = w->id;
    w->id = PROMISE_BIT | ++n->last_promise;
    if (n->finishing)
        return; /* the item goes on to clients of other nodes */
    next = create_wait(n, w->wait_id);
    w->failure = next ? store_wait_again(n->store, &next->client, c) : -ENOMEM;
    if (next && w->failure != 0)
        free_wait(next);
}

static int forget(struct relay_node *n, const struct relay_frame *f)
{
    if (f->body.size != 8)
        return -EPROTO;
    struct relay_wait *w = find_wait(n, wire_load_u64(f->body.data));
    if (w)
        free_wait(w);
    return 0; /* else it was released meanwhile */
}

/* ---- requests ---- */

/* The client of the store for a request: a new wait, the wait with the promised item, or the node. */
static int choose_client(struct relay_node *n, uint64_t promise)
{
    n->wait = NULL;
    if (n->request.op == WIRE_OP_WAIT || n->request.op == WIRE_OP_BARRIER) {
        n->wait = n->n_waits < RELAY_NODE_WAITS_MAX ? create_wait(n, n->id) : NULL;
        return n->wait ? 0 : -ENOMEM;
    }
    if (n->request.op == WIRE_OP_QUEUE_POP && promise != 0)
        n->wait = find_wait(n, promise);
    return 0;
}

static int begin_request(struct relay_node *n, const struct relay_frame *f)
{
    size_t size;

    if (f->body.size < 16 || buf_append(&n->message, f->body.data + 16, f->body.size - 16) < 0)
        return f->body.size < 16 ? -EPROTO : -ENOMEM;
    n->id = wire_load_u64(f->body.data);
    n->scanner = (struct wire_scanner){0};
    if (wire_decode(&n->scanner, &n->limits, buf_bytes(&n->message), buf_size(&n->message), &n->request,
                    &size) != 0 ||
        size != buf_size(&n->message) || n->request.op == WIRE_OP_CANCEL_WAIT)
        return -EPROTO;
    if (n->stats)
        store_stats_count(n->stats, n->request.op);
    n->stage = RELAY_EXECUTING;
    if (choose_client(n, wire_load_u64(f->body.data + 8)) == 0)
        return 0;
    n->stage = RELAY_RECEIVING;
    buf_reset(&n->message);
    return put_failure(n, n->id, -ENOMEM);
}

static int take_piece(struct relay_node *n, const struct relay_frame *f)
{
    if (buf_size(&n->message) + f->body.size > n->limits.message_max)
        return -EPROTO;
    return buf_append(&n->message, f->body.data, f->body.size);
}

static int take_frame(struct relay_node *n, const struct relay_frame *f)
{
    switch (f->kind) {
    case RELAY_REQUEST_PIECE:
        return take_piece(n, f);
    case RELAY_REQUEST:
        return begin_request(n, f);
    case RELAY_FORGET:
        return forget(n, f);
    case RELAY_GIVEN_UP:
        buf_reset(&n->message);
        return 0;
    default:
        return -EPROTO;
    }
}

/* The request is executed, or refused; the client of the store has no more use, unless the request waits. */
static void end_request(struct relay_node *n)
{
    struct relay_wait *w = n->wait;
    bool popped = n->request.op == WIRE_OP_QUEUE_POP;

    n->wait = NULL;
    n->stage = RELAY_RECEIVING;
    if (outbox_size(&n->out) > 0 || n->out.refs || n->out.bytes.capacity > RELAY_KEEP_MAX)
        outbox_finish(&n->out);
    if (buf_size(&n->message) > RELAY_PIECE_MAX)
        buf_reset(&n->message);
    else
        buf_consume(&n->message, buf_size(&n->message));
    if (w && (popped || !w->client.wait))
        free_wait(w);
}

/* One turn of the request. */
static int execute(struct relay_node *n, struct store_budget *budget)
{
    struct store_client *c = n->wait ? &n->wait->client : &n->client;
    bool begun = c->task.active;

    budget->output_max = RELAY_WINDOW / 4;
    int r = store_apply(n->store, c, &n->request, &n->out, budget);
    n->n_changes += !begun && store_may_change_a_key(&n->request);
    if (r == STORE_MORE) {
        if (outbox_size(&n->out) < budget->output_max)
            budget->units = 0; /* the request goes on in the next turn */
        return 0;
    }
    n->stage = RELAY_REPLYING;
    if (r == 0)
        return 0;
    outbox_finish(&n->out);
    r = put_failure(n, n->id, r);
    end_request(n);
    return r;
}

/* Puts up to a piece of the reply into a frame. */
static int put_piece(struct relay_node *n, bool last)
{
    uint8_t bytes[RELAY_PIECE_MAX];
    struct iovec iov[IOV_BATCH];
    int n_iov = outbox_iov(&n->out, iov, IOV_BATCH);
    size_t size = 0;

    for (int i = 0; i < n_iov && size < sizeof(bytes); i++) {
        size_t room = sizeof(bytes) - size, part = iov[i].iov_len < room ? iov[i].iov_len : room;

        memcpy(bytes + size, iov[i].iov_base, part);
        size += part;
    }
    last = last && size == outbox_size(&n->out);
    TRY(relay_link_put(&n->link, last ? RELAY_REPLY : RELAY_REPLY_PIECE, &n->id, 1, wire_span(bytes, size)));
    outbox_consume(&n->out, size);
    if (last)
        end_request(n);
    return 0;
}

/* Does the request wait now? Its reply comes by relay_node_release(). */
static bool has_begun_to_wait(const struct relay_node *n)
{
    return n->wait && outbox_size(&n->out) == 0 && n->request.op != WIRE_OP_QUEUE_POP;
}

/* Sends as much of the reply as is there. */
static int reply(struct relay_node *n)
{
    bool last = n->stage == RELAY_REPLYING;

    if (last && has_begun_to_wait(n)) {
        end_request(n);
        return 0;
    }
    while (n->stage != RELAY_RECEIVING && relay_link_has_room(&n->link) && (last || outbox_size(&n->out) > 0))
        TRY(put_piece(n, last));
    return 0;
}

/* One step: a frame is taken, or a turn executed, or a part of a reply sent. */
static int step(struct relay_node *n, struct store_budget *budget, bool *ret_blocked)
{
    struct relay_frame f;

    *ret_blocked = false;
    if (n->stage == RELAY_RECEIVING) {
        *ret_blocked = !relay_link_take(&n->link, &f);
        if (*ret_blocked)
            return 0;
        uint64_t cost = 2 + f.body.size / STORE_UNIT_BYTES;
        budget->units -= cost < budget->units ? cost : budget->units;
        return take_frame(n, &f);
    }
    if (!relay_link_has_room(&n->link)) {
        *ret_blocked = true;
        return 0;
    }
    TRY(n->stage == RELAY_EXECUTING ? execute(n, budget) : 0);
    return reply(n);
}

int relay_node_run(struct relay_node *n, struct store_budget *budget)
{
    bool blocked = false;
    int r = n->broken ? -ENOMEM : 0;

    while (r == 0 && !blocked && budget->units > 0)
        r = step(n, budget, &blocked);
    if (r < 0)
        n->broken = true;
    return r < 0 ? r : blocked ? RELAY_NODE_IDLE : RELAY_NODE_TURN;
}

/* ---- life ---- */

void relay_node_init(struct relay_node *n, struct store *s, const struct wire_limits *limits)
{
    *n = (struct relay_node){.store = s, .limits = *limits};
    s->on_promise = renew_wait;
    store_client_init(&n->client);
    list_init(&n->waits);
}

void relay_node_finish(struct relay_node *n)
{
    n->wait = NULL;
    n->finishing = true;
    while (!list_is_empty(&n->waits))
        free_wait(list_entry(n->waits.next, struct relay_wait, link));
    store_client_finish(n->store, &n->client);
    outbox_finish(&n->out);
    buf_finish(&n->message);
    relay_link_finish(&n->link);
}
