/*
 * Happy path: /proc/thread-self/children, one read. With a kernel that is built without it, the parent of every process
 * in /proc is read instead. Both may miss a child that appears meanwhile; a caller that must not miss one repeats until
 * wait() fails with ECHILD.
 */

#include "launcher/supervise/child_processes_os.h"

#include <errno.h>
#include <fcntl.h>

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/util/folder_list_os.h"
#include "launcher/util/proc_stat_os.h"
#include "base/cleanup.h"
#include "base/err.h"

static bool is_child_of(pid_t parent, pid_t pid)
{
    struct proc_stat stat;

    return pid > 0 && proc_stat_read(pid, &stat) && stat.parent == parent;
}

static int list_by_parent(pid_t *pids, int n_max)
{
    const pid_t own = getpid();
    struct folder_list processes;
    const char *name;
    int n_found = 0;

    if (access("/proc/self", F_OK) < 0)
        return -errno; /* nothing is mounted there, or the /proc of another PID namespace */
    TRY(folder_list_open(&processes, "/proc"));
    while (n_found < n_max && (name = folder_list_next(&processes)))
        if (is_child_of(own, (pid_t)atol(name)))
            pids[n_found++] = (pid_t)atol(name);
    folder_list_close(&processes);
    return processes.error ? processes.error : n_found;
}

/* A number at the end of a block may continue in the next one. */
int child_processes_read(int fd, pid_t *pids, int n_max)
{
    char block[1024];
    pid_t number = 0;
    int n_found = 0;
    ssize_t n;

    while ((n = read(fd, block, sizeof(block))) > 0)
        for (ssize_t i = 0; i < n && n_found < n_max; i++) {
            if (block[i] >= '0' && block[i] <= '9') {
                number = number * 10 + (block[i] - '0');
            } else if (number) {
                pids[n_found++] = number;
                number = 0;
            }
        }
    return n < 0 ? -errno : n_found;
}

int child_processes_list(pid_t *pids, int n_max)
{
    _cleanup_close_ int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);

    if (fd >= 0)
        return child_processes_read(fd, pids, n_max);
    return list_by_parent(pids, n_max);
}
