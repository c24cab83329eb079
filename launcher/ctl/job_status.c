#include "launcher/ctl/job_status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int job_status_add_node(struct job_status *s, const char *host, int32_t group_rank, size_t n_workers)
{
    struct node_status *nodes = reallocarray(s->nodes, s->n_nodes_known + 1, sizeof(*nodes));
    struct worker_status *workers = calloc(n_workers ? n_workers : 1, sizeof(*workers));

    if (nodes)
        s->nodes = nodes;
    if (!nodes || !workers) {
        free(workers);
        return -ENOMEM;
    }
    struct node_status *node = &nodes[s->n_nodes_known++];
    *node = (struct node_status){.group_rank = group_rank, .workers = workers, .n_workers = n_workers};
    (void)snprintf(node->host, sizeof(node->host), "%s", host); /* host names are shorter */
    for (size_t i = 0; i < n_workers; i++)
        workers[i] =
            (struct worker_status){.rank = -1, .local_rank = (int32_t)i, .last_step = -1, .cpu_percent = -1};
    return 0;
}

void job_status_finish(struct job_status *s)
{
    for (size_t i = 0; i < s->n_nodes_known; i++)
        free(s->nodes[i].workers);
    free(s->nodes);
    *s = (struct job_status){0};
}
