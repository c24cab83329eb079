/*
 * The blocking client: the client machine (client.h) and a socket, with sock_wait() between them.
 *
 * The happy path of a call: client_sock_begin() finishes the rest of an earlier call, the operation puts a message
 * into the machine, client_sock_exchange() moves bytes until the machine has the reply, client_sock_end() returns
 * the result.
 *
 * A call after the deadline leaves an abandoned request behind: the machine cancels a WAIT
 * (the CANCEL_WAIT is sent at once if the socket takes the bytes) and drops the reply on arrival. The next
 * call first finishes the abandoned request, within the deadline of the new call; so a time-out costs no more than the given time,
 * and a silent server makes every call time out, not hang.
 *
 * Failures: the server closes, resets or breaks the protocol. The descriptor is closed at once.
 */

#include "proto/client_sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"
#include "proto/connect_sock.h"

enum {
    RECEIVE_MIN = 16 << 10, /* room for one read */
    KEEP_MAX = 1 << 20,     /* a larger buffer is not kept for the next call */
    PAUSE_FIRST_MS = 10,    /* between attempts to connect */
    PAUSE_MAX_MS = 1000,
};

/* ------------------------------------------------------------------ sentences */

__attribute__((format(printf, 3, 4))) static int fail(struct client_sock *s, int r, const char *format, ...)
{
    (void)format_arguments(s->error, sizeof(s->error), format); /* a long sentence is cut */
    return r;
}

/* Keys are any bytes and up to 8 KiB; a log line is neither. */
static void describe_key(struct wire_span key, char *text, size_t size)
{
    size_t n = key.size < size - 4 ? key.size : size - 4;

    for (size_t i = 0; i < n; i++)
        text[i] = key.data[i] >= ' ' && key.data[i] <= '~' ? (char)key.data[i] : '?';
    (void)snprintf(text + n, size - n, "%s", n < key.size ? "..." : "");
}

/* "GET of "k"" */
static void describe_call(const struct client_sock_call *call, char *text, size_t size)
{
    char key[120];
    int n = snprintf(text, size, "%s", wire_op_name(call->op));

    if (!call->key.data)
        return;
    describe_key(call->key, key, sizeof(key));
    (void)snprintf(text + n, size - (size_t)n, " of \"%s\"", key);
}

static int fail_call(struct client_sock *s, int r)
{
    char call[200];

    describe_call(&s->call, call, sizeof(call));
    if (r == CLIENT_E_TIMEOUT)
        return fail(s, r, "store %s: no answer to %s within %d ms", s->peer, call, s->call.timeout_ms);
    if (r == CLIENT_E_INTERRUPTED)
        return fail(s, r, "store %s: %s was interrupted", s->peer, call);
    if (r == CLIENT_E_PROTOCOL)
        return fail(s, r, "store %s: the reply to %s is not one of a TCPStore: %s (%llu)", s->peer, call,
                    s->machine.error, (unsigned long long)s->machine.error_value);
    return fail(s, r, "store %s: %s: %s", s->peer, call, strerror(-r));
}

/* ------------------------------------------------------------------ the connection */

void client_sock_init(struct client_sock *s)
{
    *s = (struct client_sock){
        .fd = -1,
        .timeout_ms = CLIENT_SOCK_TIMEOUT_MS,
        .wake_fd = -1,
        .peer = "(not connected)",
    };
    client_init(&s->machine);
}

void client_sock_finish(struct client_sock *s)
{
    close_fd(&s->fd);
    client_finish(&s->machine);
    buf_finish(&s->key);
}

const char *client_sock_error(const struct client_sock *s)
{
    return s->error;
}

static int lost(struct client_sock *s, const char *why)
{
    char call[200];

    describe_call(&s->call, call, sizeof(call));
    close_fd(&s->fd);
    return fail(s, CLIENT_E_CLOSED, "store %s: connection lost in %s: %s", s->peer, call, why);
}

/* Sends as much as the socket takes. */
static int send_some(struct client_sock *s)
{
    struct buf *out = &s->machine.out;

    while (buf_size(out) > 0) {
        ssize_t n = send(s->fd, buf_bytes(out), buf_size(out), MSG_NOSIGNAL);

        if (n >= 0)
            buf_consume(out, (size_t)n);
        else if (errno == EAGAIN)
            return 0;
        else if (errno != EINTR)
            return lost(s, strerror(errno));
    }
    return 0;
}

/* Room for the announced bytes, but no more than have come so far: announcing is cheap. */
static size_t receive_size(const struct client *c)
{
    size_t have = buf_size(&c->in);
    uint64_t missing = c->scanner.need > have ? c->scanner.need - have : 0;

    if (missing > have)
        missing = have;
    return missing > RECEIVE_MIN ? (size_t)missing : RECEIVE_MIN;
}

static int receive_some(struct client_sock *s)
{
    struct buf *in = &s->machine.in;
    size_t size = receive_size(&s->machine);
    uint8_t *to = buf_reserve(in, size);

    if (!to)
        return -ENOMEM;
    ssize_t n = recv(s->fd, to, size, 0);
    if (n > 0)
        buf_commit(in, (size_t)n);
    else if (n == 0)
        return lost(s, "the server closed it");
    else if (errno != EAGAIN && errno != EINTR)
        return lost(s, strerror(errno));
    return 0;
}

int client_sock_exchange(struct client_sock *s, struct wire_reply *ret_reply)
{
    struct client *c = &s->machine;
    struct wire_reply reply;

    for (;;) {
        TRY(send_some(s));
        int r = client_next(c, &reply);
        if (r == 0 && ret_reply) {
            *ret_reply = reply;
            return 0;
        }
        if (r == CLIENT_E_PROTOCOL)
            return r;
        if (!ret_reply && buf_size(&c->out) == 0 && client_n_pending(c) == 0)
            return 0;
        TRY(sock_wait(s->wake_fd, s->fd, buf_size(&c->out) > 0 ? POLLIN | POLLOUT : POLLIN,
                      s->call.deadline_ns));
        TRY(receive_some(s));
    }
}

static void release_large(struct buf *b)
{
    if (buf_size(b) == 0 && b->capacity > KEEP_MAX)
        buf_reset(b);
}

/*
 * Bytes without a request. Looked for before each request, or a stray byte between
 * two calls would be taken for the answer to the second call, and every later answer for the answer of another call.
 */
static int refuse_unasked(struct client_sock *s)
{
    struct wire_reply reply;

    TRY(receive_some(s));
    int r = client_next(&s->machine, &reply);
    return r == CLIENT_E_MORE ? 0 : r;
}

int client_sock_begin(struct client_sock *s, struct client_sock_call call)
{
    if (s->fd < 0)
        return fail(s, CLIENT_E_CLOSED, "store %s: there is no connection", s->peer);
    if (call.timeout_ms < 0)
        call.timeout_ms = s->timeout_ms;
    call.deadline_ns = sock_deadline_ns(call.timeout_ms);
    s->call = call;
    int r = client_sock_exchange(s, NULL);
    release_large(&s->machine.in);
    release_large(&s->machine.out);
    return r ? r : refuse_unasked(s);
}

int client_sock_end(struct client_sock *s, int r)
{
    if (r == 0 || r == CLIENT_E_CLOSED || r == -EMSGSIZE)
        return r; /* nothing left behind, or already described */
    if (r == CLIENT_E_PROTOCOL || client_abandon(&s->machine) != 0) {
        (void)fail_call(s, r);
        close_fd(&s->fd);
        return r;
    }
    (void)fail_call(s, r);
    if (s->fd >= 0 && send_some(s) != 0)
        (void)fail_call(s, r); /* the connection is lost, too: the next call reports the loss */
    return r;
}

/* ------------------------------------------------------------------ connecting */

static uint32_t random_u32(void)
{
    uint32_t value;

    /* Nothing secret: a nonce and a jitter. The clock does when the kernel has no randomness yet. */
    if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != (ssize_t)sizeof(value))
        value = (uint32_t)sock_now_ns();
    return value;
}

/* The server proves to be a TCPStore by sending the nonce back. other: the sentence part about another answer. */
static int ping(struct client_sock *s, const char *other)
{
    uint32_t nonce = random_u32();
    struct wire_reply reply;
    int r = client_request(&s->machine, &(struct wire_request){.op = WIRE_OP_PING, .word = nonce});

    if (!r)
        r = client_sock_exchange(s, &reply);
    return !r && reply.number != nonce ? lost(s, other) : r;
}

static int shake_hands(struct client_sock *s)
{
    const struct wire_request validate = {.op = WIRE_OP_VALIDATE, .word = WIRE_VALIDATE_MAGIC};

    TRY(client_request(&s->machine, &validate));
    return ping(s, "it does not answer as a TCPStore");
}

/* A fresh machine on a fresh connection. */
static int connect_address(struct client_sock *s, const char *host, uint16_t port)
{
    char why[160] = "no address";

    close_fd(&s->fd);
    client_finish(&s->machine);
    client_init(&s->machine);
    int r = sock_connect(host, port, s->wake_fd, s->call.deadline_ns, &s->fd, why, sizeof(why));
    if (r == CLIENT_E_CLOSED || r == CLIENT_E_TIMEOUT)
        return fail(s, r, "%s", why);
    if (!r)
        r = shake_hands(s);
    if (r == CLIENT_E_TIMEOUT)
        return fail(s, r, "connected, but the server sent no reply");
    if (r == CLIENT_E_PROTOCOL)
        return fail(s, r, "connected, but the server is not a TCPStore: %s", s->machine.error);
    return r;
}

/* Between 0.5 and 1.5 of the pause: clients that failed together do not retry together. */
static int pause_between(struct client_sock *s, int pause_ms)
{
    int jittered_ms = pause_ms / 2 + (int)(random_u32() % (uint32_t)pause_ms);
    int64_t end_ns = sock_deadline_ns(jittered_ms);

    if (end_ns > s->call.deadline_ns)
        return CLIENT_E_TIMEOUT;
    int r = sock_wait(s->wake_fd, -1, 0, end_ns);
    return r == CLIENT_E_TIMEOUT ? 0 : r; /* slept enough */
}

static int connect_until(struct client_sock *s, const char *host, uint16_t port, int *ret_n_attempts)
{
    int pause_ms = PAUSE_FIRST_MS;

    for (int n = 1;; n++) {
        *ret_n_attempts = n;
        int r = connect_address(s, host, port);
        if (r != CLIENT_E_CLOSED && r != CLIENT_E_PROTOCOL)
            return r;
        TRY(pause_between(s, pause_ms));
        pause_ms = pause_ms * 2 < PAUSE_MAX_MS ? pause_ms * 2 : PAUSE_MAX_MS;
    }
}

int client_sock_connect(struct client_sock *s, const char *host, uint16_t port, int timeout_ms)
{
    char why[sizeof(s->error)];
    int n_attempts = 0;

    if (timeout_ms < 0)
        timeout_ms = s->timeout_ms;
    (void)snprintf(s->peer, sizeof(s->peer), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    s->call = (struct client_sock_call){
        .op = WIRE_OP_PING,
        .timeout_ms = timeout_ms,
        .deadline_ns = sock_deadline_ns(timeout_ms),
    };
    s->error[0] = '\0';
    int r = connect_until(s, host, port, &n_attempts);
    if (r == 0) {
        s->error[0] = '\0'; /* of earlier attempts */
        return 0;
    }
    close_fd(&s->fd);
    if (r == CLIENT_E_INTERRUPTED)
        return fail(s, r, "store %s: connecting was interrupted", s->peer);
    if (r != CLIENT_E_TIMEOUT)
        return fail(s, r, "store %s: cannot connect: %s", s->peer, strerror(-r));
    memcpy(why, s->error, sizeof(why));
    return fail(s, r, "store %s: not reached within %d ms (attempts: %d): %.300s", s->peer, timeout_ms,
                n_attempts, why);
}

/* ------------------------------------------------------------------ keys and limits */

static const struct wire_limits limits = WIRE_LIMITS_DEFAULT;

static int check_value(struct client_sock *s, struct wire_span value)
{
    if (value.size <= limits.value_max)
        return 0;
    return fail(s, -EMSGSIZE,
                "store %s: a value of %zu bytes is longer than the %llu that a message may hold", s->peer,
                value.size, (unsigned long long)limits.value_max);
}

/* As client_sock_begin(), for calls on a key; *key becomes the name on the wire, a copy with a "/" in front. */
static int begin_key(struct client_sock *s, enum wire_op op, int timeout_ms, struct wire_span *key)
{
    struct client_sock_call call = {.op = op, .key = *key, .timeout_ms = timeout_ms};

    TRY(client_sock_begin(s, call));
    if (key->size >= limits.key_max)
        return fail(s, -EMSGSIZE, "store %s: a key of %zu bytes is longer than the %llu allowed", s->peer,
                    key->size, (unsigned long long)limits.key_max - 1);
    buf_clear(&s->key, KEEP_MAX);
    int r = buf_append(&s->key, "/", 1);
    if (!r)
        r = buf_append(&s->key, key->data, key->size);
    *key = wire_span(buf_bytes(&s->key), buf_size(&s->key));
    return r;
}

/* ------------------------------------------------------------------ operations */

int client_sock_ping(struct client_sock *s)
{
    int r = client_sock_begin(s, (struct client_sock_call){.op = WIRE_OP_PING, .timeout_ms = -1});

    return client_sock_end(s, r ? r : ping(s, "the answer to PING has another number"));
}

/* One request for one key. ret_reply NULL: without a reply. */
static int call_key(struct client_sock *s, struct wire_request request, struct wire_reply *ret_reply)
{
    int r = begin_key(s, request.op, -1, &request.key);

    if (!r)
        r = check_value(s, request.value);
    if (!r)
        r = client_request(&s->machine, &request);
    return client_sock_end(s, r ? r : client_sock_exchange(s, ret_reply));
}

int client_sock_set(struct client_sock *s, struct wire_span key, struct wire_span value)
{
    return call_key(s, (struct wire_request){.op = WIRE_OP_SET, .key = key, .value = value}, NULL);
}

int client_sock_get(struct client_sock *s, struct wire_span key, int timeout_ms, struct wire_span *ret_value)
{
    struct wire_reply reply;
    int r = begin_key(s, WIRE_OP_GET, timeout_ms, &key);

    if (!r)
        r = client_keys(&s->machine, WIRE_OP_WAIT, &key, 1);
    if (!r)
        r = client_sock_exchange(s, &reply); /* a release: the reply to a cancelled WAIT is dropped */
    if (!r)
        r = client_request(&s->machine, &(struct wire_request){.op = WIRE_OP_GET, .key = key});
    if (!r)
        r = client_sock_exchange(s, &reply);
    if (!r)
        *ret_value = reply.value;
    return client_sock_end(s, r);
}

int client_sock_add(struct client_sock *s, struct wire_span key, int64_t amount, int64_t *ret_value)
{
    struct wire_reply reply;
    int r = call_key(s, (struct wire_request){.op = WIRE_OP_ADD, .key = key, .amount = amount}, &reply);

    if (!r)
        *ret_value = reply.number;
    return r;
}

int client_sock_delete(struct client_sock *s, struct wire_span key, bool *ret_deleted)
{
    struct wire_reply reply;
    int r = call_key(s, (struct wire_request){.op = WIRE_OP_DELETE_KEY, .key = key}, &reply);

    if (!r)
        *ret_deleted = reply.number > 0;
    return r;
}
