#pragma once

/*
 * Stacks of all nodes, for crunctl. The own agent sends a message to the other agents, and these send their stacks to the own node. For a client of the rendezvous (crunctl --endpoint) the
 * rendezvous asks a single agent, which collects stacks in the same way and keeps the result in its status for KEEP_MS.
 */

#include <stdbool.h>
#include <stdint.h>

struct agent_host;
struct agent_observer;
struct asked_stacks;
struct hang_piece;
struct watch_stacks;

/* send: gives JSON (NULL: without memory) to crunctl, with the data of the host. */
struct asked_stacks *asked_stacks_create(struct agent_observer *observer, const struct agent_host *host,
                                         void (*send)(void *data, const char *json));

/* Takes the stacks of the own node and asks the other nodes for stacks. for_look: the result becomes part of the status. False: no
 * stacks can be taken, or the status has stacks. */
bool asked_stacks_ask(struct asked_stacks *a, bool for_look);

/* JSON for the status; NULL: none. */
const char *asked_stacks_for_look(const struct asked_stacks *a);

/* Another node (group rank `to`) asks for the stacks of the own node, or sends stacks. */
void asked_stacks_take_order(struct asked_stacks *a, int32_t to);
void asked_stacks_add(struct asked_stacks *a, const struct hang_piece *piece);

/* The stacks of the own node have been taken: passed on to all askers. */
void asked_stacks_pass(struct asked_stacks *a, const struct watch_stacks *s);
