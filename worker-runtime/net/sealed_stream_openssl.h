#pragma once

/*
 * Sealed records (proto/record_seal_openssl.h) as two streams of bytes, without a socket: what is to be sent, and what came in
 * pieces of any size.
 *
 * Sending: sealed_out_fill() makes one record; its bytes are sent from sealed_out_rest(), and only when the last one is
 * sent does the caller count the data as sent. So data never waits in here while the caller takes it for sent.
 *
 * Receiving: bytes go where sealed_in_room() says; sealed_in_take() opens whole records, straight into the caller's memory
 * where all of the record is wanted. What a record has beyond what is wanted waits here: sealed_in_holds().
 */

#include <sys/types.h>

#include "base/buf.h"
#include "proto/record_seal_openssl.h"

struct sealed_out {
    struct record_seal *seal;
    struct buf record; /* the rest that is to be sent; room for at most two records */
    size_t n_data;     /* bytes of data in the record; 0: there is none */
};

struct sealed_in {
    struct record_seal *seal;
    struct buf bytes;     /* from the begin of a record on; room for two records and heads at most */
    size_t opened, taken; /* bytes of data of that record when it is open, and how many were taken */
    int error;            /* -errno: nothing more comes */
};

/* Makes a record of the first bytes of the parts, n (at least 1) in all; none must be on its way. 0, -ENOMEM, -EIO. */
int sealed_out_fill(struct sealed_out *out, const struct iovec *parts, size_t n);
/* The bytes of the record that are not sent yet. */
static inline const uint8_t *sealed_out_rest(const struct sealed_out *out, size_t *ret_n)
{
    *ret_n = buf_size(&out->record);
    return buf_bytes(&out->record);
}
/* n more bytes were sent. Returns the bytes of data of the record when it has been sent, else 0. */
size_t sealed_out_sent(struct sealed_out *out, size_t n);

/* Where the next bytes go, and how many; 0: a record is whole or open, take it first. -ENOMEM, -EBADMSG (this is no
 * record). */
ssize_t sealed_in_room(struct sealed_in *in, uint8_t **ret);
static inline void sealed_in_came(struct sealed_in *in, size_t n)
{
    buf_commit(&in->bytes, n);
}
/* At most n bytes of data; 0: no record is whole; -EBADMSG, from then on always: a record is not the one that was sent. */
ssize_t sealed_in_take(struct sealed_in *in, void *data, size_t n);
/* Data can be taken, or an error, without anything more being received. */
bool sealed_in_holds(const struct sealed_in *in);

/* Free the seals, too. Zeroed is fine. */
void sealed_out_finish(struct sealed_out *out);
void sealed_in_finish(struct sealed_in *in);
