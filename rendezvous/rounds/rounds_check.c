/*
 * The invariants of the rounds, asserted at the end of each step in builds with assertions. The simulator and the
 * unit tests run with them.
 *
 * Walking a job costs as much as it has nodes, so a job of n nodes is walked in one of n steps: on average a step
 * pays for one node.
 */

#include <assert.h>

#include "rendezvous/rounds/rounds_impl.h"

#ifndef NDEBUG

enum { JOBS_WALKED_MAX = 4 };

static void check_node(const struct rounds_node *n)
{
    const struct rounds_job *job = n->job;
    bool has_generation = job->state == ROUNDS_RUNNING || job->state == ROUNDS_ENDING;

    assert(n->state == node_state_now(n));
    assert(!n->session || n->session->node == n);
    assert(!n->lost || (!n->session && !n->member));
    assert(!n->member || has_generation);
    assert(!n->member || !n->is_cut_off);
    assert(!n->answered || job->state == ROUNDS_ENDING);
    assert(!n->member || (n->group_rank >= 0 && (uint32_t)n->group_rank < job->n_members));
    assert(!n->member || (uint64_t)n->rank_base + n->n_workers <= job->world_size);
    assert(n->pending_start <= job->generation);
    assert(!(n->wants_view || n->wants_alive || n->wants_renewed) || !list_is_empty(&n->in_pending));
}

/* In order of their deadlines; the earliest comes first. */
static uint32_t check_silence_list(const struct rounds_job *job)
{
    uint64_t last_ns = 0;
    uint32_t n = 0;

    list_for_each_entry(const struct rounds_node, node, &job->silence, in_silence)
    {
        assert(node->job == job);
        assert(node->deadline_ns >= last_ns);
        last_ns = node->deadline_ns;
        n++;
    }
    return n;
}

static void check_nodes(const struct rounds_job *job)
{
    uint32_t counts[ROUNDS_NODE_STATE_COUNT] = {0}, n = 0, n_members = 0, n_disconnected = 0, n_busy = 0;

    job_each_node(node, job)
    {
        assert(node->job == job);
        check_node(node);
        counts[node->state]++;
        n_members += node->member;
        n_disconnected += !node->session;
        n_busy += node->member && !node->quiet;
        n++;
    }
    for (int i = 0; i < ROUNDS_NODE_STATE_COUNT; i++)
        assert(counts[i] == job->n_nodes[i]);
    assert(n_disconnected == job->n_disconnected);
    assert(n_busy == job->n_busy);
    assert(check_silence_list(job) == n);
    /* A member that is lost before it was done ends the generation. */
    assert(job->state != ROUNDS_RUNNING || n_members + job->n_done_left == job->n_members);
    assert(job->state != ROUNDS_ENDING || n_members + job->n_done_left <= job->n_members);
}

static void check_job(const struct rounds_job *job)
{
    assert((job->state == ROUNDS_CLOSED) == (job->verdict != SESSION_VERDICT_NONE));
    assert(job->restarts <= job->params.max_restarts && job->changes <= job->params.max_changes);
    assert(job->state == ROUNDS_GATHERING || job->state == ROUNDS_CLOSED || job->generation >= 0);
    assert(job->state != ROUNDS_ENDING || job->cause.kind != SESSION_CAUSE_NONE);
    assert(!job->replaced || job->state == ROUNDS_CLOSED);
    assert(job->rounds->deadline_ns <= job_deadline(job));
    assert(!(job->wants_save || job->log_kinds) || !list_is_empty(&job->in_pending));
}

void rounds_check(struct rounds *r)
{
    size_t n_walked = 0;

    assert(r->n_jobs + r->n_replaced > 0 || r->n_nodes == 0);
    assert(r->n_replaced <= r->config.max_jobs);
    r->n_steps++;
    rounds_each_job(job, r)
    {
        uint32_t n = rounds_job_n_nodes(job);

        if (n_walked++ == JOBS_WALKED_MAX)
            return;
        check_job(job);
        if (n == 0 || r->n_steps % n == 0)
            check_nodes(job);
    }
}

#else

void rounds_check(struct rounds *r)
{
    (void)r;
}

#endif
