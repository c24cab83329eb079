#include "worker-runtime/net/sealed_stream_openssl.h"

#include "base/err.h"
#include "base/minmax.h"
#include "proto/key_openssl.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* As long as the size of a record is not known: small records come in one piece, and few bytes have to be moved to
 * the front behind a small one. */
enum { READ_FIRST = 4096 };

/* ---- out ---- */

int sealed_out_fill(struct sealed_out *out, const struct iovec *parts, size_t n)
{
    size_t n_data = min_size(n, SEAL_DATA_MAX);
    uint8_t *record = buf_reserve(&out->record, n_data + SEAL_EXTRA);

    assert(out->n_data == 0);
    if (!record)
        return -ENOMEM;
    TRY(record_seal_close(out->seal, parts, n_data, record));
    buf_commit(&out->record, n_data + SEAL_EXTRA);
    out->n_data = n_data;
    return 0;
}

size_t sealed_out_sent(struct sealed_out *out, size_t n)
{
    size_t n_data = out->n_data;

    buf_consume(&out->record, n);
    if (buf_size(&out->record) > 0)
        return 0;
    out->n_data = 0;
    return n_data;
}

/* ---- in ---- */

/* The bytes of the record at the front, with head and tag; 0: not known yet. */
static size_t front_size(const struct sealed_in *in)
{
    return buf_size(&in->bytes) < SEAL_HEAD ? 0 : record_seal_size(buf_bytes(&in->bytes)) + SEAL_EXTRA;
}

/* Or known to be no record. */
static bool is_whole(const struct sealed_in *in)
{
    size_t size = front_size(in);

    return size > 0 && (size == SEAL_EXTRA || buf_size(&in->bytes) >= size);
}

/* With a long record the head of the next one is read, so that each takes one call. */
ssize_t sealed_in_room(struct sealed_in *in, uint8_t **ret)
{
    size_t wanted = max_size(front_size(in) + SEAL_HEAD, READ_FIRST) - buf_size(&in->bytes);

    if (in->error)
        return in->error;
    if (in->opened || is_whole(in))
        return 0;
    *ret = buf_reserve(&in->bytes, wanted);
    return *ret ? (ssize_t)wanted : -ENOMEM;
}

static void drop_front(struct sealed_in *in, size_t n_data)
{
    buf_consume(&in->bytes, n_data + SEAL_EXTRA);
    in->opened = in->taken = 0;
}

static ssize_t take_opened(struct sealed_in *in, uint8_t *data, size_t n)
{
    size_t piece = min_size(n, in->opened - in->taken);

    memcpy(data, buf_bytes(&in->bytes) + SEAL_HEAD + in->taken, piece);
    in->taken += piece;
    if (in->taken == in->opened)
        drop_front(in, in->opened);
    return (ssize_t)piece;
}

/* The record at the front is whole. */
static ssize_t open_front(struct sealed_in *in, uint8_t *data, size_t n)
{
    uint8_t *record = buf_bytes(&in->bytes);
    size_t n_data = record_seal_size(record);
    uint8_t *to = n_data <= n ? data : record + SEAL_HEAD;

    in->error = n_data == 0 ? -EBADMSG : record_seal_open(in->seal, record, n_data, to);
    if (in->error)
        return in->error;
    if (to == data) {
        drop_front(in, n_data);
        return (ssize_t)n_data;
    }
    in->opened = n_data;
    return take_opened(in, data, n);
}

ssize_t sealed_in_take(struct sealed_in *in, void *data, size_t n)
{
    if (in->error)
        return in->error;
    if (in->opened)
        return take_opened(in, data, n);
    return is_whole(in) ? open_front(in, data, n) : 0;
}

bool sealed_in_holds(const struct sealed_in *in)
{
    return in->error || in->opened || is_whole(in);
}

/* ---- the end ---- */

void sealed_out_finish(struct sealed_out *out)
{
    record_seal_free(out->seal);
    buf_finish(&out->record); /* encrypted */
    *out = (struct sealed_out){0};
}

void sealed_in_finish(struct sealed_in *in)
{
    if (in->bytes.data)
        key_erase(in->bytes.data, in->bytes.capacity);
    record_seal_free(in->seal);
    buf_finish(&in->bytes);
    *in = (struct sealed_in){0};
}
