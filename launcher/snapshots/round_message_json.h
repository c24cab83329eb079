#pragma once

/*
 * Messages of the agreement on a step (snapshot_round.h) as bodies of agent_message_json.h. Pure.
 *
 *   {"relay":0,"generation":2,"blocks":{"kind":"have","node":3,"good":true,"runs":[{"step":41,"generation":1,"world":8,"first":4,"n":4,"tier":1}]}}
 *   {"relay":-1,"generation":2,"blocks":{"kind":"choice","exists":true,"step":41,"of":1,"world":8}}
 *   {"relay":-1,"generation":2,"blocks":{"kind":"go","attempt":1}}
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/snapshots/snapshot_round.h"
#include "rendezvous/session/agent_message_json.h"

struct buf;

/* 0 or -errno. */
int round_message_put(struct buf *out, const struct agent_message *head, const struct round_message *message);

/* False: another message, or a broken one. */
bool round_message_get(const uint8_t *body, size_t n, struct agent_message *ret_head,
                       struct round_message *ret);
