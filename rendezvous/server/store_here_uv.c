/* A store in this process behind its clients. */

#include <errno.h>
#include <stdlib.h>

#include "base/random_os.h"
#include "rendezvous/server/store_shell_uv.h"

struct store_here {
    struct store store;
    struct server *server;
};

static void join_store(void *self, struct peer *p)
{
    struct store_here *h = self;

    store_client_init(&p->client.here);
    p->client.here.owner = address_quota_counter(&h->server->quota, p->fd);
}

static void leave_store(void *self, struct peer *p)
{
    struct store_here *h = self;

    store_client_finish(&h->store, &p->client.here);
}

/* A request that only reads is not executed when its reply cannot be sent. */
static int apply_here(void *self, struct peer *p, const uint8_t *raw, struct outbox *out,
                      struct store_budget *budget)
{
    struct store_here *h = self;

    if (!p->write_failed || !store_only_reads(p->request.op))
        return store_apply(&h->store, &p->client.here, &p->request, out, budget);
    if (p->client.here.task.active)
        store_client_give_up(&h->store, &p->client.here);
    return 0;
}

/* Its 00 goes ahead of whatever it is answered next. */
static void settle_wait(struct peer *p)
{
    if (list_is_empty(&p->client.here.released))
        return;
    list_unlink(&p->client.here.released);
    peer_send_wait_stop(p);
}

static void release_waits(void *self, unsigned max)
{
    struct store_here *h = self;

    while (!list_is_empty(&h->store.released) && max-- > 0)
        settle_wait(list_entry(h->store.released.next, struct peer, client.here.released));
}

static void clean_store(void *self)
{
    struct store_here *h = self;

    (void)store_clean(&h->store, STORE_TURN_UNITS); /* store_here_is_busy() asks again */
}

static bool store_here_is_busy(void *self)
{
    struct store_here *h = self;

    return !list_is_empty(&h->store.released) || store_clean(&h->store, 0);
}

static void free_store(void *data)
{
    struct store_here *h = data;

    store_finish(&h->store);
    free(h);
}

static void store_here_destroy(void *self)
{
    struct store_here *h = self;

    server_free_beside_the_loop(free_store, h, h->store.names.used);
}

int store_here_create(struct store_backend *ret, struct server *s)
{
    struct store_here *h = calloc(1, sizeof(*h));
    uint8_t seed[SIPHASH_SEED_SIZE];
    int r = h ? random_fill(seed, sizeof(seed)) : -ENOMEM;

    if (r == 0)
        r = store_init(&h->store, &s->limits.store, seed);
    if (r < 0) {
        free(h);
        return r;
    }
    h->server = s;
    *ret = (struct store_backend){
        .self = h,
        .join = join_store,
        .leave = leave_store,
        .apply = apply_here,
        .settle = settle_wait,
        .release = release_waits,
        .run_turn = clean_store,
        .is_busy = store_here_is_busy,
        .destroy = store_here_destroy,
    };
    if (s->quota.max > 0)
        r = store_share_out(&h->store, ADDRESS_QUOTA_COUNTERS);
    if (r < 0)
        free_store(h);
    return r;
}
