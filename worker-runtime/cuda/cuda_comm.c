/*
 * Using, watching and ending a communicator.
 *
 * Happy path: created, sums gradients on the trainer's stream, destroyed. Ways it fails: NCCL reports an error, or
 * failed_fd becomes readable because the group is over (a killed peer on the same host produces no error at all: only
 * the launcher sees it). From then on nothing is launched, and what was launched is broken off: revoked, and aborted
 * where revoking does not release it. Sums that were broken off are wrong, here and on every peer: taking a step needs
 * the agreement of all ranks that all sums were complete before any rank failed (device_os.c).
 *
 * Revoking raises NCCL's abort flag, waits for the kernels that run and lowers the flag again. A kernel that starts
 * later is released by nothing. So a step launched a moment before gets some time to come to the collective. If the
 * step hangs all the same, step and communicator stay until the process ends: the trainer's state can be saved
 * meanwhile.
 *
 * Captured collectives refer to the communicator, so the graphs are always destroyed first: abort would wait for
 * graphs, and behind a revoke abort would free memory of the graphs without waiting.
 */

#include "worker-runtime/cuda/cuda_comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock_os.h"
#include "base/time.h"
#include "worker-runtime/cuda/cuda_trainer.h"
#include "worker-runtime/base/error.h"

enum {
    WATCH_MS = 10,
    REVOKE_MS = 5000,
    ARRIVE_MS = 100, /* for a step that was launched to come to its collective */
    STUCK_MS = 1000, /* for a collective that was released to end */
    GRAPHS_MS = 20,
    SPIN_NS = 200000
};

/* ---- failing ---- */

struct comm_error_text comm_error_text(const struct backend_comm *c, int result)
{
    struct comm_error_text t;
    const char *last = c->api.last_error(c->nccl);
    const int n = last ? (int)strcspn(last, "\n") : 0; /* one message is one line */
    (void)snprintf(t.text, sizeof(t.text), "%s%s%.*s%s", c->api.error_string(result), n ? " (" : "", n,
                   n ? last : "", n ? ")" : "");
    return t;
}

/* Waits until a call that returned at once has finished, or failed_fd is readable because the call never will: NCCL's
 * result then. Without a pause at first: every call is in progress when it returns, and most are done within microseconds. */
static int settle(const struct backend_comm *c, int result, int timeout_ms, int failed_fd)
{
    const int64_t began = (int64_t)now_ns(), deadline = began + timeout_ms * (int64_t)1000000;
    while (result == NCCL_IN_PROGRESS && !comm_fd_failed(failed_fd)) {
        int asked = c->api.comm_error(c->nccl, &result);
        const int64_t now = (int64_t)now_ns();
        if (asked != NCCL_SUCCESS)
            return asked;
        if (now >= deadline)
            break;
        if (result == NCCL_IN_PROGRESS && now - began > SPIN_NS)
            comm_sleep_ms(1);
    }
    return result;
}

/* Caller holds the lock. */
static void release_nccl(struct backend_comm *c)
{
    const bool had_graphs = c->guarded && cuda_trainer_forget_graphs(c->guarded);
    if (had_graphs)
        comm_sleep_ms(GRAPHS_MS); /* CUDA runs NCCL's destructors of graphs a moment later */
    if (!c->stuck)
        comm_release(&c->api, c->nccl, c->options.device);
    c->nccl = NULL;
}

/* Caller holds the lock. */
static bool ends_within(const struct backend_comm *c, int ms)
{
    for (int waited = 0; c->guarded && cuda_trainer_is_reducing(c->guarded); waited++) {
        if (waited == ms)
            return false;
        comm_sleep_ms(1);
    }
    return true;
}

/* A call in progress does not end, for example a connection to a dead peer: NCCL's revoke leaves the call's job behind
 * dangling, and abort does not. Caller holds the lock. */
static bool is_in_call(const struct backend_comm *c)
{
    return settle(c, NCCL_IN_PROGRESS, ARRIVE_MS, -1) == NCCL_IN_PROGRESS;
}

/* True: NCCL took the call, whatever became of it. Caller holds the lock. */
static bool revoke_nccl(struct backend_comm *c)
{
    if (!c->nccl || !c->api.comm_revoke || is_in_call(c))
        return false;
    const int result = c->api.comm_revoke(c->nccl, 0);
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        return false;
    c->stuck = settle(c, result, REVOKE_MS, -1) != NCCL_SUCCESS || !ends_within(c, STUCK_MS);
    return true;
}

/* Releases kernels that wait for a peer: revokes, or aborts where the library cannot. Caller holds the lock. */
static void break_off(struct backend_comm *c)
{
    if (c->broken_off)
        return;
    c->broken_off = true;
    (void)ends_within(c, ARRIVE_MS); /* mostly not: the step comes to the collective and waits there */
    if (!revoke_nccl(c))
        release_nccl(c);
}

/* From here on no step is launched. Caller holds the lock. */
static void close_down(struct backend_comm *c, int result, const char *what, const char *detail)
{
    if (atomic_load(&c->failed))
        return;
    (void)snprintf(c->why, sizeof(c->why), "%s%s%s", what, detail[0] ? ": " : "", detail);
    c->result = result;
    atomic_store(&c->failed, true);
}

static void *watch_main(void *data)
{
    struct backend_comm *c = data;
    if (c->options.world_size > 1)
        (void)cudaSetDevice(c->options.device); /* else NCCL's calls here make a context on device 0 */
    while (!atomic_load(&c->stop)) {
        int error = NCCL_SUCCESS;
        pthread_mutex_lock(&c->lock);
        if (!atomic_load(&c->failed) && comm_fd_failed(c->options.failed_fd))
            close_down(c, CRW_E_PEER, "the group is over", "");
        if (!atomic_load(&c->failed) && c->nccl && c->api.comm_error(c->nccl, &error) == NCCL_SUCCESS &&
            error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS)
            close_down(c, -EIO, "NCCL reports an error", comm_error_text(c, error).text);
        if (atomic_load(&c->failed))
            break_off(c);
        pthread_mutex_unlock(&c->lock);
        comm_sleep_ms(WATCH_MS);
    }
    return NULL;
}

static void stop_watching(struct backend_comm *c)
{
    if (!c->watching)
        return;
    atomic_store(&c->stop, true);
    (void)pthread_join(c->watcher, NULL); /* not joined yet */
    c->watching = false;
}

/* ---- making and ending ---- */

static cudaError_t make_probe(struct backend_comm *c)
{
    void *probe = NULL, *host_probe = NULL;
    const size_t n_bytes = COMM_PROBE_FLOATS * sizeof(float);
    TRY(cudaSetDevice(c->options.device));
    TRY(cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, 0));
    TRY(cudaEventCreateWithFlags(&c->probe_began, cudaEventDefault));
    TRY(cudaEventCreateWithFlags(&c->probe_ended, cudaEventDefault));
    TRY(cudaEventCreateWithFlags(&c->probed, cudaEventDisableTiming));
    TRY(cudaMalloc(&probe, n_bytes));
    c->probe = probe;
    TRY(cudaHostAlloc(&host_probe, 2 * n_bytes, 0));
    c->host_probe = host_probe;
    return cudaSuccess;
}

/* Frees what the struct has, whatever that is. */
static void discard_comm(struct backend_comm *c)
{
    stop_watching(c);
    pthread_mutex_lock(&c->lock);
    release_nccl(c);
    pthread_mutex_unlock(&c->lock);
    if (c->stream)
        (void)cudaStreamDestroy(c->stream); /* errors at the end have nowhere to go */
    const cudaEvent_t events[] = {c->probe_began, c->probe_ended, c->probed};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    if (!c->stuck) { /* freeing waits for the device */
        (void)cudaFree(c->probe);
        (void)cudaFreeHost(c->host_probe);
    }
    (void)pthread_mutex_destroy(&c->lock);
    free((char *)(uintptr_t)c->options.name);
    free((char *)(uintptr_t)c->options.library);
    free(c);
}

static int begin_watching(struct backend_comm *c)
{
    int error = pthread_create(&c->watcher, NULL, watch_main, c);
    c->watching = error == 0;
    return error ? crw_fail_errno(-error, "cannot watch a communicator") : 0;
}

static int check_comm_options(const struct backend_comm_options *o)
{
    if (o->world_size < 1 || o->rank < 0 || o->rank >= o->world_size || o->n_attempts < 1 ||
        o->timeout_ms < 1)
        return crw_fail(CRW_E_ARGUMENT, "a communicator for rank %d of %d, %d attempts of %d ms", o->rank,
                        o->world_size, o->n_attempts, o->timeout_ms);
    return 0;
}

/* A communicator of one needs no NCCL at all. */
static int connect_nccl(struct backend_comm *c)
{
    if (c->options.world_size == 1)
        return 0;
    TRY(nccl_api_open(c->options.library, &c->api));
    if (c->options.shared_gpu && c->api.version < NCCL_VERSION_SHARED_GPU)
        nccl_name_own_host();
    cudaError_t made = make_probe(c);
    if (made != cudaSuccess)
        return cuda_fail(made, "cannot use the device for communication");
    return comm_start(c);
}

int cuda_comm_create(const struct backend_comm_options *options, struct backend_comm **ret)
{
    int r = check_comm_options(options);
    if (r)
        return r;
    struct backend_comm *c = calloc(1, sizeof(*c));
    if (!c)
        return crw_fail_errno(-ENOMEM, "cannot make a communicator");
    c->options = *options;
    c->options.name = strdup(options->name);
    c->options.library = options->library ? strdup(options->library) : NULL;
    (void)pthread_mutex_init(&c->lock, NULL); /* cannot fail with default attributes */
    if (!c->options.name || (options->library && !c->options.library))
        r = crw_fail_errno(-ENOMEM, "cannot make a communicator");
    if (r == 0)
        r = connect_nccl(c);
    if (r == 0)
        r = begin_watching(c);
    if (r) {
        discard_comm(c);
        return r;
    }
    *ret = c;
    return 0;
}

void cuda_comm_destroy(struct backend_comm *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    close_down(c, CRW_E_PEER, "the communicator was destroyed", "");
    pthread_mutex_unlock(&c->lock);
    discard_comm(c);
}

/* ---- using ---- */

static int fail_reduce(const struct backend_comm *c)
{
    return crw_fail(c->result, "rank %d cannot sum gradients (%s): %s", c->options.rank, c->options.name,
                    c->why);
}

/* reducer->enter: keeps the lock on success. */
static int reduce_enter(void *comm)
{
    struct backend_comm *c = comm;
    if (atomic_load(&c->failed)) /* not behind a break-off, which may take seconds */
        return fail_reduce(c);
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->failed))
        return 0;
    pthread_mutex_unlock(&c->lock);
    return fail_reduce(c);
}

static void reduce_leave(void *comm)
{
    struct backend_comm *c = comm;
    if (atomic_load(&c->failed))
        break_off(c);
    pthread_mutex_unlock(&c->lock);
}

/* Caller holds the lock, from enter. A failure is broken off by leave only: the stream may be in a capture. */
static int reduce_sum(void *comm, float *values, size_t count, void *stream)
{
    struct backend_comm *c = comm;
    if (c->options.world_size == 1)
        return 0;
    if (atomic_load(&c->failed))
        return fail_reduce(c);
    int result = settle(c, c->api.all_reduce(values, values, count, NCCL_FLOAT32, NCCL_SUM, c->nccl, stream),
                        c->options.timeout_ms, c->options.failed_fd);
    if (result == NCCL_SUCCESS)
        return 0;
    if (comm_fd_failed(c->options.failed_fd)) /* the awaited peer is gone */
        close_down(c, CRW_E_PEER, "the group is over", "");
    else
        close_down(c, -EIO, "NCCL refused an all-reduce", comm_error_text(c, result).text);
    return fail_reduce(c);
}

void cuda_comm_reducer(struct backend_comm *c, struct backend_reducer *ret)
{
    *ret = (struct backend_reducer){.enter = reduce_enter,
                                    .sum = reduce_sum,
                                    .leave = reduce_leave,
                                    .data = c,
                                    .n_ranks = c->options.world_size};
}

void cuda_comm_guard(struct backend_comm *c, struct backend_trainer *trainer)
{
    hold_lock(&c->lock);
    if (c->guarded && c->guarded != trainer)
        (void)cuda_trainer_forget_graphs(c->guarded); /* whether there were any */
    c->guarded = trainer;
}

const char *cuda_comm_describe(struct backend_comm *c)
{
    const int v = c->api.version;
    if (c->options.world_size == 1)
        return "";
    (void)snprintf(c->description, sizeof(c->description),
                   "NCCL %d.%d.%d; an all-reduce of %d MiB over %d GPUs moves %.3g GB/s", v / 10000,
                   v / 100 % 100, v % 100, (int)(COMM_PROBE_FLOATS * sizeof(float) >> 20),
                   c->options.world_size, 1e-9 * c->bus_bytes_per_s);
    return c->description;
}

int cuda_comm_check(struct backend_comm *c)
{
    if (!atomic_load(&c->failed))
        return 0;
    return crw_fail(c->result, "the communicator of rank %d (%s) is over: %s", c->options.rank,
                    c->options.name, c->why);
}
