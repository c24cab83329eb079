#pragma once

/*
 * The store: keys with values, counters, queues, and clients that wait for names. One request in, its
 * reply out, and a list of other clients whose wait is over.
 *
 * The semantics are those of PyTorch 2.13's TCPStore, without its defects (proto/PROTOCOL.md lists the
 * differences). Keys and queues are separate name spaces that share CHECK and WAIT.
 *
 * Pure: no sockets, clock, log or randomness. The same seed and the same requests give the same replies
 * in the same order.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "proto/wire.h"
#include "rendezvous/blob.h"
#include "rendezvous/store_table.h"
#include "rendezvous/outbox.h"

struct store_entry;
struct store_wait;

/* Results of store_apply(): the request was refused and the client's stream cannot be continued, since
 * the wire has no error reply. store_error() has the words. */
enum {
    STORE_E_NUMBER = 1, /* ADD or BARRIER on a value that is no number */
    STORE_E_VALIDATED,  /* VALIDATE on a validated connection */
    STORE_E_KEYS,       /* limits.keys_max */
    STORE_E_BYTES,      /* limits.bytes_max */
    STORE_E_WAITERS,    /* limits.waiters_max */
    STORE_E_COUNT
};

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
    uint64_t n_waiting; /* clients */
    /* Of struct store_client.released: clients other than the caller whose wait ended. Each is owed one
     * byte, WIRE_WAIT_STOP, ahead of any later reply. The shell takes them off. */
    struct list released;
};

/* What the store keeps for each client; embedded in the shell's connection. */
struct store_client {
    struct store_wait *wait;
    struct store_entry
        *promised; /* the queue whose push ended its wait; until it pops, or turns to something else */
    struct list released;
};

/* Returns 0 or -ENOMEM. The seed keys the hash of names: random bytes where untrusted clients connect. */
int store_init(struct store *s, const struct store_limits *limits, const uint8_t seed[SIPHASH_SEED_SIZE]);

/* All clients must be finished and all outboxes, too. Accepts a zeroed store. */
void store_finish(struct store *s);

void store_client_init(struct store_client *c);

/* The client left: forgets its wait. May release others: see store.released. */
void store_client_finish(struct store *s, struct store_client *c);

/*
 * Executes one request (anything wire_decode() gives) and appends its reply to out. Returns 0,
 * -ENOMEM or STORE_E_...; then no reply is owed and the client should be cut off. A refused request
 * changed nothing, except MULTI_SET, whose pairs ahead of the refused one are stored.
 */
int store_apply(struct store *s, struct store_client *c, const struct wire_request *request,
                struct outbox *out);

/* The operation changes nothing: it need not be executed when its reply cannot be sent. */
bool store_only_reads(enum wire_op op);

/* The reply is bytes of its own, and the client alone decides how many. */
bool store_reply_may_be_huge(const struct wire_request *request);

/* A sentence part for the log. result: what store_apply() returned, not 0. */
const char *store_error(int result);
