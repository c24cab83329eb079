#pragma once

/*
 * NCCL without GPUs: a shared object with the same symbols, whose ranks are processes that share one piece of
 * memory. It keeps NCCL's manners as far as we rely on them (calls that return at once, errors that come
 * later, a revoked communicator that takes no call any more) and fails as the memory asks for.
 *
 * The test makes the memory before it forks and passes its file descriptor by FAKE_NCCL_FD, or a file of that
 * content by FAKE_NCCL_FILE.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_RANKS = 4, FAKE_GROUPS = 32, FAKE_FLOATS = 1 << 20, FAKE_NONE = -1 };

/* One rank's misfortune, counted in the communicators of the job (its first has number 0). */
enum fake_fault {
    FAULT_NONE,
    FAULT_ID,             /* no id can be made */
    FAULT_INIT_REFUSED,   /* the call itself fails */
    FAULT_INIT_ERROR,     /* it fails while in progress */
    FAULT_INIT_FOR_EVER,  /* it stays in progress */
    FAULT_REDUCE_REFUSED, /* an all-reduce is refused */
    FAULT_REDUCE_HANGS,   /* this rank never comes to an all-reduce */
    FAULT_ASYNC_ERROR,    /* the communicator reports an error once it is in use */
    FAULT_REVOKE,         /* revoking fails */
    FAULT_ABORT_HANGS,    /* aborting never returns */
    FAULT_SLOW_ERROR,     /* asking for the error takes long once the communicator is in use */
    FAULT_WRONG_SUM,      /* an all-reduce gives a wrong number */
    FAULT_DEAF,           /* a collective that waits is released by nothing: its kernel hangs */
    FAULT_CALL_HANGS, /* the call of an all-reduce stays in progress, as one that connects to a dead peer */
    FAULT_COUNT
};

struct fake_group {
    int n_ranks;
    int n_joined;
    bool joined[FAKE_RANKS];
    uint64_t host[FAKE_RANKS];   /* each rank's host, as NCCL knows hosts apart */
    int device[FAKE_RANKS];      /* each rank's device there */
    uint64_t posted[FAKE_RANKS]; /* all-reduces this rank has come to */
    bool arrived[FAKE_RANKS];    /* the last of them is complete on this rank */
    uint64_t cut;                /* all-reduces up to this one complete with what the buffers hold */
    float data[FAKE_RANKS][2][FAKE_FLOATS];
};

struct fake_nccl {
    int version;
    enum fake_fault fault;
    int fault_rank;
    int n_faults_left;
    uint64_t fault_from; /* all-reduces of a communicator that pass before a fault of one */

    pthread_mutex_t lock; /* of what is below, and of n_faults_left */
    int n_groups;
    /* What happened, for the tests. */
    int n_ids, n_aborts, n_revokes;
    int n_waits_for_graphs;                /* aborts that had to wait for graphs with captured collectives */
    int n_calls_in_flight;                 /* all-reduces that FAULT_CALL_HANGS has struck */
    int n_wrong_devices;                   /* calls by threads with another device than the communicator's */
    struct fake_group groups[FAKE_GROUPS]; /* last: most of it is data, which need not be cleared */
};
