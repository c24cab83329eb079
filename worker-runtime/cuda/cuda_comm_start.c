/*
 * Carries out what cuda_comm_init.c decides: ids and votes through the worker store, NCCL's calls, the clock.
 *
 * Keys, all below nccl/<name>/<attempt>/: id (of rank 0), here/<rank>, yes and no (counters).
 *
 * Ways it fails: each ends in a message that names the ranks that never came, or if all did, what usually keeps
 * NCCL from connecting them.
 */

#include "worker-runtime/cuda/cuda_comm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/time.h"
#include "worker-runtime/base/error.h"

enum { POLL_MS = 1, FETCH_MS = 50, VOTES_MS = 20, RELEASE_MS = 2000, MISSING_MAX = 8 };

struct comm_run {
    struct backend_comm *c;
    struct comm_init machine;
    struct nccl_id id;
    int64_t votes_due_ns;
    int64_t n_yes, n_no;
    int nccl_error; /* the last, for the message */
    bool wrong;     /* the probe's sums are */
};

void comm_sleep_ms(int ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); /* shorter is fine, too */
}

bool comm_fd_failed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return fd >= 0 && poll(&p, 1, 0) > 0;
}

/* ---- releasing ---- */

struct releasing {
    int (*abort)(nccl_comm);
    nccl_comm nccl;
    int device;
    atomic_bool done;
};

static void *release_main(void *data)
{
    struct releasing *r = data;
    (void)cudaSetDevice(r->device); /* else NCCL makes a context on device 0 */
    (void)r->abort(r->nccl);        /* nothing can be done about a failure of the last call */
    atomic_store(&r->done, true);
    return NULL;
}

void comm_release(const struct nccl_api *api, nccl_comm nccl, int device)
{
    pthread_t thread;
    struct releasing *r = nccl ? malloc(sizeof(*r)) : NULL;
    if (!r)
        return;
    *r = (struct releasing){.abort = api->comm_abort, .nccl = nccl, .device = device};
    if (pthread_create(&thread, NULL, release_main, r) != 0) {
        free(r);
        return;
    }
    (void)pthread_detach(thread);
    for (int waited = 0; waited < RELEASE_MS && !atomic_load(&r->done); waited += POLL_MS)
        comm_sleep_ms(POLL_MS);
    if (atomic_load(&r->done))
        free(r); /* else it is still the thread's */
}

/* ---- keys ---- */

static void key_of(const struct comm_run *r, int attempt, const char *what, char key[256])
{
    (void)snprintf(key, 256, "nccl/%s/%d/%s", r->c->options.name, attempt, what);
}

/* Adds to a counter of an attempt and reads it; false: the store failed. */
static bool add_to_counter(const struct comm_run *r, int attempt, const char *what, int64_t amount,
                           int64_t *ret)
{
    const struct backend_store *store = &r->c->options.store;
    char key[256];
    key_of(r, attempt, what, key);
    return store->add(store->conn, key, amount, ret) == 0;
}

static bool arrive(const struct comm_run *r)
{
    char what[32];
    int64_t n;
    (void)snprintf(what, sizeof(what), "here/%d", r->machine.rank);
    return add_to_counter(r, r->machine.attempt, what, 1, &n);
}

/* ---- actions ---- */

static enum comm_event_kind judge(struct comm_run *r, int nccl_result, enum comm_event_kind success)
{
    if (nccl_result == NCCL_SUCCESS)
        return success;
    if (nccl_result == NCCL_IN_PROGRESS)
        return COMM_EVENT_BUSY;
    r->nccl_error = nccl_result;
    return COMM_EVENT_ERROR;
}

static enum comm_event_kind make_id(struct comm_run *r)
{
    const struct backend_store *store = &r->c->options.store;
    char key[256];
    if (judge(r, r->c->api.get_unique_id(&r->id), COMM_EVENT_DONE) != COMM_EVENT_DONE)
        return COMM_EVENT_ERROR;
    key_of(r, r->machine.attempt, "id", key);
    return store->set(store->conn, key, &r->id, sizeof(r->id)) == 0 ? COMM_EVENT_ID : COMM_EVENT_OVER;
}

static enum comm_event_kind fetch_id(struct comm_run *r)
{
    const struct backend_store *store = &r->c->options.store;
    char key[256];
    _cleanup_free_ void *value = NULL;
    size_t n_bytes = 0;
    key_of(r, r->machine.attempt, "id", key);
    int result = store->get(store->conn, key, FETCH_MS, &value, &n_bytes);
    if (result == CRW_E_TIMEOUT)
        return COMM_EVENT_BUSY;
    const bool usable = result == 0 && n_bytes == sizeof(r->id);
    if (usable)
        memcpy(&r->id, value, sizeof(r->id));
    return usable ? COMM_EVENT_ID : COMM_EVENT_OVER;
}

static enum comm_event_kind init_nccl(struct comm_run *r)
{
    struct backend_comm *c = r->c;
    struct nccl_config config = nccl_config_nonblocking();
    return judge(r, c->api.comm_init(&c->nccl, c->options.world_size, r->id, c->options.rank, &config),
                 COMM_EVENT_BUSY);
}

/* Small whole numbers: their sum over ranks is exact in any order. */
static float probe_value(int rank, size_t i)
{
    return (float)((rank % 16 + 1) * (int)(i % 64 + 1));
}

/* Behind the probe: whether the sums are right, and how fast they were. */
static bool check_probe(struct comm_run *r)
{
    struct backend_comm *c = r->c;
    const float *sums = c->host_probe + COMM_PROBE_FLOATS;
    float ms = 0, factor = 0;
    for (int rank = 0; rank < c->options.world_size; rank++)
        factor += probe_value(rank, 0);
    for (size_t i = 0; !r->wrong && i < COMM_PROBE_FLOATS; i++)
        r->wrong = sums[i] != factor * (float)(i % 64 + 1);
    if (cudaEventElapsedTime(&ms, c->probe_began, c->probe_ended) == cudaSuccess && ms > 0)
        c->bus_bytes_per_s = 2.0 * (c->options.world_size - 1) / c->options.world_size * COMM_PROBE_FLOATS *
                             sizeof(float) / (1e-3 * ms);
    return !r->wrong;
}

static enum comm_event_kind poll_nccl(struct comm_run *r)
{
    int error = NCCL_SUCCESS;
    comm_sleep_ms(POLL_MS);
    enum comm_event_kind kind = judge(r, r->c->api.comm_error(r->c->nccl, &error), COMM_EVENT_DONE);
    if (kind == COMM_EVENT_DONE)
        kind = judge(r, error, COMM_EVENT_DONE);
    if (kind != COMM_EVENT_DONE || r->machine.state != COMM_PROBING)
        return kind;
    cudaError_t probed = cudaEventQuery(r->c->probed);
    if (probed == cudaErrorNotReady)
        return COMM_EVENT_BUSY;
    return probed == cudaSuccess && check_probe(r) ? COMM_EVENT_DONE : COMM_EVENT_ERROR;
}

static enum comm_event_kind vote_yes(struct comm_run *r)
{
    r->votes_due_ns = 0;
    return add_to_counter(r, r->machine.attempt, "yes", 1, &r->n_yes) ? COMM_EVENT_DONE : COMM_EVENT_OVER;
}

static enum comm_event_kind count_votes(struct comm_run *r)
{
    comm_sleep_ms(POLL_MS);
    return COMM_EVENT_BUSY;
}

static void abandon(struct comm_run *r)
{
    comm_release(&r->c->api, r->c->nccl, r->c->options.device);
    r->c->nccl = NULL;
    r->n_yes = r->n_no = 0;
    r->votes_due_ns = 0;
}

/* The machine is in the next attempt already. */
static enum comm_event_kind vote_no(struct comm_run *r)
{
    int64_t n;
    bool voted =
        add_to_counter(r, r->machine.attempt - 1, "no", 1, &n); /* before the abort, which may take long */
    abandon(r);
    return voted ? COMM_EVENT_BEGIN : COMM_EVENT_OVER;
}

static enum comm_event_kind retreat(struct comm_run *r)
{
    abandon(r);
    return COMM_EVENT_BEGIN;
}

/* A call that is in progress has not put anything on the stream yet: an event behind it would mean nothing. */
static enum comm_event_kind queue_all_reduce(struct comm_run *r)
{
    struct backend_comm *c = r->c;
    int error =
        c->api.all_reduce(c->probe, c->probe, COMM_PROBE_FLOATS, NCCL_FLOAT32, NCCL_SUM, c->nccl, c->stream);
    enum comm_event_kind kind = judge(r, error, COMM_EVENT_BUSY);
    while (kind == COMM_EVENT_BUSY && error == NCCL_IN_PROGRESS) {
        comm_sleep_ms(POLL_MS);
        if ((int64_t)now_ns() >= r->machine.deadline_ns || comm_fd_failed(c->options.failed_fd))
            return COMM_EVENT_ERROR;
        kind = judge(r, c->api.comm_error(c->nccl, &error), COMM_EVENT_BUSY);
        if (kind == COMM_EVENT_BUSY)
            kind = judge(r, error, COMM_EVENT_BUSY);
    }
    return kind;
}

/* Real numbers through the path that gradients take: direct transfers between GPUs can be broken in a way that only
 * large ones show. The first all-reduce connects, the second is timed. */
static enum comm_event_kind queue_probe(struct comm_run *r)
{
    struct backend_comm *c = r->c;
    const size_t n_bytes = COMM_PROBE_FLOATS * sizeof(float);
    enum comm_event_kind kind = COMM_EVENT_BUSY;
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < COMM_PROBE_FLOATS; i++)
        c->host_probe[i] = probe_value(c->options.rank, i);
    for (int turn = 0; kind == COMM_EVENT_BUSY && e == cudaSuccess && turn < 2; turn++) {
        e = cudaMemcpyAsync(c->probe, c->host_probe, n_bytes, cudaMemcpyHostToDevice, c->stream);
        if (e == cudaSuccess)
            e = cudaEventRecord(c->probe_began, c->stream);
        if (e == cudaSuccess)
            kind = queue_all_reduce(r);
    }
    if (e == cudaSuccess && kind == COMM_EVENT_BUSY)
        e = cudaEventRecord(c->probe_ended, c->stream);
    if (e == cudaSuccess && kind == COMM_EVENT_BUSY)
        e = cudaMemcpyAsync(c->host_probe + COMM_PROBE_FLOATS, c->probe, n_bytes, cudaMemcpyDeviceToHost,
                            c->stream);
    if (e == cudaSuccess && kind == COMM_EVENT_BUSY)
        e = cudaEventRecord(c->probed, c->stream);
    return e == cudaSuccess ? kind : COMM_EVENT_ERROR;
}

static enum comm_event_kind (*const actions[COMM_ACTION_COUNT])(struct comm_run *) = {
    [COMM_MAKE_ID] = make_id, [COMM_FETCH_ID] = fetch_id, [COMM_INIT] = init_nccl,
    [COMM_POLL] = poll_nccl,  [COMM_VOTE_YES] = vote_yes, [COMM_COUNT_VOTES] = count_votes,
    [COMM_VOTE_NO] = vote_no, [COMM_RETREAT] = retreat,   [COMM_PROBE] = queue_probe,
};

/* Not at every turn: the store serves all ranks. The noes first, so that a no behind the yes of all is seen as one. */
static bool look_at_votes(struct comm_run *r, int64_t at_ns)
{
    if (at_ns < r->votes_due_ns)
        return true;
    r->votes_due_ns = at_ns + VOTES_MS * (int64_t)1000000;
    return add_to_counter(r, r->machine.attempt, "no", 0, &r->n_no) &&
           add_to_counter(r, r->machine.attempt, "yes", 0, &r->n_yes);
}

static struct comm_event act(struct comm_run *r, enum comm_action action)
{
    struct comm_event e = {.kind = actions[action](r), .now_ns = (int64_t)now_ns()};
    if (comm_fd_failed(r->c->options.failed_fd))
        e.kind = COMM_EVENT_OVER;
    if (e.kind == COMM_EVENT_BEGIN && r->machine.state == COMM_IDLE && !arrive(r))
        e.kind = COMM_EVENT_OVER;
    if (e.kind != COMM_EVENT_BEGIN && e.kind != COMM_EVENT_OVER && !look_at_votes(r, e.now_ns))
        e.kind = COMM_EVENT_OVER;
    e.n_yes = r->n_yes;
    e.n_no = r->n_no;
    return e;
}

/* ---- sentences ---- */

/* Ranks that never came to the last attempt, as " 3, 5, ..."; false: all came, or the store failed. */
static bool name_missing(const struct comm_run *r, int attempt, char text[128])
{
    size_t used = 0;
    int n = 0;
    text[0] = '\0';
    for (int rank = 0; rank < r->machine.world_size && n <= MISSING_MAX; rank++) {
        char what[32];
        int64_t here = 1;
        (void)snprintf(what, sizeof(what), "here/%d", rank);
        if (!add_to_counter(r, attempt, what, 0, &here) || here > 0)
            continue;
        int more = n < MISSING_MAX ? snprintf(text + used, 128 - used, "%s%d", n ? ", " : " ", rank)
                                   : snprintf(text + used, 128 - used, ", ...");
        used += (size_t)more;
        n++;
    }
    return n > 0;
}

static int fail_start(const struct comm_run *r)
{
    const struct comm_init *m = &r->machine;
    const char *why = comm_why_name(m->why), *when = comm_state_name(m->when);
    const int attempt = m->attempt < m->n_attempts_max ? m->attempt : m->n_attempts_max - 1;
    const int result = m->why == COMM_WHY_TIMEOUT ? CRW_E_TIMEOUT
                       : m->why == COMM_WHY_ERROR ? -EIO
                                                  : CRW_E_PEER;
    char missing[128];
    if (r->wrong)
        return crw_fail(
            result,
            "rank %d cannot sum with its peers (%s): the all-reduce that tries it gave wrong numbers; transfers "
            "between these GPUs are broken (IOMMU, ACS): try NCCL_P2P_DISABLE=1",
            m->rank, r->c->options.name);
    if (m->why == COMM_WHY_TIMEOUT && name_missing(r, attempt, missing))
        return crw_fail(result,
                        "rank %d cannot connect to its peers (%s): %s %s after %lld ms; missing:%s; their "
                        "own output has the reason",
                        m->rank, r->c->options.name, why, when, (long long)(m->timeout_ns / 1000000),
                        missing);
    if (m->why == COMM_WHY_TIMEOUT)
        return crw_fail(result,
                        "rank %d cannot connect to its peers (%s): %s %s after %lld ms, though all %d ranks "
                        "came; run with NCCL_DEBUG=INFO to see the transport; between GPUs of one host try "
                        "NCCL_P2P_DISABLE=1, then NCCL_SHM_DISABLE=1; between hosts set NCCL_SOCKET_IFNAME",
                        m->rank, r->c->options.name, why, when, (long long)(m->timeout_ns / 1000000),
                        m->world_size);
    return crw_fail(result, "rank %d cannot connect to its peers (%s): %s %s%s%s", m->rank,
                    r->c->options.name, why, when, r->nccl_error ? ": " : "",
                    r->nccl_error ? comm_error_text(r->c, r->nccl_error).text : "");
}

int comm_start(struct backend_comm *c)
{
    struct comm_run r = {
        .c = c,
        .machine =
            {
                .rank = c->options.rank,
                .world_size = c->options.world_size,
                .n_attempts_max = c->options.n_attempts,
                .timeout_ns = c->options.timeout_ms * (int64_t)1000000,
            },
    };
    struct comm_event e = {.kind = arrive(&r) ? COMM_EVENT_BEGIN : COMM_EVENT_OVER,
                           .now_ns = (int64_t)now_ns()};
    for (;;) {
        enum comm_action action = comm_init_step(&r.machine, &e);
        if (action == COMM_FINISH)
            return 0;
        if (action == COMM_GIVE_UP)
            break;
        e = act(&r, action);
    }
    abandon(&r);
    return fail_start(&r);
}
