#pragma once

/*
 * What two crunds send each other so that one has the keys that the other serves (PROTOCOL.md, "Replicas of keys"): messages over
 * a connection that has proved the key of the purpose `replica`. Pure.
 *
 *   backup                                   serving crund
 *   hello: its id                       ->
 *                                       <-   begin: a store without keys, its limits and seed
 *                                       <-   or copy: the same of a store that has some, and pieces of its state (replica_state.h), ...
 *                                       <-   entry (replica.h), ...
 *   confirm: number of entries          ->   behind a copy once when it is whole, however many there are
 *                                       <-   end: the store ends; of store 0, as the first message: the sender leads
 *
 * Failure: memory is out (-ENOMEM), or a message cannot be decoded (-EPROTO); both end the connection.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/wire.h"
#include "rendezvous/relay/relay_link.h"
#include "base/siphash.h"
#include "rendezvous/store/store.h"

struct buf;

enum { REPLICA_HELLO_SIZE = 16 };

enum replica_message_kind {
    REPLICA_BEGIN,
    REPLICA_ENTRY,
    REPLICA_END,
    REPLICA_CONFIRM,
    REPLICA_COPY,
    REPLICA_STATE,
    REPLICA_MESSAGE_KIND_COUNT
};

/* A store that is begun, and what its backup has to have in common with it. */
struct replica_begin {
    struct relay_space space;
    struct store_limits limits;
    struct wire_limits wire;
    uint8_t seed[SIPHASH_SEED_SIZE];
    bool is_copy; /* its state follows */
};

struct replica_message {
    enum replica_message_kind kind;
    uint64_t store;             /* its number, which the serving crund gives */
    struct wire_span entry;     /* ENTRY, or a piece of STATE: in the caller's bytes */
    uint64_t n;                 /* CONFIRM: entries of this store so far */
    struct replica_begin begin; /* BEGIN, COPY */
};

/* 0 or -ENOMEM. */
int replica_put_hello(struct buf *out, uint64_t id);
int replica_put_begin(struct buf *out, uint64_t store, const struct replica_begin *begin);
int replica_put_entry(struct buf *out, uint64_t store, struct wire_span entry);
int replica_put_state(struct buf *out, uint64_t store, struct wire_span piece);
int replica_put_end(struct buf *out, uint64_t store);
int replica_put_confirm(struct buf *out, uint64_t store, uint64_t n);

/* From REPLICA_HELLO_SIZE bytes: 0 or -EPROTO. */
int replica_decode_hello(const uint8_t *data, uint64_t *ret_id);

/* *ret_size: bytes of the message that n bytes begin with; 0: it is incomplete. 0 or -EPROTO. */
int replica_decode(const uint8_t *data, size_t n, struct replica_message *ret, size_t *ret_size);
