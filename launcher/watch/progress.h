#pragma once

/*
 * Whether the ranks of a node make progress: a state machine with virtual time. Pure: a shell (watch_uv.c) takes samples
 * and gives them to progress_step() with their time.
 *
 * Signs of progress are strong or weak.
 *
 * strong: a counter has changed: bytes that the rank and its descendants have read or written (which includes what it
 *         prints), the head of the memory file that crun lends it (beat(step), libcrw's commits and collectives), changes of keys in
 *         the store that crun serves. One strong sign of any rank restarts the time: a rank that writes a checkpoint,
 *         compiles or waits for data keeps the others waiting, and that is not a hang.
 * weak:   only looked for when no strong sign was there for half of the time-out: the place of the main thread of each
 *         process of the rank. There are looks at 1/2, 2/3, 5/6 and 1 of the time-out, and as often behind it. PLACES_STILL
 *         looks in a row that find each rank where the one before did, over half of the time-out, decide: a rank that
 *         computes in one function for less than that is not reported.
 *
 * CPU time is neither: a wait for a GPU, or for the lock of the Python interpreter, may use all of it.
 *
 * A hang is the time-out without a strong sign, and still places. It is reported once, and again only after there has
 * been a strong sign. A node knows nothing of the ranks of other nodes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROGRESS_PLACES_STILL = 3 };

/* Where the processes of a rank are. */
struct progress_place {
    uint64_t where;    /* digest of the processes and of the place of each main thread */
    uint64_t switches; /* context switches of these main threads */
    uint64_t faults;   /* page faults of these processes */
    bool runs;         /* a main thread runs */
    bool has_stack;    /* `where` includes the stacks of those that run */
    bool others_run;   /* a thread other than the main one runs */
};

struct progress_sample {
    bool is_alive;
    uint64_t n_bytes; /* read and written, but for what a process had done before it was found */
    uint64_t head;    /* digest of the head of its memory file */
    bool has_place;
    struct progress_place place;
};

struct progress_rank {
    struct progress_sample last;
    struct progress_place place; /* of the last look at places */
    bool has_place;
    int n_still;       /* looks in a row that found it there */
    uint64_t since_ns; /* the first look that found it there */
};

struct progress {
    uint64_t timeout_ns; /* 0: nothing is ever reported */
    struct progress_rank *ranks;
    int n_ranks;
    uint64_t n_changes; /* of the store */
    uint64_t strong_ns; /* the last strong sign */
    uint64_t places_ns; /* the last look at places */
    bool has_sample, is_reported;
};

enum progress_verdict {
    PROGRESS_MOVES,  /* or it is not known yet */
    PROGRESS_HANGS,  /* once */
    PROGRESS_RESUMES /* a strong sign after a hang that was reported */
};

/* 0 or -ENOMEM. */
int progress_init(struct progress *p, uint64_t timeout_ns, int n_ranks);
void progress_finish(struct progress *p);

/* A generation begins: what was known is forgotten. */
void progress_begin(struct progress *p, uint64_t now_ns);

/* How long until the next sample is due. */
uint64_t progress_interval_ns(const struct progress *p);

/* Whether the next sample should have places. */
bool progress_wants_places(const struct progress *p, uint64_t now_ns);

/* samples: of all ranks, taken at now_ns. n_changes: of the store, so far. */
enum progress_verdict progress_step(struct progress *p, uint64_t now_ns,
                                    const struct progress_sample *samples, uint64_t n_changes);

/* No strong sign of a rank of this node for the whole time-out, and all are still. */
bool progress_is_quiet(const struct progress *p, uint64_t now_ns);

/* Since when there is no strong sign. */
uint64_t progress_silence_ns(const struct progress *p, uint64_t now_ns);
