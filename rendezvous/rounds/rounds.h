#pragma once

/*
 * The rounds: which nodes are in which generation of which job. A pure state machine: it takes events with
 * their time and answers with actions; rounds_uv.c does the I/O.
 *
 *              enough nodes are ready                a member failed, was lost, left; a node joined
 *   GATHERING ------------------------> RUNNING ------------------------------------------+
 *       ^                                  |                                              v
 *       |                                  | all members are done                      ENDING
 *       |                                  v                                              |
 *       +--------------------+          CLOSED <------------------------------------------+
 *       |                    |             ^        the budget is used up, or no restart helps
 *       |                    +-------------|----------------------------------------------+
 *       |                                  |        every member has answered or is lost: charged
 *       +----------------------------------+  join timeout, drained
 *
 * A generation ends with the first event that breaks it, and its members are notified at once. The cause is
 * decided when each of them has answered or is known to be lost: each answer may carry a failure of that
 * node, and the earliest failure is the cause; the others followed from it. Only then is the budget
 * charged, and the next generation may form.
 *
 * The view of a node is a function of the job and of the node's last report (rounds_view()), so after a
 * lost connection the next hello is all that is needed. Reports about a generation that is not the present
 * one change nothing but that node's view.
 *
 * A cut between the hosts of two members is named, and one of them is left out where MIN allows (rounds_cut.c).
 *
 * A node whose health check fails stays in its job, unfit: no round waits for it, and none has it as a member. While fewer
 * than MIN other nodes are there, its views ask it to check again; else it is left alone, since its
 * return would restart the workers of all others.
 *
 * Lease (rounds_job.lease_ms): a node that is lost may still have workers. It ends the generation at once, and stays in the job as
 * LOST, without a connection: no generation forms before session_lease_wait_ns() after the last message of the node that was
 * answered as one that renews its lease. Its next hello ends that state, and then it is waited for like any node that
 * stops its workers; also beyond the join timeout, as other workers must not run beside them. A node that has left, and one
 * whose guardian has sent the death notice, has no process any more. A rendezvous that was restarted does not know what the one before
 * has answered: all nodes of its state count as answered at its start, and where a node knows a later generation than
 * that state does, any node may have been in that, so the job waits as long.
 *
 * Two jobs of one id: a job without nodes gives its id to the next agent that has no generation yet. If it is CLOSED and
 * some member may not have its result, it stays as a tombstone beside the new job until that member cannot be redialling any more,
 * and answers the hello that names its instance. There are at most max_jobs tombstones; the oldest are forgotten first.
 *
 * Failure: without memory for a new job or node that node is refused. Nothing else allocates.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "rendezvous/session/session_message.h"
#include "base/siphash.h"

struct rounds_node;

/* The core's part of a connection; lives in the shell's. Zeroed by rounds_conn_init(). */
struct rounds_conn {
    struct rounds_node
        *node;          /* its node; NULL before the hello, and after a newer connection has replaced it */
    struct list ending; /* in rounds.refused or rounds.closing */
};

enum rounds_job_state {
    ROUNDS_GATHERING,
    ROUNDS_RUNNING,
    ROUNDS_ENDING,
    ROUNDS_CLOSED,
    ROUNDS_JOB_STATE_COUNT
};

/* What a node is to its job now; rounds_job.n_nodes[] counts them. */
enum rounds_node_state {
    ROUNDS_NODE_RUNNING,  /* member of the present generation; ENDING: has not answered yet */
    ROUNDS_NODE_DONE,     /* member, and all of its workers ended well */
    ROUNDS_NODE_READY,    /* ready for the next generation */
    ROUNDS_NODE_STOPPING, /* was member of the last generation and is not ready yet: its place is kept */
    ROUNDS_NODE_JOINING,  /* not ready yet */
    ROUNDS_NODE_UNFIT, /* its health check failed, or it is cut off: not waited for, and asked again when it is needed */
    ROUNDS_NODE_LOST, /* it may have workers until its lease ends */
    ROUNDS_NODE_STATE_COUNT
};

struct rounds_node {
    struct rounds_job *job;
    struct list in_job;
    struct list in_silence; /* of job.silence, by deadline */
    struct list in_pending; /* of rounds.pending, while something is to be sent */
    struct rounds_node *next_in_bucket;
    struct rounds_conn *session; /* NULL: the connection is lost */
    struct session_nonce nonce;
    uint32_t attempt;
    uint64_t serial; /* by order of arrival */
    char host[SESSION_HOST_SIZE];
    char addr[SESSION_ADDR_SIZE];   /* what it wants to be called, or "" */
    char peer[SESSION_ADDR_SIZE];   /* where it comes from */
    char local[SESSION_ADDR_SIZE];  /* where it found us */
    char own[SESSION_NUMERIC_SIZE]; /* where it comes from as it sees that itself, or "" */
    char role[SESSION_ROLE_SIZE];
    uint32_t n_workers;
    int32_t node_rank;

    /* The last report. */
    enum session_phase phase;
    char unfit[SESSION_UNFIT_SIZE];
    bool foreign; /* the generation it names is of another instance of the job */
    int64_t generation;
    uint32_t known_restarts,
        known_changes; /* charges that a report named and that the daemon may have lost */
    uint16_t port;
    int64_t
        pending_start; /* START of this generation was sent over this connection, and no report about it has come yet; -1: none */

    enum rounds_node_state state;
    bool keeps_keys;      /* READY: workers of it remain, and use the keys of their generation on */
    bool quiet;           /* none of its workers makes progress, or all have ended */
    bool member;          /* of the present generation */
    bool answered;        /* member, and the generation is ENDING: it has reported its end */
    bool previous_member; /* was member of the last generation */
    int32_t
        group_rank; /* in the present or last generation; from its own report if the daemon did not know it; -1: none */
    uint32_t rank_base, role_rank_base, role_world_size;

    uint64_t heard_ns;
    uint64_t deadline_ns; /* dead if silent until then; lost: forgotten then */
    uint64_t leased_ns;   /* when the last message was received that renews its lease */
    uint32_t renewal;     /* its number */
    bool lost;
    bool wants_renewed;
    uint32_t cut_from;                /* as in session_report, of the present generation */
    unsigned n_cuts;                  /* while a generation is being settled: reports on it and by it */
    unsigned n_cuts_before;           /* the same of earlier generations together */
    bool is_cut_off;                  /* no member until the job's cut_until_ns */
    uint64_t cut_serial;              /* of the other side of the cut */
    char cut_host[SESSION_HOST_SIZE]; /* its name */
    unsigned n_excuses;               /* since it was heard: times that the daemon was late itself */
    bool wants_view, wants_alive;
    bool verdict_sent; /* that the job is over */
};

struct rounds_job {
    struct rounds *rounds;
    uint64_t owner; /* of the hello that began it; not saved: 0 after a restart of the daemon */
    struct list in_rounds;
    struct list in_pending; /* of rounds.pending_jobs, or of rounds.forgotten */
    char id[SESSION_JOB_SIZE];
    uint64_t instance;
    uint64_t sequence; /* of its last save; a later one of any job is larger */
    struct session_params params;
    uint32_t lease_ms; /* 0: none */
    enum rounds_job_state state;
    int64_t generation; /* the present or last one; -1 before the first */
    int64_t floor;      /* the next one is above this, too: agents know generations of a lost instance */
    uint32_t restarts, changes;
    bool drain;

    struct list nodes;   /* in order of arrival */
    struct list silence; /* the same, by deadline */
    uint32_t n_nodes[ROUNDS_NODE_STATE_COUNT];
    uint32_t n_disconnected;                 /* nodes without a connection */
    uint32_t n_busy;                         /* members that are not quiet */
    struct rounds_node **by_rank, **by_role; /* room for all nodes */
    size_t n_slots;

    /* For metrics; they begin anew with the daemon. */
    uint64_t formed_ns;                          /* the present or last generation; 0: before the daemon */
    uint32_t n_generations;                      /* that were formed */
    uint32_t n_restarts_by[SESSION_CAUSE_COUNT]; /* of these, by the cause that ended the one before */

    /* The present or last generation. */
    uint32_t n_members, n_done_left; /* members; those that went away after they were done */
    uint32_t world_size;
    char master_addr[SESSION_ADDR_SIZE];
    uint16_t master_port;
    uint32_t key_space; /* as in rank_assignment */
    bool keys_lost; /* this process does not have them: it was started, or became leader, after they began */
    /* Why the last generation is over or, CLOSED, the job. */
    struct session_cause cause;
    uint64_t cause_ns; /* when it happened, as far as is known */
    enum session_verdict verdict;
    uint32_t stop_signal; /* CLOSED: signal that has stopped the job on request of a node; 0: none */

    uint64_t gather_until_ns;    /* GATHERING: fails then */
    uint64_t admitted_ns;        /* when a newcomer ended a generation last */
    uint64_t admit_pause_ns;     /* RUNNING: the next one does not before that long after; 0: at once */
    uint64_t cut_until_ns;       /* nodes that are left out for a cut come back then; 0: there are none */
    uint64_t cut_pause_ns;       /* the last such pause */
    uint64_t last_call_until_ns; /* GATHERING with MIN nodes: forms then; 0: not set */
    unsigned n_ending_excuses;   /* as rounds_node.n_excuses */
    uint64_t ending_until_ns;    /* ENDING: decided then at the latest */
    uint64_t progress_ns;        /* GATHERING: the next progress view, once a second */
    uint32_t missing[SESSION_MISSING_MAX], n_missing; /* as of the last progress; see session_view */
    struct session_waiting waiting;                   /* the same */
    char unfit[SESSION_TEXT_SIZE];                    /* as in session_view */
    uint64_t begun_ns;                                /* when this daemon got to know the job */
    uint64_t
        fence_until_ns; /* GATHERING: no generation forms before, beside those of lost nodes; 0: not set */
    uint64_t grace_until_ns;     /* after a restart of the daemon: no node is declared lost before */
    uint64_t tick_ns;            /* until then: we look whether we were there to listen */
    uint64_t forget_ns;          /* CLOSED: forgotten then */
    uint64_t tombstone_until_ns; /* a node that was lost may still be alive and ask until then */
    bool empty;                  /* the last node has left: no agent will ask for the job again */
    bool replaced; /* CLOSED, and its id is another job's now: a tombstone for its late members */
    bool wants_save;
    unsigned log_kinds; /* enum rounds_log_kind */
};

#define job_each_node(n, job) list_for_each_entry(struct rounds_node, n, &(job)->nodes, in_job)

/* What happened to a job, for the log; bits, in the order in which these can happen within one step. */
enum rounds_log_kind {
    ROUNDS_LOG_UNFIT = 1, /* a node has become unfit */
    ROUNDS_LOG_DRAIN = 2,
    ROUNDS_LOG_OVER = 4,    /* a generation is over; its cause may still be replaced by an earlier one */
    ROUNDS_LOG_SETTLED = 8, /* its cause is decided */
    ROUNDS_LOG_CLOSED = 16,
    ROUNDS_LOG_PROGRESS = 32, /* GATHERING: a second has passed */
    ROUNDS_LOG_FORMED = 64,   /* a generation runs */
};

enum rounds_event_kind {
    ROUNDS_HELLO,  /* session, hello, peer, local */
    ROUNDS_REPORT, /* session, report */
    ROUNDS_ALIVE,  /* session: an empty frame */
    ROUNDS_RENEW,  /* session, number: of its lease; a sign of life, too */
    ROUNDS_SLOW,   /* session, slack_ns: its silence may be the network's, and is no death before that */
    ROUNDS_DISCONNECTED, /* session: the connection is closed; the session may be freed afterwards */
    ROUNDS_TIMER,        /* rounds_deadline() has passed */
    ROUNDS_CLOSE,        /* every job is to end, for `reason` */
    ROUNDS_EXPECT,       /* number: nodes of a job that can come at most; a first round waits for no more */
    ROUNDS_EVENT_COUNT
};

struct rounds_event {
    enum rounds_event_kind kind;
    uint64_t now_ns; /* monotonic */
    struct rounds_conn *session;
    const struct session_hello *hello; /* session_hello_fault() is asked here */
    const struct session_report *report;
    const char *peer, *local; /* numeric addresses of both ends of the connection */
    uint64_t
        owner; /* HELLO: of an agent that has proved nothing: what its quotas count for; 0: they do not apply */
    const char *reason;
    uint32_t number;
    bool orderly;      /* DISCONNECTED: by the end of the stream, not by an error */
    uint64_t slack_ns; /* beyond the node timeout; SESSION_SLACK_TIMEOUTS of these count at most */
};

enum rounds_action_kind {
    ROUNDS_DO_SAVE,    /* job: must be on disk before the next action is carried out */
    ROUNDS_DO_REPORT,  /* job, log_kinds: lines for the log */
    ROUNDS_DO_SEND,    /* session, view; job: the one that the view depends on, NULL: none */
    ROUNDS_DO_ALIVE,   /* session: send an empty frame */
    ROUNDS_DO_RENEWED, /* session: send number, ahead of views that are held */
    ROUNDS_DO_CLOSE,   /* session, after its output was sent; it belongs to no node any more */
    ROUNDS_DO_FORGET,  /* job: its saved state is to be removed; it is freed with the next call */
    ROUNDS_ACTION_COUNT
};

struct rounds_action {
    enum rounds_action_kind kind;
    unsigned log_kinds;
    const struct rounds_job *job; /* valid until the next call */
    struct rounds_conn *session;
    uint32_t number;
    struct session_view view;
};

struct rounds_config {
    /* Random, and independent of each other. */
    uint64_t seed;                           /* of the names of instances */
    uint8_t instance_key[SIPHASH_SEED_SIZE]; /* the same */
    uint8_t bucket_key[SIPHASH_SEED_SIZE];   /* of the hash table */
    uint32_t max_jobs;                       /* and as many tombstones */
    uint32_t max_nodes;                      /* of one job */
    uint32_t max_nodes_all;                  /* of all jobs together */
    /* For hellos with an owner; 0: not limited. */
    uint32_t max_jobs_each; /* of one owner */
    uint32_t max_node_timeout_ms, max_wait_ms;
    bool keeps_keys;    /* of the workers of jobs with params.local_store (job_stores_uv.h) */
    uint64_t grace_ns;  /* for agents to return after a restart of the daemon */
    uint64_t linger_ns; /* how long a closed job is remembered: longer than an agent redials */
    uint32_t lease_ms;  /* of jobs that leave it to the rendezvous; 0: none */
};

#define ROUNDS_CONFIG_DEFAULT                                                                                \
    {                                                                                                        \
        .max_jobs = 1024, .max_nodes = SESSION_NODES_MAX, .max_nodes_all = 4 * SESSION_NODES_MAX,            \
        .grace_ns = UINT64_C(5000000000), .linger_ns = UINT64_C(60000000000)                                 \
    }

struct rounds {
    struct rounds_config config;
    struct list jobs;
    size_t n_jobs, n_replaced;    /* of these, n_replaced are rounds_job.replaced and not in n_jobs */
    struct list pending;          /* nodes */
    struct list pending_jobs;     /* jobs with something for the shell */
    struct list refused, closing; /* sessions */
    struct list forgotten;        /* jobs without nodes */
    struct rounds_job *shown;     /* forgotten; freed with the next call */
    struct rounds_node **buckets;
    size_t n_buckets, n_nodes;
    uint32_t n_expected; /* number of the last ROUNDS_EXPECT; 0: none came */
    uint64_t n_serials, n_instances;
    uint64_t n_saves;                /* number of the last save, over restarts */
    uint64_t superseded;             /* after a load: instance whose saved state is out of date; 0: none */
    uint64_t n_steps;                /* counted in builds with assertions */
    uint64_t n_saved, n_saving;      /* n_saves of the last batch that is saved, and of the present one */
    uint64_t batch_ns;               /* beginning of the present batch */
    uint64_t postponed_ns;           /* up to when rounds_postpone() has counted */
    uint64_t deadline_ns;            /* not later than the earliest deadline of all jobs; UINT64_MAX: none */
    char refusal[SESSION_TEXT_SIZE]; /* of the last refused hello */
    const struct rounds_job *refusing; /* the job whose state it depends on; NULL: none */
};

#define rounds_each_job(job, r) list_for_each_entry(struct rounds_job, job, &(r)->jobs, in_rounds)

void rounds_conn_init(struct rounds_conn *s);

void rounds_init(struct rounds *r, const struct rounds_config *config);
void rounds_finish(struct rounds *r);

/* Drops all jobs, to read them again: they may be kept elsewhere. No instance is given twice: a new job with the instance of one that is
 * kept would be saved over it. */
void rounds_reset(struct rounds *r);

/* Takes one event. Then call rounds_next() until it returns false, before the next event. */
void rounds_step(struct rounds *r, const struct rounds_event *event);

/* A batch of saves is under way since unsaved_ns (0: none is). Agents learn of no decision about a job before that is saved, and a job cannot
 * expect them to do anything: after a second of that, the deadlines of the jobs with such decisions move by the time of the wait. To be
 * called ahead of each step, and when a batch ends. */
void rounds_postpone(struct rounds *r, uint64_t unsaved_ns, uint64_t now_ns);

/* The next thing to do, in that order; false: nothing. */
bool rounds_next(struct rounds *r, struct rounds_action *ret);

/* When ROUNDS_TIMER is wanted, at the latest; UINT64_MAX: not at all. Valid after rounds_next() has
 * returned false. */
static inline uint64_t rounds_deadline(const struct rounds *r)
{
    return r->deadline_ns;
}

/* Whether a job of that id has the node with this nonce, which is known to that node and the rendezvous alone. */
bool rounds_has_node(const struct rounds *r, const char *job_id, struct session_nonce nonce);

/* Connections whose nodes will be declared lost by a ROUNDS_TIMER at now_ns, so that the shell can ask the
 * kernel whether the network is the reason: up to max of them. Returns how many. */
size_t rounds_overdue(const struct rounds *r, uint64_t now_ns, struct rounds_conn **ret, size_t max);

/* Whether no member of a running generation makes progress, so that the job may hang. */
bool rounds_job_is_quiet(const struct rounds_job *job);

/* The view of this node. */
void rounds_view(const struct rounds_node *n, struct session_view *ret);

/* "gathering", "running", "hello", "save", ... */
extern const char *const rounds_job_state_names[ROUNDS_JOB_STATE_COUNT];
extern const char *const rounds_node_state_names[ROUNDS_NODE_STATE_COUNT];
extern const char *const rounds_event_names[ROUNDS_EVENT_COUNT];
extern const char *const rounds_action_names[ROUNDS_ACTION_COUNT];

static inline uint32_t rounds_job_n_nodes(const struct rounds_job *job)
{
    uint32_t n = 0;

    for (int i = 0; i < ROUNDS_NODE_STATE_COUNT; i++)
        n += job->n_nodes[i];
    return n;
}
