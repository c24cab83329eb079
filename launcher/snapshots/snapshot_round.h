#pragma once

/*
 * How the nodes of a job agree on the step that a generation continues from. Pure.
 *
 *   all nodes --HAVE 0--> node 0 --CHOICE 0--> all nodes: the ranks read their blocks
 *   all nodes --HAVE 1--> node 0: with the result of the reading
 *       all good: --GO--> all nodes
 *       else:     --CHOICE 1--> all nodes, of the blocks that are still whole, and so on
 *
 * A node has at most one HAVE outstanding, and repeats the HAVE until the answer comes: messages between agents may be lost. Node 0
 * repeats an answer for each late HAVE. A state that was refused once is not chosen again, so that each attempt makes progress. Without a whole state the choice is final at once. Node 0 sends nothing to itself, so a job of
 * one node sends nothing.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/snapshots/snapshot_choice.h"

enum {
    ROUND_RUNS_MAX = 32,
    ROUND_REFUSED_MAX = 16, /* more refused states: none is chosen */
};

enum round_message_kind { ROUND_HAVE, ROUND_CHOICE, ROUND_GO, ROUND_MESSAGE_KIND_COUNT };

struct round_message {
    enum round_message_kind kind;
    uint32_t attempt;
    int32_t node; /* HAVE: sender */
    bool is_good; /* HAVE: all ranks of the sender have read the blocks of the attempt before */
    struct snapshot_choice choice; /* CHOICE */
    size_t n_runs;                 /* HAVE */
    struct block_run runs[ROUND_RUNS_MAX];
};

struct round_node;

struct snapshot_round {
    int32_t node, n_nodes;
    uint32_t attempt; /* of the own HAVE */
    bool waits;       /* for the answer to the own HAVE */
    bool is_final;    /* the ranks may go on from the choice */
    bool has_choice;
    struct snapshot_choice choice;
    struct round_message have;                         /* of this node */
    struct round_node *nodes;                          /* of node 0; else NULL */
    uint32_t n_have;                                   /* of node 0: nodes with a HAVE of the attempt */
    uint32_t asked;                                    /* of node 0: attempt to collect */
    struct snapshot_choice refused[ROUND_REFUSED_MAX]; /* of node 0: states that some rank could not read */
    size_t n_refused;
};

/* Zeroed before. 0 or -ENOMEM. */
int snapshot_round_begin(struct snapshot_round *r, int32_t node, int32_t n_nodes);
void snapshot_round_finish(struct snapshot_round *r);

/* What this node has: at the begin, and when all its ranks have read. True: *ret is to be sent to *ret_to. */
bool snapshot_round_have(struct snapshot_round *r, bool is_good, const struct block_run *runs, size_t n_runs,
                         struct round_message *ret, int32_t *ret_to);

/* A message of another node. True: *ret is to be sent to *ret_to (AGENT_MESSAGE_TO_ALL: to all others). */
bool snapshot_round_take(struct snapshot_round *r, const struct round_message *message,
                         struct round_message *ret, int32_t *ret_to);

/* After some time without an answer. True: *ret is to be sent again. */
bool snapshot_round_repeat(const struct snapshot_round *r, struct round_message *ret, int32_t *ret_to);
