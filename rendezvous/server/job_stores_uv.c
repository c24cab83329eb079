#include "rendezvous/server/job_stores_uv.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "base/random_os.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server/relay_shell_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/session/session_message.h"
#include "rendezvous/store/metrics_text.h"

enum { LARGE_BYTES = 1 << 20 };

struct job_store {
    struct job_stores *owner;
    struct list link;   /* in job_stores.stores; unlinked: the store ends */
    struct list active; /* in job_stores.active, while there is work */
    char job[SESSION_JOB_SIZE];
    uint64_t instance;
    uint32_t key_space;
    struct store store;
    uint64_t bytes; /* counted in job_stores.bytes */
    bool is_orphan;
    struct relay_shell *nodes;
};

struct job_stores {
    struct server *server;
    struct relay_shell *lobby; /* connections before they name their keys */
    struct list stores, active;
    size_t n_stores; /* number of stores not freed yet */
    uint64_t bytes;  /* of all stores */
};

/* ---- accounts ---- */

/* A job may use the rest of the server's limit, up to the job's own limit. */
static void account(struct job_store *st)
{
    const struct server_limits *limits = &st->owner->server->limits;
    uint64_t now = st->store.account.bytes, free_bytes;

    st->owner->bytes += now;
    st->owner->bytes -= st->bytes;
    st->bytes = now;
    free_bytes = limits->store.bytes_max > st->owner->bytes ? limits->store.bytes_max - st->owner->bytes : 0;
    st->store.limits.bytes_max = limits->job_store.bytes_max;
    if (now + free_bytes < st->store.limits.bytes_max)
        st->store.limits.bytes_max = now + free_bytes;
}

/* ---- turns ---- */

static bool is_work_left(struct job_store *st)
{
    return !list_is_empty(&st->store.released) || relay_shell_is_busy(st->nodes) ||
           store_clean(&st->store, 0);
}

static void release_clients(struct job_store *st, unsigned max)
{
    while (!list_is_empty(&st->store.released) && max-- > 0) {
        struct list *entry = st->store.released.next;

        list_unlink(entry);
        relay_shell_release(st->nodes, list_entry(entry, struct store_client, released));
    }
    relay_shell_flush(st->nodes);
}

/* Releases a bounded part of the store's clients now and the rest in the next turns. */
static void work_off(struct job_store *st)
{
    release_clients(st, SERVER_RELEASE_BATCH);
    account(st);
    if (is_work_left(st))
        server_want_turn(st->owner->server);
    else
        list_unlink(&st->active);
}

static bool job_stores_are_busy(void *self)
{
    struct job_stores *j = self;

    return !list_is_empty(&j->active);
}

/* A turn of the store that has waited longest. */
static void job_stores_run_turn(void *self)
{
    struct job_stores *j = self;
    struct job_store *st;

    if (!job_stores_are_busy(j))
        return;
    st = list_entry(j->active.next, struct job_store, active);
    list_unlink(&st->active);
    list_append(&j->active, &st->active);
    (void)store_clean(&st->store, STORE_TURN_UNITS); /* is_work_left() asks again */
    relay_shell_run_turn(st->nodes);
    list_for_each_safe(i, &j->active) work_off(list_entry(i, struct job_store, active));
}

/* ---- stores ---- */

/* Gives the memory of a job's values back to the system: glibc would keep the memory. */
static void free_job_store(void *data)
{
    struct job_store *st = data;

    store_finish(&st->store);
    free(st);
#ifdef __GLIBC__
    (void)malloc_trim(0); /* returns whether there was anything */
#endif
}

/* The last connection is closed. */
static void on_nodes_closed(void *data)
{
    struct job_store *st = data;

    bool is_large = st->bytes > LARGE_BYTES;

    st->owner->bytes -= st->bytes;
    st->owner->n_stores--;
    server_free_beside_the_loop(free_job_store, st, is_large ? UINT64_MAX : st->store.names.used);
}

static void end_store(struct job_store *st)
{
    list_unlink(&st->link);
    list_unlink(&st->active);
    relay_shell_stop(st->nodes);
}

/* Also called after each sweep of the nodes, so an orphan ends some time after its last node. */
static void on_nodes_worked(void *data)
{
    struct job_store *st = data;

    if (list_is_empty(&st->link))
        return; /* the store ends */
    account(st);
    if (st->is_orphan && !relay_shell_has_nodes(st->nodes)) {
        end_store(st);
        return;
    }
    if (list_is_empty(&st->active))
        list_append(&st->owner->active, &st->active);
    work_off(st);
}

static struct job_store *find_store(struct job_stores *j, const char *job, uint64_t instance,
                                    uint32_t key_space)
{
    list_for_each(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->instance == instance && st->key_space == key_space && strcmp(st->job, job) == 0)
            return st;
    }
    return NULL;
}

static void drop_others(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space)
{
    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        if (st->instance == instance && st->key_space != key_space && strcmp(st->job, job) == 0)
            end_store(st);
    }
}

static int create_store(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space)
{
    struct job_store *st = calloc(1, sizeof(*st));
    uint8_t seed[SIPHASH_SEED_SIZE];
    int r = st ? random_fill(seed, sizeof(seed)) : -ENOMEM;

    if (r == 0)
        r = store_init(&st->store, &j->server->limits.job_store, seed);
    if (r < 0) {
        free(st);
        return r;
    }
    const struct relay_shell_config config = {.server = j->server,
                                              .store = &st->store,
                                              .worked = on_nodes_worked,
                                              .closed = on_nodes_closed,
                                              .data = st};
    r = relay_shell_create(&st->nodes, &config);
    if (r < 0) {
        free_job_store(st);
        return r;
    }
    relay_shell_start(st->nodes);
    st->owner = j;
    j->n_stores++;
    st->instance = instance;
    st->key_space = key_space;
    text_copy(st->job, sizeof(st->job), job);
    list_init(&st->active);
    list_append(&j->stores, &st->link);
    account(st);
    return 0;
}

void job_stores_begin(void *stores, const char *job, uint64_t instance, uint32_t key_space)
{
    struct job_stores *j = stores;
    struct job_store *st;

    drop_others(j, job, instance, key_space);
    st = find_store(j, job, instance, key_space);
    if (st)
        st->is_orphan = false; /* the process leads again */
    if (key_space == 0 || st)
        return;
    int r = create_store(j, job, instance, key_space);
    if (r < 0)
        server_log(j->server, -1, "cannot keep the keys of job '%.64s': %s", job, strerror(-r));
}

void job_stores_end(void *stores, const char *job, uint64_t instance)
{
    drop_others(stores, job, instance, 0);
}

void job_stores_orphan(void *stores)
{
    struct job_stores *j = stores;

    list_for_each_safe(i, &j->stores)
    {
        struct job_store *st = list_entry(i, struct job_store, link);

        st->is_orphan = true;
        if (!relay_shell_has_nodes(st->nodes))
            end_store(st);
    }
}

size_t job_stores_n_stores(const struct job_stores *j)
{
    return j->n_stores;
}

static void write_store_metrics(const void *self, struct metrics_text *m)
{
    const struct job_stores *j = self;

    metrics_one(m, "crun_job_stores", METRIC_GAUGE, "Stores with the keys of the workers of a job.",
                (double)j->n_stores);
    metrics_one(m, "crun_job_store_bytes", METRIC_GAUGE, "Their names, values and waits.", (double)j->bytes);
}

/* ---- connections ---- */

static struct relay_shell *find_nodes(void *data, const struct tls_link *tls, const struct relay_space *space)
{
    struct job_stores *j = data;
    bool may = tls_link_is_certified(tls) || strcmp(tls_link_job(tls), space->job) == 0;
    struct job_store *st = may ? find_store(j, space->job, space->instance, space->key_space) : NULL;

    return st ? st->nodes : NULL;
}

void job_stores_adopt(void *stores, int fd, struct tls_link *tls, const struct buf *plain)
{
    struct job_stores *j = stores;
    int r = relay_conn_adopt(j->lobby, fd, tls, plain);

    if (r < 0)
        server_log(j->server, -1, "refused a node's store: %s", strerror(-r));
}

/* ---- life ---- */

int job_stores_create(struct job_stores **ret, struct server *s)
{
    struct job_stores *j = calloc(1, sizeof(*j));
    const struct relay_shell_config config = {.server = s, .find = find_nodes, .data = j};

    if (!j || relay_shell_create(&j->lobby, &config) < 0) {
        free(j);
        return -ENOMEM;
    }
    j->server = s;
    list_init(&j->stores);
    list_init(&j->active);
    *ret = j;
    return 0;
}

void job_stores_start(void *self)
{
    struct job_stores *j = self;

    relay_shell_start(j->lobby);
}

void job_stores_stop(void *self)
{
    struct job_stores *j = self;

    while (!list_is_empty(&j->stores))
        end_store(list_entry(j->stores.next, struct job_store, link));
    relay_shell_stop(j->lobby);
    j->lobby = NULL;
}

void job_stores_destroy(void *self)
{
    struct job_stores *j = self;

    free(j->lobby); /* not started */
    free(j);
}

int job_stores_add(struct job_stores **ret, struct server *s)
{
    int r = job_stores_create(ret, s);

    if (r == 0)
        server_add_service(s, &(struct server_service){
                                  .self = *ret,
                                  .start = job_stores_start,
                                  .run_turn = job_stores_run_turn,
                                  .is_busy = job_stores_are_busy,
                                  .write_metrics = write_store_metrics,
                                  .stop = job_stores_stop,
                                  .destroy = job_stores_destroy,
                              });
    return r;
}
