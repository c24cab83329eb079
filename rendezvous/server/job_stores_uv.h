#pragma once

/*
 * The keys of jobs' workers, where their nodes' stores forward to the rendezvous (--worker-store=local): for each job a store of its own,
 * from the generation that begins with it until the job ends or a generation begins with another one. Internal to the server.
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
 * Bounds: of one job as server_limits.job_store has it, and of all jobs together as server_limits.store. What is said here of
 * memory is counted by the store: names, values and waits.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct job_stores;
struct server;
struct tls_link;

/* Adds the service to a server with rounds. 0 or -ENOMEM. */
int job_stores_add(struct job_stores **ret, struct server *s);

/* Without a place among the services. 0 or -ENOMEM. */
int job_stores_create(struct job_stores **ret, struct server *s);

/* The present generation of this job has these keys. Others of the job are dropped. Without memory its nodes are refused. */
void job_stores_begin(void *stores, const char *job, uint64_t instance, uint32_t key_space);

/* The job has ended, or has no keys here any more. */
void job_stores_end(void *stores, const char *job, uint64_t instance);

/* This crund does not lead any more, and learns nothing of the jobs' ends. Nodes that are connected keep their keys; a store without nodes
 * ends at once, another one when all of its nodes are connected to others (relay_shell_uv.c: a node without connection is forgotten after a minute). */
void job_stores_orphan(void *stores);

/* Takes the socket and the link of a node that has proved the key, and the bytes that it has sent inside. */
void job_stores_adopt(void *stores, int fd, struct tls_link *tls, const struct buf *plain);

/* Stores whose memory is not freed yet. */
size_t job_stores_n_stores(const struct job_stores *j);

/* The verbs of the service: opens its handle, closes all connections, frees it when no handle of the server is open. */
void job_stores_start(void *j);
void job_stores_stop(void *j);
void job_stores_destroy(void *j);
