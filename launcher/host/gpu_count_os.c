/*
 * GPUs are counted by the driver's management library (NVML), which is opened in a process of its own: it starts
 * threads and opens devices that a launcher should not have. In a container it counts what the container was given.
 * Without it the driver's list in /proc has to do.
 */

#include "launcher/host/gpu_count_os.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/util/envp.h"

/* Runs in the child process of ask_in_child(). */
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

/*
 * Asks in a process of its own: what the question loads and leaves behind ends with that. Returns the answer
 * (0 to 65535), or -errno (-EIO: the child ended without an answer).
 */
static int ask_in_child(int (*question)(void))
{
    int pipe_fds[2];
    uint16_t answer;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0) {
        answer = (uint16_t)question();
        _exit(write(pipe_fds[1], &answer, sizeof(answer)) == sizeof(answer) ? 0 : 1);
    }
    int r = pid < 0 ? -errno : 0;
    (void)close(pipe_fds[1]);
    if (!r)
        r = read(pipe_fds[0], &answer, sizeof(answer)) == sizeof(answer) ? answer : -EIO;
    (void)close(pipe_fds[0]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0); /* only to leave no zombie; the answer is all that counts */
    return r;
}

static int count_devices(void)
{
    /* Without a control device there is no driver, so no process is started. The second one is WSL's. */
    if (access("/dev/nvidiactl", F_OK) < 0 && access("/dev/dxg", F_OK) < 0)
        return 0;
    int n = ask_in_child(count_with_nvml);
    return n > 0 ? n : count_in_proc();
}

int gpu_count(char *const *environment)
{
    int n = count_devices();

    return n > 0 ? visible_devices_count(envp_get(environment, "CUDA_VISIBLE_DEVICES"), n) : 0;
}
