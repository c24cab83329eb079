#pragma once

/* The trace (trace_os.h) of one step of the group machine. Only with trace_sink set. */

#include "launcher/supervise/worker_group.h"

/* before: the state of the machine before the step. */
void trace_group(enum group_state before, const struct worker_group *g, const struct group_event *event,
                 const struct group_actions *actions);
