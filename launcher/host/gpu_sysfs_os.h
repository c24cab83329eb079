#pragma once

/*
 * GPUs of AMD and of Intel, counted from what their drivers show in /sys and /dev/dri: no library is opened, no device
 * is touched. A GPU counts if this process may use it, that is if its render node is in /dev/dri: a container has only
 * the nodes that it was given.
 *
 * root: "" or the folder of a machine that a test has made. Both return 0 when there is none.
 */

/*
 * What HIP would show to a program with this environment: ROCR_VISIBLE_DEVICES selects among all GPUs, then
 * HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES where that is not set, among those that are left.
 */
int gpu_count_amd(const char *root, char *const *environment);

/*
 * What PyTorch would show as XPUs: those that ZE_AFFINITY_MASK names, if it is set. The GPU inside the processor counts only
 * where there is no other. A card of several tiles counts as one.
 */
int gpu_count_intel(const char *root, char *const *environment);
