#pragma once

/*
 * One stream of a worker (its standard output or standard error) or one sentence of crun, as the output thread handles
 * it: files and pipe, opened when a worker starts, and the place of the console.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "launcher/output/line_prefix.h"

struct job;
struct line_rules;

struct output_stream {
    struct list entry;
    int local_rank, rank; /* of the node, of the whole job */
    int n_folded;     /* number of workers whose equal lines become one (fold.h); 0: lines are not folded */
    int which;        /* 0: standard output, 1: standard error */
    bool is_sentence; /* text of crun in `tail`, with neither file nor pipe */
    bool is_remote;   /* of a front: ends by output_pump_close(), not with a generation */
    uint32_t attempt; /* is_remote: generation of the worker */
    atomic_bool is_closed;        /* is_remote: nothing is added any more */
    struct output_stream *behind; /* a stream to be shown to its end first; NULL: none */
    struct output_stream *next;   /* the stream behind; set before is_closed */
    uint32_t n_flushed;           /* how often output_flush() had been called when the stream was added */
    int file;                     /* the log file that the worker writes, opened for reading; -1: none */
    uint64_t size, shown;         /* bytes of the file, and those on the console */
    int watch;                    /* of inotify on the file; -1: none */
    int pipe;                     /* without a log file: the worker's pipe; -1: none */
    bool is_watched;              /* epoll reports the pipe's next event */
    struct buf tail;              /* bytes from the pipe, not shown yet */
    uint64_t redraw_due_ns;       /* when the next state of a progress bar is shown */
    bool ended;                   /* nothing is added any more */
    bool has_line;                /* a whole line may be there to be shown */
    char *prefix;                 /* in front of each line, with colour on a terminal */
    char *prefix_plain;
    const struct strlist *filter;   /* borrowed from the job */
    const struct line_rules *rules; /* borrowed from the job; or NULL */
    struct line_seam seam;          /* for the rules */
    uint64_t rules_due_ns;          /* when a match is reported again */
    bool is_replaced;               /* another worker has taken the worker's place */
    bool has_lost_filtered;         /* a write to `filtered` has failed; reported */
    int filtered;                   /* file for lines that match the filter, or -1 */
};

/* Common to the streams of a generation. */
struct output_place {
    const struct job *job;
    char *const *environment;
    const char *attempt_dir; /* where output goes to files; NULL without files */
    int rank_base;           /* rank of the first worker in the whole job, for prefixes */
    int attempt;             /* number in the name of attempt_dir */
    const char *host;        /* name of the workers' host, for a front; NULL: this node */
    char *error;             /* for the reason of a failure */
    size_t error_size;
};

/*
 * Opens one stream of the worker with this local rank. *ret_fd: what the worker writes to (the caller closes it), or -1 for crun's
 * own descriptor. With place->host a pipe takes the place of crun's own descriptor, and -1 stands for /dev/null. *ret_stream: NULL
 * when the console shows nothing; else the caller's. Returns 0, or -errno, perhaps with the reason in place->error. For any thread.
 */
int output_stream_open(const struct output_place *place, int local_rank, int which, int *ret_fd,
                       struct output_stream **ret_stream);

/* A sentence of crun: whole lines. NULL without memory. */
struct output_stream *output_stream_sentence(const char *text);

void output_stream_free(struct output_stream *s);
