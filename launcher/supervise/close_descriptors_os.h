#pragma once

#include <stddef.h>

/*
 * Closes every open descriptor from `first` to `last` (INT_MAX: all from first on). With close_range(2) where there is
 * one (Linux 5.9, and allowed by the seccomp profile of an old container runtime), else by the list in
 * /proc/self/fd, else one number after the other up to the limit of open files. Allocates nothing: it runs between
 * vfork() and execve(), and in the guardian. Returns 0 or -errno.
 */
int close_descriptors(int first, int last);

/* Closes all from `first` on but those in keep, which is sorted. 0 or -errno. */
int close_descriptors_except(int first, int *keep, size_t n_keep);
