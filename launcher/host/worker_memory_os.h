#pragma once

/*
 * Memory that crun holds for a job from its first generation to its end, so that it survives the workers:
 * for each worker a file for its training state, which the worker of the same rank finds again in the next
 * generation, and one file for data that all workers of this node share. Anonymous files in memory: they have
 * no name anywhere and are gone with the last descriptor of them.
 *
 * crun never looks into them; what is in them is libcrw's (worker-runtime/memory_state.h, host_cache_os.h).
 */

struct worker_memory {
    int n_workers;
    int *states; /* for each worker; -1: the system has none to give, the job goes without */
    int cache;   /* the same */
};

/* Zeroed before; also after a failure worker_memory_finish() is fine. 0 or -ENOMEM. */
int worker_memory_init(struct worker_memory *h, int n_workers);
void worker_memory_finish(struct worker_memory *h);
