/*
 * The fake libnccl.so.2; see fake_nccl.h. An id is the number of a group in shared memory. An all-reduce is
 * work on the emulated stream that is done when every rank has come.
 *
 * A collective that is broken off, as in NCCL's sources, and therefore here:
 *   - Its kernel does not stop sending when it sees the abort flag: it hands on what its buffers hold, with valid
 *     flags. So the peers' part of the collective completes too, with the values of an earlier one: finite numbers,
 *     and no error (struct fake_group, cut).
 *   - Revoke raises the flag for the kernels that run, waits for them, and lowers it again: a kernel that starts
 *     later waits for its dead peer until the communicator is aborted.
 *   - Revoke frees the job of a call that is still in progress and goes on referring to it; the next call touches it.
 *   - Abort keeps the flag up, waits until no graph holds a captured collective, and frees the communicator; after
 *     a revoke it frees it at once, and a graph that goes later touches freed memory.
 */

#include "tests/fakes/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    SYSTEM_ERROR = 2,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
    IN_PROGRESS = 7
};

enum { SLOW_US = 300000, GRAPHS_MS = 200, SHARED_GPU_VERSION = 23003 };

typedef struct ncclComm {
    struct fake_group *group;
    int rank, n_ranks;
    int device;   /* of the thread that made it */
    bool in_call; /* a call is in progress, and stays so */
    int state;    /* the result of ncclCommGetAsyncError() */
    bool revoked, aborted;
    uint64_t n_reduces;
    uint64_t n_cut; /* all-reduces up to this one were released by revoking */
    int n_asked;    /* how often that was "in progress" */
    int n_works;    /* all-reduces that a stream or a graph holds; the memory stays as long */
    int n_captured; /* those that were captured */
    bool freed;
} * ncclComm_t;

typedef struct {
    int group;
    char rest[124];
} ncclUniqueId;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;

int ncclGetVersion(int *version);
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
/* With the lock held. Another rank has the same GPU of the same host: refused before 2.30.3, and later without leave. */
static bool has_duplicate(ncclComm_t comm)
{
    const struct fake_group *g = comm->group;
    const char *leave = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int version = 0;
    (void)ncclGetVersion(&version);
    if (version >= SHARED_GPU_VERSION && leave && strcmp(leave, "1") == 0)
        return false;
    for (int rank = 0; rank < comm->n_ranks; rank++)
        if (rank != comm->rank && g->host[rank] == g->host[comm->rank] &&
            g->device[rank] == g->device[comm->rank])
            return true;
    return false;
}

int ncclCommGetAsyncError(ncclComm_t comm, int *error);
int ncclCommAbort(ncclComm_t comm);
int ncclCommRevoke(ncclComm_t comm, int flags);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm,
                  cudaStream_t stream);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(ncclComm_t comm);

static struct fake_nccl *fake(void)
{
    static struct fake_nccl *memory;
    const char *number = getenv("FAKE_NCCL_FD"), *path = getenv("FAKE_NCCL_FILE");
    if (!memory && (number || path)) {
        int fd = number ? atoi(number) : open(path, O_RDWR | O_CLOEXEC);
        void *mapped = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        memory = mapped == MAP_FAILED ? NULL : mapped;
    }
    if (!memory) {
        (void)fprintf(stderr, "fake NCCL: FAKE_NCCL_FD or FAKE_NCCL_FILE names no memory\n");
        abort();
    }
    return memory;
}

static void lock(void)
{
    if (pthread_mutex_lock(&fake()->lock) == EOWNERDEAD) /* a rank was killed with it */
        (void)pthread_mutex_consistent(&fake()->lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&fake()->lock);
}

/* With the lock held. True: this is where it goes wrong. */
static bool strikes(enum fake_fault fault, int rank)
{
    struct fake_nccl *f = fake();
    if (f->fault != fault || f->fault_rank != rank || f->n_faults_left == 0)
        return false;
    f->n_faults_left--;
    return true;
}

int ncclGetVersion(int *version)
{
    const char *other = getenv("FAKE_NCCL_VERSION");
    *version = other ? atoi(other) : fake()->version;
    return SUCCESS;
}

static int new_group(int n_ranks)
{
    struct fake_nccl *f = fake();
    if (f->n_groups == FAKE_GROUPS)
        return -1;
    memset(&f->groups[f->n_groups], 0, offsetof(struct fake_group, data));
    f->groups[f->n_groups].n_ranks = n_ranks;
    return f->n_groups++;
}

int ncclGetUniqueId(ncclUniqueId *id)
{
    lock();
    bool refused = strikes(FAULT_ID, 0);
    if (!refused) {
        *id = (ncclUniqueId){.group = new_group(0)};
        fake()->n_ids++;
    }
    unlock();
    return refused ? SYSTEM_ERROR : SUCCESS;
}

/* NCCL reads the name once; without it all ranks are on one host. */
static uint64_t host_of_process(void)
{
    static uint64_t hash;
    const char *name = getenv("NCCL_HOSTID");
    if (hash == 0) {
        hash = 5381;
        for (; name && *name; name++)
            hash = hash * 33 + (unsigned char)*name;
    }
    return hash;
}

/* With the lock held. */
static int join(ncclComm_t *ret, int group, int n_ranks, int rank, const ncclConfig_t *config)
{
    if (config->magic != 0xcafebeef || config->blocking != 0 || group < 0 || rank < 0 || rank >= n_ranks ||
        n_ranks > FAKE_RANKS)
        return INVALID_ARGUMENT;
    ncclComm_t comm = calloc(1, sizeof(*comm));
    if (!comm)
        return SYSTEM_ERROR;
    *comm = (struct ncclComm){&fake()->groups[group], .rank = rank, .n_ranks = n_ranks, .state = IN_PROGRESS};
    comm->device = cuda_host_device();
    comm->group->n_ranks = n_ranks;
    if (!comm->group->joined[rank])
        comm->group->n_joined++;
    comm->group->joined[rank] = true;
    comm->group->host[rank] = host_of_process();
    comm->group->device[rank] = comm->device;
    if (strikes(FAULT_INIT_FOR_EVER, rank))
        comm->n_asked = -1000000;
    *ret = comm;
    return IN_PROGRESS;
}

int ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    lock();
    int r = strikes(FAULT_INIT_REFUSED, rank) ? SYSTEM_ERROR : join(comm, id.group, n_ranks, rank, config);
    unlock();
    return r;
}

int ncclCommGetAsyncError(ncclComm_t comm, int *error)
{
    const struct fake_nccl *f = fake();
    if (f->fault == FAULT_SLOW_ERROR && f->fault_rank == comm->rank && comm->n_reduces > f->fault_from)
        (void)usleep(SLOW_US);
    lock();
    if (comm->state == IN_PROGRESS && strikes(FAULT_INIT_ERROR, comm->rank))
        comm->state = SYSTEM_ERROR;
    /* Never at the first time of asking. */
    if (comm->state == IN_PROGRESS && ++comm->n_asked > 2 && comm->group->n_joined == comm->n_ranks)
        comm->state = has_duplicate(comm) ? INVALID_USAGE : SUCCESS;
    if (comm->n_reduces > fake()->fault_from && strikes(FAULT_ASYNC_ERROR, comm->rank))
        comm->state = REMOTE_ERROR;
    *error = comm->state;
    unlock();
    return SUCCESS;
}

/* With the lock held. A peer that waits for this rank's part of an all-reduce that runs gets what the buffers hold. */
static void cut_off(ncclComm_t comm)
{
    if (fake()->fault == FAULT_DEAF && fake()->fault_rank == comm->rank)
        return;
    if (comm->n_reduces > comm->group->cut && !comm->group->arrived[comm->rank])
        comm->group->cut = comm->n_reduces;
}

/* With the lock held. Real NCCL makes a context on the device of the thread that calls it. */
static void check_device(ncclComm_t comm)
{
    fake()->n_wrong_devices += cuda_host_device() != comm->device;
}

static void free_if_unused(ncclComm_t comm)
{
    if (comm->freed && comm->n_works == 0)
        free(comm);
}

/* A launch that the flag has released lets go of its graph soon; a graph that the program keeps does not. */
static void wait_for_graphs(ncclComm_t comm)
{
    for (int ms = 0; !comm->revoked && comm->n_captured > 0; ms++) {
        if (ms == GRAPHS_MS) {
            fake()->n_waits_for_graphs++;
            (void)fprintf(stderr, "fake NCCL: rank %d: abort waits for %d captured collectives in graphs\n",
                          comm->rank, comm->n_captured);
        }
        unlock();
        cuda_host_run();
        (void)usleep(1000);
        lock();
    }
}

int ncclCommAbort(ncclComm_t comm)
{
    lock();
    bool hangs = strikes(FAULT_ABORT_HANGS, comm->rank);
    check_device(comm);
    cut_off(comm);
    comm->aborted = true;
    fake()->n_aborts++;
    if (!hangs) {
        wait_for_graphs(comm);
        comm->freed = true;
        free_if_unused(comm);
    }
    unlock();
    while (hangs)
        pause();
    return SUCCESS;
}

int ncclCommRevoke(ncclComm_t comm, int flags)
{
    lock();
    check_device(comm);
    if (comm->in_call) {
        (void)fprintf(stderr, "fake NCCL: rank %d: revoked while a call is in progress\n", comm->rank);
        abort();
    }
    bool refused = strikes(FAULT_REVOKE, comm->rank) || comm->revoked || flags != 0;
    if (!refused) {
        cut_off(comm);
        comm->revoked = true;
        comm->n_cut = comm->n_reduces;
        comm->state = IN_PROGRESS;
        comm->n_asked = 0;
        fake()->n_revokes++;
    }
    unlock();
    return refused ? INVALID_ARGUMENT : SUCCESS;
}

/* ---- all-reduce ---- */

/* One for each call; graphs replay it. */
struct reduce {
    ncclComm_t comm;
    float *values;
    size_t count;
    bool captured;
    uint64_t number; /* of the one in flight; 0: none */
};

static bool all_have_come(const struct reduce *r)
{
    for (int rank = 0; rank < r->comm->n_ranks; rank++)
        if (r->comm->group->posted[rank] < r->number)
            return false;
    return true;
}

/* Where a rank has not come, with what it left in an earlier all-reduce. */
static void sum_up(const struct reduce *r)
{
    const ncclComm_t comm = r->comm;
    for (size_t i = 0; i < r->count; i++) {
        float sum = 0;
        for (int rank = 0; rank < comm->n_ranks; rank++)
            sum += comm->group->data[rank][r->number % 2][i];
        r->values[i] = sum;
    }
}

/* With the lock held. False: it waits for ever. */
static bool begin(struct reduce *r)
{
    const ncclComm_t comm = r->comm;
    struct fake_nccl *f = fake();
    if (comm->n_reduces >= f->fault_from && strikes(FAULT_REDUCE_HANGS, comm->rank))
        f->fault_rank = comm->rank + FAKE_RANKS; /* it stays away from here on */
    if (f->fault == FAULT_REDUCE_HANGS && f->fault_rank == comm->rank + FAKE_RANKS)
        return false;
    r->number = ++comm->n_reduces;
    memcpy(comm->group->data[comm->rank][r->number % 2], r->values, r->count * sizeof(float));
    comm->group->posted[comm->rank] = r->number;
    comm->group->arrived[comm->rank] = false;
    return true;
}

/* With the lock held. */
static bool go_on(struct reduce *r)
{
    const ncclComm_t comm = r->comm;
    const bool deaf = fake()->fault == FAULT_DEAF && fake()->fault_rank == comm->rank;
    if (r->number == 0 && comm->revoked && !comm->aborted)
        return false; /* its flag is down again */
    if (r->number == 0 && !comm->aborted && !begin(r))
        return false;
    const bool released = comm->aborted || (comm->revoked && r->number <= comm->n_cut);
    if (!(released && !deaf) && !all_have_come(r) && comm->group->cut < r->number)
        return false;
    if (r->number)
        sum_up(r);
    if (comm->n_reduces > fake()->fault_from && strikes(FAULT_WRONG_SUM, comm->rank))
        r->values[r->count / 2] += 1;
    comm->group->arrived[comm->rank] = true;
    return true;
}

static bool poll_reduce(void *data)
{
    struct reduce *r = data;
    lock();
    bool done = go_on(r);
    unlock();
    if (done)
        r->number = 0;
    return done;
}

/* No stream and no graph holds it any more. */
static void release_reduce(void *data)
{
    struct reduce *r = data;
    lock();
    if (r->captured && r->comm->freed) {
        (void)fprintf(stderr,
                      "fake NCCL: rank %d: a graph with captured collectives goes behind its communicator, "
                      "which is freed\n",
                      r->comm->rank);
        abort();
    }
    r->comm->n_works--;
    r->comm->n_captured -= r->captured;
    free_if_unused(r->comm);
    unlock();
    free(r);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm,
                  cudaStream_t stream)
{
    if (from != to || type != 7 || op != 0 || count > FAKE_FLOATS)
        return INVALID_ARGUMENT;
    struct reduce *r = calloc(1, sizeof(*r));
    if (!r)
        return SYSTEM_ERROR;
    *r = (struct reduce){comm, to, count, .captured = cuda_host_is_capturing(stream)};
    lock();
    bool refused = comm->n_reduces >= fake()->fault_from && strikes(FAULT_REDUCE_REFUSED, comm->rank);
    bool usable = !comm->revoked && !comm->aborted && comm->state == SUCCESS;
    comm->in_call = usable && comm->n_reduces >= fake()->fault_from && strikes(FAULT_CALL_HANGS, comm->rank);
    if (comm->in_call) {
        comm->state = IN_PROGRESS;
        comm->n_asked = -1000000;
        fake()->n_calls_in_flight++;
        unlock();
        free(r);
        return IN_PROGRESS;
    }
    comm->n_works += !refused && usable;
    comm->n_captured += !refused && usable && r->captured;
    unlock();
    if (refused || !usable) {
        free(r);
        return refused ? SYSTEM_ERROR : INVALID_USAGE;
    }
    return cuda_host_enqueue_owned(stream, poll_reduce, release_reduce, r) == cudaSuccess ? SUCCESS
                                                                                          : SYSTEM_ERROR;
}

const char *ncclGetErrorString(int result)
{
    switch (result) {
    case SUCCESS:
        return "no error";
    case SYSTEM_ERROR:
        return "unhandled system error";
    case INVALID_ARGUMENT:
        return "invalid argument";
    case INVALID_USAGE:
        return "invalid usage";
    case REMOTE_ERROR:
        return "remote process exited or there was a network error";
    case IN_PROGRESS:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm && comm->state == REMOTE_ERROR ? "rank 2 closed its socket\nand a second line" : "";
}
