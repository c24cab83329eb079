#include "launcher/agent/agent_trace_os.h"

#include "launcher/util/trace_os.h"

static void trace_group_action(const struct worker_group *g, const struct group_event *event,
                               const struct group_action *action)
{
    if (action->kind == GROUP_DO_ARM)
        trace_line("group action %s state=%s in_ms=%.3f", group_action_name(action->kind),
                   group_state_name(g->state), ((double)action->deadline_ns - (double)event->now_ns) / 1e6);
    else
        trace_line("group action %s state=%s value=%d", group_action_name(action->kind),
                   group_state_name(g->state), action->value);
}

void trace_group(enum group_state before, const struct worker_group *g, const struct group_event *event,
                 const struct group_actions *actions)
{
    trace_line("group event %s state=%s generation=%u worker=%d pid=%d value=%d",
               group_event_name(event->kind), group_state_name(before), g->generation, event->worker,
               (int)event->pid, event->value);
    for (size_t i = 0; i < actions->n_items; i++)
        trace_group_action(g, event, &actions->items[i]);
}
