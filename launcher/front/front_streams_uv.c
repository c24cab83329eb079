#include "launcher/front/front_streams_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/front/channel_port_uv.h"
#include "launcher/front/front_output_uv.h"
#include "launcher/front/front_server_uv.h"
#include "launcher/front/front_stdin_uv.h"
#include "launcher/front/host_channel_uv.h"
#include "launcher/front/line_cutter.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/strbuf.h"

/* The place of an event. */
struct stream_place {
    struct front_streams *all;
    unsigned host;
    struct host_channel *channel;
    struct channel_stream *stream;
};

/* ---- lines of agents ---- */

/* The place of a file that has come from a host, as the shell finds the file: LOG_DIR, host, run. Malloc'ed; NULL: none is named. */
static char *name_place(struct front_streams *s, const char *text)
{
    static const char *const words[] = {"stacks: attempt_", "error_file: attempt_"};
    const char *logs = front_output_logs(s->output);

    for (size_t i = 0; i < ARRAY_SIZE(words) && logs; i++) {
        const char *at = strstr(text, words[i]);
        const char *name = at ? at + strlen(words[i]) - strlen("attempt_") : NULL;

        if (name)
            return strbuf_format("%.*s%s/*/*/%s", (int)(name - text), text, logs, name);
    }
    return NULL;
}

/* Below the line about the first failure. */
static void show_last_lines(const struct front_streams *s, const char *line)
{
    const char *at = strstr(line, "rank ");
    unsigned rank;
    int n = 0;

    if (!at || sscanf(at, "rank %u (local rank %*u, pid %*u) failed first%n", &rank, &n) != 1 || n == 0)
        return;
    _cleanup_free_ char *lines = last_lines_get(&s->stderr_lines, rank);
    for (const char *text = lines; text && *text; text += strspn(text, "\n")) {
        n = (int)strcspn(text, "\n");
        log_line("  | %.*s", n, text);
        text += n;
    }
}

static void show_line(struct front_streams *s, const char *line, bool is_crun)
{
    _cleanup_free_ char *named = name_place(s, line);
    _cleanup_free_ char *whole = strbuf_format("%s\n", named ? named : line);

    if (is_crun) {
        log_line("%s", named ? named : line);
        show_last_lines(s, line);
    } else if (whole)
        log_lines(whole);
}

static void show_due(struct front_streams *s, uint64_t now_ms)
{
    bool is_crun;

    s->is_showing = true;
    for (char *line; (line = common_lines_next(&s->lines, *s->n_usable, now_ms, &is_crun)); free(line))
        show_line(s, line, is_crun);
    s->is_showing = false;
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
    show_due(s, uv_now(s->loop));
}

/* A stream whose cutter is not there is at its end, or without memory. */
static void end_cutter(struct stream_place *p)
{
    if (p->stream->data)
        line_cutter_end(p->stream->data, on_agent_line, p);
    free(steal_ptr(p->stream->data));
}

static int serve_agent(struct stream_place *p, const struct channel_frame *frame)
{
    if (frame->kind == CHANNEL_OPEN) {
        p->stream->data = calloc(1, sizeof(struct line_cutter));
        return p->stream->data ? 0 : -ENOMEM;
    }
    if (frame->kind == CHANNEL_DATA) {
        line_cutter_feed(p->stream->data, (const char *)frame->bytes, frame->n, on_agent_line, p);
        front_streams_grant(p->channel, p->stream->number, frame->n);
    } else {
        end_cutter(p);
    }
    return 0;
}

/* ---- output of ranks ---- */

/* The held lines name the cause of a restart. */
static void begin_attempt(struct front_streams *s, uint32_t attempt)
{
    if (attempt > s->attempt)
        show_due(s, UINT64_MAX);
    s->attempt = attempt > s->attempt ? attempt : s->attempt;
}

static void keep_last_lines(struct stream_place *p, const struct channel_frame *frame)
{
    struct last_lines *l = &p->all->stderr_lines;
    const uint32_t rank = p->stream->open.rank;

    if (p->stream->open.kind != CHANNEL_STDERR || !front_output_hides(p->all->output, &p->stream->open))
        return;
    if (frame->kind == CHANNEL_OPEN)
        last_lines_forget(l, rank);
    else if (frame->kind == CHANNEL_DATA)
        last_lines_add(l, rank, frame->bytes, frame->n);
}

static int serve_output(struct stream_place *p, const struct channel_frame *frame)
{
    struct front_output *o = p->all->output;

    keep_last_lines(p, frame);
    if (frame->kind == CHANNEL_OPEN) {
        begin_attempt(p->all, p->stream->open.attempt);
        front_output_open(o, p->host, p->stream);
    } else if (frame->kind == CHANNEL_DATA)
        front_output_data(o, p->host, p->stream, frame->bytes, frame->n);
    else if (frame->kind == CHANNEL_END_OF_STREAM)
        front_output_close(o, p->stream);
    return 0;
}

void front_streams_grant(struct host_channel *c, uint32_t number, size_t n)
{
    struct channel_link *link = host_channel_link(c);
    struct channel_stream *stream = channel_streams_find(&link->streams, number);

    if (stream && channel_stream_grant(stream, n, &link->out.queued) == 0)
        host_channel_flush(c);
}

/* ---- connections, standard input ---- */

/* Refused: the agent sees the end of the connection. */
static int open_connection(struct stream_place *p)
{
    struct channel_link *link = host_channel_link(p->channel);
    int fd = p->all->server ? front_server_dial(p->all->server) : -ECONNREFUSED;
    int r = fd < 0 ? fd : channel_port_create(link, fd, &p->stream->open, p->stream);

    return r < 0 ? channel_stream_send_end(p->stream, &link->out.queued) : 0;
}

static int serve_connection(struct stream_place *p, const struct channel_frame *frame)
{
    if (frame->kind == CHANNEL_OPEN)
        return open_connection(p);
    if (p->stream->data)
        return channel_port_take(p->stream->data, frame);
    if (frame->kind == CHANNEL_DATA)
        front_streams_grant(p->channel, p->stream->number, frame->n);
    return 0;
}

static int serve_input(struct stream_place *p, const struct channel_frame *frame)
{
    if (frame->kind == CHANNEL_OPEN)
        front_stdin_attach(p->all->input, p->channel, p->stream);
    front_stdin_go_on(p->all->input);
    return 0;
}

/* ---- frames ---- */

int front_streams_frame(struct front_streams *s, unsigned host, struct host_channel *c,
                        const struct channel_frame *frame)
{
    static int (*const serve[CHANNEL_STREAM_KIND_COUNT])(struct stream_place *,
                                                         const struct channel_frame *) = {
        [CHANNEL_STDIN] = serve_input,       [CHANNEL_STDOUT] = serve_output,
        [CHANNEL_STDERR] = serve_output,     [CHANNEL_AGENT_OUT] = serve_agent,
        [CHANNEL_AGENT_ERR] = serve_agent,   [CHANNEL_CONNECTION] = serve_connection,
        [CHANNEL_ERROR_FILE] = serve_output, [CHANNEL_STACKS] = serve_output,
        [CHANNEL_NCCL_TEXT] = serve_output,  [CHANNEL_NCCL_JSON] = serve_output,
    };
    struct stream_place p = {.all = s, .host = host, .channel = c};
    struct channel_streams *streams = &host_channel_link(c)->streams;

    int r = channel_streams_apply(streams, frame, &p.stream);
    if (r < 0 || !p.stream)
        return r;
    r = serve[p.stream->open.kind](&p, frame);
    p.stream = channel_streams_find(streams, frame->stream); /* a port that closed has dropped its stream */
    if (p.stream && !p.stream->data && frame->kind == CHANNEL_END_OF_STREAM)
        (void)channel_streams_drop_ended(streams, p.stream);
    return r;
}

void front_streams_close_host(struct front_streams *s, unsigned host, struct host_channel *c)
{
    struct channel_link *link = host_channel_link(c);
    struct stream_place p = {.all = s, .host = host, .channel = c};

    channel_link_close(link, CHANNEL_CONNECTION);
    front_stdin_detach(s->input, c);
    for (size_t i = 0; i < CHANNEL_BUCKETS; i++)
        list_for_each_entry(struct channel_stream, stream, &link->streams.all[i], entry)
        {
            p.stream = stream;
            if (stream->open.kind == CHANNEL_AGENT_OUT || stream->open.kind == CHANNEL_AGENT_ERR)
                end_cutter(&p);
            else if (stream->open.kind == CHANNEL_STDOUT || stream->open.kind == CHANNEL_STDERR)
                front_output_close(s->output, stream);
        }
    channel_streams_finish(&link->streams);
}

void front_streams_init(struct front_streams *s)
{
    (void)uv_timer_init(s->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
    last_lines_init(&s->stderr_lines);
}

bool front_streams_say(struct front_streams *s, const char *lines)
{
    if (!s->is_showing)
        show_due(s, UINT64_MAX);
    return front_output_say(s->output, lines);
}

void front_streams_finish(struct front_streams *s)
{
    show_due(s, UINT64_MAX);
    common_lines_finish(&s->lines);
    last_lines_finish(&s->stderr_lines);
    uv_close((uv_handle_t *)&s->timer, NULL);
}
