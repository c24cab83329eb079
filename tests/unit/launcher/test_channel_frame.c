/* Frames and the greeting of a channel: round trips, and a table of bytes that end the channel. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "launcher/front/channel_frame.h"

#include "tests/support/c/cmocka_fixed.h"

static void a_frame_comes_back_and_each_shorter_piece_wants_more(void **state)
{
    struct buf out = {0};
    struct channel_frame frame;
    size_t size = 0;

    (void)state;
    assert_int_equal(channel_frame_append(&out, CHANNEL_DATA, 0x01020304, "abc", 3), 0);
    assert_int_equal(buf_size(&out), CHANNEL_HEAD + 3);
    assert_memory_equal(buf_bytes(&out), "\x07\0\0\0\4\3\2\1\3\0\0\0abc", CHANNEL_HEAD + 3);
    for (size_t n = 0; n < buf_size(&out); n++)
        assert_int_equal(channel_frame_take(buf_bytes(&out), n, true, &frame, &size), 0);
    assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), 1);
    assert_int_equal(size, CHANNEL_HEAD + 3);
    assert_int_equal(frame.kind, CHANNEL_DATA);
    assert_int_equal(frame.stream, 0x01020304);
    assert_int_equal(frame.n, 3);
    assert_memory_equal(frame.bytes, "abc", 3);
    buf_finish(&out);
}

static void numbers_come_back(void **state)
{
    const uint32_t open[] = {CHANNEL_STDERR, 7, 3, 2}, result[] = {1, 77};
    struct buf out = {0};
    struct channel_frame frame;
    size_t size;

    (void)state;
    assert_int_equal(channel_numbers_append(&out, CHANNEL_OPEN, 9, open, 4), 0);
    assert_int_equal(channel_numbers_append(&out, CHANNEL_RESULT, 0, result, 2), 0);
    assert_memory_equal(buf_bytes(&out), "\x06\0\0\0\x09\0\0\0\x10\0\0\0\2\0\0\0\7\0\0\0\3\0\0\0\2\0\0\0",
                        CHANNEL_HEAD + 16);
    assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), 1);
    assert_int_equal(frame.stream, 9);
    assert_true(frame.open.kind == CHANNEL_STDERR && frame.open.rank == 7 && frame.open.local_rank == 3 &&
                frame.open.attempt == 2);
    buf_consume(&out, size);
    assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), 1);
    assert_true(frame.result.has_exited && frame.result.code == 77);
    buf_finish(&out);
}

/* A frame with one wrong detail. The good ones of each kind are in an_end_takes_its_kinds_only(). */
static const struct bad_frame {
    bool from_far;
    uint8_t head[CHANNEL_HEAD];
    char payload[5];
} bad_frames[] = {
    {true, {0}, ""},
    {true, {CHANNEL_KIND_COUNT}, ""},
    {true, {255}, ""},
    {true, {CHANNEL_PONG, 1}, ""},
    {true, {CHANNEL_PONG, 0, 1}, ""},
    {true, {CHANNEL_PONG, 0, 0, 1}, ""},
    {true, {CHANNEL_PONG, 0, 0, 0, 1}, ""},
    {true, {CHANNEL_PONG, 0, 0, 0, 0, 0, 0, 0, 1}, "a"},
    {true, {CHANNEL_DATA, 0, 0, 0, 1, 0, 0, 0, 0}, ""},
    {true, {CHANNEL_DATA, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1}, ""},
    {true, {CHANNEL_DATA, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1}, ""},
    {true, {CHANNEL_NOTE, 0, 0, 0, 0, 0, 0, 0, 3}, "a\0b"},
    {true, {CHANNEL_NOTE, 0, 0, 0, 0, 0, 0, 0, 1, 16}, ""},
    {true, {CHANNEL_OPEN, 0, 0, 0, 1, 0, 0, 0, 12}, ""},
    {true, {CHANNEL_RESULT, 0, 0, 0, 0, 0, 0, 0, 6}, ""},
    {false, {CHANNEL_WINDOW, 0, 0, 0, 1, 0, 0, 0, 5}, ""},
    {false, {CHANNEL_START, 0, 0, 0, 0, 0, 0, 0, 4}, "\1"},
    {false, {CHANNEL_SIGNAL, 0, 0, 0, 0, 0, 0, 0, 1}, "\2"},
    {false, {CHANNEL_SIGNAL, 0, 0, 0, 0, 0, 0, 0, 4}, "\0"},
    {false, {CHANNEL_SIGNAL, 0, 0, 0, 0, 0, 0, 0, 4}, "\x41"},
    {false, {CHANNEL_SECRET, 0, 0, 0, 0, 0, 0, 0, 1, 16}, ""},
    {false, {CHANNEL_DIRECTORY, 0, 0, 0, 0, 0, 0, 0, 0}, ""},
    {false, {CHANNEL_DIRECTORY, 0, 0, 0, 0, 0, 0, 0, 3}, "/\0a"},
    {false, {CHANNEL_VARIABLE, 0, 0, 0, 0, 0, 0, 0, 1}, "A"},
    {false, {CHANNEL_VARIABLE, 0, 0, 0, 0, 0, 0, 0, 4}, "A=\0b"},
    {false, {CHANNEL_VARIABLE, 0, 0, 0, 0, 0, 0, 0, 2}, "AB"},
    {false, {CHANNEL_VARIABLE, 0, 0, 0, 0, 0, 0, 0, 3}, "=AB"},
    {false, {CHANNEL_ARGUMENT, 0, 0, 0, 0, 0, 0, 0, 2}, "a\0"},
};

static void a_wrong_frame_is_found_by_its_head(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad_frames); i++) {
        const struct bad_frame *bad = &bad_frames[i];
        uint8_t bytes[CHANNEL_HEAD + 4] = {0};
        struct channel_frame frame;
        size_t size;

        memcpy(bytes, bad->head, CHANNEL_HEAD);
        memcpy(bytes + CHANNEL_HEAD, bad->payload, bad->head[8] <= 4 ? bad->head[8] : 0);
        if (channel_frame_take(bytes, sizeof(bytes), bad->from_far, &frame, &size) != -EBADMSG)
            fail_msg("frame %zu of the table was taken", i);
    }
}

static const struct way {
    enum channel_kind kind;
    uint32_t stream;
    uint8_t n;
    bool from_front, from_far;
} ways[] = {
    {CHANNEL_SECRET, 0, 0, true, false},   {CHANNEL_DIRECTORY, 0, 1, true, false},
    {CHANNEL_VARIABLE, 0, 2, true, false}, {CHANNEL_ARGUMENT, 0, 0, true, false},
    {CHANNEL_START, 0, 8, true, false},    {CHANNEL_OPEN, 1, 16, false, true},
    {CHANNEL_DATA, 1, 1, true, true},      {CHANNEL_END_OF_STREAM, 1, 0, true, true},
    {CHANNEL_WINDOW, 1, 4, true, true},    {CHANNEL_PING, 0, 0, true, false},
    {CHANNEL_PONG, 0, 0, false, true},     {CHANNEL_SIGNAL, 0, 4, true, false},
    {CHANNEL_NOTE, 0, 1, false, true},     {CHANNEL_RESULT, 0, 8, false, true},
};

static const char *payload_of(enum channel_kind kind)
{
    static const char small[16] = "\1\0\0\0\1";

    return kind == CHANNEL_VARIABLE ? "A=" : kind == CHANNEL_NOTE || kind == CHANNEL_DIRECTORY ? "a" : small;
}

static void an_end_takes_its_kinds_only(void **state)
{
    (void)state;
    assert_int_equal(ARRAY_SIZE(ways), CHANNEL_KIND_COUNT - 1);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        const struct way *w = &ways[i];
        struct buf out = {0};
        struct channel_frame frame;
        size_t size;

        assert_int_equal(channel_frame_append(&out, w->kind, w->stream, payload_of(w->kind), w->n), 0);
        for (int far = 0; far < 2; far++)
            assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), far, &frame, &size),
                             (far ? w->from_far : w->from_front) ? 1 : -EBADMSG);
        buf_finish(&out);
    }
}

static void an_open_of_no_kind_and_an_impossible_result_are_refused(void **state)
{
    static const uint32_t open[] = {CHANNEL_STREAM_KIND_COUNT, 0, 0, 0},
                          results[][2] = {{1, 256}, {0, 65}, {2, 0}, {1, 1 << 24}};
    struct buf out = {0};
    struct channel_frame frame;
    size_t size;

    (void)state;
    assert_int_equal(channel_numbers_append(&out, CHANNEL_OPEN, 1, open, 4), 0);
    assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), -EBADMSG);
    for (size_t i = 0; i < ARRAY_SIZE(results); i++) {
        buf_reset(&out);
        assert_int_equal(channel_numbers_append(&out, CHANNEL_RESULT, 0, results[i], 2), 0);
        assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), -EBADMSG);
    }
    buf_finish(&out);
}

static void a_greeting_has_the_own_protocol(void **state)
{
    (void)state;
    assert_int_equal(channel_greeting_check("CRUN-CHANNEL 1 0.1.0"), 1);
    assert_int_equal(channel_greeting_check("CRUN-CHANNEL 2 0.1.0"), -EPROTO);
    assert_int_equal(channel_greeting_check("CRUN-CHANNEL 12 0.1.0"), -EPROTO);
    assert_int_equal(channel_greeting_check("CRUN-CHANNEL "), -EPROTO);
    assert_int_equal(channel_greeting_check("CRUN-CHANNEL"), 0);
    assert_int_equal(channel_greeting_check(" CRUN-CHANNEL 1 0.1.0"), 0);
    assert_int_equal(channel_greeting_check(""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_comes_back_and_each_shorter_piece_wants_more),
        cmocka_unit_test(numbers_come_back),
        cmocka_unit_test(a_wrong_frame_is_found_by_its_head),
        cmocka_unit_test(an_end_takes_its_kinds_only),
        cmocka_unit_test(an_open_of_no_kind_and_an_impossible_result_are_refused),
        cmocka_unit_test(a_greeting_has_the_own_protocol),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
