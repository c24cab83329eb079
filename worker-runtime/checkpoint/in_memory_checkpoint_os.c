/*
 * In-memory checkpoint: the state of a rank in memory that outlives its process (proto/worker_memory.h).
 *
 * A head and two slots. The number of a slot is its commit word: cleared before the first byte of the
 * slot is written, set after the last one. A reader starts only after the writer's process has ended, so
 * the compiler has to keep this order and no more is needed.
 *
 * The head shares its page with the records of the process's groups (group/collective_record_os.h).
 *
 * Ways it fails: killed while a slot is written: it has no number, and the other slot is whole. Killed
 * while the head is written, before its magic: the next process initialises the file. Another layout or
 * unknown bytes: the same.
 */

#include "base/cleanup.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/file_limit_os.h"
#include "worker-runtime/base/error.h"
#include "base/memory.h"
#include "worker-runtime/group/group_os.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x3130746174736372ull
#define NO_NUMBER UINT64_MAX

enum {
    PAGE = 4096,
    HEAD_SIZE = PAGE,
    MEMORY_SHARE = 4, /* of the machine's memory, one part in so many for all ranks */
};

struct memory_head {
    _Atomic uint64_t magic;
    uint64_t n_bytes;
    uint32_t kind;
    _Atomic uint64_t numbers[2];
};

struct crw_memory {
    struct memory_head *head;
    size_t size; /* of the mapping */
    int writing; /* the slot that was begun */
};

static size_t slot_size(size_t n_bytes)
{
    return (n_bytes + PAGE - 1) / PAGE * PAGE;
}

static void *slot_at(const struct crw_memory *m, int slot)
{
    return (uint8_t *)m->head + HEAD_SIZE + (size_t)slot * slot_size(m->head->n_bytes);
}

static bool is_too_much(size_t n_bytes, int n_ranks)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    uint64_t all = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;

    return n_bytes > all / MEMORY_SHARE / 2 / (uint64_t)n_ranks;
}

/* Drops the old content, but not the first page: it has the records of this process's groups, which are in use.
 * fallocate(): a lack of memory is an error here instead of a SIGBUS in a later step. */
static int make_anew(int fd, size_t size)
{
    TRY(file_limit_resize(fd, PAGE));
    return file_limit_allocate(fd, 0, size);
}

static bool is_of(const struct memory_head *head, size_t n_bytes, uint32_t kind)
{
    return head->magic == MAGIC && head->n_bytes == n_bytes && head->kind == kind;
}

static struct memory_head *map_file(int fd, size_t size)
{
    void *head = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

    return head == MAP_FAILED ? NULL : head;
}

static int map_as(int fd, size_t n_bytes, uint32_t kind, struct crw_memory *m)
{
    struct stat st;

    m->size = HEAD_SIZE + 2 * slot_size(n_bytes);
    if (fstat(fd, &st) == 0 && (size_t)st.st_size == m->size)
        m->head = map_file(fd, m->size);
    if (m->head && is_of(m->head, n_bytes, kind))
        return 0;
    if (m->head)
        (void)munmap(m->head, m->size); /* our own mapping: cannot fail */
    TRY(memory_has_room(m->size, 1) ? make_anew(fd, m->size) : -ENOMEM);
    m->head = map_file(fd, m->size);
    if (!m->head)
        return -errno;
    m->head->magic = 0; /* of the old content */
    m->head->n_bytes = n_bytes;
    m->head->kind = kind;
    m->head->numbers[0] = m->head->numbers[1] = NO_NUMBER;
    m->head->magic = MAGIC;
    return 0;
}

int crw_memory_open(const struct crw_group *group, size_t n_bytes, uint32_t kind, struct crw_memory **ret)
{
    _cleanup_free_ struct crw_memory *m = calloc(1, sizeof(*m));
    int fd = env_state_file(), r;

    NEED(group && ret, CRW_E_ARGUMENT);
    if (!m)
        return crw_fail_errno(-ENOMEM, "cannot keep the state in memory");
    if (fd < 0)
        return crw_fail(CRW_E_NOT_FOUND, "no launcher holds memory for this rank's state");
    if (is_too_much(n_bytes, group->env.local_world_size))
        return crw_fail(CRW_E_NOT_FOUND,
                        "the state has %zu bytes, which is too much to be held in memory twice for "
                        "each of %d ranks",
                        n_bytes, group->env.local_world_size);
    r = map_as(fd, n_bytes, kind, m);
    if (r < 0)
        return crw_fail_errno(r, "cannot hold %zu bytes of state in memory twice", n_bytes);
    *ret = steal_ptr(m);
    return 0;
}

void crw_memory_close(struct crw_memory *m)
{
    if (!m)
        return;
    (void)munmap(m->head, m->size); /* our own mapping: cannot fail */
    free(m);
}

static uint64_t slot_number(const struct crw_memory *m, int slot)
{
    return atomic_load_explicit(&m->head->numbers[slot], memory_order_relaxed);
}

void *crw_memory_begin(struct crw_memory *m)
{
    NEED(m, NULL);
    uint64_t a = slot_number(m, 0);
    uint64_t b = slot_number(m, 1);
    m->writing = a == NO_NUMBER || (b != NO_NUMBER && a < b) ? 0 : 1;
    atomic_store_explicit(&m->head->numbers[m->writing], NO_NUMBER, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    return slot_at(m, m->writing);
}

void crw_memory_commit(struct crw_memory *m, uint64_t number)
{
    NEED(m);
    atomic_store_explicit(&m->head->numbers[m->writing], number, memory_order_release);
}

size_t crw_memory_list(const struct crw_memory *m, uint64_t ret_numbers[2])
{
    size_t n = 0;

    NEED(m && ret_numbers, 0);
    for (int slot = 0; slot < 2; slot++)
        if (slot_number(m, slot) != NO_NUMBER)
            ret_numbers[n++] = slot_number(m, slot);
    if (n == 2 && ret_numbers[0] < ret_numbers[1]) {
        uint64_t older = ret_numbers[0];

        ret_numbers[0] = ret_numbers[1];
        ret_numbers[1] = older;
    }
    return n;
}

const void *crw_memory_find(const struct crw_memory *m, uint64_t number)
{
    for (int slot = 0; m && slot < 2 && number != NO_NUMBER; slot++)
        if (slot_number(m, slot) == number)
            return slot_at(m, slot);
    return NULL;
}
