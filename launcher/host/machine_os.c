/*
 * GPUs are counted by the driver's management library (NVML), which is opened in a process of its own: it
 * starts threads and opens devices that a launcher should not have. In a container it counts what the
 * container was given. Without it, the driver's list in /proc has to do.
 */

#include "launcher/host/machine_os.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/output/logs_os.h"
#include "launcher/util/log_os.h"
#include "launcher/supervise/spawn_os.h"
#include "base/cleanup.h"

enum { SLURM_CONF_MAX = 1 << 20 };

int machine_count_cpus(void *unused)
{
    /* Enough for 8,192 CPUs; the call fails where the kernel knows of more. */
    cpu_set_t set[8];

    if (sched_getaffinity(0, sizeof(set), set) == 0)
        return CPU_COUNT_S(sizeof(set), set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* ------------------------------------------------------------------ GPUs */

/* In its own process. */
static int ask_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned count = 0;

    if (!library)
        return 0;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*get_count)(unsigned *) = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
    if (!init || !get_count || init() != 0 || get_count(&count) != 0)
        return 0;
    return (int)(count < UINT16_MAX ? count : UINT16_MAX);
}

static int count_in_proc(void)
{
    DIR *dir = opendir("/proc/driver/nvidia/gpus");
    int n = 0;

    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir)
        (void)closedir(dir); /* only read from */
    return n;
}

static int count_devices(void)
{
    /* No control device, no driver: do not even start a process. The second one is WSL's. */
    if (access("/dev/nvidiactl", F_OK) < 0 && access("/dev/dxg", F_OK) < 0)
        return 0;
    int n = spawn_question(ask_nvml);
    return n > 0 ? n : count_in_proc();
}

/* Length of the entry, and whether it names a device: a number below n_devices, or a UUID. */
static bool is_device(const char *entry, size_t n, int n_devices)
{
    size_t digits = strspn(entry, "0123456789");

    if (n > 0 && digits == n && n < 6)
        return atoi(entry) < n_devices;
    return strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0;
}

int machine_visible_gpus(const char *visible, int n_devices)
{
    int count = 0;

    if (!visible)
        return n_devices;
    for (const char *entry = visible;; entry++) {
        entry += strspn(entry, " ");
        size_t n = strcspn(entry, ", ");
        if (!is_device(entry, n, n_devices))
            return count;
        count++;
        entry += n;
        entry += strspn(entry, " ");
        if (*entry != ',')
            return count;
    }
}

int machine_count_gpus(void *environment)
{
    int n = count_devices();

    return n > 0 ? machine_visible_gpus(envp_get(environment, "CUDA_VISIBLE_DEVICES"), n) : 0;
}

static ssize_t read_text(const char *path, char *out, size_t out_size)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, out_size - 1);

    out[n > 0 ? n : 0] = '\0';
    return n;
}

/* ------------------------------------------------------------------ stuck processes */

void machine_say_stuck(int pid, int local_rank)
{
    char path[64], stat[512], where[128];

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    (void)read_text(path, stat, sizeof(stat)); /* empty when it fails, as is the next */
    (void)snprintf(path, sizeof(path), "/proc/%d/wchan", pid);
    (void)read_text(path, where, sizeof(where));
    const char *after_name = strrchr(stat, ')');
    char rank[32] = "";
    if (local_rank >= 0)
        (void)snprintf(rank, sizeof(rank), " (local rank %d)", local_rank);
    log_line("process %d%s does not end on SIGKILL: state %c, in %s", pid, rank,
             after_name && after_name[1] ? after_name[2] : '?',
             *where && *where != '0' ? where : "an unknown place");
}

/* ------------------------------------------------------------------ scheduler */

char *machine_slurm_conf(char *const *environment)
{
    const char *places[] = {envp_get(environment, "SLURM_CONF"), "/run/slurm/conf/slurm.conf",
                            "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"};
    size_t n;

    if (!envp_get(environment, "SLURM_JOB_ID"))
        return NULL;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char *bytes = places[i] ? logs_read_file(places[i], SLURM_CONF_MAX, &n) : NULL;
        char *text = bytes ? strndup(bytes, n) : NULL;
        free(bytes);
        if (text)
            return text;
    }
    return NULL;
}

/* ------------------------------------------------------------------ core dumps */

void machine_core_pattern(char *out, size_t out_size)
{
    (void)read_text("/proc/sys/kernel/core_pattern", out, out_size); /* empty when it fails */
    out[strcspn(out, "\n")] = '\0';
}

/* ------------------------------------------------------------------ senders of signals */

void machine_describe_sender(int pid, unsigned user, char *out, size_t out_size)
{
    char path[64], name[32], of_user[32] = "";

    (void)snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    (void)read_text(path, name, sizeof(name)); /* empty when it is gone */
    name[strcspn(name, "\n")] = '\0';
    if (user != getuid())
        (void)snprintf(of_user, sizeof(of_user), " of user %u", user);
    (void)snprintf(out, out_size, "process %d%s%s%s%s", pid, *name ? " (" : "", name, *name ? ")" : "",
                   of_user);
}

/* ------------------------------------------------------------------ names */

void machine_uuid(char out[37])
{
    uint8_t b[16];

    if (getrandom(b, sizeof(b), 0) !=
        sizeof(b)) { /* an early-boot or seccomp'ed system: unique, not secret */
        struct timespec t;
        (void)clock_gettime(CLOCK_REALTIME, &t);
        uint64_t words[2] = {(uint64_t)t.tv_sec << 32 | (uint64_t)t.tv_nsec, (uint64_t)getpid()};
        memcpy(b, words, sizeof(b));
    }
    b[6] = (uint8_t)((b[6] & 0x0F) | 0x40); /* version 4, random */
    b[8] = (uint8_t)((b[8] & 0x3F) | 0x80);
    (void)snprintf(out, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
                   b[15]);
}
