#pragma once

/*
 * The session machine (rendezvous/session/session.h) on a libuv loop: it connects, sends and receives by itself, and passes
 * actions about workers and messages for the user to its host.
 */

#include <uv.h>

#include "launcher/rdzv/resolver_uv.h"
#include "rendezvous/session/session.h"

struct buf;
struct death_notice;
struct job_endpoint;
struct session_uv;
struct tls_context;

/* What a session passes on beside its actions. Each member may be NULL. */
struct session_listener {
    /* The end of the lease has changed: session_lease_end(), by boot_ns(). */
    void (*on_lease)(void *data, uint64_t end_ns);
    /* Appends the status of this node as frames (look_json.h): while the job is looked at, once in LOOK_PERIOD_MS. NULL: this
     * node reports none. */
    void (*report)(void *data, struct buf *out);
    /* The status is to have the stacks of the job, when they have been taken. With report. */
    void (*take_stacks)(void *data);
    /* session_report.cut_from of the present workers. */
    uint32_t (*find_cut)(void *data);
    /* The body of a message of another agent (agent_message_json.h). NULL: this node understands none. */
    void (*on_agent_message)(void *data, const uint8_t *body, size_t n);
    void *data;
};

struct session_uv_host {
    uv_loop_t *loop;
    /* Those behind the first are other rendezvous with the same state, which are tried in turn. They live as long as the session. */
    const struct job_endpoint *endpoints;
    size_t n_endpoints;
    const struct resolver_addresses *
        addresses; /* of the first endpoint; needed for the call only. With several endpoints there may be none yet */
    struct tls_context *tls; /* NULL: the session is in the clear. Outlives the session. */
    /* START, STOP, FENCE, DRAIN, QUIET, PROGRESS, LOG, END. view: of START, QUIET and PROGRESS, valid during the call. The
     * session may be stepped and destroyed from within. */
    void (*on_action)(void *data, enum session_action action, const struct session_view *view);
    void *data; /* for on_action */
    struct session_listener listener;
};

/* Starts at once. The config's endpoint text must live as long. */
void session_uv_create(struct session_uv **ret, const struct session_uv_host *host,
                       const struct session_config *config);

/* An event of the worker group; its time is set here, and when_ns is by now_ns(). The machine itself runs by boot_ns(), as a
 * lease goes on while this host is suspended. */
void session_uv_step(struct session_uv *s, struct session_event event);

/* Sends frames that are not about this node's state (agent_message_json.h). Without a connection they are lost. */
void session_uv_send(struct session_uv *s, const struct buf *frames);

/* The address of the rendezvous at the other end of the present connection, as one address. False: there is none now. */
bool session_uv_peer(const struct session_uv *s, struct resolver_addresses *ret);

const struct session *session_uv_machine(const struct session_uv *s);

/* The notice to send to the rendezvous if this process is killed. False: there is no connection now. */
bool session_uv_death_notice(const struct session_uv *s, struct death_notice *ret);

/* Queued bytes are still sent. NULL is fine. */
void session_uv_destroy(struct session_uv *s);
