#pragma once

/*
 * The front of a job (crun --hosts): which hosts are started, lost or done, and when the job ends. A pure state machine: an event
 * with its time comes in, actions for the hosts come out; front_uv.c carries them out.
 *
 *   WAITING ----> STARTING ----> COPYING ----> RUNNING ----> ENDED
 *      |              |    \______________________^  |
 *      |              |              |               |
 *      +--------------+--------------+---------------+-----> LOST
 *
 * A host is usable until it is LOST or its agent ends with another code than 0. The job needs min_nodes usable hosts. Without
 * them the first cause is reported and the rendezvous ends the job. Hosts that still start are given up after FRONT_GATHER_MS:
 * several wrong hosts are named in one run. Agents that stay for grace_ms get SIGTERM, then their channel is closed.
 *
 * At most FRONT_STARTING_MAX hosts start at a time: from the launch command until the agent has joined the rendezvous of the front, so
 * that the front does not launch faster than it answers agents. An agent counts for FRONT_JOIN_MS at most. Where agents use another
 * rendezvous, a host starts until its greeting.
 *
 * Spares are launched FRONT_SPARES_MS after the others, or when a host is lost. With the first agent that succeeds the job is over.
 *
 * The exit code is 0 if agents of min_nodes hosts have succeeded; else the code of the first agent that failed. After a signal
 * a single failure counts.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FRONT_STARTING_MAX = 128,
    FRONT_JOIN_MS = 30 * 1000,
    FRONT_START_LIMIT_MS =
        120 * 1000, /* from the start of a launch command to its greeting or wish for a copy */
    FRONT_COPY_LIMIT_MS = 600 * 1000,
    FRONT_GATHER_MS = 1000, /* after the first failed host, for other failures to be named */
    FRONT_SPARES_MS = 5000, /* for the first max_nodes hosts to be first in the rendezvous */
    FRONT_SAME_REQUEST_MS =
        1050, /* a signal so soon after another one is the same request; a bit longer than in agents */
    FRONT_SILENCE_S = 2, /* of a host that holds up the end of the job, for the host to be named */
    FRONT_SHOW_MS =
        10 * 1000, /* from the begin, for hosts that still start to be named; then twice as long each time */
    FRONT_WHY_SIZE = 512,
    FRONT_REASON_SIZE = 320, /* of that, for the reason of a loss */
};

enum front_host_state {
    FRONT_WAITING,  /* has no launch command yet */
    FRONT_STARTING, /* the launch command runs */
    FRONT_COPYING,  /* the host gets the portable build */
    FRONT_RUNNING,  /* the channel is open */
    FRONT_ENDED,    /* the agent has ended, with a code */
    FRONT_LOST,     /* never reached, or its channel broke, or given up */
};

struct host_status {
    enum front_host_state state;
    uint64_t since_ms;  /* start of the state */
    bool is_named;      /* as silent */
    unsigned silence_s; /* as of the last FRONT_EVENT_SILENT */
};

struct front_config {
    unsigned n_hosts;
    unsigned min_nodes, max_nodes; /* hosts from max_nodes on are spares */
    unsigned grace_ms;             /* for agents to end by themselves after the end of the job */
    bool hosts_rendezvous;         /* FRONT_EVENT_JOINED comes */
    bool exit_code_of_worker; /* an interrupted front without an agent ends with 128 + signal, else with 1 */
};

enum front_event_kind {
    FRONT_EVENT_BEGIN,
    FRONT_EVENT_COPY,    /* the host asks for the portable build */
    FRONT_EVENT_GREETED, /* the channel is open */
    FRONT_EVENT_SILENT,  /* value: for how many seconds the running host has answered nothing */
    FRONT_EVENT_RESULT,  /* value: the agent's exit code */
    FRONT_EVENT_LOST,    /* text: why */
    FRONT_EVENT_REFUSED, /* text: why the far end could start no agent */
    FRONT_EVENT_JOINED,  /* value: number of agents at the rendezvous */
    FRONT_EVENT_SIGNAL,  /* value: a signal that ends the job */
    FRONT_EVENT_PASS,    /* value: a signal for the workers */
    FRONT_EVENT_TICK,    /* at least every few seconds */
};

struct front_event {
    enum front_event_kind kind;
    unsigned host;
    int value;
    const char *text;
    uint64_t now_ms;
};

enum front_action_kind {
    FRONT_DO_LAUNCH,
    FRONT_DO_SIGNAL,  /* value: signal for the host's agent */
    FRONT_DO_CLOSE,   /* give the host up: no further event of the host is of interest */
    FRONT_DO_SAY,     /* the sentence front_why() */
    FRONT_DO_END_JOB, /* the rendezvous ends the job, for f->cause */
    FRONT_DO_FINISH,  /* value: exit code; the last action */
};

struct front_action {
    enum front_action_kind kind;
    unsigned host;
    int value;
};

struct front {
    struct front_config config;
    struct host_status *hosts;
    const char *const *names; /* of the hosts; the caller's */
    unsigned n_starting;      /* from the launch to the greeting */
    unsigned n_joined, n_usable, n_succeeded;
    int first_code; /* of the first agent that failed; 0: none has */
    int interrupt;  /* first signal; 0: none */
    unsigned n_signals;
    uint64_t signal_ms; /* time of the last of them */
    uint64_t begin_ms, show_after_ms;
    uint64_t spares_ms; /* spares are launched then */
    bool is_ending;     /* too few hosts are usable */
    bool is_finished;
    unsigned n_pushes;            /* steps taken after the grace period: SIGTERM, close */
    uint64_t push_ms;             /* time of the next one */
    uint64_t give_up_ms;          /* is_ending: hosts that still start then are given up */
    char why[FRONT_WHY_SIZE];     /* sentence of the last FRONT_DO_SAY */
    char cause[FRONT_WHY_SIZE];   /* is_ending: reason for the agents */
    struct front_action *actions; /* of the present step */
    size_t n_actions;
};

/* 0 or -ENOMEM. names[n_hosts] stays the caller's, and outlives the front. */
int front_init(struct front *f, const struct front_config *config, const char *const *names);
void front_finish(struct front *f);

/* The actions are in f->actions, in their order, until the next step. */
void front_step(struct front *f, struct front_event event);

/* The sentence of a FRONT_DO_SAY; f->cause is the one of a FRONT_DO_END_JOB. */
static inline const char *front_why(const struct front *f)
{
    return f->why;
}

/* Whether the host may still send frames of interest. */
static inline bool host_status_is_open(const struct host_status *h)
{
    return h->state == FRONT_STARTING || h->state == FRONT_COPYING || h->state == FRONT_RUNNING;
}
