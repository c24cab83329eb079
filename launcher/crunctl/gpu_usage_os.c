#include "launcher/crunctl/gpu_usage_os.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "launcher/ctl/job_status.h"
#include "launcher/host/nvml_os.h"
#include "launcher/util/side_thread_os.h"

struct gpu_query {
    struct gpu_status gpus[JOB_STATUS_GPUS_MAX];
    size_t n_gpus;
};

static struct nvml nvml;
static bool is_opened, is_usable;

static void open_driver(void)
{
    is_opened = true;
    is_usable = nvml_open(&nvml) && nvml.handle && nvml.utilization && nvml.memory;
}

static void query_gpu(struct gpu_query *q, unsigned index)
{
    struct nvml_utilization utilization = {0};
    struct nvml_memory memory = {0};
    nvml_device device;

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

    if (!is_opened)
        open_driver();
    if (!is_usable || nvml.count(&n) != 0)
        return;
    for (unsigned i = 0; i < n && q->n_gpus < JOB_STATUS_GPUS_MAX; i++)
        query_gpu(q, i);
}

size_t gpu_usage_read(struct gpu_status *ret, size_t max)
{
    if (side_thread_is_any_hung() || !nvml_has_driver())
        return 0;
    struct gpu_query *q = calloc(1, sizeof(*q));
    const struct side_order order = {.kind = SIDE_OTHER, .run = query_gpus, .drop = free, .data = q};
    if (!q || side_work_call(&order, GPU_USAGE_MS) != 0)
        return 0; /* the thread frees it */
    size_t n = min_size(q->n_gpus, max);
    memcpy(ret, q->gpus, n * sizeof(*ret));
    free(q);
    return n;
}
