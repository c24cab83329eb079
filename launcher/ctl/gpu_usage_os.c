#include "launcher/ctl/gpu_usage_os.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/minmax.h"
#include "launcher/ctl/job_status.h"
#include "launcher/util/bounded_os.h"

/* As in nvml.h, whose functions with these names keep their layout. */
struct nvml_utilization {
    unsigned gpu, memory;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

struct gpu_query {
    struct gpu_status gpus[JOB_STATUS_GPUS_MAX];
    size_t n_gpus;
};

static struct {
    bool is_open, is_unusable;
    int (*count)(unsigned *ret);
    int (*handle)(unsigned index, void **ret);
    int (*utilization)(void *device, struct nvml_utilization *ret);
    int (*memory)(void *device, struct nvml_memory *ret);
} nvml;

static void open_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = library ? (int (*)(void))dlsym(library, "nvmlInit_v2") : NULL;

    nvml.is_open = true;
    nvml.is_unusable = true;
    if (!init)
        return;
    nvml.count = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
    nvml.handle = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    nvml.utilization =
        (int (*)(void *, struct nvml_utilization *))dlsym(library, "nvmlDeviceGetUtilizationRates");
    nvml.memory = (int (*)(void *, struct nvml_memory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    nvml.is_unusable = !nvml.count || !nvml.handle || !nvml.utilization || !nvml.memory || init() != 0;
}

static void query_gpu(struct gpu_query *q, unsigned index)
{
    struct nvml_utilization utilization = {0};
    struct nvml_memory memory = {0};
    void *device;

    if (nvml.handle(index, &device) != 0 || nvml.memory(device, &memory) != 0)
        return;
    (void)nvml.utilization(device, &utilization); /* 0 where it is not supported (MIG) */
    q->gpus[q->n_gpus++] = (struct gpu_status){.index = (int32_t)index,
                                               .percent = (int32_t)min_size(utilization.gpu, 100),
                                               .used_mib = (int64_t)(memory.used >> 20),
                                               .total_mib = (int64_t)(memory.total >> 20)};
}

/* In a thread. */
static void query_gpus(void *data)
{
    struct gpu_query *q = data;
    unsigned n = 0;

    if (!nvml.is_open)
        open_nvml();
    if (nvml.is_unusable || nvml.count(&n) != 0)
        return;
    for (unsigned i = 0; i < n && q->n_gpus < JOB_STATUS_GPUS_MAX; i++)
        query_gpu(q, i);
}

size_t gpu_usage_read(struct gpu_status *ret, size_t max)
{
    if (bounded_is_hung() || (access("/dev/nvidiactl", F_OK) < 0 && access("/dev/dxg", F_OK) < 0))
        return 0;
    struct gpu_query *q = calloc(1, sizeof(*q));
    if (!q || bounded_call(query_gpus, free, q, GPU_USAGE_MS) != 0)
        return 0; /* the thread frees it */
    size_t n = min_size(q->n_gpus, max);
    memcpy(ret, q->gpus, n * sizeof(*ret));
    free(q);
    return n;
}
