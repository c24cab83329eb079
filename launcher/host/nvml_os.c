#include "launcher/host/nvml_os.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {"nvmlInit_v2", offsetof(struct nvml, init)},
    {"nvmlDeviceGetCount_v2", offsetof(struct nvml, count)},
    {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml, handle)},
    {"nvmlDeviceGetMemoryInfo", offsetof(struct nvml, memory)},
    {"nvmlDeviceGetUtilizationRates", offsetof(struct nvml, utilization)},
    {"nvmlDeviceGetRemappedRows", offsetof(struct nvml, remapped)},
    {"nvmlDeviceGetGpuRecoveryAction", offsetof(struct nvml, recovery)},
    {"nvmlDeviceGetUUID", offsetof(struct nvml, uuid)},
    {"nvmlEventSetCreate", offsetof(struct nvml, event_set)},
    {"nvmlDeviceRegisterEvents", offsetof(struct nvml, watch)},
    {"nvmlEventSetWait_v2", offsetof(struct nvml, next_event)},
};

bool nvml_has_driver(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0; /* the second one is WSL's */
}

bool nvml_open(struct nvml *ret)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

    *ret = (struct nvml){0};
    for (size_t i = 0; library && i < ARRAY_SIZE(symbols); i++) {
        void *function = dlsym(library, symbols[i].name);
        memcpy((char *)ret + symbols[i].offset, &function, sizeof(function));
    }
    return ret->init && ret->count && ret->init() == 0;
}
