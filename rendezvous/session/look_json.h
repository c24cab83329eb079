#pragma once

/*
 * Messages by which jobs are looked at, over the agent session (PROTOCOL.md, "Looking at jobs"): what crunctl asks of a
 * rendezvous, what the rendezvous asks of its agents meanwhile, and the answers. Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/session/session_message.h"

struct buf;

enum {
    LOOK_WORD_SIZE = 16,
    LOOK_WATCH_MS = 5000,          /* how long agents send after a look */
    LOOK_PERIOD_MS = 1000,         /* how often */
    LOOK_PIECES_MAX = 64,          /* frames of the status of one node */
    LOOK_NODE_JSON_MAX = 15 << 10, /* of one piece */
    LOOK_STACKS_JSON_MAX = 12 << 10,
    LOOK_STACKS_AGAIN_MS = 2000, /* until an agent is asked for stacks again */
};

struct look_request {
    char job[SESSION_JOB_SIZE]; /* "": all jobs */
    uint32_t from;              /* nodes to pass over: those of the answers before */
    bool
        stacks; /* with a job: an agent of it is asked for the stacks of all ranks, which come with its status */
};

/* To an agent. */
struct look_watch {
    uint32_t ms; /* for how long it sends its status */
    bool stacks; /* and the stacks of the job, once */
};

struct look_piece {
    uint32_t piece, pieces;
};

struct look_job {
    char job[SESSION_JOB_SIZE], state[LOOK_WORD_SIZE];
    int64_t generation;
    uint32_t restarts, max_restarts, n_nodes;
};

struct look_node {
    char host[SESSION_HOST_SIZE], state[LOOK_WORD_SIZE];
    int32_t group_rank;
    uint32_t n_workers, silent_ms;
};

/* What a rendezvous answers, in this order: jobs, each before its nodes; behind a node the pieces of its status, if it sent
 * any; then the end. */
enum look_kind { LOOK_JOB, LOOK_NODE, LOOK_STATUS, LOOK_END };

struct look_reply {
    enum look_kind kind;
    struct look_job job;
    struct look_node node;
    uint32_t next; /* LOOK_END: `from` of the next request; 0: that was all */
};

/* Each appends one whole frame; 0 or -ENOMEM (look_put_status: -EMSGSIZE, too), the buf then holds what it held. */
int look_put_request(struct buf *out, const struct look_request *request);
int look_put_watch(struct buf *out, const struct look_watch *watch);
int look_put_job(struct buf *out, const struct look_job *job);
int look_put_node(struct buf *out, const struct look_node *node);
int look_put_end(struct buf *out, uint32_t next);
/* node_json: an object, as job_status_json.h has it. */
int look_put_status(struct buf *out, const struct look_piece *piece, const char *node_json);

/* For session_json.c: what the "look" or "status" of a message has. */
struct cJSON;
bool look_read_request(const struct cJSON *json, struct look_request *ret);
bool look_read_piece(const struct cJSON *json, struct look_piece *ret);

/* For an agent: whether the body asks it to send its status. */
bool look_get_watch(const uint8_t *body, size_t n, struct look_watch *ret);

bool look_get_reply(const uint8_t *body, size_t n, struct look_reply *ret);
