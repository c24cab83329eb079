#include "launcher/host/node_check_os.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/host/node_health.h"
#include "launcher/host/nvml_os.h"
#include "launcher/util/envp.h"
#include "base/time.h"

enum {
    MEMORY_WAIT_MS = 10000, /* for memory of killed processes */
    MEMORY_POLL_MS = 100,
};

/* ---- GPUs ---- */

/* An entry is a number, or a UUID or the beginning of one. MIG devices have UUIDs of their own: such an entry makes no GPU
 * visible here, so only their number is checked. */
static bool is_visible(const char *list, int index, const char *uuid)
{
    const char *rest = list, *entry;
    size_t size;

    if (!list)
        return true;
    while (visible_devices_next(&rest, &entry, &size))
        if (visible_devices_number(entry, size) == index ||
            (size > 4 && strncmp(entry, "GPU-", 4) == 0 && strncmp(entry, uuid, size) == 0))
            return true;
    return false;
}

static void read_memory(const struct nvml *n, nvml_device device, struct node_gpu *gpu)
{
    struct nvml_memory memory;

    if (n->memory && n->memory(device, &memory) == 0) {
        gpu->free_bytes = memory.free;
        gpu->total_bytes = memory.total;
    }
}

static void read_gpu(const struct nvml *n, int index, const char *visible, struct node_gpu *gpu,
                     nvml_device *ret_device)
{
    unsigned correctable, uncorrectable, pending = 0, failed = 0;
    char uuid[96] = "";
    nvml_device device = NULL;
    int recovery = 0;

    *gpu = (struct node_gpu){.index = index};
    gpu->is_unreachable = n->handle((unsigned)index, &device) != 0;
    *ret_device = gpu->is_unreachable ? NULL : device;
    if (!gpu->is_unreachable && n->uuid && n->uuid(device, uuid, sizeof(uuid)) != 0)
        uuid[0] = 0;
    gpu->is_visible = is_visible(visible, index, uuid);
    if (gpu->is_unreachable)
        return;
    if (n->remapped && n->remapped(device, &correctable, &uncorrectable, &pending, &failed) == 0) {
        gpu->remap_pending = pending;
        gpu->remap_failed = failed;
    }
    if (n->recovery && n->recovery(device, &recovery) == 0)
        gpu->recovery = recovery;
    read_memory(n, device, gpu);
}

/* NULL: the driver reports no events. */
static void *watch_xids(const struct nvml *n, nvml_device *devices, int n_devices)
{
    void *set = NULL;

    if (!n->event_set || !n->watch || !n->next_event || n->event_set(&set) != 0)
        return NULL;
    for (int i = 0; i < n_devices; i++)
        if (devices[i])
            (void)n->watch(devices[i], NVML_XID_EVENT, set); /* not every GPU has them */
    return set;
}

static void take_xids(const struct nvml *n, void *set, struct node_health *h)
{
    struct nvml_event event;

    while (set && h->n_xids < NODE_HEALTH_XIDS_MAX && n->next_event(set, &event, 0) == 0)
        if (event.type == NVML_XID_EVENT)
            h->xids[h->n_xids++] = (int)event.data;
}

static void wait_for_memory(const struct nvml *n, nvml_device *devices, int n_devices,
                            const struct node_health_limits *limits, struct node_health *h)
{
    uint64_t until_ns = now_ns() + MEMORY_WAIT_MS * UINT64_C(1000000);

    while (node_health_lacks_memory(h, limits) && now_ns() < until_ns) {
        sleep_ns(MEMORY_POLL_MS * UINT64_C(1000000)); /* shorter does no harm */
        for (int i = 0; i < n_devices; i++)
            if (devices[i])
                read_memory(n, devices[i], &h->gpus[i]);
    }
}

static void check_gpus(char *const *environment, const struct node_health_limits *limits,
                       struct node_health *h)
{
    const char *visible = envp_get(environment, "CUDA_VISIBLE_DEVICES");
    nvml_device devices[NODE_HEALTH_GPUS_MAX];
    unsigned count = 0;
    struct nvml n;

    if (!nvml_open(&n) || !n.handle || n.count(&count) != 0)
        return; /* no GPU; that there were some before is judged by the number */
    h->n_gpus = count < UINT16_MAX ? (int)count : UINT16_MAX;
    int n_devices = h->n_gpus < NODE_HEALTH_GPUS_MAX ? h->n_gpus : NODE_HEALTH_GPUS_MAX;
    for (int i = 0; i < n_devices; i++)
        read_gpu(&n, i, visible, &h->gpus[i], &devices[i]);
    void *set = watch_xids(&n, devices, n_devices);
    wait_for_memory(&n, devices, n_devices, limits, h);
    take_xids(&n, set, h);
}

/* ---- disks ---- */

/* A folder that does not exist yet is on the disk of the nearest one above it that does. */
static void check_disk(const char *path, struct node_disk *disk)
{
    char folder[4096];
    struct statvfs info;

    (void)snprintf(folder, sizeof(folder), "%s", path); /* a longer one does not exist */
    int r = statvfs(folder, &info);
    while (r < 0 && errno == ENOENT && strrchr(folder, '/') > folder) {
        *strrchr(folder, '/') = 0;
        r = statvfs(folder, &info);
    }
    disk->error = r < 0 ? errno : 0;
    if (!r && info.f_flag & ST_RDONLY)
        disk->error = EROFS;
    if (!r)
        disk->free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
}

static void check_disks(char *const *environment, struct node_health *h)
{
    const char *temporary = envp_get(environment, "TMPDIR"), *logs = envp_get(environment, NODE_HEALTH_DIR);

    h->disks[h->n_disks++] = (struct node_disk){.path = temporary && *temporary ? temporary : "/tmp",
                                                .purpose = "the folder for temporary files"};
    if (logs && *logs)
        h->disks[h->n_disks++] = (struct node_disk){.path = logs, .purpose = "the folder of the logs"};
    for (int i = 0; i < h->n_disks; i++)
        check_disk(h->disks[i].path, &h->disks[i]);
}

/* ---- all ---- */

int node_check_run(char *const *environment)
{
    const char *expected = envp_get(environment, NODE_HEALTH_GPUS);
    struct node_health h = {.n_gpus_expected = expected ? atoi(expected) : -1};
    struct node_health_limits limits;
    char text[NODE_HEALTH_TEXT_SIZE];

    if (!node_health_limits_parse(envp_get(environment, "CRUN_CHECK_GPU_FREE"),
                                  envp_get(environment, "CRUN_CHECK_DISK_FREE"), &limits)) {
        (void)printf("CRUN_CHECK_GPU_FREE is a percentage, CRUN_CHECK_DISK_FREE a number of MiB\n");
        return 2;
    }
    check_disks(environment, &h);
    check_gpus(environment, &limits, &h);
    bool is_fit = node_health_judge(&h, &limits, text);
    (void)printf("%s\n", text);
    return fflush(stdout) == 0 && is_fit ? 0 : 1;
}
