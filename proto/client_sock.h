#pragma once

/*
 * Blocking TCPStore client. It speaks to PyTorch's server and to ours, with keys as PyTorch's client writes
 * them (a "/" in front). Unlike PyTorch's client it never waits without a deadline, and its caller can have
 * any wait broken off.
 *
 * Results of all calls: 0; -errno; or of client.h:
 *   CLIENT_E_TIMEOUT, CLIENT_E_INTERRUPTED   The connection stays usable; a late reply is dropped. Whether
 *                            the server did what was asked (or will, when the rest of a half-sent message
 *                            goes out with the next call) is not known, except that a wait changes nothing
 *                            (and an arrival at a barrier stays counted).
 *   CLIENT_E_CLOSED, CLIENT_E_PROTOCOL       The connection is closed; every later call returns CLIENT_E_CLOSED.
 *   CLIENT_E_EMPTY           from client_sock_queue_pop() only
 *   -EMSGSIZE                a key, value or list above the limits of the protocol; nothing was sent
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

/* What the call in progress is about: its end in time, and for the sentence if it fails. */
struct client_sock_call {
    enum wire_op op;
    struct wire_span key; /* the first one */
    size_t n_keys;
    int timeout_ms;
    int64_t deadline_ns;
};

struct client_sock {
    struct client machine;
    int fd; /* -1: not connected */
    int timeout_ms;
    struct wire_limits limits;       /* of requests */
    struct sock_interrupt interrupt; /* may be changed between calls */
    struct buf keys;                 /* the keys of the request in progress, each with its "/" */
    struct client_sock_call call;
    char peer[128]; /* "host:port", for sentences */
    char error[512];
};

enum { CLIENT_SOCK_TIMEOUT_MS = 300000 };

/* Not connected, default limits and time-out, no interrupt. */
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

/* Counts this client at the key "init/" as PyTorch's client with a world size does at its start. */
int client_sock_join(struct client_sock *s, int64_t *ret_n_joined);

/* Sent when it returns, not yet carried out: that is sure after any call with a reply. */
int client_sock_set(struct client_sock *s, struct wire_span key, struct wire_span value);
int client_sock_append(struct client_sock *s, struct wire_span key, struct wire_span value);
int client_sock_multi_set(struct client_sock *s, const struct wire_span *keys, const struct wire_span *values,
                          size_t n_pairs);

/* Waits until the key exists. A key that is deleted in that moment reads as empty. */
int client_sock_get(struct client_sock *s, struct wire_span key, int timeout_ms, struct wire_span *ret_value);
/* ret_values: n_keys of them. Waits until all exist. */
int client_sock_multi_get(struct client_sock *s, const struct wire_span *keys, size_t n_keys, int timeout_ms,
                          struct wire_span *ret_values);
int client_sock_wait(struct client_sock *s, const struct wire_span *keys, size_t n_keys, int timeout_ms);
int client_sock_check(struct client_sock *s, const struct wire_span *keys, size_t n_keys, bool *ret_all);

/* The value is decimal text on the server; one that is not a number makes it close the connection. */
int client_sock_add(struct client_sock *s, struct wire_span key, int64_t amount, int64_t *ret_value);

/*
 * Stores desired if the value is expected, or if the key is missing and expected is empty. *ret_value is
 * then desired; else the value that is there; or expected, when it is not empty and the key is missing.
 */
int client_sock_compare_set(struct client_sock *s, struct wire_span key, struct wire_span expected,
                            struct wire_span desired, struct wire_span *ret_value);

int client_sock_delete(struct client_sock *s, struct wire_span key, bool *ret_deleted);
int client_sock_num_keys(struct client_sock *s, int64_t *ret_n_keys);

/* All keys, in no order. Walk them with client_sock_next_key(), which leaves out the ones without "/"
 * (no client can name them) and takes the "/" off the others. */
int client_sock_list_keys(struct client_sock *s, struct wire_span *ret_list);
bool client_sock_next_key(struct wire_span *list, struct wire_span *ret_key);

int client_sock_queue_push(struct client_sock *s, struct wire_span key, struct wire_span value);
/* timeout_ms 0: does not wait. CLIENT_E_EMPTY: nothing there; with a time-out, that another client was
 * faster, or that a key of that name exists, which ends the wait as well. */
int client_sock_queue_pop(struct client_sock *s, struct wire_span key, int timeout_ms,
                          struct wire_span *ret_value);
int client_sock_queue_len(struct client_sock *s, struct wire_span key, int64_t *ret_len);

/* Returns when world_size calls with this key have been made, by whomever. A key serves once. */
int client_sock_barrier(struct client_sock *s, struct wire_span key, int64_t world_size, int timeout_ms);
