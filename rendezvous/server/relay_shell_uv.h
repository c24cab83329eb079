#pragma once

/*
 * Nodes whose stores forward to one store of this server: see relay_shell_uv.c. Internal to the server.
 */

#include <stdbool.h>

#include "rendezvous/relay/relay_link.h"

struct buf;
struct relay_shell;
struct server;
struct store;
struct store_client;
struct tls_link;

struct relay_shell_config {
    struct server *server;
    struct store *store; /* NULL: connections come here first, and go on to another shell by find() */
    /* The shell of the keys that a node asks for; NULL: it may not have them, or they are not kept here. */
    struct relay_shell *(*find)(void *data, const struct tls_link *tls, const struct relay_space *space);
    void (*worked)(
        void *data); /* requests were executed, or clients left: there may be work; NULL: not of interest */
    void (*closed)(void *data); /* after relay_shell_stop(): no handle is left */
    void *data;
};

/* 0 or -ENOMEM. One that was not started may be freed by free(). */
int relay_shell_create(struct relay_shell **ret, const struct relay_shell_config *config);

/* Opens its handle. */
void relay_shell_start(struct relay_shell *h);

/* Takes the socket and the link of a node that has proved the key, and the bytes that it has sent inside. 0 or -errno; fd is
 * closed and the link freed then. */
int relay_conn_adopt(struct relay_shell *h, int fd, struct tls_link *tls, const struct buf *plain);

/* A client of a node was released. */
void relay_shell_release(struct relay_shell *h, struct store_client *c);

/* Sends what was queued by releases. */
void relay_shell_flush(struct relay_shell *h);

/* Is there a node, or a connection that may become one? */
bool relay_shell_has_nodes(const struct relay_shell *h);

/* Has a node requests for another turn? */
bool relay_shell_is_busy(const struct relay_shell *h);

/* One turn of the node that has waited longest for one. */
void relay_shell_run_turn(struct relay_shell *h);

/* Closes all connections, forgets all nodes, and closes the timer. It frees itself after closed(). */
void relay_shell_stop(struct relay_shell *h);
