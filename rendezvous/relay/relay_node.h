#pragma once

/*
 * The server's side of one node whose clients' requests are forwarded (relay.h): executes them on the store, in the order
 * in which they came, and replies over the link. A node lives longer than its connections.
 *
 * Waits do not hold up what follows: each is a client of the store by itself, until it is released or forgotten, or, when a
 * queue's item was kept for it, until the item is popped.
 *
 * Bounds: a reply goes on when the node has acknowledged what was sent (RELAY_WINDOW); a request is at most as long as the
 * wire's limits; RELAY_NODE_WAITS_MAX waits.
 *
 * Pure. Failure: memory is out or the node breaks the rules; its link is then to be given up. A request that the store
 * refuses is answered with RELAY_FAILED.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "proto/wire.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/relay/relay_link.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_stats.h"

enum { RELAY_NODE_WAITS_MAX = 100000 };

/* Results of relay_node_run(). */
enum {
    RELAY_NODE_IDLE = 0, /* all that came is executed, or the node has to acknowledge first */
    RELAY_NODE_TURN,     /* the budget is used up */
};

struct relay_wait;

struct relay_node {
    struct relay_link link;
    struct store *store;
    struct wire_limits limits;
    struct store_client client; /* of requests that do not wait */
    struct list waits;          /* of struct relay_wait */
    unsigned n_waits;
    uint64_t last_promise;

    struct buf message; /* the request that is being received or executed */
    struct wire_scanner scanner;
    struct wire_request request;
    struct relay_wait *wait; /* the client of that request; NULL: `client` */
    uint64_t id;
    struct outbox out; /* its reply, not in frames yet */
    enum { RELAY_RECEIVING, RELAY_EXECUTING, RELAY_REPLYING } stage;
    bool broken; /* memory was out */
    bool finishing;
    struct store_stats
        *stats; /* counts the requests; NULL: they are not counted. Set after relay_node_init() */
    uint64_t n_changes;
};

void relay_node_init(struct relay_node *n, struct store *s, const struct wire_limits *limits);

/* The node left for good. May release other clients: see store.released. */
void relay_node_finish(struct relay_node *n);

/* Executes requests that came. RELAY_NODE_..., -EPROTO or -ENOMEM. */
int relay_node_run(struct relay_node *n, struct store_budget *budget);

/* A client of the store whose store_client.relayed is set was released: its node is told, and returned. It may have left
 * store.released by the caller. -ENOMEM is found by the next relay_node_run(). */
struct relay_node *relay_node_release(struct store_client *c);
