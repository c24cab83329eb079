#include "launcher/supervise/worker_group.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/err.h"

/* Time of orphans between SIGTERM and SIGKILL. */
#define SWEEP_GRACE_NS UINT64_C(1000000000)
/* SIGKILL without effect for so long has none at all: the process is stuck in the kernel. */
#define KILL_PATIENCE_NS UINT64_C(5000000000)
/* Workers with the same cause of failure fail at nearly the same time: a single restart for all. */
#define COLLECT_NS UINT64_C(2000000)
#define REJOIN_LIMIT 5u
/* Signals to stop within this time of the first one are one request: systemd sends SIGTERM and SIGHUP together,
 * wrappers turn a SIGINT into a SIGTERM, a terminal and a batch system may both signal. */
#define SAME_REQUEST_NS UINT64_C(1000000000)
/* A generation with a shorter life before its failure is a short generation. */
#define SHORT_LIFE_NS UINT64_C(10000000000)
#define PAUSE_FIRST_NS UINT64_C(1000000000)

/* ---- exit codes ---- */

int group_worker_code(const struct group_worker *worker)
{
    if (worker->state == GROUP_WORKER_EXEC_FAILED)
        return worker->status == ENOENT ? 127 : 126;
    return WIFSIGNALED(worker->status) ? -WTERMSIG(worker->status) : WEXITSTATUS(worker->status);
}

bool group_worker_may_run(const struct group_worker *worker)
{
    return worker->state == GROUP_WORKER_RUNNING || worker->state == GROUP_WORKER_NONE;
}

bool group_exec_is_final(int error)
{
    static const int final[] = {ENOENT, EACCES, EPERM,        ENOEXEC, EISDIR, ENOTDIR,
                                ELOOP,  EINVAL, ENAMETOOLONG, E2BIG,   ENOSYS};

    for (size_t i = 0; i < ARRAY_SIZE(final); i++)
        if (error == final[i])
            return true;
    return false;
}

int group_exit_code(const struct worker_group *g, int code, int root_code)
{
    if (code == 0 || g->is_ending || !g->config.exit_code_of_worker)
        return code;
    if (g->cause == GROUP_CAUSE_EXEC)
        return group_worker_code(&g->workers[g->cause_worker]);
    if (g->interrupt)
        return 128 + g->interrupt;
    if (root_code == 0)
        return code;
    return root_code < 0 ? 128 - root_code : root_code;
}

/* ---- life ---- */

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

/* ---- actions ---- */

static struct group_action *add_action(struct group_actions *out, enum group_action_kind kind, int value)
{
    assert(out->n_items < GROUP_ACTIONS_MAX);
    struct group_action *action = &out->items[out->n_items++];
    *action = (struct group_action){.kind = kind, .value = value};
    return action;
}

static void arm_deadline(struct worker_group *g, struct group_actions *out, uint64_t deadline_ns)
{
    g->deadline_ns = deadline_ns;
    add_action(out, GROUP_DO_ARM, 0)->deadline_ns = deadline_ns;
}

static void disarm_deadline(struct worker_group *g, struct group_actions *out)
{
    if (g->deadline_ns)
        add_action(out, GROUP_DO_DISARM, 0);
    g->deadline_ns = 0;
}

static void finish_job(struct worker_group *g, struct group_actions *out, int code)
{
    if (code == 0 && g->config.leaves_together) {
        g->state = GROUP_LEAVING;
        add_action(out, GROUP_DO_AWAIT_OTHERS, 0);
        return;
    }
    g->state = GROUP_DONE;
    g->forming = g->will_replace = false;
    add_action(out, GROUP_DO_FINISH, code);
}

static void set_cause(struct worker_group *g, enum group_cause cause, int worker, uint64_t now_ns)
{
    g->cause = cause;
    g->cause_worker = worker;
    g->cause_ns = now_ns;
}

static void count_generation(struct worker_group *g, const struct group_event *event)
{
    if (g->config.has_rank_assignment) {
        g->restarts = event->restarts;
        g->generation = event->generation;
        g->is_needed = event->is_needed;
    } else if (g->will_restart) {
        g->restarts++;
        g->generation++;
    }
}

/* Starts a generation. The state of the generation before can be reported until here. */
static void spawn_generation(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    count_generation(g, event);
    disarm_deadline(g, out);
    g->will_restart = g->will_replace = g->forming = g->is_final = false;
    memset(g->workers, 0, (size_t)g->config.n_workers * sizeof(*g->workers));
    g->state = GROUP_RUNNING;
    g->cause = GROUP_CAUSE_NONE;
    g->cause_worker = -1;
    g->escalated = g->hurried = false;
    g->is_draining = false;
    g->guardian_killed = false;
    g->n_ended = 0;
    g->started_ns = event->now_ns;
    add_action(out, GROUP_DO_SPAWN, 0);
}

/* ---- stopping ---- */

/* From here on a signal of crun may be the reason for the end of a worker. */
static void mark_stopped(struct worker_group *g)
{
    for (int i = 0; i < g->config.n_workers; i++)
        if (g->workers[i].state == GROUP_WORKER_RUNNING)
            g->workers[i].stopped = true;
}

static void stop_workers(struct worker_group *g, uint64_t now_ns, int signal, struct group_actions *out)
{
    g->state = GROUP_STOPPING;
    g->forming = g->will_replace = false;
    mark_stopped(g);
    add_action(out, GROUP_DO_SIGNAL, signal);
    arm_deadline(g, out, now_ns + g->config.grace_ns);
}

static void kill_all(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->state = GROUP_KILLING;
    g->forming = g->will_replace = false;
    g->escalated = true;
    mark_stopped(g);
    add_action(out, GROUP_DO_KILL, 0);
    arm_deadline(g, out, now_ns + KILL_PATIENCE_NS);
}

static void fail_generation(struct worker_group *g, enum group_cause cause, const struct group_event *event,
                            struct group_actions *out)
{
    if (g->state != GROUP_RUNNING && g->state != GROUP_REPLACING)
        return; /* a consequence, or too late to matter: the first cause stays */
    set_cause(g, cause, event->worker, event->now_ns);
    if (g->config.has_rank_assignment) /* the other nodes first: the report has the longest way */
        add_action(out, GROUP_DO_REPORT_FAILED, event->worker);
    add_action(out, GROUP_DO_NOTIFY_FAILED, event->worker);
    stop_workers(g, event->now_ns, SIGTERM, out);
}

/* ---- replacing ---- */

static bool is_remaining(const struct group_worker *w)
{
    return !w->failed && !w->to_kill;
}

/* Whether some workers have not failed, and all of these can stay. */
static bool is_replaceable(const struct worker_group *g)
{
    int n_remaining = 0;

    if (!g->config.replace || g->interrupt || g->is_draining || g->is_ending)
        return false;
    if (g->is_final || (!g->config.has_rank_assignment && g->restarts >= g->config.max_restarts))
        return false;
    for (int i = 0; i < g->config.n_workers; i++) {
        const struct group_worker *w = &g->workers[i];
        if (!is_remaining(w))
            continue;
        if (w->state != GROUP_WORKER_RUNNING || !w->can_stay)
            return false;
        n_remaining++;
    }
    return n_remaining > 0;
}

/* Stops all workers, as with --restart-policy=all. The cause that is known stays. */
static void give_up_replacing(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->will_restart = false;
    if (g->cause_worker < 0)
        add_action(out, GROUP_DO_NOTIFY_PEER, 0);
    else
        add_action(out, GROUP_DO_NOTIFY_FAILED, g->cause_worker);
    stop_workers(g, now_ns, SIGTERM, out);
}

/* The generation cannot be formed: all workers are stopped. */
static void fail_replacement(struct worker_group *g, int worker, uint64_t now_ns, struct group_actions *out)
{
    set_cause(g, GROUP_CAUSE_REJOIN, worker, now_ns);
    if (g->config.has_rank_assignment)
        add_action(out, GROUP_DO_REPORT_FAILED, worker);
    give_up_replacing(g, now_ns, out);
}

/* Several nodes: the remaining workers wait for their ranks in the next generation, which come with GROUP_START. */
static void await_ranks(struct worker_group *g, struct group_actions *out)
{
    g->state = GROUP_REPLACING;
    g->forming = false;
    g->will_restart = g->will_replace = true;
    disarm_deadline(g, out);
    add_action(out, GROUP_DO_REPORT_READY, 0);
}

/* A worker that was started for the present generation, and is not ready yet, cannot be taken to the next generation: the
 * worker does not wait for the notice about a next generation. */
static bool kill_newcomers(struct worker_group *g, struct group_actions *out)
{
    bool any = false;

    for (int i = 0; i < g->config.n_workers; i++) {
        struct group_worker *w = &g->workers[i];
        if (is_remaining(w) && !w->can_stay && w->generation == g->generation && group_worker_may_run(w))
            any = w->to_kill = w->stopped = true;
    }
    if (any)
        add_action(out, GROUP_DO_KILL_NEWCOMERS, 0);
    return any;
}

/* A first failure, not known yet to other nodes and the remaining workers. On a single node the workers learn of the failure
 * with the next generation, milliseconds later. */
static void publish_failure(struct worker_group *g, const struct group_event *event,
                            struct group_actions *out)
{
    set_cause(g, GROUP_CAUSE_WORKER, event->worker, event->now_ns);
    if (g->config.has_rank_assignment)
        add_action(out, GROUP_DO_REPORT_FAILED, event->worker);
    if (g->config.has_rank_assignment && is_replaceable(g))
        add_action(out, GROUP_DO_NOTIFY_FAILED, event->worker);
}

/* One more failure while the ranks of the next generation are awaited. */
static void fail_while_awaiting(struct worker_group *g, const struct group_event *event,
                                struct group_actions *out)
{
    if (is_replaceable(g))
        return; /* it is started again with the others */
    set_cause(g, GROUP_CAUSE_WORKER, event->worker, event->now_ns);
    give_up_replacing(g, event->now_ns, out);
}

/* A worker has failed: it is replaced, or everything is stopped. */
static void replace_or_stop(struct worker_group *g, const struct group_event *event,
                            struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    w->failed = true;
    if (w->to_kill) /* killed by order; on_collected() looks again at its deadline */
        return;
    if (g->will_replace) {
        fail_while_awaiting(g, event, out);
        return;
    }
    if (g->state == GROUP_REPLACING && g->forming)
        (void)kill_newcomers(g, out); /* on_collected() waits for them */
    if (g->state == GROUP_RUNNING || g->forming)
        publish_failure(g, event, out);
    g->forming = false;
    if (!is_replaceable(g)) {
        give_up_replacing(g, event->now_ns, out);
        return;
    }
    g->state = GROUP_REPLACING;
    g->lost_ns = event->now_ns;
    arm_deadline(g, out, event->now_ns + COLLECT_NS);
}

/* The time for all workers to be ready begins when the new ones have joined: a restart of all would repeat their imports.
 * When all workers of this node have joined, new ones of other nodes may still import. REJOIN_LIMIT times the time is the bound. */
static void arm_rejoin(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    uint64_t limit_ns = g->started_ns + REJOIN_LIMIT * g->config.rejoin_ns, deadline_ns = limit_ns;
    bool is_importing = false, is_silent = false;

    for (int i = 0; i < g->config.n_workers; i++) {
        bool is_new = g->workers[i].generation == g->generation;
        is_importing = is_importing || (is_new && !g->workers[i].joining);
        is_silent = is_silent || (!is_new && !g->workers[i].joining);
    }
    if (!is_importing && (is_silent || !g->config.has_rank_assignment))
        deadline_ns = now_ns + g->config.rejoin_ns;
    arm_deadline(g, out, deadline_ns < limit_ns ? deadline_ns : limit_ns);
}

/* Opens the next generation for the remaining workers. */
static void open_replacement(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    uint64_t now_ns = event->now_ns;

    count_generation(g, event);
    g->will_restart = g->will_replace = false;
    g->forming = true;
    g->started_ns = now_ns;
    g->n_ended = 0;
    for (int i = 0; i < g->config.n_workers; i++) {
        struct group_worker *w = &g->workers[i];
        w->ready = w->joining = false;
        if (!is_remaining(w))
            *w = (struct group_worker){.generation = g->generation};
    }
    add_action(out, GROUP_DO_REPLACE, 0);
    arm_rejoin(g, now_ns, out);
}

/* All workers that failed at once are known; workers that were killed with these have to end first. */
static void on_collected(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    for (int i = 0; i < g->config.n_workers; i++)
        if (g->workers[i].to_kill && !g->workers[i].failed) {
            if (now_ns - g->lost_ns > KILL_PATIENCE_NS)
                give_up_replacing(g, now_ns, out);
            else
                arm_deadline(g, out, now_ns + COLLECT_NS);
            return;
        }
    g->will_restart = g->will_replace = true;
    if (g->cause != GROUP_CAUSE_PEER)
        add_action(out, GROUP_DO_PRINT_REPORT, 0);
    if (g->config.has_rank_assignment) {
        await_ranks(g, out);
    } else {
        add_action(out, GROUP_DO_START_AGAIN, 0);
    }
}

/* A worker is not ready in time: the generation cannot be formed from the remaining workers. */
static void on_rejoin_timeout(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    int unready = g->cause_worker;

    for (int i = g->config.n_workers - 1; i >= 0; i--)
        if (!g->workers[i].ready)
            unready = i;
    fail_replacement(g, unready, now_ns, out);
}

static void check_formed(struct worker_group *g, struct group_actions *out)
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
    disarm_deadline(g, out);
}

static void step_worker_joining(struct worker_group *g, const struct group_event *event,
                                struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    if ((uint32_t)event->value != g->generation || w->joining)
        return;
    w->joining = true;
    if (g->state == GROUP_REPLACING && g->forming)
        arm_rejoin(g, event->now_ns, out);
}

static void step_worker_ready(struct worker_group *g, const struct group_event *event,
                              struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    if ((uint32_t)event->value != g->generation)
        return; /* late: of a worker that was ready in an earlier generation */
    w->ready = w->can_stay = w->joining = true;
    check_formed(g, out);
}

static void step_replace_failed(struct worker_group *g, const struct group_event *event,
                                struct group_actions *out)
{
    if (g->state != GROUP_REPLACING)
        return;
    disarm_deadline(g, out);
    if (g->config.has_rank_assignment)
        fail_replacement(g, g->cause_worker, event->now_ns, out);
    else
        give_up_replacing(g, event->now_ns, out);
}

/* ---- events ---- */

static bool has_generation(const struct worker_group *g)
{
    return g->state != GROUP_IDLE && g->state != GROUP_LEAVING && g->state != GROUP_DONE;
}

static void step_start(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state == GROUP_IDLE)
        spawn_generation(g, event, out);
    else if (g->state == GROUP_REPLACING && g->will_replace)
        open_replacement(g, event, out);
    else if (g->config.has_rank_assignment &&
             has_generation(g)) /* its workers were to remain, and then could not */
        add_action(out, GROUP_DO_REPORT_FAILED, g->cause_worker);
}

/* A lack of processes, memory or descriptors, which may pass. */
static bool is_lack(int error)
{
    return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOBUFS;
}

static void step_empty(struct worker_group *g, const struct group_event *event, struct group_actions *out);

/* The generation ends as after the failure of a worker, and the next generation comes after a pause. */
static void fail_start(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state == GROUP_IDLE) /* several nodes: before there was anything to spawn */
        g->started_ns = event->now_ns;
    g->state = GROUP_RUNNING;
    g->start_error = event->value;
    if (g->n_short == 0)
        g->n_short = 1;
    if (g->config.has_rank_assignment)
        add_action(out, GROUP_DO_REPORT_FAILED, -1);
    step_empty(g, event, out);
}

static void step_start_failed(struct worker_group *g, const struct group_event *event,
                              struct group_actions *out)
{
    if (g->state == GROUP_DONE)
        return;
    set_cause(g, GROUP_CAUSE_START, -1, event->now_ns);
    if (is_lack(event->value) && (g->state == GROUP_IDLE || g->state == GROUP_RUNNING)) {
        fail_start(g, event, out);
        return;
    }
    g->start_error = 0;
    if (g->config.has_rank_assignment)
        add_action(out, GROUP_DO_LEAVE, 0);
    disarm_deadline(g, out);
    finish_job(g, out, 1);
}

static void step_started(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    if (w->state != GROUP_WORKER_NONE)
        return; /* no guardian reports this */
    w->state = GROUP_WORKER_RUNNING;
    w->pid = event->pid;
    w->ordered_ns = g->started_ns;
    w->started_ns = event->now_ns;
    /* The guardian receives a stop, decided while workers were still being started, behind the order of the worker. */
    w->stopped = g->state != GROUP_RUNNING && g->state != GROUP_REPLACING;
    w->generation = g->generation;
    check_formed(g, out); /* the notice "ready" may have been faster than the report of the guardian */
}

static void step_exec_failed(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    if (w->state != GROUP_WORKER_NONE)
        return; /* as above */
    w->state = GROUP_WORKER_EXEC_FAILED;
    w->status = event->value;
    w->ended_ns = event->now_ns;
    w->generation = g->generation;
    fail_generation(g, GROUP_CAUSE_EXEC, event, out);
}

static void step_exited(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    struct group_worker *w = &g->workers[event->worker];

    if (w->state != GROUP_WORKER_RUNNING)
        return; /* as above */
    w->state = GROUP_WORKER_ENDED;
    w->status = event->value;
    w->ended_ns = event->now_ns;
    w->order = g->n_ended++;
    w->stopped = w->stopped && !event->unasked; /* unasked: failed by itself while the order was on the way */
    if (event->unasked)
        w->kill_option = NULL;
    bool is_failure = event->value != 0 || w->to_kill;
    if (is_failure && (g->state == GROUP_REPLACING || (g->state == GROUP_RUNNING && g->config.replace)))
        replace_or_stop(g, event, out);
    else if (is_failure)
        fail_generation(g, GROUP_CAUSE_WORKER, event, out);
    else if (g->forming && g->config.has_rank_assignment) /* as below; the other nodes take it for running */
        fail_replacement(g, g->cause_worker, event->now_ns, out);
    else if (g->state == GROUP_REPLACING)
        give_up_replacing(g, event->now_ns,
                          out); /* it is done: the remaining workers cannot form a generation again */
}

static void step_orphans(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->state != GROUP_RUNNING && g->state != GROUP_REPLACING && g->state != GROUP_STOPPING)
        return;
    uint64_t deadline_ns = event->now_ns + SWEEP_GRACE_NS;
    if (g->deadline_ns && g->deadline_ns < deadline_ns)
        deadline_ns = g->deadline_ns;
    g->state = GROUP_SWEEPING;
    g->forming = g->will_replace = false;
    add_action(out, GROUP_DO_SIGNAL, SIGTERM);
    arm_deadline(g, out, deadline_ns);
}

/* Whether a restart may help against the cause. */
static bool is_restartable(const struct worker_group *g)
{
    switch (g->cause) {
    case GROUP_CAUSE_WORKER:
    case GROUP_CAUSE_GUARDIAN:
    case GROUP_CAUSE_REJOIN:
        return true;
    case GROUP_CAUSE_EXEC:
        return !group_exec_is_final(g->workers[g->cause_worker].status);
    case GROUP_CAUSE_START:
        return g->start_error != 0;
    default:
        return false;
    }
}

static bool can_restart(const struct worker_group *g)
{
    return is_restartable(g) && !g->is_final && !g->interrupt && g->restarts < g->config.max_restarts;
}

static void step_final(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    bool is_first =
        g->cause == GROUP_CAUSE_NONE && (g->state == GROUP_RUNNING || g->state == GROUP_REPLACING);
    bool is_cause = g->cause == GROUP_CAUSE_WORKER && g->cause_worker == event->worker && has_generation(g);

    g->is_final = g->is_final || is_first || is_cause;
}

/* How long to wait before the next generation, for a generation that failed on the node of crun. */
static uint64_t count_short_life(struct worker_group *g)
{
    uint64_t pause_ns = PAUSE_FIRST_NS;

    if (g->cause_ns - g->started_ns >= SHORT_LIFE_NS) {
        g->n_short = 0;
        return 0;
    }
    if (g->n_short++ == 0)
        return 0;
    for (int i = 2; i < g->n_short && pause_ns < g->config.pause_max_ns; i++)
        pause_ns *= 2;
    return pause_ns < g->config.pause_max_ns ? pause_ns : g->config.pause_max_ns;
}

/* The next steps after a failed generation of the node. */
static void begin_again(struct worker_group *g, struct group_actions *out)
{
    add_action(out, g->config.has_rank_assignment ? GROUP_DO_REPORT_READY : GROUP_DO_START_AGAIN, 0);
}

static void pause_and_begin_again(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    uint64_t pause_ns = is_restartable(g) ? count_short_life(g) : 0;

    g->state = GROUP_IDLE;
    if (pause_ns == 0) {
        begin_again(g, out);
        return;
    }
    add_action(out, GROUP_DO_PRINT_PAUSE, (int)(pause_ns / 1000000));
    arm_deadline(g, out, now_ns + pause_ns);
}

/* Draining, the failure of a worker is reported at the end: others may be saving their state. */
static void report_drain_failure(struct worker_group *g, struct group_actions *out)
{
    for (int i = 0; i < g->config.n_workers && g->cause == GROUP_CAUSE_NONE; i++) {
        if (g->workers[i].state != GROUP_WORKER_ENDED || g->workers[i].status == 0)
            continue;
        set_cause(g, GROUP_CAUSE_WORKER, i, g->workers[i].ended_ns);
        add_action(out, GROUP_DO_REPORT_FAILED, i);
    }
}

/* The node's part of the generation has ended; the rendezvous decides about the next generation. */
static void await_decision(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    if (g->is_draining)
        report_drain_failure(g, out);
    g->will_restart = !g->is_ending && (!g->interrupt || g->is_draining);
    if ((g->cause != GROUP_CAUSE_NONE && g->cause != GROUP_CAUSE_PEER) || g->interrupt)
        add_action(out, GROUP_DO_PRINT_REPORT, 0);
    if (!g->will_restart) {
        if (!g->is_ending && !g->has_left) /* after a drain in vain */
            add_action(out, GROUP_DO_LEAVE, g->interrupt);
        finish_job(g, out, g->is_ending ? g->end_code : 1);
    } else if (g->cause == GROUP_CAUSE_NONE) {
        g->state = GROUP_IDLE;
        add_action(out, GROUP_DO_REPORT_DONE, 0);
    } else {
        pause_and_begin_again(g, now_ns, out);
    }
}

static void step_empty(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (!has_generation(g))
        return;
    disarm_deadline(g, out);
    g->forming = g->will_replace = false;
    if (g->config.has_rank_assignment) {
        await_decision(g, event->now_ns, out);
        return;
    }
    g->will_restart = can_restart(g);
    if (g->cause != GROUP_CAUSE_NONE || g->interrupt)
        add_action(out, GROUP_DO_PRINT_REPORT, 0);
    if (g->will_restart)
        pause_and_begin_again(g, event->now_ns, out);
    else
        finish_job(g, out, g->cause != GROUP_CAUSE_NONE || g->interrupt);
}

static void step_guardian_lost(struct worker_group *g, const struct group_event *event,
                               struct group_actions *out)
{
    if (!has_generation(g))
        return;
    if (g->state == GROUP_RUNNING || g->state == GROUP_REPLACING) {
        set_cause(g, GROUP_CAUSE_GUARDIAN, g->cause_worker, event->now_ns);
        if (g->config.has_rank_assignment)
            add_action(out, GROUP_DO_REPORT_FAILED, -1);
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

/* ---- signals to crun ---- */

static void note_interrupt(struct worker_group *g, const struct group_event *event)
{
    g->stops_job = g->stops_job || event->stops_job;
    if (g->interrupt)
        return;
    g->interrupt = event->value;
    g->interrupt_ns = event->now_ns;
}

/* The first SIGTERM of a scheduler that wants the node back, while the job cannot go on with fewer nodes. */
static bool wants_drain(const struct worker_group *g, const struct group_event *event)
{
    return event->value == SIGTERM && !event->stops_job && g->config.has_rank_assignment && g->is_needed &&
           g->state == GROUP_RUNNING && !g->interrupt;
}

static void drain_workers(struct worker_group *g, uint64_t now_ns, struct group_actions *out)
{
    g->is_draining = true;
    add_action(out, GROUP_DO_NOTIFY_STOP, SIGTERM);
    stop_workers(g, now_ns, SIGTERM, out);
}

/* The signal stops workers of other nodes as well, and may have reached those earlier: the failure is an effect. */
static bool is_effect_of_stop(const struct worker_group *g, const struct group_event *event)
{
    return event->stops_job && g->cause == GROUP_CAUSE_WORKER &&
           event->now_ns - g->cause_ns < SAME_REQUEST_NS;
}

static void stop_for_signal(struct worker_group *g, bool first, const struct group_event *event,
                            struct group_actions *out)
{
    switch (g->state) {
    case GROUP_IDLE:
        disarm_deadline(g, out);
        set_cause(g, GROUP_CAUSE_SIGNAL, -1, event->now_ns);
        g->will_restart = false;
        add_action(out, GROUP_DO_PRINT_REPORT, 0);
        finish_job(g, out, 1);
        break;
    case GROUP_RUNNING:
    case GROUP_REPLACING:
        set_cause(g, GROUP_CAUSE_SIGNAL, g->cause_worker, event->now_ns);
        add_action(out, GROUP_DO_NOTIFY_STOP, event->value);
        stop_workers(g, event->now_ns, event->value, out);
        break;
    case GROUP_STOPPING:
        if (first) { /* the workers stop for another reason; the deadline stays */
            if (is_effect_of_stop(g, event))
                set_cause(g, GROUP_CAUSE_SIGNAL, -1, event->now_ns);
            add_action(out, GROUP_DO_SIGNAL, event->value);
        } else {
            g->hurried = true;
            kill_all(g, event->now_ns, out);
        }
        break;
    case GROUP_SWEEPING: /* only orphans are left */
        g->hurried = !first;
        kill_all(g, event->now_ns, out);
        break;
    case GROUP_LEAVING: /* how the other nodes end is not known */
        set_cause(g, GROUP_CAUSE_SIGNAL, -1, event->now_ns);
        add_action(out, GROUP_DO_PRINT_REPORT, 0);
        finish_job(g, out, 1);
        break;
    case GROUP_DONE:
        add_action(out, GROUP_DO_HURRY, 0);
        break;
    default:
        break;
    }
}

/* The first signal stops the workers, a second signal kills the workers, unless the second belongs to the first. */
static void step_signal(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    bool first = !g->interrupt;

    if (!first && event->now_ns - g->interrupt_ns < SAME_REQUEST_NS)
        return;
    bool by_drain = wants_drain(g, event);
    if (g->state != GROUP_DONE) /* afterwards a signal changes nothing about the end of the job */
        note_interrupt(g, event);
    if (by_drain) {
        add_action(out, GROUP_DO_REQUEST_DRAIN, 0);
        drain_workers(g, event->now_ns, out);
        return;
    }
    if (g->config.has_rank_assignment && g->state != GROUP_DONE && !g->has_left) {
        add_action(out, GROUP_DO_LEAVE, event->value);
        g->has_left = true;
    }
    g->is_draining = false; /* a second signal does not wait for other nodes */
    stop_for_signal(g, first, event, out);
}

static void step_pass_signal(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    if (has_generation(g))
        add_action(out, GROUP_DO_PASS_SIGNAL, event->value);
}

/* Only if the workers were suspended here: a SIGCONT would undo a stop by a debugger. */
static void step_resume(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (g->is_suspended && has_generation(g))
        add_action(out, GROUP_DO_THAW, 0);
    g->is_suspended = false;
}

/* The workers have sessions of their own, so the terminal reaches crun alone. */
static void step_suspend(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    g->is_suspended = true;
    if (has_generation(g))
        add_action(out, GROUP_DO_FREEZE, 0);
    add_action(out, GROUP_DO_STOP_SELF, 0);
}

/* ---- time ---- */

static void step_timer(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if (!g->deadline_ns)
        return;
    if (event->now_ns < g->deadline_ns) {
        arm_deadline(g, out, g->deadline_ns);
        return;
    }
    g->deadline_ns = 0;
    if (g->state == GROUP_IDLE) {
        begin_again(g, out);
    } else if (g->state == GROUP_REPLACING && g->forming) {
        on_rejoin_timeout(g, event->now_ns, out);
    } else if (g->state == GROUP_REPLACING) {
        on_collected(g, event->now_ns, out);
    } else if (g->state == GROUP_STOPPING || g->state == GROUP_SWEEPING) {
        kill_all(g, event->now_ns, out);
    } else if (g->state == GROUP_KILLING && !g->guardian_killed) {
        g->guardian_killed = true;
        add_action(out, GROUP_DO_KILL_GUARDIAN, 0);
        arm_deadline(g, out, event->now_ns + KILL_PATIENCE_NS);
    } else if (g->state == GROUP_KILLING) {
        add_action(out, GROUP_DO_GIVE_UP, 0);
        g->will_restart = false;
        add_action(out, GROUP_DO_PRINT_REPORT, 0);
        if (g->config.has_rank_assignment)
            add_action(out, GROUP_DO_LEAVE, 0);
        finish_job(g, out, 1);
    }
}

/* ---- other nodes ---- */

/* Workers of the node that can stay remain for the next generation. */
static void remain_after_peer(struct worker_group *g, bool has_killed, uint64_t now_ns,
                              struct group_actions *out)
{
    if (!has_killed) {
        await_ranks(g, out);
        return;
    }
    g->forming = false;
    g->lost_ns = now_ns;
    arm_deadline(g, out, now_ns + COLLECT_NS);
}

/* Another node's part of the generation has failed. If the own part has ended, the node is ready for the next generation. */
static void step_peer_failed(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    if (g->state == GROUP_IDLE && !g->deadline_ns)
        add_action(out, GROUP_DO_REPORT_READY, 0);
    if (g->cause == GROUP_CAUSE_NONE)
        set_cause(g, GROUP_CAUSE_PEER, -1, event->now_ns);
    if (g->state == GROUP_REPLACING && (g->forming || g->is_ending))
        set_cause(g, GROUP_CAUSE_PEER, -1, event->now_ns);
    else if (g->state != GROUP_RUNNING)
        return;
    bool has_killed = g->forming && kill_newcomers(g, out);
    add_action(out, GROUP_DO_NOTIFY_PEER, 0);
    if (g->config.has_rank_assignment && is_replaceable(g))
        remain_after_peer(g, has_killed, event->now_ns, out);
    else
        stop_workers(g, event->now_ns, SIGTERM, out);
}

static void step_lease_ended(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    if (!has_generation(g))
        return;
    if (g->cause == GROUP_CAUSE_NONE || g->forming)
        set_cause(g, GROUP_CAUSE_PEER, -1, event->now_ns);
    if (g->state != GROUP_RUNNING && g->state != GROUP_REPLACING)
        return; /* the end of the last process is reported as ready, not as done */
    add_action(out, GROUP_DO_NOTIFY_PEER, 0);
    stop_workers(g, event->now_ns, SIGTERM, out);
}

static void step_drain(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    if ((g->state != GROUP_RUNNING && !g->forming) || !g->config.has_rank_assignment)
        return;
    set_cause(g, GROUP_CAUSE_NONE, -1, 0); /* forming: the cause of the generation before is settled */
    drain_workers(g, event->now_ns, out);
}

static void step_end(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    g->is_ending = true;
    g->end_code = event->value;
    if (g->state == GROUP_IDLE) {
        disarm_deadline(g, out);
        finish_job(g, out, event->value);
    } else {
        step_peer_failed(g, event, out);
    }
}

static void step_others_done(struct worker_group *g, const struct group_event *event,
                             struct group_actions *out)
{
    if (g->state != GROUP_LEAVING)
        return;
    g->state = GROUP_DONE;
    add_action(out, GROUP_DO_FINISH, 0);
}

/* ---- step ---- */

/* Conditions after every step. */
static void assert_invariants(const struct worker_group *g)
{
    int n_ended __attribute__((unused)) = 0;

    for (int i = 0; i < g->config.n_workers; i++) {
        const struct group_worker *w = &g->workers[i];
        n_ended += w->state == GROUP_WORKER_ENDED;
        assert(!w->ready || w->can_stay);
        assert(!w->to_kill || g->config.replace);
    }
    assert(n_ended == g->n_ended);
    assert(g->cause_worker >= -1 && g->cause_worker < g->config.n_workers);
    assert(g->cause_worker >= 0 || (g->cause != GROUP_CAUSE_WORKER && g->cause != GROUP_CAUSE_EXEC));
    /* A request to end has a deadline; only states that do not wait for the end of a process have none. */
    bool is_ending __attribute__((unused)) =
        g->state == GROUP_STOPPING || g->state == GROUP_SWEEPING || g->state == GROUP_KILLING;
    assert(!is_ending || g->deadline_ns);
    assert(g->state != GROUP_REPLACING || g->deadline_ns || g->will_replace);
    assert((g->state != GROUP_DONE && g->state != GROUP_LEAVING && g->state != GROUP_RUNNING) ||
           !g->deadline_ns);
    assert(g->state != GROUP_IDLE || !g->deadline_ns || g->will_restart);
    assert(!g->forming || g->state == GROUP_REPLACING);
    assert(!g->will_replace || g->config.replace);
    assert(!g->is_draining || g->config.has_rank_assignment);
    assert(g->config.has_rank_assignment || g->restarts <= g->config.max_restarts);
}

static const struct {
    void (*step)(struct worker_group *g, const struct group_event *event, struct group_actions *out);
    const char *name;
} events[GROUP_EVENT_COUNT] = {
    [GROUP_START] = {step_start, "start"},
    [GROUP_START_FAILED] = {step_start_failed, "start-failed"},
    [GROUP_STARTED] = {step_started, "started"},
    [GROUP_EXEC_FAILED] = {step_exec_failed, "exec-failed"},
    [GROUP_EXITED] = {step_exited, "exited"},
    [GROUP_ORPHANS] = {step_orphans, "orphans"},
    [GROUP_EMPTY] = {step_empty, "empty"},
    [GROUP_GUARDIAN_LOST] = {step_guardian_lost, "guardian-lost"},
    [GROUP_SIGNAL] = {step_signal, "signal"},
    [GROUP_PASS_SIGNAL] = {step_pass_signal, "pass-signal"},
    [GROUP_SUSPEND] = {step_suspend, "suspend"},
    [GROUP_RESUME] = {step_resume, "resume"},
    [GROUP_TIMER] = {step_timer, "timer"},
    [GROUP_PEER_FAILED] = {step_peer_failed, "peer-failed"},
    [GROUP_LEASE_ENDED] = {step_lease_ended, "lease-ended"},
    [GROUP_END] = {step_end, "end"},
    [GROUP_DRAIN] = {step_drain, "drain"},
    [GROUP_OTHERS_DONE] = {step_others_done, "others-done"},
    [GROUP_WORKER_JOINING] = {step_worker_joining, "worker-joining"},
    [GROUP_WORKER_READY] = {step_worker_ready, "worker-ready"},
    [GROUP_REPLACE_FAILED] = {step_replace_failed, "replace-failed"},
    [GROUP_FINAL] = {step_final, "final"},
};

void group_step(struct worker_group *g, const struct group_event *event, struct group_actions *out)
{
    out->n_items = 0;
    events[event->kind].step(g, event, out);
    assert_invariants(g);
}

/* ---- names ---- */

const char *group_state_name(unsigned state)
{
    static const char *const names[GROUP_STATE_COUNT] = {
        [GROUP_IDLE] = "idle",         [GROUP_RUNNING] = "running",   [GROUP_REPLACING] = "replacing",
        [GROUP_STOPPING] = "stopping", [GROUP_SWEEPING] = "sweeping", [GROUP_KILLING] = "killing",
        [GROUP_LEAVING] = "leaving",   [GROUP_DONE] = "done",
    };

    return state < GROUP_STATE_COUNT ? names[state] : NULL;
}

const char *group_cause_name(unsigned cause)
{
    static const char *const names[GROUP_CAUSE_COUNT] = {
        [GROUP_CAUSE_NONE] = "none",         [GROUP_CAUSE_WORKER] = "worker", [GROUP_CAUSE_EXEC] = "exec",
        [GROUP_CAUSE_GUARDIAN] = "guardian", [GROUP_CAUSE_SIGNAL] = "signal", [GROUP_CAUSE_START] = "start",
        [GROUP_CAUSE_PEER] = "peer",         [GROUP_CAUSE_REJOIN] = "rejoin",
    };

    return cause < GROUP_CAUSE_COUNT ? names[cause] : NULL;
}

const char *group_event_name(unsigned kind)
{
    return kind < GROUP_EVENT_COUNT ? events[kind].name : NULL;
}

const char *group_action_name(unsigned kind)
{
    static const char *const names[GROUP_ACTION_COUNT] = {
        [GROUP_DO_SPAWN] = "spawn",
        [GROUP_DO_NOTIFY_FAILED] = "notify-failed",
        [GROUP_DO_NOTIFY_STOP] = "notify-stop",
        [GROUP_DO_SIGNAL] = "signal",
        [GROUP_DO_PASS_SIGNAL] = "pass-signal",
        [GROUP_DO_FREEZE] = "freeze",
        [GROUP_DO_THAW] = "thaw",
        [GROUP_DO_STOP_SELF] = "stop-self",
        [GROUP_DO_KILL] = "kill",
        [GROUP_DO_ARM] = "arm",
        [GROUP_DO_DISARM] = "disarm",
        [GROUP_DO_PRINT_REPORT] = "print-report",
        [GROUP_DO_PRINT_PAUSE] = "print-pause",
        [GROUP_DO_START_AGAIN] = "start-again",
        [GROUP_DO_KILL_GUARDIAN] = "kill-guardian",
        [GROUP_DO_GIVE_UP] = "give-up",
        [GROUP_DO_AWAIT_OTHERS] = "await-others",
        [GROUP_DO_FINISH] = "finish",
        [GROUP_DO_HURRY] = "hurry",
        [GROUP_DO_REPLACE] = "replace",
        [GROUP_DO_KILL_NEWCOMERS] = "kill-newcomers",
        [GROUP_DO_REPORT_FAILED] = "report-failed",
        [GROUP_DO_REPORT_DONE] = "report-done",
        [GROUP_DO_REPORT_READY] = "report-ready",
        [GROUP_DO_REQUEST_DRAIN] = "request-drain",
        [GROUP_DO_LEAVE] = "leave",
        [GROUP_DO_NOTIFY_PEER] = "notify-peer",
    };

    return kind < GROUP_ACTION_COUNT ? names[kind] : NULL;
}
