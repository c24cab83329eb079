#include "rendezvous/store/outbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "rendezvous/store/blob.h"

void outbox_finish(struct outbox *o)
{
    for (size_t i = o->refs_begin; i < o->refs_end; i++)
        blob_unref(o->refs[i].blob);
    free(o->refs);
    buf_finish(&o->bytes);
    *o = (struct outbox){0};
}

static int reserve_ref(struct outbox *o)
{
    size_t n = o->refs_end - o->refs_begin;

    if (o->refs_end < o->refs_capacity)
        return 0;
    /* Moving when at least half is free keeps it linear. */
    if (o->refs_begin >= o->refs_capacity / 2 && o->refs_begin > 0) {
        memmove(o->refs, o->refs + o->refs_begin, n * sizeof(*o->refs));
        o->refs_begin = 0;
        o->refs_end = n;
        return 0;
    }
    size_t capacity = o->refs_capacity ? o->refs_capacity * 2 : 4;
    if (!array_resize(o->refs, capacity))
        return -ENOMEM;
    o->refs_capacity = capacity;
    return 0;
}

int outbox_reserve(struct outbox *o, size_t n, size_t value_size)
{
    bool copy = value_size <= OUTBOX_COPY_MAX;

    if (!buf_reserve(&o->bytes, n + sizeof(uint64_t) + (copy ? value_size : 0)))
        return -ENOMEM;
    return copy ? 0 : reserve_ref(o);
}

int outbox_put_value(struct outbox *o, struct blob *b, size_t size)
{
    bool copy = size <= OUTBOX_COPY_MAX;

    assert(size <= b->total);
    TRY(outbox_reserve(o, 0, size));
    /* These cannot fail: the room is reserved. */
    (void)buf_append_u64(&o->bytes, size);
    if (copy) {
        blob_copy(b, buf_reserve(&o->bytes, size), size);
        buf_commit(&o->bytes, size);
    } else {
        o->refs[o->refs_end++] = (struct outbox_ref){
            .blob = blob_ref(b),
            .part = b,
            .after = o->bytes_sent + buf_size(&o->bytes),
            .left = size,
        };
        o->refs_bytes += size;
    }
    return 0;
}

int outbox_put_blob(struct outbox *o, struct blob *b)
{
    return outbox_put_value(o, b, b->total);
}

static int add_iov(struct iovec *iov, int n, uint8_t *data, size_t size)
{
    if (size == 0)
        return n;
    iov[n] = (struct iovec){.iov_base = data, .iov_len = size};
    return n + 1;
}

/* What is left of the value, part after part. */
static int add_ref_iov(struct iovec *iov, int n, int max, const struct outbox_ref *ref)
{
    struct blob *part = ref->part;
    size_t sent = ref->sent, left = ref->left;

    while (n < max && left > 0) {
        size_t size = part->size - sent;

        if (size > left)
            size = left;
        n = add_iov(iov, n, part->data + sent, size);
        left -= size;
        sent = 0;
        part = blob_next_part(ref->blob, part);
    }
    return n;
}

int outbox_iov(const struct outbox *o, struct iovec *iov, int max)
{
    uint8_t *bytes = buf_bytes(&o->bytes);
    size_t done = 0;
    int n = 0;

    for (size_t i = o->refs_begin; i < o->refs_end; i++) {
        const struct outbox_ref *ref = &o->refs[i];
        size_t until = (size_t)(ref->after - o->bytes_sent);

        if (n < max)
            n = add_iov(iov, n, bytes + done, until - done);
        n = add_ref_iov(iov, n, max, ref);
        if (n == max)
            return n;
        done = until;
    }
    if (n < max)
        n = add_iov(iov, n, bytes + done, buf_size(&o->bytes) - done);
    return n;
}

/* Takes up to n bytes off the buffer, but none behind the first reference; returns how many. */
static size_t consume_bytes(struct outbox *o, size_t n)
{
    size_t ready = buf_size(&o->bytes);

    if (o->refs_begin < o->refs_end)
        ready = (size_t)(o->refs[o->refs_begin].after - o->bytes_sent);
    if (ready > n)
        ready = n;
    buf_consume(&o->bytes, ready);
    o->bytes_sent += ready;
    return ready;
}

/* Takes up to n bytes off the first reference, within one part; returns how many. */
static size_t consume_ref(struct outbox *o, size_t n)
{
    struct outbox_ref *ref = &o->refs[o->refs_begin];
    size_t ready = ref->part->size - ref->sent;

    if (ready > ref->left)
        ready = ref->left;
    size_t taken = n < ready ? n : ready;
    ref->sent += taken;
    ref->left -= taken;
    o->refs_bytes -= taken;
    if (ref->left == 0) {
        blob_unref(ref->blob);
        o->refs_begin++;
    } else if (taken == ready) {
        ref->part = blob_next_part(ref->blob, ref->part);
        ref->sent = 0;
    }
    return taken;
}

void outbox_consume(struct outbox *o, size_t n)
{
    assert(n <= outbox_size(o));
    for (;;) {
        n -= consume_bytes(o, n);
        if (n == 0)
            break;
        n -= consume_ref(o, n);
    }
    if (outbox_size(o) == 0) {
        o->bytes_sent = 0;
        o->refs_begin = 0;
        o->refs_end = 0;
    }
}
