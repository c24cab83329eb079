/*
 * The output of a front without channels: front_show OPTIONS OF CRUN... PROGRAM, with FRONT_HOSTS="a b ..." for the names of the
 * hosts, and FRONT_RANKS for the number of ranks, FRONT_EXIT_CODE for the code of the job. Standard input is a row of records: u32 number of a host, then a frame as
 * the far end of the host sends one: OPEN, DATA, END_OF_STREAM, NOTE for a sentence, and RESULT for the channel's end. Its end
 * ends the output, a SIGINT hurries the output, and a SIGTERM abandons the output. The descriptor FRONT_GRANTS gets what was granted: three u32, host, stream and
 * number of bytes.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "launcher/cli/job.h"
#include "launcher/cli/options.h"
#include "launcher/front/channel_streams.h"
#include "launcher/front/front_output_uv.h"
#include "launcher/util/log_os.h"
#include "base/buf.h"

enum { HOSTS_MAX = 1024 };

struct front_show {
    struct front_output *output;
    uv_pipe_t in;
    uv_signal_t term, hurry;
    struct buf bytes;
    const char *hosts[HOSTS_MAX];
    unsigned n_hosts;
    struct channel_streams streams[HOSTS_MAX];
    int grants; /* -1: none */
    int exit_code;
};

static void on_granted(void *data, unsigned host, uint32_t stream, size_t n)
{
    struct front_show *f = data;
    const uint32_t record[3] = {host, stream, (uint32_t)n};

    channel_streams_find(&f->streams[host], stream)->may_receive += (uint32_t)n;
    if (f->grants >= 0 && write(f->grants, record, sizeof(record)) < 0)
        abort();
}

static void on_end(void *data)
{
    struct front_show *f = data;

    log_redirect(NULL, NULL);
    uv_close((uv_handle_t *)&f->term, NULL);
    uv_close((uv_handle_t *)&f->hurry, NULL);
    if (!uv_is_closing((uv_handle_t *)&f->in))
        uv_close((uv_handle_t *)&f->in, NULL);
}

static void say(struct front_show *f, const struct channel_frame *frame)
{
    char *text = strndup((const char *)frame->bytes, frame->n);

    if (text)
        front_output_say(f->output, text);
    free(text);
}

static void take_frame(struct front_show *f, uint32_t host, const struct channel_frame *frame)
{
    struct channel_streams *streams = &f->streams[host];
    struct channel_stream *stream = NULL;

    if (frame->kind == CHANNEL_NOTE)
        say(f, frame);
    for (size_t i = 0; frame->kind == CHANNEL_RESULT && i < CHANNEL_BUCKETS; i++)
        list_for_each_entry(struct channel_stream, open, &streams->all[i], entry)
            front_output_close(f->output, open);
    if (frame->kind == CHANNEL_NOTE || frame->kind == CHANNEL_RESULT)
        return;
    if (channel_streams_apply(streams, frame, &stream) != 0 || !stream)
        abort();
    if (frame->kind == CHANNEL_OPEN)
        front_output_open(f->output, host, stream);
    else if (frame->kind == CHANNEL_DATA)
        front_output_data(f->output, host, stream, frame->bytes, frame->n);
    else
        front_output_close(f->output, stream);
}

static void take_records(struct front_show *f)
{
    struct channel_frame frame;
    uint32_t host;
    size_t size;

    while (buf_size(&f->bytes) > sizeof(host)) {
        int r = channel_frame_take(buf_bytes(&f->bytes) + sizeof(host), buf_size(&f->bytes) - sizeof(host),
                                   true, &frame, &size);
        if (r < 0)
            abort();
        if (r == 0)
            return;
        memcpy(&host, buf_bytes(&f->bytes), sizeof(host));
        if (host >= f->n_hosts)
            abort();
        take_frame(f, host, &frame);
        buf_consume(&f->bytes, sizeof(host) + size);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct front_show *f = handle->data;
    uint8_t *room = buf_reserve(&f->bytes, suggested);

    *buf = uv_buf_init((char *)room, room ? (unsigned)suggested : 0);
}

static void on_read(uv_stream_t *in, ssize_t n, const uv_buf_t *buf)
{
    struct front_show *f = in->data;

    if (n > 0) {
        buf_commit(&f->bytes, (size_t)n);
        take_records(f);
    } else if (n < 0) {
        uv_close((uv_handle_t *)in, NULL);
        front_output_end(f->output, f->exit_code);
    }
}

static void on_term(uv_signal_t *term, int number)
{
    struct front_show *f = term->data;

    front_output_abandon(f->output);
}

static void on_hurry(uv_signal_t *hurry, int number)
{
    struct front_show *f = hurry->data;

    front_output_hurry(f->output);
}

static bool say_in_order(void *data, const char *lines)
{
    return front_output_say(data, lines);
}

static int count_one(void *data)
{
    return 1;
}

static void make_job(struct job *job, struct options *options, char **argv)
{
    const struct job_machine machine = {
        .count_cpus = count_one, .count_gpus = count_one, .count_xpus = count_one, .random_id = "f"};
    char error[OPTIONS_ERROR_SIZE + JOB_ERROR_SIZE] = "", *warnings = NULL;

    if (options_parse(argv + 1, environ, options, error) != 0 ||
        job_init(job, options, environ, &machine, &warnings, error) != 0) {
        (void)fprintf(stderr, "front_show: %s\n", error);
        exit(1);
    }
    free(warnings);
}

static void find_hosts(struct front_show *f)
{
    const char *text = getenv("FRONT_HOSTS");
    char *names = strdup(text ? text : ""), *state = NULL;

    for (char *name = names ? strtok_r(names, " ", &state) : NULL; name && f->n_hosts < HOSTS_MAX;
         name = strtok_r(NULL, " ", &state))
        f->hosts[f->n_hosts++] = name;
}

int main(int argc, char **argv)
{
    static struct front_show f;
    static struct options options;
    static struct job job;
    static uv_loop_t loop;
    const char *ranks = getenv("FRONT_RANKS"), *grants = getenv("FRONT_GRANTS"),
               *exit_code = getenv("FRONT_EXIT_CODE");

    make_job(&job, &options, argv);
    find_hosts(&f);
    const struct front_output_config config = {.job = &job,
                                               .environment = environ,
                                               .hosts = f.hosts,
                                               .n_hosts = f.n_hosts,
                                               .n_ranks = ranks ? atoi(ranks) : 0,
                                               .granted = on_granted,
                                               .on_end = on_end,
                                               .data = &f};
    f.grants = grants ? atoi(grants) : -1;
    f.exit_code = exit_code ? atoi(exit_code) : 0;
    for (unsigned i = 0; i < f.n_hosts; i++) {
        channel_streams_init(&f.streams[i], false);
        channel_streams_limit(&f.streams[i], HOSTS_MAX);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (uv_loop_init(&loop) != 0 || front_output_create(&f.output, &loop, &config) != 0)
        return 1;
    (void)uv_pipe_init(&loop, &f.in, 0);
    (void)uv_signal_init(&loop, &f.term);
    (void)uv_signal_init(&loop, &f.hurry);
    f.in.data = f.term.data = f.hurry.data = &f;
    log_redirect(say_in_order, f.output);
    if (uv_pipe_open(&f.in, STDIN_FILENO) != 0 ||
        uv_read_start((uv_stream_t *)&f.in, on_alloc, on_read) != 0 ||
        uv_signal_start(&f.term, on_term, SIGTERM) != 0 || uv_signal_start(&f.hurry, on_hurry, SIGINT) != 0)
        return 1;
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    if (front_output_is_left(f.output))
        _exit(4);
    front_output_destroy(f.output);
    job_finish(&job);
    buf_finish(&f.bytes);
    for (unsigned i = 0; i < f.n_hosts; i++)
        channel_streams_finish(&f.streams[i]);
    return uv_loop_close(&loop) == 0 ? 0 : 5;
}
