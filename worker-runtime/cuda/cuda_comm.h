#pragma once

/*
 * A communicator of GPUs over NCCL: struct backend_comm of backend_os.h. cuda_comm_init.h decides how it comes
 * into being, cuda_comm_start.c carries that out, cuda_comm.c uses it, watches it and ends it.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/cuda/cuda_comm_init.h"
#include "worker-runtime/cuda/cuda_nccl_api.h"

/* 4 MiB: enough for the algorithm, the channels and the direct transfers that gradients take. */
enum { COMM_PROBE_FLOATS = 1 << 20 };

struct backend_comm {
    struct backend_comm_options options; /* name and library are ours */
    struct nccl_api api;
    nccl_comm nccl; /* NULL: alone, or broken off */

    /* The probe: two all-reduces of COMM_PROBE_FLOATS each, the second timed. */
    cudaStream_t stream;
    cudaEvent_t probe_began, probe_ended, probed;
    float *probe, *host_probe; /* on the device; pinned */
    double bus_bytes_per_s;    /* of the second; 0: it was too short to be measured, or there is one rank */
    char description[128];

    pthread_t watcher;
    bool watching;
    atomic_bool stop;

    pthread_mutex_t
        lock; /* of what is below, and of the guarded trainer's graphs; held from enter to leave */
    atomic_bool
        failed; /* nothing is launched any more; read without the lock, too, which a break-off holds long */
    char why[320];   /* this and the next do not change once failed is set */
    int result;      /* CRW_E_PEER: the group is over; -EIO: NCCL failed on this rank */
    bool broken_off; /* what was launched has been released, or never will be: */
    bool stuck;      /* a step that is in flight refers to the communicator, which stays */
    struct backend_trainer *guarded;
};

/* Runs the machine to its end. 0, or a sentence and nothing left. */
int comm_start(struct backend_comm *c);

/* Ends an NCCL communicator whatever state it is in; gives up waiting for that after a while (the library can
 * hang in it; the process must then end). No graph may hold its collectives any more: NCCL waits for such a graph, or
 * frees what the graph's end touches. NULL is fine. */
void comm_release(const struct nccl_api *api, nccl_comm nccl, int device);

/* NCCL's result and, where it keeps one, the text of its last error. */
struct comm_error_text {
    char text[256];
} comm_error_text(const struct backend_comm *c, int result);

bool comm_fd_failed(int fd);
void comm_sleep_ms(int ms);

int cuda_comm_create(const struct backend_comm_options *options, struct backend_comm **ret);
void cuda_comm_destroy(struct backend_comm *c);
void cuda_comm_reducer(struct backend_comm *c, struct backend_reducer *ret);
void cuda_comm_guard(struct backend_comm *c, struct backend_trainer *trainer);
int cuda_comm_check(struct backend_comm *c);
const char *cuda_comm_describe(struct backend_comm *c);
