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
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WAITS_KEPT = 50, WAITS_FACTOR = 3, WAITS_MOVES = 2, WAITS_MOVES_UNSEEN = 10 };
/* The line is to be there 10 s after the wait began, 30 s before the second step: the look, the description, a stack and other nodes take
 * the rest. */
#define WAITS_LEAST_NS UINT64_C(7000000000)
#define WAITS_FIRST_NS UINT64_C(27000000000)

struct wait_sample {
    bool is_alive;
    bool waits;    /* for other ranks: in a collective, in a call that receives, for a key of the store */
    bool moved;    /* since the sample before: other counters, another place, processor time */
    uint64_t step; /* steps or collectives so far; 0: the rank counts none */
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
};

struct waits {
    struct wait_rank *ranks;
    int n_ranks;
};

/* 0 or -ENOMEM. */
int waits_init(struct waits *w, int n_ranks);
void waits_finish(struct waits *w);

/* A generation begins: the waits of the former processes are forgotten. */
void waits_begin(struct waits *w);

/* samples: of all ranks, taken at now_ns. */
void waits_step(struct waits *w, uint64_t now_ns, const struct wait_sample *samples);

/* Length of the present wait; 0: the rank does not wait. */
uint64_t waits_length_ns(const struct waits *w, int rank, uint64_t now_ns);

/* The length from which on a wait of the rank is unusual. */
uint64_t waits_limit_ns(const struct waits *w, int rank);

/* Number of ranks with an unusual wait. */
int waits_count_unusual(const struct waits *w, uint64_t now_ns);
