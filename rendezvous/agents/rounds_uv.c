/*
 * The libuv shell of the rounds: a core for all jobs, a timer, and the agents' connections.
 *
 * The happy path: a frame of an agent -> an event -> rounds_step() -> actions, which put frames into
 * agents' buffers -> a single write for each agent with output. Nothing is decided here.
 *
 * With a state directory a write-ahead rule holds: a view that depends on unsaved state is held until the
 * save is durable (rounds_state_uv.h). Signs of life are never held back.
 *
 * Silence is judged only after every socket was read: after a stop or a busy time of the process, frames of an
 * agent may lie unread in a socket. So the timer starts a check handle, which runs behind the reads of
 * the same turn of the loop. Frames that wait in the kernel behind a lost packet count as well.
 */

#include "rendezvous/agents/rounds_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "rendezvous/agents/rounds_debug_uv.h"
#include "rendezvous/rounds/rounds_log.h"
#include "rendezvous/agents/rounds_state_uv.h"
#include "rendezvous/session/session_json.h"
#include "base/cleanup.h"
#include "base/format.h"
#include "base/random_os.h"
#include "base/time.h"
#include "rendezvous/agents/tcp_liveness_os.h"

enum { LOG_LINES_PER_S = 50, LOG_BURST = 200, NS_PER_MS = 1000000, OVERDUE_MAX = 64 };

/* ---- log ---- */

/* A job has few lines, but a client may open any number of jobs. */
static void rounds_log_line(struct rounds_shell *r, const char *line)
{
    unsigned long long n_left_out;
    char left_out[64];

    if (!r->config.log ||
        !log_tokens_take(&r->log_tokens, boot_ns(), LOG_LINES_PER_S, LOG_BURST, &n_left_out))
        return;
    if (n_left_out > 0) {
        (void)snprintf(left_out, sizeof(left_out), "%llu lines about jobs were left out", n_left_out);
        r->config.log(r->config.data, left_out);
    }
    r->config.log(r->config.data, line);
}

void rounds_log(struct rounds_shell *r, const char *format, ...)
{
    char line[ROUNDS_LOG_SIZE];

    (void)format_arguments(line, sizeof(line), format);
    rounds_log_line(r, line);
}

static void log_job_lines(struct rounds_shell *r, const struct rounds_job *job, unsigned log_kinds)
{
    char line[ROUNDS_LOG_SIZE];

    while (rounds_log_next(job, &log_kinds, line))
        rounds_log_line(r, line);
}

/* ---- actions ---- */

/* The frame of a view; NULL: memory is out. */
static const struct buf *view_frame(struct rounds_shell *r, const struct session_view *view)
{
    /* Where padding differs, an equal view is encoded once more. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    bool same = buf_size(&r->last_view_frame) > 0 && memcmp(view, &r->last_view, sizeof(*view)) == 0;

    if (same)
        return &r->last_view_frame;
    buf_consume(&r->last_view_frame, buf_size(&r->last_view_frame));
    if (session_json_put_view(&r->last_view_frame, view) < 0)
        return NULL;
    r->last_view = *view;
    return &r->last_view_frame;
}

static void send_view(struct rounds_shell *r, const struct rounds_action *action)
{
    struct agent_conn *a = list_entry(action->session, struct agent_conn, session);
    struct session_view view = action->view;

    view.term = rounds_state_term(r->state);
    const struct buf *frame = view_frame(r, &view);
    if (frame)
        agent_conn_send(a, frame, r->state ? r->state->kind->mark(r->state, action->job) : 0);
    else
        agent_conn_cut(a); /* the answer to the next hello is the view */
}

/* Workers may still save their state. */
static void end_keys(struct rounds_shell *r, const struct rounds_job *job)
{
    if (r->keys.data)
        r->keys.end(r->keys.data, job->id, job->instance);
}

/* Reports the begin and the end of a job's keys to their keeper. */
static void follow_keys(struct rounds_shell *r, const struct rounds_job *job, unsigned what)
{
    if (r->keys.data && what & ROUNDS_LOG_FORMED)
        r->keys.begin(r->keys.data, job->id, job->instance, job->key_space);
    if (what & ROUNDS_LOG_CLOSED)
        end_keys(r, job);
}

static void run_action(struct rounds_shell *r, const struct rounds_action *action)
{
    rounds_debug_action(r, action);
    switch (action->kind) {
    case ROUNDS_DO_SAVE:
        if (r->state)
            r->state->kind->save(r->state, action->job);
        break;
    case ROUNDS_DO_REPORT:
        follow_keys(r, action->job, action->log_kinds);
        log_job_lines(r, action->job, action->log_kinds);
        break;
    case ROUNDS_DO_SEND:
        send_view(r, action);
        break;
    case ROUNDS_DO_ALIVE:
        agent_conn_send_alive(list_entry(action->session, struct agent_conn, session));
        break;
    case ROUNDS_DO_RENEWED:
        agent_conn_send_renewed(list_entry(action->session, struct agent_conn, session), action->number);
        break;
    case ROUNDS_DO_CLOSE:
        agent_conn_shutdown(list_entry(action->session, struct agent_conn, session));
        break;
    case ROUNDS_DO_FORGET:
        end_keys(r, action->job);
        if (r->state)
            r->state->kind->forget(r->state, action->job);
        break;
    case ROUNDS_ACTION_COUNT:
        break;
    }
}

void rounds_shell_keep_keys(struct rounds_shell *r, const struct rounds_keys *keys)
{
    r->keys = *keys;
    r->core.config.keeps_keys = true;
}

void rounds_shell_flush(struct rounds_shell *r)
{
    while (!list_is_empty(&r->unsent))
        agent_conn_flush(list_entry(r->unsent.next, struct agent_conn, unsent_link));
}

static void on_rounds_timer(uv_timer_t *timer);

static void arm_rounds_timer(struct rounds_shell *r)
{
    uint64_t deadline_ns = rounds_deadline(&r->core), now_ns = boot_ns();
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS : 0;

    if (deadline_ns == UINT64_MAX || uv_is_active((uv_handle_t *)&r->check))
        return;
    if (uv_is_active((uv_handle_t *)&r->timer) && uv_timer_get_due_in(&r->timer) <= ms)
        return;                                              /* the running timer will ask again */
    (void)uv_timer_start(&r->timer, on_rounds_timer, ms, 0); /* cannot fail: has a callback */
}

static void notify_empty(struct rounds_shell *r)
{
    bool populated = r->core.n_nodes > 0;
    bool empty = r->was_populated && !populated;

    r->was_populated = populated;
    if (empty && r->config.empty)
        r->config.empty(r->config.data);
}

/* Carries out the core's actions, updates connections, and sets the timer. */
static void run_actions(struct rounds_shell *r)
{
    struct rounds_action action;

    while (rounds_next(&r->core, &action))
        run_action(r, &action);
    if (r->state)
        r->state->kind->write(r->state);
    rounds_shell_flush(r);
    arm_rounds_timer(r);
    notify_empty(r);
}

/* Actions are dropped, but the core must not keep a closed connection. The agent of another event is closed soon, and sends the
 * event again to the leading crund. */
static void drop_event(struct rounds_shell *r, const struct rounds_event *event)
{
    struct rounds_action action;

    if (event->kind != ROUNDS_DISCONNECTED)
        return;
    rounds_step(&r->core, event);
    while (rounds_next(&r->core, &action))
        ;
}

void rounds_shell_step(struct rounds_shell *r, struct rounds_event *event)
{
    event->now_ns = boot_ns();
    rounds_debug_event(r, event);
    if (r->over || !r->leads ||
        (rounds_state_is_shared(r->state) && !r->state->kind->holds(r->state, event->now_ns))) {
        drop_event(r, event);
        return;
    }
    rounds_shell_postpone(r);
    rounds_step(&r->core, event);
    run_actions(r);
}

void rounds_shell_postpone(struct rounds_shell *r)
{
    if (r->leads && r->state)
        rounds_postpone(&r->core, r->state->kind->unsaved(r->state), boot_ns());
}

void rounds_shell_saved(struct rounds_shell *r)
{
    list_for_each_safe(i, &r->holding)
        agent_conn_release(list_entry(i, struct agent_conn, held_link), r->state->kind->done(r->state));
    rounds_shell_flush(r);
}

/* ---- time ---- */

static void on_rounds_idle(uv_idle_t *idle)
{
    /* Keeps the loop from sleeping before the check. */
}

/* Asks the kernel about nodes about to be declared lost: TCP holds received data back until an earlier lost
 * segment has been sent again, which takes round trips. Only for a few nodes: if OVERDUE_MAX nodes are
 * overdue together, per-connection loss is not the reason. */
static void extend_slow_sessions(struct rounds_shell *r)
{
    struct rounds_conn *overdue[OVERDUE_MAX];
    size_t n =
        rounds_overdue(&r->core, boot_ns() + NS_PER_MS, overdue, OVERDUE_MAX); /* until we have looked */

    for (size_t i = 0; n < OVERDUE_MAX && i < n; i++)
        rounds_shell_step(
            r, &(struct rounds_event){.kind = ROUNDS_SLOW,
                                      .session = overdue[i],
                                      .slack_ns = tcp_liveness_slack_ns(
                                          list_entry(overdue[i], struct agent_conn, session)->fd)});
}

static void on_rounds_check(uv_check_t *check)
{
    struct rounds_shell *r = check->data;

    (void)uv_check_stop(&r->check); /* both always succeed */
    (void)uv_idle_stop(&r->idle);
    if (!r->over && r->leads)
        extend_slow_sessions(r);
    if (rounds_deadline(&r->core) <= boot_ns())
        rounds_shell_step(r, &(struct rounds_event){.kind = ROUNDS_TIMER});
    else if (!r->over)
        arm_rounds_timer(r);
}

static void on_rounds_timer(uv_timer_t *timer)
{
    struct rounds_shell *r = timer->data;

    (void)uv_check_start(&r->check, on_rounds_check); /* cannot fail: both have callbacks */
    (void)uv_idle_start(&r->idle, on_rounds_idle);
}

/* ---- one of several ---- */

void rounds_shell_lead(struct rounds_shell *r)
{
    if (r->over || r->state->kind->load(r->state, &r->core, boot_ns()) < 0)
        return;
    r->leads = true;
    run_actions(r);
}

void rounds_shell_depose(struct rounds_shell *r)
{
    r->leads = false;
    if (r->keys.data)
        r->keys.orphan(r->keys.data);
    list_for_each_entry_safe(struct agent_conn, a, &r->agents, link)
    {
        if (!a->closing)
            agent_conn_close(a);
    }
    rounds_reset(&r->core);
    buf_reset(&r->last_view_frame);
    r->was_populated = false;
}

/* ---- life ---- */

void rounds_shell_destroy(void *self)
{
    struct rounds_shell *r = self;

    if (r->state)
        r->state->kind->close(r->state);
    rounds_finish(&r->core);
    buf_finish(&r->last_view_frame);
    free(r);
}

int rounds_shell_create(struct rounds_shell **ret, struct server *s, const struct server_rounds *config)
{
    struct rounds_config core = ROUNDS_CONFIG_DEFAULT;
    _cleanup_free_ struct rounds_shell *r = calloc(1, sizeof(*r));
    uint8_t seed[SIPHASH_SEED_SIZE];

    if (!r)
        return -ENOMEM;
    if (config->state && etcd_url_is(config->state))
        core.lease_ms = SESSION_LEASE_MS_DEFAULT;
    TRY(random_fill(&core.seed, sizeof(core.seed)));
    TRY(random_fill(core.instance_key, sizeof(core.instance_key)));
    TRY(random_fill(core.bucket_key, sizeof(core.bucket_key)));
    TRY(random_fill(seed, sizeof(seed)));
    core.max_jobs = config->max_jobs > 0 ? config->max_jobs : core.max_jobs;
    core.max_nodes = config->max_nodes > 0 ? config->max_nodes : core.max_nodes;
    core.max_nodes_all = config->max_agents > 0 ? config->max_agents : core.max_nodes_all;
    core.max_jobs_each = config->max_jobs_each;
    core.max_node_timeout_ms = config->max_node_timeout_ms;
    core.max_wait_ms = config->max_wait_ms;
    core.grace_ns = config->grace_ms > 0 ? config->grace_ms * UINT64_C(1000000) : core.grace_ns;
    rounds_init(&r->core, &core);
    r->server = s;
    r->config = *config;
    list_init(&r->agents);
    r->pending_hello.expire = agent_conn_expire;
    list_init(&r->unsent);
    list_init(&r->holding);
    handshake_turns_init(&r->handshakes, seed);
    *ret = steal_ptr(r);
    return 0;
}

void rounds_shell_start(void *self)
{
    struct rounds_shell *r = self;
    struct server *s = r->server;

    server_open_timer(s, &r->timer, r);
    /* Cannot fail: the calls only fill in the handle. */
    (void)uv_check_init(s->loop, &r->check);
    (void)uv_idle_init(s->loop, &r->idle);
    r->check.data = r->idle.data = r;
    server_handle_opened(s);
    server_handle_opened(s);
    if (r->state)
        r->state->kind->start(r->state);
    run_actions(r); /* jobs read from disk may have actions */
}

void rounds_shell_drain(void *self)
{
    struct rounds_shell *r = self;

    r->over = true;
    (void)uv_timer_stop(&r->timer); /* always succeeds */
    list_for_each_safe(i, &r->agents) agent_conn_shutdown(list_entry(i, struct agent_conn, link));
    rounds_shell_flush(r);
}

void rounds_shell_stop(void *self)
{
    struct rounds_shell *r = self;

    r->over = true;
    list_for_each_safe(i, &r->agents) agent_conn_close(list_entry(i, struct agent_conn, link));
    server_close_handle(r->server, &r->timer);
    if (r->state)
        r->state->kind->stop(r->state);
    server_close_handle(r->server, &r->check);
    server_close_handle(r->server, &r->idle);
}
