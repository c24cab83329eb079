#pragma once

/*
 * The rendezvous of a front, on an abstract unix socket. Agents reach the socket through their channels (front_streams_uv.h); no
 * port of the network is opened. With a secret every agent proves the job's key, as at any rendezvous.
 */

#include <uv.h>

struct front_server;
struct secret;

enum { FRONT_SERVER_ERROR_SIZE = 512 };

/* secret: without bytes the job is open; not needed afterwards. job: id of the job, outlives the server. 0, or -errno with a
 * sentence. */
int front_server_create(struct front_server **ret, uv_loop_t *loop, const struct secret *secret,
                        const char *job, char *const *environment, char error[FRONT_SERVER_ERROR_SIZE]);

/* A connection to the rendezvous, or -errno. -EAGAIN: too many at a time. */
int front_server_dial(const struct front_server *s);

/* Agents that have joined. NULL: 0. */
size_t front_server_n_nodes(const struct front_server *s);

/* At most n_nodes hosts can come: agents of so many need not wait for more. */
void front_server_expect(struct front_server *s, unsigned n_nodes);

/* Ends the job, also for agents that come later. why outlives the server. */
void front_server_end_job(struct front_server *s, const char *why);

/* Frees the server later, on the loop. NULL is fine. */
void front_server_stop(struct front_server *s);
