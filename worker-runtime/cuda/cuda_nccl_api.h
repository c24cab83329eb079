#pragma once

/*
 * NCCL as this plugin uses it: declarations of a few calls, found in libnccl.so.2 at run time. Building needs
 * neither its header nor its library. What came after 2.18 may be missing: the pointer is then NULL and
 * the caller has another way.
 *
 * The shapes are those of NCCL's public header; struct nccl_config is the part of ncclConfig_t that 2.18 had,
 * which later versions accept because it contains its size and version.
 */

#include <cuda_runtime_api.h>
#include <stddef.h>

typedef struct ncclComm *nccl_comm;

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_INVALID_ARGUMENT = 4, /* the call had no effect */
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
};

enum { NCCL_FLOAT32 = 7, NCCL_SUM = 0, NCCL_ID_BYTES = 128 };

/* major * 10000 + minor * 100 + patch */
enum {
    NCCL_VERSION_MIN = 21801,
    NCCL_VERSION_REVOKE = 22807,
    NCCL_VERSION_SHARED_GPU = 23003,
};

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

/*
 * NCCL refuses two ranks that have the same host and the same GPU, and before 2.30.3 has no option against it. The host
 * is known by NCCL_HOSTID: a name of its own makes this process a host, and NCCL connects its ranks by sockets. Before
 * the first communicator of the process, because NCCL reads the name once. Variables that are set stay as they are.
 */
void nccl_name_own_host(void);

/* A communicator whose calls return at once. */
struct nccl_config nccl_config_nonblocking(void);

struct nccl_api {
    void *library;
    int version;
    int (*get_version)(int *version);
    int (*get_unique_id)(struct nccl_id *id);
    int (*comm_init)(nccl_comm *comm, int n_ranks, struct nccl_id id, int rank, struct nccl_config *config);
    int (*comm_error)(nccl_comm comm, int *error);
    int (*comm_abort)(nccl_comm comm);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, nccl_comm comm,
                      cudaStream_t stream);
    const char *(*error_string)(int result);
    const char *(*last_error)(nccl_comm comm);
    int (*comm_revoke)(nccl_comm comm, int flags); /* NULL where the library is too old */
};

/* path NULL: libnccl.so.2 where the loader finds it. CRW_E_NOT_FOUND, CRW_E_MISMATCH (too old, or no NCCL).
 */
int nccl_api_open(const char *path, struct nccl_api *ret);
