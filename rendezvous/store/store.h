#pragma once

/*
 * The store: keys with values, counters, queues, and clients that wait for names. One request in, its
 * reply out, and a list of other clients whose wait is over.
 *
 * The semantics are those of PyTorch 2.13's TCPStore, without its defects (proto/PROTOCOL.md lists the
 * differences). Keys and queues are separate name spaces that share CHECK and WAIT.
 *
 * A request that needs much work is executed in turns: store_apply() returns STORE_MORE when its budget is used up, and
 * is called again with the same request. Other clients' requests may be executed in between; PROTOCOL.md has what they
 * can see of it. Work that follows from a request but that no reply waits for, as freeing what a client left
 * behind, is store_clean()'s.
 *
 * Pure: no sockets, clock, log or randomness. The same seed and the same requests give the same replies
 * in the same order.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "proto/wire.h"
#include "rendezvous/store/blob.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/store/store_keys.h"
#include "rendezvous/store/store_table.h"

struct store_client;
struct store_values;
struct store_wait;

/* Results of store_apply(): the request was refused and the client's stream cannot be continued, since
 * the wire has no error reply. store_error() has the words. */
enum {
    STORE_E_NUMBER = 1, /* ADD or BARRIER on a value that is no number */
    STORE_E_VALIDATED,  /* VALIDATE on a validated connection */
    STORE_E_KEYS,       /* limits.keys_max, or the owner's share of it */
    STORE_E_BYTES,      /* limits.bytes_max, or the owner's share of it */
    STORE_E_WAITERS,    /* limits.waiters_max */
    STORE_E_LISTING,    /* LIST_KEYS: see STORE_GHOSTS_MAX */
    STORE_E_COUNT
};

/* Result of store_apply(): the request is not finished. */
enum { STORE_MORE = 100 };

/* A unit of work takes up to half a microsecond: a name is looked up, a waiter is released, or this many bytes are
 * copied. */
enum { STORE_UNIT_BYTES = 2048, STORE_TURN_UNITS = 2048 };

/* What one call of store_apply() may do. A request whose names can all be looked up in one turn is looked up in one,
 * so that it sees one state of the store: if fewer units are left, it is not begun. */
struct store_budget {
    uint64_t units;    /* left in this turn; counted down */
    uint64_t turn;     /* what a whole turn has */
    size_t output_max; /* a reply is not continued while the outbox holds that much */
};

#define STORE_BUDGET_NONE                                                                                    \
    (struct store_budget)                                                                                    \
    {                                                                                                        \
        .units = UINT64_MAX, .turn = UINT64_MAX, .output_max = SIZE_MAX                                      \
    }

struct store_limits {
    uint64_t keys_max;
    uint64_t bytes_max;   /* everything that clients can make the store hold: names, values, waits */
    uint64_t waiters_max; /* clients that wait for one name */
};

#define STORE_LIMITS_DEFAULT                                                                                 \
    {                                                                                                        \
        .keys_max = 10000000, .bytes_max = UINT64_C(4) << 30, .waiters_max = 1000000                         \
    }

struct store {
    struct store_limits limits;
    struct store_table names;
    struct blob_account account;
    uint64_t n_keys;
    uint64_t n_waiting;   /* clients */
    uint64_t last_number; /* of creations, deaths and listings of keys, and of links of waits */
    struct list keys;     /* of struct store_key, ascending by number */
    struct list listings; /* of struct store_listing */
    struct list ghosts;   /* see store_keys.c */
    uint64_t ghost_bytes;
    struct store_wait
        *dropped; /* waits of clients that do not wait any more: store_clean() takes them apart */
    /* Of struct store_client.released: clients other than the caller whose wait ended. Each is owed one
     * byte, WIRE_WAIT_STOP, ahead of any later reply. The shell takes them off. */
    struct list released;
    /* A client with `relayed` was released for an item of this queue; store_wait_again() may be called from within. */
    void (*on_promise)(struct store_client *client);
};

/* A request that was begun. Which fields are used, and in which order, is its operation's. */
struct store_task {
    bool active;
    bool counted;               /* the head of the reply is out, or all names were looked up */
    uint8_t n_restarts;         /* COMPARE_SET: the value changed while it was compared */
    size_t offset;              /* into wire_request.items: walked so far */
    size_t n_done;              /* bytes of `fresh` copied, or of `seen` compared; values sent */
    struct store_entry *waking; /* was written: its waiters are being released. Pinned. */
    uint64_t wake_until;        /* links of waits with a lower number */
    int64_t number;             /* ADD: its reply */
    struct blob *fresh;         /* own reference: the value that will be stored, or was */
    struct blob *seen;          /* own reference: the value that is being compared */
    size_t seen_size;
    struct store_values *values;
    struct store_listing listing;
};

/* What the store keeps for each client; embedded in the shell's connection. */
struct store_client {
    struct store_wait *wait;
    struct store_entry
        *promised; /* the queue whose push ended its wait; until it pops, or turns to something else */
    struct list released;
    bool relayed;   /* of a node's store: see relay_node_release() */
    uint16_t owner; /* see store_share.h; set after store_client_init() */
    struct store_task task;
};

/* Returns 0 or -ENOMEM. The seed keys the hash of names: random bytes where untrusted clients connect. */
int store_init(struct store *s, const struct store_limits *limits, const uint8_t seed[SIPHASH_SEED_SIZE]);

/* Owners with a number below n have a share each from now on, which is before the first request. Returns 0 or -ENOMEM. */
int store_share_out(struct store *s, unsigned n);

/* All clients must be finished and all outboxes, too. Accepts a zeroed store. */
void store_finish(struct store *s);

void store_client_init(struct store_client *c);

/* The client left: forgets its wait and the rest of a request that was begun. May release others: see store.released. */
void store_client_finish(struct store *s, struct store_client *c);

/*
 * Executes one request (anything wire_decode() gives) and appends its reply to out. Returns 0,
 * -ENOMEM or STORE_E_...; then no reply is owed and the client should be cut off. A refused request
 * changed nothing, except MULTI_SET, whose pairs ahead of the refused one are stored.
 *
 * STORE_MORE: the budget is used up, or the reply has to be read first. To be called again with the same request
 * before any other of this client; the bytes behind it may have moved. The reply may be continued in another outbox.
 */
int store_apply(struct store *s, struct store_client *c, const struct wire_request *request,
                struct outbox *out, struct store_budget *budget);

/* The client, which waits for nothing, waits for the queue that another client was promised an item of: for a further item.
 * 0, -ENOMEM or STORE_E_... */
int store_wait_again(struct store *s, struct store_client *c, const struct store_client *promised);

/* Of the names that the client waits for the first that is missing, and their number; 0: it does not wait. The name is valid until
 * the store is called again. */
size_t store_waits_for(const struct store_client *c, struct wire_span *ret_name);

/* The request that was begun is over, or is not continued. What was written is released to waiters in any case. */
void store_client_give_up(struct store *s, struct store_client *c);

/* Drops what no client can reach any more, for about that many units. False when nothing is left to drop. */
bool store_clean(struct store *s, uint64_t units);

/* The operation changes nothing: it need not be executed when its reply cannot be sent. */
bool store_only_reads(enum wire_op op);

/* False for reads, and for requests that waiting clients repeat again and again. */
bool store_may_change_a_key(const struct wire_request *request);

/* A sentence part for the log. result: what store_apply() returned, not 0. */
const char *store_error(int result);
