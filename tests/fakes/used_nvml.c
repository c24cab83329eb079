/*
 * The management library of an NVIDIA driver with two GPUs in use, and the control device that makes crunctl ask it: for
 * LD_PRELOAD, and as libnvidia-ml.so.1.
 */

#include <dlfcn.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]);
int access(const char *path, int mode);

enum { GPUS = 2 };

static char devices[GPUS];

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
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = GPUS;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &devices[index % GPUS];
    return index < GPUS ? 0 : 2; /* an invalid argument */
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2])
{
    rates[0] = device == &devices[0] ? 97 : 50;
    rates[1] = 10;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
    memory[0] = 81920ull << 20;
    memory[2] = (device == &devices[0] ? 70000ull : 35000ull) << 20;
    memory[1] = memory[0] - memory[2];
    return 0;
}
