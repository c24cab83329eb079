/*
 * Fuzz target: requests as a server reads them. The first byte of the input chooses the slices, the rest is
 * what a client sends. Held against each other for every message in it: the message decoded at once, decoded
 * in slices (each time in memory that ends with the slice), and encoded again.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/wire.h"
#include "tests/support/c/wire_messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert(): has to hold with NDEBUG, too. */
static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Small, so that a fuzzer finds the edges, and large enough for the seeds. */
static const struct wire_limits limits = {
    .key_max = 300, .value_max = 600, .keys_max = 64, .message_max = 1000};

/* Where slices end: their greatest size is part of the input, the rest is chance. */
struct slices {
    uint32_t state;
    uint32_t max;
};

static size_t next_slice(struct slices *s)
{
    s->state = s->state * 1664525 + 1013904223;
    return 1 + (s->state >> 16) % s->max;
}

static bool is_inside(struct wire_span span, const uint8_t *data, size_t size)
{
    return span.size == 0 || (span.data >= data && span.size <= size && span.data + span.size <= data + size);
}

static bool is_equal(struct wire_span a, const uint8_t *a_base, struct wire_span b, const uint8_t *b_base)
{
    return a.size == b.size && (a.size == 0 || a.data - a_base == b.data - b_base);
}

static void compare(const struct wire_request *a, const uint8_t *a_base, const struct wire_request *b,
                    const uint8_t *b_base)
{
    require(a->op == b->op && a->word == b->word && a->amount == b->amount && a->n_items == b->n_items);
    require(is_equal(a->key, a_base, b->key, b_base) && is_equal(a->value, a_base, b->value, b_base));
    require(is_equal(a->desired, a_base, b->desired, b_base) && is_equal(a->items, a_base, b->items, b_base));
}

/* The list holds what it says; taken apart and put together it is the same. */
static int encode_list(struct buf *out, const struct wire_request *q)
{
    struct wire_span keys[64], values[64], list = q->items;
    size_t n = 0;

    require(q->n_items <= 64);
    if (q->op == WIRE_OP_MULTI_SET) {
        while (n < q->n_items && wire_next_pair(&list, &keys[n], &values[n]))
            n++;
    } else {
        while (n < q->n_items && wire_next_key(&list, &keys[n]))
            n++;
    }
    require(n == q->n_items && list.size == 0);
    return q->op == WIRE_OP_MULTI_SET ? wire_put_multi_set(out, keys, values, n)
                                      : wire_put_keys(out, q->op, keys, n);
}

static int encode(struct buf *out, const struct wire_request *q)
{
    return q->items.data ? encode_list(out, q) : wire_put(out, q);
}

/* One message, at once. */
static int decode_whole(const uint8_t *data, size_t n, struct wire_request *ret, size_t *ret_size)
{
    _cleanup_(buf_finish) struct buf again = {0};
    struct wire_scanner scanner = {0};
    int r = wire_decode(&scanner, &limits, data, n, ret, ret_size);

    if (r == WIRE_E_MORE)
        require(scanner.need > n && scanner.need <= limits.message_max);
    if (r == WIRE_E_BAD)
        require(scanner.error);
    if (r)
        return r;
    require(*ret_size > 0 && *ret_size <= n && *ret_size <= limits.message_max);
    require(is_inside(ret->key, data, *ret_size) && is_inside(ret->value, data, *ret_size));
    require(is_inside(ret->desired, data, *ret_size) && is_inside(ret->items, data, *ret_size));
    require(encode(&again, ret) == 0 && buf_size(&again) == *ret_size);
    require(memcmp(buf_bytes(&again), data, *ret_size) == 0);
    return 0;
}

/* The same message, in slices; the bytes of each call end with the allocation. */
static void decode_sliced(const uint8_t *data, size_t n, struct slices *slices, int expected,
                          const struct wire_request *whole, size_t whole_size)
{
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size, n_there = 0;
    int r = WIRE_E_MORE;

    while (r == WIRE_E_MORE && n_there < n) {
        size_t slice = next_slice(slices);
        uint8_t *there;

        n_there = n - n_there < slice ? n : n_there + slice;
        there = malloc(n_there);
        require(there);
        memcpy(there, data, n_there);
        r = wire_decode(&scanner, &limits, there, n_there, &request, &size);
        if (r == 0) {
            require(size == whole_size);
            compare(&request, there, whole, data);
        }
        free(there);
    }
    require(r == expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_request request;
    size_t message_size;
    struct slices slices;
    int r = 0;

    if (size == 0)
        return 0;
    slices = (struct slices){.state = data[0], .max = 1 + data[0] % 40};
    data++;
    size--;
    while (r == 0 && size > 0) {
        r = decode_whole(data, size, &request, &message_size);
        decode_sliced(data, size, &slices, r, &request, message_size);
        if (r == 0) {
            data += message_size;
            size -= message_size;
        }
    }
    return 0;
}
