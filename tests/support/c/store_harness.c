#include "tests/support/c/store_harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int harness_init(struct harness *h, const struct store_limits *limits)
{
    static const struct store_limits default_limits = STORE_LIMITS_DEFAULT;
    static const struct wire_limits wire_limits = WIRE_LIMITS_DEFAULT;
    static const uint8_t seed[SIPHASH_SEED_SIZE] = "a fixed seed";

    const char *turn = getenv("CRUN_STORE_TURN");

    memset(h, 0, sizeof(*h));
    h->turn = turn ? strtoul(turn, NULL, 10) : 0;
    h->turn_output = h->turn;
    h->wire = wire_limits;
    for (unsigned i = 0; i < HARNESS_CLIENTS_MAX; i++)
        store_client_init(&h->clients[i].client);
    return store_init(&h->store, limits ? limits : &default_limits, seed);
}

void harness_finish(struct harness *h)
{
    for (unsigned i = 0; i < HARNESS_CLIENTS_MAX; i++)
        harness_close(h, i);
    store_finish(&h->store);
}

/* Those whose wait ended; one that cannot be told is cut off, which may end the wait of another. */
static void tell_released(struct harness *h)
{
    while (!list_is_empty(&h->store.released)) {
        struct list *entry = h->store.released.next;
        struct store_client *client = list_entry(entry, struct store_client, released);
        struct harness_client *c = list_entry(client, struct harness_client, client);

        list_unlink(entry);
        if (buf_append_u8(&c->out.bytes, WIRE_WAIT_STOP) < 0) {
            store_client_finish(&h->store, &c->client);
            c->closed = true;
            c->result = -ENOMEM;
        }
    }
}

static void cut_off(struct harness *h, struct harness_client *c, int result)
{
    store_client_finish(&h->store, &c->client);
    c->closed = true;
    c->result = result;
    tell_released(h);
}

/* All turns of one request. */
static int apply(struct harness *h, struct harness_client *c, const struct wire_request *request)
{
    int r;

    do {
        struct store_budget budget = STORE_BUDGET_NONE;

        if (h->turn > 0)
            budget.units = budget.turn = h->turn;
        if (h->turn_output > 0)
            budget.output_max = outbox_size(&c->out) + h->turn_output;
        r = store_apply(&h->store, &c->client, request, &c->out, &budget);
        (void)store_clean(&h->store, h->turn > 0 ? h->turn : UINT64_MAX);
        tell_released(h);
    } while (r == STORE_MORE);
    return r;
}

/* One message off the front of c->in; false when there is none to execute. */
static bool run_one(struct harness *h, struct harness_client *c)
{
    struct wire_request request;
    size_t size;
    int r = wire_decode(&c->scanner, &h->wire, buf_bytes(&c->in), buf_size(&c->in), &request, &size);

    if (r == WIRE_E_MORE)
        return false;
    if (r == WIRE_E_BAD) {
        cut_off(h, c, 0);
        return false;
    }
    if (!c->greeted) {
        c->greeted = request.op == WIRE_OP_VALIDATE && request.word == WIRE_VALIDATE_MAGIC;
        if (!c->greeted)
            cut_off(h, c, 0);
    } else {
        r = apply(h, c, &request);
        if (r != 0)
            cut_off(h, c, r);
    }
    buf_consume(&c->in, size);
    tell_released(h);
    return !c->closed;
}

void harness_feed(struct harness *h, unsigned client, const uint8_t *data, size_t n)
{
    struct harness_client *c = &h->clients[client];

    if (c->closed)
        return;
    if (buf_append(&c->in, data, n) < 0) {
        cut_off(h, c, -ENOMEM);
        return;
    }
    while (run_one(h, c))
        ;
}

void harness_close(struct harness *h, unsigned client)
{
    struct harness_client *c = &h->clients[client];

    store_client_finish(&h->store, &c->client);
    outbox_finish(&c->out);
    buf_finish(&c->in);
    *c = (struct harness_client){0};
    store_client_init(&c->client);
    tell_released(h);
}

size_t harness_take(struct harness *h, unsigned client, uint8_t *to, size_t n)
{
    struct outbox *out = &h->clients[client].out;
    size_t taken = 0;

    while (taken < n && outbox_size(out) > 0) {
        struct iovec iov;
        size_t size;

        (void)outbox_iov(out, &iov, 1); /* one: there is something */
        size = iov.iov_len < n - taken ? iov.iov_len : n - taken;
        memcpy(to + taken, iov.iov_base, size);
        outbox_consume(out, size);
        taken += size;
    }
    return taken;
}
