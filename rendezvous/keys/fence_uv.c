/*
 * A fenced server: clients are served from addresses of the job's nodes alone. A node adds its own address by proving
 * the job's key from the address.
 *
 *   agent of a node                     the server
 *   TLS 1.3 with the job's store key ->
 *                                    <- handshake, notice of the end: the address is allowed
 *
 * Agents prove the key while their workers start, so a client may come before its address is allowed. Such a connection is a
 * visitor. The server only looks at the first byte, without reading: the byte distinguishes a proof from a client. When the
 * address becomes allowed, the visitor becomes a client like any other and notices nothing. A second agent may prove the
 * key from an address already allowed.
 *
 * Why a proof on the store's port: a list of the members' addresses, sent by the rendezvous, would be wrong behind NAT and on
 * hosts with several interfaces, and would grow each view with the number of nodes.
 *
 * Ways to fail: no proof in time (the visitor is closed); a failed proof, as in tls_openssl.h; more visitors from elsewhere
 * than OUTSIDE_MAX (the oldest is closed: a visitor without proof must not keep out visitors with a proof).
 */

#include "rendezvous/keys/fence_uv.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/tls_openssl.h"
#include "rendezvous/keys/fence.h"
#include "rendezvous/server/server_impl_uv.h"

enum { OUTSIDE_MAX = 1024, READ_SIZE = 4096 };

struct fence_shell {
    struct server *server;
    struct fence addresses;
    /* inside: visitors from allowed addresses, clients or further proofs; outside: all others. */
    struct deadlines inside, outside;
    unsigned n_outside;
};

struct visitor {
    uv_poll_t poll;
    struct fence_shell *fence;
    struct deadline deadline;
    struct tls_link *tls; /* the visitor proves the key */
    struct conn_owner owner;
    int fd;
    bool is_inside, proved, closing;
    bool is_client; /* the first byte was a client's: only the address is missing */
};

static void on_visitor_poll(uv_poll_t *poll, int status, int events);

/* ---- end ---- */

/* Everything but the socket. */
static void visitor_release(struct visitor *v)
{
    v->closing = true;
    v->fence->n_outside -= !v->is_inside;
    list_unlink(&v->deadline.link);
    tls_link_free(v->tls);
    v->tls = NULL;
    server_close_conn(v->fence->server, &v->poll);
}

static void visitor_close(struct visitor *v)
{
    struct server *s = v->fence->server;

    visitor_release(v);
    (void)close(v->fd); /* released by uv_close() above */
    server_peer_gone(s, v->fd);
}

static void expire_visitor(struct deadline *d)
{
    struct visitor *v = list_entry(d, struct visitor, deadline);

    if (!v->proved && !v->is_inside)
        server_log(v->fence->server, v->fd,
                   "is at no address from which an agent of this job has proved its key: closed");
    visitor_close(v);
}

/* ---- from visitor to client ---- */

static bool is_allowed(struct fence_shell *f, int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);

    return getpeername(fd, (struct sockaddr *)&address, &size) == 0 &&
           fence_allows(&f->addresses, (const struct sockaddr *)&address);
}

static void visitor_become_client(struct visitor *v)
{
    struct server *s = v->fence->server;

    visitor_release(v); /* v is freed when the loop has turned */
    s->n_peers--;
    int r = server_admit(s, v->fence, v->fd, &v->owner, false);
    if (r < 0)
        server_log(s, -1, "refused a client: %s", strerror(-r));
}

/* A visitor that has sent nothing yet may still prove the key: look_at() decides when the first byte is there. */
static void admit_visitors(struct fence_shell *f)
{
    list_for_each_entry_safe(struct visitor, v, &f->outside.list, deadline.link)
    {
        if (v->is_client && is_allowed(f, v->fd))
            visitor_become_client(v);
    }
}

/* ---- proofs ---- */

static void accept_proof(struct visitor *v)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    int r = -ENOTCONN;

    v->proved = true;
    if (getpeername(v->fd, (struct sockaddr *)&address, &size) == 0)
        r = fence_allow(&v->fence->addresses, (const struct sockaddr *)&address);
    if (r < 0)
        server_log(v->fence->server, -1, "cannot allow the address of a node: %s", strerror(-r));
    else
        admit_visitors(v->fence);
}

/* The few hundred bytes of a handshake fit into an empty socket. */
static bool send_all(int fd, const struct buf *bytes)
{
    return buf_size(bytes) == 0 || write(fd, buf_bytes(bytes), buf_size(bytes)) == (ssize_t)buf_size(bytes);
}

static bool is_proof(const struct visitor *v, enum key_purpose purpose)
{
    return tls_link_is_established(v->tls) && tls_link_purpose(v->tls) == purpose;
}

/* False: the visitor has to be closed. */
static bool take_proof(struct visitor *v, const uint8_t *bytes, size_t n)
{
    _cleanup_(buf_finish) struct buf plain = {0}, out = {0};
    bool ok = tls_link_receive(v->tls, bytes, n, &plain, &out) == 0;

    if (!ok)
        server_log(v->fence->server, -1, "an agent's proof failed: %s: closed", tls_link_error(v->tls));
    if (ok && !v->proved && is_proof(v, KEY_STORE)) {
        accept_proof(v);
        (void)tls_link_finish(v->tls, &out); /* without the notice the agent proves the key again */
    }
    ok = send_all(v->fd, &out) && ok;
    if (v->proved)
        (void)shutdown(v->fd, SHUT_WR); /* the agent closes its end */
    return ok;
}

/* False: the visitor has to be closed, or is. */
static bool read_proof(struct visitor *v)
{
    uint8_t bytes[READ_SIZE];
    ssize_t n = read(v->fd, bytes, sizeof(bytes));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    return n > 0 && (v->proved || take_proof(v, bytes, (size_t)n));
}

/* Leaves the first byte in the socket: a client's greeting begins with the byte. */
static bool look_at(struct visitor *v)
{
    uint8_t first;
    ssize_t n = recv(v->fd, &first, 1, MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0)
        return false;
    if (first == TLS_FIRST_BYTE)
        return tls_link_create(&v->tls, v->fence->server->tls, NULL) == 0;
    if (is_allowed(v->fence, v->fd)) {
        visitor_become_client(v);
        return true;
    }
    v->is_client = true;
    (void)uv_poll_stop(&v->poll); /* cannot fail */
    return true;
}

static void on_visitor_poll(uv_poll_t *poll, int status, int events)
{
    struct visitor *v = poll->data;
    bool ok = status == 0;

    if (v->closing)
        return;
    if (ok && !v->tls)
        ok = look_at(v);
    if (ok && !v->closing && v->tls)
        ok = read_proof(v);
    if (!ok && !v->closing)
        visitor_close(v);
}

/* ---- the beginning ---- */

/* for_agent matters only when the visitor becomes a client: server_admit() decides again. */
static int visitor_create(void *self, int fd, const struct conn_owner *owner, bool for_agent)
{
    struct fence_shell *f = self;
    struct server *s = f->server;
    struct visitor *v = server_open_conn(s, fd, sizeof(*v));

    if (!v)
        return -errno;
    v->fence = f;
    v->fd = fd;
    v->owner = *owner;
    v->is_inside = is_allowed(f, fd);
    if (!v->is_inside && f->n_outside == OUTSIDE_MAX)
        visitor_close(list_entry(f->outside.list.next, struct visitor, deadline.link));
    list_init(&v->deadline.link);
    deadlines_set(v->is_inside ? &f->inside : &f->outside, &v->deadline, s->limits.handshake_ms);
    f->n_outside += !v->is_inside;
    s->n_peers++;
    (void)uv_poll_start(&v->poll, UV_READABLE, on_visitor_poll); /* fails only for a closing handle */
    return 0;
}

static void close_visitors(struct deadlines *all)
{
    while (!list_is_empty(&all->list))
        visitor_close(list_entry(all->list.next, struct visitor, deadline.link));
}

static void fence_close_visitors(void *self)
{
    struct fence_shell *f = self;

    close_visitors(&f->outside);
    close_visitors(&f->inside);
}

static void fence_shell_destroy(void *self)
{
    struct fence_shell *f = self;

    if (!f)
        return;
    fence_finish(&f->addresses);
    free(f);
}

int fence_shell_add(struct server *s, const struct server_config *config)
{
    const struct sockaddr_in loopback = {.sin_family = AF_INET,
                                         .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const struct sockaddr_in6 loopback6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct fence_shell *f = s->security.fence ? calloc(1, sizeof(*f)) : NULL;

    if (!s->security.fence)
        return 0;
    /* No other host can come from loopback addresses. */
    if (!f || fence_allow(&f->addresses, (const struct sockaddr *)&loopback) < 0 ||
        fence_allow(&f->addresses, (const struct sockaddr *)&loopback6) < 0) {
        fence_shell_destroy(f);
        return -ENOMEM;
    }
    f->server = s;
    f->inside.expire = expire_visitor;
    f->outside.expire = expire_visitor;
    server_add_service(s, &(struct server_service){
                              .self = f,
                              .deadlines = {&f->inside, &f->outside},
                              .admit = visitor_create,
                              .drain = fence_close_visitors,
                              .stop = fence_close_visitors,
                              .destroy = fence_shell_destroy,
                          });
    return 0;
}
