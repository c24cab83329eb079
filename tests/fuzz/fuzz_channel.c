/*
 * Fuzz target: a host's channel, as either end reads the other one. Input: a byte that chooses the end (lowest bit: the far end
 * reads a front) and what this end does meanwhile; the rest is what the other end sends.
 *
 * A frame that is taken makes the same bytes again, streams keep to their windows, and what this end sends is taken by a second
 * table of streams as the other end has it.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "launcher/front/channel_streams.h"
#include "launcher/front/far_header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* The end that reads, and what it has sent. */
struct end {
    bool is_far, is_started;
    uint32_t random;
    struct far_header header;
    struct channel_streams streams;
    struct buf out;
};

static uint32_t next_random(struct end *e)
{
    e->random = e->random * 1664525 + 1013904223;
    return e->random >> 16;
}

static void require_same_frame(const struct channel_frame *frame, const uint8_t *bytes, size_t size)
{
    uint32_t numbers[CHANNEL_NUMBERS_MAX];
    struct buf again = {0};

    require(frame->bytes == bytes + CHANNEL_HEAD && frame->n == size - CHANNEL_HEAD);
    const bool has_numbers = frame->kind == CHANNEL_START || frame->kind == CHANNEL_OPEN ||
                             frame->kind == CHANNEL_WINDOW || frame->kind == CHANNEL_SIGNAL ||
                             frame->kind == CHANNEL_RESULT;
    memcpy(numbers, frame->numbers, sizeof(numbers));
    if (has_numbers)
        require(channel_numbers_append(&again, frame->kind, frame->stream, numbers, frame->n / 4) == 0);
    else
        require(channel_frame_append(&again, frame->kind, frame->stream, frame->bytes, frame->n) == 0);
    require(buf_size(&again) == size && memcmp(buf_bytes(&again), bytes, size) == 0);
    buf_finish(&again);
}

/* Consumes what came, sends within the window, and ends streams now and then. */
static void use_stream(struct end *e, struct channel_stream *s, const struct channel_frame *frame)
{
    static const uint8_t zeros[CHANNEL_PAYLOAD_MAX];
    const uint32_t choice = next_random(e);

    require(s->may_send <= CHANNEL_OUTPUT_WINDOW && s->may_receive <= CHANNEL_OUTPUT_WINDOW);
    if (frame->kind == CHANNEL_DATA && choice & 1)
        require(channel_stream_grant(s, frame->n, &e->out) == 0);
    if (!s->has_sent_end && s->may_send > 0 && choice & 2) {
        const size_t n = 1 + choice % CHANNEL_PAYLOAD_MAX;
        require(channel_stream_send(s, zeros, n < s->may_send ? n : s->may_send, &e->out) == 0);
    }
    if (choice % 16 == 0)
        require(channel_stream_send_end(s, &e->out) == 0);
    (void)channel_streams_drop_ended(&e->streams, s);
}

static void open_streams(struct end *e)
{
    struct channel_stream *s;

    channel_streams_limit(&e->streams, e->header.start.n_workers);
    for (unsigned kind = CHANNEL_STDIN; kind < CHANNEL_STREAM_KIND_COUNT; kind++)
        require(channel_streams_open(&e->streams, &(struct channel_open){.kind = kind, .rank = kind}, &e->out,
                                     &s) == 0);
}

/* False: the channel is over. */
static bool take_frame(struct end *e, const struct channel_frame *frame)
{
    struct channel_stream *stream;

    if (e->is_far && !e->is_started) {
        int r = far_header_take(&e->header, frame);
        require(r == 0 || r == 1 || r == -EBADMSG || r == -E2BIG);
        require(e->header.n_bytes <= CHANNEL_HEADER_MAX || r < 0);
        e->is_started = r == 1;
        if (r == 1)
            open_streams(e);
        return r >= 0;
    }
    if (frame->kind < CHANNEL_OPEN || frame->kind > CHANNEL_WINDOW)
        return true;
    int r = channel_streams_apply(&e->streams, frame, &stream);
    require(r == 0 || r == -EBADMSG || (r == -EMFILE && frame->kind == CHANNEL_OPEN));
    require(e->streams.n_connections + e->streams.n_others < 200 || e->is_far);
    if (r == 0 && stream)
        use_stream(e, stream, frame);
    return r == 0;
}

static void read_all(struct end *e, const uint8_t *data, size_t n)
{
    struct channel_frame frame;
    size_t size;

    while (channel_frame_take(data, n, !e->is_far, &frame, &size) == 1) {
        require(size <= n);
        require_same_frame(&frame, data, size);
        if (!take_frame(e, &frame))
            return;
        data += size;
        n -= size;
    }
}

/* Windows of both ends are known to this end alone, so the other end's table is only asked about forms. */
static void require_good_output(const struct end *e)
{
    const uint8_t *data = buf_bytes(&e->out);
    size_t n = buf_size(&e->out), size;
    struct channel_frame frame;

    for (; n > 0; data += size, n -= size)
        require(channel_frame_take(data, n, e->is_far, &frame, &size) == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    static struct end e;
    e = (struct end){.is_far = data[0] & 1, .random = data[0]};
    channel_streams_init(&e.streams, e.is_far);
    channel_streams_limit(&e.streams, 2); /* of a front; the far end takes the header's */
    read_all(&e, data + 1, size - 1);
    require_good_output(&e);
    channel_streams_finish(&e.streams);
    far_header_finish(&e.header);
    buf_finish(&e.out);
    return 0;
}
