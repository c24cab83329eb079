#pragma once

/* What the launcher asks of the machine: CPUs, GPUs, how often memory ran out, a random name. */

#include <stdbool.h>
#include <stddef.h>

/* CPUs this process may use. */
int machine_count_cpus(void *unused);

/* NVIDIA GPUs that CUDA would show to a program started here, CUDA_VISIBLE_DEVICES respected; 0 also when the
 * driver cannot be asked. */
int machine_count_gpus(void *environment);

/* What the kernel does with core dumps: /proc/sys/kernel/core_pattern; "" when unknown. */
void machine_core_pattern(char *out, size_t out_size);

/* "process 4711 (bash)", and whose it is if it is another user's. */
void machine_describe_sender(int pid, unsigned user, char *out, size_t out_size);

/* The text of Slurm's configuration, malloc'ed; NULL outside a job of Slurm, or when it cannot be read. */
char *machine_slurm_conf(char *const *environment);

/* A random UUID in text: 36 characters and a NUL. */
void machine_uuid(char out[37]);

/* How many of n_devices physical GPUs a value of CUDA_VISIBLE_DEVICES (NULL: unset) leaves: CUDA reads the
 * list up to the first entry that names no device. */
int machine_visible_gpus(const char *visible, int n_devices);

/* Says that a process is stuck, in which state and where in the kernel. local_rank: -1 if it is no worker. */
void machine_say_stuck(int pid, int local_rank);
