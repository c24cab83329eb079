#pragma once

/*
 * Which ranks come late again and again, so that the others wait for them: a state machine with virtual time. Pure: a
 * shell gives it what the ranks have published: agent_stragglers_uv.c that of the ranks of its node, about once a second, and
 * job_stragglers.c what all nodes of a job have reported of their last seconds.
 *
 * At a look a rank is late for another one by its steps (beat(step)) when it reported the same step later, or has not reported
 * the one that the other has, by STRAGGLER_SHARE of the time that a step takes, or when it is two steps behind; by libcrw's counters
 * when it has begun fewer collectives of a group. It is late when it is for more than half of the other ranks; in a large job these are about
 * STRAGGLER_COMPARED of them, at even distances. Where times come from several nodes, slack_ns is what they may be wrong by: a
 * rank has to be later than that, too.
 *
 * A rank is a straggler when it was late at STRAGGLER_LATE_MIN of the last STRAGGLER_LOOKS looks, and at three quarters of those at
 * which any rank was: one is always the last, and where that is another one each time, none of them is a straggler. Looks between
 * which no rank went on are one look, so a rank that writes a checkpoint for a minute was late once. A rank that hangs is no
 * straggler: progress.h has the rule for that.
 */

#include <stdbool.h>
#include <stdint.h>

enum {
    STRAGGLER_LOOKS = 32, /* as many as a mask has bits */
    STRAGGLER_LATE_MIN = 4,
    STRAGGLER_SHARE = 8, /* of a step: one part in so many */
    STRAGGLER_GROUPS_MAX = 4,
    STRAGGLER_COMPARED = 128,
};

struct straggler_sample {
    bool is_running;
    int64_t step;     /* -1: it reports none */
    uint64_t step_ns; /* when it reported that */
    struct straggler_count {
        uint64_t group, number; /* collectives of the group that it has begun */
    } counts[STRAGGLER_GROUPS_MAX];
    int n_counts;
};

struct straggler_rank {
    uint32_t late; /* a bit for each look, the last one is the lowest */
    int64_t step;
    uint64_t step_ns;
    uint64_t period_ns; /* of a step; 0: not known yet */
};

struct stragglers {
    struct straggler_rank *ranks;
    int n_ranks;
    uint64_t slack_ns; /* of times that are compared; 0 after stragglers_init() */
    uint32_t any;      /* looks at which a rank was late */
    uint64_t total;    /* steps and collectives of all ranks at the last look */
};

/* 0 or -ENOMEM. */
int stragglers_init(struct stragglers *s, int n_ranks);
void stragglers_finish(struct stragglers *s);

/* A generation begins: what was known is forgotten. */
void stragglers_begin(struct stragglers *s);

/* samples: of all ranks, taken at now_ns. */
void stragglers_step(struct stragglers *s, uint64_t now_ns, const struct straggler_sample *samples);

bool stragglers_has(const struct stragglers *s, int rank);
