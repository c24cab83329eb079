#pragma once

/*
 * Shared memory of the ranks of one host, and how they wait for each other in it.
 *
 * One memfd: a head with two cache lines for each rank, two bounce buffers for each rank, room for a
 * channel from each rank to each other one, and behind them the arenas that crw_shared_alloc() adds. It
 * has no name in any file system, so nothing is left when all ranks have ended. Room for channels takes
 * no memory before a channel is used.
 *
 * Everything is built on the phase: each rank fills its mailbox slot and may have put data into its
 * bounce buffer of this phase; shm_phase_barrier() returns when all have; then each reads the slots and
 * buffers of the others. Slots and bounce buffers exist twice and phases alternate between them: a rank
 * can be one phase ahead of another, never two, so nothing is overwritten while it is read and one
 * barrier per phase is enough.
 *
 * That holds as long as phases succeed. A rank with a failed phase may be ahead of ranks that still read
 * its data of the phase before: it must not write any more (shm_begin()).
 *
 * Beside the phases each rank has a doorbell: a counter that others increment to make it look at its
 * channels (shm_p2p_os.h). Threads of one rank may wait for it at once, and at the same time as another
 * one in a phase.
 *
 * A failure is a bit in each rank's arrival counter: a waiter reads it anyway, and a change of the
 * counter that it sleeps on wakes it. The bit is never cleared: a group that failed stays failed.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/shm/call_signature.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    SHM_LINE = 64,
    SHM_BOUNCE = 256 * 1024,  /* bytes of one bounce buffer */
    SHM_CHANNEL = 516 * 1024, /* bytes of room for a channel, whole pages */
    SHM_WORLD_MAX = 4096,
};

#define SHM_NOWHERE UINT64_MAX

/* Mailbox slot: what a rank publishes when it arrives at a phase. */
struct shm_slot {
    uint64_t signature; /* which operation, of what: must be the same on all ranks */
    uint64_t a, b;      /* belongs to the operation */
};

/* Written by its rank, except for the failure bit and the sleepers. */
struct shm_line {
    _Alignas(SHM_LINE) _Atomic uint32_t arrived; /* 2 * phases arrived at; bit 0: do not wait any longer */
    _Atomic uint32_t n_sleepers;                 /* on the counter above */
    struct shm_slot slots[2];                    /* by parity of the phase */
    int32_t pid;
    _Atomic uint32_t left; /* this rank destroyed its group */
};

static_assert(sizeof(struct shm_line) == SHM_LINE, "one line, one writer");

/* Written by all ranks. */
struct shm_doorbell {
    _Alignas(SHM_LINE) _Atomic uint32_t n_rung;
    _Atomic uint32_t n_sleepers; /* on the counter above */
};

enum shm_failure_kind {
    SHM_FAILURE_DIED = 1, /* rank ended; detail: exit code, or minus its signal, where known, else 0 */
    SHM_FAILURE_TIMEOUT,  /* rank waited until its time-out */
    SHM_FAILURE_LOST,     /* the connection to rank, on another host, closed */
    SHM_FAILURE_KIND_COUNT
};

/* As the detail of DIED, no exit code or signal: that it ended is not known, since its host has stopped answering, or since what
 * comes from there is not what it sent (-EBADMSG of net_link_sock.h). */
enum { SHM_DETAIL_UNREACHABLE = 0x7fffff, SHM_DETAIL_CHANGED = 0x7ffffe };

struct shm_failure {
    enum shm_failure_kind kind;
    int rank; /* its name */
    int detail;
};

struct shm_arena;

/* One rank's view. */
struct shm {
    int rank, world_size;
    int timeout_ms;
    struct shm_head *head;
    size_t mapped_size;
    struct shm_line *lines;
    struct shm_doorbell *doorbells;
    uint32_t arrived;  /* 2 * phases this rank arrived at */
    atomic_bool over;  /* a phase of this rank failed, or a message to another host did, in another thread */
    atomic_int absent; /* then: the rank that it waited for */
    int n_cores;       /* of all ranks of this host together; 0: not known before the first phase */
    int64_t spin_ns;   /* how long to look before sleeping */
    struct shm_arena *arenas; /* by place */
    size_t n_arenas;
    void **views;     /* scratch of the collectives: a pointer for each rank */
    const int *names; /* in messages, and in failures: the number of each rank in the group; NULL: the same */
    uint64_t end;     /* of the memfd; the same on all ranks */
    int fd;
};

/* Makes the memory for so many ranks; each allocates its own part of it in shm_init(). *ret_fd is close-on-exec. 0 or -errno. */
int shm_create_memory(int world_size, int *ret_fd);

/* Maps the head, checking that it is one for world_size ranks. 0, CRW_E_STORE (it is not), -errno. */
int shm_map_memory(int fd, int world_size, struct shm_head **ret_head);

/*
 * Becomes a rank in mapped memory; takes over fd and the mapping, success or not. (Ranks that are threads
 * of one process may share a mapping: then none but the last to finish passes unmap.)
 * 0, -ENOMEM or another -errno of the memory.
 */
int shm_init(struct shm *shm, int fd, struct shm_head *head, bool unmap, int rank, int world_size,
             int timeout_ms);

/* Marks that this rank has left, and unmaps the memory. NULL and zeroed are fine. */
void shm_finish(struct shm *shm);

/* 0 or 1: the slots and bounce buffers of the phase that the next shm_phase_barrier() completes. */
static inline int shm_parity(const struct shm *shm)
{
    return (shm->arrived >> 1) & 1;
}

/* CRW_E_PEER with the message for what ended the group; absent: the rank that was waited for. */
int shm_fail_result(const struct shm *shm, int absent);

/* Asked before anything is put into a bounce buffer. 0, or the result of the phase that failed. */
static inline int shm_begin(const struct shm *shm)
{
    return shm->over ? shm_fail_result(shm, shm->absent) : 0;
}

/*
 * Arrives at a phase and waits until all ranks have. 0: their slots are readable until this rank's next
 * shm_phase_barrier(). CRW_E_PEER, CRW_E_TIMEOUT: the group has failed. CRW_E_ARGUMENT: all ranks came,
 * but with different signatures; the group stays usable.
 */
int shm_phase_barrier(struct shm *shm, const struct shm_slot *slot);

/* Of the phase that was completed last. */
const struct shm_slot *shm_slot_of(const struct shm *shm, int rank);

/* rank's bounce buffer of that parity. */
void *shm_bounce(const struct shm *shm, int rank, int parity);

/* Collective: n_bytes for each rank, zeroed. *ret_data is this rank's part. Results of shm_phase_barrier(), -errno. */
int shm_alloc(struct shm *shm, size_t n_bytes, void **ret_data);

/* Another rank's part of the same arena, at the place that corresponds to data in this rank's. */
void *shm_same_place(const struct shm *shm, void *data, int rank);

/* Where this rank's data lies in the shared memory, in terms that other ranks understand; SHM_NOWHERE when
 * it is not wholly inside an arena. */
uint64_t shm_locate(const struct shm *shm, const void *data, size_t n_bytes);
/* Here, what another rank located. */
void *shm_at(const struct shm *shm, uint64_t location);

/* Maps the room for a channel, zeroed the first time; both ends may. The caller unmaps it. 0 or
 * -errno, without a message. */
int shm_map_channel(const struct shm *shm, int from, int to, void **ret_room);
void shm_unmap_channel(void *room);

/* Increments rank's doorbell. Whatever was written before is visible to a thread that sees the
 * change. */
void shm_ring_doorbell(struct shm *shm, int rank);
/* How often this rank's doorbell was rung. */
uint32_t shm_doorbell(const struct shm *shm);
/* Sleeps until this rank's doorbell is not at `seen` any more, the time is over, or for no reason:
 * look again. */
void shm_sleep_on_doorbell(struct shm *shm, uint32_t seen, int64_t left_ns);
/* The group failed, or that rank left it. */
bool shm_has_failed(const struct shm *shm, int rank);
/* Ends the group because `absent` did not come in time; CRW_E_TIMEOUT with its message. */
int shm_fail_timeout(struct shm *shm, int absent);
void shm_pause(void);

int shm_name_of(const struct shm *shm, int rank);
pid_t shm_pid_of(const struct shm *shm, int rank);
bool shm_has_left(const struct shm *shm, int rank);

/* Ends the group for all its ranks: every wait returns, now and from now on. Only the first failure
 * is kept. Any thread. */
void shm_fail(struct shm *shm, struct shm_failure failure);
