#include "launcher/ctl/job_status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "launcher/watch/slow.h"

enum { STANDSTILL_MS = 900 }; /* without a step in a shorter time the rate is not known */

enum job_match job_status_match(const char *name, const char *asked)
{
    if (!asked || strcmp(name, asked) == 0)
        return JOB_MATCH_WHOLE;
    return strncmp(name, asked, strlen(asked)) == 0 ? JOB_MATCH_BEGINNING : JOB_MATCH_NONE;
}

static struct worker_status empty_worker(int32_t local_rank)
{
    return (struct worker_status){.rank = -1,
                                  .local_rank = local_rank,
                                  .last_step = -1,
                                  .waits_percent = -1,
                                  .awaited_percent = -1,
                                  .cpu_percent = -1,
                                  .steps_per_s = -1};
}

int job_status_add_node(struct job_status *s, const char *host, int32_t group_rank, size_t n_workers)
{
    if (!array_resize(s->nodes, s->n_nodes_known + 1))
        return -ENOMEM;
    struct node_status *node = &s->nodes[s->n_nodes_known++];
    *node = (struct node_status){.group_rank = group_rank, .generation = -1};
    (void)snprintf(node->host, sizeof(node->host), "%s", host); /* host names are shorter */
    return job_status_add_workers(s, n_workers);
}

int job_status_add_workers(struct job_status *s, size_t n)
{
    struct node_status *node = &s->nodes[s->n_nodes_known - 1];

    if (!array_resize(node->workers, node->n_workers + n + 1))
        return -ENOMEM;
    for (size_t i = 0; i < n; i++, node->n_workers++)
        node->workers[node->n_workers] = empty_worker((int32_t)node->n_workers);
    return 0;
}

static const struct node_status *find_node(const struct job_status *s, const struct node_status *node)
{
    for (size_t i = 0; i < s->n_nodes_known; i++)
        if (s->nodes[i].group_rank == node->group_rank && strcmp(s->nodes[i].host, node->host) == 0)
            return &s->nodes[i];
    return NULL;
}

int job_status_take_nodes(struct job_status *s, struct job_status *from)
{
    if (!array_resize(s->nodes, s->n_nodes_known + from->n_nodes_known + 1))
        return -ENOMEM;
    for (size_t i = 0; i < from->n_nodes_known; i++)
        if (!find_node(s, &from->nodes[i])) {
            s->nodes[s->n_nodes_known++] = from->nodes[i];
            from->nodes[i].workers = NULL;
        }
    return 0;
}

static void compare_worker(struct worker_status *w, const struct worker_status *was, int64_t ms)
{
    if (ms <= 0) { /* the same report again */
        w->cpu_percent = was->cpu_percent;
        if (w->steps_per_s < 0)
            w->steps_per_s = was->steps_per_s;
        return;
    }
    if (w->has_usage && was->has_usage && w->cpu_ms >= was->cpu_ms)
        w->cpu_percent = (int32_t)((w->cpu_ms - was->cpu_ms) * 100 / ms);
    int64_t n_steps = was->last_step >= 0 ? w->last_step - was->last_step : -1;
    if (w->steps_per_s < 0 && (n_steps > 0 || (n_steps == 0 && ms >= STANDSTILL_MS)))
        w->steps_per_s = (double)n_steps * 1000 / (double)ms;
}

/* Reports of other nodes have times of their own. */
static void compare_node(struct node_status *node, const struct node_status *before, int64_t ms)
{
    if (node->is_remote)
        ms = node->taken_ms - before->taken_ms;
    for (size_t i = 0; i < node->n_workers && i < before->n_workers; i++)
        if (node->workers[i].pid > 0 && node->workers[i].pid == before->workers[i].pid)
            compare_worker(&node->workers[i], &before->workers[i], ms);
}

void job_status_compare(struct job_status *s, const struct job_status *before, int64_t ms)
{
    for (size_t n = 0; ms > 0 && n < s->n_nodes_known; n++) {
        const struct node_status *was = find_node(before, &s->nodes[n]);

        if (was)
            compare_node(&s->nodes[n], was, ms);
    }
}

/* ---- slow ranks ---- */

static bool is_compared(const struct node_status *n, const struct worker_status *w, int64_t generation)
{
    return generation >= 0 && n->generation == generation && w->waits_percent >= 0 &&
           strcmp(w->state, "running") == 0;
}

static void mark_node(struct node_status *node, int64_t generation, const int32_t *sorted, size_t n)
{
    for (size_t k = 0; k < node->n_workers; k++) {
        struct worker_status *w = &node->workers[k];

        if (!is_compared(node, w, generation))
            continue;
        w->awaited_percent = slow_awaited(sorted, n, w->waits_percent);
        w->straggler = w->awaited_percent >= SLOW_PERCENT;
    }
}

void job_status_mark_slow(struct job_status *s)
{
    size_t n_max = 1, n_known = 0;
    int64_t generation = -1;

    for (size_t n = 0; n < s->n_nodes_known; n++) {
        n_max += s->nodes[n].n_workers;
        if (s->nodes[n].generation > generation)
            generation = s->nodes[n].generation;
    }
    _cleanup_free_ int32_t *shares = malloc(n_max * sizeof(*shares));
    for (size_t n = 0; shares && n < s->n_nodes_known; n++)
        for (size_t k = 0; k < s->nodes[n].n_workers; k++)
            if (is_compared(&s->nodes[n], &s->nodes[n].workers[k], generation))
                shares[n_known++] = s->nodes[n].workers[k].waits_percent;
    if (n_known > 1)
        slow_sort(shares, n_known);
    for (size_t n = 0; n_known > 1 && n < s->n_nodes_known; n++)
        mark_node(&s->nodes[n], generation, shares, n_known);
}

void job_status_finish(struct job_status *s)
{
    for (size_t i = 0; i < s->n_nodes_known; i++)
        free(s->nodes[i].workers);
    free(s->nodes);
    *s = (struct job_status){0};
}
