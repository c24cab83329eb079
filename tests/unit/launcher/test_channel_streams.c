/* The streams of a channel: windows at both ends, and what ends the channel. */

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "launcher/front/channel_streams.h"

#include "tests/support/c/cmocka_fixed.h"

static const char bytes[CHANNEL_PAYLOAD_MAX];

/* Both ends of one channel and what is on its way. */
struct both {
    struct channel_streams far, front;
    struct buf to_far, to_front;
};

static void init(struct both *b)
{
    memset(b, 0, sizeof(*b));
    channel_streams_init(&b->far, true);
    channel_streams_init(&b->front, false);
    channel_streams_limit(&b->far, 1);
    channel_streams_limit(&b->front, 1);
}

static void finish(struct both *b)
{
    channel_streams_finish(&b->far);
    channel_streams_finish(&b->front);
    buf_finish(&b->to_far);
    buf_finish(&b->to_front);
}

/* Applies the next frame on the way; returns the result, with the stream. */
static int pass(struct both *b, bool from_far, struct channel_stream **ret)
{
    struct buf *way = from_far ? &b->to_front : &b->to_far;
    struct channel_frame frame;
    size_t size;

    assert_int_equal(channel_frame_take(buf_bytes(way), buf_size(way), from_far, &frame, &size), 1);
    int r = channel_streams_apply(from_far ? &b->front : &b->far, &frame, ret);
    buf_consume(way, size);
    return r;
}

/* A frame of the other end; -EBADMSG also where the decoder refuses the frame. */
static int apply(struct channel_streams *s, enum channel_kind kind, uint32_t stream, const void *payload,
                 size_t n)
{
    struct buf way = {0};
    struct channel_frame frame;
    struct channel_stream *ret;
    size_t size;

    assert_int_equal(channel_frame_append(&way, kind, stream, payload, n), 0);
    int r = channel_frame_take(buf_bytes(&way), buf_size(&way), !s->is_far, &frame, &size);
    r = r == 1 ? channel_streams_apply(s, &frame, &ret) : r;
    buf_finish(&way);
    return r;
}

static void open_stream(struct both *b, enum channel_stream_kind kind, struct channel_stream **far,
                        struct channel_stream **front)
{
    const struct channel_open open = {.kind = kind, .rank = 5};

    assert_int_equal(channel_streams_open(&b->far, &open, &b->to_front, far), 0);
    assert_int_equal(pass(b, true, front), 0);
    assert_int_equal((*front)->open.rank, 5);
    assert_int_equal((*front)->number, (*far)->number);
}

static void output_flows_under_its_window_to_its_end(void **state)
{
    struct channel_stream *far, *front, *got;
    struct both b;

    (void)state;
    init(&b);
    open_stream(&b, CHANNEL_STDOUT, &far, &front);
    assert_int_equal(far->may_send, CHANNEL_OUTPUT_WINDOW);
    assert_int_equal(far->may_receive, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(channel_stream_send(far, bytes, CHANNEL_PAYLOAD_MAX, &b.to_front), 0);
        assert_int_equal(pass(&b, true, &got), 0);
        assert_ptr_equal(got, front);
    }
    assert_int_equal(far->may_send, 0);
    assert_int_equal(channel_stream_grant(front, CHANNEL_PAYLOAD_MAX, &b.to_far), 0);
    assert_int_equal(buf_size(&b.to_far), 0);
    assert_int_equal(channel_stream_grant(front, CHANNEL_PAYLOAD_MAX, &b.to_far), 0);
    assert_int_equal(pass(&b, false, &got), 0);
    assert_int_equal(far->may_send, CHANNEL_OUTPUT_WINDOW / 2);
    assert_int_equal(front->may_receive, CHANNEL_OUTPUT_WINDOW / 2);

    assert_int_equal(channel_stream_send_end(far, &b.to_front), 0);
    assert_int_equal(channel_stream_send_end(far, &b.to_front), 0);
    assert_true(channel_streams_drop_ended(&b.far, far));
    assert_int_equal(pass(&b, true, &got), 0);
    assert_int_equal(buf_size(&b.to_front), 0);
    assert_true(channel_streams_drop_ended(&b.front, front));
    assert_null(channel_streams_find(&b.front, 1));
    assert_int_equal(apply(&b.far, CHANNEL_WINDOW, 1, "\1\0\0\0", 4), 0); /* late */
    assert_int_equal(apply(&b.front, CHANNEL_DATA, 1, bytes, 1), -EBADMSG);
    finish(&b);
}

static void a_connection_ends_when_both_ends_have_ended_it(void **state)
{
    struct channel_stream *far, *front, *got;
    struct both b;

    (void)state;
    init(&b);
    open_stream(&b, CHANNEL_CONNECTION, &far, &front);
    assert_int_equal(channel_stream_send_end(front, &b.to_far), 0);
    assert_false(channel_streams_drop_ended(&b.front, front));
    assert_int_equal(pass(&b, false, &got), 0);
    assert_int_equal(apply(&b.far, CHANNEL_DATA, 1, bytes, 1), -EBADMSG);
    assert_int_equal(apply(&b.far, CHANNEL_END_OF_STREAM, 1, NULL, 0), -EBADMSG);
    assert_int_equal(channel_stream_send(far, bytes, 10, &b.to_front), 0);
    assert_int_equal(channel_stream_send_end(far, &b.to_front), 0);
    assert_true(channel_streams_drop_ended(&b.far, far));
    assert_int_equal(pass(&b, true, &got), 0);
    assert_int_equal(pass(&b, true, &got), 0);
    assert_true(channel_streams_drop_ended(&b.front, front));
    finish(&b);
}

static void stdin_flows_to_the_far_end(void **state)
{
    struct channel_stream *far, *front, *got;
    struct both b;

    (void)state;
    init(&b);
    open_stream(&b, CHANNEL_STDIN, &far, &front);
    assert_int_equal(front->may_send, CHANNEL_STDIN_WINDOW);
    assert_int_equal(far->may_send, 0);
    assert_int_equal(channel_stream_send(front, bytes, 7, &b.to_far), 0);
    assert_int_equal(pass(&b, false, &got), 0);
    assert_ptr_equal(got, far);
    assert_int_equal(apply(&b.front, CHANNEL_DATA, 1, bytes, 1), -EBADMSG);
    assert_int_equal(apply(&b.front, CHANNEL_END_OF_STREAM, 1, NULL, 0), -EBADMSG);
    assert_int_equal(channel_stream_send_end(front, &b.to_far), 0);
    assert_true(channel_streams_drop_ended(&b.front, front));
    assert_int_equal(pass(&b, false, &got), 0);
    assert_true(channel_streams_drop_ended(&b.far, far));
    finish(&b);
}

static void what_breaks_the_windows_ends_the_channel(void **state)
{
    static const uint8_t other_kind[16] = {CHANNEL_STREAM_KIND_COUNT}, out[16] = {CHANNEL_STDOUT};
    struct channel_stream *far, *front;
    struct both b;

    (void)state;
    init(&b);
    open_stream(&b, CHANNEL_STDERR, &far, &front);
    /* a window larger than the stream's, of a stream without DATA of that end, of a stream that never was */
    assert_int_equal(apply(&b.far, CHANNEL_WINDOW, 1, "\1\0\0\0", 4), -EBADMSG);
    assert_int_equal(apply(&b.far, CHANNEL_WINDOW, 1, "\xff\xff\xff\xff", 4), -EBADMSG);
    assert_int_equal(apply(&b.front, CHANNEL_WINDOW, 1, "\0\0\0\0", 4), -EBADMSG);
    assert_int_equal(apply(&b.far, CHANNEL_WINDOW, 2, "\0\0\0\0", 4), -EBADMSG);
    /* output from the front, and more than the window from the far end */
    assert_int_equal(apply(&b.far, CHANNEL_DATA, 1, bytes, 1), -EBADMSG);
    for (int i = 0; i < 4; i++)
        assert_int_equal(apply(&b.front, CHANNEL_DATA, 1, bytes, CHANNEL_PAYLOAD_MAX), 0);
    assert_int_equal(apply(&b.front, CHANNEL_DATA, 1, bytes, 1), -EBADMSG);
    /* numbers that are not the next, kinds that are none, frames that are not of streams */
    assert_int_equal(apply(&b.front, CHANNEL_OPEN, 1, out, 16), -EBADMSG);
    assert_int_equal(apply(&b.front, CHANNEL_OPEN, 3, out, 16), -EBADMSG);
    assert_int_equal(apply(&b.front, CHANNEL_OPEN, 0, out, 16), -EBADMSG);
    assert_int_equal(apply(&b.front, CHANNEL_OPEN, 2, other_kind, 16), -EBADMSG);
    assert_int_equal(apply(&b.front, CHANNEL_OPEN, 2, out, 16), 0);
    assert_int_equal(apply(&b.front, CHANNEL_PONG, 0, NULL, 0), -EBADMSG);
    finish(&b);
}

/* Opens streams of the kind at both ends to the bound of a host with that many workers; returns the bound. */
static uint32_t fill(struct both *b, enum channel_stream_kind kind)
{
    const struct channel_open open = {.kind = kind};
    const uint8_t out[16] = {(uint8_t)kind};
    const uint32_t first = b->far.last + 1;
    struct channel_stream *far;

    while (channel_streams_open(&b->far, &open, &b->to_front, &far) == 0)
        assert_int_equal(apply(&b->front, CHANNEL_OPEN, b->far.last, out, 16), 0);
    assert_int_equal(channel_streams_open(&b->far, &open, &b->to_front, &far), -EMFILE);
    assert_false(channel_streams_have_room(&b->front, kind));
    return b->far.last + 1 - first;
}

static void streams_are_bounded_by_the_workers_and_found_in_any_order(void **state)
{
    static const uint8_t out[16] = {CHANNEL_STDOUT};
    struct both b;

    (void)state;
    init(&b);
    assert_in_range(fill(&b, CHANNEL_CONNECTION), 2, 50);
    assert_in_range(fill(&b, CHANNEL_STDOUT), 6, 100); /* connections leave their room to output */
    const uint32_t n = b.far.last;
    for (uint32_t i = 2; i <= n; i += 2) {
        struct channel_stream *far = channel_streams_find(&b.far, i);
        assert_int_equal(channel_stream_send_end(far, &b.to_front), 0);
        far->has_received_end = true;
        assert_true(channel_streams_drop_ended(&b.far, far));
    }
    for (uint32_t i = 1; i <= n; i++)
        assert_int_equal(channel_streams_find(&b.far, i) != NULL, i % 2);
    assert_true(channel_streams_have_room(&b.far, CHANNEL_CONNECTION));
    assert_int_equal(apply(&b.front, CHANNEL_OPEN, n + 1, out, 16), -EMFILE);
    finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_flows_under_its_window_to_its_end),
        cmocka_unit_test(a_connection_ends_when_both_ends_have_ended_it),
        cmocka_unit_test(stdin_flows_to_the_far_end),
        cmocka_unit_test(what_breaks_the_windows_ends_the_channel),
        cmocka_unit_test(streams_are_bounded_by_the_workers_and_found_in_any_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
