/*
 * The management library of an NVIDIA driver, as libnvidia-ml.so.1. FAKE_NVML has its state, and what there is to be seen of
 * the last GPU: "gpus=2 hung=1 percent=97 free=50 busy_ms=300 recovery=1 pending=1 failed=1 lost=1 xid=79"; percent is the
 * utilization, free the percentage of free memory, for busy_ms milliseconds, for ever without that. With hung=1 the driver
 * never answers: a process that waits for a wedged GPU often cannot be ended by any signal but SIGKILL.
 *
 * With LD_PRELOAD there is its control device, too, without which crun and crunctl count no GPUs.
 */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]);
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]);
int nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed);
int nvmlDeviceGetGpuRecoveryAction(void *device, int *action);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size);
int nvmlEventSetCreate(void **set);
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);

struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms);

enum { ERROR = 999 };

static char devices[64];
static struct timespec begin;
static int is_xid_taken;

static int setting(const char *name, int fallback)
{
    const char *text = getenv("FAKE_NVML");
    const char *at = text ? strstr(text, name) : NULL;

    return at ? atoi(at + strlen(name)) : fallback;
}

static int is_last(const void *device)
{
    return (const char *)device - devices == setting("gpus=", 2) - 1;
}

int access(const char *path, int mode)
{
    static int (*real)(const char *, int);

    if (strcmp(path, "/dev/nvidiactl") == 0)
        return 0;
    if (!real)
        real = (int (*)(const char *, int))dlsym(RTLD_NEXT, "access");
    return real(path, mode);
}

int nvmlInit_v2(void)
{
    while (setting("hung=", 0))
        (void)pause();
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)setting("gpus=", 2);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &devices[index % sizeof(devices)];
    return is_last(*device) && setting("lost=", 0) ? ERROR : 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    long ms = (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000;
    int is_busy = is_last(device) && ms < setting("busy_ms=", 1 << 30);
    memory[0] = 80ull << 30;
    memory[1] = memory[0] / 100 * (unsigned)(is_busy ? setting("free=", 100) : 100);
    memory[2] = memory[0] - memory[1];
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2])
{
    rates[0] = (unsigned)(is_last(device) ? setting("percent=", 0) : 0);
    rates[1] = 10;
    return 0;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed)
{
    *correctable = *uncorrectable = 0;
    *pending = (unsigned)(is_last(device) && setting("pending=", 0));
    *failed = (unsigned)(is_last(device) && setting("failed=", 0));
    return 0;
}

int nvmlDeviceGetGpuRecoveryAction(void *device, int *action)
{
    *action = is_last(device) ? setting("recovery=", 0) : 0;
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
    (void)snprintf(uuid, size, "GPU-%08d", (int)((char *)device - devices));
    return 0;
}

int nvmlEventSetCreate(void **set)
{
    *set = devices;
    return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    return 0;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    if (is_xid_taken || !setting("xid=", 0))
        return ERROR;
    is_xid_taken = 1;
    *event = (struct event){.device = devices, .type = 8, .data = (unsigned)setting("xid=", 0)};
    return 0;
}
