#pragma once

/*
 * The c10d TCPStore wire: what the bytes mean, for servers and clients alike. See PROTOCOL.md.
 *
 * A request is one type byte and its fields; no field has its length, so a receiver has to walk the
 * fields. struct wire_scanner keeps the place of that walk between two reads, so a message that arrives
 * in many slices is walked once, and every limit is checked as soon as the field that breaks it is there,
 * before room for what it announces is allocated.
 *
 * No I/O, no allocation (encoders append to a struct buf).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

struct buf;

#define WIRE_VALIDATE_MAGIC UINT32_C(0x3C85F7CE)

enum wire_op {
    WIRE_OP_VALIDATE = 0,
    WIRE_OP_SET = 1,
    WIRE_OP_COMPARE_SET = 2,
    WIRE_OP_GET = 3,
    WIRE_OP_ADD = 4,
    WIRE_OP_CHECK = 5,
    WIRE_OP_WAIT = 6,
    WIRE_OP_GETNUMKEYS = 7,
    WIRE_OP_DELETE_KEY = 8,
    WIRE_OP_APPEND = 9,
    WIRE_OP_MULTI_GET = 10,
    WIRE_OP_MULTI_SET = 11,
    WIRE_OP_CANCEL_WAIT = 12,
    WIRE_OP_PING = 13,
    WIRE_OP_QUEUE_PUSH = 14,
    WIRE_OP_QUEUE_POP = 15,
    WIRE_OP_QUEUE_LEN = 16,
    WIRE_OP_LIST_KEYS = 17,
    WIRE_OP_BARRIER = 18,
    WIRE_OP_COUNT
};

/* Status bytes of replies. */
enum { WIRE_CHECK_READY = 0, WIRE_CHECK_NOT_READY = 1 };
enum { WIRE_WAIT_STOP = 0, WIRE_WAIT_CANCELED = 1 };

/* Results of scanning. */
enum {
    WIRE_E_MORE = 1, /* the message is not complete yet; nothing wrong so far */
    WIRE_E_BAD,      /* unknown operation, or a limit broken: the stream cannot be continued */
};

struct wire_span {
    const uint8_t *data;
    size_t size;
};

/* One decoded request. The spans point into the bytes given to the decoder and live as long as these. */
struct wire_request {
    enum wire_op op;
    uint32_t word;            /* VALIDATE: magic; PING: nonce */
    int64_t amount;           /* ADD: amount; BARRIER: world size */
    struct wire_span key;     /* every operation on one key */
    struct wire_span value;   /* SET, APPEND, QUEUE_PUSH; COMPARE_SET: expected */
    struct wire_span desired; /* COMPARE_SET */
    size_t n_items;           /* CHECK, WAIT, MULTI_GET: keys; MULTI_SET: pairs */
    struct wire_span items;   /* the raw list; walk it with wire_next_key() / wire_next_pair() */
};

/* Place inside a message that has not arrived completely. Zeroed = at the start of a message. */
struct wire_scanner {
    size_t position;     /* inside a list: bytes of the message walked so far */
    uint64_t items_left; /* inside a list: vectors still to walk (two to a pair) */
    uint64_t need;       /* after WIRE_E_MORE: the message has at least this many bytes; a peer's claim */
    const char *error;   /* after WIRE_E_BAD: why, a constant sentence part for the log */
    uint64_t error_value;
};

/*
 * Decodes the message that starts at data[0]; n bytes of it (and perhaps of its successors) are there.
 * May be called again with more bytes (even at another address) after WIRE_E_MORE.
 * 0: *ret_request and *ret_size (length of the message) are set, the scanner is ready for the next message.
 * WIRE_E_MORE, WIRE_E_BAD: as above; the outputs are not touched.
 */
int wire_decode(struct wire_scanner *s, const struct wire_limits *limits, const uint8_t *data, size_t n,
                struct wire_request *ret_request, size_t *ret_size);

/* Walk wire_request.items of a decoded request: take the next entry off *list. False at the end. */
bool wire_next_key(struct wire_span *list, struct wire_span *ret_key);
bool wire_next_pair(struct wire_span *list, struct wire_span *ret_key, struct wire_span *ret_value);

/* "SET", "WAIT", ...; "?" beyond the table. */
const char *wire_op_name(unsigned op);

/*
 * One decoded reply. A reply does not name what it answers: the caller has to keep its requests, and replies
 * come in their order.
 */
struct wire_reply {
    enum wire_op op;
    int64_t number;         /* the i64 or u32; CHECK, WAIT, BARRIER, CANCEL_WAIT: the status byte */
    struct wire_span value; /* GET, COMPARE_SET; QUEUE_POP if number, the length before, is above 0 */
    size_t n_items;         /* MULTI_GET: values; LIST_KEYS: keys */
    struct wire_span items; /* the raw list; walk it with wire_next_key() */
};

/* False for what is never answered: VALIDATE, SET, APPEND, MULTI_SET, QUEUE_PUSH. */
bool wire_has_reply(enum wire_op op);

/*
 * As wire_decode(), for the reply to an op that has one. n_items: how many keys a MULTI_GET named, which its
 * reply does not contain; a MULTI_GET of none is answered with nothing, so its reply has 0 bytes.
 * WIRE_E_BAD: a length or count above its limit, a status that does not exist, a negative queue length.
 */
int wire_decode_reply(struct wire_scanner *s, const struct wire_limits *limits, enum wire_op op,
                      size_t n_items, const uint8_t *data, size_t n, struct wire_reply *ret_reply,
                      size_t *ret_size);

/* Encoders of requests. Each appends one whole message; 0 or -ENOMEM, the buf then holds what it held before. wire_put() takes
 * the fields of its operation alone, and lists as raw items; wire_put_keys() makes a list of keys. */
int wire_put(struct buf *out, const struct wire_request *request);
int wire_put_keys(struct buf *out, enum wire_op op, const struct wire_span *keys, size_t n_keys);

/* A vector of a reply or a request: u64 length and the bytes. */
int wire_put_vec(struct buf *out, struct wire_span value);

static inline struct wire_span wire_span(const void *data, size_t size)
{
    return (struct wire_span){.data = data, .size = size};
}

static inline uint32_t wire_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void wire_store_u32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t wire_load_u64(const uint8_t *p)
{
    return (uint64_t)wire_load_u32(p) | (uint64_t)wire_load_u32(p + 4) << 32;
}
