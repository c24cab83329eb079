/* --max-restarts-without-progress: rules out a restart before the group machine learns of the failure. */

#include "launcher/agent/agent_restarts_uv.h"

#include <stdio.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/supervise/restart_progress.h"

struct agent_restarts {
    const struct agent_host *host;
    struct restart_progress progress;
    char why[200]; /* agent_restarts_why() */
};

/* Of this node's workers in all generations: the memory files outlive generations. */
static int64_t highest_step(const struct worker_memory *memory)
{
    int64_t highest = -1;
    struct worker_beat beat;

    for (int i = 0; i < memory->n_workers; i++)
        if (worker_beat_read(memory->states[i], &beat) && beat.step > highest)
            highest = beat.step;
    return highest;
}

static bool is_failure_here(const struct group_event *event)
{
    return event->kind == GROUP_EXEC_FAILED || event->kind == GROUP_GUARDIAN_LOST ||
           (event->kind == GROUP_EXITED && event->value != 0);
}

static void check_progress(void *self, const struct group_event *event)
{
    struct agent_restarts *a = self;
    const struct worker_group *g = a->host->group;
    struct restart_progress *p = &a->progress;
    bool is_own = is_failure_here(event);
    bool is_peer = event->kind == GROUP_PEER_FAILED && a->host->peer_cause->kind == SESSION_CAUSE_WORKER;
    char why[128];

    if (p->limit == 0 || (!is_own && !is_peer) || g->state != GROUP_RUNNING || g->interrupt || g->is_draining)
        return;
    restart_progress_note(p, highest_step(a->host->worker_memory), g->restarts > 0);
    if (!is_own || !restart_progress_is_used_up(p))
        return;
    restart_progress_describe(p, why, sizeof(why));
    (void)snprintf(a->why, sizeof(a->why), "%s (--max-restarts-without-progress=%d)", why,
                   p->limit); /* fits */
    host_dispatch(a->host, GROUP_FINAL, event->worker);
}

const char *agent_restarts_why(const struct agent_restarts *p)
{
    return p->why;
}

struct agent_restarts *agent_restarts_create(struct agent_observer *observer, const struct agent_host *host)
{
    static struct agent_restarts restarts; /* a process has one agent */
    struct agent_restarts *p = &restarts;

    p->host = host;
    p->progress.limit = host->job->max_restarts_without_progress;
    *observer = (struct agent_observer){.self = p, .before = check_progress};
    return p;
}
