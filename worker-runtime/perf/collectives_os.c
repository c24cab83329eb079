/*
 * What can be measured. Sizes are those of nccl-tests: of the larger of the two buffers, so that the
 * bandwidth of a collective with a part for each rank is about all parts.
 *
 * Reductions add up small whole numbers, which is exact in any order. What is moved are bytes that depend
 * on the rank and the place. Neither repeats at a power of two: a piece in a wrong place is seen.
 */

#include "base/time.h"
#include "worker-runtime/perf/perf.h"

#include <stdint.h>
#include <string.h>

enum { ROOT = 0 };

/* ---- values ---- */

static float number_at(int rank, size_t i, unsigned seed)
{
    return (float)((i * 7 + (size_t)rank * 13 + seed) % 1021);
}

static float sum_at(int n_ranks, size_t i, unsigned seed)
{
    float sum = 0;

    for (int rank = 0; rank < n_ranks; rank++)
        sum += number_at(rank, i, seed);
    return sum;
}

static uint8_t byte_at(int rank, size_t i, unsigned seed)
{
    return (uint8_t)((i + (size_t)rank * 31 + seed) % 251);
}

static void fill_numbers(const struct perf_run *run, unsigned seed)
{
    float *in = run->in;

    for (size_t i = 0; i < run->bytes / sizeof(*in); i++)
        in[i] = number_at(run->rank, i, seed);
    memset(run->out, 0xff, run->bytes);
}

static void fill_bytes(const struct perf_run *run, unsigned seed)
{
    uint8_t *in = run->in;

    for (size_t i = 0; i < run->bytes; i++)
        in[i] = byte_at(run->rank, i, seed);
    memset(run->out, 0xff, run->bytes);
}

/* Of sums that begin at number `first` of the buffers. */
static size_t count_wrong_sums(const struct perf_run *run, const float *result, size_t first, size_t count,
                               unsigned seed)
{
    size_t n_wrong = 0;

    for (size_t i = 0; i < count; i++)
        n_wrong += result[i] != sum_at(run->n_ranks, first + i, seed);
    return n_wrong;
}

/* Of n bytes that are a rank's from `first` on. */
static size_t count_wrong_bytes(const void *result, int rank, size_t first, size_t n, unsigned seed)
{
    const uint8_t *bytes = result;
    size_t n_wrong = 0;

    for (size_t i = 0; i < n; i++)
        n_wrong += bytes[i] != byte_at(rank, first + i, seed);
    return n_wrong;
}

static size_t part(const struct perf_run *run)
{
    return run->bytes / (size_t)run->n_ranks;
}

static double factor_one(int n_ranks)
{
    return 1;
}

static double factor_others(int n_ranks)
{
    return (double)(n_ranks - 1) / n_ranks;
}

static double factor_twice_others(int n_ranks)
{
    return 2 * factor_others(n_ranks);
}

/* ---- reductions ---- */

static int call_allreduce(const struct perf_run *run)
{
    return crw_all_reduce(run->group, run->in, run->bytes / sizeof(float), CRW_F32, CRW_SUM);
}

static size_t check_allreduce(const struct perf_run *run, unsigned seed)
{
    return count_wrong_sums(run, run->in, 0, run->bytes / sizeof(float), seed);
}

static int call_reduce(const struct perf_run *run)
{
    return crw_reduce(run->group, run->in, run->bytes / sizeof(float), CRW_F32, CRW_SUM, ROOT);
}

static size_t check_reduce(const struct perf_run *run, unsigned seed)
{
    return run->rank == ROOT ? check_allreduce(run, seed) : 0;
}

static int call_reducescatter(const struct perf_run *run)
{
    return crw_reduce_scatter(run->group, run->in, run->out, part(run) / sizeof(float), CRW_F32, CRW_SUM);
}

static size_t check_reducescatter(const struct perf_run *run, unsigned seed)
{
    size_t count = part(run) / sizeof(float);

    return count_wrong_sums(run, run->out, (size_t)run->rank * count, count, seed);
}

/* ---- moves ---- */

static int call_broadcast(const struct perf_run *run)
{
    return crw_broadcast(run->group, run->in, run->bytes, ROOT);
}

static size_t check_broadcast(const struct perf_run *run, unsigned seed)
{
    return count_wrong_bytes(run->in, ROOT, 0, run->bytes, seed);
}

static int call_allgather(const struct perf_run *run)
{
    return crw_all_gather(run->group, run->in, part(run), run->out);
}

static size_t check_allgather(const struct perf_run *run, unsigned seed)
{
    size_t n = part(run), n_wrong = 0;

    for (int rank = 0; rank < run->n_ranks; rank++)
        n_wrong += count_wrong_bytes((const uint8_t *)run->out + (size_t)rank * n, rank, 0, n, seed);
    return n_wrong;
}

static int call_gather(const struct perf_run *run)
{
    return crw_gather(run->group, run->in, part(run), run->out, ROOT);
}

static size_t check_gather(const struct perf_run *run, unsigned seed)
{
    return run->rank == ROOT ? check_allgather(run, seed) : 0;
}

static int call_scatter(const struct perf_run *run)
{
    return crw_scatter(run->group, run->in, part(run), run->out, ROOT);
}

static size_t check_scatter(const struct perf_run *run, unsigned seed)
{
    return count_wrong_bytes(run->out, ROOT, (size_t)run->rank * part(run), part(run), seed);
}

/* To the next rank, from the one before, both at once. */
static int call_sendrecv(const struct perf_run *run)
{
    struct crw_work *send;
    int r = crw_send_start(run->group, run->in, run->bytes, (run->rank + 1) % run->n_ranks, &send);
    int received, sent;

    if (r)
        return r;
    received = crw_recv(run->group, run->out, run->bytes, (run->rank + run->n_ranks - 1) % run->n_ranks);
    sent = crw_work_wait(send);
    return received != 0 ? received : sent;
}

static size_t check_sendrecv(const struct perf_run *run, unsigned seed)
{
    return count_wrong_bytes(run->out, (run->rank + run->n_ranks - 1) % run->n_ranks, 0, run->bytes, seed);
}

/* From rank 0 to rank 1 and back, without threads: what a short message takes. */
static int call_pingpong(const struct perf_run *run)
{
    int r;

    if (run->rank > 1)
        return 0;
    if (run->rank == 0) {
        r = crw_send(run->group, run->in, run->bytes, 1);
        return r == 0 ? crw_recv(run->group, run->out, run->bytes, 1) : r;
    }
    r = crw_recv(run->group, run->out, run->bytes, 0);
    return r == 0 ? crw_send(run->group, run->out, run->bytes, 0) : r;
}

static size_t check_pingpong(const struct perf_run *run, unsigned seed)
{
    return run->rank > 1 ? 0 : count_wrong_bytes(run->out, 0, 0, run->bytes, seed);
}

/* ---- without data ---- */

static void fill_nothing(const struct perf_run *run, unsigned seed)
{
}

static int call_barrier(const struct perf_run *run)
{
    return crw_barrier(run->group);
}

/* No rank may leave a barrier before the last one has entered it, by the clock that the ranks of a host
 * share. 1: this rank did, or the check itself failed. */
static size_t check_barrier(const struct perf_run *run, unsigned seed)
{
    int64_t last_ns = (int64_t)now_ns(), left_ns;

    if (crw_barrier(run->group) != 0)
        return 1;
    left_ns = (int64_t)now_ns();
    if (crw_all_reduce(run->group, &last_ns, 1, CRW_I64, CRW_MAX) != 0)
        return 1;
    return left_ns < last_ns;
}

/* ---- no collective ---- */

/* All ranks copy at the same time without waiting for each other: the bandwidth of the memory. */
static int call_copy(const struct perf_run *run)
{
    memcpy(run->out, run->in, run->bytes);
    return 0;
}

static size_t check_copy(const struct perf_run *run, unsigned seed)
{
    return count_wrong_bytes(run->out, run->rank, 0, run->bytes, seed);
}

/* ---- table ---- */

static const struct perf_collective collectives[] = {
    {"allreduce", 1, 4, false, factor_twice_others, fill_numbers, call_allreduce, check_allreduce},
    {"broadcast", 1, 1, false, factor_one, fill_bytes, call_broadcast, check_broadcast},
    {"allgather", 1, 1, true, factor_others, fill_bytes, call_allgather, check_allgather},
    {"gather", 1, 1, true, factor_others, fill_bytes, call_gather, check_gather},
    {"reduce", 1, 4, false, factor_one, fill_numbers, call_reduce, check_reduce},
    {"reducescatter", 1, 4, true, factor_others, fill_numbers, call_reducescatter, check_reducescatter},
    {"scatter", 1, 1, true, factor_others, fill_bytes, call_scatter, check_scatter},
    {"sendrecv", 2, 1, false, factor_one, fill_bytes, call_sendrecv, check_sendrecv},
    {"pingpong", 2, 1, false, factor_one, fill_bytes, call_pingpong, check_pingpong},
    {"barrier", 1, 0, false, factor_one, fill_nothing, call_barrier, check_barrier},
    {"copy", 1, 1, false, factor_one, fill_bytes, call_copy, check_copy},
};

const char perf_collective_names[] =
    "allreduce, broadcast, allgather, gather, reduce, reducescatter, scatter, "
    "sendrecv, pingpong, barrier, copy";

static bool is_separator(char c)
{
    return c == '_' || c == '-';
}

static bool is_named(const char *given, const char *name)
{
    for (; *given; given++) {
        if (is_separator(*given))
            continue;
        if (*given != *name++)
            return false;
    }
    return *name == '\0';
}

const struct perf_collective *perf_collective_find(const char *name)
{
    for (size_t i = 0; i < sizeof(collectives) / sizeof(collectives[0]); i++)
        if (is_named(name, collectives[i].name))
            return &collectives[i];
    return NULL;
}

size_t perf_round_size(const struct perf_collective *collective, size_t bytes, int n_ranks)
{
    size_t unit = collective->parts ? collective->unit * (size_t)n_ranks : collective->unit;

    return unit == 0 ? 0 : (bytes + unit - 1) / unit * unit;
}
