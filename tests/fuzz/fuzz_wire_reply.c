/*
 * Fuzz target: replies as a client reads them. Input: one byte that chooses the slices, one byte n, n bytes
 * that each make a request (or a cancel, or an abandon), and the rest is what the server sends. The client
 * machine must come to the same replies and the same end whether that arrives at once or in slices.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/client.h"
#include "tests/support/c/wire_messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const struct wire_limits limits = {
    .key_max = 300, .value_max = 600, .keys_max = 64, .message_max = 1000};

struct input {
    uint8_t slices;
    const uint8_t *actions, *replies;
    size_t n_actions, n_replies;
};

/* How a run ended, and a checksum over the replies on the way. */
struct outcome {
    uint64_t checksum;
    size_t n_replies, n_pending;
    const char *error;
};

/* False: not now, a wait has to be answered first. */
static bool act(struct client *c, uint8_t action)
{
    const struct wire_span key = wire_span("/k", 2);
    const struct wire_span keys[] = {key, key, key, key, key, key, key, key};
    enum wire_op op = action & 31;
    const struct wire_request request = {
        .op = op, .word = 1, .amount = 1, .key = key, .value = key, .desired = key};
    size_t n = action >> 5;
    int r = 0;

    switch (op) {
    case WIRE_OP_CANCEL_WAIT:
        r = client_cancel(c);
        break;
    case WIRE_OP_CHECK:
    case WIRE_OP_WAIT:
    case WIRE_OP_MULTI_GET:
        r = client_keys(c, op, keys, n);
        break;
    case WIRE_OP_MULTI_SET:
        r = client_multi_set(c, keys, keys, n);
        break;
    default:
        r = op < WIRE_OP_COUNT ? client_request(c, &request) : client_abandon(c);
        break;
    }
    require(r == 0 || r == CLIENT_E_BUSY || (r == CLIENT_E_PROTOCOL && c->error));
    return r != CLIENT_E_BUSY;
}

static void add_bytes(uint64_t *checksum, const void *data, size_t size)
{
    const uint8_t *bytes = data;

    for (size_t i = 0; i < size; i++)
        *checksum = (*checksum ^ bytes[i]) * UINT64_C(0x100000001b3);
}

static void add_span(struct outcome *o, const struct client *c, struct wire_span span)
{
    const uint8_t *in = buf_bytes(&c->in);

    require(span.size == 0 || (span.data >= in && span.data + span.size <= in + buf_size(&c->in)));
    add_bytes(&o->checksum, &span.size, sizeof(span.size));
    add_bytes(&o->checksum, span.data, span.size);
}

static void add_reply(struct outcome *o, const struct client *c, const struct wire_reply *reply)
{
    struct wire_span list = reply->items, item;
    size_t n = 0;

    add_bytes(&o->checksum, &reply->op, sizeof(reply->op));
    add_bytes(&o->checksum, &reply->number, sizeof(reply->number));
    add_span(o, c, reply->value);
    add_span(o, c, reply->items);
    while (wire_next_key(&list, &item))
        n++;
    require(n == reply->n_items && list.size == 0);
    o->n_replies++;
}

/* Takes a reply, or has more bytes arrive. False when neither is possible. */
static bool go_on(struct outcome *o, struct client *c, const struct input *input, size_t *at, size_t slice)
{
    struct wire_reply reply;
    size_t n_left = input->n_replies - *at;
    int r = client_next(c, &reply);

    if (r == 0) {
        add_reply(o, c, &reply);
        return true;
    }
    require(r == CLIENT_E_MORE ? c->scanner.need > buf_size(&c->in) : r == CLIENT_E_PROTOCOL && c->error);
    if (r == CLIENT_E_PROTOCOL || n_left == 0)
        return false;
    if (slice > n_left)
        slice = n_left;
    require(buf_append(&c->in, input->replies + *at, slice) == 0);
    *at += slice;
    return true;
}

static size_t next_slice(uint32_t *state, uint8_t slices)
{
    *state = *state * 1664525 + 1013904223;
    return 1 + (*state >> 16) % (1 + slices % 40);
}

static struct outcome run(const struct input *input, bool sliced)
{
    _cleanup_(client_finish) struct client c;
    struct outcome o = {.checksum = UINT64_C(0xcbf29ce484222325)};
    uint32_t state = input->slices;
    size_t at = 0, i = 0;
    bool goes_on = true;

    client_init(&c);
    c.limits = limits;
    while (goes_on) {
        while (i < input->n_actions && act(&c, input->actions[i]))
            i++;
        goes_on = go_on(&o, &c, input, &at, sliced ? next_slice(&state, input->slices) : SIZE_MAX);
    }
    o.n_pending = client_n_pending(&c);
    o.error = c.error;
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input;
    struct outcome whole, sliced;

    if (size < 2 || size - 2 < data[1])
        return 0;
    input = (struct input){.slices = data[0], .n_actions = data[1], .actions = data + 2};
    input.replies = input.actions + input.n_actions;
    input.n_replies = size - 2 - input.n_actions;
    whole = run(&input, false);
    sliced = run(&input, true);
    require(whole.checksum == sliced.checksum && whole.n_replies == sliced.n_replies);
    require(whole.n_pending == sliced.n_pending && whole.error == sliced.error);
    return 0;
}
