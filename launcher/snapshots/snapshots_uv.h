#pragma once

/*
 * State that outlives the processes of workers, on a node: answers requests of workers (block_requests_uv.h) from their state files, and
 * takes part in the agreement of all nodes on a step (snapshot_round.h).
 *
 * Threads copy and allocate. The loop reads a table of 200 bytes for each worker with blocks, once in a generation.
 */

#include <stdint.h>
#include <uv.h>

#include "launcher/snapshots/snapshot_saver_uv.h"

struct round_message;
struct snapshots;
struct worker_memory;

struct snapshots_host {
    uv_loop_t *loop;
    const struct worker_memory *memory; /* lives longer */
    /* To another agent (group rank), or to all others: AGENT_MESSAGE_TO_ALL. Messages may be lost. */
    void (*send)(void *data, int32_t to, const struct round_message *message);
    void *data;
};

/* 0 or -errno; -ENODEV: this node's workers were lent no memory. */
int snapshots_open(struct snapshots **ret, const struct snapshots_host *host);

/* A generation of workers starts; the workers of the generation before have ended. */
void snapshots_begin(struct snapshots *s, const struct snapshot_place *place);

/* A message of another node in this generation. */
void snapshots_take(struct snapshots *s, const struct round_message *message);

/* The job is over, no worker runs. What is still to be written to the folder of the workers goes on in threads: the loop ends behind
 * them. NULL is fine. */
void snapshots_close(struct snapshots *s);
