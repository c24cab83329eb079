#pragma once

/*
 * Connections between crunds for replicas of the keys of jobs (crund --store-replicas=2, with --state=etcd://...). Internal to the
 * server; see replica_uv.c. Functions with a `struct replica_shell *` take NULL where there are no replicas, and then do nothing.
 */

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

struct buf;
struct replica_begin;
struct replica_shell;
struct server;
struct tls_link;

/* id: of this process, as saved. 0 or -ENOMEM. It has a handle of the server. */
int replica_shell_create(struct replica_shell **ret, struct server *s, uint64_t id);

/* Where the crund is that leads, HOST:PORT, numeric; "": it is not known. leads: it is this one. */
void replica_shell_follow(struct replica_shell *h, const char *address, bool leads);

/* The leader is lost: another crund may have all the keys that this one lacks, and is to be the first to take over. */
bool replica_shell_defers(const struct replica_shell *h);

/* This crund leads from now on: those that follow it are sent so. */
void replica_shell_lead(struct replica_shell *h);

/* ---- the crund that serves ---- */

/* Takes the socket and the link of a crund that has proved the key, and the bytes that it has sent inside. */
void replica_shell_adopt(struct replica_shell *h, int fd, struct tls_link *tls, const struct buf *plain);

/* The id of the backup; 0: there is none. */
uint64_t replica_shell_backup(const struct replica_shell *h);

/* To the backup, when it is flushed. False: it is not sent; the backup is about to be lost. */
bool replica_shell_send_begin(struct replica_shell *h, uint64_t number, const struct replica_begin *begin);
bool replica_shell_send_state(struct replica_shell *h, uint64_t number, struct wire_span piece);
void replica_shell_send_entry(struct replica_shell *h, uint64_t number, struct wire_span entry);
/* n_unconfirmed: entries that nothing waits for any more. */
void replica_shell_send_end(struct replica_shell *h, uint64_t number, uint64_t n_unconfirmed);
void replica_shell_flush(struct replica_shell *h);

/* May pieces of a state be sent? So few are on their way that entries behind them do not wait long. */
bool replica_shell_has_room(const struct replica_shell *h);

/* ---- the backup ---- */

/* It has that many entries of the store. */
void replica_shell_confirm(struct replica_shell *h, uint64_t number, uint64_t n);

/* It is the backup no more. */
void replica_shell_leave(struct replica_shell *h);

/* ---- life ---- */

/* Closes all connections. */
void replica_shell_stop(struct replica_shell *h);

/* When all handles of the server are closed. */
void replica_shell_destroy(struct replica_shell *h);
