/*
 * Finds NCCL's library and its calls. Fails with a message when the library is not there, lacks a call that every
 * version has, or is older than 2.18.1.
 */

#include "worker-runtime/cuda/cuda_nccl_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* A function pointer is a data pointer here, as POSIX promises for dlsym(). */
static bool find_call(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol));
    return symbol;
}

static bool find_needed(struct nccl_api *api)
{
    void *l = api->library;
    return find_call(l, "ncclGetVersion", &api->get_version) &&
           find_call(l, "ncclGetUniqueId", &api->get_unique_id) &&
           find_call(l, "ncclCommInitRankConfig", &api->comm_init) &&
           find_call(l, "ncclCommGetAsyncError", &api->comm_error) &&
           find_call(l, "ncclCommAbort", &api->comm_abort) &&
           find_call(l, "ncclAllReduce", &api->all_reduce) &&
           find_call(l, "ncclGetErrorString", &api->error_string) &&
           find_call(l, "ncclGetLastError", &api->last_error);
}

/* What a version introduced is used from that version on, even if an earlier one has the symbol. */
static void find_tiers(struct nccl_api *api)
{
    if (api->version >= NCCL_VERSION_REVOKE)
        (void)find_call(api->library, "ncclCommRevoke", &api->comm_revoke);
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
    find_tiers(&api);
    *ret = api;
    return 0;
}
