/*
 * A frame is a u32 length of the body, a byte with the kind, and the body. Frames are kept encoded, one after another, so
 * frames without an acknowledgement are sent again from where the peer has received them.
 *
 * An acknowledgement counts frames taken, not frames arrived: the sender then has at most RELAY_WINDOW
 * bytes in the receiver's memory. An acknowledgement leaves with other output, or alone when ACK_BYTES or ACK_FRAMES were taken.
 */

#include "base/err.h"
#include "rendezvous/relay/relay_link.h"

#include <errno.h>
#include <string.h>

enum {
    HEADER_SIZE = 5,
    ACK_SIZE = HEADER_SIZE + 8,
    ACK_BYTES = RELAY_WINDOW / 4,
    ACK_FRAMES = 256,
    KEEP_MAX = 64 * 1024,
    HELLO_KNOWN = 1 /* bit 0 of a byte; a hello with another bit is refused */
};

static const uint8_t hello_magic[8] = "crunrly1";

static const uint8_t space_magic[8] = "crunkey1";

int relay_space_put(struct buf *out, const struct relay_space *s)
{
    size_t n = strlen(s->job);
    const uint8_t size[2] = {(uint8_t)(n & 0xff), (uint8_t)(n >> 8)};

    if (n == 0 || n > RELAY_JOB_MAX)
        return -EINVAL;
    if (!buf_reserve(out, RELAY_SPACE_HEAD + n))
        return -ENOMEM;
    (void)buf_append(out, space_magic, sizeof(space_magic)); /* the room is there */
    (void)buf_append_u64(out, s->instance);
    (void)buf_append_u32(out, s->key_space);
    (void)buf_append(out, size, sizeof(size));
    (void)buf_append(out, s->job, n);
    return 0;
}

int relay_space_decode(const uint8_t *data, size_t n, struct relay_space *ret)
{
    if (memcmp(data, space_magic, n < sizeof(space_magic) ? n : sizeof(space_magic)) != 0)
        return -EPROTO;
    if (n < RELAY_SPACE_HEAD)
        return 0;
    size_t size = (size_t)data[RELAY_SPACE_HEAD - 2] | (size_t)data[RELAY_SPACE_HEAD - 1] << 8;
    if (size == 0 || size > RELAY_JOB_MAX)
        return -EPROTO;
    if (n < RELAY_SPACE_HEAD + size)
        return 0;
    ret->instance = wire_load_u64(data + 8);
    ret->key_space = wire_load_u32(data + 16);
    memcpy(ret->job, data + RELAY_SPACE_HEAD, size);
    ret->job[size] = '\0';
    return strlen(ret->job) == size ? (int)(RELAY_SPACE_HEAD + size) : -EPROTO;
}

int relay_hello_put(struct buf *out, const struct relay_hello *h)
{
    if (!buf_reserve(out, RELAY_HELLO_SIZE))
        return -ENOMEM;
    (void)buf_append(out, hello_magic, sizeof(hello_magic)); /* the room is there */
    (void)buf_append(out, h->nonce, sizeof(h->nonce));
    (void)buf_append_u8(out, h->is_known ? HELLO_KNOWN : 0);
    (void)buf_append_u64(out, h->arrived);
    return 0;
}

bool relay_hello_decode(const uint8_t *data, struct relay_hello *ret)
{
    if (memcmp(data, hello_magic, sizeof(hello_magic)) != 0)
        return false;
    data += sizeof(hello_magic);
    memcpy(ret->nonce, data, sizeof(ret->nonce));
    ret->is_known = data[sizeof(ret->nonce)] & HELLO_KNOWN;
    ret->arrived = wire_load_u64(data + sizeof(ret->nonce) + 1);
    /* A hello with the second bit was a question of an older node, and must not take the place of the node's connection. */
    return data[sizeof(ret->nonce)] <= HELLO_KNOWN;
}

void relay_link_finish(struct relay_link *l)
{
    buf_finish(&l->unacked);
    buf_finish(&l->in);
    buf_finish(&l->queue);
    *l = (struct relay_link){0};
}

void relay_link_down(struct relay_link *l)
{
    l->up = false;
    l->sent = 0;
    buf_reset(&l->in);
}

/* Drops sent frames with a number below `end`. */
static int drop_frames(struct relay_link *l, uint64_t end)
{
    while (l->base < end) {
        size_t size = l->sent > 0 ? HEADER_SIZE + wire_load_u32(buf_bytes(&l->unacked)) : SIZE_MAX;

        if (size > l->sent)
            return -EPROTO;
        buf_consume(&l->unacked, size);
        l->sent -= size;
        l->base++;
    }
    if (buf_size(&l->unacked) == 0 && l->unacked.capacity > KEEP_MAX)
        buf_reset(&l->unacked);
    return 0;
}

int relay_link_resume(struct relay_link *l, uint64_t arrived)
{
    l->sent = 0;
    if (arrived < l->base || arrived > l->next)
        return -EPROTO;
    /* The frames are kept: a frame not taken there still counts in the window. */
    for (uint64_t i = l->base; i < arrived; i++)
        l->sent += HEADER_SIZE + wire_load_u32(buf_bytes(&l->unacked) + l->sent);
    l->up = true;
    l->known = true;
    l->acked = 0; /* the peer may have missed the last acknowledgement: sent again at once */
    l->taken_bytes = ACK_BYTES;
    return 0;
}

static int put_frame(struct buf *to, enum relay_kind kind, const uint64_t *ids, size_t n_ids,
                     struct wire_span bytes)
{
    size_t size = n_ids * sizeof(*ids) + bytes.size;

    if (!buf_reserve(to, HEADER_SIZE + size))
        return -ENOMEM;
    (void)buf_append_u32(to, (uint32_t)size); /* the room is there */
    (void)buf_append_u8(to, (uint8_t)kind);
    for (size_t i = 0; i < n_ids; i++)
        (void)buf_append_u64(to, ids[i]);
    if (bytes.size > 0)
        (void)buf_append(to, bytes.data, bytes.size);
    return 0;
}

int relay_link_put(struct relay_link *l, enum relay_kind kind, const uint64_t *ids, size_t n_ids,
                   struct wire_span bytes)
{
    int r = put_frame(&l->unacked, kind, ids, n_ids, bytes);

    l->next += r == 0;
    return r;
}

/* ---- receiving ---- */

/* A whole frame at data. */
static int receive_frame(struct relay_link *l, const uint8_t *data, size_t size)
{
    unsigned kind = data[4];

    if (kind >= RELAY_KIND_COUNT)
        return -EPROTO;
    if (kind == RELAY_ACK)
        return size == ACK_SIZE ? drop_frames(l, wire_load_u64(data + HEADER_SIZE)) : -EPROTO;
    if (buf_size(&l->queue) > RELAY_WINDOW + RELAY_BODY_MAX)
        return -EPROTO; /* the peer sends more than was acknowledged */
    TRY(buf_append(&l->queue, data, size));
    l->arrived++;
    return 0;
}

/* Whole frames at data; *ret_used: bytes of the frames. */
static int receive_frames(struct relay_link *l, const uint8_t *data, size_t n, size_t *ret_used)
{
    size_t used = 0;
    int r = 0;

    while (r == 0 && n - used >= HEADER_SIZE) {
        uint32_t body = wire_load_u32(data + used);

        if (body > RELAY_BODY_MAX)
            return -EPROTO;
        if (n - used < HEADER_SIZE + (size_t)body)
            break;
        r = receive_frame(l, data + used, HEADER_SIZE + (size_t)body);
        used += HEADER_SIZE + (size_t)body;
    }
    *ret_used = used;
    return r;
}

int relay_link_receive(struct relay_link *l, const uint8_t *data, size_t n)
{
    size_t used = 0;

    if (buf_size(&l->in) == 0) {
        TRY(receive_frames(l, data, n, &used));
        return used < n ? buf_append(&l->in, data + used, n - used) : 0;
    }
    TRY(buf_append(&l->in, data, n));
    int r = receive_frames(l, buf_bytes(&l->in), buf_size(&l->in), &used);
    buf_consume(&l->in, used);
    if (buf_size(&l->in) == 0)
        buf_reset(&l->in);
    return r;
}

bool relay_link_take(struct relay_link *l, struct relay_frame *ret)
{
    const uint8_t *data = buf_bytes(&l->queue);

    if (buf_size(&l->queue) == 0)
        return false;
    size_t body = wire_load_u32(data);
    ret->kind = (enum relay_kind)data[4];
    ret->body = wire_span(data + HEADER_SIZE, body);
    buf_consume(&l->queue, HEADER_SIZE + body); /* moves nothing: the body stays where it is */
    l->taken++;
    l->taken_bytes += HEADER_SIZE + body;
    return true;
}

/* ---- sending ---- */

static int put_ack(struct relay_link *l, struct buf *out)
{
    TRY(put_frame(out, RELAY_ACK, &l->taken, 1, wire_span(NULL, 0)));
    l->acked = l->taken;
    l->taken_bytes = 0;
    return 0;
}

/* The end of the frames allowed under way: in front of the first frame that begins behind the window. */
static size_t window_end(const struct relay_link *l)
{
    const uint8_t *data = buf_bytes(&l->unacked);
    size_t end = l->sent;

    while (end < buf_size(&l->unacked) && end < RELAY_WINDOW)
        end += HEADER_SIZE + wire_load_u32(data + end);
    return end;
}

int relay_link_output(struct relay_link *l, struct buf *out)
{
    if (!l->up)
        return 0;
    size_t end = window_end(l);
    if (l->taken > l->acked &&
        (end > l->sent || l->taken_bytes >= ACK_BYTES || l->taken - l->acked >= ACK_FRAMES) &&
        put_ack(l, out) < 0)
        return -ENOMEM;
    if (end <= l->sent)
        return 0;
    TRY(buf_append(out, buf_bytes(&l->unacked) + l->sent, end - l->sent));
    l->sent = end;
    return 0;
}
