/*
 * Life of the store behind sockets. The store's clients are in peer_uv.c.
 *
 * Deadlines: a list has the peers before the end of VALIDATE, another the peers with half a message. All peers
 * in a list have the same time to live, so the head is the next to expire, and a single timer serves all.
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

/* Closes a bounded number of expired peers: thousands of expired peers must not hold up the others. */
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

static bool store_shell_is_busy(void *self)
{
    struct store_shell *s = self;

    return !list_is_empty(&s->busy) || s->backend.is_busy(s->backend.self);
}

void store_shell_work_off(struct store_shell *s)
{
    s->backend.release(s->backend.self, SERVER_RELEASE_BATCH);
    if (store_shell_is_busy(s))
        server_want_turn(s->server);
}

/* A bounded part of each kind of work in a turn of the loop, between other clients' requests. */
static void store_shell_run_turn(void *self)
{
    struct store_shell *s = self;

    peers_run_turn(s);
    s->backend.run_turn(s->backend.self);
    s->backend.release(s->backend.self, SERVER_RELEASE_BATCH);
}

/* ---- life ---- */

static void store_shell_start(void *self)
{
    struct store_shell *s = self;

    server_open_timer(s->server, &s->deadline_timer, s);
}

static void store_shell_drain(void *self)
{
    struct store_shell *s = self;

    s->backend.release(s->backend.self, UINT32_MAX);
    list_for_each_safe(pos, &s->peers) peer_drain(list_entry(pos, struct peer, link));
}

static void store_shell_stop(void *self)
{
    struct store_shell *s = self;

    while (!list_is_empty(&s->peers))
        peer_close(list_entry(s->peers.next, struct peer, link));
    server_close_handle(s->server, &s->deadline_timer);
}

static void store_shell_destroy(void *self)
{
    struct store_shell *s = self;

    outbox_finish(&s->out);
    s->backend.destroy(s->backend.self);
    free(s);
}

struct store_shell *store_shell_of(const struct server *s)
{
    return server_find_service(s, store_shell_destroy);
}

int store_shell_add(struct server *server, const struct store_backend *backend)
{
    struct store_shell *s = calloc(1, sizeof(*s));
    uint8_t seed[SIPHASH_SEED_SIZE];
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
    int r = s ? random_fill(seed, sizeof(seed)) : -ENOMEM;

    if (r < 0) {
        backend->destroy(backend->self);
        free(s);
        return r;
    }
    s->server = server;
    s->backend = *backend;
    input_shares_init(&s->input, seed);
    list_init(&s->peers);
    list_init(&s->greeting);
    list_init(&s->framing);
    list_init(&s->unused);
    list_init(&s->busy);
    server_add_service(server, &service);
    return 0;
}
