/*
 * The rounds' events and actions: hellos, reports and silence come in here, and messages to send go out.
 * The life of a job is in rounds_job.c.
 */

#include "rendezvous/rounds/rounds.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "base/utf8.h"
#include "base/err.h"
#include "rendezvous/rounds/rounds_impl.h"

/* Greatest age of a failure; an age from a peer is not trusted. */
static const uint64_t AGE_MAX_NS = UINT64_C(3600000000000);
/* A save longer than UNSAVED_MAX_NS counts as a wait: deadlines of jobs are postponed. */
static const uint64_t UNSAVED_MAX_NS = UINT64_C(1000000000);

const char *const rounds_job_state_names[ROUNDS_JOB_STATE_COUNT] = {
    [ROUNDS_GATHERING] = "gathering",
    [ROUNDS_RUNNING] = "running",
    [ROUNDS_ENDING] = "ending",
    [ROUNDS_CLOSED] = "closed",
};

const char *const rounds_node_state_names[ROUNDS_NODE_STATE_COUNT] = {
    [ROUNDS_NODE_RUNNING] = "running",   [ROUNDS_NODE_DONE] = "done",       [ROUNDS_NODE_READY] = "ready",
    [ROUNDS_NODE_STOPPING] = "stopping", [ROUNDS_NODE_JOINING] = "joining", [ROUNDS_NODE_UNFIT] = "unfit",
    [ROUNDS_NODE_LOST] = "lost",
};
_Static_assert(ROUNDS_NODE_STATE_COUNT == 7, "each state of a node has a name");

bool rounds_job_is_quiet(const struct rounds_job *job)
{
    return job->n_nodes[ROUNDS_NODE_RUNNING] > 0 &&
           job_is_quiet(job); /* nodes that are done are quiet, too */
}

const char *const rounds_event_names[ROUNDS_EVENT_COUNT] = {
    [ROUNDS_HELLO] = "hello", [ROUNDS_REPORT] = "report", [ROUNDS_ALIVE] = "alive",
    [ROUNDS_RENEW] = "renew", [ROUNDS_SLOW] = "slow",     [ROUNDS_DISCONNECTED] = "disconnected",
    [ROUNDS_TIMER] = "timer", [ROUNDS_CLOSE] = "close",   [ROUNDS_EXPECT] = "expect",
};

const char *const rounds_action_names[ROUNDS_ACTION_COUNT] = {
    [ROUNDS_DO_SAVE] = "save",       [ROUNDS_DO_REPORT] = "log",  [ROUNDS_DO_SEND] = "send",
    [ROUNDS_DO_ALIVE] = "alive",     [ROUNDS_DO_CLOSE] = "close", [ROUNDS_DO_FORGET] = "forget",
    [ROUNDS_DO_RENEWED] = "renewed",
};

/* ---- life ---- */

void rounds_conn_init(struct rounds_conn *s)
{
    *s = (struct rounds_conn){0};
    list_init(&s->ending);
}

void rounds_init(struct rounds *r, const struct rounds_config *config)
{
    *r = (struct rounds){.config = *config, .deadline_ns = UINT64_MAX};
    list_init(&r->jobs);
    list_init(&r->pending);
    list_init(&r->pending_jobs);
    list_init(&r->refused);
    list_init(&r->closing);
    list_init(&r->forgotten);
}

/* Frees the forgotten job of the last action. */
static void free_forgotten_job(struct rounds *r)
{
    job_destroy(r->shown);
    r->shown = NULL;
}

void rounds_finish(struct rounds *r)
{
    list_for_each_safe(i, &r->jobs) job_forget(list_entry(i, struct rounds_job, in_rounds));
    list_for_each_safe(i, &r->forgotten) job_destroy(list_entry(i, struct rounds_job, in_pending));
    free_forgotten_job(r);
    free(r->buckets);
    *r = (struct rounds){0};
}

void rounds_reset(struct rounds *r)
{
    struct rounds_config config = r->config;
    uint64_t n_instances = r->n_instances;

    rounds_finish(r);
    rounds_init(r, &config);
    r->n_instances = n_instances;
}

/* ---- refusals ---- */

/* job: the refusal depends on the job's state, which has to be saved before the agent ends with the refusal; NULL: no job. Returns
 * NULL. */
static void *__attribute__((format(printf, 4, 5)))
refuse_hello(struct rounds *r, struct rounds_conn *s, const struct rounds_job *job, const char *format, ...)
{
    char text[sizeof(r->refusal) + 64];

    (void)format_arguments(text, sizeof(text), format);
    text_copy(r->refusal, sizeof(r->refusal), text);
    r->refusing = job;
    list_move(&r->refused, &s->ending);
    return NULL;
}

enum { PARAM_TEXT_SIZE = 48 };

struct param_name {
    const char *name;
    size_t offset;
    const char *words[2]; /* for 0 and 1; NULL: a number */
};

static const struct param_name param_names[] = {
    {"the launcher", offsetof(struct session_params, foreign), {"crun", "torchrun with --rdzv-backend=crun"}},
    {"the worker store (--worker-store, --seal)",
     offsetof(struct session_params, local_store),
     {"shared", "local"}},
    {"the smallest number of nodes", offsetof(struct session_params, min_nodes)},
    {"the largest number of nodes", offsetof(struct session_params, max_nodes)},
    {"max-restarts", offsetof(struct session_params, max_restarts)},
    {"the limit of membership changes", offsetof(struct session_params, max_changes)},
    {"join_timeout (in ms)", offsetof(struct session_params, join_timeout_ms)},
    {"last_call_timeout (in ms)", offsetof(struct session_params, last_call_ms)},
    {"node_timeout_ms", offsetof(struct session_params, node_timeout_ms)},
    {"the origin of node_timeout_ms", offsetof(struct session_params, node_timeout_origin)}, /* may differ */
    {"the lease (in ms)", offsetof(struct session_params, lease_ms)},
    {"the choice of the lease (1: the rendezvous')", offsetof(struct session_params, lease_auto)},
};

static_assert(sizeof(param_names) / sizeof(param_names[0]) * sizeof(uint32_t) ==
                  sizeof(struct session_params),
              "every parameter has to be compared");

static uint32_t param_value(const struct session_params *p, const struct param_name *name)
{
    return *(const uint32_t *)(const void *)((const char *)p + name->offset);
}

static bool is_param_equal(const struct param_name *name, const struct session_params *a,
                           const struct session_params *b)
{
    if (name->offset == offsetof(struct session_params, node_timeout_ms))
        return session_node_timeouts_agree(a, b);
    return name->offset == offsetof(struct session_params, node_timeout_origin) ||
           param_value(a, name) == param_value(b, name);
}

static void format_param(const struct param_name *name, uint32_t value, char to[PARAM_TEXT_SIZE])
{
    if (name->words[0])
        (void)snprintf(to, PARAM_TEXT_SIZE, "%s", name->words[value != 0]);
    else
        (void)snprintf(to, PARAM_TEXT_SIZE, "%u", value);
}

/* False, and refused: the nodes of a job must want the same job. */
static bool check_params_match(struct rounds *r, struct rounds_job *job, const struct rounds_event *event)
{
    for (size_t i = 0; i < ARRAY_SIZE(param_names); i++) {
        if (!is_param_equal(&param_names[i], &job->params, &event->hello->params)) {
            char in_job[PARAM_TEXT_SIZE], here[PARAM_TEXT_SIZE];

            format_param(&param_names[i], param_value(&job->params, &param_names[i]), in_job);
            format_param(&param_names[i], param_value(&event->hello->params, &param_names[i]), here);
            (void)refuse_hello(
                r, event->session, job,
                "job '%.200s' has begun with other parameters: %s is %s in the job and %s on this node; use the "
                "same command line on all nodes, or another --rdzv-id for another job",
                job->id, param_names[i].name, in_job, here);
            job_note_refused(job, event->hello->host, param_names[i].name, in_job, here);
            return false;
        }
    }
    return true;
}

/* Takes the larger of two defaults. A given value stays: the next node with another value is refused. */
static void take_node_timeout(struct rounds_job *job, const struct session_params *theirs)
{
    struct session_params *ours = &job->params;
    bool is_larger = theirs->node_timeout_ms > ours->node_timeout_ms;

    if (!is_larger && (theirs->node_timeout_origin != SESSION_TIMEOUT_GIVEN ||
                       ours->node_timeout_origin == SESSION_TIMEOUT_GIVEN))
        return;
    if (is_larger)
        ours->node_timeout_ms = theirs->node_timeout_ms;
    ours->node_timeout_origin = theirs->node_timeout_origin;
    job_want_save(job);
}

static void *refuse_closed(struct rounds *r, const struct rounds_job *job, const struct rounds_event *event)
{
    char cause[200];

    session_cause_describe(&job->cause, cause, sizeof(cause));
    return refuse_hello(
        r, event->session, job,
        "job '%.100s' is over (%s%s%s); use another --rdzv-id, or try again in %llu s", job->id,
        session_verdict_names[job->verdict], job->verdict == SESSION_VERDICT_FAILURE ? ": " : "",
        job->verdict == SESSION_VERDICT_FAILURE ? cause : "",
        (unsigned long long)((job->forget_ns > event->now_ns ? job->forget_ns - event->now_ns : 0) /
                                 1000000000 +
                             1));
}

/* ---- reports ---- */

/* An agent may know generations and charges that the daemon lost with a part of its state, or with all. Charges are taken
 * while no generation runs: the members of a running generation got the generation's charges. */
static void learn_from_report(struct rounds_node *n, const struct session_report *report)
{
    struct rounds_job *job = n->job;
    bool foreign = report->instance != job->instance;

    if (report->generation < 0 || (!foreign && report->generation <= job->generation))
        return;
    if (report->generation > job->floor)
        job->floor =
            report->generation < SESSION_GENERATION_MAX ? report->generation : SESSION_GENERATION_MAX;
    job_fence_until(job, job->begun_ns + session_lease_wait_ns(job->lease_ms));
    n->known_restarts = report->restarts;
    n->known_changes = report->changes;
    if (job->state == ROUNDS_GATHERING)
        job_learn_charges(n);
}

/* The text of a failure may follow the report of the failure, because the text is read from a disk, perhaps a slow one. The
 * end of the generation may be decided before the text comes. */
static void complete_cause(struct rounds_node *n, const struct session_report *report)
{
    struct session_cause *cause = &n->job->cause;
    bool is_same = cause->kind == SESSION_CAUSE_WORKER && cause->group_rank == n->group_rank &&
                   cause->rank == report->cause.rank;

    if (report->phase == SESSION_FAILED && node_is_current(n) && is_same && !cause->text[0])
        text_copy(cause->text, sizeof(cause->text), report->cause.text);
}

static void store_report(struct rounds_node *n, const struct session_report *report)
{
    n->phase = report->phase;
    n->foreign = report->generation >= 0 && report->instance != n->job->instance;
    n->generation = report->generation;
    if (report->generation >= n->pending_start)
        n->pending_start = -1;
    if (report->port > 0)
        n->port = report->port;
    if (n->group_rank < 0)
        n->group_rank = report->group_rank;
    n->keeps_keys = report->phase == SESSION_READY && report->keeps_keys;
    if (report->cut_from > 0 && node_is_current(n))
        n->cut_from = report->cut_from;
    complete_cause(n, report);
}

/* After the state of the node was decided anew. */
static void note_unfit(struct rounds_node *n, const char *unfit)
{
    if (strcmp(n->unfit, unfit) == 0)
        return;
    text_copy(n->unfit, sizeof(n->unfit), unfit);
    node_update_state(n);
    job_describe_unfit(n->job); /* the reason may be new */
    if (n->unfit[0])
        job_want_log(n->job, ROUNDS_LOG_UNFIT);
}

/* The failure in the report of a member; false: no failure. */
static bool member_failure(const struct rounds_node *n, const struct session_report *report,
                           struct session_cause *ret)
{
    if (report->phase != SESSION_FAILED && report->phase != SESSION_STOPPING &&
        report->phase != SESSION_READY)
        return false;
    *ret = report->cause;
    if (report->phase == SESSION_FAILED || ret->kind == SESSION_CAUSE_NONE) {
        /* Also a member that stopped without a known cause: the workers have ended, which is a failure. */
        ret->kind = SESSION_CAUSE_WORKER;
        ret->group_rank = n->group_rank;
        if (ret->rank < (int32_t)n->rank_base || ret->rank >= (int32_t)(n->rank_base + n->n_workers))
            ret->rank = -1;
        text_copy(ret->host, sizeof(ret->host), n->host);
    }
    return true;
}

static uint64_t failure_time_ns(const struct session_report *report, uint64_t now_ns)
{
    uint64_t age_ns = report->age_ns < AGE_MAX_NS ? report->age_ns : AGE_MAX_NS;

    return age_ns < now_ns ? now_ns - age_ns : 0;
}

/* A member reports on the present generation. */
static void take_member_report(struct rounds_node *n, const struct session_report *report, uint64_t now_ns)
{
    struct session_cause cause;

    if (!member_failure(n, report, &cause))
        return;
    /* The daemon knows a cause sent with STOP already, unless the daemon was restarted before saving the cause. */
    if (report->phase == SESSION_FAILED || n->job->state == ROUNDS_RUNNING)
        job_end_generation(n->job, &cause, failure_time_ns(report, now_ns), now_ns);
    n->answered = n->job->state == ROUNDS_ENDING;
}

/* The node runs workers of a generation that is over: START was on its way when the generation ended. */
static bool runs_stale_generation(const struct rounds_node *n)
{
    bool plays = n->phase == SESSION_RUNNING || n->phase == SESSION_DONE;

    return plays && !(n->member && node_is_current(n) && n->job->state == ROUNDS_RUNNING);
}

/* May free n. */
static void node_take_report(struct rounds_node *n, const struct session_report *report, bool hello,
                             uint64_t now_ns)
{
    struct rounds_job *job = n->job;

    learn_from_report(n, report);
    if (report->stop_signal > 0)
        job_stop(n, report, now_ns);
    if (report->phase == SESSION_LEFT) {
        job_lose(n, SESSION_CAUSE_LEFT, report->cause.text, now_ns);
        job_advance(job, now_ns);
        return;
    }
    store_report(n, report);
    if (n->member && (n->foreign || n->generation > job->generation))
        job_abandon_generation(job, now_ns); /* the saved state was old: the job's generation is over */
    if (n->member && node_is_current(n))
        take_member_report(n, report, now_ns);
    else if (n->member && job->state == ROUNDS_ENDING && report->phase == SESSION_READY)
        n->answered = true; /* START was never sent */
    node_update_state(n);
    note_unfit(n, report->phase == SESSION_STOPPING ? report->unfit : "");
    if (hello || report->phase == SESSION_READY || runs_stale_generation(n))
        node_want_view(n);
    job_take_quiet(n, report);
    if (report->drain && n->member && job->state != ROUNDS_CLOSED)
        job_drain(job);
    job_advance(job, now_ns);
}

/* ---- hellos ---- */

/* No node of the job is left, and the agent has no generation of the job: the agent belongs to another run under the same
 * id. But a closed job of variable size may still have late nodes without a generation, which have to get the result. */
static bool is_id_free(struct rounds_job *job, const struct rounds_event *event)
{
    bool has_late_nodes = job->state == ROUNDS_CLOSED && job->params.min_nodes < job->params.max_nodes &&
                          event->now_ns < job->forget_ns;

    return !job->replaced && job_is_abandoned(job) && event->hello->report.generation < 0 &&
           !node_find(job, event->hello->nonce) && !has_late_nodes;
}

static size_t count_jobs_of(const struct rounds *r, uint64_t owner)
{
    size_t n = 0;

    rounds_each_job(job, r) n += !job->replaced && job->owner == owner;
    return n;
}

/* False, and refused. */
static bool check_node_timeout(struct rounds *r, const struct rounds_event *event)
{
    uint32_t ms = event->hello->params.node_timeout_ms, most_ms = r->config.max_node_timeout_ms;

    return event->owner == 0 || most_ms == 0 || ms <= most_ms ||
           refuse_hello(
               r, event->session, NULL,
               "node_timeout_ms is %u, and the rendezvous takes at most %u from a job without a secret "
               "(crund --max-node-timeout)",
               ms, most_ms);
}

/* False, and refused: an agent without a key or certificate asks for more than its quota. */
static bool check_quotas(struct rounds *r, const struct rounds_event *event)
{
    const struct rounds_config *c = &r->config;
    const struct session_params *p = &event->hello->params;
    uint32_t wait_ms = p->join_timeout_ms > p->last_call_ms ? p->join_timeout_ms : p->last_call_ms;

    if (event->owner == 0)
        return true;
    if (!check_node_timeout(r, event))
        return false;
    if (c->max_wait_ms > 0 && wait_ms > c->max_wait_ms)
        return refuse_hello(
            r, event->session, NULL,
            "join_timeout or last_call_timeout is %u s, and the rendezvous takes at most %u s from a job "
            "without a secret (crund --max-wait)",
            wait_ms / 1000, c->max_wait_ms / 1000);
    if (c->max_jobs_each > 0 && count_jobs_of(r, event->owner) >= c->max_jobs_each)
        return refuse_hello(
            r, event->session, NULL,
            "this address or user has %u jobs without a secret at the rendezvous already, which is its limit "
            "(crund --max-jobs-each)",
            c->max_jobs_each);
    return true;
}

/* The job of a hello, perhaps a new job; NULL: refused. */
static struct rounds_job *find_job(struct rounds *r, const struct rounds_event *event)
{
    const struct session_hello *hello = event->hello;
    struct rounds_job *job = job_find_of_agent(r, hello);
    uint64_t fence_end_ns = 0;

    if (job && is_id_free(job, event)) {
        fence_end_ns = job_fence_end(job);
        job_replace(job, event->now_ns);
        job = NULL;
    }
    if (job) {
        bool is_known = node_find(job, hello->nonce) != NULL; /* parameters checked at the first hello */

        if (!is_known && !check_params_match(r, job, event))
            return NULL;
        if (hello->params.node_timeout_ms > job->params.node_timeout_ms && !check_node_timeout(r, event))
            return NULL;
        if (job->state == ROUNDS_CLOSED && hello->report.generation < 0 && !is_known)
            return refuse_closed(r, job, event);
        if (!is_known)
            take_node_timeout(job, &hello->params);
        return job;
    }
    if (!check_quotas(r, event))
        return NULL;
    if (r->n_jobs >= r->config.max_jobs)
        return refuse_hello(r, event->session, NULL,
                            "the rendezvous has %zu jobs already, which is its limit", r->n_jobs);
    job = job_create(r, hello->job, &hello->params);
    if (!job)
        return refuse_hello(r, event->session, NULL, "the rendezvous has no memory for another job");
    job_begin(job, event->now_ns);
    job_fence_until(job, fence_end_ns);
    job->owner = event->owner;
    return job;
}

static struct rounds_node *add_node(struct rounds *r, struct rounds_job *job,
                                    const struct rounds_event *event)
{
    const struct session_hello *hello = event->hello;

    if (rounds_job_n_nodes(job) >= r->config.max_nodes)
        return refuse_hello(r, event->session, job, "job '%.200s' has %u nodes already, which is the limit",
                            job->id, rounds_job_n_nodes(job));
    if (r->n_nodes >= r->config.max_nodes_all)
        return refuse_hello(r, event->session, NULL,
                            "the rendezvous has %zu nodes in all jobs already, which is its limit",
                            r->n_nodes);
    struct rounds_node *n = node_create(job, hello->nonce);
    if (!n)
        return refuse_hello(r, event->session, NULL, "the rendezvous has no memory for another node");
    text_copy(n->host, sizeof(n->host), hello->host);
    text_copy(n->role, sizeof(n->role), hello->role);
    n->n_workers = hello->n_workers;
    n->node_rank = hello->node_rank;
    job->empty = false;
    return n;
}

/* Makes the event's connection the node's connection; an older connection is closed. */
static void attach_connection(struct rounds *r, struct rounds_node *n, const struct rounds_event *event)
{
    if (n->session)
        conn_end(r, n->session);
    node_set_session(n, event->session);
    n->pending_start = -1; /* the hello knows the result of all views sent over the closed connection */
    n->attempt = event->hello->attempt;
    text_copy(n->addr, sizeof(n->addr), event->hello->addr);
    text_copy(n->peer, sizeof(n->peer), event->peer);
    text_copy(n->own, sizeof(n->own), event->hello->own);
    text_copy(n->local, sizeof(n->local), event->local);
    event->session->node = n;
    n->lost = false;
    n->leased_ns = event->now_ns; /* the view answers the hello */
    node_heard(n, event->now_ns);
}

/* The death notice: sent by the guardian of a killed agent. The notice is no sign of life: the last sign of life came
 * before, and failures caused by the death in other nodes are later than the last sign of life. */
static void step_death_notice(struct rounds *r, const struct rounds_event *event)
{
    const struct session_hello *hello = event->hello;
    struct rounds_job *job = job_find_of_agent(r, hello);
    struct rounds_node *n = job ? node_find(job, hello->nonce) : NULL;

    conn_end(r, event->session); /* the guardian does not read an answer */
    if (!n)
        return;
    n->phase = SESSION_LEFT; /* no process of the node is left */
    job_lose(n, SESSION_CAUSE_LOST, hello->report.cause.text, event->now_ns);
    job_advance(job, event->now_ns);
}

static void step_hello(struct rounds *r, const struct rounds_event *event)
{
    const char *fault = session_hello_fault(event->hello);

    if (fault) {
        (void)refuse_hello(r, event->session, NULL, "%s", fault);
        return;
    }
    if (event->hello->report.phase == SESSION_LEFT) {
        step_death_notice(r, event);
        return;
    }
    struct rounds_job *job = find_job(r, event);
    if (!job)
        return;
    struct rounds_node *n = node_find(job, event->hello->nonce);
    if (n && event->hello->attempt <= n->attempt) {
        conn_end(r, event->session); /* a late hello of an older connection */
        return;
    }
    if (!n)
        n = add_node(r, job, event);
    if (n) {
        attach_connection(r, n, event);
        node_take_report(n, &event->hello->report, true, event->now_ns);
    } else if (list_is_empty(&job->nodes) && job->state == ROUNDS_GATHERING && job->generation < 0) {
        job_forget(job); /* created for the refused node */
    }
}

/* ---- other events ---- */

/*
 * After the result of the job was sent, a node is removed by its confirmation (LEFT), or by an orderly end of its
 * connection. A host between the two may have ended the connection before the result got through, so the job stays for a
 * while to answer the agent again. After an error the node itself stays until its node timeout: a rendezvous that ends
 * with its last node has to wait for the node.
 */
static void step_disconnected(struct rounds_conn *s, bool orderly, uint64_t now_ns)
{
    struct rounds_node *n = s->node;

    list_unlink(&s->ending);
    s->node = NULL;
    if (!n)
        return;
    struct rounds_job *job = n->job;
    node_set_session(n, NULL);
    job_watch_stalls(job, now_ns);
    node_update_state(n);
    if (job->state == ROUNDS_CLOSED && n->verdict_sent && orderly) {
        node_destroy(n);
        job->tombstone_until_ns = now_ns + job->rounds->config.linger_ns;
    }
    job_advance(job, now_ns);
}

static void step_renew(struct rounds_node *n, const struct rounds_event *event)
{
    node_heard(n, event->now_ns);
    n->leased_ns = event->now_ns;
    n->renewal = event->number;
    n->wants_renewed = true;
    node_want_alive(n);
}

static void step_rounds_timer(struct rounds *r, uint64_t now_ns)
{
    uint64_t late_ns = now_ns > r->deadline_ns ? now_ns - r->deadline_ns : 0;

    list_for_each_safe(i, &r->jobs) job_tick(list_entry(i, struct rounds_job, in_rounds), now_ns, late_ns);
    r->deadline_ns = UINT64_MAX;
    rounds_each_job(job, r)
    {
        uint64_t deadline_ns = job_deadline(job);

        if (deadline_ns < r->deadline_ns)
            r->deadline_ns = deadline_ns;
    }
}

static void step_close(struct rounds *r, const char *reason, uint64_t now_ns)
{
    struct session_cause cause = session_cause_empty(SESSION_CAUSE_CLOSED);

    text_copy(cause.text, sizeof(cause.text), reason);
    list_for_each_entry_safe(struct rounds_job, job, &r->jobs, in_rounds)
    {
        if (job->state != ROUNDS_CLOSED)
            job_close(job, SESSION_VERDICT_FAILURE, &cause, now_ns);
        job_advance(job, now_ns);
    }
}

static void step_expect(struct rounds *r, uint32_t number, uint64_t now_ns)
{
    r->n_expected = number;
    list_for_each_entry_safe(struct rounds_job, job, &r->jobs, in_rounds) job_advance(job, now_ns);
}

void rounds_step(struct rounds *r, const struct rounds_event *event)
{
    struct rounds_node *n = event->session ? event->session->node : NULL;

    free_forgotten_job(r);
    switch (event->kind) {
    case ROUNDS_HELLO:
        assert(event->session);
        if (!n) /* a connection has a single hello */
            step_hello(r, event);
        break;
    case ROUNDS_REPORT:
        if (n) {
            node_heard(n, event->now_ns);
            node_take_report(n, event->report, false, event->now_ns);
        }
        break;
    case ROUNDS_ALIVE:
        if (n) {
            node_heard(n, event->now_ns);
            node_want_alive(n);
        }
        break;
    case ROUNDS_RENEW:
        if (n)
            step_renew(n, event);
        break;
    case ROUNDS_SLOW:
        if (n)
            node_slow(n, event->slack_ns);
        break;
    case ROUNDS_DISCONNECTED:
        assert(event->session);
        step_disconnected(event->session, event->orderly, event->now_ns);
        break;
    case ROUNDS_TIMER:
        step_rounds_timer(r, event->now_ns);
        break;
    case ROUNDS_CLOSE:
        step_close(r, event->reason, event->now_ns);
        break;
    case ROUNDS_EXPECT:
        step_expect(r, event->number, event->now_ns);
        break;
    case ROUNDS_EVENT_COUNT:
        break;
    }
    rounds_check(r);
}

void rounds_postpone(struct rounds *r, uint64_t unsaved_ns, uint64_t now_ns)
{
    uint64_t from_ns = unsaved_ns > r->postponed_ns ? unsaved_ns : r->postponed_ns;

    if (unsaved_ns == 0)
        return;
    if (unsaved_ns != r->batch_ns) { /* the batch before is saved */
        r->batch_ns = unsaved_ns;
        r->n_saved = r->n_saving;
        r->n_saving = r->n_saves;
    }
    if (now_ns < unsaved_ns + UNSAVED_MAX_NS)
        return;
    rounds_each_job(job, r)
    {
        if (job->sequence > r->n_saved)
            job_postpone(job, now_ns - from_ns);
    }
    r->postponed_ns = now_ns;
}

size_t rounds_overdue(const struct rounds *r, uint64_t now_ns, struct rounds_conn **ret, size_t max)
{
    size_t n = 0;

    rounds_each_job(job, r) n += job_overdue(job, now_ns, ret + n, max - n);
    return n;
}

/* ---- views ---- */

static void view_wait(const struct rounds_node *n, struct session_view *ret)
{
    const struct rounds_job *job = n->job;

    ret->kind = SESSION_VIEW_WAIT;
    ret->standby = job->state == ROUNDS_RUNNING;
    ret->n_ready = job->n_nodes[ROUNDS_NODE_READY];
    ret->min_nodes = job->params.min_nodes;
    ret->max_nodes = job->params.max_nodes;
    ret->n_missing = job->n_missing;
    memcpy(ret->missing, job->missing, sizeof(ret->missing));
    ret->waiting = job->waiting;
    ret->check = n->state == ROUNDS_NODE_UNFIT && job_needs_unfit(job);
    text_copy(ret->unfit, sizeof(ret->unfit), job->unfit);
}

static void view_start(const struct rounds_node *n, struct session_view *ret)
{
    const struct rounds_job *job = n->job;
    struct rank_assignment *place = &ret->place;

    ret->kind = SESSION_VIEW_START;
    ret->restarts = job->restarts;
    ret->changes = job->changes;
    ret->cause = job->cause;
    text_copy(ret->unfit, sizeof(ret->unfit), job->unfit);
    place->group_rank = (uint32_t)n->group_rank;
    place->group_world_size = job->n_members;
    place->rank_base = n->rank_base;
    place->world_size = job->world_size;
    place->role_rank_base = n->role_rank_base;
    place->role_world_size = n->role_world_size;
    text_copy(place->master_addr, sizeof(place->master_addr), job->master_addr);
    place->master_port = job->master_port;
    place->key_space = job->key_space;
}

/* Always with a cause: without a cause the agent's next report would be a failure of its own workers. */
static void view_stop(const struct rounds_node *n, struct session_view *ret)
{
    ret->kind = SESSION_VIEW_STOP;
    ret->generation = n->generation;
    ret->cause = n->job->cause;
    if (ret->cause.kind != SESSION_CAUSE_NONE)
        return;
    ret->cause = session_cause_empty(SESSION_CAUSE_CLOSED);
    (void)snprintf(ret->cause.text, sizeof(ret->cause.text),
                   "the rendezvous has no record of generation %lld of this job", (long long)n->generation);
}

void rounds_view(const struct rounds_node *n, struct session_view *ret)
{
    const struct rounds_job *job = n->job;
    bool playing = job->state == ROUNDS_RUNNING && n->member;

    *ret = (struct session_view){.instance = job->instance,
                                 .lease_ms = job->lease_ms,
                                 .generation = job->generation,
                                 .drain = job->drain};
    if (job->state == ROUNDS_CLOSED) {
        ret->kind = SESSION_VIEW_END;
        ret->verdict = job->verdict;
        ret->stop_signal = job->stop_signal;
        ret->cause = job->cause;
        ret->restarts = job->restarts;
        ret->changes = job->changes;
    } else if (playing && n->phase == SESSION_READY) {
        view_start(n, ret);
    } else if (playing && node_is_current(n)) {
        ret->kind = SESSION_VIEW_CONTINUE;
        ret->quiet = job_is_quiet(job);
    } else if (n->phase == SESSION_READY || n->generation < 0 || n->state == ROUNDS_NODE_UNFIT) {
        view_wait(n, ret);
    } else {
        view_stop(n, ret);
    }
}

/* ---- actions ---- */

static bool next_of_job(struct rounds *r, struct rounds_action *ret)
{
    struct rounds_job *job = list_first(&r->pending_jobs, struct rounds_job, in_pending);

    if (!job)
        return false;
    ret->job = job;
    if (job->wants_save) {
        job->wants_save = false;
        job->sequence = ++r->n_saves;
        ret->kind = ROUNDS_DO_SAVE;
        if (job->log_kinds == 0)
            list_unlink(&job->in_pending);
        return true;
    }
    ret->kind = ROUNDS_DO_REPORT;
    ret->log_kinds = job->log_kinds;
    job->log_kinds = 0;
    list_unlink(&job->in_pending);
    return true;
}

static struct rounds_node *next_pending(struct rounds *r)
{
    struct rounds_node *n;

    while ((n = list_first(&r->pending, struct rounds_node, in_pending))) {
        list_unlink(&n->in_pending);
        if (n->session)
            return n;
        n->wants_view = false; /* the answer to the next hello has a view anyway */
        n->wants_alive = n->wants_renewed = false;
    }
    return NULL;
}

static bool next_of_node(struct rounds *r, struct rounds_action *ret)
{
    struct rounds_node *n = next_pending(r);

    if (!n)
        return false;
    ret->job = n->job;
    ret->session = n->session;
    if (n->wants_renewed) {
        ret->kind = ROUNDS_DO_RENEWED;
        ret->number = n->renewal;
        n->wants_renewed = n->wants_alive = false;
        if (n->wants_view)
            node_want_view(n); /* with the next call */
        return true;
    }
    if (n->wants_view) {
        ret->kind = ROUNDS_DO_SEND;
        rounds_view(n, &ret->view);
        n->verdict_sent = n->verdict_sent || ret->view.kind == SESSION_VIEW_END;
        if (ret->view.kind == SESSION_VIEW_START)
            n->pending_start = ret->view.generation;
    } else {
        ret->kind = ROUNDS_DO_ALIVE; /* any view is a sign of life, too */
    }
    n->wants_view = false;
    n->wants_alive = false;
    return true;
}

static bool next_of_session(struct rounds *r, struct rounds_action *ret)
{
    ret->session = list_first(&r->refused, struct rounds_conn, ending);
    if (ret->session) {
        ret->kind = ROUNDS_DO_SEND;
        ret->view = session_view_refused(r->refusal);
        ret->job = r->refusing;
        list_move(&r->closing, &ret->session->ending);
        return true;
    }
    ret->session = list_first(&r->closing, struct rounds_conn, ending);
    if (!ret->session)
        return false;
    ret->kind = ROUNDS_DO_CLOSE;
    list_unlink(&ret->session->ending);
    return true;
}

static bool next_forgotten(struct rounds *r, struct rounds_action *ret)
{
    struct rounds_job *job = list_first(&r->forgotten, struct rounds_job, in_pending);

    if (!job)
        return false;
    ret->job = job;
    ret->log_kinds = job->log_kinds;
    if (job->log_kinds != 0) { /* of the step that forgot the job */
        job->log_kinds = 0;
        ret->kind = ROUNDS_DO_REPORT;
        return true;
    }
    r->shown = job;
    list_unlink(&job->in_pending);
    ret->kind = ROUNDS_DO_FORGET;
    return true;
}

bool rounds_next(struct rounds *r, struct rounds_action *ret)
{
    free_forgotten_job(r);
    ret->session = NULL;
    ret->job = NULL;
    ret->log_kinds = 0;
    return next_of_job(r, ret) || next_of_node(r, ret) || next_of_session(r, ret) || next_forgotten(r, ret);
}
