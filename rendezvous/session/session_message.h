#pragma once

/*
 * The messages between agents and the rendezvous, as structs; session_json.h has their bodies on the wire,
 * and PROTOCOL.md the conversation.
 *
 * Both sides state facts, not changes: a report is all that an agent knows about itself, and a view is all
 * that the rendezvous wants of it now. So a connection may break anywhere: the agent's first message on the
 * next one is a hello with its report in it, it is answered with the view, and both are where they would
 * have been. Nothing needs to be remembered as "sent", and a repeated message changes nothing.
 *
 *   agent -> rendezvous   hello {identity and job, report}, report, report, ...
 *   rendezvous -> agent   view, view, ...
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the bodies. A field that may be missing does not change it; see PROTOCOL.md. */
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
    SESSION_NODES_MAX = 16384,  /* of one job */
    SESSION_WORKERS_MAX = 4096, /* of one node */
    SESSION_MISSING_MAX = 8,
    /* Up to there the claim of any agent is believed. The numbers above are for generations that follow. */
    SESSION_GENERATION_MAX = 1 << 30,
};

/* Where a node timeout comes from. Nodes of one job whose default differs, as their releases do, take the larger one. */
enum session_timeout_origin {
    SESSION_TIMEOUT_UNKNOWN, /* releases that do not send this have a default of 1 s */
    SESSION_TIMEOUT_GIVEN,   /* by the user */
    SESSION_TIMEOUT_DEFAULT,
    SESSION_TIMEOUT_ORIGIN_COUNT
};

/* What all nodes of a job have to agree about. */
struct session_params {
    uint32_t min_nodes, max_nodes;
    uint32_t max_restarts;        /* after a worker's failure, for the whole job */
    uint32_t max_changes;         /* after a node joined, left or was lost; restarts are not charged for it */
    uint32_t join_timeout_ms;     /* a round that has not MIN nodes by then fails the job */
    uint32_t last_call_ms;        /* a round that has MIN nodes waits that long for more */
    uint32_t node_timeout_ms;     /* a node that is silent for so long is dead */
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
        30 * 24 * 3600 * 1000u / 2, /* fits the arithmetic, and is longer than any useful timeout */
    SESSION_NODE_TIMEOUT_MS_MIN = 100,
    SESSION_NODE_TIMEOUT_MS_DEFAULT = 3000, /* less is little for a machine that stands still for a moment */
    SESSION_NODE_TIMEOUT_MS_EARLIER = 1000, /* the default of releases that do not send its origin */
    SESSION_LEASE_MS_MIN = 1000,
    SESSION_LEASE_MS_DEFAULT = 15000,
    SESSION_COUNT_MAX = 1000000,
    /* For how many node timeouts more the network may be the reason of a silence. */
    SESSION_SLACK_TIMEOUTS = 2,
};

/* The node timeout where the user gives none: a shorter lease lowers it. lease_ms: 0: none, or the rendezvous chooses. */
static inline uint32_t session_default_node_timeout_ms(uint32_t lease_ms)
{
    return lease_ms > 0 && lease_ms < SESSION_NODE_TIMEOUT_MS_DEFAULT ? lease_ms
                                                                      : SESSION_NODE_TIMEOUT_MS_DEFAULT;
}

/* One life of one agent. A restarted agent is another. */
struct session_nonce {
    uint64_t high, low;
};

static inline bool session_nonce_equal(struct session_nonce a, struct session_nonce b)
{
    return a.high == b.high && a.low == b.low;
}

/*
 * Lease: an agent may have workers for lease_ms after it has sent the last message that was answered, by its own clock. The
 * rendezvous starts others in their place that long, and this margin, after it has received that message: the clocks of
 * two hosts differ by less than a fortieth, and processes that are killed end within a second.
 */
static inline uint64_t session_lease_wait_ns(uint32_t lease_ms)
{
    return (lease_ms + lease_ms / 20 + UINT64_C(1000)) * 1000000;
}

/* An agent stops its workers so long before the end of its lease, and kills at the end what is left of them. */
static inline uint64_t session_lease_stop_ns(uint32_t lease_ms)
{
    return lease_ms / 5 * UINT64_C(1000000);
}

/* Why a generation, or a job, is over. */
enum session_cause_kind {
    SESSION_CAUSE_NONE,
    SESSION_CAUSE_WORKER, /* a worker failed */
    SESSION_CAUSE_LOST,   /* a node was silent for node_timeout_ms */
    SESSION_CAUSE_LEFT,   /* an agent received a signal to stop, and reported it */
    SESSION_CAUSE_JOINED, /* there was room for a node that came later */
    SESSION_CAUSE_CLOSED, /* see text */
    SESSION_CAUSE_COUNT
};

struct session_cause {
    enum session_cause_kind kind;
    bool fatal;         /* WORKER: a restart cannot help */
    int32_t group_rank; /* of the node; -1: it has none */
    int32_t rank;       /* of the worker, global; -1: none */
    int32_t local_rank; /* -1: none */
    int32_t exit_code;  /* of the worker; negative: the signal that ended it */
    int64_t pid;
    char host[SESSION_HOST_SIZE]; /* of the node; "": none */
    char text[SESSION_TEXT_SIZE]; /* for people, may be "" */
};

/* A cause without node, worker, host and text. */
static inline struct session_cause session_cause_empty(enum session_cause_kind kind)
{
    return (struct session_cause){.kind = kind, .group_rank = -1, .rank = -1, .local_rank = -1};
}

/* Where an agent is. */
enum session_phase {
    SESSION_STOPPING, /* workers may still be there, but none are wanted: wait for READY */
    SESSION_READY,    /* no workers, and a place in a generation after `generation` is wanted */
    SESSION_RUNNING,  /* workers of `generation` are running */
    SESSION_FAILED,   /* some of them failed by themselves; the others are being stopped */
    SESSION_DONE,     /* all of them ended well; waiting for the other nodes */
    SESSION_LEFT,     /* goodbye */
    SESSION_PHASE_COUNT
};

struct session_report {
    enum session_phase phase;
    uint64_t instance;          /* of the job, as learned with the last generation; 0: none yet */
    int64_t generation;         /* the last one this agent had a place in; -1: none yet */
    int32_t group_rank;         /* its place there; -1: none yet */
    uint16_t port;              /* READY: where this node would serve the worker store */
    uint32_t restarts, changes; /* of the job, as learned with the last generation */
    bool drain;                 /* the node will go away: all workers of the job should snapshot and end */
    bool quiet;                 /* RUNNING: no worker of this node makes progress */
    bool keeps_keys;            /* READY: workers remain that use the keys of `generation` on */
    /* FAILED and later: 1 and the global rank, on another host, that does not answer a worker of this node in `generation`, or
     * has never done so, so that the network between the two may be cut; 0: none. */
    uint32_t cut_from;
    uint64_t age_ns; /* FAILED: how long ago the failure was */
    /* STOPPING: why this node takes part in no generation until its health check succeeds; "": it does. Rendezvous of
     * releases before this field wait for such a node until the join timeout. */
    char unfit[SESSION_UNFIT_SIZE];
    /* FAILED: the failure. STOPPING and READY: why `generation` ended, as far as this agent knows; a
     * rendezvous that was restarted in between may not know it. LEFT: the reason, in text. */
    struct session_cause cause;
};

struct session_hello {
    char job[SESSION_JOB_SIZE];
    struct session_params params;
    struct session_nonce nonce;
    uint32_t attempt; /* counts this agent's connections: an older one may arrive later */
    char host[SESSION_HOST_SIZE];
    char addr[SESSION_ADDR_SIZE]; /* where peers shall reach this node; "": where it comes from */
    char own
        [SESSION_NUMERIC_SIZE]; /* where it comes from, as it sees that itself: before any NAT; may be "" */
    char role[SESSION_ROLE_SIZE];
    uint32_t n_workers;
    int32_t node_rank;   /* the group rank it would like; -1: any */
    bool can_report;     /* it sends the status of its workers when it is asked for it (look_json.h) */
    bool takes_messages; /* it understands messages of other agents (agent_message_json.h) */
    struct session_report report;
};

/* What a node that waits is shown beside the numbers of nodes, as of the last second. Texts are lists for people, "" when
 * there is nothing to show, and cut with "..." where they are long. */
enum { SESSION_NAMES_SIZE = 256 };

struct session_waiting {
    uint32_t left_ms;                    /* until the job fails, or begins with the nodes that are there */
    char present[SESSION_NAMES_SIZE];    /* hosts of the nodes that are ready */
    char other_jobs[SESSION_NAMES_SIZE]; /* ids of other jobs at this rendezvous that wait for nodes */
    char refused[SESSION_TEXT_SIZE];     /* the last node that was refused, and why */
};

enum session_view_kind {
    SESSION_VIEW_WAIT,      /* a place is wanted, none is there yet */
    SESSION_VIEW_START,     /* this is your place */
    SESSION_VIEW_CONTINUE,  /* you are where you should be */
    SESSION_VIEW_STOP,      /* that generation is over: stop its workers, then report READY */
    SESSION_VIEW_END,       /* the job is over: stop, and exit with this verdict */
    SESSION_VIEW_REFUSED,   /* cause.text: why this node cannot take part */
    SESSION_VIEW_ELSEWHERE, /* this crund does not lead: dial the one that does, at `leader`, or try others */
    SESSION_VIEW_COUNT
};

enum session_verdict {
    SESSION_VERDICT_NONE,
    SESSION_VERDICT_SUCCESS,
    SESSION_VERDICT_DRAINED, /* all workers ended well because a node asked for it; there is more to do */
    SESSION_VERDICT_FAILURE,
    SESSION_VERDICT_COUNT
};

/* One node's part of a generation. */
struct rank_assignment {
    uint32_t group_rank, group_world_size;
    uint32_t rank_base, world_size; /* global ranks of this node begin at rank_base */
    uint32_t role_rank_base, role_world_size;
    char master_addr[SESSION_ADDR_SIZE];
    uint16_t master_port;
    /* The workers' keys that the rendezvous keeps: 1 and the generation that they began with; 0: it keeps none, node 0 serves the
     * worker store. */
    uint32_t key_space;
    uint64_t instance; /* not on the wire: that of the view */
    /* Not on the wire: where node 0 is, when master_addr is this node's loopback; "": it is master_addr. */
    char master_host[SESSION_ADDR_SIZE];
    /* Not on the wire: with master_host, the address of this node towards it, at which ranks of other nodes reach this one. */
    char own_host[SESSION_ADDR_SIZE];
};

struct session_view {
    enum session_view_kind kind;
    /* Of several crunds with one state: grows with each that leads, and what an older one sends is out of date; 0: there is
     * one crund. */
    uint64_t term;
    uint32_t lease_ms; /* of the job; 0: none */
    uint64_t instance;
    int64_t generation; /* START, CONTINUE, STOP: which */
    bool drain;         /* CONTINUE: have the workers snapshot and end */
    bool quiet;         /* CONTINUE: no worker of any node makes progress */
    /* START; CONTINUE with quiet: the rendezvous and all nodes of the generation know messages between agents */
    bool takes_messages;
    /* WAIT */
    bool standby; /* the job runs without this node, which is a spare */
    uint32_t n_ready, min_nodes, max_nodes;
    uint32_t
        missing[SESSION_MISSING_MAX]; /* node ranks that no agent asked for, when all others asked for one */
    uint32_t n_missing;
    struct session_waiting waiting;
    bool check; /* this node is unfit, and the job needs it: run the health check again */
    /* WAIT, START: the nodes that are left out as they are unfit, and why; "": none */
    char unfit[SESSION_TEXT_SIZE];
    /* START */
    struct rank_assignment place;
    uint32_t restarts, changes; /* charged so far */
    /* END */
    enum session_verdict verdict;
    /* ELSEWHERE: HOST:PORT, numeric; "": no crund leads now, or it is not known which */
    char leader[SESSION_ADDR_SIZE];
    /* START: why the generation before is over. STOP, END (kind NONE: success), REFUSED. */
    struct session_cause cause;
};

/* "worker", "lost", ...: the words of the JSON bodies. NULL beyond the table. */
const char *session_cause_name(unsigned kind);
const char *session_phase_name(unsigned phase);
const char *session_view_name(unsigned kind);
const char *session_verdict_name(unsigned verdict);

/* What is wrong with parameters or a hello by itself, as a sentence; NULL: nothing. */
const char *session_params_fault(const struct session_params *p);

/* Whether nodes with these parameters may be in one job: the node timeouts are equal, or defaults of their releases. */
bool session_node_timeouts_agree(const struct session_params *a, const struct session_params *b);
const char *session_hello_fault(const struct session_hello *h);

/* A sentence about a cause, without a final newline. */
void session_cause_describe(const struct session_cause *c, char *ret, size_t size);

/* What each node of crun has in common in its hello; the load generator and the simulator begin with it as well. The caller
 * adds the names, the nonce and a wish for a rank. */
struct session_hello session_hello_of_node(const struct session_params *params, uint32_t n_workers);

/* The view REFUSED with this reason, cut to what fits. The agent ends with it. */
struct session_view session_view_refused(const char *reason);
