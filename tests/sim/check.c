/*
 * What must never happen, whatever the network does, and what must be in the end.
 *
 *  - No generation has two worlds, and no node has workers of two generations. With a lease no generation begins while workers of
 *    another one run, although clocks differ by 2 %.
 *  - No crund sends a view after a crund with a later term has sent one. None follows for longer than a lease a crund that has ended.
 *    A new leader has all that agents may know.
 *  - Of two nodes whose hosts do not reach each other at most one is left out, for a cut that exists and while it lasts; no restart
 *    is charged for the cut where MIN allows that (host_cut.c).
 *  - No budget is exceeded, no restart is without a cause, and each stop ends within its limits.
 *  - Every agent ends in a world or with a reason. Its exit code is the result of the job, and none of its workers is left.
 */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tests/sim/sim.h"

enum { RECOVERY_S = 100 }; /* a generation that has lost a node, until the next one runs */

/* How much earlier the fastest clock ends a minute. */
static uint64_t clock_slack_ns(const struct sim *sim)
{
    return 150 * SIM_MS + (uint64_t)sim->scenario.clock_ppm * 75000;
}

void violated(struct sim *sim, const char *format, ...)
{
    va_list arguments;

    if (sim->failed)
        return; /* the first one counts */
    sim->failed = true;
    va_start(arguments, format);
    (void)vsnprintf(sim->failure, sizeof(sim->failure), format, arguments);
    va_end(arguments);
    sim_trace(sim, "VIOLATED: %s", sim->failure);
}

enum {
    FOLLOWED_MS =
        6500 /* the rest of a lease, a request of it that arrives late, etcd's pause between two looks at leases, a look at the key */
};

/* ---- what is disturbed may go wrong ---- */

/* From a disturbance on until it is noticed at the latest. */
static uint64_t shadow_ns(const struct sim *sim)
{
    return sim->scenario.params.node_timeout_ms * 4 * SIM_MS + 5 * SIM_S;
}

static void extend(uint64_t *until_ns, uint64_t to_ns)
{
    if (to_ns > *until_ns)
        *until_ns = to_ns;
}

void disturb(struct sim *sim, unsigned agent, uint64_t until_ns)
{
    extend(&sim->agents[agent].disturbed_until_ns, until_ns + shadow_ns(sim));
    extend(&sim->agents[agent].endangered_until_ns, until_ns + shadow_ns(sim));
}

void disturb_daemon(struct sim *sim, uint64_t until_ns)
{
    extend(&sim->rendezvous.disturbed_until_ns, until_ns + shadow_ns(sim));
}

void disturb_all(struct sim *sim, uint64_t until_ns)
{
    for (unsigned i = 0; i < sim->scenario.n_agents; i++)
        disturb(sim, i, until_ns);
    disturb_daemon(sim, until_ns);
}

/* ---- worlds ---- */

static struct sim_world *find_world(struct sim *sim, uint64_t instance, int64_t generation)
{
    for (size_t i = sim->n_worlds; i-- > 0;)
        if (sim->worlds[i].instance == instance && sim->worlds[i].generation == generation)
            return &sim->worlds[i];
    return NULL;
}

static struct sim_world *add_world(struct sim *sim, const struct session_view *view)
{
    struct sim_world *w;

    if (sim->n_worlds == sim->worlds_capacity) {
        sim->worlds_capacity = sim->worlds_capacity ? sim->worlds_capacity * 2 : 64;
        sim->worlds = realloc(sim->worlds, sim->worlds_capacity * sizeof(*sim->worlds));
        if (!sim->worlds)
            abort();
    }
    w = &sim->worlds[sim->n_worlds++];
    *w = (struct sim_world){.instance = view->instance,
                            .generation = view->generation,
                            .group_world_size = view->place.group_world_size,
                            .world_size = view->place.world_size,
                            .restarts = view->restarts,
                            .changes = view->changes,
                            .master_port = view->place.master_port};
    w->formed_ns = sim->now_ns;
    text_copy(w->master_addr, sizeof(w->master_addr), view->place.master_addr);
    w->members = sim_allocate(w->group_world_size * sizeof(*w->members));
    return w;
}

static void check_world_sizes(struct sim *sim, const struct sim_world *w)
{
    const struct session_params *p = &sim->scenario.params;

    if (w->group_world_size < p->min_nodes || w->group_world_size > p->max_nodes)
        violated(sim, "generation %lld has %u nodes, %u to %u were asked for", (long long)w->generation,
                 w->group_world_size, p->min_nodes, p->max_nodes);
    if (w->restarts > p->max_restarts || w->changes > p->max_changes)
        violated(sim, "generation %lld begins with %u restarts and %u changes; %u and %u are the limits",
                 (long long)w->generation, w->restarts, w->changes, p->max_restarts, p->max_changes);
}

static bool same_world(const struct sim_world *w, const struct session_view *view)
{
    return w->group_world_size == view->place.group_world_size && w->world_size == view->place.world_size &&
           w->restarts == view->restarts && w->changes == view->changes &&
           w->master_port == view->place.master_port && strcmp(w->master_addr, view->place.master_addr) == 0;
}

static bool is_taken(const struct sim_world *w, const struct session_view *view)
{
    return view->place.group_rank < w->group_world_size && w->members[view->place.group_rank].present;
}

/* Ranks of the members that are known so far. */
static void check_ranks(struct sim *sim, const struct sim_world *w, uint32_t at)
{
    const struct sim_member *m = &w->members[at];
    uint32_t end = m->rank_base + m->n_workers;

    if (at == 0 && m->rank_base != 0)
        violated(sim, "node 0 does not begin with rank 0");
    if (at > 0 && w->members[at - 1].present &&
        w->members[at - 1].rank_base + w->members[at - 1].n_workers != m->rank_base)
        violated(sim, "ranks of nodes %u and %u do not join", at - 1, at);
    if (at + 1 < w->group_world_size ? w->members[at + 1].present && w->members[at + 1].rank_base != end
                                     : w->world_size != end)
        violated(sim, "ranks of node %u do not join what follows", at);
}

static void check_roles(struct sim *sim, const struct sim_world *w, const struct rank_assignment *place)
{
    uint32_t sizes[2] = {0, 0};
    bool complete = true;

    for (uint32_t i = 0; i < w->group_world_size; i++) {
        const struct sim_member *m = &w->members[i];

        complete = complete && m->present;
        if (m->present && complete && m->role_rank_base != sizes[m->odd_role])
            violated(sim, "ranks within the role of node %u are wrong", i);
        sizes[m->odd_role] += m->n_workers;
    }
    if (complete && place->role_world_size != sizes[w->members[place->group_rank].odd_role])
        violated(sim, "the size of the role is wrong");
}

static void check_master(struct sim *sim, const struct sim_world *w, unsigned agent,
                         const struct session_view *view)
{
    if (agent != 0 && strncmp(w->master_addr, "127.", 4) == 0)
        violated(sim, "agent %u cannot reach the master at %s", agent, w->master_addr);
    if (view->place.group_rank == 0 && w->master_port != sim->agents[agent].session.port)
        violated(sim, "the master port is not the one that node 0 opened");
}

static struct sim_world *begin_world(struct sim *sim, unsigned agent, const struct session_view *view)
{
    struct sim_world *w = add_world(sim, view);

    w->job = daemon_job_of(sim, agent);
    sim->n_generations++;
    check_world_sizes(sim, w);
    schedule_add(&sim->schedule, sim->now_ns + sim->scenario.cutoff_ns, SIM_CHECK_EXCLUSION, 0,
                 (uint64_t)(w - sim->worlds));
    return w;
}

/* A daemon that has lost its state learns from each agent what had been charged. */
static void check_charges(struct sim *sim, unsigned agent, const struct session_view *view)
{
    const struct sim_agent *a = &sim->agents[agent];

    if (view->restarts < a->restarts || view->changes < a->changes)
        violated(sim,
                 "agent %u starts generation %lld with %u restarts and %u changes, and knew of %u and %u",
                 agent, (long long)view->generation, view->restarts, view->changes, a->restarts, a->changes);
}

/* With a lease: no worker of another generation runs anywhere. A rendezvous that has lost its state knows of an instance
 * before its own from agents that were in it. */
static void check_alone(struct sim *sim, unsigned agent, const struct session_view *view)
{
    for (unsigned i = 0; scenario_lease_ms(sim) > 0 && i < sim->scenario.n_agents; i++) {
        const struct sim_agent *a = &sim->agents[i];
        const struct sim_world *w = (size_t)a->world < sim->n_worlds ? &sim->worlds[a->world] : NULL;

        if (i == agent || !a->alive || !w || daemon_job_of(sim, i) != daemon_job_of(sim, agent))
            continue;
        if (w->instance == view->instance ? w->generation == view->generation
                                          : w->instance != sim->agents[agent].own_instance)
            continue;
        if (workers_run(a))
            violated(sim, "agent %u starts generation %lld while agent %u runs workers of %lld", agent,
                     (long long)view->generation, i, (long long)w->generation);
    }
}

void check_start(struct sim *sim, unsigned agent, const struct session_view *view)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_world *w = find_world(sim, view->instance, view->generation);
    struct sim_member *m;

    check_alone(sim, agent, view);

    if (a->part != PART_NONE && !sim->scenario.replace)
        violated(sim, "agent %u starts generation %lld while workers are there", agent,
                 (long long)view->generation);
    if (view->generation <= a->last_generation)
        violated(sim, "agent %u starts generation %lld after %lld", agent, (long long)view->generation,
                 (long long)a->last_generation);
    check_charges(sim, agent, view);
    a->last_generation = view->generation;
    a->own_instance = view->instance;
    if (!w) {
        w = begin_world(sim, agent, view);
    } else if (sim->rendezvous.rolled_back && (!same_world(w, view) || is_taken(w, view))) {
        w = begin_world(sim, agent, view); /* it does not know that it has used this number */
    } else if (!same_world(w, view)) {
        violated(sim, "two different worlds in generation %lld", (long long)view->generation);
        return;
    }
    if (view->place.group_rank >= w->group_world_size) {
        violated(sim, "group rank %u of %u", view->place.group_rank, w->group_world_size);
        return;
    }
    m = &w->members[view->place.group_rank];
    if (m->present)
        violated(sim, "agents %u and %u have group rank %u in generation %lld", m->agent, agent,
                 view->place.group_rank, (long long)view->generation);
    *m = (struct sim_member){.agent = agent,
                             .life = a->life,
                             .present = true,
                             .rank_base = view->place.rank_base,
                             .role_rank_base = view->place.role_rank_base,
                             .n_workers = agent_n_workers(agent),
                             .odd_role = strcmp(agent_role(agent), "default") != 0};
    a->world = w - sim->worlds;
    check_ranks(sim, w, view->place.group_rank);
    check_roles(sim, w, &view->place);
    check_master(sim, w, agent, view);
}

/* ---- causes ---- */

/* The member a cause is about; NULL: it never started, or that is a violation. */
static struct sim_member *blamed(struct sim *sim, const struct sim_world *w, const struct session_cause *c)
{
    char host[32];
    struct sim_member *m;

    if (c->group_rank < 0 || (uint32_t)c->group_rank >= w->group_world_size) {
        violated(sim, "the end of generation %lld is blamed on node %d", (long long)w->generation,
                 (int)c->group_rank);
        return NULL;
    }
    m = &w->members[c->group_rank];
    (void)snprintf(host, sizeof(host), "node%u", m->agent);
    if (m->present && strcmp(host, c->host) != 0)
        violated(sim, "node %d is called %s, and is %s", (int)c->group_rank, c->host, host);
    return m;
}

static void check_worker_cause(struct sim *sim, struct sim_world *w, const struct rounds_job *job)
{
    const struct session_cause *c = &job->cause;
    const struct sim_member *m = blamed(sim, w, c);

    if (!m)
        return;
    if (!m->present || !m->failed)
        violated(sim, "node %d is blamed for a failure of generation %lld it did not have",
                 (int)c->group_rank, (long long)w->generation);
    /* On a quick and quiet network what came first is known. */
    host_cut_check_charged(sim, w, m, job);
    if (m->victim && !w->heard_after_death && sim->now_ns > sim->rendezvous.disturbed_until_ns &&
        sim->scenario.spike_percent == 0 && sim->scenario.latency_max_ns <= 2 * SIM_MS &&
        w->death_ns + 200 * SIM_MS < sim->now_ns - SIM_S)
        violated(sim, "node %d is blamed for a failure that followed from another node's death",
                 (int)c->group_rank);
}

/* It may be settled much later, by a rendezvous that was paused or restarted meanwhile and knows the cause from the
 * agents, so it is judged when it comes up first. */
static void check_lost_cause(struct sim *sim, const struct sim_world *w, const struct rounds_job *job)
{
    struct sim_member *m = blamed(sim, w, &job->cause);
    const struct sim_agent *a = m && m->present ? &sim->agents[m->agent] : NULL;
    const struct sim_daemon *d = list_entry(job->rounds, struct sim_daemon, rounds);
    uint64_t at_ns = sim_clock_when(&d->clock, job->cause_ns);

    if (m && m->lost)
        return;
    if (m)
        m->lost = true;
    /* Of several daemons one that is stopped, and still accepts connections, may hold an agent up for longer than the grace. */
    if (sim->scenario.n_daemons > 1 && at_ns <= sim->rendezvous.disturbed_until_ns)
        return;
    if (a && a->alive && !a->ended && a->life == m->life && at_ns > a->endangered_until_ns)
        violated(sim, "%s is said to be lost, and nothing happened to it", job->cause.host);
}

/* A generation was settled: its cause has to be true. */
static void check_cause(struct sim *sim, const struct rounds_job *job)
{
    struct sim_world *w = find_world(sim, job->instance, job->generation);

    if (job->cause.kind == SESSION_CAUSE_NONE)
        violated(sim, "generation %lld is over for no cause", (long long)job->generation);
    if (!w || sim->rendezvous.rolled_back) /* two worlds may have that number */
        return;                            /* it was over before anybody heard of it */
    if (w->settled && !sim->rendezvous.keeps_state)
        violated(sim, "generation %lld is settled twice", (long long)job->generation);
    w->settled = true;
    if (job->cause.kind == SESSION_CAUSE_WORKER)
        check_worker_cause(sim, w, job);
    if (host_cut_is_cause(&job->cause))
        host_cut_check_left_out(sim, w, job);
    else if (job->cause.kind == SESSION_CAUSE_LOST)
        check_lost_cause(sim, w, job);
}

/* A daemon that leads no more decides nothing, unless its clock may have stood still. What it decides then is not sent. */
static bool is_out_of_date(struct sim *sim, const struct rounds_job *job)
{
    const struct sim_daemon *d = list_entry(job->rounds, struct sim_daemon, rounds);

    if (d->term >= sim->rendezvous.told_term)
        return false;
    if (!sim->scenario.suspends)
        violated(sim, "daemon %u with term %lld decides about job %s after one with term %lld has",
                 daemon_number(sim, d), (long long)d->term, job->id, (long long)sim->rendezvous.told_term);
    return true;
}

static const struct sim_closing *find_closing(const struct sim *sim, uint64_t instance)
{
    for (size_t i = 0; i < sim->n_closings; i++)
        if (sim->closings[i].instance == instance)
            return &sim->closings[i];
    return NULL;
}

static void note_closing(struct sim *sim, uint64_t instance)
{
    if (!find_closing(sim, instance) && sim->n_closings < sizeof(sim->closings) / sizeof(sim->closings[0]))
        sim->closings[sim->n_closings++] = (struct sim_closing){instance, sim->now_ns};
}

static bool is_being_saved(const struct etcd_leader *l, uint64_t instance)
{
    list_for_each(i, &l->jobs)
    {
        const struct etcd_job *job = list_entry(i, struct etcd_job, link);

        if (job->instance == instance)
            return job->is_writing;
    }
    return false;
}

/* No agent learns of anything while etcd refuses what its job has become, so a job must not end by time meanwhile. */
static void check_end_by_time(struct sim *sim, const struct rounds_job *job)
{
    for (unsigned i = 0; i < sim->scenario.n_daemons; i++) {
        const struct sim_daemon *d = &sim->daemons[i];
        uint64_t waited_ns;

        if (&d->rounds != job->rounds || etcd_leader_unsaved(&d->leader) == 0 || !sim->etcd.is_full ||
            !is_being_saved(&d->leader, job->instance))
            continue;
        waited_ns = daemon_clock(sim, d) - etcd_leader_unsaved(&d->leader);
        if (waited_ns > 3 * SIM_S)
            violated(sim, "job %s ends by time, and etcd has refused its saves for %.1f s: %s", job->id,
                     (double)waited_ns / 1e9, job->cause.text);
    }
}

void check_log(struct sim *sim, const struct rounds_job *job, unsigned log_kinds)
{
    if (is_out_of_date(sim, job))
        return;
    if (job->state == ROUNDS_CLOSED)
        note_closing(sim, job->instance);
    if (log_kinds & ROUNDS_LOG_CLOSED && job->cause.kind == SESSION_CAUSE_CLOSED && sim->scenario.has_etcd)
        check_end_by_time(sim, job);
    if (sim->trace) {
        char cause[300];

        session_cause_describe(&job->cause, cause, sizeof(cause));
        sim_trace(sim, "job %s: news %u, %s, generation %lld, %u nodes, %u/%u charged, cause: %s", job->id,
                  log_kinds, rounds_job_state_names[job->state], (long long)job->generation,
                  rounds_job_n_nodes(job), job->restarts, job->changes, cause);
    }
    if (log_kinds & ROUNDS_LOG_OVER && job->cause.kind == SESSION_CAUSE_LOST &&
        !host_cut_is_cause(&job->cause) && !sim->rendezvous.rolled_back &&
        find_world(sim, job->instance, job->generation))
        check_lost_cause(sim, find_world(sim, job->instance, job->generation), job);
    if (log_kinds & ROUNDS_LOG_SETTLED)
        check_cause(sim, job);
    if (log_kinds & ROUNDS_LOG_FORMED)
        host_cut_check_formed(sim, job);
    /* Each generation is there because the one before was charged. (Not when an agent came from another
     * instance of the job: then numbers are skipped.) */
    if (log_kinds & ROUNDS_LOG_FORMED && job->floor < 0 &&
        job->generation != (int64_t)job->restarts + job->changes)
        violated(sim, "generation %lld begins with %u restarts and %u changes: one has no cause",
                 (long long)job->generation, job->restarts, job->changes);
    if (job->verdict == SESSION_VERDICT_FAILURE && job->cause.kind == SESSION_CAUSE_JOINED)
        violated(sim, "job %s is over because a node joined it", job->id);
    if (job->restarts > job->params.max_restarts || job->changes > job->params.max_changes)
        violated(sim, "job %s is charged with %u restarts and %u changes; %u and %u are its limits", job->id,
                 job->restarts, job->changes, job->params.max_restarts, job->params.max_changes);
}

/* ---- failures are known at once ---- */

void check_notice(struct sim *sim, unsigned agent, unsigned world)
{
    const struct sim_world *w = &sim->worlds[world];

    if (sim->agents[agent].disturbed_until_ns > sim->now_ns ||
        sim->rendezvous.disturbed_until_ns > sim->now_ns || sim->scenario.spike_percent > 0 ||
        !daemon_leading(sim))
        return;
    for (uint32_t i = 0; i < w->group_world_size; i++) {
        const struct sim_member *m = &w->members[i];
        const struct sim_agent *a = &sim->agents[m->agent];

        if (m->present && a->alive && a->life == m->life && a->disturbed_until_ns < sim->now_ns &&
            a->world == world && !a->ended && (a->part == PART_RUNNING || a->part == PART_ENDED))
            violated(sim, "agent %u goes on with generation %lld a second after agent %u failed", m->agent,
                     (long long)w->generation, agent);
    }
}

/* ---- two generations do not run at the same time for long ---- */

/* Until when this agent may go on with a world that has a successor: it does not hear of that for as long as it is
 * not running, not reached, or the daemon is not there; then it gives up after the cutoff. */
static uint64_t excluded_from_ns(const struct sim *sim, const struct sim_agent *a,
                                 const struct sim_world *next)
{
    const uint64_t ends_ns[] = {
        a->paused_until_ns, a->blocked_until_ns[0], a->blocked_until_ns[1], sim->slow_until_ns + 4 * SIM_S,
        a->contact_ns - (a->contact_ns > sim->scenario.cutoff_ns ? sim->scenario.cutoff_ns : a->contact_ns)};
    uint64_t last_ns = next->formed_ns;

    for (size_t i = 0; i < sizeof(ends_ns) / sizeof(ends_ns[0]); i++)
        extend(&last_ns, ends_ns[i]);
    for (unsigned i = 0; i < sim->scenario.n_daemons; i++) {
        extend(&last_ns, sim->daemons[i].boot_ns);
        extend(&last_ns, sim->daemons[i].paused_until_ns);
        extend(&last_ns, network_blocked_until_ns(sim, (unsigned)(a - sim->agents), i, SIM_AGENT_END));
        extend(&last_ns, network_blocked_until_ns(sim, (unsigned)(a - sim->agents), i, SIM_DAEMON_END));
    }
    return last_ns + sim->scenario.cutoff_ns + sim->scenario.disk_max_ns + shadow_ns(sim);
}

/* Whatever goes wrong meanwhile. */
void check_exclusion(struct sim *sim, unsigned world)
{
    const struct sim_world *next = &sim->worlds[world];
    uint64_t again_ns = 0;

    for (unsigned i = 0; i < sim->scenario.n_agents; i++) {
        const struct sim_agent *a = &sim->agents[i];
        uint64_t from_ns;

        if (!a->alive || a->ended || a->part != PART_RUNNING || a->world >= (int64_t)world ||
            daemon_job_of(sim, i) != next->job || sim->worlds[a->world].instance != next->instance)
            continue;
        from_ns = excluded_from_ns(sim, a, next);
        if (sim->now_ns >= from_ns)
            violated(sim, "agent %u still runs generation %lld %.1f s after generation %lld has begun", i,
                     (long long)sim->worlds[a->world].generation,
                     (double)(sim->now_ns - next->formed_ns) / 1e9, (long long)next->generation);
        extend(&again_ns, from_ns);
    }
    if (again_ns > sim->now_ns)
        schedule_add(&sim->schedule, again_ns, SIM_CHECK_EXCLUSION, 0, world);
}

/* ---- the next generation forms in time ---- */

enum situation {
    SITUATION_NONE,
    SITUATION_ENDING,    /* members have not answered */
    SITUATION_FENCED,    /* enough nodes, and the lease of one that is lost has not ended */
    SITUATION_STOPPING,  /* enough nodes, and members of the last generation stop */
    SITUATION_LAST_CALL, /* enough nodes, and others may come */
    SITUATION_COMPLETE,  /* nothing is left to wait for */
};

static enum situation situation_of(const struct rounds_job *job)
{
    const uint32_t *n = job->n_nodes;

    if (job->state == ROUNDS_ENDING)
        return SITUATION_ENDING;
    if (job->state != ROUNDS_GATHERING || n[ROUNDS_NODE_READY] < job->params.min_nodes)
        return SITUATION_NONE;
    if (n[ROUNDS_NODE_STOPPING] > 0)
        return SITUATION_STOPPING;
    if (n[ROUNDS_NODE_LOST] > 0 || job->fence_until_ns > 0)
        return SITUATION_FENCED;
    if (n[ROUNDS_NODE_READY] + n[ROUNDS_NODE_UNFIT] >= job->params.max_nodes ||
        (job->generation >= 0 && n[ROUNDS_NODE_JOINING] == 0))
        return SITUATION_COMPLETE;
    return SITUATION_LAST_CALL;
}

/* For how long a situation lasts at most, also when agents are paused, lost and cut off; from the last stop of the daemon
 * on. */
static uint64_t situation_limit_ns(const struct sim *sim, enum situation situation)
{
    uint64_t timeout_ns = sim->scenario.params.node_timeout_ms * SIM_MS;
    uint64_t grace_ns =
        (sim->scenario.has_etcd ? 10 : 5) * SIM_S; /* after a restart, and etcd answers late */

    switch (situation) {
    case SITUATION_ENDING: /* a member may be silent for three timeouts before it is lost, and more after a stop */
        return grace_ns + 8 * timeout_ns;
    case SITUATION_STOPPING:
        return grace_ns + sim->scenario.stop_limit_ns + 16 * timeout_ns;
    case SITUATION_FENCED:
        return grace_ns + 3 * (session_lease_wait_ns(scenario_lease_ms(sim)) + ETCD_LEASE_S * SIM_S) +
               16 * timeout_ns;
    case SITUATION_LAST_CALL:
        return sim->scenario.params.last_call_ms * SIM_MS + timeout_ns;
    default:
        return 0;
    }
}

static void check_job_progress(struct sim *sim, const struct sim_daemon *d, struct sim_progress *p,
                               const struct rounds_job *job)
{
    enum situation situation = situation_of(job);
    uint64_t since_ns = p->since_ns, limit_ns = situation_limit_ns(sim, situation);

    if (p->instance != job->instance || p->situation != (int)situation || p->generation != job->generation) {
        *p = (struct sim_progress){job->instance, (int)situation, job->generation, sim->now_ns};
        since_ns = sim->now_ns;
    }
    if (situation == SITUATION_COMPLETE)
        violated(sim, "job %s has all nodes for its next generation, and does not form it", job->id);
    host_cut_check_return(sim, d, job);
    extend(&since_ns, d->paused_until_ns);
    if (d->rounds.postponed_ns > 0)
        extend(&since_ns, sim_clock_when(&d->clock, d->rounds.postponed_ns));
    if (situation != SITUATION_NONE && sim->now_ns > since_ns + limit_ns + limit_ns / 50)
        violated(sim, "job %s waits for its next generation (%d) for %.3f s, which is too long", job->id,
                 (int)situation, (double)(sim->now_ns - since_ns) / 1e9);
}

void check_progress(struct sim *sim, struct sim_daemon *d)
{
    size_t n = 0;

    if (!d->alive)
        return;
    list_for_each(i, &d->rounds.jobs)
    {
        const struct rounds_job *job = list_entry(i, struct rounds_job, in_rounds);

        if (!job->replaced && n < sizeof(d->progress) / sizeof(d->progress[0]))
            check_job_progress(sim, d, &d->progress[n++], job);
    }
}

/* A node of this world is gone: others may fail because of it. */
void check_death(struct sim *sim, unsigned agent)
{
    struct sim_world *w = &sim->worlds[sim->agents[agent].world];

    if (w->death_ns == 0)
        w->death_ns = sim->now_ns;
    for (uint32_t i = 0; i < w->group_world_size; i++)
        if (w->members[i].present && w->members[i].agent != agent && random_percent(&sim->random, 40) &&
            sim->agents[w->members[i].agent].world == w - sim->worlds)
            agent_fail_later(sim, w->members[i].agent, random_between(&sim->random, SIM_MS, 1500 * SIM_MS));
}

/* A process that died behind a partition seems to live until its machine has sent all it had to say. */
void check_received(struct sim *sim, unsigned agent, uint64_t life)
{
    const struct sim_agent *a = &sim->agents[agent];

    if (a->alive && a->life == life)
        return;
    for (size_t i = sim->n_worlds; i-- > 0;) {
        struct sim_world *w = &sim->worlds[i];

        for (uint32_t rank = 0; rank < w->group_world_size; rank++) {
            const struct sim_member *m = &w->members[rank];

            if (m->present && m->agent == agent && m->life == life) {
                w->heard_after_death = true;
                return; /* the last one it was in */
            }
        }
    }
}

/* ---- ends ---- */

static void check_success(struct sim *sim, uint64_t instance)
{
    const struct sim_world *w = NULL;

    for (size_t i = 0; i < sim->n_worlds; i++)
        if (sim->worlds[i].instance == instance && (!w || sim->worlds[i].generation > w->generation))
            w = &sim->worlds[i];
    if (!w)
        violated(sim, "a job succeeds that never ran");
    for (uint32_t i = 0; w && i < w->group_world_size; i++)
        if (!w->members[i].done)
            violated(sim, "the job succeeds, and node %u of generation %lld has not", i,
                     (long long)w->generation);
}

static void check_verdict(struct sim *sim, uint64_t instance, const struct session *s)
{
    for (size_t i = 0; i < sim->n_verdicts; i++) {
        const struct sim_verdict *v = &sim->verdicts[i];

        if (v->instance != instance)
            continue;
        if (v->verdict != s->verdict || v->stop_signal != s->stop_signal ||
            memcmp(&v->cause, &s->cause, sizeof(v->cause)) != 0)
            violated(sim, "two verdicts about one job: %s and %s", session_verdict_names[v->verdict],
                     session_verdict_names[s->verdict]);
        return;
    }
    if (sim->n_verdicts < sizeof(sim->verdicts) / sizeof(sim->verdicts[0]))
        sim->verdicts[sim->n_verdicts++] =
            (struct sim_verdict){instance, s->verdict, s->stop_signal, s->cause, sim->now_ns};
    if (s->cause.kind == SESSION_CAUSE_NONE)
        check_success(sim, instance);
}

/* The earliest moment at which an agent may give up the rendezvous: a draining one after 5 s without it, because its
 * scheduler sends SIGKILL soon after SIGTERM. */
static uint64_t unreachable_from_ns(const struct sim *sim, const struct sim_agent *a)
{
    const struct session *s = &a->session;
    uint64_t join_ns = sim->scenario.params.join_timeout_ms * SIM_MS;
    uint64_t patience_ns = s->was_up ? sim->scenario.cutoff_ns : join_ns;
    uint64_t from_ns = a->contact_ns + patience_ns;
    uint64_t drain_ns = s->drain ? sim_clock_when(&a->clock, s->drain_ns) : 0;
    uint64_t drained_ns = (drain_ns > a->contact_ns ? drain_ns : a->contact_ns) + 5 * SIM_S;

    return s->drain && drained_ns < from_ns ? drained_ns : from_ns;
}

static void check_unreachable(struct sim *sim, unsigned agent)
{
    const struct sim_agent *a = &sim->agents[agent];

    if (a->disturbed_until_ns < sim->now_ns && sim->rendezvous.disturbed_until_ns < sim->now_ns)
        violated(sim, "agent %u does not reach the rendezvous, and nothing is in the way", agent);
    if (sim->now_ns + clock_slack_ns(sim) < unreachable_from_ns(sim, a))
        violated(sim, "agent %u gives up %.1f s after it heard of the rendezvous", agent,
                 (double)(sim->now_ns - a->contact_ns) / 1e9);
}

/* An agent that did not run for so long that its result was forgotten before it asked. */
static bool asks_too_late(const struct sim *sim, const struct sim_agent *a, uint64_t instance)
{
    const struct rounds_config config = ROUNDS_CONFIG_DEFAULT;
    const struct sim_closing *closing = find_closing(sim, instance);
    uint64_t asked_ns = sim_clock_when(&a->clock, a->session.hello_ns);
    uint64_t slack_ns = clock_slack_ns(sim) + sim->scenario.params.node_timeout_ms * SIM_MS;

    return closing && asked_ns + slack_ns >= closing->at_ns + config.linger_ns;
}

/* A job ends for each of its members with its own result, whatever happens to their connections: that is remembered for
 * longer than an agent redials, also when another job has begun under that id. */
static void check_own_result(struct sim *sim, unsigned agent, const struct session_view *view)
{
    const struct sim_agent *a = &sim->agents[agent];
    uint64_t instance = a->own_instance;

    for (size_t i = 0; i < sim->n_verdicts; i++) {
        const struct sim_verdict *v = &sim->verdicts[i];

        if (v->instance == instance && view->instance != instance && !sim->rendezvous.amnesia &&
            !asks_too_late(sim, a, instance))
            violated(sim, "agent %u ends with the result of another job: its own was %s", agent,
                     session_verdict_names[v->verdict]);
    }
}

void check_end(struct sim *sim, unsigned agent, const struct session_view *view)
{
    const struct sim_agent *a = &sim->agents[agent];
    const struct session *s = &a->session;

    sim_trace(sim, "agent %u: ends: %d %s: %s", agent, (int)s->end, session_verdict_names[s->verdict],
              s->text);
    if (s->end == SESSION_END_NONE || s->text[0] == 0)
        violated(sim, "agent %u ends without a reason", agent);
    /* Three daemons in a row that close a connection while the hello is on its way do what a TCPStore does. */
    if (s->end == SESSION_END_FOREIGN &&
        !(sim->scenario.n_daemons > 1 && sim->now_ns < sim->rendezvous.disturbed_until_ns))
        violated(sim, "agent %u takes the rendezvous for something else: %s", agent, s->text);
    if (s->end == SESSION_END_UNREACHABLE)
        check_unreachable(sim, agent);
    if (s->end == SESSION_END_VERDICT)
        check_own_result(sim, agent, view);
    if (s->end == SESSION_END_VERDICT && !sim->rendezvous.amnesia)
        check_verdict(sim, view->instance, s);
}

static const struct rounds_job *find_job(const struct sim_daemon *d, uint64_t instance)
{
    list_for_each(i, &d->rounds.jobs) if (list_entry(i, struct rounds_job, in_rounds)->instance ==
                                          instance) return list_entry(i, struct rounds_job, in_rounds);
    return NULL;
}

/* Newcomers that come in quick succession wait: see rounds_job.admit_pause_ns. */
static bool is_admission_paused(struct sim *sim, const struct sim_agent *a)
{
    const struct sim_daemon *d = daemon_leading(sim);
    const struct rounds_job *job = d ? find_job(d, a->view_instance) : NULL;

    return job && sim_clock_at(&d->clock, sim->now_ns) < job->admitted_ns + job->admit_pause_ns;
}

/* A node that a cut left out is admitted again after a pause that doubles, also long after the last fault. How long the next
 * generation may take then is the business of check_progress(). */
static bool is_node_admitted_now(struct sim *sim, const struct sim_agent *a)
{
    const struct sim_daemon *d = sim->n_host_cuts > 0 ? daemon_leading(sim) : NULL;
    const struct rounds_job *job = d ? find_job(d, a->view_instance) : NULL;

    return job && job->state != ROUNDS_RUNNING && job->cause.kind == SESSION_CAUSE_JOINED;
}

static void check_agent_calm(struct sim *sim, unsigned agent, unsigned n_alive)
{
    const struct sim_agent *a = &sim->agents[agent];

    if (!a->alive || a->ended || a->part == PART_RUNNING || a->part == PART_ENDED)
        return;
    if (n_alive < sim->scenario.params.min_nodes)
        return; /* it waits for others that do not come */
    if (host_cut_is_active(sim, daemon_job_of(sim, agent)) || host_cut_leaves_out(sim, agent) ||
        is_node_admitted_now(sim, a))
        return;
    if (a->session.phase == SESSION_READY && a->session.link == SESSION_LINK_UP) {
        /* A spare: there is no room, or no change is left to make some. */
        for (unsigned i = 0; i < sim->scenario.n_agents; i++)
            if (sim->agents[i].alive && sim->agents[i].part == PART_RUNNING &&
                daemon_job_of(sim, i) == daemon_job_of(sim, agent) && sim->agents[i].session.instance != 0) {
                const struct sim_world *w = &sim->worlds[sim->agents[i].world];

                if (w->group_world_size < sim->scenario.params.max_nodes &&
                    w->changes < sim->scenario.params.max_changes && !is_admission_paused(sim, a))
                    break;
                return;
            }
    }
    violated(sim, "agent %u is neither in a world nor at its end: %s, %s", agent,
             session_link_names[a->session.link], session_phase_names[a->session.phase]);
}

/* All that run are in one world of each job, and nobody is left over. */
void check_calm(struct sim *sim)
{
    int64_t worlds[SIM_JOBS_MAX] = {-1, -1};
    unsigned n_alive[SIM_JOBS_MAX] = {0};

    /* Messages that come late now and then, several in a row, end a short lease without another fault. */
    if (sim->scenario.spike_percent > 0 && sim->fenced_ns > 0 &&
        sim->now_ns < sim->fenced_ns + RECOVERY_S * SIM_S)
        return;
    for (unsigned i = 0; i < sim->scenario.n_agents; i++) {
        const struct sim_agent *a = &sim->agents[i];
        unsigned job = daemon_job_of(sim, i);

        n_alive[job] += a->alive && !a->ended;
        if (!a->alive || a->ended || a->part != PART_RUNNING)
            continue;
        if (worlds[job] >= 0 && worlds[job] != a->world && !host_cut_is_active(sim, job))
            violated(sim, "two generations of one job run at the same time, long after the last fault");
        worlds[job] = a->world;
    }
    for (unsigned i = 0; i < sim->scenario.n_agents; i++)
        check_agent_calm(sim, i, n_alive[daemon_job_of(sim, i)]);
}

void check_all_ended(struct sim *sim)
{
    for (unsigned i = 0; i < sim->scenario.n_agents; i++) {
        const struct sim_agent *a = &sim->agents[i];

        if (a->alive)
            violated(sim, "agent %u has not ended: %s, %s, generation %lld", i,
                     session_link_names[a->session.link], session_phase_names[a->session.phase],
                     (long long)a->session.generation);
    }
}

/* ---- several daemons ---- */

static struct sim_told *find_told(struct sim *sim, uint64_t instance)
{
    struct sim_rendezvous *r = &sim->rendezvous;

    for (size_t i = 0; i < r->n_told; i++)
        if (r->told[i].instance == instance)
            return &r->told[i];
    if (r->n_told == SIM_TOLD_MAX)
        return NULL;
    r->told[r->n_told] = (struct sim_told){.instance = instance, .generation = -1};
    return &r->told[r->n_told++];
}

/* A daemon sends nothing after one with a later term has. What it sends was saved, and must not be lost. */
void check_told(struct sim *sim, struct sim_daemon *d, const struct sim_told *told)
{
    struct sim_told *known;

    if (!sim->scenario.has_etcd)
        return;
    if (d->term < sim->rendezvous.told_term && !sim->scenario.suspends)
        violated(sim, "daemon %u with term %lld sends a view after one with term %lld", daemon_number(sim, d),
                 (long long)d->term, (long long)sim->rendezvous.told_term);
    if (d->term > sim->rendezvous.told_term)
        sim->rendezvous.told_term = d->term;
    /* A job without a generation is not saved. */
    known = told->generation >= 0 || told->is_over ? find_told(sim, told->instance) : NULL;
    if (!known)
        return;
    if (told->generation > known->generation)
        known->generation = told->generation;
    known->is_over = known->is_over || told->is_over;
    if (!told->has_charges)
        return;
    known->restarts = told->restarts > known->restarts ? told->restarts : known->restarts;
    known->changes = told->changes > known->changes ? told->changes : known->changes;
}

void check_forgotten(struct sim *sim, uint64_t instance)
{
    struct sim_told *told = sim->scenario.has_etcd ? find_told(sim, instance) : NULL;

    if (told)
        told->is_forgotten = true;
}

/* A new leader has everything that an agent may know. */
void check_loaded(struct sim *sim, struct sim_daemon *d)
{
    for (size_t i = 0; i < sim->rendezvous.n_told; i++) {
        const struct sim_told *told = &sim->rendezvous.told[i];
        const struct rounds_job *job = find_job(d, told->instance);

        if (told->is_forgotten || (sim->scenario.suspends && d->term < sim->rendezvous.told_term))
            continue;
        if (!job)
            violated(sim, "the job with instance %016llx was saved, and is not there",
                     (unsigned long long)told->instance);
        else if (job->generation < told->generation || job->restarts < told->restarts ||
                 job->changes < told->changes || (told->is_over && job->state != ROUNDS_CLOSED))
            violated(sim,
                     "job %s is read with generation %lld, %u restarts, %u changes, and agents know "
                     "generation %lld, %u restarts, %u changes%s",
                     job->id, (long long)job->generation, job->restarts, job->changes,
                     (long long)told->generation, told->restarts, told->changes,
                     told->is_over ? ", and that it is over" : "");
    }
}

static bool has_process(const struct sim *sim, uint64_t id)
{
    for (unsigned i = 0; i < sim->scenario.n_daemons; i++)
        if (sim->daemons[i].alive && sim->daemons[i].leader.config.id == id)
            return true;
    return false;
}

/* With each answer of etcd: the key of a process that has ended vanishes with its lease. */
void check_followed(struct sim *sim, struct sim_daemon *d)
{
    uint64_t since_ns;

    if (etcd_leader_address(&d->leader)[0] == '\0' || has_process(sim, d->leader.seen_id))
        d->orphaned_ns = 0;
    else if (d->orphaned_ns == 0 || d->orphaned_by != d->leader.seen_id)
        d->orphaned_ns = sim->now_ns;
    d->orphaned_by = d->leader.seen_id;
    since_ns = d->orphaned_ns;
    extend(&since_ns, d->etcd_steady_ns);
    extend(&since_ns, d->paused_until_ns);
    if (d->orphaned_ns > 0 && sim->now_ns > since_ns + FOLLOWED_MS * SIM_MS)
        violated(sim, "daemon %u follows one that ended %.3f s ago", daemon_number(sim, d),
                 (double)(sim->now_ns - d->orphaned_ns) / 1e9);
}

void check_finish(struct sim *sim)
{
    for (size_t i = 0; i < sim->n_worlds; i++)
        free(sim->worlds[i].members);
    free(sim->worlds);
}
