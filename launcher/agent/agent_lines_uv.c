/*
 * Consequences of a line with a rule of --on-line, and reports of the guardian that wait for lines or files.
 *
 * Lines come from the output thread, the ends of workers from the guardian: the end of a worker may be known before its last line.
 * The end of a generation waits until the output thread has looked at everything written before. The report of a failed worker waits
 * as well where a rule rules out a restart, and so do all reports behind a report that waits. Any other event of the group, and
 * HELD_MS, end the wait.
 *
 * The files of failed workers are read from the end of each worker on, and the loop goes on meanwhile. The report of the first failure
 * waits for the text of its worker, so briefly that a slow disk does not delay the other nodes. A later text is sent behind the report.
 * The end of the generation waits for all texts, since the report on the generation shows the texts.
 */

#include "launcher/agent/agent_lines_uv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/cli/line_rules.h"
#include "launcher/output/output_pump_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/report/disk_texts_uv.h"
#include "launcher/report/events_os.h"
#include "launcher/report/failures_os.h"
#include "launcher/watch/watch_uv.h"
#include "launcher/supervise/guardian_os.h"
#include "launcher/util/log_os.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/time.h"

enum {
    HELD_MS = 1000,
    HELD_MAX = 1024 * sizeof(struct guardian_report),
    FIRST_TEXT_MS = 50,
    ALL_TEXTS_MS = 250,
};

#define STACKS_PAUSE_NS UINT64_C(60000000000) /* between two lines that have stacks taken */

struct agent_lines {
    const struct agent_host *host;
    const struct disk_texts *texts;
    void (*take)(void *data, const struct guardian_report *report);
    int worker;             /* killed because of a line; -1: none */
    char cause[512];        /* the line, as a sentence */
    uint64_t stacks_due_ns; /* when a line has stacks taken again */
    struct buf held;        /* reports that wait for lines or files */
    bool awaits_lines;      /* the held reports wait for lines */
    uv_timer_t held_timer;
};

/* ---- lines ---- */

static bool may_fail(const struct worker_group *g, int worker)
{
    return (g->state == GROUP_RUNNING || g->state == GROUP_REPLACING) &&
           group_worker_may_run(&g->workers[worker]);
}

/* The worker may hang, or catch every signal: it is killed, and has failed with the line as the cause. */
static void fail_for_line(struct agent_lines *l, int worker, enum line_action action, const char *text)
{
    const struct agent_host *h = l->host;

    if (!may_fail(h->group, worker)) {
        if (action == LINE_STOP) /* the worker has ended by itself since */
            host_dispatch(h, GROUP_FINAL, worker);
        return;
    }
    if (l->worker >= 0)
        return; /* the first worker decides */
    l->worker = worker;
    (void)snprintf(l->cause, sizeof(l->cause), "%s", text); /* fits */
    if (action == LINE_STOP)
        host_dispatch(h, GROUP_FINAL, worker);
    h->kill_worker(h->data, worker, "--on-line");
}

static void take_stacks_for_line(struct agent_lines *l)
{
    uint64_t now = now_ns();

    if (now >= l->stacks_due_ns && watch_take_stacks(l->host->watch, WATCH_LINE))
        l->stacks_due_ns = now + STACKS_PAUSE_NS;
}

void agent_lines_match(void *lines, const struct line_match *match)
{
    struct agent_lines *l = lines;
    const struct agent_host *h = l->host;
    const struct line_rule *rule = &h->job->line_rules->items[match->rule];
    const struct event_mark mark = {.local_rank = match->local_rank,
                                    .action = line_action_name(rule->action),
                                    .rule = rule->text,
                                    .line = match->line};
    char text[sizeof(l->cause)];

    if (match->local_rank == l->worker && line_action_is_failure(rule->action))
        return; /* the worker is being killed, and prints more of the kind until its end */
    (void)snprintf(text, sizeof(text), "it printed a line that --on-line has a rule for (%.200s): %s",
                   rule->text, match->line); /* fits */
    log_line("rank %d: %s", (int)h->assignment->rank_base + match->local_rank, text);
    events_write(h->events, h->group, (struct event){.kind = EVENT_MARK, .mark = &mark});
    if (match->is_of_ended)
        return;
    if (rule->action == LINE_STACKS)
        take_stacks_for_line(l);
    if (line_action_is_failure(rule->action))
        fail_for_line(l, match->local_rank, rule->action, text);
}

int agent_lines_worker(const struct agent_lines *l, const char **ret_cause)
{
    *ret_cause = l->cause;
    return l->worker;
}

void agent_lines_forget(struct agent_lines *l)
{
    l->worker = -1;
}

/* ---- reports that wait ---- */

static bool is_failure_of_worker(const struct job *job, const struct guardian_report *report)
{
    return report->kind == GUARDIAN_EXITED && report->value != 0 && report->worker >= 0 &&
           report->worker < job->n_workers;
}

/* Before another node learns of the failure, or before a replacement, which has its report at once. */
static bool is_first_failure(const struct agent_host *host, const struct guardian_report *report)
{
    const struct job *job = host->job;

    return is_failure_of_worker(job, report) && (job->meeting == JOB_ROUNDS || job->replace) &&
           host->group->cause == GROUP_CAUSE_NONE;
}

/* How long the report waits for files, in ms; 0: not at all. */
static unsigned text_patience(const struct agent_lines *l, const struct guardian_report *report)
{
    if (report->kind == GUARDIAN_EMPTY)
        return disk_texts_await_any(l->texts) ? ALL_TEXTS_MS : 0;
    return is_first_failure(l->host, report) && disk_texts_await(l->texts, (size_t)report->worker)
               ? FIRST_TEXT_MS
               : 0;
}

static bool waits_for_lines(const struct agent_lines *l, const struct guardian_report *report)
{
    const struct line_rules *rules = l->host->job->line_rules;
    const struct worker_group *g = l->host->group;

    if (!rules || report->kind == GUARDIAN_EMPTY)
        return rules;
    return is_failure_of_worker(l->host->job, report) && l->worker < 0 &&
           (g->state == GROUP_RUNNING || g->state == GROUP_REPLACING) && line_rules_have(rules, LINE_STOP);
}

static bool hold_report(struct agent_lines *l, const struct guardian_report *report);

static void release_held(struct agent_lines *l, bool may_wait_again)
{
    _cleanup_(buf_finish) struct buf held = l->held;
    struct guardian_report report;

    l->held = (struct buf){0};
    l->awaits_lines = false;
    (void)uv_timer_stop(&l->held_timer); /* cannot fail on a timer that exists */
    for (bool is_first = true; buf_size(&held) > 0; is_first = false) {
        memcpy(&report, buf_bytes(&held), sizeof(report));
        buf_consume(&held, sizeof(report));
        if (is_first || !may_wait_again || !hold_report(l, &report))
            l->take(l->host->data, &report);
    }
}

static void on_held_too_long(uv_timer_t *timer)
{
    release_held(timer->data, true);
}

static bool hold_report(struct agent_lines *l, const struct guardian_report *report)
{
    bool is_first = buf_size(&l->held) == 0;
    unsigned ms = is_first ? text_patience(l, report) : 0;

    if (is_first && waits_for_lines(l, report) && output_look(l->host->output)) {
        l->awaits_lines = true;
        ms = HELD_MS;
    }
    if (is_first && ms == 0)
        return false;
    if (buf_size(&l->held) >= HELD_MAX || buf_append(&l->held, report, sizeof(*report)) != 0) {
        release_held(l, false);
        return false;
    }
    if (is_first)
        (void)uv_timer_start(&l->held_timer, on_held_too_long, ms, 0); /* fails only without a callback */
    return true;
}

void agent_lines_report(struct agent_lines *l, const struct failures_source *source,
                        const struct guardian_report *report)
{
    bool is_file_missing = report->value == ENOENT || report->value == EACCES;

    if (is_failure_of_worker(source->job, report))
        failures_want_texts(source, report->worker);
    if (report->kind == GUARDIAN_EXEC_FAILED && is_file_missing)
        failures_want_program(source);
    if (!hold_report(l, report))
        l->take(l->host->data, report);
}

/* The waiting reports come before the event. */
static void release_reports(void *self, const struct group_event *event)
{
    if (event->kind != GROUP_FINAL) /* the event of a line, on which the reports wait */
        release_held(self, false);
}

void agent_lines_check(struct agent_lines *l)
{
    if (buf_size(&l->held) > 0 && !l->awaits_lines &&
        text_patience(l, (const void *)buf_bytes(&l->held)) == 0)
        release_held(l, true);
}

void agent_lines_looked(void *lines)
{
    struct agent_lines *l = lines;
    l->awaits_lines = false;
    agent_lines_check(l);
}

/* ---- life ---- */

void agent_lines_destroy(struct agent_lines *l)
{
    buf_finish(&l->held);
}

struct agent_lines *agent_lines_create(struct agent_observer *observer, const struct agent_host *host,
                                       const struct disk_texts *texts,
                                       void (*take)(void *data, const struct guardian_report *report))
{
    static struct agent_lines lines; /* a process has one agent */
    struct agent_lines *l = &lines;

    *l = (struct agent_lines){.host = host, .texts = texts, .take = take, .worker = -1};
    (void)uv_timer_init(host->loop, &l->held_timer); /* cannot fail */
    l->held_timer.data = l;
    *observer = (struct agent_observer){
        .self = l, .before = release_reports, .handle = (uv_handle_t *)&l->held_timer};
    return l;
}
