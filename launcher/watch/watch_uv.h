#pragma once

/*
 * Watches the workers of a node: takes samples of their progress (progress.h) and of their waits (waits.h), stacks when they hang or
 * on request, and a description of each rank while one of them waits unusually long.
 *
 * Everything that reads /proc, runs a tool or writes a file is done by a side thread; the loop's timer gives it one task at
 * a time. If the thread waits for a disk, the watch stands still and the job does not.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/watch/stack_requests.h"

struct hang_rank;
struct waits;
struct watch;

struct watch_worker {
    pid_t pid; /* 0: it does not run */
    bool has_succeeded;
};

struct watch_job {
    uint32_t generation;
    bool is_at_work; /* all workers are */
    int rank_base;
    uint16_t store_port; /* of the worker store */
    uint64_t n_store_changes;
    const char *folder; /* of the generation's logs; NULL: none. Valid until the next event of the loop */
};

/* What was found out. The texts are valid during the callback. */
struct watch_stacks {
    enum watch_reason reason;
    uint64_t silence_ns;
    const char *nccl;   /* the line of the text about NCCL's communicators, or "" */
    const char *text;   /* lines about groups of ranks, the one that stands out first; may be NULL */
    const char *folder; /* of the files; NULL: there are none */
    int worker;         /* the first one of the first group */
    bool stands_out;
    const char *host;
    const struct hang_rank *ranks; /* the groups in detail */
    size_t n_ranks;
};

struct watch_host {
    uv_loop_t *loop;
    char *const *environment;
    const char *python;  /* the executed file */
    uint64_t timeout_ns; /* 0: nothing is watched, stacks can be had all the same */
    int n_workers;
    int link;             /* takes the files of stacks, see watch_task_os.h; 0: none */
    const int *state_fds; /* of the workers' memory files */
    struct watch_job (*describe)(void *data, struct watch_worker *workers);
    void (*on_hang)(void *data);   /* the time-out has passed; watch_take_stacks() */
    void (*on_resume)(void *data); /* there is progress again, after on_hang() */
    void (*on_stacks)(void *data, const struct watch_stacks *stacks);
    /* The files are complete, some seconds later; worker: the first one of the first group, or -1. */
    void (*on_files)(void *data, enum watch_reason reason, int worker);
    /* The ranks of this node, to be sorted at will. n_unusual: ranks that wait unusually long; 0 once more after the last such rank
     * went on, where watch_ask_ranks() was the reason, and about every SLOW_CHECK_NS while a rank waits most of the time (slow.h). */
    void (*on_ranks)(void *data, struct hang_rank *ranks, size_t n_ranks, int n_unusual);
    void *data;
};

/* 0 or -errno. */
int watch_create(struct watch **ret, const struct watch_host *host);

/* Takes the stacks of all workers, then calls on_stacks and on_files. False: they are being taken already, and on_stacks is
 * still to be called for them (stack_requests.h). */
bool watch_take_stacks(struct watch *w, enum watch_reason reason);

/* on_ranks() follows at the next look, whether a rank waits unusually long or not; with stacks, or with activities alone. NULL is
 * fine. */
void watch_ask_ranks(struct watch *w, bool with_stacks);

/* Of the workers, in the present generation. */
const struct waits *watch_waits(const struct watch *w);

/* The same with the stacks of Python programs that are read without a pause. No other program is paused. */
void watch_ask_python(struct watch *w);

/* Closes its handles; no callback comes any more. Afterwards, when the loop has run dry, watch_destroy(). NULL is fine for both. */
void watch_close(struct watch *w);

/* Whether it has had anything to do, so that its thread may write files. NULL is fine. */
bool watch_has_worked(const struct watch *w);

/* A line of a report, once: py-spy is missing, and a worker is Python. NULL is fine. */
void watch_log_hint(struct watch *w);

/* What waits for a disk is left to its thread (side_thread_os.h). */
void watch_destroy(struct watch *w);
