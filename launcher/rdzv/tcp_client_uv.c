/*
 * Life: resolving -> connecting, address after address -> connected -> lost or closed. A client frees itself when its
 * handles are closed.
 *
 * Closing shuts down the sending side after the queued bytes, and reads until the peer has closed too: a socket that is
 * closed with bytes unread is reset, and the peer may then lose bytes that it has not read yet.
 *
 * Ways it fails: no address, each address refuses or is unreachable (the next one is tried), the peer closes, a write
 * fails. Each is one on_lost.
 */

#include "launcher/rdzv/tcp_client_uv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/address.h"
#include "proto/tls_openssl.h"
#include "rendezvous/agents/tcp_liveness_os.h"

enum { LINGER_MS = 1000, CHUNK = 16384, BUFFER_KEEP_MAX = 4096 };

struct tcp_client {
    struct tcp_client_config config;
    struct resolver *resolver; /* while the name is being resolved */
    uv_connect_t connecting;
    uv_shutdown_t ending;
    uv_tcp_t tcp;
    uv_timer_t timer; /* calls on_lost from the loop, or ends the lingering */
    struct resolver_addresses addresses;
    const char *names[RESOLVER_ADDRESSES_MAX]; /* see tcp_client_config */
    size_t tried;
    const union address_endpoint *dialled; /* the one of addresses that was tried last */
    struct tls_link *tls;                  /* NULL: in the clear */
    struct buf plain, records;             /* empty between two calls: their memory is kept */
    char why[TLS_ERROR_SIZE + INET6_ADDRSTRLEN + 16];
    bool has_tcp, connected, closing;
    bool open; /* connected, and with TLS the key is proved */
    unsigned n_handles;
    uint8_t chunk[CHUNK];
};

struct pending_write {
    uv_write_t request;
    uint8_t bytes[];
};

static void try_next_address(struct tcp_client *l);

/* ---- end ---- */

static void free_client_if_closed(struct tcp_client *l)
{
    if (!l->closing || l->n_handles > 0)
        return;
    tls_link_free(l->tls);
    buf_finish(&l->plain);
    buf_finish(&l->records);
    free(l);
}

static void on_client_timer_closed(uv_handle_t *handle)
{
    struct tcp_client *l = handle->data;

    l->n_handles--;
    free_client_if_closed(l);
}

static void on_tcp_closed(uv_handle_t *handle)
{
    struct tcp_client *l = handle->data;

    l->n_handles--;
    l->has_tcp = false;
    if (l->closing)
        free_client_if_closed(l);
    else
        try_next_address(l);
}

static void close_handle(uv_handle_t *handle, uv_close_cb closed)
{
    if (!uv_is_closing(handle))
        uv_close(handle, closed);
}

static void close_handles(struct tcp_client *l)
{
    l->closing = true;
    resolver_stop(steal_ptr(l->resolver));
    if (l->has_tcp)
        close_handle((uv_handle_t *)&l->tcp, on_tcp_closed);
    close_handle((uv_handle_t *)&l->timer, on_client_timer_closed);
}

static void report_lost(struct tcp_client *l, const char *why)
{
    if (l->closing)
        return;
    void (*on_lost)(void *, const char *) = l->config.on_lost;
    void *data = l->config.data;
    char copy[sizeof(l->why)];

    (void)snprintf(copy, sizeof(copy), "%s", why); /* truncated if long */
    close_handles(l);
    on_lost(data, copy);
}

static void on_lost_later(uv_timer_t *timer)
{
    struct tcp_client *l = timer->data;

    report_lost(l, l->why);
}

static void report_lost_later(struct tcp_client *l, const char *why)
{
    (void)snprintf(l->why, sizeof(l->why), "%s", why);    /* as above */
    (void)uv_timer_start(&l->timer, on_lost_later, 0, 0); /* fails only without a callback */
}

static void on_lingered(uv_timer_t *timer)
{
    close_handles(timer->data);
}

static void on_client_shutdown(uv_shutdown_t *ending, int status)
{
    struct tcp_client *l = ending->handle->data;

    if (status < 0 && status != UV_ECANCELED)
        close_handles(l);
}

static void send_records(struct tcp_client *l);

/* Without this notice the peer sees a cut. */
static void finish_tls(struct tcp_client *l)
{
    if (l->tls && l->open && tls_link_finish(l->tls, &l->records) == 0)
        send_records(l);
}

void tcp_client_close(struct tcp_client *l)
{
    if (!l || l->closing)
        return;
    finish_tls(l);
    l->closing = true;
    if (l->has_tcp && l->connected && !uv_is_closing((uv_handle_t *)&l->tcp) &&
        uv_shutdown(&l->ending, (uv_stream_t *)&l->tcp, on_client_shutdown) == 0)
        (void)uv_timer_start(&l->timer, on_lingered, LINGER_MS, 0); /* fails only without a callback */
    else
        close_handles(l);
}

/* ---- bytes ---- */

static void on_client_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    struct tcp_client *l = handle->data;

    *ret = uv_buf_init((char *)l->chunk, CHUNK);
}

/* Of several addresses the sentence names the one that it is about. */
static void report_tls_error(struct tcp_client *l)
{
    const struct sockaddr *at = &l->dialled->any;
    const char *why = tls_link_error(l->tls);
    char host[INET6_ADDRSTRLEN], text[sizeof(l->why)];

    if ((l->addresses.n > 1 || l->names[l->dialled - l->addresses.items]) &&
        address_format(at, host, sizeof(host))) {
        (void)snprintf(text, sizeof(text), strchr(host, ':') ? "[%s]:%u: %s" : "%s:%u: %s", host,
                       address_port(at), why);
        why = text;
    }
    report_lost(l, why);
}

static void take_records(struct tcp_client *l, const void *bytes, size_t n)
{
    int r = tls_link_receive(l->tls, bytes, n, &l->plain, &l->records);

    send_records(l);
    if (r == -ENOMEM) {
        report_lost(l, "out of memory");
    } else if (r < 0) {
        report_tls_error(l);
    } else if (!l->open && tls_link_is_established(l->tls)) {
        l->open = true;
        l->config.on_connected(l->config.data);
    }
    if (!l->closing && buf_size(&l->plain) > 0)
        l->config.on_bytes(l->config.data, buf_bytes(&l->plain), buf_size(&l->plain));
    if (!l->closing && l->config.on_finished && tls_link_is_finished(l->tls))
        l->config.on_finished(l->config.data);
    buf_clear(&l->plain, BUFFER_KEEP_MAX);
}

/* The peer, or the network, has ended the connection. */
static void report_end_of_stream(struct tcp_client *l, int error)
{
    if (l->tls && !l->open)
        report_lost(l,
                    "it has no secret, or is no rendezvous of crun: it closed the connection when TLS began");
    else
        report_lost(l, error == UV_EOF ? "closed" : uv_strerror(error));
}

static void on_client_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct tcp_client *l = stream->data;

    if (n == 0)
        return;
    if (l->closing) {
        if (n < 0)
            close_handles(l);
    } else if (n > 0 && l->tls) {
        take_records(l, buf->base, (size_t)n);
    } else if (n > 0) {
        l->config.on_bytes(l->config.data, (const uint8_t *)buf->base, (size_t)n);
    } else {
        report_end_of_stream(l, (int)n);
    }
}

static void on_client_sent(uv_write_t *request, int status)
{
    struct tcp_client *l = request->handle->data;

    free(request->data);
    if (status < 0 && status != UV_ECANCELED)
        report_lost(l, uv_strerror(status));
}

static void send_raw(struct tcp_client *l, const void *bytes, size_t n)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)bytes, (unsigned)n);

    if (l->closing || !l->connected || n == 0)
        return;
    int sent = uv_try_write((uv_stream_t *)&l->tcp, &buf, 1);
    size_t done = sent > 0 ? (size_t)sent : 0;
    if (done == n)
        return;
    struct pending_write *s = malloc(sizeof(*s) + (n - done));
    if (!s) {
        report_lost_later(l, "out of memory");
        return;
    }
    memcpy(s->bytes, (const uint8_t *)bytes + done, n - done);
    s->request.data = s;
    buf = uv_buf_init((char *)s->bytes, (unsigned)(n - done));
    int r = uv_write(&s->request, (uv_stream_t *)&l->tcp, &buf, 1, on_client_sent);
    if (r < 0) {
        free(s);
        report_lost_later(l, uv_strerror(r));
    }
}

static void send_records(struct tcp_client *l)
{
    send_raw(l, buf_bytes(&l->records), buf_size(&l->records));
    buf_clear(&l->records, BUFFER_KEEP_MAX);
}

void tcp_client_send(struct tcp_client *l, const void *bytes, size_t n)
{
    if (!l->tls) {
        send_raw(l, bytes, n);
        return;
    }
    if (l->closing || !l->open)
        return;
    if (tls_link_send(l->tls, bytes, n, &l->records) < 0)
        report_lost_later(l, "out of memory"); /* what was sealed is in order */
    send_records(l);
}

/* The kernel forgets the address when the peer resets the connection, so it is not asked. */
const union address_endpoint *tcp_client_peer(const struct tcp_client *l)
{
    return l->connected ? l->dialled : NULL;
}

void tcp_client_own_address(const struct tcp_client *l, char *ret, size_t size)
{
    union address_endpoint own = {0};
    int n = sizeof(own);

    ret[0] = '\0';
    if (!l->connected || uv_tcp_getsockname(&l->tcp, (struct sockaddr *)&own, &n) < 0)
        return;
    (void)address_format(&own.any, ret, size); /* "" where it does not fit */
}

uint64_t tcp_client_slack_ns(const struct tcp_client *l, uint32_t within_ms)
{
    uv_os_fd_t fd;

    if (!l->connected || uv_fileno((const uv_handle_t *)&l->tcp, &fd) < 0)
        return 0;
    return tcp_liveness_acknowledged_ms(fd) < within_ms ? UINT64_MAX : tcp_liveness_slack_ns(fd);
}

/* ---- connecting ---- */

static void tune(const struct tcp_client *l, int fd)
{
    tcp_liveness_tune(fd);
    if (l->config.silence_ms > 0)
        tcp_liveness_limit(fd, l->config.silence_ms);
}

static void on_connect(uv_connect_t *request, int status)
{
    struct tcp_client *l = request->handle->data;

    if (l->closing || status == UV_ECANCELED)
        return;
    if (status < 0) {
        (void)snprintf(l->why, sizeof(l->why), "%s", uv_strerror(status)); /* as above */
        close_handle((uv_handle_t *)&l->tcp, on_tcp_closed);
        return;
    }
    l->connected = true;
    (void)uv_tcp_nodelay(&l->tcp, 1); /* without it only slower */
    uv_os_fd_t fd;
    if (uv_fileno((const uv_handle_t *)&l->tcp, &fd) == 0)
        tune(l, fd);
    int r = uv_read_start((uv_stream_t *)&l->tcp, on_client_alloc, on_client_read);
    if (r == 0 && l->config.tls)
        r = tls_link_create(&l->tls, l->config.tls, l->names[l->dialled - l->addresses.items]);
    if (r < 0) {
        report_lost(l, uv_strerror(r));
    } else if (l->tls) {
        if (l->config.on_reached)
            l->config.on_reached(l->config.data);
        if (!l->closing)
            take_records(l, NULL, 0); /* begins the handshake */
    } else {
        l->open = true;
        l->config.on_connected(l->config.data);
    }
}

static int start_connecting(struct tcp_client *l, const struct sockaddr *address)
{
    TRY(uv_tcp_init(l->config.loop, &l->tcp));
    l->tcp.data = l;
    l->has_tcp = true;
    l->n_handles++;
    return uv_tcp_connect(&l->connecting, &l->tcp, address, on_connect);
}

static void try_next_address(struct tcp_client *l)
{
    const struct resolver_addresses *a = &l->addresses;

    if (l->tried == a->n) {
        report_lost(l, l->why);
        return;
    }
    l->dialled = &a->items[(l->config.turn + l->tried++) % a->n];
    int r = start_connecting(l, &l->dialled->any);
    if (r < 0 &&
        l->has_tcp) { /* failed at once (ENETUNREACH): the next one follows when the handle has closed */
        (void)snprintf(l->why, sizeof(l->why), "%s", uv_strerror(r)); /* as above */
        close_handle((uv_handle_t *)&l->tcp, on_tcp_closed);
    } else if (r < 0) {
        report_lost_later(l, uv_strerror(r));
    }
}

static void on_address_found(void *data, const struct resolver_addresses *found)
{
    struct tcp_client *l = data;

    l->addresses = *found;
    resolver_stop(steal_ptr(l->resolver));
    try_next_address(l);
}

const char *tcp_client_trouble(const struct tcp_client *l)
{
    return l->resolver ? resolver_why(l->resolver) : "";
}

static int start_resolver(struct tcp_client *l)
{
    const struct resolver_config config = {.loop = l->config.loop,
                                           .host = l->config.host,
                                           .port = l->config.port,
                                           .on_found = on_address_found,
                                           .data = l};

    return resolver_start(&l->resolver, &config);
}

static void on_begin_connecting(uv_timer_t *timer)
{
    try_next_address(timer->data);
}

int tcp_client_dial(struct tcp_client **ret, const struct tcp_client_config *config)
{
    struct tcp_client *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->config = *config;
    (void)uv_timer_init(config->loop, &l->timer); /* cannot fail */
    l->timer.data = l;
    l->n_handles = 1;
    int r = 0;
    if (config->addresses)
        l->addresses = *config->addresses;
    for (size_t i = 0; config->addresses && config->names && i < l->addresses.n; i++)
        l->names[i] = config->names[i];
    if (config->addresses || resolver_numeric(config->host, config->port, &l->addresses))
        (void)uv_timer_start(&l->timer, on_begin_connecting, 0, 0); /* fails only without a callback */
    else
        r = start_resolver(l);
    l->config.host = NULL;
    l->config.addresses = NULL;
    l->config.names = NULL;
    if (r < 0) {
        close_handles(l);
        return r;
    }
    *ret = l;
    return 0;
}
