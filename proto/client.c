/*
 * The client machine. It keeps the unanswered requests in order, because replies do not name what they answer.
 *
 * The happy path: a request puts its message into `out` and an entry into the ring; client_next() decodes
 * `in` as the reply to the oldest entry and takes the entry out.
 *
 * Cancelling: CANCEL_WAIT is always answered with 01, and a release (00) that was under way comes before
 * that 01, never after. So a cancelled wait is two entries, WAIT and CANCEL_WAIT: if 01 comes first, it
 * answers both; if 00 comes first, it answers the WAIT, and the 01 behind it is dropped.
 *
 * Ways it dies: a reply that is not possible (CLIENT_E_PROTOCOL). After it the start of a
 * reply cannot be found again, so it is final.
 */

#include "proto/client.h"

#include <assert.h>
#include <stdlib.h>

#include "base/err.h"

struct client_pending {
    enum wire_op op;
    size_t n_items; /* MULTI_GET: keys asked for */
    bool dropped;   /* abandoned: the reply is decoded and discarded */
};

enum { PENDING_MIN = 8 };

void client_init(struct client *c, const struct wire_limits *limits)
{
    *c = (struct client){.limits = WIRE_LIMITS_REPLY_DEFAULT};
    if (limits)
        c->limits = *limits;
}

void client_finish(struct client *c)
{
    buf_finish(&c->out);
    buf_finish(&c->in);
    free(c->pending);
    *c = (struct client){0};
}

/* ------------------------------------------------------------------ the ring of what is pending */

static struct client_pending *pending_at(struct client *c, size_t i)
{
    assert(c->pending_capacity > 0);
    return &c->pending[(c->first_pending + i) % c->pending_capacity];
}

/* Room for n more entries. */
static int pending_reserve(struct client *c, size_t n)
{
    size_t capacity = c->pending_capacity ? c->pending_capacity : PENDING_MIN;
    struct client_pending *pending;

    if (c->pending_capacity - c->n_pending >= n)
        return 0;
    while (capacity - c->n_pending < n)
        capacity *= 2;
    pending = calloc(capacity, sizeof(*pending));
    if (!pending)
        return -ENOMEM;
    for (size_t i = 0; i < c->n_pending; i++)
        pending[i] = *pending_at(c, i);
    free(c->pending);
    c->pending = pending;
    c->pending_capacity = capacity;
    c->first_pending = 0;
    return 0;
}

static void pending_push(struct client *c, struct client_pending entry)
{
    assert(c->n_pending < c->pending_capacity);
    c->n_pending++;
    *pending_at(c, c->n_pending - 1) = entry;
}

static void pending_pop(struct client *c)
{
    c->first_pending = (c->first_pending + 1) % c->pending_capacity;
    c->n_pending--;
}

/* ------------------------------------------------------------------ requests */

/* May a request be made now? Also takes the room for its entry, so that client_expect() cannot fail; one entry
 * more, so that a cancel of what waits needs no memory for its own. */
static int client_admit(struct client *c)
{
    if (c->error)
        return CLIENT_E_PROTOCOL;
    if (c->waiting)
        return CLIENT_E_BUSY;
    return pending_reserve(c, 2);
}

/* The message is in `out` if encoded is 0: remember what it will be answered with. */
static int client_expect(struct client *c, enum wire_op op, size_t n_items, int encoded)
{
    if (encoded || !wire_has_reply(op))
        return encoded;
    pending_push(c, (struct client_pending){.op = op, .n_items = n_items});
    c->waiting = op == WIRE_OP_WAIT || op == WIRE_OP_BARRIER;
    return 0;
}

int client_word(struct client *c, enum wire_op op, uint32_t word)
{
    int r = client_admit(c);

    return r ? r : client_expect(c, op, 0, wire_put_word(&c->out, op, word));
}

int client_plain(struct client *c, enum wire_op op)
{
    int r = client_admit(c);

    assert(op != WIRE_OP_CANCEL_WAIT);
    return r ? r : client_expect(c, op, 0, wire_put_plain(&c->out, op));
}

int client_key(struct client *c, enum wire_op op, struct wire_span key)
{
    int r = client_admit(c);

    return r ? r : client_expect(c, op, 0, wire_put_key(&c->out, op, key));
}

int client_key_amount(struct client *c, enum wire_op op, struct wire_span key, int64_t amount)
{
    int r = client_admit(c);

    return r ? r : client_expect(c, op, 0, wire_put_key_amount(&c->out, op, key, amount));
}

int client_key_value(struct client *c, enum wire_op op, struct wire_span key, struct wire_span value)
{
    int r = client_admit(c);

    return r ? r : client_expect(c, op, 0, wire_put_key_value(&c->out, op, key, value));
}

int client_compare_set(struct client *c, struct wire_span key, struct wire_span expected,
                       struct wire_span desired)
{
    int r = client_admit(c);

    return r ? r
             : client_expect(c, WIRE_OP_COMPARE_SET, 0,
                             wire_put_compare_set(&c->out, key, expected, desired));
}

int client_keys(struct client *c, enum wire_op op, const struct wire_span *keys, size_t n_keys)
{
    int r = client_admit(c);

    return r ? r : client_expect(c, op, n_keys, wire_put_keys(&c->out, op, keys, n_keys));
}

int client_multi_set(struct client *c, const struct wire_span *keys, const struct wire_span *values,
                     size_t n_pairs)
{
    int r = client_admit(c);

    return r ? r : client_expect(c, WIRE_OP_MULTI_SET, 0, wire_put_multi_set(&c->out, keys, values, n_pairs));
}

int client_cancel(struct client *c)
{
    int r;

    if (!c->waiting)
        return 0;
    r = wire_put_plain(&c->out, WIRE_OP_CANCEL_WAIT);
    if (r)
        return r;
    pending_push(c, (struct client_pending){.op = WIRE_OP_CANCEL_WAIT, .dropped = true});
    c->waiting = false;
    return 0;
}

int client_abandon(struct client *c)
{
    int r = client_cancel(c);

    if (r)
        return r;
    for (size_t i = 0; i < c->n_pending; i++)
        pending_at(c, i)->dropped = true;
    return 0;
}

/* ------------------------------------------------------------------ replies */

static int client_give_up(struct client *c, const char *error, uint64_t value)
{
    c->error = error;
    c->error_value = value;
    return CLIENT_E_PROTOCOL;
}

/* The oldest entry was answered with this reply: take it out. */
static int answered(struct client *c, const struct wire_reply *reply)
{
    bool is_wait = reply->op == WIRE_OP_WAIT || reply->op == WIRE_OP_BARRIER;
    bool canceled = c->n_pending > 1 && pending_at(c, 1)->op == WIRE_OP_CANCEL_WAIT;

    if (reply->op == WIRE_OP_CANCEL_WAIT && reply->number != WIRE_WAIT_CANCELED)
        return client_give_up(c, "a wait released after its cancellation", (uint64_t)reply->number);
    if (is_wait && reply->number == WIRE_WAIT_CANCELED) {
        if (!canceled)
            return client_give_up(c, "a cancelled wait without a CANCEL_WAIT", (uint64_t)reply->number);
        pending_pop(c); /* this one byte answers the CANCEL_WAIT as well */
    }
    pending_pop(c);
    if (c->n_pending == 0)
        c->waiting = false;
    return 0;
}

/* The reply to the oldest entry, wanted or not. */
static int client_take_reply(struct client *c, struct wire_reply *ret_reply, bool *ret_dropped)
{
    const struct client_pending *oldest = pending_at(c, 0);
    bool dropped = oldest->dropped;
    struct wire_reply reply;
    int r = wire_decode_reply(&c->scanner, &c->limits, oldest->op, oldest->n_items, buf_bytes(&c->in),
                              buf_size(&c->in), &reply, &c->taken);

    if (r == WIRE_E_MORE)
        return CLIENT_E_MORE;
    if (r == WIRE_E_BAD)
        return client_give_up(c, c->scanner.error, c->scanner.error_value);
    r = answered(c, &reply);
    if (r)
        return r;
    *ret_reply = reply;
    *ret_dropped = dropped;
    return 0;
}

int client_next(struct client *c, struct wire_reply *ret_reply)
{
    struct wire_reply reply;
    bool dropped = true;
    int r;

    if (c->error)
        return CLIENT_E_PROTOCOL;
    while (dropped) {
        buf_consume(&c->in, c->taken);
        c->taken = 0;
        if (c->n_pending == 0) {
            if (buf_size(&c->in) > 0)
                return client_give_up(c, "bytes that answer nothing", buf_size(&c->in));
            c->scanner.need = 1;
            return CLIENT_E_MORE;
        }
        r = client_take_reply(c, &reply, &dropped);
        if (r)
            return r;
    }
    *ret_reply = reply;
    return 0;
}
