/*
 * GPUs: the driver has a folder for each in /proc/driver/nvidia/gpus, named by its PCI address, with its UUID and
 * minor number inside; /sys has the NUMA node of that address. In a container that shows only some of them the
 * others have no device file in /dev, and are left out as CUDA leaves them out.
 *
 * Their order is that of PCI addresses. CUDA numbers them in that order when they are all of one kind, or with
 * CUDA_DEVICE_ORDER=PCI_BUS_ID; a machine with GPUs of different kinds should set that.
 *
 * Ways it fails, each with a message: no NUMA information in /sys; GPUs that the driver does not list; an entry of
 * CUDA_VISIBLE_DEVICES that names none of those it lists (a MIG device named by its own UUID: which GPU that is part
 * of only the driver's library knows).
 */

#include "launcher/host/numa_os.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/read_file_os.h"
#include "base/cleanup.h"

enum {
    PATH_SIZE = 512,
    TEXT_SIZE = 8192,
    ADDRESS_SIZE = 32, /* "00000000:07:00.0" */
    UUID_SIZE = 64,
};

struct gpu {
    char address[ADDRESS_SIZE], uuid[UUID_SIZE];
    int node;
};

struct gpus {
    struct gpu items[NUMA_GPUS_MAX];
    int n_items;
};

/* ---- CPUs ---- */

static int lowest_in_list(const char *list, int fallback)
{
    struct numa_cpus cpus;
    int lowest = numa_cpus_parse(list, &cpus) ? numa_cpus_lowest(&cpus) : -1;

    return lowest < 0 ? fallback : lowest;
}

/* The lowest CPU that shares the last data cache of this one; itself where /sys knows of no caches. */
static int read_cache(const char *root, int cpu)
{
    char text[TEXT_SIZE];
    int found = cpu, best = -1;

    for (int index = 0; index < 16; index++) {
        if (!read_file_text(text, sizeof(text), "%s/sys/devices/system/cpu/cpu%d/cache/index%d/type", root,
                            cpu, index))
            continue;
        bool holds_data = strncmp(text, "Unified", 7) == 0 || strncmp(text, "Data", 4) == 0;
        if (!holds_data ||
            !read_file_text(text, sizeof(text), "%s/sys/devices/system/cpu/cpu%d/cache/index%d/level", root,
                            cpu, index))
            continue;
        int level = atoi(text);
        if (level <= best)
            continue;
        best = level;
        (void)read_file_text(text, sizeof(text),
                             "%s/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", root, cpu,
                             index);
        found = lowest_in_list(text, cpu);
    }
    return found;
}

static struct numa_cpu read_cpu(const char *root, int cpu)
{
    struct numa_cpu c = {.core = cpu, .cache = read_cache(root, cpu)};
    char text[TEXT_SIZE];

    if (read_file_text(text, sizeof(text), "%s/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                       root, cpu))
        c.package = atoi(text);
    if (read_file_text(text, sizeof(text), "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                       root, cpu))
        c.core = lowest_in_list(text, cpu);
    return c;
}

static int read_cpus(const struct numa_machine *m, struct numa_topology *t, char *error)
{
    if (m->allowed)
        t->allowed = *m->allowed;
    else if (sched_getaffinity(0, sizeof(t->allowed), (cpu_set_t *)&t->allowed) < 0)
        return numa_refuse(error, "--numa-binding: the kernel does not report which CPUs crun may use");
    for (int cpu = 0; cpu < NUMA_CPUS_MAX; cpu++)
        if (numa_cpus_has(&t->allowed, cpu))
            t->n_cpus = cpu + 1;
    t->cpus = calloc((size_t)t->n_cpus + 1, sizeof(*t->cpus));
    if (!t->cpus)
        return numa_refuse(error, "--numa-binding: out of memory");
    for (int cpu = 0; cpu < t->n_cpus; cpu++)
        if (numa_cpus_has(&t->allowed, cpu))
            t->cpus[cpu] = read_cpu(m->root, cpu);
    return 0;
}

/* ---- nodes ---- */

static int read_nodes(const struct numa_machine *m, struct numa_topology *t, char *error)
{
    struct numa_cpus possible; /* node numbers, in fact */
    char text[TEXT_SIZE];

    if (!read_file_text(text, sizeof(text), "%s/sys/devices/system/node/possible", m->root) ||
        !numa_cpus_parse(text, &possible))
        return numa_refuse(error,
                           "--numa-binding: this machine does not report its NUMA nodes (there is no "
                           "/sys/devices/system/node); leave the option out");
    for (int node = 0; node < NUMA_NODES_MAX; node++)
        if (numa_cpus_has(&possible, node))
            t->n_nodes = node + 1;
    t->node_cpus = calloc((size_t)t->n_nodes + 1, sizeof(*t->node_cpus));
    if (!t->node_cpus)
        return numa_refuse(error, "--numa-binding: out of memory");
    for (int node = 0; node < t->n_nodes; node++)
        if (read_file_text(text, sizeof(text), "%s/sys/devices/system/node/node%d/cpulist", m->root, node))
            (void)numa_cpus_parse(text, &t->node_cpus[node]); /* malformed: as if it had none */
    return 0;
}

/* ---- GPUs ---- */

/* The value behind "name:" in the driver's text; "" without it. */
static void find_driver_value(const char *text, const char *name, char *out, size_t out_size)
{
    const char *line = strstr(text, name);

    *out = '\0';
    if (!line)
        return;
    line += strlen(name);
    line += strspn(line, ": \t");
    (void)snprintf(out, out_size, "%.*s", (int)strcspn(line, " \t\n"), line); /* longer than a UUID: none */
}

/* The NUMA node of a PCI address; 0 on machines that have only one and report -1. */
static int read_node_of(const char *root, const char *address)
{
    char text[64];

    if (!read_file_text(text, sizeof(text), "%s/sys/bus/pci/devices/%s/numa_node", root, address))
        return -1;
    int node = atoi(text);
    return node > 0 ? node : 0;
}

static bool has_device_file(const char *root, const char *minor)
{
    char path[PATH_SIZE];

    if (!*minor)
        return true;
    (void)snprintf(path, sizeof(path), "%s/dev/nvidia%s", root,
                   minor); /* a path that is cut does not exist */
    return access(path, F_OK) == 0;
}

static int compare_addresses(const void *a, const void *b)
{
    const struct gpu *x = a, *y = b;

    return strcmp(x->address, y->address);
}

static void read_gpus(const char *root, struct gpus *gpus)
{
    char text[TEXT_SIZE], minor[16];
    _cleanup_(folder_list_close) struct folder_list list;
    const char *address;

    if (folder_list_open(&list, "%s/proc/driver/nvidia/gpus", root) != 0)
        return;
    while (gpus->n_items < NUMA_GPUS_MAX && (address = folder_list_next(&list))) {
        struct gpu *gpu = &gpus->items[gpus->n_items];

        if (address[0] == '.' || strlen(address) >= sizeof(gpu->address))
            continue;
        (void)read_file_text(text, sizeof(text), "%s/proc/driver/nvidia/gpus/%s/information", root, address);
        find_driver_value(text, "Device Minor", minor, sizeof(minor));
        if (!has_device_file(root, minor))
            continue;
        (void)snprintf(gpu->address, sizeof(gpu->address), "%s", address); /* fits, see above */
        find_driver_value(text, "GPU UUID", gpu->uuid, sizeof(gpu->uuid));
        gpu->node = read_node_of(root, gpu->address);
        gpus->n_items++;
    }
    qsort(gpus->items, (size_t)gpus->n_items, sizeof(*gpus->items), compare_addresses);
}

/* The GPU an entry of CUDA_VISIBLE_DEVICES names: by number, by a UUID or the beginning of one, or
 * "MIG-GPU-UUID/instance/instance". -1: none of these. */
static int find_gpu(const struct gpus *gpus, const char *entry, size_t n)
{
    int number = visible_devices_number(entry, n);

    if (number >= 0)
        return number < gpus->n_items ? number : -1;
    if (strncmp(entry, "MIG-GPU-", 8) == 0) {
        const char *slash = memchr(entry, '/', n);
        entry += 4;
        n = slash ? (size_t)(slash - entry) : n - 4;
    }
    for (int i = 0; n > 4 && strncmp(entry, "GPU-", 4) == 0 && i < gpus->n_items; i++)
        if (strncmp(gpus->items[i].uuid, entry, n) == 0)
            return i;
    return -1;
}

static int place_gpu(struct numa_topology *t, const struct gpu *gpu, char *error)
{
    if (gpu->node < 0)
        return numa_refuse(error,
                           "--numa-binding: the NUMA node of the GPU at %s is not known: there is no "
                           "/sys/bus/pci/devices/%s/numa_node",
                           gpu->address, gpu->address);
    t->places[t->n_places++] = gpu->node;
    return 0;
}

/* As CUDA reads the list: up to the first entry that names no device. Only an entry that could be one, and that
 * a worker would get, makes us give up. */
static int place_visible_gpus(const struct numa_machine *m, const struct gpus *gpus, struct numa_topology *t,
                              char *error)
{
    const char *rest = m->visible_devices, *entry;
    size_t n;

    while (t->n_places < NUMA_GPUS_MAX && visible_devices_next(&rest, &entry, &n)) {
        int i = find_gpu(gpus, entry, n);
        if (i < 0 && n > 4 && (strncmp(entry, "MIG-", 4) == 0 || strncmp(entry, "GPU-", 4) == 0) &&
            t->n_places < m->n_workers)
            return numa_refuse(
                error,
                "--numa-binding: which GPU '%.*s' in CUDA_VISIBLE_DEVICES belongs to cannot be found in "
                "/proc/driver/nvidia; name GPUs by their numbers",
                (int)(n < UUID_SIZE ? n : UUID_SIZE), entry);
        if (i < 0)
            return 0;
        int r = place_gpu(t, &gpus->items[i], error);
        if (r)
            return r;
    }
    return 0;
}

static int place_all_gpus(const struct gpus *gpus, struct numa_topology *t, char *error)
{
    int r = 0;

    for (int i = 0; !r && i < gpus->n_items; i++)
        r = place_gpu(t, &gpus->items[i], error);
    return r;
}

static int read_places(const struct numa_machine *m, struct numa_topology *t, char *error)
{
    _cleanup_free_ struct gpus *gpus = calloc(1, sizeof(*gpus));

    if (!gpus)
        return numa_refuse(error, "--numa-binding: out of memory");
    read_gpus(m->root, gpus);
    if (gpus->n_items == 0 && m->n_gpus_counted > 0)
        return numa_refuse(error,
                           "--numa-binding: there are GPUs, but the NVIDIA driver lists none in "
                           "/proc/driver/nvidia/gpus: where they are cannot be known");
    t->places = calloc(NUMA_GPUS_MAX, sizeof(*t->places));
    if (!t->places)
        return numa_refuse(error, "--numa-binding: out of memory");
    int r = m->visible_devices ? place_visible_gpus(m, gpus, t, error) : place_all_gpus(gpus, t, error);
    if (r)
        return r;
    t->has_gpus = t->n_places > 0;
    if (t->has_gpus)
        return 0;
    free(steal_ptr(t->places));
    return numa_spread(t, m->n_workers) < 0 ? numa_refuse(error, "--numa-binding: out of memory") : 0;
}

/* ---- all of it ---- */

int numa_read(const struct numa_machine *machine, struct numa_topology *ret, char error[NUMA_ERROR_SIZE])
{
    struct numa_topology t = {0};

    int r = read_cpus(machine, &t, error);
    if (!r)
        r = read_nodes(machine, &t, error);
    if (!r)
        r = read_places(machine, &t, error);
    if (r)
        numa_finish(&t);
    else
        *ret = t;
    return r;
}

int numa_read_bindings(const struct numa_machine *machine, enum numa_mode mode, struct numa_cpus **ret,
                       char error[NUMA_ERROR_SIZE])
{
    struct numa_topology t;

    int r = numa_read(machine, &t, error);
    if (r)
        return r;
    struct numa_cpus *bindings = calloc((size_t)machine->n_workers, sizeof(*bindings));
    if (!bindings)
        r = numa_refuse(error, "--numa-binding: out of memory");
    for (int i = 0; !r && i < machine->n_workers; i++)
        r = numa_bind(&t, mode, i, &bindings[i], error);
    numa_finish(&t);
    if (r)
        free(bindings);
    else
        *ret = bindings;
    return r;
}
