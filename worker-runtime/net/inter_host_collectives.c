/*
 * Collectives over hosts, made of what inter_host_sock.c offers.
 *
 *   short       the leaders' exchange carries the data, and every rank takes what it wants of the table
 *   all_reduce  long: up and down the chain, in place where the host's arrays are in shared memory or the
 *               host has one rank; else through each rank's room, piece by piece
 *   reduce, reduce_scatter  long: the same through the rooms; each rank takes what is its own
 *   broadcast   long: spread from the root round the ring
 *   all_gather  long: every rank's data is spread in turn; the turns overlap, so every link is busy
 *   gather, scatter  long: the same, between the root's host and the other one only
 *
 * What of this a call takes is decided by its arguments alone, so it needs no agreement; only whether arrays lie in
 * shared memory is a host's own affair, and nothing on the wire depends on it.
 */

#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/net/inter_host_sock.h"
#include "worker-runtime/net/chain_reduce.h"
#include "worker-runtime/shm/call_signature.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <string.h>

enum { SHORT_MAX = 32 * 1024 }; /* bytes of all ranks together */

static int own_rank(const struct span *s)
{
    return shm_name_of(s->shm, s->shm->rank);
}

static bool is_short(const struct span *s, size_t n_bytes)
{
    size_t capacity = exchange_capacity(&s->hosts), each = SHORT_MAX / (size_t)s->hosts.world_size;

    return n_bytes <= (each < capacity ? each : capacity);
}

static unsigned kind_of(enum crw_dtype dtype, enum crw_op op)
{
    return (unsigned)dtype * CRW_OP_COUNT + (unsigned)op;
}

int span_barrier(struct span *s)
{
    return span_say(s, describe(OP_BARRIER, 0, 0), SHM_NOWHERE, NULL, 0, NULL);
}

/* ------------------------------------------------------------------ reductions */

struct inter_host_reduction {
    struct span *s;
    uint64_t what;
    const uint8_t *in;
    size_t count;
    enum crw_dtype dtype;
    enum crw_op op;
    uint8_t *out; /* takes the bytes begin..end of the result; NULL: not wanted */
    size_t begin, end;
    bool in_place; /* the result may go where the data is: in and out are one */
    int n_lanes;
    size_t share; /* bytes of a lane in a piece */
};

static size_t size_of(const struct inter_host_reduction *r)
{
    return r->count * reduce_element_size(r->dtype);
}

static int reduce_short(const struct inter_host_reduction *r)
{
    struct span *s = r->s;
    size_t n_bytes = size_of(r), size = reduce_element_size(r->dtype);
    const uint8_t *table;
    int result = span_say(s, r->what, SHM_NOWHERE, r->in, n_bytes, &table);
    void *target;

    if (result != 0 || !r->out)
        return result;
    for (int i = 0; i < s->hosts.world_size; i++)
        s->views[i] = (void *)(uintptr_t)(table + (size_t)i * n_bytes + r->begin); /* only read */
    target = r->out;
    reduce(r->dtype, r->op, (const void *const *)s->views, s->hosts.world_size, &target, 1, 0,
           (r->end - r->begin) / size);
    return 0;
}

/* This lane's share of arrays that lie at views of this host's ranks, from their begin on. */
static int reduce_lane(const struct inter_host_reduction *r, size_t n_bytes)
{
    struct span *s = r->s;
    const struct hosts *h = &s->hosts;
    struct chain_stream stream = {
        .wait = &s->wait,
        .before = h->host == 0 ? -1 : s->before,
        .after = h->host == h->n_hosts - 1 ? -1 : s->after,
        .ring = s->ring,
        .failed_fd = -1,
    };
    struct stream_arrays arrays = {
        .dtype = r->dtype,
        .op = r->op,
        .n_ranks = h->world_size,
        .sources = (const void *const *)s->views,
        .n_sources = s->shm->world_size,
        .targets = s->targets,
        .n_targets = s->shm->world_size,
        .count = n_bytes / reduce_element_size(r->dtype),
    };
    int result;

    /* What comes in goes into this rank's own array first. */
    for (int i = 0; i < arrays.n_targets; i++)
        s->targets[i] = s->views[(s->shm->rank + i) % arrays.n_targets];
    result = stream_reduce(&stream, &arrays); /* first: it sets failed_fd */
    return span_fail(s, result, stream.failed_fd);
}

static const struct shm_post piece_post = {.what = (uint64_t)OP_BARRIER << SHM_WHAT_SHIFT};

/* All arrays of this host are where all its ranks see them. */
static int reduce_in_place(const struct inter_host_reduction *r)
{
    struct span *s = r->s;
    struct hosts_slice slice;
    int result = 0;

    if (s->shm->rank < r->n_lanes) {
        slice = hosts_slice(size_of(r), r->n_lanes, s->shm->rank);
        for (int i = 0; i < s->shm->world_size; i++)
            s->views[i] =
                (span_is_alone(s) ? r->out : (uint8_t *)shm_at(s->shm, s->locations[i])) + slice.begin;
        result = reduce_lane(r, slice.end - slice.begin);
    }
    return result == 0 ? span_meet(s, &piece_post) : result;
}

/* The bytes of a lane that are in this piece. */
static struct hosts_slice range_of(const struct inter_host_reduction *r, size_t number, int lane)
{
    struct hosts_slice slice = hosts_slice(size_of(r), r->n_lanes, lane);
    size_t begin = slice.begin + number * r->share, end;

    begin = begin < slice.end ? begin : slice.end;
    end = begin + r->share < slice.end ? begin + r->share : slice.end;
    return (struct hosts_slice){begin, end};
}

static void copy_in(const struct inter_host_reduction *r, size_t number)
{
    for (int lane = 0; lane < r->n_lanes; lane++) {
        struct hosts_slice range = range_of(r, number, lane);

        memcpy(r->s->staging + (size_t)lane * r->share, r->in + range.begin, range.end - range.begin);
    }
}

/* What of it is this rank's. */
static void copy_out(const struct inter_host_reduction *r, size_t number)
{
    for (int lane = 0; r->out && lane < r->n_lanes; lane++) {
        struct hosts_slice range = range_of(r, number, lane);
        size_t begin = range.begin > r->begin ? range.begin : r->begin;
        size_t end = range.end < r->end ? range.end : r->end;

        if (begin < end)
            memcpy(r->out + (begin - r->begin),
                   r->s->staging + (size_t)lane * r->share + (begin - range.begin), end - begin);
    }
}

static int reduce_piece(const struct inter_host_reduction *r, size_t number)
{
    struct span *s = r->s;
    int lane = s->shm->rank, result;
    struct hosts_slice range;

    copy_in(r, number);
    result = span_meet(s, &piece_post);
    if (result == 0 && lane < r->n_lanes) {
        range = range_of(r, number, lane);
        for (int i = 0; i < s->shm->world_size; i++)
            s->views[i] = span_staging_of(s, i) + (size_t)lane * r->share;
        result = reduce_lane(r, range.end - range.begin);
    }
    if (result == 0)
        result = span_meet(s, &piece_post);
    if (result == 0)
        copy_out(r, number);
    return result;
}

static int reduce_pieces(struct inter_host_reduction *r)
{
    struct hosts_slice longest = hosts_slice(size_of(r), r->n_lanes, r->n_lanes - 1);
    int result = span_stage(r->s);

    r->share = SPAN_STAGING / (size_t)r->n_lanes / HOSTS_SLICE_UNIT * HOSTS_SLICE_UNIT;
    for (size_t i = 0; result == 0 && i * r->share < longest.end - longest.begin + HOSTS_SLICE_UNIT; i++)
        result = reduce_piece(r, i);
    return result;
}

static bool all_located(const struct span *s)
{
    for (int i = 0; i < s->shm->world_size; i++)
        if (s->locations[i] == SHM_NOWHERE)
            return false;
    return true;
}

static int reduce_long(struct inter_host_reduction *r)
{
    struct span *s = r->s;
    uint64_t location = SHM_NOWHERE;
    int result;

    if (r->in_place)
        location = span_is_alone(s) ? 0 : shm_locate(s->shm, r->in, size_of(r));
    r->n_lanes = hosts_lanes_for(&s->hosts, size_of(r));
    result = span_say(s, r->what, location, NULL, 0, NULL);
    if (result != 0)
        return result;
    result = span_need_ring(s);
    if (result != 0)
        return span_fail(s, result, -1);
    return all_located(s) ? reduce_in_place(r) : reduce_pieces(r);
}

static int reduce_any(struct inter_host_reduction *r)
{
    return is_short(r->s, size_of(r)) ? reduce_short(r) : reduce_long(r);
}

int span_all_reduce(struct span *s, void *data, size_t count, enum crw_dtype dtype, enum crw_op op)
{
    struct inter_host_reduction r = {
        .s = s,
        .in = data,
        .out = data,
        .count = count,
        .dtype = dtype,
        .op = op,
        .in_place = true,
        .end = count * reduce_element_size(dtype),
        .what = describe(OP_ALL_REDUCE, kind_of(dtype, op), count),
    };

    return reduce_any(&r);
}

int span_reduce(struct span *s, void *data, size_t count, enum crw_dtype dtype, enum crw_op op, int root)
{
    struct inter_host_reduction r = {
        .s = s,
        .in = data,
        .out = own_rank(s) == root ? data : NULL,
        .count = count,
        .dtype = dtype,
        .op = op,
        .end = count * reduce_element_size(dtype),
        .what = describe(OP_REDUCE + kind_of(dtype, op), (unsigned)root, count),
    };

    return reduce_any(&r);
}

int span_reduce_scatter(struct span *s, const void *data, void *result, size_t count, enum crw_dtype dtype,
                        enum crw_op op)
{
    size_t n_bytes = count * reduce_element_size(dtype), rank = (size_t)own_rank(s);
    struct inter_host_reduction r = {
        .s = s,
        .in = data,
        .out = result,
        .count = count * (size_t)s->hosts.world_size,
        .dtype = dtype,
        .op = op,
        .begin = rank * n_bytes,
        .end = (rank + 1) * n_bytes,
        .what = describe(OP_REDUCE_SCATTER, kind_of(dtype, op), count),
    };

    return reduce_any(&r);
}

/* ------------------------------------------------------------------ moves */

/* The last host round the ring from root's. */
static int last_host(const struct span *s, int root)
{
    return hosts_ahead(&s->hosts, s->hosts.host_of[root], 1);
}

int span_broadcast(struct span *s, void *data, size_t n_bytes, int root)
{
    uint64_t what = describe(OP_BROADCAST, (unsigned)root, n_bytes);
    const uint8_t *table;
    int r;

    if (is_short(s, n_bytes)) {
        r = span_say(s, what, SHM_NOWHERE, data, n_bytes, &table);
        if (r == 0 && n_bytes > 0)
            memcpy(data, table + (size_t)root * n_bytes, n_bytes);
        return r;
    }
    r = span_say(s, what, SHM_NOWHERE, NULL, 0, NULL);
    return r == 0 ? span_spread(s, data, data, n_bytes, root, last_host(s, root)) : r;
}

static void copy_own(const struct span *s, const uint8_t *data, size_t n_bytes, uint8_t *all)
{
    uint8_t *to = all + (size_t)own_rank(s) * n_bytes;

    if (to != data)
        memcpy(to, data, n_bytes);
}

/* root -1: to everybody. all NULL: not wanted. */
static int gather(struct span *s, uint64_t what, const uint8_t *data, size_t n_bytes, uint8_t *all, int root)
{
    const uint8_t *table;
    int r;

    if (is_short(s, n_bytes)) {
        r = span_say(s, what, SHM_NOWHERE, data, n_bytes, &table);
        if (r == 0 && all && n_bytes > 0)
            memcpy(all, table, n_bytes * (size_t)s->hosts.world_size);
        return r;
    }
    r = span_say(s, what, SHM_NOWHERE, NULL, 0, NULL);
    if (r == 0 && all)
        copy_own(s, data, n_bytes, all);
    for (int i = 0; r == 0 && i < s->hosts.world_size; i++)
        r = span_spread(s, data, all ? all + (size_t)i * n_bytes : NULL, n_bytes, i,
                        root < 0 ? last_host(s, i) : s->hosts.host_of[root]);
    return r;
}

int span_all_gather(struct span *s, const void *data, size_t n_bytes, void *all)
{
    return gather(s, describe(OP_ALL_GATHER, 0, n_bytes), data, n_bytes, all, -1);
}

int span_gather(struct span *s, const void *data, size_t n_bytes, void *all, int root)
{
    return gather(s, describe(OP_GATHER, (unsigned)root, n_bytes), data, n_bytes,
                  own_rank(s) == root ? all : NULL, root);
}

/* The exchange would carry as much from everybody as root has for everybody: it is never short. */
int span_scatter(struct span *s, const void *all, size_t n_bytes, void *data, int root)
{
    int rank = own_rank(s);
    int r = span_say(s, describe(OP_SCATTER, (unsigned)root, n_bytes), SHM_NOWHERE, NULL, 0, NULL);

    for (int i = 0; r == 0 && i < s->hosts.world_size; i++)
        if (i != root)
            r = span_spread(s, rank == root ? (const uint8_t *)all + (size_t)i * n_bytes : NULL,
                            rank == i ? data : NULL, n_bytes, root, s->hosts.host_of[i]);
    if (r == 0 && rank == root && n_bytes > 0)
        memmove(data, (const uint8_t *)all + (size_t)root * n_bytes, n_bytes);
    return r;
}

/* ------------------------------------------------------------------ memory */

/* On each host for itself; then all say how it went, so that either all have it or none. */
int span_alloc(struct span *s, size_t n_bytes, void **ret_data)
{
    uint64_t what = (uint64_t)SHM_WHAT_ALLOC << SHM_WHAT_SHIFT | n_bytes;
    const uint8_t *table;
    void *data;
    int32_t status, other = 0;
    int r;

    if (n_bytes >> SHM_SIZE_BITS)
        return crw_fail(CRW_E_ARGUMENT, "%zu bytes of shared memory for each rank are impossible", n_bytes);
    r = span_say(s, what, SHM_NOWHERE, NULL, 0, NULL);
    if (r != 0)
        return r;
    status = shm_alloc(s->shm, n_bytes, &data);
    if (status > 0)
        return span_break(s, status);
    r = span_say(s, what, SHM_NOWHERE, &status, sizeof(status), &table);
    for (int i = 0; r == 0 && other == 0 && i < s->hosts.world_size; i++)
        memcpy(&other, table + (size_t)i * sizeof(other), sizeof(other));
    if (r == 0 && other != 0)
        r = status != 0
                ? status
                : crw_fail_errno(other, "another host cannot get %zu bytes of shared memory for each rank",
                                 n_bytes);
    if (r == 0)
        *ret_data = data;
    return r;
}
