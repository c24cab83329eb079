#include "launcher/front/front_stdin_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/minmax.h"
#include "launcher/front/host_channel_uv.h"

struct front_stdin {
    uv_poll_t poll;
    uv_fs_t file_read; /* of a regular file, which cannot be polled */
    bool is_file, is_reading, is_over, is_closing;
    struct host_channel *channel;
    struct channel_stream *stream; /* NULL: no host wants the bytes */
    char bytes[CHANNEL_PAYLOAD_MAX];
};

static void end_stdin(struct front_stdin *s)
{
    s->is_over = true;
    if (!s->stream)
        return;
    (void)channel_stream_send_end(s->stream, host_channel_out(s->channel));
    host_channel_flush(s->channel);
    (void)channel_streams_drop_ended(&host_channel_link(s->channel)->streams, s->stream);
    s->stream = NULL;
}

static void pass_stdin(struct front_stdin *s, ssize_t n)
{
    if (n <= 0) {
        end_stdin(s);
        return;
    }
    if (!s->stream)
        return; /* its host was lost during the read */
    (void)channel_stream_send(s->stream, s->bytes, (size_t)n, host_channel_out(s->channel));
    host_channel_flush(s->channel);
}

static bool is_background(void)
{
    pid_t foreground = tcgetpgrp(STDIN_FILENO);

    return foreground >= 0 && foreground != getpgrp();
}

static void on_stdin_read(uv_fs_t *request)
{
    struct front_stdin *s = request->data;
    ssize_t n = request->result;

    uv_fs_req_cleanup(request);
    s->is_reading = false;
    if (s->is_closing) {
        free(s);
        return;
    }
    pass_stdin(s, n);
    front_stdin_go_on(s);
}

static void on_stdin_ready(uv_poll_t *poll, int status, int events)
{
    struct front_stdin *s = poll->data;

    (void)uv_poll_stop(poll); /* this and other calls for the handle cannot fail */
    s->is_reading = false;
    if (is_background())
        return; /* a read would stop crun; front_stdin_go_on() tries again */
    ssize_t n = read(STDIN_FILENO, s->bytes, s->stream ? min_size(s->stream->may_send, sizeof(s->bytes)) : 0);
    bool is_early = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (!is_early && s->stream)
        pass_stdin(s, n);
    front_stdin_go_on(s);
}

void front_stdin_go_on(struct front_stdin *s)
{
    bool has_room = s->stream && s->stream->may_send > 0;

    if (s->is_over || s->is_reading || !has_room)
        return;
    uv_buf_t room = uv_buf_init(s->bytes, (unsigned)min_size(s->stream->may_send, sizeof(s->bytes)));
    if (s->is_file)
        s->is_reading =
            uv_fs_read(s->poll.loop, &s->file_read, STDIN_FILENO, &room, 1, -1, on_stdin_read) == 0;
    else
        s->is_reading = uv_poll_start(&s->poll, UV_READABLE, on_stdin_ready) == 0;
}

void front_stdin_attach(struct front_stdin *s, struct host_channel *channel, struct channel_stream *stream)
{
    s->channel = channel;
    s->stream = stream;
    if (s->is_over)
        end_stdin(s);
}

void front_stdin_detach(struct front_stdin *s, const struct host_channel *channel)
{
    if (s->channel == channel)
        s->stream = NULL;
}

static void on_stdin_closed(uv_handle_t *handle)
{
    struct front_stdin *s = handle->data;

    if (!(s->is_file && s->is_reading))
        free(s);
}

void front_stdin_close(struct front_stdin *s)
{
    if (!s)
        return;
    s->is_closing = true;
    s->stream = NULL;
    if (s->is_file)
        on_stdin_closed((uv_handle_t *)&s->poll);
    else
        uv_close((uv_handle_t *)&s->poll, on_stdin_closed);
}

int front_stdin_create(struct front_stdin **ret, uv_loop_t *loop)
{
    struct front_stdin *s = calloc(1, sizeof(*s));
    struct stat info;

    int flags = fcntl(STDIN_FILENO, F_GETFL);
    if (!s)
        return -ENOMEM;
    s->file_read.data = s;
    s->is_file = fstat(STDIN_FILENO, &info) < 0 || S_ISREG(info.st_mode) ||
                 uv_poll_init(loop, &s->poll, STDIN_FILENO) < 0; /* /dev/null cannot be polled */
    if (flags >= 0 && !s->is_file)
        (void)fcntl(STDIN_FILENO, F_SETFL, flags); /* uv_poll_init() has set O_NONBLOCK */
    s->poll.data = s;
    s->poll.loop = loop;
    *ret = s;
    return 0;
}
