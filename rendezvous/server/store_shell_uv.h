#pragma once

/*
 * The store as a service: clients that are no agents. store_shell_uv.c has its life, deadlines and turns, peer_uv.c one client. What
 * executes the requests is behind struct store_backend: a store here (store_here_uv.c), or a relay that forwards them
 * (store_relayed_uv.c). Internal to the server.
 */

#include "base/buf.h"
#include "rendezvous/relay/relay.h"
#include "rendezvous/server/input_shares.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_stats.h"

/* Bytes of VALIDATE: type and magic. */
enum { HANDSHAKE_SIZE = 5 };

struct peer;

/* Verbs that may be NULL: is_owed, settle. */
struct store_backend {
    void *self;
    void (*join)(void *self, struct peer *p);
    void (*leave)(void *self, struct peer *p);
    /* Executes p->request, whose bytes are at raw, or begins or continues it. As store_apply() or relay_apply(). */
    int (*apply)(void *self, struct peer *p, const uint8_t *raw, struct outbox *out,
                 struct store_budget *budget);
    bool (*is_owed)(const struct peer *p);
    /* Sends what p is owed ahead of any reply. */
    void (*settle)(struct peer *p);
    /* After requests were executed: ends up to max waits. */
    void (*release)(void *self, unsigned max);
    void (*run_turn)(void *self);
    bool (*is_busy)(void *self);
    void (*destroy)(void *self);
};

struct store_shell {
    struct server *server;
    struct store_backend backend;
    struct outbox out; /* what is being answered; empty between two reads */
    uint64_t n_timed;  /* requests since the clock was looked at */
    struct list peers;
    struct input_shares input; /* held by incomplete messages */
    uint64_t output_bytes;     /* held by replies that were not read */
    struct list greeting;      /* peers before the end of VALIDATE, oldest first */
    struct list framing;       /* peers with an incomplete message, oldest first */
    struct list unused;        /* peers that have greeted and requested nothing yet, the longest idle first */
    struct list busy;          /* peers whose request goes on, or whose long message is read on, in a turn */
    uv_timer_t deadline_timer;
    uint64_t deadline_ms; /* when the timer is set to fire */
};

/* A client's connection. Under 1 KiB while idle: buffers exist only while bytes are pending.
 *
 * It is a uv_poll_t and not a stream: reads go into one shared buffer, replies leave in one writev()
 * straight from the shared outbox or from stored values, and TCP and unix sockets are the same. */
struct peer {
    uv_poll_t poll;
    struct store_shell *shell;
    struct conn_owner owner;
    struct list link;          /* in store_shell.peers */
    struct list deadline_link; /* in store_shell.greeting or .framing */
    struct list busy_link;
    struct list unused_link;
    uint64_t greeted_ms;
    uint64_t deadline_ms;
    size_t frame_mark; /* size of the incomplete message when its deadline was set */
    union {
        struct store_client here;
        struct relay_client relayed;
    } client; /* the backend's */
    struct wire_scanner scanner;
    struct wire_request
        request; /* while request_size > 0: begun, or to begin; its bytes are the first of `in` */
    size_t request_size;
    struct buf in;     /* from the start of a message that is incomplete or has to wait */
    struct outbox out; /* what the socket did not take yet */
    size_t charged_input;
    size_t charged_output;
    unsigned input_slot; /* of store_shell.input */
    int fd;
    uint8_t n_greeted; /* bytes of VALIDATE seen */
    uint8_t events;    /* what is polled for */
    bool for_agent;    /* connections were scarce when it was accepted */
    bool begun;        /* its request is to be continued */
    bool starved;      /* with `held`: the relay has to take the request first */
    bool held;         /* `in` has requests that wait: until replies were read, or for a turn */
    bool eof;          /* nothing more will come */
    bool reset;        /* the socket is broken; what arrived before that is still read */
    bool write_failed; /* the client cannot be written to; what it sent before still counts */
    bool closing;
};

/* Adds the service, which owns the backend, also when it fails. 0 or -ENOMEM. */
int store_shell_add(struct server *s, const struct store_backend *backend);

/* The backends: a store of its own, and config.relay. 0 or -errno. */
int store_here_create(struct store_backend *ret, struct server *s);
int store_relayed_create(struct store_backend *ret, struct server *s, const struct server_config *config);

/* The store of that server; it has one. */
struct store_shell *store_shell_of(const struct server *s);

/* Puts p at the end of the list with that time from now; later than all others there. */
void store_shell_set_deadline(struct store_shell *s, struct peer *p, struct list *list, unsigned timeout_ms);

/* After requests were executed: releases waiting clients, a bounded part of them now and the rest in the next turns of
 * the loop, between other clients' requests, as all that is left to do. */
void store_shell_work_off(struct store_shell *s);

/* Takes the socket. for_agent: anything but an agent's opening ends it. Returns 0 or -errno; fd is closed then. */
int peer_create(void *shell, int fd, const struct conn_owner *owner, bool for_agent);

/* Nothing of p may be used by the caller after this. */
void peer_close(struct peer *p);

/* The end of a wait. */
void peer_send_wait_stop(struct peer *p);

/* A reply that comes later than its request; it is cleared. failure: not 0, as of store_backend.apply: p is closed. */
void peer_take_reply(struct peer *p, struct buf *reply, int failure, enum wire_op failed_op);

/* Closes the peer that has been idle for longest since its greeting, else the one that has not greeted for longest, if a new
 * connection with that place may have its room; false: there is none. */
bool peers_make_room(void *shell, enum admission_place place);

/* Sends what waits and goes on with requests that were held back, if that is possible now. */
void peer_continue(struct peer *p);

/* Reads once what p sent, if anything is there. True: p is closed now, or has its deadline behind it. */
bool peer_catch_up(struct peer *p);

/* Closes p as soon as its replies are sent; it is not read any more. */
void peer_drain(struct peer *p);

/* One turn of the request that has waited longest for one. */
void peers_run_turn(struct store_shell *s);
