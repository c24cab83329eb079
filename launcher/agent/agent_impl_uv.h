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

#include "launcher/agent/agent_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/output/attempt_files_uv.h"
#include "launcher/output/logs_os.h"
#include "launcher/report/failures_os.h"
#include "launcher/supervise/restart_progress.h"
#include "launcher/supervise/worker_group.h"
#include "proto/worker_notice.h"
#include "rendezvous/session/session_message.h"

enum { AGENT_INHERITED_MAX = 64 };

struct bounded;
struct buf;
struct job_status;

/* Nodes on which crunctl asks for the stacks of a job at once. One more gets its report without some ranks. */
enum { AGENT_ASKERS_MAX = 16 };

struct agent {
    const struct agent_config *config;
    struct worker_group group;
    struct logs logs;
    struct worker_memory worker_memory;
    uv_loop_t loop;
    uv_poll_t signals;
    uv_timer_t deadline; /* of the group */
    uv_timer_t sweep;    /* runs while crun kills the children of a lost guardian */
    struct output *output;
    struct disk_texts *texts; /* for reports on failed workers */
    struct events *events;    /* NULL: no event log was asked for */
    uv_timer_t history_timer; /* until the history is written */
    struct generation_host host;
    struct kept_guardian kept_guardian; /* --warm, between two generations */
    bool has_sought_cgroup;             /* for the cgroups of generations (agent_seek_cgroup()) */
    int cgroup_error;                   /* why none can be made: errno */
    bool has_traced_containment;
    struct generation *generation; /* NULL before the first */
    struct attempt_files_config files_config;
    struct bounded *removal; /* of the temporary folders, while a thread does it; or NULL */
    bool has_begun_removal, removal_failed;
    struct attempt_request
        *starting;              /* files of the next start or replacement that are being made; or NULL */
    bool is_replacing;          /* what they are for */
    struct health_check *check; /* that runs before a generation; or NULL */
    uint64_t check_after_ns;    /* a check that is asked for again begins then at the earliest */
    uint64_t check_pause_ns;
    uv_timer_t check_again;
    int replace_cause_rank; /* is_replacing: the rank whose failure it mends, or -1 */
    bool start_cancelled;
    bool *failed; /* the workers that the replacement is for; NULL: none was asked for yet */
    struct rank_assignment assignment;      /* of the current or next generation */
    struct server *store;                   /* for the next generation to take; or NULL */
    bool has_opened_views;                  /* the next ones, watch and stragglers */
    struct control *control;                /* for crunctl; or NULL */
    int64_t started_s;                      /* since 1970 */
    struct metrics *metrics;                /* --metrics-addr; or NULL */
    uint64_t n_restarts[GROUP_CAUSE_COUNT]; /* for them: charged so far, by cause */
    int held_port;                          /* the same: a port that is kept free; or -1 */
    struct rdzv_static_uv *rdzv_static;     /* JOB_STATIC, once it has begun; or NULL */
    struct watch *watch;                    /* for hangs; NULL: without memory */
    struct agent_stragglers *stragglers;    /* NULL: without memory */
    uv_timer_t hang_timer;                  /* after a signal to the workers, or the kill of one of them */
    uint32_t hang_generation;               /* in which that one was */
    bool is_hanging;                        /* it was reported, and there is no progress yet */
    bool is_hang_reported, stands_out;      /* there is a report; a rank of it does */
    int hang_worker;                        /* the first one of the report */
    bool hang_elsewhere;                    /* the rank that stands out is on another node */
    bool collects_hang_reports;             /* the reports on a hang are put together on node 0 */
    struct hang_report *hang_report;        /* while that is done; or NULL */
    uv_timer_t hang_report_timer;           /* how long that is waited for */
    struct asked_stacks *asked;             /* of all nodes, for crunctl, while they are collected; or NULL */
    uv_timer_t asked_timer;                 /* how long */
    bool wants_stacks;                      /* a look at the rendezvous does: */
    char *look_stacks;                      /* their JSON, until they are old; or NULL */
    uint64_t look_stacks_ns;                /* when they were taken */
    int32_t stacks_to[AGENT_ASKERS_MAX];    /* group ranks that have asked for those of this node */
    size_t n_stacks_to;
    struct membership
        *membership; /* JOB_ROUNDS, from the start of the meeting until it has closed; or NULL */
    struct session_cause peer_cause; /* why the generation ended, if it is because of another node */
    pid_t inherited
        [AGENT_INHERITED_MAX]; /* children from before crun was executed (by a shell): not the job's */
    size_t n_inherited;
    long oom_kills_before;
    pid_t quit_sender; /* of a SIGQUIT that waits for the stacks */
    char sender[80];   /* of the first signal to stop, as text; "" when unknown */
    int start_failed;  /* -errno of the start that the present step has tried; 0: it has not failed */
    bool replace_failed;
    bool store_promised; /* several nodes: the port reported with "ready" is that of the present store */
    bool gave_up;        /* some process cannot be killed */
    bool output_ended;
    int line_worker;      /* that was killed for a line that it printed; -1: none */
    char line_cause[512]; /* which, as a sentence */
    struct restart_progress restart_progress;
    char final_why[200];          /* why it rules out a restart; "": it does not */
    uint64_t line_stacks_due_ns;  /* when a line has stacks taken again */
    struct guardian_report *held; /* that wait for lines or files; NULL: none */
    size_t n_held;
    bool awaits_lines; /* they do */
    uv_timer_t held_timer;
    struct failures_outcome outcome; /* of the reports so far */
    int exit_code;
};

/* ---- agent_uv.c ---- */

/* The generation cannot be started: r is -errno. */
void agent_dispatch_start_failed(struct agent *a, int r);

/* One step of the group machine, with the actions that it answers. */
void agent_dispatch(struct agent *a, struct group_event event);
void agent_dispatch_kind(struct agent *a, enum group_event_kind kind);

/* A report of the guardian becomes an event of the group machine. */
void agent_take_report(struct agent *a, const struct guardian_report *report);

/* The callback of agent->membership when it has closed; data is the agent. */
void agent_on_membership_closed(void *data);

/* The workers that were ordered and may run. */
int agent_count_unended(const struct agent *a);

/* What this process of the worker has reported with beat(); false: nothing. The memory file outlives it. */
struct worker_beat;
bool agent_read_beat(const struct agent *a, int worker, struct worker_beat *ret);

/* Kills one worker, for this option of crun; the rest of its generation learns of it by its end. */
void agent_kill_worker(struct agent *a, int worker, const char *option);

/* The node is fit: makes the files of the attempt. Returns 0 or -errno, with a line logged. */
int agent_make_files(struct agent *a);

/* Reports to the rendezvous that this node can take part in the next generation. */
void agent_report_ready(struct agent *a);

/* Sends a notice of the current generation to every worker that may be running. */
void agent_notify_workers(struct agent *a, struct worker_notice notice);

/* ---- agent_signals_uv.c ---- */

/* Reads all pending signals. The callback of agent->signals; status and events are not used. */
void agent_on_signals(uv_poll_t *poll, int status, int events);

/* A worker, or a process of its session, has sent a signal to its parent process. */
void agent_on_worker_signal(struct agent *a, int signal, pid_t sender);

/* Waits for children that have ended. False when there is no child at all. */
bool agent_reap(struct agent *a);

/* SIGQUIT, after the stacks have been taken. */
void agent_quit(struct agent *a);

/* Finds out whether a cgroup can be made for each generation, once. The calls wait for no disk. */
void agent_seek_cgroup(struct agent *a);

/* The guardian has ended: its keeper (job_cgroup_os.h), now a child of crun, is not one of the processes to end. */
void agent_spare_keeper(struct agent *a);

/* How this job is contained, "cgroup" or "process tree". */
const char *agent_containment(const struct agent *a);

/* With --debug: the same, with the reason; once. */
void agent_trace_containment(struct agent *a);

/* Fills agent->inherited. A negative errno when there is no /proc. */
int agent_list_inherited(struct agent *a);

/* Kills what a lost guardian left to crun, round after round; GROUP_EMPTY follows. */
void agent_start_sweep(struct agent *a);

/* Prints the names of the processes that do not end on SIGKILL. */
void agent_print_stuck(struct agent *a);

/* ---- agent_lines_uv.c ---- */

struct line_match;

/* The callback of agent->output. */
void agent_on_line_match(void *data, const struct line_match *match);

/* True: the report waits for lines that were printed before, or for files; otherwise it is for agent_take_report(). */
bool agent_hold_report(struct agent *a, const struct guardian_report *report);

/* Takes the reports that wait. */
void agent_release_reports(struct agent *a);

/* The callback of agent->output: those lines are known. data is the agent. */
void agent_on_lines_known(void *data);

/* Something that reports may wait for has come. */
void agent_check_held(struct agent *a);

/* ---- agent_texts_uv.c ---- */

/* 0 or -ENOMEM. */
int agent_open_texts(struct agent *a);

/* Asks for the files that belong to a report of the guardian. */
void agent_want_texts(struct agent *a, const struct guardian_report *report);

/* How long the report waits for them, in ms; 0: not at all. */
unsigned agent_text_patience(const struct agent *a, const struct guardian_report *report);

struct failures_source agent_failures_source(const struct agent *a);

/* ---- agent_restarts_uv.c ---- */

/* Before the group takes the event: a failure of a worker may be the last one. */
void agent_check_progress(struct agent *a, const struct group_event *event);

/* ---- agent_health_uv.c ---- */

/* Runs the health check, and then continues with the start: in a job of several nodes by reporting that this node is
 * ready, else by making the files of the attempt. */
void agent_begin_check(struct agent *a);

/* The rendezvous needs this node, whose check has failed. */
void agent_check_again(struct agent *a);

/* Ends a check that runs or is to be repeated. */
void agent_stop_check(struct agent *a);

/* ---- agent_status_uv.c ---- */

/* Serves crunctl. Without the socket the job runs as well. */
void agent_open_control(struct agent *a);

/* The job and this node as they are now. 0 or -ENOMEM; job_status_finish() in both cases. */
int agent_describe_job(const struct agent *a, struct job_status *ret);

/* For membership_host.report: data is the agent. */
void agent_report_status(void *data, struct buf *out);

/* ---- agent_metrics_uv.c ---- */

/* Serves metrics where they were asked for. Without them the job runs as well. */
void agent_open_metrics(struct agent *a);
void agent_close_metrics(struct agent *a);

/* After a step of the group: before it, `restarts` had been charged, and `cause` was that of the failure. */
void agent_count_restarts(struct agent *a, int restarts, enum group_cause cause);

/* ---- agent_watch_uv.c ---- */

/* Watches for hangs. Without it the job runs as well. */
void agent_open_watch(struct agent *a);

/* The report on a hang or on stacks: the lines and the event. rank: that stands out, -1: none does. */
struct hang_report_facts {
    bool is_hang;
    int rank;
    uint64_t silence_ns;
    const char *text;
    const char *folder; /* NULL: there is none */
};
void agent_print_hang(struct agent *a, const struct hang_report_facts *facts);

/* What --hang-action asks for; worker: the first one of the report on this node, -1: none. */
void agent_act_on_hang(struct agent *a, int worker);

/* Several nodes: none of them makes progress. */
void agent_report_hang(struct agent *a);

/* There is progress again, or a generation begins: nothing is marked, and what --hang-action asks for is not done any more. */
void agent_forget_hang(struct agent *a);

/* The workers have got a signal to end: the stacks of those that do not are taken before they are killed. */
void agent_watch_stop(struct agent *a);

/* ---- agent_stragglers_uv.c ---- */

/* Marks ranks that come late again and again. Without it the job runs as well. */
void agent_open_stragglers(struct agent *a);
void agent_close_stragglers(struct agent *a);
bool agent_is_straggler(const struct agent *a, int i);
struct worker_status;
void agent_describe_beats(const struct agent *a, int i, struct worker_status *ret);

/* ---- hang_report_uv.c ---- */

struct watch_stacks;

/* The ranks of this node hang: one report on all nodes follows, or that on this node alone. */
void agent_begin_hang_report(struct agent *a, const struct watch_stacks *s);

/* For membership_host.on_agent_message: data is the agent. */
void agent_take_message(void *data, const uint8_t *body, size_t n);

/* The files of the stacks are complete. True: what follows the hang waits for the report on all nodes, and comes with it. */
bool agent_hang_report_defers(struct agent *a, int worker);

/* crunctl asks for stacks: those of the other nodes are asked for, too. */
void agent_ask_nodes(struct agent *a);

/* The stacks of the job for a client of the rendezvous: they are taken, and then part of the status for a while. data is the agent. */
void agent_take_stacks_for_look(void *data);
const char *agent_stacks_for_look(const struct agent *a); /* NULL: there are none */

/* The stacks of this node, for those that have asked for them. True: crunctl is answered later. */
bool agent_pass_stacks(struct agent *a, const struct watch_stacks *s);

/* The report on a hang is not waited for any more; agent_end_hang_reports(): nothing is. */
void agent_end_hang_report(struct agent *a);
void agent_end_hang_reports(struct agent *a);

/* ---- agent_nodes_uv.c ---- */

/* Begins the rendezvous with the other nodes. 0 or -errno, with a line logged. */
int agent_meet(struct agent *a);

void agent_report_failed(struct agent *a, int worker);
void agent_notify_peer_failed(struct agent *a);
void agent_leave_job(struct agent *a, int signal);

/* Reports the ranks of this node to the event log. */
void agent_publish_assignment(struct agent *a);
