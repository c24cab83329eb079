#include "worker-runtime/group/collective_record_os.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/lock_os.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/file_limit_os.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both */
static bool was_mapped;
static struct worker_collective *records; /* WORKER_COLLECTIVES_MAX of them; NULL: there is no memory */

/* Once for the process. fallocate(): a lack of memory is an error here instead of a SIGBUS in a later collective. */
static void map_records(void)
{
    int fd = was_mapped ? -1 : env_state_file();

    was_mapped = true;
    if (fd < 0 || file_limit_allocate(fd, 0, WORKER_MEMORY_PAGE) < 0)
        return;
    uint8_t *page = mmap(NULL, WORKER_MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return;
    records = (struct worker_collective *)(void *)(page + WORKER_COLLECTIVES_AT);
    memset(records, 0,
           WORKER_COLLECTIVES_MAX * sizeof(*records)); /* of an earlier process, whose number may be ours */
}

static struct worker_collective *take_record(const struct worker_collective *content)
{
    struct worker_collective *found = NULL;

    hold_lock(&lock);
    map_records();
    for (int i = 0; records && !found && i < WORKER_COLLECTIVES_MAX; i++)
        if (records[i].group == 0)
            found = &records[i];
    if (found)
        *found = *content;
    return found;
}

/* A number that is not 0 and hardly that of another group (splitmix64). */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + 1;

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) | 1;
}

uint64_t collective_record_world(int n)
{
    return mix(0, (uint64_t)n);
}

uint64_t collective_record_below(const struct collective_record *r)
{
    return mix(r->group, r->number);
}

void collective_record_init(struct collective_record *r, uint64_t group, int n_ranks, bool is_world)
{
    const struct worker_collective content = {
        .group = group, .n_ranks = (uint32_t)n_ranks, .is_world = is_world, .pid = (uint32_t)getpid()};

    *r = (struct collective_record){.group = group, .at = take_record(&content)};
}

void collective_record_finish(struct collective_record *r)
{
    hold_lock(&lock);
    if (r->at)
        __atomic_store_n(&r->at->group, 0, __ATOMIC_RELAXED);
    r->at = NULL;
}

void collective_record_begin(struct collective_record *r, enum worker_collective_kind kind)
{
    r->number++;
    if (!r->at)
        return;
    __atomic_store_n(&r->at->number, r->number, __ATOMIC_RELAXED);
    __atomic_store_n(&r->at->kind, (uint32_t)kind, __ATOMIC_RELEASE);
}

void collective_record_end(struct collective_record *r)
{
    if (r->at)
        __atomic_store_n(&r->at->kind, (uint32_t)WORKER_COLLECTIVE_NONE, __ATOMIC_RELEASE);
}
