#include "rendezvous/rounds/rounds_log.h"

#include "base/utf8.h"
#include "base/err.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/rounds/rounds_text.h"

static void add_cause(struct rounds_text *l, const struct rounds_job *job)
{
    char cause[SESSION_TEXT_SIZE + SESSION_HOST_SIZE + 64];

    session_cause_describe(&job->cause, cause, sizeof(cause));
    rounds_text_add(l, "%s", cause);
}

static void add_budgets(struct rounds_text *l, const struct rounds_job *job)
{
    rounds_text_add(l, " (restarts %u of %u, membership changes %u of %u)", (unsigned)job->restarts,
                    (unsigned)job->params.max_restarts, (unsigned)job->changes,
                    (unsigned)job->params.max_changes);
}

static void log_over(struct rounds_text *l, const struct rounds_job *job)
{
    rounds_text_add(l, "generation %lld is over: ", (long long)job->generation);
    add_cause(l, job);
}

static void log_settled(struct rounds_text *l, const struct rounds_job *job)
{
    rounds_text_add(l, "generation %lld has ended because ", (long long)job->generation);
    add_cause(l, job);
    add_budgets(l, job);
}

static void log_formed(struct rounds_text *l, const struct rounds_job *job)
{
    rounds_text_add(l, "generation %lld runs: %u node%s, %u worker%s, MASTER_ADDR %s",
                    (long long)job->generation, (unsigned)job->n_members, job->n_members == 1 ? "" : "s",
                    (unsigned)job->world_size, job->world_size == 1 ? "" : "s", job->master_addr);
    add_budgets(l, job);
}

static void log_progress(struct rounds_text *l, const struct rounds_job *job)
{
    bool range = job->params.min_nodes != job->params.max_nodes;

    rounds_text_add(l, "%u/%u nodes", (unsigned)job->n_nodes[ROUNDS_NODE_READY],
                    (unsigned)job->params.max_nodes);
    if (range)
        rounds_text_add(l, ", at least %u wanted", (unsigned)job->params.min_nodes);
    if (job->n_nodes[ROUNDS_NODE_STOPPING] > 0)
        rounds_text_add(l, ", %u still stopping", (unsigned)job->n_nodes[ROUNDS_NODE_STOPPING]);
    if (job->n_nodes[ROUNDS_NODE_LOST] > 0)
        rounds_text_add(l, ", %u lost that may have workers until the lease ends",
                        (unsigned)job->n_nodes[ROUNDS_NODE_LOST]);
    for (uint32_t i = 0; i < job->n_missing; i++)
        rounds_text_add(l, "%s%u", i ? ", " : "; missing node ranks: ", (unsigned)job->missing[i]);
}

static void log_closed(struct rounds_text *l, const struct rounds_job *job)
{
    switch (job->verdict) {
    case SESSION_VERDICT_SUCCESS:
        rounds_text_add(l, "succeeded");
        break;
    case SESSION_VERDICT_DRAINED:
        rounds_text_add(l, "was stopped after a snapshot: ");
        add_cause(l, job);
        break;
    default:
        rounds_text_add(l, "failed: ");
        add_cause(l, job);
    }
    add_budgets(l, job);
}

static void log_drain(struct rounds_text *l, const struct rounds_job *job)
{
    rounds_text_add(l, "generation %lld is asked to snapshot and end: a node goes away",
                    (long long)job->generation);
}

static void log_unfit(struct rounds_text *l, const struct rounds_job *job)
{
    rounds_text_add(l, "left out: %s", job->unfit);
}

/* In the order in which they can happen within one step. */
static const struct {
    unsigned bit;
    void (*add_line)(struct rounds_text *l, const struct rounds_job *job);
} kinds[] = {
    {ROUNDS_LOG_UNFIT, log_unfit},     {ROUNDS_LOG_DRAIN, log_drain},   {ROUNDS_LOG_OVER, log_over},
    {ROUNDS_LOG_SETTLED, log_settled}, {ROUNDS_LOG_CLOSED, log_closed}, {ROUNDS_LOG_PROGRESS, log_progress},
    {ROUNDS_LOG_FORMED, log_formed},
};

enum { LOG_END = ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED };

/* A generation ended and its successor formed in the same step: the job has the number of the new one only,
 * whose line then includes the cause. */
static bool is_replaced(unsigned log_kinds)
{
    return log_kinds & ROUNDS_LOG_FORMED && log_kinds & LOG_END;
}

static unsigned first_of(unsigned log_kinds)
{
    if (log_kinds & ROUNDS_LOG_SETTLED)
        log_kinds &= ~(unsigned)ROUNDS_LOG_OVER; /* the same and more */
    for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++)
        if (log_kinds & kinds[i].bit)
            return i;
    return ARRAY_SIZE(kinds);
}

bool rounds_log_next(const struct rounds_job *job, unsigned *log_kinds, char line[ROUNDS_LOG_SIZE])
{
    struct rounds_text l = {.to = line, .size = ROUNDS_LOG_SIZE};
    bool replaced = is_replaced(*log_kinds);
    unsigned i = first_of(replaced ? *log_kinds & ~(unsigned)LOG_END : *log_kinds);

    if (i == ARRAY_SIZE(kinds))
        return false;
    rounds_text_add(&l, "job '%.100s': ", job->id);
    if (kinds[i].bit == ROUNDS_LOG_FORMED && replaced) {
        rounds_text_add(&l, "after ");
        add_cause(&l, job);
        rounds_text_add(&l, ": ");
    }
    kinds[i].add_line(&l, job);
    *log_kinds &= ~kinds[i].bit;
    if (kinds[i].bit == ROUNDS_LOG_SETTLED || kinds[i].bit == ROUNDS_LOG_FORMED)
        *log_kinds &= ~(unsigned)LOG_END;
    text_clean(line);
    return true;
}
