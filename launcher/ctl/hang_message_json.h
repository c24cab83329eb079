#pragma once

/*
 * Messages between agents when a job hangs, as bodies of agent_message_json.h: the ranks of a node with their places
 * (node_ranks_json.h), the report on all nodes sent back, and an order to take stacks. Pure.
 *
 *   {"relay":0,"generation":2,"ranks":{"piece":0,"pieces":1,"node":{...}}}
 *   {"relay":-1,"generation":2,"hang":{"rank":27,"text":"  rank 27 on node3 (pid 4714) stands out: ...\n"}}
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/watch/hang_collect.h"
#include "rendezvous/session/agent_message_json.h"

struct buf;

enum hang_message_kind {
    HANG_MESSAGE_RANKS,
    HANG_MESSAGE_RESULT,
    HANG_MESSAGE_TAKE, /* from the rendezvous: take stacks and send the stacks to take_to */
};

struct hang_message {
    struct agent_message head;
    enum hang_message_kind kind;
    struct hang_piece piece; /* piece.ranks points to ranks below */
    struct hang_rank ranks[HANG_PIECE_RANKS];
    struct hang_result result;
    int32_t take_to; /* a group rank */
};

/* 0 or -errno. */
int hang_result_put(struct buf *out, const struct agent_message *head, const struct hang_result *result);

/* Texts are made printable. False: not a message of a hang. */
bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret);
