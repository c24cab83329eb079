/*
 * Cuts between the hosts of two nodes: their workers do not reach each other, and both agents reach the rendezvous. A cut may be there
 * before the ranks connect, or begin while they are connected; it heals after a while, or lasts until the end of the calm. Where it has one
 * direction, one of the two sides alone can report it.
 *
 * Ranks connect a while after their generation has begun. One that gets no answer notes the other rank, goes on trying, and fails when
 * the cut has not healed by then. A connection that falls silent is noted, and its worker fails at once.
 *
 * The cuts of a seed have random numbers of their own: a seed without cuts means what it meant before there were any.
 */

#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

static const char left_out_text[] = "is cut, and the rendezvous reaches both";

#define CONNECTED                                                                                            \
    (UINT64_C(1) << 63) /* in the detail of a moment: the ranks were connected, else they connect */

/* ---- what a seed means ---- */

static unsigned choose_other(struct sim *sim, unsigned agent)
{
    const struct sim_scenario *sc = &sim->scenario;
    unsigned n = (sc->n_agents - agent % sc->n_jobs + sc->n_jobs - 1) / sc->n_jobs; /* agents of the job */
    unsigned at = agent / sc->n_jobs;

    return agent % sc->n_jobs +
           (unsigned)((at + random_between(&sim->cut_random, 1, n - 1)) % n) * sc->n_jobs;
}

static void plan_cut(struct sim *sim)
{
    const struct sim_scenario *sc = &sim->scenario;
    struct random *r = &sim->cut_random;
    struct sim_host_cut *cut = &sim->host_cuts[sim->n_host_cuts];
    unsigned agent = sim->n_host_cuts > 0 && random_percent(r, 40) ? cut[-1].agents[0]
                                                                   : (unsigned)(random_u64(r) % sc->n_agents);

    cut->agents[0] = agent;
    cut->agents[1] = choose_other(sim, agent);
    cut->from_ns = random_percent(r, 30) ? 0 : random_between(r, 0, sc->calm_ns);
    cut->until_ns = random_percent(r, 50) ? cut->from_ns + random_between(r, 1, 20) * SIM_S : sc->finish_ns;
    cut->has_one_direction = random_percent(r, 30);
    sim_trace(sim, "cut between the hosts of agents %u and %u from %.3f to %.3f s%s", cut->agents[0],
              cut->agents[1], (double)cut->from_ns / 1e9, (double)cut->until_ns / 1e9,
              cut->has_one_direction ? ", which the first one notices" : "");
    schedule_add(&sim->schedule, cut->from_ns, SIM_HOST_CUT, sim->n_host_cuts++, 0);
}

void host_cut_plan(struct sim *sim)
{
    const uint64_t pause_ns = 75 * SIM_S; /* one that was left out may return before the end of the calm */
    struct sim_scenario *sc = &sim->scenario;
    struct random *r = &sim->cut_random;
    uint64_t n;

    r->state = (sim->seed + 1) * UINT64_C(0xD6E8FEB86659FD93);
    if (sc->n_agents < 2 * sc->n_jobs || !random_percent(r, 25))
        return;
    sc->finish_ns += pause_ns;
    sc->end_ns += pause_ns;
    sc->late_faults_ns += sc->late_faults_ns > 0 ? pause_ns : 0;
    if (random_percent(r, 40)) /* nothing else goes wrong, so that more can be expected */
        memset(sc->fault_percent, 0, sizeof(sc->fault_percent));
    n = random_between(r, 1, SIM_HOST_CUTS_MAX);
    for (uint64_t i = 0; i < n; i++)
        plan_cut(sim);
}

/* ---- what ranks notice ---- */

static bool is_active(const struct sim *sim, const struct sim_host_cut *cut)
{
    return sim->now_ns >= cut->from_ns && sim->now_ns < cut->until_ns;
}

static struct sim_member *find_member(struct sim *sim, struct sim_world *w, unsigned agent)
{
    for (uint32_t i = 0; i < w->group_world_size; i++)
        if (w->members[i].present && w->members[i].agent == agent &&
            w->members[i].life == sim->agents[agent].life)
            return &w->members[i];
    return NULL;
}

/* The agent as a member of this world, whose workers run; NULL: it is none any more. */
static struct sim_member *running_member(struct sim *sim, unsigned agent, uint64_t world)
{
    const struct sim_agent *a = &sim->agents[agent];

    if (!a->alive || a->ended || a->part != PART_RUNNING || a->world != (int64_t)world)
        return NULL;
    return find_member(sim, &sim->worlds[world], agent);
}

/* The other side of an active cut that this agent notices, in this world; NULL: there is none. */
static struct sim_member *find_other_side(struct sim *sim, struct sim_world *w, unsigned agent)
{
    for (unsigned i = 0; i < sim->n_host_cuts; i++) {
        const struct sim_host_cut *cut = &sim->host_cuts[i];
        unsigned side = cut->agents[0] == agent ? 0 : 1;
        struct sim_member *other;

        if (!is_active(sim, cut) || cut->agents[side] != agent || (side == 1 && cut->has_one_direction))
            continue;
        other = find_member(sim, w, cut->agents[1 - side]);
        if (other)
            return other;
    }
    return NULL;
}

static void later(struct sim *sim, enum sim_moment moment, unsigned agent, uint64_t detail, uint64_t least_ms,
                  uint64_t most_ms)
{
    schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->cut_random, least_ms, most_ms) * SIM_MS,
                 moment, agent, detail);
}

static void begin_cut(struct sim *sim, const struct sim_host_cut *cut)
{
    const struct sim_agent *a = &sim->agents[cut->agents[0]], *b = &sim->agents[cut->agents[1]];

    sim->n_faults[FAULT_HOST_CUT]++;
    if (a->part != PART_RUNNING || b->part != PART_RUNNING || a->world != b->world)
        return;
    for (unsigned side = 0; side < 2; side++)
        later(sim, SIM_CUT_NOTICE, cut->agents[side], (uint64_t)a->world | CONNECTED, 50, 1000);
}

void host_cut_connect(struct sim *sim, unsigned agent)
{
    if (sim->n_host_cuts > 0)
        later(sim, SIM_CUT_NOTICE, agent, (uint64_t)sim->agents[agent].world, 200, 1000);
}

/* Ranks connect when all of them are there. */
static bool is_complete(const struct sim_world *w)
{
    for (uint32_t i = 0; i < w->group_world_size; i++)
        if (!w->members[i].present)
            return false;
    return true;
}

static void notice(struct sim *sim, unsigned agent, uint64_t detail)
{
    struct sim_world *w = &sim->worlds[detail & ~CONNECTED];
    struct sim_member *m = running_member(sim, agent, detail & ~CONNECTED), *other;

    if (!m || m->cut_from > 0)
        return;
    if (!is_complete(w)) {
        later(sim, SIM_CUT_NOTICE, agent, detail, 500, 1000);
        return;
    }
    other = find_other_side(sim, w, agent);
    if (!other)
        return;
    m->cut_from = other->agent + 1;
    m->cut_ns = sim->now_ns;
    sim->agents[agent].cut_from =
        other->rank_base + (uint32_t)random_between(&sim->cut_random, 1, other->n_workers);
    sim_trace(sim, "agent %u: rank %u does not answer", agent, sim->agents[agent].cut_from - 1);
    later(sim, SIM_CUT_FAIL, agent, detail, detail & CONNECTED ? 0 : 500, detail & CONNECTED ? 0 : 2000);
}

static void fail(struct sim *sim, unsigned agent, uint64_t detail)
{
    struct sim_member *m = running_member(sim, agent, detail & ~CONNECTED);

    if (!m || m->cut_from == 0)
        return;
    if (!(detail & CONNECTED) && !find_other_side(sim, &sim->worlds[detail], agent)) {
        m->cut_from = sim->agents[agent].cut_from = 0; /* it has answered */
        return;
    }
    workers_fail_first(sim, agent);
}

void host_cut_moment(struct sim *sim, const struct moment *m)
{
    if (m->kind == SIM_HOST_CUT)
        begin_cut(sim, &sim->host_cuts[m->who]);
    else if (m->kind == SIM_CUT_NOTICE)
        notice(sim, m->who, m->detail);
    else
        fail(sim, m->who, m->detail);
}

/* ---- what the rendezvous makes of it ---- */

bool host_cut_is_cause(const struct session_cause *c)
{
    return c->kind == SESSION_CAUSE_LOST && strstr(c->text, left_out_text);
}

/* The cause is that the first of these two agents is left out for its cut from the second. */
static bool is_cut_of(const struct session_cause *c, unsigned agent, unsigned other)
{
    char host[32], part[64];

    (void)snprintf(host, sizeof(host), "node%u", agent);
    (void)snprintf(part, sizeof(part), "between it and node%u is cut", other);
    return strcmp(c->host, host) == 0 && strstr(c->text, part);
}

/* One of the two sides has to have noticed the cut. */
void host_cut_check_left_out(struct sim *sim, const struct sim_world *w, const struct rounds_job *job)
{
    const struct session_cause *c = &job->cause;

    for (uint32_t i = 0; i < w->group_world_size; i++) {
        const struct sim_member *m = &w->members[i];

        if (m->cut_from > 0 &&
            (is_cut_of(c, m->agent, m->cut_from - 1) || is_cut_of(c, m->cut_from - 1, m->agent)))
            return;
    }
    violated(sim, "%s is left out of job %s for a cut that is not there: %s", c->host, job->id, c->text);
}

/* Nothing has happened to it since then, nor shortly before. */
static bool is_undisturbed(const struct sim *sim, const struct sim_member *m, uint64_t since_ns)
{
    const struct sim_agent *a = &sim->agents[m->agent];

    return m->present && a->alive && !a->ended && a->life == m->life && a->disturbed_until_ns < since_ns;
}

/* A worker's failure is charged: where its node has noticed a cut, the cause names that, and there are too few nodes to leave one out. */
void host_cut_check_charged(struct sim *sim, struct sim_world *w, const struct sim_member *m,
                            const struct rounds_job *job)
{
    const struct sim_member *other = m->cut_from > 0 ? find_member(sim, w, m->cut_from - 1) : NULL;
    uint32_t n = 0;

    if (!other || job->drain || !is_undisturbed(sim, m, m->cut_ns) ||
        !is_undisturbed(sim, other, m->cut_ns) || sim->rendezvous.disturbed_until_ns >= m->cut_ns)
        return;
    if (!strstr(job->cause.text, "cannot reach each other"))
        violated(sim, "generation %lld is over for a cut between agents %u and %u, which is not named: %s",
                 (long long)w->generation, m->agent, other->agent, job->cause.text);
    for (uint32_t i = 0; i < w->group_world_size; i++)
        n += is_undisturbed(sim, &w->members[i], m->cut_ns);
    if (n > job->params.min_nodes)
        violated(sim, "a cut is charged as a restart, and %u nodes are more than the %u that are needed", n,
                 job->params.min_nodes);
}

static const struct rounds_node *find_other_node(const struct rounds_node *n)
{
    list_for_each(i, &n->job->nodes)
    {
        const struct rounds_node *other = list_entry(i, struct rounds_node, in_job);

        if (other->serial == n->cut_serial)
            return other;
    }
    return NULL;
}

/* Of the two sides of a cut one takes part. */
void host_cut_check_formed(struct sim *sim, const struct rounds_job *job)
{
    if (sim->n_host_cuts == 0)
        return;
    list_for_each(i, &job->nodes)
    {
        const struct rounds_node *n = list_entry(i, struct rounds_node, in_job);
        const struct rounds_node *other = n->is_cut_off ? find_other_node(n) : NULL;

        if (n->is_cut_off && (!other || other->is_cut_off))
            violated(sim, "%s is left out of generation %lld of job %s, and so is %s", n->host,
                     (long long)job->generation, job->id, n->cut_host);
    }
}

/* Those that are left out come back. */
void host_cut_check_return(struct sim *sim, const struct sim_daemon *d, const struct rounds_job *job)
{
    uint64_t due_ns = sim_clock_when(&d->clock, job->cut_until_ns);

    if (sim->n_host_cuts == 0 || job->state == ROUNDS_CLOSED)
        return;
    if (d->paused_until_ns > due_ns)
        due_ns = d->paused_until_ns;
    if (job->cut_until_ns > 0 && sim->now_ns <= due_ns + SIM_S)
        return;
    list_for_each(i, &job->nodes)
    {
        const struct rounds_node *n = list_entry(i, struct rounds_node, in_job);

        if (n->is_cut_off)
            violated(sim, "%s is still left out of job %s for its cut from %s", n->host, job->id,
                     n->cut_host);
    }
}

bool host_cut_is_active(const struct sim *sim, unsigned job)
{
    for (unsigned i = 0; i < sim->n_host_cuts; i++)
        if (is_active(sim, &sim->host_cuts[i]) && daemon_job_of(sim, sim->host_cuts[i].agents[0]) == job)
            return true;
    return false;
}

bool host_cut_leaves_out(struct sim *sim, unsigned agent)
{
    const struct sim_daemon *d = sim->n_host_cuts > 0 ? daemon_leading(sim) : NULL;
    struct session_nonce nonce = sim->agents[agent].session.hello.nonce;

    if (!d)
        return false;
    list_for_each(i, &d->rounds.jobs)
    {
        const struct rounds_job *job = list_entry(i, struct rounds_job, in_rounds);

        list_for_each(j, &job->nodes)
        {
            const struct rounds_node *n = list_entry(j, struct rounds_node, in_job);

            if (n->is_cut_off && session_nonce_equal(n->nonce, nonce))
                return true;
        }
    }
    return false;
}
