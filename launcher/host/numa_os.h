#pragma once

/*
 * The topology of the machine for --numa-binding, read from /sys and from the NVIDIA driver's list in /proc: no
 * CUDA, no nvidia-smi, no numactl.
 */

#include "launcher/cli/numa.h"

/* Everything is read below root ("" on a real machine), so that a test can lay out any machine in a folder. */
struct numa_machine {
    const char *root;
    const struct numa_cpus *allowed; /* NULL: those the kernel reports for this process */
    const char *visible_devices;     /* CUDA_VISIBLE_DEVICES; NULL: unset */
    int n_workers;
    int n_gpus_counted; /* by other means: GPUs that are there though the driver's list is not; 0: none */
};

/*
 * Reads the topology; on success ret must be given to numa_finish(). 0, or NUMA_E_IMPOSSIBLE with a sentence in
 * error.
 */
int numa_read(const struct numa_machine *machine, struct numa_topology *ret, char error[NUMA_ERROR_SIZE]);

/*
 * The CPUs of each of machine->n_workers workers: a malloc'ed array. 0, or NUMA_E_IMPOSSIBLE with a sentence in
 * error.
 */
int numa_read_bindings(const struct numa_machine *machine, enum numa_mode mode, struct numa_cpus **ret,
                       char error[NUMA_ERROR_SIZE]);
