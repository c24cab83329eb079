#include "launcher/ctl/stragglers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stragglers_init(struct stragglers *s, int n_ranks)
{
    *s = (struct stragglers){.n_ranks = n_ranks};
    s->ranks = calloc((size_t)n_ranks, sizeof(*s->ranks));
    if (!s->ranks)
        return -ENOMEM;
    stragglers_begin(s);
    return 0;
}

void stragglers_finish(struct stragglers *s)
{
    free(s->ranks);
    s->ranks = NULL;
}

void stragglers_begin(struct stragglers *s)
{
    for (int i = 0; i < s->n_ranks; i++)
        s->ranks[i] = (struct straggler_rank){.step = -1};
    s->any = 0;
    s->total = 0;
}

static void note_step(struct straggler_rank *r, const struct straggler_sample *sample)
{
    if (r->step >= 0 && sample->step > r->step && sample->step_ns > r->step_ns)
        r->period_ns = (sample->step_ns - r->step_ns) / (uint64_t)(sample->step - r->step);
    r->step = sample->step;
    r->step_ns = sample->step_ns;
}

/* Whether a is late for b. */
static bool is_late_by_steps(const struct straggler_rank *rank, uint64_t slack_ns, uint64_t now_ns,
                             const struct straggler_sample *a, const struct straggler_sample *b)
{
    if (a->step < 0 || b->step < a->step)
        return false;
    if (b->step - a->step >= 2 && (uint64_t)(b->step - a->step - 1) * rank->period_ns >= slack_ns)
        return true;
    uint64_t until_ns = b->step == a->step ? a->step_ns : now_ns;
    return rank->period_ns && until_ns > b->step_ns &&
           until_ns - b->step_ns >= rank->period_ns / STRAGGLER_SHARE && until_ns - b->step_ns >= slack_ns;
}

static const struct straggler_count *find_count(const struct straggler_sample *sample, uint64_t group)
{
    for (int i = 0; i < sample->n_counts; i++)
        if (sample->counts[i].group == group)
            return &sample->counts[i];
    return NULL;
}

static bool is_late_by_counts(const struct straggler_sample *a, const struct straggler_sample *b)
{
    for (int i = 0; i < a->n_counts; i++) {
        const struct straggler_count *other = find_count(b, a->counts[i].group);
        if (other && other->number > a->counts[i].number)
            return true;
    }
    return false;
}

static bool is_late(const struct stragglers *s, uint64_t now_ns, const struct straggler_sample *samples,
                    int rank)
{
    int stride = s->n_ranks / STRAGGLER_COMPARED | 1; /* odd: not the same local rank of each node */
    int n_others = 0, n_late_for = 0;

    for (int i = 0; i < s->n_ranks && samples[rank].is_running; i += stride) {
        if (i == rank || !samples[i].is_running)
            continue;
        n_others++;
        n_late_for += is_late_by_steps(&s->ranks[rank], s->slack_ns, now_ns, &samples[rank], &samples[i]) ||
                      is_late_by_counts(&samples[rank], &samples[i]);
    }
    return 2 * n_late_for > n_others;
}

static uint64_t total_of(const struct stragglers *s, const struct straggler_sample *samples)
{
    uint64_t total = 0;

    for (int i = 0; i < s->n_ranks; i++) {
        total += samples[i].step > 0 ? (uint64_t)samples[i].step : 0;
        for (int k = 0; k < samples[i].n_counts; k++)
            total += samples[i].counts[k].number;
    }
    return total;
}

void stragglers_step(struct stragglers *s, uint64_t now_ns, const struct straggler_sample *samples)
{
    uint64_t total = total_of(s, samples);
    bool any = false;

    if (total == s->total)
        return;
    s->total = total;
    for (int i = 0; i < s->n_ranks; i++)
        note_step(&s->ranks[i], &samples[i]);
    for (int i = 0; i < s->n_ranks; i++) {
        bool late = is_late(s, now_ns, samples, i);
        s->ranks[i].late = s->ranks[i].late << 1 | late;
        any |= late;
    }
    s->any = s->any << 1 | any;
}

bool stragglers_has(const struct stragglers *s, int rank)
{
    int n_late = __builtin_popcount(s->ranks[rank].late);

    return n_late >= STRAGGLER_LATE_MIN && 4 * n_late >= 3 * __builtin_popcount(s->any);
}
