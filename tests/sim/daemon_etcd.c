/*
 * The state of a daemon that is one of several: does for the rounds what rounds_etcd_uv.c does, with the shipping core that
 * chooses the leader and a model of etcd.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rounds/rounds_json.h"
#include "tests/sim/sim.h"

enum { SLOW_MS = 50, STEADY_MS = 500 /* between two answers of etcd */ };

/* ---- requests ---- */

static void send_etcd(struct sim *sim, struct sim_daemon *d, enum etcd_lane_of_crund lane,
                      struct etcd_request *request)
{
    uint64_t answered_ns = etcd_link_send(&sim->etcd, sim->now_ns, daemon_number(sim, d), d->life, lane,
                                          request, sim->now_ns < d->etcd_cut_until_ns);

    if (d->leads && lane == ETCD_LINK_WORK && answered_ns > sim->now_ns + SLOW_MS * SIM_MS)
        disturb_daemon(sim, answered_ns + SIM_S);
}

static void send_etcd_requests(struct sim *sim, struct sim_daemon *d)
{
    struct etcd_request request;

    if (etcd_leader_next_work(&d->leader, daemon_clock(sim, d), &request))
        send_etcd(sim, d, ETCD_LINK_WORK, &request);
    if (etcd_leader_next_lease(&d->leader, daemon_clock(sim, d), &request))
        send_etcd(sim, d, ETCD_LINK_LEASE, &request);
}

static void arm_etcd(struct sim *sim, struct sim_daemon *d)
{
    uint64_t deadline_ns = etcd_leader_deadline(&d->leader), at_ns;

    if (deadline_ns == UINT64_MAX)
        return; /* until an answer comes */
    at_ns = sim_clock_when(&d->clock, deadline_ns);
    if (at_ns < sim->now_ns + 1000)
        at_ns = sim->now_ns + 1000;
    if (d->tick_ns > sim->now_ns && d->tick_ns <= at_ns)
        return; /* that one will ask again */
    d->tick_ns = at_ns;
    schedule_add_last(&sim->schedule, at_ns, SIM_ETCD_TICK, daemon_number(sim, d), d->life);
}

/* ---- what becomes of this daemon ---- */

static void take_change(struct sim *sim, struct sim_daemon *d)
{
    switch (etcd_leader_change(&d->leader)) {
    case ETCD_ELECTED:
        sim_trace(sim, "daemon %u leads, with term %lld", daemon_number(sim, d), (long long)d->leader.term);
        d->term = d->leader.term;
        sim->n_terms++;
        daemon_lead(sim, d);
        break;
    case ETCD_DEPOSED:
        sim_trace(sim, "daemon %u leads no more: %s", daemon_number(sim, d), d->leader.why);
        daemon_depose(sim, d);
        break;
    case ETCD_NO_CHANGE:
        break;
    }
}

/* Everything that is due; done: as it was before the event. */
static void run_etcd(struct sim *sim, struct sim_daemon *d, uint64_t done)
{
    etcd_leader_tick(&d->leader, daemon_clock(sim, d));
    take_change(sim, d);
    if (d->leader.done != done && d->leader.role == ETCD_LEADING)
        daemon_release(sim, d, d->leader.done);
    send_etcd_requests(sim, d);
    arm_etcd(sim, d);
}

/* ---- the state's functions ---- */

void daemon_etcd_boot(struct sim *sim, struct sim_daemon *d)
{
    struct etcd_leader_config config = {.id = random_u64(&sim->random)};

    (void)snprintf(config.prefix, sizeof(config.prefix), "/t");
    (void)snprintf(config.address, sizeof(config.address), "10.9.9.%u:29400", 9 + daemon_number(sim, d));
    etcd_leader_init(&d->leader, &config);
    d->etcd_ns = d->etcd_steady_ns = sim->now_ns;
    d->orphaned_ns = 0;
    d->tick_ns = 0;
    sim_trace(sim, "daemon %u boots", daemon_number(sim, d));
    run_etcd(sim, d, 0);
}

struct loading {
    struct sim *sim;
    struct sim_daemon *daemon;
};

static void load_job(void *data, uint64_t instance, const uint8_t *text, size_t n)
{
    struct loading *l = data;

    if (!text) {
        violated(l->sim, "the job with instance %016llx is not whole in etcd", (unsigned long long)instance);
        return;
    }
    daemon_load(l->sim, l->daemon, text, n);
    if (l->daemon->rounds.superseded) {
        etcd_leader_forget(&l->daemon->leader, l->daemon->rounds.superseded);
        check_forgotten(l->sim, l->daemon->rounds.superseded);
    }
}

void daemon_etcd_load(struct sim *sim, struct sim_daemon *d)
{
    etcd_leader_loaded(&d->leader, load_job, &(struct loading){.sim = sim, .daemon = d});
}

/* Between the head and the nodes, as rounds_json_save() writes them. */
static size_t find_nodes(const struct buf *text)
{
    static const char begin[] = ",\"nodes\":[\n";
    const uint8_t *at = memmem(buf_bytes(text), buf_size(text), begin, sizeof(begin) - 1);

    return at ? (size_t)(at - buf_bytes(text)) : buf_size(text);
}

void daemon_etcd_save(struct sim_daemon *d, const struct rounds_job *job, bool forget)
{
    struct buf text = {0};
    size_t n_head;

    if (forget) {
        etcd_leader_forget(&d->leader, job->instance);
        return;
    }
    if (rounds_json_save(&text, job) != 0)
        abort();
    n_head = find_nodes(&text);
    etcd_leader_save(&d->leader, job->instance, buf_bytes(&text), n_head, buf_bytes(&text) + n_head,
                     buf_size(&text) - n_head);
    buf_finish(&text);
}

void daemon_etcd_write(struct sim *sim, struct sim_daemon *d)
{
    if (d->leader.change == ETCD_NO_CHANGE)
        send_etcd_requests(sim, d);
    arm_etcd(sim, d);
}

/* ---- moments ---- */

static void note_answer(struct sim *sim, struct sim_daemon *d, bool is_answer)
{
    if (!is_answer || sim->now_ns > d->etcd_ns + STEADY_MS * SIM_MS)
        d->etcd_steady_ns = sim->now_ns;
    d->etcd_ns = sim->now_ns;
    if (is_answer)
        check_followed(sim, d);
}

static void take_answer(struct sim *sim, struct sim_daemon *d, size_t number)
{
    uint64_t done = d->alive ? d->leader.done : 0;
    bool is_work = sim->etcd.flights[number]->lane == ETCD_LINK_WORK;
    bool is_answer = etcd_link_has_answer(&sim->etcd, number);

    if (d->alive)
        daemon_postpone(sim, d);
    if (!etcd_link_answer(&sim->etcd, number, d->alive ? &d->leader : NULL, d->life, daemon_clock(sim, d)))
        return;
    if (is_work)
        note_answer(sim, d, is_answer);
    run_etcd(sim, d, done);
}

static void expire_leases(struct sim *sim)
{
    sim->etcd.is_down = sim->now_ns < sim->rendezvous.etcd_down_until_ns;
    sim->etcd.is_full = sim->now_ns < sim->rendezvous.etcd_full_until_ns;
    if (sim->now_ns >= sim->rendezvous.etcd_slow_until_ns)
        sim->etcd.fault_percent = 0;
    if (!sim->etcd.is_down)
        etcd_model_expire(&sim->etcd.model, sim->now_ns);
    schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->random, 50 * SIM_MS, 500 * SIM_MS),
                 SIM_ETCD_EXPIRE, 0, 0);
}

void daemon_etcd_moment(struct sim *sim, const struct moment *m)
{
    struct sim_daemon *d = &sim->daemons[m->who];

    switch (m->kind) {
    case SIM_ETCD_TICK:
        if (d->alive && d->life == m->detail && sim->now_ns >= d->tick_ns)
            run_etcd(sim, d, d->leader.done);
        break;
    case SIM_ETCD_APPLY:
        etcd_link_apply(&sim->etcd, sim->now_ns, (size_t)m->detail);
        break;
    case SIM_ETCD_ANSWER:
        take_answer(sim, d, (size_t)m->detail);
        break;
    default:
        expire_leases(sim);
        break;
    }
}
