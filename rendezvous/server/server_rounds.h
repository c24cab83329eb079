#pragma once

/*
 * How a server serves the rounds.
 */

#include "rendezvous/etcd/etcd.h"

/* The rounds (rounds.h) behind agent sessions. Zero stands for the default of each number. */
struct server_rounds {
    unsigned max_jobs;
    unsigned max_nodes;  /* of one job */
    unsigned max_agents; /* nodes of all jobs together */
    /* For agents that have proved neither key nor certificate; 0: not limited. */
    unsigned max_jobs_each;       /* of one address, or of one user of this machine */
    unsigned max_node_timeout_ms; /* that they may choose */
    unsigned max_wait_ms;         /* join and last call timeout */
    unsigned grace_ms;            /* for agents to return after a restart with a state */
    /* A directory (rounds_disk_uv.h) or etcd://... (rounds_etcd_uv.h); NULL: nothing is kept, and agents that reconnect report
     * what they know. */
    const char *state;
    struct etcd_access etcd; /* with etcd:// */
    /* A write of state that takes longer holds back nothing any more, as after an error; logged after a sixth of it. */
    unsigned disk_limit_ms;
    /* Receives one line (no newline) for each event of a job; while it gathers, one a second. At most a few
     * dozen a second over all jobs, the rest is counted. NULL: no log. */
    void (*log)(void *data, const char *line);
    /* Receives one line (no newline) for each event and action of the rounds, without a limit. NULL: off. */
    void (*debug)(void *data, const char *line);
    /* The last node of the last job has left: each has received the result, or has left, or is lost. Called
     * from within the loop; may call server_drain() and server_stop(). NULL: not wanted. */
    void (*empty)(void *data);
    void *data;
};
