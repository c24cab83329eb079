#pragma once

/*
 * What the three files of the agent share: agent_uv.c (life, actions), agent_signals_uv.c (signals, children of
 * crun's own) and agent_nodes_uv.c (rendezvous with other nodes).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/agent_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/output/attempt_files_uv.h"
#include "launcher/output/logs_os.h"
#include "launcher/report/failures_os.h"
#include "launcher/supervise/worker_group.h"
#include "proto/worker_notice.h"
#include "rendezvous/session/session_message.h"

struct bounded;
struct buf;
struct job_status;

/* The parts that see the steps of the group machine, in the order in which they do. */
enum agent_part {
    PART_LINES,
    PART_RESTARTS,
    PART_CHILDREN,
    PART_GROUP, /* what the agent itself does behind each step */
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
    const struct agent_config *config;
    struct agent_host host;
    struct agent_observer parts[PART_COUNT];
    struct worker_group group;
    struct logs logs;
    struct worker_memory worker_memory;
    uv_loop_t loop;
    uv_timer_t deadline; /* of the group */
    struct output *output;
    struct disk_texts *texts; /* for reports on failed workers */
    uv_timer_t history_timer; /* until the history is written */
    struct generation_host generation_host;
    struct kept_guardian kept_guardian; /* --warm, between two generations */
    struct attempt_files_config files_config;
    struct bounded *removal; /* of the temporary folders, while a thread does it; or NULL */
    bool has_begun_removal, removal_failed;
    struct attempt_request
        *starting;     /* files of the next start or replacement that are being made; or NULL */
    bool is_replacing; /* what they are for */
    struct agent_health *health;
    int replace_cause_rank; /* is_replacing: the rank whose failure it mends, or -1 */
    bool start_cancelled;
    bool *failed; /* the workers that the replacement is for; NULL: none was asked for yet */
    struct rank_assignment assignment;  /* of the current or next generation */
    struct server *store;               /* for the next generation to take; or NULL */
    bool has_opened_views;              /* the next ones, watch and stragglers */
    struct agent_status *status;        /* for crunctl; or NULL */
    int held_port;                      /* the same: a port that is kept free; or -1 */
    struct rdzv_static_uv *rdzv_static; /* JOB_STATIC, once it has begun; or NULL */
    struct agent_hang *hang;
    struct asked_stacks *stacks;     /* of all nodes, for crunctl */
    struct session_cause peer_cause; /* why the generation ended, if it is because of another node */
    long oom_kills_before;
    char sender[80];  /* of the first signal to stop, as text; "" when unknown */
    int start_failed; /* -errno of the start that the present step has tried; 0: it has not failed */
    bool replace_failed;
    bool store_promised; /* several nodes: the port reported with "ready" is that of the present store */
    bool gave_up;        /* some process cannot be killed */
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

/* Kills one worker, for this option of crun; the rest of its generation learns of it by its end. */
void agent_kill_worker(void *agent, int worker, const char *option);

/* Reports to the rendezvous that this node can take part in the next generation. */
void agent_report_ready(struct agent *a);

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

/* Reports the ranks of this node to the event log. */
void agent_publish_assignment(struct agent *a);
