/*
 * Collectives over hosts, made of the functions of inter_host_sock.c.
 *
 *   short       the leaders' exchange carries the data, and every rank takes its part of the table
 *   a few KiB   reductions: slices all-to-all between the leaders, then all-gather (short_reduce_sock.c); broadcast: the
 *               exchange carries root's data alone; all_gather and gather: the exchange, piece by piece
 *   all_reduce  long: chain reduce, in place where the host's arrays are in shared memory or the host has one rank; else
 *               through each rank's staging room, piece by piece, two pieces under way
 *   reduce, reduce_scatter  long: the same through the staging rooms; a result goes down the chain no further than
 *               wanted, and each rank copies a part out
 *   reduce_scatter  long, one rank on each host: pairwise, straight to the ranks that want the parts
 *   broadcast   long: chain broadcast from the root round the ring
 *   all_gather  long: a chain broadcast of every rank's data in turn; the turns overlap, so every link is busy
 *   gather, scatter  long: the same, between the root's host and the other host only
 *
 * The arguments of a call alone decide between the ways above, so no agreement is needed; only whether arrays lie in
 * shared memory differs between hosts: such hosts work in pieces of different sizes, and the chain passes on whatever
 * comes.
 */

#include "base/minmax.h"
#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/net/inter_host_sock.h"
#include "worker-runtime/net/chain_reduce_sock.h"
#include "worker-runtime/net/pairwise_reduce_sock.h"
#include "worker-runtime/shm/call_signature.h"
#include "worker-runtime/base/error.h"

#include <string.h>

enum {
    SHORT_MAX = 32 * 1024, /* bytes of all ranks together */
    PIECES_UNDER_WAY = 2,  /* of a staged reduction */
    TURNS_UNDER_WAY = 4,   /* of a gather: of ranks sending down the chain */
};

static bool is_short(const struct inter_host *s, size_t n_bytes)
{
    size_t capacity = exchange_capacity(&s->topology), each = SHORT_MAX / (size_t)s->topology.world_size;

    return n_bytes <= (each < capacity ? each : capacity);
}

static unsigned reduction_detail(enum crw_dtype dtype, enum crw_op op)
{
    return (unsigned)dtype * CRW_OP_COUNT + (unsigned)op;
}

int inter_host_barrier(struct inter_host *s)
{
    return inter_host_agree(s, call_signature(OP_BARRIER, 0, 0), SHM_NOWHERE, NULL, 0, NULL);
}

/* ---- reductions ---- */

struct inter_host_reduction {
    struct inter_host *s;
    uint64_t signature;
    const uint8_t *in;
    size_t count;
    enum crw_dtype dtype;
    enum crw_op op;
    uint8_t *out; /* takes the bytes begin..end of the result; NULL: not wanted */
    size_t begin, end;
    bool in_place; /* the result may go to the place of the data: in and out are the same */
    /* Bytes of the result, from the first byte on: coming to this host, and going on to the hosts before. */
    size_t n_wanted, n_passed;
    int n_rails;
    size_t share; /* bytes of a rail in a piece */
};

static size_t reduction_size(const struct inter_host_reduction *r)
{
    return r->count * reduce_element_size(r->dtype);
}

static int reduce_short(const struct inter_host_reduction *r)
{
    struct inter_host *s = r->s;
    size_t n_bytes = reduction_size(r), size = reduce_element_size(r->dtype);
    const uint8_t *table;
    int result = inter_host_agree(s, r->signature, SHM_NOWHERE, r->in, n_bytes, &table);

    if (result != 0 || !r->out)
        return result;
    for (int i = 0; i < s->topology.world_size; i++)
        s->views[i] = (void *)(uintptr_t)(table + (size_t)i * n_bytes + r->begin); /* only read */
    void *target = r->out;
    reduce(r->dtype, r->op, (const void *const *)s->views, s->topology.world_size, &target, 1, 0,
           (r->end - r->begin) / size);
    return 0;
}

/* A rail's share of a reduction, and the progress: the arrays lie at views of the host's ranks. */
struct reduction_rail {
    struct inter_host *s;
    struct chain chain;
    struct chain_arrays arrays;
    struct chain_progress progress;
};

/* The elements of the slice among the first `end` bytes of the result. */
static size_t elements_before(const struct inter_host_reduction *r, const struct topology_slice *slice,
                              size_t end)
{
    return (min_size(max_size(end, slice->begin), slice->end) - slice->begin) / reduce_element_size(r->dtype);
}

static struct reduction_rail make_rail(const struct inter_host_reduction *r,
                                       const struct topology_slice *slice, size_t wrap)
{
    struct inter_host *s = r->s;
    const struct topology *h = &s->topology;

    /* What comes in goes into this rank's own array first. */
    for (int i = 0; i < s->shm->world_size; i++)
        s->targets[i] = s->views[(s->shm->rank + i) % s->shm->world_size];
    return (struct reduction_rail){
        .s = s,
        .chain = {.flow.wait = &s->wait,
                  .before = h->host == 0 ? NULL : s->before,
                  .after = h->host == h->n_hosts - 1 ? NULL : s->after,
                  .ring = s->ring},
        .arrays = {.dtype = r->dtype,
                   .op = r->op,
                   .n_ranks = h->world_size,
                   .sources = (const void *const *)s->views,
                   .n_sources = s->shm->world_size,
                   .targets = s->targets,
                   .n_targets = s->shm->world_size,
                   .count = elements_before(r, slice, SIZE_MAX),
                   .n_wanted = elements_before(r, slice, r->n_wanted),
                   .n_passed = elements_before(r, slice, r->n_passed),
                   .wrap = wrap},
    };
}

/* As chain_reduce_step(). */
static int reduce_rail(struct reduction_rail *rail, size_t n_ready, size_t n_done)
{
    size_t count = rail->arrays.count;
    int result = chain_reduce_step(&rail->chain, &rail->arrays, &rail->progress, min_size(n_ready, count),
                                   min_size(n_done, count)); /* first: it sets failed */

    return inter_host_fail(rail->s, result, rail->chain.flow.failed);
}

static const struct shm_slot piece_slot = {.signature = (uint64_t)OP_BARRIER << SIGNATURE_SHIFT};

/* All arrays of this host are where all its ranks see them. */
static int reduce_in_place(const struct inter_host_reduction *r)
{
    struct inter_host *s = r->s;
    struct topology_slice slice;
    struct reduction_rail rail;

    if (s->shm->rank < r->n_rails) {
        slice = topology_slice(reduction_size(r), r->n_rails, s->shm->rank);
        for (int i = 0; i < s->shm->world_size; i++)
            s->views[i] =
                (inter_host_is_alone(s) ? r->out : (uint8_t *)shm_at(s->shm, s->locations[i])) + slice.begin;
        rail = make_rail(r, &slice, 0);
        TRY(reduce_rail(&rail, rail.arrays.count, rail.arrays.count));
    }
    return inter_host_local_barrier(s, &piece_slot);
}

/* The bytes of a rail in the piece. */
static struct topology_slice reduction_range(const struct inter_host_reduction *r, size_t number, int rail)
{
    return inter_host_range(topology_slice(reduction_size(r), r->n_rails, rail), r->share, number);
}

/* Where a piece of a rail is in a rank's room: each rail has two places, used in turn. */
static size_t staging_at(const struct inter_host_reduction *r, size_t number, int rail)
{
    return ((size_t)rail * PIECES_UNDER_WAY + number % PIECES_UNDER_WAY) * r->share;
}

static void stage_in(const struct inter_host_reduction *r, size_t number)
{
    for (int rail = 0; rail < r->n_rails; rail++) {
        struct topology_slice range = reduction_range(r, number, rail);

        memcpy(r->s->staging + staging_at(r, number, rail), r->in + range.begin, range.end - range.begin);
    }
}

/* The part of this rank. */
static void stage_out(const struct inter_host_reduction *r, size_t number)
{
    for (int rail = 0; r->out && rail < r->n_rails; rail++) {
        struct topology_slice range = reduction_range(r, number, rail);
        size_t begin = max_size(range.begin, r->begin), end = min_size(range.end, r->end);

        if (begin < end)
            memcpy(r->out + (begin - r->begin),
                   r->s->staging + staging_at(r, number, rail) + (begin - range.begin), end - begin);
    }
}

/* The piece and the next one are staged. */
static int reduce_piece(const struct inter_host_reduction *r, struct reduction_rail *rail, size_t number)
{
    struct inter_host *s = r->s;
    size_t share = r->share / reduce_element_size(r->dtype);

    TRY(inter_host_local_barrier(s, &piece_slot));
    if (s->shm->rank < r->n_rails)
        TRY(reduce_rail(rail, (number + PIECES_UNDER_WAY) * share, (number + 1) * share));
    return inter_host_local_barrier(s, &piece_slot);
}

static struct reduction_rail make_staged_rail(const struct inter_host_reduction *r)
{
    struct inter_host *s = r->s;
    struct topology_slice slice = topology_slice(reduction_size(r), r->n_rails, s->shm->rank);

    for (int i = 0; i < s->shm->world_size; i++)
        s->views[i] = inter_host_staging_of(s, i) + staging_at(r, 0, s->shm->rank);
    return make_rail(r, &slice, PIECES_UNDER_WAY * r->share / reduce_element_size(r->dtype));
}

/* While the results of a piece come down, the next piece goes up. */
static int reduce_pieces(struct inter_host_reduction *r)
{
    struct topology_slice longest = topology_slice(reduction_size(r), r->n_rails, r->n_rails - 1);
    size_t n_bytes = longest.end - longest.begin + TOPOLOGY_SLICE_UNIT;
    struct reduction_rail rail = {0};

    TRY(inter_host_stage(r->s));
    r->share = INTER_HOST_STAGING / PIECES_UNDER_WAY / (size_t)r->n_rails / TOPOLOGY_SLICE_UNIT *
               TOPOLOGY_SLICE_UNIT;
    if (r->s->shm->rank < r->n_rails)
        rail = make_staged_rail(r);
    for (size_t i = 0; i + 1 < PIECES_UNDER_WAY; i++)
        stage_in(r, i);
    for (size_t i = 0; i * r->share < n_bytes; i++) {
        stage_in(r, i + PIECES_UNDER_WAY - 1);
        TRY(reduce_piece(r, &rail, i));
        stage_out(r, i);
    }
    return 0;
}

static bool all_located(const struct inter_host *s)
{
    for (int i = 0; i < s->shm->world_size; i++)
        if (s->locations[i] == SHM_NOWHERE)
            return false;
    return true;
}

static int reduce_long(struct inter_host_reduction *r)
{
    struct inter_host *s = r->s;
    uint64_t location = SHM_NOWHERE;

    if (r->in_place)
        location = inter_host_is_alone(s) ? 0 : shm_locate(s->shm, r->in, reduction_size(r));
    r->n_rails = topology_rails_for(&s->topology, reduction_size(r));
    TRY(inter_host_agree(s, r->signature, location, NULL, 0, NULL));
    int result = inter_host_need_ring(s);
    if (result)
        return inter_host_fail(s, result, NULL);
    return all_located(s) ? reduce_in_place(r) : reduce_pieces(r);
}

/* ---- a few KiB ---- */

static int reduce_few_steps(const struct inter_host_reduction *r)
{
    const struct inter_host_sum sum = {.data = r->in, .count = r->count, .dtype = r->dtype, .op = r->op};
    const uint8_t *table;

    TRY(short_reduce(r->s, r->signature, &sum, &table));
    if (r->out)
        memcpy(r->out, table + r->begin, r->end - r->begin);
    return 0;
}

/* ---- reduce_scatter of hosts with one rank each ---- */

static bool is_pairwise(const struct topology *h)
{
    return h->n_hosts == h->world_size && h->n_hosts <= PAIRWISE_HOSTS_MAX;
}

static int reduce_pairwise(const struct inter_host_reduction *r)
{
    struct inter_host *s = r->s;
    struct pairwise p = {
        .flow.wait = &s->wait,
        .n_hosts = s->topology.n_hosts,
        .host = s->topology.host,
        .room_size = INTER_HOST_STAGING,
    };

    TRY(inter_host_agree(s, r->signature, SHM_NOWHERE, NULL, 0, NULL));
    TRY(inter_host_stage(s));
    TRY(inter_host_need_pairs(s));
    p.out = s->pairs_out;
    p.in = s->pairs_in;
    p.room = s->staging;
    int result =
        pairwise_reduce_scatter(&p, r->in, r->out, (r->end - r->begin) / reduce_element_size(r->dtype),
                                r->dtype, r->op); /* first: it sets failed */
    return inter_host_fail(s, result, p.flow.failed);
}

static int reduce_short_or_long(struct inter_host_reduction *r)
{
    if (is_short(r->s, reduction_size(r)))
        return reduce_short(r);
    return short_reduce_fits(r->s, reduction_size(r)) ? reduce_few_steps(r) : reduce_long(r);
}

int inter_host_all_reduce(struct inter_host *s, void *data, size_t count, enum crw_dtype dtype,
                          enum crw_op op)
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
        .n_wanted = SIZE_MAX,
        .n_passed = SIZE_MAX,
        .signature = call_signature(OP_ALL_REDUCE, reduction_detail(dtype, op), count),
    };

    return reduce_short_or_long(&r);
}

int inter_host_reduce(struct inter_host *s, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
                      int root)
{
    int root_host = s->topology.host_of[root];
    struct inter_host_reduction r = {
        .s = s,
        .in = data,
        .out = inter_host_own_rank(s) == root ? data : NULL,
        .count = count,
        .dtype = dtype,
        .op = op,
        .end = count * reduce_element_size(dtype),
        .n_wanted = s->topology.host >= root_host ? SIZE_MAX : 0,
        .n_passed = s->topology.host > root_host ? SIZE_MAX : 0,
        .signature = call_signature(OP_REDUCE + reduction_detail(dtype, op), (unsigned)root, count),
    };

    return reduce_short_or_long(&r);
}

/* Bytes of the result up to the end of the ranks of all hosts before `host`; n_bytes: of each rank. */
static size_t bytes_before_host(const struct topology *h, int host, size_t n_bytes)
{
    return h->in_order ? (size_t)h->first[host] * n_bytes : SIZE_MAX;
}

int inter_host_reduce_scatter(struct inter_host *s, const void *data, void *result, size_t count,
                              enum crw_dtype dtype, enum crw_op op)
{
    size_t n_bytes = count * reduce_element_size(dtype), rank = (size_t)inter_host_own_rank(s);
    struct inter_host_reduction r = {
        .s = s,
        .in = data,
        .out = result,
        .count = count * (size_t)s->topology.world_size,
        .dtype = dtype,
        .op = op,
        .begin = rank * n_bytes,
        .end = (rank + 1) * n_bytes,
        .n_wanted = bytes_before_host(&s->topology, s->topology.host + 1, n_bytes),
        .n_passed = bytes_before_host(&s->topology, s->topology.host, n_bytes),
        .signature = call_signature(OP_REDUCE_SCATTER, reduction_detail(dtype, op), count),
    };

    if (is_pairwise(&s->topology) && !is_short(s, reduction_size(&r)) &&
        !short_reduce_fits(s, reduction_size(&r)))
        return reduce_pairwise(&r);
    return reduce_short_or_long(&r);
}

/* ---- moves ---- */

/* The last host round the ring from root's. */
static int last_host(const struct inter_host *s, int root)
{
    return topology_ahead(&s->topology, s->topology.host_of[root], 1);
}

int inter_host_broadcast(struct inter_host *s, void *data, size_t n_bytes, int root)
{
    uint64_t signature = call_signature(OP_BROADCAST, (unsigned)root, n_bytes);
    const uint8_t *table;

    if (n_bytes <= SHORT_MAX) {
        struct inter_host_call call = {
            .signature = signature, .location = SHM_NOWHERE, .data = data, .n_bytes = n_bytes, .root = root};

        TRY(inter_host_agree_on(s, &call, &table));
        if (n_bytes > 0)
            memcpy(data, table, n_bytes);
        return 0;
    }
    TRY(inter_host_agree(s, signature, SHM_NOWHERE, NULL, 0, NULL));
    return inter_host_chain_broadcast(s, data, data, n_bytes, root, last_host(s, root));
}

static void copy_own(const struct inter_host *s, const uint8_t *data, size_t n_bytes, uint8_t *all)
{
    uint8_t *to = all + (size_t)inter_host_own_rank(s) * n_bytes;

    if (to != data)
        memcpy(to, data, n_bytes);
}

/* Of an exchange for each piece, against a turn of the chain for each rank, of which several are under way. */
static bool pieces_take_fewer_steps(const struct inter_host *s, size_t n_bytes)
{
    const struct topology *h = &s->topology;
    size_t capacity = exchange_capacity(h);

    if (capacity == 0 || n_bytes > SHORT_MAX)
        return false;
    return (n_bytes + capacity - 1) / capacity * (size_t)topology_n_rounds(h->n_hosts) <
           (size_t)h->n_hosts + (size_t)h->world_size / TURNS_UNDER_WAY;
}

static int gather_in_pieces(struct inter_host *s, uint64_t signature, const uint8_t *data, size_t n_bytes,
                            uint8_t *all)
{
    size_t offset = 0;

    do {
        size_t n = min_size(n_bytes - offset, exchange_capacity(&s->topology));
        const uint8_t *table;

        TRY(inter_host_agree(s, signature, SHM_NOWHERE, data + offset, n, &table));
        for (int i = 0; all && n > 0 && i < s->topology.world_size; i++)
            memcpy(all + (size_t)i * n_bytes + offset, table + (size_t)i * n, n);
        offset += n;
    } while (offset < n_bytes);
    return 0;
}

/* root -1: to all ranks. all NULL: not wanted. */
static int gather_any(struct inter_host *s, uint64_t signature, const uint8_t *data, size_t n_bytes,
                      uint8_t *all, int root)
{
    if (is_short(s, n_bytes) || pieces_take_fewer_steps(s, n_bytes))
        return gather_in_pieces(s, signature, data, n_bytes, all);
    TRY(inter_host_agree(s, signature, SHM_NOWHERE, NULL, 0, NULL));
    if (all)
        copy_own(s, data, n_bytes, all);
    for (int i = 0; i < s->topology.world_size; i++)
        TRY(inter_host_chain_broadcast(s, data, all ? all + (size_t)i * n_bytes : NULL, n_bytes, i,
                                       root < 0 ? last_host(s, i) : s->topology.host_of[root]));
    return 0;
}

int inter_host_all_gather(struct inter_host *s, const void *data, size_t n_bytes, void *all)
{
    return gather_any(s, call_signature(OP_ALL_GATHER, 0, n_bytes), data, n_bytes, all, -1);
}

int inter_host_gather(struct inter_host *s, const void *data, size_t n_bytes, void *all, int root)
{
    return gather_any(s, call_signature(OP_GATHER, (unsigned)root, n_bytes), data, n_bytes,
                      inter_host_own_rank(s) == root ? all : NULL, root);
}

/* The exchange would carry as much from every rank as root has for all: it is never short. */
int inter_host_scatter(struct inter_host *s, const void *all, size_t n_bytes, void *data, int root)
{
    uint64_t signature = call_signature(OP_SCATTER, (unsigned)root, n_bytes);
    int rank = inter_host_own_rank(s);

    TRY(inter_host_agree(s, signature, SHM_NOWHERE, NULL, 0, NULL));
    for (int i = 0; i < s->topology.world_size; i++)
        if (i != root)
            TRY(inter_host_chain_broadcast(s,
                                           rank == root ? (const uint8_t *)all + (size_t)i * n_bytes : NULL,
                                           rank == i ? data : NULL, n_bytes, root, s->topology.host_of[i]));
    if (rank == root && n_bytes > 0)
        memmove(data, (const uint8_t *)all + (size_t)root * n_bytes, n_bytes);
    return 0;
}

/* ---- memory ---- */

/* On each host for itself; then all share the result, so that either all have it or none. */
int inter_host_alloc(struct inter_host *s, size_t n_bytes, void **ret_data)
{
    uint64_t signature = (uint64_t)SIGNATURE_ALLOC << SIGNATURE_SHIFT | n_bytes;
    const uint8_t *table;
    void *data;
    int32_t status, other = 0;

    if (n_bytes >> SIGNATURE_SIZE_BITS)
        return crw_fail(CRW_E_ARGUMENT, "%zu bytes of shared memory for each rank are impossible", n_bytes);
    TRY(inter_host_agree(s, signature, SHM_NOWHERE, NULL, 0, NULL));
    status = shm_alloc(s->shm, n_bytes, &data);
    if (status > 0)
        return inter_host_break(s, status);
    int r = inter_host_agree(s, signature, SHM_NOWHERE, &status, sizeof(status), &table);
    for (int i = 0; r == 0 && other == 0 && i < s->topology.world_size; i++)
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
