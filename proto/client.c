/*
 * The client machine keeps the unanswered requests in order, because replies do not name their requests.
 *
 * The happy path: a request puts a message into `out` and an entry into `pending`; client_next() decodes
 * `in` as the reply to the oldest entry and takes the entry out.
 *
 * Cancelling: CANCEL_WAIT is always answered with 01, and a release (00) under way comes before
 * the 01, never after. So a cancelled wait is two entries, WAIT and CANCEL_WAIT: a first 01
 * answers both; a first 00 answers the WAIT, and the 01 behind is dropped.
 *
 * Failure: an impossible reply (CLIENT_E_PROTOCOL). The start of a reply
 * cannot be found again, so the failure is final.
 */

#include "proto/client.h"

#include <assert.h>

#include "base/err.h"

struct client_pending {
    enum wire_op op;
    size_t n_items; /* MULTI_GET: keys asked for */
    bool dropped;   /* abandoned: the reply is decoded and discarded */
};

void client_init(struct client *c)
{
    *c = (struct client){.limits = WIRE_LIMITS_REPLY_DEFAULT};
}

void client_finish(struct client *c)
{
    buf_finish(&c->out);
    buf_finish(&c->in);
    buf_finish(&c->pending);
    *c = (struct client){0};
}

/* ------------------------------------------------------------------ pending requests */

static struct client_pending *pending_at(const struct client *c, size_t i)
{
    return (struct client_pending *)(void *)buf_bytes(&c->pending) + i;
}

size_t client_n_pending(const struct client *c)
{
    return buf_size(&c->pending) / sizeof(struct client_pending);
}

/* client_admit() has made the room. */
static void pending_push(struct client *c, struct client_pending entry)
{
    int r = buf_append(&c->pending, &entry, sizeof(entry));

    assert(r == 0);
    (void)r;
}

static void pending_pop(struct client *c)
{
    buf_consume(&c->pending, sizeof(struct client_pending));
}

/* ------------------------------------------------------------------ requests */

/* May a request be made now? Also takes the room for the entry, so client_expect() cannot fail; one entry
 * more, so a cancel needs no memory. */
static int client_admit(struct client *c)
{
    if (c->error)
        return CLIENT_E_PROTOCOL;
    if (c->waiting)
        return CLIENT_E_BUSY;
    return buf_reserve(&c->pending, 2 * sizeof(struct client_pending)) ? 0 : -ENOMEM;
}

/* The message is in `out` if encoded is 0: remember the expected reply. */
static int client_expect(struct client *c, enum wire_op op, size_t n_items, int encoded)
{
    if (encoded || !wire_has_reply(op))
        return encoded;
    pending_push(c, (struct client_pending){.op = op, .n_items = n_items});
    c->waiting = op == WIRE_OP_WAIT || op == WIRE_OP_BARRIER;
    return 0;
}

int client_request(struct client *c, const struct wire_request *request)
{
    int r = client_admit(c);

    assert(request->op != WIRE_OP_CANCEL_WAIT);
    return r ? r : client_expect(c, request->op, request->n_items, wire_put(&c->out, request));
}

int client_keys(struct client *c, enum wire_op op, const struct wire_span *keys, size_t n_keys)
{
    TRY(client_admit(c));
    return client_expect(c, op, n_keys, wire_put_keys(&c->out, op, keys, n_keys));
}

int client_cancel(struct client *c)
{
    if (!c->waiting)
        return 0;
    TRY(wire_put(&c->out, &(struct wire_request){.op = WIRE_OP_CANCEL_WAIT}));
    pending_push(c, (struct client_pending){.op = WIRE_OP_CANCEL_WAIT, .dropped = true});
    c->waiting = false;
    return 0;
}

int client_abandon(struct client *c)
{
    TRY(client_cancel(c));
    for (size_t i = 0; i < client_n_pending(c); i++)
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

/* The oldest entry was answered with the reply: take the entry out. */
static int answered(struct client *c, const struct wire_reply *reply)
{
    bool is_wait = reply->op == WIRE_OP_WAIT || reply->op == WIRE_OP_BARRIER;
    bool canceled = client_n_pending(c) > 1 && pending_at(c, 1)->op == WIRE_OP_CANCEL_WAIT;

    if (reply->op == WIRE_OP_CANCEL_WAIT && reply->number != WIRE_WAIT_CANCELED)
        return client_give_up(c, "a wait released after its cancellation", (uint64_t)reply->number);
    if (is_wait && reply->number == WIRE_WAIT_CANCELED) {
        if (!canceled)
            return client_give_up(c, "a cancelled wait without a CANCEL_WAIT", (uint64_t)reply->number);
        pending_pop(c); /* the byte answers the CANCEL_WAIT as well */
    }
    pending_pop(c);
    if (client_n_pending(c) == 0)
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

    if (c->error)
        return CLIENT_E_PROTOCOL;
    while (dropped) {
        buf_consume(&c->in, c->taken);
        c->taken = 0;
        if (client_n_pending(c) == 0) {
            if (buf_size(&c->in) > 0)
                return client_give_up(c, "bytes that answer nothing", buf_size(&c->in));
            c->scanner.need = 1;
            return CLIENT_E_MORE;
        }
        TRY(client_take_reply(c, &reply, &dropped));
    }
    *ret_reply = reply;
    return 0;
}
