/*
 * GPUs are counted by the driver's management library (NVML), which is opened in a process of its own: it starts
 * threads and opens devices that a launcher should not have. In a container it counts what the container was given.
 * Without it the driver's list in /proc has to do.
 */

#include "launcher/host/gpu_count_os.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdint.h>
#include <unistd.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/supervise/spawn_os.h"
#include "launcher/util/envp.h"

/* Runs in the child process of spawn_question(). */
static int count_with_nvml(void)
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
    /* Without a control device there is no driver, so no process is started. The second one is WSL's. */
    if (access("/dev/nvidiactl", F_OK) < 0 && access("/dev/dxg", F_OK) < 0)
        return 0;
    int n = spawn_question(count_with_nvml);
    return n > 0 ? n : count_in_proc();
}

int gpu_count(char *const *environment)
{
    int n = count_devices();

    return n > 0 ? visible_devices_count(envp_get(environment, "CUDA_VISIBLE_DEVICES"), n) : 0;
}
