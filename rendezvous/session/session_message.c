#include "rendezvous/session/session_message.h"

#include <string.h>

#include "base/utf8.h"
#include "rendezvous/session/line_text.h"

const char *const session_cause_names[SESSION_CAUSE_COUNT] = {
    [SESSION_CAUSE_NONE] = "none", [SESSION_CAUSE_WORKER] = "worker", [SESSION_CAUSE_LOST] = "lost",
    [SESSION_CAUSE_LEFT] = "left", [SESSION_CAUSE_JOINED] = "joined", [SESSION_CAUSE_CLOSED] = "closed",
};

const char *const session_phase_names[SESSION_PHASE_COUNT] = {
    [SESSION_STOPPING] = "stopping", [SESSION_READY] = "ready", [SESSION_RUNNING] = "running",
    [SESSION_FAILED] = "failed",     [SESSION_DONE] = "done",   [SESSION_LEFT] = "left",
};

const char *const session_view_names[SESSION_VIEW_COUNT] = {
    [SESSION_VIEW_WAIT] = "wait",
    [SESSION_VIEW_START] = "start",
    [SESSION_VIEW_CONTINUE] = "continue",
    [SESSION_VIEW_STOP] = "stop",
    [SESSION_VIEW_END] = "end",
    [SESSION_VIEW_REFUSED] = "refused",
    [SESSION_VIEW_ELSEWHERE] = "elsewhere",
};

const char *const session_verdict_names[SESSION_VERDICT_COUNT] = {
    [SESSION_VERDICT_NONE] = "none",
    [SESSION_VERDICT_SUCCESS] = "success",
    [SESSION_VERDICT_DRAINED] = "drained",
    [SESSION_VERDICT_FAILURE] = "failure",
};

static bool is_timeout(uint32_t ms)
{
    return ms > 0 && ms <= SESSION_TIMEOUT_MS_MAX;
}

static bool is_default_node_timeout(const struct session_params *p)
{
    return p->node_timeout_origin == SESSION_TIMEOUT_DEFAULT ||
           (p->node_timeout_origin == SESSION_TIMEOUT_UNKNOWN &&
            p->node_timeout_ms == SESSION_NODE_TIMEOUT_MS_EARLIER);
}

bool session_node_timeouts_agree(const struct session_params *a, const struct session_params *b)
{
    return a->node_timeout_ms == b->node_timeout_ms ||
           (is_default_node_timeout(a) && is_default_node_timeout(b));
}

const char *session_params_fault(const struct session_params *p)
{
    if (p->min_nodes < 1 || p->max_nodes < p->min_nodes || p->max_nodes > SESSION_NODES_MAX)
        return "the number of nodes has to be MIN:MAX with 1 <= MIN <= MAX <= 16384";
    if (p->max_restarts > SESSION_COUNT_MAX || p->max_changes > SESSION_COUNT_MAX)
        return "restarts and membership changes are limited to 1000000";
    if (!is_timeout(p->join_timeout_ms))
        return "the join timeout has to be above 0 and at most 15 days";
    if (p->last_call_ms > SESSION_TIMEOUT_MS_MAX)
        return "the last call timeout has to be at most 15 days";
    if (!is_timeout(p->node_timeout_ms) || p->node_timeout_ms < SESSION_NODE_TIMEOUT_MS_MIN)
        return "the node timeout has to be at least 100 ms and at most 15 days";
    if (p->lease_ms > 0 && (p->lease_ms < SESSION_LEASE_MS_MIN || p->lease_ms < p->node_timeout_ms ||
                            p->lease_ms > SESSION_TIMEOUT_MS_MAX))
        return "the lease has to be at least 1 s, the node timeout, and at most 15 days";
    return NULL;
}

static bool has_control(const char *text)
{
    while (*text && text_control_size(text) == 0)
        text++;
    return *text;
}

/* These name the node in logs and in other nodes' environment. */
static bool has_control_anywhere(const struct session_hello *h)
{
    return has_control(h->job) || has_control(h->host) || has_control(h->addr) || has_control(h->own) ||
           has_control(h->role);
}

const char *session_hello_fault(const struct session_hello *h)
{
    if (has_control_anywhere(h))
        return "a control character is in the job's id or in a name or address of this node";
    if (h->job[0] == 0)
        return "the job has no id";
    if (h->n_workers < 1 || h->n_workers > SESSION_WORKERS_MAX)
        return "a node has to have between 1 and 4096 workers";
    if (h->node_rank < -1 || h->node_rank >= SESSION_NODES_MAX)
        return "a node rank has to be between 0 and 16383";
    return session_params_fault(&h->params);
}

/* ---- sentences ---- */

static const char *cause_host(const struct session_cause *c)
{
    return c->host[0] ? c->host : "a node";
}

static void describe_worker_cause(struct line_text *s, const struct session_cause *c)
{
    if (c->rank >= 0)
        line_text_add(s, "rank %d", (int)c->rank);
    else
        line_text_add(s, "a worker");
    if (c->local_rank >= 0)
        line_text_add(s, " (local rank %d)", (int)c->local_rank);
    line_text_add(s, " on %s", cause_host(c));
    if (c->exit_code < 0)
        line_text_add(s, " was ended by signal %d", -(int)c->exit_code);
    else
        line_text_add(s, " failed with exit code %d", (int)c->exit_code);
}

void session_cause_describe(const struct session_cause *c, char *ret, size_t size)
{
    struct line_text s = {.to = ret, .size = size};

    ret[0] = 0;
    switch (c->kind) {
    case SESSION_CAUSE_WORKER:
        describe_worker_cause(&s, c);
        break;
    case SESSION_CAUSE_LOST:
        line_text_add(&s, "%s (node %d) was lost", cause_host(c), (int)c->group_rank);
        break;
    case SESSION_CAUSE_LEFT:
        line_text_add(&s, "%s (node %d) left", cause_host(c), (int)c->group_rank);
        break;
    case SESSION_CAUSE_JOINED:
        line_text_add(&s, "%s joined", cause_host(c));
        break;
    case SESSION_CAUSE_CLOSED:
        line_text_add(&s, "%s", c->text[0] ? c->text : "it was closed");
        return;
    default:
        line_text_add(&s, "no reason is known");
        break;
    }
    if (c->text[0])
        line_text_add(&s, ": %s", c->text);
}

struct session_hello session_hello_of_node(const struct session_params *params, uint32_t n_workers)
{
    return (struct session_hello){
        .params = *params, .n_workers = n_workers, .node_rank = -1, .can_report = true};
}

struct session_view session_view_refused(const char *reason)
{
    struct session_view view = {
        .kind = SESSION_VIEW_REFUSED,
        .generation = -1,
        .cause = session_cause_empty(SESSION_CAUSE_CLOSED),
    };

    text_copy(view.cause.text, sizeof(view.cause.text), reason);
    return view;
}
