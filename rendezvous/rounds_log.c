#include "rendezvous/rounds_log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "rendezvous/rounds.h"

struct line {
    char *to;
    size_t n;
};

static void __attribute__((format(printf, 2, 3))) say(struct line *l, const char *format, ...)
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

static void say_cause(struct line *l, const struct rounds_job *job)
{
    char cause[SESSION_TEXT_SIZE + SESSION_HOST_SIZE + 64];

    session_cause_describe(&job->cause, cause, sizeof(cause));
    say(l, "%s", cause);
}

static void say_budgets(struct line *l, const struct rounds_job *job)
{
    say(l, " (restarts %u of %u, membership changes %u of %u)", (unsigned)job->restarts,
        (unsigned)job->params.max_restarts, (unsigned)job->changes, (unsigned)job->params.max_changes);
}

static void say_over(struct line *l, const struct rounds_job *job)
{
    say(l, "generation %lld is over: ", (long long)job->generation);
    say_cause(l, job);
}

static void say_settled(struct line *l, const struct rounds_job *job)
{
    say(l, "generation %lld has ended because ", (long long)job->generation);
    say_cause(l, job);
    say_budgets(l, job);
}

static void say_formed(struct line *l, const struct rounds_job *job)
{
    say(l, "generation %lld runs: %u node%s, %u worker%s, MASTER_ADDR %s", (long long)job->generation,
        (unsigned)job->n_members, job->n_members == 1 ? "" : "s", (unsigned)job->world_size,
        job->world_size == 1 ? "" : "s", job->master_addr);
    say_budgets(l, job);
}

static void say_progress(struct line *l, const struct rounds_job *job)
{
    bool range = job->params.min_nodes != job->params.max_nodes;

    say(l, "%u/%u nodes", (unsigned)job->n_nodes[ROUNDS_STANDING], (unsigned)job->params.max_nodes);
    if (range)
        say(l, ", at least %u wanted", (unsigned)job->params.min_nodes);
    if (job->n_nodes[ROUNDS_AWAITED] > 0)
        say(l, ", %u still stopping", (unsigned)job->n_nodes[ROUNDS_AWAITED]);
    for (uint32_t i = 0; i < job->n_missing; i++)
        say(l, "%s%u", i ? ", " : "; missing node ranks: ", (unsigned)job->missing[i]);
}

static void say_closed(struct line *l, const struct rounds_job *job)
{
    switch (job->verdict) {
    case SESSION_VERDICT_SUCCESS:
        say(l, "succeeded");
        break;
    case SESSION_VERDICT_DRAINED:
        say(l, "was stopped after a snapshot: ");
        say_cause(l, job);
        break;
    default:
        say(l, "failed: ");
        say_cause(l, job);
    }
    say_budgets(l, job);
}

static void say_drain(struct line *l, const struct rounds_job *job)
{
    say(l, "generation %lld is asked to snapshot and end: a node goes away", (long long)job->generation);
}

/* In the order in which they can happen within one step. */
static const struct {
    unsigned bit;
    void (*say)(struct line *l, const struct rounds_job *job);
} kinds[] = {
    {ROUNDS_LOG_DRAIN, say_drain},   {ROUNDS_LOG_OVER, say_over},         {ROUNDS_LOG_SETTLED, say_settled},
    {ROUNDS_LOG_CLOSED, say_closed}, {ROUNDS_LOG_PROGRESS, say_progress}, {ROUNDS_LOG_FORMED, say_formed},
};

enum { NEWS_END = ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED };

/* A generation that has ended, and its successor in the same step: the job knows the number of the new one
 * only, whose line then tells why there is one. */
static bool is_replaced(unsigned news)
{
    return news & ROUNDS_LOG_FORMED && news & NEWS_END;
}

static unsigned first_of(unsigned news)
{
    if (news & ROUNDS_LOG_SETTLED)
        news &= ~(unsigned)ROUNDS_LOG_OVER; /* the same and more */
    for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++)
        if (news & kinds[i].bit)
            return i;
    return ARRAY_SIZE(kinds);
}

/* Names come from strangers: a line stays one line, and moves no cursor. */
static void sanitise(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

bool rounds_log_next(const struct rounds_job *job, unsigned *news, char line[ROUNDS_LOG_SIZE])
{
    struct line l = {.to = line};
    bool replaced = is_replaced(*news);
    unsigned i = first_of(replaced ? *news & ~(unsigned)NEWS_END : *news);

    if (i == ARRAY_SIZE(kinds))
        return false;
    say(&l, "job '%.100s': ", job->id);
    if (kinds[i].bit == ROUNDS_LOG_FORMED && replaced) {
        say(&l, "after ");
        say_cause(&l, job);
        say(&l, ": ");
    }
    kinds[i].say(&l, job);
    *news &= ~kinds[i].bit;
    if (kinds[i].bit == ROUNDS_LOG_SETTLED || kinds[i].bit == ROUNDS_LOG_FORMED)
        *news &= ~(unsigned)NEWS_END;
    sanitise(line);
    return true;
}
