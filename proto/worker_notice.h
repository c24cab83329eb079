#pragma once

/*
 * Worker notice: what crun sends its workers beside signals. Header only, libc only.
 *
 * A worker finds the number of an inherited file descriptor in CRUN_NOTICE_FD. It is one end of a unix
 * socket of type SOCK_SEQPACKET, non-blocking on crun's side only: each message is one record, whole or not
 * at all. A worker that never looks at it loses nothing; crun drops a record rather than wait for room.
 *
 *   bytes  field
 *   0..3   size of the record, this field included (u32)
 *   4..7   kind, enum worker_notice_kind (u32)
 *   8..11  generation the record is about (u32): a worker drops records of another generation than its own
 *   12..15 global rank it is about, -1 for none (i32)
 *   16..19 detail: see the kind (i32)
 *
 * NOTICE_GENERATION continues with the place of the worker in that generation, as the environment of a new process
 * names it:
 *
 *   20..47 RANK, WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT (u32)
 *   48..   MASTER_ADDR, ends with NUL
 *
 * The worker's own generation is in CRUN_GENERATION; where that is not set (an older crun), it is
 * TORCHELASTIC_RESTART_COUNT, which does not count changes of membership. NOTICE_GENERATION takes it on.
 *
 * The worker sends NOTICE_JOINING and NOTICE_READY the other way, if it can follow NOTICE_GENERATION; crun ignores all else.
 *
 * All numbers are little-endian. End of file means that crun itself has ended; the worker's own end follows.
 *
 * To extend it: append fields at the end and let size grow (a reader takes what it knows and the socket
 * drops the rest of the record), or add a kind (a reader ignores kinds it does not know). Fields never
 * change their place or meaning.
 *
 * The descriptor is inherited by what the worker starts, too: set close-on-exec once it is taken over.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/wire.h"

#define NOTICE_ENVIRONMENT "CRUN_NOTICE_FD"
#define NOTICE_GENERATION_ENVIRONMENT "CRUN_GENERATION"
#define NOTICE_SIZE 20u
#define NOTICE_ADDRESS_SIZE 256u
#define NOTICE_PLACE_SIZE (48u + NOTICE_ADDRESS_SIZE)

enum worker_notice_kind {
    /* A peer ended badly and this generation is over: leave collectives at once, do not wait for timeouts.
     * rank: which one; detail: its exit code, or the negative number of the signal that ended it. */
    NOTICE_PEER_FAILED = 1,
    /* The launcher has a request to stop; the signal follows. rank: -1; detail: the signal's number. */
    NOTICE_STOP = 2,
    /* A peer ended and is being replaced, or a node has joined or left: this is the first record of the new generation,
     * which this worker stays in. rank: the one that ended, or -1; detail: port of the worker store. */
    NOTICE_GENERATION = 3,
    /* From the worker: it is in that generation with its state in order, and when a peer fails it will keep that
     * state and wait for NOTICE_GENERATION. rank: its own; detail: enum worker_ready_detail. */
    NOTICE_READY = 4,
    /* From the worker: its imports are done, or it has left the generation before, and it begins to meet the others of that
     * generation. crun's patience with a replacement counts from here on. rank: its own or -1; detail: 0. */
    NOTICE_JOINING = 5,
};

enum worker_ready_detail {
    READY_NEW_STORE = 0,   /* each generation has an empty store */
    READY_KEEPS_STORE = 1, /* the store of this generation is to stay, and newcomers get its port */
};

struct worker_notice {
    uint32_t kind;
    uint32_t generation;
    int32_t rank;
    int32_t detail;
};

static inline void worker_notice_encode(const struct worker_notice *n, uint8_t out[NOTICE_SIZE])
{
    wire_store_u32(out, NOTICE_SIZE);
    wire_store_u32(out + 4, n->kind);
    wire_store_u32(out + 8, n->generation);
    wire_store_u32(out + 12, (uint32_t)n->rank);
    wire_store_u32(out + 16, (uint32_t)n->detail);
}

struct worker_notice_place {
    uint32_t rank, world_size, group_rank, group_world_size, role_rank, role_world_size, restart_count;
    const char *master_addr;
};

/* NOTICE_GENERATION with the place. An address that is too long is left out: the reader keeps the one it has. */
static inline void worker_notice_encode_place(const struct worker_notice *n,
                                              const struct worker_notice_place *p,
                                              uint8_t out[NOTICE_PLACE_SIZE])
{
    const uint32_t fields[] = {p->rank,      p->world_size,      p->group_rank,   p->group_world_size,
                               p->role_rank, p->role_world_size, p->restart_count};

    worker_notice_encode(n, out);
    wire_store_u32(out, NOTICE_PLACE_SIZE);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        wire_store_u32(out + NOTICE_SIZE + 4 * i, fields[i]);
    memset(out + 48, 0, NOTICE_ADDRESS_SIZE);
    if (strlen(p->master_addr) < NOTICE_ADDRESS_SIZE)
        memcpy(out + 48, p->master_addr, strlen(p->master_addr));
}

/* data: what one recv() gave. False, and *ret untouched, when it is too short to be a record. */
static inline bool worker_notice_decode(const uint8_t *data, size_t n_bytes, struct worker_notice *ret)
{
    if (n_bytes < NOTICE_SIZE || wire_load_u32(data) < NOTICE_SIZE)
        return false;
    ret->kind = wire_load_u32(data + 4);
    ret->generation = wire_load_u32(data + 8);
    ret->rank = (int32_t)wire_load_u32(data + 12);
    ret->detail = (int32_t)wire_load_u32(data + 16);
    return true;
}
