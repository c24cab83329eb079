#pragma once

/*
 * The keys of jobs' workers, where the stores of nodes forward to the rendezvous (--worker-store=local). Each job has its own
 * store, from the first generation with the store until the end of the job, or until a generation begins with another store.
 * Internal to the server.
 *
 *   generation formed (rounds)  -> job_stores_begin(): an empty store, or the store of the generation before
 *   agent's START               -> the node's store connects, proves the job's key, names job, instance and key space
 *   requests                    -> relay_node.h -> the store
 *   job closed or forgotten     -> job_stores_end(): the store ends behind the connections of its nodes
 *
 * A store also ends when the process has ceased to lead and no node uses the store any more, unless the process leads again
 * and a generation begins with the store.
 *
 * So a store never outlives its purpose, and gives nothing to a node of another job, of an earlier run of the job's id, or of
 * a generation with other keys. Nothing is saved: a rendezvous started again has no keys and refuses nodes with keys, and the
 * connections of the nodes' workers end.
 *
 * Bounds: server_limits.job_store for a job, and server_limits.store for all jobs together. The store counts the memory:
 * names, values and waits.
 */

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct job_stores;
struct server;
struct tls_link;

/* Adds the service to a server with rounds. 0 or -ENOMEM. */
int job_stores_add(struct job_stores **ret, struct server *s);

/* The present generation of the job has the keys of key_space. Other keys of the job are dropped. Without memory the nodes of
 * the job are refused. */
void job_stores_begin(void *stores, const char *job, uint64_t instance, uint32_t key_space);

/* The job has ended. Workers may still save their state: connected nodes keep their keys, as with job_stores_orphan(). */
void job_stores_end(void *stores, const char *job, uint64_t instance);

/* The crund leads no more, and learns nothing of the ends of jobs. Connected nodes keep their keys. A store without nodes ends
 * at once, any other store when all of its nodes are connected elsewhere (a node is forgotten a minute after its
 * connection). */
void job_stores_orphan(void *stores);

/* Takes the socket and the link of a node with a proved key (NULL: a private server), and the decrypted bytes already received. */
void job_stores_adopt(void *stores, int fd, struct tls_link *tls, const struct buf *plain);
