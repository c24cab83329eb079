#pragma once

/*
 * What the kernel has counted for the cgroup of this process. Everything is read below root ("" on a real machine), so that a
 * test can lay out all the ways in which cgroups are mounted.
 */

/* How many processes of the cgroup the OOM killer has ended so far: memory.events of cgroup v2, memory.oom_control
 * of v1. -1 when it cannot be known. */
long cgroup_oom_kills(const char *root);
