#pragma once

/*
 * The messages between agents and the rendezvous, as structs; session_json.h has their bodies on the wire,
 * and PROTOCOL.md the conversation.
 *
 * Both sides state facts, not changes: a report has the whole state of an agent, and a view has everything that the
 * rendezvous wants from the agent now. So a connection may break anywhere: the agent's first message on the next
 * connection is a hello with a report, the answer is the view, and both sides are as if nothing had happened. No side
 * needs to remember a message as "sent", and a repeated message changes nothing.
 *
 *   agent -> rendezvous   hello {identity and job, report}, report, report, ...
 *   rendezvous -> agent   view, view, ...
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the bodies. A new optional field does not change the version; see PROTOCOL.md. */
enum { SESSION_VERSION = 1 };

/* With the NUL. */
enum {
    SESSION_JOB_SIZE = 256,
    SESSION_HOST_SIZE = 256,
    SESSION_ADDR_SIZE = 256,
    SESSION_NUMERIC_SIZE = 64, /* of a numeric address */
    SESSION_ROLE_SIZE = 128,
    SESSION_TEXT_SIZE = 512,
    SESSION_UNFIT_SIZE = 200,
};

enum {
    SESSION_NODES_MAX = 16384,  /* of a job */
    SESSION_WORKERS_MAX = 4096, /* of a node */
    SESSION_MISSING_MAX = 8,
    SESSION_SIGNAL_MAX = 64, /* greatest number of a signal */
    /* Greatest generation believed from any agent. Greater numbers are for the generations that follow. */
    SESSION_GENERATION_MAX = 1 << 30,
};

/* Origin of a node timeout. Nodes of a job with different defaults (of different releases) take the larger default. */
enum session_timeout_origin {
    SESSION_TIMEOUT_UNKNOWN, /* not sent by earlier builds, with a default of 1 s */
    SESSION_TIMEOUT_GIVEN,   /* by the user */
    SESSION_TIMEOUT_DEFAULT,
    SESSION_TIMEOUT_ORIGIN_COUNT
};

/* Parameters that all nodes of a job have to share. */
struct session_params {
    uint32_t min_nodes, max_nodes;
    uint32_t max_restarts;        /* after a worker's failure, for the whole job */
    uint32_t max_changes;         /* after a node joined, left or was lost; not charged as restarts */
    uint32_t join_timeout_ms;     /* a round without MIN nodes at the end fails the job */
    uint32_t last_call_ms;        /* wait of a round with MIN nodes for more nodes */
    uint32_t node_timeout_ms;     /* a silence as long means that the node is dead */
    uint32_t node_timeout_origin; /* enum session_timeout_origin */
    uint32_t local_store; /* 1: workers use a store on their own node (crun --worker-store=local, --seal) */
    uint32_t foreign;     /* 1: agents of another launcher decide about the workers (crun --agent-fd) */
    uint32_t lease_ms;    /* see session.h, "Lease"; 0: none, or the rendezvous' own with lease_auto */
    uint32_t lease_auto;  /* 1: the rendezvous chooses */
};

#define SESSION_PARAMS_DEFAULT                                                                               \
    {                                                                                                        \
        .min_nodes = 1, .max_nodes = 1, .max_restarts = 0, .max_changes = 1000, .join_timeout_ms = 600000,   \
        .last_call_ms = 30000, .node_timeout_ms = SESSION_NODE_TIMEOUT_MS_DEFAULT,                           \
        .node_timeout_origin = SESSION_TIMEOUT_DEFAULT                                                       \
    }

/* Bounds that session_params_fault() checks. */
enum {
    SESSION_TIMEOUT_MS_MAX =
        30 * 24 * 3600 * 1000u / 2, /* fits the arithmetic, longer than any useful timeout */
    SESSION_NODE_TIMEOUT_MS_MIN = 100,
    SESSION_NODE_TIMEOUT_MS_DEFAULT = 3000, /* less loses machines that stall for a moment */
    SESSION_NODE_TIMEOUT_MS_EARLIER = 1000, /* the default of builds without origin */
    SESSION_LEASE_MS_MIN = 1000,
    SESSION_LEASE_MS_DEFAULT = 15000,
    SESSION_COUNT_MAX = 1000000,
    /* Bound, in node timeouts, of the part of a silence that the network may cause. */
    SESSION_SLACK_TIMEOUTS = 2,
};

/* The node timeout where the user gives none: a shorter lease lowers it. lease_ms: 0: none, or the rendezvous chooses. */
static inline uint32_t session_default_node_timeout_ms(uint32_t lease_ms)
{
    return lease_ms > 0 && lease_ms < SESSION_NODE_TIMEOUT_MS_DEFAULT ? lease_ms
                                                                      : SESSION_NODE_TIMEOUT_MS_DEFAULT;
}

/* Identity of a run of an agent. A restarted agent has another nonce. */
struct session_nonce {
    uint64_t high, low;
};

static inline bool session_nonce_equal(struct session_nonce a, struct session_nonce b)
{
    return a.high == b.high && a.low == b.low;
}

/*
 * Lease: an agent may have workers for lease_ms after sending the last answered message, by the agent's clock. The
 * rendezvous starts other workers in their place lease_ms and a margin after receiving the message: the clocks of two
 * hosts differ by less than a fortieth, and killed processes end within a second.
 */
static inline uint64_t session_lease_wait_ns(uint32_t lease_ms)
{
    return (lease_ms + lease_ms / 20 + UINT64_C(1000)) * 1000000;
}

/* Time between an agent's request to stop its workers and the end of the lease. At the end the agent kills the rest. */
static inline uint64_t session_lease_stop_ns(uint32_t lease_ms)
{
    return lease_ms / 5 * UINT64_C(1000000);
}

/* Cause of the end of a generation or job. */
enum session_cause_kind {
    SESSION_CAUSE_NONE,
    SESSION_CAUSE_WORKER, /* a worker failed */
    SESSION_CAUSE_LOST,   /* a node was silent for node_timeout_ms */
    SESSION_CAUSE_LEFT,   /* an agent reported a signal to stop */
    SESSION_CAUSE_JOINED, /* there was room for a late node */
    SESSION_CAUSE_CLOSED, /* see text */
    SESSION_CAUSE_COUNT
};

struct session_cause {
    enum session_cause_kind kind;
    bool fatal;         /* WORKER: a restart cannot help */
    int32_t group_rank; /* of the node; -1: none */
    int32_t rank;       /* of the worker, global; -1: none */
    int32_t local_rank; /* -1: none */
    int32_t exit_code;  /* of the worker; negative: number of the signal that ended the worker */
    int64_t pid;
    char host[SESSION_HOST_SIZE]; /* of the node; "": none */
    char text[SESSION_TEXT_SIZE]; /* for people, may be "" */
};

/* A cause without node, worker, host and text. */
static inline struct session_cause session_cause_empty(enum session_cause_kind kind)
{
    return (struct session_cause){.kind = kind, .group_rank = -1, .rank = -1, .local_rank = -1};
}

/* State of an agent. */
enum session_phase {
    SESSION_STOPPING, /* workers may be left, but none is wanted: wait for READY */
    SESSION_READY,    /* no workers, and a place in a generation after `generation` is wanted */
    SESSION_RUNNING,  /* workers of `generation` are running */
    SESSION_FAILED,   /* some workers failed by themselves; the others are being stopped */
    SESSION_DONE,     /* all workers ended well; waiting for the other nodes */
    SESSION_LEFT,     /* goodbye */
    SESSION_PHASE_COUNT
};

struct session_report {
    enum session_phase phase;
    uint64_t instance;          /* of the job, as learned with the last generation; 0: none yet */
    int64_t generation;         /* the last generation with a place for the agent; -1: none yet */
    int32_t group_rank;         /* the agent's place in `generation`; -1: none yet */
    uint16_t port;              /* READY: port of the node for the worker store */
    uint32_t restarts, changes; /* of the job, as learned with the last generation */
    bool drain;                 /* the node will leave: all workers of the job should snapshot and end */
    uint32_t stop_signal; /* LEFT, and STOPPING before LEFT: signal that is to stop the whole job; 0: none */
    bool quiet;           /* RUNNING: no worker of the node makes progress */
    bool keeps_keys;      /* READY: workers remain and go on with the keys of `generation` */
    /* FAILED and later: 1 + global rank of a worker on another host that does not answer a worker of the node in
     * `generation`, or never did: the network between the two may be cut; 0: none. */
    uint32_t cut_from;
    uint64_t age_ns; /* FAILED: age of the failure */
    /* STOPPING: reason why the node takes part in no generation until its health check succeeds; "": fit. A rendezvous of
     * an older release, without the field, waits for the node until the join timeout. */
    char unfit[SESSION_UNFIT_SIZE];
    /* FAILED: the failure. STOPPING and READY: the cause of the end of `generation`, as known to the agent; a rendezvous
     * restarted in between may not know the cause. LEFT: the reason, in text. */
    struct session_cause cause;
};

struct session_hello {
    char job[SESSION_JOB_SIZE];
    struct session_params params;
    struct session_nonce nonce;
    uint32_t attempt; /* number of the agent's connection: an older connection may arrive later */
    char host[SESSION_HOST_SIZE];
    char addr[SESSION_ADDR_SIZE];   /* address of the node for peers; "": as the rendezvous sees the node */
    char own[SESSION_NUMERIC_SIZE]; /* local address of the connection, before any NAT; may be "" */
    char role[SESSION_ROLE_SIZE];
    uint32_t n_workers;
    int32_t node_rank; /* the wanted group rank; -1: any */
    bool can_report;   /* sends the status of its workers on request (look_json.h) */
    struct session_report report;
};

/* Facts for a waiting node beside the numbers of nodes, as of the last second. Texts are lists for people, "" without
 * content, and cut with "..." when long. */
enum { SESSION_NAMES_SIZE = 256 };

struct session_waiting {
    uint32_t left_ms;                    /* until the job fails, or begins with the present nodes */
    char present[SESSION_NAMES_SIZE];    /* hosts of the ready nodes */
    char other_jobs[SESSION_NAMES_SIZE]; /* ids of other waiting jobs of the rendezvous */
    char refused[SESSION_TEXT_SIZE];     /* the last refused node, and the reason */
};

enum session_view_kind {
    SESSION_VIEW_WAIT,      /* a place is wanted, but none is free yet */
    SESSION_VIEW_START,     /* start the workers of `place` */
    SESSION_VIEW_CONTINUE,  /* the agent's state is right: go on */
    SESSION_VIEW_STOP,      /* `generation` is over: stop the workers, then report READY */
    SESSION_VIEW_END,       /* the job is over: stop, and exit with `verdict` */
    SESSION_VIEW_REFUSED,   /* cause.text: reason why the node cannot take part */
    SESSION_VIEW_ELSEWHERE, /* the crund does not lead: dial the leader at `leader`, or try others */
    SESSION_VIEW_COUNT
};

enum session_verdict {
    SESSION_VERDICT_NONE,
    SESSION_VERDICT_SUCCESS,
    SESSION_VERDICT_DRAINED, /* all workers ended well on request of a node; there is more to do */
    SESSION_VERDICT_FAILURE,
    SESSION_VERDICT_COUNT
};

/* Part of a node in a generation. */
struct rank_assignment {
    uint32_t group_rank, group_world_size;
    uint32_t rank_base, world_size; /* global ranks of the node begin at rank_base */
    uint32_t role_rank_base, role_world_size;
    char master_addr[SESSION_ADDR_SIZE];
    uint16_t master_port;
    /* Space of the workers' keys in the rendezvous: 1 + first generation with the keys; 0: node 0 serves the worker store
     * instead. */
    uint32_t key_space;
    uint64_t instance; /* not on the wire: instance of the view */
    /* Not on the wire: address of node 0, when master_addr is the node's loopback; "": master_addr. */
    char master_host[SESSION_ADDR_SIZE];
    /* Not on the wire: with master_host, the node's own address towards node 0, for ranks of other nodes. */
    char own_host[SESSION_ADDR_SIZE];
};

struct session_view {
    enum session_view_kind kind;
    /* Of several crunds with a common state: grows with each leader, and messages of an older leader are out of date; 0: there
     * is a single crund. */
    uint64_t term;
    uint32_t lease_ms; /* of the job; 0: none */
    uint64_t instance;
    int64_t generation; /* of START, CONTINUE, STOP */
    bool drain;         /* CONTINUE: have the workers snapshot and end */
    bool quiet;         /* CONTINUE: no worker of any node makes progress */
    /* WAIT */
    bool standby; /* the job runs without the node, a spare */
    uint32_t n_ready, min_nodes, max_nodes;
    uint32_t missing[SESSION_MISSING_MAX]; /* node ranks wanted by no agent, when all agents want a rank */
    uint32_t n_missing;
    struct session_waiting waiting;
    bool check; /* the job needs the node, which is unfit: run the health check again */
    /* WAIT, START: the unfit nodes left out, and the reasons; "": none */
    char unfit[SESSION_TEXT_SIZE];
    /* START */
    struct rank_assignment place;
    uint32_t restarts, changes; /* charged so far */
    /* END */
    enum session_verdict verdict;
    uint32_t stop_signal; /* failure: signal that has stopped the job on request of a node; 0: none */
    /* ELSEWHERE: HOST:PORT, numeric; "": no crund leads now, or the leader is unknown */
    char leader[SESSION_ADDR_SIZE];
    /* START: cause of the end of the generation before. STOP, END (kind NONE: success), REFUSED. */
    struct session_cause cause;
};

/* "worker", "lost", ...: the words of the JSON bodies. */
extern const char *const session_cause_names[SESSION_CAUSE_COUNT];
extern const char *const session_phase_names[SESSION_PHASE_COUNT];
extern const char *const session_view_names[SESSION_VIEW_COUNT];
extern const char *const session_verdict_names[SESSION_VERDICT_COUNT];

/* The fault of parameters or of a hello, as a sentence; NULL: no fault. */
const char *session_params_fault(const struct session_params *p);

/* Whether nodes with parameters a and b may be in a job: the node timeouts are equal, or defaults of their releases. */
bool session_node_timeouts_agree(const struct session_params *a, const struct session_params *b);
const char *session_hello_fault(const struct session_hello *h);

/* A sentence about a cause, without a final newline. */
void session_cause_describe(const struct session_cause *c, char *ret, size_t size);

/* The common part of the hellos of all nodes of crun, also for the load generator and the simulator. The caller adds the
 * names, the nonce and a wish for a rank. */
struct session_hello session_hello_of_node(const struct session_params *params, uint32_t n_workers);

/* The view REFUSED with a reason, cut to fit. The agent ends with the reason. */
struct session_view session_view_refused(const char *reason);
