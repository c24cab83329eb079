#pragma once

/* Messages of a TCPStore by their fields. Tests alone set many keys in one message. */

#include "base/buf.h"
#include "proto/client.h"

static inline int wire_put_word(struct buf *out, enum wire_op op, uint32_t word)
{
    return wire_put(out, &(struct wire_request){.op = op, .word = word});
}

static inline int wire_put_plain(struct buf *out, enum wire_op op)
{
    return wire_put(out, &(struct wire_request){.op = op});
}

static inline int wire_put_key(struct buf *out, enum wire_op op, struct wire_span key)
{
    return wire_put(out, &(struct wire_request){.op = op, .key = key});
}

static inline int wire_put_key_amount(struct buf *out, enum wire_op op, struct wire_span key, int64_t amount)
{
    return wire_put(out, &(struct wire_request){.op = op, .key = key, .amount = amount});
}

static inline int wire_put_key_value(struct buf *out, enum wire_op op, struct wire_span key,
                                     struct wire_span value)
{
    return wire_put(out, &(struct wire_request){.op = op, .key = key, .value = value});
}

static inline int wire_put_compare_set(struct buf *out, struct wire_span key, struct wire_span expected,
                                       struct wire_span desired)
{
    return wire_put(out, &(struct wire_request){
                             .op = WIRE_OP_COMPARE_SET, .key = key, .value = expected, .desired = desired});
}

/* *ret_items: the list of the request. */
static inline int make_multi_set(const struct wire_span *keys, const struct wire_span *values, size_t n,
                                 struct buf *ret_items, struct wire_request *ret)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        r = wire_put_vec(ret_items, keys[i]);
        r = r ? r : wire_put_vec(ret_items, values[i]);
    }
    *ret = (struct wire_request){
        .op = WIRE_OP_MULTI_SET, .n_items = n, .items = wire_span(buf_bytes(ret_items), buf_size(ret_items))};
    return r;
}

static inline int wire_put_multi_set(struct buf *out, const struct wire_span *keys,
                                     const struct wire_span *values, size_t n)
{
    struct wire_request request;
    struct buf items = {0};
    int r = make_multi_set(keys, values, n, &items, &request);

    r = r ? r : wire_put(out, &request);
    buf_finish(&items);
    return r;
}

static inline int client_multi_set(struct client *c, const struct wire_span *keys,
                                   const struct wire_span *values, size_t n)
{
    struct wire_request request;
    struct buf items = {0};
    int r = make_multi_set(keys, values, n, &items, &request);

    r = r ? r : client_request(c, &request);
    buf_finish(&items);
    return r;
}
