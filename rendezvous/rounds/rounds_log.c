#include "rendezvous/rounds/rounds_log.h"

#include "base/utf8.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/session/line_text.h"

static void add_cause(struct line_text *l, const struct rounds_job *job)
{
    char cause[SESSION_TEXT_SIZE + SESSION_HOST_SIZE + 64];

    session_cause_describe(&job->cause, cause, sizeof(cause));
    line_text_add(l, "%s", cause);
}

static void add_progress(struct line_text *l, const struct rounds_job *job)
{
    line_text_add(l, "%u/%u nodes", job->n_nodes[ROUNDS_NODE_READY], job->params.max_nodes);
    if (job->params.min_nodes != job->params.max_nodes)
        line_text_add(l, ", at least %u wanted", job->params.min_nodes);
    if (job->n_nodes[ROUNDS_NODE_STOPPING] > 0)
        line_text_add(l, ", %u still stopping", job->n_nodes[ROUNDS_NODE_STOPPING]);
    if (job->n_nodes[ROUNDS_NODE_LOST] > 0)
        line_text_add(l, ", %u lost that may have workers until the lease ends",
                      job->n_nodes[ROUNDS_NODE_LOST]);
    for (uint32_t i = 0; i < job->n_missing; i++)
        line_text_add(l, "%s%u", i ? ", " : "; missing node ranks: ", job->missing[i]);
}

static void add_end(struct line_text *l, const struct rounds_job *job)
{
    if (job->verdict == SESSION_VERDICT_SUCCESS) {
        line_text_add(l, "succeeded");
        return;
    }
    line_text_add(l, job->verdict == SESSION_VERDICT_DRAINED ? "was stopped after a snapshot: "
                     : job->stop_signal > 0                  ? "was ended: "
                                                             : "failed: ");
    add_cause(l, job);
}

static void add_line(struct line_text *l, const struct rounds_job *job, unsigned kind)
{
    switch (kind) {
    case ROUNDS_LOG_UNFIT:
        line_text_add(l, "left out: %s", job->unfit);
        break;
    case ROUNDS_LOG_DRAIN:
        line_text_add(l, "generation %lld is asked to snapshot and end: a node goes away",
                      (long long)job->generation);
        break;
    case ROUNDS_LOG_OVER:
    case ROUNDS_LOG_SETTLED:
        line_text_add(l, "generation %lld %s", (long long)job->generation,
                      kind == ROUNDS_LOG_OVER ? "is over: " : "has ended because ");
        add_cause(l, job);
        break;
    case ROUNDS_LOG_CLOSED:
        add_end(l, job);
        break;
    case ROUNDS_LOG_PROGRESS:
        add_progress(l, job);
        break;
    default:
        line_text_add(l, "generation %lld runs: %u node%s, %u worker%s, MASTER_ADDR %s",
                      (long long)job->generation, job->n_members, job->n_members == 1 ? "" : "s",
                      job->world_size, job->world_size == 1 ? "" : "s", job->master_addr);
    }
    if (kind & (ROUNDS_LOG_SETTLED | ROUNDS_LOG_CLOSED | ROUNDS_LOG_FORMED))
        line_text_add(l, " (restarts %u of %u, membership changes %u of %u)", job->restarts,
                      job->params.max_restarts, job->changes, job->params.max_changes);
}

enum { LOG_END = ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED };

bool rounds_log_next(const struct rounds_job *job, unsigned *log_kinds, char line[ROUNDS_LOG_SIZE])
{
    struct line_text l = {.to = line, .size = ROUNDS_LOG_SIZE};
    /* A generation ended and the next one formed in the same step. The job has the number of the new generation only, and the line
     * about the new generation includes the cause. */
    bool replaced = *log_kinds & ROUNDS_LOG_FORMED && *log_kinds & LOG_END;
    unsigned left = replaced ? *log_kinds & ~(unsigned)LOG_END : *log_kinds, kind;

    if (left & ROUNDS_LOG_SETTLED)
        left &= ~(unsigned)ROUNDS_LOG_OVER; /* the same and more */
    kind = left & -left;
    if (kind == 0)
        return false;
    line_text_add(&l, "job '%.100s': ", job->id);
    if (kind == ROUNDS_LOG_FORMED && replaced) {
        line_text_add(&l, "after ");
        add_cause(&l, job);
        line_text_add(&l, ": ");
    }
    add_line(&l, job, kind);
    *log_kinds &= ~(kind & (ROUNDS_LOG_SETTLED | ROUNDS_LOG_FORMED) ? kind | LOG_END : kind);
    text_clean(line);
    return true;
}
