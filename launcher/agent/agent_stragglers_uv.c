/*
 * Looks once a second at what the workers of this node have published, for the marks of stragglers (stragglers.h). The memory
 * files are no disk, so reading them does not hold the loop up. Without memory no rank is marked. The last steps that were seen
 * are kept for crunctl, which compares them with those of other nodes (job_stragglers.h).
 */

#include <stdlib.h>
#include <string.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/stragglers.h"
#include "launcher/host/worker_beat_os.h"
#include "base/minmax.h"
#include "base/time.h"

enum { LOOK_MS = 1000 };

/* The latest step first. */
struct seen_steps {
    struct {
        int64_t step;
        uint64_t at_ns;
    } items[JOB_STATUS_BEATS_MAX];
    size_t n_items;
};

struct agent_stragglers {
    struct stragglers core;
    struct straggler_sample *samples;
    struct seen_steps *seen; /* of each worker */
    uint32_t generation;
    uv_timer_t timer;
};

static void take_sample(const struct agent *a, int i, struct straggler_sample *ret)
{
    struct worker_collective records[WORKER_COLLECTIVES_MAX];
    const struct group_worker *w = &a->group.workers[i];
    int fd = a->worker_memory.states[i];
    struct worker_beat beat;

    *ret = (struct straggler_sample){.is_running = w->state == GROUP_WORKER_RUNNING, .step = -1};
    if (!ret->is_running)
        return;
    if (agent_read_beat(a, i, &beat)) {
        ret->step = beat.step;
        ret->step_ns = beat.at_ns;
    }
    size_t n = worker_collectives_read(fd, records);
    for (size_t k = 0; k < n && ret->n_counts < STRAGGLER_GROUPS_MAX; k++)
        if (records[k].group && (pid_t)records[k].pid == w->pid)
            ret->counts[ret->n_counts++] =
                (struct straggler_count){.group = records[k].group, .number = records[k].number};
}

/* A step that is reported again is the same one. */
static void note_seen(struct seen_steps *seen, const struct straggler_sample *sample)
{
    if (sample->step < 0 || (seen->n_items > 0 && seen->items[0].step == sample->step))
        return;
    if (seen->n_items > 0 && sample->step < seen->items[0].step)
        seen->n_items = 0; /* it counts anew */
    memmove(&seen->items[1], &seen->items[0], (JOB_STATUS_BEATS_MAX - 1) * sizeof(seen->items[0]));
    seen->items[0].step = sample->step;
    seen->items[0].at_ns = sample->step_ns;
    seen->n_items = min_size(seen->n_items + 1, JOB_STATUS_BEATS_MAX);
}

static void on_look(uv_timer_t *timer)
{
    struct agent *a = timer->data;
    struct agent_stragglers *s = a->stragglers;

    if (s->generation != a->group.generation) {
        stragglers_begin(&s->core);
        memset(s->seen, 0, (size_t)s->core.n_ranks * sizeof(*s->seen));
    }
    s->generation = a->group.generation;
    if (a->group.state != GROUP_RUNNING)
        return;
    for (int i = 0; i < s->core.n_ranks; i++) {
        take_sample(a, i, &s->samples[i]);
        note_seen(&s->seen[i], &s->samples[i]);
    }
    stragglers_step(&s->core, now_ns(), s->samples);
}

bool agent_is_straggler(const struct agent *a, int i)
{
    const struct agent_stragglers *s = a->stragglers;

    return s && s->generation == a->group.generation && stragglers_has(&s->core, i);
}

/* The look before may be a second old, so that a step may have come since. */
void agent_describe_beats(const struct agent *a, int i, struct worker_status *ret)
{
    const struct agent_stragglers *s = a->stragglers;
    struct straggler_sample sample;
    struct seen_steps seen;
    uint64_t now = now_ns();

    if (!s || s->generation != a->group.generation || a->group.state != GROUP_RUNNING)
        return;
    seen = s->seen[i];
    take_sample(a, i, &sample);
    note_seen(&seen, &sample);
    for (size_t k = 0; k < seen.n_items; k++)
        ret->beats[k] = (struct step_status){
            seen.items[k].step,
            now > seen.items[k].at_ns ? (int64_t)(now - seen.items[k].at_ns) / 1000000 : 0};
    ret->n_beats = seen.n_items;
}

static void free_stragglers(struct agent_stragglers *s)
{
    if (s) {
        stragglers_finish(&s->core);
        free(s->samples);
        free(s->seen);
    }
    free(s);
}

void agent_open_stragglers(struct agent *a)
{
    struct agent_stragglers *s = calloc(1, sizeof(*s));
    int n = a->config->job->n_workers;

    if (s && a->worker_memory.states) {
        s->samples = calloc((size_t)n, sizeof(*s->samples));
        s->seen = calloc((size_t)n, sizeof(*s->seen));
    }
    if (!s || !s->samples || !s->seen || stragglers_init(&s->core, n) != 0) {
        free_stragglers(s);
        return;
    }
    (void)uv_timer_init(&a->loop, &s->timer); /* cannot fail */
    s->timer.data = a;
    (void)uv_timer_start(&s->timer, on_look, LOOK_MS, LOOK_MS); /* fails only without a callback */
    a->stragglers = s;
}

static void on_closed(uv_handle_t *timer)
{
    struct agent *a = timer->data;
    struct agent_stragglers *s = a->stragglers;

    a->stragglers = NULL;
    free_stragglers(s);
}

void agent_close_stragglers(struct agent *a)
{
    if (a->stragglers)
        uv_close((uv_handle_t *)&a->stragglers->timer, on_closed);
}
