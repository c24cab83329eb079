/* --max-restarts-without-progress: rules out a restart before the group machine learns of the failure. */

#include <stdio.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/host/worker_beat_os.h"

/* Of this node's workers, and of those before them: the memory files outlive generations. */
static int64_t highest_step(const struct agent *a)
{
    int64_t highest = -1;
    struct worker_beat beat;

    for (int i = 0; i < a->worker_memory.n_workers; i++)
        if (worker_beat_read(a->worker_memory.states[i], &beat) && beat.step > highest)
            highest = beat.step;
    return highest;
}

static bool is_failure_here(const struct group_event *event)
{
    return event->kind == GROUP_EXEC_FAILED || event->kind == GROUP_GUARDIAN_LOST ||
           (event->kind == GROUP_EXITED && event->value != 0);
}

void agent_check_progress(struct agent *a, const struct group_event *event)
{
    const struct worker_group *g = &a->group;
    struct restart_progress *p = &a->restart_progress;
    bool is_own = is_failure_here(event);
    bool is_peer = event->kind == GROUP_PEER_FAILED && a->peer_cause.kind == SESSION_CAUSE_WORKER;
    char why[128];

    if (p->limit == 0 || (!is_own && !is_peer) || g->state != GROUP_RUNNING || g->interrupt || g->is_draining)
        return;
    restart_progress_note(p, highest_step(a), g->restarts > 0);
    if (!is_own || !restart_progress_is_used_up(p))
        return;
    restart_progress_describe(p, why, sizeof(why));
    (void)snprintf(a->final_why, sizeof(a->final_why), "%s (--max-restarts-without-progress=%d)", why,
                   p->limit); /* fits */
    agent_dispatch(
        a, (struct group_event){.kind = GROUP_FINAL, .now_ns = event->now_ns, .worker = event->worker});
}
