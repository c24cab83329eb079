#pragma once

/*
 * What the next generation is started with: its ranks, where no rendezvous assigns them, the store or the port for one, and the files
 * of the attempt. Begins, replaces and ends generations.
 */

#include <stdbool.h>

struct agent_host;
struct agent_start;
struct generation_host;
struct logs;
struct rank_assignment;
struct server;

/* The generation in the host and the assignment are set here. on_start: the workers are ordered (0), or -errno; of a replacement, part
 * of that may have been done. It gets the data of the host. 0 or -ENOMEM. */
int agent_start_create(struct agent_start **ret, struct agent_host *host, struct rank_assignment *assignment,
                       struct generation_host *generations, struct logs *logs,
                       void (*on_start)(void *data, int r, bool is_replacement));

/* Ends the generation before, whose workers have ended, with all that was meant for its start. */
void agent_start_clear(struct agent_start *s);

/* Without other nodes this one assigns the ranks itself. 0 or -errno, with a line logged. */
int agent_start_assign(struct agent_start *s);

/* The store of the workers of the next generation comes from the rendezvous, or NULL. */
void agent_start_take_store(struct agent_start *s, struct server *store);

/* Makes the files; on_start() follows. agent_start_replace(): for the workers that have to be started again, as this rank has failed.
 * 0 or -errno, with a line logged where a reason is known. */
int agent_start_begin(struct agent_start *s);
int agent_start_replace(struct agent_start *s, int cause_rank);

/* Reports to the rendezvous that this node can take part in the next generation. */
void agent_start_report_ready(struct agent_start *s);

bool agent_start_is_pending(const struct agent_start *s);

/* The workers are not started. True: none of their generation runs. */
bool agent_start_cancel(struct agent_start *s);

/* Ends the generation without another one, and drops the store. */
void agent_start_stop(struct agent_start *s);
void agent_start_destroy(struct agent_start *s);
