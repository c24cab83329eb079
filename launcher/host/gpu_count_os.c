/*
 * GPUs are counted by the driver's management library (NVML), which is opened in a process of its own: it starts
 * threads and opens devices that a launcher should not have. In a container it counts what the container was given.
 * Without it the driver's list in /proc has to do.
 *
 * A driver that hangs (a GPU that fell off the bus is the commonest failure of such a node) is given ten seconds, and
 * signals end the wait before that.
 */

#include "launcher/host/gpu_count_os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/host/nvml_os.h"
#include "launcher/util/envp.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/log_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"

enum { ANSWER_MS = 10000 };

/* Runs in the child process of ask_in_child(). */
static int count_with_nvml(void)
{
    struct nvml nvml;
    unsigned count = 0;

    if (!nvml_open(&nvml) || nvml.count(&count) != 0)
        return 0;
    return (int)(count < UINT16_MAX ? count : UINT16_MAX);
}

static int count_in_proc(void)
{
    _cleanup_(folder_list_close) struct folder_list list;
    const char *name;
    int n = 0;

    if (folder_list_open(&list, "/proc/driver/nvidia/gpus") != 0)
        return 0;
    while ((name = folder_list_next(&list)))
        n += name[0] != '.';
    return n;
}

/* Ends with crun: nothing else would end a process that waits for a driver. Does not return. */
static void run_child(int (*question)(void), pid_t crun, int answer_fd)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != crun)
        _exit(1); /* crun had ended before the signal was set */
    uint16_t answer = (uint16_t)question();
    _exit(write(answer_fd, &answer, sizeof(answer)) == sizeof(answer) ? 0 : 1);
}

/* Signals are blocked while crun starts. A descriptor for those that ask it to end becomes readable by one, and as
 * nothing is read the signal stays pending, for the agent. -1: none can be had, signals have to wait. */
static int open_end_signals(void)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    sigset_t set;

    (void)sigemptyset(&set); /* cannot fail, nor can the next */
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        (void)sigaddset(&set, ends[i]);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

/* Waits until the child answers or ends. -EINTR when crun is asked to end, -ETIMEDOUT after ANSWER_MS. */
static int wait_for_answer(int answer_fd)
{
    _cleanup_close_ int signals = open_end_signals();
    struct pollfd polls[] = {{.fd = answer_fd, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    uint64_t until_ns = now_ns() + ANSWER_MS * UINT64_C(1000000);
    uint16_t answer;
    int n;

    do {
        uint64_t now = now_ns();
        n = poll(polls, ARRAY_SIZE(polls), now < until_ns ? (int)((until_ns - now) / 1000000) + 1 : 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? -errno : -ETIMEDOUT;
    if (!polls[0].revents)
        return -EINTR;
    return read(answer_fd, &answer, sizeof(answer)) == sizeof(answer) ? answer : -EIO;
}

/*
 * Asks in a process of its own: what the question loads and leaves behind ends with that. Returns the answer (0 to
 * 65535), or -errno: -EIO when the child ended without an answer, and those of wait_for_answer().
 */
static int ask_in_child(int (*question)(void))
{
    _cleanup_close_ends_ int pipe_fds[2] = {-1, -1};
    pid_t crun = getpid();

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        run_child(question, crun, pipe_fds[1]);
    int r = pid < 0 ? -errno : 0;
    close_fd(&pipe_fds[1]);
    if (!r)
        r = wait_for_answer(pipe_fds[0]);
    if (pid > 0 && r < 0)
        (void)kill(pid, SIGKILL);
    /* Only to leave no zombie. One that even SIGKILL does not end yet sits in the driver: the agent reaps it later, as it
     * does with every child that crun had before. */
    if (pid > 0)
        (void)waitpid(pid, NULL, r < 0 ? WNOHANG : 0);
    return r;
}

static int count_with_driver(void)
{
    if (!nvml_has_driver())
        return 0;
    int n = ask_in_child(count_with_nvml);
    if (n == -ETIMEDOUT)
        log_line(
            "the NVIDIA driver has not answered for %d s; GPUs are counted in /proc/driver/nvidia. Look at "
            "nvidia-smi and dmesg",
            ANSWER_MS / 1000);
    return n > 0 ? n : count_in_proc();
}

int gpu_count(char *const *environment)
{
    static int n = -1; /* asked once: a driver that hangs costs its limit once */

    if (n < 0)
        n = count_with_driver();
    return n > 0 ? visible_devices_count(envp_get(environment, "CUDA_VISIBLE_DEVICES"), n) : 0;
}
