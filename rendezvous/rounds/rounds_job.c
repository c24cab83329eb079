/*
 * The life of a job: gathering, running, ending, closed. See rounds.h for the picture.
 */

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/rounds/rounds_impl.h"

enum {
    PROGRESS_NS = 1000000000,
    /* Pause between two newcomers that end a generation each: doubled each time, and 0 again after a while without newcomers. */
    ADMIT_PAUSE_MIN_MS = 1000,
    ADMIT_PAUSE_MAX_MS = 256000,
    /* Extra wait for live members without an answer, beyond the silence of a dead member: the death may be the earlier
     * cause. */
    ENDING_MS = 3000,
    /* Of the node timeout; see stall_ns(). */
    STALL_PART = 4,
    /* A daemon late more often in a row is overloaded, and dead nodes are dead nevertheless. */
    EXCUSES_MAX = 8,
    /* The signal reaches the nodes one after the other: workers of the last node may fail for those of the first before the
     * request of the first node arrives. */
    STOP_SKEW_MS = 1000,
};

static void for_each_node(struct rounds_job *job, void (*what)(struct rounds_node *n))
{
    job_each_node(n, job) what(n);
}

/* ---- the end of a generation ---- */

static void notify_generation_end(struct rounds_node *n)
{
    n->answered = false;
    node_update_state(n);
    if (n->member)
        node_want_view(n);
}

static uint64_t ending_ns(const struct rounds_job *job)
{
    return ms_to_ns(job->params.node_timeout_ms) + ms_to_ns(ENDING_MS);
}

void job_end_generation(struct rounds_job *job, const struct session_cause *cause, uint64_t when_ns,
                        uint64_t now_ns)
{
    if (job->state == ROUNDS_ENDING && when_ns < job->cause_ns) {
        job->cause = *cause;
        job->cause_ns = when_ns;
    }
    if (job->state != ROUNDS_RUNNING)
        return;
    job->state = ROUNDS_ENDING;
    job->cause = *cause;
    job->cause_ns = when_ns;
    job->n_ending_excuses = 0;
    job->ending_until_ns = now_ns + ending_ns(job);
    for_each_node(job, notify_generation_end);
    job_want_log(job, ROUNDS_LOG_OVER);
}

static void end_membership(struct rounds_node *n)
{
    n->previous_member = n->member || (n->lost && n->previous_member);
    node_set_traits(n, false, n->quiet);
    n->answered = false;
    node_update_state(n);
}

static void open_round(struct rounds_job *job, uint64_t now_ns)
{
    job->gather_until_ns = now_ns + ms_to_ns(job->params.join_timeout_ms);
    job->last_call_until_ns = 0;
    job->progress_ns = now_ns + PROGRESS_NS;
}

static void raise_count(uint32_t *value, uint32_t other, uint32_t limit)
{
    if (other > *value)
        *value = other < limit ? other : limit;
}

void job_learn_charges(struct rounds_node *n)
{
    struct rounds_job *job = n->job;

    raise_count(&job->restarts, n->known_restarts, job->params.max_restarts);
    raise_count(&job->changes, n->known_changes, job->params.max_changes);
}

static void start_gathering(struct rounds_job *job, uint64_t now_ns)
{
    job->state = ROUNDS_GATHERING;
    open_round(job, now_ns);
    for_each_node(job, end_membership);
    for_each_node(job, job_learn_charges);
    job_readmit_single(job);
}

void job_abandon_generation(struct rounds_job *job, uint64_t now_ns)
{
    if (job->state != ROUNDS_RUNNING && job->state != ROUNDS_ENDING)
        return;
    start_gathering(job, now_ns);
    for_each_node(job, node_want_view); /* STOP, also to members of earlier generations */
    job_want_save(job);
}

/* Charges the generation to its budget. False: the budget is used up, or a restart would not help. */
static bool charge_budget(struct rounds_job *job)
{
    bool worker = job->cause.kind == SESSION_CAUSE_WORKER;
    uint32_t *spent = worker ? &job->restarts : &job->changes;
    uint32_t budget = worker ? job->params.max_restarts : job->params.max_changes;

    if (job->cause.fatal || *spent >= budget)
        return false;
    ++*spent;
    return true;
}

/* A node asked for the end of the job, and nothing has failed. */
static bool is_drained(const struct rounds_job *job)
{
    return job->drain && job->cause.kind != SESSION_CAUSE_WORKER && job->cause.kind != SESSION_CAUSE_LOST;
}

/* Every member has answered or is lost: no earlier cause can come. */
static void settle_generation(struct rounds_job *job, uint64_t now_ns)
{
    job_judge_cut(job, now_ns);
    job_want_log(job, ROUNDS_LOG_SETTLED);
    if (is_drained(job)) {
        job_close(job, SESSION_VERDICT_DRAINED, &job->cause, now_ns);
    } else if (job->drain || !charge_budget(job)) { /* a draining job gets no further generation */
        job_close(job, SESSION_VERDICT_FAILURE, &job->cause, now_ns);
    } else {
        start_gathering(job, now_ns);
        job_want_save(job);
    }
}

/* ---- the end of a job ---- */

/* Lost nodes are not waited for. A lost node that returns is a node again, and gets the result. */
static void forget_lost_nodes(struct rounds_job *job)
{
    job_fence_until(job, job_fence_end(job));
    list_for_each_entry_safe(struct rounds_node, n, &job->nodes, in_job)
    {
        if (n->lost)
            node_destroy(n);
    }
}

void job_close(struct rounds_job *job, enum session_verdict verdict, const struct session_cause *cause,
               uint64_t now_ns)
{
    struct session_cause copy = *cause; /* cause may point into the job */

    job->state = ROUNDS_CLOSED;
    job->verdict = verdict;
    job->cause = copy;
    job->forget_ns = now_ns + job->rounds->config.linger_ns;
    forget_lost_nodes(job);
    for_each_node(job, end_membership);
    for_each_node(job, node_want_view);
    job_want_save(job); /* without the state a daemon would take leaving nodes for lost */
    job_want_log(job, ROUNDS_LOG_CLOSED);
}

/* A worker's failure ends the generation, and is too old to be an effect of the signal. */
static bool has_failed_before(const struct rounds_job *job, uint64_t now_ns)
{
    return job->state == ROUNDS_ENDING && job->cause.kind == SESSION_CAUSE_WORKER &&
           now_ns - job->cause_ns >= ms_to_ns(STOP_SKEW_MS);
}

void job_stop(const struct rounds_node *n, const struct session_report *report, uint64_t now_ns)
{
    struct rounds_job *job = n->job;
    struct session_cause cause = session_cause_empty(SESSION_CAUSE_CLOSED);

    if (job->state == ROUNDS_CLOSED)
        return;
    if (has_failed_before(job, now_ns)) {
        job_close(job, SESSION_VERDICT_FAILURE, &job->cause, now_ns);
        return;
    }
    text_copy(cause.host, sizeof(cause.host), n->host);
    (void)snprintf(cause.text, sizeof(cause.text), "%.250s at %.200s",
                   report->cause.text[0] ? report->cause.text : "the job was stopped", n->host); /* fits */
    job->stop_signal = report->stop_signal;
    job_close(job, SESSION_VERDICT_FAILURE, &cause, now_ns);
}

bool job_is_quiet(const struct rounds_job *job)
{
    return job->state == ROUNDS_RUNNING && job->n_busy == 0;
}

void job_take_quiet(struct rounds_node *n, const struct session_report *report)
{
    bool was_quiet = n->quiet;

    node_set_traits(n, n->member,
                    report->phase == SESSION_DONE || (report->phase == SESSION_RUNNING && report->quiet));
    if (n->quiet && !was_quiet && n->member && job_is_quiet(n->job))
        for_each_node(n->job, node_want_view);
}

void job_drain(struct rounds_job *job)
{
    if (job->drain)
        return;
    job->drain = true;
    for_each_node(job, node_want_view);
    job_want_save(job);
    job_want_log(job, ROUNDS_LOG_DRAIN);
}

/* ---- the next generation ---- */

static void send_rank_assignment(struct rounds_node *n)
{
    n->cut_from = 0;
    node_update_state(n);
    node_want_view(n);
}

/* The member has workers remaining from the last generation, which use the last generation's keys on. */
static bool are_keys_kept(const struct rounds_node *n)
{
    return n->member && n->previous_member && n->keeps_keys && !n->foreign;
}

/* Chooses the keys of the new generation: the last generation's keys if remaining workers use these on, else new keys. */
static void choose_keys(struct rounds_job *job)
{
    bool kept = false;

    job_each_node(n, job) kept = kept || are_keys_kept(n);
    if (!job->rounds->config.keeps_keys || !job->params.local_store)
        job->key_space = 0;
    else if (!kept || job->key_space == 0 || job->keys_lost)
        job->key_space = (uint32_t)job->generation + 1;
    job->keys_lost = false;
}

/* A number above all used numbers. An agent ignores a START with a number not above its own generation, so the generations of
 * ready nodes count even above the limit of the floor; but not a generation that leaves no room for reports. */
static int64_t next_generation(const struct rounds_job *job)
{
    const int64_t most = SESSION_GENERATION_MAX + SESSION_GENERATION_MAX / 2;
    int64_t last = job->generation > job->floor ? job->generation : job->floor;

    job_each_node(n, job)
    {
        if (n->state == ROUNDS_NODE_READY && n->generation > last && n->generation < most)
            last = n->generation;
    }
    return last + 1;
}

static void form_generation(struct rounds_job *job)
{
    job->generation = next_generation(job);
    job_assign_ranks(job);
    choose_keys(job);
    job->state = ROUNDS_RUNNING;
    for_each_node(job, send_rank_assignment);
    job_want_save(job); /* before any START is sent: the same number must never name another world */
    job_want_log(job, ROUNDS_LOG_FORMED);
}

static void count_generation(struct rounds_job *job, uint64_t now_ns)
{
    job->formed_ns = now_ns;
    job->n_generations++;
    if (job->cause.kind != SESSION_CAUSE_NONE)
        job->n_restarts_by[job->cause.kind]++;
}

/* ---- leases ---- */

void job_fence_until(struct rounds_job *job, uint64_t until_ns)
{
    if (job->lease_ms > 0 && until_ns > job->fence_until_ns)
        job->fence_until_ns = until_ns;
}

uint64_t job_fence_end(const struct rounds_job *job)
{
    uint64_t end_ns = job->fence_until_ns;

    job_each_node(n, job)
    {
        if (n->lost && n->deadline_ns > end_ns)
            end_ns = n->deadline_ns;
    }
    return end_ns;
}

bool job_is_abandoned(const struct rounds_job *job)
{
    return rounds_job_n_nodes(job) == job->n_nodes[ROUNDS_NODE_LOST];
}

static uint64_t lease_wait_ns(const struct rounds_job *job)
{
    return session_lease_wait_ns(job->lease_ms);
}

/* Workers of a generation before may still run somewhere. */
static bool is_fenced(struct rounds_job *job, uint64_t now_ns)
{
    if (now_ns >= job->fence_until_ns)
        job->fence_until_ns = 0;
    return job->fence_until_ns > 0 || job->n_nodes[ROUNDS_NODE_LOST] > 0;
}

/*
 * MIN nodes are ready. Live members of the last generation are always waited for, also where spares would fill the
 * round: the members are stopping their workers, and would end a world without them again when ready. Then the first
 * round waits for MAX or the end of the last call, as more nodes are expected. A later round waits only for joining
 * nodes, as training stands still.
 */
static bool is_round_complete(const struct rounds_job *job, uint64_t now_ns)
{
    if (job->n_nodes[ROUNDS_NODE_STOPPING] > 0)
        return now_ns >= job->gather_until_ns && job->lease_ms == 0;
    if (job->n_nodes[ROUNDS_NODE_READY] + job->n_nodes[ROUNDS_NODE_UNFIT] >= job->params.max_nodes ||
        now_ns >= job->last_call_until_ns)
        return true;
    return job->generation >= 0 && job->n_nodes[ROUNDS_NODE_JOINING] == 0;
}

static void fail_join_timeout(struct rounds_job *job, uint64_t now_ns)
{
    struct session_cause cause = session_cause_empty(SESSION_CAUSE_CLOSED);

    (void)snprintf(cause.text, sizeof(cause.text),
                   "%u of at least %u nodes were there when the join timeout of %g s ran out%s%.300s",
                   (unsigned)job->n_nodes[ROUNDS_NODE_READY], (unsigned)job->params.min_nodes,
                   job->params.join_timeout_ms / 1000.0, job->unfit[0] ? "; left out: " : "", job->unfit);
    job_close(job, SESSION_VERDICT_FAILURE, &cause, now_ns);
}

static void advance_gathering(struct rounds_job *job, uint64_t now_ns)
{
    uint32_t n = job->n_nodes[ROUNDS_NODE_READY];

    if (job->cut_until_ns > 0 && job_needs_unfit(job)) {
        job_readmit_cut(job);
        n = job->n_nodes[ROUNDS_NODE_READY];
    }
    if (n < job->params.min_nodes) {
        job->last_call_until_ns = 0;
        if (now_ns >= job->gather_until_ns)
            fail_join_timeout(job, now_ns);
        return;
    }
    if (job->last_call_until_ns == 0)
        job->last_call_until_ns = now_ns + ms_to_ns(job->params.last_call_ms);
    uint32_t n_expected = job->rounds->n_expected;
    if (n_expected > 0 && n + job->n_nodes[ROUNDS_NODE_UNFIT] >= n_expected)
        job->last_call_until_ns = now_ns;
    if (!is_fenced(job, now_ns) && is_round_complete(job, now_ns)) {
        form_generation(job);
        count_generation(job, now_ns);
    }
}

/* ---- a running generation ---- */

/* A joining node restarts the workers of all nodes, so a node that comes and goes must not restart workers at will. Nodes
 * that come during the pause are admitted together. */
static uint64_t admit_time(const struct rounds_job *job)
{
    return job->admitted_ns + job->admit_pause_ns;
}

static void extend_admit_pause(struct rounds_job *job, uint64_t now_ns)
{
    uint64_t max_ns = ms_to_ns(ADMIT_PAUSE_MAX_MS);
    bool quiet = now_ns >= job->admitted_ns + 4 * job->admit_pause_ns;

    job->admit_pause_ns = quiet ? ms_to_ns(ADMIT_PAUSE_MIN_MS) : 2 * job->admit_pause_ns;
    if (job->admit_pause_ns > max_ns)
        job->admit_pause_ns = max_ns;
    job->admitted_ns = now_ns;
}

static void admit_newcomer(struct rounds_job *job, uint64_t now_ns)
{
    struct session_cause cause = session_cause_empty(SESSION_CAUSE_JOINED);

    job_each_node(n, job)
    {
        if (n->state == ROUNDS_NODE_READY) {
            text_copy(cause.host, sizeof(cause.host), n->host);
            break;
        }
    }
    extend_admit_pause(job, now_ns);
    job_end_generation(job, &cause, now_ns, now_ns);
}

/* There is room for a late node. Not when members are done: the job is about to end. */
static bool can_admit_newcomer(const struct rounds_job *job)
{
    return job->n_nodes[ROUNDS_NODE_READY] > 0 && job->n_members < job->params.max_nodes &&
           job->n_nodes[ROUNDS_NODE_DONE] == 0 && job->n_done_left == 0 &&
           job->changes < job->params.max_changes && !job->drain;
}

static void advance_running(struct rounds_job *job, uint64_t now_ns)
{
    const struct session_cause none = session_cause_empty(SESSION_CAUSE_NONE);

    if (job->n_nodes[ROUNDS_NODE_RUNNING] == 0)
        job_close(job, job->drain ? SESSION_VERDICT_DRAINED : SESSION_VERDICT_SUCCESS, &none, now_ns);
    else if (can_admit_newcomer(job) && now_ns >= admit_time(job))
        admit_newcomer(job, now_ns);
}

/* ---- leaving nodes ---- */

void job_lose(struct rounds_node *n, enum session_cause_kind kind, const char *text, uint64_t now_ns)
{
    struct rounds_job *job = n->job;
    struct session_cause cause = {.kind = kind, .group_rank = n->group_rank, .rank = -1, .local_rank = -1};
    enum rounds_node_state state = n->state;
    uint64_t when_ns = kind == SESSION_CAUSE_LOST ? n->heard_ns : now_ns;

    text_copy(cause.host, sizeof(cause.host), n->host);
    text_copy(cause.text, sizeof(cause.text), text);
    if (kind == SESSION_CAUSE_LOST && job->lease_ms > 0 && job->state != ROUNDS_CLOSED &&
        node_may_have_workers(n) && now_ns < n->leased_ns + lease_wait_ns(job))
        node_fence(n, n->leased_ns + lease_wait_ns(job));
    else
        node_destroy(n);
    job_readmit_single(job);
    if (kind == SESSION_CAUSE_LOST)
        job->tombstone_until_ns = now_ns + job->rounds->config.linger_ns;
    job->empty = kind == SESSION_CAUSE_LEFT && list_is_empty(&job->nodes);
    if (state == ROUNDS_NODE_RUNNING) {
        job_end_generation(job, &cause, when_ns, now_ns);
    } else if (state == ROUNDS_NODE_DONE) {
        job->n_done_left++;
        job_want_save(job); /* no agent can report SESSION_DONE again */
    }
}

/* A closed job is remembered for agents that may still ask: lost or late nodes. */
static uint64_t forget_time(const struct rounds_job *job)
{
    bool may_have_nodes = !list_is_empty(&job->nodes) || job->params.min_nodes < job->params.max_nodes;

    return may_have_nodes && job->forget_ns > job->tombstone_until_ns ? job->forget_ns
                                                                      : job->tombstone_until_ns;
}

void job_replace(struct rounds_job *job, uint64_t now_ns)
{
    if (job->state == ROUNDS_CLOSED && now_ns < job->tombstone_until_ns)
        job_make_tombstone(job);
    else
        job_forget(job);
}

/* ---- time ---- */

static enum rounds_job_state advance_once(struct rounds_job *job, uint64_t now_ns)
{
    switch (job->state) {
    case ROUNDS_GATHERING:
        advance_gathering(job, now_ns);
        break;
    case ROUNDS_RUNNING:
        advance_running(job, now_ns);
        break;
    case ROUNDS_ENDING:
        if (job->n_nodes[ROUNDS_NODE_RUNNING] == 0 || now_ns >= job->ending_until_ns)
            settle_generation(job, now_ns);
        break;
    default:
        break;
    }
    return job->state;
}

/* Lateness of a timer that shows a stop or overload of the daemon. */
static uint64_t stall_ns(const struct rounds_job *job)
{
    return ms_to_ns(job->params.node_timeout_ms) / STALL_PART;
}

void job_begin(struct rounds_job *job, uint64_t now_ns)
{
    job->begun_ns = now_ns;
    start_gathering(job, now_ns);
}

void job_resume(struct rounds_job *job, uint64_t now_ns)
{
    uint64_t linger_until_ns = now_ns + job->rounds->config.linger_ns;

    job->grace_until_ns = now_ns + job->rounds->config.grace_ns;
    job->ending_until_ns = job->grace_until_ns + ending_ns(job);
    job->begun_ns = now_ns;
    job->cause_ns = 0; /* a cause from before the restart is earlier than all later causes */
    job->tick_ns = now_ns + stall_ns(job);
    job->keys_lost = true;
    open_round(job, now_ns);
    job->forget_ns = linger_until_ns;
    job->tombstone_until_ns = linger_until_ns; /* some agents may not have received the result */
    job_each_node(n, job)
    {
        node_update_state(n);
        node_heard(n, now_ns);
        n->leased_ns = now_ns; /* the earlier crund has ended, or its lease has */
        if (n->lost)
            node_fence(n, n->leased_ns + lease_wait_ns(job));
    }
    job_advance(job, now_ns);
}

void job_advance(struct rounds_job *job, uint64_t now_ns)
{
    enum rounds_job_state before;

    do
        before = job->state;
    while (advance_once(job, now_ns) != before);
    if ((job->state == ROUNDS_GATHERING && job->empty) ||
        (job->state == ROUNDS_CLOSED && now_ns >= forget_time(job))) {
        job_forget(job);
        return;
    }
    uint64_t deadline_ns = job_deadline(job);
    if (deadline_ns < job->rounds->deadline_ns)
        job->rounds->deadline_ns = deadline_ns;
}

/* Gives nodes with or without a connection time until until_ns for a sign of life. */
static void excuse_nodes(struct rounds_job *job, bool connected, uint64_t until_ns)
{
    struct list excused, *after = &job->silence;

    list_init(&excused);
    list_for_each_safe(i, &job->silence)
    {
        struct rounds_node *n = list_entry(i, struct rounds_node, in_silence);

        after = i;
        if (n->deadline_ns >= until_ns)
            break; /* all nodes behind have later deadlines */
        after = &job->silence;
        if (!n->session == connected || n->n_excuses >= EXCUSES_MAX)
            continue;
        n->n_excuses++;
        n->deadline_ns = until_ns;
        list_move(&excused, i);
    }
    while (!list_is_empty(&excused)) { /* in front of nodes with later deadlines */
        struct list *first = excused.next;

        list_move(after, first);
    }
}

/* The daemon did not run for late_ns at least: gives nodes another node timeout for a sign of life, and redialling nodes two.
 * The messages of redialling nodes got no answer, so each begins a new attempt, which takes several round trips. */
static void extend_deadlines_after_stall(struct rounds_job *job, uint64_t now_ns, uint64_t late_ns)
{
    uint64_t timeout_ns = ms_to_ns(job->params.node_timeout_ms);

    if (late_ns < stall_ns(job))
        return;
    excuse_nodes(job, true, now_ns + timeout_ns);
    excuse_nodes(job, false, now_ns + 2 * timeout_ns);
    if (job->state == ROUNDS_ENDING && job->n_ending_excuses++ < EXCUSES_MAX)
        job->ending_until_ns += late_ns;
}

void job_watch_stalls(struct rounds_job *job, uint64_t now_ns)
{
    if (job->tick_ns <= now_ns)
        job->tick_ns = now_ns + stall_ns(job);
}

/* Nodes with a connection are judged after their sockets were read. During the grace after a restart, and while a node
 * redials, no socket has unread frames, so without regular ticks a stop of the daemon would go unnoticed. */
static bool needs_ticks(const struct rounds_job *job)
{
    return job->tick_ns < job->grace_until_ns || job->n_disconnected > 0;
}

static struct rounds_node *next_silent_node(const struct rounds_job *job)
{
    return list_first(&job->silence, struct rounds_node, in_silence);
}

static void expire_silent_nodes(struct rounds_job *job, uint64_t now_ns)
{
    struct rounds_node *n;

    while ((n = next_silent_node(job)) && now_ns >= n->deadline_ns) {
        char text[80];

        if (n->lost) {
            node_destroy(n);
            continue;
        }
        (void)snprintf(text, sizeof(text), "nothing was received from it for %llu ms",
                       (unsigned long long)((now_ns - n->heard_ns) / 1000000));
        job_lose(n, SESSION_CAUSE_LOST, text, now_ns);
    }
}

size_t job_overdue(const struct rounds_job *job, uint64_t now_ns, struct rounds_conn **ret, size_t max)
{
    size_t n = 0;

    list_for_each_entry(const struct rounds_node, node, &job->silence, in_silence)
    {
        if (n == max || now_ns < node->deadline_ns)
            break;
        if (node->session)
            ret[n++] = node->session;
    }
    return n;
}

/* Node ranks wanted by no agent, if all present agents want a rank. */
static void find_missing(struct rounds_job *job)
{
    struct rounds_node **by_rank = job->by_rank;
    uint32_t max = job->params.max_nodes;

    job->n_missing = 0;
    if (job->params.min_nodes != max || max > job->n_slots)
        return; /* no particular rank is missing; or far fewer nodes are there than could be named */
    memset(by_rank, 0, max * sizeof(struct rounds_node *));
    job_each_node(n, job)
    {
        if (n->node_rank < 0 || (uint32_t)n->node_rank >= max)
            return;
        by_rank[n->node_rank] = n;
    }
    for (uint32_t i = 0; i < max && job->n_missing < SESSION_MISSING_MAX; i++)
        if (!by_rank[i])
            job->missing[job->n_missing++] = i;
}

static void send_progress(struct rounds_node *n)
{
    if (n->state == ROUNDS_NODE_READY || (n->state == ROUNDS_NODE_UNFIT && job_needs_unfit(n->job)))
        node_want_view(n);
}

void job_tick(struct rounds_job *job, uint64_t now_ns, uint64_t late_ns)
{
    extend_deadlines_after_stall(job, now_ns, late_ns);
    if (now_ns >= job->tick_ns)
        job->tick_ns = now_ns + stall_ns(job);
    expire_silent_nodes(job, now_ns);
    if (job->cut_until_ns > 0 && now_ns >= job->cut_until_ns)
        job_readmit_cut(job);
    if (job->state == ROUNDS_GATHERING && now_ns >= job->progress_ns) {
        job->progress_ns = now_ns + PROGRESS_NS;
        find_missing(job);
        job_describe_waiting(job, now_ns);
        for_each_node(job, send_progress);
        job_want_log(job, ROUNDS_LOG_PROGRESS);
    }
    job_advance(job, now_ns);
}

void job_postpone(struct rounds_job *job, uint64_t by_ns)
{
    job->gather_until_ns += by_ns;
    job->ending_until_ns += by_ns;
}

static void lower_deadline(uint64_t *deadline_ns, uint64_t other_ns)
{
    if (other_ns < *deadline_ns)
        *deadline_ns = other_ns;
}

uint64_t job_deadline(const struct rounds_job *job)
{
    const struct rounds_node *n = next_silent_node(job);
    uint64_t deadline_ns = n ? n->deadline_ns : UINT64_MAX;

    if (needs_ticks(job))
        lower_deadline(&deadline_ns, job->tick_ns);
    if (job->cut_until_ns > 0)
        lower_deadline(&deadline_ns, job->cut_until_ns);
    switch (job->state) {
    case ROUNDS_GATHERING:
        /* Enough nodes, and no awaited node: the last call may go on beyond the join timeout. */
        if (job->n_nodes[ROUNDS_NODE_READY] < job->params.min_nodes ||
            (job->n_nodes[ROUNDS_NODE_STOPPING] > 0 && job->lease_ms == 0))
            lower_deadline(&deadline_ns, job->gather_until_ns);
        lower_deadline(&deadline_ns, job->progress_ns);
        if (job->n_nodes[ROUNDS_NODE_LOST] > 0)
            break; /* the end of the lost nodes' leases is a deadline already */
        if (job->last_call_until_ns > 0 && job->n_nodes[ROUNDS_NODE_STOPPING] == 0)
            lower_deadline(&deadline_ns,
                           job->fence_until_ns > 0 ? job->fence_until_ns : job->last_call_until_ns);
        break;
    case ROUNDS_RUNNING:
        if (can_admit_newcomer(job))
            lower_deadline(&deadline_ns, admit_time(job));
        break;
    case ROUNDS_ENDING:
        lower_deadline(&deadline_ns, job->ending_until_ns);
        break;
    case ROUNDS_CLOSED:
        lower_deadline(&deadline_ns, forget_time(job));
        break;
    default:
        break;
    }
    return deadline_ns;
}
