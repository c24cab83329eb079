#include "launcher/front/front_streams_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "launcher/front/front_output_uv.h"
#include "launcher/front/front_server_uv.h"
#include "launcher/front/front_stdin_uv.h"
#include "launcher/front/front_tunnel_uv.h"
#include "launcher/front/host_channel_uv.h"
#include "launcher/front/line_cutter.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"

/* What an event of a stream concerns. */
struct stream_place {
    struct front_streams *all;
    unsigned host;
    struct host_channel *channel;
    struct channel_stream *stream;
};

/* The verbs of a kind of stream. Each but `open` may be NULL. */
struct stream_service {
    int (*open)(struct stream_place *p);
    int (*data)(struct stream_place *p, const uint8_t *bytes, size_t n);
    void (*end)(struct stream_place *p); /* of the far end's bytes, or of the channel */
    void (*window)(struct stream_place *p);
};

/* ---- output of ranks ---- */

static int open_output(struct stream_place *p)
{
    front_output_open(p->all->output, p->host, p->stream->number, &p->stream->open);
    return 0;
}

static int take_output(struct stream_place *p, const uint8_t *bytes, size_t n)
{
    front_output_data(p->all->output, p->host, p->stream->number, bytes, n);
    return 0;
}

static void end_output(struct stream_place *p)
{
    front_output_close(p->all->output, p->host, p->stream->number);
}

void front_streams_grant(struct host_channel *c, uint32_t number, size_t n)
{
    struct channel_stream *stream = channel_streams_find(host_channel_streams(c), number);

    if (stream && channel_stream_grant(stream, n, host_channel_out(c)) == 0)
        host_channel_flush(c);
}

/* ---- lines of agents ---- */

static void show_line(struct front_streams *s, const struct held_line *line)
{
    char text[LINE_CUTTER_SIZE + 1];

    if (!line->is_crun) {
        (void)snprintf(text, sizeof(text), "%s\n", line->text); /* fits */
        log_lines(text);
    } else if (line->is_common) {
        log_line("%s", line->text);
    } else {
        log_line("[%s] %s", s->names[line->host], line->text);
    }
}

static void show_due(struct front_streams *s, uint64_t now_ms)
{
    struct held_line line;

    while (common_lines_next(&s->lines, now_ms, &line)) {
        show_line(s, &line);
        free(line.text);
    }
    if (s->lines.n_held == 0)
        (void)uv_timer_stop(&s->timer); /* cannot fail */
}

static void on_lines_due(uv_timer_t *timer)
{
    show_due(timer->data, uv_now(timer->loop));
}

static void on_agent_line(void *data, const char *line)
{
    const struct stream_place *p = data;
    struct front_streams *s = p->all;

    common_lines_add(&s->lines, p->host, line, uv_now(s->loop));
    if (!uv_is_active((uv_handle_t *)&s->timer))
        (void)uv_timer_start(&s->timer, on_lines_due, COMMON_LINES_DELAY_MS, COMMON_LINES_DELAY_MS / 4);
    if (s->lines.n_held == COMMON_LINES_HELD)
        show_due(s, uv_now(s->loop));
}

static int open_agent(struct stream_place *p)
{
    p->stream->data = calloc(1, sizeof(struct line_cutter));
    return p->stream->data ? 0 : -ENOMEM;
}

static int take_agent(struct stream_place *p, const uint8_t *bytes, size_t n)
{
    line_cutter_feed(p->stream->data, (const char *)bytes, n, on_agent_line, p);
    front_streams_grant(p->channel, p->stream->number, n);
    return 0;
}

static void end_agent(struct stream_place *p)
{
    line_cutter_end(p->stream->data, on_agent_line, p);
    free(steal_ptr(p->stream->data));
}

/* ---- connections, standard input ---- */

/* Refused: the agent sees the end of the connection. */
static int open_connection(struct stream_place *p)
{
    int r = p->all->server
                ? front_tunnel_open(p->channel, p->stream, p->all->loop, front_server_address(p->all->server))
                : -ECONNREFUSED;

    return r < 0 ? channel_stream_send_end(p->stream, host_channel_out(p->channel)) : 0;
}

static int take_connection(struct stream_place *p, const uint8_t *bytes, size_t n)
{
    if (p->stream->data)
        return front_tunnel_data(p->stream->data, bytes, n);
    front_streams_grant(p->channel, p->stream->number, n);
    return 0;
}

static void end_connection(struct stream_place *p)
{
    if (p->stream->data)
        front_tunnel_end(p->stream->data);
}

static void widen_connection(struct stream_place *p)
{
    if (p->stream->data)
        front_tunnel_window(p->stream->data);
}

static int open_input(struct stream_place *p)
{
    front_stdin_attach(p->all->input, p->channel, p->stream);
    return 0;
}

static void widen_input(struct stream_place *p)
{
    front_stdin_window(p->all->input, p->channel);
}

static const struct stream_service services[CHANNEL_STREAM_KIND_COUNT] = {
    [CHANNEL_STDIN] = {.open = open_input, .window = widen_input},
    [CHANNEL_STDOUT] = {open_output, take_output, end_output, NULL},
    [CHANNEL_STDERR] = {open_output, take_output, end_output, NULL},
    [CHANNEL_AGENT_OUT] = {open_agent, take_agent, end_agent, NULL},
    [CHANNEL_AGENT_ERR] = {open_agent, take_agent, end_agent, NULL},
    [CHANNEL_CONNECTION] = {open_connection, take_connection, end_connection, widen_connection},
};

/* ---- frames ---- */

static int serve(struct stream_place *p, const struct channel_frame *frame)
{
    const struct stream_service *service = &services[p->stream->open.kind];

    switch (frame->kind) {
    case CHANNEL_OPEN:
    case CHANNEL_STDIN_WANTED:
        return service->open(p);
    case CHANNEL_DATA:
        return service->data ? service->data(p, frame->bytes, frame->n) : 0;
    case CHANNEL_END_OF_STREAM:
        if (service->end)
            service->end(p);
        return 0;
    default:
        if (service->window)
            service->window(p);
        return 0;
    }
}

int front_streams_frame(struct front_streams *s, unsigned host, struct host_channel *c,
                        const struct channel_frame *frame)
{
    struct stream_place p = {.all = s, .host = host, .channel = c};
    int r = channel_streams_apply(host_channel_streams(c), frame, &p.stream);

    if (r < 0 || !p.stream)
        return r;
    r = serve(&p, frame);
    if (frame->kind != CHANNEL_END_OF_STREAM || r < 0)
        return r;
    struct front_tunnel *tunnel = p.stream->open.kind == CHANNEL_CONNECTION ? p.stream->data : NULL;
    if (channel_streams_drop_ended(host_channel_streams(c), p.stream))
        front_tunnel_close(tunnel);
    return 0;
}

void front_streams_close_host(struct front_streams *s, unsigned host, struct host_channel *c)
{
    struct channel_streams *streams = host_channel_streams(c);

    for (size_t i = 0; i < streams->n; i++) {
        struct channel_stream *stream = streams->all[i];
        struct stream_place p = {.all = s, .host = host, .channel = c, .stream = stream};

        if (stream->open.kind == CHANNEL_CONNECTION)
            front_tunnel_close(steal_ptr(stream->data));
        else if (services[stream->open.kind].end && !stream->has_received_end)
            services[stream->open.kind].end(&p);
    }
    front_stdin_detach(s->input, c);
    channel_streams_finish(streams);
}

void front_streams_init(struct front_streams *s)
{
    (void)uv_timer_init(s->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
}

void front_streams_finish(struct front_streams *s)
{
    show_due(s, UINT64_MAX);
    uv_close((uv_handle_t *)&s->timer, NULL);
}
