/*
 * Happy path of a line: the worker appends to the log file, inotify wakes the thread, the thread reads the file from the
 * console's place on, puts prefixes before whole lines (line_prefix.h) and writes the console. Each stream in turn gets a
 * piece, while the console has room: a slow or stopped console holds no worker up, and memory stays the same, as the file
 * is the buffer. Without log files a pipe takes the file's place, and the worker waits for the console.
 *
 * A stream of another host gets its bytes from memory (struct output_feed). The thread appends them to the log file, shows the lines
 * as above, and reports the number of bytes taken. A pump without console only writes log files, so a disk that hangs stops no line.
 *
 * Sentences of crun stand in the same queue: behind the output of earlier generations, before the output of later generations.
 *
 * Ways it goes wrong: the file is truncated while it is followed (shown again from the new beginning), inotify cannot
 * be had (the files are looked at every 100 ms), the file for filtered lines cannot be written (reported once), the
 * log file of another host's stream cannot be written (reported; the console shows the bytes that the file lacks), the
 * console is a file on a full disk (lines are dropped, crun's sentences wait), the console's reader is closed (the rest is dropped),
 * the disk hangs (the thread hangs with it; see output_pump_leave()).
 */

#include "launcher/output/output_pump_os.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/output/console_os.h"
#include "launcher/output/fold.h"
#include "launcher/output/line_prefix.h"
#include "launcher/output/output_stream_os.h"
#include "base/cleanup.h"
#include "base/cond_os.h"
#include "base/list.h"
#include "base/lock_os.h"
#include "base/thread_os.h"
#include "base/time.h"

enum {
    TAIL_MAX = 256 << 10,    /* of a pipe, kept for the console */
    READS_AT_ONCE = 16,      /* pieces taken from a pipe before the other pipes have a turn */
    ROUNDS_AT_ONCE = 64,     /* pieces shown of each stream before new requests are looked at */
    LAST_SENTENCES_MS = 200, /* for a console that is slow when everything else has ended */
    SAY_MS = 50,             /* how long output_pump_say() waits for the thread */
    RETRY_MS = 100,          /* without inotify, after memory was short, and while a disk is full */
    HURRIED_MS = 1000,       /* for a console that takes nothing */
    FULL_DISK_MS = 5000,     /* at the end, for a full disk to take crun's sentences */
};

struct output_pump {
    void (*on_news)(void *data);
    void *data;
    pthread_t thread;
    int wake;             /* eventfd, written after each change below */
    pthread_mutex_t lock; /* of the next members */
    pthread_cond_t pumped;
    struct list incoming; /* streams for the thread to take */
    struct list news;     /* streams of other hosts with bytes, or a close, for the thread to take */
    struct list reports;  /* streams of other hosts with a report for the other thread */
    uint32_t n_flushed;
    uint64_t n_queued, n_pumped; /* sentences queued, and sentences that went through a round of the thread */
    bool ending, abandoned, hurrying;
    struct line_match matches[LINE_MATCHES_MAX];
    size_t n_matches;
    uint64_t n_looks, n_looked; /* asked for, and done */
    bool is_left;               /* the process ends without the thread */
    bool refuses_sentences;     /* the thread shows nothing more */
    bool has_ended;             /* the thread is about to return */

    bool has_console; /* fixed */

    /* The thread's alone. */
    struct list streams;
    struct console consoles[2];
    struct fold *folds[2]; /* of each console; NULL: lines are not folded */
    bool
        one_console; /* standard output and standard error are the same file: a common queue, so that lines stay whole */
    int inotify;            /* -1: none */
    int pipes;              /* epoll of all pipes, each for a single event at a time; -1: none */
    uint32_t n_over;        /* streams with a smaller n_flushed are of earlier generations */
    bool stop, drop, hurry; /* copies of ending, abandoned and hurrying */
    bool has_news;          /* streams have taken bytes */
    uint64_t moved_ns[2];   /* time at which the console had room, while `hurry` is set */
    uint64_t stopped_ns;    /* time at which `stop` was set */
    uint64_t looked_ns;     /* bytes written until then have been noticed */
    uint64_t n_looks_taken; /* of n_looks */
    char piece[LINES_PIECE];
};

static struct console *console_of(struct output_pump *p, const struct output_stream *s)
{
    return &p->consoles[p->one_console ? 0 : s->which];
}

static _Atomic uint64_t n_output_bytes;

uint64_t output_pump_bytes(void)
{
    return atomic_load_explicit(&n_output_bytes, memory_order_relaxed);
}

static struct fold *fold_of(struct output_pump *p, const struct output_stream *s)
{
    return s->n_folded > 0 ? p->folds[p->one_console ? 0 : s->which] : NULL;
}

static bool is_all_shown(struct output_pump *p, const struct output_stream *s)
{
    return console_of(p, s)->broken || (s->shown == s->size && buf_size(&s->tail) == 0);
}

static bool is_of_ended_generation(const struct output_pump *p, const struct output_stream *s)
{
    return s->feed ? p->stop || s->feed->is_closed : s->n_flushed < p->n_over;
}

/* ---- sources ---- */

/* Reads the size of the file. A shorter file was truncated, and begins anew. */
static void refresh_file(struct output_stream *s)
{
    struct stat info;

    if (s->file < 0 || fstat(s->file, &info) < 0)
        return;
    s->size = (uint64_t)info.st_size;
    if (s->size < s->shown)
        s->shown = 0;
    s->has_line = s->size > s->shown;
}

/* watch -1: all. */
static void refresh_files(struct output_pump *p, int watch)
{
    list_for_each_entry(struct output_stream, s, &p->streams, entry)
    {
        if (watch < 0 || s->watch == watch)
            refresh_file(s);
    }
}

static void read_inotify(struct output_pump *p)
{
    _Alignas(struct inotify_event) char bytes[4096];
    ssize_t n;

    while ((n = read(p->inotify, bytes, sizeof(bytes))) > 0)
        for (const char *at = bytes; at < bytes + n;) {
            const struct inotify_event *event = (const void *)at;

            refresh_files(p, event->mask & IN_Q_OVERFLOW ? -1 : event->wd);
            at += sizeof(*event) + event->len;
        }
}

static void watch_file(struct output_pump *p, struct output_stream *s)
{
    char path[32];

    if (s->file < 0 || p->inotify < 0 || s->feed)
        return; /* the thread itself writes the files of other hosts */
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", s->file); /* fits */
    s->watch = inotify_add_watch(p->inotify, path, IN_MODIFY);       /* -1: looked at every RETRY_MS */
}

static bool is_paused(const struct output_stream *s)
{
    return buf_size(&s->tail) > TAIL_MAX;
}

/* Asks for the next event of the pipe. Without epoll the pipe is read every RETRY_MS. */
static void watch_pipe(struct output_pump *p, struct output_stream *s, int operation)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = s};

    if (s->pipe >= 0 && !is_paused(s))
        s->is_watched = epoll_ctl(p->pipes, operation, s->pipe, &event) == 0;
}

static void end_pipe(struct output_stream *s)
{
    s->ended = true;
    close_fd(&s->pipe); /* read to the end, or not wanted any more */
}

/* Takes some bytes from the pipe. False when the pipe is empty for now. */
static bool read_pipe(struct output_pump *p, struct output_stream *s)
{
    for (int i = 0; i < READS_AT_ONCE && s->pipe >= 0 && !is_paused(s); i++) {
        ssize_t n = read(s->pipe, p->piece, LINES_PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0) {
            end_pipe(s);
            return false;
        }
        s->has_line = true;
        if (!console_of(p, s)->broken)
            (void)buf_append(&s->tail, p->piece,
                             (size_t)n); /* without memory the lines are lost; the job goes on */
    }
    return s->pipe >= 0 && !is_paused(s);
}

/* ---- streams of other hosts ---- */

/* Caller holds p->lock. */
static void note_report(struct output_pump *p, struct output_stream *s)
{
    if (list_is_empty(&s->feed->reports))
        list_append(&p->reports, &s->feed->reports);
    if (!p->is_left)
        p->on_news(p->data);
}

/* Reports bytes taken, unless too many wait for the console. The other thread may give as many again. */
static void report_taken(struct output_pump *p, struct output_stream *s)
{
    if (!s->feed || s->feed->n_owed == 0 || is_paused(s))
        return;
    hold_lock(&p->lock);
    s->feed->n_taken += s->feed->n_owed;
    s->feed->n_owed = 0;
    note_report(p, s);
}

/* give_back: the thread does not touch the stream any more. */
static void report_lost_log(struct output_pump *p, struct output_stream *s, int r, bool give_back)
{
    if (give_back)
        list_unlink(&s->entry);
    hold_lock(&p->lock);
    s->feed->result = r;
    s->feed->is_given_back = give_back;
    note_report(p, s);
}

/* The console shows the rest, where the stream was not filtered out. */
static void lose_log(struct output_stream *s)
{
    close_fd(&s->feed->log); /* has failed */
    s->feed->has_lost_log = s->has_line = true;
    s->feed->is_shown = s->feed->is_listed;
}

/* Puts the taken bytes where the stream goes. */
static void store_taken(struct output_pump *p, struct output_stream *s)
{
    struct output_feed *f = s->feed;

    f->n_owed += buf_size(&f->taken);
    int r = f->log >= 0 ? output_stream_append_log(s) : 0;
    if (r)
        lose_log(s);
    if (buf_size(&f->taken) > 0 && f->is_shown && !console_of(p, s)->broken)
        (void)buf_append(&s->tail, buf_bytes(&f->taken), buf_size(&f->taken)); /* as in read_pipe() */
    buf_finish(&f->taken);
    refresh_file(s);
    s->has_line = true;
    report_taken(p, s);
    if (r)
        report_lost_log(p, s, r, !p->has_console);
}

static void open_fed_log(struct output_pump *p, struct output_stream *s)
{
    if (!s->feed || !s->feed->origin.open_log || s->feed->has_lost_log)
        return;
    int r = s->feed->origin.open_log(s);
    if (!r)
        return;
    lose_log(s);
    store_taken(p, s);
    report_lost_log(p, s, r, !p->has_console);
}

static void store_all_taken(struct output_pump *p)
{
    list_for_each_entry_safe(struct output_stream, s, &p->streams, entry)
    {
        if (s->feed && buf_size(&s->feed->taken) > 0)
            store_taken(p, s);
    }
}

static void close_log(struct output_pump *p, struct output_stream *s)
{
    if (s->feed && s->feed->log >= 0 && close(steal_fd(&s->feed->log)) < 0)
        report_lost_log(p, s, -errno, false); /* a network file system reports a full disk here */
}

/* The generation of the stream is over. A process outside the job may still hold the other end. */
static void end_stream(struct output_pump *p, struct output_stream *s)
{
    if (s->ended)
        return;
    refresh_file(s);
    if (s->pipe >= 0) {
        while (read_pipe(p, s))
            continue;
        if (is_paused(s) && !s->ended)
            return; /* read on when the console has taken a part */
        if (!s->ended)
            end_pipe(s);
    }
    close_log(p, s);
    s->ended = true;
}

/* ---- console ---- */

/* Bytes from a pipe, or bytes that the log file lacks. */
static bool is_tail_next(const struct output_stream *s)
{
    return s->file < 0 || (s->feed && s->feed->has_lost_log && s->shown == s->size);
}

/* The next bytes to show, and whether no byte can follow in the same line. */
static size_t next_piece(struct output_pump *p, struct output_stream *s, const char **ret_data,
                         bool *ret_final)
{
    if (is_tail_next(s)) {
        *ret_data = (const char *)buf_bytes(&s->tail);
        *ret_final = s->ended;
        return buf_size(&s->tail);
    }
    ssize_t n = pread(s->file, p->piece, LINES_PIECE, (off_t)s->shown);
    if (n <= 0) { /* truncated since the last look, or unreadable */
        s->size = s->shown;
        return 0;
    }
    *ret_data = p->piece;
    *ret_final = (s->ended || (s->feed && s->feed->has_lost_log)) && s->shown + (uint64_t)n >= s->size;
    return (size_t)n;
}

/* In place of log_line(), a function of the loop's thread. */
static void report_filtered(struct output_pump *p, const struct output_stream *s, int error)
{
    static const char *const names[2] = {"stdout", "stderr"};
    char text[256];

    (void)snprintf(text, sizeof(text), "crun: cannot write the filtered %s log: %s\n", names[s->which],
                   strerror(error)); /* fits */
    /* Without memory there is no report. */
    (void)console_say(&p->consoles[p->one_console ? 0 : 1], text, strlen(text));
}

static void write_filtered(struct output_pump *p, struct output_stream *s, struct buf *lines)
{
    size_t n = buf_size(lines);

    errno = 0;
    bool has_failed = n > 0 && write(s->filtered, buf_bytes(lines), n) != (ssize_t)n;
    if (has_failed && !s->has_lost_filtered)
        report_filtered(p, s, errno ? errno : ENOSPC);
    s->has_lost_filtered |= has_failed;
    buf_finish(lines);
}

/* The process is about to end, and the objects that streams borrow may be freed: the thread was stuck. */
static bool is_left_behind(struct output_pump *p)
{
    hold_lock(&p->lock);
    return p->is_left;
}

/* ---- rules ---- */

enum { MATCH_PAUSE_NS = 1000000000 };

struct line_reader {
    struct output_pump *p;
    struct output_stream *s;
};

/* Marks leave room for lines that end a worker. */
static void add_match(struct output_pump *p, const struct line_match *match, bool is_failure)
{
    hold_lock(&p->lock);
    bool is_room = p->n_matches < LINE_MATCHES_MAX / (is_failure ? 1 : 2);
    if (is_room)
        p->matches[p->n_matches++] = *match;
    if (is_room && !p->is_left)
        p->on_news(p->data);
}

/* A rule that ends no worker is looked for once a second in a stream, so that a program with endless matching lines does not
 * fill the event log. Others are always looked for: each may end the worker. */
static void look_for_rules(void *data, const char *line, size_t n_bytes)
{
    const struct line_reader *reader = data;
    struct output_stream *s = reader->s;
    struct line_match match = {.local_rank = s->local_rank,
                               .is_of_ended = s->is_replaced || is_of_ended_generation(reader->p, s)};
    uint64_t now = 0;

    for (int i = line_rules_find(s->rules, 0, line, n_bytes); i >= 0;
         i = line_rules_find(s->rules, i + 1, line, n_bytes)) {
        bool is_failure = line_action_is_failure(s->rules->items[i].action);
        now = now ? now : now_ns();
        if (!is_failure && now < s->rules_due_ns)
            continue;
        if (!is_failure)
            s->rules_due_ns = now + MATCH_PAUSE_NS;
        match.rule = i;
        line_quote(match.line, line, n_bytes);
        add_match(reader->p, &match, is_failure);
        return;
    }
}

bool output_pump_next_match(struct output_pump *p, struct line_match *ret)
{
    hold_lock(&p->lock);
    bool has = p->n_matches > 0;
    if (has) {
        *ret = p->matches[0];
        p->n_matches--;
        memmove(p->matches, p->matches + 1, p->n_matches * sizeof(p->matches[0]));
    }
    return has;
}

/* Moves a piece of the stream to the console. False when there is nothing to move. */
static bool show_lines(struct output_pump *p, struct output_stream *s)
{
    bool is_long = s->size - s->shown >= LINES_PIECE || buf_size(&s->tail) >= LINES_PIECE;
    struct buf filtered = {0};
    const char *data;
    bool final;

    if (!s->has_line && !s->ended && !is_long)
        return false;
    const bool is_tail = is_tail_next(s);
    size_t n = next_piece(p, s, &data, &final);
    if (n == 0 || is_left_behind(p))
        return false;
    struct line_reader reader = {.p = p, .s = s};
    const uint64_t generation = s->feed ? s->feed->origin.attempt : s->n_flushed;
    const struct fold_line folded = {
        .member = s->local_rank, .rank = s->rank, .source = generation * 2 + (uint64_t)s->which};
    const struct line_prefix lines = {.prefix = s->prefix,
                                      .prefix_plain = s->prefix_plain,
                                      .filter = s->filter,
                                      .now_ns = now_ns(),
                                      .redraw_due_ns = &s->redraw_due_ns,
                                      .on_line = s->rules ? look_for_rules : NULL,
                                      .data = &reader,
                                      .seam = &s->seam,
                                      .fold = fold_of(p, s),
                                      .folded = &folded};
    ptrdiff_t taken = line_prefix_take(&lines, data, n, final, &console_of(p, s)->pending,
                                       s->filtered >= 0 ? &filtered : NULL);
    if (s->filtered >= 0)
        write_filtered(p, s, &filtered);
    if (taken <= 0) {
        s->has_line = false; /* or no memory: the next bytes bring another try */
        return false;
    }
    atomic_fetch_add_explicit(&n_output_bytes, (uint64_t)taken, memory_order_relaxed);
    if (is_tail)
        buf_consume(&s->tail, (size_t)taken);
    else
        s->shown += (uint64_t)taken;
    if (s->shown > s->size)
        s->size = s->shown;
    return true;
}

/* Sentences go to the console unchanged, behind the lines that wait for equal lines. Without memory sentences stay for
 * the next try. */
static bool show_sentence(struct output_pump *p, struct output_stream *s)
{
    struct fold *fold = p->folds[p->one_console ? 0 : s->which];

    if (fold)
        fold_flush(fold, &console_of(p, s)->pending);
    if (console_say(console_of(p, s), buf_bytes(&s->tail), buf_size(&s->tail)) != 0)
        return false;
    buf_finish(&s->tail);
    return true;
}

static void drop_unseen(struct output_stream *s)
{
    buf_finish(&s->tail);
    s->shown = s->size;
}

/* Knowledge of a walk over the streams about a console. */
struct walk {
    uint32_t first_behind; /* smallest n_flushed of an ended stream with bytes to show */
    bool is_blocked;       /* a sentence waits for such a stream: nothing behind the sentence is shown */
};

/* True: a full console has room now. No event reports the turn of the streams passed over. */
static bool drain_console(struct output_pump *p, struct console *c)
{
    size_t size = buf_size(&c->pending);

    console_write(c);
    if (p->hurry && (size < CONSOLE_FULL || buf_size(&c->pending) < size))
        p->moved_ns[c - p->consoles] = now_ns();
    return size >= CONSOLE_FULL && buf_size(&c->pending) < CONSOLE_FULL;
}

/* A signal ends the job, and its workers may wait for this console. */
static bool is_too_late(struct output_pump *p, struct console *c)
{
    return p->hurry && buf_size(&c->pending) >= CONSOLE_FULL &&
           now_ns() - p->moved_ns[c - p->consoles] > HURRIED_MS * UINT64_C(1000000);
}

static bool show_one(struct output_pump *p, struct output_stream *s, struct walk *w)
{
    struct console *c = console_of(p, s);
    bool was_full = buf_size(&c->pending) >= CONSOLE_FULL, progress = false;

    if (!s->is_sentence && is_of_ended_generation(p, s))
        end_stream(p, s);
    if (s->is_sentence && w->first_behind < s->n_flushed)
        w->is_blocked = true;
    if (!w->is_blocked && !was_full && !is_all_shown(p, s))
        progress = s->is_sentence ? show_sentence(p, s) : show_lines(p, s);
    if (drain_console(p, c))
        progress = true;
    if (c->broken || (!s->is_sentence && is_too_late(p, c)))
        drop_unseen(s);
    report_taken(p, s);
    if (!s->is_sentence && is_of_ended_generation(p, s) && (!is_all_shown(p, s) || !s->ended) &&
        s->n_flushed < w->first_behind)
        w->first_behind = s->n_flushed;
    if (s->is_sentence && !is_all_shown(p, s))
        w->is_blocked = true;
    return progress;
}

static void drop_stream(struct output_pump *p, struct output_stream *s)
{
    if (s->watch >= 0)
        (void)inotify_rm_watch(p->inotify, s->watch); /* the watch was set */
    if (fold_of(p, s))
        fold_leave(fold_of(p, s), s->local_rank);
    list_unlink(&s->entry);
    hold_lock(&p->lock);
    if (s->feed && !list_is_empty(&s->feed->reports))
        s->feed->is_over = true; /* the reader of the report frees the stream */
    else
        output_stream_free(s);
}

/* A piece of each stream in turn. False when nothing was moved. */
static bool show_each(struct output_pump *p)
{
    struct walk walks[2] = {{.first_behind = UINT32_MAX}, {.first_behind = UINT32_MAX}};
    bool progress = false;

    list_for_each_entry_safe(struct output_stream, s, &p->streams, entry)
    {
        if (show_one(p, s, &walks[p->one_console ? 0 : s->which]))
            progress = true;
        if (s->ended && is_all_shown(p, s))
            drop_stream(p, s);
    }
    return progress;
}

/* Lines that have waited for equal lines long enough, and all lines when nothing can follow. */
static void show_folded(struct output_pump *p)
{
    for (int i = 0; i < 2; i++) {
        if (!p->folds[i])
            continue;
        fold_emit(p->folds[i], p->looked_ns, &p->consoles[i].pending);
        if (p->drop || (p->stop && list_is_empty(&p->streams)))
            fold_flush(p->folds[i], &p->consoles[i].pending);
    }
}

/* Shows sentences that stand behind lines that the console did not take. */
static void show_last_sentences(struct output_pump *p)
{
    struct console *c = &p->consoles[p->one_console ? 0 : 1];
    uint64_t end_ns = now_ns() + LAST_SENTENCES_MS * UINT64_C(1000000);

    list_for_each_entry(struct output_stream, s, &p->streams, entry)
    {
        if (s->is_sentence && !is_all_shown(p, s))
            (void)show_sentence(p, s);
    }
    console_write(c);
    for (uint64_t now; buf_size(&c->pending) > 0 && (now = now_ns()) < end_ns;) {
        if (!console_wait(c, (int)((end_ns - now) / 1000000) + 1))
            return;
        console_write(c);
    }
}

/* ---- the thread ---- */

/* The streams of a replaced worker have ended. */
static void end_replaced(struct output_pump *p, const struct output_stream *added)
{
    list_for_each_entry(struct output_stream, s, &p->streams, entry)
    {
        if (s->is_sentence || s->local_rank != added->local_rank || s->which != added->which)
            continue;
        s->is_replaced = true;
        end_stream(p, s);
    }
}

/* Without memory the stream's lines are not folded. */
static void join_fold(struct output_pump *p, struct output_stream *s)
{
    struct fold **fold = &p->folds[p->one_console ? 0 : s->which];

    if (s->n_folded == 0)
        return;
    if (!*fold) /* the streams of a front become known in turn */
        *fold = fold_create(s->feed ? s->local_rank + 1 : s->n_folded, s->feed ? s->n_folded : 0);
    if (!*fold || fold_join(*fold, s->local_rank) != 0)
        s->n_folded = 0;
}

static void take_stream(struct output_pump *p, struct output_stream *s)
{
    list_unlink(&s->entry);
    join_fold(p, s);
    if (!s->is_sentence && !s->feed)
        end_replaced(p, s);
    list_append(&p->streams, &s->entry);
    watch_file(p, s);
    watch_pipe(p, s, EPOLL_CTL_ADD);
    refresh_file(s); /* after the watch was set: bytes written before */
    open_fed_log(p, s);
}

/* Finds written bytes without waiting for events. */
static void look_at_sources(struct output_pump *p)
{
    list_for_each_entry(struct output_stream, s, &p->streams, entry)
    {
        refresh_file(s);
        if (s->pipe >= 0)
            (void)read_pipe(p, s); /* as much as a pipe holds */
    }
}

/* Caller holds p->lock. The bytes of a stream that was given back wait for another pump. */
static void take_news(struct output_pump *p)
{
    while (!list_is_empty(&p->news)) {
        struct output_feed *f = list_first(&p->news, struct output_feed, news);

        list_unlink(&f->news);
        if (f->is_given_back || f->is_over)
            continue;
        f->taken = f->given;
        f->given = (struct buf){0};
        f->is_closed = f->is_closing;
        p->has_news = true;
    }
}

/* Caller holds p->lock. */
static void take_ends(struct output_pump *p)
{
    if (p->ending && !p->stop)
        p->stopped_ns = now_ns();
    if (p->hurrying && !p->hurry)
        p->moved_ns[0] = p->moved_ns[1] = now_ns();
    p->stop = p->ending;
    p->drop = p->abandoned;
    p->hurry = p->hurrying;
}

/* Takes the requests of the other thread. Returns the number of sentences queued so far. */
static uint64_t take_requests(struct output_pump *p)
{
    struct list taken;
    uint64_t n_taken = 0;

    if (read(p->wake, &n_taken, sizeof(n_taken)) < 0)
        n_taken = 0; /* EAGAIN: nothing was asked for since the last time */
    list_init(&taken);
    (void)pthread_mutex_lock(&p->lock);
    list_for_each_safe(entry, &p->incoming)
    {
        list_unlink(entry);
        list_append(&taken, entry);
    }
    uint32_t n_over = p->n_flushed;
    uint64_t n_queued = p->n_queued;
    bool is_look = p->n_looks_taken != p->n_looks;
    p->n_looks_taken = p->n_looks;
    take_news(p);
    take_ends(p);
    (void)pthread_mutex_unlock(&p->lock);
    while (!list_is_empty(&taken))
        take_stream(p, list_entry(taken.next, struct output_stream, entry));
    if (p->has_news)
        store_all_taken(p);
    p->has_news = false;
    if (is_look)
        look_at_sources(p);
    p->n_over = n_over;
    return n_queued;
}

static void note_pumped(struct output_pump *p, uint64_t n_sentences)
{
    hold_lock(&p->lock);
    p->n_pumped = n_sentences;
    (void)pthread_cond_broadcast(&p->pumped);
}

/* All bytes from before the request for a look have been shown, unless a console is full. */
static void note_looked(struct output_pump *p)
{
    hold_lock(&p->lock);
    bool is_new = p->n_looked != p->n_looks_taken;
    p->n_looked = p->n_looks_taken;
    if (is_new && !p->is_left)
        p->on_news(p->data);
}

/* Whether something has to be tried again without an event for it. */
static bool needs_retry(struct output_pump *p)
{
    if (p->consoles[0].disk_error || p->consoles[1].disk_error || p->hurry)
        return true;
    list_for_each_entry(const struct output_stream, s, &p->streams, entry)
    {
        bool is_deaf =
            (s->file >= 0 && s->watch < 0 && !s->feed) || (s->pipe >= 0 && !s->is_watched && !is_paused(s));

        if ((is_deaf && !s->ended) || s->is_sentence)
            return true;
    }
    return false;
}

static void read_pipes(struct output_pump *p)
{
    struct epoll_event events[32];
    int n = p->pipes < 0 ? 0 : epoll_wait(p->pipes, events, 32, 0);

    for (int i = 0; i < n; i++) {
        struct output_stream *s = events[i].data.ptr;

        s->is_watched = false;
        (void)read_pipe(p, s); /* a rest is an event again */
    }
}

/* How long poll() waits without an event; -1: without limit. */
static int wait_ms(const struct output_pump *p, bool retry)
{
    uint64_t due_ns = UINT64_MAX, now = now_ns();
    int ms = retry ? RETRY_MS : -1;

    for (int i = 0; i < 2; i++)
        if (p->folds[i] && fold_due_ns(p->folds[i]) < due_ns)
            due_ns = fold_due_ns(p->folds[i]);
    if (due_ns == UINT64_MAX)
        return ms;
    int fold_ms = due_ns > now ? (int)((due_ns - now) / 1000000) + 1 : 0; /* at most FOLD_WAIT_NS */
    return retry && ms < fold_ms ? ms : fold_ms;
}

/* Waits for an event, not at all when there is more to show, and takes in new bytes. */
static void wait_and_read(struct output_pump *p, bool has_more)
{
    struct pollfd polls[5] = {{.fd = p->wake, .events = POLLIN},
                              {.fd = p->inotify, .events = POLLIN},
                              {.fd = p->pipes, .events = POLLIN}};
    bool retry = needs_retry(p);

    for (int i = 0; i < 2; i++) {
        short events = console_poll_events(&p->consoles[i]);
        polls[3 + i] = (struct pollfd){.fd = events ? p->consoles[i].fd : -1, .events = events};
    }
    p->looked_ns = now_ns();
    (void)poll(polls, 5, has_more ? 0 : wait_ms(p, retry)); /* EINTR cannot be: signals are blocked */
    if (polls[1].revents)
        read_inotify(p);
    if (polls[2].revents)
        read_pipes(p);
    list_for_each_entry(struct output_stream, s, &p->streams, entry)
    {
        if (retry && s->watch < 0)
            refresh_file(s);
        if (s->pipe >= 0 && !s->is_watched && !is_paused(s)) {
            (void)read_pipe(p, s);
            watch_pipe(p, s, EPOLL_CTL_MOD);
        }
    }
}

/* Sentences wait for a disk that is full. */
static bool is_held_up(const struct output_pump *p)
{
    bool has_kept = buf_size(&p->consoles[0].kept) > 0 || buf_size(&p->consoles[1].kept) > 0;

    return has_kept && now_ns() - p->stopped_ns < FULL_DISK_MS * UINT64_C(1000000);
}

static bool is_finished(const struct output_pump *p)
{
    if (!p->drop && is_held_up(p))
        return false;
    return p->drop || (p->stop && list_is_empty(&p->streams) && !console_poll_events(&p->consoles[0]) &&
                       !console_poll_events(&p->consoles[1]));
}

/* False: a sentence came meanwhile. */
static bool refuse_sentences(struct output_pump *p)
{
    hold_lock(&p->lock);
    p->refuses_sentences = list_is_empty(&p->incoming);
    return p->refuses_sentences;
}

static void free_all(struct list *streams)
{
    while (!list_is_empty(streams))
        output_stream_free(list_entry(streams->next, struct output_stream, entry));
}

static void *pump_main(void *data)
{
    struct output_pump *p = data;

    for (;;) {
        uint64_t n_sentences = take_requests(p);
        bool has_more = true;

        for (int i = 0; has_more && i < ROUNDS_AT_ONCE && !p->drop; i++)
            has_more = show_each(p);
        show_folded(p);
        for (int i = 0; i < 2; i++)
            if (drain_console(p, &p->consoles[i]))
                has_more = true;
        note_pumped(p, n_sentences);
        if (!has_more)
            note_looked(p);
        if (is_finished(p) && refuse_sentences(p))
            break;
        wait_and_read(p, has_more);
    }
    if (p->drop)
        show_last_sentences(p);
    for (int i = 0; i < 2; i++) {
        console_close(&p->consoles[i]);
        fold_free(p->folds[i]);
    }
    hold_lock(&p->lock);
    free_all(&p->streams);
    p->has_ended = true;
    if (!p->is_left)
        p->on_news(p->data);
    return NULL;
}

/* ---- the other thread ---- */

static bool is_same_file(int a, int b)
{
    struct stat info_a, info_b;

    return fstat(a, &info_a) == 0 && fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
           info_a.st_ino == info_b.st_ino;
}

static int open_pump_consoles(struct output_pump *p)
{
    int r = console_open(&p->consoles[0], STDOUT_FILENO);

    if (r)
        return r;
    p->one_console = is_same_file(STDOUT_FILENO, STDERR_FILENO);
    return p->one_console ? 0 : console_open(&p->consoles[1], STDERR_FILENO);
}

static void free_pump(struct output_pump *p)
{
    close_fd(&p->wake);
    close_fd(&p->inotify);
    close_fd(&p->pipes);
    for (int i = 0; i < 2; i++)
        console_close(&p->consoles[i]);
    free_all(&p->incoming);
    while (!list_is_empty(&p->reports))
        output_stream_free(list_entry(p->reports.next, struct output_feed, reports)->stream);
    (void)pthread_cond_destroy(&p->pumped);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

int output_pump_create(struct output_pump **ret, bool has_console, void (*on_news)(void *data), void *data)
{
    struct output_pump *p = calloc(1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    p->on_news = on_news;
    p->data = data;
    p->has_console = has_console;
    list_init(&p->news);
    list_init(&p->reports);
    list_init(&p->incoming);
    list_init(&p->streams);
    (void)pthread_mutex_init(&p->lock, NULL); /* does not fail on Linux */
    cond_init(&p->pumped);
    p->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK); /* the limit of a user's instances may be reached */
    p->pipes = epoll_create1(EPOLL_CLOEXEC);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = p->wake < 0 ? -errno : has_console ? open_pump_consoles(p) : 0;
    if (!r)
        r = thread_start(&p->thread, pump_main, p);
    if (r) {
        free_pump(p);
        return r;
    }
    *ret = p;
    return 0;
}

static void wake_thread(struct output_pump *p)
{
    const uint64_t one = 1;

    if (write(p->wake, &one, sizeof(one)) < 0)
        return; /* EAGAIN: the thread has 2^64 - 1 reasons already */
}

uint64_t output_pump_look(struct output_pump *p)
{
    hold_lock(&p->lock);
    uint64_t number = ++p->n_looks;
    wake_thread(p);
    return number;
}

bool output_pump_has_looked(struct output_pump *p, uint64_t number)
{
    hold_lock(&p->lock);
    return p->n_looked >= number;
}

/* Caller holds p->lock. */
static void note_news(struct output_pump *p, struct output_feed *f)
{
    if (!list_is_empty(&f->news))
        return; /* the thread will look */
    list_append(&p->news, &f->news);
    wake_thread(p);
}

void output_pump_add(struct output_pump *p, struct output_stream *s)
{
    hold_lock(&p->lock);
    s->n_flushed = p->n_flushed;
    list_append(&p->incoming, &s->entry);
    if (s->feed) {
        s->feed->is_given_back = false;
        note_news(p, s->feed); /* bytes that another pump has not taken */
    }
    wake_thread(p);
}

bool output_pump_say(struct output_pump *p, struct output_stream *sentence)
{
    uint64_t until_ns = now_ns() + SAY_MS * UINT64_C(1000000);

    hold_lock(&p->lock);
    if (p->refuses_sentences)
        return false;
    sentence->n_flushed = p->n_flushed;
    list_append(&p->incoming, &sentence->entry);
    uint64_t number = ++p->n_queued;
    bool is_late = p->n_pumped + 1 < number; /* the thread has not taken the sentence before: stuck */
    wake_thread(p);
    for (int r = 0; !is_late && p->n_pumped < number && r == 0;)
        r = cond_wait_until(&p->pumped, &p->lock, until_ns);
    return true;
}

int output_pump_feed(struct output_pump *p, struct output_stream *s, const void *bytes, size_t n)
{
    hold_lock(&p->lock);
    int r = buf_append(&s->feed->given, bytes, n);
    if (!r)
        note_news(p, s->feed);
    return r;
}

void output_pump_close(struct output_pump *p, struct output_stream *s)
{
    hold_lock(&p->lock);
    s->feed->is_closing = true;
    note_news(p, s->feed);
}

bool output_pump_next_report(struct output_pump *p, struct output_report *ret)
{
    hold_lock(&p->lock);
    if (list_is_empty(&p->reports))
        return false;
    struct output_feed *f = list_first(&p->reports, struct output_feed, reports);
    list_unlink(&f->reports);
    *ret = (struct output_report){.origin = f->origin, .n_taken = f->n_taken, .result = f->result};
    f->n_taken = 0;
    f->result = 0;
    if (f->is_given_back)
        list_unlink(&f->news);
    ret->rest = f->is_given_back ? f->stream : NULL;
    if (f->is_over)
        output_stream_free(f->stream);
    return true;
}

void output_pump_hurry(struct output_pump *p)
{
    hold_lock(&p->lock);
    p->hurrying = true;
    wake_thread(p);
}

void output_pump_flush(struct output_pump *p)
{
    hold_lock(&p->lock);
    p->n_flushed++;
    wake_thread(p);
}

/* Nothing is added to any stream: streams of a generation without workers would else be waited for. */
void output_pump_end(struct output_pump *p, bool abandon)
{
    hold_lock(&p->lock);
    p->n_flushed++;
    p->ending = true;
    p->abandoned = p->abandoned || abandon;
    wake_thread(p);
}

bool output_pump_join(struct output_pump *p)
{
    (void)pthread_mutex_lock(&p->lock);
    bool has_ended = p->has_ended;
    (void)pthread_mutex_unlock(&p->lock);
    if (has_ended) {
        (void)pthread_join(p->thread, NULL); /* returns soon */
        free_pump(p);
    }
    return has_ended;
}

/* The console may hang: a file is not tried, a slow reader gets a moment. */
static void write_sentence(const struct output_stream *s)
{
    struct pollfd console = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct stat info;

    if (fstat(STDERR_FILENO, &info) < 0 || S_ISREG(info.st_mode) || poll(&console, 1, LAST_SENTENCES_MS) <= 0)
        return;
    if (write(STDERR_FILENO, buf_bytes(&s->tail), buf_size(&s->tail)) < 0)
        return; /* there is no other place to report it */
}

void output_pump_leave(struct output_pump *p)
{
    hold_lock(&p->lock);
    p->is_left = true;
    list_for_each_entry(const struct output_stream, s, &p->incoming, entry)
    {
        if (s->is_sentence)
            write_sentence(s);
    }
    list_init(&p->incoming);
}
