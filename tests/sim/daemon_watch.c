/*
 * The connection of a daemon that follows to the one that leads: does for leader_silence.h what rounds_etcd_uv.c does. It is a
 * conversation of a greeting and pings, each answered before the next; what is lost where the two are cut off from each other is
 * sent again.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

enum {
    SYN_AGAIN_MS = 1000,
    NO_ROUTE_PERCENT = 30, /* of connections between daemons that are cut off */
    NO_DESCRIPTOR_PERCENT = 1,
    JUDGED_MS = 350,     /* no answer of etcd is counted sooner after one of the leader */
    NOTICED_MS = 3000,   /* silence of the leader while etcd answers */
    STEADY_MS = 500,     /* between two answers of etcd */
    CONFIRMED_MS = 1500, /* that it is lost, once more: by another connection, and an answer of etcd */
};

enum watch_step { STEP_CONNECT, STEP_REQUEST, STEP_ANSWER, STEP_END, STEP_COUNT };

/* Four of them take less than a tick. */
static uint64_t way_ns(struct sim *sim)
{
    return random_between(&sim->random, 50, random_percent(&sim->random, 2) ? 45000 : 2000) * 1000;
}

static uint64_t cut_until_ns(const struct sim *sim, const struct sim_daemon *d)
{
    const struct sim_daemon *peer = &sim->daemons[d->watch.peer];

    return d->peers_cut_until_ns > peer->peers_cut_until_ns ? d->peers_cut_until_ns
                                                            : peer->peers_cut_until_ns;
}

static void schedule_step(struct sim *sim, const struct sim_daemon *d, uint64_t at_ns, enum watch_step step)
{
    schedule_add(&sim->schedule, at_ns, SIM_WATCH, daemon_number(sim, d),
                 d->watch.serial * STEP_COUNT + step);
}

/* ---- its ends ---- */

static void close_watch(struct sim_daemon *d)
{
    d->watch.is_open = false;
    d->watch.peer_life = 0;
    d->watch.serial++; /* what is on its way belongs to none */
}

static void note_end(struct sim *sim, struct sim_daemon *d, int error)
{
    if (leader_silence_ended(&d->watch.silence, error))
        etcd_leader_suspect(&d->leader, d->watch.address, daemon_clock(sim, d));
}

static void watch_ended(struct sim *sim, struct sim_daemon *d, int error)
{
    note_end(sim, d, error);
    d->watch.due_ns = daemon_clock(sim, d) + leader_silence_pause_ms(&d->watch.silence, error) * SIM_MS;
    close_watch(d);
    daemon_etcd_run(sim, d);
}

static int choose_error(struct sim *sim, const struct sim_daemon *d)
{
    if (random_percent(&sim->random, NO_DESCRIPTOR_PERCENT))
        return -EMFILE;
    return sim->now_ns < cut_until_ns(sim, d) && random_percent(&sim->random, NO_ROUTE_PERCENT)
               ? -EHOSTUNREACH
               : 0;
}

static void open_watch(struct sim *sim, struct sim_daemon *d, const char *address)
{
    struct sim_watch *w = &d->watch;
    unsigned last;
    int error;

    w->due_ns = daemon_clock(sim, d) + LEADER_TICK_MS * SIM_MS;
    if (w->watched_id == d->leader.seen_id) {
        leader_silence_reopened(&w->silence);
    } else {
        leader_silence_begin(&w->silence);
        w->answered_ns = sim->now_ns;
        w->judged_ns = 0;
    }
    w->watched_id = d->leader.seen_id;
    if (sscanf(address, "10.9.9.%u:29400", &last) != 1 || last < 9 || last - 9 >= sim->scenario.n_daemons)
        return;
    w->is_open = true;
    w->peer = last - 9;
    w->tick_ns = daemon_clock(sim, d) + LEADER_TICK_MS * SIM_MS;
    (void)snprintf(w->address, sizeof(w->address), "%s", address);
    error = choose_error(sim, d);
    if (error < 0) {
        note_end(sim, d, error);
        close_watch(d);
        return;
    }
    schedule_step(sim, d, sim->now_ns + way_ns(sim) + way_ns(sim), STEP_CONNECT);
}

/* ---- what the core demands ---- */

static void replace_leader(struct sim *sim, struct sim_daemon *d)
{
    const char *address = etcd_leader_address(&d->leader);

    if (!etcd_leader_presume_lost(&d->leader, address, daemon_clock(sim, d)))
        return;
    sim_trace(sim, "daemon %u takes the place of daemon %u, which is silent", daemon_number(sim, d),
              d->watch.peer);
    check_replaced(sim, d);
}

static void take_step(struct sim *sim, struct sim_daemon *d, enum leader_step step)
{
    char address[ETCD_ADDRESS_SIZE];

    if (step == LEADER_STEP_PING) {
        schedule_step(sim, d, sim->now_ns + way_ns(sim), STEP_REQUEST);
    } else if (step == LEADER_STEP_REOPEN && d->watch.is_open) {
        memcpy(address, d->watch.address, sizeof(address));
        close_watch(d);
        open_watch(sim, d, address);
    } else if (step == LEADER_STEP_REPLACE) {
        replace_leader(sim, d);
    }
}

void daemon_watch_etcd_answered(struct sim *sim, struct sim_daemon *d, bool is_answer)
{
    struct sim_watch *w = &d->watch;

    if (!is_answer || sim->now_ns > w->etcd_ns + STEADY_MS * SIM_MS)
        w->etcd_steady_ns = sim->now_ns;
    w->etcd_ns = sim->now_ns;
    if (!is_answer || d->leader.role != ETCD_FOLLOWING || w->watched_id != d->leader.seen_id)
        return;
    take_step(sim, d, leader_silence_etcd_answered(&w->silence));
    if (w->judged_ns == 0 && sim->now_ns >= w->answered_ns + JUDGED_MS * SIM_MS)
        w->judged_ns = sim->now_ns;
    check_noticed(sim, d, (NOTICED_MS + (d->leader.defers ? ETCD_DEFER_MS + CONFIRMED_MS : 0)) * SIM_MS);
}

/* ---- with each turn of the daemon ---- */

void daemon_watch_update(struct sim *sim, struct sim_daemon *d)
{
    struct sim_watch *w = &d->watch;
    const char *address = d->leader.role == ETCD_FOLLOWING ? etcd_leader_address(&d->leader) : "";
    uint64_t now_ns = daemon_clock(sim, d);

    if (d->leader.role == ETCD_LEADING)
        w->watched_id = 0;
    if (w->is_open &&
        (d->leader.role != ETCD_FOLLOWING || (address[0] != '\0' && strcmp(w->address, address) != 0)))
        close_watch(d);
    if (!w->is_open && address[0] != '\0' && now_ns >= w->due_ns)
        open_watch(sim, d, address);
    if (!w->is_open || now_ns < w->tick_ns)
        return;
    w->tick_ns = now_ns + LEADER_TICK_MS * SIM_MS;
    take_step(sim, d, leader_silence_tick(&w->silence));
}

uint64_t daemon_watch_deadline(const struct sim *sim, const struct sim_daemon *d)
{
    uint64_t now_ns = daemon_clock(sim, d);

    if (d->watch.is_open)
        return d->watch.tick_ns;
    return d->watch.due_ns > now_ns ? d->watch.due_ns : now_ns + LEADER_TICK_MS * SIM_MS;
}

void daemon_watch_boot(struct sim *sim, struct sim_daemon *d)
{
    d->watch = (struct sim_watch){.serial = d->watch.serial + 1, .etcd_steady_ns = sim->now_ns};
}

/* Connections to the process that has ended are closed by its kernel. */
void daemon_watch_crashed(struct sim *sim, const struct sim_daemon *dead)
{
    for (unsigned i = 0; i < sim->scenario.n_daemons; i++) {
        struct sim_daemon *d = &sim->daemons[i];

        if (d->alive && d->watch.peer_life == dead->life && &sim->daemons[d->watch.peer] == dead)
            schedule_step(sim, d, sim->now_ns + way_ns(sim), STEP_END);
    }
}

/* ---- moments ---- */

static void take_connect(struct sim *sim, struct sim_daemon *d)
{
    const struct sim_daemon *peer = &sim->daemons[d->watch.peer];

    if (sim->now_ns < cut_until_ns(sim, d) || peer->is_lost) {
        schedule_step(sim, d, sim->now_ns + SYN_AGAIN_MS * SIM_MS, STEP_CONNECT);
        return;
    }
    if (!peer->alive) {
        watch_ended(sim, d, -ECONNREFUSED);
        return;
    }
    d->watch.peer_life = peer->life;
    etcd_leader_connected(&d->leader, d->watch.address);
    schedule_step(sim, d, sim->now_ns + way_ns(sim), STEP_REQUEST);
}

/* The peer reads it. */
static void take_request(struct sim *sim, const struct sim_daemon *d)
{
    const struct sim_daemon *peer = &sim->daemons[d->watch.peer];

    if (!peer->is_lost)
        schedule_step(sim, d, sim->now_ns + way_ns(sim),
                      peer->alive && peer->life == d->watch.peer_life ? STEP_ANSWER : STEP_END);
}

static void take_leader_answer(struct sim *sim, struct sim_daemon *d)
{
    leader_silence_answered(&d->watch.silence);
    etcd_leader_answered(&d->leader, d->watch.address);
    d->watch.answered_ns = sim->now_ns;
    d->watch.judged_ns = 0;
}

static bool is_of_watch(const struct sim *sim, const struct moment *m)
{
    const struct sim_daemon *d = &sim->daemons[m->who];

    return d->alive && d->watch.is_open && d->watch.serial == m->detail / STEP_COUNT;
}

uint64_t daemon_watch_postponed_ns(const struct sim *sim, const struct moment *m)
{
    const struct sim_daemon *d = &sim->daemons[m->who];

    if (!is_of_watch(sim, m))
        return 0;
    return m->detail % STEP_COUNT == STEP_REQUEST ? sim->daemons[d->watch.peer].paused_until_ns
                                                  : d->paused_until_ns;
}

void daemon_watch_moment(struct sim *sim, const struct moment *m)
{
    struct sim_daemon *d = &sim->daemons[m->who];
    enum watch_step step = (enum watch_step)(m->detail % STEP_COUNT);

    if (!is_of_watch(sim, m))
        return;
    if (step == STEP_CONNECT)
        take_connect(sim, d);
    else if (sim->now_ns < cut_until_ns(sim, d))
        schedule_step(sim, d, cut_until_ns(sim, d) + random_between(&sim->random, 0, 200 * SIM_MS), step);
    else if (step == STEP_REQUEST)
        take_request(sim, d);
    else if (step == STEP_ANSWER)
        take_leader_answer(sim, d);
    else
        watch_ended(sim, d, 0);
}
