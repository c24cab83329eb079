#include "proto/frame.h"

#include <assert.h>
#include <errno.h>

#include "base/buf.h"

enum { ECHO_SIZE = 4 };

static_assert((int)FRAME_FIRST_BYTE >= (int)WIRE_OP_COUNT, "a TCPStore would take it for a request");

void frame_reader_init_agent(struct frame_reader *f, uint32_t nonce)
{
    *f = (struct frame_reader){.stage = FRAME_STAGE_ECHO, .nonce = nonce};
}

void frame_reader_init_server(struct frame_reader *f)
{
    *f = (struct frame_reader){.stage = FRAME_STAGE_OPENING};
}

static int frame_need(struct frame_reader *f, size_t need)
{
    f->need = need;
    return FRAME_E_MORE;
}

static int decode_echo(struct frame_reader *f, const uint8_t *data, size_t n, struct frame *ret,
                       size_t *ret_size)
{
    for (size_t i = 0; i < n && i < ECHO_SIZE; i++)
        if (data[i] != (uint8_t)(f->nonce >> (8 * i)))
            return FRAME_E_FOREIGN;
    if (n < ECHO_SIZE)
        return frame_need(f, ECHO_SIZE);
    f->stage = FRAME_STAGE_OPENING;
    *ret = (struct frame){.kind = FRAME_ECHO};
    *ret_size = ECHO_SIZE;
    return 0;
}

/* Another version is recognised only when all other bytes are those of an opening. */
static int decode_opening(struct frame_reader *f, const uint8_t *data, size_t n, struct frame *ret,
                          size_t *ret_size)
{
    for (size_t i = 0; i < n && i < FRAME_OPENING_SIZE; i++)
        if (i != FRAME_OPENING_VERSION_AT && data[i] != (uint8_t)FRAME_OPENING[i])
            return FRAME_E_FOREIGN;
    if (n < FRAME_OPENING_SIZE)
        return frame_need(f, FRAME_OPENING_SIZE);
    if (data[FRAME_OPENING_VERSION_AT] != (uint8_t)FRAME_OPENING[FRAME_OPENING_VERSION_AT]) {
        uint8_t version = data[FRAME_OPENING_VERSION_AT];

        f->version = version > ' ' && version < 0x7f ? (char)version : '?';
        return FRAME_E_VERSION;
    }
    f->stage = FRAME_STAGE_FRAMES;
    *ret = (struct frame){.kind = FRAME_OPENED};
    *ret_size = FRAME_OPENING_SIZE;
    return 0;
}

static int decode_frame(struct frame_reader *f, const uint8_t *data, size_t n, struct frame *ret,
                        size_t *ret_size)
{
    if (n < FRAME_HEADER_SIZE)
        return frame_need(f, FRAME_HEADER_SIZE);
    uint32_t length = wire_load_u32(data);
    if (length > FRAME_BODY_MAX) {
        f->need = length;
        return FRAME_E_LONG;
    }
    if (n - FRAME_HEADER_SIZE < length)
        return frame_need(f, FRAME_HEADER_SIZE + (size_t)length);
    ret->kind = length > 0 ? FRAME_BODY : FRAME_ALIVE;
    ret->body = wire_span(data + FRAME_HEADER_SIZE, length);
    *ret_size = FRAME_HEADER_SIZE + (size_t)length;
    return 0;
}

int frame_decode(struct frame_reader *f, const uint8_t *data, size_t n, struct frame *ret, size_t *ret_size)
{
    switch (f->stage) {
    case FRAME_STAGE_ECHO:
        return decode_echo(f, data, n, ret, ret_size);
    case FRAME_STAGE_OPENING:
        return decode_opening(f, data, n, ret, ret_size);
    default:
        return decode_frame(f, data, n, ret, ret_size);
    }
}

int frame_put_greeting(struct buf *out, uint32_t nonce)
{
    /* Room for both first, so that never only one of them is there. */
    if (!buf_reserve(out, 10))
        return -ENOMEM;
    (void)wire_put(out, &(struct wire_request){.op = WIRE_OP_VALIDATE, .word = WIRE_VALIDATE_MAGIC});
    (void)wire_put(out, &(struct wire_request){.op = WIRE_OP_PING, .word = nonce});
    return 0;
}

int frame_put_opening(struct buf *out)
{
    return buf_append(out, FRAME_OPENING, FRAME_OPENING_SIZE);
}

int frame_put_alive(struct buf *out)
{
    return buf_append_u32(out, 0);
}

int frame_put_body(struct buf *out, const void *body, size_t n)
{
    if (n == 0)
        return -EINVAL;
    if (n > FRAME_BODY_MAX)
        return -EMSGSIZE;
    if (!buf_reserve(out, FRAME_HEADER_SIZE + n))
        return -ENOMEM;
    (void)buf_append_u32(out, (uint32_t)n);
    (void)buf_append(out, body, n);
    return 0;
}
