#pragma once

/*
 * The line about a partial stall (stall.h), for a job of one node or several. Node 0 decides for all nodes:
 *
 *   node k: a rank waits unusually long --NOTE, ranks--> node 0 --ASK--> all nodes --ranks--> node 0 --REPORT--> all nodes
 *   node k: the last such rank goes on  --NOTE(0)------> node 0 --GOES_ON--> all nodes
 *
 * Without a rendezvous of its own (static) a node knows its own ranks alone, and the line is about them.
 */

struct agent_host;
struct agent_stall;
struct hang_message;
struct watch_host;

/* watch: its describe, rank_base and data are used. 0 or -ENOMEM. */
int agent_stall_create(struct agent_stall **ret, const struct agent_host *host,
                       const struct watch_host *watch);

/* Of kind HANG_MESSAGE_STALL, or ranks for that purpose, of the present generation. NULL is fine for all below. */
void agent_stall_take_message(struct agent_stall *s, const struct hang_message *message);

/* The job is over. Closes its handles; agent_stall_destroy() when the loop has ended. */
void agent_stall_stop(struct agent_stall *s);
void agent_stall_destroy(struct agent_stall *s);
