/*
 * Looks once a second at the published steps of this node's workers, for the marks of stragglers (stragglers.h). The memory files are
 * no disk, so a read does not hold the loop up. Without memory no rank is marked. The last steps are kept for crunctl, which compares
 * the steps of all nodes (job_stragglers.h).
 */

#include "launcher/agent/agent_stragglers_uv.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/stragglers.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/host/worker_memory_os.h"
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
    const struct agent_host *host;
    struct stragglers core;
    struct straggler_sample *samples;
    struct seen_steps *seen; /* of each worker */
    uint32_t generation;
    uv_timer_t timer;
};

/* The last beat() of this process of the worker; false: none. The memory file outlives the process. */
static bool read_beat(const struct agent_host *host, int i, struct worker_beat *ret)
{
    const struct group_worker *w = &host->group->workers[i];

    return w->state != GROUP_WORKER_NONE && worker_beat_read(host->worker_memory->states[i], ret) &&
           ret->at_ns >= w->ordered_ns;
}

static void take_sample(const struct agent_host *host, int i, struct straggler_sample *ret)
{
    struct worker_collective records[WORKER_COLLECTIVES_MAX];
    const struct group_worker *w = &host->group->workers[i];
    int fd = host->worker_memory->states[i];
    struct worker_beat beat;

    *ret = (struct straggler_sample){.is_running = w->state == GROUP_WORKER_RUNNING, .step = -1};
    if (!ret->is_running)
        return;
    if (read_beat(host, i, &beat)) {
        ret->step = beat.step;
        ret->step_ns = beat.at_ns;
    }
    size_t n = worker_collectives_read(fd, records);
    for (size_t k = 0; k < n && ret->n_counts < STRAGGLER_GROUPS_MAX; k++)
        if (records[k].group && (pid_t)records[k].pid == w->pid)
            ret->counts[ret->n_counts++] =
                (struct straggler_count){.group = records[k].group, .number = records[k].number};
}

/* A repeated report of a step is no new step. */
static void note_seen(struct seen_steps *seen, const struct straggler_sample *sample)
{
    if (sample->step < 0 || (seen->n_items > 0 && seen->items[0].step == sample->step))
        return;
    if (seen->n_items > 0 && sample->step < seen->items[0].step)
        seen->n_items = 0; /* the worker counts anew */
    memmove(&seen->items[1], &seen->items[0], (JOB_STATUS_BEATS_MAX - 1) * sizeof(seen->items[0]));
    seen->items[0].step = sample->step;
    seen->items[0].at_ns = sample->step_ns;
    seen->n_items = min_size(seen->n_items + 1, JOB_STATUS_BEATS_MAX);
}

static void on_look(uv_timer_t *timer)
{
    struct agent_stragglers *s = timer->data;
    const struct worker_group *g = s->host->group;

    if (s->generation != g->generation) {
        stragglers_begin(&s->core);
        memset(s->seen, 0, (size_t)s->core.n_ranks * sizeof(*s->seen));
    }
    s->generation = g->generation;
    if (g->state != GROUP_RUNNING)
        return;
    for (int i = 0; i < s->core.n_ranks; i++) {
        take_sample(s->host, i, &s->samples[i]);
        note_seen(&s->seen[i], &s->samples[i]);
    }
    stragglers_step(&s->core, now_ns(), s->samples);
}

static void describe_step(const struct agent_host *host, int i, struct worker_status *ret)
{
    struct worker_beat beat;

    if (!read_beat(host, i, &beat))
        return;
    ret->last_step = beat.step;
    ret->step_ms = wall_clock_ns(beat.at_ns) / 1000000;
    ret->steps_per_s = worker_beat_rate(&beat, host->group->workers[i].ordered_ns, now_ns());
}

/* The look before may be a second old, so that a step may have come since. */
static void describe_beats(const struct agent_stragglers *s, int i, struct worker_status *ret)
{
    struct straggler_sample sample;
    struct seen_steps seen = s->seen[i];
    uint64_t now = now_ns();

    take_sample(s->host, i, &sample);
    note_seen(&seen, &sample);
    for (size_t k = 0; k < seen.n_items; k++)
        ret->beats[k] = (struct step_status){
            seen.items[k].step,
            now > seen.items[k].at_ns ? (int64_t)(now - seen.items[k].at_ns) / 1000000 : 0};
    ret->n_beats = seen.n_items;
}

static void describe_steps(void *self, struct job_status *ret)
{
    const struct agent_stragglers *s = self;
    const struct worker_group *g = s->host->group;

    for (int i = 0; i < s->core.n_ranks; i++) {
        struct worker_status *w = &ret->nodes[0].workers[i];

        describe_step(s->host, i, w);
        w->straggler = s->generation == g->generation && stragglers_has(&s->core, i);
        if (s->generation == g->generation && g->state == GROUP_RUNNING)
            describe_beats(s, i, w);
    }
}

static void free_stragglers(void *self)
{
    struct agent_stragglers *s = self;

    if (s) {
        stragglers_finish(&s->core);
        free(s->samples);
        free(s->seen);
    }
    free(s);
}

void agent_stragglers_open(struct agent_observer *ret, const struct agent_host *host)
{
    struct agent_stragglers *s = calloc(1, sizeof(*s));
    int n = host->job->n_workers;

    if (s && host->worker_memory->states) {
        s->samples = calloc((size_t)n, sizeof(*s->samples));
        s->seen = calloc((size_t)n, sizeof(*s->seen));
    }
    if (!s || !s->samples || !s->seen || stragglers_init(&s->core, n) != 0) {
        free_stragglers(s);
        return;
    }
    s->host = host;
    (void)uv_timer_init(host->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
    (void)uv_timer_start(&s->timer, on_look, LOOK_MS, LOOK_MS); /* fails only without a callback */
    *ret = (struct agent_observer){.self = s,
                                   .describe = describe_steps,
                                   .handle = (uv_handle_t *)&s->timer,
                                   .destroy = free_stragglers};
}
