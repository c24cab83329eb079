#include "rendezvous/rounds_log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "rendezvous/rounds.h"

struct line {
    char *to;
    size_t n;
};

static void __attribute__((format(printf, 2, 3))) add_text(struct line *l, const char *format, ...)
{
    size_t room = ROUNDS_LOG_SIZE - l->n;
    va_list arguments;
    int n;

    va_start(arguments, format);
    n = vsnprintf(l->to + l->n, room, format, arguments);
    va_end(arguments);
    if (n > 0)
        l->n += (size_t)n < room ? (size_t)n : room - 1;
}

static void add_cause(struct line *l, const struct rounds_job *job)
{
    char cause[SESSION_TEXT_SIZE + SESSION_HOST_SIZE + 64];

    session_cause_describe(&job->cause, cause, sizeof(cause));
    add_text(l, "%s", cause);
}

static void add_budgets(struct line *l, const struct rounds_job *job)
{
    add_text(l, " (restarts %u of %u, membership changes %u of %u)", (unsigned)job->restarts,
             (unsigned)job->params.max_restarts, (unsigned)job->changes, (unsigned)job->params.max_changes);
}

static void log_over(struct line *l, const struct rounds_job *job)
{
    add_text(l, "generation %lld is over: ", (long long)job->generation);
    add_cause(l, job);
}

static void log_settled(struct line *l, const struct rounds_job *job)
{
    add_text(l, "generation %lld has ended because ", (long long)job->generation);
    add_cause(l, job);
    add_budgets(l, job);
}

static void log_formed(struct line *l, const struct rounds_job *job)
{
    add_text(l, "generation %lld runs: %u node%s, %u worker%s, MASTER_ADDR %s", (long long)job->generation,
             (unsigned)job->n_members, job->n_members == 1 ? "" : "s", (unsigned)job->world_size,
             job->world_size == 1 ? "" : "s", job->master_addr);
    add_budgets(l, job);
}

static void log_progress(struct line *l, const struct rounds_job *job)
{
    bool range = job->params.min_nodes != job->params.max_nodes;

    add_text(l, "%u/%u nodes", (unsigned)job->n_nodes[ROUNDS_NODE_READY], (unsigned)job->params.max_nodes);
    if (range)
        add_text(l, ", at least %u wanted", (unsigned)job->params.min_nodes);
    if (job->n_nodes[ROUNDS_NODE_STOPPING] > 0)
        add_text(l, ", %u still stopping", (unsigned)job->n_nodes[ROUNDS_NODE_STOPPING]);
    for (uint32_t i = 0; i < job->n_missing; i++)
        add_text(l, "%s%u", i ? ", " : "; missing node ranks: ", (unsigned)job->missing[i]);
}

static void log_closed(struct line *l, const struct rounds_job *job)
{
    switch (job->verdict) {
    case SESSION_VERDICT_SUCCESS:
        add_text(l, "succeeded");
        break;
    case SESSION_VERDICT_DRAINED:
        add_text(l, "was stopped after a snapshot: ");
        add_cause(l, job);
        break;
    default:
        add_text(l, "failed: ");
        add_cause(l, job);
    }
    add_budgets(l, job);
}

static void log_drain(struct line *l, const struct rounds_job *job)
{
    add_text(l, "generation %lld is asked to snapshot and end: a node goes away", (long long)job->generation);
}

/* In the order in which they can happen within one step. */
static const struct {
    unsigned bit;
    void (*add_text)(struct line *l, const struct rounds_job *job);
} kinds[] = {
    {ROUNDS_LOG_DRAIN, log_drain},   {ROUNDS_LOG_OVER, log_over},         {ROUNDS_LOG_SETTLED, log_settled},
    {ROUNDS_LOG_CLOSED, log_closed}, {ROUNDS_LOG_PROGRESS, log_progress}, {ROUNDS_LOG_FORMED, log_formed},
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
    struct line l = {.to = line};
    bool replaced = is_replaced(*log_kinds);
    unsigned i = first_of(replaced ? *log_kinds & ~(unsigned)LOG_END : *log_kinds);

    if (i == ARRAY_SIZE(kinds))
        return false;
    add_text(&l, "job '%.100s': ", job->id);
    if (kinds[i].bit == ROUNDS_LOG_FORMED && replaced) {
        add_text(&l, "after ");
        add_cause(&l, job);
        add_text(&l, ": ");
    }
    kinds[i].add_text(&l, job);
    *log_kinds &= ~kinds[i].bit;
    if (kinds[i].bit == ROUNDS_LOG_SETTLED || kinds[i].bit == ROUNDS_LOG_FORMED)
        *log_kinds &= ~(unsigned)LOG_END;
    session_clean_text(line);
    return true;
}
