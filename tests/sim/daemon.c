/*
 * The rendezvous process: does for the core what rounds_uv.c, rounds_agent_uv.c and rounds_disk_uv.c do. It may die
 * between any two actions.
 *
 * The disk takes its time: jobs that are saved while a batch is being written go into the next one, each with its last
 * state, and views of a job that is not on disk are held in their connection. A crash loses what waits, and of the batch
 * that is being written any part.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rounds_json.h"
#include "rendezvous/session_json.h"
#include "tests/sim/sim.h"

static uint64_t daemon_clock(const struct sim *sim)
{
    return sim_clock_at(&sim->daemon.clock, sim->now_ns);
}

unsigned daemon_job_of(const struct sim *sim, unsigned agent)
{
    return agent % sim->scenario.n_jobs;
}

static unsigned connection_number(struct rounds_conn *s)
{
    return list_entry(s, struct sim_connection, session)->number;
}

/* ---- the disk ---- */

static struct sim_file *file_of(struct sim_daemon *d, uint64_t instance)
{
    for (size_t i = 0; i < d->n_files; i++)
        if (d->files[i].instance == instance)
            return &d->files[i];
    if (d->n_files == d->files_capacity) {
        d->files_capacity = d->files_capacity ? d->files_capacity * 2 : 8;
        d->files = realloc(d->files, d->files_capacity * sizeof(*d->files));
        if (!d->files)
            abort();
    }
    d->files[d->n_files] = (struct sim_file){.instance = instance};
    return &d->files[d->n_files++];
}

static void start_batch(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;
    uint64_t at_ns = sim->now_ns + random_between(&sim->random, 0, sim->scenario.disk_max_ns);

    for (size_t i = 0; i < d->n_files && !d->disk_busy; i++)
        d->disk_busy = d->files[i].waiting.pending;
    if (!d->disk_busy)
        return;
    for (size_t i = 0; i < d->n_files; i++) {
        struct sim_write free_one = d->files[i].writing;

        d->files[i].writing = d->files[i].waiting;
        d->files[i].waiting = free_one;
    }
    if (sim->scenario.disk_max_ns > 50 * SIM_MS)
        disturb_daemon(sim, at_ns);
    if (sim->scenario.disk_max_ns == 0)
        daemon_written(sim);
    else
        schedule_add(&sim->schedule, at_ns, SIM_DISK, 0, d->life);
}

static void copy_text(struct buf *to, const struct buf *from)
{
    buf_reset(to);
    if (buf_append(to, buf_bytes(from), buf_size(from)) != 0)
        abort();
}

static void complete_write(struct sim *sim, struct sim_file *f)
{
    if (random_percent(&sim->random, 40))
        copy_text(&f->old, &f->disk);
    copy_text(&f->disk, &f->writing.text);
}

static void drop_write(struct sim_write *w)
{
    buf_reset(&w->text);
    w->pending = false;
}

/* The mark of the job's last save; 0: it is on disk. */
static uint64_t mark_of(const struct sim_daemon *d, const struct rounds_job *job)
{
    for (size_t i = 0; job && i < d->n_files; i++)
        if (d->files[i].instance == job->instance)
            return d->files[i].waiting.pending   ? d->files[i].waiting.mark
                   : d->files[i].writing.pending ? d->files[i].writing.mark
                                                 : 0;
    return 0;
}

static void release_held(struct sim *sim, struct sim_connection *c)
{
    size_t n = buf_size(&c->held) / sizeof(struct session_view);
    const struct session_view *views = (const void *)buf_bytes(&c->held);

    for (size_t i = 0; i < n; i++)
        network_send(sim, c->number, SIM_AGENT_END, MESSAGE_VIEW, &views[i], sizeof(views[i]));
    buf_reset(&c->held);
    c->held_mark = 0;
    if (c->closing)
        network_close(sim, c->number, SIM_DAEMON_END);
}

void daemon_written(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;
    uint64_t done = 0;

    for (size_t i = 0; i < d->n_files; i++) {
        struct sim_file *f = &d->files[i];

        if (!f->writing.pending)
            continue;
        complete_write(sim, f);
        done = f->writing.mark > done ? f->writing.mark : done;
        drop_write(&f->writing);
    }
    d->disk_busy = false;
    for (size_t i = 0; i < sim->n_connections; i++)
        if (buf_size(&sim->connections[i]->held) > 0 && sim->connections[i]->held_mark <= done)
            release_held(sim, sim->connections[i]);
    start_batch(sim);
}

/* The process dies: each file of the batch has been renamed, or not. */
static void lose_writes(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;

    for (size_t i = 0; i < d->n_files; i++) {
        if (d->files[i].writing.pending && random_percent(&sim->random, 50))
            complete_write(sim, &d->files[i]);
        drop_write(&d->files[i].writing);
        drop_write(&d->files[i].waiting);
    }
    d->disk_busy = false;
}

/* ---- life ---- */

static void forget_connections(struct sim *sim, bool silently)
{
    for (size_t i = 0; i < sim->n_connections; i++) {
        if (!sim->connections[i]->open[SIM_DAEMON_END])
            continue;
        if (silently)
            network_vanish(sim, (unsigned)i, SIM_DAEMON_END);
        else
            network_close(sim, (unsigned)i, SIM_DAEMON_END);
        rounds_conn_init(&sim->connections[i]->session);
        buf_reset(&sim->connections[i]->held);
    }
}

void daemon_roll_back(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;

    if (!d->alive)
        return;
    daemon_crash(sim, true);
    sim_trace(sim, "its state is an older one");
    d->keeps_state = d->amnesia = d->rolled_back = true;
    for (size_t i = 0; i < d->n_files; i++)
        copy_text(&d->files[i].disk, &d->files[i].old);
}

void daemon_crash(struct sim *sim, bool keeps_state)
{
    struct sim_daemon *d = &sim->daemon;

    sim_trace(sim, "daemon dies%s", keeps_state ? "" : ", and its disk with it");
    d->alive = false;
    d->keeps_state = keeps_state;
    d->crash_after = 0;
    d->timer_ns = 0;
    d->paused_until_ns = 0;
    lose_writes(sim);
    rounds_finish(&d->rounds);
    forget_connections(sim, random_percent(&sim->random, 20));
    if (!keeps_state) {
        d->amnesia = true;
        for (size_t i = 0; i < d->n_files; i++)
            buf_reset(&d->files[i].disk);
    }
    schedule_add(&sim->schedule, sim->now_ns + random_between(&sim->random, 1 * SIM_MS, 4 * SIM_S),
                 SIM_DAEMON_BOOT, 0, 0);
}

static void arm_daemon(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;
    uint64_t deadline_ns = rounds_deadline(&d->rounds);
    uint64_t at_ns;

    if (deadline_ns == UINT64_MAX)
        return;
    at_ns = deadline_ns > daemon_clock(sim) ? sim_clock_when(&d->clock, deadline_ns) : sim->now_ns;
    if (d->timer_ns > 0 && d->timer_ns <= at_ns)
        return; /* that one will ask again */
    d->timer_ns = at_ns;
    /* Silence is judged behind all reads. */
    schedule_add_last(&sim->schedule, at_ns, SIM_DAEMON_TIMER, 0, d->life);
}

void daemon_boot(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;
    struct rounds_config config = ROUNDS_CONFIG_DEFAULT;
    char error[ROUNDS_JSON_ERROR_SIZE];

    config.seed = random_u64(&sim->random);
    config.lease_ms = sim->scenario.own_lease_ms;
    d->alive = true;
    d->life++;
    d->clock = scenario_clock(sim);
    d->boot_ns = sim->now_ns;
    memset(d->progress, 0, sizeof(d->progress));
    rounds_init(&d->rounds, &config);
    for (size_t i = 0; i < d->n_files; i++) {
        const struct buf *disk = &d->files[i].disk;

        if (buf_size(disk) == 0)
            continue;
        if (!rounds_json_load(&d->rounds, buf_bytes(disk), buf_size(disk), daemon_clock(sim), error))
            violated(sim, "the daemon cannot read what it wrote: %s", error);
        if (d->rounds.superseded) /* renamed */
            buf_reset(&file_of(d, d->rounds.superseded)->disk);
    }
    sim_trace(sim, "daemon runs, with %zu jobs", d->rounds.n_jobs);
    arm_daemon(sim);
}

void daemon_finish(struct sim *sim)
{
    if (sim->daemon.alive)
        rounds_finish(&sim->daemon.rounds);
    for (size_t i = 0; i < sim->daemon.n_files; i++) {
        buf_finish(&sim->daemon.files[i].disk);
        buf_finish(&sim->daemon.files[i].old);
        buf_finish(&sim->daemon.files[i].waiting.text);
        buf_finish(&sim->daemon.files[i].writing.text);
    }
    free(sim->daemon.files);
}

/* ---- actions ---- */

static void want_write(struct sim *sim, const struct rounds_job *job, bool forget)
{
    struct sim_daemon *d = &sim->daemon;
    struct sim_write *w = &file_of(d, job->instance)->waiting;

    buf_reset(&w->text);
    w->pending = true;
    w->mark = ++d->mark;
    if (!forget && rounds_json_save(&w->text, job) != 0)
        abort();
}

static void send_view(struct sim *sim, const struct rounds_action *action)
{
    struct sim_connection *c = list_entry(action->session, struct sim_connection, session);
    uint64_t mark = mark_of(&sim->daemon, action->job);

    if (mark == 0 && buf_size(&c->held) == 0) {
        network_send(sim, c->number, SIM_AGENT_END, MESSAGE_VIEW, &action->view, sizeof(action->view));
        return;
    }
    c->held_mark = mark > c->held_mark ? mark : c->held_mark;
    if (buf_append(&c->held, &action->view, sizeof(action->view)) != 0)
        abort();
}

static void close_after_views(struct sim *sim, struct rounds_conn *session)
{
    struct sim_connection *c = list_entry(session, struct sim_connection, session);

    c->closing = true;
    if (buf_size(&c->held) == 0)
        network_close(sim, c->number, SIM_DAEMON_END);
}

static void run_rounds_action(struct sim *sim, const struct rounds_action *action)
{
    switch (action->kind) {
    case ROUNDS_DO_SAVE:
        want_write(sim, action->job, false);
        break;
    case ROUNDS_DO_REPORT:
        check_log(sim, action->job, action->log_kinds);
        break;
    case ROUNDS_DO_SEND:
        send_view(sim, action);
        break;
    case ROUNDS_DO_ALIVE:
        network_send(sim, connection_number(action->session), SIM_AGENT_END, MESSAGE_ALIVE, NULL, 0);
        break;
    case ROUNDS_DO_RENEWED:
        network_send(sim, connection_number(action->session), SIM_AGENT_END, MESSAGE_RENEWED, &action->number,
                     sizeof(action->number));
        break;
    case ROUNDS_DO_CLOSE:
        close_after_views(sim, action->session);
        break;
    case ROUNDS_DO_FORGET:
        want_write(sim, action->job, true);
        break;
    case ROUNDS_ACTION_COUNT:
        break;
    }
}

static void step_daemon(struct sim *sim, struct rounds_event *event)
{
    struct sim_daemon *d = &sim->daemon;
    struct rounds_action action;

    event->now_ns = daemon_clock(sim);
    rounds_step(&d->rounds, event);
    while (rounds_next(&d->rounds, &action)) {
        if (d->crash_after > 0 && --d->crash_after == 0) {
            daemon_crash(sim, d->crash_keeps_state);
            return;
        }
        run_rounds_action(sim, &action);
    }
    if (!d->disk_busy)
        start_batch(sim);
    check_progress(sim);
    arm_daemon(sim);
}

/* ---- events ---- */

static void extend_slow_sessions(struct sim *sim)
{
    struct rounds_conn *overdue[16];
    size_t n =
        rounds_overdue(&sim->daemon.rounds, daemon_clock(sim), overdue, sizeof(overdue) / sizeof(overdue[0]));

    for (size_t i = 0; i < n; i++)
        step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_SLOW,
                                                .session = overdue[i],
                                                .slack_ns = network_slack_ns(
                                                    sim, connection_number(overdue[i]), SIM_DAEMON_END)});
}

void daemon_timer(struct sim *sim)
{
    struct sim_daemon *d = &sim->daemon;

    d->timer_ns = 0;
    if (rounds_deadline(&d->rounds) > daemon_clock(sim)) {
        arm_daemon(sim);
        return;
    }
    extend_slow_sessions(sim);
    step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_TIMER});
    if (d->alive && rounds_deadline(&d->rounds) <= daemon_clock(sim))
        violated(sim, "the rendezvous wants to be woken again at once, for ever");
}

void daemon_lost(struct sim *sim, unsigned connection, bool orderly)
{
    buf_reset(&sim->connections[connection]->held);
    step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_DISCONNECTED,
                                            .orderly = orderly,
                                            .session = &sim->connections[connection]->session});
}

static void receive_sim_hello(struct sim *sim, struct sim_connection *c, const struct session_hello *hello)
{
    char peer[32];

    (void)snprintf(peer, sizeof(peer), c->agent == 0 ? "127.0.0.1" : "10.0.%u.%u", c->agent / 250,
                   c->agent % 250 + 1);
    step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_HELLO,
                                            .session = &c->session,
                                            .hello = hello,
                                            .peer = peer,
                                            .local = c->agent == 0 ? "127.0.0.1" : "10.9.9.9"});
}

static void receive_message(struct sim *sim, struct sim_connection *c, struct wire_span body)
{
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];

    if (!session_json_get_message(body.data, body.size, &message, error))
        violated(sim, "the rendezvous does not understand an agent: %s", error);
    else if (message.kind == SESSION_JSON_HELLO)
        receive_sim_hello(sim, c, &message.hello);
    else if (message.kind == SESSION_JSON_RENEW)
        step_daemon(sim, &(struct rounds_event){
                             .kind = ROUNDS_RENEW, .session = &c->session, .number = message.renewal});
    else
        step_daemon(sim, &(struct rounds_event){
                             .kind = ROUNDS_REPORT, .session = &c->session, .report = &message.report});
}

static void daemon_take_bytes(struct sim *sim, unsigned connection, const struct sim_message *m)
{
    struct sim_connection *c = sim->connections[connection];
    struct buf *in = &c->in[SIM_DAEMON_END];
    uint64_t life = sim->daemon.life;
    struct frame frame;
    size_t size;

    if (buf_append(in, m->data, m->size) != 0)
        abort();
    while (sim->daemon.life == life && sim->daemon.alive && c->open[SIM_DAEMON_END] &&
           frame_decode(&c->reader[SIM_DAEMON_END], buf_bytes(in), buf_size(in), &frame, &size) == 0) {
        if (frame.kind == FRAME_OPENED)
            network_send(sim, connection, SIM_AGENT_END, MESSAGE_ECHO, FRAME_OPENING, FRAME_OPENING_SIZE);
        else if (frame.kind == FRAME_ALIVE)
            step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_ALIVE, .session = &c->session});
        else
            receive_message(sim, c, frame.body);
        buf_consume(in, size);
    }
}

void daemon_receive(struct sim *sim, unsigned connection, const struct sim_message *m)
{
    static const uint32_t nonce = 0x04030201;
    struct sim_connection *c = sim->connections[connection];

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
        step_daemon(sim, &(struct rounds_event){
                             .kind = ROUNDS_REPORT, .session = &c->session, .report = (const void *)m->data});
        break;
    case MESSAGE_ALIVE:
        step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_ALIVE, .session = &c->session});
        break;
    case MESSAGE_RENEW:
        step_daemon(sim, &(struct rounds_event){.kind = ROUNDS_RENEW,
                                                .session = &c->session,
                                                .number = *(const uint32_t *)(const void *)m->data});
        break;
    default:
        break;
    }
}
