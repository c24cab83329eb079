#pragma once

/*
 * Memory files that crun lends its workers. Header only.
 *
 * A worker finds the numbers of inherited file descriptors in these variables, where there are such files: anonymous
 * files in memory (memfd) that crun holds for as long as the job lasts. The state file is empty at the start of the
 * job, and the worker runtime defines its content. A worker that never looks at it loses nothing.
 *
 * One runtime's state file has a head that others may read, the Python module crun_launch.worker's (little-endian):
 *
 *   0..7    "CRUNBEAT"
 *   8..15   steps that this rank has done (u64)
 *   16..23  when it reported that, on the monotonic clock in ns (u64)
 *   24..39  the same two of an earlier report of this process, if possible one or two seconds before: for a rate; zeros, or no
 *           bytes: none
 *
 * The fields are written one after the other, without a lock: a reader may see a new number with an old time.
 *
 * The collective operations in which a rank is, of libcrw: WORKER_COLLECTIVES_MAX records from WORKER_COLLECTIVES_AT on, one
 * for each process group of the process. crun reads them when a job hangs, and as a sign of progress. They are written one
 * after the other, too: only what does not change any more is exact. A record whose `pid` is not the worker's is of an
 * earlier process.
 *
 * At WORKER_CUT_AT the first rank of another host that does not answer, with the network as the reason that the kernel names: it has stopped
 * answering, or this rank has tried to connect to it in vain until now. An agent reports it, and the rendezvous compares what the nodes report.
 */

#include <stdint.h>

#define WORKER_BEAT_MAGIC "CRUNBEAT"
#define WORKER_BEAT_SIZE 24
#define WORKER_BEAT_WHOLE_SIZE 40 /* with the earlier report */

enum {
    WORKER_COLLECTIVES_AT = 1024,
    WORKER_COLLECTIVES_MAX = 16,
    WORKER_CUT_AT = 2048,
    WORKER_MEMORY_PAGE = 4096
};

enum worker_collective_kind {
    WORKER_COLLECTIVE_NONE,
    WORKER_COLLECTIVE_BARRIER,
    WORKER_COLLECTIVE_BROADCAST,
    WORKER_COLLECTIVE_ALL_GATHER,
    WORKER_COLLECTIVE_GATHER,
    WORKER_COLLECTIVE_SCATTER,
    WORKER_COLLECTIVE_ALL_REDUCE,
    WORKER_COLLECTIVE_REDUCE_SCATTER,
    WORKER_COLLECTIVE_REDUCE,
    WORKER_COLLECTIVE_KIND_COUNT
};

struct worker_collective {
    uint64_t group;  /* the same number on all ranks of the group, another one for each group; 0: no record */
    uint64_t number; /* collectives of the group that this rank has begun */
    uint32_t
        kind; /* enum worker_collective_kind, of the one it is in; WORKER_COLLECTIVE_NONE: it is in none */
    uint32_t n_ranks;  /* of the group */
    uint32_t is_world; /* 1: the group has all ranks of the job */
    uint32_t pid;
};

struct worker_cut {
    uint32_t from; /* 1 and the rank; 0: none */
    uint32_t pid;  /* of the process that wrote this: else it is an earlier one's */
};

/* The worker's own: the worker with its local rank in a later generation of the job gets the same file. */
#define WORKER_MEMORY_STATE_ENVIRONMENT "CRUN_STATE_FD"
/* Reserved: earlier releases lent all workers of a node one more file by this name. */
#define WORKER_MEMORY_CACHE_ENVIRONMENT "CRUN_CACHE_FD"
/* The key of the job, 32 bytes in a sealed file; workers of a job without a secret have none. Derived from the secret for this
 * purpose alone (KEY_WORKER). */
#define WORKER_MEMORY_KEY_ENVIRONMENT "CRUN_KEY_FD"
/* 1, beside a key: workers encrypt with it what they send to other hosts, unless the user's CRW_ENCRYPT is set (--seal). A variable of
 * its own, so that an inner crun can drop what an outer one has set without dropping what the user has. */
#define WORKER_MEMORY_SEAL_ENVIRONMENT "CRUN_SEAL"
