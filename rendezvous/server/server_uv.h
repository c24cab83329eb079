#pragma once

/*
 * The store behind sockets: accepts TCPStore clients on a libuv loop and lets the store core answer them.
 * If it was asked to, it serves the rounds to agents on the same ports.
 *
 * One server = one store instance (one key space) with any number of listeners. crund runs one for its
 * life; crun runs one for each generation of a job, and one with rounds when it hosts the rendezvous.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "rendezvous/server/server_limits.h"

struct metrics_text;
struct store_relay;
struct server;
struct server_rounds;
struct server_security;
struct store_stats;
struct tls_context;

struct server_config {
    /* NULL: agents are not served; their opening is a broken message to the store. Copied. */
    const struct server_rounds *rounds;
    const struct server_limits *limits;     /* NULL: defaults. Copied. */
    const struct server_security *security; /* NULL: agents need no secret. Copied. */
    /* Receives one line (no newline) for each client that was refused or cut off; at most a few a second,
     * the rest is counted. NULL: no log. */
    void (*log)(void *data, const char *line);
    void *log_data;
    struct store_stats *stats; /* counts its requests; outlives the server. NULL: nothing is counted. */
    /* Requests are forwarded (relay.h) instead of executed; it outlives the server's clients, that is server_stop(). After
     * requests were taken relay_wake() is called: something may have to be sent. NULL: executed here. */
    struct store_relay *relay;
    void (*relay_wake)(void *data);
    void *relay_data;
};

/*
 * Binds and listens: host is a numeric address ("127.0.0.1", "::1", "::" for dual stack, "0.0.0.0"); port 0
 * takes a free one, returned in *ret_port. The port is held from here until server_stop(). "::" on a host
 * without IPv6 means "0.0.0.0". Returns 0 or -errno (-EADDRINUSE, -EADDRNOTAVAIL, -EINVAL for a host that
 * is not numeric, ...).
 */
int server_listen_tcp(struct server *s, const char *host, uint16_t port, uint16_t *ret_port);

/* A socket that listens as those of server_listen_tcp(), for the caller. 0 or -errno. */
int server_open_tcp(const char *host, uint16_t port, int *ret_fd, uint16_t *ret_port);

/* Whether TCP connections to that numeric address, at the port of the listeners, arrive here. */
bool server_listens_at(const struct server *s, const char *host);

/* Listens on a unix socket; a stale socket file without a listener behind it is replaced. The file is
 * removed when the server stops. Returns 0 or -errno (-EADDRINUSE: another process listens there). */
int server_listen_unix(struct server *s, const char *path);

/* After bytes for config.relay came, or it has failed: clients are given their replies, or closed. */
void server_serve_relayed(struct server *s);

/* Connections that are open, those of agents included. */
unsigned server_n_clients(const struct server *s);

/* Requests so far that may have changed a key: not those that only read or wait. */
uint64_t server_n_changes(const struct server *s);

/* A client over TCP that waits for n_keys keys of the store; host: in numbers, of the client's end. */
typedef void server_wait_fn(void *data, const char *host, uint16_t port, struct wire_span key, size_t n_keys);

/* Calls visit() with each client that waits now, at most n of them. With none in a server that forwards requests. */
void server_visit_waits(const struct server *s, size_t n, server_wait_fn *visit, void *data);

/* Connections, sessions, jobs and nodes of the rounds. */
void server_write_metrics(const struct server *s, struct metrics_text *m);

/* Connections from now on get this one of tls_context_server_certified(); the server becomes another owner. Only where it was created
 * with one. */
void server_use_certificates(struct server *s, struct tls_context *certified);

/* A socket that listens already (systemd's); the server owns it on success. *ret_port: of TCP; 0: a unix socket. 0 or -errno. */
int server_listen_fd(struct server *s, int fd, uint16_t *ret_port);

/* A connected socket, as if a listener had accepted the connection; the server owns the socket. */
void server_adopt(struct server *s, int fd);

/*
 * Closes listeners and clients. The server frees itself when the last handle is closed and then calls
 * stopped (may be NULL). Do not use s after this call. NULL for s is fine.
 */
void server_stop(struct server *s, void (*stopped)(void *data), void *data);

/*
 * The same, but replies that wait to be read are sent first, for timeout_ms at most. No further request is
 * executed. Queued views are sent to agents; their jobs are not ended by this: they go on without a
 * rendezvous and redial it for a while (session.h).
 */
void server_drain(struct server *s, unsigned timeout_ms, void (*stopped)(void *data), void *data);
