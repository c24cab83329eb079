/*
 * The agent session's bytes: the same events however they are sliced; another kind of server is told from
 * ours at its first wrong byte; nothing above the bound is waited for.
 */

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/frame.h"

#include "tests/support/c/cmocka_fixed.h"

static const uint32_t nonce = 0x04030201;

/* Decodes everything, arriving in slices of that size; appends one letter for each event to said[], and the
 * letter of the error that ended it. */
static void decode(struct frame_reader *f, const void *bytes, size_t n, size_t slice, char said[64])
{
    const uint8_t *data = bytes;
    size_t begin = 0, end = 0, n_said = 0;
    int r = FRAME_E_MORE;

    do {
        struct frame frame;
        size_t size = 0;

        if (r == FRAME_E_MORE)
            end = n - end < slice ? n : end + slice;
        r = frame_decode(f, data + begin, end - begin, &frame, &size);
        if (r == 0)
            said[n_said++] = "EOAB"[frame.kind];
        if (r == FRAME_E_MORE)
            assert_true(f->need > end - begin);
        begin += size;
    } while (r == 0 || (r == FRAME_E_MORE && end < n));
    if (r != FRAME_E_MORE)
        said[n_said++] = "  FVL"[r];
    said[n_said] = 0;
}

static void assert_agent_hears(const void *bytes, size_t n, const char *expected)
{
    for (size_t slice = 1; slice <= n; slice++) {
        struct frame_reader f;
        char said[64];

        frame_reader_init_agent(&f, nonce);
        decode(&f, bytes, n, slice, said);
        assert_string_equal(said, expected);
    }
}

static void both_sides_understand_each_other(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};

    assert_int_equal(buf_append_u32(&bytes, nonce), 0);
    assert_int_equal(frame_put_opening(&bytes), 0);
    assert_int_equal(frame_put_alive(&bytes), 0);
    assert_int_equal(frame_put_body(&bytes, "{}", 2), 0);
    assert_int_equal(frame_put_alive(&bytes), 0);
    assert_agent_hears(buf_bytes(&bytes), buf_size(&bytes), "EOABA");
    for (size_t slice = 1; slice < 20; slice++) {
        struct frame_reader f;
        char said[64];

        frame_reader_init_server(&f);
        decode(&f, buf_bytes(&bytes) + 4, buf_size(&bytes) - 4, slice, said);
        assert_string_equal(said, "OABA");
    }
}

static void a_body_is_what_was_put(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    struct frame_reader f = {.stage = FRAME_STAGE_FRAMES};
    struct frame frame;
    size_t size;

    assert_int_equal(frame_put_body(&bytes, "hello", 5), 0);
    assert_int_equal(frame_decode(&f, buf_bytes(&bytes), buf_size(&bytes), &frame, &size), 0);
    assert_int_equal(size, 9);
    assert_int_equal(frame.body.size, 5);
    assert_memory_equal(frame.body.data, "hello", 5);
}

static void the_greeting_is_what_a_store_understands(void **state)
{
    static const uint8_t expected[] = {0, 0xCE, 0xF7, 0x85, 0x3C, 13, 1, 2, 3, 4};
    _cleanup_(buf_finish) struct buf bytes = {0};

    assert_int_equal(frame_put_greeting(&bytes, nonce), 0);
    assert_int_equal(buf_size(&bytes), sizeof(expected));
    assert_memory_equal(buf_bytes(&bytes), expected, sizeof(expected));
}

static void strangers_are_told_at_the_first_wrong_byte(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *said;
    } cases[] = {
        {"HTTP/1.1 400 Bad Request\r\n", 26, "F"},
        {"SSH-2.0-OpenSSH_9.2\r\n", 21, "F"},
        {"\1\2\3", 3, ""},
        {"\1\2\3\5", 4, "F"},
        {"\1\2\3\4", 4, "E"},
        {"\1\2\3\4\0\0", 6, "EF"},
        {"\1\2\3\4\xC5"
         "crunch",
         11, "EF"},
        {"\1\2\3\4\xC5"
         "crun/2\n",
         12, "EV"},
        {"\1\2\3\4\xC5"
         "crun/1\r",
         12, "EF"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_agent_hears(cases[i].bytes, cases[i].n, cases[i].said);
}

static void another_version_is_named(void **state)
{
    struct frame_reader f;
    struct frame frame;
    size_t size;

    frame_reader_init_server(&f);
    assert_int_equal(frame_decode(&f,
                                  (const uint8_t *)"\xC5"
                                                   "crun/7\n",
                                  8, &frame, &size),
                     FRAME_E_VERSION);
    assert_int_equal(f.version, '7');
    frame_reader_init_server(&f);
    assert_int_equal(frame_decode(&f,
                                  (const uint8_t *)"\xC5"
                                                   "crun/\1\n",
                                  8, &frame, &size),
                     FRAME_E_VERSION);
    assert_int_equal(f.version, '?');
}

static void bodies_are_bounded(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    _cleanup_free_ uint8_t *body = calloc(1, FRAME_BODY_MAX + 1);
    struct frame_reader f = {.stage = FRAME_STAGE_FRAMES};
    struct frame frame;
    size_t size;

    assert_non_null(body);
    assert_int_equal(frame_put_body(&bytes, body, FRAME_BODY_MAX + 1), -EMSGSIZE);
    assert_int_equal(frame_put_body(&bytes, body, 0), -EINVAL);
    assert_int_equal(buf_size(&bytes), 0);
    assert_int_equal(frame_put_body(&bytes, body, FRAME_BODY_MAX), 0);
    assert_int_equal(frame_decode(&f, buf_bytes(&bytes), buf_size(&bytes), &frame, &size), 0);
    assert_int_equal(frame.body.size, FRAME_BODY_MAX);
    buf_consume(&bytes, buf_size(&bytes));
    assert_int_equal(buf_append_u32(&bytes, FRAME_BODY_MAX + 1), 0);
    assert_int_equal(frame_decode(&f, buf_bytes(&bytes), 4, &frame, &size), FRAME_E_LONG);
    assert_int_equal(f.need, FRAME_BODY_MAX + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_understand_each_other),
        cmocka_unit_test(a_body_is_what_was_put),
        cmocka_unit_test(the_greeting_is_what_a_store_understands),
        cmocka_unit_test(strangers_are_told_at_the_first_wrong_byte),
        cmocka_unit_test(another_version_is_named),
        cmocka_unit_test(bodies_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
