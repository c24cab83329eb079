#pragma once

/*
 * Messages between agents when a job hangs, as bodies of agent_message_json.h: the ranks of a node with their places
 * (node_ranks_json.h), the report on all nodes sent back, and an order to take stacks. Pure.
 *
 *   {"relay":0,"generation":2,"ranks":{"piece":0,"pieces":1,"node":{...}}}
 *   {"relay":-1,"generation":2,"hang":{"rank":27,"text":"  rank 27 on node3 (pid 4714) stands out: ...\n"}}
 *   {"relay":0,"generation":2,"stall":{"kind":0,"node":3,"unusual":7}}
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/watch/hang_collect.h"
#include "launcher/watch/stall.h"
#include "rendezvous/session/agent_message_json.h"

struct buf;

enum hang_message_kind {
    HANG_MESSAGE_RANKS,
    HANG_MESSAGE_RESULT,
    HANG_MESSAGE_TAKE, /* take stacks and send the stacks to take_to */
    HANG_MESSAGE_STALL,
};

enum stall_message_kind {
    STALL_MESSAGE_NOTE,    /* to node 0: ranks of the sender wait unusually long, or most of the time */
    STALL_MESSAGE_ASK,     /* from node 0: send your ranks */
    STALL_MESSAGE_REPORT,  /* from node 0: print these lines */
    STALL_MESSAGE_GOES_ON, /* from node 0: print that the ranks go on */
    STALL_MESSAGE_SLOW,    /* from node 0: print the line about a slow rank */
    STALL_MESSAGE_KIND_COUNT
};

struct stall_message {
    enum stall_message_kind kind;
    int node;                  /* NOTE: group rank of the sender */
    uint32_t n_unusual;        /* NOTE: ranks that wait unusually long */
    bool waits_mostly;         /* NOTE: a rank waits most of the time */
    bool with_stacks;          /* ASK */
    int rank;                  /* REPORT, SLOW: the awaited rank; -1: none */
    struct stall_facts facts;  /* REPORT */
    char text[HANG_TEXT_SIZE]; /* REPORT, GOES_ON */
};

struct hang_message {
    struct agent_message head;
    enum hang_message_kind kind;
    struct hang_piece piece; /* piece.ranks points to ranks below */
    struct hang_rank ranks[HANG_PIECE_RANKS];
    struct hang_result result;
    int32_t take_to; /* a group rank */
    struct stall_message stall;
};

/* 0 or -errno. */
int hang_result_put(struct buf *out, const struct agent_message *head, const struct hang_result *result);

int stall_message_put(struct buf *out, const struct agent_message *head, const struct stall_message *message);

/* Texts are made printable. False: not a message of a hang. */
bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret);
