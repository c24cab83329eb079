/*
 * Life of the store behind sockets. The store's clients are in peer_uv.c.
 */

#include "rendezvous/server/store_shell_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "proto/address.h"

/* ---- deadlines ---- */

/* If the server itself was late (stopped, or out of CPU time), the client's bytes lie unread in the socket. */
static void expire_peer(struct peer *p, const char *why)
{
    struct store_shell *s = p->shell;

    if (!peer_catch_up(p)) {
        server_log(s->server, p->fd, "%s: closed", why);
        peer_close(p);
    }
    store_shell_work_off(s); /* requests may have arrived late */
}

static void on_greeting_late(struct deadline *d)
{
    expire_peer(list_entry(d, struct peer, deadline), "sent no valid TCPStore greeting in time");
}

static void on_frame_late(struct deadline *d)
{
    expire_peer(list_entry(d, struct peer, deadline), "left a message incomplete for too long");
}

/* ---- clients of the store, or of the relay ---- */

void store_shell_join(struct peer *p)
{
    struct store_shell *s = p->shell;

    if (s->relay) {
        relay_client_init(&p->client.relayed);
        return;
    }
    store_client_init(&p->client.here);
    p->client.here.owner = address_quota_counter(&s->server->quota, p->fd);
}

void store_shell_leave(struct peer *p)
{
    struct store_shell *s = p->shell;

    if (s->relay)
        relay_client_finish(s->relay, &p->client.relayed);
    else
        store_client_finish(&s->store, &p->client.here);
}

/* A request that only reads is not executed when its reply cannot be sent. */
int store_shell_apply(struct peer *p, const uint8_t *raw, struct outbox *out, struct store_budget *budget)
{
    struct store_shell *s = p->shell;

    if (s->relay)
        return relay_apply(s->relay, &p->client.relayed, &p->request, raw, p->request_size, out);
    if (!p->write_failed || !store_only_reads(p->request.op))
        return store_apply(&s->store, &p->client.here, &p->request, out, budget);
    if (p->client.here.task.active)
        store_client_give_up(&s->store, &p->client.here);
    return 0;
}

void store_shell_settle(struct peer *p)
{
    if (p->shell->relay || list_is_empty(&p->client.here.released))
        return;
    list_unlink(&p->client.here.released);
    peer_send_wait_stop(p);
}

/* After requests were executed: ends up to max waits, or wakes the relay. */
static void release_waits(struct store_shell *s, unsigned max)
{
    if (s->relay && s->relay_wake)
        s->relay_wake(s->relay_data);
    while (!list_is_empty(&s->store.released) && max-- > 0)
        store_shell_settle(list_entry(s->store.released.next, struct peer, client.here.released));
}

static void serve_relayed(struct store_shell *s)
{
    struct relay_client *c;

    while (!s->relay->failed && (c = relay_next_ready(s->relay)))
        peer_take_reply(list_entry(c, struct peer, client.relayed));
    while (s->relay->failed && !list_is_empty(&s->peers))
        peer_close(list_entry(s->peers.next, struct peer, link));
}

void server_serve_relayed(struct server *server)
{
    struct store_shell *s = store_shell_of(server);

    serve_relayed(s);
    store_shell_work_off(s);
}

/* ---- waits ---- */

void server_visit_waits(const struct server *server, size_t n, server_wait_fn *visit, void *data)
{
    const struct store_shell *s = store_shell_of(server);
    char host[64];

    for (struct list *i = s->peers.next; !s->relay && n > 0 && i != &s->peers; i = i->next) {
        const struct peer *p = list_entry(i, struct peer, link);
        union address_endpoint at = {.storage.ss_family = AF_UNSPEC};
        socklen_t size = sizeof(at.storage);
        struct wire_span key;
        size_t n_keys = store_waits_for(&p->client.here, &key);

        if (n_keys == 0 || getpeername(p->fd, &at.any, &size) < 0 ||
            !address_format(&at.any, host, sizeof(host)))
            continue;
        visit(data, host, address_port(&at.any), key, n_keys);
        n--;
    }
}

/* ---- turns ---- */

/* Clients of a relay may go on because another one gave its request up, without bytes from the store. */
static bool is_relay_ready(const struct store_shell *s)
{
    return s->relay && !list_is_empty(&s->relay->ready);
}

static bool store_shell_is_busy(void *self)
{
    struct store_shell *s = self;

    return !list_is_empty(&s->busy) || !list_is_empty(&s->store.released) || is_relay_ready(s) ||
           store_clean(&s->store, 0);
}

void store_shell_work_off(struct store_shell *s)
{
    release_waits(s, SERVER_RELEASE_BATCH);
    if (store_shell_is_busy(s))
        server_want_turn(s->server);
}

/* A bounded part of each kind of work in a turn of the loop, between other clients' requests. */
static void store_shell_run_turn(void *self)
{
    struct store_shell *s = self;

    peers_run_turn(s);
    (void)store_clean(&s->store, STORE_TURN_UNITS); /* store_shell_is_busy() asks again */
    if (is_relay_ready(s))
        serve_relayed(s);
    release_waits(s, SERVER_RELEASE_BATCH);
}

/* ---- life ---- */

static void store_shell_drain(void *self)
{
    struct store_shell *s = self;

    release_waits(s, UINT32_MAX);
    list_for_each_safe(pos, &s->peers) peer_drain(list_entry(pos, struct peer, link));
}

static void store_shell_stop(void *self)
{
    struct store_shell *s = self;

    while (!list_is_empty(&s->peers))
        peer_close(list_entry(s->peers.next, struct peer, link));
}

static void free_store_shell(void *data)
{
    struct store_shell *s = data;

    store_finish(&s->store);
    free(s);
}

static void store_shell_destroy(void *self)
{
    struct store_shell *s = self;

    outbox_finish(&s->out);
    server_free_beside_the_loop(free_store_shell, s, s->store.names.used);
}

struct store_shell *store_shell_of(const struct server *s)
{
    return server_find_service(s, store_shell_destroy);
}

int store_shell_add(struct server *server, const struct server_config *config)
{
    struct store_shell *s = calloc(1, sizeof(*s));
    int r = s ? store_init(&s->store, &server->limits.store, server->quota.seed) : -ENOMEM;

    if (r == 0 && server->quota.max > 0)
        r = store_share_out(&s->store, ADDRESS_QUOTA_COUNTERS);
    if (r < 0) {
        if (s)
            free_store_shell(s);
        return r;
    }
    s->server = server;
    s->relay = config->relay;
    s->relay_wake = config->relay_wake;
    s->relay_data = config->relay_data;
    list_init(&s->peers);
    s->greeting.expire = on_greeting_late;
    s->framing.expire = on_frame_late;
    list_init(&s->unused);
    list_init(&s->busy);
    server_add_service(server, &(struct server_service){
                                   .self = s,
                                   .deadlines = {&s->greeting, &s->framing},
                                   .admit = peer_create,
                                   .make_room = peers_make_room,
                                   .run_turn = store_shell_run_turn,
                                   .is_busy = store_shell_is_busy,
                                   .drain = store_shell_drain,
                                   .stop = store_shell_stop,
                                   .destroy = store_shell_destroy,
                               });
    return 0;
}
