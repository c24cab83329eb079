#include "launcher/front/channel_streams.h"

#include <assert.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"

static const uint32_t windows[CHANNEL_STREAM_KIND_COUNT] = {
    [CHANNEL_STDIN] = CHANNEL_STDIN_WINDOW,       [CHANNEL_STDOUT] = CHANNEL_OUTPUT_WINDOW,
    [CHANNEL_STDERR] = CHANNEL_OUTPUT_WINDOW,     [CHANNEL_AGENT_OUT] = CHANNEL_OUTPUT_WINDOW,
    [CHANNEL_AGENT_ERR] = CHANNEL_OUTPUT_WINDOW,  [CHANNEL_CONNECTION] = CHANNEL_CONNECTION_WINDOW,
    [CHANNEL_ERROR_FILE] = CHANNEL_OUTPUT_WINDOW, [CHANNEL_STACKS] = CHANNEL_OUTPUT_WINDOW,
    [CHANNEL_NCCL_TEXT] = CHANNEL_OUTPUT_WINDOW,  [CHANNEL_NCCL_JSON] = CHANNEL_OUTPUT_WINDOW,
};

bool channel_kind_is_sent(enum channel_stream_kind kind, bool by_far)
{
    return kind == CHANNEL_CONNECTION || (kind == CHANNEL_STDIN) == !by_far;
}

void channel_streams_init(struct channel_streams *s, bool is_far)
{
    *s = (struct channel_streams){.is_far = is_far};
    for (size_t i = 0; i < CHANNEL_BUCKETS; i++)
        list_init(&s->all[i]);
}

void channel_streams_limit(struct channel_streams *s, size_t n_workers)
{
    s->max_connections = 16 + 8 * n_workers; /* of the agent, and of the workers to their store */
    s->max_others = 64 + 4 * n_workers;      /* output of the workers, also of replaced workers, and files */
}

void channel_streams_finish(struct channel_streams *s)
{
    for (size_t i = 0; i < CHANNEL_BUCKETS; i++)
        list_for_each_entry_safe(struct channel_stream, stream, &s->all[i], entry) free(stream);
    channel_streams_init(s, s->is_far);
}

struct channel_stream *channel_streams_find(const struct channel_streams *s, uint32_t number)
{
    list_for_each_entry(struct channel_stream, stream, &s->all[number % CHANNEL_BUCKETS], entry)
    {
        if (stream->number == number)
            return stream;
    }
    return NULL;
}

static size_t *count_of(struct channel_streams *s, enum channel_stream_kind kind)
{
    return kind == CHANNEL_CONNECTION ? &s->n_connections : &s->n_others;
}

bool channel_streams_have_room(const struct channel_streams *s, enum channel_stream_kind kind)
{
    return kind == CHANNEL_CONNECTION ? s->n_connections < s->max_connections : s->n_others < s->max_others;
}

static int add_stream(struct channel_streams *s, uint32_t number, const struct channel_open *open,
                      struct channel_stream **ret)
{
    const bool sends = channel_kind_is_sent(open->kind, s->is_far),
               receives = channel_kind_is_sent(open->kind, !s->is_far);
    const uint32_t window = windows[open->kind];

    if (!channel_streams_have_room(s, open->kind))
        return -EMFILE;
    struct channel_stream *stream = *ret = malloc(sizeof(*stream));
    if (!stream)
        return -ENOMEM;
    *stream = (struct channel_stream){.number = number,
                                      .open = *open,
                                      .may_send = sends ? window : 0,
                                      .may_receive = receives ? window : 0,
                                      .has_sent_end = !sends,
                                      .has_received_end = !receives};
    list_append(&s->all[number % CHANNEL_BUCKETS], &stream->entry);
    ++*count_of(s, open->kind);
    return 0;
}

static void remove_stream(struct channel_streams *s, struct channel_stream *stream)
{
    --*count_of(s, stream->open.kind);
    list_unlink(&stream->entry);
    free(stream);
}

int channel_streams_open(struct channel_streams *s, const struct channel_open *open, struct buf *out,
                         struct channel_stream **ret)
{
    const uint32_t numbers[] = {open->kind, open->rank, open->local_rank, open->attempt};

    int r = s->last == UINT32_MAX ? -EMFILE : add_stream(s, s->last + 1, open, ret);
    return r ? r : channel_numbers_append(out, CHANNEL_OPEN, ++s->last, numbers, 4);
}

/* ---- frames of the other end ---- */

/* stream: NULL: none has the number. */
static int take_window(const struct channel_streams *s, struct channel_stream *stream,
                       const struct channel_frame *frame)
{
    if (!stream)
        return frame->stream <= s->last ? 0 : -EBADMSG;
    if (frame->window > windows[stream->open.kind] - stream->may_send ||
        !channel_kind_is_sent(stream->open.kind, s->is_far))
        return -EBADMSG;
    stream->may_send += frame->window;
    return 0;
}

int channel_streams_apply(struct channel_streams *s, const struct channel_frame *frame,
                          struct channel_stream **ret)
{
    struct channel_stream *stream = *ret = channel_streams_find(s, frame->stream);

    switch (frame->kind) {
    case CHANNEL_OPEN:
        if (frame->stream == 0 || frame->stream != s->last + 1)
            return -EBADMSG;
        return add_stream(s, ++s->last, &frame->open, ret);
    case CHANNEL_DATA:
        if (!stream || stream->has_received_end || frame->n > stream->may_receive)
            return -EBADMSG;
        stream->may_receive -= (uint32_t)frame->n;
        return 0;
    case CHANNEL_END_OF_STREAM:
        if (!stream || stream->has_received_end)
            return -EBADMSG;
        stream->has_received_end = true;
        return 0;
    default:
        return frame->kind == CHANNEL_WINDOW ? take_window(s, stream, frame) : -EBADMSG;
    }
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
    int r = channel_numbers_append(out, CHANNEL_WINDOW, stream->number, &stream->owed, 1);
    if (!r) {
        stream->may_receive += stream->owed;
        stream->owed = 0;
    }
    return r;
}

bool channel_streams_drop_ended(struct channel_streams *s, struct channel_stream *stream)
{
    const bool is_gone = stream->has_sent_end && stream->has_received_end;

    if (is_gone)
        remove_stream(s, stream);
    return is_gone;
}
