/*
 * Jobs and nodes in memory: lists, the table of nodes by nonce, the counts by class, what is to be sent.
 * All memory of the rounds is taken here, when a job or a node is new.
 */

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/rounds/rounds_impl.h"
#include "base/siphash.h"

enum { BUCKETS_MIN = 64, SLOTS_MIN = 16 };

/* ---- nodes by nonce ---- */

static struct rounds_node **bucket_of(const struct rounds *r, const struct rounds_job *job,
                                      struct session_nonce nonce)
{
    /* The key is secret: a client cannot choose a bucket. */
    uint64_t name[] = {nonce.high, nonce.low, job->instance};
    uint64_t hash = siphash13(r->config.bucket_key, name, sizeof(name));

    return &r->buckets[hash & (r->n_buckets - 1)];
}

static void bucket_add(struct rounds *r, struct rounds_node *n)
{
    struct rounds_node **bucket = bucket_of(r, n->job, n->nonce);

    n->next_in_bucket = *bucket;
    *bucket = n;
}

static void bucket_remove(struct rounds *r, struct rounds_node *n)
{
    struct rounds_node **at = bucket_of(r, n->job, n->nonce);

    while (*at != n)
        at = &(*at)->next_in_bucket;
    *at = n->next_in_bucket;
}

/* False when memory is out; the table is as it was then. */
static bool buckets_grow(struct rounds *r)
{
    size_t n_buckets = r->n_buckets ? r->n_buckets * 2 : BUCKETS_MIN;

    if (r->n_nodes < r->n_buckets)
        return true;
    struct rounds_node **buckets = calloc(n_buckets, sizeof(struct rounds_node *));
    if (!buckets)
        return false;
    free(r->buckets);
    r->buckets = buckets;
    r->n_buckets = n_buckets;
    rounds_each_job(job, r)
    {
        job_each_node(n, job) bucket_add(r, n);
    }
    return true;
}

struct rounds_node *node_find(struct rounds_job *job, struct session_nonce nonce)
{
    struct rounds *r = job->rounds;
    struct rounds_node *n = r->n_buckets ? *bucket_of(r, job, nonce) : NULL;

    while (n && (n->job != job || !session_nonce_equal(n->nonce, nonce)))
        n = n->next_in_bucket;
    return n;
}

bool rounds_has_node(const struct rounds *r, const char *job_id, struct session_nonce nonce)
{
    rounds_each_job(job, r)
    {
        if (strcmp(job->id, job_id) == 0 && node_find(job, nonce))
            return true;
    }
    return false;
}

/* ---- jobs ---- */

/* The job that has this id now; not a tombstone. */
static struct rounds_job *job_find(struct rounds *r, const char *id)
{
    rounds_each_job(job, r)
    {
        if (!job->replaced && strcmp(job->id, id) == 0)
            return job;
    }
    return NULL;
}

struct rounds_job *job_find_of_agent(struct rounds *r, const struct session_hello *hello)
{
    const struct session_report *report = &hello->report;

    rounds_each_job(job, r)
    {
        if (job->replaced && strcmp(job->id, hello->job) == 0 &&
            ((report->generation >= 0 && report->instance == job->instance) || node_find(job, hello->nonce)))
            return job;
    }
    return job_find(r, hello->job);
}

/* Agents know their instance: it must not give the next one away. */
static uint64_t new_instance(struct rounds *r)
{
    uint64_t number[] = {r->config.seed, ++r->n_instances};

    return siphash13(r->config.instance_key, number, sizeof(number));
}

struct rounds_job *job_create(struct rounds *r, const char *id, const struct session_params *params)
{
    struct rounds_job *job = calloc(1, sizeof(*job));

    if (!job)
        return NULL;
    job->rounds = r;
    job->params = *params;
    job->lease_ms = params->lease_ms > 0 || !params->lease_auto ? params->lease_ms : r->config.lease_ms;
    job->generation = -1;
    job->floor = -1;
    text_copy(job->id, sizeof(job->id), id);
    do
        job->instance = new_instance(r);
    while (job->instance == 0); /* means "none yet" in a report */
    list_init(&job->nodes);
    list_init(&job->silence);
    list_init(&job->in_pending);
    list_append(&r->jobs, &job->in_rounds);
    r->n_jobs++;
    return job;
}

static void job_take_out(struct rounds_job *job)
{
    list_for_each_safe(i, &job->nodes) node_destroy(list_entry(i, struct rounds_node, in_job));
    list_unlink(&job->in_rounds);
    if (job->replaced)
        job->rounds->n_replaced--;
    else
        job->rounds->n_jobs--;
    list_unlink(&job->in_pending);
}

void job_forget(struct rounds_job *job)
{
    job_take_out(job);
    list_append(&job->rounds->forgotten, &job->in_pending);
}

static void forget_oldest_tombstone(struct rounds *r)
{
    rounds_each_job(job, r)
    {
        if (!job->replaced)
            continue;
        job_forget(job);
        return;
    }
}

void job_make_tombstone(struct rounds_job *job)
{
    struct rounds *r = job->rounds;

    if (job->replaced)
        return;
    if (r->n_replaced >= r->config.max_jobs)
        forget_oldest_tombstone(r);
    job->replaced = true;
    r->n_jobs--;
    r->n_replaced++;
    list_move(&r->jobs, &job->in_rounds); /* by age as a tombstone */
    job_want_save(job);
}

void job_discard(struct rounds_job *job)
{
    job_take_out(job);
    job_destroy(job);
}

void job_destroy(struct rounds_job *job)
{
    if (!job)
        return;
    free(job->by_rank);
    free(job);
}

/* ---- nodes ---- */

static bool slots_grow(struct rounds_job *job)
{
    size_t n_slots = job->n_slots ? job->n_slots * 2 : SLOTS_MIN;

    if (rounds_job_n_nodes(job) < job->n_slots)
        return true;
    struct rounds_node **slots = calloc(n_slots, 2 * sizeof(struct rounds_node *));
    if (!slots)
        return false;
    free(job->by_rank);
    job->by_rank = slots;
    job->by_role = slots + n_slots;
    job->n_slots = n_slots;
    return true;
}

struct rounds_node *node_create(struct rounds_job *job, struct session_nonce nonce)
{
    struct rounds *r = job->rounds;
    struct rounds_node *n;

    if (!buckets_grow(r) || !slots_grow(job))
        return NULL;
    n = calloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->job = job;
    n->nonce = nonce;
    n->serial = r->n_serials++;
    n->node_rank = -1;
    n->group_rank = -1;
    n->generation = -1;
    n->pending_start = -1;
    n->state = ROUNDS_NODE_JOINING;
    job->n_nodes[n->state]++;
    job->n_disconnected++;
    list_append(&job->nodes, &n->in_job);
    list_init(&n->in_silence);
    list_init(&n->in_pending);
    r->n_nodes++;
    bucket_add(r, n);
    return n;
}

void node_set_session(struct rounds_node *n, struct rounds_conn *session)
{
    struct rounds_job *job = n->job;

    job->n_disconnected -= !n->session;
    n->session = session;
    job->n_disconnected += !session;
}

void node_set_traits(struct rounds_node *n, bool member, bool quiet)
{
    struct rounds_job *job = n->job;

    job->n_busy += (member && !quiet) - (n->member && !n->quiet);
    n->member = member;
    n->quiet = quiet;
}

void node_destroy(struct rounds_node *n)
{
    struct rounds_job *job = n->job;
    struct rounds *r = job->rounds;
    bool was_unfit = n->state == ROUNDS_NODE_UNFIT;

    if (n->session)
        conn_end(r, n->session);
    job->n_disconnected--;
    node_set_traits(n, false, n->quiet);
    bucket_remove(r, n);
    r->n_nodes--;
    job->n_nodes[n->state]--;
    list_unlink(&n->in_job);
    list_unlink(&n->in_silence);
    list_unlink(&n->in_pending);
    free(n);
    if (was_unfit)
        job_describe_unfit(job);
}

enum rounds_node_state node_state_now(const struct rounds_node *n)
{
    enum rounds_job_state state = n->job->state;

    if (n->lost)
        return ROUNDS_NODE_LOST;
    if (n->member && state == ROUNDS_RUNNING)
        return n->phase == SESSION_DONE && node_is_current(n) ? ROUNDS_NODE_DONE : ROUNDS_NODE_RUNNING;
    if (n->member && state == ROUNDS_ENDING && !n->answered)
        return ROUNDS_NODE_RUNNING;
    /* A node that was sent a START and has not reported on that generation is not ready any more: it runs
     * that generation's workers first, and reports ready with another port afterwards. */
    if (n->phase == SESSION_READY && n->pending_start < 0 && n->is_cut_off)
        return ROUNDS_NODE_UNFIT; /* without a connection, too: no round waits for it */
    if (n->phase == SESSION_READY && n->session && n->pending_start < 0)
        return ROUNDS_NODE_READY;
    if (n->unfit[0])
        return ROUNDS_NODE_UNFIT;
    if (n->job->lease_ms > 0 && n->generation >= 0 && node_may_have_workers(n))
        return ROUNDS_NODE_STOPPING;
    return n->previous_member || n->member ? ROUNDS_NODE_STOPPING : ROUNDS_NODE_JOINING;
}

bool node_may_have_workers(const struct rounds_node *n)
{
    switch (n->phase) {
    case SESSION_READY:
        return n->pending_start >= 0;
    case SESSION_DONE:
    case SESSION_LEFT:
        return false;
    case SESSION_STOPPING:
        return !n->unfit[0];
    default:
        return true;
    }
}

void node_update_state(struct rounds_node *n)
{
    bool was_unfit = n->state == ROUNDS_NODE_UNFIT;

    n->job->n_nodes[n->state]--;
    n->state = node_state_now(n);
    n->job->n_nodes[n->state]++;
    if (was_unfit != (n->state == ROUNDS_NODE_UNFIT))
        job_describe_unfit(n->job);
}

/* Inserts by deadline; nodes that were granted slack for the network stay behind this one. */
static void node_set_deadline(struct rounds_node *n, uint64_t deadline_ns)
{
    struct rounds_job *job = n->job;
    struct list *after = &job->silence;

    n->deadline_ns = deadline_ns;
    list_unlink(&n->in_silence);
    while (after->prev != &job->silence &&
           list_entry(after->prev, struct rounds_node, in_silence)->deadline_ns > n->deadline_ns)
        after = after->prev;
    list_append(after, &n->in_silence);
    if (n->deadline_ns < job->rounds->deadline_ns)
        job->rounds->deadline_ns = n->deadline_ns;
}

void node_heard(struct rounds_node *n, uint64_t now_ns)
{
    const struct rounds_job *job = n->job;
    uint64_t deadline_ns = now_ns + ms_to_ns(job->params.node_timeout_ms);

    n->heard_ns = now_ns;
    n->n_excuses = 0;
    /* No deadline is before the end of the grace. */
    node_set_deadline(n, deadline_ns < job->grace_until_ns ? job->grace_until_ns : deadline_ns);
}

void node_fence(struct rounds_node *n, uint64_t until_ns)
{
    if (n->session)
        conn_end(n->job->rounds, n->session);
    n->lost = true;
    n->previous_member = n->previous_member || n->member;
    n->answered = false;
    node_set_traits(n, false, false);
    node_update_state(n);
    node_set_deadline(n, until_ns);
}

void node_slow(struct rounds_node *n, uint64_t slack_ns)
{
    uint64_t timeout_ns = ms_to_ns(n->job->params.node_timeout_ms);
    uint64_t most_ns = SESSION_SLACK_TIMEOUTS * timeout_ns;
    uint64_t until_ns = n->heard_ns + timeout_ns + (slack_ns < most_ns ? slack_ns : most_ns);
    struct list *before = &n->in_silence;

    if (until_ns <= n->deadline_ns)
        return;
    n->deadline_ns = until_ns;
    while (before->next != &n->job->silence &&
           list_entry(before->next, struct rounds_node, in_silence)->deadline_ns < until_ns)
        before = before->next;
    if (before == &n->in_silence)
        return;
    list_move(before->next, &n->in_silence); /* in front of that one */
}

/* ---- what is to be done ---- */

static void node_want(struct rounds_node *n)
{
    if (list_is_empty(&n->in_pending))
        list_append(&n->job->rounds->pending, &n->in_pending);
}

void node_want_view(struct rounds_node *n)
{
    if (!n->session)
        return;
    n->wants_view = true;
    node_want(n);
}

void node_want_alive(struct rounds_node *n)
{
    n->wants_alive = true;
    node_want(n);
}

static void job_want(struct rounds_job *job)
{
    if (list_is_empty(&job->in_pending))
        list_append(&job->rounds->pending_jobs, &job->in_pending);
}

void job_want_save(struct rounds_job *job)
{
    job->wants_save = true;
    job_want(job);
}

void job_want_log(struct rounds_job *job, enum rounds_log_kind log_kinds)
{
    job->log_kinds |= log_kinds;
    job_want(job);
}

void conn_end(struct rounds *r, struct rounds_conn *s)
{
    if (s->node)
        node_set_session(s->node, NULL);
    s->node = NULL;
    list_move(&r->closing, &s->ending);
}
