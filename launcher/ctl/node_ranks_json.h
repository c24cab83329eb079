#pragma once

/*
 * The state of the ranks of a node, as a single kind of record. An agent sends the record to its rendezvous for crunctl, and to
 * another agent for a report on a hang or for crunctl stacks. A crun writes the record for each node of its status. Pure.
 *
 *   {"status":{"piece":0,"pieces":2,"node":{"host":"node3","group_rank":3,"workers":[{"rank":24,"pid":4711,...},...]}}}
 *   {"relay":0,"generation":2,"ranks":{"piece":0,"pieces":1,"node":{...,"workers":[{"rank":24,...,"at":{"text":...}},...]}}}
 *
 * Fields may be added; readers ignore unknown fields. A worker has `at`, its place, only in a message to an agent. The name of a
 * message to an agent is "ranks": a rendezvous keeps a message "status" for itself.
 */

#include <stddef.h>

struct agent_message;
struct buf;
struct cJSON;
struct hang_piece;
struct hang_rank;
struct job_status;
struct node_status;

struct node_ranks {
    const struct node_status *node;
    const struct hang_rank *places; /* of ranks of the node, in any order; NULL: none, all ranks without */
    size_t n_places;
    const char *stacks; /* JSON of job_stacks_json.h, for a piece of its own; NULL: none */
    int purpose;        /* enum hang_purpose */
};

/* Appends all pieces, each a frame; to: NULL for the rendezvous. 0; -EMSGSIZE; -ENOMEM, also with a place of another node. */
int node_ranks_put(struct buf *out, const struct agent_message *to, const struct node_ranks *ranks);

/* The node with n ranks from the first on; with none the stacks. Malloc'ed; NULL without memory, or with a place of another node. */
char *node_ranks_to_json(const struct node_ranks *ranks, size_t first, size_t n_ranks);

/*
 * Takes the "status" or "ranks" of a message: the workers go to the last node of s. piece: receives the node and number of the
 * piece; then all workers must have places, which go to places[HANG_PIECE_RANKS] with printable texts. NULL: workers without
 * places. 0, -EBADMSG or -ENOMEM.
 */
int node_ranks_take(const struct cJSON *status, struct job_status *s, struct hang_piece *piece,
                    struct hang_rank *places);

/* For job_status_json.c: a whole node. 0, -EBADMSG or -ENOMEM. */
int node_status_write(struct cJSON *object, const struct node_status *n);
int node_status_read(const struct cJSON *json, struct job_status *s);
