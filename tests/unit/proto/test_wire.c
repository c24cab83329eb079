/*
 * The request codec: what is said is what is understood, however it is sliced, and what is too long is
 * refused as soon as its length is there.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/wire.h"
#include "tests/support/c/transcript.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct wire_limits default_limits = WIRE_LIMITS_DEFAULT;

#define SPAN(text) ((struct wire_span){(const uint8_t *)(text), sizeof(text) - 1})

static void assert_span_equal(struct wire_span a, struct wire_span b)
{
    assert_int_equal(a.size, b.size);
    if (a.size > 0)
        assert_memory_equal(a.data, b.data, a.size);
}

/* Decodes one whole message that must be the entire buf. */
static struct wire_request decode_all(const struct buf *bytes)
{
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size = 0;

    assert_int_equal(
        wire_decode(&scanner, &default_limits, buf_bytes(bytes), buf_size(bytes), &request, &size), 0);
    assert_int_equal(size, buf_size(bytes));
    return request;
}

/* Appends the message that the decoded request describes. */
static void encode(struct buf *out, const struct wire_request *request)
{
    struct wire_span list = request->items, vec;
    size_t n = 0;

    while (wire_next_key(&list, &vec))
        n++;
    assert_int_equal(n, request->n_items * (request->op == WIRE_OP_MULTI_SET ? 2 : 1));
    assert_int_equal(list.size, 0);
    assert_int_equal(wire_put(out, request), 0);
}

/* ------------------------------------------------------------------ said and understood */

/* One message of each kind, the bytes written out by hand from the protocol's description. */
static const struct {
    const char *bytes;
    size_t size;
    enum wire_op op;
} messages[] = {
#define MESSAGE(op, text)                                                                                    \
    {                                                                                                        \
        text, sizeof(text) - 1, op                                                                           \
    }
    MESSAGE(WIRE_OP_VALIDATE, "\x00\xce\xf7\x85\x3c"),
    MESSAGE(WIRE_OP_SET, "\x01\x02\0\0\0\0\0\0\0/k\x03\0\0\0\0\0\0\0one"),
    MESSAGE(WIRE_OP_COMPARE_SET, "\x02\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0a\x02\0\0\0\0\0\0\0bc"),
    MESSAGE(WIRE_OP_GET, "\x03\x02\0\0\0\0\0\0\0/k"),
    MESSAGE(WIRE_OP_ADD, "\x04\x02\0\0\0\0\0\0\0/k\xfe\xff\xff\xff\xff\xff\xff\xff"),
    MESSAGE(WIRE_OP_CHECK, "\x05\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k\x02\0\0\0\0\0\0\0/m"),
    MESSAGE(WIRE_OP_WAIT, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"),
    MESSAGE(WIRE_OP_GETNUMKEYS, "\x07"),
    MESSAGE(WIRE_OP_DELETE_KEY, "\x08\x00\0\0\0\0\0\0\0"),
    MESSAGE(WIRE_OP_APPEND, "\x09\x02\0\0\0\0\0\0\0/k\x00\0\0\0\0\0\0\0"),
    MESSAGE(WIRE_OP_MULTI_GET, "\x0a\x00\0\0\0\0\0\0\0"),
    MESSAGE(WIRE_OP_MULTI_SET,
            "\x0b\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0\0"
            "1\x01\0\0\0\0\0\0\0b\x00\0\0\0\0\0\0\0"),
    MESSAGE(WIRE_OP_CANCEL_WAIT, "\x0c"),
    MESSAGE(WIRE_OP_PING, "\x0d\x13\x55\x00\x00"),
    MESSAGE(WIRE_OP_QUEUE_PUSH, "\x0e\x02\0\0\0\0\0\0\0/q\x03\0\0\0\0\0\0\0one"),
    MESSAGE(WIRE_OP_QUEUE_POP, "\x0f\x02\0\0\0\0\0\0\0/q"),
    MESSAGE(WIRE_OP_QUEUE_LEN, "\x10\x02\0\0\0\0\0\0\0/q"),
    MESSAGE(WIRE_OP_LIST_KEYS, "\x11"),
    MESSAGE(WIRE_OP_BARRIER, "\x12\x02\0\0\0\0\0\0\0/b\x04\0\0\0\0\0\0\0"),
};
_Static_assert(ARRAY_SIZE(messages) == WIRE_OP_COUNT, "a message of each kind");

static void test_fields(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    struct wire_span keys[] = {SPAN("/k"), SPAN("")}, values[] = {SPAN("\0\xff"), SPAN("v")};
    struct wire_span key, value;
    struct wire_request request;

    assert_int_equal(wire_put_word(&bytes, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC), 0);
    request = decode_all(&bytes);
    assert_int_equal(request.op, WIRE_OP_VALIDATE);
    assert_int_equal(request.word, WIRE_VALIDATE_MAGIC);

    buf_reset(&bytes);
    assert_int_equal(wire_put_key_amount(&bytes, WIRE_OP_ADD, keys[0], INT64_MIN), 0);
    request = decode_all(&bytes);
    assert_int_equal(request.op, WIRE_OP_ADD);
    assert_true(request.amount == INT64_MIN);
    assert_span_equal(request.key, keys[0]);

    buf_reset(&bytes);
    assert_int_equal(wire_put_compare_set(&bytes, keys[0], values[0], values[1]), 0);
    request = decode_all(&bytes);
    assert_span_equal(request.key, keys[0]);
    assert_span_equal(request.value, values[0]);
    assert_span_equal(request.desired, values[1]);

    buf_reset(&bytes);
    assert_int_equal(wire_put_multi_set(&bytes, keys, values, 2), 0);
    request = decode_all(&bytes);
    assert_int_equal(request.n_items, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(wire_next_pair(&request.items, &key, &value));
        assert_span_equal(key, keys[i]);
        assert_span_equal(value, values[i]);
    }
    assert_false(wire_next_pair(&request.items, &key, &value));
}

static void test_messages_by_hand(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
        _cleanup_(buf_finish) struct buf bytes = {0}, again = {0};
        struct wire_request request;

        assert_int_equal(buf_append(&bytes, messages[i].bytes, messages[i].size), 0);
        request = decode_all(&bytes);
        assert_int_equal(request.op, messages[i].op);
        encode(&again, &request);
        assert_int_equal(buf_size(&again), messages[i].size);
        assert_memory_equal(buf_bytes(&again), messages[i].bytes, messages[i].size);
    }
}

static void test_op_names(void **state)
{
    assert_string_equal(wire_op_name(WIRE_OP_VALIDATE), "VALIDATE");
    assert_string_equal(wire_op_name(WIRE_OP_BARRIER), "BARRIER");
    assert_string_equal(wire_op_name(WIRE_OP_COUNT), "?");
    assert_string_equal(wire_op_name(255), "?");
    for (unsigned op = 0; op < WIRE_OP_COUNT; op++)
        assert_non_null(wire_op_name(op));
}

/* ------------------------------------------------------------------ slices */

/* Every proper beginning of a message asks for more, and says truthfully how much at least. */
static void test_every_truncation(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
        for (size_t n = 0; n < messages[i].size; n++) {
            _cleanup_free_ uint8_t *part = malloc(n + 1); /* exact size: a read beyond is seen */
            struct wire_scanner scanner = {0};
            struct wire_request request;
            size_t size;

            memcpy(part, messages[i].bytes, n);
            assert_int_equal(wire_decode(&scanner, &default_limits, part, n, &request, &size), WIRE_E_MORE);
            assert_true(scanner.need > n);
            assert_true(scanner.need <= messages[i].size);
        }
    }
}

static void test_one_byte_slices(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
        struct wire_scanner scanner = {0};
        struct wire_request request;
        size_t size = 0;

        for (size_t n = 0; n < messages[i].size; n++) {
            _cleanup_free_ uint8_t *moved = malloc(n + 1); /* another address each time */

            memcpy(moved, messages[i].bytes, n);
            assert_int_equal(wire_decode(&scanner, &default_limits, moved, n, &request, &size), WIRE_E_MORE);
        }
        assert_int_equal(wire_decode(&scanner, &default_limits, (const uint8_t *)messages[i].bytes,
                                     messages[i].size, &request, &size),
                         0);
        assert_int_equal(size, messages[i].size);
        assert_int_equal(request.op, messages[i].op);
        /* Ready for the next message. */
        assert_int_equal(scanner.position, 0);
        assert_int_equal(scanner.items_left, 0);
    }
}

/* What decoding costs must not depend on the slices: the place inside a list is kept. */
static void test_place_in_a_list_is_kept(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    struct wire_span keys[] = {SPAN("/first"), SPAN("/second"), SPAN("/third")};
    size_t after_second = 1 + 8 + (8 + 6) + (8 + 7);
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size;

    assert_int_equal(wire_put_keys(&bytes, WIRE_OP_WAIT, keys, 3), 0);
    assert_int_equal(
        wire_decode(&scanner, &default_limits, buf_bytes(&bytes), after_second + 3, &request, &size),
        WIRE_E_MORE);
    assert_int_equal(scanner.position, after_second);
    assert_int_equal(scanner.items_left, 1);
    assert_int_equal(scanner.need, after_second + 8);
    /* The walked part is not looked at again, except for the type and the count. */
    memset(bytes.data + bytes.begin + 9, 0xff, after_second - 9);
    assert_int_equal(
        wire_decode(&scanner, &default_limits, buf_bytes(&bytes), buf_size(&bytes), &request, &size), 0);
    assert_int_equal(request.n_items, 3);
    assert_int_equal(size, buf_size(&bytes));
}

static void test_messages_in_a_row(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    struct wire_scanner scanner = {0};

    for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
        assert_int_equal(buf_append(&bytes, messages[i].bytes, messages[i].size), 0);
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
        struct wire_request request;
        size_t size;

        assert_int_equal(
            wire_decode(&scanner, &default_limits, buf_bytes(&bytes), buf_size(&bytes), &request, &size), 0);
        assert_int_equal(request.op, messages[i].op);
        assert_int_equal(size, messages[i].size);
        buf_consume(&bytes, size);
    }
    assert_int_equal(buf_size(&bytes), 0);
}

/* ------------------------------------------------------------------ limits */

struct limit_case {
    const char *name;
    enum wire_op op;
    const char *before; /* bytes between the type and the length field under test */
    size_t n_before;
    uint64_t limit;
};

#define BEFORE(text) .before = (text), .n_before = sizeof(text) - 1

/* Every length or count field there is. */
static const struct limit_case limit_cases[] = {
    {"SET key", WIRE_OP_SET, .limit = 8192},
    {"SET value", WIRE_OP_SET, BEFORE("\x01\0\0\0\0\0\0\0k"), .limit = 8388608},
    {"COMPARE_SET key", WIRE_OP_COMPARE_SET, .limit = 8192},
    {"COMPARE_SET expected", WIRE_OP_COMPARE_SET, BEFORE("\x01\0\0\0\0\0\0\0k"), .limit = 8388608},
    {"COMPARE_SET desired", WIRE_OP_COMPARE_SET, BEFORE("\x01\0\0\0\0\0\0\0k\0\0\0\0\0\0\0\0"),
     .limit = 8388608},
    {"GET key", WIRE_OP_GET, .limit = 8192},
    {"ADD key", WIRE_OP_ADD, .limit = 8192},
    {"CHECK count", WIRE_OP_CHECK, .limit = 131072},
    {"CHECK key", WIRE_OP_CHECK, BEFORE("\x01\0\0\0\0\0\0\0"), .limit = 8192},
    {"WAIT count", WIRE_OP_WAIT, .limit = 131072},
    {"WAIT second key", WIRE_OP_WAIT, BEFORE("\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k"), .limit = 8192},
    {"DELETE_KEY key", WIRE_OP_DELETE_KEY, .limit = 8192},
    {"APPEND key", WIRE_OP_APPEND, .limit = 8192},
    {"APPEND value", WIRE_OP_APPEND, BEFORE("\x01\0\0\0\0\0\0\0k"), .limit = 8388608},
    {"MULTI_GET count", WIRE_OP_MULTI_GET, .limit = 131072},
    {"MULTI_GET key", WIRE_OP_MULTI_GET, BEFORE("\x01\0\0\0\0\0\0\0"), .limit = 8192},
    {"MULTI_SET count", WIRE_OP_MULTI_SET, .limit = 131072},
    {"MULTI_SET key", WIRE_OP_MULTI_SET, BEFORE("\x01\0\0\0\0\0\0\0"), .limit = 8192},
    {"MULTI_SET value", WIRE_OP_MULTI_SET, BEFORE("\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k"), .limit = 8388608},
    {"MULTI_SET second key", WIRE_OP_MULTI_SET,
     BEFORE("\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\x01\0\0\0\0\0\0\0v"), .limit = 8192},
    {"QUEUE_PUSH key", WIRE_OP_QUEUE_PUSH, .limit = 8192},
    {"QUEUE_PUSH value", WIRE_OP_QUEUE_PUSH, BEFORE("\x01\0\0\0\0\0\0\0k"), .limit = 8388608},
    {"QUEUE_POP key", WIRE_OP_QUEUE_POP, .limit = 8192},
    {"QUEUE_LEN key", WIRE_OP_QUEUE_LEN, .limit = 8192},
    {"BARRIER key", WIRE_OP_BARRIER, .limit = 8192},
};

/* The message up to and including the length field with this value: what does the decoder say? */
static int announce(const struct limit_case *c, uint64_t length, struct wire_scanner *ret_scanner)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size;
    int r;

    assert_int_equal(buf_append_u8(&bytes, (uint8_t)c->op), 0);
    assert_int_equal(buf_append(&bytes, c->before, c->n_before), 0);
    assert_int_equal(buf_append_u64(&bytes, length), 0);
    /* One byte less and there is nothing to object to yet. */
    r = wire_decode(&scanner, &default_limits, buf_bytes(&bytes), buf_size(&bytes) - 1, &request, &size);
    assert_int_equal(r, WIRE_E_MORE);
    r = wire_decode(&scanner, &default_limits, buf_bytes(&bytes), buf_size(&bytes), &request, &size);
    *ret_scanner = scanner;
    return r;
}

static void assert_refused(const struct limit_case *c, uint64_t length)
{
    struct wire_scanner scanner;

    if (announce(c, length, &scanner) != WIRE_E_BAD)
        fail_msg("%s: length %llu was not refused", c->name, (unsigned long long)length);
    assert_non_null(scanner.error);
    assert_true(scanner.error_value == length);
}

static void assert_accepted(const struct limit_case *c, uint64_t length)
{
    struct wire_scanner scanner;
    int r = announce(c, length, &scanner);

    if (length == 0 ? r == WIRE_E_BAD : r != WIRE_E_MORE)
        fail_msg("%s: length %llu: result %d", c->name, (unsigned long long)length, r);
}

static void test_limit_of_each_length_field(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(limit_cases); i++) {
        const struct limit_case *c = &limit_cases[i];

        for (int bit = 0; bit < 64; bit++) {
            for (int delta = -1; delta <= 1; delta++) {
                uint64_t length = (UINT64_C(1) << bit) + (uint64_t)delta;

                if (length > c->limit)
                    assert_refused(c, length);
                else
                    assert_accepted(c, length);
            }
        }
        assert_refused(c, UINT64_MAX); /* -1 as a signed count */
        assert_refused(c, c->limit + 1);
        assert_accepted(c, c->limit);
    }
}

static void test_unknown_operations(void **state)
{
    for (unsigned op = WIRE_OP_COUNT; op < 256; op++) {
        uint8_t byte = (uint8_t)op;
        struct wire_scanner scanner = {0};
        struct wire_request request;
        size_t size;

        assert_int_equal(wire_decode(&scanner, &default_limits, &byte, 1, &request, &size), WIRE_E_BAD);
        assert_string_equal(scanner.error, "unknown operation");
        assert_int_equal(scanner.error_value, op);
    }
}

/* Each field may be small enough and the whole too large. */
static void test_limit_of_the_message(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
        struct wire_limits limits = default_limits;
        const uint8_t *bytes = (const uint8_t *)messages[i].bytes;
        struct wire_scanner scanner = {0};
        struct wire_request request;
        size_t size;

        limits.message_max = messages[i].size;
        assert_int_equal(wire_decode(&scanner, &limits, bytes, messages[i].size, &request, &size), 0);
        if (messages[i].size <= 5)
            continue; /* no length in it */
        limits.message_max = messages[i].size - 1;
        assert_int_equal(wire_decode(&scanner, &limits, bytes, messages[i].size, &request, &size),
                         WIRE_E_BAD);
        assert_string_equal(scanner.error, "message longer than the limit");
        assert_true(scanner.error_value > limits.message_max);
    }
}

static void test_longest_key(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    _cleanup_free_ char *key = malloc(8192);
    struct wire_request request;

    memset(key, 'k', 8192);
    assert_int_equal(wire_put_key(&bytes, WIRE_OP_GET, wire_span(key, 8192)), 0);
    request = decode_all(&bytes);
    assert_int_equal(request.key.size, 8192);
}

static void test_most_keys(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    _cleanup_free_ struct wire_span *keys = calloc(131072, sizeof(*keys));
    struct wire_request request;
    struct wire_span key;
    size_t n_keys = 0;

    assert_int_equal(wire_put_keys(&bytes, WIRE_OP_CHECK, keys, 131072), 0);
    request = decode_all(&bytes);
    while (wire_next_key(&request.items, &key))
        n_keys++;
    assert_int_equal(n_keys, 131072);
}

/* The walkers stop at the end of what they were given, also if nobody decoded it before. */
static void test_walk_of_a_broken_list(void **state)
{
    struct wire_span key, value;
    struct wire_span list = SPAN("\x05\0\0\0\0\0\0\0/key"); /* one byte too few */
    struct wire_span half = SPAN("\x01\0\0\0\0\0\0\0k\x01\0\0\0\0\0\0");
    struct wire_span before = half;

    assert_false(wire_next_key(&list, &key));
    assert_false(wire_next_pair(&half, &key, &value));
    assert_span_equal(half, before);
}

/* ------------------------------------------------------------------ encoders without memory */

static void test_sizes_that_no_memory_holds(void **state)
{
    _cleanup_(buf_finish) struct buf out = {0};
    struct wire_span huge = {(const uint8_t *)"", SIZE_MAX - 4}, keys[2] = {huge, huge};

    assert_int_equal(buf_append_u8(&out, 7), 0);
    assert_int_equal(wire_put_vec(&out, huge), -ENOMEM);
    assert_int_equal(wire_put_key(&out, WIRE_OP_GET, huge), -ENOMEM);
    assert_int_equal(wire_put_key_value(&out, WIRE_OP_SET, huge, huge), -ENOMEM);
    assert_int_equal(wire_put_compare_set(&out, huge, huge, huge), -ENOMEM);
    assert_int_equal(wire_put_keys(&out, WIRE_OP_WAIT, keys, 2), -ENOMEM);
    assert_int_equal(wire_put_multi_set(&out, keys, keys, 2), -ENOMEM);
    assert_int_equal(buf_size(&out), 1);
    assert_int_equal(buf_bytes(&out)[0], 7);
}

/* ------------------------------------------------------------------ captures of real clients */

/* All bytes that one connection's client sent, in order. */
static void client_bytes(const struct transcript *t, int connection, struct buf *out)
{
    for (size_t i = 0; i < t->n_events; i++) {
        const struct transcript_event *e = &t->events[i];

        if (e->kind == TRANSCRIPT_CLIENT_BYTES && e->connection == connection)
            assert_int_equal(buf_append(out, e->data, e->size), 0);
    }
}

/* Decodes a stream that arrives in slices of random size; each decoded request is encoded into again. */
static void decode_in_slices(const struct buf *stream, size_t slice_max, struct buf *again)
{
    struct wire_scanner scanner = {0};
    size_t start = 0, n_there = 0, n_total = buf_size(stream);

    for (;;) {
        struct wire_request request;
        size_t size;
        int r = wire_decode(&scanner, &default_limits, buf_bytes(stream) + start, n_there - start, &request,
                            &size);

        if (r == 0) {
            encode(again, &request);
            start += size;
        } else if (r == WIRE_E_MORE && n_there < n_total) {
            size_t slice = 1 + (size_t)rand() % slice_max;

            n_there = n_total - n_there < slice ? n_total : n_there + slice;
        } else {
            break; /* the rest is a message cut off, or one that has to be refused */
        }
    }
}

static int reencode_file(void *data, const char *path)
{
    _cleanup_(transcript_finish) struct transcript t = {0};
    size_t *n_bytes = data;

    assert_int_equal(transcript_read(path, &t, NULL), 0);
    assert_true(t.n_connections > 0);
    for (int connection = 0; connection < t.n_connections; connection++) {
        _cleanup_(buf_finish) struct buf stream = {0};

        client_bytes(&t, connection, &stream);
        for (size_t slice_max = 1; slice_max < 10000; slice_max *= 9) {
            _cleanup_(buf_finish) struct buf again = {0};

            decode_in_slices(&stream, slice_max, &again);
            assert_true(buf_size(&again) <= buf_size(&stream));
            assert_memory_equal(buf_bytes(&again), buf_bytes(&stream), buf_size(&again));
            /* Only the captures of what must fail end before their end. */
            if (!strstr(path, "err-"))
                assert_int_equal(buf_size(&again), buf_size(&stream));
            *n_bytes += buf_size(&again);
        }
    }
    return 0;
}

static void test_captures(void **state)
{
    size_t n_bytes = 0;

    srand(1);
    assert_int_equal(transcript_for_each(transcript_folder(), "", reencode_file, &n_bytes), 0);
    assert_true(n_bytes > 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_messages_by_hand),
        cmocka_unit_test(test_op_names),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_one_byte_slices),
        cmocka_unit_test(test_place_in_a_list_is_kept),
        cmocka_unit_test(test_messages_in_a_row),
        cmocka_unit_test(test_limit_of_each_length_field),
        cmocka_unit_test(test_unknown_operations),
        cmocka_unit_test(test_limit_of_the_message),
        cmocka_unit_test(test_longest_key),
        cmocka_unit_test(test_most_keys),
        cmocka_unit_test(test_walk_of_a_broken_list),
        cmocka_unit_test(test_sizes_that_no_memory_holds),
        cmocka_unit_test(test_captures),
    };

    return cmocka_run_group_tests_name("proto/wire", tests, NULL, NULL);
}
