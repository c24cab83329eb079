#include "launcher/front/front_tunnel_uv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/minmax.h"
#include "launcher/front/host_channel_uv.h"

struct front_tunnel {
    uv_pipe_t pipe;
    uv_shutdown_t shutdown;
    struct host_channel *channel;
    struct channel_stream *stream; /* NULL: gone */
    bool is_reading, is_over;      /* is_over: the server has sent everything */
};

/* Bytes on their way to the server. */
struct tunnel_write {
    uv_write_t write;
    size_t n;
    uint8_t bytes[];
};

static void on_tunnel_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void front_tunnel_close(struct front_tunnel *t)
{
    if (!t || uv_is_closing((uv_handle_t *)&t->pipe))
        return;
    t->stream = NULL;
    uv_close((uv_handle_t *)&t->pipe, on_tunnel_closed);
}

static void on_tunnel_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    static char bytes[CHANNEL_PAYLOAD_MAX]; /* copied before the next read */
    const struct front_tunnel *t = handle->data;

    *ret = uv_buf_init(bytes, t->stream ? (unsigned)min_size(t->stream->may_send, sizeof(bytes)) : 0);
}

/* Without memory for a frame the server's bytes are lost: the agent sees the end of the connection, and dials again. */
static void end_tunnel_output(struct front_tunnel *t)
{
    t->is_over = true;
    (void)uv_read_stop((uv_stream_t *)&t->pipe);
    (void)channel_stream_send_end(t->stream, host_channel_out(t->channel));
    host_channel_flush(t->channel);
    struct channel_stream *stream = t->stream;
    if (channel_streams_drop_ended(host_channel_streams(t->channel), stream))
        front_tunnel_close(t);
}

static void on_tunnel_read(uv_stream_t *pipe, ssize_t n, const uv_buf_t *bytes)
{
    struct front_tunnel *t = pipe->data;

    if (n == 0 || n == UV_ENOBUFS || !t->stream)
        return;
    if (n < 0 || channel_stream_send(t->stream, bytes->base, (size_t)n, host_channel_out(t->channel)) < 0) {
        end_tunnel_output(t);
        return;
    }
    host_channel_flush(t->channel);
    if (t->stream->may_send == 0) {
        (void)uv_read_stop(pipe);
        t->is_reading = false;
    }
}

void front_tunnel_window(struct front_tunnel *t)
{
    if (t->is_reading || t->is_over || t->stream->may_send == 0)
        return;
    t->is_reading = uv_read_start((uv_stream_t *)&t->pipe, on_tunnel_alloc, on_tunnel_read) == 0;
}

static void on_tunnel_written(uv_write_t *write, int status)
{
    struct tunnel_write *w = (struct tunnel_write *)(void *)write;
    struct front_tunnel *t = write->data;

    if (t->stream && channel_stream_grant(t->stream, w->n, host_channel_out(t->channel)) == 0)
        host_channel_flush(t->channel);
    free(w);
}

int front_tunnel_data(struct front_tunnel *t, const uint8_t *bytes, size_t n)
{
    struct tunnel_write *w = malloc(sizeof(*w) + n);

    if (!w)
        return -ENOMEM;
    w->n = n;
    memcpy(w->bytes, bytes, n);
    const uv_buf_t part = uv_buf_init((char *)w->bytes, (unsigned)n);
    w->write.data = t;
    if (uv_write(&w->write, (uv_stream_t *)&t->pipe, &part, 1, on_tunnel_written) < 0)
        free(w); /* the server has closed: the end of its output follows */
    return 0;
}

void front_tunnel_end(struct front_tunnel *t)
{
    (void)uv_shutdown(&t->shutdown, (uv_stream_t *)&t->pipe, NULL); /* fails on a connection that is over */
}

/* A unix socket connects at once, or not at all (EAGAIN: too many at a time; the agent dials again). */
static int dial_server(const struct front_address *server)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), r = 0;

    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&server->name, server->size) == 0)
        return fd;
    r = -errno;
    (void)close(fd); /* nothing was sent */
    return r;
}

int front_tunnel_open(struct host_channel *channel, struct channel_stream *stream, uv_loop_t *loop,
                      const struct front_address *server)
{
    int fd = dial_server(server);
    struct front_tunnel *t = fd < 0 ? NULL : calloc(1, sizeof(*t));

    if (!t) {
        if (fd >= 0)
            (void)close(fd); /* as above */
        return fd < 0 ? fd : -ENOMEM;
    }
    t->channel = channel;
    t->stream = stream;
    (void)uv_pipe_init(loop, &t->pipe, 0); /* cannot fail */
    t->pipe.data = t;
    if (uv_pipe_open(&t->pipe, fd) < 0)
        (void)close(fd); /* reads and writes fail then */
    stream->data = t;
    front_tunnel_window(t);
    return 0;
}
