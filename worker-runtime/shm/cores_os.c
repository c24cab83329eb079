#include "worker-runtime/shm/cores_os.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include "base/cgroup_numbers_os.h"

void cores_add_own(_Atomic uint64_t set[CORES_WORDS])
{
    long n_online = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t own;

    if (sched_getaffinity(0, sizeof(own), &own) !=
        0) { /* a kernel for more processors than a cpu_set_t holds */
        CPU_ZERO(&own);
        for (long i = 0; i < n_online && i < CPU_SETSIZE; i++)
            CPU_SET((size_t)i, &own);
    }
    for (size_t i = 0; i < CPU_SETSIZE && i < 64 * CORES_WORDS; i++)
        if (CPU_ISSET(i, &own))
            atomic_fetch_or(&set[i / 64], UINT64_C(1) << (i % 64));
}

int cores_count(const _Atomic uint64_t set[CORES_WORDS])
{
    int n = 0;

    for (int i = 0; i < CORES_WORDS; i++)
        n += __builtin_popcountll(atomic_load(&set[i]));
    return n;
}

/* Of one cgroup: cpu.max has "QUOTA PERIOD" in microseconds, or "max PERIOD". */
static uint64_t read_quota(const char *folder, bool v1)
{
    uint64_t quota_us = v1 ? 0 : cgroup_number(folder, "cpu.max", "", 0), period_us;
    char before[32];

    (void)snprintf(before, sizeof(before), "%" PRIu64 " ", quota_us);
    period_us = cgroup_number(folder, "cpu.max", before, 0);
    return quota_us > 0 && period_us > 0 ? (quota_us - 1) / period_us + 1 : UINT64_MAX;
}

int cores_quota(void)
{
    uint64_t quota = cgroup_least("", "cpu", read_quota);

    return quota < INT_MAX ? (int)quota : INT_MAX;
}
