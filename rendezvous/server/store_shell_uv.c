/*
 * Life of the store behind sockets. Its clients are in peer_uv.c.
 *
 * Deadlines: peers that have not completed VALIDATE and peers with half a message are in one list each. All
 * in a list have the same time to live, so the head is the next to expire and one timer serves all.
 */

#include "rendezvous/server/store_shell_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "base/random_os.h"

enum { EXPIRE_BATCH = 32 };

/* ---- deadlines ---- */

static void on_client_deadline(uv_timer_t *timer);

static void arm_deadline(struct store_shell *s, uint64_t at_ms)
{
    uint64_t now = uv_now(s->server->loop);

    if (uv_is_active((uv_handle_t *)&s->deadline_timer) && s->deadline_ms <= at_ms)
        return;
    s->deadline_ms = at_ms;
    /* Fails only for a closing handle or without a callback. */
    (void)uv_timer_start(&s->deadline_timer, on_client_deadline, at_ms > now ? at_ms - now : 0, 0);
}

void store_shell_set_deadline(struct store_shell *s, struct peer *p, struct list *list, unsigned timeout_ms)
{
    list_unlink(&p->deadline_link);
    list_append(list, &p->deadline_link);
    p->deadline_ms = uv_now(s->server->loop) + timeout_ms;
    arm_deadline(s, p->deadline_ms);
}

/* A bounded number of them; thousands that expire together must not hold up those that are served. */
static void expire(struct store_shell *s, struct list *list, const char *why)
{
    uint64_t now = uv_now(s->server->loop);

    for (int i = 0; !list_is_empty(list); i++) {
        struct peer *p = list_entry(list->next, struct peer, deadline_link);

        if (p->deadline_ms > now || i == EXPIRE_BATCH) {
            arm_deadline(s, p->deadline_ms > now ? p->deadline_ms : now + 1);
            return;
        }
        /* If the server itself was late (stopped, or out of CPU time), the client's bytes lie unread in the
         * socket. */
        if (peer_catch_up(p))
            continue;
        server_log(s->server, p->fd, "%s: closed", why);
        peer_close(p);
    }
}

static void on_client_deadline(uv_timer_t *timer)
{
    struct store_shell *s = timer->data;

    expire(s, &s->greeting, "sent no valid TCPStore greeting in time");
    expire(s, &s->framing, "left a message incomplete for too long");
    store_shell_work_off(s); /* requests may have arrived late */
}

/* ---- turns ---- */

/* Clients may go on because another one gave its request up, without bytes from the store. */
static bool is_relay_ready(const struct store_shell *s)
{
    return s->relay && !list_is_empty(&s->relay->ready);
}

static bool store_shell_is_busy(void *self)
{
    struct store_shell *s = self;

    return !list_is_empty(&s->store.released) || !list_is_empty(&s->busy) || store_clean(&s->store, 0) ||
           is_relay_ready(s);
}

void store_shell_work_off(struct store_shell *s)
{
    peers_release(s, SERVER_RELEASE_BATCH);
    if (store_shell_is_busy(s))
        server_want_turn(s->server);
}

/* A bounded part of each kind of work in a turn of the loop, between other clients' requests. */
static void store_shell_run_turn(void *self)
{
    struct store_shell *s = self;

    (void)store_clean(&s->store, STORE_TURN_UNITS); /* store_shell_is_busy() asks again */
    peers_run_turn(s);
    if (is_relay_ready(s))
        peers_serve_relayed(s);
    peers_release(s, SERVER_RELEASE_BATCH);
}

/* ---- life ---- */

static int init_store(struct store_shell *s)
{
    uint8_t seeds[2][SIPHASH_SEED_SIZE];

    int r = random_fill(seeds, sizeof(seeds));
    if (r)
        return r;
    input_shares_init(&s->input, seeds[0]);
    r = store_init(&s->store, &s->server->limits.store, seeds[1]);
    if (r == 0 && s->server->quota.max > 0)
        r = store_share_out(&s->store, ADDRESS_QUOTA_COUNTERS);
    if (r < 0)
        store_finish(&s->store);
    return r;
}

static void store_shell_start(void *self)
{
    struct store_shell *s = self;

    server_open_timer(s->server, &s->deadline_timer, s);
}

static void store_shell_drain(void *self)
{
    struct store_shell *s = self;

    peers_release(s, UINT32_MAX);
    list_for_each_safe(pos, &s->peers) peer_drain(list_entry(pos, struct peer, link));
}

static void store_shell_stop(void *self)
{
    struct store_shell *s = self;

    while (!list_is_empty(&s->peers))
        peer_close(list_entry(s->peers.next, struct peer, link));
    server_close_handle(s->server, &s->deadline_timer);
}

static void free_store(void *data)
{
    struct store_shell *s = data;

    store_finish(&s->store);
    free(s);
}

static void store_shell_destroy(void *self)
{
    struct store_shell *s = self;

    outbox_finish(&s->out);
    server_free_beside_the_loop(free_store, s, s->store.names.used);
}

struct store_shell *store_shell_of(const struct server *s)
{
    return server_find_service(s, store_shell_destroy);
}

int store_shell_add(struct server *server, const struct server_config *config)
{
    struct store_shell *s = calloc(1, sizeof(*s));
    const struct server_service service = {
        .self = s,
        .start = store_shell_start,
        .admit = peer_create,
        .make_room = peers_make_room,
        .run_turn = store_shell_run_turn,
        .is_busy = store_shell_is_busy,
        .drain = store_shell_drain,
        .stop = store_shell_stop,
        .destroy = store_shell_destroy,
    };

    if (!s)
        return -ENOMEM;
    s->server = server;
    s->relay = config->relay;
    s->relay_wake = config->relay_wake;
    s->relay_data = config->relay_data;
    list_init(&s->peers);
    list_init(&s->greeting);
    list_init(&s->framing);
    list_init(&s->unused);
    list_init(&s->busy);
    int r = init_store(s);
    if (r < 0)
        free(s);
    else
        server_add_service(server, &service);
    return r;
}

void server_serve_relayed(struct server *s)
{
    peers_serve_relayed(store_shell_of(s));
}
