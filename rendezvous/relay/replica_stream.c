/*
 * A message is a u32 length of what follows, a byte with its kind, the u64 number of the store, and what the kind has.
 */

#include "rendezvous/relay/replica_stream.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "rendezvous/relay/replica.h"
#include "rendezvous/relay/replica_state.h"

enum {
    LENGTH_SIZE = 4,
    HEAD_SIZE = LENGTH_SIZE + 1 + 8,
    N_LIMITS = 7, /* three of the store, four of messages */
    BEGIN_SIZE = N_LIMITS * 8 + SIPHASH_SEED_SIZE,
    MESSAGE_MAX = HEAD_SIZE + REPLICA_ENTRY_MAX,
};

static_assert((int)REPLICA_STATE_PIECE_MAX <= (int)REPLICA_ENTRY_MAX,
              "a piece is no longer than an entry may be");

static const uint8_t magic[8] = "crunrep2";

int replica_put_hello(struct buf *out, uint64_t id)
{
    if (!buf_reserve(out, REPLICA_HELLO_SIZE))
        return -ENOMEM;
    (void)buf_append(out, magic, sizeof(magic)); /* the room is there */
    return buf_append_u64(out, id);
}

int replica_decode_hello(const uint8_t *data, uint64_t *ret_id)
{
    *ret_id = wire_load_u64(data + sizeof(magic));
    return memcmp(data, magic, sizeof(magic)) == 0 && *ret_id != 0 ? 0 : -EPROTO;
}

/* The head of a message, and room for n bytes behind it. */
static int put_head(struct buf *out, enum replica_message_kind kind, uint64_t store, size_t n)
{
    if (!buf_reserve(out, HEAD_SIZE + n))
        return -ENOMEM;
    (void)buf_append_u32(out, (uint32_t)(HEAD_SIZE - LENGTH_SIZE + n)); /* the room is there */
    (void)buf_append_u8(out, (uint8_t)kind);
    return buf_append_u64(out, store);
}

int replica_put_begin(struct buf *out, uint64_t store, const struct replica_begin *b)
{
    const uint64_t limits[N_LIMITS] = {b->limits.keys_max, b->limits.bytes_max, b->limits.waiters_max,
                                       b->wire.key_max,    b->wire.value_max,   b->wire.keys_max,
                                       b->wire.message_max};
    struct buf space = {0};
    int r = relay_space_put(&space, &b->space);

    if (r == 0)
        r = put_head(out, b->is_copy ? REPLICA_COPY : REPLICA_BEGIN, store, BEGIN_SIZE + buf_size(&space));
    for (size_t i = 0; r == 0 && i < N_LIMITS; i++)
        r = buf_append_u64(out, limits[i]);
    if (r == 0)
        r = buf_append(out, b->seed, sizeof(b->seed));
    if (r == 0)
        r = buf_append(out, buf_bytes(&space), buf_size(&space));
    buf_finish(&space);
    return r;
}

int replica_put_entry(struct buf *out, uint64_t store, struct wire_span entry)
{
    int r = put_head(out, REPLICA_ENTRY, store, entry.size);

    return r < 0 ? r : buf_append(out, entry.data, entry.size);
}

int replica_put_state(struct buf *out, uint64_t store, struct wire_span piece)
{
    int r = put_head(out, REPLICA_STATE, store, piece.size);

    return r < 0 ? r : buf_append(out, piece.data, piece.size);
}

int replica_put_end(struct buf *out, uint64_t store)
{
    return put_head(out, REPLICA_END, store, 0);
}

int replica_put_confirm(struct buf *out, uint64_t store, uint64_t n)
{
    int r = put_head(out, REPLICA_CONFIRM, store, 8);

    return r < 0 ? r : buf_append_u64(out, n);
}

static int decode_begin(const uint8_t *body, size_t n, struct replica_begin *ret)
{
    uint64_t limits[N_LIMITS];

    if (n < BEGIN_SIZE)
        return -EPROTO;
    for (size_t i = 0; i < N_LIMITS; i++)
        limits[i] = wire_load_u64(body + 8 * i);
    ret->limits = (struct store_limits){limits[0], limits[1], limits[2]};
    ret->wire = (struct wire_limits){limits[3], limits[4], limits[5], limits[6]};
    for (size_t i = 3; i < N_LIMITS; i++)
        if (limits[i] >= UINT64_C(1) << 56)
            return -EPROTO; /* see struct wire_limits */
    memcpy(ret->seed, body + N_LIMITS * 8, sizeof(ret->seed));
    n -= BEGIN_SIZE;
    return n > 0 && relay_space_decode(body + BEGIN_SIZE, n, &ret->space) == (int)n ? 0 : -EPROTO;
}

static int decode_body(const uint8_t *body, size_t n, struct replica_message *ret)
{
    switch (ret->kind) {
    case REPLICA_BEGIN:
    case REPLICA_COPY:
        ret->begin.is_copy = ret->kind == REPLICA_COPY;
        return decode_begin(body, n, &ret->begin);
    case REPLICA_ENTRY:
    case REPLICA_STATE:
        ret->entry = wire_span(body, n);
        return 0; /* replica_receive() or replica_state_read() decodes it */
    case REPLICA_END:
        return n == 0 ? 0 : -EPROTO;
    case REPLICA_CONFIRM:
        ret->n = n == 8 ? wire_load_u64(body) : 0;
        return n == 8 ? 0 : -EPROTO;
    case REPLICA_MESSAGE_KIND_COUNT:
        break;
    }
    return -EPROTO;
}

int replica_decode(const uint8_t *data, size_t n, struct replica_message *ret, size_t *ret_size)
{
    *ret_size = 0;
    if (n < LENGTH_SIZE)
        return 0;
    size_t size = LENGTH_SIZE + (size_t)wire_load_u32(data);
    if (size < HEAD_SIZE || size > MESSAGE_MAX)
        return -EPROTO;
    if (n < size)
        return 0;
    ret->kind = (enum replica_message_kind)data[LENGTH_SIZE];
    ret->store = wire_load_u64(data + LENGTH_SIZE + 1);
    *ret_size = size;
    return decode_body(data + HEAD_SIZE, size - HEAD_SIZE, ret);
}
