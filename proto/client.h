#pragma once

/*
 * The client's side of one TCPStore connection, without the connection: requests go in, bytes to send come
 * out; bytes that arrived go in, replies come out. The owner of the socket (client_sock.h, a libuv
 * loop) moves the bytes.
 *
 *     client_request(&c, &request);                -> send buf_bytes(&c.out), then buf_consume() what went
 *     buf_append(&c.in, ...);                      <- what arrived
 *     while (client_next(&c, &reply) == 0) ...
 *
 * Requests may be sent ahead of replies, with one exception: after WAIT and BARRIER, which may be answered
 * much later than what is asked after them, nothing but a cancel is possible until the answer is there.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "proto/wire.h"

/* Results of this module and of client_sock.h. */
enum {
    CLIENT_E_MORE = 1,    /* no complete reply is there yet */
    CLIENT_E_PROTOCOL,    /* the server sent what the protocol does not allow, or more than our limits */
    CLIENT_E_BUSY,        /* a WAIT or BARRIER is not answered yet */
    CLIENT_E_CLOSED,      /* the server closed the connection, or it broke */
    CLIENT_E_TIMEOUT,     /* the deadline passed */
    CLIENT_E_INTERRUPTED, /* the caller's interrupt was raised */
};

struct client {
    struct wire_limits limits; /* of replies */
    struct buf out;            /* to be sent; the owner consumes what is sent */
    struct buf in;             /* the owner appends what arrived */
    struct wire_scanner scanner;
    size_t taken;       /* bytes of `in` that the last reply points into, dropped by the next client_next() */
    struct buf pending; /* unanswered requests (struct client_pending), oldest first */
    bool waiting;       /* the youngest pending is a WAIT or BARRIER that is not cancelled */
    const char *error;  /* after CLIENT_E_PROTOCOL: what was wrong, a constant part of a sentence */
    uint64_t error_value;
};

void client_init(struct client *c);
void client_finish(struct client *c);

/*
 * Requests. Each appends one message to c->out and, if it is answered, remembers to expect that. 0,
 * -ENOMEM, CLIENT_E_BUSY or CLIENT_E_PROTOCOL (the stream was given up); nothing happened unless 0.
 */
int client_request(struct client *c, const struct wire_request *request); /* not CANCEL_WAIT */
int client_keys(struct client *c, enum wire_op op, const struct wire_span *keys, size_t n_keys);

/*
 * Gives up the WAIT or BARRIER that is not answered yet. It still gets its reply: number is
 * WIRE_WAIT_CANCELED, or WIRE_WAIT_STOP when the release crossed the cancel on its way. Other requests may
 * follow at once. Without one that waits, nothing happens. 0 or -ENOMEM.
 */
int client_cancel(struct client *c);

/* Abandons all requests so far: their replies are dropped as they arrive, and a pending WAIT is
 * cancelled. The connection stays usable. 0 or -ENOMEM (then nothing happened). */
int client_abandon(struct client *c);

/* Replies that will still come out of client_next() or be dropped by it. */
size_t client_n_pending(const struct client *c);

/*
 * The next reply. 0: *ret_reply is set and points into c->in, valid until the next call of anything here
 * or until c->in changes. CLIENT_E_MORE: see c->scanner.need for how many bytes of `in` it takes at least.
 * CLIENT_E_PROTOCOL: also for bytes that answer nothing; final.
 */
int client_next(struct client *c, struct wire_reply *ret_reply);
