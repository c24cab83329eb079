#include "launcher/front/channel_streams.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/wire.h"

static const uint32_t windows[CHANNEL_STREAM_KIND_COUNT] = {
    [CHANNEL_STDIN] = CHANNEL_STDIN_WINDOW,      [CHANNEL_STDOUT] = CHANNEL_OUTPUT_WINDOW,
    [CHANNEL_STDERR] = CHANNEL_OUTPUT_WINDOW,    [CHANNEL_AGENT_OUT] = CHANNEL_OUTPUT_WINDOW,
    [CHANNEL_AGENT_ERR] = CHANNEL_OUTPUT_WINDOW, [CHANNEL_CONNECTION] = CHANNEL_CONNECTION_WINDOW,
};

/* Whether an end sends DATA on a stream of the kind. */
static bool is_sender(enum channel_stream_kind kind, bool is_far)
{
    return kind == CHANNEL_CONNECTION || (kind == CHANNEL_STDIN) == !is_far;
}

void channel_streams_init(struct channel_streams *s, bool is_far)
{
    *s = (struct channel_streams){.is_far = is_far};
}

void channel_streams_finish(struct channel_streams *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->all[i]);
    free(s->all);
    channel_streams_init(s, s->is_far);
}

/* Index of the first stream with this number or a higher one. */
static size_t find_place(const struct channel_streams *s, uint32_t number)
{
    size_t low = 0, high = s->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (s->all[middle]->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct channel_stream *channel_streams_find(const struct channel_streams *s, uint32_t number)
{
    const size_t i = find_place(s, number);

    return i < s->n && s->all[i]->number == number ? s->all[i] : NULL;
}

static int make_room(struct channel_streams *s)
{
    const size_t capacity = s->capacity ? 2 * s->capacity : 16;

    if (s->n < s->capacity)
        return 0;
    struct channel_stream **all = realloc(s->all, capacity * sizeof(struct channel_stream *));
    if (!all)
        return -ENOMEM;
    s->all = all;
    s->capacity = capacity;
    return 0;
}

static int add_stream(struct channel_streams *s, uint32_t number, const struct channel_open *open,
                      struct channel_stream **ret)
{
    const size_t i = find_place(s, number);
    const bool sends = is_sender(open->kind, s->is_far), receives = is_sender(open->kind, !s->is_far);
    const uint32_t window = open->kind == CHANNEL_STDIN ? 0 : windows[open->kind];

    int r = s->n >= CHANNEL_STREAMS_MAX ? -EMFILE : make_room(s);
    struct channel_stream *stream = r ? NULL : malloc(sizeof(*stream));
    if (!stream)
        return r ? r : -ENOMEM;
    *stream = (struct channel_stream){.number = number,
                                      .open = *open,
                                      .may_send = sends ? window : 0,
                                      .may_receive = receives ? window : 0,
                                      .has_sent_end = !sends,
                                      .has_received_end = !receives};
    memmove(s->all + i + 1, s->all + i, (s->n - i) * sizeof(struct channel_stream *));
    s->all[i] = *ret = stream;
    s->n++;
    return 0;
}

static void remove_stream(struct channel_streams *s, struct channel_stream *stream)
{
    const size_t i = find_place(s, stream->number);

    memmove(s->all + i, s->all + i + 1, (s->n - i - 1) * sizeof(struct channel_stream *));
    s->n--;
    free(stream);
}

int channel_streams_open(struct channel_streams *s, const struct channel_open *open, struct buf *out,
                         struct channel_stream **ret)
{
    if (s->last == UINT32_MAX)
        return -EMFILE;
    int r = add_stream(s, s->last + 1, open, ret);
    if (r)
        return r;
    r = channel_open_append(out, s->last + 1, open);
    if (r)
        remove_stream(s, *ret);
    else
        s->last++;
    return r;
}

static int append_window(struct channel_stream *stream, uint32_t n, struct buf *out)
{
    const uint8_t bytes[] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    int r = channel_frame_append(out, CHANNEL_WINDOW, stream->number, bytes, sizeof(bytes));

    if (!r)
        stream->may_receive += n;
    return r;
}

int channel_streams_want_stdin(struct channel_streams *s, struct buf *out, struct channel_stream **ret)
{
    const struct channel_open open = {.kind = CHANNEL_STDIN};
    int r = add_stream(s, 0, &open, ret);

    if (r)
        return r;
    s->wants_stdin = true;
    if (s->is_far)
        r = channel_frame_append(out, CHANNEL_STDIN_WANTED, 0, NULL, 0);
    return r || !s->is_far ? r : append_window(*ret, CHANNEL_STDIN_WINDOW, out);
}

/* ---- frames of the other end ---- */

static int apply_open(struct channel_streams *s, const struct channel_frame *frame,
                      struct channel_stream **ret)
{
    struct channel_open open;

    if (frame->stream == 0 || frame->stream != s->last + 1 || channel_open_take(frame, &open) < 0)
        return -EBADMSG;
    int r = add_stream(s, frame->stream, &open, ret);
    if (!r)
        s->last++;
    return r == -EMFILE ? -EBADMSG : r;
}

static int apply_stdin_wanted(struct channel_streams *s, const struct channel_frame *frame,
                              struct channel_stream **ret)
{
    if (s->wants_stdin)
        return -EBADMSG;
    return channel_streams_want_stdin(s, NULL, ret);
}

static int apply_data(struct channel_streams *s, const struct channel_frame *frame,
                      struct channel_stream **ret)
{
    struct channel_stream *stream = *ret;

    if (!stream || stream->has_received_end || frame->n > stream->may_receive)
        return -EBADMSG;
    stream->may_receive -= (uint32_t)frame->n;
    return 0;
}

static int apply_end(struct channel_streams *s, const struct channel_frame *frame,
                     struct channel_stream **ret)
{
    if (!*ret || (*ret)->has_received_end)
        return -EBADMSG;
    (*ret)->has_received_end = true;
    return 0;
}

static int apply_window(struct channel_streams *s, const struct channel_frame *frame,
                        struct channel_stream **ret)
{
    const uint32_t n = wire_load_u32(frame->bytes);
    struct channel_stream *stream = *ret;

    if (!stream)
        return frame->stream <= s->last ? 0 : -EBADMSG;
    if (n > windows[stream->open.kind] - stream->may_send || !is_sender(stream->open.kind, s->is_far))
        return -EBADMSG;
    stream->may_send += n;
    return 0;
}

int channel_streams_apply(struct channel_streams *s, const struct channel_frame *frame,
                          struct channel_stream **ret)
{
    static int (*const handlers[CHANNEL_KIND_COUNT])(struct channel_streams *, const struct channel_frame *,
                                                     struct channel_stream **) = {
        [CHANNEL_OPEN] = apply_open,     [CHANNEL_STDIN_WANTED] = apply_stdin_wanted,
        [CHANNEL_DATA] = apply_data,     [CHANNEL_END_OF_STREAM] = apply_end,
        [CHANNEL_WINDOW] = apply_window,
    };

    *ret = channel_streams_find(s, frame->stream);
    return handlers[frame->kind] ? handlers[frame->kind](s, frame, ret) : -EBADMSG;
}

/* ---- the owner's ---- */

int channel_stream_send(struct channel_stream *stream, const void *bytes, size_t n, struct buf *out)
{
    assert(!stream->has_sent_end && n <= stream->may_send && n <= CHANNEL_PAYLOAD_MAX);
    int r = channel_frame_append(out, CHANNEL_DATA, stream->number, bytes, n);
    if (!r)
        stream->may_send -= (uint32_t)n;
    return r;
}

int channel_stream_send_end(struct channel_stream *stream, struct buf *out)
{
    int r =
        stream->has_sent_end ? 0 : channel_frame_append(out, CHANNEL_END_OF_STREAM, stream->number, NULL, 0);

    if (!r)
        stream->has_sent_end = true;
    return r;
}

int channel_stream_grant(struct channel_stream *stream, size_t n, struct buf *out)
{
    const uint32_t window = windows[stream->open.kind];

    assert(n <= window - stream->may_receive - stream->owed);
    stream->owed += (uint32_t)n;
    if (stream->has_received_end || stream->owed < window / 2)
        return 0;
    int r = append_window(stream, stream->owed, out);
    if (!r)
        stream->owed = 0;
    return r;
}

bool channel_streams_drop_ended(struct channel_streams *s, struct channel_stream *stream)
{
    const bool is_gone = stream->has_sent_end && stream->has_received_end;

    if (is_gone)
        remove_stream(s, stream);
    return is_gone;
}
