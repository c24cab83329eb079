/*
 * Encoders of the TCPStore wire. Each reckons the size of its message, takes that much room at once and
 * fills it, so that there is never half a message in the buffer.
 */

#include "proto/wire.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"

enum { LENGTH_SIZE = 8, AMOUNT_SIZE = 8, WORD_SIZE = 4 };

/* Writers into room that was reserved for the whole message; each returns where the next one goes on. */

static uint8_t *store_u32(uint8_t *to, uint32_t v)
{
    wire_store_u32(to, v);
    return to + 4;
}

static uint8_t *store_u64(uint8_t *to, uint64_t v)
{
    return store_u32(store_u32(to, (uint32_t)v), (uint32_t)(v >> 32));
}

static uint8_t *store_vec(uint8_t *to, struct wire_span vec)
{
    to = store_u64(to, vec.size);
    if (vec.size > 0) /* data may be NULL then */
        memcpy(to, vec.data, vec.size);
    return to + vec.size;
}

/* Adds the encoded size of a vector; false when no memory could hold the sum. */
static bool add_vec_size(size_t *total, struct wire_span vec)
{
    return !__builtin_add_overflow(*total, vec.size, total) &&
           !__builtin_add_overflow(*total, (size_t)LENGTH_SIZE, total);
}

/* type byte, the vectors (at most three), n_fixed more bytes. Returns where these go, NULL without memory. */
static uint8_t *put_vecs(struct buf *out, enum wire_op op, const struct wire_span *vecs, size_t n_vecs,
                         size_t n_fixed)
{
    size_t total = 1 + n_fixed;
    uint8_t *to;

    for (size_t i = 0; i < n_vecs; i++)
        if (!add_vec_size(&total, vecs[i]))
            return NULL;
    to = buf_reserve(out, total);
    if (!to)
        return NULL;
    buf_commit(out, total);
    *to++ = (uint8_t)op;
    for (size_t i = 0; i < n_vecs; i++)
        to = store_vec(to, vecs[i]);
    return to;
}

int wire_put_plain(struct buf *out, enum wire_op op)
{
    return put_vecs(out, op, NULL, 0, 0) ? 0 : -ENOMEM;
}

int wire_put_word(struct buf *out, enum wire_op op, uint32_t word)
{
    uint8_t *to = put_vecs(out, op, NULL, 0, WORD_SIZE);

    if (!to)
        return -ENOMEM;
    store_u32(to, word);
    return 0;
}

int wire_put_key(struct buf *out, enum wire_op op, struct wire_span key)
{
    return put_vecs(out, op, &key, 1, 0) ? 0 : -ENOMEM;
}

int wire_put_key_amount(struct buf *out, enum wire_op op, struct wire_span key, int64_t amount)
{
    uint8_t *to = put_vecs(out, op, &key, 1, AMOUNT_SIZE);

    if (!to)
        return -ENOMEM;
    store_u64(to, (uint64_t)amount);
    return 0;
}

int wire_put_key_value(struct buf *out, enum wire_op op, struct wire_span key, struct wire_span value)
{
    struct wire_span vecs[] = {key, value};

    return put_vecs(out, op, vecs, ARRAY_SIZE(vecs), 0) ? 0 : -ENOMEM;
}

int wire_put_compare_set(struct buf *out, struct wire_span key, struct wire_span expected,
                         struct wire_span desired)
{
    struct wire_span vecs[] = {key, expected, desired};

    return put_vecs(out, WIRE_OP_COMPARE_SET, vecs, ARRAY_SIZE(vecs), 0) ? 0 : -ENOMEM;
}

/* A list: type byte, count, and of each item the key and, if there are values, the value. */
static int put_list(struct buf *out, enum wire_op op, const struct wire_span *keys,
                    const struct wire_span *values, size_t n_items)
{
    size_t total = 1 + LENGTH_SIZE;
    uint8_t *to;

    for (size_t i = 0; i < n_items; i++)
        if (!add_vec_size(&total, keys[i]) || (values && !add_vec_size(&total, values[i])))
            return -ENOMEM;
    to = buf_reserve(out, total);
    if (!to)
        return -ENOMEM;
    buf_commit(out, total);
    *to++ = (uint8_t)op;
    to = store_u64(to, n_items);
    for (size_t i = 0; i < n_items; i++) {
        to = store_vec(to, keys[i]);
        if (values)
            to = store_vec(to, values[i]);
    }
    return 0;
}

int wire_put_keys(struct buf *out, enum wire_op op, const struct wire_span *keys, size_t n_keys)
{
    return put_list(out, op, keys, NULL, n_keys);
}

int wire_put_multi_set(struct buf *out, const struct wire_span *keys, const struct wire_span *values,
                       size_t n_pairs)
{
    return put_list(out, WIRE_OP_MULTI_SET, keys, values, n_pairs);
}

int wire_put_vec(struct buf *out, struct wire_span value)
{
    size_t total = 0;
    uint8_t *to;

    if (!add_vec_size(&total, value))
        return -ENOMEM;
    to = buf_reserve(out, total);
    if (!to)
        return -ENOMEM;
    store_vec(to, value);
    buf_commit(out, total);
    return 0;
}
