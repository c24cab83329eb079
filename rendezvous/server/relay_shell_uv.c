/*
 * Connections of nodes: a TLS handshake and sealed records on a socket, around a relay_node.
 *
 *   connection with a proved key -> adopted -> space -> hello -> frames -> closed
 *                                                         ^                  |
 *                                                         +--- next one <----+   the node stays for KEEP_MS
 *
 * A connection belongs to the adopting shell until the node has named its keys, and then to the shell of the keys.
 *
 * Ways to fail: the connection breaks, and the node comes again. After the hello of a forgotten node, or after frames against
 * the rules, the node is forgotten and its store fails. A node that does not come again within KEEP_MS is forgotten, with all
 * its waits.
 */

#include "rendezvous/server/relay_shell_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/tls_openssl.h"
#include "rendezvous/relay/relay_node.h"
#include "rendezvous/server/server_impl_uv.h"

/* A connection without a hello is closed by the second sweep. */
enum { NODES_MAX = 16384, BUCKETS = 256, KEEP_MS = 60000, SWEEP_MS = 10000, FRESH_UNITS = 512 };

static_assert(BUCKETS > UINT8_MAX, "each first byte of a nonce has a bucket");

struct relay_conn;

/* A run of a node's store. */
struct served_node {
    struct list link, bucket, busy, unsent;
    uint8_t nonce[RELAY_NONCE_SIZE];
    struct relay_node node;
    struct relay_conn *conn; /* NULL: the node is away */
    uint64_t away_ms;        /* since when */
    bool is_reported;        /* a fault of a connection */
};

struct relay_conn {
    uv_poll_t poll;
    struct relay_shell *shell;
    struct list link;
    struct served_node *served; /* NULL: before the hello */
    struct tls_link *tls;
    struct buf hello; /* an incomplete hello, or the space ahead of the hello */
    uint64_t since_ms;
    struct buf wire; /* records not yet taken by the socket */
    int fd;
    uint8_t events;
    bool closing;
};

struct relay_shell {
    struct relay_shell_config config;
    struct list nodes, conns, busy, unsent;
    struct list buckets[BUCKETS]; /* nodes by the first byte of their random nonces */
    unsigned n_nodes, n_handles;
    uv_timer_t timer;
    struct buf plain, out; /* empty between two calls; the memory is kept */
};

static void on_relay_poll(uv_poll_t *poll, int status, int events);

/* ---- end ---- */

static void shell_handle_closed(struct relay_shell *h)
{
    struct server *s = h->config.server;

    if (--h->n_handles == 0) {
        buf_finish(&h->plain);
        buf_finish(&h->out);
        if (h->config.closed)
            h->config.closed(h->config.data);
        free(h);
    }
    server_handle_closed(s);
}

static void on_relay_closed(uv_handle_t *handle)
{
    struct relay_conn *c = handle->data;
    struct relay_shell *h = c->shell;

    free(c);
    shell_handle_closed(h);
}

/* After requests were executed or clients have left. */
static void note_work(struct relay_shell *h)
{
    if (h->config.worked)
        h->config.worked(h->config.data);
}

static void relay_conn_close(struct relay_conn *c)
{
    struct server *s = c->shell->config.server;

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
    uv_close((uv_handle_t *)&c->poll, on_relay_closed);
    (void)close(c->fd); /* released by uv_close() above */
    server_peer_gone(s, c->fd);
}

static void drop_node(struct relay_shell *h, struct served_node *n)
{
    if (n->conn)
        relay_conn_close(n->conn);
    relay_node_finish(&n->node);
    list_unlink(&n->link);
    list_unlink(&n->bucket);
    list_unlink(&n->busy);
    list_unlink(&n->unsent);
    free(n);
    h->n_nodes--;
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
        ssize_t n = write(c->fd, buf_bytes(&c->wire), buf_size(&c->wire));

        if (n < 0 && errno == EAGAIN)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0)
            buf_consume(&c->wire, (size_t)n);
    }
    buf_clear(&c->wire, RELAY_KEEP_MAX);
    return true;
}

/* Encrypts the link's output into an empty `wire`. */
static bool fill_wire(struct relay_conn *c)
{
    struct buf *out = &c->shell->out;
    bool ok = relay_link_output(&c->served->node.link, out) == 0 &&
              (buf_size(out) == 0 || tls_link_send(c->tls, buf_bytes(out), buf_size(out), &c->wire) == 0);

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

static void run_node(struct relay_shell *h, struct served_node *n, uint64_t units)
{
    struct store_budget budget = {.units = units, .turn = STORE_TURN_UNITS};
    uint64_t n_changes = n->node.n_changes;
    int r = relay_node_run(&n->node, &budget);

    h->config.server->n_changes += n->node.n_changes - n_changes;
    list_unlink(&n->busy);
    if (r < 0) {
        server_log(h->config.server, -1, "forgot a node's store: %s", strerror(-r));
        drop_node(h, n);
        return;
    }
    if (r == RELAY_NODE_TURN)
        list_append(&h->busy, &n->busy);
    if (n->conn)
        (void)relay_conn_flush(n->conn);
}

static struct served_node *find_node(struct relay_shell *h, const uint8_t *nonce)
{
    list_for_each(i, &h->buckets[nonce[0]])
    {
        struct served_node *n = list_entry(i, struct served_node, bucket);

        if (memcmp(n->nonce, nonce, RELAY_NONCE_SIZE) == 0)
            return n;
    }
    return NULL;
}

static struct served_node *create_node(struct relay_shell *h, const uint8_t *nonce)
{
    struct served_node *n = h->n_nodes < NODES_MAX ? calloc(1, sizeof(*n)) : NULL;

    if (!n)
        return NULL;
    memcpy(n->nonce, nonce, RELAY_NONCE_SIZE);
    list_init(&n->busy);
    list_init(&n->unsent);
    relay_node_init(&n->node, h->config.store, &h->config.server->limits.wire);
    n->node.stats = h->config.server->stats;
    list_append(&h->nodes, &n->link);
    list_append(&h->buckets[nonce[0]], &n->bucket);
    h->n_nodes++;
    return n;
}

static bool answer_hello(struct relay_conn *c, const struct relay_hello *hello, uint64_t arrived)
{
    struct relay_hello answer = *hello;
    struct buf out = {0};

    answer.arrived = arrived;
    bool ok = relay_hello_put(&out, &answer) == 0 &&
              tls_link_send(c->tls, buf_bytes(&out), buf_size(&out), &c->wire) == 0;
    buf_finish(&out);
    return ok;
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
    struct relay_shell *h = c->shell;
    struct relay_hello hello;

    if (!relay_hello_decode(bytes, &hello))
        return false;
    struct served_node *n = find_node(h, hello.nonce);
    if (!n && hello.is_known)
        return refuse_node(c, &hello);
    if (!n)
        n = create_node(h, hello.nonce);
    if (!n)
        return false;
    if (n->conn)
        relay_conn_close(n->conn);
    if (relay_link_resume(&n->node.link, hello.arrived) < 0) {
        drop_node(h, n);
        return refuse_node(c, &hello);
    }
    n->conn = c;
    c->served = n;
    return answer_hello(c, &hello, n->node.link.arrived);
}

/* The node names its keys. False: the connection has to be closed. */
static bool take_space(struct relay_conn *c)
{
    struct relay_space space;
    int n = relay_space_decode(buf_bytes(&c->hello), buf_size(&c->hello), &space);
    struct relay_shell *h;

    if (n <= 0)
        return n == 0;
    h = c->shell->config.find(c->shell->config.data, c->tls, &space);
    if (!h) {
        /* Also a node with keys lost with another process: the node's store ends. */
        (void)refuse_node(c, &(struct relay_hello){0});
        return false;
    }
    buf_consume(&c->hello, (size_t)n);
    list_unlink(&c->link);
    c->shell->n_handles--;
    c->shell = h;
    h->n_handles++;
    list_append(&h->conns, &c->link);
    return true;
}

/* False: the connection has to be closed. */
static bool take_bytes(struct relay_conn *c, const uint8_t *bytes, size_t n)
{
    if (!c->served) {
        if (buf_append(&c->hello, bytes, n) < 0 || (!c->shell->config.store && !take_space(c)))
            return false;
        if (!c->shell->config.store || buf_size(&c->hello) < RELAY_HELLO_SIZE)
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
        drop_node(c->shell, c->served); /* closes c, too */
    else
        run_node(c->shell, c->served, FRESH_UNITS);
    return true;
}

/* Once for each node: a process between the hosts might cause a fault at each new connection. */
static void report_fault(struct relay_conn *c)
{
    const char *why = tls_link_error(c->tls);

    if (!why[0] || !c->served || c->served->is_reported)
        return;
    c->served->is_reported = true;
    server_log(c->shell->config.server, -1, "the connection of a node's store has ended: %s", why);
}

static bool read_records(struct relay_conn *c)
{
    struct server *s = c->shell->config.server;
    struct buf *plain = &c->shell->plain;
    ssize_t n = read(c->fd, s->scratch, SCRATCH_SIZE);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    bool ok = tls_link_receive(c->tls, s->scratch, (size_t)n, plain, &c->wire) == 0 &&
              !tls_link_is_finished(c->tls);
    report_fault(c);
    if (ok && buf_size(plain) > 0)
        ok = take_bytes(c, buf_bytes(plain), buf_size(plain));
    buf_clear(plain, RELAY_KEEP_MAX);
    return ok;
}

static void on_relay_poll(uv_poll_t *poll, int status, int events)
{
    struct relay_conn *c = poll->data;

    if (c->closing)
        return;
    if (status < 0 || ((events & UV_READABLE) && !read_records(c)))
        relay_conn_close(c); /* no effect on a closed connection */
    else if (!c->closing)
        (void)relay_conn_flush(c);
    note_work(c->shell); /* c is freed in a later turn of the loop */
}

int relay_conn_adopt(struct relay_shell *h, int fd, struct tls_link *tls, const struct buf *plain)
{
    struct relay_conn *c = calloc(1, sizeof(*c));
    int r = c ? uv_poll_init(h->config.server->loop, &c->poll, fd) : -ENOMEM;

    if (r < 0) {
        free(c);
        tls_link_free(tls);
        (void)close(fd); /* the node comes again */
        return r;
    }
    c->poll.data = c;
    c->shell = h;
    c->tls = tls;
    c->fd = fd;
    c->since_ms = uv_now(h->config.server->loop);
    h->n_handles++;
    server_handle_opened(h->config.server);
    list_append(&h->conns, &c->link);
    h->config.server->n_peers++;
    update_relay_polling(c);
    if (buf_size(plain) > 0 && !take_bytes(c, buf_bytes(plain), buf_size(plain)))
        relay_conn_close(c);
    else if (!c->closing)
        (void)relay_conn_flush(c);
    note_work(c->shell); /* as above */
    return 0;
}

/* ---- turns ---- */

void relay_shell_release(struct relay_shell *h, struct store_client *client)
{
    struct served_node *n = list_entry(relay_node_release(client), struct served_node, node);

    if (list_is_empty(&n->unsent))
        list_append(&h->unsent, &n->unsent);
}

void relay_shell_flush(struct relay_shell *h)
{
    while (!list_is_empty(&h->unsent)) {
        struct served_node *n = list_entry(h->unsent.next, struct served_node, unsent);

        list_unlink(&n->unsent);
        if (n->conn)
            (void)relay_conn_flush(n->conn);
    }
}

bool relay_shell_has_nodes(const struct relay_shell *h)
{
    return !list_is_empty(&h->nodes) || !list_is_empty(&h->conns);
}

bool relay_shell_is_busy(const struct relay_shell *h)
{
    return !list_is_empty(&h->busy);
}

void relay_shell_run_turn(struct relay_shell *h)
{
    if (relay_shell_is_busy(h))
        run_node(h, list_entry(h->busy.next, struct served_node, busy), STORE_TURN_UNITS);
}

static void on_sweep(uv_timer_t *timer)
{
    struct relay_shell *h = timer->data;
    uint64_t now_ms = uv_now(h->config.server->loop);

    list_for_each_safe(i, &h->nodes)
    {
        struct served_node *n = list_entry(i, struct served_node, link);

        if (!n->conn && now_ms - n->away_ms >= KEEP_MS) {
            server_log(h->config.server, -1,
                       "a node's store has not come again for %d s: its waits are ended", KEEP_MS / 1000);
            drop_node(h, n);
        }
    }
    list_for_each_safe(i, &h->conns)
    {
        struct relay_conn *c = list_entry(i, struct relay_conn, link);

        if (!c->served && now_ms - c->since_ms >= SWEEP_MS)
            relay_conn_close(c);
    }
    note_work(h);
}

/* ---- life ---- */

int relay_shell_create(struct relay_shell **ret, const struct relay_shell_config *config)
{
    struct relay_shell *h = calloc(1, sizeof(*h));

    if (!h)
        return -ENOMEM;
    h->config = *config;
    list_init(&h->nodes);
    for (size_t i = 0; i < BUCKETS; i++)
        list_init(&h->buckets[i]);
    list_init(&h->conns);
    list_init(&h->busy);
    list_init(&h->unsent);
    *ret = h;
    return 0;
}

void relay_shell_start(struct relay_shell *h)
{
    /* Cannot fail, and the next only without a callback. */
    (void)uv_timer_init(h->config.server->loop, &h->timer);
    (void)uv_timer_start(&h->timer, on_sweep, SWEEP_MS, SWEEP_MS);
    h->timer.data = h;
    h->n_handles = 1;
    server_handle_opened(h->config.server);
}

static void on_sweep_closed(uv_handle_t *handle)
{
    shell_handle_closed(handle->data);
}

void relay_shell_stop(struct relay_shell *h)
{
    while (!list_is_empty(&h->conns))
        relay_conn_close(list_entry(h->conns.next, struct relay_conn, link));
    while (!list_is_empty(&h->nodes))
        drop_node(h, list_entry(h->nodes.next, struct served_node, link));
    uv_close((uv_handle_t *)&h->timer, on_sweep_closed);
}
