#pragma once

/*
 * One stream of a worker (its standard output or standard error) or one sentence of crun, as the output thread handles
 * it: files and pipe, opened when a worker starts, and the place of the console.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "launcher/output/line_prefix.h"

struct job;
struct line_rules;
struct output;
struct output_stream;

/* The place of a stream whose worker runs on another host. */
struct output_origin {
    unsigned host;   /* index, the owner's */
    uint32_t number; /* of the stream in the host's channel */
    uint32_t rank, local_rank, attempt;
    unsigned file; /* kind of a file, the owner's: the bytes are never shown; 0: output of a worker */
    const char *host_name;
    int (*open_log)(
        struct output_stream *s); /* the output thread opens the log file; NULL: the stream has none */
    void *owner;
};

/*
 * The bytes of a worker on another host, from memory. The loop gives bytes; the output thread takes them, appends them to the log
 * file, and reports their number, which may be given again. Members marked with L are under the lock of the output thread.
 */
struct output_feed {
    struct output_origin origin;
    struct output_stream *stream;
    struct output *output;     /* the loop's: the output that has the stream; NULL: none */
    struct list news, reports; /* L: for the thread, for the loop */
    struct buf given;          /* L: bytes not taken yet */
    size_t n_taken;            /* L: bytes taken, and not reported */
    int result;                /* L: failure of the log file, not reported; 0: none */
    bool is_closing;           /* L: nothing is given any more */
    bool is_over;              /* L: the thread has no more use for the stream */
    bool is_given_back;        /* L: another output has to show the rest */
    struct buf taken;          /* the thread's: bytes for file or console */
    size_t n_owed;             /* taken bytes not reported yet, as too many wait for the console */
    int log;                   /* the log file, for appending; -1: none */
    bool has_lost_log;         /* what the file lacks is in `tail` */
    bool is_listed;            /* not filtered out */
    bool is_shown;             /* on the console */
    bool is_closed;            /* a copy of is_closing */
};

struct output_stream {
    struct list entry;
    int local_rank, rank; /* of the node, of the whole job */
    int n_folded;     /* number of workers whose equal lines become one (fold.h); 0: lines are not folded */
    int which;        /* 0: standard output, 1: standard error */
    bool is_sentence; /* text of crun in `tail`, with neither file nor pipe */
    struct output_feed
        *feed; /* of a front: ends by output_close(), not with a generation; NULL: a worker of this node */
    uint32_t n_flushed;     /* how often output_flush() had been called when the stream was added */
    int file;               /* the log file that the worker writes, opened for reading; -1: none */
    uint64_t size, shown;   /* bytes of the file, and those on the console */
    int watch;              /* of inotify on the file; -1: none */
    int pipe;               /* without a log file: the worker's pipe; -1: none */
    bool is_watched;        /* epoll reports the pipe's next event */
    struct buf tail;        /* bytes from the pipe, not shown yet */
    uint64_t redraw_due_ns; /* when the next state of a progress bar is shown */
    bool ended;             /* nothing is added any more */
    bool has_line;          /* a whole line may be there to be shown */
    char *prefix;           /* in front of each line, with colour on a terminal */
    char *prefix_plain;
    const struct strlist *filter;   /* borrowed from the job */
    const struct line_rules *rules; /* borrowed from the job; or NULL */
    struct line_seam seam;          /* for the rules */
    uint64_t rules_due_ns;          /* when a match is reported again */
    bool is_replaced;               /* another worker has taken the worker's place */
    bool has_lost_filtered;         /* a write to `filtered` has failed; reported */
    int filtered;                   /* file for lines that match the filter, or -1 */
};

/* On a stream of another host: bytes were taken, or its log file has failed. */
struct output_report {
    struct output_origin origin;
    size_t
        n_taken; /* bytes of output_feed() that were taken for file or console: as many may be given again */
    int result;  /* of the log file: 0 or -errno */
    struct output_stream *
        rest; /* of an output without console: the callback owns the stream, which needs another output; or NULL */
};

/* Common to the streams of a generation. */
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
 * own descriptor. *ret_stream: NULL when the console shows nothing; else the caller's. Returns 0, or -errno, perhaps with the reason in place->error. For any thread.
 */
int output_stream_open(const struct output_place *place, int local_rank, int which, int *ret_fd,
                       struct output_stream **ret_stream);

/*
 * A stream of a worker on another host, for output_add() and output_feed(): shown as on this node, without -r and -t without prefix.
 * n_folded: as in struct output_stream, where lines are folded. 0, -ENOMEM, or -EPIPE: neither shown nor kept.
 */
int output_stream_of_host(struct output_stream **ret, const struct output_place *place,
                          const struct output_origin *origin, int which, int n_folded);

/* For open_log(): opens the log file below place->attempt_dir. 0, or -errno as output_stream_open(). */
int output_stream_open_log(struct output_stream *s, const struct output_place *place);

/* Appends the taken bytes to the log file; those not written stay. 0 or -errno. */
int output_stream_append_log(struct output_stream *s);

/* A sentence of crun: whole lines. NULL without memory. */
struct output_stream *output_stream_sentence(const char *text);

void output_stream_free(struct output_stream *s);
