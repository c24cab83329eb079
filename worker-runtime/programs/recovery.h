#pragma once

/*
 * Where a group of ranks that comes together takes its state from: ranks that have gone on since before a failure
 * hold it alive, crun may hold what a process left in memory, and there may be a snapshot on disk. Pure: every
 * rank sends the others what it has, and all come to the same choice.
 *
 * States are numbered by commits: a step that was taken or an epoch that was closed adds one. Ranks that fail
 * together are never more than one commit apart, since no rank takes a step, or closes an epoch, that another has
 * not come to.
 */

#include <stddef.h>
#include <stdint.h>

#define RECOVERY_NONE (-1)

/* What one rank has; RECOVERY_NONE: not. */
struct recovery_offer {
    int64_t alive;     /* the state that its process goes on with */
    int64_t memory[2]; /* states that the process before left in memory */
    int64_t n_parts;   /* that the ranks of its host share a state in memory among each other */
};

enum recovery_kind {
    RECOVERY_FRESH,  /* no rank has anything, or only what is on disk */
    RECOVERY_ALIVE,  /* rank `from` sends it */
    RECOVERY_MEMORY, /* ranks 0 to n_parts - 1 have a part of it each */
};

struct recovery_choice {
    enum recovery_kind kind;
    int64_t number;
    int from;
    int n_parts;
};

/* Without a look at the disk: what is alive is the newest there is, what is in memory may be older. */
struct recovery_choice recovery_choose(const struct recovery_offer *offers, int n);

/* Whether the state with that number is this rank's own, so that what differs between ranks need not be another's. */
int recovery_has(const struct recovery_offer *offer, int64_t number);
