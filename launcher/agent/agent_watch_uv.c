/*
 * What the agent does with a hang: the report, the event, and what --hang-action asks for. When there is one is decided by
 * launcher/watch.
 */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/ctl/control_uv.h"
#include "launcher/ctl/job_stacks_json.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/report/events.h"
#include "launcher/report/events_os.h"
#include "launcher/supervise/guardian_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/trace_os.h"
#include "launcher/watch/watch_uv.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "rendezvous/server/server_uv.h"

enum {
    CULPRIT_MS = 10000,     /* for the end of the worker that was killed alone */
    SLOW_END_MAX_MS = 5000, /* after the signal to end; half the grace where that is shorter */
};

/* ---- what the watch asks ---- */

static uint32_t describe_workers_for_watch(void *data, struct watch_worker *workers, bool *ret_at_work)
{
    const struct agent *a = data;
    int n_running = 0, n_other = 0;

    for (int i = 0; i < a->group.config.n_workers; i++) {
        const struct group_worker *w = &a->group.workers[i];

        workers[i] = (struct watch_worker){.pid = w->state == GROUP_WORKER_RUNNING ? w->pid : 0,
                                           .has_succeeded = w->state == GROUP_WORKER_ENDED && w->status == 0};
        n_running += w->state == GROUP_WORKER_RUNNING;
        n_other += !workers[i].pid && !workers[i].has_succeeded;
    }
    *ret_at_work = a->group.state == GROUP_RUNNING && n_running > 0 && n_other == 0 && !a->group.is_suspended;
    return a->group.generation;
}

static int rank_base_for_watch(void *data)
{
    const struct agent *a = data;

    return (int)a->assignment.rank_base;
}

static const char *folder_for_watch(void *data)
{
    const struct agent *a = data;

    return a->generation ? a->generation->attempt_dir : NULL;
}

static uint64_t store_changes_for_watch(void *data)
{
    const struct agent *a = data;

    return a->generation && a->generation->server ? server_n_changes(a->generation->server) : 0;
}

/* ---- the report ---- */

static void log_headline(const struct watch_stacks *s, bool is_alone)
{
    char folder[4200] = "", why[160] = "";

    if (s->folder)
        (void)snprintf(folder, sizeof(folder), "; stacks: %s", s->folder);
    if (s->reason == WATCH_HANG)
        (void)snprintf(why, sizeof(why), "no rank%s has made progress for %llu s",
                       is_alone ? "" : " of this node", (unsigned long long)(s->silence_ns / 1000000000u));
    else
        (void)snprintf(why, sizeof(why), "%s",
                       s->reason == WATCH_SLOW_END ? "workers do not end"
                       : s->reason == WATCH_QUIT   ? "SIGQUIT"
                       : s->reason == WATCH_LINE   ? "a line that --on-line has a rule for"
                                                   : "as asked for by crunctl");
    log_line("%s: %s%s", s->reason == WATCH_HANG ? "hang" : "stacks", why, folder);
}

static void log_groups(const char *text)
{
    while (text && *text) {
        int n = (int)strcspn(text, "\n");

        log_line("%.*s", n, text);
        text += n + (text[n] == '\n');
    }
}

void agent_print_hang(struct agent *a, const struct hang_report_facts *facts)
{
    log_groups(facts->text);
    events_hang(a->events, &a->group,
                &(struct event_hang){.is_hang = facts->is_hang,
                                     .rank = facts->rank,
                                     .silence_ns = facts->silence_ns,
                                     .groups = facts->text,
                                     .folder = facts->folder});
}

static void print_own_hang(struct agent *a, const struct watch_stacks *s)
{
    agent_print_hang(
        a, &(struct hang_report_facts){.is_hang = s->reason == WATCH_HANG,
                                       .rank = s->stands_out ? (int)a->assignment.rank_base + s->worker : -1,
                                       .silence_ns = s->silence_ns,
                                       .text = s->text,
                                       .folder = s->folder});
}

/* ---- what follows ---- */

/* The one that was killed alone cannot end: it is in state D, perhaps. The end of any other is a failure as well. */
static void on_culprit_remains(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    if (a->group.state != GROUP_RUNNING || a->group.generation != a->hang_generation)
        return;
    for (int i = 0; i < a->group.config.n_workers; i++)
        agent_kill_worker(a, i, "--hang-action=restart");
}

/* In a static rendezvous no node knows of the others, so its ranks may wait for those of another one. */
static bool may_act(const struct agent *a)
{
    return a->config->job->meeting != JOB_STATIC && a->group.state == GROUP_RUNNING;
}

/* A failure like any other: the restart policy and its budget decide what comes next. Of several nodes first those act
 * on which a rank stands out. */
static void restart_after_hang(struct agent *a, int worker)
{
    if (a->config->job->meeting == JOB_ALONE || a->stands_out) {
        log_line("--hang-action=restart: killing rank %d", (int)a->assignment.rank_base + worker);
        agent_kill_worker(a, worker, "--hang-action=restart");
    }
    a->hang_generation = a->group.generation;
    (void)uv_timer_start(&a->hang_timer, on_culprit_remains, CULPRIT_MS,
                         0); /* fails only without a callback */
}

void agent_act_on_hang(struct agent *a, int worker)
{
    enum job_hang_action action = a->config->job->hang_action;

    if (!may_act(a) || worker < 0)
        return;
    if (action == JOB_HANG_RESTART)
        restart_after_hang(a, worker);
    if (action == JOB_HANG_STOP) {
        (void)snprintf(a->sender, sizeof(a->sender), "--hang-action=stop"); /* fits */
        agent_dispatch(a, (struct group_event){
                              .kind = GROUP_SIGNAL, .now_ns = now_ns(), .worker = -1, .value = SIGTERM});
    }
}

static void on_stacks(void *data, const struct watch_stacks *s)
{
    struct agent *a = data;

    a->stands_out = s->stands_out;
    a->hang_elsewhere = false;
    a->hang_worker = s->worker;
    log_headline(s, a->config->job->meeting != JOB_STATIC);
    if (s->reason == WATCH_HANG && a->collects_hang_reports)
        agent_begin_hang_report(a, s);
    else
        print_own_hang(a, s);
    if (agent_pass_stacks(a, s))
        return;
    _cleanup_free_ char *json = job_stacks_to_json(a->config->job->run_id_text, s->folder, s->text);
    control_send_stacks(a->control, json);
}

static void on_files(void *data, enum watch_reason reason, int worker)
{
    struct agent *a = data;

    if (reason == WATCH_HANG && a->is_hanging && !agent_hang_report_defers(a, worker))
        agent_act_on_hang(a, worker);
    if (reason == WATCH_QUIT)
        agent_quit(a);
}

void agent_report_hang(struct agent *a)
{
    if (!a->is_hanging || a->is_hang_reported)
        return;
    a->is_hang_reported = watch_take_stacks(a->watch, WATCH_HANG); /* or they are being taken already */
}

/* Of several nodes the last one that becomes quiet makes it a hang. */
static void on_hang(void *data)
{
    struct agent *a = data;

    a->is_hanging = true;
    a->is_hang_reported = false;
    if (a->membership)
        membership_quiet(a->membership, true);
    else
        agent_report_hang(a);
}

void agent_forget_hang(struct agent *a)
{
    if (!a->is_hanging)
        return;
    a->is_hanging = a->is_hang_reported = false;
    agent_end_hang_report(a);
    if (a->membership)
        membership_quiet(a->membership, false);
}

static void on_resume(void *data)
{
    struct agent *a = data;

    if (a->is_hang_reported)
        log_line("the job makes progress again");
    agent_forget_hang(a);
}

/* ---- when workers have to end ---- */

static void on_slow_end(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    if (a->group.state == GROUP_STOPPING && agent_count_unended(a) > 0)
        (void)watch_take_stacks(a->watch, WATCH_SLOW_END); /* false: they are being taken already */
}

void agent_watch_stop(struct agent *a)
{
    unsigned ms = (unsigned)a->config->job->shutdown_timeout_s * 1000u / 2;

    if (a->watch && ms && !a->is_hanging)
        (void)uv_timer_start(&a->hang_timer, on_slow_end, ms < SLOW_END_MAX_MS ? ms : SLOW_END_MAX_MS,
                             0); /* fails only without a callback */
}

/* ---- life ---- */

void agent_open_watch(struct agent *a)
{
    const struct watch_host host = {.loop = &a->loop,
                                    .environment = a->config->environment,
                                    .python = a->config->file,
                                    .timeout_ns = (uint64_t)a->config->job->hang_timeout_s * 1000000000u,
                                    .n_workers = a->config->job->n_workers,
                                    .state_fds = a->worker_memory.states,
                                    .describe = describe_workers_for_watch,
                                    .rank_base = rank_base_for_watch,
                                    .folder = folder_for_watch,
                                    .n_store_changes = store_changes_for_watch,
                                    .on_hang = on_hang,
                                    .on_resume = on_resume,
                                    .on_stacks = on_stacks,
                                    .on_files = on_files,
                                    .data = a};

    int r = watch_create(&a->watch, &host);
    if (r)
        log_line("hangs are not watched for: %s", strerror(-r));
}
