#pragma once

/*
 * How many processors the ranks of a host have together. Each rank may be bound to a few of its own, so the answer needs
 * the sets of all ranks; a container may have a quota of processor time beside.
 */

#include <stdatomic.h>
#include <stdint.h>

enum { CORES_WORDS = 16 }; /* 1024 processors; those above are not counted */

/* Adds the processors that this process may run on. */
void cores_add_own(_Atomic uint64_t set[CORES_WORDS]);

int cores_count(const _Atomic uint64_t set[CORES_WORDS]);

/* The quota of this process's cgroup (v2) in whole processors, rounded up; INT_MAX: there is none, or it cannot be read. */
int cores_quota(void);
