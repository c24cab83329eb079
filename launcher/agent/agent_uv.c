/*
 * Happy path: GROUP_START, one generation is created, its guardian reports workers that start and end, and at last
 * an empty generation; the group machine answers "finish"; the loop runs until all handles are closed and the exit
 * code is returned. Each event goes through agent_dispatch(): parts see the event, the machine takes its step, parts
 * see the step, and the actions are carried out.
 *
 * Other ends: a worker fails (report, perhaps the next generation), a signal (passed on, then SIGKILL after
 * the grace), the guardian is killed (the kernel kills its workers; processes of workers become children
 * of crun, a subreaper too, and are killed by agent_children_uv.c), a guardian that does not carry out its orders (killed, then
 * as before), a process that even SIGKILL does not end (its name is printed, and crun ends).
 *
 * crun itself may be SIGKILLed at any point: the guardian reads the end of the link and kills every process.
 */

#include "launcher/agent/agent_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/utf8.h"
#include "launcher/agent/agent_children_uv.h"
#include "launcher/agent/agent_hang_uv.h"
#include "launcher/agent/agent_health_uv.h"
#include "launcher/agent/agent_impl_uv.h"
#include "launcher/agent/agent_lines_uv.h"
#include "launcher/agent/agent_metrics_uv.h"
#include "launcher/agent/agent_restarts_uv.h"
#include "launcher/agent/agent_signals_uv.h"
#include "launcher/agent/agent_snapshots_uv.h"
#include "launcher/agent/agent_start_uv.h"
#include "launcher/agent/agent_status_uv.h"
#include "launcher/agent/asked_stacks_uv.h"
#include "launcher/cli/plan.h"
#include "launcher/ctl/job_status.h"
#include "launcher/host/cgroup_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/rdzv/rdzv_static_uv.h"
#include "launcher/report/disk_texts_uv.h"
#include "launcher/report/events_os.h"
#include "launcher/report/final_error.h"
#include "launcher/report/report.h"
#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/suspend.h"
#include "launcher/supervise/zygote_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"
#include "launcher/util/signal_name.h"
#include "launcher/util/trace_os.h"
#include "launcher/watch/examined_os.h"
#include "launcher/watch/watch_uv.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"

enum {
    CONSOLE_PATIENCE_MS = 1000, /* at the end, for the rest of the output */
    LATE_LIMIT_MS = 2000,       /* for threads that make files */
    REMOVE_LIMIT_MS = 2000,
    LOOP_DESCRIPTORS = 8,  /* that libuv opens for its first loop, and a few more */
    HISTORY_DELAY_MS = 50, /* from the start of the workers to the start of the thread */
};

static struct group_event plain_event(enum group_event_kind kind, int value)
{
    return (struct group_event){.kind = kind, .now_ns = now_ns(), .worker = -1, .value = value};
}

void agent_dispatch_kind(struct agent *a, enum group_event_kind kind)
{
    agent_dispatch(a, plain_event(kind, 0));
}

void agent_dispatch_start_failed(struct agent *a, int r)
{
    agent_dispatch(a, plain_event(GROUP_START_FAILED, -r));
}

/* ---- reports of the guardian ---- */

static void on_zygote(struct agent *a, const struct guardian_report *report)
{
    const char *text = report->text;
    int n = (int)strcspn(text, " ");

    if (report->value == ZYGOTE_READY)
        events_write(a->host.events, &a->group,
                     (struct event){.kind = EVENT_WARM,
                                    .warm = &(struct event_warm){.n_modules = report->pid,
                                                                 .memory_kib = report->max_rss_kib,
                                                                 .took_us = report->took_us}});
    else if (report->value == ZYGOTE_DROPPED)
        log_line("warm start: each worker imports %.*s itself: it %s", n, text, text + n + (text[n] == ' '));
    else if (report->value == ZYGOTE_NOT_FORKED)
        log_line("warm start: local rank %d was not forked and starts by exec: %s", report->worker,
                 *text ? text : "the forked process has ended");
    else if (report->value == ZYGOTE_REMARK)
        log_line("warm start: %s", text);
    else if (report->value == ZYGOTE_ENDED)
        log_line("warm start: %s: another interpreter is started", text);
    else if (report->value == ZYGOTE_REFUSED)
        log_line("warm start is not possible, workers start by exec: %s", text);
}

/* A report of the guardian becomes an event of the group machine. */
static void take_report(void *data, const struct guardian_report *report)
{
    struct agent *a = data;
    static const enum group_event_kind kinds[] = {
        [GUARDIAN_STARTED] = GROUP_STARTED, [GUARDIAN_EXEC_FAILED] = GROUP_EXEC_FAILED,
        [GUARDIAN_EXITED] = GROUP_EXITED,   [GUARDIAN_ORPHANS] = GROUP_ORPHANS,
        [GUARDIAN_EMPTY] = GROUP_EMPTY,
    };

    if (report->kind == GUARDIAN_ZYGOTE) {
        on_zygote(a, report);
        return;
    }
    if (report->kind == GUARDIAN_SIGNALLED) {
        agent_signals_pass(&a->host, report->value, report->pid);
        return;
    }
    if (report->kind == 0 || report->kind >= ARRAY_SIZE(kinds))
        return; /* never sent by a guardian; but no record may crash crun */
    if (report->worker < 0 || report->worker >= a->host.job->n_workers)
        return; /* the same */
    if (report->kind == GUARDIAN_EMPTY) {
        output_flush(a->host.output); /* before the report on the generation */
        disk_texts_give_up(a->failures.texts);
    }
    if (report->kind == GUARDIAN_EXITED)
        a->group.workers[report->worker].max_rss_kib = report->max_rss_kib;
    agent_dispatch(a, (struct group_event){.kind = kinds[report->kind],
                                           .now_ns = report->time_ns,
                                           .worker = report->worker,
                                           .pid = report->pid,
                                           .value = report->value,
                                           .unasked = report->unasked});
}

static void on_report(void *data, const struct guardian_report *report)
{
    const struct agent *a = data;
    const struct failures_source source = agent_failures_source(a);

    agent_lines_report(a->lines, &source, report);
}

static void on_worker_notice(void *data, int worker, const struct worker_notice *notice)
{
    if (notice->kind == NOTICE_READY || notice->kind == NOTICE_JOINING)
        agent_dispatch(data, (struct group_event){.kind = notice->kind == NOTICE_READY ? GROUP_WORKER_READY
                                                                                       : GROUP_WORKER_JOINING,
                                                  .now_ns = now_ns(),
                                                  .worker = worker,
                                                  .value = (int)notice->generation});
}

static void on_guardian_lost(void *data)
{
    struct agent *a = data;

    agent_children_spare_keeper(a->children);
    agent_dispatch_kind(a, GROUP_GUARDIAN_LOST);
}

/* ---- actions: starting ---- */

static void send_stacks(void *data, const char *json)
{
    const struct agent *a = data;

    agent_status_send_stacks(a->status, json);
}

/* The parts that look at the job, and the answers to crunctl and metrics. Once; a part that cannot be opened is left out. */
static void open_views(struct agent *a)
{
    if (a->has_opened_views)
        return;
    a->has_opened_views = true;
    a->status = agent_status_open(&a->parts[PART_STATUS], &a->host, a->stacks);
    a->generation_host.guardians.socket = agent_status_socket(a->status);
    agent_metrics_open(&a->parts[PART_METRICS], &a->host);
    a->host.watch = agent_hang_open(a->hang);
}

/* Makes the files of the attempt. Returns 0, or -errno with a line logged. */
static int start_workers(struct agent *a)
{
    TRY(agent_start_begin(a->start));
    open_views(a); /* while a thread makes the files */
    agent_children_seek_cgroup(a->children);
    return 0;
}

static void do_spawn(struct agent *a)
{
    const struct job *job = a->host.job;

    agent_hang_forget(a->hang);
    agent_lines_forget(a->lines);
    agent_start_clear(a->start);
    int r = job->meeting == JOB_ALONE ? agent_start_assign(a->start) : 0;
    if (!r && job->health_check &&
        job->meeting != JOB_ROUNDS) /* there before other nodes count on this one */
        agent_health_begin(a->health);
    else if (!r)
        r = start_workers(a);
    if (r)
        a->deferred = plain_event(GROUP_START_FAILED, -r);
}

static int failed_rank(const struct agent *a)
{
    if (a->group.cause_worker < 0)
        return a->peer_cause.rank;
    return (int)a->assignment.rank_base + a->group.cause_worker;
}

static void do_replace(struct agent *a)
{
    agent_hang_forget(a->hang);
    if (agent_start_replace(a->start, failed_rank(a)) != 0)
        a->deferred = plain_event(GROUP_REPLACE_FAILED, 0);
}

/* The workers are to end. */
static void cancel_start(struct agent *a)
{
    bool is_checking = agent_health_is_checking(a->health) && a->host.job->meeting != JOB_ROUNDS;

    if (!agent_start_is_pending(a->start) && !is_checking)
        return;
    agent_health_end(a->health);
    if (agent_start_cancel(a->start))
        a->deferred = plain_event(GROUP_EMPTY, 0);
}

/* ---- actions: notices and signals ---- */

void agent_notify_workers(struct agent *a, struct worker_notice notice)
{
    notice.generation = a->group.generation;
    if (!a->host.generation)
        return; /* no worker was started yet */
    for (int i = 0; i < a->group.config.n_workers; i++)
        /* A worker has its socket before its start is reported, and reads notices when it runs. */
        if (group_worker_may_run(&a->group.workers[i]))
            generation_notify(a->host.generation, i, &notice);
}

int agent_count_unended(const struct agent *a)
{
    int n = 0;

    if (!a->host.generation)
        return 0; /* none was ordered */
    for (int i = 0; i < a->group.config.n_workers; i++)
        n += group_worker_may_run(&a->group.workers[i]);
    return n;
}

/* At once, as the report comes only when all workers have ended. */
static void print_failure_stop(struct agent *a, int worker)
{
    int n = agent_count_unended(a), grace_s = a->host.job->shutdown_timeout_s;
    const struct group_worker *w = &a->group.workers[worker];
    const struct report_failure failure = {.exit_code = group_worker_code(w)};
    char end[96];

    if (n == 0 || w->state != GROUP_WORKER_ENDED || a->group.state == GROUP_REPLACING)
        return; /* replacing: the other workers stay */
    report_describe_end(&failure, end, sizeof(end));
    log_line("rank %d failed (%s); stopping the other worker%s%s, up to %d s",
             (int)a->assignment.rank_base + worker, end, n == 1 ? "" : "s",
             a->group.config.has_rank_assignment ? " of all nodes" : "", grace_s);
}

static void print_signal_stop(struct agent *a, int signal)
{
    char name[SIGNAL_NAME_SIZE];

    if (agent_count_unended(a) > 0 && a->group.interrupt)
        log_line("%s: the workers have %d s to end; %s", signal_name(signal, name) ? name : "a signal",
                 a->host.job->shutdown_timeout_s,
                 signal == SIGINT && isatty(STDIN_FILENO) ? "press Ctrl-C again to kill them"
                                                          : "a second signal kills them");
}

static void do_notify_failed(struct agent *a, int worker)
{
    agent_notify_workers(a, (struct worker_notice){.kind = NOTICE_PEER_FAILED,
                                                   .rank = (int)a->assignment.rank_base + worker,
                                                   .detail = group_worker_code(&a->group.workers[worker])});
    print_failure_stop(a, worker);
}

static void do_notify_stop(struct agent *a, int signal)
{
    agent_notify_workers(a, (struct worker_notice){.kind = NOTICE_STOP, .rank = -1, .detail = signal});
    print_signal_stop(a, signal);
}

static void do_signal(struct agent *a, enum guardian_order_kind kind, int signal)
{
    const struct guardian_order order = {.kind = kind, .signal = signal};

    if (kind == GUARDIAN_SIGNAL || kind == GUARDIAN_KILL)
        cancel_start(a);
    if (kind == GUARDIAN_SIGNAL)
        agent_hang_watch_stop(a->hang);
    if (a->host.generation)
        generation_order(a->host.generation, &order);
}

static void do_kill(struct agent *a)
{
    const struct generation *g = a->host.generation;

    if (g && !uv_is_active((const uv_handle_t *)&g->poll)) /* the guardian is lost */
        agent_children_sweep(a->children);
    else
        do_signal(a, GUARDIAN_KILL, SIGKILL);
}

static void order_kill(const struct agent *a, int worker)
{
    const struct guardian_order order = {.kind = GUARDIAN_KILL_WORKER, .worker = worker};

    generation_order(a->host.generation, &order);
}

/* A worker that is still being started is killed as soon as it runs. */
static void kill_worker(void *agent, int worker, const char *option)
{
    struct agent *a = agent;
    struct group_worker *w = &a->group.workers[worker];

    if (!a->host.generation || !group_worker_may_run(w))
        return;
    w->kill_option = option;
    order_kill(a, worker);
}

static void do_kill_newcomers(struct agent *a)
{
    for (int i = 0; i < a->group.config.n_workers; i++)
        if (a->group.workers[i].to_kill && !a->group.workers[i].failed)
            order_kill(a, i);
}

static void on_workers_started(void *data, int r, bool is_replacement)
{
    struct agent *a = data;

    if (is_replacement && r) {
        agent_dispatch_kind(a, GROUP_REPLACE_FAILED);
    } else if (is_replacement) {
        agent_lines_forget(a->lines);
        do_kill_newcomers(a); /* workers condemned before their start */
    } else if (r) {
        agent_dispatch_start_failed(a, r);
    } else if (a->group.generation == 0) {
        a->oom_kills_before = cgroup_oom_kills(""); /* behind the start, as reading takes time */
    }
}

/* The link ends, and the guardian's children become crun's. */
static void do_kill_guardian(struct agent *a)
{
    if (!a->host.generation || !a->host.generation->guardian)
        return;
    log_line(
        "the guardian (process %d) has not ended everything in time; crun kills it and does the rest itself",
        (int)a->host.generation->guardian);
    (void)kill(a->host.generation->guardian, SIGKILL);
}

/* ---- actions: time and reports ---- */

static void on_group_deadline(uv_timer_t *timer)
{
    agent_dispatch_kind(timer->data, GROUP_TIMER);
}

static void do_arm(struct agent *a, uint64_t deadline_ns)
{
    uint64_t now = now_ns();
    uint64_t ms = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;

    uv_update_time(&a->loop);
    (void)uv_timer_start(&a->deadline, on_group_deadline, ms, 0); /* fails only without a callback */
}

static void do_print_report(struct agent *a)
{
    struct failures_source source = agent_failures_source(a);

    if (a->oom_kills_before >= 0)
        source.report.oom_kills = cgroup_oom_kills("") - a->oom_kills_before;
    failures_tell(&source, &a->outcome);
}

/* ---- the end ---- */

static void close_signals(struct agent *a)
{
    if (a->output_ended && !a->host.membership)
        agent_signals_close(a->signals);
}

static void on_output_end(void *data)
{
    struct agent *a = data;

    a->output_ended = true;
    uv_close((uv_handle_t *)&a->deadline, NULL);
    uv_close((uv_handle_t *)&a->history_timer, NULL);
    close_signals(a);
}

/* A membership may wait for other nodes for seconds. Signals end that wait, and are read until the membership has closed. */
void agent_on_membership_closed(void *data)
{
    struct agent *a = data;

    a->host.membership = NULL;
    close_signals(a);
}

static void on_console_patience(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    output_abandon(a->host.output);
}

/* ---- the folders of the job ---- */

/* A temporary folder stays when the user asked for the files in it, or has to know why the job failed. The agent outlives
 * the thread: the process ends by _exit() while the thread hangs. */
static void remove_folders(void *data)
{
    const struct agent *a = data;

    logs_remove(&a->logs, !job_has_logs(a->host.job) && (a->exit_code == 0 || !a->outcome.has_files));
}

static void on_removed(void *owner, void *data)
{
    struct agent *a = owner;

    a->has_failed_removal = !data;
}

/* Beside the loop: the disk may hang. Once. */
static void begin_removal(struct agent *a)
{
    const struct side_task task = {
        .run = remove_folders, .done = on_removed, .data = a, .owner = a, .limit_ms = REMOVE_LIMIT_MS};
    struct side_call *call;

    if (a->has_begun_removal)
        return;
    a->has_begun_removal = true;
    int r = a->logs.is_temporary ? side_thread_submit(&call, &a->loop, &task) : 0;
    a->has_failed_removal = r == -EBUSY;
    if (r && r != -EBUSY) /* there is no thread */
        remove_folders(a);
}

/* While the rest is closed, where nothing of it writes files among the logs. */
static void begin_early_removal(struct agent *a)
{
    if (!job_has_logs(a->host.job) && !watch_has_worked(a->host.watch) && !side_thread_is_hung(SIDE_LOGS))
        begin_removal(a);
}

static void end_logs(struct agent *a)
{
    begin_removal(a);
    (void)uv_run(&a->loop, UV_RUN_DEFAULT); /* ends when the last handle is closed */
    if (a->has_failed_removal)
        log_line("the disk of the log files does not answer; %s stays",
                 a->logs.base ? a->logs.base : "a folder for temporary files");
    if (a->logs.is_temporary && a->logs.run && a->exit_code == 0 && job_hides_output(a->host.job))
        log_line("the workers' output is in %s", a->logs.run);
}

static void stop_part(const struct agent_observer *part)
{
    if (part->stop)
        part->stop(part->self);
    if (part->handle)
        uv_close(part->handle, NULL);
}

static void close_everything(struct agent *a)
{
    cancel_start(a);
    a->deferred.kind = GROUP_EVENT_COUNT;
    events_end(a->host.events, &a->group, &a->outcome, a->exit_code, a->failures.texts);
    disk_texts_give_up(a->failures.texts);
    begin_early_removal(a); /* first, as removal takes longest */
    if (a->host.generation)
        generation_dismiss_guardian(a->host.generation);
    events_begin_history(a->host.events);
    for (size_t i = 0; i < PART_COUNT; i++)
        stop_part(&a->parts[i]);
    agent_start_stop(a->start);
    rdzv_static_uv_destroy(steal_ptr(a->rdzv_static));
    membership_destroy(a->host.membership);
    if (a->group.interrupt) /* the sender of the signal does not wait for a slow console */
        (void)uv_timer_start(&a->deadline, on_console_patience, CONSOLE_PATIENCE_MS, 0);
    if (!a->failures.report.gave_up)
        output_end(a->host.output);
    else /* a process that cannot be killed may hold a pipe open for ever */
        output_abandon(a->host.output);
}

/* With several nodes the cause is the job's; a static rendezvous knows the cause of its own node alone. */
static bool is_final_end(const struct agent *a)
{
    if (a->group.interrupt)
        return false;
    if (a->host.job->meeting == JOB_ROUNDS)
        return a->group.is_ending && a->peer_cause.kind == SESSION_CAUSE_WORKER &&
               (a->peer_cause.fatal || final_error_is_in(a->peer_cause.text));
    return a->outcome.is_final;
}

static void do_finish(struct agent *a, int code)
{
    int no_requeue_code = a->host.job->no_requeue_code;

    a->exit_code = group_exit_code(&a->group, code, a->outcome.root_code);
    if (code != 0 && no_requeue_code && is_final_end(a))
        a->exit_code = no_requeue_code;
    if (a->host.membership && a->group.is_ending)
        membership_print_end(a->host.membership);
    close_everything(a);
}

static void do_hurry(struct agent *a)
{
    if (a->host.membership)
        membership_hurry(a->host.membership);
    if (!a->output_ended)
        output_abandon(a->host.output);
}

/* ---- the machine ---- */

static void perform(struct agent *a, const struct group_action *action)
{
    switch (action->kind) {
    case GROUP_DO_SPAWN:
        do_spawn(a);
        break;
    case GROUP_DO_NOTIFY_FAILED:
        do_notify_failed(a, action->value);
        break;
    case GROUP_DO_NOTIFY_STOP:
        do_notify_stop(a, action->value);
        break;
    case GROUP_DO_NOTIFY_PEER:
        agent_notify_peer_failed(a);
        break;
    case GROUP_DO_SIGNAL:
        do_signal(a, GUARDIAN_SIGNAL, action->value);
        break;
    case GROUP_DO_PASS_SIGNAL:
        do_signal(a, GUARDIAN_PASS_SIGNAL, action->value);
        break;
    case GROUP_DO_FREEZE:
        do_signal(a, GUARDIAN_FREEZE, SIGSTOP);
        break;
    case GROUP_DO_THAW:
        do_signal(a, GUARDIAN_FREEZE, SIGCONT);
        break;
    case GROUP_DO_STOP_SELF:
        if (!suspend_self()) /* else SIGCONT is read as the next signal */
            agent_dispatch_kind(a, GROUP_RESUME);
        break;
    case GROUP_DO_KILL:
        do_kill(a);
        break;
    case GROUP_DO_KILL_NEWCOMERS:
        do_kill_newcomers(a);
        break;
    case GROUP_DO_KILL_GUARDIAN:
        do_kill_guardian(a);
        break;
    case GROUP_DO_GIVE_UP:
        agent_children_print_stuck(a->children);
        a->failures.report.gave_up = true;
        break;
    case GROUP_DO_REPLACE:
        do_replace(a);
        break;
    case GROUP_DO_ARM:
        do_arm(a, action->deadline_ns);
        break;
    case GROUP_DO_DISARM:
        (void)uv_timer_stop(&a->deadline); /* cannot fail on a timer that exists */
        break;
    case GROUP_DO_PRINT_REPORT:
        do_print_report(a);
        break;
    case GROUP_DO_PRINT_PAUSE:
        log_line("the workers %s; the next start is in %d s (--restart-pause)",
                 a->group.cause == GROUP_CAUSE_START ? "could not be started"
                                                     : "failed again within 10 s of their start",
                 action->value / 1000);
        break;
    case GROUP_DO_START_AGAIN:
        events_restart(a->host.events, &a->group, &a->outcome);
        agent_dispatch_kind(a, GROUP_START);
        break;
    case GROUP_DO_AWAIT_OTHERS:
        rdzv_static_uv_leave(a->rdzv_static);
        break;
    case GROUP_DO_FINISH:
        do_finish(a, action->value);
        break;
    case GROUP_DO_HURRY:
        do_hurry(a);
        break;
    case GROUP_DO_REPORT_FAILED:
        agent_report_failed(a, action->value);
        break;
    case GROUP_DO_REPORT_DONE:
        membership_report(a->host.membership, (struct session_event){.kind = SESSION_EVENT_GROUP_DONE});
        break;
    case GROUP_DO_REPORT_READY:
        if (a->host.job->health_check && a->group.state != GROUP_REPLACING)
            agent_health_begin(a->health);
        else /* remaining workers have shown that the node is fit */
            agent_start_report_ready(a->start);
        break;
    case GROUP_DO_REQUEST_DRAIN:
        membership_report(a->host.membership, (struct session_event){.kind = SESSION_EVENT_DRAIN});
        break;
    case GROUP_DO_LEAVE:
        agent_leave_job(a, action->value);
        break;
    case GROUP_ACTION_COUNT:
        break;
    }
}

static void trace_step(const struct worker_group *g, const struct agent_step *step)
{
    const struct group_event *event = step->event;

    trace_line("group event %s state=%s generation=%u worker=%d pid=%d value=%d",
               group_event_name(event->kind), group_state_name(step->state), g->generation, event->worker,
               (int)event->pid, event->value);
    for (size_t i = 0; i < step->actions->n_items; i++) {
        const struct group_action *action = &step->actions->items[i];
        const char *name = group_action_name(action->kind), *state = group_state_name(g->state);

        if (action->kind == GROUP_DO_ARM)
            trace_line("group action %s state=%s in_ms=%.3f", name, state,
                       ((double)action->deadline_ns - (double)event->now_ns) / 1e6);
        else
            trace_line("group action %s state=%s value=%d", name, state, action->value);
    }
}

/* Trace, and the state of suspension for launcher/watch. */
static void after_step(void *self, const struct agent_step *step)
{
    const struct agent *a = self;

    examined_suspend(a->group.is_suspended);
    if (trace_sink)
        trace_step(&a->group, step);
}

static void write_events(void *self, const struct agent_step *step)
{
    const struct agent *a = self;

    events_step(a->host.events, &a->group, step->event, step->actions);
}

static void before_step(const struct agent *a, const struct group_event *event)
{
    for (size_t i = 0; i < PART_COUNT; i++)
        if (a->parts[i].before)
            a->parts[i].before(a->parts[i].self, event);
}

void agent_dispatch(void *agent, struct group_event event)
{
    struct agent *a = agent;
    struct group_actions actions;

    before_step(a, &event);
    const struct agent_step step = {.event = &event,
                                    .actions = &actions,
                                    .state = a->group.state,
                                    .cause = a->group.cause,
                                    .restarts = a->group.restarts};
    group_step(&a->group, &event, &actions);
    for (size_t i = 0; i < PART_COUNT; i++)
        if (a->parts[i].after)
            a->parts[i].after(a->parts[i].self, &step);
    for (size_t i = 0; i < actions.n_items; i++)
        perform(a, &actions.items[i]);
    const struct group_event deferred = a->deferred;
    a->deferred.kind = GROUP_EVENT_COUNT;
    if (deferred.kind != GROUP_EVENT_COUNT)
        agent_dispatch(a, deferred);
}

/* ---- life ---- */

/* 0 or -errno: whether descriptors are left for a loop. libuv aborts where its first loop gets some of them and not all. */
static int try_descriptors(void)
{
    int fds[LOOP_DESCRIPTORS], n = 0, r = 0;

    while (!r && n < LOOP_DESCRIPTORS)
        if ((fds[n] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) < 0)
            r = -errno;
        else
            n++;
    while (n > 0)
        (void)close(fds[--n]);
    return r;
}

static int open_loop(struct agent *a)
{
    TRY(try_descriptors());
    TRY(uv_loop_init(&a->loop));
    (void)uv_timer_init(&a->loop, &a->deadline); /* cannot fail, as below */
    (void)uv_timer_init(&a->loop, &a->history_timer);
    a->deadline.data = a->history_timer.data = a;
    return 0;
}

static int init_group(struct agent *a)
{
    const struct job *job = a->host.job;
    const struct group_config config = {
        .n_workers = job->n_workers,
        .max_restarts = job->max_restarts,
        .grace_ns = (uint64_t)job->shutdown_timeout_s * 1000000000u,
        .pause_max_ns = (uint64_t)job->restart_pause_s * 1000000000u,
        .has_rank_assignment = job->meeting == JOB_ROUNDS,
        .leaves_together = job->meeting == JOB_STATIC,
        .exit_code_of_worker = job->exit_code_of_worker,
        /* In a static rendezvous no node learns of a failure on another. A store of a worker ends with it. */
        .replace = job->replace && job->meeting != JOB_STATIC && !job->worker_has_store,
        .rejoin_ns = (uint64_t)job->replace_timeout_s * 1000000000u,
    };

    return group_init(&a->group, &config);
}

/* --warm, where the program allows it. */
static bool is_warm(const struct agent_config *config)
{
    const char *reason = config->job->warm ? zygote_refuses(config->file, config->command->script) : NULL;

    if (reason)
        log_line("--warm has no effect, workers start by exec: %s", reason);
    return config->job->warm && !reason;
}

/* ---- parts ---- */

struct failures_source agent_failures_source(const struct agent *a)
{
    struct failures_source source = a->failures;

    source.report.rank_base = (int)a->assignment.rank_base;
    source.line_worker = agent_lines_worker(a->lines, &source.line_cause);
    source.report.final_why = agent_restarts_why(a->restarts);
    return source;
}

/* The other nodes may have got the failure without its text. */
static void on_text_read(void *data, size_t i)
{
    struct agent *a = data;
    const struct worker_group *g = &a->group;

    if (a->host.membership && g->cause == GROUP_CAUSE_WORKER && (size_t)g->cause_worker == i &&
        disk_texts_get(a->failures.texts, i, g->workers[i].generation))
        agent_report_failed(a, (int)i);
    agent_lines_check(a->lines);
}

static void on_fit(void *data)
{
    struct agent *a = data;

    if (a->host.job->meeting == JOB_ROUNDS)
        agent_start_report_ready(a->start);
    else if (start_workers(a) != 0)
        agent_dispatch_kind(a, GROUP_START_FAILED);
}

static void on_unfit(void *data, const char *why)
{
    struct agent *a = data;

    (void)snprintf(a->outcome.reason, sizeof(a->outcome.reason), "the health check failed: %s",
                   why); /* cut when it is long */
    agent_dispatch_kind(a, GROUP_START_FAILED);
}

static int describe_job(void *data, struct job_status *ret)
{
    const struct agent *a = data;
    int r = a->status ? agent_status_describe(a->status, ret) : -ENOMEM;

    if (!a->status)
        *ret = (struct job_status){0};
    for (size_t i = 0; !r && i < PART_COUNT; i++)
        if (a->parts[i].describe)
            a->parts[i].describe(a->parts[i].self, ret);
    return r;
}

static void note_sender(void *data, const char *text)
{
    struct agent *a = data;

    text_copy(a->sender, sizeof(a->sender), text);
}

static int create_parts(struct agent *a)
{
    const struct disk_texts_host texts_host = {
        .loop = &a->loop, .n = failures_n_texts(a->host.job->n_workers), .on_read = on_text_read, .data = a};

    a->parts[PART_TRACE] = (struct agent_observer){.self = a, .after = after_step};
    a->parts[PART_EVENTS] = (struct agent_observer){.self = a, .after = write_events};
    a->failures.texts = disk_texts_create(&texts_host);
    a->start =
        agent_start_create(&a->host, &a->assignment, &a->generation_host, &a->logs, on_workers_started);
    a->lines = agent_lines_create(&a->parts[PART_LINES], &a->host, a->failures.texts, take_report);
    a->restarts = agent_restarts_create(&a->parts[PART_RESTARTS], &a->host);
    a->stacks = asked_stacks_create(&a->parts[PART_STACKS], &a->host, send_stacks);
    a->hang = agent_hang_create(&a->parts[PART_HANG], &a->host, a->stacks);
    a->health = agent_health_create(&a->parts[PART_HEALTH], &a->host, on_fit, on_unfit);
    a->children =
        agent_children_create(&a->parts[PART_CHILDREN], &a->host, &a->generation_host.guardians, a->health);
    if (!a->failures.texts)
        return -ENOMEM;
    TRY(agent_snapshots_create(&a->parts[PART_SNAPSHOTS], &a->host));
    return agent_signals_create(&a->signals, &a->host, a->children, a->hang);
}

static void init_host(struct agent *a, const struct agent_config *config)
{
    a->host = (struct agent_host){.loop = &a->loop,
                                  .config = config,
                                  .job = config->job,
                                  .group = &a->group,
                                  .assignment = &a->assignment,
                                  .peer_cause = &a->peer_cause,
                                  .worker_memory = &a->worker_memory,
                                  .logs = &a->logs,
                                  .data = a,
                                  .dispatch = agent_dispatch,
                                  .kill_worker = kill_worker,
                                  .note_sender = note_sender,
                                  .describe = describe_job};
    a->failures = (struct failures_source){.report = {.group = &a->group,
                                                      .title = config->job->program_name,
                                                      .program = config->file,
                                                      .oom_kills = -1,
                                                      .sender = a->sender},
                                           .job = config->job,
                                           .environment = config->environment,
                                           .logs = &a->logs};
}

/* All but the output. */
static void init_generation_host(struct agent *a)
{
    const struct job *job = a->host.job;
    uint32_t grace_ms = (uint32_t)job->shutdown_timeout_s * 1000u;

    a->generation_host =
        (struct generation_host){.loop = &a->loop,
                                 .config = a->host.config,
                                 .worker_memory = &a->worker_memory,
                                 .guardians = {.logs = &a->logs,
                                               .grace_ms = grace_ms,
                                               .group_delay_ms = job->worker_first ? grace_ms / 2 : 0,
                                               .cgroup = -1},
                                 .warm = is_warm(a->host.config),
                                 .on_report = on_report,
                                 .on_lost = on_guardian_lost,
                                 .on_notice = on_worker_notice,
                                 .data = a};
}

static int agent_init(struct agent *a, const struct agent_config *config)
{
    const struct job *job = config->job;

    *a = (struct agent){.oom_kills_before = -1, .deferred.kind = GROUP_EVENT_COUNT};
    init_host(a, config);
    init_generation_host(a);
    TRY(init_group(a));
    TRY(logs_init(&a->logs, job->log_dir, job_has_logs(job), config->environment, job->n_workers));
    TRY(worker_memory_init(&a->worker_memory, job->n_workers));
    if (config->keys && config->keys->has_secret && config->keys->is_settled)
        TRY(worker_memory_add_key(&a->worker_memory, config->keys->kept->of[KEY_WORKER].bytes, KEY_SIZE));
    TRY(open_loop(a));
    TRY(create_parts(a));
    TRY(output_create(&a->host.output, &a->loop, true,
                      &(struct output_callbacks){.on_match = agent_lines_match,
                                                 .on_looked = agent_lines_looked,
                                                 .lines = a->lines,
                                                 .on_end = on_output_end,
                                                 .data = a}));
    a->generation_host.output = a->host.output;
    return prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 ? -errno : 0;
}

static void on_history_delay(uv_timer_t *timer)
{
    const struct agent *a = timer->data;

    events_begin_history(a->host.events);
}

static void start_job(struct agent *a)
{
    (void)uv_timer_start(&a->history_timer, on_history_delay, HISTORY_DELAY_MS,
                         0); /* fails only without a callback */
    if (a->host.job->meeting == JOB_ALONE)
        agent_dispatch_kind(a, GROUP_START);
    else if (agent_meet(a) != 0)
        agent_dispatch_kind(a, GROUP_START_FAILED);
}

static bool print_in_order(void *data, const char *lines)
{
    struct agent *a = data;

    return output_say(a->host.output, lines);
}

/* A failed worker has an error file of its own, or none. */
static void record_own_error(const struct agent *a)
{
    enum group_cause cause = a->group.cause;
    bool is_workers = cause == GROUP_CAUSE_WORKER || cause == GROUP_CAUSE_GUARDIAN;

    if (a->group.interrupt || (a->exit_code != 0 && !is_workers))
        failures_record_own(a->host.config->environment, a->group.interrupt,
                            cause == GROUP_CAUSE_EXEC ? a->outcome.reason : NULL);
}

int agent_run(const struct agent_config *config)
{
    static struct agent a; /* static: what a failed agent_init() has opened stays in reach until the exit */

    int r = agent_init(&a, config);
    if (r) {
        log_line("cannot start: %s%s", strerror(-r), log_remedy(r));
        failures_record_own(config->environment, 0, NULL);
        return 1;
    }
    a.host.events = events_create(config->job, config->file, config->environment);
    log_redirect(print_in_order, &a);
    if (config->job->meeting != JOB_ALONE ||
        config->job->health_check) /* the start waits for other nodes or the check */
        open_views(&a);
    agent_signals_read(a.signals); /* a signal that came before anything was started */
    if (a.group.state == GROUP_IDLE)
        start_job(&a);
    (void)uv_run(&a.loop, UV_RUN_DEFAULT); /* ends when the last handle is closed */
    generation_end_guardian(&a.generation_host.kept);
    log_redirect(NULL, NULL);
    record_own_error(&a);
    events_destroy(a.host.events);
    (void)side_thread_wait(SIDE_LOGS, LATE_LIMIT_MS); /* late files are removed */
    agent_hang_destroy(a.hang);
    end_logs(&a);
    (void)uv_loop_close(&a.loop);                              /* no handle is open any more */
    (void)side_thread_wait(SIDE_CONSOLE, CONSOLE_PATIENCE_MS); /* the note on threads */
    if (side_thread_is_any_hung()) {
        trace_close();
        /* A thread that waits for a disk or for name servers still uses the memory freed below. */
        _exit(a.exit_code);
    }
    agent_lines_destroy(a.lines);
    disk_texts_destroy(a.failures.texts);
    agent_start_destroy(a.start);
    output_destroy(a.host.output);
    group_finish(&a.group);
    worker_memory_finish(&a.worker_memory);
    logs_finish(&a.logs);
    return a.exit_code;
}
