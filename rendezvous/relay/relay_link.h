#pragma once

/*
 * Frames between a node's store and the store that it forwards to, in order and each exactly once, over connections that
 * may break anywhere. Both ends have one link for as long as the node lives; connections come and go.
 *
 *   node                                            server
 *   space: job, instance, key space           ->
 *   hello: nonce, is it known, arrived frames ->
 *                                             <-    hello: the same nonce, arrived frames
 *   frame, frame, acknowledgement, ...        <->   frame, acknowledgement, frame, ...
 *
 * Frames are numbered by counting them. A sender keeps each frame until it is acknowledged; after a hello it sends those
 * again that have not arrived. So no request is executed twice and no reply is lost, whatever is cut.
 *
 * Bounds: at most RELAY_WINDOW bytes are under way without an acknowledgement, over all connections, and a receiver holds no
 * more. A sender limits what it keeps by relay_link_has_room().
 *
 * No I/O and no clock. Failure: memory is out (-ENOMEM), or the peer breaks the rules (-EPROTO). Both end the link.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "proto/wire.h"

enum {
    RELAY_FIRST_BYTE = 'c', /* of a connection in the clear */
    RELAY_NONCE_SIZE = 16,
    RELAY_HELLO_SIZE = 8 + RELAY_NONCE_SIZE + 1 + 8,
    RELAY_PIECE_MAX = 64 * 1024,           /* bytes of a message in one frame */
    RELAY_BODY_MAX = RELAY_PIECE_MAX + 64, /* bytes of a frame behind its length and kind */
    RELAY_WINDOW = 1024 * 1024,
    RELAY_KEEP_MAX = 4096, /* of a buffer that is empty: its memory is for the next small message */
};

/* The kinds of frames. */
enum relay_kind {
    RELAY_ACK = 0, /* u64: frames that were taken. Not numbered. */
    /* node -> server */
    RELAY_REQUEST_PIECE, /* bytes of a request that goes on in the next such frame */
    RELAY_REQUEST, /* u64 id, u64 id of the wait whose queue item is popped or 0, last bytes of the request */
    RELAY_FORGET,  /* u64 id of a wait */
    RELAY_GIVEN_UP, /* the request of which pieces came will not be completed */
    /* server -> node */
    RELAY_REPLY_PIECE, /* u64 id, bytes of a reply that goes on */
    RELAY_REPLY,       /* u64 id, last bytes of its reply; of an operation without reply: none */
    RELAY_PROMISED, /* u64 id of a wait, u64 id of another: an item of a queue is kept for one client, which pops it or
                          forgets the second wait; the first one waits for the next item, until it is forgotten */
    RELAY_FAILED, /* u64 id, u32 result of store_apply(): its clients are to be closed */
    RELAY_KIND_COUNT
};

/* Which of the keys that the server keeps the node's workers use: once, ahead of the first hello of a connection. */
enum {
    RELAY_SPACE_HEAD = 8 + 8 + 4 + 2, /* bytes ahead of the job's id */
    RELAY_JOB_MAX = 255,
};

struct relay_space {
    char job[RELAY_JOB_MAX + 1];
    uint64_t instance;
    uint32_t key_space;
};

/* 0, -ENOMEM, or -EINVAL for the length of the job's id. */
int relay_space_put(struct buf *out, const struct relay_space *s);
/* Bytes that were used; 0: it is incomplete; -EPROTO: it is none. */
int relay_space_decode(const uint8_t *data, size_t n, struct relay_space *ret);

struct relay_hello {
    uint8_t nonce[RELAY_NONCE_SIZE];
    /* Of a node: this server has answered a hello of the nonce before. A server that does not know the nonce then has forgotten
     * the node, and must not execute its requests: it may have done so. */
    bool is_known;
    uint64_t arrived; /* frames; RELAY_FORGOTTEN */
};

/* In a server's hello: it has forgotten the node. */
#define RELAY_FORGOTTEN UINT64_MAX

/* 0 or -ENOMEM. */
int relay_hello_put(struct buf *out, const struct relay_hello *h);
/* From RELAY_HELLO_SIZE bytes. False: they are no hello. */
bool relay_hello_decode(const uint8_t *data, struct relay_hello *ret);

struct relay_link {
    bool up;    /* hellos were exchanged on the present connection */
    bool known; /* hellos were exchanged once */

    struct buf unacked; /* whole frames, from number `base` on */
    uint64_t base, next;
    size_t sent; /* bytes of `unacked` that have arrived, or were given to the present connection */

    struct buf in;    /* an incomplete frame of the present connection */
    struct buf queue; /* whole frames that were not taken yet */
    uint64_t arrived, taken, acked;
    uint64_t taken_bytes; /* since the last acknowledgement */
};

struct relay_frame {
    enum relay_kind kind;
    struct wire_span body; /* until the next call with this link */
};

void relay_link_finish(struct relay_link *l);

/* The connection is gone. */
void relay_link_down(struct relay_link *l);

/* The peer's hello came: frames behind `arrived` are sent again. 0, or -EPROTO: the peer does not know this link. */
int relay_link_resume(struct relay_link *l, uint64_t arrived);

/* May more be put? A frame is accepted in any case. */
static inline bool relay_link_has_room(const struct relay_link *l)
{
    return buf_size(&l->unacked) < RELAY_WINDOW;
}

/* Queues a frame: up to two ids, and bytes behind them (at most RELAY_PIECE_MAX). 0 or -ENOMEM. */
int relay_link_put(struct relay_link *l, enum relay_kind kind, const uint64_t *ids, size_t n_ids,
                   struct wire_span bytes);

/* Takes bytes that arrived. 0, -EPROTO or -ENOMEM. */
int relay_link_receive(struct relay_link *l, const uint8_t *data, size_t n);

/* The next frame that arrived and its body. False: there is none. */
bool relay_link_take(struct relay_link *l, struct relay_frame *ret);

/* Appends what is to be sent now; may be nothing. 0 or -ENOMEM. */
int relay_link_output(struct relay_link *l, struct buf *out);
