#pragma once

/*
 * Memory files that crun lends its workers. Header only.
 *
 * A worker finds the numbers of two inherited file descriptors in these variables, where there are such files.
 * Both are anonymous files in memory (memfd) that crun holds for as long as the job lasts, empty at its start;
 * what is written into them is the worker runtime's affair alone. A worker that never looks at them loses
 * nothing.
 */

/* The worker's own: the worker with its local rank in a later generation of the job gets the same file. */
#define WORKER_MEMORY_STATE_ENVIRONMENT "CRUN_STATE_FD"
/* One for all workers of the node. */
#define WORKER_MEMORY_CACHE_ENVIRONMENT "CRUN_CACHE_FD"
