/*
 * What nodes that wait for others are shown: the hosts that are there, the time that is left, and two frequent reasons for
 * waiting in vain: another job of nodes that wait at the same rendezvous (another --rdzv-id on one of the nodes), and a
 * node that was refused. Composed once a second for each gathering job; a walk looks at a bounded number of nodes and jobs.
 */

#include <stdio.h>
#include <string.h>

#include "rendezvous/rounds/rounds_impl.h"

enum { NODES_WALKED_MAX = 64, JOBS_WALKED_MAX = 64 };

static const char more[] = ", ...";

/* Appends a name, or once ", ..." when it does not fit. False: the list is closed. */
static bool append_name(char list[SESSION_NAMES_SIZE], const char *quote, const char *name)
{
    size_t n = strlen(list);
    size_t needed = (n ? 2 : 0) + 2 * strlen(quote) + strlen(name);

    if (n + needed + sizeof(more) > SESSION_NAMES_SIZE) {
        (void)snprintf(list + n, SESSION_NAMES_SIZE - n, "%s",
                       n ? more : "..."); /* fits: room is kept for it */
        return false;
    }
    (void)snprintf(list + n, SESSION_NAMES_SIZE - n, "%s%s%s%s", n ? ", " : "", quote, name,
                   quote); /* fits */
    return true;
}

static void list_present(struct rounds_job *job)
{
    char *list = job->waiting.present;
    unsigned n_walked = 0;

    list[0] = 0;
    job_each_node(n, job)
    {
        if (n->state == ROUNDS_NODE_READY && !append_name(list, "", n->host[0] ? n->host : "?"))
            return;
        if (++n_walked == NODES_WALKED_MAX) {
            if (rounds_job_n_nodes(job) > n_walked)
                (void)append_name(list, "", "...");
            return;
        }
    }
}

static void list_other_jobs(struct rounds_job *job)
{
    char *list = job->waiting.other_jobs;
    unsigned n_walked = 0;

    list[0] = 0;
    rounds_each_job(other, job->rounds)
    {
        bool waits = other->state == ROUNDS_GATHERING && other->n_nodes[ROUNDS_NODE_READY] > 0;

        if (other != job && waits && !append_name(list, "'", other->id))
            return;
        if (++n_walked == JOBS_WALKED_MAX)
            return;
    }
}

void job_describe_waiting(struct rounds_job *job, uint64_t now_ns)
{
    bool is_last_call =
        job->n_nodes[ROUNDS_NODE_READY] >= job->params.min_nodes && job->last_call_until_ns > 0;
    uint64_t until_ns = is_last_call ? job->last_call_until_ns : job->gather_until_ns;
    uint64_t fence_end_ns = job_fence_end(job);

    if (is_last_call && fence_end_ns > until_ns)
        until_ns = fence_end_ns;
    job->waiting.left_ms = until_ns > now_ns ? (uint32_t)((until_ns - now_ns) / 1000000) : 0;
    list_present(job);
    list_other_jobs(job);
}

void job_describe_unfit(struct rounds_job *job)
{
    uint32_t n_left = job->n_nodes[ROUNDS_NODE_UNFIT];
    char *text = job->unfit;

    text[0] = 0;
    job_each_node(n, job)
    {
        size_t size = strlen(text);
        char reason[SESSION_UNFIT_SIZE + SESSION_HOST_SIZE];

        if (n_left == 0)
            return;
        if (n->state != ROUNDS_NODE_UNFIT)
            continue;
        n_left--;
        (void)snprintf(reason, sizeof(reason), "%s%s",
                       n->is_cut_off ? "its network is cut off from " : n->unfit,
                       n->is_cut_off ? n->cut_host : ""); /* fits */
        if (size + strlen(n->host) + strlen(reason) + sizeof(more) + 4 > sizeof(job->unfit)) {
            (void)snprintf(text + size, sizeof(job->unfit) - size, "%s",
                           "; ..."); /* fits: room is kept for it */
            return;
        }
        (void)snprintf(text + size, sizeof(job->unfit) - size, "%s%s: %s", size ? "; " : "",
                       n->host[0] ? n->host : "?", reason); /* fits */
    }
}

bool job_needs_unfit(const struct rounds_job *job)
{
    return job->state == ROUNDS_GATHERING && job->n_nodes[ROUNDS_NODE_READY] +
                                                     job->n_nodes[ROUNDS_NODE_STOPPING] +
                                                     job->n_nodes[ROUNDS_NODE_JOINING] <
                                                 job->params.min_nodes;
}

void job_note_refused(struct rounds_job *job, const char *host, const char *parameter, const char *in_job,
                      const char *on_node)
{
    (void)snprintf(job->waiting.refused, sizeof(job->waiting.refused),
                   "%.200s: %s is %.48s in the job and %.48s there", host[0] ? host : "a node", parameter,
                   in_job, on_node); /* fits */
}
