#include "launcher/crunctl/rendezvous_query_sock.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "launcher/crunctl/control_client_sock.h"
#include "launcher/crunctl/query_answer_json.h"
#include "proto/frame.h"
#include "proto/tls_openssl.h"
#include "rendezvous/session/look_json.h"

/* Of crund and --rdzv-endpoint, where none is named. */
static const char ROUNDS_PORT_TEXT[] = "29400";

enum { NONCE = 0x6c6f6f6b, PIECE = 16 << 10, HOST_SIZE = 300 };

struct query_client {
    int fd;
    struct tls_link *tls; /* NULL: in the clear */
    char host[HOST_SIZE]; /* of the endpoint, which a certificate has to name */
    struct frame_reader reader;
    struct buf in;   /* frames */
    struct buf wire; /* with TLS: records to be sent */
    char *error;
};

static int fail(struct query_client *c, int r, const char *what)
{
    if (!*c->error)
        (void)snprintf(c->error, RENDEZVOUS_QUERY_ERROR_SIZE, "%s", what);
    return r;
}

/* ---- connecting ---- */

/* HOST:PORT or HOST, the host perhaps in brackets. */
static bool split_endpoint(const char *text, char host[HOST_SIZE], const char **ret_port)
{
    const char *colon = strrchr(text, ':'), *bracket = strrchr(text, ']');
    const char *port = colon && (!bracket || colon > bracket) ? colon : NULL;
    size_t n = port ? (size_t)(port - text) : strlen(text);
    bool is_bracketed = n >= 2 && text[0] == '[' && text[n - 1] == ']';

    if (n == 0 || n >= HOST_SIZE || (port && !port[1]))
        return false;
    (void)snprintf(host, HOST_SIZE, "%.*s", (int)(n - 2 * is_bracketed), text + is_bracketed); /* fits */
    *ret_port = port ? port + 1 : ROUNDS_PORT_TEXT;
    return true;
}

static int dial_tcp(struct query_client *c, const char *endpoint, int timeout_ms)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const char *port;
    int r = -EHOSTUNREACH;

    if (!split_endpoint(endpoint, c->host, &port))
        return -EINVAL;
    if (getaddrinfo(c->host, port, &hints, &found) != 0)
        return -EHOSTUNREACH;
    for (const struct addrinfo *a = found; a && r < 0; a = a->ai_next)
        r = control_client_dial_address(a->ai_addr, a->ai_addrlen, timeout_ms, &c->fd);
    freeaddrinfo(found);
    return r;
}

static int dial_unix(const char *path, int timeout_ms, int *ret)
{
    struct control_socket s = {.path = path, .is_named = *path != '@'};

    return control_client_dial(&s, timeout_ms, ret);
}

/* ---- bytes ---- */

static int send_bytes(struct query_client *c, const struct buf *b)
{
    const char *at = (const char *)buf_bytes(b);

    for (size_t n = buf_size(b); n > 0;) {
        ssize_t done = send(c->fd, at, n, MSG_NOSIGNAL);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return fail(c, errno == EAGAIN ? -ETIMEDOUT : -errno,
                        "the rendezvous has closed the connection, or does not read");
        at += done;
        n -= (size_t)done;
    }
    return 0;
}

static int flush_wire(struct query_client *c)
{
    int r = send_bytes(c, &c->wire);

    buf_reset(&c->wire);
    return r;
}

static int send_plain(struct query_client *c, const struct buf *plain)
{
    if (!c->tls)
        return send_bytes(c, plain);
    TRY(tls_link_send(c->tls, buf_bytes(plain), buf_size(plain), &c->wire));
    return flush_wire(c);
}

static int receive_piece(struct query_client *c)
{
    char piece[PIECE];
    ssize_t n;

    do
        n = recv(c->fd, piece, sizeof(piece), 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return fail(c, errno == EAGAIN ? -ETIMEDOUT : -errno, "the rendezvous does not answer");
    if (n == 0)
        return fail(
            c, -ECONNRESET,
            "the rendezvous has closed the connection: it needs a secret, or is older and does not know looks");
    if (!c->tls)
        return buf_append(&c->in, piece, (size_t)n);
    int r = tls_link_receive(c->tls, piece, (size_t)n, &c->in, &c->wire);
    if (r)
        (void)fail(c, r, tls_link_error(c->tls));
    int sent = flush_wire(c); /* an alert, or the end of the handshake */
    return r ? r : sent;
}

/* ---- the conversation ---- */

static int begin(struct query_client *c, struct tls_context *tls)
{
    _cleanup_(buf_finish) struct buf out = {0};

    frame_reader_init_agent(&c->reader, NONCE);
    if (!tls) {
        TRY(frame_put_greeting(&out, NONCE));
    } else {
        c->reader.stage = FRAME_STAGE_OPENING;
        TRY(tls_link_create(&c->tls, tls, c->host));
        TRY(tls_link_receive(c->tls, NULL, 0, &c->in, &c->wire));
        TRY(flush_wire(c));
        while (!tls_link_is_established(c->tls))
            TRY(receive_piece(c));
    }
    TRY(frame_put_opening(&out));
    return send_plain(c, &out);
}

/* Until the end of one answer. */
static int receive_answer(struct query_client *c, struct query_answer *l)
{
    struct frame frame;
    size_t size;
    int r = 0;

    while (r == 0 && !l->is_over) {
        int decoded = frame_decode(&c->reader, buf_bytes(&c->in), buf_size(&c->in), &frame, &size);

        if (decoded == FRAME_E_MORE) {
            r = receive_piece(c);
            continue;
        }
        if (decoded)
            return fail(c, -EPROTO, "it is no rendezvous of crun, or of another version");
        if (frame.kind == FRAME_BODY)
            r = query_answer_take(l, frame.body.data, frame.body.size);
        buf_consume(&c->in, size);
    }
    if (r == -EACCES)
        return fail(c, r, l->refusal);
    return r == -EBADMSG ? fail(c, r, "its answer is of another version of crun") : r;
}

static int look_from(struct query_client *c, const struct rendezvous_query *target, struct query_answer *l)
{
    struct look_request request = {.from = l->next, .stacks = target->wants_stacks};
    const char *job = target->job;
    _cleanup_(buf_finish) struct buf out = {0};

    if (job && strlen(job) >= sizeof(request.job))
        return fail(c, -EINVAL, "the name of the job is too long");
    (void)snprintf(request.job, sizeof(request.job), "%s", job ? job : "");
    l->is_over = false;
    TRY(look_put_request(&out, &request));
    TRY(send_plain(c, &out));
    TRY(receive_answer(c, l));
    if (l->next > 0 && l->next <= request.from)
        return fail(c, -EBADMSG, "its answers do not end");
    return 0;
}

int rendezvous_query(const struct rendezvous_query *target, struct query_answer *ret,
                     char error[RENDEZVOUS_QUERY_ERROR_SIZE])
{
    struct query_client c = {.fd = -1, .error = error};

    *ret = (struct query_answer){0};
    *error = '\0';
    int r = strchr(target->endpoint, '/') ? dial_unix(target->endpoint, target->patience_ms, &c.fd)
                                          : dial_tcp(&c, target->endpoint, target->patience_ms);
    if (!r)
        r = begin(&c, target->tls);
    do
        r = r ? r : look_from(&c, target, ret);
    while (!r && ret->next > 0);
    if (r && !*error)
        (void)snprintf(error, RENDEZVOUS_QUERY_ERROR_SIZE, "%s", control_client_error(r));
    tls_link_free(c.tls);
    buf_finish(&c.in);
    buf_finish(&c.wire);
    close_fd(&c.fd);
    return r;
}
