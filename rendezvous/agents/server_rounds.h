#pragma once

/*
 * How a server serves the rounds, and what the process around it may ask of them.
 */

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/etcd/etcd.h"

struct buf;
struct look_request;
struct metrics_text;
struct server;

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

/* Nodes that have not received their job's result yet, or whose job goes on. */
size_t server_n_nodes(const struct server *s);

/* What the rounds know of a job and its nodes, and what their agents report, as frames (look_json.h); asks the agents to report
 * for a while. For the process around the server: it decides who may ask. 0, -ENOMEM, or -ENOENT without rounds. */
int server_look(struct server *s, const struct look_request *request, struct buf *out);

/* Asks the agents of the job's other nodes to take the stacks of their workers and to send them to that group rank. Returns how many
 * were asked. As above. */
unsigned server_ask_for_stacks(struct server *s, const char *job, uint32_t to);

/* With a state that other crunds share: takes part in choosing the one that leads, and names this address, HOST:PORT, to agents
 * of the others. After listening. 0 or -errno; a sentence was logged. */
int server_advertise(struct server *s, const char *address);

/* What the agents of its jobs report, job by job, under the names that a crun has for its own: of a daemon of many jobs. */
void server_write_job_metrics(const struct server *s, struct metrics_text *m);

/* Ends every job of the rounds with a failure for that reason, a sentence without a full stop; agents are
 * notified at once. empty() is called when all have left. Without rounds: does nothing. */
void server_close_jobs(struct server *s, const char *reason);
