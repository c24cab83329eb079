#pragma once

/*
 * What one agent sends another about the ranks of its node when a job hangs, and the report on all nodes that goes back, as
 * messages of agent_message_json.h. Pure.
 *
 *   {"relay":0,"generation":2,"ranks":{"node":3,"piece":0,"pieces":1,"host":"node3","list":[{"rank":24,"pid":4711,...},...]}}
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
    HANG_MESSAGE_TAKE, /* of the rendezvous: take the stacks, and send them to take_to */
};

struct hang_message {
    struct agent_message head;
    enum hang_message_kind kind;
    struct hang_piece piece;
    struct hang_result result;
    int32_t take_to; /* a group rank */
};

/* What all pieces of a node have. */
struct hang_sender {
    int node;
    bool asked;
    const char *host;
};

/* All ranks of a node, in pieces. 0 or -errno. */
int hang_pieces_put(struct buf *out, const struct agent_message *head, const struct hang_sender *sender,
                    const struct hang_rank *ranks, size_t n_ranks);

int hang_result_put(struct buf *out, const struct agent_message *head, const struct hang_result *result);

/* Texts are made printable. False: the body is another one. */
bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret);
