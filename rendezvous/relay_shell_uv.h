#pragma once

/*
 * Nodes whose stores forward to this server: see relay_shell_uv.c. Internal to the server. All functions take a shell that is
 * NULL where nodes are not served, and then do nothing.
 */

#include <stdbool.h>

struct buf;
struct relay_shell;
struct server;
struct store_client;
struct tls_link;

/* 0 or -ENOMEM. */
int relay_shell_create(struct relay_shell **ret, struct server *s);

/* Its timer is a handle of the server from here on. */
void relay_shell_start(struct relay_shell *h);

/* Takes the socket and the link of a node that has proved the key, and the bytes that it has sent inside. 0 or -errno; fd is
 * closed and the link freed then. */
int relay_conn_adopt(struct relay_shell *h, int fd, struct tls_link *tls, const struct buf *plain);

/* A client of a node was released (store_client.relayed). */
void relay_shell_release(struct relay_shell *h, struct store_client *c);

/* Sends what was queued by releases. */
void relay_shell_flush(struct relay_shell *h);

/* Has a node requests for another turn? */
bool relay_shell_is_busy(const struct relay_shell *h);

/* One turn of the node that has waited longest for one. */
void relay_shell_run_turn(struct relay_shell *h);

/* Closes all connections, forgets all nodes, and closes the timer. */
void relay_shell_stop(struct relay_shell *h);

/* Before relay_shell_start(), or when all handles of the server are closed. */
void relay_shell_destroy(struct relay_shell *h);
