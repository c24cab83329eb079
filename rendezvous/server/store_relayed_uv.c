/* A relay behind its clients: requests go to a store elsewhere, and replies come later. */

#include <errno.h>
#include <stdlib.h>

#include "rendezvous/server/store_shell_uv.h"

struct store_relayed {
    struct server *server;
    struct store_relay *relay;
    void (*wake)(void *data);
    void *data;
};

static void join_relay(void *self, struct peer *p)
{
    relay_client_init(&p->client.relayed);
}

static void leave_relay(void *self, struct peer *p)
{
    struct store_relayed *h = self;

    relay_client_finish(h->relay, &p->client.relayed);
}

static int apply_elsewhere(void *self, struct peer *p, const uint8_t *raw, struct outbox *out,
                           struct store_budget *budget)
{
    struct store_relayed *h = self;

    return relay_apply(h->relay, &p->client.relayed, &p->request, raw, p->request_size, out);
}

static bool is_reply_owed(const struct peer *p)
{
    return relay_client_is_owed(&p->client.relayed);
}

static void wake_relay(void *self, unsigned max)
{
    struct store_relayed *h = self;

    if (h->wake)
        h->wake(h->data);
}

static void serve_relayed(struct peer *p)
{
    struct relay_client *c = &p->client.relayed;

    if (relay_client_again(c))
        p->starved = false;
    peer_take_reply(p, &c->reply, c->failure, c->failed_op);
}

static void serve_all_relayed(struct store_relayed *h)
{
    struct store_shell *s = store_shell_of(h->server);
    struct relay_client *c;

    while (!h->relay->failed && (c = relay_next_ready(h->relay)))
        serve_relayed(list_entry(c, struct peer, client.relayed));
    while (h->relay->failed && !list_is_empty(&s->peers))
        peer_close(list_entry(s->peers.next, struct peer, link));
}

/* Clients may go on because another one gave its request up, without bytes from the store. */
static bool is_relay_ready(void *self)
{
    struct store_relayed *h = self;

    return !list_is_empty(&h->relay->ready);
}

static void run_relay_turn(void *self)
{
    if (is_relay_ready(self))
        serve_all_relayed(self);
}

void server_serve_relayed(struct server *server)
{
    struct store_shell *s = store_shell_of(server);

    serve_all_relayed(s->backend.self);
    store_shell_work_off(s);
}

int store_relayed_create(struct store_backend *ret, struct server *s, const struct server_config *config)
{
    struct store_relayed *h = calloc(1, sizeof(*h));

    if (!h)
        return -ENOMEM;
    *h = (struct store_relayed){
        .server = s, .relay = config->relay, .wake = config->relay_wake, .data = config->relay_data};
    *ret = (struct store_backend){
        .self = h,
        .join = join_relay,
        .leave = leave_relay,
        .apply = apply_elsewhere,
        .is_owed = is_reply_owed,
        .release = wake_relay,
        .run_turn = run_relay_turn,
        .is_busy = is_relay_ready,
        .destroy = free,
    };
    return 0;
}
