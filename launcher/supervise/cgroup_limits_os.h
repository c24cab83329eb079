#pragma once

/*
 * The limits of processors and memory that hold for a process in a cgroup (v2): the lowest of the cgroup and of those above it.
 * Programs size their pools by cpu.max and memory.max of their own cgroup, so one that is made for them needs both files.
 */

#include <stdbool.h>
#include <stdint.h>

struct cgroup_limits {
    uint64_t cpu_quota_us, cpu_period_us; /* period 0: no limit */
    uint64_t memory;                      /* bytes, from 1 on; 0: no limit */
};

/* Takes the texts of one cgroup's cpu.max and memory.max ("" where it has none) into account. Pure. */
void cgroup_limits_lower(struct cgroup_limits *l, const char *cpu_max, const char *memory_max);

/* Of the cgroup of this folder (O_PATH), as far up as the hierarchy is mounted. Allocates nothing, as the one below. */
void cgroup_limits_read(int folder, struct cgroup_limits *ret);

/* For a cgroup that is to be made in parent: false when it cannot have the files that the limits need. */
bool cgroup_limits_enable(int parent, const struct cgroup_limits *l);

/* Writes a text into a file of a cgroup. */
bool cgroup_write(int folder, const char *file, const char *text);

/* Writes the limits into the files of a cgroup. */
bool cgroup_limits_write(int folder, const struct cgroup_limits *l);
