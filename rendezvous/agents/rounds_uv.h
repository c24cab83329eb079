#pragma once

/*
 * The rounds inside the server. rounds_uv.c is the shell around the core: makes events and carries out actions.
 * rounds_agent_uv.c is the connection of an agent, rounds_disk_uv.c the state on disk, behind rounds_state_uv.h.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "base/list.h"
#include "proto/frame.h"
#include "rendezvous/server/admission.h"
#include "rendezvous/agents/handshake_turns.h"
#include "rendezvous/server/log_tokens.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/agents/server_rounds.h"

struct rounds_state;
struct tls_link;

/* The keeper of the keys of jobs' workers (job_stores_uv.h). */
struct rounds_keys {
    /* The present generation of the job has the keys of key_space alone. */
    void (*begin)(void *data, const char *job, uint64_t instance, uint32_t key_space);
    void (*end)(void *data, const char *job, uint64_t instance);
    /* The process does not lead any more, and learns nothing of the ends of jobs. */
    void (*orphan)(void *data);
    /* Takes the connection of a node with a proved key, and the decrypted bytes already received. */
    void (*adopt)(void *data, int fd, struct tls_link *tls, const struct buf *plain);
    void *data; /* NULL: no keys are kept */
};

/* Bound of the output not read by an agent. A view is a few hundred bytes; an agent with more unread output is hung or
 * hostile, and gets its present view after reconnecting. */
enum { AGENT_CONN_OUTPUT_MAX = 64 * 1024 };

/* Behind so many bytes the answer to a look ends with the current node. */
enum { LOOK_ANSWER_MAX = 256 * 1024 };

struct rounds_shell {
    struct server *server;
    struct rounds core;
    struct rounds_state *state; /* rounds_state_uv.h; NULL: nothing is kept */
    struct rounds_keys keys;
    struct server_rounds config;
    struct log_tokens log_tokens;

    struct list agents;
    /* Connections without a hello, with an incomplete frame, or being shut down. */
    struct deadlines pending_hello;
    size_t status_bytes;               /* of the agents' reports for looks */
    struct list holding;               /* agents with held frames */
    struct list unsent;                /* agents with output for the end of the step */
    struct handshake_turns handshakes; /* agents amid their TLS handshake */
    uv_timer_t timer;
    uv_check_t check; /* active: the timer is due, once all sockets are read */
    uv_idle_t idle;   /* beside it, so that the loop does not sleep first */

    /* The last view other than START: the same view goes to many agents. */
    struct session_view last_view;
    struct buf last_view_frame;

    const char *closed_for; /* reason for which each later job ends at once; NULL: jobs may begin */
    bool was_populated;     /* there was a node after the last step */
    bool leads;             /* false: another crund may, and the core is empty */
    bool over;              /* the core is not asked any more */
};

/* An agent's connection. A few hundred bytes while idle: buffers exist only while bytes are pending. */
struct agent_conn {
    uv_poll_t poll;
    struct server *server;
    struct rounds_shell *shell;
    uint64_t owner;           /* conn_owner.h */
    struct list link;         /* in rounds_shell.agents */
    struct deadline deadline; /* in rounds_shell.pending_hello */
    struct list unsent_link;  /* in rounds_shell.unsent */
    struct rounds_conn session;
    struct frame_reader reader;
    struct buf in;         /* the start of an incomplete frame; with TLS, bytes read before the first turn */
    struct buf out;        /* output not yet taken by the socket */
    struct list held_link; /* of rounds_shell.holding, while frames are held */
    struct buf held;       /* frames to send when the job's state is on disk */
    uint64_t held_mark;    /* mark of that state */
    size_t charged_input;
    struct tls_link *tls;  /* NULL: the agent speaks in the clear */
    struct list handshake; /* in a queue of rounds_shell.handshakes: not read until its turn comes */
    struct buf wire;       /* with TLS: records not yet taken by the socket */
    /* rounds_look_uv.c: the agent's reports of its workers, as whole frames. */
    struct buf status, status_begun;
    uint64_t status_ms, watched_until_ms, stacks_again_ms;
    uint32_t n_pieces; /* in status_begun */
    bool can_report;
    int fd;
    uint8_t events;     /* UV_READABLE, UV_WRITABLE: polled for */
    bool tls_finished;  /* the notice of the end is in wire */
    bool shutting_down; /* no further output, and input is discarded */
    bool shut;          /* leaving, and everything is sent */
    bool write_failed;  /* output fails; input received before still counts */
    bool eof;           /* the agent has closed its end */
    bool closing;
};

/* ---- rounds_service_uv.c ---- */

/* Adds the service. 0 or -errno; a sentence was logged. */
int rounds_shell_add(struct server *s, const struct server_rounds *config);

/* The rounds of the server; NULL: no rounds. */
struct rounds_shell *rounds_shell_of(const struct server *s);

/* ---- rounds_uv.c ---- */

/* 0 or -errno. The state is opened, and its jobs are loaded, by the caller. */
int rounds_shell_create(struct rounds_shell **ret, struct server *s, const struct server_rounds *config);

/* Verbs of the service. */
void rounds_shell_start(void *shell);
void rounds_shell_drain(void *shell);
void rounds_shell_stop(void *shell);
void rounds_shell_destroy(void *shell);

/* Fills in the event's time, steps the core with the event, and runs the actions. When the last node has
 * left, the server may be stopped from within, and all agents closed; none is freed before the loop turns. */
void rounds_shell_step(struct rounds_shell *r, struct rounds_event *event);

/* Gives the keeper of the keys of jobs' workers, for jobs whose agents want a keeper. */
void rounds_shell_keep_keys(struct rounds_shell *r, const struct rounds_keys *keys);

/* Sends output queued for agents outside of a step. */
void rounds_shell_flush(struct rounds_shell *r);

/* A line for the log about the rounds. */
void rounds_log(struct rounds_shell *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Releases held frames up to the mark on disk, also after a failed save. */
void rounds_shell_saved(struct rounds_shell *r);

/* Before the state marks a batch as complete or given up: the time of the batch is not charged to jobs (rounds_postpone()). */
void rounds_shell_postpone(struct rounds_shell *r);

/* For a state shared by several crunds (rounds_state_uv.h). lead: the own crund leads from here on, with the saved state.
 * depose: the own crund leads no more; all agents are closed, and their held frames are dropped. Not from within a step. */
void rounds_shell_lead(struct rounds_shell *r);
void rounds_shell_depose(struct rounds_shell *r);

/* ---- rounds_agent_uv.c ---- */

/* A client recognized as an agent: server_service.adopt. */
void agent_conn_adopt(void *shell, int fd, const struct conn_owner *owner, struct buf *bytes);

/* Queues a frame for the end of the step; mark: not before the mark is on disk, 0: at once. An agent that does not read, or
 * without memory for the frame, is cut off: the agent gets its view after reconnecting. */
void agent_conn_send(struct agent_conn *a, const struct buf *frame, uint64_t mark);
/* Bytes of output not yet taken by the socket, held frames among them. */
size_t agent_conn_unread(const struct agent_conn *a);
void agent_conn_send_alive(struct agent_conn *a);
/* The answer to a renewal of a lease. */
void agent_conn_send_renewed(struct agent_conn *a, uint32_t number);
void agent_conn_cut(struct agent_conn *a);

/* Goes on with TLS handshakes for a millisecond, of each address in turn. */
void agents_shake_hands(void *shell);
bool agents_wait_for_handshakes(void *shell);

/* Sends as much as the socket takes. */
void agent_conn_flush(struct agent_conn *a);
/* Frames held until `mark` may go out. */
void agent_conn_release(struct agent_conn *a, uint64_t mark);
/* Sends queued output, shuts our end, and closes once the agent has closed its end. */
void agent_conn_shutdown(struct agent_conn *a);
/* Closes the connection that has been without a hello for longest, if a new connection with `place` may have the room; false:
 * no such connection. */
bool agents_make_room(void *shell, enum admission_place place);
/* Closes the connection and steps the core with ROUNDS_DISCONNECTED. a is freed when the loop has turned. */
void agent_conn_close(struct agent_conn *a);

/* The connection of d has had its time. */
void agent_conn_expire(struct deadline *d);

/* ---- rounds_metrics_uv.c ---- */

void rounds_shell_write_metrics(const void *shell, struct metrics_text *m);
void rounds_shell_write_job_metrics(const struct rounds_shell *r, struct metrics_text *m);
