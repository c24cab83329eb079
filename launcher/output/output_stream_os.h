#pragma once

/*
 * One stream of a worker (its standard output or standard error) or one sentence of crun, as the output thread handles
 * it: what is opened when a worker starts, and how far the console is.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "launcher/output/line_prefix.h"

struct job;
struct line_rules;

struct output_stream {
    struct list entry;
    int local_rank, rank;   /* of the node, of the whole job */
    int n_folded;           /* workers whose equal lines become one (fold.h); 0: lines are not folded */
    int which;              /* 0: standard output, 1: standard error */
    bool is_sentence;       /* text of crun in `tail`, with neither file nor pipe */
    uint32_t n_flushed;     /* how often output_flush() had been called when the stream was added */
    int file;               /* the log file that the worker writes, opened for reading; -1: none */
    uint64_t size, shown;   /* bytes of it, and how many of them are on the console */
    int watch;              /* of inotify on the file; -1: none */
    int pipe;               /* without a log file: what the worker writes; -1: none */
    bool is_watched;        /* epoll reports the pipe's next event */
    struct buf tail;        /* what was read from the pipe and is not shown */
    uint64_t redraw_due_ns; /* when the next state of a progress bar is shown */
    bool ended;             /* nothing is added any more */
    bool has_line;          /* a whole line may be there to be shown */
    char *prefix;           /* in front of each line, with colour on a terminal */
    char *prefix_plain;
    const struct strlist *filter;   /* borrowed from the job */
    const struct line_rules *rules; /* borrowed from the job; or NULL */
    struct line_seam seam;          /* for them */
    uint64_t rules_due_ns;          /* when a match is reported again */
    bool is_replaced;               /* another worker has taken the place of this one */
    bool has_lost_filtered;         /* a write to `filtered` has failed, which was reported */
    int filtered;                   /* file for lines that match the filter, or -1 */
};

/* What the streams of a generation have in common. */
struct output_place {
    const struct job *job;
    char *const *environment;
    const char *attempt_dir; /* where output goes to files; NULL without files */
    int rank_base;           /* rank of the first worker in the whole job, for prefixes */
    int attempt;             /* number in the name of attempt_dir */
    char *error;             /* for the reason of a failure */
    size_t error_size;
};

/*
 * Opens one stream of the worker with this local rank. *ret_fd: what the worker writes to (the caller closes it), or -1 for crun's
 * own descriptor. *ret_stream: NULL when the console shows nothing of it; else the caller's. Returns 0, or -errno, perhaps with the
 * reason in place->error. For any thread.
 */
int output_stream_open(const struct output_place *place, int local_rank, int which, int *ret_fd,
                       struct output_stream **ret_stream);

/* A sentence of crun: whole lines. NULL without memory. */
struct output_stream *output_stream_sentence(const char *text);

void output_stream_free(struct output_stream *s);
