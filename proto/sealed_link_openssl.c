#include "proto/sealed_link_openssl.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/minmax.h"
#include "proto/record_seal_openssl.h"

struct sealed_link {
    struct record_seal *out, *in;
    struct buf part; /* an incomplete record */
};

int sealed_link_create(struct sealed_link **ret, const struct secret_key *of_sent,
                       const struct secret_key *of_received)
{
    struct sealed_link *l = calloc(1, sizeof(*l));
    int r = l ? record_seal_new(SEAL_CIPHER_AES, of_sent, true, SEAL_KEY_RECORDS, &l->out) : -ENOMEM;

    if (r == 0)
        r = record_seal_new(SEAL_CIPHER_AES, of_received, false, SEAL_KEY_RECORDS, &l->in);
    if (r == 0)
        *ret = l;
    else
        sealed_link_free(l);
    return r;
}

void sealed_link_free(struct sealed_link *l)
{
    if (!l)
        return;
    record_seal_free(l->out);
    record_seal_free(l->in);
    buf_finish(&l->part);
    free(l);
}

int sealed_link_send(struct sealed_link *l, const void *bytes, size_t n, struct buf *out)
{
    const uint8_t *p = bytes;
    size_t n_records = n / SEAL_DATA_MAX + 1;

    if (!buf_reserve(out, n + n_records * SEAL_EXTRA))
        return -ENOMEM;
    while (n > 0) {
        size_t size = min_size(n, SEAL_DATA_MAX);
        uint8_t *record = buf_reserve(out, size + SEAL_EXTRA); /* the room is there */

        if (record_seal_close(l->out, &(struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = size},
                              size, record) < 0)
            return -EIO;
        buf_commit(out, size + SEAL_EXTRA);
        p += size;
        n -= size;
    }
    return 0;
}

/* Opens the whole records at data. *ret_used: their bytes; *ret_is_other: no record begins behind them. */
static int open_records(struct sealed_link *l, const uint8_t *data, size_t n, struct buf *plain,
                        size_t *ret_used, bool *ret_is_other)
{
    size_t used = 0;

    while (n - used >= SEAL_HEAD) {
        size_t size = record_seal_size(data + used);

        *ret_is_other = size == 0;
        if (size == 0 || n - used < size + SEAL_EXTRA)
            break;
        uint8_t *place = buf_reserve(plain, size);
        if (!place)
            return -ENOMEM;
        if (record_seal_open(l->in, data + used, size, place) < 0)
            return -EBADMSG;
        buf_commit(plain, size);
        used += size + SEAL_EXTRA;
    }
    *ret_used = used;
    return 0;
}

int sealed_link_receive(struct sealed_link *l, const void *bytes, size_t n, struct buf *plain,
                        struct buf *rest)
{
    bool is_other = false;
    size_t used = 0;

    if (buf_size(&l->part) == 0) {
        TRY(open_records(l, bytes, n, plain, &used, &is_other));
        return buf_append(is_other ? rest : &l->part, (const uint8_t *)bytes + used, n - used);
    }
    TRY(buf_append(&l->part, bytes, n));
    TRY(open_records(l, buf_bytes(&l->part), buf_size(&l->part), plain, &used, &is_other));
    buf_consume(&l->part, used);
    int r = is_other ? buf_append(rest, buf_bytes(&l->part), buf_size(&l->part)) : 0;
    if (is_other || buf_size(&l->part) == 0)
        buf_reset(&l->part);
    return r;
}
