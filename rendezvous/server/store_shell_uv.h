#pragma once

/*
 * The store as a service: clients that are no agents. store_shell_uv.c has the service's life, deadlines and turns, peer_uv.c a
 * client. The requests are executed by a store here, or forwarded by a relay. Internal to the server.
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

struct store_shell {
    struct server *server;
    struct store store;        /* unused with a relay */
    struct store_relay *relay; /* NULL: requests are executed here */
    void (*relay_wake)(void *data);
    void *relay_data;
    struct outbox out; /* present replies; empty between two reads */
    uint64_t n_timed;  /* requests since the last look at the clock */
    struct list peers;
    struct input_shares input; /* held by incomplete messages */
    uint64_t output_bytes;     /* held by unread replies */
    struct deadlines greeting; /* peers before the end of VALIDATE */
    struct deadlines framing;  /* peers with an incomplete message */
    struct list unused;        /* peers after the greeting and before any request, the longest idle first */
    struct list busy;          /* peers with a request or a long message that goes on in a turn */
};

/* A client's connection. Under 1 KiB while idle: buffers exist only while bytes are pending.
 *
 * A uv_poll_t and not a stream: reads go into a shared buffer, replies leave in a single writev()
 * straight from the shared outbox or from stored values, and TCP and unix sockets are the same. */
struct peer {
    uv_poll_t poll;
    struct store_shell *shell;
    struct conn_owner owner;
    struct list link;         /* in store_shell.peers */
    struct deadline deadline; /* in store_shell.greeting or .framing */
    struct list busy_link;
    struct list unused_link;
    uint64_t greeted_ms;
    size_t frame_mark; /* size of the incomplete message when the deadline was set */
    union {
        struct store_client here;
        struct relay_client relayed;
    } client; /* relayed: with store_shell.relay */
    struct wire_scanner scanner;
    struct wire_request request; /* while request_size > 0: begun, or to begin; at the start of `in` */
    size_t request_size;
    struct buf in;     /* from the start of an incomplete or waiting message */
    struct outbox out; /* replies not yet taken by the socket */
    size_t charged_input;
    size_t charged_output;
    unsigned input_slot; /* of store_shell.input */
    int fd;
    uint8_t n_greeted; /* bytes of VALIDATE seen */
    uint8_t events;    /* UV_READABLE, UV_WRITABLE: polled for */
    bool for_agent;    /* accepted while connections were scarce */
    bool begun;        /* the request is to be continued */
    bool starved;      /* with `held`: the relay has to take the request first */
    bool held;         /* `in` has requests waiting: until replies are read, or for a turn */
    bool eof;          /* nothing more will come */
    bool reset;        /* the socket is broken; earlier input is still read */
    bool write_failed; /* output fails; earlier input still counts */
    bool closing;
};

/* Adds the service. 0 or -errno. */
int store_shell_add(struct server *s, const struct server_config *config);

/* The store of the server; always present. */
struct store_shell *store_shell_of(const struct server *s);

/* p is a client of the store, or of the relay, from now on; until it leaves. */
void store_shell_join(struct peer *p);
void store_shell_leave(struct peer *p);

/* Executes p->request (bytes at raw), or begins or continues p->request. As store_apply() or relay_apply(). */
int store_shell_apply(struct peer *p, const uint8_t *raw, struct outbox *out, struct store_budget *budget);

/* Sends the end of a wait owed to p ahead of any reply. */
void store_shell_settle(struct peer *p);

/* After requests were executed: releases waiting clients, a bounded part now and the rest in the next turns of the loop,
 * between other clients' requests, as with all work left over. */
void store_shell_work_off(struct store_shell *s);

/* Takes the socket. for_agent: anything but an agent's opening ends the connection. Returns 0 or -errno; fd is closed then. */
int peer_create(void *shell, int fd, const struct conn_owner *owner, bool for_agent);

/* The caller may not use p afterwards. */
void peer_close(struct peer *p);

/* The end of a wait. */
void peer_send_wait_stop(struct peer *p);

/* Takes a reply of the relay, which comes later than its request. With a failure p is closed. */
void peer_take_reply(struct peer *p);

/* Closes the peer idle for longest since its greeting, else the peer longest without a greeting, if a new connection with
 * `place` may have the room; false: no such peer. */
bool peers_make_room(void *shell, enum admission_place place);

/* Sends waiting replies and goes on with held requests, if possible now. */
void peer_continue(struct peer *p);

/* Reads once from p. True: p is closed now, or its deadline was extended or lifted. */
bool peer_catch_up(struct peer *p);

/* Reads p no more, and closes p as soon as the replies are sent. */
void peer_drain(struct peer *p);

/* A turn of the request that has waited longest. */
void peers_run_turn(struct store_shell *s);
