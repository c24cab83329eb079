#pragma once

/*
 * The membership of this node in a job of several nodes: its session with the rendezvous, the rendezvous itself if it is
 * hosted here, and the worker store that this node offers for the next generation.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/rdzv/session_uv.h"
#include "rendezvous/session/session_message.h"

struct job;
struct job_keys;
struct membership;
struct metrics_text;
struct server;

struct membership_host {
    uv_loop_t *loop;
    const struct job *job;
    struct job_keys *keys; /* NULL: sessions are in the clear */
    /* The ranks of this node in a generation; store: the worker store if it is served here, the callee owns it. */
    void (*on_start)(void *data, uint32_t generation, int restarts, const struct rank_assignment *assignment,
                     struct server *store);
    /* Why a generation, or the job, has ended, or which node joined; before on_stop, on_start and on_end, and again when the
     * rendezvous has decided on another cause. */
    void (*on_cause)(void *data, const struct session_cause *cause);
    /* That generation has ended because of another node. */
    void (*on_stop)(void *data, const struct session_cause *cause);
    /* The same because the lease of this node ends: no worker may stay. NULL, as the next one: the job has no lease. */
    void (*on_fence)(void *data, const struct session_cause *cause);
    /* The lease of this node has ended its workers already. */
    void (*on_fenced)(void *data, const struct session_cause *cause);
    /* All nodes are to stop at a common point, for good. */
    void (*on_drain)(void *data);
    /* No worker of any node makes progress: after QUIET of all. NULL: not of interest. */
    void (*on_quiet)(void *data);
    /* This node is unfit, and the job needs it: its health check is to be repeated. */
    void (*on_check)(void *data);
    /* The job has ended; membership_print_end() prints how. cause: NULL if it is not known. */
    void (*on_end)(void *data, int exit_code, const struct session_cause *cause);
    /* After membership_destroy(): its handles are closed. */
    void (*on_closed)(void *data);
    void *data;
    struct session_listener listener; /* to the session, with data of its own */
};

/* Callbacks come from the loop. */
struct membership *membership_create(const struct membership_host *host);

/* The state of the workers of this node; see session.h. kept_port: of the store of the present
 * generation, if this node serves it and would for the next one too; 0: a new store is opened. keeps_keys: workers remain
 * that use the keys at the rendezvous on. */
void membership_ready(struct membership *n, uint16_t kept_port, bool keeps_keys);
/* No worker is left, and the health check failed. why: a part of a sentence. */
void membership_unfit(struct membership *n, const char *why);

/* What else the workers of this node have come to: GROUP_FAILED, GROUP_DONE, DRAIN or QUIET. */
void membership_report(struct membership *n, struct session_event event);

/* stop_signal: signal that is to stop the whole job; 0: the node leaves alone. */
void membership_leave(struct membership *n, const char *why, int stop_signal);

/* Frames for other agents (agent_message_json.h). False: without a connection they are lost. */
bool membership_send(struct membership *n, const struct buf *frames);

/* The notice to send if this process is killed while workers run; NULL: there is no connection. Valid until the next
 * call. */
const struct death_notice *membership_death_notice(struct membership *n);

/* Where the rendezvous is, as HOST:PORT. */
const char *membership_endpoint(const struct membership *n);

/* The other nodes and what they report, as frames (look_json.h). -ENOENT: the rendezvous is not served here. */
int membership_look(struct membership *n, struct buf *out);

/* The session, and the rendezvous where it is served here. */
void membership_write_metrics(const struct membership *n, struct metrics_text *m);

/* Prints how the job ended, the same on all nodes. */
void membership_print_end(struct membership *n);

/* Why this node is not in the job any more, as a sentence; NULL: the job has a result. In on_end() only. */
const char *membership_end_text(const struct membership *n);

/* Signal that has stopped the job on request of a node; 0: none. In on_end() only. */
int membership_stop_signal(const struct membership *n);

/* Ends it. A rendezvous that is hosted here stays until all nodes know how their job ended, for 10 s at most. NULL is fine. */
void membership_destroy(struct membership *n);

/* After membership_destroy(), before on_closed: end the wait for other nodes. */
void membership_hurry(struct membership *n);
