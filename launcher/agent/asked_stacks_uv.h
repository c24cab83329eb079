#pragma once

/*
 * Stacks of all nodes, for crunctl. The other agents are asked to take stacks, by the rendezvous where it is served on this node, else
 * by a message of this agent. They send them to this node. A client of the rendezvous (crunctl --endpoint) has it ask one agent, which
 * does the same and has them in its status for KEEP_MS.
 */

#include <stdbool.h>
#include <stdint.h>

struct agent_host;
struct agent_observer;
struct asked_stacks;
struct hang_piece;
struct watch_stacks;

/* send: gives JSON (NULL: without memory) to crunctl, with the data of the host. 0 or -ENOMEM. */
int asked_stacks_create(struct asked_stacks **ret, struct agent_observer *observer,
                        const struct agent_host *host, void (*send)(void *data, const char *json));

/* Takes the stacks of this node and asks the other nodes for theirs. for_look: they become part of the status. */
void asked_stacks_ask(struct asked_stacks *a, bool for_look);

/* Their JSON; NULL: there are none. */
const char *asked_stacks_for_look(const struct asked_stacks *a);

/* From another node: it asks for the stacks of this one, or it sends its own. */
void asked_stacks_take_order(struct asked_stacks *a, int32_t to);
void asked_stacks_add(struct asked_stacks *a, const struct hang_piece *piece);

/* The stacks of this node, for all that have asked for them. */
void asked_stacks_pass(struct asked_stacks *a, const struct watch_stacks *s);
