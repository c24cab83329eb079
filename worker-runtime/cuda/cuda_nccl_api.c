/*
 * Finds NCCL's library and its calls. Fails with a message when the library is not there, lacks a call that every
 * version has, or is older than 2.18.1.
 */

#include "worker-runtime/cuda/cuda_nccl_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/symbols_os.h"
#include "base/time.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/cuda/library_os.h"

#define NCCL_FILE "libnccl.so.2"

struct nccl_config nccl_config_nonblocking(void)
{
    return (struct nccl_config){
        .size = sizeof(struct nccl_config),
        .magic = 0xcafebeef,
        .version = NCCL_VERSION_MIN,
        .cga_cluster_size = INT_MIN, /* INT_MIN: as the library likes */
        .min_ctas = INT_MIN,
        .max_ctas = INT_MIN,
        .split_share = INT_MIN,
    };
}

void nccl_name_own_host(void)
{
    char name[64];
    (void)snprintf(name, sizeof(name), "crun-%d-%llx", (int)getpid(), (unsigned long long)now_ns());
    /* Failures, which only missing memory can cause, show as the refusal of NCCL. */
    (void)setenv("NCCL_HOSTID", name, 0);
    (void)setenv("NCCL_NET", "Socket", 0);
    (void)setenv("NCCL_MNNVL_ENABLE", "0", 0); /* an NVLink domain of several hosts would find the one GPU */
}

static bool find_needed(struct nccl_api *api)
{
    const struct library_function calls[] = {
        {"ncclGetVersion", &api->get_version},       {"ncclGetUniqueId", &api->get_unique_id},
        {"ncclCommInitRankConfig", &api->comm_init}, {"ncclCommGetAsyncError", &api->comm_error},
        {"ncclCommAbort", &api->comm_abort},         {"ncclAllReduce", &api->all_reduce},
        {"ncclGetErrorString", &api->error_string},  {"ncclGetLastError", &api->last_error},
    };
    return library_find(api->library, calls, ARRAY_SIZE(calls));
}

static const struct library_place nccl_place = {
    .names = {NCCL_FILE},
    .wheels = {"nvidia/nccl/lib/" NCCL_FILE},
};

int nccl_api_open(const char *path, struct nccl_api *ret)
{
    const char *name = path ? path : NCCL_FILE;
    struct nccl_api api = {.library = library_open(&nccl_place, path)};
    if (!api.library)
        return crw_fail(CRW_E_NOT_FOUND,
                        "NCCL cannot be loaded: %s; install it and put the folder of libnccl.so.2 into "
                        "LD_LIBRARY_PATH, or its path into CRW_NCCL_LIBRARY",
                        path ? dlerror()
                             : NCCL_FILE " is not where the loader looks, nor beside a Python's PyTorch");
    if (!find_needed(&api) || api.get_version(&api.version) != NCCL_SUCCESS)
        return crw_fail(CRW_E_MISMATCH, "%s is no NCCL that this program can use", name);
    if (api.version < NCCL_VERSION_MIN)
        return crw_fail(CRW_E_MISMATCH, "NCCL %d.%d.%d in %s is too old; 2.18.1 or later is needed",
                        api.version / 10000, api.version / 100 % 100, api.version % 100, name);
    /* A function is used from the version on that introduced it, even if an earlier one has the symbol. */
    if (api.version >= NCCL_VERSION_REVOKE)
        (void)library_find(api.library, &(struct library_function){"ncclCommRevoke", &api.comm_revoke}, 1);
    *ret = api;
    return 0;
}
