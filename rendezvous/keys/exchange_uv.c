#include "rendezvous/keys/exchange_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "rendezvous/server/server_impl_uv.h"

enum {
    EXCHANGES_MAX = 4096,
    EXCHANGES_EACH_MAX = 256, /* of an address: sixteen addresses are needed to take all */
    READ_SIZE = 4096,
};

struct exchange_shell {
    struct server *server;
    struct list conns; /* by deadline */
    unsigned n_conns;
    struct address_quota quota;
    uv_timer_t timer;
};

struct exchange_conn {
    uv_poll_t poll;
    struct exchange_shell *shell;
    struct list link;
    uint64_t deadline_ms;
    struct buf in;
    int fd;
    bool is_asking; /* the request was passed on, and the answer comes */
};

static void on_exchange_deadline(uv_timer_t *timer);

/* ---- end ---- */

static void exchange_conn_close(struct exchange_conn *c)
{
    struct exchange_shell *e = c->shell;
    struct server *s = e->server;

    if (c->is_asking)
        s->security.exchange->cancel(s->security.exchange->data, c);
    c->is_asking = false;
    list_unlink(&c->link);
    e->n_conns--;
    address_quota_release(&e->quota, c->fd);
    buf_finish(&c->in);
    server_close_conn(s, &c->poll);
    (void)close(c->fd); /* released by uv_close() above */
    server_peer_gone(s, c->fd);
}

static void arm_exchange_timer(struct exchange_shell *e)
{
    uint64_t now_ms = uv_now(e->server->loop), at_ms;

    if (list_is_empty(&e->conns) || uv_is_active((uv_handle_t *)&e->timer))
        return;
    at_ms = list_entry(e->conns.next, struct exchange_conn, link)->deadline_ms;
    /* Cannot fail: has a callback. */
    (void)uv_timer_start(&e->timer, on_exchange_deadline, at_ms > now_ms ? at_ms - now_ms : 0, 0);
}

static void on_exchange_deadline(uv_timer_t *timer)
{
    struct exchange_shell *e = timer->data;

    while (!list_is_empty(&e->conns)) {
        struct exchange_conn *c = list_entry(e->conns.next, struct exchange_conn, link);

        if (c->deadline_ms > uv_now(e->server->loop))
            break;
        exchange_conn_close(c);
    }
    if (!uv_is_closing((uv_handle_t *)timer))
        arm_exchange_timer(e);
}

/* ---- request and reply ---- */

/* A reply of less than 5 KiB fits into an empty socket. */
void exchange_conn_reply(struct exchange_conn *c, enum key_exchange_code code, const char *credential,
                         size_t n)
{
    struct buf out = {0};

    c->is_asking = false;
    if (key_exchange_put(&out, code, credential, n) == 0)
        (void)!write(c->fd, buf_bytes(&out), buf_size(&out)); /* without answer the agent dials again */
    buf_finish(&out);
    exchange_conn_close(c);
}

/* False: the connection has to be closed. */
static bool take_request(struct exchange_conn *c)
{
    const struct server_exchange *x = c->shell->server->security.exchange;
    struct key_exchange_frame frame;
    size_t size;
    int r = key_exchange_decode(buf_bytes(&c->in), buf_size(&c->in), &frame, &size);

    if (r == KEY_EXCHANGE_E_MORE)
        return true;
    if (r != 0 || frame.code != KEY_EXCHANGE_CREDENTIAL || size != buf_size(&c->in)) {
        char who[64];
        server_format_peer(c->fd, who, sizeof(who));
        server_log(c->shell->server, -1, "%s sent a broken request for the job's secret: closed", who);
        return false;
    }
    (void)uv_poll_stop(&c->poll); /* cannot fail; nothing may follow */
    c->is_asking = x->begin(x->data, c, frame.credential, frame.credential_size) == 0;
    return c->is_asking;
}

static void on_exchange_poll(uv_poll_t *poll, int status, int events)
{
    struct exchange_conn *c = poll->data;
    uint8_t bytes[READ_SIZE];
    ssize_t n = status < 0 ? -1 : read(c->fd, bytes, sizeof(bytes));

    if (status == 0 && n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || buf_size(&c->in) + (size_t)n > KEY_EXCHANGE_FRAME_MAX + READ_SIZE ||
        buf_append(&c->in, bytes, (size_t)n) < 0 || !take_request(c))
        exchange_conn_close(c);
}

/* ---- the beginning ---- */

static bool has_place(struct exchange_shell *e, int fd, const struct conn_owner *owner)
{
    char from[64];

    if (e->n_conns >= EXCHANGES_MAX)
        return false;
    if (address_quota_take(&e->quota, fd, conn_owner_quota(owner)))
        return true;
    server_format_peer(fd, from, sizeof(from));
    server_log(e->server, -1,
               "%s: its address or user has %u requests for the job's secret, the limit: closed", from,
               e->quota.max);
    return false;
}

static void exchange_conn_adopt(void *self, int fd, const struct conn_owner *owner, struct buf *said)
{
    struct exchange_shell *e = self;
    struct server *s = e->server;
    struct exchange_conn *c = NULL;

    if (has_place(e, fd, owner))
        c = server_open_conn(s, fd, sizeof(*c));
    else
        (void)close(fd); /* nothing was sent */
    if (!c) {
        address_quota_release(&e->quota, fd);
        buf_finish(said);
        server_peer_gone(s, fd);
        return;
    }
    c->shell = e;
    c->fd = fd;
    c->in = *said;
    *said = (struct buf){0};
    c->deadline_ms = uv_now(s->loop) + s->limits.handshake_ms;
    list_append(&e->conns, &c->link);
    e->n_conns++;
    arm_exchange_timer(e);
    (void)uv_poll_start(&c->poll, UV_READABLE, on_exchange_poll); /* fails only for a closing handle */
    if (!take_request(c))
        exchange_conn_close(c);
}

static void exchange_shell_start(void *self)
{
    struct exchange_shell *e = self;

    server_open_timer(e->server, &e->timer, e);
}

static void exchange_shell_drain(void *self)
{
    struct exchange_shell *e = self;

    while (!list_is_empty(&e->conns))
        exchange_conn_close(list_entry(e->conns.next, struct exchange_conn, link));
}

static void exchange_shell_stop(void *self)
{
    struct exchange_shell *e = self;

    exchange_shell_drain(e);
    server_close_handle(e->server, &e->timer);
}

static void exchange_shell_destroy(void *self)
{
    struct exchange_shell *e = self;

    address_quota_finish(&e->quota);
    free(e);
}

int exchange_shell_add(struct server *s)
{
    struct exchange_shell *e = calloc(1, sizeof(*e));
    const struct server_service service = {
        .self = e,
        .openings = {[OPENING_FIRST] = KEY_EXCHANGE_FIRST_BYTE},
        .start = exchange_shell_start,
        .adopt = exchange_conn_adopt,
        .drain = exchange_shell_drain,
        .stop = exchange_shell_stop,
        .destroy = exchange_shell_destroy,
    };

    if (!e)
        return -ENOMEM;
    e->quota.max = EXCHANGES_EACH_MAX;
    memcpy(e->quota.seed, s->quota.seed, sizeof(e->quota.seed));
    e->server = s;
    list_init(&e->conns);
    server_add_service(s, &service);
    return 0;
}
