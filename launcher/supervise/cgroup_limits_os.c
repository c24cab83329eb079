#include "launcher/supervise/cgroup_limits_os.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { DEPTH_MAX = 64, TEXT_SIZE = 64 };
static const uint64_t QUOTA_MAX_US = UINT64_C(1) << 40; /* products of a quota and a period fit */

void cgroup_limits_lower(struct cgroup_limits *l, const char *cpu_max, const char *memory_max)
{
    char *end;
    uint64_t quota = strtoull(cpu_max, &end, 10), period = strtoull(end, NULL, 10);
    uint64_t memory =
        strtoull(memory_max, NULL, 10); /* 0 for "max"; no process runs in a cgroup of 0 bytes */

    if (quota > 0 && quota < QUOTA_MAX_US && period > 0 && period <= 1000000 &&
        (l->cpu_period_us == 0 || quota * l->cpu_period_us < l->cpu_quota_us * period)) {
        l->cpu_quota_us = quota;
        l->cpu_period_us = period;
    }
    if (memory > 0 && (l->memory == 0 || memory < l->memory))
        l->memory = memory;
}

static void read_limit(int folder, const char *file, char text[TEXT_SIZE])
{
    _cleanup_close_ int fd = openat(folder, file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, TEXT_SIZE - 1);

    text[n > 0 ? n : 0] = '\0';
}

/* Every cgroup has cgroup.procs, and the folder above the mount has none. */
void cgroup_limits_read(int folder, struct cgroup_limits *ret)
{
    _cleanup_close_ int at = openat(folder, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char cpu[TEXT_SIZE], memory[TEXT_SIZE];

    *ret = (struct cgroup_limits){0};
    for (int i = 0; i < DEPTH_MAX && at >= 0 && faccessat(at, "cgroup.procs", F_OK, 0) == 0; i++) {
        read_limit(at, "cpu.max", cpu);
        read_limit(at, "memory.max", memory);
        cgroup_limits_lower(ret, cpu, memory);
        int above = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        (void)close(at);
        at = above;
    }
}

bool cgroup_write(int folder, const char *file, const char *text)
{
    _cleanup_close_ int fd = openat(folder, file, O_WRONLY | O_CLOEXEC);

    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

bool cgroup_limits_enable(int parent, const struct cgroup_limits *l)
{
    return (l->cpu_period_us == 0 || cgroup_write(parent, "cgroup.subtree_control", "+cpu")) &&
           (l->memory == 0 || cgroup_write(parent, "cgroup.subtree_control", "+memory"));
}

bool cgroup_limits_write(int folder, const struct cgroup_limits *l)
{
    char cpu[TEXT_SIZE], memory[TEXT_SIZE];

    (void)snprintf(cpu, sizeof(cpu), "%llu %llu", (unsigned long long)l->cpu_quota_us,
                   (unsigned long long)l->cpu_period_us); /* both fit */
    (void)snprintf(memory, sizeof(memory), "%llu", (unsigned long long)l->memory);
    return (l->cpu_period_us == 0 || cgroup_write(folder, "cpu.max", cpu)) &&
           (l->memory == 0 || cgroup_write(folder, "memory.max", memory));
}
