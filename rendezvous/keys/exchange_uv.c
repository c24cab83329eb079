#include "rendezvous/keys/exchange_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "rendezvous/server/server_impl_uv.h"

enum {
    EXCHANGES_MAX = 4096,
    EXCHANGES_EACH_MAX = 256, /* of an address: sixteen addresses are needed to take all */
    READ_SIZE = 4096,
};

struct exchange_shell {
    struct server *server;
    struct deadlines conns;
    unsigned n_conns;
    struct address_quota quota;
};

struct exchange_conn {
    uv_poll_t poll;
    struct exchange_shell *shell;
    struct deadline deadline;
    struct buf in;
    int fd;
    bool is_asking; /* the request was passed on, and the answer comes */
};

/* ---- end ---- */

static void exchange_conn_close(struct exchange_conn *c)
{
    struct exchange_shell *e = c->shell;
    struct server *s = e->server;

    if (c->is_asking)
        s->security.exchange->cancel(s->security.exchange->data, c);
    c->is_asking = false;
    list_unlink(&c->deadline.link);
    e->n_conns--;
    address_quota_release(&e->quota, c->fd);
    buf_finish(&c->in);
    server_close_conn(s, &c->poll);
    (void)close(c->fd); /* released by uv_close() above */
    server_peer_gone(s, c->fd);
}

static void on_exchange_late(struct deadline *d)
{
    exchange_conn_close(list_entry(d, struct exchange_conn, deadline));
}

/* ---- request and reply ---- */

/* A reply of less than 5 KiB fits into an empty socket. */
void exchange_conn_reply(struct exchange_conn *c, enum key_exchange_code code, const char *credential,
                         size_t n)
{
    _cleanup_(buf_finish) struct buf out = {0};

    c->is_asking = false;
    if (key_exchange_put(&out, code, credential, n) == 0)
        (void)!write(c->fd, buf_bytes(&out), buf_size(&out)); /* without answer the agent dials again */
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
        server_log(c->shell->server, c->fd, "sent a broken request for the job's secret: closed");
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
    list_init(&c->deadline.link);
    deadlines_set(&e->conns, &c->deadline, s->limits.handshake_ms);
    e->n_conns++;
    (void)uv_poll_start(&c->poll, UV_READABLE, on_exchange_poll); /* fails only for a closing handle */
    if (!take_request(c))
        exchange_conn_close(c);
}

static void exchange_close_conns(void *self)
{
    struct exchange_shell *e = self;

    while (!list_is_empty(&e->conns.list))
        on_exchange_late(list_entry(e->conns.list.next, struct deadline, link));
}

static void exchange_shell_destroy(void *self)
{
    struct exchange_shell *e = self;

    address_quota_finish(&e->quota);
    free(e);
}

int exchange_shell_add(struct server *s, const struct server_config *config)
{
    bool is_wanted = config->rounds && s->security.exchange;
    struct exchange_shell *e = is_wanted ? calloc(1, sizeof(*e)) : NULL;

    if (!e)
        return is_wanted ? -ENOMEM : 0;
    e->quota.max = EXCHANGES_EACH_MAX;
    memcpy(e->quota.seed, s->quota.seed, sizeof(e->quota.seed));
    e->server = s;
    e->conns.expire = on_exchange_late;
    server_add_service(s, &(struct server_service){
                              .self = e,
                              .openings = {[OPENING_FIRST] = KEY_EXCHANGE_FIRST_BYTE},
                              .deadlines = {&e->conns},
                              .adopt = exchange_conn_adopt,
                              .drain = exchange_close_conns,
                              .stop = exchange_close_conns,
                              .destroy = exchange_shell_destroy,
                          });
    return 0;
}
