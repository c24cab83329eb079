/*
 * Memory order
 *   - Arriving is one atomic addition to the own counter. It publishes the slot and the bounce buffer (release), and it
 *     precedes the read of n_sleepers in the total order (seq_cst, a Dekker pair): either the sleeper sees the new
 *     count before it sleeps, or this rank sees the sleeper and wakes it.
 *   - Adding instead of storing keeps a failure bit that is set in between.
 *   - A failure is written into the head before the bits are set, so that a rank that sees a bit finds the reason.
 *   - A rank that has arrived counts as arrived, whatever happened since: its data is there.
 *
 * Memory of a rank is allocated by that rank: the kernel takes it from the NUMA node that its thread runs on (or by its
 * memory policy), and the rank writes its gradients and adds up its slices there.
 *
 * Ways it fails: a rank does not come. Whatever detects it (the launcher's notice, a pidfd, a deadline) calls shm_fail();
 * all waits return at once and the group stays failed.
 */

#include "worker-runtime/shm/shm_os.h"

#include "base/array.h"
#include "base/cleanup.h"
#include "proto/wait_sock.h"
#include "worker-runtime/shm/cores_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/file_limit_os.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Ranks of one job run the same build; the number is for those that do not. */
#define MAGIC 0x33306d6877726331ull

enum {
    PAGE = 4096,
    SPINS_PER_LOOK = 64, /* pauses between two looks at the clock */
    SPIN_NS = 50 * 1000,
    SPIN_CROWDED_NS = 1000, /* more ranks than cores: the rank that is waited for may need this core */
};

enum { FAILURE_BIT = 1, PHASE = 2 };

/* Failures are packed into one word, so that the first one wins whole. */
enum { FAILURE_KIND_SHIFT = 56, FAILURE_DETAIL_SHIFT = 32 };

struct shm_head {
    uint64_t magic;
    uint64_t world_size;
    _Alignas(SHM_LINE) _Atomic uint64_t failure;            /* packed; 0: none */
    _Alignas(SHM_LINE) _Atomic uint64_t cores[CORES_WORDS]; /* that any rank may run on */
    _Alignas(SHM_LINE) struct shm_line lines[];
};

struct shm_arena {
    uint64_t at; /* in the memfd */
    uint8_t *data;
    size_t part; /* bytes of one rank, padding included */
};

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static size_t bounce_at(int world_size)
{
    return round_up(sizeof(struct shm_head) +
                        (size_t)world_size * (sizeof(struct shm_line) + sizeof(struct shm_doorbell)),
                    PAGE);
}

static size_t head_size(int world_size)
{
    return bounce_at(world_size) + (size_t)world_size * 2 * SHM_BOUNCE;
}

/* Channels are behind the head; only arenas are counted by the end of the memory that is in use. */
static uint64_t channel_at(int world_size, int from, int to)
{
    return head_size(world_size) + ((uint64_t)from * (uint64_t)world_size + (uint64_t)to) * SHM_CHANNEL;
}

static uint64_t arenas_at(int world_size)
{
    return channel_at(world_size, world_size, 0);
}

/* ---- memory ---- */

/* fallocate() and not only a length: a lack of memory is an error now, not a SIGBUS in a loop later. It refuses the
 * range of a rank that has no page of its own, as all parts are in one page. */
static int allocate_range(int fd, uint64_t at, uint64_t size)
{
    return size == 0 ? 0 : file_limit_allocate(fd, at, size);
}

static void free_range(int fd, uint64_t at, uint64_t size)
{
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                    (off_t)size); /* else it is used later */
}

/* NULL with errno set when it cannot. */
static void *map_lazily(int fd, uint64_t at, size_t size)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);

    return data == MAP_FAILED ? NULL : data;
}

/* The same of what is allocated, so that no page fault falls into a training step. */
static void *map_range(int fd, uint64_t at, size_t size)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)at);

    return data == MAP_FAILED ? NULL : data;
}

int shm_create_memory(int world_size, int *ret_fd)
{
    _cleanup_close_ int fd = memfd_create("crw-group", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert(world_size >= 1 && world_size <= SHM_WORLD_MAX);
    if (fd < 0)
        return crw_fail_errno(-errno, "cannot make shared memory for %d ranks", world_size);
    int r =
        memory_has_room(head_size(world_size), 1) ? allocate_range(fd, 0, bounce_at(world_size)) : -ENOMEM;
    if (r == 0)
        r = file_limit_resize(fd, head_size(world_size));
    if (r < 0)
        return crw_fail_errno(r, "cannot get %zu bytes of shared memory for %d ranks", bounce_at(world_size),
                              world_size);
    struct shm_head *head = map_range(fd, 0, bounce_at(world_size));
    if (!head)
        return crw_fail_errno(-errno, "cannot map shared memory for %d ranks", world_size);
    head->magic = MAGIC;
    head->world_size = (uint64_t)world_size;
    (void)munmap(head, bounce_at(world_size)); /* our own mapping: cannot fail */
    /* No rank can shrink the memory under the others. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        return crw_fail_errno(-errno, "cannot seal shared memory");
    *ret_fd = steal_fd(&fd);
    return 0;
}

int shm_map_memory(int fd, int world_size, struct shm_head **ret_head)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return crw_fail_errno(-errno, "cannot examine the group's shared memory");
    if ((uint64_t)st.st_size < head_size(world_size))
        return crw_fail(CRW_E_STORE,
                        "the group's shared memory is too small for %d ranks: the ranks run different "
                        "builds or disagree about the world size",
                        world_size);
    struct shm_head *head = map_lazily(fd, 0, head_size(world_size));
    if (!head)
        return crw_fail_errno(-errno, "cannot map the group's shared memory");
    if (head->magic != MAGIC || head->world_size != (uint64_t)world_size) {
        (void)munmap(head, head_size(world_size)); /* our own mapping: cannot fail */
        return crw_fail(CRW_E_STORE,
                        "the group's shared memory is not one for %d ranks: the ranks run different "
                        "builds or disagree about the world size",
                        world_size);
    }
    *ret_head = head;
    return 0;
}

static uint32_t *futex_word(_Atomic uint32_t *atomic)
{
    return (uint32_t *)(uintptr_t)atomic; /* the kernel's view of it */
}

static void wake_sleepers(_Atomic uint32_t *on)
{
    (void)syscall(SYS_futex, futex_word(on), FUTEX_WAKE, INT_MAX, NULL, NULL,
                  0); /* cannot fail on our memory */
}

static void unmap_last_arena(struct shm *shm)
{
    struct shm_arena *arena = &shm->arenas[--shm->n_arenas];

    (void)munmap(arena->data, arena->part * (size_t)shm->world_size); /* our own mapping: cannot fail */
}

void shm_finish(struct shm *shm)
{
    if (!shm || !shm->head)
        return;
    atomic_store(&shm->lines[shm->rank].left, 1);
    atomic_fetch_or(&shm->lines[shm->rank].arrived, FAILURE_BIT);
    wake_sleepers(&shm->lines[shm->rank].arrived);
    for (int i = 0; i < shm->world_size; i++)
        shm_ring_doorbell(shm, i);
    while (shm->n_arenas > 0)
        unmap_last_arena(shm);
    free(shm->arenas);
    free(shm->views);
    if (shm->mapped_size)
        (void)munmap(shm->head, shm->mapped_size); /* cannot fail */
    cleanup_close(&shm->fd);                       /* memory: nothing is pending */
    *shm = (struct shm){.fd = -1};
}

/* This rank's part of the head: its bounce buffers. */
static int allocate_bounces(struct shm *shm)
{
    uint64_t at = bounce_at(shm->world_size) + (uint64_t)shm->rank * 2 * SHM_BOUNCE;
    int r = allocate_range(shm->fd, at, 2 * SHM_BOUNCE);

    return r == 0 ? 0 : crw_fail_errno(r, "cannot get %d bytes of shared memory", 2 * SHM_BOUNCE);
}

/* After the first phase, when the cores of all ranks are known, and all have allocated their parts of the head. */
static void shm_count_cores(struct shm *shm)
{
#ifdef MADV_POPULATE_WRITE
    (void)madvise(shm->head, head_size(shm->world_size),
                  MADV_POPULATE_WRITE); /* else there are page faults later */
#endif
    int n_cores = cores_count(shm->head->cores), quota = cores_quota();

    shm->n_cores = n_cores < quota ? n_cores : quota;
    shm->spin_ns = shm->world_size <= shm->n_cores ? SPIN_NS : SPIN_CROWDED_NS;
}

int shm_init(struct shm *shm, int fd, struct shm_head *head, bool unmap, int rank, int world_size,
             int timeout_ms)
{
    *shm = (struct shm){
        .rank = rank,
        .world_size = world_size,
        .timeout_ms = timeout_ms,
        .head = head,
        .mapped_size = unmap ? head_size(world_size) : 0,
        .lines = head->lines,
        .doorbells = (struct shm_doorbell *)(head->lines + world_size),
        .spin_ns = SPIN_CROWDED_NS,
        .end = arenas_at(world_size),
        .fd = fd,
        .views = calloc((size_t)world_size, sizeof(void *)),
    };
    head->lines[rank].pid = getpid();
    cores_add_own(head->cores);
    int r = shm->views ? allocate_bounces(shm) : crw_fail_errno(-ENOMEM, "cannot join the group");
    if (r) {
        shm_finish(shm);
        return r;
    }
    if (world_size == 1)
        shm_count_cores(shm);
    return 0;
}

/* ---- failure ---- */

int shm_name_of(const struct shm *shm, int rank)
{
    return shm->names ? shm->names[rank] : rank;
}

void shm_fail(struct shm *shm, struct shm_failure failure)
{
    uint64_t none = 0;
    uint64_t packed = (uint64_t)failure.kind << FAILURE_KIND_SHIFT |
                      (uint64_t)((uint32_t)failure.detail & 0xffffff) << FAILURE_DETAIL_SHIFT |
                      (uint32_t)failure.rank;

    (void)atomic_compare_exchange_strong(&shm->head->failure, &none, packed); /* the first one is kept */
    for (int i = 0; i < shm->world_size; i++) {
        atomic_fetch_or(&shm->lines[i].arrived, FAILURE_BIT);
        wake_sleepers(&shm->lines[i].arrived);
        shm_ring_doorbell(shm, i);
    }
}

static struct shm_failure unpack_failure(uint64_t packed)
{
    return (struct shm_failure){
        .kind = (enum shm_failure_kind)(packed >> FAILURE_KIND_SHIFT),
        .rank = (int)(uint32_t)packed,
        .detail = (int32_t)(packed >> FAILURE_DETAIL_SHIFT << 8) >> 8, /* 24 bits with a sign */
    };
}

int shm_fail_result(const struct shm *shm, int absent)
{
    struct shm_failure failure = unpack_failure(atomic_load(&shm->head->failure));

    if (failure.kind == SHM_FAILURE_DIED && failure.rank < 0)
        return crw_fail(CRW_E_PEER, "a peer failed, so this group is over");
    if (failure.kind == SHM_FAILURE_DIED && failure.detail == SHM_DETAIL_UNREACHABLE)
        return crw_fail(
            CRW_E_PEER,
            "the network to rank %d is cut, or its host is down: it has stopped answering, so this group "
            "is over",
            failure.rank);
    if (failure.kind == SHM_FAILURE_DIED && failure.detail == SHM_DETAIL_CHANGED)
        return crw_fail(
            CRW_E_PEER,
            "what came from rank %d is not what it sent: something between the hosts has changed, "
            "repeated or removed data, so this group is over",
            failure.rank);
    if (failure.kind == SHM_FAILURE_DIED && failure.detail > 0)
        return crw_fail(CRW_E_PEER, "rank %d exited with code %d, so this group is over", failure.rank,
                        failure.detail);
    if (failure.kind == SHM_FAILURE_DIED && failure.detail < 0)
        return crw_fail(CRW_E_PEER, "rank %d was killed by signal %d, so this group is over", failure.rank,
                        -failure.detail);
    if (failure.kind == SHM_FAILURE_DIED)
        return crw_fail(CRW_E_PEER, "rank %d ended, so this group is over", failure.rank);
    if (failure.kind == SHM_FAILURE_TIMEOUT)
        return crw_fail(CRW_E_PEER, "rank %d waited too long for a peer, so this group is over",
                        failure.rank);
    if (failure.kind == SHM_FAILURE_LOST && failure.rank < 0)
        return crw_fail(CRW_E_PEER, "the connection to a peer was lost, so this group is over");
    if (failure.kind == SHM_FAILURE_LOST)
        return crw_fail(CRW_E_PEER, "the connection to rank %d was lost, so this group is over",
                        failure.rank);
    return crw_fail(CRW_E_PEER, "rank %d left the group while rank %d still waits for it",
                    shm_name_of(shm, absent), shm_name_of(shm, shm->rank));
}

/* ---- phases ---- */

static bool has_arrived(uint32_t arrived, uint32_t wanted)
{
    return (int32_t)(arrived - wanted) >= 0; /* the counter wraps */
}

void shm_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps until the futex word is not `seen` any more, or for no reason: the caller looks again. */
static void futex_sleep(_Atomic uint32_t *on, uint32_t seen, int64_t left_ns)
{
    struct timespec timeout = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};

    /* Whatever the result (woken, changed before, interrupted, time over), the caller's loop decides. */
    (void)syscall(SYS_futex, futex_word(on), FUTEX_WAIT, seen, &timeout, NULL, 0);
}

int shm_fail_timeout(struct shm *shm, int absent)
{
    shm_fail(shm, (struct shm_failure){.kind = SHM_FAILURE_TIMEOUT, .rank = shm_name_of(shm, shm->rank)});
    return crw_fail(CRW_E_TIMEOUT, "rank %d did not come within %d ms, so this group is over",
                    shm_name_of(shm, absent), shm->timeout_ms);
}

static int wait_for_arrival_asleep(struct shm *shm, int rank, uint32_t wanted)
{
    struct shm_line *line = &shm->lines[rank];
    int64_t deadline_ns = sock_deadline_ns(shm->timeout_ms);
    int r = -1;

    atomic_fetch_add(&line->n_sleepers, 1);
    while (r < 0) {
        uint32_t arrived = atomic_load(&line->arrived);
        int64_t left_ns = deadline_ns - sock_now_ns();

        if (has_arrived(arrived, wanted))
            r = 0;
        else if (arrived & FAILURE_BIT)
            r = shm_fail_result(shm, rank);
        else if (left_ns <= 0)
            r = shm_fail_timeout(shm, rank);
        else
            futex_sleep(&line->arrived, arrived, left_ns);
    }
    atomic_fetch_sub(&line->n_sleepers, 1);
    return r;
}

static int wait_for_arrival(struct shm *shm, int rank, uint32_t wanted)
{
    struct shm_line *line = &shm->lines[rank];
    int64_t asleep_ns = 0;

    for (;;) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            uint32_t arrived = atomic_load_explicit(&line->arrived, memory_order_acquire);

            if (has_arrived(arrived, wanted))
                return 0;
            if (arrived & FAILURE_BIT)
                return shm_fail_result(shm, rank);
            shm_pause();
        }
        if (asleep_ns == 0)
            asleep_ns = sock_now_ns() + shm->spin_ns;
        else if (sock_now_ns() >= asleep_ns)
            return wait_for_arrival_asleep(shm, rank, wanted);
    }
}

static int fail_different_calls(const struct shm *shm, int rank)
{
    return crw_fail(CRW_E_ARGUMENT,
                    "rank %d and rank %d called different collectives, or with different counts or "
                    "types: all ranks must make the same calls in the same order",
                    shm_name_of(shm, shm->rank), shm_name_of(shm, rank));
}

static int mark_failed(struct shm *shm, int absent, int r)
{
    shm->absent = absent; /* first: a thread that sees `over` reads it */
    shm->over = true;
    return r;
}

int shm_phase_barrier(struct shm *shm, const struct shm_slot *slot)
{
    struct shm_line *mine = &shm->lines[shm->rank];

    TRY(shm_begin(shm));
    mine->slots[shm_parity(shm)] = *slot;
    shm->arrived += PHASE;
    uint32_t before = atomic_fetch_add(&mine->arrived, PHASE);
    if (before & FAILURE_BIT)
        return mark_failed(shm, shm->rank, shm_fail_result(shm, shm->rank));
    if (atomic_load(&mine->n_sleepers) > 0)
        wake_sleepers(&mine->arrived);
    for (int i = 1; i < shm->world_size; i++) {
        int rank = (shm->rank + i) % shm->world_size, r = wait_for_arrival(shm, rank, shm->arrived);

        if (r)
            return mark_failed(shm, rank, r);
    }
    if (shm->n_cores == 0)
        shm_count_cores(shm);
    for (int i = 0; i < shm->world_size; i++)
        if (shm_slot_of(shm, i)->signature != slot->signature)
            return fail_different_calls(shm, i);
    return 0;
}

const struct shm_slot *shm_slot_of(const struct shm *shm, int rank)
{
    return &shm->lines[rank].slots[!shm_parity(shm)];
}

void *shm_bounce(const struct shm *shm, int rank, int parity)
{
    return (uint8_t *)shm->head + bounce_at(shm->world_size) +
           ((size_t)rank * 2 + (size_t)parity) * SHM_BOUNCE;
}

/* ---- arenas ---- */

static int map_arena(struct shm *shm, struct shm_arena *arena)
{
    if (!array_resize(shm->arenas, shm->n_arenas + 1))
        return -ENOMEM;
    arena->data = map_range(shm->fd, arena->at, arena->part * (size_t)shm->world_size);
    if (!arena->data)
        return -errno;
    shm->arenas[shm->n_arenas++] = *arena;
    return 0;
}

/* Collective: shares the status of each rank; the first failure in rank order is the result on all. */
static int shm_agree(struct shm *shm, uint64_t signature, int status)
{
    const struct shm_slot slot = {.signature = signature, .a = (uint64_t)(int64_t)status};
    int r = shm_phase_barrier(shm, &slot);

    for (int i = 0; r == 0 && i < shm->world_size; i++)
        r = (int)(int64_t)shm_slot_of(shm, i)->a;
    return r;
}

/* The pages of this rank's part; one that it shares with the next rank's part is its own. */
static void own_pages(const struct shm *shm, const struct shm_arena *arena, size_t size, uint64_t *ret_at,
                      uint64_t *ret_size)
{
    size_t begin = round_up((size_t)shm->rank * arena->part, PAGE);
    size_t end = round_up(((size_t)shm->rank + 1) * arena->part, PAGE);

    *ret_at = arena->at + begin;
    *ret_size = (shm->rank + 1 == shm->world_size ? size : end) - begin;
}

int shm_alloc(struct shm *shm, size_t n_bytes, void **ret_data)
{
    /* An odd number of lines apart: parts that begin at the same place of their pages would be mistaken
     * for each other by the processor's store buffer. */
    size_t part = round_up(n_bytes, PAGE) + SHM_LINE;
    size_t size = round_up(part * (size_t)shm->world_size, PAGE);
    struct shm_arena arena = {.at = shm->end, .part = part};
    uint64_t signature = (uint64_t)SIGNATURE_ALLOC << SIGNATURE_SHIFT | n_bytes;
    uint64_t own_at, own_size;
    int status, r;

    if (n_bytes >> SIGNATURE_SIZE_BITS)
        return crw_fail(CRW_E_ARGUMENT, "%zu bytes of shared memory for each rank are impossible", n_bytes);
    own_pages(shm, &arena, size, &own_at, &own_size);
    /* All look before one allocates: a memfd has no limit of its own. */
    r = shm_agree(shm, signature, memory_has_room(size, 1) ? 0 : -ENOMEM);
    if (r == 0)
        r = shm_agree(shm, signature, allocate_range(shm->fd, own_at, own_size));
    if (r == 0) {
        status = map_arena(shm, &arena);
        r = shm_agree(shm, signature, status);
        if (r != 0 && status == 0)
            unmap_last_arena(shm);
    }
    if (r != 0)
        free_range(shm->fd, own_at, own_size);
    if (r < 0)
        return crw_fail_errno(
            r, "cannot get %zu bytes of shared memory for %d ranks (%" PRIu64 " are available)", size,
            shm->world_size, memory_available(""));
    if (r == 0) {
        shm->end += size;
        *ret_data = arena.data + (size_t)shm->rank * part;
    }
    return r;
}

void *shm_same_place(const struct shm *shm, void *data, int rank)
{
    const struct shm_arena *arena = shm->arenas;

    while ((uint8_t *)data < arena->data ||
           (uint8_t *)data >= arena->data + arena->part * (size_t)shm->world_size)
        arena++; /* it is in one */
    return (uint8_t *)data + ((ptrdiff_t)rank - shm->rank) * (ptrdiff_t)arena->part;
}

uint64_t shm_locate(const struct shm *shm, const void *data, size_t n_bytes)
{
    uintptr_t begin = (uintptr_t)data;

    for (size_t i = 0; i < shm->n_arenas; i++) {
        uintptr_t first = (uintptr_t)shm->arenas[i].data;
        size_t size = shm->arenas[i].part * (size_t)shm->world_size;

        if (begin >= first && begin - first <= size && n_bytes <= size - (begin - first))
            return shm->arenas[i].at + (begin - first);
    }
    return SHM_NOWHERE;
}

void *shm_at(const struct shm *shm, uint64_t location)
{
    size_t i = 0;

    /* There is one: what a rank located was mapped by all before. */
    while (i + 1 < shm->n_arenas && shm->arenas[i + 1].at <= location)
        i++;
    assert(i < shm->n_arenas && location >= shm->arenas[i].at);
    return shm->arenas[i].data + (location - shm->arenas[i].at);
}

/* ---- channels ---- */

int shm_map_channel(const struct shm *shm, int from, int to, void **ret_room)
{
    uint64_t at = channel_at(shm->world_size, from, to);

    TRY(allocate_range(shm->fd, at, SHM_CHANNEL));
    void *room = map_range(shm->fd, at, SHM_CHANNEL);
    if (!room)
        return -errno;
    *ret_room = room;
    return 0;
}

void shm_unmap_channel(void *room)
{
    if (room)
        (void)munmap(room, SHM_CHANNEL); /* our own mapping: cannot fail */
}

/* As with arrivals: either the sleeper sees the new count before it sleeps, or we see the sleeper. */
void shm_ring_doorbell(struct shm *shm, int rank)
{
    struct shm_doorbell *doorbell = &shm->doorbells[rank];

    atomic_fetch_add(&doorbell->n_rung, 1);
    if (atomic_load(&doorbell->n_sleepers) > 0)
        wake_sleepers(&doorbell->n_rung);
}

uint32_t shm_doorbell(const struct shm *shm)
{
    return atomic_load(&shm->doorbells[shm->rank].n_rung);
}

void shm_sleep_on_doorbell(struct shm *shm, uint32_t seen, int64_t left_ns)
{
    struct shm_doorbell *doorbell = &shm->doorbells[shm->rank];

    atomic_fetch_add(&doorbell->n_sleepers, 1);
    futex_sleep(&doorbell->n_rung, seen, left_ns);
    atomic_fetch_sub(&doorbell->n_sleepers, 1);
}

bool shm_has_failed(const struct shm *shm, int rank)
{
    return atomic_load(&shm->lines[rank].arrived) & FAILURE_BIT;
}

pid_t shm_pid_of(const struct shm *shm, int rank)
{
    return shm->lines[rank].pid;
}

bool shm_has_left(const struct shm *shm, int rank)
{
    return atomic_load(&shm->lines[rank].left);
}
