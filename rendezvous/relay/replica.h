#pragma once

/*
 * A store whose contents a second process keeps as well (crund --store-replicas=2). Both execute the same entries in the same
 * order, each with the same budget, and so come to the same keys, the same waits and the same frames to each node: the store and
 * relay_node.h have no other input.
 *
 *   node        serving process                                  backup
 *   frame  ->   replica_append_frame()  -> entry ->              replica_receive()
 *                                       <- number of entries <-
 *               replica_confirm()
 *               replica_run(): executes it                       replica_run(): executes it, too
 *   reply  <-
 *
 * The serving process executes an entry when the backup has it, and not before. So whatever a node has received, or has been
 * acknowledged, is known to the backup; what the backup knows beyond that has not been replied to, and is not sent again by the
 * node either, since frames are numbered (relay_link.h).
 *
 * An entry is executed to its end before the next one begins: the requests of the node that it belongs to as far as the node's
 * link has room, then the waits that they have ended, then what the store leaves to be freed. Acknowledgements are entries like
 * requests, as they make room.
 *
 * Pure. Ways it fails: memory is out here but not there (-ENOMEM), and the two are not equal any more: the serving process has to
 * go on alone, a backup has to drop its copy; or an entry cannot be decoded (-EPROTO, backup only).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "rendezvous/relay/relay_node.h"

enum {
    REPLICA_NODES_MAX = 16384,
    REPLICA_ENTRY_HEAD = 4 + 1 + 4 + 8,
    REPLICA_ENTRY_MAX = REPLICA_ENTRY_HEAD + 5 + RELAY_BODY_MAX,
    /* Entries of a backup that are not executed: above it receives, but does not confirm. */
    REPLICA_BACKLOG_MAX = 8 << 20,
};

/* u32 bytes that follow, u8 kind, u32 number of the node, u64 limit of the store's bytes. */
enum replica_kind {
    REPLICA_NODE,  /* the nonce of a node that comes: it gets the next number, and that is the entry's */
    REPLICA_FRAME, /* a whole frame of it (relay_link.h) */
    REPLICA_DROP,  /* it is forgotten */
    REPLICA_KIND_COUNT
};

struct replica_node {
    struct relay_node node;
    uint8_t nonce[RELAY_NONCE_SIZE];
    uint32_t number; /* from 1 on; 0: not appended yet */
    bool is_created; /* its first entry is executed */
    bool is_dropped; /* its last entry is appended */
};

struct replica_host {
    /* The node of this nonce, with its relay_node initialized; NULL: memory is out. On the serving process it exists. */
    struct replica_node *(*create)(void *data, const uint8_t *nonce);
    void (*created)(void *data, struct replica_node *n);
    /* It is forgotten: relay_node_finish() was called. Frees it. */
    void (*dropped)(void *data, struct replica_node *n, int reason);
    /* Its link may have something to send. */
    void (*has_output)(void *data, struct replica_node *n);
    void *data;
};

struct replica {
    struct store *store;
    struct replica_host host;
    struct buf log; /* entries that are not executed */
    uint64_t appended, confirmed, executed;
    bool is_backup;     /* entries come by replica_receive() */
    bool is_alone;      /* nothing is to be confirmed */
    bool is_blocked;    /* nothing is executed for now: see job_stores_uv.c */
    bool is_held;       /* no entry is begun for now: the state is being copied (replica_state.h) */
    uint64_t bytes_max; /* for entries that are appended */

    enum { REPLICA_IDLE, REPLICA_REQUESTS, REPLICA_RELEASES, REPLICA_CLEANING } stage;
    struct replica_node **by_number; /* NULL: dropped */
    uint32_t n_numbers, n_room;
    struct replica_node *current; /* of the entry that is being executed; NULL: it is dropped */
};

void replica_init(struct replica *r, struct store *s, const struct replica_host *host);

/* All nodes must be finished. */
void replica_finish(struct replica *r);

/* The serving process. These append an entry, which is in *ret until the next call. 0 or -ENOMEM. */
int replica_append_node(struct replica *r, struct replica_node *n, struct wire_span *ret);
int replica_append_frame(struct replica *r, struct replica_node *n, struct wire_span frame,
                         struct wire_span *ret);
int replica_append_drop(struct replica *r, struct replica_node *n, struct wire_span *ret);

/* Walks the entries that are not executed, from *offset = 0 on; false: there is no other. */
bool replica_next_entry(const struct replica *r, size_t *offset, struct wire_span *ret);

/* The backup has that many entries; a lower number than before, or a higher one than were appended, is ignored. */
void replica_confirm(struct replica *r, uint64_t n);

/* The backup that comes later has confirmed that its copy is whole (replica_state.h): no further entry is executed without it. */
void replica_join(struct replica *r);

/* It has all entries that were executed, so that it may take over from now on. */
bool replica_has_joined(const struct replica *r);

/* The backup: one entry as it was sent. 0, -EPROTO or -ENOMEM. */
int replica_receive(struct replica *r, const uint8_t *entry, size_t size);

/* A copy of a replica: the next node, with that nonce, of which the first entry is executed; NULL: it was dropped. 0, -EPROTO or -ENOMEM. */
int replica_restore_node(struct replica *r, const uint8_t *nonce, struct replica_node **ret);

/* How many entries the backup may confirm. */
uint64_t replica_confirmable(const struct replica *r);

/* Has replica_run() something to do? */
bool replica_is_busy(const struct replica *r);

/* One turn. 0, or -ENOMEM: see above; -EPROTO. */
int replica_run(struct replica *r);

/* Turns until there is nothing to do: a backup that is to serve. */
int replica_run_all(struct replica *r);

/* Of which nothing may be used any more: the owner forgets it outside of an entry. */
void replica_forget(struct replica *r, struct replica_node *n);
