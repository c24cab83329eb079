/*
 * What a seed means. Each seed has only some kinds of faults, so that rare combinations are not drowned by
 * the common ones.
 */

#include "base/utf8.h"
#include "tests/sim/sim.h"

static const char *const fault_names[FAULT_COUNT] = {
    [FAULT_WORKER] = "worker failures",
    [FAULT_AGENT_KILL] = "agents killed",
    [FAULT_NODE_LOSS] = "machines lost",
    [FAULT_LEAVE] = "agents leaving",
    [FAULT_AGENT_PAUSE] = "agents paused",
    [FAULT_DAEMON_PAUSE] = "daemon paused",
    [FAULT_CUT] = "connections cut",
    [FAULT_PARTITION] = "partitions of one agent",
    [FAULT_PARTITION_MANY] = "partitions of many agents",
    [FAULT_SLOW] = "slow networks",
    [FAULT_DAEMON_CRASH] = "daemon restarts with state",
    [FAULT_DAEMON_AMNESIA] = "daemon restarts without",
    [FAULT_BOOT] = "late agents",
    [FAULT_DRAIN] = "drains",
    [FAULT_ROLLBACK] = "daemon restarts with old state",
    [FAULT_HOSTILE] = "hostile hellos",
    [FAULT_PAIR] = "partitions of one agent from one daemon",
    [FAULT_DAEMON_ISOLATED] = "partitions of one daemon",
    [FAULT_ETCD_CUT] = "partitions of one daemon from etcd",
    [FAULT_ETCD_DOWN] = "losses of etcd's majority",
    [FAULT_ETCD_SLOW] = "times of bad answers from etcd",
    [FAULT_ETCD_FULL] = "times with a full etcd",
    [FAULT_HOST_CUT] = "cuts between two hosts",
};

/* How often a kind takes part in a seed. */
static const unsigned fault_chances[FAULT_COUNT] = {
    [FAULT_WORKER] = 70,    [FAULT_AGENT_KILL] = 60,   [FAULT_NODE_LOSS] = 40,
    [FAULT_LEAVE] = 25,     [FAULT_AGENT_PAUSE] = 40,  [FAULT_DAEMON_PAUSE] = 30,
    [FAULT_CUT] = 60,       [FAULT_PARTITION] = 50,    [FAULT_PARTITION_MANY] = 30,
    [FAULT_SLOW] = 20,      [FAULT_DAEMON_CRASH] = 40, [FAULT_DAEMON_AMNESIA] = 12,
    [FAULT_BOOT] = 50,      [FAULT_DRAIN] = 6,         [FAULT_ROLLBACK] = 8,
    [FAULT_HOSTILE] = 10,   [FAULT_PAIR] = 50,         [FAULT_DAEMON_ISOLATED] = 40,
    [FAULT_ETCD_CUT] = 50,  [FAULT_ETCD_DOWN] = 25,    [FAULT_ETCD_SLOW] = 50,
    [FAULT_ETCD_FULL] = 40,
};

const char *sim_fault_name(unsigned fault)
{
    return fault < FAULT_COUNT ? fault_names[fault] : "?";
}

static unsigned choose_size(struct random *r)
{
    unsigned dice = (unsigned)random_between(r, 0, 199);

    if (dice < 110)
        return (unsigned)random_between(r, 2, 8);
    if (dice < 180)
        return (unsigned)random_between(r, 9, 40);
    if (dice < 199)
        return (unsigned)random_between(r, 41, 150);
    return (unsigned)random_between(r, 500, 1500);
}

/* Several daemons are most often at odds about few agents. */
static unsigned choose_size_with_etcd(struct random *r)
{
    unsigned dice = (unsigned)random_between(r, 0, 99);

    return (unsigned)(dice < 75   ? random_between(r, 2, 8)
                      : dice < 97 ? random_between(r, 9, 40)
                                  : random_between(r, 41, 150));
}

static void choose_params(struct sim_scenario *sc, struct random *r)
{
    struct session_params *p = &sc->params;
    unsigned n = sc->n_agents / sc->n_jobs;

    *p = (struct session_params)SESSION_PARAMS_DEFAULT;
    p->max_nodes = (uint32_t)(random_percent(r, 70) ? n : random_between(r, 1, n + 1));
    p->min_nodes = (uint32_t)(random_percent(r, 30) ? p->max_nodes : random_between(r, 1, p->max_nodes));
    p->max_restarts = (uint32_t)(random_percent(r, 40) ? random_between(r, 0, 3) : random_between(r, 5, 100));
    p->max_changes = (uint32_t)(random_percent(r, 25) ? random_between(r, 0, 5) : 1000);
    p->node_timeout_ms = (uint32_t)(n > 300                 ? 5000
                                    : random_percent(r, 70) ? 1000
                                                            : random_between(r, 900, 3000));
    p->last_call_ms = (uint32_t)random_between(r, 0, 4000);
    p->join_timeout_ms = (uint32_t)random_between(r, 20000, 60000);
}

/* Of the job itself, or of the rendezvous. */
static void choose_lease(struct sim_scenario *sc, struct random *r)
{
    uint32_t ms =
        (uint32_t)random_between(r, 2, sc->has_etcd ? 5 : 12) * 1000; /* agents are paused for seconds */

    if (!random_percent(r, sc->has_etcd ? 95 : 45))
        return;
    if (ms < sc->params.node_timeout_ms)
        ms = sc->params.node_timeout_ms;
    sc->params.lease_auto = random_percent(r, 30);
    if (sc->params.lease_auto)
        sc->own_lease_ms = ms;
    else
        sc->params.lease_ms = ms;
    if (random_percent(r, sc->has_etcd ? 70 : 30))
        sc->clock_ppm = 10000;
}

void scenario_make_earlier(struct session_params *params)
{
    params->node_timeout_ms = SESSION_NODE_TIMEOUT_MS_EARLIER;
    params->node_timeout_origin = SESSION_TIMEOUT_UNKNOWN;
}

uint32_t scenario_lease_ms(const struct sim *sim)
{
    return sim->scenario.params.lease_auto ? sim->scenario.own_lease_ms : sim->scenario.params.lease_ms;
}

static void choose_network(struct sim_scenario *sc, struct random *r)
{
    bool near = random_percent(r, 60);

    sc->latency_min_ns = near ? SIM_MS / 20 : 5 * SIM_MS;
    sc->latency_max_ns = near ? 2 * SIM_MS : 50 * SIM_MS;
    sc->spike_percent = random_percent(r, 40) ? (unsigned)random_between(r, 1, 5) : 0;
    sc->codec = random_percent(r, 12);
}

struct sim_clock scenario_clock(struct sim *sim)
{
    int64_t most = sim->scenario.clock_ppm;

    return (struct sim_clock){.offset_ns = random_between(&sim->random, SIM_S, 1000000 * SIM_S),
                              .ppm = (int64_t)random_between(&sim->random, 0, (uint64_t)(2 * most)) - most};
}

/* Longer than a node timeout in some seeds: a disk that is shared, or about to fail. */
static void choose_disk(struct sim_scenario *sc, struct random *r)
{
    unsigned dice = (unsigned)random_between(r, 0, 99);

    sc->disk_max_ns = dice < 50 ? 0 : dice < 75 ? 50 * SIM_MS : random_between(r, 100, 4000) * SIM_MS;
}

static void choose_workers(struct sim_scenario *sc, struct random *r)
{
    sc->stop_max_ns = random_percent(r, 70) ? 100 * SIM_MS : 3 * SIM_S;
    sc->grace_ns = random_between(r, 1000, 4000) * SIM_MS;
    sc->pause_max_ns = random_percent(r, 40) ? random_between(r, 1, 4) * SIM_S : 0;
    sc->replace = random_percent(r, 35);
    sc->unready_percent = random_percent(r, 50) ? (unsigned)random_between(r, 1, 10) : 0;
    sc->rejoin_ns = random_between(r, 2, 5) * SIM_S;
    sc->ignore_term_percent = random_percent(r, 50) ? (unsigned)random_between(r, 1, 10) : 0;
    sc->orphan_percent = random_percent(r, 30) ? (unsigned)random_between(r, 1, 10) : 0;
    sc->stuck_percent = random_percent(r, 15) ? (unsigned)random_between(r, 1, 3) : 0;
    sc->exec_fail_percent = random_percent(r, 10) ? (unsigned)random_between(r, 1, 3) : 0;
    sc->start_fail_percent = random_percent(r, 10) ? 1 : 0;
    sc->guardian_percent = random_percent(r, 20) ? 20 : 0;
    sc->stop_limit_ns = sc->grace_ns + sc->pause_max_ns + SIM_S + (sc->replace ? 6 : 0) * SIM_S +
                        (sc->stuck_percent ? 11 : 0) * SIM_S;
}

static void choose_times(struct sim_scenario *sc, struct random *r)
{
    static const uint64_t every_ms[] = {300, 1000, 3000, 10000};

    sc->fault_every_ns = every_ms[random_u64(r) % 4] * SIM_MS;
    sc->cutoff_ns = random_percent(r, 30) || sc->has_etcd ? 30 * SIM_S : 8 * SIM_S;
    if (sc->params.lease_ms + sc->own_lease_ms > 0 && random_percent(r, 50)) {
        sc->has_default_cutoff = true;
        sc->cutoff_ns = sc->params.join_timeout_ms * SIM_MS;
    }
    sc->return_percent = (unsigned)random_between(r, 40, 100);
    sc->death_notice_percent = random_percent(r, 50) ? 80 : 0;
    sc->calm_ns = random_between(r, 5, sc->n_agents > 300 ? 15 : 150) * SIM_S;
    sc->finish_ns = sc->calm_ns + 30 * SIM_S + sc->cutoff_ns + 4 * sc->stop_limit_ns + 10 * sc->rejoin_ns +
                    2 * sc->params.last_call_ms * SIM_MS + 4 * sc->params.node_timeout_ms * SIM_MS +
                    2 * session_lease_wait_ns(sc->params.lease_ms + sc->own_lease_ms) +
                    (sc->has_etcd ? 20 * SIM_S : 0);
    sc->finish_spread_ns = random_percent(r, 50) ? 2 * SIM_S : 10 * SIM_S;
    sc->late_failure_percent = random_percent(r, 40) ? (unsigned)random_between(r, 1, 15) : 0;
    sc->late_faults_ns = random_percent(r, 40) ? sc->finish_ns + random_between(r, 1, 20) * SIM_S : 0;
    sc->end_ns = sc->finish_ns + 100 * SIM_S + 3 * sc->params.join_timeout_ms * SIM_MS + 2 * sc->cutoff_ns +
                 4 * sc->stop_limit_ns + 60 * SIM_S;
}

/* Several of them have their own faults, and lose no state. */
static void choose_daemons(struct sim_scenario *sc, struct random *r)
{
    sc->n_daemons = (unsigned)random_between(r, 2, SIM_DAEMONS_MAX);
    sc->suspends = random_percent(r, 20);
    sc->fault_percent[FAULT_DAEMON_AMNESIA] = sc->fault_percent[FAULT_ROLLBACK] = 0;
    sc->disk_max_ns = 0;
    for (unsigned i = FAULT_COUNT_SINGLE; i < FAULT_COUNT_DRAWN; i++)
        sc->fault_percent[i] = random_percent(r, fault_chances[i]) ? (unsigned)random_between(r, 5, 100) : 0;
}

void scenario_choose(struct sim *sim, unsigned n_agents, bool has_etcd)
{
    struct sim_scenario *sc = &sim->scenario;
    struct random *r = &sim->random;

    sc->has_etcd = has_etcd;
    sc->n_daemons = 1;
    sc->n_agents = n_agents ? n_agents : has_etcd ? choose_size_with_etcd(r) : choose_size(r);
    sc->n_jobs = sc->n_agents >= 4 && random_percent(r, 10) ? 2 : 1;
    sc->hints = random_percent(r, 30);
    sc->clock_ppm = random_percent(r, 30) ? 2000 : random_percent(r, 50) ? 50 : 0;
    choose_params(sc, r);
    if (has_etcd && random_percent(r, 40)) /* so that agents may wait for a daemon that is paused */
        sc->params.node_timeout_ms = (uint32_t)random_between(r, 3000, 8000);
    sc->mixes_releases =
        sc->params.node_timeout_ms > SESSION_NODE_TIMEOUT_MS_EARLIER && random_percent(r, 25);
    choose_lease(sc, r);
    choose_network(sc, r);
    choose_disk(sc, r);
    choose_workers(sc, r);
    choose_times(sc, r);
    for (unsigned i = 0; i < FAULT_COUNT_SINGLE; i++)
        sc->fault_percent[i] = random_percent(r, fault_chances[i]) ? (unsigned)random_between(r, 5, 100) : 0;
    if (has_etcd)
        choose_daemons(sc, r);
    host_cut_plan(sim);
    sim_trace(sim,
              "%u agents, %u jobs, %u to %u nodes, %u restarts, %u changes, calm at %llu s, finish at %llu s",
              sc->n_agents, sc->n_jobs, sc->params.min_nodes, sc->params.max_nodes, sc->params.max_restarts,
              sc->params.max_changes, (unsigned long long)(sc->calm_ns / SIM_S),
              (unsigned long long)(sc->finish_ns / SIM_S));
}

void scenario_begin(struct sim *sim)
{
    struct sim_scenario *sc = &sim->scenario;

    for (unsigned i = 0; i < sc->n_agents; i++)
        if (random_percent(&sim->random, 90))
            schedule_add(&sim->schedule, random_between(&sim->random, 0, 2 * SIM_S), SIM_AGENT_BOOT, i, 0);
    for (unsigned i = 0; i < sc->n_daemons; i++)
        schedule_add(&sim->schedule, random_between(&sim->random, 0, SIM_S), SIM_DAEMON_BOOT, i, 0);
    if (sc->has_etcd) {
        etcd_link_init(&sim->etcd, &sim->random, &sim->schedule, SIM_ETCD_APPLY, SIM_ETCD_ANSWER);
        schedule_add(&sim->schedule, 0, SIM_ETCD_EXPIRE, 0, 0);
    }
    schedule_add(&sim->schedule, random_between(&sim->random, 0, 3 * SIM_S), SIM_FAULT, 0, 0);
    schedule_add(&sim->schedule, sc->finish_ns - SIM_MS, SIM_CHECK_CALM, 0, 0);
}

/* ---- faults ---- */

/* Mostly short, sometimes longer than anybody waits. */
static uint64_t duration_ns(struct random *r)
{
    unsigned dice = (unsigned)random_between(r, 0, 9);

    return random_between(r, SIM_MS, dice < 5 ? SIM_S : dice < 9 ? 6 * SIM_S : 45 * SIM_S);
}

/* Not long after the last fault. */
static uint64_t fault_end_ns(struct sim *sim)
{
    uint64_t until_ns = sim->now_ns + duration_ns(&sim->random);
    uint64_t last_ns =
        (sim->now_ns < sim->scenario.calm_ns ? sim->scenario.calm_ns : sim->scenario.late_faults_ns);

    return until_ns > last_ns + 5 * SIM_S ? last_ns + 5 * SIM_S : until_ns;
}

static void block(struct sim *sim, unsigned agent, unsigned ways, uint64_t until_ns)
{
    struct sim_agent *a = &sim->agents[agent];

    for (unsigned to = 0; to < 2; to++)
        if (ways & (1u << to) && a->blocked_until_ns[to] < until_ns)
            a->blocked_until_ns[to] = until_ns;
    disturb(sim, agent, until_ns);
}

static void partition(struct sim *sim, unsigned agent, bool many)
{
    uint64_t until_ns = fault_end_ns(sim);
    unsigned ways = (unsigned)random_between(&sim->random, 1, 3);

    sim_trace(sim, "partition: agent %u%s, ways %u, until %.3f s", agent, many ? " and others" : "", ways,
              (double)until_ns / 1e9);
    block(sim, agent, ways, until_ns);
    for (unsigned i = 0; many && i < sim->scenario.n_agents; i++)
        if (random_percent(&sim->random, 50))
            block(sim, i, ways, until_ns);
}

static void cut_connection(struct sim *sim, unsigned agent)
{
    const struct sim_agent *a = &sim->agents[agent];
    unsigned ends = (unsigned)random_between(&sim->random, 1, 3);
    unsigned connection = (unsigned)a->connection;

    if (a->connection < 0 || !a->alive)
        return;
    sim_trace(sim, "cut: connection of agent %u, ends %u", agent, ends);
    disturb(sim, agent, sim->now_ns);
    if (ends & 1u << SIM_DAEMON_END && sim->now_ns >= sim->daemons[a->daemon].paused_until_ns)
        network_break(sim, connection, SIM_DAEMON_END);
    if (ends & 1u << SIM_AGENT_END && sim->now_ns >= a->paused_until_ns)
        network_break(sim, connection, SIM_AGENT_END);
}

static void pause_agent(struct sim *sim, unsigned agent)
{
    uint64_t until_ns = sim->now_ns + random_between(&sim->random, SIM_MS, 8 * SIM_S);

    if (until_ns <= sim->agents[agent].paused_until_ns)
        return; /* what has come up meanwhile waits for the end of that one already */
    sim->agents[agent].paused_until_ns = until_ns;
    disturb(sim, agent, sim->agents[agent].paused_until_ns);
    sim_trace(sim, "agent %u: is paused until %.3f s", agent,
              (double)sim->agents[agent].paused_until_ns / 1e9);
}

/* Mostly the one that leads. */
static struct sim_daemon *choose_daemon(struct sim *sim)
{
    struct sim_daemon *leader = daemon_leading(sim);

    if (sim->scenario.n_daemons == 1)
        return &sim->daemons[0];
    if (leader && random_percent(&sim->random, 60))
        return leader;
    return &sim->daemons[random_u64(&sim->random) % sim->scenario.n_daemons];
}

static void pause_daemon(struct sim *sim)
{
    struct sim_daemon *d = choose_daemon(sim);

    if (!d->alive || sim->now_ns < d->paused_until_ns)
        return;
    d->paused_until_ns = sim->now_ns + random_between(&sim->random, SIM_MS, 8 * SIM_S);
    disturb_daemon(sim, d->paused_until_ns);
    sim_trace(sim, "daemon %u is paused until %.3f s", daemon_number(sim, d),
              (double)d->paused_until_ns / 1e9);
    if (sim->scenario.suspends && random_percent(&sim->random, 50))
        d->clock.offset_ns -= d->paused_until_ns - sim->now_ns;
}

static void crash_daemon(struct sim *sim, bool keeps_state)
{
    struct sim_daemon *d = choose_daemon(sim);

    if (!d->alive)
        return;
    disturb_daemon(sim, sim->now_ns + 10 * SIM_S);
    if (!keeps_state)
        disturb_all(sim, sim->now_ns + 10 * SIM_S);
    if (!random_percent(&sim->random, 50)) {
        daemon_crash(sim, d, keeps_state);
        return;
    }
    d->crash_after = (unsigned)random_between(&sim->random, 1, 40); /* in the middle of something */
    d->crash_keeps_state = keeps_state;
}

/* Between one daemon and one agent, or all of them. */
static void partition_daemon(struct sim *sim, unsigned agent, bool many)
{
    struct sim_daemon *d = choose_daemon(sim);
    uint64_t until_ns = fault_end_ns(sim);
    unsigned ways = (unsigned)random_between(&sim->random, 1, 3);

    for (unsigned to = 0; to < 2; to++) {
        uint64_t *blocked_ns = many ? &d->blocked_until_ns[to]
                                    : &sim->agents[agent].pair_blocked_until_ns[daemon_number(sim, d)][to];

        if (ways & (1u << to) && *blocked_ns < until_ns)
            *blocked_ns = until_ns;
    }
    if (many && random_percent(&sim->random, 25))
        d->etcd_cut_until_ns = until_ns;
    for (unsigned i = 0; i < sim->scenario.n_agents; i++)
        if (many || i == agent)
            disturb(sim, i, until_ns);
    sim_trace(sim, "partition: daemon %u and agent %u%s, ways %u, until %.3f s", daemon_number(sim, d), agent,
              many ? " and all others" : "", ways, (double)until_ns / 1e9);
}

static void disturb_etcd(struct sim *sim, enum sim_fault fault)
{
    struct sim_rendezvous *r = &sim->rendezvous;
    struct sim_daemon *d = choose_daemon(sim);
    uint64_t until_ns = fault_end_ns(sim);

    if (fault == FAULT_ETCD_FULL && random_percent(&sim->random, 60)) /* for longer than most join timeouts */
        until_ns = sim->now_ns + random_between(&sim->random, 40, 100) * SIM_S;
    disturb_daemon(sim, until_ns + 10 * SIM_S);
    if (fault == FAULT_ETCD_FULL) {
        sim->etcd.is_full = true;
        r->etcd_full_until_ns = until_ns;
        sim_trace(sim, "etcd is full until %.3f s", (double)until_ns / 1e9);
    } else if (fault == FAULT_ETCD_CUT) {
        d->etcd_cut_until_ns = until_ns;
        sim_trace(sim, "daemon %u does not reach etcd until %.3f s", daemon_number(sim, d),
                  (double)until_ns / 1e9);
    } else if (fault == FAULT_ETCD_DOWN) {
        sim->etcd.is_down = true;
        r->etcd_down_until_ns = until_ns;
        sim_trace(sim, "etcd has no majority until %.3f s", (double)until_ns / 1e9);
    } else {
        sim->etcd.fault_percent = (unsigned)random_between(&sim->random, 1, 25);
        r->etcd_slow_until_ns = until_ns;
        sim_trace(sim, "%u %% of the requests to etcd are lost or late until %.3f s", sim->etcd.fault_percent,
                  (double)until_ns / 1e9);
    }
}

static void slow_down(struct sim *sim)
{
    sim->slow_until_ns = sim->now_ns + random_between(&sim->random, 10 * SIM_MS, 5 * SIM_S);
    disturb_all(sim, sim->slow_until_ns + 4 * SIM_S);
    sim_trace(sim, "the network is slow until %.3f s", (double)sim->slow_until_ns / 1e9);
}

static uint64_t random_size(struct random *r)
{
    return random_u64(r) >> random_between(r, 0, 63);
}

/* Of a client that knows the id and parameters of a job, and perhaps its instance. It asks for nothing that ends a job: that
 * is an agent's right. */
static void send_hostile_hello(struct sim *sim, unsigned agent)
{
    static const enum session_phase phases[] = {SESSION_STOPPING, SESSION_READY, SESSION_RUNNING,
                                                SESSION_DONE, SESSION_FAILED};
    struct random *r = &sim->random;
    const struct session *s = &sim->agents[agent].session;
    struct session_hello hello = s->hello;

    if (hello.job[0] == 0)
        return; /* that agent has not been there yet */
    hello.nonce = (struct session_nonce){random_u64(r), ++sim->n_nonces};
    hello.attempt = (uint32_t)random_size(r) | 1;
    hello.node_rank = random_percent(r, 50) ? -1 : (int32_t)random_between(r, 0, SESSION_NODES_MAX - 1);
    hello.n_workers = (uint32_t)random_between(r, 1, 64);
    text_copy(hello.host, sizeof(hello.host), "hostile");
    hello.report = (struct session_report){
        .phase = phases[random_u64(r) % (sizeof(phases) / sizeof(phases[0]))],
        .instance = random_percent(r, 50) ? s->instance : random_size(r),
        .generation = random_percent(r, 30) ? -1 : (int64_t)(random_size(r) % (INT32_MAX + UINT64_C(1))),
        .group_rank = random_percent(r, 50) ? -1 : (int32_t)random_between(r, 0, SESSION_NODES_MAX - 1),
        .port = (uint16_t)random_u64(r),
        .age_ns = random_size(r) >> 11};
    sim_trace(sim, "hostile hello: %s, generation %lld", session_phase_names[hello.report.phase],
              (long long)hello.report.generation);
    network_dial_death_notice(sim, agent, &hello, 0);
}

static void inflict(struct sim *sim, enum sim_fault fault)
{
    unsigned agent = (unsigned)(random_u64(&sim->random) % sim->scenario.n_agents);

    switch (fault) {
    case FAULT_WORKER:
        agent_fail_later(sim, agent, 0);
        break;
    case FAULT_AGENT_KILL:
        agent_kill(sim, agent, false);
        break;
    case FAULT_NODE_LOSS:
        agent_kill(sim, agent, true);
        break;
    case FAULT_LEAVE:
        agent_leave(sim, agent);
        break;
    case FAULT_AGENT_PAUSE:
        pause_agent(sim, agent);
        break;
    case FAULT_DAEMON_PAUSE:
        pause_daemon(sim);
        break;
    case FAULT_CUT:
        cut_connection(sim, agent);
        break;
    case FAULT_PARTITION:
        partition(sim, agent, false);
        break;
    case FAULT_PARTITION_MANY:
        partition(sim, agent, true);
        break;
    case FAULT_SLOW:
        slow_down(sim);
        break;
    case FAULT_DAEMON_CRASH:
        crash_daemon(sim, true);
        break;
    case FAULT_DAEMON_AMNESIA:
        crash_daemon(sim, false);
        break;
    case FAULT_BOOT:
        agent_boot(sim, agent);
        break;
    case FAULT_DRAIN:
        agent_drain(sim, agent);
        break;
    case FAULT_ROLLBACK:
        disturb_daemon(sim, sim->now_ns + 10 * SIM_S);
        disturb_all(sim, sim->now_ns + 10 * SIM_S);
        daemon_roll_back(sim, &sim->daemons[0]);
        break;
    case FAULT_HOSTILE:
        send_hostile_hello(sim, agent);
        break;
    case FAULT_PAIR:
    case FAULT_DAEMON_ISOLATED:
        partition_daemon(sim, agent, fault == FAULT_DAEMON_ISOLATED);
        break;
    case FAULT_ETCD_CUT:
    case FAULT_ETCD_DOWN:
    case FAULT_ETCD_SLOW:
    case FAULT_ETCD_FULL:
        disturb_etcd(sim, fault);
        break;
    case FAULT_HOST_CUT:
    case FAULT_COUNT:
        break;
    }
    sim->n_faults[fault]++;
}

void scenario_fault(struct sim *sim)
{
    const struct sim_scenario *sc = &sim->scenario;
    unsigned total = 0, dice;

    if (sim->now_ns >= sc->calm_ns && sim->now_ns < sc->finish_ns && sc->late_faults_ns > 0) {
        schedule_add(&sim->schedule, sc->finish_ns, SIM_FAULT, 0, 0); /* through the end of the job, too */
        return;
    }
    if (sim->now_ns >= (sc->late_faults_ns > 0 ? sc->late_faults_ns : sc->calm_ns))
        return;
    schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->random, 0, 2 * sc->fault_every_ns),
                 SIM_FAULT, 0, 0);
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        total += sc->fault_percent[i];
    if (total == 0)
        return;
    dice = (unsigned)(random_u64(&sim->random) % total);
    for (unsigned i = 0; i < FAULT_COUNT; i++) {
        if (dice < sc->fault_percent[i]) {
            inflict(sim, (enum sim_fault)i);
            return;
        }
        dice -= sc->fault_percent[i];
    }
}
