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
struct death_notice;
struct membership;
struct server;

struct membership_host {
    uv_loop_t *loop;
    const struct job *job;
    /* A place in a generation; *store is the worker store if it is served here, and the callee's then. */
    void (*on_start)(void *data, uint32_t generation, int restarts, const struct rank_assignment *place,
                     struct server *store);
    /* That generation is over, because of something elsewhere. */
    void (*on_stop)(void *data, const struct session_cause *cause);
    /* All nodes are to stop at a common point, for good. */
    void (*on_drain)(void *data);
    /* The job is over, as membership_tell_end() will say. cause: NULL if it is not known. */
    void (*on_end)(void *data, int exit_code, const struct session_cause *cause);
    /* After membership_destroy(): it has freed itself. */
    void (*on_gone)(void *data);
    void *data;
};

/* 0 or -errno, with a sentence said. Calls back from within the loop. */
int membership_create(struct membership **ret, const struct membership_host *host);

/* What became of the workers here; see session.h. A failure's time is monotonic. */
void membership_ready(struct membership *n);
void membership_failed(struct membership *n, const struct session_cause *cause, uint64_t when_ns);
void membership_done(struct membership *n);
void membership_leave(struct membership *n, const char *why);

/* This node has to go away, and the job cannot go on without it: it should stop as a whole. */
void membership_drain(struct membership *n);

/* What is to be said if this process is killed while workers run; NULL: nothing can be. Valid until the next
 * call. */
const struct death_notice *membership_death_notice(struct membership *n);

/* Says how the job ended, the same on all nodes. */
void membership_tell_end(struct membership *n);

/* Ends it. A rendezvous that is hosted here stays until all nodes have heard how the job ended, for 10 s at
 * most. Frees itself. NULL is fine. */
void membership_destroy(struct membership *n);

/* After membership_destroy(), before on_gone: do not wait for anybody. */
void membership_hurry(struct membership *n);
