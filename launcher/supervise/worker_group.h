#pragma once

/*
 * The worker group of one node: a state machine that decides what happens when workers start, end and fail,
 * when signals arrive and when time runs out. Pure: group_step() takes events with their time and returns
 * actions; agent_uv.c carries them out.
 *
 *   idle -> running -> sweeping -> done, or idle again before the next generation
 *             |  \-> stopping -/\-> killing -/      (leaving comes before done in a static rendezvous)
 *         replacing
 *
 * running:   nothing has failed. Some workers may have ended with success already.
 * replacing: a worker failed and the others stay. First the machine waits for further failures with the same
 *            cause, then the failed workers are started again in the next generation, until all are ready in it.
 * stopping:  a worker failed or crun has to stop; the workers have got a signal, and a deadline is armed.
 * sweeping:  all workers have ended, processes that they started have not (orphans); signal and deadline as above.
 * killing:   SIGKILL has been ordered for every process; waiting until none is left.
 * leaving:   the workers ended with success; waiting for those of the other nodes.
 * done:      the job has ended here, with an exit code.
 *
 * A generation ends with GROUP_EMPTY, never earlier: no process of it exists when the next one starts. Only
 * replacing takes workers from one generation to the next: those that have reported that they are able to.
 *
 * A generation that fails within 10 s of its start is a short one. The first short one is started again at once, each
 * further one after a pause that doubles (1, 2, 4 ... s, at most config.pause_max_ns), so that a cause that needs
 * seconds to disappear does not use up all restarts. The machine is idle with an armed deadline meanwhile.
 *
 * With config.has_rank_assignment this node is one of several nodes: the rendezvous decides whether there is another
 * generation, and which. The group reports the end of its part of a generation (GROUP_DO_REPORT_*, GROUP_DO_LEAVE),
 * waits in idle, and receives GROUP_START with the next one, GROUP_PEER_FAILED or GROUP_END.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum group_state {
    GROUP_IDLE,
    GROUP_RUNNING,
    GROUP_REPLACING,
    GROUP_STOPPING,
    GROUP_SWEEPING,
    GROUP_KILLING,
    GROUP_LEAVING,
    GROUP_DONE,
    GROUP_STATE_COUNT
};

enum group_event_kind {
    GROUP_START, /* begin with generation 0, or the next one; several nodes: generation, restarts, is_needed */
    GROUP_START_FAILED,  /* a generation could not be started at all; value: errno, 0: other reasons */
    GROUP_STARTED,       /* worker, pid */
    GROUP_EXEC_FAILED,   /* worker; value: errno */
    GROUP_EXITED,        /* worker, pid; value: wait status */
    GROUP_ORPHANS,       /* all workers have ended; value: number of processes they left behind */
    GROUP_EMPTY,         /* no process of the generation is left */
    GROUP_GUARDIAN_LOST, /* the guardian ended before GROUP_EMPTY; the remaining processes are being killed */
    GROUP_SIGNAL,        /* crun is to stop; value: signal number; pid: of the sender, 0 when unknown */
    GROUP_PASS_SIGNAL, /* a signal for the workers that ends nothing (SIGUSR1, SIGUSR2); value: its number */
    GROUP_SUSPEND,     /* the terminal suspends the job (Ctrl-Z) */
    GROUP_RESUME,      /* crun has been continued */
    GROUP_TIMER,       /* the armed deadline may have passed */
    GROUP_PEER_FAILED, /* several nodes: this generation has ended because of another node */
    GROUP_LEASE_ENDED, /* several nodes: others may start in the place of this node: no worker may stay */
    GROUP_END,         /* several nodes: the job has ended; value: exit code */
    GROUP_DRAIN,       /* several nodes: all nodes stop at a common point, for good */
    GROUP_OTHERS_DONE, /* leaving: the workers of the other nodes have ended, or the wait for them has */
    GROUP_WORKER_JOINING, /* worker has begun to meet the others; value: the generation that it joins */
    GROUP_WORKER_READY, /* worker can stay when another one is replaced; value: the generation it has joined */
    GROUP_FINAL,        /* no restart helps against the failure that follows, or against that of worker */
    GROUP_REPLACE_FAILED, /* GROUP_DO_REPLACE could not be carried out */
    GROUP_EVENT_COUNT
};

struct group_event {
    enum group_event_kind kind;
    uint64_t now_ns;
    int worker;
    pid_t pid;
    int value;
    bool unasked;   /* GROUP_EXITED: before any signal had been sent to it */
    bool is_needed; /* GROUP_START, several nodes: the job has no more nodes than it needs */
    bool stops_job; /* GROUP_SIGNAL, several nodes: all nodes of the job are to stop, not this node alone */
    uint32_t generation;
    int restarts;
};

enum group_action_kind {
    GROUP_DO_SPAWN,         /* start a generation: group->generation, group->restarts */
    GROUP_DO_NOTIFY_FAILED, /* worker notice: worker `value` failed */
    GROUP_DO_NOTIFY_STOP,   /* worker notice: signal `value` follows */
    GROUP_DO_SIGNAL,        /* send a signal to the workers' process groups, and to orphans */
    GROUP_DO_PASS_SIGNAL,   /* send a signal to the workers alone */
    GROUP_DO_FREEZE,        /* SIGSTOP to every process of the generation */
    GROUP_DO_THAW,          /* SIGCONT to them */
    GROUP_DO_STOP_SELF, /* SIGTSTP to crun itself; GROUP_RESUME follows when it has been continued, or was not stopped */
    GROUP_DO_KILL, /* SIGKILL to every process of the generation until none is left */
    GROUP_DO_ARM,  /* send GROUP_TIMER at deadline_ns; replaces an earlier deadline */
    GROUP_DO_DISARM,
    GROUP_DO_PRINT_REPORT,   /* the generation failed: print why, and what happens next */
    GROUP_DO_PRINT_PAUSE,    /* the next generation starts in `value` ms */
    GROUP_DO_START_AGAIN,    /* answer with GROUP_START */
    GROUP_DO_KILL_GUARDIAN,  /* it does not carry out its orders: SIGKILL; crun inherits its children */
    GROUP_DO_GIVE_UP,        /* some process cannot be killed: print its name */
    GROUP_DO_AWAIT_OTHERS,   /* answer with GROUP_OTHERS_DONE */
    GROUP_DO_FINISH,         /* end; group_exit_code() with code `value` */
    GROUP_DO_HURRY,          /* done: do not wait any longer for other nodes or a slow console */
    GROUP_DO_REPLACE,        /* open the next generation for the running workers; start the others in it */
    GROUP_DO_KILL_NEWCOMERS, /* SIGKILL to the workers with to_kill set, and to no others */
    /* Placed: report to the rendezvous */
    GROUP_DO_REPORT_FAILED, /* worker `value` failed (-1: none of them, see cause) */
    GROUP_DO_REPORT_DONE,   /* all workers of this node ended with success */
    GROUP_DO_REPORT_READY,  /* no process is left, this node can take part in the next generation */
    GROUP_DO_REQUEST_DRAIN, /* this node has to go away, and the job needs it: all should stop at a common point */
    GROUP_DO_LEAVE,         /* this node goes away: signal `value`, or 0 if it cannot go on */
    GROUP_DO_NOTIFY_PEER, /* worker notice: another node's part has failed */
    GROUP_ACTION_COUNT
};

struct group_action {
    enum group_action_kind kind;
    int value; /* signal, worker, exit code or milliseconds */
    uint64_t deadline_ns;
};

enum { GROUP_ACTIONS_MAX = 6 };

struct group_actions {
    struct group_action items[GROUP_ACTIONS_MAX];
    size_t n_items;
};

enum group_worker_state {
    GROUP_WORKER_NONE,
    GROUP_WORKER_RUNNING,
    GROUP_WORKER_ENDED,
    GROUP_WORKER_EXEC_FAILED
};

struct group_worker {
    enum group_worker_state state;
    pid_t pid;
    int status;          /* wait status, or errno when exec failed */
    uint64_t ordered_ns; /* nothing that its process has done is older: the report of its start may be late */
    uint64_t started_ns, ended_ns;
    int order;     /* it was the order-th of its generation to end, from 0 */
    bool stopped;  /* crun has signalled it; of an ended worker: before it ended */
    bool joining;  /* GROUP_WORKER_JOINING has come in this generation */
    bool ready;    /* in this generation */
    bool can_stay; /* it has been ready in one generation */
    bool failed;   /* it failed, and a new process takes its place */
    bool to_kill;  /* it is killed to be replaced: it was started for a generation that has failed already */
    const char *kill_option; /* of crun, for which crun has killed this worker alone; NULL: it has not */
    uint32_t generation;     /* it was started in */
    int64_t max_rss_kib;
};

/* Why a generation ended before its time. The first cause stays. */
enum group_cause {
    GROUP_CAUSE_NONE,
    GROUP_CAUSE_WORKER,   /* cause_worker failed */
    GROUP_CAUSE_EXEC,     /* cause_worker could not be executed; see group_exec_is_final() */
    GROUP_CAUSE_GUARDIAN, /* the guardian was killed by another program */
    GROUP_CAUSE_SIGNAL,   /* crun received a signal to stop */
    GROUP_CAUSE_START,    /* the generation could not be started */
    GROUP_CAUSE_PEER,     /* several nodes: another node */
    GROUP_CAUSE_REJOIN,   /* cause_worker, and perhaps others, were not ready in time after a replacement */
    GROUP_CAUSE_COUNT
};

struct group_config {
    int n_workers;
    int max_restarts;
    uint64_t grace_ns;        /* between a stop signal and SIGKILL */
    uint64_t pause_max_ns;    /* between restarts of short generations; 0: no pause */
    bool has_rank_assignment; /* one of several nodes: the rendezvous keeps the budget of restarts */
    bool leaves_together;     /* after success, wait for the other nodes (static rendezvous) */
    bool exit_code_of_worker; /* --exit-code=worker */
    bool replace;             /* keep the workers that can stay when one fails */
    uint64_t rejoin_ns;       /* from when the new workers join after a replacement until all are ready */
};

struct worker_group {
    struct group_config config;
    struct group_worker *workers; /* of the current or last generation */
    enum group_state state;
    enum group_cause cause;
    int cause_worker;
    uint64_t cause_ns;     /* when the cause became known */
    int interrupt;         /* first signal to stop that crun received, or 0 */
    uint64_t interrupt_ns; /* when it arrived */
    /* The next GROUP_START begins another generation, charged to the budget; several nodes: it may, and the rendezvous
     * keeps the budget. */
    bool will_restart;
    int start_error;      /* GROUP_CAUSE_START: errno of a start that is tried again; 0: it is not */
    bool is_final;        /* GROUP_FINAL: the cause of this generation's end */
    bool will_replace;    /* the same, with the workers that are there */
    bool forming;         /* replacing: the new ones are ordered, all have to get ready */
    uint64_t lost_ns;     /* replacing: when the last one failed */
    bool guardian_killed; /* by crun, because processes remained after SIGKILL, or it is lost anyway */
    bool escalated;       /* this generation had to be killed */
    bool hurried;         /* by a second signal, not by the deadline */
    bool is_suspended;    /* by GROUP_SUSPEND */
    bool is_needed;       /* several nodes: without this node the job cannot go on */
    bool is_draining;     /* several nodes: workers that end with success now are done, others have failed */
    bool has_left;        /* several nodes: a signal has made this node leave, which is reported once */
    bool stops_job;       /* several nodes: a signal is to stop all nodes of the job */
    bool is_ending;       /* several nodes: the job has ended, with end_code */
    int end_code;
    int n_short; /* short generations in a row */
    uint32_t generation;
    int restarts; /* charged so far */
    int n_ended;
    uint64_t deadline_ns; /* armed deadline, or 0 */
    uint64_t started_ns;  /* start of this generation */
};

/* How an ended worker ended: its exit code, or the negative number of the signal. For one that could not be executed,
 * as a shell does: 127 when a file does not exist, else 126. */
int group_worker_code(const struct group_worker *worker);

/* Whether nothing is known of its end: it runs, or is ordered. The report that it has started may come behind what concerns it. */
bool group_worker_may_run(const struct group_worker *worker);

/* Whether a start that failed with this errno of execve() or its preparation will fail again: wrong file, permission
 * or arguments. A lack of processes, memory or descriptors, a busy file and an I/O error may pass. */
bool group_exec_is_final(int error);

/* The exit code of crun for GROUP_DO_FINISH with `code`. root_code: of the worker that failed first as
 * group_worker_code(), 0 when there is none. */
int group_exit_code(const struct worker_group *g, int code, int root_code);

/* Returns 0 or -ENOMEM. */
int group_init(struct worker_group *g, const struct group_config *config);
void group_finish(struct worker_group *g);

/* Takes one event and answers with what to do now, in that order. */
void group_step(struct worker_group *g, const struct group_event *event, struct group_actions *out);

/* For traces: "running", "exited", "arm" ...; NULL beyond the enumeration. */
const char *group_state_name(unsigned state);
const char *group_cause_name(unsigned cause);
const char *group_event_name(unsigned kind);
const char *group_action_name(unsigned kind);
