/*
 * Using, watching and ending a communicator.
 *
 * Happy path: created, averages gradients on the trainer's stream, destroyed. Ways it dies: NCCL reports an
 * error, or failed_fd says that the group is over (a killed peer on the same host produces no error at all:
 * only the launcher sees it). The order is then always the same: first the trainer's poison word, then the
 * collective is broken off. The other way round an optimizer behind it would run on garbage.
 */

#include "worker-runtime/cuda/cuda_comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/cuda/cuda_trainer.h"
#include "worker-runtime/base/error.h"

enum { WATCH_MS = 10, REVOKE_MS = 5000, PROBE_BYTES = 64 };

/* ------------------------------------------------------------------ failing */

/* Waits until a call that returned at once has finished, or failed_fd says that it never will; what NCCL says
 * then. */
static int settle(const struct backend_comm *c, int result, int timeout_ms, int failed_fd)
{
    for (int waited = 0; result == NCCL_IN_PROGRESS && waited < timeout_ms && !comm_fd_failed(failed_fd);
         waited++) {
        int asked = c->api.comm_error(c->nccl, &result);
        if (asked != NCCL_SUCCESS)
            return asked;
        if (result == NCCL_IN_PROGRESS)
            comm_sleep_ms(1);
    }
    return result;
}

/* Releases kernels that wait for a peer. Revoking keeps a communicator to shrink; where the library cannot,
 * it is aborted, and what comes after begins afresh. */
static void break_off(struct backend_comm *c)
{
    if (c->nccl && c->api.comm_revoke &&
        settle(c, c->api.comm_revoke(c->nccl, 0), REVOKE_MS, -1) == NCCL_SUCCESS)
        return;
    comm_release(&c->api, c->nccl);
    c->nccl = NULL;
}

/* No step is taken any more. With the lock held. */
static void close_down(struct backend_comm *c, const char *what, const char *detail)
{
    c->failed = true;
    (void)snprintf(c->why, sizeof(c->why), "%s%s%s", what, detail[0] ? ": " : "", detail);
    if (c->guarded)
        cuda_trainer_poison(c->guarded);
}

/* With the lock held. */
static void fail(struct backend_comm *c, const char *what, const char *detail)
{
    close_down(c, what, detail);
    break_off(c);
}

static void *watch_main(void *data)
{
    struct backend_comm *c = data;
    while (!atomic_load(&c->stop)) {
        int error = NCCL_SUCCESS;
        pthread_mutex_lock(&c->lock);
        if (!c->failed && comm_fd_failed(c->options.failed_fd))
            fail(c, "the group is over", "");
        if (!c->failed && c->nccl && c->api.comm_error(c->nccl, &error) == NCCL_SUCCESS &&
            error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS)
            fail(c, "NCCL reports an error", c->api.error_string(error));
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
    (void)pthread_join(c->watcher, NULL); /* it is ours and not joined yet */
    c->watching = false;
}

/* ------------------------------------------------------------------ making and ending */

static cudaError_t make_probe(struct backend_comm *c)
{
    void *probe = NULL;
    cudaError_t r = cudaSetDevice(c->options.device);
    if (r == cudaSuccess)
        r = cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, 0);
    if (r == cudaSuccess)
        r = cudaEventCreateWithFlags(&c->probed, cudaEventDisableTiming);
    if (r == cudaSuccess)
        r = cudaMalloc(&probe, PROBE_BYTES);
    c->probe = probe;
    return r;
}

/* Frees what the struct has, whatever that is. */
static void discard(struct backend_comm *c)
{
    stop_watching(c);
    comm_release(&c->api, c->nccl);
    if (c->stream)
        (void)cudaStreamDestroy(c->stream); /* errors at the end have nowhere to go */
    if (c->probed)
        (void)cudaEventDestroy(c->probed);
    (void)cudaFree(c->probe);
    nccl_api_close(&c->api);
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

static int check_options(const struct backend_comm_options *o, int rank, int world_size)
{
    if (world_size < 1 || rank < 0 || rank >= world_size || o->n_attempts < 1 || o->timeout_ms < 1)
        return crw_fail(CRW_E_ARGUMENT, "a communicator for rank %d of %d, %d attempts of %d ms", rank,
                        world_size, o->n_attempts, o->timeout_ms);
    return 0;
}

/* A communicator of one needs no NCCL at all. */
static int connect(struct backend_comm *c, const struct comm_start *start)
{
    if (c->world_size == 1)
        return 0;
    int r = nccl_api_open(c->options.library, &c->api);
    if (r)
        return r;
    /* What the library is too old for begins afresh. */
    struct comm_start possible = *start;
    const bool grown = start->origin == COMM_GROWN, shrunk = start->origin == COMM_SHRUNK;
    if ((shrunk && (!c->api.comm_shrink || !start->parent)) || (grown && !c->api.comm_grow))
        possible.origin = COMM_FRESH;
    cudaError_t made = make_probe(c);
    if (made != cudaSuccess)
        return cuda_fail(made, "cannot use the device for communication");
    return comm_start(c, &possible);
}

static int make(const struct backend_comm_options *options, int rank, int world_size,
                const struct comm_start *start, struct backend_comm **ret)
{
    int r = check_options(options, rank, world_size);
    if (r)
        return r;
    struct backend_comm *c = calloc(1, sizeof(*c));
    if (!c)
        return crw_fail_errno(-ENOMEM, "cannot make a communicator");
    c->options = *options;
    c->options.name = strdup(options->name);
    c->options.library = options->library ? strdup(options->library) : NULL;
    c->rank = rank;
    c->world_size = world_size;
    (void)pthread_mutex_init(&c->lock, NULL); /* cannot fail with default attributes */
    if (!c->options.name || (options->library && !c->options.library))
        r = crw_fail_errno(-ENOMEM, "cannot make a communicator");
    if (r == 0)
        r = connect(c, start);
    if (r == 0)
        r = begin_watching(c);
    if (r) {
        discard(c);
        return r;
    }
    *ret = c;
    return 0;
}

int cuda_comm_create(const struct backend_comm_options *options, struct backend_comm **ret)
{
    return make(options, options->rank, options->world_size, &(struct comm_start){.origin = COMM_FRESH}, ret);
}

void cuda_comm_destroy(struct backend_comm *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    close_down(c, "the communicator was destroyed", "");
    pthread_mutex_unlock(&c->lock);
    discard(c);
}

/* ------------------------------------------------------------------ using */

static int fail_average(struct backend_comm *c)
{
    return crw_fail(CRW_E_PEER, "rank %d cannot average gradients (%s): %s", c->rank, c->options.name,
                    c->why);
}

int cuda_comm_average(void *comm, float *values, size_t count, void *stream)
{
    struct backend_comm *c = comm;
    int r = 0;
    pthread_mutex_lock(&c->lock);
    if (!c->failed && c->world_size > 1) {
        int result =
            settle(c, c->api.all_reduce(values, values, count, NCCL_FLOAT32, NCCL_AVG, c->nccl, stream),
                   c->options.timeout_ms, c->options.failed_fd);
        if (result != NCCL_SUCCESS)
            fail(c, "NCCL refused an all-reduce", c->api.error_string(result));
    }
    if (c->failed)
        r = fail_average(c);
    pthread_mutex_unlock(&c->lock);
    return r;
}

void cuda_comm_guard(struct backend_comm *c, struct backend_trainer *trainer)
{
    pthread_mutex_lock(&c->lock);
    c->guarded = trainer;
    if (trainer && c->failed)
        cuda_trainer_poison(trainer);
    pthread_mutex_unlock(&c->lock);
}

int cuda_comm_check(struct backend_comm *c)
{
    int r = 0;
    pthread_mutex_lock(&c->lock);
    if (c->failed)
        r = crw_fail(CRW_E_PEER, "the communicator of rank %d (%s) is over: %s", c->rank, c->options.name,
                     c->why);
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* ------------------------------------------------------------------ other sizes */

/* This rank among those that are not excluded; -1: it is excluded itself, or the list is nonsense. */
static int rank_among_rest(const struct backend_comm *c, const int *excluded, int n_excluded)
{
    int rank = c->rank;
    for (int i = 0; i < n_excluded; i++) {
        if (excluded[i] < 0 || excluded[i] >= c->world_size || excluded[i] == c->rank)
            return -1;
        rank -= excluded[i] < c->rank;
    }
    return rank;
}

int cuda_comm_shrink(struct backend_comm *c, const int *excluded, int n_excluded,
                     const struct backend_comm_options *options, struct backend_comm **ret)
{
    const int rank = rank_among_rest(c, excluded, n_excluded);
    if (rank < 0 || n_excluded < 1)
        return crw_fail(CRW_E_ARGUMENT, "rank %d of %d cannot go on without the %d ranks named", c->rank,
                        c->world_size, n_excluded);
    stop_watching(c);
    const struct comm_start start = {
        .origin = COMM_SHRUNK, .parent = c->nccl, .excluded = excluded, .n_excluded = n_excluded};
    int r = make(options, rank, c->world_size - n_excluded, &start, ret);
    if (r == 0)
        cuda_comm_destroy(c);
    return r;
}

int cuda_comm_grow(struct backend_comm *c, int n_before, const struct backend_comm_options *options,
                   struct backend_comm **ret)
{
    const int rank = c ? c->rank : options->rank;
    if (options->world_size <= n_before || (c ? n_before != c->world_size : rank < n_before))
        return crw_fail(CRW_E_ARGUMENT, "rank %d cannot grow a group of %d to %d", rank, n_before,
                        options->world_size);
    if (c)
        stop_watching(c);
    /* A communicator of one has no parent in NCCL to grow from; everybody knows n_before, so all begin
     * afresh. */
    const struct comm_start start = {.origin = n_before == 1 ? COMM_FRESH : COMM_GROWN,
                                     .parent = c ? c->nccl : NULL};
    int r = make(options, rank, options->world_size, &start, ret);
    if (r == 0 && c)
        cuda_comm_destroy(c);
    return r;
}
