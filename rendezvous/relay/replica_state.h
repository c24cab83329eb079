#pragma once

/*
 * The state of a replica (replica.h) between two entries of its log, as bytes: for a backup that comes when the store has keys. Both
 * sides come to the same results from then on, so the copy has everything that a result depends on: values with the capacity of each
 * of their parts, keys in the order of their numbers, queues, waits with the places of their links among those of others, promised
 * items, and of each node's link the counters and the frames that are not acknowledged.
 *
 *   serving process                                        backup
 *   replica.is_held: no entry is begun
 *   replica_state_is_quiet()
 *   replica_state_write() -> piece, piece, ...         ->  replica_state_read()
 *   the entries that are in the log, those that follow ->  replica_receive(), when the last piece was read
 *
 * A piece is a sequence of records, in the order of enum replica_state_record: u8 kind, u32 bytes that follow, and these. What can be long
 * follows in records of the kind BYTES. The last record has sums of the store, which the copy must come to.
 *
 * Costs: no copy in memory. Nothing of the store may be executed until all pieces are written, about a second for a GiB (and what the network
 * needs); a turn of REPLICA_STATE_PIECE_MAX bytes takes some ten microseconds. In a message that a node is still receiving, nothing is
 * lost; a node that has not read a reply to its end is waited for, as long as it takes. In the backup 8 bytes for each wait, until all is read.
 *
 * Pure. Ways it fails: memory is out (-ENOMEM), or a piece cannot be decoded (-EPROTO, backup only). The copy has to be dropped then.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "rendezvous/relay/replica.h"

enum { REPLICA_STATE_PIECE_MAX = 64 * 1024 };

enum replica_state_record {
    REPLICA_STATE_HEAD,    /* u64 entries that are executed, u64 last number of the store */
    REPLICA_STATE_NODE,    /* the next node: see put_node() */
    REPLICA_STATE_NO_NODE, /* the next one is dropped */
    REPLICA_STATE_BYTES,   /* what belongs to the record before */
    REPLICA_STATE_WAIT,    /* of that node: see put_wait() */
    REPLICA_STATE_NAME,    /* u32 bytes of the name, u8 is it promised */
    REPLICA_STATE_VALUE,   /* u64 number of its creation, u32 capacity, u32 bytes */
    REPLICA_STATE_PART,    /* u32 capacity, u32 bytes: the value goes on */
    REPLICA_STATE_ITEM,    /* u32 capacity, u32 bytes: the next item of the queue */
    REPLICA_STATE_LINKS, /* waits for the name, in order: u32 place of the wait, u32 number of its link, u64 number */
    REPLICA_STATE_PROMISE, /* u32 place of a wait, u32 place of the name of which an item is kept for it */
    REPLICA_STATE_END,     /* u64 keys, u64 clients that wait, u64 bytes of the account */
    REPLICA_STATE_RECORD_COUNT
};

/* ---- the serving process ---- */

struct replica_state_writer {
    struct replica *replica;
    enum {
        REPLICA_WRITE_HEAD,
        REPLICA_WRITE_NODES,
        REPLICA_WRITE_KEYS,
        REPLICA_WRITE_OTHERS, /* names without a value */
        REPLICA_WRITE_PROMISES,
        REPLICA_WRITE_END,
        REPLICA_WRITE_DONE
    } stage;
    struct buf *out;
    struct wire_span bytes[2]; /* they follow next */
    uint32_t number, n_numbers;
    struct list *wait; /* the next one of that node; NULL: the node was not begun */
    uint32_t n_waits, n_promised;
    struct list *key;         /* the next one */
    size_t cursor;            /* or the next place in the table of names */
    struct store_entry *name; /* its rest follows */
    struct blob *part, *item;
    struct list *link;
};

/* Between two entries, with all nodes between two requests? */
bool replica_state_is_quiet(const struct replica *r);

/* For a quiet replica, with which nothing is done until the writer is DONE or dropped but that entries are appended. What is executed
 * counts as confirmed from then on. */
void replica_state_writer_init(struct replica_state_writer *w, struct replica *r);

/* Appends up to REPLICA_STATE_PIECE_MAX bytes, maybe none. 0 or -ENOMEM. */
int replica_state_write(struct replica_state_writer *w, struct buf *out);

/* ---- the backup ---- */

struct replica_state_reader {
    struct replica *replica;
    bool has_head, is_done;
    struct replica_node *node; /* the last one */
    struct buf key;            /* the name that is being read */
    struct store_entry *name;  /* the last one that is complete */
    bool is_promised;
    struct blob *part; /* not the value's yet */
    struct blob *into; /* what is being filled */
    enum {
        REPLICA_READ_NOTHING,
        REPLICA_READ_KEY,
        REPLICA_READ_BLOB,
        REPLICA_READ_UNACKED,
        REPLICA_READ_MESSAGE
    } target;
    uint64_t left, left_message; /* bytes for the target, and for the node's message behind it */
    struct relay_wait **waits;   /* by their places */
    struct store_entry **names;  /* promised ones */
    size_t n_waits, waits_room, n_names, names_room;
};

/* For a backup that has received nothing. */
void replica_state_reader_init(struct replica_state_reader *in, struct replica *r);
void replica_state_reader_finish(struct replica_state_reader *in);

/* 0, -EPROTO or -ENOMEM; is_done: that was the last piece. */
int replica_state_read(struct replica_state_reader *in, struct wire_span piece);
