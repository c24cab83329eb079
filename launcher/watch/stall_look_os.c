#include "launcher/watch/stall_look_os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/util/digest.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/proc_activity_os.h"
#include "launcher/watch/stall.h"
#include "launcher/watch/store_sockets_sock.h"
#include "launcher/watch/waits.h"
#include "launcher/watch/watch_task_os.h"

enum { STACKS_MAX = 64, STACKS_MS = 3000 };

/* The stack of a waiting worker holds until the worker moves, of another worker until new stacks may be taken. */
struct known_stack {
    uint64_t place;    /* of the main thread, see struct proc_activity */
    uint64_t taken_ns; /* time of the look before */
    struct hang_rank rank;
};

int stall_look_init(struct stall_look *l, int n_workers)
{
    size_t n = (size_t)n_workers;

    *l = (struct stall_look){.activities = calloc(n, sizeof(*l->activities)),
                             .counts = calloc(n, sizeof(*l->counts)),
                             .stacks = calloc(n, sizeof(*l->stacks)),
                             .samples = calloc(n, sizeof(*l->samples)),
                             .ranks = calloc(n, sizeof(*l->ranks))};
    return l->activities && l->counts && l->stacks && l->samples && l->ranks ? 0 : -ENOMEM;
}

void stall_look_finish(struct stall_look *l)
{
    free(l->activities);
    free(l->counts);
    free(l->stacks);
    free(l->samples);
    free(l->ranks);
    *l = (struct stall_look){.n_ranks = 0};
}

/* ---- a look ---- */

/* Published by the worker: a present collective, the count of steps, and the last beat as in struct wait_sample. */
struct published {
    bool is_in_collective;
    uint64_t step, digest, beat_end, beat_ns;
};

static struct published read_published(const struct watch_task *t, int worker)
{
    struct worker_collective records[WORKER_COLLECTIVES_MAX];
    struct published p = {.digest = DIGEST_EMPTY};
    struct worker_beat beat;
    int fd = t->state_fds[worker];
    size_t n = worker_collectives_read(fd, records);

    for (size_t i = 0; i < n; i++) {
        if (!records[i].group || (pid_t)records[i].pid != t->trees[worker].pids[0])
            continue;
        p.is_in_collective |= records[i].kind != WORKER_COLLECTIVE_NONE;
        p.step += records[i].number;
        p.digest = digest_add(p.digest, &records[i].number, sizeof(records[i].number));
    }
    if (worker_beat_read(fd, &beat) && beat.step >= 0) {
        p.step = (uint64_t)beat.step;
        p.beat_end = p.step + 1;
        p.beat_ns = beat.at_ns;
        p.digest = digest_add(p.digest, &beat.at_ns, sizeof(beat.at_ns));
    }
    return p;
}

/* A rank without a process after a success waits for the ranks still running. */
static void look_at_ended_worker(struct stall_look *l, const struct watch_task *t, int worker)
{
    bool has_succeeded = t->have_succeeded[worker];

    l->samples[worker] = (struct wait_sample){.is_alive = has_succeeded,
                                              .waits = has_succeeded,
                                              .waits_now = has_succeeded,
                                              .moved = l->activities[worker].pid != 0,
                                              .step = l->samples[worker].step};
    l->activities[worker] = (struct proc_activity){.pid = 0};
}

static void look_at_worker(struct stall_look *l, const struct watch_task *t, int worker, uint64_t at_ns)
{
    struct proc_activity *a = &l->activities[worker];
    struct published p = read_published(t, worker);

    proc_activity_look(a, &t->trees[worker], at_ns);
    bool has_counted = l->counts[worker] != p.digest, waits = activity_judge(&a->facts) == ACTIVITY_WAITS;
    l->samples[worker] = (struct wait_sample){.is_alive = true,
                                              .waits = p.is_in_collective || (waits && !a->is_server),
                                              .waits_now = p.is_in_collective ||
                                                           (activity_waits_now(&a->facts) && !a->is_server),
                                              .beat_end = p.beat_end,
                                              .rests = at_ns > p.beat_ns + WAITS_REST_NS,
                                              .moved = has_counted || (!p.is_in_collective && a->moved),
                                              .step = p.step};
    l->counts[worker] = p.digest;
}

void stall_look_take(struct stall_look *l, const struct watch_task *t)
{
    uint64_t at_ns = now_ns();

    for (int i = 0; i < t->n_workers; i++)
        if (t->pids[i])
            look_at_worker(l, t, i, at_ns);
        else
            look_at_ended_worker(l, t, i);
}

/* ---- the description ---- */

static void describe_state(const struct proc_activity *a, const struct proc_tree *tree, struct hang_rank *ret)
{
    ret->state = (unsigned char)a->facts.state;
    for (int i = 1; i < tree->n_pids && !ret->child_state; i++) {
        char state = proc_sample_state(tree->pids[i]);

        if (!hang_is_blocked((unsigned char)state))
            continue;
        proc_sample_child(tree->pids[i], state, ret);
    }
}

/* A transfer by another thread than the main thread leaves open for whom the main thread waits. */
static enum stack_kind kind_of(enum activity activity, enum activity_call main_call)
{
    bool transfers = activity == ACTIVITY_READS || activity == ACTIVITY_WRITES;

    if (activity == ACTIVITY_UNKNOWN || (transfers && main_call == ACTIVITY_CALL_WAITS))
        return STACK_UNKNOWN;
    return activity == ACTIVITY_WAITS ? STACK_COLLECTIVE : STACK_OTHER;
}

static void recall_stack(const struct known_stack *known, const struct proc_activity *a,
                         struct hang_rank *ret)
{
    bool holds = ret->activity == ACTIVITY_WAITS ? known->place == a->place
                                                 : a->at_ns - known->taken_ns < STALL_STACKS_NS;

    if (known->rank.pid != a->pid || known->rank.activity != ret->activity || !holds)
        return;
    ret->kind = known->rank.kind;
    ret->is_wait_known = known->rank.is_wait_known;
    memcpy(ret->text, known->rank.text, sizeof(ret->text));
}

static void keep_stacks(struct stall_look *l, int rank_base)
{
    for (size_t i = 0; i < l->n_ranks; i++) {
        const struct proc_activity *a = &l->activities[l->ranks[i].rank - rank_base];

        l->stacks[l->ranks[i].rank - rank_base] =
            (struct known_stack){.place = a->place, .taken_ns = a->at_ns, .rank = l->ranks[i]};
    }
}

static void describe_waits(const struct stall_look *l, const struct watch_task *t, int worker, int *pauses,
                           struct hang_rank *ret)
{
    const struct proc_activity *a = &l->activities[worker];
    struct worker_collective records[WORKER_COLLECTIVES_MAX];

    *ret = (struct hang_rank){.rank = t->rank_base + worker,
                              .pid = t->trees[worker].pids[0],
                              .host = t->host,
                              .has_ended = t->pids[worker] == 0};
    if (ret->has_ended) {
        ret->activity = ACTIVITY_ENDED;
        return;
    }
    ret->bytes_per_s = activity_rate(&a->facts);
    describe_state(a, &t->trees[worker], ret);
    ret->activity = proc_activity_text(a, &t->trees[worker], pauses, ret->text, sizeof(ret->text));
    ret->kind = kind_of(ret->activity, a->facts.call);
    hang_add_collectives(ret, records, worker_collectives_read(t->state_fds[worker], records));
    if (l->samples[worker].waits)
        ret->activity = ACTIVITY_WAITS;
    ret->is_wait_known = hang_waits_in(ret) != NULL;
    if (!ret->is_wait_known)
        recall_stack(&l->stacks[worker], a, ret);
}

/* ---- stacks ---- */

struct stall_stacks {
    struct stack_job jobs[STACKS_MAX];
    struct hang_rank *ranks[STACKS_MAX];
    size_t n;
};

/* Of a blocked write() a pause leaves a short count behind, and not every program goes on from there. In a blocked read() of a file a
 * process may not stop for its tracer. */
static bool may_pause(const struct hang_rank *r)
{
    if (r->activity == ACTIVITY_READS && r->bytes_per_s == 0)
        return false;
    return r->activity != ACTIVITY_FULL_PIPE && r->activity != ACTIVITY_WRITES;
}

/* Python programs are read without a pause. Others are paused: the first without a wait, and the first with one. */
static void add_stack(const struct stack_tools *tools, struct stall_stacks *s, struct hang_rank *r, pid_t pid,
                      bool paused[2])
{
    bool is_python = proc_sample_is_python(pid), waits = r->activity == ACTIVITY_WAITS;
    enum stack_tool tool = stack_tools_choose(tools, is_python);
    bool pauses = tool != STACK_TOOL_PY_SPY;

    if (tool == STACK_TOOL_NONE || (pauses && (paused[waits] || !may_pause(r))))
        return;
    paused[waits] |= pauses;
    s->ranks[s->n] = r;
    s->jobs[s->n++] = (struct stack_job){.pid = pid, .tool = tool, .is_blocked = !pauses};
}

static void put_stack(struct hang_rank *r, const struct stack_summary *summary)
{
    r->is_meeting |= summary->is_meeting;
    r->is_wait_known = summary->kind == STACK_COLLECTIVE;
    if (summary->kind != STACK_OTHER) {
        memcpy(r->text, summary->text, sizeof(r->text));
        r->kind = summary->kind;
    } else if (r->activity == ACTIVITY_COMPUTES) {
        (void)snprintf(r->text, sizeof(r->text), "computes in %.140s", summary->text);
    } else {
        activity_add_place(r->text, sizeof(r->text), summary->text);
        if (r->activity == ACTIVITY_WAITS || r->kind == STACK_UNKNOWN)
            r->kind = STACK_OTHER;
    }
}

/* A stack of a program other than Python pauses the program, so one waiter stands for all waiters with equal text. */
static void put_stack_of_waiter(struct stall_look *l, const struct hang_rank *waiter,
                                const struct stack_summary *summary)
{
    const struct hang_rank was = *waiter;

    for (size_t i = 0; i < l->n_ranks; i++)
        if (l->ranks[i].kind == STACK_COLLECTIVE && strcmp(l->ranks[i].text, was.text) == 0)
            put_stack(&l->ranks[i], summary);
}

/* Processes of the rank that may meet instead of the worker (mp.spawn). */
static void add_descendants(const struct stack_tools *tools, struct stall_stacks *s, struct hang_rank *r,
                            const struct proc_tree *tree, bool paused[2])
{
    for (int i = 1; i < tree->n_pids && s->n < STACKS_MAX; i++)
        if (!hang_is_blocked((unsigned char)proc_sample_state(tree->pids[i])))
            add_stack(tools, s, r, tree->pids[i], paused);
}

static void take_stack(struct stall_look *l, const struct stack_job *job, struct hang_rank *r)
{
    struct stack_summary summary;

    if (!job->text || !stack_summarize(job->text, job->n_text, (int)job->pid, &summary))
        return;
    if (job->pid != (pid_t)r->pid)
        r->is_meeting |= summary.is_meeting;
    else if (!job->is_blocked && summary.kind == STACK_COLLECTIVE && r->kind == STACK_COLLECTIVE)
        put_stack_of_waiter(l, r, &summary);
    else
        put_stack(r, &summary);
}

static void add_stacks(struct stall_look *l, const struct watch_task *t, const struct stack_tools *tools)
{
    static _Thread_local struct stall_stacks stacks;
    bool paused[2] = {!t->may_pause, !t->may_pause};

    stacks.n = 0;
    for (size_t i = 0; i < l->n_ranks && stacks.n < STACKS_MAX; i++) {
        struct hang_rank *r = &l->ranks[i];

        if (!r->has_ended && !hang_waits_in(r) && (r->kind == STACK_COLLECTIVE || !hang_is_blocked(r->state)))
            add_stack(tools, &stacks, r, (pid_t)r->pid, paused);
        if (!t->may_pause && !r->has_ended)
            add_descendants(tools, &stacks, r, &t->trees[r->rank - t->rank_base], paused);
    }
    stack_tools_run(tools, stacks.jobs, stacks.n, (uint64_t)STACKS_MS * 1000000u);
    for (size_t i = 0; i < stacks.n; i++) {
        take_stack(l, &stacks.jobs[i], stacks.ranks[i]);
        free(stacks.jobs[i].text);
    }
}

void stall_look_describe(struct stall_look *l, const struct watch_task *t, const struct stack_tools *tools)
{
    int pauses = PROC_ACTIVITY_PAUSES;

    l->n_ranks = 0;
    for (int i = 0; i < t->n_workers; i++)
        if (t->pids[i] || t->have_succeeded[i])
            describe_waits(l, t, i, &pauses, &l->ranks[l->n_ranks++]);
    store_sockets_find(t->store_port, t->trees, t->rank_base, l->ranks, l->n_ranks);
    if (!tools)
        return;
    add_stacks(l, t, tools);
    keep_stacks(l, t->rank_base);
}
