/*
 * A line is the time (seconds of the monotonic clock, as all deadlines), the kind of event, and the facts:
 *
 *     12.000417 conn 7 opened by client 10.0.0.2:51334
 *     12.000533 event hello conn 7 job train-7 host node3 attempt 1 phase ready generation -1
 *     12.000541 action save job train-7 running generation 0 nodes 4
 *     12.000588 action send conn 7 start generation 0 group_rank 3
 *
 * The file descriptor names a connection.
 */

#include "rendezvous/agents/rounds_debug_uv.h"

#include <string.h>

#include "base/utf8.h"
#include "rendezvous/session/line_text.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

struct debug_line {
    char text[ROUNDS_DEBUG_SIZE];
    struct line_text line;
};

static void debug_begin(struct debug_line *l, const char *what, const char *name)
{
    uint64_t us = uv_hrtime() / 1000;

    l->line = (struct line_text){.to = l->text, .size = sizeof(l->text)};
    line_text_add(&l->line, "%llu.%06llu %s %s", (unsigned long long)(us / 1000000),
                  (unsigned long long)(us % 1000000), what, name);
}

static void debug_end(struct rounds_shell *r, struct debug_line *l)
{
    text_clean(l->text); /* names come from the network */
    r->config.debug(r->config.data, l->text);
}

static void debug_add_conn(struct debug_line *l, struct rounds_conn *conn)
{
    if (conn)
        line_text_add(&l->line, " conn %d", list_entry(conn, struct agent_conn, session)->fd);
}

static void debug_add_report(struct debug_line *l, const struct session_report *report)
{
    line_text_add(&l->line, " phase %s generation %lld", session_phase_names[report->phase],
                  (long long)report->generation);
    if (report->cause.kind != SESSION_CAUSE_NONE)
        line_text_add(&l->line, " cause %s", session_cause_names[report->cause.kind]);
    if (report->drain)
        line_text_add(&l->line, " drain");
}

void rounds_debug_event(struct rounds_shell *r, const struct rounds_event *event)
{
    struct debug_line l;

    if (!r->config.debug)
        return;
    debug_begin(&l, "event", rounds_event_names[event->kind]);
    debug_add_conn(&l, event->session);
    if (event->kind == ROUNDS_HELLO) {
        line_text_add(&l.line, " job %.100s host %.100s attempt %u", event->hello->job, event->hello->host,
                      (unsigned)event->hello->attempt);
        debug_add_report(&l, &event->hello->report);
    } else if (event->kind == ROUNDS_REPORT) {
        debug_add_report(&l, event->report);
    } else if (event->kind == ROUNDS_SLOW) {
        line_text_add(&l.line, " slack_ms %llu", (unsigned long long)(event->slack_ns / 1000000));
    } else if (event->kind == ROUNDS_EXPECT) {
        line_text_add(&l.line, " number %u", (unsigned)event->number);
    } else if (event->kind == ROUNDS_CLOSE) {
        line_text_add(&l.line, " reason %.200s", event->reason);
    }
    debug_end(r, &l);
}

static void debug_add_view(struct debug_line *l, const struct session_view *view)
{
    line_text_add(&l->line, " %s generation %lld", session_view_names[view->kind],
                  (long long)view->generation);
    if (view->kind == SESSION_VIEW_START)
        line_text_add(&l->line, " group_rank %u", (unsigned)view->place.group_rank);
    if (view->kind == SESSION_VIEW_END)
        line_text_add(&l->line, " verdict %s", session_verdict_names[view->verdict]);
    if (view->cause.kind != SESSION_CAUSE_NONE)
        line_text_add(&l->line, " cause %s", session_cause_names[view->cause.kind]);
}

void rounds_debug_action(struct rounds_shell *r, const struct rounds_action *action)
{
    const struct rounds_job *job = action->job;
    struct debug_line l;

    if (!r->config.debug)
        return;
    debug_begin(&l, "action", rounds_action_names[action->kind]);
    debug_add_conn(&l, action->session);
    if (action->kind == ROUNDS_DO_SEND)
        debug_add_view(&l, &action->view);
    else if (job && !action->session)
        line_text_add(&l.line, " job %.100s %s generation %lld nodes %u", job->id,
                      rounds_job_state_names[job->state], (long long)job->generation,
                      (unsigned)rounds_job_n_nodes(job));
    debug_end(r, &l);
}

void rounds_debug_conn(struct rounds_shell *r, const struct agent_conn *a, const char *what, bool with_peer)
{
    char peer[INET6_ADDRSTRLEN + 32] = "";
    struct debug_line l;

    if (!r->config.debug)
        return;
    if (with_peer)
        server_format_peer(a->fd, peer, sizeof(peer));
    debug_begin(&l, "conn", "");
    line_text_add(&l.line, "%d %s%s%s", a->fd, what, with_peer ? " " : "", peer);
    debug_end(r, &l);
}
