#pragma once

/*
 * Blocking TCPStore client. It speaks to PyTorch's server and to ours, with keys as PyTorch's client writes
 * them (a "/" in front). Unlike PyTorch's client it never waits without a deadline, and its caller can have
 * any wait broken off.
 *
 * Results of all calls: 0; -errno; or of client.h:
 *   CLIENT_E_TIMEOUT, CLIENT_E_INTERRUPTED   The connection stays usable; a late reply is dropped. Whether
 *                            the server did what was asked (or will, when the rest of a half-sent message
 *                            goes out with the next call) is not known, except that a wait changes nothing.
 *   CLIENT_E_CLOSED, CLIENT_E_PROTOCOL       The connection is closed; every later call returns CLIENT_E_CLOSED.
 *   -EMSGSIZE                a key or value above the limits of the protocol; nothing was sent
 * After any but 0, client_sock_error() is the sentence for the log.
 *
 * Spans that a call returns point into the client and are valid until the next call.
 * timeout_ms < 0 means the client's own timeout_ms.
 * Not for several threads at once: a wait in one would block the others; connect once for each.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/client.h"
#include "proto/wait_sock.h"

/* The call in progress: its end in time, and for the sentence if it fails. */
struct client_sock_call {
    enum wire_op op;
    struct wire_span key; /* as its caller names it; data NULL: none */
    int timeout_ms;
    int64_t deadline_ns;
};

struct client_sock {
    struct client machine;
    int fd; /* -1: not connected */
    int timeout_ms;
    int wake_fd;    /* readable: leaves the call in progress; -1: none. May be changed between calls */
    struct buf key; /* of the request in progress, with its "/" */
    struct client_sock_call call;
    char peer[128]; /* "host:port", for sentences */
    char error[512];
};

enum { CLIENT_SOCK_TIMEOUT_MS = 300000 };

/* Not connected, default time-out, no interrupt. */
void client_sock_init(struct client_sock *s);
void client_sock_finish(struct client_sock *s);

/*
 * Connects, sends VALIDATE and PING and checks the answer; retries what may pass (connection refused, name not
 * known yet, connection lost) with growing random pauses until timeout_ms has passed: CLIENT_E_TIMEOUT.
 */
int client_sock_connect(struct client_sock *s, const char *host, uint16_t port, int timeout_ms);

/* "" before the first failure. */
const char *client_sock_error(const struct client_sock *s);

/* A round trip: is the server there, and has it done what was asked before? */
int client_sock_ping(struct client_sock *s);

/* Sent when it returns, not yet carried out: that is sure after any call with a reply. */
int client_sock_set(struct client_sock *s, struct wire_span key, struct wire_span value);

/* Waits until the key exists. A key that is deleted in that moment reads as empty. */
int client_sock_get(struct client_sock *s, struct wire_span key, int timeout_ms, struct wire_span *ret_value);

/* The value is decimal text on the server; one that is not a number makes it close the connection. */
int client_sock_add(struct client_sock *s, struct wire_span key, int64_t amount, int64_t *ret_value);

int client_sock_delete(struct client_sock *s, struct wire_span key, bool *ret_deleted);

/*
 * An operation that is not above: client_sock_begin(), a request of client.h to s->machine, client_sock_exchange(),
 * the last two again if wanted, and in any case client_sock_end() with the first result that is not 0.
 */

/* The connection is there, and nothing from an earlier call is in the way. */
int client_sock_begin(struct client_sock *s, struct client_sock_call call);

/* Moves bytes both ways until the next reply is there, or, without ret_reply, until everything is sent and no reply
 * is due any more. */
int client_sock_exchange(struct client_sock *s, struct wire_reply *ret_reply);

/* Ends the current call with result r, which it returns: drops an unanswered request, or closes the connection if
 * the stream is out of step. */
int client_sock_end(struct client_sock *s, int r);
