#pragma once

/*
 * The rendezvous of a front. Agents reach the rendezvous through their channels (front_streams_uv.h): no other process can
 * connect but those of the own user and of root: crunctl, on an abstract unix socket.
 */

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct front_server;
struct secret;

/* secret: not needed afterwards. admits: agents prove nothing; else they prove the job's key, if the secret has bytes. job: id of the
 * job, outlives the server. 0, or -errno after a sentence. */
int front_server_create(struct front_server **ret, uv_loop_t *loop, const struct secret *secret, bool admits,
                        const char *job, char *const *environment);

/* A connection: a socket for the caller, or -errno. */
int front_server_dial(const struct front_server *s);

/* Agents that have joined. NULL: 0. */
size_t front_server_n_nodes(const struct front_server *s);

/* At most n_nodes hosts can come: agents of so many need not wait for more. */
void front_server_expect(struct front_server *s, unsigned n_nodes);

/* Ends the job, also for agents that come later. why outlives the server. */
void front_server_end_job(struct front_server *s, const char *why);

/* Frees the server later, on the loop. NULL is fine. */
void front_server_stop(struct front_server *s);
