/*
 * Streams for files are collected in a list. The next call in a side thread works the list off: folders, file, bytes, close. Only
 * a single call is on the way at a time, and later bytes wait for the next call. So a call costs the same for
 * a stream and for a thousand streams.
 */

#include "launcher/front/front_output_uv.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/cli/job.h"
#include "launcher/front/channel_frame.h"
#include "launcher/output/logs_os.h"
#include "launcher/output/output_stream_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/list.h"

enum { PATIENCE_MS = 1000, SENTENCES_MAX = 1 << 20 };

struct output_host {
    struct list streams;  /* recently used first */
    struct logs logs;     /* the side thread's */
    bool has_lost_output; /* and the loss was reported */
};

struct front_stream {
    struct list entry;  /* of the host */
    struct list queued; /* of to_disk or in_thread */
    struct front_output *o;
    struct channel_open open;
    unsigned host;
    uint32_t number;
    bool is_dropped, is_closed;
    struct buf waiting; /* bytes given to neither file nor pipe */
    struct buf writing; /* bytes on the way into file or pipe */
    size_t n_writing;   /* of `writing`, at the beginning */

    struct output_stream *shown; /* NULL: the console shows nothing */
    bool is_added;               /* `shown` is the output thread's */

    bool has_pipe;
    bool is_late; /* bytes have waited for the console since the last look */
    uv_pipe_t pipe;
    uv_write_t write;

    /* The side thread's, while is_in_thread. */
    bool has_file, is_in_thread;
    bool is_last; /* the file is closed behind `writing` */
    int fd;       /* the log file; -1: not open */
    int result;   /* of the thread: 0 or -errno */
};

struct front_output {
    uv_loop_t *loop;
    struct front_output_config config;
    struct output *output;
    struct output_host *hosts;
    size_t n_streams, n_closing; /* n_closing: the closed streams of n_streams */
    struct list to_disk;         /* streams with work for the next call */
    struct list in_thread;       /* streams of the present call */
    struct side_call *call;
    struct logs logs; /* LOG_DIR, the side thread's */
    bool has_logs;
    struct buf sentences; /* wait for closed streams with bytes */
    uv_timer_t patience;  /* of sentences, or of an abandoned end */
    bool is_hurried, is_ending, is_abandoned;
    bool has_output_ended; /* the console has everything */
    bool is_left;          /* the side thread was left behind with streams */
};

static void end_front_output_if_done(struct front_output *o);

static const char *host_name(const struct front_stream *s)
{
    return s->o->config.hosts[s->host];
}

static int stream_which(const struct front_stream *s)
{
    return s->open.kind == CHANNEL_STDERR;
}

/* ---- files and pipes ---- */

/* dir NULL: no file. */
static int open_front_stream(struct front_stream *s, const char *dir, int *ret_fd,
                             struct output_stream **ret_shown)
{
    const struct front_output_config *config = &s->o->config;
    char error[512]; /* names a path, and the sentence to the user names the host */
    const struct output_place place = {.job = config->job,
                                       .environment = config->environment,
                                       .attempt_dir = dir,
                                       .rank_base = (int)s->open.rank - (int)s->open.local_rank,
                                       .host = host_name(s),
                                       .error = error,
                                       .error_size = sizeof(error)};
    int r = output_stream_open(&place, (int)s->open.local_rank, stream_which(s), ret_fd, ret_shown);

    if (r || !*ret_shown)
        return r;
    (*ret_shown)->is_remote = true;
    (*ret_shown)->attempt = s->open.attempt;
    (*ret_shown)->local_rank = (int)s->open.rank; /* names the worker among all hosts */
    if ((*ret_shown)->n_folded > 0)
        (*ret_shown)->n_folded = config->n_ranks > 0 ? config->n_ranks : INT_MAX;
    return 0;
}

/* The host's name becomes the name of a single folder. */
static int begin_host_logs(struct front_stream *s)
{
    struct front_output *o = s->o;
    char *path = NULL;
    int r = o->hosts[s->host].logs.base ? 0 : logs_make_base(&o->logs);

    if (r || o->hosts[s->host].logs.base)
        return r;
    if (asprintf(&path, "%s/%s", o->logs.base, host_name(s)) < 0)
        return -ENOMEM;
    char *name = path + strlen(o->logs.base) + 1;
    for (char *p = name; *p; p++)
        if (*p == '/' || (*p == '.' && p == name))
            *p = '_';
    r = logs_init(&o->hosts[s->host].logs, path, true, o->config.environment, 0);
    free(path);
    return r;
}

static int open_front_file(struct front_stream *s)
{
    _cleanup_free_ char *dir = NULL;
    int r = begin_host_logs(s);

    if (!r)
        r = logs_begin_worker(&s->o->hosts[s->host].logs, s->o->config.job->worker_run_id,
                              (int)s->open.attempt, (int)s->open.local_rank, &dir);
    return r ? r : open_front_stream(s, dir, &s->fd, &s->shown);
}

/* ---- the side thread ---- */

static int append_to_file(struct front_stream *s)
{
    while (buf_size(&s->writing) > 0) {
        ssize_t n = write(s->fd, buf_bytes(&s->writing), buf_size(&s->writing));

        if (n < 0 && errno != EINTR)
            return -errno;
        buf_consume(&s->writing, n > 0 ? (size_t)n : 0);
    }
    return 0;
}

static void work_off_stream(struct front_stream *s)
{
    int r = s->fd < 0 ? open_front_file(s) : 0;

    if (!r)
        r = append_to_file(s);
    if (s->fd >= 0 && (r || s->is_last)) {
        if (close(steal_fd(&s->fd)) < 0 && !r)
            r = -errno; /* a network file system reports a full disk here */
    }
    s->result = r;
}

static void work_off_streams(void *data)
{
    struct front_output *o = data;

    list_for_each_entry(struct front_stream, s, &o->in_thread, queued) work_off_stream(s);
}

/* ---- sentences ---- */

static void release_sentences(struct front_output *o)
{
    if (buf_size(&o->sentences) == 0)
        return;
    output_flush(o->output);
    if (buf_append(&o->sentences, "", 1) == 0)
        (void)output_say(o->output, (const char *)buf_bytes(&o->sentences)); /* no other place to report */
    buf_reset(&o->sentences);
}

static void on_patience_over(uv_timer_t *timer);

void front_output_say(struct front_output *o, const char *sentence)
{
    size_t n = strlen(sentence);

    if (buf_append(&o->sentences, sentence, n) != 0)
        return;
    if (o->n_closing == 0 || o->is_abandoned || buf_size(&o->sentences) > SENTENCES_MAX)
        release_sentences(o);
    else if (!uv_is_active((uv_handle_t *)&o->patience))
        (void)uv_timer_start(&o->patience, on_patience_over, PATIENCE_MS, 0); /* has a callback */
}

static void report_lost_output(struct front_stream *s, const char *what, int r, const char *result)
{
    struct output_host *h = &s->o->hosts[s->host];

    if (h->has_lost_output)
        return;
    h->has_lost_output = true;
    log_line("[%s] cannot %s: %s%s; %s", host_name(s), what, strerror(-r), log_remedy(r), result);
}

/* ---- streams ---- */

static void free_front_stream(struct front_stream *s)
{
    if (!s->is_added)
        output_stream_free(s->shown);
    buf_finish(&s->waiting);
    buf_finish(&s->writing);
    if (s->fd >= 0)
        (void)close(s->fd); /* the bytes went elsewhere */
    free(s);
}

static void on_front_pipe_closed(uv_handle_t *pipe)
{
    free_front_stream(pipe->data);
}

/* The stream is closed, and all bytes are consumed. */
static void end_front_stream(struct front_stream *s)
{
    struct front_output *o = s->o;

    if (s->is_added)
        output_close(o->output, s->shown);
    list_unlink(&s->entry);
    list_unlink(&s->queued);
    if (s->has_pipe)
        uv_close((uv_handle_t *)&s->pipe, on_front_pipe_closed);
    else
        free_front_stream(s);
    o->n_streams--;
    if (--o->n_closing == 0)
        release_sentences(o);
    end_front_output_if_done(o);
}

static void grant(struct front_stream *s, size_t n)
{
    if (n > 0)
        s->o->config.granted(s->o->config.data, s->host, s->number, n);
}

/* Waiting bytes, and all later bytes. */
static void drop_bytes(struct front_stream *s)
{
    size_t n = buf_size(&s->waiting);

    s->is_dropped = true;
    buf_reset(&s->waiting);
    grant(s, n);
}

static void write_pipe(struct front_stream *s);

static void on_pipe_written(uv_write_t *write, int status)
{
    struct front_stream *s = write->data;
    size_t n = s->n_writing;

    if (uv_is_closing((uv_handle_t *)&s->pipe))
        return;
    s->n_writing = 0;
    s->is_late = false;
    buf_reset(&s->writing);
    grant(s, s->is_dropped ? 0 : n);
    if (status)
        drop_bytes(s);
    write_pipe(s);
}

static void begin_writing(struct front_stream *s)
{
    s->writing = s->waiting;
    s->n_writing = buf_size(&s->writing);
    s->waiting = (struct buf){0};
}

/* Gives the pipe the waiting bytes; ends a closed stream without bytes. */
static void write_pipe(struct front_stream *s)
{
    if (s->n_writing > 0 && !s->is_dropped)
        return;
    if (buf_size(&s->waiting) == 0) {
        if (s->is_closed)
            end_front_stream(s);
        return;
    }
    begin_writing(s);
    const uv_buf_t bytes = uv_buf_init((char *)buf_bytes(&s->writing), (unsigned)s->n_writing);
    s->write.data = s;
    /* Fails only on a pipe not open for writing. */
    (void)uv_write(&s->write, (uv_stream_t *)&s->pipe, &bytes, 1, on_pipe_written);
}

/* From here on the output thread shows the stream, behind an earlier file. */
static int show_front_stream(struct front_stream *s, struct output_stream *shown)
{
    struct output_stream *added = shown, *before = s->is_added ? s->shown : NULL;

    shown->behind = before;
    int r = output_add(s->o->output, &added);
    if (r)
        return r;
    if (before) {
        before->next = shown;
        output_close(s->o->output, before);
    }
    s->shown = shown;
    s->is_added = true;
    return 0;
}

/* No file, or no longer. A stream not meant for the console is dropped. */
static void begin_pipe(struct front_stream *s)
{
    struct output_stream *shown = NULL;
    int fd = -1, r = open_front_stream(s, NULL, &fd, &shown);

    s->has_file = false;
    if (!r && shown)
        r = show_front_stream(s, shown);
    if (!r && fd >= 0) {
        (void)uv_pipe_init(s->o->loop, &s->pipe, 0); /* cannot fail */
        s->pipe.data = s;
        s->has_pipe = true;
        r = uv_pipe_open(&s->pipe, fd);
    } else {
        output_stream_free(shown);
    }
    if (r && fd >= 0)
        (void)close(fd); /* nothing was written */
    if (r)
        report_lost_output(s, "show the output of a worker", r, "its output is dropped");
    if (r || fd < 0)
        drop_bytes(s);
}

/* ---- streams with files ---- */

static void submit_streams(struct front_output *o);

static void advance_stream(struct front_stream *s)
{
    if (s->has_file && !s->is_in_thread && list_is_empty(&s->queued))
        list_append(&s->o->to_disk, &s->queued);
    if (s->has_file)
        submit_streams(s->o);
    else if (s->has_pipe)
        write_pipe(s);
    else if (s->is_closed)
        end_front_stream(s);
}

/* The console takes the rest. */
static void give_up_file(struct front_stream *s)
{
    struct buf rest = s->writing;

    report_lost_output(s, "write the log files", s->result, "the console shows what they lack");
    s->writing = (struct buf){0};
    if (buf_append(&rest, buf_bytes(&s->waiting), buf_size(&s->waiting)) != 0)
        drop_bytes(s); /* no memory */
    buf_finish(&s->waiting);
    s->waiting = rest;
    begin_pipe(s);
}

static void take_back_stream(struct front_stream *s)
{
    size_t n = s->n_writing - buf_size(&s->writing);

    s->n_writing = 0;
    s->is_in_thread = false;
    list_unlink(&s->queued);
    if (!s->result)
        buf_reset(&s->writing);
    if (s->o->is_abandoned) {
        s->has_file = s->has_file && !s->result && !s->is_last;
    } else {
        grant(s, n);
        if (s->shown && !s->is_added && show_front_stream(s, s->shown) != 0)
            report_lost_output(s, "show the output of a worker", -ENOMEM, "its log file has the output");
        if (s->result)
            give_up_file(s);
        else if (s->is_last)
            s->has_file = false;
    }
    if (buf_size(&s->waiting) > 0 || s->is_closed)
        advance_stream(s);
}

static void take_back_streams(struct front_output *o)
{
    while (!list_is_empty(&o->in_thread))
        take_back_stream(list_first(&o->in_thread, struct front_stream, queued));
}

static void on_worked_off(void *owner, void *data)
{
    struct front_output *o = owner;

    take_back_streams(o);
    o->call = NULL; /* until here no further call begins */
    submit_streams(o);
    end_front_output_if_done(o);
}

static void submit_streams(struct front_output *o)
{
    const struct side_task task = {
        .kind = SIDE_LOGS, .run = work_off_streams, .done = on_worked_off, .data = o, .owner = o};

    if (o->call || list_is_empty(&o->to_disk))
        return;
    while (!list_is_empty(&o->to_disk)) {
        struct front_stream *s = list_first(&o->to_disk, struct front_stream, queued);

        list_unlink(&s->queued);
        list_append(&o->in_thread, &s->queued);
        s->is_in_thread = true;
        s->is_last = s->is_closed;
        begin_writing(s);
    }
    int r = side_thread_submit(&o->call, o->loop, &task);
    if (!r)
        return;
    list_for_each_entry(struct front_stream, s, &o->in_thread, queued) s->result = r;
    take_back_streams(o);
}

/* ---- the front ---- */

static struct front_stream *find_front_stream(struct front_output *o, unsigned host, uint32_t number)
{
    struct list *streams = &o->hosts[host].streams;

    list_for_each_entry(struct front_stream, s, streams, entry)
    {
        if (s->number != number)
            continue;
        list_unlink(&s->entry);
        list_append(streams->next, &s->entry);
        return s;
    }
    return NULL;
}

static bool is_stream_bounded(const struct front_output *o, const struct channel_open *open)
{
    return open->rank < FRONT_RANKS_MAX && open->local_rank < (uint32_t)o->config.job->n_workers &&
           open->attempt <= INT_MAX;
}

void front_output_open(struct front_output *o, unsigned host, uint32_t stream,
                       const struct channel_open *open)
{
    const struct job *job = o->config.job;
    struct front_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return; /* the bytes are dropped */
    *s = (struct front_stream){.o = o, .host = host, .number = stream, .open = *open, .fd = -1};
    list_init(&s->queued);
    list_append(&o->hosts[host].streams, &s->entry);
    o->n_streams++;
    s->is_dropped = !is_stream_bounded(o, open);
    s->has_file = !s->is_dropped && o->has_logs &&
                  ((job->redirects[open->local_rank] | job->tees[open->local_rank]) >> stream_which(s) & 1);
    if (!s->is_dropped && !s->has_file)
        begin_pipe(s);
}

/* Bytes taken by the pipe at once are not copied. */
static size_t try_pipe(struct front_stream *s, const uint8_t *bytes, size_t n)
{
    const uv_buf_t given = {.base = (void *)(uintptr_t)bytes, .len = n}; /* is only read */

    if (!s->has_pipe || s->n_writing > 0)
        return 0;
    int r = uv_try_write((uv_stream_t *)&s->pipe, &given, 1); /* the next write finds an error, too */
    grant(s, r > 0 ? (size_t)r : 0);
    return r > 0 ? (size_t)r : 0;
}

void front_output_data(struct front_output *o, unsigned host, uint32_t stream, const uint8_t *bytes, size_t n)
{
    struct front_stream *s = find_front_stream(o, host, stream);

    if (!s || s->is_dropped || s->is_closed) {
        o->config.granted(o->config.data, host, stream, n);
        return;
    }
    size_t n_taken = try_pipe(s, bytes, n);
    if (n_taken == n)
        return;
    if (buf_append(&s->waiting, bytes + n_taken, n - n_taken) != 0) {
        report_lost_output(s, "keep the output of a worker", -ENOMEM, "its output is dropped");
        grant(s, n - n_taken);
        drop_bytes(s);
    }
    advance_stream(s);
}

static void close_front_stream(struct front_stream *s)
{
    if (!s->is_closed) {
        s->is_closed = true;
        s->o->n_closing++;
    }
    if (s->o->is_abandoned && !s->has_file)
        end_front_stream(s);
    else
        advance_stream(s);
}

void front_output_close(struct front_output *o, unsigned host, uint32_t stream)
{
    struct front_stream *s = find_front_stream(o, host, stream);

    if (s && !s->is_closed)
        close_front_stream(s);
}

void front_output_close_host(struct front_output *o, unsigned host)
{
    list_for_each_safe(pos, &o->hosts[host].streams)
        close_front_stream(list_entry(pos, struct front_stream, entry));
}

/* ---- the end ---- */

static void on_front_output_closed(uv_handle_t *patience)
{
    struct front_output *o = patience->data;

    o->config.on_end(o->config.data);
}

static void end_front_output_if_done(struct front_output *o)
{
    if (!o->is_ending || o->n_streams > 0 || o->call || uv_is_closing((uv_handle_t *)&o->patience))
        return;
    if (o->has_output_ended)
        uv_close((uv_handle_t *)&o->patience, on_front_output_closed);
    else
        output_end(o->output);
}

static void on_front_console_end(void *data)
{
    struct front_output *o = data;

    o->has_output_ended = true;
    end_front_output_if_done(o);
}

static void close_all_hosts(struct front_output *o)
{
    o->is_ending = true;
    for (unsigned i = 0; i < o->config.n_hosts; i++)
        front_output_close_host(o, i);
}

void front_output_end(struct front_output *o)
{
    close_all_hosts(o);
    if (o->is_hurried && !uv_is_closing((uv_handle_t *)&o->patience))
        (void)uv_timer_again(&o->patience); /* repeats */
    end_front_output_if_done(o);
}

/* The side thread keeps the streams until the process ends. */
static void leave_side_thread(struct front_output *o)
{
    struct side_call *call = steal_ptr(o->call);

    if (!call)
        return;
    (void)side_thread_cancel(call); /* the result does not matter */
    o->is_left = true;
    o->n_streams = 0;
    end_front_output_if_done(o);
}

static void drop_late_bytes(struct front_output *o, struct list *streams)
{
    list_for_each_safe(pos, streams)
    {
        struct front_stream *s = list_entry(pos, struct front_stream, entry);

        if (s->is_late) {
            drop_bytes(s);
            grant(s, s->n_writing); /* the write goes on */
        }
        s->is_late = s->has_pipe && s->n_writing > 0 && !s->is_dropped;
        if (s->is_dropped && s->is_closed)
            end_front_stream(s);
    }
}

static void on_patience_over(uv_timer_t *timer)
{
    struct front_output *o = timer->data;

    if (o->is_abandoned) {
        leave_side_thread(o);
    } else if (o->is_hurried && o->is_ending) {
        front_output_abandon(o);
    } else {
        release_sentences(o);
        for (unsigned i = 0; o->is_hurried && i < o->config.n_hosts; i++)
            drop_late_bytes(o, &o->hosts[i].streams);
    }
}

void front_output_hurry(struct front_output *o)
{
    if (o->is_hurried || o->is_abandoned || uv_is_closing((uv_handle_t *)&o->patience))
        return;
    o->is_hurried = true;
    (void)uv_timer_start(&o->patience, on_patience_over, PATIENCE_MS, PATIENCE_MS); /* has a callback */
}

void front_output_abandon(struct front_output *o)
{
    if (o->is_abandoned)
        return;
    release_sentences(o);
    o->is_abandoned = true;
    close_all_hosts(o);
    output_abandon(o->output);
    if (!uv_is_closing((uv_handle_t *)&o->patience))
        (void)uv_timer_start(&o->patience, on_patience_over, PATIENCE_MS, 0); /* has a callback */
    end_front_output_if_done(o);
}

int front_output_create(struct front_output **ret, uv_loop_t *loop, const struct front_output_config *config)
{
    struct front_output *o = calloc(1, sizeof(*o));
    int r = o ? 0 : -ENOMEM;

    if (r)
        return r;
    o->loop = loop;
    o->config = *config;
    list_init(&o->to_disk);
    list_init(&o->in_thread);
    o->hosts = calloc(config->n_hosts, sizeof(*o->hosts));
    for (unsigned i = 0; o->hosts && i < config->n_hosts; i++)
        list_init(&o->hosts[i].streams);
    r = o->hosts ? logs_init(&o->logs, config->job->log_dir, true, config->environment, 0) : -ENOMEM;
    if (!r)
        r = output_create(&o->output, loop,
                          &(struct output_callbacks){.on_end = on_front_console_end, .data = o});
    if (r) {
        front_output_destroy(o);
        return r;
    }
    o->has_logs = job_has_logs(config->job) && (o->logs.base || o->logs.is_temporary);
    (void)uv_timer_init(loop, &o->patience); /* cannot fail */
    o->patience.data = o;
    *ret = o;
    return 0;
}

void front_output_destroy(struct front_output *o)
{
    if (!o || o->is_left)
        return;
    for (unsigned i = 0; o->hosts && i < o->config.n_hosts; i++)
        logs_finish(&o->hosts[i].logs);
    logs_finish(&o->logs);
    output_destroy(o->output);
    buf_finish(&o->sentences);
    free(o->hosts);
    free(o);
}
