#pragma once

/*
 * Collectives of the ranks of one host, on the CPU, in the memory that they share. The caller has checked
 * the arguments that are not told by the types. Results are those of shm_meet(). What each does: crw.h.
 */

#include "worker-runtime/shm/shm_os.h"

int comm_cpu_barrier(struct shm *shm);

/* shm_reduce.c */
int comm_cpu_all_reduce(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op);
int comm_cpu_reduce(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
                    int root);
int comm_cpu_reduce_scatter(struct shm *shm, const void *data, void *result, size_t count,
                            enum crw_dtype dtype, enum crw_op op);

/* shm_collectives.c */
int comm_cpu_broadcast(struct shm *shm, void *data, size_t n_bytes, int root);
int comm_cpu_all_gather(struct shm *shm, const void *data, size_t n_bytes, void *all);
int comm_cpu_gather(struct shm *shm, const void *data, size_t n_bytes, void *all, int root);
int comm_cpu_scatter(struct shm *shm, const void *all, size_t n_bytes, void *data, int root);
