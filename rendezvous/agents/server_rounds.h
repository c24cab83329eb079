#pragma once

/*
 * Configuration of the rounds of a server, and calls for the process around the server.
 */

#include <stddef.h>

#include "rendezvous/etcd/etcd.h"

struct look_request;
struct metrics_text;
struct server;

/* The rounds (rounds.h) behind agent sessions. Zero stands for the default of each number. */
struct server_rounds {
    unsigned max_jobs;
    unsigned max_nodes;  /* of a job */
    unsigned max_agents; /* nodes of all jobs together */
    /* For agents without proof of a key or certificate; 0: not limited. */
    unsigned max_jobs_each;       /* of an address, or of a user of the machine */
    unsigned max_node_timeout_ms; /* longest node timeout, ms */
    unsigned max_wait_ms;         /* join and last call timeout */
    unsigned grace_ms;            /* for agents to return after a restart with a state */
    /* A directory (rounds_disk_uv.h) or etcd://... (rounds_etcd_uv.h); NULL: nothing is kept, and reconnecting agents report
     * their state. */
    const char *state;
    struct etcd_access etcd; /* with etcd:// */
    /* A longer write of state holds back nothing any more, as after an error; logged after a sixth of the limit. */
    unsigned disk_limit_ms;
    /* Receives a line (no newline) for each event of a job; for a gathering job a line a second. At most a few
     * dozen lines a second over all jobs, the rest is counted. NULL: no log. */
    void (*log)(void *data, const char *line);
    /* Receives a line (no newline) for each event and action of the rounds, without a limit. NULL: off. */
    void (*debug)(void *data, const char *line);
    /* The last node of the last job has left: each node has received the result, or has left, or is lost. Called
     * from within the loop; may call server_drain() and server_stop(). NULL: no call. */
    void (*empty)(void *data);
    void *data;
};

/* Number of nodes in running jobs, or without the result of their job yet. */
size_t server_n_nodes(const struct server *s);

/* Puts the state of a job and its nodes, with the reports of their agents, as frames (look_json.h); asks the agents to report
 * for a while. For the process around the server, which decides about access. 0, -ENOMEM, or -ENOENT without rounds. */
int server_look(struct server *s, const struct look_request *request, struct buf *out);

/* With a state shared by several crunds: takes part in the choice of the leader, and names address, HOST:PORT, to agents of
 * the other crunds. After listening. 0 or -errno; a sentence was logged. */
int server_advertise(struct server *s, const char *address);

/* Reports of the agents, job by job, under the metric names of a crun: for a daemon of many jobs. */
void server_write_job_metrics(const struct server *s, struct metrics_text *m);

/* At most n nodes of a job can come: a first round with n nodes starts at once. n > 0. Without rounds: does nothing. */
void server_expect_nodes(struct server *s, unsigned n);

/* Ends every job of the rounds with a failure for `reason`, a sentence without a full stop; agents are
 * notified at once. empty() is called when all nodes have left. Without rounds: does nothing. */
void server_close_jobs(struct server *s, const char *reason);

/* The same, and ends each later job as soon as the job begins. reason outlives the server. */
void server_close_all_jobs(struct server *s, const char *reason);
