/*
 * Measures a collective of libcrw and checks its results: one JSON object for each size, from rank 0.
 *
 *     collectives NAME shared|private BYTES,... [CALLS]
 *
 * Started under crun, or alone as one rank. NAME: one of the table below. The second word: whether the ranks share
 * their buffers. CALLS: for each size; without it as many as fit into 0.3 s.
 *
 * For each size: the collective once on known data, every element of the result compared on every rank; then
 * the calls, in batches that all ranks begin together; then once more on other data. time_us is the median of
 * the batches on the slowest rank. A size is that of the larger of the two buffers, as in nccl-tests.
 *
 * The numbers are small and whole, so that sums are exact in any order, and do not repeat at a power of two: a
 * piece in a wrong place is seen. Exit code 1: a result was wrong or the group failed; 2: wrong command line.
 */

#include "base/minmax.h"
#include "base/time.h"
#include "worker-runtime/crw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCHES_MIN = 5,
    BATCHES_MAX = 200,
    BATCH_US = 1000, /* so that the clock and the barrier do not count */
    MEASURE_US = 300000,
    WARMUP = 10, /* calls; the number of calls of a batch follows from their time */
};

enum kind {
    ALLREDUCE,
    BROADCAST,
    ALLGATHER,
    GATHER,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    SENDRECV,
    PINGPONG,
    BARRIER,
    COPY,
    KIND_COUNT
};

/* Where the numbers of a result come from. */
enum source { SUM, ROOT, SELF, PREVIOUS, EACH };

static const struct collective {
    const char *name;
    enum source source;
    int n_results; /* ranks with a result; 0: all */
    bool in_place; /* the result is in `in` */
    bool parts;    /* each rank has a part of the larger buffer */
    bool scatters; /* a rank's result is its own part */
} collectives[] = {
    [ALLREDUCE] = {"allreduce", SUM, .in_place = true},
    [BROADCAST] = {"broadcast", ROOT, .in_place = true},
    [ALLGATHER] = {"allgather", EACH, .parts = true},
    [GATHER] = {"gather", EACH, .parts = true, .n_results = 1},
    [REDUCE] = {"reduce", SUM, .in_place = true, .n_results = 1},
    [REDUCESCATTER] = {"reducescatter", SUM, .parts = true, .scatters = true},
    [SCATTER] = {"scatter", ROOT, .parts = true, .scatters = true},
    [SENDRECV] = {"sendrecv", PREVIOUS},
    [PINGPONG] = {"pingpong", ROOT, .n_results = 2},
    [BARRIER] = {"barrier", SELF, .in_place = true},
    [COPY] = {"copy", SELF},
};

static enum kind kind = KIND_COUNT;
static const struct collective *c;
static struct crw_group *group;
static int rank, n_ranks;
static float *in, *out;
static size_t n, part; /* numbers of a buffer, and of each rank's part */

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "collectives: rank %d: %s\n", rank, what);
    exit(1);
}

static void need(int r)
{
    must(r == 0, crw_error_message());
}

/* ---- one call ---- */

/* To the next rank, from the one before, both at once. */
static int send_and_receive(size_t bytes)
{
    struct crw_work *send;
    int received;

    need(crw_send_start(group, in, bytes, (rank + 1) % n_ranks, &send));
    received = crw_recv(group, out, bytes, (rank + n_ranks - 1) % n_ranks);
    return crw_work_wait(send) | received;
}

/* From rank 0 to rank 1 and back, without threads: the time of a short message. */
static int send_there_and_back(size_t bytes)
{
    if (rank == 0)
        need(crw_send(group, in, bytes, 1));
    if (rank <= 1)
        need(crw_recv(group, out, bytes, !rank));
    return rank == 1 ? crw_send(group, out, bytes, 0) : 0;
}

static int call(void)
{
    size_t bytes = n * sizeof(*in), part_bytes = part * sizeof(*in);

    switch (kind) {
    case ALLREDUCE:
        return crw_all_reduce(group, in, n, CRW_F32, CRW_SUM);
    case BROADCAST:
        return crw_broadcast(group, in, bytes, 0);
    case ALLGATHER:
        return crw_all_gather(group, in, part_bytes, out);
    case GATHER:
        return crw_gather(group, in, part_bytes, out, 0);
    case REDUCE:
        return crw_reduce(group, in, n, CRW_F32, CRW_SUM, 0);
    case REDUCESCATTER:
        return crw_reduce_scatter(group, in, out, part, CRW_F32, CRW_SUM);
    case SCATTER:
        return crw_scatter(group, in, part_bytes, out, 0);
    case SENDRECV:
        return send_and_receive(bytes);
    case PINGPONG:
        return send_there_and_back(bytes);
    case BARRIER:
        return crw_barrier(group);
    default: /* no collective: all ranks copy at the same time, which shows the bandwidth of the memory */
        memcpy(out, in, bytes);
        return 0;
    }
}

/* ---- results ---- */

static float number_at(int of_rank, size_t i, unsigned seed)
{
    return (float)((i * 7 + (size_t)of_rank * 13 + seed) % 1021);
}

static float expected_at(size_t i, unsigned seed)
{
    size_t at = c->scatters ? (size_t)rank * part + i : i;
    float sum = 0;

    if (c->source == EACH)
        return number_at((int)(i / part), i % part, seed);
    if (c->source == PREVIOUS)
        return number_at((rank + n_ranks - 1) % n_ranks, at, seed);
    if (c->source != SUM)
        return number_at(c->source == ROOT ? 0 : rank, at, seed);
    for (int of_rank = 0; of_rank < n_ranks; of_rank++)
        sum += number_at(of_rank, at, seed);
    return sum;
}

/* Numbers of all ranks' results that are wrong after one call. */
static int64_t count_wrong(unsigned seed)
{
    size_t n_here = c->n_results > 0 && rank >= c->n_results ? 0 : c->scatters ? part : n;
    int64_t n_wrong = 0;

    for (size_t i = 0; i < n; i++) {
        in[i] = number_at(rank, i, seed);
        out[i] = -1;
    }
    need(crw_barrier(group)); /* a rank that fills late must not spoil the numbers of another one */
    need(call());
    for (size_t i = 0; i < n_here; i++)
        n_wrong += (c->in_place ? in : out)[i] != expected_at(i, seed);
    need(crw_all_reduce(group, &n_wrong, 1, CRW_I64, CRW_SUM));
    return n_wrong;
}

/* ---- time ---- */

/* Microseconds of one call. */
static double run_batch(size_t n_calls)
{
    double began_us;

    need(crw_barrier(group));
    began_us = now_us();
    for (size_t i = 0; i < n_calls; i++)
        need(call());
    return (now_us() - began_us) / (double)n_calls;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How many batches of how many calls. */
struct plan {
    size_t n_batches, n_calls;
};

/* n_calls: 0: as many as fit into MEASURE_US. */
static struct plan plan_for(size_t n_calls, double once_us)
{
    struct plan plan = {.n_batches = BATCHES_MIN, .n_calls = 1};

    if (n_calls > 0) {
        plan.n_batches = min_size(n_calls, BATCHES_MIN);
        plan.n_calls = n_calls / plan.n_batches; /* the rest of up to 4 calls is left out */
        return plan;
    }
    if (once_us < BATCH_US)
        plan.n_calls = (size_t)(BATCH_US / (once_us + 0.01)) + 1;
    plan.n_batches = (size_t)(MEASURE_US / (once_us * (double)plan.n_calls + 0.01));
    plan.n_batches = min_size(max_size(plan.n_batches, BATCHES_MIN), BATCHES_MAX);
    return plan;
}

/* Median and mean of the batches, on the slowest rank. */
static void measure(size_t n_calls, double ret_us[2])
{
    double batches[BATCHES_MAX];
    struct plan plan = plan_for(n_calls, run_batch(WARMUP));

    need(crw_broadcast(group, &plan, sizeof(plan), 0)); /* all do the same */
    ret_us[1] = 0;
    for (size_t i = 0; i < plan.n_batches; i++) {
        batches[i] = run_batch(plan.n_calls);
        ret_us[1] += batches[i] / (double)plan.n_batches;
    }
    qsort(batches, plan.n_batches, sizeof(*batches), compare);
    ret_us[0] = batches[plan.n_batches / 2];
    need(crw_all_reduce(group, ret_us, 2, CRW_F64, CRW_MAX));
}

/* ---- the program ---- */

static void allocate(size_t bytes, bool is_shared)
{
    if (is_shared) {
        need(crw_shared_alloc(group, bytes, (void **)&in));
        need(crw_shared_alloc(group, bytes, (void **)&out));
        return;
    }
    in = calloc(1, bytes);
    out = calloc(1, bytes);
    must(in && out, "no memory for the buffers");
}

static size_t whole_parts(size_t bytes)
{
    size_t unit = sizeof(*in) * (c->parts ? (size_t)n_ranks : 1);

    return (bytes + unit - 1) / unit * unit;
}

static void run_size(size_t bytes, size_t n_calls)
{
    double times_us[2];
    int64_t n_wrong;

    n = whole_parts(bytes) / sizeof(*in);
    part = n / (size_t)n_ranks;
    n_wrong = count_wrong(1);
    memset(in, 0, n * sizeof(*in)); /* sums of sums would end as infinity */
    measure(n_calls, times_us);
    n_wrong += count_wrong(2);
    if (rank == 0)
        printf(
            "{\"collective\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"time_us\": %.3f, \"mean_us\": %.3f, "
            "\"checked\": %lld}\n",
            c->name, n_ranks, n * sizeof(*in), times_us[0], times_us[1], (long long)n_wrong);
    fflush(stdout);
    must(n_wrong == 0, "a result was wrong");
}

/* Behind the next comma; NULL: there is none. */
static const char *next_size(const char *at)
{
    at = strchr(at, ',');
    return at ? at + 1 : NULL;
}

int main(int argc, char **argv)
{
    size_t largest = 0;

    for (int i = 0; argc > 3 && i < KIND_COUNT; i++)
        if (strcmp(argv[1], collectives[i].name) == 0)
            kind = (enum kind)i;
    if (kind == KIND_COUNT) {
        fprintf(stderr, "usage: collectives NAME shared|private BYTES,... [CALLS]\n");
        return 2;
    }
    c = &collectives[kind];
    need(crw_init(NULL, 0, 1, &group));
    rank = crw_rank(group);
    n_ranks = crw_world_size(group);
    for (const char *at = argv[3]; at; at = next_size(at))
        largest = max_size(largest, whole_parts(strtoull(at, NULL, 10)));
    allocate(largest, strcmp(argv[2], "shared") == 0);
    for (const char *at = argv[3]; at; at = next_size(at))
        run_size(strtoull(at, NULL, 10), argc > 4 ? strtoull(argv[4], NULL, 10) : 0);
    need(crw_finish(group));
    return 0;
}
