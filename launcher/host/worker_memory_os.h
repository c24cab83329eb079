#pragma once

/*
 * Memory that crun holds for a job from its first generation to its end, so that it survives the workers: for each
 * worker a file for its training state, which the worker of the same local rank inherits in the next generation. They
 * are anonymous (memfd_create()) and vanish with their last descriptor.
 *
 * crun reads the heads alone (proto/worker_memory.h). libcrw defines their content:
 * worker-runtime/checkpoint/in_memory_checkpoint_os.c.
 */

#include <stddef.h>

struct worker_memory {
    int n_workers;
    int *states; /* for each worker; -1: none could be had, the job runs without */
    int key;     /* of the job, the same for all workers; -1: it has none */
    int door
        [2]; /* for requests about blocks of state (proto/state_blocks.h): crun's end, and the end of all workers; -1: none */
};

/* Zeroed before; also after a failure worker_memory_finish() is fine. 0 or -ENOMEM. */
int worker_memory_init(struct worker_memory *h, int n_workers);
/* Lends the workers the key of the job, n bytes, in a file that no process can change. 0 or -errno. */
int worker_memory_add_key(struct worker_memory *h, const void *bytes, size_t n);
void worker_memory_finish(struct worker_memory *h);
