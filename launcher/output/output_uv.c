/*
 * Happy path of a byte: pipe -> log file (store_bytes), log file -> whole lines with prefixes -> console
 * (show_lines), which is shared fairly: each stream in turn, one piece at a time, while the console has
 * room. A stream is done when its pipe has ended and all of its file has been shown.
 *
 * crun's own sentences stand in the same queue, as streams without a pipe: behind what workers of generations
 * that are over have written, before what later ones write. Nothing here waits for a console in a callback;
 * only output_abandon(), at the end of the process, grants one a moment for the last sentences.
 *
 * Ways it goes wrong: the log file cannot be written (said once; lines then go through `tail`, and the worker
 * waits for the console when that is full), the console's reader is gone (files go on, nothing is said).
 */

#include "launcher/output/output_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/host/proc_info_os.h"
#include "launcher/output/console_uv.h"
#include "launcher/util/envp.h"
#include "launcher/cli/job.h"
#include "launcher/output/line_prefix.h"
#include "launcher/util/log_os.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/list.h"

enum {
    PIPE_SIZE = 256 << 10, /* what a worker can write while crun is busy */
    TAIL_MAX = 256 << 10,  /* kept for the console when there is no file to keep it */
    READS_AT_ONCE = 16,    /* pieces taken from one worker before the others have their turn */
    LAST_WORDS_MS = 200,   /* for sentences that the console has not taken when everything else is over */
};

static const char default_template[] = "[${role_name}${local_rank}]:";
static const char *const names[2] = {"stdout", "stderr"};

struct stream {
    struct list entry;
    struct output *output;
    int local_rank;
    struct console *console; /* NULL: files only */
    uv_poll_t poll;          /* of the pipe */
    int pipe;
    bool ended;  /* the pipe has */
    bool paused; /* not read until the console has taken some of the tail */
    bool closing;
    bool over;               /* its generation is: sentences wait until it has been shown */
    bool is_words;           /* crun's own sentences, all of them in `tail`; there is no pipe */
    char *path;              /* of the log file; NULL: none */
    int file;                /* -1: none, or it could not be written */
    uint64_t written, shown; /* bytes in the file, and how many of them are on the console */
    struct buf tail;         /* what is not in the file */
    bool has_line;           /* there may be a whole line to show */
    bool after_cr;           /* the last byte was CR */
    char *prefix, *prefix_plain;
    const struct strlist *filter;
    int filtered; /* file for lines that match the filter, or -1 */
};

struct output {
    uv_loop_t *loop;
    const struct job *job;
    char *const *environment;
    void (*on_end)(void *data);
    void *data;
    struct list streams;
    struct console consoles[2];
    struct console *console_of[2]; /* for stdout and stderr: the same when they are the same file */
    bool is_open;
    bool ending, abandoned;
    int n_busy; /* > 0: inside a function that a sentence must not start again */
    char piece[LINES_PIECE];
};

static void pump(struct output *o);

/* ------------------------------------------------------------------ ends */

/* Its pipe has been read to the end or is not wanted any more; each write to its files was checked. */
static void free_stream(struct stream *s)
{
    const int fds[] = {s->pipe, s->file, s->filtered};

    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    buf_finish(&s->tail);
    free(s->path);
    free(s->prefix);
    free(s->prefix_plain);
    list_unlink(&s->entry);
    free(s);
}

static void on_stream_closed(uv_handle_t *handle)
{
    struct stream *s = handle->data;
    struct output *o = s->output;

    free_stream(s);
    pump(o);
}

static void close_stream(struct stream *s)
{
    if (s->closing)
        return;
    s->closing = true;
    if (s->is_words) {
        free_stream(s);
        return;
    }
    uv_close((uv_handle_t *)&s->poll, on_stream_closed);
}

static bool is_shown(const struct stream *s)
{
    return !s->console || s->console->broken || (s->shown == s->written && buf_size(&s->tail) == 0);
}

/* Closes what is done, and everything when it is over. */
static void close_done(struct output *o)
{
    list_for_each_safe(pos, &o->streams)
    {
        struct stream *s = list_entry(pos, struct stream, entry);
        if (o->abandoned || (s->ended && is_shown(s)))
            close_stream(s);
    }
    if (!o->ending || !list_is_empty(&o->streams))
        return;
    for (int i = 0; o->is_open && i < 2; i++)
        if (!o->abandoned && o->consoles[i].open && buf_size(&o->consoles[i].pending) > 0)
            return;
    o->ending = false;
    for (int i = 0; o->is_open && i < 2; i++)
        console_close(&o->consoles[i]);
    o->on_end(o->data);
}

/* ------------------------------------------------------------------ from the pipe into the file */

static void give_up_file(struct stream *s, int error)
{
    log_line("cannot write %s: %s; local rank %d goes on without this log", s->path, strerror(error),
             s->local_rank);
    /* What is in it can still be shown: the descriptor stays until the stream ends. */
    free(s->path);
    s->path = NULL;
}

/* Returns how much of the data is in the file. */
static size_t write_file(struct stream *s, const char *data, size_t n_bytes)
{
    size_t done = 0;

    while (s->path && done < n_bytes) {
        ssize_t n = write(s->file, data + done, n_bytes - done);
        if (n < 0 && errno != EINTR)
            give_up_file(s, errno);
        else if (n > 0)
            done += (size_t)n;
    }
    s->written += done;
    return done;
}

static void store_bytes(struct stream *s, const char *data, size_t n_bytes)
{
    if (s->after_cr || memchr(data, '\n', n_bytes) || memchr(data, '\r', n_bytes))
        s->has_line = true;
    s->after_cr = data[n_bytes - 1] == '\r';
    size_t done = write_file(s, data, n_bytes);
    /* Without memory these lines miss the console; the job goes on. */
    if (done < n_bytes && s->console && !s->console->broken)
        (void)buf_append(&s->tail, data + done, n_bytes - done);
}

static void on_readable(uv_poll_t *poll, int status, int events);

static void pause_reading(struct stream *s, bool pause)
{
    if (pause == s->paused || s->ended || s->closing)
        return;
    s->paused = pause;
    if (pause)
        (void)uv_poll_stop(&s->poll);
    else
        (void)uv_poll_start(&s->poll, UV_READABLE | UV_DISCONNECT,
                            on_readable); /* fails on a closed handle only */
}

/* Takes some of what is in the pipe. False when there is nothing more for now. */
static bool read_pipe(struct stream *s)
{
    char *piece = s->output->piece;

    for (int i = 0; i < READS_AT_ONCE && !s->ended && !s->paused; i++) {
        ssize_t n = read(s->pipe, piece, LINES_PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0) {
            s->ended = true;
            (void)uv_poll_stop(&s->poll);
            return false;
        }
        s->output->n_busy++;
        store_bytes(s, piece, (size_t)n);
        s->output->n_busy--;
        if (buf_size(&s->tail) > TAIL_MAX)
            pause_reading(s, true);
    }
    return !s->ended && !s->paused;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct stream *s = poll->data;

    (void)read_pipe(s); /* what is left makes it readable again */
    pump(s->output);
}

/* ------------------------------------------------------------------ from the file to the console */

/* The next bytes to show, and whether none can follow them in the same line. */
static size_t next_piece(struct stream *s, const char **ret_data, bool *ret_final)
{
    if (s->shown < s->written) {
        ssize_t n = pread(s->file, s->output->piece, LINES_PIECE, (off_t)s->shown);
        if (n <= 0) { /* somebody has truncated it under us: what was there is lost */
            s->shown = s->written;
            return 0;
        }
        *ret_data = s->output->piece;
        *ret_final = s->shown + (uint64_t)n == s->written && s->ended && buf_size(&s->tail) == 0;
        return (size_t)n;
    }
    *ret_data = (const char *)buf_bytes(&s->tail);
    *ret_final = s->ended;
    return buf_size(&s->tail);
}

static void write_filtered(struct stream *s, struct buf *lines)
{
    size_t n = buf_size(lines);

    if (n > 0 && write(s->filtered, buf_bytes(lines), n) != (ssize_t)n) {
        log_line("cannot write the filtered %s log: %s", names[s->console == s->output->console_of[1]],
                 strerror(errno));
        (void)close(s->filtered);
        s->filtered = -1;
    }
    buf_finish(lines);
}

/* The file ended in the middle of a line when it could not be written any more: its last n_bytes, at data, go
 * on in the tail. */
static void join_tail(struct stream *s, const char *data, size_t n_bytes)
{
    struct buf joined = {0};

    s->shown = s->written;
    if (buf_append(&joined, data, n_bytes) == 0 &&
        buf_append(&joined, buf_bytes(&s->tail), buf_size(&s->tail)) == 0) {
        buf_finish(&s->tail);
        s->tail = joined;
        s->has_line = true;
    } else { /* without memory the console misses the line's beginning */
        buf_finish(&joined);
    }
}

/* Moves one piece of the stream to its console. False when there is nothing to move. */
static bool show_lines(struct stream *s)
{
    bool long_line = s->written - s->shown >= LINES_PIECE || buf_size(&s->tail) >= LINES_PIECE;
    struct buf filtered = {0};
    const char *data;
    bool final;

    if (is_shown(s) || (!s->has_line && !s->ended && !long_line))
        return false;
    const struct line_prefix lines = {
        .prefix = s->prefix, .prefix_plain = s->prefix_plain, .filter = s->filter};
    bool from_file = s->shown < s->written;
    size_t n = next_piece(s, &data, &final);
    if (n == 0)
        return false;
    ptrdiff_t taken =
        line_prefix_take(&lines, data, n, final, &s->console->pending, s->filtered >= 0 ? &filtered : NULL);
    if (s->filtered >= 0)
        write_filtered(s, &filtered);
    if (taken == 0 && from_file && buf_size(&s->tail) > 0) {
        join_tail(s, data, n);
        return true;
    }
    if (taken <= 0) {
        s->has_line = false; /* or no memory: the next bytes bring another try */
        return false;
    }
    if (from_file)
        s->shown += (uint64_t)taken;
    else
        buf_consume(&s->tail, (size_t)taken);
    if (s->paused && buf_size(&s->tail) < TAIL_MAX / 2)
        pause_reading(s, false);
    return true;
}

/* Nobody reads this console any more: what is kept for it goes, and a worker that waited for it goes on. */
static void drop_unseen(struct stream *s)
{
    buf_finish(&s->tail);
    s->shown = s->written;
    pause_reading(s, false);
}

/* The sentences go to the console as they are. Without memory for that they stay for the next try. */
static bool show_words(struct stream *s)
{
    if (buf_append(&s->console->pending, buf_bytes(&s->tail), buf_size(&s->tail)) != 0)
        return false;
    buf_finish(&s->tail);
    return true;
}

static bool has_something_to_show(const struct stream *s)
{
    return !is_shown(s) || (s->over && !s->ended);
}

/* True when it was full and is not any more: a stream was passed over, and if nothing is left in the console nobody
 * would ever tell that there is room. */
static bool make_room(struct console *c)
{
    bool was_full = buf_size(&c->pending) >= CONSOLE_FULL;

    console_write(c);
    return was_full && buf_size(&c->pending) < CONSOLE_FULL;
}

/* One piece of each stream whose turn it is. */
static bool show_each(struct output *o)
{
    bool is_behind[2] = {false,
                         false}; /* a stream of a generation that is over still has something to show */
    bool is_blocked[2] = {false, false}; /* sentences wait for such a stream: nothing overtakes them */
    bool progress = false;

    o->n_busy++;
    list_for_each(pos, &o->streams)
    {
        struct stream *s = list_entry(pos, struct stream, entry);
        if (!s->console || s->closing)
            continue;
        int which = s->console == &o->consoles[1];
        is_blocked[which] = is_blocked[which] || (s->is_words && is_behind[which]);
        if (!is_blocked[which] && buf_size(&s->console->pending) < CONSOLE_FULL && !is_shown(s) &&
            (s->is_words ? show_words(s) : show_lines(s)))
            progress = true;
        if (make_room(s->console))
            progress = true;
        if (s->console->broken)
            drop_unseen(s);
        is_behind[which] = is_behind[which] || (s->over && has_something_to_show(s));
        is_blocked[which] = is_blocked[which] || (s->is_words && !is_shown(s));
    }
    o->n_busy--;
    return progress;
}

static void pump(struct output *o)
{
    while (!o->abandoned && show_each(o))
        continue;
    close_done(o);
}

static void on_room(void *data)
{
    pump(data);
}

/* ------------------------------------------------------------------ start of streams */

static bool same_file(int a, int b)
{
    struct stat info_a, info_b;

    return fstat(a, &info_a) == 0 && fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
           info_a.st_ino == info_b.st_ino;
}

static int open_consoles(struct output *o)
{
    if (o->is_open)
        return 0;
    int r = console_open(&o->consoles[0], o->loop, STDOUT_FILENO, on_room, o);
    if (r)
        return r;
    o->is_open = true;
    o->console_of[0] = o->console_of[1] = &o->consoles[0];
    if (same_file(STDOUT_FILENO, STDERR_FILENO))
        return 0; /* one queue, so that their lines do not cut each other */
    o->console_of[1] = &o->consoles[1];
    return console_open(&o->consoles[1], o->loop, STDERR_FILENO, on_room, o);
}

static bool wants_colour(const struct output *o, const struct console *c)
{
    const char *no_colour = envp_get(o->environment, "NO_COLOR");
    const char *term = envp_get(o->environment, "TERM");

    return c->is_terminal && !(no_colour && *no_colour) && term && strcmp(term, "dumb") != 0;
}

static int make_prefixes(struct stream *s)
{
    const struct output *o = s->output;
    const char *template = o->job->line_prefix;
    char host[256];

    proc_info_host_name(host, sizeof(host));
    s->prefix_plain = line_prefix_prefix(template ? template : default_template, o->job->role, s->local_rank,
                                         s->local_rank, host);
    if (!s->prefix_plain)
        return -ENOMEM;
    if (!wants_colour(o, s->console))
        s->prefix = strdup(s->prefix_plain);
    else if (asprintf(&s->prefix, "\033[3%dm%s\033[0m", 1 + s->local_rank % 6, s->prefix_plain) < 0)
        s->prefix = NULL;
    return s->prefix ? 0 : -ENOMEM;
}

static int open_log(const char *path, int flags)
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | flags, 0666);

    if (fd >= 0)
        return fd;
    int r = -errno;
    log_line("cannot open the log file %s: %s", path, strerror(errno));
    return r;
}

static int open_filtered(struct stream *s, const char *attempt_dir, int which)
{
    _cleanup_free_ char *path = NULL;

    s->filter = &s->output->job->filters[which];
    if (s->filter->n_items == 0)
        return 0;
    if (asprintf(&path, "%s/filtered_%s.log", attempt_dir, names[which]) < 0)
        return -ENOMEM;
    s->filtered = open_log(path, 0);
    return s->filtered < 0 ? s->filtered : 0;
}

static int open_files(struct stream *s, const char *attempt_dir, int which)
{
    if (!attempt_dir)
        return 0;
    if (asprintf(&s->path, "%s/%d/%s.log", attempt_dir, s->local_rank, names[which]) < 0) {
        s->path = NULL;
        return -ENOMEM;
    }
    s->file = open_log(s->path, O_TRUNC);
    if (s->file < 0)
        return s->file;
    return s->console ? open_filtered(s, attempt_dir, which) : 0;
}

static int open_pipe(struct stream *s, int *ret_write_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(fds[0], F_SETPIPE_SZ, PIPE_SIZE); /* a smaller one works as well */
    s->pipe = fds[0];
    *ret_write_end = fds[1];
    return fcntl(fds[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static int open_stream(struct output *o, const char *attempt_dir, int local_rank, int which, bool tee,
                       int *ret_fd)
{
    struct stream *s = calloc(1, sizeof(*s));
    int write_end = -1;

    if (!s)
        return -ENOMEM;
    *s = (struct stream){.output = o, .local_rank = local_rank, .file = -1, .pipe = -1, .filtered = -1};
    s->console = tee ? o->console_of[which] : NULL;
    list_init(&s->entry);
    int r = tee ? make_prefixes(s) : 0;
    if (!r)
        r = open_files(s, attempt_dir, which);
    if (!r)
        r = open_pipe(s, &write_end);
    if (!r)
        r = uv_poll_init(o->loop, &s->poll, s->pipe);
    if (r) {
        if (write_end >= 0)
            (void)close(write_end);
        free_stream(s);
        return r;
    }
    s->poll.data = s;
    list_append(&o->streams, &s->entry);
    (void)uv_poll_start(&s->poll, UV_READABLE | UV_DISCONNECT,
                        on_readable); /* fails on a closed handle only */
    *ret_fd = write_end;
    return 0;
}

/* Where one stream of a worker goes. */
static int open_one(struct output *o, const char *attempt_dir, int local_rank, int which, int *ret_fd)
{
    const struct job *job = o->job;
    int bit = which == 0 ? JOB_STDOUT : JOB_STDERR;
    bool is_listed = !job->listed || job->listed[local_rank];
    bool tee = (job->tees[local_rank] & bit) && is_listed;
    bool has_file = attempt_dir && ((job->redirects[local_rank] | job->tees[local_rank]) & bit);

    if (!tee && !has_file && is_listed)
        return 0; /* without log files -r redirects nothing, rather than to nowhere */
    if (!tee && !has_file) {
        *ret_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        return *ret_fd < 0 ? -errno : 0;
    }
    int r = open_consoles(o);
    return r ? r : open_stream(o, attempt_dir, local_rank, which, tee, ret_fd);
}

int output_open_worker(struct output *o, const char *attempt_dir, int local_rank, int stdio[3])
{
    for (int which = 0; which < 2; which++) {
        int r = open_one(o, attempt_dir, local_rank, which, &stdio[1 + which]);
        if (r)
            return r;
    }
    return 0;
}

/* ------------------------------------------------------------------ life */

int output_create(struct output **ret, uv_loop_t *loop, const struct job *job, char *const *environment,
                  void (*on_end)(void *data), void *data)
{
    struct output *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;
    o->loop = loop;
    o->job = job;
    o->environment = environment;
    o->on_end = on_end;
    o->data = data;
    list_init(&o->streams);
    *ret = o;
    return 0;
}

void output_flush(struct output *o)
{
    list_for_each(pos, &o->streams)
    {
        struct stream *s = list_entry(pos, struct stream, entry);
        if (s->closing || s->is_words)
            continue;
        /* Once around the pipe is all the job can have left in it. */
        for (int i = 0; i <= PIPE_SIZE / LINES_PIECE / READS_AT_ONCE && read_pipe(s); i++)
            continue;
        s->over = true;
        if (!s->paused && !s->ended) { /* somebody else holds the pipe, who is none of the job */
            s->ended = true;
            (void)uv_poll_stop(&s->poll);
        }
    }
    pump(o);
}

static int queue_words(struct output *o, const char *text)
{
    int r = open_consoles(o);
    if (!r && !o->console_of[1]->open)
        r = -EBADF;
    struct stream *s = r ? NULL : calloc(1, sizeof(*s));

    if (!s)
        return r ? r : -ENOMEM;
    *s =
        (struct stream){.output = o, .file = -1, .pipe = -1, .filtered = -1, .ended = true, .is_words = true};
    s->console = o->console_of[1];
    list_init(&s->entry);
    r = buf_append(&s->tail, text, strlen(text));
    if (r)
        free_stream(s);
    else
        list_append(&o->streams, &s->entry);
    return r;
}

bool output_say(struct output *o, const char *text)
{
    if (o->abandoned || queue_words(o, text) != 0)
        return false;
    if (o->n_busy == 0)
        pump(o);
    return true;
}

void output_end(struct output *o)
{
    o->ending = true;
    pump(o);
}

/* What crun has to say for the last time, even if that is behind lines that nobody will see. */
static void say_last_words(struct output *o)
{
    struct console *c = o->console_of[1];

    if (!o->is_open || !c->open)
        return;
    list_for_each(pos, &o->streams)
    {
        struct stream *s = list_entry(pos, struct stream, entry);
        if (s->is_words && !is_shown(s))
            (void)show_words(s);
    }
    console_write(c);
    uint64_t end_ms = uv_hrtime() / 1000000 + LAST_WORDS_MS;
    for (uint64_t now_ms; buf_size(&c->pending) > 0 && (now_ms = uv_hrtime() / 1000000) < end_ms;) {
        if (!console_wait(c, (int)(end_ms - now_ms)))
            return;
        console_write(c);
    }
}

void output_abandon(struct output *o)
{
    if (o->abandoned)
        return;
    say_last_words(o);
    o->abandoned = true;
    o->ending = true;
    close_done(o);
}

void output_destroy(struct output *o)
{
    free(o);
}
