#pragma once

/*
 * How long each rank of a node has waited for other ranks, and from which length on a wait is unusual for the rank: a state machine
 * with virtual time. Pure: a shell gives a sample of all ranks about once a second.
 *
 * Wait: the looks in a row that find a rank waiting and without a move. The length counts from the first of the looks, so waits
 * of less than the time between two looks have the length 0.
 *
 * Rhythm: ranks of pipeline and tensor groups wait at each step by design, so the limit is the rank's own: WAITS_FACTOR times
 * the median of its last WAITS_KEPT waits. A rank that counts its steps (beat(step), collectives of libcrw) adds one wait for each
 * look with a new step; a rank without a count adds each wait that a look has seen.
 *
 *   limit = max(WAITS_LEAST_NS, WAITS_FACTOR * median); before the second step at least WAITS_FIRST_NS
 *
 * A rank without a count is behind the second step after WAITS_MOVES looks with a move since the first wait, or after
 * WAITS_MOVES_UNSEEN looks with a move: short waits fall between two looks, and a GPU program polls.
 *
 * Share: percent of the last WAITS_LOOKS looks that found the rank in a wait, by waits_now or by beats. Ranks of a node that publish
 * beat(step) need no wait that /proc can show (a rank in NCCL polls): a rank waits while its step is ahead of the last rank of
 * the node, by no more than its own steps since the look before or 1. Looks at an unusually long wait are left out: stall.h is about
 * long waits, and a rank that saves for minutes is not slow.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WAITS_KEPT = 50,
    WAITS_FACTOR = 3,
    WAITS_MOVES = 2,
    WAITS_MOVES_UNSEEN = 10,
    WAITS_LOOKS = 60,
    WAITS_LOOKS_LEAST = 20
};
/* The line is to be there 10 s after the wait began, 30 s before the second step: the look, the description, a stack and other nodes take
 * the rest. */
#define WAITS_LEAST_NS UINT64_C(7000000000)
#define WAITS_FIRST_NS UINT64_C(27000000000)
/* Of the time without a look so much counts as a wait: a batch system may have stopped the job and crun for an hour. */
#define WAITS_GAP_NS UINT64_C(3000000000)
/* A look with stacks takes less. */
#define WAITS_LOOK_MAX_NS UINT64_C(20000000000)
#define WAITS_REST_NS UINT64_C(20000000)

struct wait_sample {
    bool is_alive;
    bool waits;    /* for other ranks: in a collective, in a call that receives, for a key of the store */
    bool moved;    /* since the sample before: other counters, another place, processor time */
    uint64_t step; /* steps or collectives so far; 0: the rank counts none */
    /* Of the share. */
    bool waits_now;    /* at the moment of the look */
    uint64_t beat_end; /* step of the last beat(step) plus 1; 0: none, or the rank counts collectives */
    bool rests; /* that beat came WAITS_REST_NS or more before the look: the looks at ranks take time */
};

struct wait_rank {
    uint64_t since_ns;         /* first look of the present wait; 0: the rank does not wait */
    uint64_t step;             /* of the last sample */
    uint64_t longest_ns;       /* since the last new step */
    uint32_t kept[WAITS_KEPT]; /* lengths of the last waits in ms, a ring */
    uint64_t n_waits;          /* that have ended, or steps */
    int n_moves;               /* looks with a move since the first wait, up to WAITS_MOVES */
    int n_all_moves;           /* looks with a move, up to WAITS_MOVES_UNSEEN */
    bool has_waited;
    uint64_t looks;     /* a bit for each look, the last one lowest: 1 in a wait */
    uint64_t begun;     /* the same: 1 in a wait that began since the look before */
    int n_looks;        /* at most WAITS_LOOKS */
    int n_looks_waited; /* in a row, at the present wait */
    uint64_t beat_end;  /* of the last sample */
};

struct waits {
    struct wait_rank *ranks;
    int n_ranks;
    uint64_t look_ns; /* the last one; 0: none since waits_begin() */
};

/* 0 or -ENOMEM. */
int waits_init(struct waits *w, int n_ranks);
void waits_finish(struct waits *w);

/* A generation begins: the waits of the former processes are forgotten. */
void waits_begin(struct waits *w);

/* samples: of all ranks, taken at now_ns. */
void waits_step(struct waits *w, uint64_t now_ns, const struct wait_sample *samples);

/* The last look has taken until now_ns, for example for stacks: no gap, unless it was longer than any tool may take. */
void waits_end_look(struct waits *w, uint64_t now_ns);

/* Length of the present wait; 0: the rank does not wait. */
uint64_t waits_length_ns(const struct waits *w, int rank, uint64_t now_ns);

/* The length from which on a wait of the rank is unusual. */
uint64_t waits_limit_ns(const struct waits *w, int rank);

/* Number of ranks with an unusual wait. */
int waits_count_unusual(const struct waits *w, uint64_t now_ns);

/* Whether a rank has waited for length_ns. */
bool waits_any_longer(const struct waits *w, uint64_t length_ns, uint64_t now_ns);

/* The share; -1: not known before WAITS_LOOKS_LEAST looks. */
int waits_percent(const struct waits *w, int rank);

/* Whether the share of a rank is at least so many percent. */
bool waits_any_share(const struct waits *w, int percent);

/* Number of waits that began in the looks of the share; several between two looks count once. */
int waits_count_begun(const struct waits *w, int rank);
