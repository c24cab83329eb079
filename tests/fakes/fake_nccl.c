/*
 * The fake libnccl.so.2; see fake_nccl.h. An id is the number of a group in shared memory. An all-reduce is
 * work on the emulated stream that is done when every rank has come; one that is aborted leaves NaN behind,
 * as the real one leaves garbage.
 */

#include "tests/fakes/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
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

typedef struct ncclComm {
    struct fake_group *group;
    int rank, n_ranks;
    int state; /* what ncclCommGetAsyncError() says */
    bool revoked, aborted;
    uint64_t n_reduces;
    int n_asked; /* how often it said "in progress" */
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
int ncclCommGetAsyncError(ncclComm_t comm, int *error);
int ncclCommAbort(ncclComm_t comm);
int ncclCommRevoke(ncclComm_t comm, int flags);
int ncclCommShrink(ncclComm_t comm, int *excluded, int n_excluded, ncclComm_t *ret, ncclConfig_t *config,
                   int flags);
int ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
int ncclCommGrow(ncclComm_t comm, int n_ranks, const ncclUniqueId *id, int rank, ncclComm_t *ret,
                 ncclConfig_t *config);
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
    *version = fake()->version;
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
    comm->group->n_ranks = n_ranks;
    if (!comm->group->joined[rank])
        comm->group->n_joined++;
    comm->group->joined[rank] = true;
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
    lock();
    if (comm->state == IN_PROGRESS && strikes(FAULT_INIT_ERROR, comm->rank))
        comm->state = SYSTEM_ERROR;
    /* Never at the first time of asking. */
    if (comm->state == IN_PROGRESS && ++comm->n_asked > 2 && comm->group->n_joined == comm->n_ranks)
        comm->state = SUCCESS;
    if (comm->n_reduces > fake()->fault_from && strikes(FAULT_ASYNC_ERROR, comm->rank))
        comm->state = REMOTE_ERROR;
    *error = comm->state;
    unlock();
    return SUCCESS;
}

/* The memory of a communicator stays: work that was queued still looks at it. */
int ncclCommAbort(ncclComm_t comm)
{
    lock();
    comm->aborted = true;
    fake()->n_aborts++;
    bool hangs = strikes(FAULT_ABORT_HANGS, comm->rank);
    unlock();
    while (hangs)
        pause();
    return SUCCESS;
}

int ncclCommRevoke(ncclComm_t comm, int flags)
{
    lock();
    bool refused = strikes(FAULT_REVOKE, comm->rank) || comm->revoked || flags != 0;
    if (!refused) {
        comm->revoked = true;
        comm->state = IN_PROGRESS;
        comm->n_asked = 0;
        fake()->n_revokes++;
    }
    unlock();
    return refused ? INVALID_ARGUMENT : SUCCESS;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The group that a parent's ranks meet in: the first one to come makes it. */
static int child_of(struct fake_group *parent, int n_ranks)
{
    if (parent->child == 0)
        parent->child = new_group(n_ranks);
    return parent->child;
}

int ncclCommShrink(ncclComm_t comm, int *excluded, int n_excluded, ncclComm_t *ret, ncclConfig_t *config,
                   int flags)
{
    int rank = comm->rank, n = comm->n_ranks - n_excluded;
    qsort(excluded, (size_t)n_excluded, sizeof(*excluded), compare); /* in place, as the real one */
    for (int i = 0; i < n_excluded; i++)
        rank -= excluded[i] < comm->rank;
    lock();
    fake()->n_shrinks++;
    int r = strikes(FAULT_SHRINK, comm->rank) ? SYSTEM_ERROR
                                              : join(ret, child_of(comm->group, n), n, rank, config);
    unlock();
    return r;
}

int ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
    lock();
    *id = (ncclUniqueId){.group = child_of(comm->group, comm->n_ranks + 1)};
    unlock();
    return SUCCESS;
}

int ncclCommGrow(ncclComm_t comm, int n_ranks, const ncclUniqueId *id, int rank, ncclComm_t *ret,
                 ncclConfig_t *config)
{
    lock();
    int mine = comm ? comm->rank : rank;
    int group = id ? id->group : child_of(comm->group, n_ranks);
    fake()->n_grows++;
    int r = strikes(FAULT_GROW, mine) ? SYSTEM_ERROR : join(ret, group, n_ranks, mine, config);
    unlock();
    return r;
}

/* ------------------------------------------------------------------ all-reduce */

/* Lives as long as the process: graphs replay it. */
struct reduce {
    ncclComm_t comm;
    float *values;
    size_t count;
    uint64_t number; /* of the one in flight; 0: none */
};

static bool all_have_come(const struct reduce *r)
{
    for (int rank = 0; rank < r->comm->n_ranks; rank++)
        if (r->comm->group->posted[rank] < r->number)
            return false;
    return true;
}

static void average(const struct reduce *r)
{
    const ncclComm_t comm = r->comm;
    for (size_t i = 0; i < r->count; i++) {
        float sum = 0;
        for (int rank = 0; rank < comm->n_ranks; rank++)
            sum += comm->group->data[rank][r->number % 2][i];
        r->values[i] = sum / (float)comm->n_ranks;
    }
}

/* With the lock held. */
static bool go_on(struct reduce *r)
{
    const ncclComm_t comm = r->comm;
    if (comm->aborted || comm->revoked) {
        for (size_t i = 0; i < r->count; i++)
            r->values[i] = NAN;
        return true;
    }
    if (r->number == 0) {
        struct fake_nccl *f = fake();
        if (comm->n_reduces >= f->fault_from && strikes(FAULT_REDUCE_HANGS, comm->rank))
            f->fault_rank = comm->rank + FAKE_RANKS; /* it stays away from here on */
        if (f->fault == FAULT_REDUCE_HANGS && f->fault_rank == comm->rank + FAKE_RANKS)
            return false;
        r->number = ++comm->n_reduces;
        memcpy(comm->group->data[comm->rank][r->number % 2], r->values, r->count * sizeof(float));
        comm->group->posted[comm->rank] = r->number;
    }
    if (!all_have_come(r))
        return false;
    average(r);
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

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm,
                  cudaStream_t stream)
{
    if (from != to || type != 7 || op != 4 || count > FAKE_FLOATS)
        return INVALID_ARGUMENT;
    lock();
    bool refused = comm->n_reduces >= fake()->fault_from && strikes(FAULT_REDUCE_REFUSED, comm->rank);
    unlock();
    if (refused)
        return SYSTEM_ERROR;
    if (comm->revoked || comm->aborted || comm->state != SUCCESS)
        return INVALID_USAGE;
    struct reduce *r = calloc(1, sizeof(*r));
    if (!r)
        return SYSTEM_ERROR;
    *r = (struct reduce){comm, to, count, 0};
    return cuda_host_enqueue(stream, poll_reduce, r) == cudaSuccess ? SUCCESS : SYSTEM_ERROR;
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
    return "";
}
