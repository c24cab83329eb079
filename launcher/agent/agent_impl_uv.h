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

/* The parts, in the order of before(), after(), describe(), stop() and destroy(). */
enum agent_part {
    PART_LINES,
    PART_RESTARTS,
    PART_CHILDREN,
    PART_TRACE,
    PART_METRICS,
    PART_EVENTS,
    PART_STATUS,
    PART_STACKS,
    PART_HANG,
    PART_HEALTH,
    PART_SNAPSHOTS,
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
    struct agent_health *health;
    struct agent_start *start;
    struct rank_assignment assignment;  /* of the current or next generation */
    bool has_opened_views;              /* status, metrics and hang */
    struct agent_status *status;        /* for crunctl; or NULL */
    struct rdzv_static_uv *rdzv_static; /* JOB_STATIC, once it has begun; or NULL */
    struct agent_hang *hang;
    struct asked_stacks *stacks;     /* of all nodes, for crunctl */
    struct session_cause peer_cause; /* why the generation ended, if another node is the reason */
    long oom_kills_before;
    char sender[80];             /* of the first signal to stop, as text; "" when unknown */
    struct group_event deferred; /* until the actions of a step are carried out; GROUP_EVENT_COUNT: none */
    struct failures_source failures; /* the constant members: see agent_failures_source() */
    bool output_ended;
    bool has_begun_removal, has_failed_removal; /* of the temporary folders */
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

/* One step of the group machine, with the resulting actions. */
void agent_dispatch(void *agent, struct group_event event);
void agent_dispatch_kind(struct agent *a, enum group_event_kind kind);

/* The membership has closed. data is the agent. */
void agent_on_membership_closed(void *data);

/* The workers that were ordered and may run. */
int agent_count_unended(const struct agent *a);

/* Sends a notice of the current generation to every worker that may be running. */
void agent_notify_workers(struct agent *a, struct worker_notice notice);

/* The input of the report on a failed generation. */
struct failures_source agent_failures_source(const struct agent *a);

/* ---- agent_nodes_uv.c ---- */

/* Begins the rendezvous with the other nodes. 0 or -errno, with a line logged. */
int agent_meet(struct agent *a);

void agent_report_failed(struct agent *a, int worker);
void agent_notify_peer_failed(struct agent *a);
void agent_leave_job(struct agent *a, int signal);
