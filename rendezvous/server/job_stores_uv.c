/*
 * The stores, and the connections of their nodes: a TLS handshake and sealed records on a socket, around a relay_node.
 *
 *   connection with a proved key -> adopted -> space -> hello -> frames -> closed
 *                                                         ^                  |
 *                                                         +--- next one <----+   the node stays for KEEP_MS
 *
 * A connection belongs to no store until the node has named its keys.
 *
 * Ways to fail: the connection breaks, and the node comes again. After the hello of a forgotten node, or after frames against
 * the rules, the node is forgotten and its store fails. A node that does not come again within KEEP_MS is forgotten, with all
 * its waits.
 */

#include "rendezvous/server/job_stores_uv.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "base/buf.h"
#include "proto/tls_openssl.h"
#include "rendezvous/relay/relay_node.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/session/session_message.h"
#include "rendezvous/store/metrics_text.h"

enum {
    LARGE_BYTES = 1 << 20,
    NODES_MAX = 16384, /* of a store */
    BUCKETS = 256,
    FRESH_UNITS = 512,
    KEEP_MS = 60000,
    SWEEP_MS = 10000, /* a connection without a hello is closed by the second sweep */
};

static_assert(BUCKETS > UINT8_MAX, "each first byte of a nonce has a bucket");

struct job_stores {
    struct server *server;
    struct list stores, active;
    struct list conns;  /* before they name their keys */
    struct list unsent; /* nodes with output after releases */
    uint64_t bytes;     /* of all stores */
    uv_timer_t timer;
    struct buf plain, out; /* empty between two calls; the memory is kept */
};

struct job_store {
    struct job_stores *owner;
    struct list link;   /* in job_stores.stores */
    struct list active; /* in job_stores.active, while there is work */
    char job[SESSION_JOB_SIZE];
    uint64_t instance;
    uint32_t key_space;
    struct store store;
    uint64_t bytes; /* counted in job_stores.bytes */
    bool is_orphan;
    bool is_over; /* the job has ended: nodes without a connection do not come again */
    struct list nodes, conns;
    struct list busy;             /* nodes with requests for another turn */
    struct list buckets[BUCKETS]; /* nodes by the first byte of their random nonces */
    unsigned n_nodes;
};

/* A run of a node's store. */
struct served_node {
    struct list link, bucket, busy, unsent;
    uint8_t nonce[RELAY_NONCE_SIZE];
    struct relay_node node;
    struct job_store *store;
    struct relay_conn *conn; /* NULL: the node is away */
    uint64_t away_ms;        /* since when */
    bool is_reported;        /* a fault of a connection */
};

struct relay_conn {
    uv_poll_t poll;
    struct job_stores *owner;
    struct list link;
    struct job_store *store;    /* NULL: before the space */
    struct served_node *served; /* NULL: before the hello */
    struct tls_link *tls;
    struct buf hello; /* an incomplete hello, or the space ahead of the hello */
    uint64_t since_ms;
    struct buf wire; /* records not yet taken by the socket */
    int fd;
    uint8_t events;
    bool closing;
};

static void on_relay_poll(uv_poll_t *poll, int status, int events);

/* ---- ends of connections and nodes ---- */

static void relay_conn_close(struct relay_conn *c)
{
    struct server *s = c->owner->server;

    if (c->closing)
        return;
    c->closing = true;
    if (c->served) {
        c->served->conn = NULL;
        c->served->away_ms = uv_now(s->loop);
        relay_link_down(&c->served->node.link);
    }
    list_unlink(&c->link);
    tls_link_free(c->tls);
    buf_finish(&c->hello);
    buf_finish(&c->wire);
    server_close_conn(s, &c->poll);
    (void)close(c->fd); /* released by uv_close() above */
    server_peer_gone(s, c->fd);
}

static void close_conns(struct list *conns)
{
    while (!list_is_empty(conns))
        relay_conn_close(list_entry(conns->next, struct relay_conn, link));
}

static void drop_node(struct served_node *n)
{
    if (n->conn)
        relay_conn_close(n->conn);
    relay_node_finish(&n->node);
    list_unlink(&n->link);
    list_unlink(&n->bucket);
    list_unlink(&n->busy);
    list_unlink(&n->unsent);
    n->store->n_nodes--;
    free(n);
}

/* ---- sending ---- */

static void update_relay_polling(struct relay_conn *c)
{
    uint8_t events = buf_size(&c->wire) > 0 ? UV_READABLE | UV_WRITABLE : UV_READABLE;

    if (c->closing || events == c->events)
        return;
    c->events = events;
    (void)uv_poll_start(&c->poll, events, on_relay_poll); /* fails only for a closing handle */
}

/* False: the connection is broken. */
static bool write_wire(struct relay_conn *c)
{
    while (buf_size(&c->wire) > 0) {
        ssize_t n = RETRY(write(c->fd, buf_bytes(&c->wire), buf_size(&c->wire)));

        if (n < 0)
            return errno == EAGAIN;
        buf_consume(&c->wire, (size_t)n);
    }
    buf_clear(&c->wire, RELAY_KEEP_MAX);
    return true;
}

/* False: out of memory, or OpenSSL refuses. */
static bool add_to_wire(struct relay_conn *c, const struct buf *out)
{
    if (buf_size(out) == 0)
        return true;
    return (c->tls ? tls_link_send(c->tls, buf_bytes(out), buf_size(out), &c->wire)
                   : buf_append(&c->wire, buf_bytes(out), buf_size(out))) == 0;
}

/* Encrypts the link's output into an empty `wire`. */
static bool fill_wire(struct relay_conn *c)
{
    struct buf *out = &c->owner->out;
    bool ok = relay_link_output(&c->served->node.link, out) == 0 && add_to_wire(c, out);

    buf_clear(out, RELAY_KEEP_MAX);
    return ok;
}

/* Sends the link's output as far as the socket takes bytes. False: c may not be used any more. */
static bool relay_conn_flush(struct relay_conn *c)
{
    bool ok = true, more = true;

    while (ok && more) {
        if (c->served && buf_size(&c->wire) == 0)
            ok = fill_wire(c);
        more = ok && buf_size(&c->wire) > 0;
        ok = ok && write_wire(c);
        more = more && ok && buf_size(&c->wire) == 0;
    }
    if (!ok) {
        relay_conn_close(c);
        return false;
    }
    update_relay_polling(c);
    return true;
}

/* ---- requests ---- */

static void run_node(struct served_node *n, uint64_t units)
{
    struct server *s = n->store->owner->server;
    struct store_budget budget = {.units = units, .turn = STORE_TURN_UNITS};
    uint64_t n_changes = n->node.n_changes;
    int r = relay_node_run(&n->node, &budget);

    s->n_changes += n->node.n_changes - n_changes;
    list_unlink(&n->busy);
    if (r < 0) {
        server_log(s, -1, "forgot a node's store: %s", strerror(-r));
        drop_node(n);
        return;
    }
    if (r == RELAY_NODE_TURN)
        list_append(&n->store->busy, &n->busy);
    if (n->conn)
        (void)relay_conn_flush(n->conn);
}

static struct served_node *find_node(struct job_store *st, const uint8_t *nonce)
{
    list_for_each_entry(struct served_node, n, &st->buckets[nonce[0]], bucket)
    {
        if (memcmp(n->nonce, nonce, RELAY_NONCE_SIZE) == 0)
            return n;
    }
    return NULL;
}

static struct served_node *create_node(struct job_store *st, const uint8_t *nonce)
{
    struct served_node *n = st->n_nodes < NODES_MAX ? calloc(1, sizeof(*n)) : NULL;
    struct server *s = st->owner->server;

    if (!n)
        return NULL;
    memcpy(n->nonce, nonce, RELAY_NONCE_SIZE);
    n->store = st;
    list_init(&n->busy);
    list_init(&n->unsent);
    relay_node_init(&n->node, &st->store, &s->limits.wire);
    n->node.stats = s->stats;
    list_append(&st->nodes, &n->link);
    list_append(&st->buckets[nonce[0]], &n->bucket);
    st->n_nodes++;
    return n;
}

static bool answer_hello(struct relay_conn *c, const struct relay_hello *hello, uint64_t arrived)
{
    struct relay_hello answer = *hello;
    _cleanup_(buf_finish) struct buf out = {0};

    answer.arrived = arrived;
    return relay_hello_put(&out, &answer) == 0 && add_to_wire(c, &out);
}

/* Answers that the node cannot go on, if the socket takes the answer; the connection is closed. */
static bool refuse_node(struct relay_conn *c, const struct relay_hello *hello)
{
    if (answer_hello(c, hello, RELAY_FORGOTTEN))
        (void)write_wire(c);
    return false;
}

static bool take_hello(struct relay_conn *c, const uint8_t *bytes)
{
    struct relay_hello hello;

    if (!relay_hello_decode(bytes, &hello))
        return false;
    struct served_node *n = find_node(c->store, hello.nonce);
    if (!n && hello.is_known)
        return refuse_node(c, &hello);
    if (!n)
        n = create_node(c->store, hello.nonce);
    if (!n)
        return false;
    if (n->conn)
        relay_conn_close(n->conn);
    if (relay_link_resume(&n->node.link, hello.arrived) < 0) {
        drop_node(n);
        return refuse_node(c, &hello);
    }
    n->conn = c;
    c->served = n;
    return answer_hello(c, &hello, n->node.link.arrived);
}

static struct job_store *find_store(struct job_stores *j, const char *job, uint64_t instance,
                                    uint32_t key_space)
{
    list_for_each_entry(struct job_store, st, &j->stores, link)
    {
        if (st->instance == instance && st->key_space == key_space && strcmp(st->job, job) == 0)
            return st;
    }
    return NULL;
}

/* The node names its keys. False: the connection has to be closed. */
static bool take_space(struct relay_conn *c)
{
    struct relay_space space;
    int n = relay_space_decode(buf_bytes(&c->hello), buf_size(&c->hello), &space);

    if (n <= 0)
        return n == 0;
    if (!c->tls || tls_link_is_certified(c->tls) || strcmp(tls_link_job(c->tls), space.job) == 0)
        c->store = find_store(c->owner, space.job, space.instance, space.key_space);
    if (!c->store) /* also a node with keys lost with another process: the node's store ends */
        return refuse_node(c, &(struct relay_hello){0});
    buf_consume(&c->hello, (size_t)n);
    list_move(&c->store->conns, &c->link);
    return true;
}

/* False: the connection has to be closed. */
static bool take_bytes(struct relay_conn *c, const uint8_t *bytes, size_t n)
{
    if (!c->served) {
        if (buf_append(&c->hello, bytes, n) < 0 || (!c->store && !take_space(c)))
            return false;
        if (!c->store || buf_size(&c->hello) < RELAY_HELLO_SIZE)
            return true;
        if (!take_hello(c, buf_bytes(&c->hello)))
            return false;
        buf_consume(&c->hello, RELAY_HELLO_SIZE);
        bytes = buf_bytes(&c->hello);
        n = buf_size(&c->hello);
    }
    int r = n > 0 ? relay_link_receive(&c->served->node.link, bytes, n) : 0;
    buf_reset(&c->hello);
    if (r < 0)
        drop_node(c->served); /* closes c, too */
    else
        run_node(c->served, FRESH_UNITS);
    return true;
}

/* Once for each node: a process between the hosts might cause a fault at each new connection. */
static void report_fault(struct relay_conn *c)
{
    const char *why = c->tls ? tls_link_error(c->tls) : "";

    if (!why[0] || !c->served || c->served->is_reported)
        return;
    c->served->is_reported = true;
    server_log(c->owner->server, -1, "the connection of a node's store has ended: %s", why);
}

static bool read_records(struct relay_conn *c)
{
    struct server *s = c->owner->server;
    struct buf *plain = &c->owner->plain;
    ssize_t n = read(c->fd, s->scratch, SCRATCH_SIZE);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    if (!c->tls)
        return take_bytes(c, s->scratch, (size_t)n);
    bool ok = tls_link_receive(c->tls, s->scratch, (size_t)n, plain, &c->wire) == 0 &&
              !tls_link_is_finished(c->tls);
    report_fault(c);
    if (ok && buf_size(plain) > 0)
        ok = take_bytes(c, buf_bytes(plain), buf_size(plain));
    buf_clear(plain, RELAY_KEEP_MAX);
    return ok;
}

/* ---- turns ---- */

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

static bool is_work_left(struct job_store *st)
{
    return !list_is_empty(&st->store.released) || !list_is_empty(&st->busy) || store_clean(&st->store, 0);
}

static void release_clients(struct job_store *st, unsigned max)
{
    struct list *unsent = &st->owner->unsent;

    while (!list_is_empty(&st->store.released) && max-- > 0) {
        struct list *entry = st->store.released.next;

        list_unlink(entry);
        struct relay_node *node = relay_node_release(list_entry(entry, struct store_client, released));
        struct served_node *n = list_entry(node, struct served_node, node);
        if (list_is_empty(&n->unsent))
            list_append(unsent, &n->unsent);
    }
    while (!list_is_empty(unsent)) {
        struct served_node *n = list_entry(unsent->next, struct served_node, unsent);

        list_unlink(&n->unsent);
        if (n->conn)
            (void)relay_conn_flush(n->conn);
    }
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

/* A turn of the store that has waited longest, and there of the node that has. */
static void job_stores_run_turn(void *self)
{
    struct job_stores *j = self;
    struct job_store *st = list_first(&j->active, struct job_store, active);

    if (!st)
        return;
    list_move(&j->active, &st->active);
    (void)store_clean(&st->store, STORE_TURN_UNITS); /* is_work_left() asks again */
    if (!list_is_empty(&st->busy))
        run_node(list_entry(st->busy.next, struct served_node, busy), STORE_TURN_UNITS);
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

static void end_store(struct job_store *st)
{
    list_unlink(&st->link);
    list_unlink(&st->active);
    close_conns(&st->conns);
    while (!list_is_empty(&st->nodes))
        drop_node(list_entry(st->nodes.next, struct served_node, link));
    st->owner->bytes -= st->bytes;
    server_free_beside_the_loop(free_job_store, st,
                                st->bytes > LARGE_BYTES ? UINT64_MAX : st->store.names.used);
}

static bool is_used(const struct job_store *st)
{
    if (!st->is_orphan || !list_is_empty(&st->conns))
        return true;
    list_for_each_entry(struct served_node, n, &st->nodes, link)
    {
        if (n->conn || !st->is_over)
            return true;
    }
    return false;
}

/* After requests were executed or clients have left: the store of an orphan may end. */
static void note_work(struct job_store *st)
{
    account(st);
    if (!is_used(st)) {
        end_store(st);
        return;
    }
    if (list_is_empty(&st->active))
        list_append(&st->owner->active, &st->active);
    work_off(st);
}

static void drop_others(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space)
{
    list_for_each_entry_safe(struct job_store, st, &j->stores, link)
    {
        if (st->instance == instance && st->key_space != key_space && strcmp(st->job, job) == 0)
            end_store(st);
    }
}

static int create_store(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space)
{
    struct job_store *st = calloc(1, sizeof(*st));
    int r = st ? store_init(&st->store, &j->server->limits.job_store, j->server->quota.seed) : -ENOMEM;

    if (r < 0) {
        free(st);
        return r;
    }
    st->owner = j;
    st->instance = instance;
    st->key_space = key_space;
    text_copy(st->job, sizeof(st->job), job);
    list_init(&st->active);
    list_init(&st->nodes);
    list_init(&st->conns);
    list_init(&st->busy);
    for (size_t i = 0; i < BUCKETS; i++)
        list_init(&st->buckets[i]);
    list_append(&j->stores, &st->link);
    account(st);
    return 0;
}

void job_stores_begin(void *stores, const char *job, uint64_t instance, uint32_t key_space)
{
    struct job_stores *j = stores;

    drop_others(j, job, instance, key_space);
    struct job_store *st = find_store(j, job, instance, key_space);
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
    struct job_stores *j = stores;

    list_for_each_entry_safe(struct job_store, st, &j->stores, link)
    {
        if (st->instance != instance || strcmp(st->job, job) != 0)
            continue;
        st->is_orphan = st->is_over = true;
        if (!is_used(st))
            end_store(st);
    }
}

void job_stores_orphan(void *stores)
{
    struct job_stores *j = stores;

    list_for_each_entry_safe(struct job_store, st, &j->stores, link)
    {
        st->is_orphan = true;
        if (!is_used(st))
            end_store(st);
    }
}

/* ---- connections ---- */

/* ok: the bytes of the connection were taken. */
static void go_on(struct relay_conn *c, bool ok)
{
    if (!ok)
        relay_conn_close(c); /* no effect on a closed connection */
    else if (!c->closing)
        (void)relay_conn_flush(c);
    if (c->store) /* c is freed in a later turn of the loop */
        note_work(c->store);
}

static void on_relay_poll(uv_poll_t *poll, int status, int events)
{
    struct relay_conn *c = poll->data;

    if (!c->closing)
        go_on(c, status >= 0 && (!(events & UV_READABLE) || read_records(c)));
}

void job_stores_adopt(void *stores, int fd, struct tls_link *tls, const struct buf *plain)
{
    struct job_stores *j = stores;
    struct server *s = j->server;
    struct relay_conn *c = server_open_conn(s, fd, sizeof(*c));

    if (!c) {
        server_log(s, -1, "refused a node's store: %s", strerror(errno));
        tls_link_free(tls); /* the node comes again */
        return;
    }
    c->owner = j;
    c->tls = tls;
    c->fd = fd;
    c->since_ms = uv_now(s->loop);
    list_append(&j->conns, &c->link);
    s->n_peers++;
    update_relay_polling(c);
    go_on(c, buf_size(plain) == 0 || take_bytes(c, buf_bytes(plain), buf_size(plain)));
}

/* In the clear (server_security.is_private). */
static void adopt_plain(void *stores, int fd, const struct conn_owner *owner, struct buf *bytes)
{
    struct job_stores *j = stores;

    j->server->n_peers--; /* counted again */
    job_stores_adopt(stores, fd, NULL, bytes);
    buf_finish(bytes);
}

static void sweep_conns(struct list *conns, uint64_t now_ms)
{
    list_for_each_entry_safe(struct relay_conn, c, conns, link)
    {
        if (!c->served && now_ms - c->since_ms >= SWEEP_MS)
            relay_conn_close(c);
    }
}

static void sweep_nodes(struct job_store *st, uint64_t now_ms)
{
    list_for_each_entry_safe(struct served_node, n, &st->nodes, link)
    {
        if (!n->conn && now_ms - n->away_ms >= KEEP_MS) {
            server_log(st->owner->server, -1,
                       "a node's store has not come again for %d s: its waits are ended", KEEP_MS / 1000);
            drop_node(n);
        }
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct job_stores *j = timer->data;
    uint64_t now_ms = uv_now(timer->loop);

    sweep_conns(&j->conns, now_ms);
    list_for_each_entry_safe(struct job_store, st, &j->stores, link)
    {
        sweep_nodes(st, now_ms);
        sweep_conns(&st->conns, now_ms);
        note_work(st);
    }
}

/* ---- the service ---- */

static void write_store_metrics(const void *self, struct metrics_text *m)
{
    const struct job_stores *j = self;
    unsigned n = 0;

    list_for_each(i, &j->stores) n++;
    metrics_one(m, "crun_job_stores", METRIC_GAUGE, "Stores with the keys of the workers of a job.", n);
    metrics_one(m, "crun_job_store_bytes", METRIC_GAUGE, "Their names, values and waits.", (double)j->bytes);
}

static void job_stores_start(void *self)
{
    struct job_stores *j = self;

    server_open_timer(j->server, &j->timer, j);
    (void)uv_timer_start(&j->timer, on_sweep, SWEEP_MS, SWEEP_MS); /* cannot fail: has a callback */
}

static void job_stores_stop(void *self)
{
    struct job_stores *j = self;

    while (!list_is_empty(&j->stores))
        end_store(list_entry(j->stores.next, struct job_store, link));
    close_conns(&j->conns);
    server_close_handle(j->server, &j->timer);
}

static void job_stores_destroy(void *self)
{
    struct job_stores *j = self;

    buf_finish(&j->plain);
    buf_finish(&j->out);
    free(j);
}

int job_stores_add(struct job_stores **ret, struct server *s)
{
    struct job_stores *j = calloc(1, sizeof(*j));

    if (!j)
        return -ENOMEM;
    j->server = s;
    list_init(&j->stores);
    list_init(&j->active);
    list_init(&j->conns);
    list_init(&j->unsent);
    server_add_service(s, &(struct server_service){
                              .self = j,
                              .openings = {s->security.is_private ? RELAY_FIRST_BYTE : 0},
                              .adopt = adopt_plain,
                              .start = job_stores_start,
                              .run_turn = job_stores_run_turn,
                              .is_busy = job_stores_are_busy,
                              .write_metrics = write_store_metrics,
                              .stop = job_stores_stop,
                              .destroy = job_stores_destroy,
                          });
    *ret = j;
    return 0;
}
