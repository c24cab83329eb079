/*
 * A rendezvous process: does for the core what rounds_uv.c and rounds_agent_uv.c do. It may die between any two actions.
 *
 * Views of a job whose state is not durable are held in their connection. One of several that does not lead names the one that
 * does, as far as it knows.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/session/session_json.h"
#include "tests/sim/sim.h"

uint64_t daemon_clock(const struct sim *sim, const struct sim_daemon *d)
{
    return sim_clock_at(&d->clock, sim->now_ns);
}

unsigned daemon_number(const struct sim *sim, const struct sim_daemon *d)
{
    return (unsigned)(d - sim->daemons);
}

unsigned daemon_job_of(const struct sim *sim, unsigned agent)
{
    return agent % sim->scenario.n_jobs;
}

struct sim_daemon *daemon_leading(struct sim *sim)
{
    for (unsigned i = 0; i < sim->scenario.n_daemons; i++)
        if (sim->daemons[i].alive && sim->daemons[i].leads)
            return &sim->daemons[i];
    return NULL;
}

static unsigned connection_number(struct rounds_conn *s)
{
    return list_entry(s, struct sim_connection, session)->number;
}

/* ---- what is held ---- */

static void send_held(struct sim *sim, struct sim_connection *c, const struct sim_held *h)
{
    if (h->kind == MESSAGE_RENEWED) {
        network_send(sim, c->number, SIM_AGENT_END, MESSAGE_RENEWED, &h->number, sizeof(h->number));
        return;
    }
    check_told(sim, &sim->daemons[c->daemon], &h->told);
    network_send(sim, c->number, SIM_AGENT_END, MESSAGE_VIEW, &h->view, sizeof(h->view));
}

static void hold(struct sim_connection *c, const struct sim_held *h, uint64_t mark)
{
    c->held_mark = mark > c->held_mark ? mark : c->held_mark;
    if (buf_append(&c->held, h, sizeof(*h)) != 0)
        abort();
}

static void release_held(struct sim *sim, struct sim_connection *c)
{
    size_t n = buf_size(&c->held) / sizeof(struct sim_held);
    const struct sim_held *held = (const void *)buf_bytes(&c->held);

    for (size_t i = 0; i < n; i++)
        send_held(sim, c, &held[i]);
    buf_reset(&c->held);
    c->held_mark = 0;
    if (c->closing)
        network_close(sim, c->number, SIM_DAEMON_END);
}

void daemon_release(struct sim *sim, struct sim_daemon *d, uint64_t done)
{
    for (size_t i = 0; i < sim->n_connections; i++)
        if (buf_size(&sim->connections[i]->held) > 0 && &sim->daemons[sim->connections[i]->daemon] == d &&
            sim->connections[i]->held_mark <= done)
            release_held(sim, sim->connections[i]);
}

/* ---- life ---- */

static void forget_connections(struct sim *sim, const struct sim_daemon *d, bool silently)
{
    for (size_t i = 0; i < sim->n_connections; i++) {
        struct sim_connection *c = sim->connections[i];

        if (!c->open[SIM_DAEMON_END] || &sim->daemons[c->daemon] != d)
            continue;
        if (silently)
            network_vanish(sim, (unsigned)i, SIM_DAEMON_END);
        else
            network_close(sim, (unsigned)i, SIM_DAEMON_END);
        rounds_conn_init(&c->session);
        buf_reset(&c->held);
    }
}

void daemon_roll_back(struct sim *sim, struct sim_daemon *d)
{
    if (!d->alive)
        return;
    daemon_crash(sim, d, true);
    sim_trace(sim, "its state is an older one");
    sim->rendezvous.keeps_state = sim->rendezvous.amnesia = sim->rendezvous.rolled_back = true;
    daemon_disk_roll_back(d);
}

void daemon_crash(struct sim *sim, struct sim_daemon *d, bool keeps_state)
{
    sim_trace(sim, "daemon %u dies%s%s", daemon_number(sim, d), d->leads ? ", and led" : "",
              keeps_state ? "" : ", and its disk with it");
    d->alive = d->leads = false;
    sim->rendezvous.keeps_state = keeps_state;
    d->crash_after = 0;
    d->timer_ns = 0;
    d->paused_until_ns = 0;
    daemon_disk_lose_writes(sim, d);
    rounds_finish(&d->rounds);
    forget_connections(sim, d, random_percent(&sim->random, 20));
    if (sim->scenario.has_etcd)
        etcd_leader_finish(&d->leader);
    if (!keeps_state) {
        sim->rendezvous.amnesia = true;
        daemon_disk_lose(d);
    }
    schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->random, 1 * SIM_MS, 4 * SIM_S),
                 SIM_DAEMON_BOOT, daemon_number(sim, d), 0);
}

static void arm_daemon(struct sim *sim, struct sim_daemon *d)
{
    uint64_t deadline_ns = rounds_deadline(&d->rounds);
    uint64_t at_ns;

    if (deadline_ns == UINT64_MAX)
        return;
    at_ns = deadline_ns > daemon_clock(sim, d) ? sim_clock_when(&d->clock, deadline_ns) : sim->now_ns;
    if (d->timer_ns > 0 && d->timer_ns <= at_ns)
        return; /* that one will ask again */
    d->timer_ns = at_ns;
    /* Silence is judged behind all reads. */
    schedule_add_last(&sim->schedule, at_ns, SIM_DAEMON_TIMER, daemon_number(sim, d), d->life);
}

static void begin_rounds(struct sim *sim, struct sim_daemon *d)
{
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;

    config.seed = random_u64(&sim->random);
    config.lease_ms = sim->scenario.own_lease_ms;
    rounds_init(&d->rounds, &config);
}

void daemon_load(struct sim *sim, struct sim_daemon *d, const uint8_t *text, size_t size)
{
    char error[ROUNDS_JSON_ERROR_SIZE];

    if (!rounds_json_load(&d->rounds, text, size, daemon_clock(sim, d), error))
        violated(sim, "a daemon cannot read what was written: %s", error);
}

static void begin_to_decide(struct sim *sim, struct sim_daemon *d)
{
    d->leads = true;
    d->boot_ns = sim->now_ns;
    memset(d->progress, 0, sizeof(d->progress));
    sim_trace(sim, "daemon %u decides, with %zu jobs", daemon_number(sim, d), d->rounds.n_jobs);
    arm_daemon(sim, d);
}

void daemon_boot(struct sim *sim, struct sim_daemon *d)
{
    d->alive = true;
    d->up_ns = sim->now_ns;
    d->life++;
    begin_rounds(sim, d);
    d->clock = scenario_clock(sim);
    if (sim->scenario.has_etcd) {
        daemon_etcd_boot(sim, d);
        return;
    }
    daemon_disk_load(sim, d);
    begin_to_decide(sim, d);
}

void daemon_lead(struct sim *sim, struct sim_daemon *d)
{
    daemon_etcd_load(sim, d);
    check_loaded(sim, d);
    sim->rendezvous.keeps_state = true; /* what the last one has decided may not have been saved */
    disturb_daemon(sim, sim->now_ns + 10 * SIM_S);
    begin_to_decide(sim, d);
}

void daemon_depose(struct sim *sim, struct sim_daemon *d)
{
    d->leads = false;
    sim->rendezvous.keeps_state = true;
    disturb_daemon(sim, sim->now_ns + 10 * SIM_S);
    rounds_reset(&d->rounds);
    forget_connections(sim, d, false);
    d->timer_ns = 0;
}

void daemon_finish(struct sim *sim)
{
    for (unsigned i = 0; i < sim->scenario.n_daemons; i++) {
        struct sim_daemon *d = &sim->daemons[i];

        if (d->alive)
            rounds_finish(&d->rounds);
        if (d->alive && sim->scenario.has_etcd)
            etcd_leader_finish(&d->leader);
        daemon_disk_finish(d);
    }
    if (sim->scenario.has_etcd)
        etcd_link_finish(&sim->etcd);
}

/* ---- actions ---- */

static void save_job(struct sim *sim, struct sim_daemon *d, const struct rounds_job *job, bool forget)
{
    if (sim->scenario.has_etcd)
        daemon_etcd_save(d, job, forget);
    else
        daemon_disk_save(d, job, forget);
    if (forget)
        check_forgotten(sim, job->instance);
}

static struct sim_told told_of(const struct sim *sim, const struct rounds_job *job)
{
    return job ? (struct sim_told){.instance = job->instance,
                                   .generation = job->generation,
                                   .restarts = job->restarts,
                                   .changes = job->changes,
                                   .has_charges = job->state != ROUNDS_GATHERING,
                                   .is_over = job->state == ROUNDS_CLOSED}
               : (struct sim_told){.generation = -1};
}

static void send_view(struct sim *sim, struct sim_daemon *d, const struct rounds_action *action)
{
    struct sim_connection *c = list_entry(action->session, struct sim_connection, session);
    struct sim_held h = {.kind = MESSAGE_VIEW, .view = action->view, .told = told_of(sim, action->job)};
    uint64_t mark =
        sim->scenario.has_etcd ? etcd_leader_want_mark(&d->leader) : daemon_disk_mark(d, action->job);

    h.view.term = sim->scenario.has_etcd ? (uint64_t)d->leader.term : 0;
    if (mark == 0 && buf_size(&c->held) == 0)
        send_held(sim, c, &h);
    else
        hold(c, &h, mark);
}

/* Ahead of views that are held: a slow disk must not end a lease. */
static void send_renewed(struct sim *sim, struct sim_daemon *d, const struct rounds_action *action)
{
    struct sim_connection *c = list_entry(action->session, struct sim_connection, session);
    struct sim_held h = {.kind = MESSAGE_RENEWED, .number = action->number};

    (void)d;
    send_held(sim, c, &h);
}

static void close_after_views(struct sim *sim, struct rounds_conn *session)
{
    struct sim_connection *c = list_entry(session, struct sim_connection, session);

    c->closing = true;
    if (buf_size(&c->held) == 0)
        network_close(sim, c->number, SIM_DAEMON_END);
}

static void run_rounds_action(struct sim *sim, struct sim_daemon *d, const struct rounds_action *action)
{
    switch (action->kind) {
    case ROUNDS_DO_SAVE:
        save_job(sim, d, action->job, false);
        break;
    case ROUNDS_DO_REPORT:
        check_log(sim, action->job, action->log_kinds);
        break;
    case ROUNDS_DO_SEND:
        send_view(sim, d, action);
        break;
    case ROUNDS_DO_ALIVE:
        network_send(sim, connection_number(action->session), SIM_AGENT_END, MESSAGE_ALIVE, NULL, 0);
        break;
    case ROUNDS_DO_RENEWED:
        send_renewed(sim, d, action);
        break;
    case ROUNDS_DO_CLOSE:
        close_after_views(sim, action->session);
        break;
    case ROUNDS_DO_FORGET:
        save_job(sim, d, action->job, true);
        break;
    case ROUNDS_ACTION_COUNT:
        break;
    }
}

/* It does not lead, or not any more: the core must not keep a closed connection. */
static void drop_event(struct sim_daemon *d, const struct rounds_event *event)
{
    struct rounds_action action;

    if (event->kind != ROUNDS_DISCONNECTED)
        return;
    rounds_step(&d->rounds, event);
    while (rounds_next(&d->rounds, &action))
        ;
}

void daemon_postpone(struct sim *sim, struct sim_daemon *d)
{
    uint64_t since_ns = sim->scenario.has_etcd ? etcd_leader_unsaved(&d->leader)
                        : d->disk_busy         ? d->disk_since_ns
                                               : 0;

    if (d->leads)
        rounds_postpone(&d->rounds, since_ns, daemon_clock(sim, d));
}

static void step_daemon(struct sim *sim, struct sim_daemon *d, struct rounds_event *event)
{
    struct rounds_action action;

    event->now_ns = daemon_clock(sim, d);
    if (!d->leads || (sim->scenario.has_etcd && !etcd_leader_holds(&d->leader, event->now_ns))) {
        drop_event(d, event);
        return;
    }
    daemon_postpone(sim, d);
    rounds_step(&d->rounds, event);
    while (rounds_next(&d->rounds, &action)) {
        if (d->crash_after > 0 && --d->crash_after == 0) {
            daemon_crash(sim, d, d->crash_keeps_state);
            return;
        }
        run_rounds_action(sim, d, &action);
    }
    if (sim->scenario.has_etcd)
        daemon_etcd_write(sim, d);
    else
        daemon_disk_write(sim, d);
    check_progress(sim, d);
    arm_daemon(sim, d);
}

/* ---- events ---- */

static void extend_slow_sessions(struct sim *sim, struct sim_daemon *d)
{
    struct rounds_conn *overdue[16];
    size_t n =
        rounds_overdue(&d->rounds, daemon_clock(sim, d), overdue, sizeof(overdue) / sizeof(overdue[0]));

    for (size_t i = 0; i < n; i++)
        step_daemon(sim, d,
                    &(struct rounds_event){
                        .kind = ROUNDS_SLOW,
                        .session = overdue[i],
                        .slack_ns = network_slack_ns(sim, connection_number(overdue[i]), SIM_DAEMON_END)});
}

void daemon_timer(struct sim *sim, struct sim_daemon *d)
{
    d->timer_ns = 0;
    if (!d->leads)
        return;
    if (rounds_deadline(&d->rounds) > daemon_clock(sim, d)) {
        arm_daemon(sim, d);
        return;
    }
    extend_slow_sessions(sim, d);
    step_daemon(sim, d, &(struct rounds_event){.kind = ROUNDS_TIMER});
    if (d->alive && d->leads &&
        !(sim->scenario.has_etcd && !etcd_leader_holds(&d->leader, daemon_clock(sim, d))) &&
        rounds_deadline(&d->rounds) <= daemon_clock(sim, d))
        violated(sim, "the rendezvous wants to be woken again at once, for ever");
}

void daemon_lost(struct sim *sim, unsigned connection, bool orderly)
{
    struct sim_connection *c = sim->connections[connection];

    buf_reset(&c->held);
    step_daemon(
        sim, &sim->daemons[c->daemon],
        &(struct rounds_event){.kind = ROUNDS_DISCONNECTED, .orderly = orderly, .session = &c->session});
}

static void daemon_address(unsigned daemon, char address[SESSION_ADDR_SIZE])
{
    (void)snprintf(address, SESSION_ADDR_SIZE, "10.9.9.%u", 9 + daemon);
}

/* Another daemon leads, or none. */
static void send_elsewhere(struct sim *sim, struct sim_connection *c)
{
    struct session_view view = {
        .kind = SESSION_VIEW_ELSEWHERE, .generation = -1, .cause = session_cause_empty(SESSION_CAUSE_NONE)};

    text_copy(view.leader, sizeof(view.leader), etcd_leader_address(&sim->daemons[c->daemon].leader));
    network_send(sim, c->number, SIM_AGENT_END, MESSAGE_VIEW, &view, sizeof(view));
    network_close(sim, c->number, SIM_DAEMON_END);
}

static void receive_sim_hello(struct sim *sim, struct sim_connection *c, const struct session_hello *hello)
{
    struct sim_daemon *d = &sim->daemons[c->daemon];
    char peer[32], local[SESSION_ADDR_SIZE];

    if (!d->leads) {
        send_elsewhere(sim, c);
        return;
    }
    daemon_address(c->daemon, local);
    (void)snprintf(peer, sizeof(peer), c->agent == 0 && c->daemon == 0 ? "127.0.0.1" : "10.0.%u.%u",
                   c->agent / 250, c->agent % 250 + 1);
    step_daemon(sim, d,
                &(struct rounds_event){.kind = ROUNDS_HELLO,
                                       .session = &c->session,
                                       .hello = hello,
                                       .peer = peer,
                                       .local = c->agent == 0 && c->daemon == 0 ? "127.0.0.1" : local});
}

static void receive_message(struct sim *sim, struct sim_connection *c, struct wire_span body)
{
    struct session_json_message message;
    struct sim_daemon *d = &sim->daemons[c->daemon];
    char error[SESSION_JSON_ERROR_SIZE];

    if (!session_json_get_message(body.data, body.size, &message, error))
        violated(sim, "the rendezvous does not understand an agent: %s", error);
    else if (message.kind == SESSION_JSON_HELLO)
        receive_sim_hello(sim, c, &message.hello);
    else if (message.kind == SESSION_JSON_RENEW)
        step_daemon(
            sim, d,
            &(struct rounds_event){.kind = ROUNDS_RENEW, .session = &c->session, .number = message.renewal});
    else
        step_daemon(
            sim, d,
            &(struct rounds_event){.kind = ROUNDS_REPORT, .session = &c->session, .report = &message.report});
}

static void daemon_take_bytes(struct sim *sim, unsigned connection, const struct sim_message *m)
{
    struct sim_connection *c = sim->connections[connection];
    struct buf *in = &c->in[SIM_DAEMON_END];
    struct sim_daemon *d = &sim->daemons[c->daemon];
    uint64_t life = d->life;
    struct frame frame;
    size_t size;

    if (buf_append(in, m->data, m->size) != 0)
        abort();
    while (d->life == life && d->alive && c->open[SIM_DAEMON_END] &&
           frame_decode(&c->reader[SIM_DAEMON_END], buf_bytes(in), buf_size(in), &frame, &size) == 0) {
        if (frame.kind == FRAME_OPENED)
            network_send(sim, connection, SIM_AGENT_END, MESSAGE_ECHO, FRAME_OPENING, FRAME_OPENING_SIZE);
        else if (frame.kind == FRAME_ALIVE)
            step_daemon(sim, d, &(struct rounds_event){.kind = ROUNDS_ALIVE, .session = &c->session});
        else
            receive_message(sim, c, frame.body);
        buf_consume(in, size);
    }
}

void daemon_receive(struct sim *sim, unsigned connection, const struct sim_message *m)
{
    static const uint32_t nonce = 0x04030201;
    struct sim_connection *c = sim->connections[connection];
    struct sim_daemon *d = &sim->daemons[c->daemon];

    switch (m->kind) {
    case MESSAGE_GREETING:
        frame_reader_init_server(&c->reader[SIM_DAEMON_END]);
        network_send(sim, connection, SIM_AGENT_END, MESSAGE_ECHO, &nonce, sizeof(nonce));
        break;
    case MESSAGE_BYTES:
        daemon_take_bytes(sim, connection, m);
        break;
    case MESSAGE_HELLO:
        network_send(sim, connection, SIM_AGENT_END, MESSAGE_OPENED, FRAME_OPENING, FRAME_OPENING_SIZE);
        receive_sim_hello(sim, c, (const void *)m->data);
        break;
    case MESSAGE_REPORT:
        step_daemon(sim, d,
                    &(struct rounds_event){
                        .kind = ROUNDS_REPORT, .session = &c->session, .report = (const void *)m->data});
        break;
    case MESSAGE_ALIVE:
        step_daemon(sim, d, &(struct rounds_event){.kind = ROUNDS_ALIVE, .session = &c->session});
        break;
    case MESSAGE_RENEW:
        step_daemon(sim, d,
                    &(struct rounds_event){.kind = ROUNDS_RENEW,
                                           .session = &c->session,
                                           .number = *(const uint32_t *)(const void *)m->data});
        break;
    default:
        break;
    }
}
