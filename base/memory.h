#pragma once

/*
 * Memory that this process can still get. An allocation that a caller or a file sizes is compared with it first: Linux
 * grants more than there is, and ends processes when the memory is used.
 */

#include <stdbool.h>
#include <stdint.h>

/* The least of what /proc/meminfo has available, swap included, and of what the memory limit of each cgroup of this
 * process leaves, in bytes; v1 and v2. UINT64_MAX: not known. root: in front of /proc and /sys; "" outside tests. */
uint64_t memory_available(const char *root);

/* Are count times size bytes there? false with errno ENOMEM. Small sizes are not looked at. As malloc() it may be called
 * by the files that do no input and output. */
bool memory_has_room(uint64_t count, uint64_t size);

/* For tests: what is available from now on. */
void memory_pretend(uint64_t n_bytes);
