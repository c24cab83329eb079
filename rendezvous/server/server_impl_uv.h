#pragma once

/*
 * Internal to the server: what server_uv.c (life, deadlines, log), listener_uv.c (accepting), peer_uv.c
 * (one client) and the rounds' files (rounds_uv.h) share. No other file includes this.
 */

#include <limits.h>
#include <stdbool.h>
#include <uv.h>

#include "base/buf.h"
#include "base/list.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server/address_quota.h"
#include "rendezvous/server/admission.h"
#include "rendezvous/server/conn_owner.h"
#include "rendezvous/server/input_shares.h"
#include "rendezvous/server/log_tokens.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/relay/relay.h"
#include "rendezvous/server/server_security.h"
#include "rendezvous/server/server_uv.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_stats.h"

/* Bytes of VALIDATE: type and magic. */
enum { HANDSHAKE_SIZE = 5 };

/* One read. Large enough for a pipelining client's batch, small enough to be fair to the others. */
enum { SCRATCH_SIZE = 64 * 1024 };

struct rounds_shell;

struct server {
    uv_loop_t *loop;
    struct server_limits limits;
    struct rounds_shell *rounds; /* NULL: agents are not served */
    struct server_security security;
    struct fence_shell *fence;     /* NULL: clients come from anywhere */
    struct job_stores *job_stores; /* keys of jobs' workers; NULL: none are kept */
    struct store_relay *relay;     /* NULL: requests are executed here; else forwarded */
    void (*relay_wake)(void *data);
    void *relay_data;
    struct tls_context *tls;          /* NULL: agents need no secret */
    struct exchange_shell *exchanges; /* NULL: no agent gets the secret here */
    int diag;                         /* see client_owner_os.h; -1: not opened */
    bool no_diag;                     /* the kernel has none */
    void (*log)(void *data, const char *line);
    void *log_data;
    struct log_tokens log_tokens;
    struct store_stats *stats; /* NULL: nothing is counted */
    uint64_t n_timed;          /* requests since the clock was looked at */

    struct store store;
    uint8_t *scratch;  /* what is being read */
    struct outbox out; /* what is being answered; empty between two reads */

    uint64_t n_changes; /* requests that may have changed a key */
    struct list peers;
    unsigned n_peers;          /* connections: these, and agents */
    struct input_shares input; /* held by incomplete messages */
    uint64_t output_bytes;     /* held by replies that were not read */
    struct list greeting;      /* peers before the end of VALIDATE, oldest first */
    struct list framing;       /* peers with an incomplete message, oldest first */
    struct list unused;        /* peers that have greeted and requested nothing yet, the longest idle first */
    struct list busy;          /* peers whose request goes on, or whose long message is read on, in a turn */
    uv_timer_t deadline_timer;
    uint64_t deadline_ms; /* when the timer is set to fire */
    uv_idle_t rest_idle;  /* active while work was left for the next turn of the loop */

    struct list listeners;
    int reserve_fds; /* left free for the process around us */
    struct admission admission;
    struct address_quota quota;
    bool accept_paused;
    uv_timer_t accept_timer;

    unsigned n_handles;    /* not closed yet */
    unsigned peak_handles; /* the most since memory was given back */
    bool stopping;
    bool draining;
    uv_timer_t drain_timer;
    void (*stopped)(void *data);
    void *stopped_data;
};

/* A client's connection. Under 1 KiB while idle: buffers exist only while bytes are pending.
 *
 * It is a uv_poll_t and not a stream: reads go into one shared buffer, replies leave in one writev()
 * straight from the shared outbox or from stored values, and TCP and unix sockets are the same. */
struct peer {
    uv_poll_t poll;
    struct server *server;
    struct conn_owner owner;
    struct list link;          /* in server.peers */
    struct list deadline_link; /* in server.greeting or server.framing */
    struct list busy_link;
    struct list unused_link;
    uint64_t greeted_ms;
    uint64_t deadline_ms;
    size_t frame_mark; /* size of the incomplete message when its deadline was set */
    struct store_client client;
    struct relay_client relayed; /* with server.relay */
    struct wire_scanner scanner;
    struct wire_request
        request; /* while request_size > 0: begun, or to begin; its bytes are the first of `in` */
    size_t request_size;
    struct buf in;     /* from the start of a message that is incomplete or has to wait */
    struct outbox out; /* what the socket did not take yet */
    size_t charged_input;
    size_t charged_output;
    unsigned input_slot; /* of server.input */
    int fd;
    uint8_t n_greeted; /* bytes of VALIDATE seen */
    uint8_t events;    /* what is polled for */
    bool for_agent;    /* connections were scarce when it was accepted */
    bool starved;      /* with `held`: the relay has to take the request first */
    bool held;         /* `in` has requests that wait: until replies were read, or for a turn */
    bool eof;          /* nothing more will come */
    bool reset;        /* the socket is broken; what arrived before that is still read */
    bool write_failed; /* the client cannot be written to; what it sent before still counts */
    bool closing;
};

/* "client 10.0.0.1:4711" */
void server_format_peer(int fd, char *text, size_t n);

/* What a connection's demands count for: its peer's network (proto/address.h). */
uint64_t server_network_of(int fd);

/* An option to be named in a message; "" in a store of crun, which has none for its limits. */
static inline const char *server_option(const struct server *s, const char *option)
{
    return s->limits.connections_max < UINT_MAX ? option : "";
}

/* A line for the log about one client (or NULL: about the server). */
void server_log(struct server *s, const struct peer *p, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts p at the end of the list with that time from now; later than all others there. */
void server_set_deadline(struct server *s, struct peer *p, struct list *list, unsigned timeout_ms);

/* Every handle of the server is counted from its init to its close callback. */
void server_handle_opened(struct server *s);
void server_handle_closed(struct server *s);

/* After requests were executed: releases waiting clients, a bounded part of them now and the rest in the next turns of
 * the loop, between other clients' requests, as all that is left to do. */
void server_work_off(struct server *s);

/* Work was left for the next turn of the loop. */
void server_want_turn(struct server *s);

/* Calls run(data), in a thread if it would take long: it frees a store that had n_names. */
void server_free_beside_the_loop(void (*run)(void *data), void *data, uint64_t n_names);

/* A peer or agent went away; fd was closed. */
void server_peer_gone(struct server *s, int fd);

void listeners_pause(struct server *s, const char *why);
void listeners_resume(struct server *s);
void listeners_close(struct server *s);

/* Takes the socket. for_agent: anything but an agent's opening ends it. Returns 0 or -errno; fd is closed then. */
int peer_create(struct server *s, int fd, const struct conn_owner *owner, bool for_agent);

/* Nothing of p may be used by the caller after this. */
void peer_close(struct peer *p);

/* Gives clients what the relay has for them. */
void peers_serve_relayed(struct server *s);

/* Closes the peer that has been idle for longest since its greeting, else the one that has not greeted for longest, if a new
 * connection with that place may have its room; false: there is none. */
bool peers_make_room(struct server *s, enum admission_place place);

/* Sends what waits and goes on with requests that were held back, if that is possible now. */
void peer_continue(struct peer *p);

/* Reads once what p sent, if anything is there. True: p is closed now, or has its deadline behind it. */
bool peer_catch_up(struct peer *p);

/* Closes p as soon as its replies are sent; it is not read any more. */
void peer_drain(struct peer *p);

/* Notifies up to `max` clients that their wait is over. */
void peers_release(struct server *s, unsigned max);

/* One turn of the request that has waited longest for one. */
void peers_run_turn(struct server *s);
