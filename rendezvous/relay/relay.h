#pragma once

/*
 * A node's side of a store that is served on the node and kept elsewhere: it takes the requests of local clients, forwards
 * them over one link (relay_link.h), and gives each client its replies.
 *
 *   local clients                    this node                       the server (relay_node.h)
 *   WAIT k, WAIT k, WAIT k      ->   one WAIT k                  ->
 *                                                                <-  reply
 *   three replies               <-
 *   ADD k 1                     ->   ADD k 1                     ->
 *   ADD k 1, ADD k 1            ->   (kept until the reply comes)
 *                                                                <-  17
 *   17                          <-   ADD k 2                     ->
 *                                                                <-  19
 *   18, 19                      <-
 *
 * Order: the server executes requests in the order in which this node has taken them. A client has at most one request
 * with a reply under way, beside a WAIT or BARRIER; its later requests have to wait (RELAY_LATER). Requests without a reply
 * are followed at once by the next, up to a bound.
 *
 * A WAIT for one name joins one that waits for it, and is released with it: even if the name was written in the round trip
 * before it came, and, if a BARRIER has begun on the name meanwhile, when that is complete. An item of a queue releases one client; the others wait on, behind clients of other nodes.
 *
 * Pure: no sockets, no clock. Ways it fails: memory is out, the server breaks the rules, or relay_fail(): all clients are
 * then to be closed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "proto/wire.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/relay/relay_link.h"
#include "base/siphash.h"

enum { RELAY_BUCKETS = 256 };

/* Result of relay_apply(): to be called again with the same request when the client is in relay.ready. */
enum { RELAY_LATER = 200 };

struct relay_member;

struct store_relay {
    struct relay_link link;
    uint8_t seed[SIPHASH_SEED_SIZE];
    uint64_t last_id;
    struct list by_id[RELAY_BUCKETS];  /* of struct relay_call: under way */
    struct list by_key[RELAY_BUCKETS]; /* of struct relay_call: WAIT and ADD that others may join */
    struct list held;                  /* of struct relay_call: gathered, behind the long request */
    struct list ready;                 /* of struct relay_client: see relay_next_ready() */
    struct list starved;               /* of struct relay_client.ready: until the link has room */
    struct buf text;                   /* a request that is being encoded */
    struct relay_client *streaming;    /* of which a part of a long request was forwarded */
    bool failed;
    uint64_t n_sent; /* requests so far that were forwarded: fewer than were taken */
};

/* What the relay keeps for each client; embedded in the shell's connection. */
struct relay_client {
    struct list ready;          /* in relay.ready or relay.starved */
    struct list members;        /* of struct relay_member.of_client: its requests under way */
    struct relay_member *asked; /* the one with a reply, WAIT and BARRIER apart */
    struct relay_member *waits; /* WAIT or BARRIER */
    unsigned n_silent;          /* those without a reply */
    uint64_t promise;           /* the wait at the server that holds a queue's item for it; 0: none */
    struct buf reply;           /* for the shell to send, ahead of any later reply */
    int failure;                /* not 0: it is to be closed; as of store_apply() */
    enum wire_op failed_op;     /* of which request */
    size_t offset;              /* bytes of a long request that were forwarded */
};

void relay_init(struct store_relay *r, const uint8_t seed[SIPHASH_SEED_SIZE]);

/* All clients must be finished. */
void relay_finish(struct store_relay *r);

void relay_client_init(struct relay_client *c);

/* The client left. What it has requested is executed. */
void relay_client_finish(struct store_relay *r, struct relay_client *c);

/* Something is under way for which a reply is owed, WAIT and BARRIER apart. */
static inline bool relay_client_is_owed(const struct relay_client *c)
{
    return c->asked || buf_size(&c->reply) > 0;
}

/*
 * Takes one request (anything wire_decode() gives) with its n bytes at raw. Replies that are known are appended to out, the
 * others come by relay_next_ready(). Returns 0, RELAY_LATER, or an error as store_apply(): the client is to be closed.
 */
int relay_apply(struct store_relay *r, struct relay_client *c, const struct wire_request *request,
                const uint8_t *raw, size_t n, struct outbox *out);

/* A client for which something has come, taken off the list: c->reply, c->failure, or its request that had to wait may be given
 * again. NULL: there is none. */
struct relay_client *relay_next_ready(struct store_relay *r);

/* The server's hello came: see relay_link_resume(). -EPROTO: the relay has failed. */
int relay_resume(struct store_relay *r, uint64_t arrived);

/* Takes bytes of the link's connection. 0, -EPROTO or -ENOMEM: the relay has failed. */
int relay_receive(struct store_relay *r, const uint8_t *data, size_t n);

/* The server cannot be reached any more: every client fails. */
void relay_fail(struct store_relay *r);
