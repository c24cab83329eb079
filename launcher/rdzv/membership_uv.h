#pragma once

/*
 * One node among several: its session with the rendezvous, the rendezvous itself if it is hosted here, and
 * the worker store that this node offers for the next generation.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "rendezvous/session_message.h"

struct job;
struct last_word;
struct nodes;
struct server;

struct nodes_host {
    uv_loop_t *loop;
    const struct job *job;
    /* A place in a generation; *store is the worker store if it is served here, and the callee's then. */
    void (*on_start)(void *data, uint32_t generation, int restarts, const struct session_place *place,
                     struct server *store);
    /* That generation is over, because of something elsewhere. */
    void (*on_stop)(void *data, const struct session_cause *cause);
    /* All nodes are to stop at a common point, for good. */
    void (*on_drain)(void *data);
    /* The job is over, as nodes_tell_end() will say. cause: NULL if it is not known. */
    void (*on_end)(void *data, int exit_code, const struct session_cause *cause);
    /* After nodes_destroy(): it has freed itself. */
    void (*on_gone)(void *data);
    void *data;
};

/* 0 or -errno, with a sentence said. Calls back from within the loop. */
int nodes_create(struct nodes **ret, const struct nodes_host *host);

/* What became of the workers here; see session.h. A failure's time is monotonic. */
void nodes_ready(struct nodes *n);
void nodes_failed(struct nodes *n, const struct session_cause *cause, uint64_t when_ns);
void nodes_done(struct nodes *n);
void nodes_leave(struct nodes *n, const char *why);

/* This node has to go away, and the job cannot go on without it: it should stop as a whole. */
void nodes_drain(struct nodes *n);

/* What is to be said if this process is killed while workers run; NULL: nothing can be. Valid until the next
 * call. */
const struct last_word *nodes_last_word(struct nodes *n);

/* Says how the job ended, the same on all nodes. */
void nodes_tell_end(struct nodes *n);

/* Ends it. A rendezvous that is hosted here stays until all nodes have heard how the job ended, for 10 s at
 * most. Frees itself. NULL is fine. */
void nodes_destroy(struct nodes *n);

/* After nodes_destroy(), before on_gone: do not wait for anybody. */
void nodes_hurry(struct nodes *n);
