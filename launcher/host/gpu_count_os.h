#pragma once

/* How many NVIDIA GPUs there are, by the driver's management library or its list in /proc. */

/*
 * GPUs that CUDA would show to a program started with this environment (CUDA_VISIBLE_DEVICES respected). 0 also when
 * the driver cannot be asked.
 */
int gpu_count(char *const *environment);
