#pragma once

/*
 * What the GPUs of this machine do, from the driver's management library (NVML), which is opened when it is asked for. A
 * driver that hangs is waited for at most GPU_USAGE_MS; it is not asked again, and the process has to end by _exit()
 * (side_thread_is_any_hung()). For the thread of main() alone.
 */

#include <stddef.h>

struct gpu_status;

enum { GPU_USAGE_MS = 2000 };

/* Returns how many it filled in; 0 also where there is no driver. */
size_t gpu_usage_read(struct gpu_status *ret, size_t max);
