#include "launcher/supervise/worker_group.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* What workers leave behind gets this long between SIGTERM and SIGKILL. */
#define SWEEP_GRACE_NS UINT64_C(1000000000)
/* SIGKILL that has no effect for this long will have none: the process is stuck in the kernel. */
#define KILL_PATIENCE_NS UINT64_C(5000000000)
/* Workers that fail because of one thing do so at nearly the same time: one generation for all of them. */
#define COLLECT_NS UINT64_C(2000000)

int group_worker_code(const struct group_worker *worker)
{
    if (worker->state == GROUP_WORKER_EXEC_FAILED)
        return 127;
    return WIFSIGNALED(worker->status) ? -WTERMSIG(worker->status) : WEXITSTATUS(worker->status);
}

int group_init(struct worker_group *g, const struct group_config *config)
{
    *g = (struct worker_group){.config = *config, .cause_worker = -1};
    g->workers = calloc((size_t)config->n_workers, sizeof(*g->workers));
    return g->workers ? 0 : -ENOMEM;
}

void group_finish(struct worker_group *g)
{
    free(g->workers);
    *g = (struct worker_group){0};
}

/* ------------------------------------------------------------------ actions */

static struct group_action *act(struct group_actions *out, enum group_action_kind kind, int value)
{
    assert(out->n_items < GROUP_ACTIONS_MAX);
    struct group_action *action = &out->items[out->n_items++];
    *action = (struct group_action){.kind = kind, .value = value};
    return action;
}

static void arm(struct worker_group *g, struct group_actions *out, uint64_t deadline_ns)
{
    g->deadline_ns = deadline_ns;
    act(out, GROUP_DO_ARM, 0)->deadline_ns = deadline_ns;
}

static void disarm(struct worker_group *g, struct group_actions *out)
{
    if (g->deadline_ns)
        act(out, GROUP_DO_DISARM, 0);
    g->deadline_ns = 0;
}

static void finish(struct worker_group *g, struct group_actions *out, int code)
{
    g->state = GROUP_DONE;
    act(out, GROUP_DO_FINISH, code);
}

/* Starts a generation. What is known of the one before is forgotten here, not earlier: until then it can be
 * reported. */
static void spawn(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->config.placed) {
        g->restarts = event->restarts;
        g->generation = event->generation;
    } else if (g->will_restart) {
        g->restarts++;
        g->generation++;
    }
    g->will_restart = g->will_replace = g->forming = false;
    memset(g->workers, 0, (size_t)g->config.n_workers * sizeof(*g->workers));
    g->state = GROUP_RUNNING;
    g->cause = GROUP_CAUSE_NONE;
    g->cause_worker = -1;
    g->escalated = false;
    g->is_draining = false;
    g->guardian_killed = false;
    g->n_ended = 0;
    g->started_ns = event->now_ns;
    act(out, GROUP_DO_SPAWN, 0);
}

/* ------------------------------------------------------------------ stopping */

/* From here on a worker that ends may have done so because it was told to. */
static void mark_stopped(struct worker_group *g)
{
    for (int i = 0; i < g->config.n_workers; i++)
        if (g->workers[i].state == GROUP_WORKER_RUNNING)
            g->workers[i].stopped = true;
}

static void stop(struct worker_group *g, uint64_t now_ns, int signal, struct group_actions *out)
{
    g->state = GROUP_STOPPING;
    mark_stopped(g);
    act(out, GROUP_DO_SIGNAL, signal);
    arm(g, out, now_ns + g->config.grace_ns);
}

static void kill_all(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->state = GROUP_KILLING;
    g->escalated = true;
    mark_stopped(g);
    act(out, GROUP_DO_KILL, 0);
    arm(g, out, now_ns + KILL_PATIENCE_NS);
}

static void fail(struct worker_group *g, enum group_cause cause, const struct group_event *event,
                 struct group_actions *out)
{
    if (g->state != GROUP_RUNNING && g->state != GROUP_REPLACING)
        return; /* a consequence, or too late to matter: the first cause stays */
    g->cause = cause;
    g->cause_worker = event->worker;
    if (g->config.placed) /* first of all: it has the longest way */
        act(out, GROUP_DO_FAILED, event->worker);
    act(out, GROUP_DO_NOTIFY_FAILED, event->worker);
    stop(g, event->now_ns, SIGTERM, out);
}

/* ------------------------------------------------------------------ replacing */

static bool is_staying(const struct group_worker *w)
{
    return !w->lost && !w->condemned;
}

/* Whether all that have not failed can stay, and there is somebody to stay. */
static bool is_replaceable(const struct worker_group *g)
{
    int n_staying = 0;

    if (!g->config.replace || g->interrupt || g->restarts >= g->config.max_restarts)
        return false;
    for (int i = 0; i < g->config.n_workers; i++) {
        const struct group_worker *w = &g->workers[i];
        if (!is_staying(w))
            continue;
        if (w->state != GROUP_WORKER_RUNNING || !w->capable)
            return false;
        n_staying++;
    }
    return n_staying > 0;
}

/* As with the policy that replaces nobody: the cause that is known stays. */
static void give_up_replacing(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->will_restart = g->will_replace = g->forming = false;
    act(out, GROUP_DO_NOTIFY_FAILED, g->cause_worker);
    stop(g, now_ns, SIGTERM, out);
}

/* A worker that was started for this generation and is not ready in it yet cannot be taken to the next one: it
 * does not know that it would have to. */
static void condemn_newcomers(struct worker_group *g, struct group_actions *out)
{
    bool any = false;

    for (int i = 0; i < g->config.n_workers; i++) {
        struct group_worker *w = &g->workers[i];
        if (is_staying(w) && !w->capable && w->generation == g->generation &&
            (w->state == GROUP_WORKER_RUNNING || w->state == GROUP_WORKER_NONE))
            any = w->condemned = w->stopped = true;
    }
    if (any)
        act(out, GROUP_DO_KILL_CONDEMNED, 0);
}

/* A worker has failed: it is replaced, or everything is stopped. */
static void lose(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    w->lost = true;
    if (w->condemned) /* ordered; whoever waits for it looks again when its time is over */
        return;
    if (g->state == GROUP_REPLACING && g->forming)
        condemn_newcomers(g, out);
    if (g->state == GROUP_RUNNING || g->forming) {
        g->cause = GROUP_CAUSE_WORKER;
        g->cause_worker = event->worker;
    }
    g->forming = false;
    if (!is_replaceable(g)) {
        give_up_replacing(g, event->now_ns, out);
        return;
    }
    g->state = GROUP_REPLACING;
    g->lost_ns = event->now_ns;
    arm(g, out, event->now_ns + COLLECT_NS);
}

/* Opens the next generation for those that stay. */
static void replace(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->restarts++;
    g->generation++;
    g->will_restart = g->will_replace = false;
    g->forming = true;
    g->started_ns = now_ns;
    g->n_ended = 0;
    for (int i = 0; i < g->config.n_workers; i++) {
        struct group_worker *w = &g->workers[i];
        w->ready = false;
        if (!is_staying(w))
            *w = (struct group_worker){.generation = g->generation};
    }
    act(out, GROUP_DO_REPLACE, 0);
    arm(g, out, now_ns + g->config.reform_ns);
}

/* All that failed at once are known; those that were killed with them have to be gone first. */
static void on_collected(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    for (int i = 0; i < g->config.n_workers; i++)
        if (g->workers[i].condemned && !g->workers[i].lost) {
            if (now_ns - g->lost_ns > KILL_PATIENCE_NS)
                give_up_replacing(g, now_ns, out);
            else
                arm(g, out, now_ns + COLLECT_NS);
            return;
        }
    g->will_restart = g->will_replace = true;
    act(out, GROUP_DO_REPORT, 0);
    act(out, GROUP_DO_START_AGAIN, 0);
}

/* Somebody is not ready in time: not all of them can be brought together this way. */
static void on_reform_timeout(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->cause = GROUP_CAUSE_REFORM;
    for (int i = g->config.n_workers - 1; i >= 0; i--)
        if (!g->workers[i].ready)
            g->cause_worker = i;
    give_up_replacing(g, now_ns, out);
}

static void look_whether_formed(struct worker_group *g, struct group_actions *out)
{
    if (g->state != GROUP_REPLACING || !g->forming)
        return;
    for (int i = 0; i < g->config.n_workers; i++)
        if (g->workers[i].state != GROUP_WORKER_RUNNING || !g->workers[i].ready)
            return;
    g->state = GROUP_RUNNING;
    g->forming = false;
    g->cause = GROUP_CAUSE_NONE;
    g->cause_worker = -1;
    disarm(g, out);
}

static void on_ready(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    if ((uint32_t)event->value != g->generation)
        return; /* it was, in one that is over */
    w->ready = w->capable = true;
    look_whether_formed(g, out);
}

static void on_replace_failed(struct worker_group *g, const struct group_event *event,
                              struct group_actions *out)
{
    if (g->state != GROUP_REPLACING)
        return;
    disarm(g, out);
    give_up_replacing(g, event->now_ns, out);
}

/* ------------------------------------------------------------------ events */

static void on_start(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state == GROUP_IDLE)
        spawn(g, event, out);
    else if (g->state == GROUP_REPLACING && g->will_replace)
        replace(g, event->now_ns, out);
}

static void on_start_failed(struct worker_group *g, const struct group_event *event,
                            struct group_actions *out)
{
    g->cause = GROUP_CAUSE_START;
    if (g->config.placed)
        act(out, GROUP_DO_LEAVE, 0);
    disarm(g, out);
    finish(g, out, 1);
}

static void on_started(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    w->state = GROUP_WORKER_RUNNING;
    w->pid = event->pid;
    w->started_ns = event->now_ns;
    /* A stop that was decided while the guardian still started workers reaches it behind this one. */
    w->stopped = g->state != GROUP_RUNNING && g->state != GROUP_REPLACING;
    w->generation = g->generation;
    look_whether_formed(g, out); /* its own word may have been faster than the guardian's */
}

static void on_exec_failed(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    w->state = GROUP_WORKER_EXEC_FAILED;
    w->status = event->value;
    w->ended_ns = event->now_ns;
    w->generation = g->generation;
    fail(g, GROUP_CAUSE_EXEC, event, out);
}

static void on_exited(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    w->state = GROUP_WORKER_ENDED;
    w->status = event->value;
    w->ended_ns = event->now_ns;
    w->order = g->n_ended++;
    w->stopped = w->stopped && !event->unasked; /* the order was on its way when it failed by itself */
    bool is_failure = event->value != 0 || w->condemned;
    if (is_failure && (g->state == GROUP_REPLACING || (g->state == GROUP_RUNNING && g->config.replace)))
        lose(g, event, out);
    else if (is_failure)
        fail(g, GROUP_CAUSE_WORKER, event, out);
    else if (g->state == GROUP_REPLACING)
        give_up_replacing(g, event->now_ns, out); /* it went its own way: not all come together again */
}

static void on_left(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state != GROUP_RUNNING && g->state != GROUP_REPLACING && g->state != GROUP_STOPPING)
        return;
    uint64_t deadline_ns = event->now_ns + SWEEP_GRACE_NS;
    if (g->deadline_ns && g->deadline_ns < deadline_ns)
        deadline_ns = g->deadline_ns;
    g->state = GROUP_SWEEPING;
    act(out, GROUP_DO_SIGNAL, SIGTERM);
    arm(g, out, deadline_ns);
}

static bool can_restart(const struct worker_group *g)
{
    return (g->cause == GROUP_CAUSE_WORKER || g->cause == GROUP_CAUSE_GUARDIAN ||
            g->cause == GROUP_CAUSE_REFORM) &&
           !g->interrupt && g->restarts < g->config.max_restarts;
}

/* Draining, a worker's bad end is not told when it comes: others may be about to save what they have. */
static void judge_drain(struct worker_group *g, struct group_actions *out)
{
    for (int i = 0; i < g->config.n_workers && g->cause == GROUP_CAUSE_NONE; i++) {
        if (g->workers[i].state != GROUP_WORKER_ENDED || g->workers[i].status == 0)
            continue;
        g->cause = GROUP_CAUSE_WORKER;
        g->cause_worker = i;
        act(out, GROUP_DO_FAILED, i);
    }
}

/* This node's part is over; what comes next is decided elsewhere. */
static void await_decision(struct worker_group *g, struct group_actions *out)
{
    if (g->is_draining)
        judge_drain(g, out);
    g->will_restart = !g->is_ending && (!g->interrupt || g->is_draining);
    if ((g->cause != GROUP_CAUSE_NONE && g->cause != GROUP_CAUSE_PEER) || g->interrupt)
        act(out, GROUP_DO_REPORT, 0);
    if (!g->will_restart) {
        finish(g, out, g->is_ending ? g->end_code : 1);
        return;
    }
    g->state = GROUP_IDLE;
    act(out, g->cause == GROUP_CAUSE_NONE ? GROUP_DO_DONE : GROUP_DO_READY, 0);
}

static void on_empty(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state == GROUP_DONE || g->state == GROUP_IDLE)
        return;
    disarm(g, out);
    g->will_replace = g->forming = false;
    if (g->config.placed) {
        await_decision(g, out);
        return;
    }
    g->will_restart = can_restart(g);
    if (g->cause != GROUP_CAUSE_NONE || g->interrupt)
        act(out, GROUP_DO_REPORT, 0);
    if (g->will_restart) {
        g->state = GROUP_IDLE;
        act(out, GROUP_DO_START_AGAIN, 0);
        return;
    }
    finish(g, out, g->cause != GROUP_CAUSE_NONE || g->interrupt);
}

static void on_guardian_lost(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    if (g->state == GROUP_DONE || g->state == GROUP_IDLE)
        return;
    if (g->state == GROUP_RUNNING || g->state == GROUP_REPLACING) {
        g->cause = GROUP_CAUSE_GUARDIAN;
        if (g->config.placed)
            act(out, GROUP_DO_FAILED, -1);
    }
    g->guardian_killed = true;
    mark_stopped(g);
    for (int i = 0; i < g->config.n_workers; i++) {
        struct group_worker *w = &g->workers[i];
        if (w->state != GROUP_WORKER_RUNNING)
            continue;
        w->state = GROUP_WORKER_ENDED;
        w->status = SIGKILL; /* by the kernel, when their parent died */
        w->ended_ns = event->now_ns;
        w->order = g->n_ended++;
    }
    kill_all(g, event->now_ns, out);
}

/* The first signal asks, the second one hurries. */
static void on_signal(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    bool first = !g->interrupt;

    if (first) {
        g->interrupt = event->value;
        g->interrupt_pid = event->pid;
    }
    if (g->config.placed && g->state != GROUP_DONE && (first || g->is_draining))
        act(out, GROUP_DO_LEAVE, event->value);
    g->is_draining = false; /* whoever signals again does not want to wait for others */
    switch (g->state) {
    case GROUP_IDLE:
        g->cause = GROUP_CAUSE_SIGNAL;
        act(out, GROUP_DO_REPORT, 0);
        finish(g, out, 1);
        break;
    case GROUP_RUNNING:
    case GROUP_REPLACING:
        g->cause = GROUP_CAUSE_SIGNAL;
        act(out, GROUP_DO_NOTIFY_STOP, event->value);
        stop(g, event->now_ns, event->value, out);
        break;
    case GROUP_STOPPING:
        if (first) /* they are stopping for another reason; their deadline stays */
            act(out, GROUP_DO_SIGNAL, event->value);
        else
            kill_all(g, event->now_ns, out);
        break;
    case GROUP_SWEEPING:
        kill_all(g, event->now_ns, out);
        break;
    default:
        break;
    }
}

static void on_timer(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (!g->deadline_ns)
        return;
    if (event->now_ns < g->deadline_ns) {
        arm(g, out, g->deadline_ns);
        return;
    }
    g->deadline_ns = 0;
    if (g->state == GROUP_REPLACING && g->forming) {
        on_reform_timeout(g, event->now_ns, out);
    } else if (g->state == GROUP_REPLACING) {
        on_collected(g, event->now_ns, out);
    } else if (g->state == GROUP_STOPPING || g->state == GROUP_SWEEPING) {
        kill_all(g, event->now_ns, out);
    } else if (g->state == GROUP_KILLING && !g->guardian_killed) {
        g->guardian_killed = true;
        act(out, GROUP_DO_KILL_GUARDIAN, 0);
        arm(g, out, event->now_ns + KILL_PATIENCE_NS);
    } else if (g->state == GROUP_KILLING) {
        act(out, GROUP_DO_GIVE_UP, 0);
        g->will_restart = false;
        act(out, GROUP_DO_REPORT, 0);
        if (g->config.placed)
            act(out, GROUP_DO_LEAVE, 0);
        finish(g, out, 1);
    }
}

/* Another node's part of the generation is over. Here it may be as well: then the next one can come. */
static void on_stop(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state == GROUP_IDLE)
        act(out, GROUP_DO_READY, 0);
    if (g->cause == GROUP_CAUSE_NONE)
        g->cause = GROUP_CAUSE_PEER;
    if (g->state != GROUP_RUNNING)
        return;
    act(out, GROUP_DO_NOTIFY_PEER, 0);
    stop(g, event->now_ns, SIGTERM, out);
}

static void on_drain(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state != GROUP_RUNNING)
        return;
    if (event->value) {
        g->interrupt = event->value;
        g->interrupt_pid = event->pid;
    }
    g->is_draining = true;
    act(out, GROUP_DO_NOTIFY_STOP, SIGTERM);
    stop(g, event->now_ns, SIGTERM, out);
}

static void on_end(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    g->is_ending = true;
    g->end_code = event->value;
    if (g->state == GROUP_IDLE)
        finish(g, out, event->value);
    else
        on_stop(g, event, out);
}

void group_step(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    static void (*const handlers[GROUP_EVENT_COUNT])(struct worker_group *, const struct group_event *,
                                                     struct group_actions *) = {
        [GROUP_START] = on_start,
        [GROUP_START_FAILED] = on_start_failed,
        [GROUP_STARTED] = on_started,
        [GROUP_EXEC_FAILED] = on_exec_failed,
        [GROUP_EXITED] = on_exited,
        [GROUP_LEFT] = on_left,
        [GROUP_EMPTY] = on_empty,
        [GROUP_GUARDIAN_LOST] = on_guardian_lost,
        [GROUP_SIGNAL] = on_signal,
        [GROUP_TIMER] = on_timer,
        [GROUP_STOP] = on_stop,
        [GROUP_END] = on_end,
        [GROUP_DRAIN] = on_drain,
        [GROUP_READY] = on_ready,
        [GROUP_REPLACE_FAILED] = on_replace_failed,
    };

    out->n_items = 0;
    handlers[event->kind](g, event, out);
}
