/*
 * A call is a request that was forwarded, or will be; its members are the clients that are owed its result. Calls that are
 * under way are found by their id, and those that others may join by the bytes of the WAIT or the key of the ADD.
 *
 * ADD: while one of a key is under way, those that come are gathered in a second call, which is sent when the first has its
 * reply, and not between the pieces of a long request. Its reply is the sum behind all of them, from which each member's own is
 * reckoned, as if they had been executed one after another.
 *
 * A client that leaves is taken off its calls, which go on; only a wait without members is forgotten, here and at the
 * server. What comes for a call that is not known any more was under way when it was forgotten, and is ignored.
 */

#include "rendezvous/relay/relay.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/store/store.h"

enum { SILENT_MAX = 256 };

struct relay_call {
    uint64_t id; /* 0: an ADD that is being gathered */
    enum wire_op op;
    struct list by_id; /* or in store_relay.held */
    struct list by_key;
    struct list members;          /* of struct relay_member.of_call, in the order in which they came */
    uint64_t amount;              /* ADD: the sum of its members */
    struct relay_call *gathering; /* ADD: what is sent after this one */
    size_t n_key;                 /* WAIT: the whole request; ADD: the key */
    uint8_t key[];
};

struct relay_member {
    struct list of_call, of_client;
    struct relay_client *client; /* NULL: it left */
    struct relay_call *call;
    uint64_t amount;
};

/* ---- calls and members ---- */

static struct list *bucket_of_id(struct store_relay *r, uint64_t id)
{
    return &r->by_id[id % RELAY_BUCKETS];
}

static struct list *bucket_of_key(struct store_relay *r, struct wire_span key)
{
    return &r->by_key[siphash13(r->seed, key.data, key.size) % RELAY_BUCKETS];
}

static struct relay_call *find_call(struct store_relay *r, uint64_t id)
{
    list_for_each(i, bucket_of_id(r, id))
    {
        struct relay_call *call = list_entry(i, struct relay_call, by_id);

        if (call->id == id)
            return call;
    }
    return NULL;
}

/* The call of that operation that others may join. */
static struct relay_call *find_shared(struct store_relay *r, enum wire_op op, struct wire_span key)
{
    list_for_each(i, bucket_of_key(r, key))
    {
        struct relay_call *call = list_entry(i, struct relay_call, by_key);

        if (call->op == op && call->n_key == key.size &&
            (key.size == 0 || memcmp(call->key, key.data, key.size) == 0))
            return call;
    }
    return NULL;
}

/* NULL when memory is out. */
static struct relay_call *create_call(enum wire_op op, struct wire_span key)
{
    struct relay_call *call = malloc(sizeof(*call) + key.size);

    if (!call)
        return NULL;
    *call = (struct relay_call){.op = op, .n_key = key.size};
    list_init(&call->by_id);
    list_init(&call->by_key);
    list_init(&call->members);
    if (key.size > 0)
        memcpy(call->key, key.data, key.size);
    return call;
}

static bool is_wait(enum wire_op op)
{
    return op == WIRE_OP_WAIT || op == WIRE_OP_BARRIER;
}

/* The client is not a member any more. */
static void leave_call(struct relay_member *m)
{
    struct relay_client *c = m->client;

    assert(c);
    list_unlink(&m->of_client);
    m->client = NULL;
    if (c->asked == m)
        c->asked = NULL;
    else if (c->waits == m)
        c->waits = NULL;
    else
        c->n_silent--;
}

static void free_member(struct relay_member *m)
{
    if (m->client)
        leave_call(m);
    list_unlink(&m->of_call);
    free(m);
}

static void free_call(struct relay_call *call)
{
    list_for_each_safe(i, &call->members) free_member(list_entry(i, struct relay_member, of_call));
    list_unlink(&call->by_id);
    list_unlink(&call->by_key);
    free(call);
}

/* 0 or -ENOMEM. */
static int join_call(struct relay_call *call, struct relay_client *c, uint64_t amount)
{
    struct relay_member *m = malloc(sizeof(*m));

    if (!m)
        return -ENOMEM;
    *m = (struct relay_member){.client = c, .call = call, .amount = amount};
    list_append(&call->members, &m->of_call);
    list_init(&m->of_client);
    list_append(&c->members, &m->of_client);
    call->amount += amount;
    if (is_wait(call->op))
        c->waits = m;
    else if (wire_has_reply(call->op))
        c->asked = m;
    else
        c->n_silent++;
    return 0;
}

/* ---- sending ---- */

/* 0 or -ENOMEM: the relay has failed, since calls wait for replies that cannot come. */
static int put_frame(struct store_relay *r, enum relay_kind kind, const uint64_t *ids, size_t n_ids,
                     struct wire_span bytes)
{
    int result = relay_link_put(&r->link, kind, ids, n_ids, bytes);

    if (result < 0)
        relay_fail(r);
    return result;
}

/* Forwards the call with the last bytes of its request. promise: see RELAY_REQUEST. */
static int send_call(struct store_relay *r, struct relay_call *call, uint64_t promise,
                     struct wire_span request)
{
    assert(request.size <= RELAY_PIECE_MAX);
    call->id = ++r->last_id;
    list_unlink(&call->by_id);
    list_append(bucket_of_id(r, call->id), &call->by_id);
    r->n_sent++;
    return put_frame(r, RELAY_REQUEST, (uint64_t[]){call->id, promise}, 2, request);
}

static void forget_wait(struct store_relay *r, uint64_t id)
{
    (void)put_frame(r, RELAY_FORGET, &id, 1, wire_span(NULL, 0)); /* the relay has failed otherwise */
}

static int send_add(struct store_relay *r, struct relay_call *call)
{
    buf_consume(&r->text, buf_size(&r->text));
    if (wire_put(&r->text, &(struct wire_request){.op = WIRE_OP_ADD,
                                                  .key = wire_span(call->key, call->n_key),
                                                  .amount = (int64_t)call->amount}) < 0) {
        relay_fail(r);
        return -ENOMEM;
    }
    return send_call(r, call, 0, wire_span(buf_bytes(&r->text), buf_size(&r->text)));
}

/* ---- clients ---- */

static void make_ready(struct store_relay *r, struct relay_client *c)
{
    list_unlink(&c->ready);
    list_append(&r->ready, &c->ready);
}

static void fail_client(struct store_relay *r, struct relay_client *c, int failure)
{
    if (c->failure == 0)
        c->failure = failure;
    make_ready(r, c);
}

static void reply_client(struct store_relay *r, struct relay_client *c, const void *data, size_t n)
{
    if (n > 0 && buf_append(&c->reply, data, n) < 0)
        fail_client(r, c, -ENOMEM);
    make_ready(r, c);
}

/* The client does not wait any more. */
static void end_wait(struct store_relay *r, struct relay_client *c)
{
    struct relay_call *call;

    if (!c->waits)
        return;
    call = c->waits->call;
    free_member(c->waits);
    if (!list_is_empty(&call->members))
        return;
    forget_wait(r, call->id);
    free_call(call);
}

/* It will not pop the item that it was released for. */
static void end_promise(struct store_relay *r, struct relay_client *c)
{
    if (c->promise != 0)
        forget_wait(r, c->promise);
    c->promise = 0;
}

/* ---- requests ---- */

static int apply_wait(struct store_relay *r, struct relay_client *c, const struct wire_request *request,
                      struct wire_span raw)
{
    /* One of several names goes on when a name that was set is deleted again: one that begins then is another wait. */
    bool shares = request->op == WIRE_OP_WAIT && request->n_items == 1 && c->offset == 0;
    struct relay_call *call = shares ? find_shared(r, WIRE_OP_WAIT, raw) : NULL;

    end_promise(r, c);
    if (call && c->waits && c->waits->call == call)
        return 0; /* it waits for that already */
    end_wait(r, c);
    if (call)
        return join_call(call, c, 0);
    call = create_call(request->op, shares ? raw : wire_span(NULL, 0));
    raw = wire_span(raw.data + c->offset, raw.size - c->offset);
    if (!call)
        return -ENOMEM;
    if (join_call(call, c, 0) < 0) {
        free_call(call);
        return -ENOMEM;
    }
    if (shares)
        list_append(bucket_of_key(r, wire_span(call->key, call->n_key)), &call->by_key);
    return send_call(r, call, 0, raw);
}

/* The ADD that the request joins: one that is being gathered, or a new one. NULL when memory is out. */
static struct relay_call *obtain_add(struct store_relay *r, struct wire_span key, bool *ret_send)
{
    struct relay_call *first = find_shared(r, WIRE_OP_ADD, key), *call;

    *ret_send = !first;
    if (first && first->gathering)
        return first->gathering;
    call = create_call(WIRE_OP_ADD, key);
    if (call && first)
        first->gathering = call;
    else if (call)
        list_append(bucket_of_key(r, key), &call->by_key);
    return call;
}

static int apply_add(struct store_relay *r, struct relay_client *c, const struct wire_request *request)
{
    bool send;
    struct relay_call *call = obtain_add(r, request->key, &send);

    if (!call)
        return -ENOMEM;
    if (join_call(call, c, (uint64_t)request->amount) < 0) {
        if (send)
            free_call(call); /* one that is gathered without members adds 0 */
        return -ENOMEM;
    }
    return send ? send_add(r, call) : 0;
}

static int apply_other(struct store_relay *r, struct relay_client *c, const struct wire_request *request,
                       struct wire_span raw)
{
    struct relay_call *call = create_call(request->op, wire_span(NULL, 0));
    uint64_t promise = 0;

    if (!call)
        return -ENOMEM;
    if (join_call(call, c, 0) < 0) {
        free_call(call);
        return -ENOMEM;
    }
    if (request->op == WIRE_OP_QUEUE_POP) {
        promise = c->promise; /* the server forgets it with this request */
        c->promise = 0;
    }
    return send_call(r, call, promise, wire_span(raw.data + c->offset, raw.size - c->offset));
}

/* What needs no server. */
static int apply_here(struct store_relay *r, struct relay_client *c, const struct wire_request *request,
                      struct outbox *out)
{
    if (request->op == WIRE_OP_VALIDATE)
        return STORE_E_VALIDATED;
    if (request->op == WIRE_OP_PING)
        return buf_append_u32(&out->bytes, request->word);
    if (buf_append_u8(&out->bytes, WIRE_WAIT_CANCELED) < 0)
        return -ENOMEM;
    end_wait(r, c);
    end_promise(r, c);
    return 0;
}

/* A request whose reply proves that those before it were executed has to come after them. */
static bool must_wait(struct store_relay *r, const struct relay_client *c, bool here)
{
    if (c->asked)
        return true;
    if (here)
        return c->n_silent > 0;
    return c->n_silent >= SILENT_MAX || !relay_link_has_room(&r->link) || (r->streaming && r->streaming != c);
}

/* Forwards all but the last piece of a long request, as far as the link has room. False: it has to go on later. */
static bool stream_pieces(struct store_relay *r, struct relay_client *c, const uint8_t *raw, size_t n)
{
    r->streaming = c;
    while (n - c->offset > RELAY_PIECE_MAX) {
        if (!relay_link_has_room(&r->link))
            return false;
        if (put_frame(r, RELAY_REQUEST_PIECE, NULL, 0, wire_span(raw + c->offset, RELAY_PIECE_MAX)) < 0)
            return false;
        c->offset += RELAY_PIECE_MAX;
    }
    return true;
}

static void feed_starved(struct store_relay *r)
{
    if (!relay_link_has_room(&r->link))
        return;
    list_for_each_safe(i, &r->starved) make_ready(r, list_entry(i, struct relay_client, ready));
}

/* The long request is forwarded, or given up: others may go on. */
static void end_streaming(struct store_relay *r, struct relay_client *c)
{
    c->offset = 0;
    r->streaming = NULL;
    while (!list_is_empty(&r->held) && !r->failed) {
        struct relay_call *call = list_entry(r->held.next, struct relay_call, by_id);

        list_unlink(&call->by_id);
        (void)send_add(r, call); /* the relay has failed otherwise */
    }
    feed_starved(r);
}

static int forward(struct store_relay *r, struct relay_client *c, const struct wire_request *request,
                   struct wire_span raw)
{
    if (is_wait(request->op))
        return apply_wait(r, c, request, raw);
    if (request->op == WIRE_OP_ADD && c->offset == 0) /* else the server has the beginning of this one */
        return apply_add(r, c, request);
    return apply_other(r, c, request, raw);
}

static int wait_for_room(struct store_relay *r, struct relay_client *c)
{
    if (!c->asked && c->n_silent == 0 && list_is_empty(&c->ready))
        list_append(&r->starved, &c->ready);
    return RELAY_LATER;
}

int relay_apply(struct store_relay *r, struct relay_client *c, const struct wire_request *request,
                const uint8_t *raw, size_t n, struct outbox *out)
{
    bool here =
        request->op == WIRE_OP_PING || request->op == WIRE_OP_CANCEL_WAIT || request->op == WIRE_OP_VALIDATE;

    if (r->failed || c->failure != 0)
        return c->failure != 0 ? c->failure : -ECONNRESET;
    if (buf_size(&c->reply) > 0 && buf_append(&out->bytes, buf_bytes(&c->reply), buf_size(&c->reply)) < 0)
        return -ENOMEM;
    buf_clear(&c->reply, RELAY_KEEP_MAX);
    if (must_wait(r, c, here))
        return wait_for_room(r, c);
    if (here)
        return apply_here(r, c, request, out);
    if (n > RELAY_PIECE_MAX && !stream_pieces(r, c, raw, n))
        return r->failed ? -ENOMEM : wait_for_room(r, c);
    int result = forward(r, c, request, wire_span(raw, n));
    if (r->streaming == c)
        end_streaming(r, c);
    return result;
}

struct relay_client *relay_next_ready(struct store_relay *r)
{
    struct relay_client *c;

    if (list_is_empty(&r->ready))
        return NULL;
    c = list_entry(r->ready.next, struct relay_client, ready);
    list_unlink(&c->ready);
    return c;
}

/* ---- replies ---- */

static void reply_members(struct store_relay *r, struct relay_call *call, struct wire_span bytes)
{
    list_for_each(i, &call->members)
    {
        struct relay_member *m = list_entry(i, struct relay_member, of_call);

        if (m->client)
            reply_client(r, m->client, bytes.data, bytes.size);
    }
}

/* The ADD has its result: those that came meanwhile are sent, as one. */
static void end_add(struct store_relay *r, struct relay_call *call)
{
    struct relay_call *next = call->gathering;

    list_unlink(&call->by_key);
    if (!next)
        return;
    list_append(bucket_of_key(r, wire_span(next->key, next->n_key)), &next->by_key);
    if (r->streaming)
        list_append(&r->held, &next->by_id);
    else
        (void)send_add(r, next); /* the relay has failed otherwise */
}

static void take_sum(struct store_relay *r, struct relay_call *call, uint64_t sum)
{
    sum -= call->amount;
    list_for_each(i, &call->members)
    {
        struct relay_member *m = list_entry(i, struct relay_member, of_call);

        sum += m->amount;
        uint64_t reply = htole64(sum);
        if (m->client)
            reply_client(r, m->client, &reply, sizeof(reply));
    }
    end_add(r, call);
}

static int take_reply(struct store_relay *r, struct relay_call *call, struct wire_span bytes)
{
    if ((call->op == WIRE_OP_ADD && bytes.size != 8) || (is_wait(call->op) && bytes.size != 1))
        return -EPROTO;
    if (call->op == WIRE_OP_ADD)
        take_sum(r, call, wire_load_u64(bytes.data));
    else
        reply_members(r, call, bytes);
    free_call(call);
    return 0;
}

/* A queue's item is kept for one client: the first. The others wait on. */
static int take_promise(struct store_relay *r, struct relay_call *call, uint64_t promise)
{
    struct relay_member *first;
    uint8_t stop = WIRE_WAIT_STOP;
    struct relay_client *c;

    if (!is_wait(call->op) || list_is_empty(&call->members))
        return -EPROTO;
    first = list_entry(call->members.next, struct relay_member, of_call);
    c = first->client; /* a member of a wait has not left */
    free_member(first);
    c->promise = promise;
    reply_client(r, c, &stop, 1);
    if (list_is_empty(&call->members)) {
        forget_wait(r, call->id);
        free_call(call);
    }
    return 0;
}

static void take_failure(struct store_relay *r, struct relay_call *call, uint32_t code)
{
    int failure = (int32_t)code > 0 && code < STORE_E_COUNT ? (int)code : -ECONNRESET;

    list_for_each(i, &call->members)
    {
        struct relay_member *m = list_entry(i, struct relay_member, of_call);

        if (!m->client)
            continue;
        m->client->failed_op = call->op;
        fail_client(r, m->client, failure);
    }
    if (call->op == WIRE_OP_ADD)
        end_add(r, call);
    free_call(call);
}

static int take_frame(struct store_relay *r, const struct relay_frame *f)
{
    struct relay_call *call;
    struct wire_span bytes;

    if (f->body.size < 8)
        return -EPROTO;
    call = find_call(r, wire_load_u64(f->body.data));
    bytes = wire_span(f->body.data + 8, f->body.size - 8);
    if (f->kind == RELAY_PROMISED && bytes.size != 8)
        return -EPROTO;
    if (!call) {
        if (f->kind == RELAY_PROMISED)
            forget_wait(r, wire_load_u64(bytes.data)); /* its client has left */
        return 0;
    }
    switch (f->kind) {
    case RELAY_REPLY_PIECE:
        if (call->op == WIRE_OP_ADD || is_wait(call->op))
            return -EPROTO;
        reply_members(r, call, bytes);
        return 0;
    case RELAY_REPLY:
        return take_reply(r, call, bytes);
    case RELAY_PROMISED:
        return take_promise(r, call, wire_load_u64(bytes.data));
    case RELAY_FAILED:
        if (bytes.size != 4)
            return -EPROTO;
        take_failure(r, call, wire_load_u32(bytes.data));
        return 0;
    default:
        return -EPROTO;
    }
}

int relay_resume(struct store_relay *r, uint64_t arrived)
{
    int result = relay_link_resume(&r->link, arrived);

    if (result < 0)
        relay_fail(r);
    feed_starved(r);
    return result;
}

int relay_receive(struct store_relay *r, const uint8_t *data, size_t n)
{
    struct relay_frame f;
    int result = relay_link_receive(&r->link, data, n);

    while (result == 0 && !r->failed && relay_link_take(&r->link, &f))
        result = take_frame(r, &f);
    if (result == 0 && r->failed)
        result = -ENOMEM;
    if (result < 0)
        relay_fail(r);
    feed_starved(r);
    return result;
}

/* ---- life ---- */

void relay_fail(struct store_relay *r)
{
    r->failed = true;
}

void relay_init(struct store_relay *r, const uint8_t seed[SIPHASH_SEED_SIZE])
{
    *r = (struct store_relay){0};
    memcpy(r->seed, seed, SIPHASH_SEED_SIZE);
    list_init(&r->ready);
    list_init(&r->held);
    list_init(&r->starved);
    for (size_t i = 0; i < RELAY_BUCKETS; i++) {
        list_init(&r->by_id[i]);
        list_init(&r->by_key[i]);
    }
}

static void free_shared(struct relay_call *call)
{
    if (call->gathering)
        free_call(call->gathering);
    free_call(call);
}

void relay_finish(struct store_relay *r)
{
    assert(list_is_empty(&r->ready) && list_is_empty(&r->starved));
    for (size_t i = 0; i < RELAY_BUCKETS; i++) {
        while (!list_is_empty(&r->by_key[i]))
            free_shared(list_entry(r->by_key[i].next, struct relay_call, by_key));
    }
    for (size_t i = 0; i < RELAY_BUCKETS; i++) {
        while (!list_is_empty(&r->by_id[i]))
            free_call(list_entry(r->by_id[i].next, struct relay_call, by_id));
    }
    buf_finish(&r->text);
    relay_link_finish(&r->link);
}

void relay_client_init(struct relay_client *c)
{
    *c = (struct relay_client){0};
    list_init(&c->ready);
    list_init(&c->members);
}

void relay_client_finish(struct store_relay *r, struct relay_client *c)
{
    if (r->streaming == c) {
        (void)put_frame(r, RELAY_GIVEN_UP, NULL, 0, wire_span(NULL, 0)); /* the relay has failed otherwise */
        end_streaming(r, c);
    }
    end_wait(r, c);
    end_promise(r, c);
    while (!list_is_empty(&c->members))
        leave_call(list_entry(c->members.next, struct relay_member, of_client));
    list_unlink(&c->ready);
    buf_finish(&c->reply);
}
