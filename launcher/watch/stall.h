#pragma once

/*
 * A partial stall of a job: some ranks wait unusually long (waits.h) for a rank that does something else. A state machine with virtual
 * time decides when to print a line, when to repeat the line, and when to report the end. Pure. Node 0 feeds the machine with the ranks
 * of all nodes while a rank waits unusually long.
 *
 *   QUIET --unusual wait, as long as tolerated--> REPORTED --twice the pause before--> REPORTED (again)
 *     ^                                              |
 *     +------------- no unusual wait -----------------+   "they go on"
 *
 * Each awaited rank has a pause of its own: a rank that stands out for WAITS_LEAST_NS instead of the former one is a new line. A wait that
 * began behind the last look of a stall belongs to another stall: the message about the end of the first one was lost.
 *
 * Evidence: a program may wait for a peer or a lock by design, as a server without requests does. So a wait known from counters, a stack or
 * a key counts from the limit on, and a wait that the system call alone suggests from WAITS_FIRST_NS on. Where all ranks seem to wait, a
 * line needs a wait of the first kind. A rank without a process after a success waits as in the second kind.
 *
 * Tolerance: the length from which on a wait is reported depends on the activity of the awaited rank. A save, a load at full speed and a
 * compiler get STALL_*_NS from the start. A wait that has ended without help teaches the job: a further wait for a rank with the same
 * activity is reported only beyond STALL_LEARNT times the former length, or STALL_LEARNT_MAX_NS. So a validation on one rank is named once.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/watch/activity.h"

struct event_stall;
struct hang_rank;

#define STALL_TRANSFER_NS UINT64_C(60000000000)
#define STALL_COMPILER_NS UINT64_C(120000000000)
#define STALL_LEARNT 1.5
/* The most that a wait teaches: after a rank was stopped for an hour, silence for another hour helps no user. */
#define STALL_LEARNT_MAX_NS UINT64_C(600000000000)
/* Bytes a second of a transfer at full speed. */
#define STALL_FAST_BYTES UINT64_C(20000000)
/* The first ranks of a stall have stacks, which are new for so long. */
#define STALL_FRESH_NS UINT64_C(3000000000)
/* Between the request for the stacks of a line and the line: two looks and a slow tool. */
#define STALL_NEAR_NS UINT64_C(5000000000)
#define STALL_RANK_NS UINT64_C(250000)
#define STALL_AGAIN_NS UINT64_C(60000000000) /* first pause between two lines on one awaited rank */
/* Between two lines node 0 looks for another awaited rank. */
#define STALL_BETWEEN_NS UINT64_C(10000000000)
/* Between two descriptions of a node with new stacks: less than the shortest stall, more than the time for the answers of all nodes. */
#define STALL_STACKS_NS UINT64_C(6000000000)
enum { STALL_LINES = 8 };

enum stall_verdict {
    STALL_NOTHING,
    STALL_ASK, /* a line is due in STALL_NEAR_NS, and the stacks are old: the next ranks are to have new stacks */
    STALL_REPORT,
    STALL_GOES_ON
};

/* Zeroed at the begin of a generation. */
struct stall {
    uint64_t tolerated_ns[ACTIVITY_COUNT]; /* learnt */
    enum activity activity;                /* of the awaited rank, in the present or last stall */
    uint64_t longest_ns;                   /* wait of the present stall; 0: there is none */
    uint64_t first_ns, begun_ns; /* first look of the present stall, and begin of its longest wait */
    uint64_t seen_ns;            /* last look of the present stall */
    bool has_asked;              /* for the stacks of the next line */
    int awaited;                 /* rank, at the last look; -1: none stands out */
    uint64_t awaited_ns;         /* the first look in a row with that rank */
    struct stall_line {
        int rank;                    /* awaited; -1: none */
        uint64_t again_ns, pause_ns; /* time of the next line, and the pause before it */
    } lines[STALL_LINES];            /* printed in the present stall */
    int n_lines;
    uint64_t looked_ns; /* the last stall_may_look(); 0: none */
};

/* Whether node 0 asks for the ranks of all nodes now: between two lines once in STALL_BETWEEN_NS. Many ranks are asked less often:
 * each costs the event loop about a tenth of STALL_RANK_NS. Not so before new stacks. */
bool stall_may_look(struct stall *s, uint64_t now_ns, size_t n_ranks);

/* ranks: of all nodes, in the order of hang_sort(); stands_out: the result of hang_sort(). Without ranks: no rank waits unusually long. */
enum stall_verdict stall_step(struct stall *s, uint64_t now_ns, const struct hang_rank *ranks, size_t n_ranks,
                              bool stands_out);

/* Whether a node may take new stacks for a description, at *stacks_ns for the last time (0: never). True: *stacks_ns is now_ns. */
bool stall_may_take_stacks(uint64_t *stacks_ns, uint64_t now_ns);

/* Whether a rank waits unusually long. */
bool stall_is_any_unusual(const struct hang_rank *ranks, size_t n_ranks);

/* "3 of 4 ranks have waited 12 s (usual: up to 4 s) in all-reduce, collective 57 of all ranks for rank 2 on host-a (pid 7): reads
 * /data/x at 1.0 MB/s": of the ranks that stall_step() got, malloc'ed, or NULL without memory. facts: for the event log. */
char *stall_text(const struct hang_rank *ranks, size_t n_ranks, bool stands_out, struct event_stall *facts);
