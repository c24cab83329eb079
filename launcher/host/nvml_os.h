#pragma once

/*
 * The functions of the NVIDIA driver's management library (NVML) that crun and crunctl use. The library starts threads, opens
 * devices and stays loaded; each of its functions may hang with the driver, nvml_open() included.
 */

#include <stdbool.h>

enum { NVML_XID_EVENT = 8 }; /* nvmlEventTypeXidCriticalError */

typedef void *nvml_device;

/* nvml.h: nvmlMemory_t, nvmlUtilization_t, nvmlEventData_t. Functions with these names keep their layout. */
struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_utilization {
    unsigned gpu, memory;
};

struct nvml_event {
    nvml_device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* Each returns 0 or an error of NVML. All but the first two may be missing in a driver: NULL. */
struct nvml {
    int (*init)(void);
    int (*count)(unsigned *ret);
    int (*handle)(unsigned index, nvml_device *ret);
    int (*memory)(nvml_device, struct nvml_memory *ret);
    int (*utilization)(nvml_device, struct nvml_utilization *ret);
    int (*remapped)(nvml_device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                    unsigned *failed);
    int (*recovery)(nvml_device, int *ret);
    int (*uuid)(nvml_device, char *ret, unsigned size);
    int (*event_set)(void **ret);
    int (*watch)(nvml_device, unsigned long long types, void *set);
    int (*next_event)(void *set, struct nvml_event *ret, unsigned timeout_ms);
};

/* Whether this machine has a driver: without one, a process or thread for the library is not worth its start. */
bool nvml_has_driver(void);

/* Loads and starts the library. False: there is none that can count GPUs. */
bool nvml_open(struct nvml *ret);
