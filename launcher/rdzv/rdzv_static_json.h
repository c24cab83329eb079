#pragma once

/*
 * The values that agents of a static rendezvous write into its store, in the format of torchrun's agents:
 *
 *   torchelastic/role_info/<node>        {"role": "default", "rank": 1, "local_world_size": 8}
 *   torchelastic/assigned_ranks/<node>   [8, 16, 8, 16]
 *                                        rank_base, world_size, role_rank_base, role_world_size
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rank_assignment;

struct rdzv_static_role {
    char *role; /* malloc'ed */
    uint32_t n_workers;
};

/* Malloc'ed text; NULL without memory. */
char *rdzv_static_json_role(const char *role, uint32_t rank, uint32_t n_workers);
char *rdzv_static_json_ranks(const struct rank_assignment *assignment);

/* False: another format, or no memory. On success the caller owns the role. */
bool rdzv_static_json_read_role(const void *bytes, size_t n, struct rdzv_static_role *ret);
bool rdzv_static_json_read_ranks(const void *bytes, size_t n, struct rank_assignment *ret);
