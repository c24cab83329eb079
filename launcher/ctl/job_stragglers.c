#include "launcher/ctl/job_stragglers.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/ctl/job_status.h"
#include "launcher/ctl/stragglers.h"

enum {
    SLACK_MS = 200,
    NS_PER_MS = 1000000,
};

/* Older steps are of no interest, and products stay small. */
#define AGE_MAX_MS (30 * 24 * 3600 * INT64_C(1000))

struct comparison {
    struct worker_status **workers; /* running ones */
    int64_t *ages_ms;               /* of the reports of their nodes */
    struct straggler_sample *samples;
    int n_workers;
    int n_nodes;              /* with steps */
    int64_t begin_ms, end_ms; /* ages: since the first one all steps are known, and until the second one */
};

static int64_t find_generation(const struct job_status *s)
{
    int64_t generation = -1;

    for (size_t n = 0; n < s->n_nodes_known; n++)
        if (s->nodes[n].age_ms >= 0 && s->nodes[n].generation > generation)
            generation = s->nodes[n].generation;
    return generation;
}

static int64_t age_of(const struct comparison *c, int i, size_t beat)
{
    return c->workers[i]->beats[beat].age_ms + c->ages_ms[i];
}

static void add_worker(struct comparison *c, struct worker_status *w, const struct node_status *node)
{
    int i = c->n_workers++;

    c->workers[i] = w;
    c->ages_ms[i] = node->age_ms;
    while (w->n_beats > 0 && age_of(c, i, w->n_beats - 1) > AGE_MAX_MS)
        w->n_beats--;
    if (w->n_beats > 0 && age_of(c, i, w->n_beats - 1) < c->begin_ms)
        c->begin_ms = age_of(c, i, w->n_beats - 1);
}

static void add_node(struct comparison *c, struct node_status *node)
{
    bool has_steps = false;

    for (size_t i = 0; i < node->n_workers; i++) {
        if (strcmp(node->workers[i].state, "running") != 0)
            continue;
        add_worker(c, &node->workers[i], node);
        has_steps |= node->workers[i].n_beats > 0;
    }
    c->n_nodes += has_steps;
    if (has_steps && node->age_ms > c->end_ms)
        c->end_ms = node->age_ms;
}

static bool has_gap(const struct worker_status *w, size_t newer)
{
    return w->beats[newer].step - w->beats[newer + 1].step > 1;
}

static int64_t slack_of(const struct comparison *c)
{
    int64_t slack_ms = SLACK_MS;

    for (int i = 0; i < c->n_workers; i++)
        for (size_t k = 0; k + 1 < c->workers[i]->n_beats; k++) {
            int64_t ms = 2 * (age_of(c, i, k + 1) - age_of(c, i, k));

            if (has_gap(c->workers[i], k) && ms > slack_ms)
                slack_ms = ms;
        }
    return slack_ms;
}

/* A time on a scale that begins AGE_MAX_MS ago. */
static uint64_t time_of(int64_t age_ms)
{
    return (uint64_t)(AGE_MAX_MS - age_ms) * NS_PER_MS;
}

/* What the rank had reported when the time was age_ms ago. */
static struct straggler_sample sample_at(const struct comparison *c, int i, int64_t age_ms)
{
    struct straggler_sample sample = {.is_running = true, .step = -1};
    const struct worker_status *w = c->workers[i];
    size_t k = 0;

    while (k < w->n_beats && age_of(c, i, k) < age_ms)
        k++;
    if (k == w->n_beats)
        return sample;
    int64_t step = w->beats[k].step, at_ms = age_of(c, i, k);
    if (k > 0 && has_gap(w, k - 1)) {
        int64_t n_steps = w->beats[k - 1].step - step, took_ms = at_ms - age_of(c, i, k - 1);
        int64_t n_done =
            took_ms > 0 ? (int64_t)((double)n_steps * (double)(at_ms - age_ms) / (double)took_ms) : 0;

        step += n_done;
        at_ms -= (int64_t)((double)took_ms * (double)n_done / (double)n_steps);
    }
    sample.step = step;
    sample.step_ns = time_of(at_ms);
    return sample;
}

/* The rule learns it from steps that it sees, and a slow rank may have reported its last one before. */
static uint64_t period_of(const struct worker_status *w)
{
    const struct step_status *last = &w->beats[0], *first = &w->beats[w->n_beats - 1];

    if (w->n_beats < 2 || last->step <= first->step)
        return 0;
    return (uint64_t)((first->age_ms - last->age_ms) * NS_PER_MS / (last->step - first->step));
}

static void compare(struct comparison *c)
{
    struct stragglers rule;

    if (c->n_nodes < 2 || c->begin_ms <= c->end_ms || stragglers_init(&rule, c->n_workers) != 0)
        return;
    rule.slack_ns = (uint64_t)slack_of(c) * NS_PER_MS;
    for (int i = 0; i < c->n_workers; i++)
        rule.ranks[i].period_ns = c->workers[i]->n_beats > 0 ? period_of(c->workers[i]) : 0;
    for (int look = 0; look < STRAGGLER_LOOKS; look++) {
        int64_t age_ms = c->begin_ms - (c->begin_ms - c->end_ms) * look / (STRAGGLER_LOOKS - 1);

        for (int i = 0; i < c->n_workers; i++)
            c->samples[i] = sample_at(c, i, age_ms);
        stragglers_step(&rule, time_of(age_ms), c->samples);
    }
    for (int i = 0; i < c->n_workers; i++)
        c->workers[i]->straggler |= stragglers_has(&rule, i);
    stragglers_finish(&rule);
}

static void drop_beats(struct job_status *s)
{
    for (size_t n = 0; n < s->n_nodes_known; n++)
        for (size_t i = 0; i < s->nodes[n].n_workers; i++)
            s->nodes[n].workers[i].n_beats = 0;
}

void job_stragglers_mark(struct job_status *s)
{
    int64_t generation = find_generation(s);
    size_t n_max = 1;

    for (size_t n = 0; n < s->n_nodes_known; n++)
        n_max += s->nodes[n].n_workers;
    struct comparison c = {.workers = calloc(n_max, sizeof(struct worker_status *)),
                           .ages_ms = calloc(n_max, sizeof(int64_t)),
                           .samples = calloc(n_max, sizeof(struct straggler_sample)),
                           .begin_ms = AGE_MAX_MS};

    for (size_t n = 0; c.workers && c.ages_ms && c.samples && n < s->n_nodes_known; n++)
        if (s->nodes[n].age_ms >= 0 && generation >= 0 && s->nodes[n].generation == generation)
            add_node(&c, &s->nodes[n]);
    compare(&c);
    drop_beats(s);
    free(c.workers);
    free(c.ages_ms);
    free(c.samples);
}
