#pragma once

/*
 * Begins, replaces and ends generations, and prepares the next generation: the ranks where no rendezvous assigns ranks, the store or
 * the port for a store, and the files of the attempt.
 */

#include <stdbool.h>

struct agent_host;
struct agent_start;
struct generation_host;
struct logs;
struct rank_assignment;
struct server;

/* The generation in the host and the assignment are set here. on_start: the workers are ordered (0), or -errno; of a replacement, part
 * of the workers may be. on_start gets the data of the host. */
struct agent_start *agent_start_create(struct agent_host *host, struct rank_assignment *assignment,
                                       struct generation_host *generations, struct logs *logs,
                                       void (*on_start)(void *data, int r, bool is_replacement));

/* The workers of the generation before have ended. Ends the generation and a pending start. */
void agent_start_clear(struct agent_start *s);

/* Assigns the ranks of a job without other nodes. 0 or -errno, with a line logged. */
int agent_start_assign(struct agent_start *s);

/* The store of the workers of the next generation comes from the rendezvous, or NULL. */
void agent_start_take_store(struct agent_start *s, struct server *store);

/* Makes the files; on_start() follows. agent_start_replace(): for the workers to start again after the failure of cause_rank.
 * 0 or -errno, with a line logged where a reason is known. */
int agent_start_begin(struct agent_start *s);
int agent_start_replace(struct agent_start *s, int cause_rank);

/* Reports to the rendezvous: this node can take part in the next generation. */
void agent_start_report_ready(struct agent_start *s);

bool agent_start_is_pending(const struct agent_start *s);

/* The pending workers are not started. True: no worker of the generation runs. */
bool agent_start_cancel(struct agent_start *s);

/* The end of the job: ends the generation, and drops the store. */
void agent_start_stop(struct agent_start *s);
void agent_start_destroy(struct agent_start *s);
