#include "launcher/front/channel_port_uv.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/minmax.h"

/* ---- writing ---- */

size_t channel_writer_size(const struct channel_writer *w)
{
    return buf_size(&w->queued) + buf_size(&w->sending);
}

static void on_writer_done(uv_write_t *write, int status)
{
    struct channel_writer *w = write->data;
    const size_t n = buf_size(&w->sending);

    buf_clear(&w->sending, CHANNEL_PAYLOAD_MAX);
    w->is_broken = w->is_broken || status < 0;
    w->on_sent(w, n);
    channel_writer_flush(w);
}

void channel_writer_flush(struct channel_writer *w)
{
    const struct buf empty = w->sending;

    if (buf_size(&w->queued) == 0 || buf_size(&w->sending) > 0)
        return;
    w->sending = w->queued;
    w->queued = empty;
    w->write.data = w;
    const uv_buf_t part = uv_buf_init((char *)buf_bytes(&w->sending), (unsigned)buf_size(&w->sending));
    int r = w->is_broken ? UV_EPIPE : uv_write(&w->write, w->to, &part, 1, on_writer_done);
    if (r < 0)
        on_writer_done(&w->write, r);
}

/* ---- ports ---- */

static size_t port_room(const struct channel_port *p)
{
    const struct channel_link *l = p->link;
    size_t room = CHANNEL_PAYLOAD_MAX;

    if (!p->reads || (!l->is_deaf && channel_writer_size(&l->out) > CHANNEL_OUT_MAX))
        return 0;
    if (!l->is_deaf && p->stream)
        room = p->stream->may_send;
    else if (!l->is_deaf && !channel_streams_have_room(&l->streams, p->open.kind))
        room = 0; /* until another stream has ended */
    return min_size(min_size(room, CHANNEL_PAYLOAD_MAX), p->left);
}

static void on_port_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    static char bytes[CHANNEL_PAYLOAD_MAX]; /* copied before the next read */

    *ret = uv_buf_init(bytes, (unsigned)port_room(handle->data));
}

static void on_port_read(uv_stream_t *pipe, ssize_t n, const uv_buf_t *bytes);

static void read_as_room(struct channel_port *p)
{
    uv_stream_t *pipe = (uv_stream_t *)&p->pipe;

    if (port_room(p) > 0)
        (void)uv_read_start(pipe, on_port_alloc, on_port_read); /* refused where the port reads already */
    else
        (void)uv_read_stop(pipe); /* cannot fail */
}

static void read_all_as_room(const struct channel_link *l)
{
    list_for_each_entry(struct channel_port, p, &l->ports, entry) read_as_room(p);
}

/* After each event of the port; closes no other port. */
static void update_port(struct channel_port *p)
{
    const bool has_written = p->has_all && (p->to.is_broken || channel_writer_size(&p->to) == 0);
    int fd;

    if (has_written && !p->reads)
        channel_port_close(p);
    if (uv_is_closing((uv_handle_t *)&p->pipe))
        return;
    if (has_written && p->open.kind == CHANNEL_CONNECTION && uv_fileno((uv_handle_t *)&p->pipe, &fd) == 0)
        (void)shutdown(fd, SHUT_WR); /* fails on a connection that is gone */
    read_as_room(p);
}

static void note_failure(struct channel_link *l, int r)
{
    if (!l->failure)
        l->failure = r;
}

int channel_port_open(struct channel_port *p)
{
    int r =
        p->stream ? 0 : channel_streams_open(&p->link->streams, &p->open, &p->link->out.queued, &p->stream);

    if (p->stream)
        p->stream->data = p;
    return r;
}

static void stop_reading(struct channel_port *p)
{
    p->reads = false;
    if (p->stream)
        note_failure(p->link, channel_stream_send_end(p->stream, &p->link->out.queued));
    update_port(p);
}

static void on_port_read(uv_stream_t *pipe, ssize_t n, const uv_buf_t *bytes)
{
    struct channel_port *p = pipe->data;
    int r = 0;

    if (n > 0) {
        r = p->link->is_deaf ? 0 : channel_port_open(p);
        if (r == 0 && !p->link->is_deaf)
            r = channel_stream_send(p->stream, bytes->base, (size_t)n, &p->link->out.queued);
        p->left -= p->left == SIZE_MAX ? 0 : (size_t)n;
        note_failure(p->link, r);
    }
    if (r || p->left == 0 || (n < 0 && n != UV_ENOBUFS)) /* ENOBUFS: no room now */
        stop_reading(p);
    else
        update_port(p);
    channel_writer_flush(&p->link->out);
}

static void on_port_sent(struct channel_writer *w, size_t n)
{
    struct channel_port *p = list_entry(w, struct channel_port, to);

    if (p->stream)
        note_failure(p->link, channel_stream_grant(p->stream, n, &p->link->out.queued));
    update_port(p);
    channel_writer_flush(&p->link->out);
}

static void on_port_closed(uv_handle_t *handle)
{
    struct channel_port *p = handle->data;

    buf_finish(&p->to.queued);
    buf_finish(&p->to.sending);
    free(p);
}

void channel_port_close(struct channel_port *p)
{
    struct channel_link *l = p->link;

    if (uv_is_closing((uv_handle_t *)&p->pipe))
        return;
    const bool had_room = channel_streams_have_room(&l->streams, p->open.kind);
    if (p->stream && !channel_streams_drop_ended(&l->streams, p->stream))
        p->stream->data = NULL;
    p->stream = NULL;
    p->to.is_broken = true;
    list_unlink(&p->entry);
    uv_close((uv_handle_t *)&p->pipe, on_port_closed);
    if (!had_room)
        read_all_as_room(l);
}

int channel_port_create(struct channel_link *l, int fd, const struct channel_open *open,
                        struct channel_stream *stream)
{
    struct channel_port *p = calloc(1, sizeof(*p));

    if (!p) {
        (void)close(fd); /* nothing was written */
        return -ENOMEM;
    }
    *p = (struct channel_port){.link = l,
                               .to = {.to = (uv_stream_t *)&p->pipe, .on_sent = on_port_sent},
                               .open = *open,
                               .stream = stream,
                               .left = SIZE_MAX,
                               .reads = channel_kind_is_sent(open->kind, l->streams.is_far),
                               .has_all = !channel_kind_is_sent(open->kind, !l->streams.is_far)};
    (void)uv_pipe_init(l->out.to->loop, &p->pipe, 0); /* cannot fail */
    p->pipe.data = p;
    list_append(&l->ports, &p->entry);
    int r = uv_pipe_open(&p->pipe, fd);
    if (r) {
        (void)close(fd); /* as above */
        p->stream = NULL;
        channel_port_close(p);
        return r;
    }
    if (stream)
        stream->data = p;
    update_port(p);
    return 0;
}

int channel_port_take(struct channel_port *p, const struct channel_frame *frame)
{
    int r = frame->kind == CHANNEL_DATA ? buf_append(&p->to.queued, frame->bytes, frame->n) : 0;

    p->has_all = p->has_all || frame->kind == CHANNEL_END_OF_STREAM;
    channel_writer_flush(&p->to);
    update_port(p);
    return r;
}

void channel_port_drain(struct channel_port *p)
{
    int fd, n = 0;

    p->has_all = p->to.is_broken = true;
    if (p->reads && uv_fileno((uv_handle_t *)&p->pipe, &fd) == 0)
        (void)ioctl(fd, FIONREAD, &n); /* cannot fail for a pipe or socket */
    p->left = (size_t)n;
    if (n == 0)
        stop_reading(p);
}

/* ---- ends ---- */

static void on_link_sent(struct channel_writer *w, size_t n)
{
    struct channel_link *l = list_entry(w, struct channel_link, out);

    if (channel_writer_size(w) <= CHANNEL_OUT_MAX && channel_writer_size(w) + n > CHANNEL_OUT_MAX)
        read_all_as_room(l);
}

void channel_link_init(struct channel_link *l, bool is_far, uv_stream_t *to)
{
    *l = (struct channel_link){.out = {.to = to, .on_sent = on_link_sent}};
    channel_streams_init(&l->streams, is_far);
    list_init(&l->ports);
}

int channel_link_take(struct channel_link *l, channel_frame_fn *on_frame, void *data)
{
    struct channel_frame frame;
    size_t size;
    int r = 1;

    while (r == 1 && !l->is_over) {
        r = channel_frame_take(buf_bytes(&l->in), buf_size(&l->in), !l->streams.is_far, &frame, &size);
        if (r != 1)
            break;
        r = on_frame(data, &frame);
        buf_consume(&l->in, size);
        r = r < 0 ? r : 1;
    }
    return r < 0 ? r : 0;
}

void channel_link_close(struct channel_link *l, enum channel_stream_kind kind)
{
    list_for_each_entry_safe(struct channel_port, p, &l->ports, entry)
    {
        if (p->open.kind == kind)
            channel_port_close(p);
    }
}

void channel_link_go_deaf(struct channel_link *l)
{
    l->is_deaf = true;
    channel_link_close(l, CHANNEL_CONNECTION);
    read_all_as_room(l);
}

void channel_link_finish(struct channel_link *l)
{
    channel_streams_finish(&l->streams);
    buf_finish(&l->in);
    buf_finish(&l->out.queued);
    buf_finish(&l->out.sending);
}
