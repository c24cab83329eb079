/* Frames and greetings of a channel: round trips, and a table of bytes that end the channel. */

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
    assert_memory_equal(buf_bytes(&out), "\x08\0\0\0\4\3\2\1\3\0\0\0abc", CHANNEL_HEAD + 3);
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

static void an_open_and_a_result_come_back(void **state)
{
    const struct channel_open open = {CHANNEL_STDERR, 7, 3, 2};
    const struct channel_result result = {.has_exited = true, .code = 77};
    struct channel_open open_back;
    struct channel_result result_back;
    struct buf out = {0};
    struct channel_frame frame;
    size_t size;

    (void)state;
    assert_int_equal(channel_open_append(&out, 9, &open), 0);
    assert_int_equal(channel_result_append(&out, &result), 0);
    assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), 1);
    assert_int_equal(frame.stream, 9);
    assert_int_equal(channel_open_take(&frame, &open_back), 0);
    assert_true(open_back.kind == CHANNEL_STDERR && open_back.rank == 7 && open_back.local_rank == 3 &&
                open_back.attempt == 2);
    buf_consume(&out, size);
    assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), true, &frame, &size), 1);
    assert_int_equal(channel_result_take(&frame, &result_back), 0);
    assert_true(result_back.has_exited && result_back.code == 77);
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
    {false, {CHANNEL_SIGNAL, 0, 0, 0, 0, 0, 0, 0, 2}, ""},
    {false, {CHANNEL_SECRET, 0, 0, 0, 0, 0, 0, 0, 1, 16}, ""},
    {false, {CHANNEL_DIRECTORY, 0, 0, 0, 0, 0, 0, 0, 0}, ""},
    {false, {CHANNEL_DIRECTORY, 0, 0, 0, 0, 0, 0, 0, 3}, "/\0a"},
    {false, {CHANNEL_VARIABLE, 0, 0, 0, 0, 0, 0, 0, 1}, "A"},
    {false, {CHANNEL_VARIABLE, 0, 0, 0, 0, 0, 0, 0, 4}, "A=\0b"},
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
    {CHANNEL_SECRET, 0, 0, true, false},       {CHANNEL_DIRECTORY, 0, 1, true, false},
    {CHANNEL_VARIABLE, 0, 2, true, false},     {CHANNEL_ARGUMENT, 0, 0, true, false},
    {CHANNEL_START, 0, 0, true, false},        {CHANNEL_OPEN, 1, 13, false, true},
    {CHANNEL_STDIN_WANTED, 0, 0, false, true}, {CHANNEL_DATA, 1, 1, true, true},
    {CHANNEL_END_OF_STREAM, 1, 0, true, true}, {CHANNEL_WINDOW, 1, 4, true, true},
    {CHANNEL_PING, 0, 0, true, false},         {CHANNEL_PONG, 0, 0, false, true},
    {CHANNEL_SIGNAL, 0, 1, true, false},       {CHANNEL_NOTE, 0, 1, false, true},
    {CHANNEL_RESULT, 0, 5, false, true},
};

static void an_end_takes_its_kinds_only(void **state)
{
    (void)state;
    assert_int_equal(ARRAY_SIZE(ways), CHANNEL_KIND_COUNT - 1);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        const struct way *w = &ways[i];
        struct buf out = {0};
        struct channel_frame frame;
        size_t size;

        assert_int_equal(channel_frame_append(&out, w->kind, w->stream, "aaaaaaaaaaaaa", w->n), 0);
        for (int far = 0; far < 2; far++)
            assert_int_equal(channel_frame_take(buf_bytes(&out), buf_size(&out), far, &frame, &size),
                             (far ? w->from_far : w->from_front) ? 1 : -EBADMSG);
        buf_finish(&out);
    }
}

static void an_open_of_stdin_and_an_impossible_result_are_refused(void **state)
{
    static const uint8_t stdin_open[13] = {CHANNEL_STDIN}, other_open[13] = {CHANNEL_STREAM_KIND_COUNT};
    static const uint8_t codes[][5] = {{1, 0, 1}, {0, 65}, {2, 0}, {1, 0, 0, 0, 1}};
    struct channel_open open;
    struct channel_result result;

    (void)state;
    assert_int_equal(channel_open_take(&(struct channel_frame){.bytes = stdin_open, .n = 13}, &open),
                     -EBADMSG);
    assert_int_equal(channel_open_take(&(struct channel_frame){.bytes = other_open, .n = 13}, &open),
                     -EBADMSG);
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
        assert_int_equal(channel_result_take(&(struct channel_frame){.bytes = codes[i], .n = 5}, &result),
                         -EBADMSG);
}

/* ---- the greeting ---- */

static const struct greeting_case {
    const char *bytes;
    int result;
    size_t size; /* that can be dropped, or ends with the greeting */
} greeting_cases[] = {
    {"", 0, 0},
    {"motd\nhello", 0, 10},
    {"motd\nCRUN-CHANN", 0, 4},
    {"CRUN-CHANNEL 1 1.0 x86_64 0123456789abcdef\n", 0, 42},
    {"\nCRUN-CHANNEL 1 1.0 x86_64 0123456789abcde", 0, 0},
    {"\nCRUN-CHANNEL 1 1.0 x86_64 0123456789abcdef\n", 1, 44},
    {"noise\r\n\nCRUN-CHANNEL 1 1.0 x86_64 0123456789abcdef\n\1\2", 1, 51},
    {"\nCRUN-CHANNEL 2 1.0 x86_64 0123456789abcdef more\n", -EPROTO, 0},
    {"\nCRUN-CHANNEL 1 1.0 x86_64 0123456789abcdeF\n", -EBADMSG, 0},
    {"\nCRUN-CHANNEL 1 1.0 x86_64 0123456789abcde\n", -EBADMSG, 0},
    {"\nCRUN-CHANNEL 1 1.0 x86_64 0123456789abcdef0\n", -EBADMSG, 0},
    {"\nCRUN-CHANNEL 1 1.0  0123456789abcdef\n", -EBADMSG, 0},
    {"\nCRUN-CHANNEL 1 1.0 x86\x01_64 0123456789abcdef\n", -EBADMSG, 0},
    {"\nCRUN-CHANNEL \n", -EBADMSG, 0},
    {"\nCRUN-CHANNEL 1 1.0\n", -EBADMSG, 0},
};

static void a_greeting_is_found_behind_noise(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(greeting_cases); i++) {
        const struct greeting_case *c = &greeting_cases[i];
        struct channel_greeting greeting;
        size_t size = 0;
        int r = channel_greeting_take((const uint8_t *)c->bytes, strlen(c->bytes), &greeting, &size);

        if (r != c->result || (r >= 0 && size != c->size))
            fail_msg("case %zu: %d, %zu", i, r, size);
        if (r == 1) {
            assert_string_equal(greeting.version, "1.0");
            assert_string_equal(greeting.machine, "x86_64");
            assert_string_equal(greeting.nonce, "0123456789abcdef");
        }
    }
}

static void a_greeting_without_end_is_refused(void **state)
{
    char bytes[GREETING_MAX + 32];
    struct channel_greeting greeting;
    size_t size;

    (void)state;
    memset(bytes, 'a', sizeof(bytes));
    memcpy(bytes, "\nCRUN-CHANNEL 1 ", 16);
    assert_int_equal(channel_greeting_take((uint8_t *)bytes, sizeof(bytes), &greeting, &size), -EBADMSG);
}

static void a_greeting_comes_back(void **state)
{
    const struct channel_greeting sent = {"0.13.0", "aarch64", "00112233445566ff"};
    struct channel_greeting back;
    struct buf out = {0};
    size_t size;

    (void)state;
    assert_int_equal(channel_greeting_append(&out, &sent), 0);
    assert_int_equal(channel_greeting_take(buf_bytes(&out), buf_size(&out), &back, &size), 1);
    assert_int_equal(size, buf_size(&out));
    assert_string_equal(back.version, sent.version);
    assert_string_equal(back.machine, sent.machine);
    assert_string_equal(back.nonce, sent.nonce);
    buf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_comes_back_and_each_shorter_piece_wants_more),
        cmocka_unit_test(an_open_and_a_result_come_back),
        cmocka_unit_test(a_wrong_frame_is_found_by_its_head),
        cmocka_unit_test(an_end_takes_its_kinds_only),
        cmocka_unit_test(an_open_of_stdin_and_an_impossible_result_are_refused),
        cmocka_unit_test(a_greeting_is_found_behind_noise),
        cmocka_unit_test(a_greeting_without_end_is_refused),
        cmocka_unit_test(a_greeting_comes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
