#pragma once

/*
 * Whether the ranks of a node make progress: a state machine with virtual time. Pure: a shell (watch_uv.c) takes samples
 * and gives them to progress_step() with their time.
 *
 * Signs of progress are strong or weak.
 *
 * strong: a counter has changed: bytes that the rank and its descendants have written (which includes what it prints) or read,
 *         the head of the memory file that crun lends it (beat(step), libcrw's commits and collectives), changes of keys in the
 *         store that crun serves. Reads count from a rate on: READ_MIN bytes above READ_RATE a second, whatever the time between
 *         two looks. A program that waits may read small files again and again: a client without its server reads /etc/hosts for
 *         each attempt to connect. One strong sign of any rank restarts the time: a rank that writes a checkpoint,
 *         compiles or waits for data keeps the others waiting, and that is not a hang.
 * weak:   only looked for when no strong sign was there for half of the time-out: the place of the main thread of each
 *         process of the rank. There are looks at 1/2, 2/3, 5/6 and 1 of the time-out, and as often behind it. PLACES_STILL
 *         looks in a row that find each rank where the one before did, over half of the time-out, decide: a rank that
 *         computes in one function for less than that is not reported.
 *
 * CPU time is no sign: a wait for a GPU, or for the lock of the Python interpreter, may use all of it. But what a thread
 * did not use is one of rest: the state at one instant is not, because a thread that polls is found running now and then, and
 * on a busy machine it waits for a CPU much longer than it runs. So a main thread computes when it ran for 1/BUSY_SHARE of
 * the time since the look before, or ran or waited for a CPU for half of it; the other threads compute when they ran for
 * 1/BUSY_SHARE. Main threads that did not compute have not moved, wherever this look found one running.
 *
 * A look whose tool did not show the stack of a main thread that computes in time (PROGRESS_STACK_LATE) shows nothing: it
 * neither counts as one that found the rank where it was, nor ends a row of those. Without any progress for twice the
 * time-out the tool is not waited for any longer, and page faults decide, as where there is no tool.
 *
 * A hang is the time-out without a strong sign, and still places. It is reported once, and again only after there has
 * been a strong sign. A node knows nothing of the ranks of other nodes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROGRESS_PLACES_STILL = 3,
    PROGRESS_BUSY_SHARE = 20, /* of the time between two looks: one part in so many */
    PROGRESS_READ_MIN = 4096, /* bytes, beside PROGRESS_READ_RATE bytes in each second */
    PROGRESS_READ_RATE = 1024,
    PROGRESS_WRITTEN = PROGRESS_READ_MIN, /* bytes read that a byte written counts as */
};

enum progress_stack {
    PROGRESS_STACK_NONE,  /* no tool shows it */
    PROGRESS_STACK_LATE,  /* the tool did not end in time */
    PROGRESS_STACK_KNOWN, /* `where` includes the stacks of the main threads that run */
};

/* Where the processes of a rank are. */
struct progress_place {
    uint64_t processes; /* digest of their numbers */
    uint64_t where;     /* digest of the place of each main thread */
    uint64_t switches;  /* context switches of these main threads */
    uint64_t faults;    /* page faults of these processes */
    bool runs;          /* a main thread runs, or waits for a CPU */
    enum progress_stack stack;
    uint64_t main_ran_ns, main_waited_ns; /* so far: on a CPU and for one, of the main threads */
    uint64_t others_ran_ns;               /* so far: on a CPU, of the other threads */
};

struct progress_sample {
    bool is_alive;
    uint64_t n_bytes; /* read, and PROGRESS_WRITTEN times those written, since its processes were found */
    uint64_t head;    /* digest of the head of its memory file */
    bool has_place;
    struct progress_place place;
};

struct progress_rank {
    struct progress_sample last;
    double excess;               /* bytes above PROGRESS_READ_RATE since the last strong sign */
    struct progress_place place; /* of the last look that showed one */
    bool has_place;
    uint64_t place_ns; /* of that look */
    int n_still;       /* looks in a row that found it there */
    uint64_t since_ns; /* the first look that found it there */
};

struct progress {
    uint64_t timeout_ns; /* 0: nothing is ever reported */
    struct progress_rank *ranks;
    int n_ranks;
    uint64_t n_changes; /* of the store */
    uint64_t sample_ns; /* the last sample, or the begin */
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
