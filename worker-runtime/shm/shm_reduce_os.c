/*
 * Reductions. The way of the data depends on size and place:
 *   all_reduce, reduce   up to 16 bytes are in the slots; up to a few KiB go through the bounce buffers and every rank
 *                adds up everything itself: one barrier. More is cut into a slice for each rank, which adds it up in
 *                rank order and writes the result to all (or to the root): a barrier before, when the data is there,
 *                and one after, when the result is. Data in an arena is used where it lies; other data passes
 *                through the bounce buffers piece by piece, and ranks may differ in that.
 *   reduce_scatter  each rank adds up its own part, from the arenas, or from the others' bounce buffers.
 *
 * The slots of the first phase have each array's place in the arenas, or none, so the choice needs no agreement
 * beforehand: all ranks read the same slots.
 */

#include "worker-runtime/shm/shm_collectives_os.h"

#include "base/err.h"
#include "base/minmax.h"
#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/shm/call_signature.h"

#include <assert.h>
#include <string.h>

enum {
    INLINE_MAX = 16,       /* bytes in a slot */
    GATHER_MAX = 4 * 1024, /* bytes that each rank reads instead of a second barrier */
    SLICE_UNIT = SHM_LINE, /* slices end at lines, so that no two ranks write to one */
    CHUNK_UNIT = 32,       /* what is left for each rank of the largest world */
};

enum { ALL_RANKS = -1 };

static_assert(INLINE_MAX == 2 * sizeof(uint64_t), "a and b of a slot");
static_assert(SHM_BOUNCE / SHM_WORLD_MAX >= CHUNK_UNIT, "every rank gets a chunk");

/* ---- all_reduce, reduce ---- */

struct shm_reduction {
    struct shm *shm;
    uint8_t *data;
    size_t n_bytes;
    enum crw_dtype dtype;
    enum crw_op op;
    int root; /* ALL_RANKS, or the rank that gets the result */
    struct shm_slot slot;
    void **views; /* by rank: where its array is for this rank */
};

static bool wants_result(const struct shm_reduction *r)
{
    return r->root == ALL_RANKS || r->root == r->shm->rank;
}

/* All of the views into this rank's data. */
static void reduce_inline_slots(const struct shm_reduction *r)
{
    void *target = r->data;

    if (wants_result(r))
        reduce(r->dtype, r->op, (const void *const *)r->views, r->shm->world_size, &target, 1, 0,
               r->n_bytes / reduce_element_size(r->dtype));
}

/* The data is in the slots. */
static int reduce_inline(struct shm_reduction *r)
{
    memcpy(&r->slot.a, r->data, r->n_bytes);
    TRY(shm_phase_barrier(r->shm, &r->slot));
    for (int i = 0; i < r->shm->world_size; i++)
        r->views[i] = (void *)(uintptr_t)&shm_slot_of(r->shm, i)->a; /* only read */
    reduce_inline_slots(r);
    return 0;
}

/* Every rank that wants the result reads all. */
static int reduce_gathered(struct shm_reduction *r)
{
    int parity = shm_parity(r->shm);

    memcpy(shm_bounce(r->shm, r->shm->rank, parity), r->data, r->n_bytes);
    TRY(shm_phase_barrier(r->shm, &r->slot));
    for (int i = 0; i < r->shm->world_size; i++)
        r->views[i] = shm_bounce(r->shm, i, parity);
    reduce_inline_slots(r);
    return 0;
}

/* This rank's share of pieces of n_bytes, written to all ranks, or to the root. */
static void reduce_slice(const struct shm_reduction *r, size_t n_bytes)
{
    size_t size = reduce_element_size(r->dtype);
    size_t world_size = (size_t)r->shm->world_size, rank = (size_t)r->shm->rank;
    size_t n_units = (n_bytes + SLICE_UNIT - 1) / SLICE_UNIT;
    size_t begin = n_units * rank / world_size * SLICE_UNIT;
    size_t end = min_size(n_units * (rank + 1) / world_size * SLICE_UNIT, n_bytes);
    void *const *targets = r->root == ALL_RANKS ? r->views : r->views + r->root;

    if (begin < end)
        reduce(r->dtype, r->op, (const void *const *)r->views, r->shm->world_size, targets,
               r->root == ALL_RANKS ? r->shm->world_size : 1, begin / size, end / size);
}

/* Where the piece at offset lies for each rank, after the first barrier. False: all arrays are in
 * arenas, and the piece can be all that is left. */
static bool find_views(struct shm_reduction *r, size_t offset, int parity)
{
    bool any_staged = false;

    for (int i = 0; i < r->shm->world_size; i++) {
        uint64_t location = shm_slot_of(r->shm, i)->a;
        bool staged = location == SHM_NOWHERE;

        r->views[i] = staged ? shm_bounce(r->shm, i, parity) : (uint8_t *)shm_at(r->shm, location) + offset;
        any_staged = any_staged || staged;
    }
    return any_staged;
}

/* A piece takes two phases, so all pieces use the bounce buffer of the same parity: between the two
 * barriers the other ranks read and write this rank's buffer, before and after them only this rank
 * does. */
static int reduce_sliced(struct shm_reduction *r)
{
    bool staged = r->slot.a == SHM_NOWHERE;
    int parity = shm_parity(r->shm);
    void *bounce = shm_bounce(r->shm, r->shm->rank, parity);

    for (size_t offset = 0; offset < r->n_bytes;) {
        size_t n = min_size(r->n_bytes - offset, SHM_BOUNCE);

        if (staged)
            memcpy(bounce, r->data + offset, n);
        TRY(shm_phase_barrier(r->shm, &r->slot));
        if (!find_views(r, offset, parity))
            n = r->n_bytes;
        reduce_slice(r, n);
        TRY(shm_phase_barrier(r->shm, &r->slot));
        if (staged && wants_result(r))
            memcpy(r->data + offset, bounce, n);
        offset += n;
    }
    return 0;
}

/* operation, detail: of the signature. */
static int reduce_on_host(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
                          int root, unsigned operation, unsigned detail)
{
    struct shm_reduction r = {
        .shm = shm,
        .data = data,
        .n_bytes = count * reduce_element_size(dtype),
        .dtype = dtype,
        .op = op,
        .root = root,
        .slot = {.signature = call_signature(operation, detail, count)},
        .views = shm->views,
    };
    int begun = shm_begin(shm);

    if (begun != 0)
        return begun;
    if (r.n_bytes <= INLINE_MAX)
        return reduce_inline(&r);
    if (r.n_bytes * (size_t)shm->world_size <= GATHER_MAX)
        return reduce_gathered(&r);
    r.slot.a = shm_locate(shm, data, r.n_bytes);
    return reduce_sliced(&r);
}

static unsigned reduction_detail(enum crw_dtype dtype, enum crw_op op)
{
    return (unsigned)dtype * CRW_OP_COUNT + (unsigned)op;
}

int shm_all_reduce(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op)
{
    return reduce_on_host(shm, data, count, dtype, op, ALL_RANKS, OP_ALL_REDUCE, reduction_detail(dtype, op));
}

int shm_reduce(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op, int root)
{
    return reduce_on_host(shm, data, count, dtype, op, root, OP_REDUCE + reduction_detail(dtype, op),
                          (unsigned)root);
}

/* ---- reduce_scatter ---- */

struct scattering {
    struct shm *shm;
    const uint8_t *data;
    size_t n_bytes; /* of one rank's result */
    size_t chunk;   /* bytes for each rank in a bounce buffer */
    struct shm_slot slot;
};

/* A piece for each rank, into this rank's bounce buffer. */
static void stage_chunks(const struct scattering *s, size_t offset, size_t n)
{
    uint8_t *bounce = shm_bounce(s->shm, s->shm->rank, shm_parity(s->shm));

    for (int i = 0; n > 0 && i < s->shm->world_size; i++)
        memcpy(bounce + (size_t)i * s->chunk, s->data + (size_t)i * s->n_bytes + offset, n);
}

/* Where the pieces at offset for this rank lie, after the barrier; how many of the arrays are in
 * arenas. */
static int find_chunks(const struct scattering *s, size_t offset, int parity)
{
    size_t rank = (size_t)s->shm->rank;
    int n_located = 0;

    for (int i = 0; i < s->shm->world_size; i++) {
        uint64_t location = shm_slot_of(s->shm, i)->a;

        if (location == SHM_NOWHERE) {
            s->shm->views[i] = (uint8_t *)shm_bounce(s->shm, i, parity) + rank * s->chunk;
        } else {
            s->shm->views[i] = (uint8_t *)shm_at(s->shm, location) + rank * s->n_bytes + offset;
            n_located++;
        }
    }
    return n_located;
}

/* One barrier for each piece, as all read what was staged before it; and one more where arrays were
 * read in place, before their owners may change them. */
static int reduce_and_scatter(const struct scattering *s, uint8_t *result, enum crw_dtype dtype,
                              enum crw_op op)
{
    size_t size = reduce_element_size(dtype), offset = 0;
    int n_located, begun = shm_begin(s->shm);

    if (begun != 0)
        return begun;
    do {
        size_t n = min_size(s->n_bytes - offset, s->chunk);
        int parity = shm_parity(s->shm);
        void *target = result + offset;

        if (s->slot.a == SHM_NOWHERE)
            stage_chunks(s, offset, n);
        TRY(shm_phase_barrier(s->shm, &s->slot));
        n_located = find_chunks(s, offset, parity);
        if (n_located == s->shm->world_size)
            n = s->n_bytes;
        if (n > 0)
            reduce(dtype, op, (const void *const *)s->shm->views, s->shm->world_size, &target, 1, 0,
                   n / size);
        offset += n;
    } while (offset < s->n_bytes);
    return n_located > 0 ? shm_phase_barrier(s->shm, &s->slot) : 0;
}

int shm_reduce_scatter(struct shm *shm, const void *data, void *result, size_t count, enum crw_dtype dtype,
                       enum crw_op op)
{
    size_t n_bytes = count * reduce_element_size(dtype);
    const struct scattering s = {
        .shm = shm,
        .data = data,
        .n_bytes = n_bytes,
        .chunk = SHM_BOUNCE / (size_t)shm->world_size / CHUNK_UNIT * CHUNK_UNIT,
        .slot = {.signature = call_signature(OP_REDUCE_SCATTER, reduction_detail(dtype, op), count),
                 .a = shm_locate(shm, data, n_bytes * (size_t)shm->world_size)},
    };

    return reduce_and_scatter(&s, result, dtype, op);
}
