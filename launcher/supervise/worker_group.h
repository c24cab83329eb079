#pragma once

/*
 * The worker group of one node: a state machine that decides what happens when workers start, end and fail,
 * when signals arrive and when time runs out. Pure: it is told events with their time and answers with
 * actions; agent_uv.c carries them out.
 *
 *   idle -> running -> sweeping -> done, or idle again before the next generation
 *             |  \-> stopping -/\-> killing -/
 *         replacing
 *
 * running:   nothing is wrong. Workers may have ended well already.
 * replacing: a worker failed and the others stay: first it is waited for whether more fail at the same time, then
 *            those that did are started again in the next generation, until all workers are ready in it.
 * stopping:  a worker failed or crun was told to stop; the workers have a signal and a deadline.
 * sweeping:  all workers have ended, something they started has not; it has a signal and a deadline.
 * killing:   SIGKILL has been ordered for everything; waiting until it is gone.
 * done:      over, with an exit code.
 *
 * A generation ends with GROUP_EMPTY, never earlier: the next one starts on an empty floor. Only replacing takes
 * workers from one generation to the next: those that have said that they can.
 *
 * With config.placed this node is one of several: whether there is another generation, and which, is decided
 * elsewhere. The group tells what became of its part of a generation (FAILED, DONE, READY, LEAVE), waits in
 * idle, and is told: START with the next one, STOP, END.
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
    GROUP_DONE,
    GROUP_STATE_COUNT
};

enum group_event_kind {
    GROUP_START,         /* begin with generation 0, or the next one; placed: generation, restarts */
    GROUP_START_FAILED,  /* a generation could not be started at all */
    GROUP_STARTED,       /* worker, pid */
    GROUP_EXEC_FAILED,   /* worker; value: errno */
    GROUP_EXITED,        /* worker, pid; value: wait status */
    GROUP_LEFT,          /* all workers have ended; value: processes they left */
    GROUP_EMPTY,         /* nothing of the generation is left */
    GROUP_GUARDIAN_LOST, /* the guardian is gone before its time; what is left is being killed */
    GROUP_SIGNAL,        /* value: signal number; pid: of the sender, 0 when unknown */
    GROUP_TIMER,         /* the armed deadline may have passed */
    GROUP_STOP,          /* placed: this generation is over, because of another node */
    GROUP_END,           /* placed: the job is over; value: exit code */
    GROUP_DRAIN, /* placed: all nodes are to stop at a common point, for good; value, pid: as GROUP_SIGNAL if
                            it is for the sake of this node, else 0 */
    GROUP_READY, /* worker is in its place and can go on when another is replaced; value: its generation */
    GROUP_REPLACE_FAILED, /* what GROUP_DO_REPLACE asks for cannot be done */
    GROUP_EVENT_COUNT
};

struct group_event {
    enum group_event_kind kind;
    uint64_t now_ns;
    int worker;
    pid_t pid;
    int value;
    bool unasked; /* GROUP_EXITED: before any signal had been sent to it */
    uint32_t generation;
    int restarts;
};

enum group_action_kind {
    GROUP_DO_SPAWN,         /* start a generation: group->generation, group->restarts */
    GROUP_DO_NOTIFY_FAILED, /* tell workers over their notice sockets: worker failed */
    GROUP_DO_NOTIFY_STOP,   /* tell workers over their notice sockets: signal is coming */
    GROUP_DO_SIGNAL,        /* signal the workers, and what was left behind */
    GROUP_DO_KILL,          /* SIGKILL to everything of the generation until nothing is left */
    GROUP_DO_ARM,           /* wake me (GROUP_TIMER) at deadline_ns; replaces an earlier deadline */
    GROUP_DO_DISARM,
    GROUP_DO_REPORT,        /* the generation failed: say why, and what happens next */
    GROUP_DO_START_AGAIN,   /* answer with GROUP_START */
    GROUP_DO_KILL_GUARDIAN, /* it does not do what it is told to: SIGKILL, what it had falls to crun */
    GROUP_DO_GIVE_UP,       /* some process cannot be killed: name it */
    GROUP_DO_FINISH,        /* end with exit code value */
    GROUP_DO_REPLACE, /* open the next generation for the workers that run; start those that do not in it */
    GROUP_DO_KILL_CONDEMNED, /* SIGKILL to these workers, and to nobody else */
    /* Placed: tell the other nodes */
    GROUP_DO_FAILED, /* that worker failed (-1: all are gone, the guardian was killed); the rest is being stopped */
    GROUP_DO_DONE,        /* that all workers here ended well */
    GROUP_DO_READY,       /* that nothing is left here and a place in the next generation is wanted */
    GROUP_DO_LEAVE,       /* that this node goes away: signal value, or 0 if it cannot go on */
    GROUP_DO_NOTIFY_PEER, /* tell workers over their notice sockets: another node's part has failed */
};

struct group_action {
    enum group_action_kind kind;
    int value; /* signal, worker or exit code */
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
    int status; /* wait status, or errno when exec failed */
    uint64_t started_ns, ended_ns;
    int order;      /* it was the order-th of its generation to end, from 0 */
    bool stopped;   /* it has been told to end; of one that has ended: before it did */
    bool ready;     /* in this generation */
    bool capable;   /* it has been ready in one */
    bool lost;      /* it failed, and a new process takes its place */
    bool condemned; /* it is killed to be lost: it was started for a generation that has failed already */
    uint32_t generation; /* it was started in */
    int64_t max_rss_kib;
};

/* Why a generation is over before its time. The first cause stays. */
enum group_cause {
    GROUP_CAUSE_NONE,
    GROUP_CAUSE_WORKER,   /* cause_worker failed */
    GROUP_CAUSE_EXEC,     /* cause_worker could not be executed: no restart can help */
    GROUP_CAUSE_GUARDIAN, /* somebody killed the guardian */
    GROUP_CAUSE_SIGNAL,   /* crun was told to stop */
    GROUP_CAUSE_START,    /* the generation could not be started */
    GROUP_CAUSE_PEER,     /* placed: another node */
    GROUP_CAUSE_REFORM,   /* cause_worker, and perhaps others, were not ready in time after a replacement */
};

struct group_config {
    int n_workers;
    int max_restarts;
    uint64_t grace_ns;  /* between a stop signal and SIGKILL */
    bool placed;        /* one node of several: max_restarts is for the job, and not watched here */
    bool replace;       /* keep the workers that can stay when one fails */
    uint64_t reform_ns; /* for all to be ready after a replacement */
};

struct worker_group {
    struct group_config config;
    struct group_worker *workers; /* of the current or last generation */
    enum group_state state;
    enum group_cause cause;
    int cause_worker;
    int interrupt;        /* first signal crun was told to stop by, or 0 */
    pid_t interrupt_pid;  /* who sent it */
    bool will_restart;    /* the next GROUP_START begins another generation, charged to the budget; placed: it
                            may, and the budget is kept elsewhere */
    bool will_replace;    /* the same, with the workers that are there */
    bool forming;         /* replacing: the new ones are ordered, all have to get ready */
    uint64_t lost_ns;     /* replacing: when the last one failed */
    bool guardian_killed; /* by us, as it had not killed everything in time, or it is lost anyway */
    bool escalated;       /* this generation had to be killed */
    bool is_draining;     /* placed: workers that end well now are done, others have failed */
    bool is_ending;       /* placed: the job is over, with end_code */
    int end_code;
    uint32_t generation;
    int restarts; /* charged so far */
    int n_ended;
    uint64_t deadline_ns; /* armed deadline, or 0 */
    uint64_t started_ns;  /* start of this generation */
};

/* How an ended worker ended: its exit code, or the negative number of the signal; 127 when it could not be
 * executed. */
int group_worker_code(const struct group_worker *worker);

/* Returns 0 or -ENOMEM. */
int group_init(struct worker_group *g, const struct group_config *config);
void group_finish(struct worker_group *g);

/* Takes one event and answers with what to do now, in that order. */
void group_step(struct worker_group *g, const struct group_event *event, struct group_actions *out);
