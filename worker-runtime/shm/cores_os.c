/*
 * /proc/self/cgroup has the line "0::/a/b" for the unified hierarchy. Each of /a/b, /a and / may have a file cpu.max with
 * "QUOTA PERIOD" in microseconds, or "max PERIOD"; the smallest quota is the one that limits. In a container the path is
 * that inside its own cgroup namespace, and so is what is mounted.
 */

#include "worker-runtime/shm/cores_os.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 1024 };

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

/* Of one cgroup. */
static int read_quota(const char *cgroup)
{
    char path[PATH_SIZE + 32];
    long long quota_us, period_us;
    FILE *file;
    int n;

    (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", cgroup); /* fits */
    file = fopen(path, "re");
    if (!file)
        return INT_MAX;
    n = fscanf(file, "%lld %lld", &quota_us, &period_us);
    (void)fclose(file); /* only read */
    if (n != 2 || quota_us <= 0 || period_us <= 0 || quota_us / period_us >= INT_MAX)
        return INT_MAX;
    return (int)((quota_us + period_us - 1) / period_us);
}

static int find_cgroup(char cgroup[PATH_SIZE])
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    int found = 0;

    if (!file)
        return 0;
    while (!found && fgets(cgroup, PATH_SIZE, file))
        found = strncmp(cgroup, "0::/", 4) == 0;
    (void)fclose(file); /* only read */
    if (!found)
        return 0;
    cgroup[strcspn(cgroup, "\n")] = '\0';
    memmove(cgroup, cgroup + 3, strlen(cgroup + 3) + 1);
    return 1;
}

int cores_quota(void)
{
    char cgroup[PATH_SIZE];
    int smallest = INT_MAX;

    if (!find_cgroup(cgroup))
        return INT_MAX;
    for (;;) {
        char *last = strrchr(cgroup, '/');
        int quota = read_quota(cgroup);

        if (quota < smallest)
            smallest = quota;
        if (!last)
            return smallest;
        *last = '\0';
    }
}
