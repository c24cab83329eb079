#pragma once

/*
 * Hangs of this node's workers, and the agent's part in a hang of all nodes. An agent reports that the own node is quiet, and takes that
 * back on a strong sign; the rendezvous answers when all nodes are quiet. So agents send nothing while a job works, and a node with ranks
 * that wait for another node causes no false alarm.
 *
 * A failure of a rank takes no stacks: the other ranks end within milliseconds, and the next generation would have to wait. Workers that
 * do not end on a signal have their stacks taken.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct agent_hang;
struct agent_host;
struct agent_observer;
struct asked_stacks;
struct group_event;
struct watch;

/* stacks: gets the stacks of this node and of other agents. */
struct agent_hang *agent_hang_create(struct agent_observer *observer, const struct agent_host *host,
                                     struct asked_stacks *stacks);

/* Watches for hangs. Returns agent_host.watch: the job runs without a watch (NULL) as well. */
struct watch *agent_hang_open(struct agent_hang *h);

/* The stacks come first, then the event of a SIGQUIT. False: stacks cannot be taken. */
bool agent_hang_put_off_quit(struct agent_hang *h, const struct group_event *quit);

/* No node makes progress. The report on several nodes is put together on node 0. */
void agent_hang_all_quiet(struct agent_hang *h);

/* A generation begins: no rank is marked any more, and --hang-action is not carried out. */
void agent_hang_forget(struct agent_hang *h);

/* The workers have got a signal to end. Stacks are taken before the kill of workers that do not end. */
void agent_hang_watch_stop(struct agent_hang *h);

/* When the loop has run dry. */
void agent_hang_destroy(struct agent_hang *h);
