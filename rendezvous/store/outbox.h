#pragma once

/*
 * Replies on their way to one client: small ones as bytes in one buffer, large values as references to
 * where they are stored. The writer asks for an iovec list, sends what the socket takes, and consumes
 * that much. Owns no memory while it is empty after outbox_finish().
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/buf.h"

struct blob;

/* Values up to this size are copied: cheaper than one more segment for the kernel to walk. */
enum { OUTBOX_COPY_MAX = 16384 };

/* A stored value that goes out once `after` bytes of the buffer, counted from the first ever, have. */
struct outbox_ref {
    struct blob *blob;
    struct blob *part; /* of blob: the one that goes out next */
    uint64_t after;
    size_t sent; /* of that part */
    size_t left; /* of the value, as large as it was when it was put in */
};

struct outbox {
    struct buf bytes;
    uint64_t bytes_sent; /* of the buffer, since the outbox was last empty */
    struct outbox_ref *refs;
    size_t refs_begin; /* first that is not sent completely */
    size_t refs_end;
    size_t refs_capacity;
    size_t refs_bytes; /* not sent yet, of all refs */
};

/* Drops content and memory. */
void outbox_finish(struct outbox *o);

/* Bytes not sent yet. */
static inline size_t outbox_size(const struct outbox *o)
{
    return buf_size(&o->bytes) + o->refs_bytes;
}

/* Room for n bytes, and behind them for a value of that size: neither can then fail. Returns 0 or -ENOMEM. */
int outbox_reserve(struct outbox *o, size_t n, size_t value_size);

/* Appends u64 length and the value; takes a reference of its own where the value is large.
 * Returns 0 or -ENOMEM (nothing appended then). */
int outbox_put_blob(struct outbox *o, struct blob *b);

/* The same for the first `size` bytes of the value, which may have grown since. */
int outbox_put_value(struct outbox *o, struct blob *b, size_t size);

/* Fills up to max entries with what goes out next, in order; returns how many. */
int outbox_iov(const struct outbox *o, struct iovec *iov, int max);

/* The first n bytes are sent. */
void outbox_consume(struct outbox *o, size_t n);
