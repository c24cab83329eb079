#pragma once

/*
 * Messages between agents about hangs and stalls, as bodies of agent_message_json.h: the ranks of a node with their places
 * (node_ranks_json.h), or a notice. Pure.
 *
 *   {"relay":0,"generation":2,"ranks":{"piece":0,"pieces":1,"node":{...}}}
 *   {"relay":-1,"generation":2,"hang":{"kind":5,"rank":27,"text":"  rank 27 on node3 (pid 4714) stands out: ...\n"}}
 *   {"relay":0,"generation":2,"hang":{"node":3,"unusual":7}}
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/report/events.h"
#include "launcher/watch/hang_collect.h"
#include "rendezvous/session/agent_message_json.h"

enum hang_notice_kind {
    HANG_NOTICE_WAITS,   /* to node 0: ranks of the sender wait unusually long, or most of the time */
    HANG_NOTICE_ASK,     /* from node 0: send your ranks */
    HANG_NOTICE_STALL,   /* from node 0: print these lines, as for the two below */
    HANG_NOTICE_GOES_ON, /* the ranks go on */
    HANG_NOTICE_SLOW,    /* about a slow rank */
    HANG_NOTICE_HANG,    /* from node 0: the report on a hang of all nodes */
    HANG_NOTICE_TAKE,    /* take stacks and send the stacks to the node */
    HANG_NOTICE_KIND_COUNT
};

struct hang_notice {
    enum hang_notice_kind kind;
    int node;                  /* WAITS, TAKE: group rank of the sender */
    uint32_t n_unusual;        /* WAITS: ranks that wait unusually long */
    bool waits_mostly;         /* WAITS: a rank waits most of the time */
    bool with_stacks;          /* ASK */
    int rank;                  /* STALL, SLOW, HANG: the awaited rank; -1: none */
    struct event_stall stall;  /* STALL */
    char text[HANG_TEXT_SIZE]; /* STALL, GOES_ON, SLOW, HANG */
};

struct hang_message {
    struct agent_message head;
    bool has_ranks;          /* else the notice */
    struct hang_piece piece; /* piece.ranks points to ranks below */
    struct hang_rank ranks[HANG_PIECE_RANKS];
    struct hang_notice notice;
};

/* 0 or -errno. */
int hang_notice_put(struct buf *out, const struct agent_message *head, const struct hang_notice *notice);

/* Texts are made printable. False: not such a message. */
bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret);
