/*
 * Collectives that only move bytes. The way depends on size and place:
 *   broadcast    piece by piece through root's bounce buffers, or from root's arena at once.
 *   all_gather, gather   piece by piece through every rank's bounce buffers, or from the arenas.
 *   scatter      piece by piece, one for each rank, through root's bounce buffers, or from root's arena.
 *
 * One barrier per piece: written before, read after. Buffers alternate, so a buffer is rewritten only after the next
 * barrier, when all reads of it are done. Data that is read in place takes one more barrier at the end, before its
 * owner may change it; hence small arrays are copied even from arenas.
 */

#include "worker-runtime/shm/shm_collectives_os.h"

#include "base/err.h"
#include "base/minmax.h"
#include "worker-runtime/shm/call_signature.h"

#include <string.h>

int shm_barrier(struct shm *shm)
{
    const struct shm_slot slot = {.signature = call_signature(OP_BARRIER, 0, 0)};

    return shm_phase_barrier(shm, &slot);
}

/* ---- broadcast ---- */

/* Root's array is in an arena. The second barrier keeps root from changing it too early. */
static int broadcast_direct(struct shm *shm, uint8_t *data, size_t n_bytes, const struct shm_slot *slot)
{
    const struct shm_slot *root_slot = shm_slot_of(shm, (int)slot->b);

    if (shm->rank != (int)slot->b)
        memcpy(data, shm_at(shm, root_slot->a), n_bytes);
    return shm_phase_barrier(shm, slot);
}

static int broadcast_pieces(struct shm *shm, uint8_t *data, size_t n_bytes, const struct shm_slot *slot)
{
    int root = (int)slot->b;
    size_t offset = 0;

    do {
        size_t n = min_size(n_bytes - offset, SHM_BOUNCE);
        int parity = shm_parity(shm);

        if (shm->rank == root && slot->a == SHM_NOWHERE && n > 0)
            memcpy(shm_bounce(shm, root, parity), data + offset, n);
        TRY(shm_phase_barrier(shm, slot));
        if (offset == 0 && shm_slot_of(shm, root)->a != SHM_NOWHERE)
            return broadcast_direct(shm, data, n_bytes, slot);
        if (shm->rank != root && n > 0)
            memcpy(data + offset, shm_bounce(shm, root, parity), n);
        offset += n;
    } while (offset < n_bytes);
    return 0;
}

int shm_broadcast(struct shm *shm, void *data, size_t n_bytes, int root)
{
    struct shm_slot slot = {.signature = call_signature(OP_BROADCAST, (unsigned)root, n_bytes),
                            .b = (uint64_t)root};

    TRY(shm_begin(shm));
    slot.a = n_bytes <= SHM_BOUNCE ? SHM_NOWHERE : shm_locate(shm, data, n_bytes);
    return broadcast_pieces(shm, data, n_bytes, &slot);
}

/* ---- gather, all_gather ---- */

/* Copies the pieces at offset of all ranks to where they belong; how many were read in place. They are all of
 * what is left when all were: *n is set to that. all NULL: only counts. */
static int collect_chunks(const struct shm *shm, uint8_t *all, size_t n_bytes, size_t offset, int parity,
                          size_t *n)
{
    int n_located = 0;

    for (int i = 0; i < shm->world_size; i++)
        n_located += shm_slot_of(shm, i)->a != SHM_NOWHERE;
    if (n_located == shm->world_size)
        *n = n_bytes;
    for (int i = 0; all && *n > 0 && i < shm->world_size; i++) {
        uint64_t location = shm_slot_of(shm, i)->a;
        const uint8_t *from =
            location == SHM_NOWHERE ? shm_bounce(shm, i, parity) : (uint8_t *)shm_at(shm, location) + offset;
        uint8_t *to = all + (size_t)i * n_bytes + offset;

        if (to != from) /* a rank's own part may be in its place already */
            memcpy(to, from, *n);
    }
    return n_located;
}

/* all NULL: this rank only gives. */
static int gather_pieces(struct shm *shm, const uint8_t *data, size_t n_bytes, uint8_t *all,
                         struct shm_slot *slot)
{
    size_t offset = 0;
    int n_located, begun = shm_begin(shm);

    if (begun != 0)
        return begun;
    slot->a = n_bytes <= SHM_BOUNCE ? SHM_NOWHERE : shm_locate(shm, data, n_bytes);
    do {
        size_t n = min_size(n_bytes - offset, SHM_BOUNCE);
        int parity = shm_parity(shm);

        if (slot->a == SHM_NOWHERE && n > 0)
            memcpy(shm_bounce(shm, shm->rank, parity), data + offset, n);
        TRY(shm_phase_barrier(shm, slot));
        n_located = collect_chunks(shm, all, n_bytes, offset, parity, &n);
        offset += n;
    } while (offset < n_bytes);
    return n_located > 0 ? shm_phase_barrier(shm, slot) : 0;
}

int shm_all_gather(struct shm *shm, const void *data, size_t n_bytes, void *all)
{
    struct shm_slot slot = {.signature = call_signature(OP_ALL_GATHER, 0, n_bytes)};

    return gather_pieces(shm, data, n_bytes, all, &slot);
}

int shm_gather(struct shm *shm, const void *data, size_t n_bytes, void *all, int root)
{
    struct shm_slot slot = {.signature = call_signature(OP_GATHER, (unsigned)root, n_bytes)};

    return gather_pieces(shm, data, n_bytes, shm->rank == root ? all : NULL, &slot);
}

/* ---- scatter ---- */

/* A piece for each rank, into root's own bounce buffer: the others may still be reading theirs. */
static void stage_scattered(const struct shm *shm, const uint8_t *all, size_t n_bytes, size_t offset,
                            size_t n)
{
    uint8_t *bounce = shm_bounce(shm, shm->rank, shm_parity(shm));

    for (int i = 0; n > 0 && i < shm->world_size; i++)
        memcpy(bounce + (size_t)i * n, all + (size_t)i * n_bytes + offset, n);
}

static int scatter_pieces(struct shm *shm, const uint8_t *all, size_t n_bytes, uint8_t *data, int root,
                          const struct shm_slot *slot)
{
    size_t chunk = SHM_BOUNCE / (size_t)shm->world_size, offset = 0;

    do {
        size_t n = min_size(n_bytes - offset, chunk);
        int parity = shm_parity(shm);

        if (shm->rank == root && slot->a == SHM_NOWHERE)
            stage_scattered(shm, all, n_bytes, offset, n);
        TRY(shm_phase_barrier(shm, slot));
        uint64_t location = shm_slot_of(shm, root)->a;
        if (location != SHM_NOWHERE) {
            memmove(data, (uint8_t *)shm_at(shm, location) + (size_t)shm->rank * n_bytes, n_bytes);
            return shm_phase_barrier(shm, slot);
        }
        if (n > 0)
            memcpy(data + offset, (uint8_t *)shm_bounce(shm, root, parity) + (size_t)shm->rank * n, n);
        offset += n;
    } while (offset < n_bytes);
    return 0;
}

int shm_scatter(struct shm *shm, const void *all, size_t n_bytes, void *data, int root)
{
    struct shm_slot slot = {.signature = call_signature(OP_SCATTER, (unsigned)root, n_bytes),
                            .a = SHM_NOWHERE};

    TRY(shm_begin(shm));
    if (shm->rank == root && n_bytes > SHM_BOUNCE / (size_t)shm->world_size)
        slot.a = shm_locate(shm, all, n_bytes * (size_t)shm->world_size);
    return scatter_pieces(shm, all, n_bytes, data, root, &slot);
}
