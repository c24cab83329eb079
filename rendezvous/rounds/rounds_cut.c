/*
 * A cut between the hosts of two members.
 *
 * A worker whose connection to a rank of another host has fallen silent, or that gets no answer when it connects to one, is the
 * evidence: its agent reports that rank (session_report.cut_from). The node with that rank has answered the end of the generation
 * like all others, so its host is up: what is down is the network between the two. Without this, both take part in the next
 * generation, which fails in the same way, until the restarts are used up.
 *
 * One report is enough: a firewall that drops what one of the two sends first leaves no trace on the other side, a rank connects to
 * some of the others only, and a generation may end before the second side has noticed. Both sides are needed in any case.
 *
 * One of the two is left out where enough nodes remain: the one with more such cuts, or with more in earlier generations, or else
 * with the higher group rank, as node 0 serves the workers' keys. So a node that connects to no other one takes at most one healthy
 * node with it, and that one returns when the node with the cuts is left out itself: it is left out for that side of the cut alone.
 *
 * A node that is left out waits as an unfit node does, and is taken again after a pause, which doubles with each cut, or at once
 * when too few other nodes are there, or when the other side is not there any more. Then the generation's end is charged as that
 * of a lost node. Where none can be left out, it is charged as the worker's failure that it is, and named.
 *
 * How long the others wait for the node that is left out, which stops its workers first like every member of the last generation:
 *   - Its crun ends them within its --shutdown-timeout, with SIGKILL at its end, and reports ready.
 *   - Without a message for the node timeout it is lost. Its lease, if the job has one, is waited for then, and nothing else.
 *   - Where its crun lives and the kernel does not end a worker (state D): until the join timeout, counted from the end of the
 *     generation. With a lease there is no such bound, here and for all other nodes (rounds.h): the generation would run beside
 *     that worker, which is what the lease excludes. The way out is to kill that crun; then the lease decides.
 *
 * None of this is saved: a rendezvous that was started again, or another one that leads, takes both, and learns of the cut from the
 * next generation.
 */

#include <stdio.h>

#include "base/utf8.h"
#include "rendezvous/rounds/rounds_impl.h"

enum { CUT_PAUSE_MIN_MS = 60000, CUT_PAUSE_MAX_MS = 3600000, CUTS_MAX = 64 /* reports that are judged */ };

static bool has_reported(const struct rounds_node *n)
{
    return n->member && !n->lost && n->cut_from > 0;
}

/* `other` had the rank that n has reported, and has answered the end of the generation. */
static bool is_other_side(const struct rounds_node *n, const struct rounds_node *other)
{
    uint32_t rank = n->cut_from - 1;

    return other != n && other->member && other->answered && !other->lost && rank >= other->rank_base &&
           rank - other->rank_base < other->n_workers;
}

/* The other side of what this node has reported; NULL: nothing, itself, or a node that is lost. Walks over all nodes. */
static struct rounds_node *other_side(struct rounds_node *n)
{
    if (!has_reported(n))
        return NULL;
    job_each_node(other, n->job)
    {
        if (is_other_side(n, other))
            return other;
    }
    return NULL;
}

static bool comes_before(const struct rounds_node *n, const struct rounds_node *other)
{
    if (!other || n->n_cuts != other->n_cuts)
        return !other || n->n_cuts > other->n_cuts;
    if (n->n_cuts_before != other->n_cuts_before)
        return n->n_cuts_before > other->n_cuts_before;
    return n->group_rank > other->group_rank;
}

/* The node that has the most cuts; NULL: there is none. */
static struct rounds_node *choose_node(struct rounds_job *job)
{
    struct rounds_node *chosen = NULL;
    unsigned n_reports = 0;

    job_each_node(n, job)
    {
        n->n_cuts_before += n->n_cuts;
        n->n_cuts = 0;
    }
    job_each_node(n, job)
    {
        if (!has_reported(n) || n_reports++ >= CUTS_MAX)
            continue;
        struct rounds_node *other = other_side(n);
        n->n_cuts += other != NULL;
        if (other)
            other->n_cuts++;
    }
    job_each_node(n, job)
    {
        if (n->n_cuts > 0 && comes_before(n, chosen))
            chosen = n;
    }
    return chosen;
}

static struct rounds_node *find_partner(struct rounds_job *job, struct rounds_node *chosen)
{
    struct rounds_node *other = other_side(chosen);

    if (other)
        return other;
    job_each_node(n, job)
    {
        if (has_reported(n) && is_other_side(n, chosen))
            return n;
    }
    return NULL;
}

/* Without the node: those that are left out for their cut from it return then. */
static bool has_enough_others(const struct rounds_node *without)
{
    const struct rounds_job *job = without->job;
    uint32_t n = job->n_nodes[ROUNDS_NODE_READY] + job->n_nodes[ROUNDS_NODE_STOPPING] +
                 job->n_nodes[ROUNDS_NODE_RUNNING] + job->n_nodes[ROUNDS_NODE_DONE];

    job_each_node(node, job) n +=
        node->state == ROUNDS_NODE_UNFIT && node->is_cut_off && node->cut_serial == without->serial;
    return n > job->params.min_nodes;
}

static void leave_out(struct rounds_node *n, const struct rounds_node *partner, uint64_t now_ns)
{
    struct rounds_job *job = n->job;

    n->is_cut_off = true;
    n->cut_serial = partner->serial;
    text_copy(n->cut_host, sizeof(n->cut_host), partner->host);
    job->cut_pause_ns = job->cut_pause_ns > 0 ? 2 * job->cut_pause_ns : ms_to_ns(CUT_PAUSE_MIN_MS);
    if (job->cut_pause_ns > ms_to_ns(CUT_PAUSE_MAX_MS))
        job->cut_pause_ns = ms_to_ns(CUT_PAUSE_MAX_MS);
    job->cut_until_ns = now_ns + job->cut_pause_ns;
}

void job_judge_cut(struct rounds_job *job, uint64_t now_ns)
{
    struct rounds_node *n =
        job->cause.kind == SESSION_CAUSE_WORKER && !job->cause.fatal && !job->drain ? choose_node(job) : NULL;
    struct rounds_node *partner = n ? find_partner(job, n) : NULL;
    struct session_cause *cause = &job->cause;

    if (!partner)
        return;
    if (!has_enough_others(n)) {
        (void)snprintf(cause->text, sizeof(cause->text), "hosts %.150s and %.150s cannot reach each other",
                       n->host[0] ? n->host : "?", partner->host[0] ? partner->host : "?");
        return;
    }
    *cause = session_cause_empty(SESSION_CAUSE_LOST);
    cause->group_rank = n->group_rank;
    text_copy(cause->host, sizeof(cause->host), n->host);
    (void)snprintf(cause->text, sizeof(cause->text),
                   "the network between it and %.150s is cut, and the rendezvous reaches both",
                   partner->host[0] ? partner->host : "?");
    leave_out(n, partner, now_ns);
}

static void readmit(struct rounds_node *n)
{
    n->is_cut_off = false;
    node_update_state(n);
    node_want_view(n);
}

void job_readmit_cut(struct rounds_job *job)
{
    job->cut_until_ns = 0;
    job_each_node(n, job)
    {
        if (n->is_cut_off)
            readmit(n);
    }
}

/* The other side may be a member of the next generation. */
static bool has_other_side(const struct rounds_node *n)
{
    job_each_node(other, n->job)
    {
        if (other->serial == n->cut_serial)
            return !other->lost && !other->is_cut_off;
    }
    return false;
}

void job_readmit_single(struct rounds_job *job)
{
    if (job->cut_until_ns == 0)
        return;
    job_each_node(n, job)
    {
        if (n->is_cut_off && !has_other_side(n))
            readmit(n);
    }
}
