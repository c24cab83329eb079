#pragma once

/*
 * The folder of the cgroup (v2) that this process is in, where cgroups can be made below it. Paths begin with root ("" on a
 * real machine), so that a test can lay out all the ways in which cgroups are mounted.
 */

#include <stddef.h>

/*
 * From /proc/self/cgroup and the mount table. Returns 0 with the path, or -ENOENT: there is no cgroup v2, or it is
 * not mounted where this process can reach it.
 */
int own_cgroup_path(const char *root, char *out, size_t out_size);

/* Without /proc: looks for the folder below `mount` that names this process. Returns as own_cgroup_path(). */
int own_cgroup_search(const char *mount, char *out, size_t out_size);

/* A descriptor (O_PATH) of the folder, or -errno: -ENOENT as above, -EACCES or -EROFS when nothing can be made in it. */
int own_cgroup_open(void);
