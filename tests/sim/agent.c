/*
 * One node: an agent process with the session core in it. What the session decides goes to the worker group, and what
 * the group reports to the session, as in launcher/agent/agent_nodes_uv.c.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/session/session_json.h"
#include "tests/sim/sim.h"

enum {
    GREETING_NONCE = 0x04030201,
    STOP_EACH = 4, /* leaves of a seed: the fourth stops the whole job */
};

static uint64_t agent_clock(const struct sim *sim, const struct sim_agent *a)
{
    return sim_clock_at(&a->clock, sim->now_ns);
}

unsigned agent_n_workers(unsigned agent)
{
    return 1 + agent % 3;
}

const char *agent_role(unsigned agent)
{
    return agent % 5 == 0 ? "reader" : "default";
}

void agent_fail_later(struct sim *sim, unsigned agent, uint64_t delay_ns)
{
    if (sim->agents[agent].alive && sim->agents[agent].part == PART_RUNNING)
        workers_fail(sim, agent, delay_ns);
}

/* ---- actions ---- */

static void step_agent(struct sim *sim, unsigned agent, struct session_event *event);

static void arm_agent(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    uint64_t deadline_ns = session_deadline(&a->session);
    uint64_t at_ns;

    if (deadline_ns == UINT64_MAX)
        return;
    at_ns = deadline_ns > agent_clock(sim, a) ? sim_clock_when(&a->clock, deadline_ns) : sim->now_ns;
    if (a->timer_ns > 0 && a->timer_ns <= at_ns)
        return;
    a->timer_ns = at_ns;
    schedule_add(&sim->schedule, at_ns, SIM_AGENT_TIMER, agent, a->life);
}

static void send_sim_hello(struct sim *sim, const struct sim_agent *a)
{
    struct session_hello hello;

    session_hello(&a->session, agent_clock(sim, a), &hello);
    network_send(sim, (unsigned)a->connection, SIM_DAEMON_END, MESSAGE_HELLO, &hello, sizeof(hello));
}

static void send_sim_report(struct sim *sim, const struct sim_agent *a)
{
    struct session_report report;

    if (a->connection < 0)
        return; /* the group has left meanwhile, in an action before this one */
    session_report(&a->session, agent_clock(sim, a), &report);
    network_send(sim, (unsigned)a->connection, SIM_DAEMON_END, MESSAGE_REPORT, &report, sizeof(report));
}

static void close_connection(struct sim *sim, struct sim_agent *a)
{
    if (a->connection >= 0)
        network_close(sim, (unsigned)a->connection, SIM_AGENT_END);
    a->connection = -1;
}

static void agent_end(struct sim *sim, unsigned agent, const struct session_view *view)
{
    struct sim_agent *a = &sim->agents[agent];

    check_end(sim, agent, view);
    a->ended = true;
    a->succeeded = a->session.end == SESSION_END_VERDICT && a->session.verdict == SESSION_VERDICT_SUCCESS;
    int stop_signal = (int)a->session.stop_signal;

    workers_event(sim, agent,
                  (struct group_event){.kind = stop_signal ? GROUP_SIGNAL : GROUP_END,
                                       .worker = -1,
                                       .value = stop_signal    ? stop_signal
                                                : a->succeeded ? 0
                                                               : 1,
                                       .stops_job = stop_signal > 0});
}

static void start_generation(struct sim *sim, unsigned agent, const struct session_view *view)
{
    struct sim_agent *a = &sim->agents[agent];

    check_start(sim, agent, view);
    a->restarts = view->restarts;
    a->changes = view->changes;
    a->cut_from = 0;
    host_cut_connect(sim, agent);
    workers_event(
        sim, agent,
        (struct group_event){.kind = GROUP_START,
                             .worker = -1,
                             .generation = (uint32_t)view->generation,
                             .restarts = (int)view->restarts,
                             .is_needed = view->place.group_world_size <= sim->scenario.params.min_nodes});
}

static void run_session_action(struct sim *sim, unsigned agent, enum session_action action,
                               const struct session_event *event)
{
    struct sim_agent *a = &sim->agents[agent];

    switch (action) {
    case SESSION_DO_DIAL:
        network_dial(sim, agent);
        break;
    case SESSION_DO_GREET:
        network_send(sim, (unsigned)a->connection, SIM_DAEMON_END, MESSAGE_GREETING, NULL, 0);
        break;
    case SESSION_DO_HELLO:
        send_sim_hello(sim, a);
        break;
    case SESSION_DO_REPORT:
        send_sim_report(sim, a);
        break;
    case SESSION_DO_ALIVE:
        network_send(sim, (unsigned)a->connection, SIM_DAEMON_END, MESSAGE_ALIVE, NULL, 0);
        break;
    case SESSION_DO_RENEW:
        network_send(sim, (unsigned)a->connection, SIM_DAEMON_END, MESSAGE_RENEW, &a->session.renewal,
                     sizeof(a->session.renewal));
        break;
    case SESSION_DO_CLOSE:
        close_connection(sim, a);
        break;
    case SESSION_DO_START:
        start_generation(sim, agent, event->view);
        break;
    case SESSION_DO_STOP:
        workers_event(sim, agent, (struct group_event){.kind = GROUP_PEER_FAILED, .worker = -1});
        break;
    case SESSION_DO_FENCE:
        sim->worlds[a->world].members[a->session.group_rank].lost = true; /* as it reports later */
        disturb(sim, agent, sim->now_ns);
        sim->fenced_ns = sim->now_ns;
        workers_event(sim, agent, (struct group_event){.kind = GROUP_LEASE_ENDED, .worker = -1});
        break;
    case SESSION_DO_END:
        agent_end(sim, agent, event->view);
        break;
    case SESSION_DO_DRAIN: /* workers snapshot and end soon */
        workers_event(sim, agent, (struct group_event){.kind = GROUP_DRAIN, .worker = -1});
        break;
    default: /* for people */
        break;
    }
}

/* The guardian has the end of the lease from its last renewal. */
static void pass_lease_on(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    uint64_t end_ns = session_lease_end(&a->session);
    uint64_t at_ns = end_ns == UINT64_MAX ? 0 : sim_clock_when(&a->clock, end_ns);

    if (at_ns == a->guardian_ns)
        return;
    a->guardian_ns = at_ns;
    schedule_add(&sim->schedule, at_ns > sim->now_ns ? at_ns : sim->now_ns, SIM_LEASE, agent, a->life);
}

/* What a view may change. */
struct obeyed {
    enum session_phase phase;
    enum session_end end;
    int64_t generation;
    uint64_t leased_ns;
};

static struct obeyed obeyed_by(const struct session *s)
{
    return (struct obeyed){s->phase, s->end, s->generation, s->leased_ns};
}

/* What a daemon that was replaced sends must change nothing. */
static void check_old_term(struct sim *sim, unsigned agent, const struct obeyed *before,
                           const struct session_view *view)
{
    struct sim_agent *a = &sim->agents[agent];
    struct obeyed after = obeyed_by(&a->session);

    if (view->kind == SESSION_VIEW_ELSEWHERE)
        return;
    if (view->term < a->seen_term &&
        (before->phase != after.phase || before->generation != after.generation ||
         before->leased_ns != after.leased_ns || before->end != after.end))
        violated(sim, "agent %u obeys term %llu, and knows term %llu", agent, (unsigned long long)view->term,
                 (unsigned long long)a->seen_term);
    if (view->term > a->seen_term)
        a->seen_term = view->term;
}

/* The time to join does not begin anew where nothing decides. */
static bool is_contact(const struct sim_agent *a, const struct session_event *event)
{
    return event->kind == SESSION_EVENT_ALIVE || event->kind == SESSION_EVENT_RENEWED ||
           (event->kind == SESSION_EVENT_VIEW &&
            (event->view->kind != SESSION_VIEW_ELSEWHERE || a->session.was_up));
}

/* As launcher/rdzv/session_uv.c does it. */
static bool names_cut(const struct session_event *event)
{
    return event->kind == SESSION_EVENT_GROUP_FAILED || event->kind == SESSION_EVENT_GROUP_READY ||
           (event->kind == SESSION_EVENT_VIEW && event->view->kind == SESSION_VIEW_STOP);
}

static void step_agent(struct sim *sim, unsigned agent, struct session_event *event)
{
    struct sim_agent *a = &sim->agents[agent];
    const struct obeyed before = obeyed_by(&a->session);
    struct session_actions actions;

    event->now_ns = agent_clock(sim, a);
    event->cut_from = names_cut(event) ? a->cut_from : 0;
    if (is_contact(a, event))
        a->contact_ns = sim->now_ns;
    if (event->view)
        a->view_instance = event->view->instance;
    session_step(&a->session, event, &actions);
    if (event->view)
        check_old_term(sim, agent, &before, event->view);
    pass_lease_on(sim, agent);
    for (size_t i = 0; i < actions.n_items; i++)
        run_session_action(sim, agent, actions.items[i], event);
    if (sim->trace && event->kind != SESSION_EVENT_ALIVE && event->kind != SESSION_EVENT_TIMER)
        sim_trace(sim, "agent %u: event %d%s%s -> %s, %s, generation %lld", agent, (int)event->kind,
                  event->view ? " " : "", event->view ? session_view_names[event->view->kind] : "",
                  session_link_names[a->session.link], session_phase_names[a->session.phase],
                  (long long)a->session.generation);
    arm_agent(sim, agent);
}

/* ---- life ---- */

void agent_boot(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    struct session_config config = {.endpoint = "10.9.9.9:29400",
                                    .cutoff_ns =
                                        sim->scenario.has_default_cutoff ? 0 : sim->scenario.cutoff_ns};
    struct session_hello *hello = &config.hello;

    if (a->alive)
        return;
    a->own_instance = a->seen_term = 0;
    a->cut_from = 0;
    a->n_dials = agent;
    a->restarts = a->changes = 0;
    a->alive = true;
    a->ended = false;
    a->life++;
    a->timer_ns = 0;
    a->contact_ns = sim->now_ns;
    a->connection = -1;
    workers_boot(sim, agent);
    a->world = a->failed_world = a->left_world = -1;
    a->last_generation = -1;
    a->clock = scenario_clock(sim);
    a->paused_until_ns = a->guardian_ns = 0;
    disturb(sim, agent, sim->now_ns + 10 * SIM_S); /* its former life may still have to be buried */
    *hello = session_hello_of_node(&sim->scenario.params, agent_n_workers(agent));
    if (sim->scenario.mixes_releases && agent % 2)
        scenario_make_earlier(&hello->params);
    hello->job[0] = (char)('A' + daemon_job_of(sim, agent));
    hello->nonce = (struct session_nonce){random_u64(&sim->random), ++sim->n_nonces};
    hello->node_rank = sim->scenario.hints ? (int32_t)(agent / sim->scenario.n_jobs) : -1;
    (void)snprintf(hello->host, sizeof(hello->host), "node%u", agent);
    text_copy(hello->role, sizeof(hello->role), agent_role(agent));
    sim_trace(sim, "agent %u: boots, nonce %llu", agent, (unsigned long long)hello->nonce.low);
    session_init(&a->session, &config);
    step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_START});
    schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->random, 0, 50 * SIM_MS), SIM_AGENT_READY,
                 agent, a->life);
}

static void come_back_later(struct sim *sim, unsigned agent)
{
    if (random_percent(&sim->random, sim->scenario.return_percent))
        schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->random, 10 * SIM_MS, 20 * SIM_S),
                     SIM_AGENT_BOOT, agent, 0);
}

/* Its guardian kills the workers, which takes a while, and tells the rendezvous. */
static void send_death_notice(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    struct session_hello hello;

    session_hello(&a->session, agent_clock(sim, a), &hello);
    hello.attempt = UINT32_MAX;
    hello.report = (struct session_report){
        .phase = SESSION_LEFT, .generation = hello.report.generation, .cause = {.kind = SESSION_CAUSE_LOST}};
    text_copy(hello.report.cause.text, sizeof(hello.report.cause.text), "it was killed");
    network_dial_death_notice(sim, agent, &hello, random_between(&sim->random, 0, sim->scenario.stop_max_ns));
}

void agent_kill(struct sim *sim, unsigned agent, bool silently)
{
    struct sim_agent *a = &sim->agents[agent];

    if (!a->alive)
        return;
    sim_trace(sim, "agent %u: dies%s", agent, silently ? " with its machine" : "");
    disturb(sim, agent, sim->now_ns);
    if (a->part == PART_RUNNING)
        check_death(sim, agent);
    if (a->part != PART_NONE && !silently && !a->ended &&
        random_percent(&sim->random, sim->scenario.death_notice_percent))
        send_death_notice(sim, agent);
    a->alive = false;
    workers_end(a);
    if (a->connection >= 0 && silently)
        network_vanish(sim, (unsigned)a->connection, SIM_AGENT_END);
    else
        close_connection(sim, a);
    a->connection = -1;
    if (!a->ended)
        come_back_later(sim, agent);
}

void agent_leave(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];

    if (!a->alive || a->ended)
        return;
    sim_trace(sim, "agent %u: is told to leave", agent);
    disturb(sim, agent, sim->now_ns);
    workers_event(sim, agent,
                  (struct group_event){.kind = GROUP_SIGNAL,
                                       .worker = -1,
                                       .value = SIGINT,
                                       .stops_job = sim->n_faults[FAULT_LEAVE] % STOP_EACH == STOP_EACH - 1});
}

void agent_drain(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];

    if (a->alive && !a->ended && a->part == PART_RUNNING)
        workers_event(sim, agent, (struct group_event){.kind = GROUP_SIGNAL, .worker = -1, .value = SIGTERM});
}

/* The end of the process. What it has not sent by now is not sent. */
void agent_exit(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];

    close_connection(sim, a);
    a->alive = false;
    workers_end(a);
}

/* ---- events ---- */

void agent_timer(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];

    a->timer_ns = 0;
    if (session_is_overdue(&a->session, agent_clock(sim, a)) && a->connection >= 0)
        step_agent(sim, agent,
                   &(struct session_event){
                       .kind = SESSION_EVENT_SLOW,
                       .slack_ns = network_slack_ns(sim, (unsigned)a->connection, SIM_AGENT_END)});
    if (session_deadline(&a->session) <= agent_clock(sim, a))
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_TIMER});
    else
        arm_agent(sim, agent);
}

void agent_connected(struct sim *sim, unsigned connection)
{
    struct sim_connection *c = sim->connections[connection];

    frame_reader_init_agent(&c->reader[SIM_AGENT_END], GREETING_NONCE);
    step_agent(sim, c->agent, &(struct session_event){.kind = SESSION_EVENT_CONNECTED});
}

void agent_lost(struct sim *sim, unsigned connection, const char *why)
{
    unsigned agent = sim->connections[connection]->agent;

    sim->agents[agent].connection = -1;
    step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_LOST, .text = why});
}

static void receive_view(struct sim *sim, unsigned agent, struct wire_span body)
{
    struct session_view view;
    char error[SESSION_JSON_ERROR_SIZE];
    uint32_t number;

    if (session_json_get_renewed(body.data, body.size, &number))
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_RENEWED, .number = number});
    else if (session_json_get_view(body.data, body.size, &view, error))
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_VIEW, .view = &view});
    else
        violated(sim, "an agent does not understand the rendezvous: %s", error);
}

static void agent_take_bytes(struct sim *sim, unsigned connection, const struct sim_message *m)
{
    static const enum session_event_kind kinds[FRAME_KIND_COUNT] = {
        [FRAME_ECHO] = SESSION_EVENT_ECHOED,
        [FRAME_OPENED] = SESSION_EVENT_OPENED,
        [FRAME_ALIVE] = SESSION_EVENT_ALIVE,
    };
    struct sim_connection *c = sim->connections[connection];
    struct buf *in = &c->in[SIM_AGENT_END];
    struct frame frame;
    size_t size;

    if (buf_append(in, m->data, m->size) != 0)
        abort();
    while (c->open[SIM_AGENT_END] &&
           frame_decode(&c->reader[SIM_AGENT_END], buf_bytes(in), buf_size(in), &frame, &size) == 0) {
        if (frame.kind == FRAME_BODY)
            receive_view(sim, c->agent, frame.body);
        else
            step_agent(sim, c->agent, &(struct session_event){.kind = kinds[frame.kind]});
        buf_consume(in, size);
    }
}

void agent_receive(struct sim *sim, unsigned connection, const struct sim_message *m)
{
    unsigned agent = sim->connections[connection]->agent;

    switch (m->kind) {
    case MESSAGE_BYTES:
        agent_take_bytes(sim, connection, m);
        break;
    case MESSAGE_ECHO:
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_ECHOED});
        break;
    case MESSAGE_OPENED:
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_OPENED});
        break;
    case MESSAGE_ALIVE:
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_ALIVE});
        break;
    case MESSAGE_RENEWED:
        step_agent(sim, agent,
                   &(struct session_event){.kind = SESSION_EVENT_RENEWED,
                                           .number = *(const uint32_t *)(const void *)m->data});
        break;
    case MESSAGE_VIEW:
        step_agent(sim, agent,
                   &(struct session_event){.kind = SESSION_EVENT_VIEW, .view = (const void *)m->data});
        break;
    default:
        break;
    }
}

/* ---- the reports of the worker group ---- */

static void report_ready(struct sim *sim, unsigned agent)
{
    sim->agents[agent].world = -1;
    step_agent(sim, agent,
               &(struct session_event){.kind = SESSION_EVENT_GROUP_READY,
                                       .port = (uint16_t)random_between(&sim->random, 1024, 65535)});
}

static void note_failure(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_world *w = &sim->worlds[a->world];
    struct sim_member *member = &w->members[a->session.group_rank];

    a->failed_world = a->world;
    member->failed = true;
    member->victim = w->death_ns > 0;
    sim_trace(sim, "agent %u: a worker of generation %lld fails%s", agent, (long long)w->generation,
              member->victim ? ", as another node is gone" : "");
    schedule_add(&sim->schedule, sim->now_ns + SIM_S, SIM_CHECK_NOTICE, agent, (uint64_t)a->world);
}

static void report_failed(struct sim *sim, unsigned agent, int worker)
{
    struct sim_agent *a = &sim->agents[agent];
    const struct worker_group *g = &a->node.machine;

    if (a->world <
        0) { /* the guardian was lost between two generations: the session waits for "ready" alone */
        step_agent(sim, agent,
                   &(struct session_event){
                       .kind = SESSION_EVENT_GROUP_FAILED, .cause = &a->failure, .when_ns = g->cause_ns});
        if (a->session.phase == SESSION_FAILED)
            violated(sim, "agent %u reports a failure, and is in no generation", agent);
        return;
    }
    a->failure = (struct session_cause){
        .kind = SESSION_CAUSE_WORKER, .group_rank = a->session.group_rank, .local_rank = worker, .rank = -1};
    if (worker >= 0) {
        a->failure.rank = (int32_t)sim->worlds[a->world].members[a->session.group_rank].rank_base + worker;
        a->failure.exit_code = group_worker_code(&g->workers[worker]);
        a->failure.pid = g->workers[worker].pid;
    } else {
        a->failure.exit_code = -SIGKILL;
    }
    (void)snprintf(a->failure.host, sizeof(a->failure.host), "node%u", agent);
    note_failure(sim, agent);
    step_agent(sim, agent,
               &(struct session_event){
                   .kind = SESSION_EVENT_GROUP_FAILED, .cause = &a->failure, .when_ns = g->cause_ns});
}

static void report_done(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];

    sim->worlds[a->world].members[a->session.group_rank].done = true;
    step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_GROUP_DONE});
}

static void leave_job(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];

    disturb(sim, agent, sim->now_ns);
    a->left_world = a->world;
    step_agent(sim, agent,
               &(struct session_event){.kind = SESSION_EVENT_LEAVE,
                                       .text = "received SIGTERM",
                                       .number = (uint32_t)(a->node.machine.stops_job ? SIGINT : 0)});
    a->ended = true;
}

void agent_group_action(struct sim *sim, unsigned agent, const struct group_action *action)
{
    switch (action->kind) {
    case GROUP_DO_REPORT_READY:
        report_ready(sim, agent);
        break;
    case GROUP_DO_REPORT_FAILED:
        report_failed(sim, agent, action->value);
        break;
    case GROUP_DO_REPORT_DONE:
        report_done(sim, agent);
        break;
    case GROUP_DO_REQUEST_DRAIN:
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_DRAIN});
        break;
    case GROUP_DO_LEAVE:
        leave_job(sim, agent);
        break;
    case GROUP_DO_FINISH:
        step_agent(sim, agent, &(struct session_event){.kind = SESSION_EVENT_GROUP_GONE});
        break;
    default: /* for the processes */
        break;
    }
}

void agent_ready(struct sim *sim, unsigned agent)
{
    if (!sim->agents[agent].ended)
        report_ready(sim, agent);
}
