/*
 * The workers of one node: the shipping group machine (launcher/supervise/worker_group.c) decides, and simulated processes
 * carry out what it orders. They start after a while, fail, end, ignore SIGTERM, leave orphans or do not end on SIGKILL
 * in time. Decisions of the rendezvous reach the machine as they do in launcher/agent, and its reports go to the session.
 */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

enum {
    KILLED_WITHIN_MS = 20, /* a process that is not stuck ends on SIGKILL */
    STUCK_S = 10,          /* the patience of the machine: first with the guardian, then with the processes */
};

static void dispatch_group(struct sim *sim, unsigned agent, struct group_event event);

static void dispatch_group_kind(struct sim *sim, unsigned agent, enum group_event_kind kind)
{
    dispatch_group(sim, agent, (struct group_event){.kind = kind, .worker = -1});
}

static void worker_later(struct sim *sim, unsigned agent, enum sim_moment moment, uint64_t serial,
                         uint64_t delay_ns)
{
    schedule_add(&sim->schedule, sim->now_ns + delay_ns, moment, agent, serial);
}

static uint64_t new_serial(struct sim_agent *a)
{
    return ++a->n_serials;
}

/* What only a fault causes happens before the calm alone. */
static bool misbehaves(struct sim *sim, unsigned percent)
{
    return percent > 0 && sim->now_ns < sim->scenario.calm_ns && random_percent(&sim->random, percent);
}

static bool is_there(const struct sim_worker *w)
{
    return w->serial != 0;
}

static unsigned count_processes(const struct sim_agent *a)
{
    unsigned n = a->node.n_orphans;

    for (int i = 0; i < a->node.machine.config.n_workers; i++)
        n += is_there(&a->node.workers[i]);
    return n;
}

/* ---- processes ---- */

static void order_kill(struct sim *sim, unsigned agent, struct sim_worker *w)
{
    struct random *r = &sim->random;

    if (w->killed || !w->alive)
        return;
    w->killed = true;
    worker_later(sim, agent, SIM_WORKER_DIE, w->serial,
                 w->is_stuck ? random_between(r, 3 * SIM_S, 12 * SIM_S)
                             : random_between(r, 0, KILLED_WITHIN_MS * SIM_MS));
}

static void order_end(struct sim *sim, unsigned agent, struct sim_worker *w)
{
    struct random *r = &sim->random;
    bool is_draining = sim->agents[agent].node.machine.is_draining;

    if (!w->alive || w->ignores_term || w->is_stuck)
        return;
    worker_later(sim, agent, random_percent(r, is_draining ? 95 : 30) ? SIM_WORKER_DONE : SIM_WORKER_DIE,
                 w->serial, random_between(r, 0, sim->scenario.stop_max_ns));
}

/* The guardian reports what is left when the last worker has ended. */
static void look_for_processes(struct sim *sim, unsigned agent)
{
    struct sim_node *n = &sim->agents[agent].node;

    for (int i = 0; i < n->machine.config.n_workers; i++)
        if (is_there(&n->workers[i]))
            return;
    if (n->guardian != 0)
        worker_later(sim, agent, SIM_GUARDIAN_IDLE, n->guardian, SIM_MS / 50);
}

static void end_orphans(struct sim *sim, unsigned agent)
{
    struct sim_node *n = &sim->agents[agent].node;

    if (n->n_orphans > 0)
        worker_later(sim, agent, SIM_ORPHANS_END, n->guardian, random_between(&sim->random, 0, 10 * SIM_MS));
}

static void end_process(struct sim *sim, unsigned agent, int worker, int status)
{
    struct sim_node *n = &sim->agents[agent].node;
    struct sim_worker *w = &n->workers[worker];
    struct group_event event = {.kind = GROUP_EXITED,
                                .worker = worker,
                                .pid = (pid_t)w->serial,
                                .value = status,
                                .unasked = !w->killed && !n->term};

    *w = (struct sim_worker){0};
    if (!n->guardian_lost) /* nothing reports it */
        dispatch_group(sim, agent, event);
    look_for_processes(sim, agent);
}

/* ---- starts ---- */

static void plan_life(struct sim *sim, unsigned agent, int worker)
{
    const struct sim_scenario *sc = &sim->scenario;
    const struct sim_worker *w = &sim->agents[agent].node.workers[worker];
    uint64_t wait_ns = sc->finish_ns > sim->now_ns ? sc->finish_ns - sim->now_ns : 0;

    wait_ns += random_between(&sim->random, 0, sc->finish_spread_ns);
    if (worker == 0 && sim->now_ns < sc->finish_ns + 20 * SIM_S &&
        random_percent(&sim->random, sc->late_failure_percent))
        worker_later(sim, agent, SIM_WORKER_FAIL, w->serial, wait_ns);
    worker_later(sim, agent, SIM_WORKER_DONE, w->serial, wait_ns);
}

/* A worker joins its generation at once or, a new one, after its imports. It gets ready in it, or never does. */
static void plan_ready(struct sim *sim, unsigned agent, const struct sim_worker *w)
{
    if (sim->scenario.replace)
        worker_later(sim, agent, SIM_WORKER_JOINING, w->serial | (uint64_t)w->generation << 32, 0);
    if (sim->scenario.replace && !misbehaves(sim, sim->scenario.unready_percent))
        worker_later(sim, agent, SIM_WORKER_READY, w->serial | (uint64_t)w->generation << 32,
                     random_between(&sim->random, 0, SIM_S));
}

static void begin_processes(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_node *n = &a->node;

    for (int i = 0; i < n->machine.config.n_workers; i++) {
        struct sim_worker *w = &n->workers[i];

        if (n->selected[i]) {
            *w = (struct sim_worker){.serial = new_serial(a), .generation = n->machine.generation};
            w->ignores_term = random_percent(&sim->random, sim->scenario.ignore_term_percent);
            w->is_stuck = misbehaves(sim, sim->scenario.stuck_percent);
            n->had_stuck = n->had_stuck || w->is_stuck;
            worker_later(sim, agent, SIM_WORKER_STARTED, w->serial,
                         random_between(&sim->random, SIM_MS / 20, 30 * SIM_MS));
        } else if (is_there(w)) {
            w->generation = n->machine.generation; /* by the notice */
            plan_ready(sim, agent, w);
        }
    }
}

/* The files of a start are made: its processes begin. */
static void take_files(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_node *n = &a->node;
    bool fails = misbehaves(sim, sim->scenario.start_fail_percent);

    n->files = 0;
    if (fails) {
        dispatch_group_kind(sim, agent, n->is_replacing ? GROUP_REPLACE_FAILED : GROUP_START_FAILED);
        return;
    }
    if (!n->is_replacing)
        n->guardian = new_serial(a);
    begin_processes(sim, agent);
}

static void order_start(struct sim *sim, unsigned agent, bool is_replacing)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_node *n = &a->node;

    n->is_replacing = is_replacing;
    n->term = n->kill = n->guardian_lost = false;
    n->had_stuck = n->had_stuck && is_replacing;
    for (int i = 0; i < n->machine.config.n_workers; i++) {
        n->selected[i] = !is_replacing || n->machine.workers[i].state == GROUP_WORKER_NONE;
        if (n->selected[i] && is_there(&n->workers[i]))
            violated(sim,
                     "agent %u starts worker %d of generation %u while its process of generation %u is there",
                     agent, i, n->machine.generation, n->workers[i].generation);
    }
    if (!is_replacing && count_processes(a) > 0)
        violated(sim, "agent %u starts generation %u while %u processes are there", agent,
                 n->machine.generation, count_processes(a));
    n->files = new_serial(a);
    worker_later(sim, agent, SIM_START_FILES, n->files, random_between(&sim->random, 0, 20 * SIM_MS));
}

static void check_one_generation(struct sim *sim, unsigned agent, const struct sim_worker *new)
{
    const struct sim_node *n = &sim->agents[agent].node;

    for (int i = 0; i < n->machine.config.n_workers; i++)
        if (is_there(&n->workers[i]) && n->workers[i].generation != new->generation)
            violated(sim, "workers of generations %u and %u are alive on node %u", n->workers[i].generation,
                     new->generation, agent);
}

static void start_process(struct sim *sim, unsigned agent, int worker)
{
    struct sim_node *n = &sim->agents[agent].node;
    struct sim_worker *w = &n->workers[worker];
    struct group_event event = {.kind = GROUP_STARTED, .worker = worker, .pid = (pid_t)w->serial};

    check_one_generation(sim, agent, w);
    if (misbehaves(sim, sim->scenario.exec_fail_percent)) {
        *w = (struct sim_worker){0};
        event = (struct group_event){.kind = GROUP_EXEC_FAILED, .worker = worker, .value = EAGAIN};
        if (!n->guardian_lost)
            dispatch_group(sim, agent, event);
        look_for_processes(sim, agent);
        return;
    }
    w->alive = true;
    plan_life(sim, agent, worker);
    plan_ready(sim, agent, w);
    if (!n->guardian_lost)
        dispatch_group(sim, agent, event);
    if (n->term)
        order_end(sim, agent, w);
    if (n->kill || (n->machine.workers[worker].to_kill && !n->machine.workers[worker].failed))
        order_kill(sim, agent, w);
}

/* ---- actions ---- */

static void drop_start(struct sim_node *n)
{
    if (n->files == 0)
        return;
    n->files = 0;
    n->start_cancelled = !n->is_replacing;
}

static void signal_all(struct sim *sim, unsigned agent, bool kill)
{
    struct sim_node *n = &sim->agents[agent].node;

    drop_start(n);
    n->term = true;
    n->kill = n->kill || kill;
    for (int i = 0; i < n->machine.config.n_workers; i++)
        (kill ? order_kill : order_end)(sim, agent, &n->workers[i]);
    if (kill || !n->orphans_ignore)
        end_orphans(sim, agent);
}

static void kill_newcomers(struct sim *sim, unsigned agent)
{
    struct sim_node *n = &sim->agents[agent].node;

    for (int i = 0; i < n->machine.config.n_workers; i++)
        if (n->machine.workers[i].to_kill && !n->machine.workers[i].failed)
            order_kill(sim, agent, &n->workers[i]);
}

static void arm_group(struct sim *sim, unsigned agent, uint64_t deadline_ns)
{
    struct sim_agent *a = &sim->agents[agent];
    uint64_t at_ns = sim_clock_when(&a->clock, deadline_ns);

    a->node.timer = new_serial(a);
    schedule_add(&sim->schedule, at_ns > sim->now_ns ? at_ns : sim->now_ns, SIM_GROUP_TIMER, agent,
                 a->node.timer);
}

/* The processes end with the agent, and its exit code is the result of the job. */
static void finish_group(struct sim *sim, unsigned agent, int code)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_node *n = &a->node;
    int expected = a->session.verdict == SESSION_VERDICT_SUCCESS ? 0 : 1;

    drop_start(n);
    n->start_cancelled = false;
    n->timer = 0;
    if (!a->ended)
        violated(sim, "agent %u ends, and the rendezvous does not know of it", agent);
    if (!n->gave_up && count_processes(a) > 0)
        violated(sim, "agent %u ends, and %u processes are left", agent, count_processes(a));
    if (n->gave_up ? code != 1
                   : n->machine.is_ending && a->session.end == SESSION_END_VERDICT && code != expected)
        violated(sim, "agent %u ends with exit code %d, and the job with %s", agent, code,
                 session_verdict_names[a->session.verdict]);
    schedule_add(&sim->schedule, sim->now_ns, SIM_AGENT_EXIT, agent, a->life);
}

static void perform_on_processes(struct sim *sim, unsigned agent, const struct group_action *action)
{
    struct sim_node *n = &sim->agents[agent].node;

    switch (action->kind) {
    case GROUP_DO_SPAWN:
    case GROUP_DO_REPLACE:
        order_start(sim, agent, action->kind == GROUP_DO_REPLACE);
        break;
    case GROUP_DO_SIGNAL:
    case GROUP_DO_KILL:
        signal_all(sim, agent, action->kind == GROUP_DO_KILL);
        break;
    case GROUP_DO_KILL_NEWCOMERS:
        kill_newcomers(sim, agent);
        break;
    case GROUP_DO_ARM:
        arm_group(sim, agent, action->deadline_ns);
        break;
    case GROUP_DO_DISARM:
        n->timer = 0;
        break;
    case GROUP_DO_KILL_GUARDIAN:
        worker_later(sim, agent, SIM_GUARDIAN_LOST, n->guardian, SIM_MS / 20);
        break;
    case GROUP_DO_GIVE_UP:
        n->gave_up = true;
        break;
    case GROUP_DO_FINISH:
        finish_group(sim, agent, action->value);
        break;
    case GROUP_DO_START_AGAIN:
    case GROUP_DO_AWAIT_OTHERS:
        violated(sim, "agent %u does not wait for the rendezvous: %s", agent,
                 group_action_name(action->kind));
        break;
    default: /* reports, and notices that change nothing here */
        break;
    }
}

/* ---- the machine ---- */

static enum sim_part part_of(const struct sim_node *n)
{
    const struct worker_group *g = &n->machine;

    switch (g->state) {
    case GROUP_IDLE:
        return n->is_done ? PART_ENDED : PART_NONE;
    case GROUP_DONE:
    case GROUP_LEAVING:
        return PART_NONE;
    case GROUP_RUNNING:
        return PART_RUNNING;
    case GROUP_REPLACING:
        return g->forming ? PART_RUNNING : PART_STOPPING;
    default:
        return PART_STOPPING;
    }
}

static bool is_stop(enum group_state state)
{
    return state == GROUP_STOPPING || state == GROUP_SWEEPING || state == GROUP_KILLING;
}

/* A stop ends within the grace and the patience after SIGKILL. */
static void check_stop(struct sim *sim, unsigned agent, enum group_state before)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_node *n = &a->node;
    bool stops = is_stop(n->machine.state);
    uint64_t limit_ns = sim->scenario.grace_ns + sim->scenario.grace_ns / 50 + 200 * SIM_MS;

    if (n->had_stuck)
        limit_ns += STUCK_S * SIM_S + SIM_S;
    if (stops && !is_stop(before))
        n->stop_ns = sim->now_ns;
    if (!stops && is_stop(before) && a->paused_until_ns < n->stop_ns && sim->now_ns > n->stop_ns + limit_ns)
        violated(sim, "the stop of agent %u took %.3f s, %.3f s are the limit", agent,
                 (double)(sim->now_ns - n->stop_ns) / 1e9, (double)limit_ns / 1e9);
}

static void trace_group_step(struct sim *sim, unsigned agent, enum group_state before,
                             const struct group_event *event, const struct group_actions *actions)
{
    const struct worker_group *g = &sim->agents[agent].node.machine;

    if (!sim->trace)
        return;
    sim_trace(sim, "agent %u: group %s, %s %d %d -> %s, generation %u", agent, group_state_name(before),
              group_event_name(event->kind), event->worker, event->value, group_state_name(g->state),
              g->generation);
    for (size_t i = 0; i < actions->n_items; i++)
        sim_trace(sim, "agent %u:     %s %d", agent, group_action_name(actions->items[i].kind),
                  actions->items[i].value);
}

static bool take_flag(bool *flag)
{
    bool was = *flag;

    *flag = false;
    return was;
}

static void dispatch_group(struct sim *sim, unsigned agent, struct group_event event)
{
    struct sim_agent *a = &sim->agents[agent];
    enum group_state before = a->node.machine.state;
    struct group_actions actions;

    if (event.now_ns == 0)
        event.now_ns = sim_clock_at(&a->clock, sim->now_ns);
    group_step(&a->node.machine, &event, &actions);
    for (size_t i = 0; i < actions.n_items; i++)
        if (actions.items[i].kind == GROUP_DO_REPORT_DONE || actions.items[i].kind == GROUP_DO_REPORT_READY ||
            actions.items[i].kind == GROUP_DO_SPAWN)
            a->node.is_done = actions.items[i].kind == GROUP_DO_REPORT_DONE;
    a->part = part_of(&a->node);
    trace_group_step(sim, agent, before, &event, &actions);
    check_stop(sim, agent, before);
    for (size_t i = 0; i < actions.n_items; i++) {
        perform_on_processes(sim, agent, &actions.items[i]);
        agent_group_action(sim, agent, &actions.items[i]);
    }
    if (take_flag(&a->node.start_cancelled))
        dispatch_group_kind(sim, agent, GROUP_EMPTY);
}

/* ---- moments ---- */

static void become_idle(struct sim *sim, unsigned agent)
{
    struct sim_node *n = &sim->agents[agent].node;

    if (n->n_orphans == 0 && !n->orphans_seen && random_percent(&sim->random, sim->scenario.orphan_percent)) {
        n->n_orphans = 1;
        n->orphans_seen = true;
        n->orphans_ignore = random_percent(&sim->random, 30);
        if (n->kill || n->guardian_lost)
            end_orphans(sim, agent);
        else
            dispatch_group(sim, agent, (struct group_event){.kind = GROUP_ORPHANS, .worker = 0, .value = 1});
        return;
    }
    n->guardian = 0;
    n->n_orphans = 0;
    n->orphans_seen = false;
    dispatch_group_kind(sim, agent, GROUP_EMPTY);
}

static void lose_guardian(struct sim *sim, unsigned agent)
{
    struct sim_node *n = &sim->agents[agent].node;

    if (n->guardian_lost)
        return;
    n->guardian_lost = n->kill = true;
    for (int i = 0; i < n->machine.config.n_workers; i++)
        order_kill(sim, agent, &n->workers[i]);
    dispatch_group_kind(sim, agent, GROUP_GUARDIAN_LOST);
}

static void guardian_moment(struct sim *sim, unsigned agent, const struct moment *m)
{
    struct sim_node *n = &sim->agents[agent].node;

    if (m->kind == SIM_GROUP_TIMER && n->timer == m->detail) {
        n->timer = 0;
        dispatch_group_kind(sim, agent, GROUP_TIMER);
    } else if (m->kind == SIM_START_FILES && n->files == m->detail) {
        take_files(sim, agent);
    } else if (n->guardian != m->detail || n->guardian == 0) {
        return;
    } else if (m->kind == SIM_GUARDIAN_IDLE && n->n_orphans == 0) {
        become_idle(sim, agent);
    } else if (m->kind == SIM_ORPHANS_END) {
        n->n_orphans = 0;
        become_idle(sim, agent);
    } else if (m->kind == SIM_GUARDIAN_LOST) {
        lose_guardian(sim, agent);
    }
}

static void worker_moment(struct sim *sim, unsigned agent, int worker, const struct moment *m)
{
    struct sim_worker *w = &sim->agents[agent].node.workers[worker];

    if (m->kind == SIM_WORKER_STARTED)
        start_process(sim, agent, worker);
    else if (m->kind == SIM_WORKER_READY || m->kind == SIM_WORKER_JOINING)
        dispatch_group(sim, agent,
                       (struct group_event){.kind = m->kind == SIM_WORKER_READY ? GROUP_WORKER_READY
                                                                                : GROUP_WORKER_JOINING,
                                            .worker = worker,
                                            .value = (int)(m->detail >> 32)});
    else if (m->kind == SIM_WORKER_DIE)
        end_process(sim, agent, worker, w->killed ? SIGKILL : SIGTERM);
    else if (!w->is_stuck || !w->killed)
        end_process(sim, agent, worker, m->kind == SIM_WORKER_FAIL ? 1 << 8 : 0);
}

void workers_moment(struct sim *sim, const struct moment *m)
{
    const struct sim_node *n = &sim->agents[m->who].node;

    if (!sim->agents[m->who].alive || n->machine.state == GROUP_DONE)
        return;
    if (m->kind < SIM_WORKER_STARTED) {
        guardian_moment(sim, m->who, m);
        return;
    }
    for (int i = 0; i < n->machine.config.n_workers; i++)
        if (n->workers[i].serial == (uint32_t)m->detail) {
            worker_moment(sim, m->who, i, m);
            return;
        }
}

/* ---- the guardian's clock ---- */

void workers_fence(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_node *n = &a->node;

    if (a->guardian_ns == 0 || sim->now_ns < a->guardian_ns || n->machine.state == GROUP_DONE)
        return;
    n->term = n->kill = true;
    for (int i = 0; i < n->machine.config.n_workers; i++)
        order_kill(sim, agent, &n->workers[i]);
    end_orphans(sim, agent);
}

bool workers_run(const struct sim_agent *a)
{
    for (int i = 0; i < a->node.machine.config.n_workers && !a->node.kill; i++)
        if (is_there(&a->node.workers[i]) && !a->node.workers[i].killed)
            return true;
    return false;
}

/* ---- orders of the agent ---- */

void workers_event(struct sim *sim, unsigned agent, struct group_event event)
{
    dispatch_group(sim, agent, event);
}

void workers_boot(struct sim *sim, unsigned agent)
{
    const struct sim_scenario *sc = &sim->scenario;
    struct sim_agent *a = &sim->agents[agent];
    const struct group_config config = {.n_workers = (int)agent_n_workers(agent),
                                        .max_restarts = (int)sc->params.max_restarts,
                                        .grace_ns = sc->grace_ns,
                                        .pause_max_ns = sc->pause_max_ns,
                                        .has_rank_assignment = true,
                                        .replace = sc->replace,
                                        .rejoin_ns = sc->rejoin_ns};

    workers_end(a);
    if (group_init(&a->node.machine, &config) != 0)
        abort();
}

/* The guardian kills them when the agent ends. */
void workers_end(struct sim_agent *a)
{
    group_finish(&a->node.machine);
    memset(&a->node, 0, sizeof(a->node));
    a->part = PART_NONE;
}

void workers_fail(struct sim *sim, unsigned agent, uint64_t delay_ns)
{
    struct sim_agent *a = &sim->agents[agent];
    int n = a->node.machine.config.n_workers;
    const struct sim_worker *w = &a->node.workers[random_u64(&sim->random) % (unsigned)n];

    if (misbehaves(sim, sim->scenario.guardian_percent) && a->node.guardian != 0)
        worker_later(sim, agent, SIM_GUARDIAN_LOST, a->node.guardian, delay_ns);
    else if (w->alive) /* its end is not reported before its start */
        worker_later(sim, agent, SIM_WORKER_FAIL, w->serial, delay_ns);
}

void workers_fail_first(struct sim *sim, unsigned agent)
{
    const struct sim_node *n = &sim->agents[agent].node;

    for (int i = 0; i < n->machine.config.n_workers; i++)
        if (n->workers[i].alive) {
            worker_later(sim, agent, SIM_WORKER_FAIL, n->workers[i].serial, 0);
            return;
        }
}
