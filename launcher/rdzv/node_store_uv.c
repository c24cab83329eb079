/*
 *   workers of this node -> server on loopback -> relay -> sealed records -> store of the job at the rendezvous
 *
 * The connection is a second one beside the session, so values do not hold up signs of life. When it breaks it is dialled
 * again, and nothing is lost (relay_link.h); after PATIENCE_MS without one, or when the store has forgotten this node,
 * the clients are closed, as when a plain store ends.
 *
 * A host that is lost with the store breaks no connection, so silence for SILENCE_MS does (tcp_liveness_limit()). That is longer than a
 * cable is out for a moment.
 *
 * The keys are at the crund that formed the generation, also when another crund leads by now. After the connection has ended,
 * the crund that leads is dialled in turn with the crund of the keys. An answer that the keys are not there closes the clients
 * at once: nothing waits for a crund that was killed.
 */

#include "launcher/rdzv/node_store_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/random_os.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "launcher/rdzv/tcp_client_uv.h"
#include "launcher/util/log_os.h"
#include "rendezvous/relay/relay.h"
#include "rendezvous/server/server_security.h"
#include "rendezvous/daemon/compose_uv.h"

enum {
    RETRY_MS = 50,
    PATIENCE_MS = 30000,
    SILENCE_MS = 15000,
    REACH_MS = 2000,  /* of an attempt: until an address answers */
    HELLO_MS = 10000, /* and then until the store does, which may have the handshakes of all nodes to make */
};

struct node_store {
    struct node_store_config config;
    struct store_relay relay;
    struct server *server;
    struct tcp_client *client; /* NULL: between two attempts */
    uv_timer_t timer;
    uint8_t nonce[RELAY_NONCE_SIZE];
    struct buf hello; /* an incomplete one of the store */
    struct buf out;   /* empty between two calls: its memory is kept */
    struct resolver_addresses rendezvous;
    struct relay_space space;
    uint64_t until_ms; /* of the present attempts */
    unsigned turn;     /* of the next one of them: which address comes first */
    bool is_open, failed, stopping;
    unsigned n_open; /* the timer, and the server */
};

static void on_dial_again(uv_timer_t *timer);

static void fail_node_store(struct node_store *n, const char *why)
{
    if (n->failed || n->stopping)
        return;
    n->failed = true;
    tcp_client_close(steal_ptr(n->client));
    n->is_open = false;
    (void)uv_timer_stop(&n->timer); /* cannot fail on a timer that exists */
    relay_fail(&n->relay);
    server_serve_relayed(n->server); /* closes the clients */
    n->config.on_failed(n->config.data, why);
}

static void flush_relay(struct node_store *n)
{
    struct buf *out = &n->out;

    if (!n->client || !n->is_open)
        return;
    if (relay_link_output(&n->relay.link, out) < 0)
        relay_fail(&n->relay);
    else if (buf_size(out) > 0)
        tcp_client_send(n->client, buf_bytes(out), buf_size(out));
    buf_clear(out, RELAY_KEEP_MAX);
}

static void on_relay_wake(void *data)
{
    struct node_store *n = data;

    flush_relay(n);
    if (n->relay.failed && !n->failed &&
        !n->stopping) /* in a turn of its own: the caller may use its clients */
        (void)uv_timer_start(&n->timer, on_dial_again, 0, 0); /* fails only without a callback */
}

static void on_store_connected(void *data)
{
    struct node_store *n = data;
    struct relay_hello hello = {.is_known = n->relay.link.known, .arrived = n->relay.link.arrived};
    _cleanup_(buf_finish) struct buf out = {0};

    memcpy(hello.nonce, n->nonce, sizeof(hello.nonce));
    if (relay_space_put(&out, &n->space) == 0 &&
        relay_hello_put(&out, &hello) == 0) /* else the store's hello does not come */
        tcp_client_send(n->client, buf_bytes(&out), buf_size(&out));
}

/* 0, or -EPROTO: it cannot go on with this store. */
static int take_store_hello(struct node_store *n)
{
    struct relay_hello hello;

    if (!relay_hello_decode(buf_bytes(&n->hello), &hello) ||
        memcmp(hello.nonce, n->nonce, sizeof(n->nonce)) != 0 || relay_resume(&n->relay, hello.arrived) < 0)
        return -EPROTO;
    buf_consume(&n->hello, RELAY_HELLO_SIZE);
    n->is_open = true;
    n->until_ms = 0;
    n->turn = 0;
    (void)uv_timer_stop(&n->timer); /* cannot fail on a timer that exists */
    return 0;
}

static void on_store_bytes(void *data, const uint8_t *bytes, size_t size)
{
    struct node_store *n = data;
    int r = 0;

    if (!n->is_open) {
        if (buf_append(&n->hello, bytes, size) < 0)
            return; /* the time for this attempt ends */
        if (buf_size(&n->hello) < RELAY_HELLO_SIZE)
            return;
        r = take_store_hello(n);
        bytes = buf_bytes(&n->hello);
        size = buf_size(&n->hello);
    }
    if (r == 0 && size > 0)
        r = relay_receive(&n->relay, bytes, size);
    buf_reset(&n->hello);
    if (r < 0 || n->relay.failed) {
        fail_node_store(n, r == -ENOMEM ? "out of memory"
                                        : "it does not have the keys of this node's workers any more");
        return;
    }
    server_serve_relayed(n->server);
    flush_relay(n);
}

static void on_store_lost(void *data, const char *why)
{
    struct node_store *n = data;
    uint64_t now_ms = uv_now(n->config.loop);

    n->client = NULL;
    n->is_open = false;
    relay_link_down(&n->relay.link);
    buf_reset(&n->hello);
    if (n->until_ms == 0)
        n->until_ms = now_ms + PATIENCE_MS;
    if (now_ms >= n->until_ms)
        fail_node_store(n, why);
    else
        (void)uv_timer_start(&n->timer, on_dial_again, RETRY_MS, 0); /* fails only without a callback */
}

/* The crund that has the keys alone at first, and then the one that leads by now, too. */
static void list_addresses(struct node_store *n, struct resolver_addresses *ret)
{
    struct resolver_addresses now;

    *ret = n->rendezvous;
    if (n->turn == 0 || !n->config.find(n->config.data, &now) || ret->n == RESOLVER_ADDRESSES_MAX)
        return;
    ret->items[ret->n++] = now.items[0];
}

/* The timer is that of the present attempt until the store's hello. */
static void on_attempt_late(uv_timer_t *timer)
{
    struct node_store *n = timer->data;

    tcp_client_close(n->client);
    on_store_lost(n, "it does not answer");
}

static void limit_attempt(struct node_store *n, unsigned ms)
{
    (void)uv_timer_start(&n->timer, on_attempt_late, ms, 0); /* fails only without a callback */
}

static void on_store_reached(void *data)
{
    struct node_store *n = data;

    if (!n->relay.failed) /* the timer is that of the failure then */
        limit_attempt(n, HELLO_MS);
}

static int dial_relay(struct node_store *n)
{
    struct resolver_addresses addresses;
    const struct tcp_client_config config = {.loop = n->config.loop,
                                             .addresses = &addresses,
                                             .turn = n->turn,
                                             .silence_ms = SILENCE_MS,
                                             .tls = n->config.tls,
                                             .on_reached = on_store_reached,
                                             .on_connected = on_store_connected,
                                             .on_bytes = on_store_bytes,
                                             .on_lost = on_store_lost,
                                             .data = n};

    list_addresses(n, &addresses);
    n->turn++;
    limit_attempt(n, REACH_MS);
    return tcp_client_dial(&n->client, &config);
}

static void on_dial_again(uv_timer_t *timer)
{
    struct node_store *n = timer->data;
    int r;

    if (n->relay.failed) {
        fail_node_store(n, "out of memory");
        return;
    }
    r = dial_relay(n);
    if (r < 0) {
        n->client = NULL;
        fail_node_store(n, strerror(-r));
    }
}

/* ---- life ---- */

static void free_if_closed(struct node_store *n)
{
    if (--n->n_open > 0)
        return;
    relay_finish(&n->relay);
    buf_finish(&n->hello);
    buf_finish(&n->out);
    free(n);
}

static void on_node_store_closed(uv_handle_t *handle)
{
    free_if_closed(handle->data);
}

static void on_node_server_stopped(void *data)
{
    free_if_closed(data);
}

static void log_for_node_store(void *data, const char *line)
{
    log_line("worker store of this node: %s", line);
}

static int open_node_server(struct node_store *n, uint16_t *ret_port)
{
    const struct server_security security = {.own_user = n->config.security != JOB_SECURITY_OPEN,
                                             .require = n->config.security == JOB_SECURITY_REQUIRE};
    const struct server_config config = {.security = &security,
                                         .log = log_for_node_store,
                                         .relay = &n->relay,
                                         .relay_wake = on_relay_wake,
                                         .relay_data = n};

    TRY(server_create(&n->server, n->config.loop, &config));
    n->n_open++;
    return listen_on_loopback(n->server, 0, ret_port);
}

int node_store_start(struct node_store **ret, const struct node_store_config *config, uint16_t *ret_port)
{
    struct node_store *n = calloc(1, sizeof(*n));
    uint8_t seed[SIPHASH_SEED_SIZE];

    if (!n)
        return -ENOMEM;
    n->config = *config;
    n->rendezvous = *config->rendezvous;
    n->space = *config->space;
    n->config.rendezvous = NULL;
    n->config.space = NULL;
    (void)uv_timer_init(config->loop, &n->timer); /* cannot fail */
    n->timer.data = n;
    n->n_open = 1;
    int r = random_fill(seed, sizeof(seed));
    if (r == 0)
        r = random_fill(n->nonce, sizeof(n->nonce));
    relay_init(&n->relay, seed);
    if (r == 0)
        r = open_node_server(n, ret_port);
    if (r == 0)
        r = dial_relay(n);
    if (r < 0) {
        n->client = NULL;
        node_store_stop(n);
        return r;
    }
    n->until_ms = uv_now(config->loop) + PATIENCE_MS;
    *ret = n;
    return 0;
}

void node_store_stop(struct node_store *n)
{
    if (!n || n->stopping)
        return;
    n->stopping = true;
    tcp_client_close(steal_ptr(n->client));
    server_stop(steal_ptr(n->server), on_node_server_stopped, n);
    uv_close((uv_handle_t *)&n->timer, on_node_store_closed);
}
