#include "rendezvous/rounds/rounds_history.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/rounds/rounds.h"

static const unsigned end_kinds = ROUNDS_LOG_OVER | ROUNDS_LOG_SETTLED;

static void describe_cause(const struct rounds_job *job, char ret[ROUNDS_HISTORY_REASON_SIZE])
{
    *ret = '\0';
    if (job->cause.kind != SESSION_CAUSE_NONE)
        session_cause_describe(&job->cause, ret, ROUNDS_HISTORY_REASON_SIZE);
}

/* ---- runs ---- */

static struct rounds_past_run *find_run(struct rounds_history *h, const struct rounds_job *job)
{
    for (size_t i = h->n_runs; i > 0; i--)
        if (h->runs[i - 1].instance == job->instance && strcmp(h->runs[i - 1].job, job->id) == 0)
            return &h->runs[i - 1];
    return NULL;
}

/* The one that ended first; where all run, the one that began first. */
static void drop_run(struct rounds_history *h)
{
    size_t first = 0;

    for (size_t i = 1; i < h->n_runs; i++) {
        int64_t ended_s = h->runs[i].ended_s, best_s = h->runs[first].ended_s;

        if (ended_s > 0 && (best_s == 0 || ended_s < best_s))
            first = i;
    }
    free(h->runs[first].generations);
    h->n_runs--;
    memmove(&h->runs[first], &h->runs[first + 1], (h->n_runs - first) * sizeof(*h->runs));
}

static struct rounds_past_run *add_run(struct rounds_history *h, const struct rounds_job *job, int64_t now_s)
{
    if (h->n_runs == ROUNDS_HISTORY_RUNS_MAX)
        drop_run(h);
    struct rounds_past_run *runs = reallocarray(h->runs, h->n_runs + 1, sizeof(*runs));
    if (!runs)
        return NULL;
    h->runs = runs;
    struct rounds_past_run *run = &runs[h->n_runs++];
    *run = (struct rounds_past_run){.instance = job->instance, .started_s = now_s, .result = ""};
    text_copy(run->job, sizeof(run->job), job->id);
    return run;
}

/* ---- generations ---- */

static void end_generation(struct rounds_past_run *run, const struct rounds_job *job, int64_t now_s)
{
    struct rounds_past_generation *g =
        run->n_generations > 0 ? &run->generations[run->n_generations - 1] : NULL;

    if (!g)
        return;
    if (g->ended_s == 0)
        g->ended_s = now_s;
    describe_cause(job, g->reason); /* an earlier cause may have come since */
}

static void add_generation(struct rounds_past_run *run, const struct rounds_job *job, int64_t now_s)
{
    struct rounds_past_generation *g = run->generations;
    size_t n = run->n_generations;

    if (n == ROUNDS_HISTORY_GENERATIONS_MAX)
        memmove(g, g + 1, --n * sizeof(*g));
    else
        g = reallocarray(g, n + 1, sizeof(*g));
    if (!g)
        return;
    run->generations = g;
    run->n_generations = n + 1;
    g[n] = (struct rounds_past_generation){.number = job->generation,
                                           .started_s = now_s,
                                           .n_nodes = job->n_members,
                                           .n_workers = job->world_size,
                                           .restarts = job->restarts};
}

static void end_run(struct rounds_past_run *run, const struct rounds_job *job, int64_t now_s)
{
    static const char *const results[] = {
        [SESSION_VERDICT_SUCCESS] = "succeeded", [SESSION_VERDICT_DRAINED] = "stopped"};

    if (run->n_generations > 0 && run->generations[run->n_generations - 1].ended_s == 0)
        end_generation(run, job, now_s);
    run->ended_s = now_s;
    run->result = job->verdict < sizeof(results) / sizeof(*results) && results[job->verdict]
                      ? results[job->verdict]
                      : "failed";
    if (job->verdict != SESSION_VERDICT_SUCCESS)
        describe_cause(job, run->reason);
}

void rounds_history_note(struct rounds_history *h, const struct rounds_job *job, unsigned log_kinds,
                         int64_t now_s)
{
    if (!(log_kinds & (end_kinds | ROUNDS_LOG_FORMED | ROUNDS_LOG_CLOSED)))
        return;
    struct rounds_past_run *run = find_run(h, job);
    if (!run)
        run = add_run(h, job, now_s);
    if (!run)
        return;
    if (log_kinds & end_kinds)
        end_generation(run, job, now_s);
    if (log_kinds & ROUNDS_LOG_FORMED)
        add_generation(run, job, now_s);
    if (log_kinds & ROUNDS_LOG_CLOSED)
        end_run(run, job, now_s);
}

void rounds_history_finish(struct rounds_history *h)
{
    for (size_t i = 0; i < h->n_runs; i++)
        free(h->runs[i].generations);
    free(h->runs);
    *h = (struct rounds_history){0};
}
