#pragma once

/*
 * The keys of jobs' workers, where their nodes' stores forward to the rendezvous (--worker-store=local): for each job a store of its own,
 * from the generation that begins with it until the job ends or a generation begins with another one. Internal to the server. Functions
 * with a `struct job_stores *` take NULL where no agents are served, and then do nothing.
 *
 *   generation formed (rounds)  -> job_stores_begin(): an empty store, or the one of the generation before
 *   agent's START               -> its node's store connects, proves the job's key, names job, instance and key space
 *   requests                    -> relay_node.h -> the store
 *   job closed or forgotten     -> job_stores_end(): the connections are closed, the memory is freed
 *
 * A store also ends when this process has ceased to lead and no node uses it any more, unless it leads again and a generation begins with
 * it.
 *
 * So a store never outlives what it was made for, and a node of another job, of an earlier run of this id or of a generation that had
 * other keys gets none of it. Nothing is saved: a rendezvous that was started again has no keys, refuses the nodes that had some,
 * and their workers' connections end.
 *
 * With replicas a store that the backup lacks is copied to it (replica_state.h), one store at a time; what that costs is there. A turn
 * of the loop writes some pieces, and no further ones while 256 KiB wait for the socket.
 *
 * Bounds: of one job as server_limits.job_store has it, and of all jobs together as server_limits.store. What is said here of
 * memory is counted by the store: names, values and waits.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct buf;
struct job_stores;
struct replica_begin;
struct rounds_job;
struct server;
struct tls_link;

/* 0 or -ENOMEM. */
int job_stores_create(struct job_stores **ret, struct server *s);

/* The present generation of this job has these keys. Others of the job are dropped. Without memory its nodes are refused. */
void job_stores_begin(struct job_stores *j, const char *job, uint64_t instance, uint32_t key_space);

/* The job has ended, or has no keys here any more. */
void job_stores_end(struct job_stores *j, const char *job, uint64_t instance);

/* This crund does not lead any more, and learns nothing of the jobs' ends. Nodes that are connected keep their keys; a store without nodes
 * ends at once, another one when all of its nodes are connected to others (relay_shell_uv.c: a node without connection is forgotten after a minute). */
void job_stores_orphan(struct job_stores *j);

/*
 * With replicas (replica_uv.h). The calls follow what is saved of a job (rounds_keys_uv.h): a store is served when it is saved which
 * crunds have its keys, and not while that may change.
 */

/* Whether the job's store waits for that; *ret_backup: the id of the crund that has its keys, too; 0: none. */
bool job_stores_is_marked(struct job_stores *j, const struct rounds_job *job, uint64_t *ret_backup);

/* It is saved with this mark (rounds_state_uv.h). */
void job_stores_set_mark(struct job_stores *j, const struct rounds_job *job, uint64_t mark);

/* Everything up to this mark is saved. */
void job_stores_saved(struct job_stores *j, uint64_t done);

/* The backup is lost. Stores whose keys it has wait until that is saved; true: there are some. */
bool job_stores_lose_backup(struct job_stores *j, bool leads);

/* This crund leads from now on, and has that id: may it serve the keys of the job, by what is saved? */
bool job_stores_serve(struct job_stores *j, const struct rounds_job *job, uint64_t id);

/* Behind those calls for all jobs: ends the stores of which another crund has, or had, the last state. */
void job_stores_end_rest(struct job_stores *j);

/* There is a backup: a store that it does not have is copied to it. Called again and again. */
void job_stores_want_copies(struct job_stores *j);

/* The copies that this crund has as a backup. 0, -EPROTO or -ENOMEM: it is none any more. */
int job_stores_copy_begin(struct job_stores *j, uint64_t number, const struct replica_begin *begin);
int job_stores_copy_state(struct job_stores *j, uint64_t number, struct wire_span piece);
int job_stores_copy_entry(struct job_stores *j, uint64_t number, struct wire_span entry);
void job_stores_copy_end(struct job_stores *j, uint64_t number);
void job_stores_confirm_copies(struct job_stores *j);

/* What follows is from another crund, or another connection: copies from before may be served, but are not continued. */
void job_stores_age_copies(struct job_stores *j);

/* Drops copies from before. */
void job_stores_drop_copies(struct job_stores *j);

/* Are there keys that this crund is to serve if it leads? Not copies that job_stores_age_copies() has found. */
bool job_stores_have_keys(const struct job_stores *j);

/* The backup has n entries of that store; how many more than before. */
uint64_t job_stores_confirm(struct job_stores *j, uint64_t number, uint64_t n);

/* Takes the socket and the link of a node that has proved the key, and the bytes that it has sent inside. */
void job_stores_adopt(struct job_stores *j, int fd, struct tls_link *tls, const struct buf *plain);

/* Releases clients whose waits are over, up to max of each store. */
void job_stores_release(struct job_stores *j, unsigned max);

/* Has a store work for another turn? */
bool job_stores_are_busy(const struct job_stores *j);

/* One turn of the store that has waited longest for one. */
void job_stores_run_turn(struct job_stores *j);

/* Stores whose memory is not freed yet, and the bytes of all. */
size_t job_stores_n_stores(const struct job_stores *j);
uint64_t job_stores_n_bytes(const struct job_stores *j);

/* Closes all connections. */
void job_stores_stop(struct job_stores *j);

/* When all handles of the server are closed. */
void job_stores_destroy(struct job_stores *j);
