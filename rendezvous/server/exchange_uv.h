#pragma once

/*
 * Connections of agents that ask for the secret of their job by a credential (proto/key_exchange.h): one request, one reply,
 * the end. What the server's process knows of credentials stands behind struct server_exchange.
 *
 * Ways it fails: other bytes, no whole request in time, no answer in time, more than EXCHANGES_MAX at once, or more than
 * EXCHANGES_EACH_MAX of one address: the connection is closed, and the agent dials again.
 */

#include <stdbool.h>
#include <stddef.h>

#include "proto/key_exchange.h"
#include "rendezvous/server/server_security.h"

struct buf;
struct conn_owner;
struct exchange_conn;
struct exchange_shell;
struct server;

/* Answers a request, from the loop, and ends its connection. Not for a request that was cancelled. */
void exchange_conn_reply(struct exchange_conn *c, enum key_exchange_code code, const char *credential,
                         size_t n);

/* ---- inside the server; a shell of NULL is fine ---- */

/* 0 or -errno. Its timer is a handle of the server from here on. */
int exchange_shell_create(struct exchange_shell **ret, struct server *s);

/* Takes the socket of a client that turned out to be such an agent, and the bytes that it has sent. */
void exchange_conn_adopt(struct exchange_shell *e, int fd, const struct conn_owner *owner, struct buf *said);

/* Closes all connections. */
void exchange_shell_drain(struct exchange_shell *e);

/* The same, and the timer. */
void exchange_shell_stop(struct exchange_shell *e);

/* When all handles of the server are closed. */
void exchange_shell_destroy(struct exchange_shell *e);
