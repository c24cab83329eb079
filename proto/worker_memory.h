#pragma once

/*
 * Memory files that crun lends its workers. Header only.
 *
 * A worker finds the numbers of two inherited file descriptors in these variables, where there are such files.
 * Both are anonymous files in memory (memfd) that crun holds for as long as the job lasts, empty at its start;
 * what is written into them is the worker runtime's affair alone. A worker that never looks at them loses
 * nothing.
 *
 * One runtime's state file has a head that others may read, the Python module crun_launch.worker's (little-endian):
 *
 *   0..7    "CRUNBEAT"
 *   8..15   steps that this rank has done (u64)
 *   16..23  when it reported that, on the monotonic clock in ns (u64)
 *
 * The fields are written one after the other, without a lock: a reader may see a new number with an old time.
 */

#define WORKER_BEAT_MAGIC "CRUNBEAT"
#define WORKER_BEAT_SIZE 24

/* The worker's own: the worker with its local rank in a later generation of the job gets the same file. */
#define WORKER_MEMORY_STATE_ENVIRONMENT "CRUN_STATE_FD"
/* One for all workers of the node. */
#define WORKER_MEMORY_CACHE_ENVIRONMENT "CRUN_CACHE_FD"
