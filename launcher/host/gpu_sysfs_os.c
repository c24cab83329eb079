#include "launcher/host/gpu_sysfs_os.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/util/envp.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/proc_stat_os.h"
#include "launcher/util/read_file_os.h"
#include "base/cleanup.h"

enum { PROPERTIES_SIZE = 4096, INTEL_VENDOR = 0x8086, ZE_DEVICES_MAX = 64 };

static bool has_render_node(const char *root, const char *name)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/dev/dri/%s", root, name); /* a cut path exists nowhere */
    return access(path, R_OK | W_OK) == 0;
}

/* Calls count for each entry of a folder and adds the results up. */
static int count_entries(const char *root, const char *folder,
                         int (*count)(const char *root, const char *name))
{
    _cleanup_(folder_list_close) struct folder_list list;
    const char *name;
    int n = 0;

    if (folder_list_open(&list, "%s%s", root, folder) != 0)
        return 0;
    while ((name = folder_list_next(&list)))
        n += name[0] != '.' ? count(root, name) : 0;
    return n;
}

/* ---- AMD ---- */

/* A node of the topology: a GPU has SIMD units, a CPU has none. */
static int is_amd_gpu(const char *root, const char *node)
{
    char text[PROPERTIES_SIZE], name[32];

    if (!read_file_text(text, sizeof(text), "%s/sys/class/kfd/kfd/topology/nodes/%s/properties", root,
                        node) ||
        proc_file_number(text, "simd_count ", 10) == 0)
        return 0;
    (void)snprintf(name, sizeof(name), "renderD%llu",
                   (unsigned long long)proc_file_number(text, "drm_render_minor ", 10));
    return has_render_node(root, name);
}

int gpu_count_amd(const char *root, char *const *environment)
{
    const char *hip = envp_get(environment, "HIP_VISIBLE_DEVICES");
    int n = count_entries(root, "/sys/class/kfd/kfd/topology/nodes", is_amd_gpu);

    n = visible_devices_count(envp_get(environment, "ROCR_VISIBLE_DEVICES"), n);
    return visible_devices_count(hip ? hip : envp_get(environment, "CUDA_VISIBLE_DEVICES"), n);
}

/* ---- Intel ---- */

/* The processor's own GPU is always at this place of the bus. */
static bool is_inside_processor(const char *root, const char *render_node)
{
    char path[PATH_MAX], target[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/sys/class/drm/%s/device", root, render_node);
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    target[n > 0 ? n : 0] = '\0';
    return n > 7 && strcmp(target + n - 7, "00:02.0") == 0;
}

static bool is_intel_gpu(const char *root, const char *name)
{
    char text[32];

    return strncmp(name, "renderD", 7) == 0 &&
           read_file_text(text, sizeof(text), "%s/sys/class/drm/%s/device/vendor", root, name) &&
           strtol(text, NULL, 16) == INTEL_VENDOR && has_render_node(root, name);
}

static int is_intel_card(const char *root, const char *name)
{
    return is_intel_gpu(root, name) && !is_inside_processor(root, name);
}

static int is_intel_processor_gpu(const char *root, const char *name)
{
    return is_intel_gpu(root, name) && is_inside_processor(root, name);
}

/* How many of n devices a mask names: numbers between commas, each perhaps with the number of a tile ("0.1"). Level Zero
 * ignores what names no device, and lists a device once. */
static int count_in_ze_mask(const char *mask, int n)
{
    bool named[ZE_DEVICES_MAX] = {false};
    const char *entry;
    size_t size;
    int n_named = 0;

    while (visible_devices_next(&mask, &entry, &size)) {
        size_t n_digits = strspn(entry, "0123456789");
        int number = visible_devices_number(entry, n_digits < size ? n_digits : size);
        if (number < 0 || number >= n || number >= ZE_DEVICES_MAX)
            continue;
        n_named += !named[number];
        named[number] = true;
    }
    return n_named;
}

int gpu_count_intel(const char *root, char *const *environment)
{
    const char *mask = envp_get(environment, "ZE_AFFINITY_MASK");
    int n = count_entries(root, "/sys/class/drm", is_intel_card);

    if (n == 0)
        n = count_entries(root, "/sys/class/drm", is_intel_processor_gpu);
    return mask && *mask ? count_in_ze_mask(mask, n) : n;
}
