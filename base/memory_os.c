/*
 * What a cgroup uses counts caches that the kernel gives up first: of files, and of their names (slab). That part is left. Version
 * 1 does not count what it can give up of the kernel's memory, so all of that is taken for left: a size that fits is never
 * refused, and the absurd ones still are.
 */

#include "base/memory.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/cgroup_numbers_os.h"

enum { SMALL = 1 << 20 };

static _Atomic uint64_t pretended; /* 0: nothing is */

static uint64_t left_in_cgroup(const char *folder, bool v1)
{
    uint64_t limit = cgroup_number(folder, v1 ? "memory.limit_in_bytes" : "memory.max", "", UINT64_MAX);
    uint64_t used = cgroup_number(folder, v1 ? "memory.usage_in_bytes" : "memory.current", "", 0);
    uint64_t cache = cgroup_number(folder, "memory.stat", v1 ? "total_inactive_file " : "inactive_file ", 0) +
                     cgroup_number(folder, "memory.stat", v1 ? "total_active_file " : "active_file ", 0) +
                     (v1 ? cgroup_number(folder, "memory.kmem.usage_in_bytes", "", 0)
                         : cgroup_number(folder, "memory.stat", "slab_reclaimable ", 0));

    used = used > cache ? used - cache : 0;
    if (limit == UINT64_MAX)
        return limit;
    return limit > used ? limit - used : 0;
}

uint64_t memory_available(const char *root)
{
    uint64_t left = cgroup_least(root, "memory", left_in_cgroup), kib;
    char folder[CGROUP_PATH_SIZE];

    (void)snprintf(folder, sizeof(folder), "%s/proc", root);
    kib = cgroup_number(folder, "meminfo", "MemAvailable:", UINT64_MAX / 2048);
    kib += cgroup_number(folder, "meminfo", "SwapFree:", 0);
    return kib >= UINT64_MAX / 2048 || left < kib * 1024 ? left : kib * 1024;
}

bool memory_has_room(uint64_t count, uint64_t size)
{
    uint64_t n_bytes, limit = atomic_load(&pretended);

    if (!__builtin_mul_overflow(count, size, &n_bytes) &&
        (n_bytes < SMALL || n_bytes <= (limit ? limit : memory_available(""))))
        return true;
    errno = ENOMEM;
    return false;
}

void memory_pretend(uint64_t n_bytes)
{
    atomic_store(&pretended, n_bytes);
}
