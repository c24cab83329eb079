/*
 * What follows from a line that --on-line has a rule for.
 *
 * Lines come from the output thread, the ends of workers from the guardian: the end of a worker may be known before the line
 * that it printed last. The end of a generation waits until that thread has looked at all that was written before, and so
 * does the report of a failed worker where a rule rules out a restart, and with it all reports behind it. Any other event of
 * the group, and HELD_MS, end that wait. Reports wait for files of failed workers in the same place (agent_texts_uv.c).
 */

#include <stdio.h>
#include <stdlib.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/cli/line_rules.h"
#include "launcher/output/output_pump_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/report/events.h"
#include "launcher/report/events_os.h"
#include "launcher/supervise/guardian_os.h"
#include "launcher/util/log_os.h"
#include "launcher/watch/watch_uv.h"
#include "base/time.h"

enum {
    HELD_MS = 1000,
    HELD_MAX = 1024,
};

#define STACKS_PAUSE_NS UINT64_C(60000000000) /* between two lines for which stacks are taken */

/* ---- lines ---- */

static void rule_out_restart(struct agent *a, int worker)
{
    agent_dispatch(a, (struct group_event){.kind = GROUP_FINAL, .now_ns = now_ns(), .worker = worker});
}

static bool may_fail(const struct agent *a, int worker)
{
    return (a->group.state == GROUP_RUNNING || a->group.state == GROUP_REPLACING) &&
           group_worker_may_run(&a->group.workers[worker]);
}

/* The worker may hang, or catch every signal: it is killed, and has failed with the line as the cause. */
static void fail_for_line(struct agent *a, int worker, enum line_action action, const char *text)
{
    if (!may_fail(a, worker)) {
        if (action == LINE_STOP) /* it has ended by itself since */
            rule_out_restart(a, worker);
        return;
    }
    if (a->line_worker >= 0)
        return; /* the first one decides */
    a->line_worker = worker;
    (void)snprintf(a->line_cause, sizeof(a->line_cause), "%s", text); /* fits */
    if (action == LINE_STOP)
        rule_out_restart(a, worker);
    agent_kill_worker(a, worker, "--on-line");
}

static void take_stacks_for_line(struct agent *a)
{
    uint64_t now = now_ns();

    if (now >= a->line_stacks_due_ns && watch_take_stacks(a->watch, WATCH_LINE))
        a->line_stacks_due_ns = now + STACKS_PAUSE_NS;
}

void agent_on_line_match(void *data, const struct line_match *match)
{
    struct agent *a = data;
    const struct line_rule *rule = &a->config->job->line_rules->items[match->rule];
    const struct event_mark mark = {.local_rank = match->local_rank,
                                    .action = line_action_name(rule->action),
                                    .rule = rule->text,
                                    .line = match->line};
    char text[sizeof(a->line_cause)];

    if (match->local_rank == a->line_worker && line_action_is_failure(rule->action))
        return; /* it has failed, and prints more of the kind until it has ended */
    (void)snprintf(text, sizeof(text), "it printed a line that --on-line has a rule for (%.200s): %s",
                   rule->text, match->line); /* fits */
    log_line("rank %d: %s", (int)a->assignment.rank_base + match->local_rank, text);
    events_mark(a->events, &a->group, &mark);
    if (match->is_of_ended)
        return;
    if (rule->action == LINE_STACKS)
        take_stacks_for_line(a);
    if (line_action_is_failure(rule->action))
        fail_for_line(a, match->local_rank, rule->action, text);
}

/* ---- reports that wait ---- */

static bool waits_for_lines(const struct agent *a, const struct guardian_report *report)
{
    const struct line_rules *rules = a->config->job->line_rules;

    if (!rules || report->kind == GUARDIAN_EMPTY)
        return rules;
    return report->kind == GUARDIAN_EXITED && report->value != 0 && a->line_worker < 0 &&
           (a->group.state == GROUP_RUNNING || a->group.state == GROUP_REPLACING) &&
           line_rules_have(rules, LINE_STOP);
}

static void release_held(struct agent *a, bool may_wait_again)
{
    struct guardian_report *held = a->held;
    size_t n = a->n_held;

    a->held = NULL;
    a->n_held = 0;
    a->awaits_lines = false;
    if (n > 0)
        (void)uv_timer_stop(&a->held_timer); /* cannot fail on a timer that exists */
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !may_wait_again || !agent_hold_report(a, &held[i]))
            agent_take_report(a, &held[i]);
    free(held);
}

static void on_held_too_long(uv_timer_t *timer)
{
    release_held(timer->data, true);
}

static bool append_held(struct agent *a, const struct guardian_report *report)
{
    struct guardian_report *held =
        a->n_held < HELD_MAX ? realloc(a->held, (a->n_held + 1) * sizeof(*held)) : NULL;

    if (!held)
        return false;
    a->held = held;
    a->held[a->n_held++] = *report;
    return true;
}

bool agent_hold_report(struct agent *a, const struct guardian_report *report)
{
    bool is_first = a->n_held == 0;
    unsigned ms = is_first ? agent_text_patience(a, report) : 0;

    if (is_first && waits_for_lines(a, report) && output_look(a->output)) {
        a->awaits_lines = true;
        ms = HELD_MS;
    }
    if (is_first && ms == 0)
        return false;
    if (!append_held(a, report)) {
        agent_release_reports(a);
        return false;
    }
    if (is_first)
        (void)uv_timer_start(&a->held_timer, on_held_too_long, ms, 0); /* fails only without a callback */
    return true;
}

void agent_release_reports(struct agent *a)
{
    release_held(a, false);
}

void agent_check_held(struct agent *a)
{
    if (a->n_held > 0 && !a->awaits_lines && agent_text_patience(a, &a->held[0]) == 0)
        release_held(a, true);
}

void agent_on_lines_known(void *data)
{
    struct agent *a = data;

    a->awaits_lines = false;
    agent_check_held(a);
}
