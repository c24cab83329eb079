#pragma once

/*
 * Limits of the cgroups that this process is in, and numbers in files of /proc and /sys.
 *
 * /proc/self/cgroup has a line "0::/a/b" for the unified hierarchy and "4:memory:/a/b" for a controller of version 1. Each of
 * /a/b, /a and / may have a limit; the smallest is the one that limits. In a container the path is that inside its own
 * cgroup namespace, and so is what is mounted.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CGROUP_PATH_SIZE = 4096 };

/* The number behind key, which begins a line of FOLDER/FILE; without that line, or with "max" there: otherwise. */
uint64_t cgroup_number(const char *folder, const char *file, const char *key, uint64_t otherwise);

/* The smallest result of `of` for the cgroups of this process; UINT64_MAX: none. root: in front of /proc and /sys. */
uint64_t cgroup_least(const char *root, const char *controller, uint64_t (*of)(const char *folder, bool v1));
