#pragma once

/*
 * Shared by the two files of the agent: agent_uv.c (life, actions, the table of parts) and agent_nodes_uv.c (rendezvous with other
 * nodes).
 */

#include <stdbool.h>
#include <uv.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/output/logs_os.h"
#include "launcher/report/failures_os.h"
#include "proto/worker_notice.h"

/* The parts, in the order in which they see a step of the group machine, describe the job and are stopped. */
enum agent_part {
    PART_LINES,
    PART_RESTARTS,
    PART_CHILDREN,
    PART_TRACE,
    PART_METRICS,
    PART_EVENTS,
    PART_STATUS,
    PART_STRAGGLERS,
    PART_STACKS,
    PART_HANG,
    PART_HEALTH,
    PART_COUNT
};

struct agent {
    struct agent_host host;
    struct agent_observer parts[PART_COUNT];
    struct worker_group group;
    struct logs logs;
    struct worker_memory worker_memory;
    uv_loop_t loop;
    uv_timer_t deadline;      /* of the group */
    uv_timer_t history_timer; /* until the history is written */
    struct generation_host generation_host;
    struct agent_folders *folders;
    struct agent_health *health;
    struct agent_start *start;
    struct rank_assignment assignment;  /* of the current or next generation */
    bool has_opened_views;              /* the next ones, watch and stragglers */
    struct agent_status *status;        /* for crunctl; or NULL */
    struct rdzv_static_uv *rdzv_static; /* JOB_STATIC, once it has begun; or NULL */
    struct agent_hang *hang;
    struct asked_stacks *stacks;     /* of all nodes, for crunctl */
    struct session_cause peer_cause; /* why the generation ended, if it is because of another node */
    long oom_kills_before;
    char sender[80];             /* of the first signal to stop, as text; "" when unknown */
    struct group_event deferred; /* until the actions of a step are carried out; GROUP_EVENT_COUNT: none */
    struct failures_source failures; /* without what changes: agent_failures_source() */
    bool output_ended;
    struct agent_lines *lines;
    struct agent_restarts *restarts;
    struct agent_children *children;
    struct agent_signals *signals;
    struct failures_outcome outcome; /* of the reports so far */
    int exit_code;
};

/* ---- agent_uv.c ---- */

/* The generation cannot be started: r is -errno. */
void agent_dispatch_start_failed(struct agent *a, int r);

/* One step of the group machine, with the actions that it answers. */
void agent_dispatch(void *agent, struct group_event event);
void agent_dispatch_kind(struct agent *a, enum group_event_kind kind);

/* The callback of agent->membership when it has closed; data is the agent. */
void agent_on_membership_closed(void *data);

/* The workers that were ordered and may run. */
int agent_count_unended(const struct agent *a);

/* Sends a notice of the current generation to every worker that may be running. */
void agent_notify_workers(struct agent *a, struct worker_notice notice);

/* What the report on a failed generation is made of. */
struct failures_source agent_failures_source(const struct agent *a);

/* ---- agent_nodes_uv.c ---- */

/* Begins the rendezvous with the other nodes. 0 or -errno, with a line logged. */
int agent_meet(struct agent *a);

void agent_report_failed(struct agent *a, int worker);
void agent_notify_peer_failed(struct agent *a);
void agent_leave_job(struct agent *a, int signal);
