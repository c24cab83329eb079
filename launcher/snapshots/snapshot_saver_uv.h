#pragma once

/*
 * Writes blocks of the workers of a node into a folder (snapshot_folder_os.h), in threads, a step at a time: every so many steps, and the
 * newest step at the end of the job. No other step begins before the end of a step's writing. A thread copies each block first: a slow
 * disk holds no slot of a worker.
 */

#include <stdint.h>
#include <uv.h>

struct snapshot_saver;
struct state_memory;

struct saver_host {
    uv_loop_t *loop;
    int n_workers;
    void (*on_saved)(void *data, uint64_t step); /* the snapshot of all nodes is complete */
    void *data;
};

/* The place of the node in a generation. */
struct snapshot_place {
    uint64_t instance; /* of the job */
    uint32_t generation, world_size;
    int32_t node, n_nodes;
};

/* Without a folder nothing is written. NULL without memory. */
struct snapshot_saver *snapshot_saver_create(const struct saver_host *host);

/* every: 0: at the end alone. */
void snapshot_saver_set_folder(struct snapshot_saver *s, const char *folder, uint32_t every);

/* A generation begins: a step with missing blocks is dropped. */
void snapshot_saver_begin(struct snapshot_saver *s, const struct snapshot_place *place);

/* All workers have loaded the state of a step. */
void snapshot_saver_continue(struct snapshot_saver *s, uint64_t step, uint32_t generation);

/* A worker's block of a step is whole. */
void snapshot_saver_take(struct snapshot_saver *s, int worker, struct state_memory *memory, uint32_t rank,
                         uint64_t step);

/* The job is over, no worker runs: writes the newest step of all workers; with other nodes, perhaps without the newest
 * step, the step before as well. memory_of: called here alone; NULL, or a result of NULL: none.
 * No more calls; frees itself. NULL is fine. */
void snapshot_saver_end(struct snapshot_saver *s,
                        struct state_memory *(*memory_of)(const void *data, int worker), const void *data);
