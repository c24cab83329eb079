#pragma once

/*
 * --numa-binding: which CPUs a worker may run on, so that it stays near its GPU. The four modes and their
 * arithmetic are torchrun's. Pure: the machine's topology comes in as numbers (read by numa_os.c), a set of CPUs
 * comes out.
 *
 * node:         the CPUs of the GPU's NUMA node
 * socket:       the CPUs of all nodes of that node's socket
 * exclusive:    the node's physical cores, divided among the GPUs of the node
 * core-complex: the CPUs of the node that share one last-level cache, another cache for each GPU
 *
 * On a machine without GPUs there is a place for each worker instead (numa_spread()).
 */

#include <stdbool.h>
#include <stdint.h>

enum {
    NUMA_CPUS_MAX = 8192, /* of the kernel's own limit */
    NUMA_NODES_MAX = 1024,
    NUMA_GPUS_MAX = 1024,
    NUMA_ERROR_SIZE = 512,
};

/* Those behind the first are in the order of the choices of --numa-binding. */
enum numa_mode { NUMA_NONE, NUMA_NODE, NUMA_SOCKET, NUMA_EXCLUSIVE, NUMA_CORE_COMPLEX };

/* A set of CPUs, laid out as sched_setaffinity() takes it. */
struct numa_cpus {
    uint64_t bits[NUMA_CPUS_MAX / 64];
};

/* Of one CPU. Groups are named by their lowest CPU. */
struct numa_cpu {
    int package; /* socket */
    int core;    /* lowest CPU of its physical core */
    int cache;   /* lowest CPU that shares its last-level cache */
};

struct numa_topology {
    struct numa_cpus allowed;    /* what this process may use */
    struct numa_cpus *node_cpus; /* of each node, by its number; empty: no such node, or memory only */
    int n_nodes;
    struct numa_cpu *cpus; /* by number; filled for allowed CPUs only */
    int n_cpus;
    int *places; /* the NUMA node of each GPU, in the order in which CUDA numbers them */
    int n_places;
    bool has_gpus; /* false: places stand for workers */
};

void numa_finish(struct numa_topology *t);

/* A list as in /sys: "0-2,4,6-7". False when it is malformed or names a CPU beyond NUMA_CPUS_MAX. */
bool numa_cpus_parse(const char *list, struct numa_cpus *ret);

bool numa_cpus_has(const struct numa_cpus *cpus, int cpu);
void numa_cpus_add(struct numa_cpus *cpus, int cpu);
int numa_cpus_count(const struct numa_cpus *cpus);
int numa_cpus_lowest(const struct numa_cpus *cpus); /* -1: none */

/*
 * Without GPUs: gives each of n_workers a place, in equal blocks on the nodes that have CPUs to use: with 2
 * nodes and 4 workers, 0 and 1 are on the first. Returns 0 or -ENOMEM.
 */
int numa_spread(struct numa_topology *t, int n_workers);

enum { NUMA_E_IMPOSSIBLE = 1 };

/* Writes the sentence and returns NUMA_E_IMPOSSIBLE. */
__attribute__((format(printf, 2, 3))) int numa_refuse(char error[NUMA_ERROR_SIZE], const char *format, ...);

/* The CPUs for the worker with this local rank. 0, or NUMA_E_IMPOSSIBLE with a sentence in error. */
int numa_bind(const struct numa_topology *t, enum numa_mode mode, int local_rank, struct numa_cpus *ret_cpus,
              char error[NUMA_ERROR_SIZE]);
