#include "launcher/watch/stall_task_os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/watch/digest.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/proc_activity_os.h"
#include "launcher/watch/proc_sample_os.h"

enum {
    LOOKS_PER_LISTING = 8, /* descendants are looked for in every so many looks */
    STACKS_MAX = 64,
    STACKS_MS = 3000,
};

int stall_task_init(struct stall_task *t, char *const *environment, const char *python, int n_workers,
                    const int *state_fds)
{
    size_t n = (size_t)n_workers;

    *t = (struct stall_task){
        .environment = environment, .python = python, .n_workers = n_workers, .state_fds = state_fds};
    t->trees = calloc(n, sizeof(*t->trees));
    t->activities = calloc(n, sizeof(*t->activities));
    t->counts = calloc(n, sizeof(*t->counts));
    t->pids = calloc(n, sizeof(*t->pids));
    t->have_succeeded = calloc(n, sizeof(*t->have_succeeded));
    t->waits_ns = calloc(n, sizeof(*t->waits_ns));
    t->limits_ns = calloc(n, sizeof(*t->limits_ns));
    t->samples = calloc(n, sizeof(*t->samples));
    t->ranks = calloc(n, sizeof(*t->ranks));
    return t->trees && t->activities && t->counts && t->pids && t->have_succeeded && t->waits_ns &&
                   t->limits_ns && t->samples && t->ranks
               ? 0
               : -ENOMEM;
}

void stall_task_finish(struct stall_task *t)
{
    stack_tools_finish(&t->tools);
    free(t->trees);
    free(t->activities);
    free(t->counts);
    free(t->pids);
    free(t->have_succeeded);
    free(t->waits_ns);
    free(t->limits_ns);
    free(t->samples);
    free(t->ranks);
    *t = (struct stall_task){.n_workers = 0};
}

/* ---- a look ---- */

static bool are_trees_current(const struct stall_task *t)
{
    for (int i = 0; i < t->n_workers; i++)
        if ((t->trees[i].n_pids ? t->trees[i].pids[0] : 0) != t->pids[i])
            return false;
    return true;
}

/* Published by the worker: whether it is in a collective, and its count of steps. */
struct published {
    bool counts_collectives, is_in_collective;
    uint64_t step, digest;
};

static struct published read_published(const struct stall_task *t, int worker)
{
    struct worker_collective records[WORKER_COLLECTIVES_MAX];
    struct published p = {.digest = DIGEST_EMPTY};
    struct worker_beat beat;
    int fd = t->state_fds[worker];
    size_t n = fd >= 0 ? worker_collectives_read(fd, records) : 0;

    for (size_t i = 0; i < n; i++) {
        if (!records[i].group || (pid_t)records[i].pid != t->pids[worker])
            continue;
        p.counts_collectives = true;
        p.is_in_collective |= records[i].kind != WORKER_COLLECTIVE_NONE;
        p.step += records[i].number;
        p.digest = digest_add(p.digest, &records[i].number, sizeof(records[i].number));
    }
    if (fd >= 0 && worker_beat_read(fd, &beat) && beat.step >= 0) {
        p.step = (uint64_t)beat.step;
        p.digest = digest_add(p.digest, &beat.at_ns, sizeof(beat.at_ns));
    }
    return p;
}

static void look_at_worker(struct stall_task *t, int worker, uint64_t at_ns)
{
    struct proc_activity *a = &t->activities[worker];
    struct published p = read_published(t, worker);

    proc_activity_look(a, &t->trees[worker], at_ns);
    bool has_counted = t->counts[worker] != p.digest;
    t->samples[worker] = (struct wait_sample){
        .is_alive = t->pids[worker] != 0,
        .waits = p.counts_collectives ? p.is_in_collective : activity_judge(&a->facts) == ACTIVITY_WAITS,
        .moved = has_counted || (!p.counts_collectives && a->moved),
        .step = p.step};
    t->counts[worker] = p.digest;
}

static void look(struct stall_task *t)
{
    uint64_t at_ns = now_ns();

    if (t->n_looks++ % LOOKS_PER_LISTING == 0 || !are_trees_current(t))
        (void)proc_find_trees(t->pids, t->n_workers, t->trees); /* the workers alone when it fails */
    for (int i = 0; i < t->n_workers; i++)
        look_at_worker(t, i, at_ns);
}

/* ---- the description ---- */

static void describe_state(const struct stall_task *t, int worker, struct hang_rank *ret)
{
    const struct proc_tree *tree = &t->trees[worker];

    ret->state = (unsigned char)t->activities[worker].facts.state;
    for (int i = 1; i < tree->n_pids && !ret->child_state; i++) {
        char state = proc_sample_state(tree->pids[i]);

        if (!hang_is_blocked((unsigned char)state))
            continue;
        ret->child_pid = tree->pids[i];
        ret->child_state = (unsigned char)state;
    }
}

static enum stack_kind kind_of(enum activity activity)
{
    if (activity == ACTIVITY_UNKNOWN)
        return STACK_UNKNOWN;
    return activity == ACTIVITY_WAITS ? STACK_COLLECTIVE : STACK_OTHER;
}

static void describe_rank(const struct stall_task *t, int worker, struct hang_rank *ret)
{
    const struct proc_activity *a = &t->activities[worker];
    uint8_t records[PROC_SAMPLE_RECORDS];
    uint64_t bytes = a->facts.read > a->facts.written ? a->facts.read : a->facts.written;

    *ret = (struct hang_rank){.rank = t->rank_base + worker,
                              .pid = t->pids[worker],
                              .host = t->host,
                              .has_ended = t->pids[worker] == 0,
                              .waits_ms = (uint32_t)(t->waits_ns[worker] / 1000000),
                              .limit_ms = (uint32_t)(t->limits_ns[worker] / 1000000)};
    if (ret->has_ended) {
        ret->activity = ACTIVITY_ENDED;
        return;
    }
    if (a->facts.elapsed_ns)
        ret->bytes_per_s = (uint64_t)((double)bytes * 1e9 / (double)a->facts.elapsed_ns);
    describe_state(t, worker, ret);
    ret->activity = proc_activity_text(a, &t->trees[worker], ret->text, sizeof(ret->text));
    ret->kind = kind_of(ret->activity);
    hang_add_collectives(ret, records, proc_sample_records(t->state_fds[worker], records));
    if (t->samples[worker].waits)
        ret->activity = ACTIVITY_WAITS;
}

/* ---- stacks ---- */

struct stall_stacks {
    struct stack_job jobs[STACKS_MAX];
    struct hang_rank *ranks[STACKS_MAX];
    size_t n;
};

static bool can_show_more(const struct hang_rank *r)
{
    return !r->has_ended && r->kind != STACK_COLLECTIVE ? !hang_is_blocked(r->state)
                                                        : r->n_collectives == 0 && !r->has_ended;
}

/* Python programs are read without a pause. Others are paused: the first that does not wait, and the first that does. */
static void add_stack(struct stall_task *t, struct stall_stacks *s, struct hang_rank *r, bool paused[2])
{
    bool is_python = proc_sample_is_python((pid_t)r->pid), waits = r->activity == ACTIVITY_WAITS;
    enum stack_tool tool = stack_tools_choose(&t->tools, is_python);
    bool pauses = tool != STACK_TOOL_PY_SPY;

    if (tool == STACK_TOOL_NONE || (pauses && paused[waits]))
        return;
    paused[waits] |= pauses;
    s->ranks[s->n] = r;
    s->jobs[s->n++] = (struct stack_job){.pid = (pid_t)r->pid, .tool = tool, .is_blocked = !pauses};
}

static void put_stack(struct hang_rank *r, const struct stack_summary *summary)
{
    if (summary->kind != STACK_OTHER) {
        memcpy(r->text, summary->text, sizeof(r->text));
        r->kind = summary->kind;
    } else if (r->activity == ACTIVITY_COMPUTES) {
        (void)snprintf(r->text, sizeof(r->text), "computes in %.140s", summary->text);
    } else {
        size_t n = strlen(r->text);

        (void)snprintf(r->text + n, sizeof(r->text) - n, ", in %.120s", summary->text); /* may be cut */
        if (r->activity == ACTIVITY_WAITS)
            r->kind = STACK_OTHER;
    }
}

static void take_stacks(struct stall_task *t)
{
    static _Thread_local struct stall_stacks stacks;
    bool paused[2] = {false, false};

    if (!t->has_tools)
        stack_tools_find(&t->tools, t->environment, t->python);
    t->has_tools = true;
    stacks.n = 0;
    for (size_t i = 0; i < t->n_ranks && stacks.n < STACKS_MAX; i++)
        if (can_show_more(&t->ranks[i]))
            add_stack(t, &stacks, &t->ranks[i], paused);
    stack_tools_run(&t->tools, stacks.jobs, stacks.n, (uint64_t)STACKS_MS * 1000000u);
    for (size_t i = 0; i < stacks.n; i++) {
        const struct stack_job *job = &stacks.jobs[i];
        struct stack_summary summary;

        if (job->text && stack_summarize(job->text, job->n_text, (int)job->pid, &summary))
            put_stack(stacks.ranks[i], &summary);
        free(stacks.jobs[i].text);
    }
}

void stall_task_run(struct stall_task *t)
{
    look(t);
    t->n_ranks = 0;
    if (!t->describes)
        return;
    proc_info_host_name(t->host, sizeof(t->host));
    for (int i = 0; i < t->n_workers; i++)
        if (t->pids[i] || t->have_succeeded[i])
            describe_rank(t, i, &t->ranks[t->n_ranks++]);
    if (t->takes_stacks)
        take_stacks(t);
}
