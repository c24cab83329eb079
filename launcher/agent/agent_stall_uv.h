#pragma once

/*
 * The line about a partial stall (stall.h), for a job of one node or several. Node 0 decides for all nodes:
 *
 *   node k: a rank waits unusually long --NOTE, ranks--> node 0 --ASK--> all nodes --ranks--> node 0 --REPORT--> all nodes
 *   node k: the last such rank goes on  --NOTE(0)------> node 0 --GOES_ON--> all nodes
 *
 * The line about a slow rank (slow.h) goes the same way: a node with a rank that waits most of the time sends a NOTE at each description
 * of the watch, node 0 asks all nodes without stacks, and sends SLOW.
 *
 * In a static rendezvous a node knows the own ranks alone, and the line is about the own ranks.
 */

#include <stddef.h>

struct agent_host;
struct agent_stall;
struct hang_message;
struct hang_rank;
struct node_status;

struct agent_stall *agent_stall_create(const struct agent_host *host);

/* The ranks of this node, see watch_host.on_ranks; sorted in place. NULL is fine here and below. */
void agent_stall_take_ranks(struct agent_stall *s, struct hang_rank *ranks, size_t n_ranks, int n_unusual);

/* A notice about a stall or a slow rank, or ranks with the purpose HANG_FOR_STALL, of the present generation. */
void agent_stall_take_message(struct agent_stall *s, const struct hang_message *message);

/* Marks the awaited rank of a reported stall. */
void agent_stall_describe(const struct agent_stall *s, struct node_status *ret);

/* The job is over. Closes its handles; agent_stall_destroy() when the loop has ended. */
void agent_stall_stop(struct agent_stall *s);
void agent_stall_destroy(struct agent_stall *s);
