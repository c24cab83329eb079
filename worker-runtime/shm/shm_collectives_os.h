#pragma once

/* Collectives of the ranks of one host, on the CPU, in the memory that they share. The caller has
 * checked the arguments. Results are those of shm_phase_barrier(). What each does: crw.h. */

#include "worker-runtime/shm/shm_os.h"

int shm_barrier(struct shm *shm);

/* shm_reduce_os.c */
int shm_all_reduce(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op);
int shm_reduce(struct shm *shm, void *data, size_t count, enum crw_dtype dtype, enum crw_op op, int root);
int shm_reduce_scatter(struct shm *shm, const void *data, void *result, size_t count, enum crw_dtype dtype,
                       enum crw_op op);

/* shm_collectives_os.c */
int shm_broadcast(struct shm *shm, void *data, size_t n_bytes, int root);
int shm_all_gather(struct shm *shm, const void *data, size_t n_bytes, void *all);
int shm_gather(struct shm *shm, const void *data, size_t n_bytes, void *all, int root);
int shm_scatter(struct shm *shm, const void *all, size_t n_bytes, void *data, int root);
