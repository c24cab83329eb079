#include "launcher/front/front_output_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/job.h"
#include "launcher/front/channel_streams.h"
#include "launcher/output/logs_os.h"
#include "launcher/output/output_stream_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"
#include "base/lock_os.h"
#include "base/strbuf.h"

struct output_host {
    struct logs logs;           /* under the lock */
    bool has_lost_output;       /* and the loss was reported */
    size_t n_files, files_size; /* of the files other than logs, so far */
};

struct front_output {
    struct front_output_config config;
    struct output *console, *files; /* files: streams with a log file alone */
    pthread_mutex_t lock;           /* of all logs, between the threads of both outputs */
    struct logs logs;               /* LOG_DIR */
    struct output_host *hosts;
    const char *_Atomic log_dir; /* a copy of logs.base: a thread may hold the lock while a disk hangs */
    bool has_made_logs;          /* under the lock */
    bool has_files;              /* other than logs */
    bool has_logs, is_ending, is_abandoned;
    int n_over; /* outputs that have ended */
    int exit_code;
};

/* ---- streams ---- */

static bool is_file(const struct channel_open *open)
{
    return open->kind >= CHANNEL_ERROR_FILE;
}

/* In the folder of the attempt. */
static int open_front_file(struct output_stream *s, const char *dir, const char *folder)
{
    static const char *const names[CHANNEL_STREAM_KIND_COUNT] = {[CHANNEL_ERROR_FILE] = "error.json",
                                                                 [CHANNEL_NCCL_TEXT] = "nccl_ras.txt",
                                                                 [CHANNEL_NCCL_JSON] = "nccl_ras.json"};
    const struct output_origin *origin = &s->feed->origin;
    _cleanup_free_ char *path = origin->file == CHANNEL_STACKS
                                    ? strbuf_format("%s/%s/rank_%u.txt", dir, folder, origin->rank)
                                    : strbuf_format("%s/%s/%s", dir, folder, names[origin->file]);

    if (path)
        s->feed->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return !path ? -ENOMEM : s->feed->log < 0 ? -errno : 0;
}

/* In an output thread. */
static int open_front_log(struct output_stream *s)
{
    char folder[32];
    const struct output_origin *origin = &s->feed->origin;
    struct front_output *o = origin->owner;
    struct logs *logs = &o->hosts[origin->host].logs;
    _cleanup_free_ char *dir = NULL;
    char error[512]; /* names a path, and the sentence to the user names the host */

    (void)snprintf(folder, sizeof(folder), origin->file > CHANNEL_ERROR_FILE ? "stacks_%u" : "%u",
                   origin->local_rank); /* fits */
    hold_lock(&o->lock);
    int r = logs->base ? 0 : logs_begin_host(logs, &o->logs, origin->host_name);
    if (!r)
        r = logs_begin_folder(logs, o->config.job->worker_run_id, (int)origin->attempt, folder, &dir);
    o->has_made_logs = o->has_made_logs || r == 0;
    atomic_store(&o->log_dir, o->logs.base);
    if (r || origin->file)
        return r ? r : open_front_file(s, dir, folder);
    const struct output_place place = {
        .job = o->config.job, .attempt_dir = dir, .error = error, .error_size = sizeof(error)};
    return output_stream_open_log(s, &place);
}

static bool is_stream_bounded(const struct front_output *o, const struct channel_open *open)
{
    const uint32_t bound =
        open->kind > CHANNEL_ERROR_FILE ? FRONT_FILES_MAX : (uint32_t)o->config.job->n_workers;

    return open->rank < FRONT_RANKS_MAX && open->local_rank < bound && open->attempt <= INT_MAX;
}

static bool has_front_log(const struct front_output *o, const struct channel_open *open)
{
    const struct job *job = o->config.job;

    if (!o->has_logs || !is_stream_bounded(o, open) || is_file(open))
        return o->has_logs && is_file(open);
    int kept = job->redirects[open->local_rank] | job->tees[open->local_rank];

    return kept >> (open->kind == CHANNEL_STDERR) & 1;
}

bool front_output_hides(const struct front_output *o, const struct channel_open *open)
{
    const struct job *job = o->config.job;
    const uint32_t i = open->local_rank;

    if (is_file(open) || !has_front_log(o, open))
        return false;
    return !(job->tees[i] >> (open->kind == CHANNEL_STDERR) & 1) || (job->listed && !job->listed[i]);
}

static void report_lost_output(struct front_output *o, unsigned host, const char *what, int r,
                               const char *result)
{
    if (!o->hosts[host].has_lost_output)
        log_line("[%s] cannot %s: %s%s; %s", o->config.hosts[host], what, strerror(-r), log_remedy(r),
                 result);
    o->hosts[host].has_lost_output = true;
}

/* 0, -errno, or -EPIPE: the bytes are neither shown nor kept. */
static int begin_front_stream(struct front_output *o, unsigned host, struct channel_stream *stream)
{
    const struct channel_open *open = &stream->open;
    const struct output_place place = {.job = o->config.job,
                                       .environment = o->config.environment,
                                       .rank_base = (int)open->rank - (int)open->local_rank};
    const struct output_origin origin = {.host = host,
                                         .number = stream->number,
                                         .rank = open->rank,
                                         .local_rank = open->local_rank,
                                         .attempt = open->attempt,
                                         .file = is_file(open) ? open->kind : 0,
                                         .host_name = o->config.hosts[host],
                                         .open_log = has_front_log(o, open) ? open_front_log : NULL,
                                         .owner = o};
    struct output_stream *s = NULL;

    if (o->is_ending || !is_stream_bounded(o, open) ||
        (is_file(open) && o->hosts[host].n_files++ >= FRONT_FILES_MAX))
        return -EPIPE;
    o->has_files = o->has_files || is_file(open);
    int r = output_stream_of_host(&s, &place, &origin, open->kind == CHANNEL_STDERR,
                                  o->config.n_ranks > 0 ? o->config.n_ranks : INT_MAX);
    stream->data = s;
    if (!r)
        r = output_add(s->feed->is_shown ? o->console : o->files, &s);
    if (r)
        stream->data = NULL;
    output_stream_free(s); /* NULL: added */
    return r;
}

void front_output_open(struct front_output *o, unsigned host, struct channel_stream *stream)
{
    if (has_front_log(o, &stream->open))
        (void)begin_front_stream(o, host, stream); /* tried again with the first bytes */
}

void front_output_data(struct front_output *o, unsigned host, struct channel_stream *stream,
                       const uint8_t *bytes, size_t n)
{
    int r = stream->data ? 0 : begin_front_stream(o, host, stream);

    if (is_file(&stream->open) && (o->hosts[host].files_size += n) > FRONT_FILES_SIZE)
        r = -EPIPE;
    if (!r)
        r = o->is_ending ? -EPIPE : output_feed(stream->data, bytes, n);
    if (r && r != -EPIPE)
        report_lost_output(o, host, "keep the output of a worker", r, "a part is dropped");
    if (r)
        o->config.granted(o->config.data, host, stream->number, n);
}

void front_output_close(struct front_output *o, struct channel_stream *stream)
{
    struct output_stream *s = steal_ptr(stream->data);

    if (s && !o->is_ending)
        output_close(s);
}

static void on_output_report(void *data, const struct output_report *report)
{
    struct front_output *o = data;
    struct output_stream *rest = report->rest;
    const unsigned host = report->origin.host;

    if (report->result)
        report_lost_output(o, host, "write the log files", report->result,
                           "the console shows what they lack");
    size_t n = report->n_taken;
    if (rest && (o->is_abandoned || output_add(o->console, &rest) != 0))
        n += output_drop(rest);
    if (n > 0)
        o->config.granted(o->config.data, host, report->origin.number, n);
}

/* ---- the front ---- */

bool front_output_say(struct front_output *o, const char *sentence)
{
    output_flush(o->console);
    return output_say(o->console, sentence) || output_is_abandoned(o->console);
}

const char *front_output_logs(const struct front_output *o)
{
    return atomic_load(&o->log_dir);
}

/* Behind the files the console ends: streams that have lost their log files have gone there. Then both threads have ended. */
static void on_one_output_end(void *data)
{
    struct front_output *o = data;

    if (++o->n_over == 1) {
        output_end(o->console);
        return;
    }
    const char *base = o->has_made_logs && !o->is_abandoned ? o->logs.base : NULL;
    if (base && o->exit_code != 0)
        log_line("logs are kept in %s", base);
    else if (base && o->logs.is_temporary && (o->has_files || job_hides_output(o->config.job)))
        log_line("the workers' output is in %s", base);
    o->config.on_end(o->config.data);
}

void front_output_end(struct front_output *o, int exit_code)
{
    o->is_ending = true;
    o->exit_code = exit_code;
    output_end(o->files);
}

void front_output_hurry(struct front_output *o)
{
    output_hurry(o->files);
    output_hurry(o->console);
}

void front_output_abandon(struct front_output *o)
{
    o->is_ending = o->is_abandoned = true;
    output_abandon(o->files);
    output_abandon(o->console);
}

int front_output_create(struct front_output **ret, uv_loop_t *loop, const struct front_output_config *config)
{
    struct front_output *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;
    *ret = o;
    o->config = *config;
    (void)pthread_mutex_init(&o->lock, NULL); /* does not fail on Linux */
    o->hosts = calloc(config->n_hosts, sizeof(*o->hosts));
    int r = o->hosts ? logs_init(&o->logs, config->job->log_dir, true, config->environment, 0) : -ENOMEM;
    o->has_logs = o->logs.base || o->logs.is_temporary;
    atomic_init(&o->log_dir, o->logs.base);
    const struct output_callbacks callbacks = {
        .on_report = on_output_report, .on_end = on_one_output_end, .data = o};
    if (!r)
        r = output_create(&o->console, loop, true, &callbacks);
    return r ? r : output_create(&o->files, loop, false, &callbacks);
}

bool front_output_is_left(const struct front_output *o)
{
    return output_is_left(o->console) || output_is_left(o->files);
}

void front_output_destroy(struct front_output *o)
{
    if (!o)
        return;
    for (unsigned i = 0; o->hosts && i < o->config.n_hosts; i++)
        logs_finish(&o->hosts[i].logs);
    logs_finish(&o->logs);
    output_destroy(o->console);
    output_destroy(o->files);
    (void)pthread_mutex_destroy(&o->lock); /* not held: the threads have ended */
    free(o->hosts);
    free(o);
}
