/*
 * Happy path: for each generation the guardian starts the keeper, makes the cgroup, and starts the workers in the cgroup
 * (spawn_worker_os.h). When no process is left, the guardian removes the cgroup and kills the keeper. Nothing remains, and
 * crun has no part. A zygote is in the cgroup as well: a job with a zygote has a single cgroup for all generations.
 *
 * The keeper sleeps in read() on a pipe; only the guardian has the other end. When the guardian has ended, the keeper
 * writes to cgroup.kill and removes the folder, again and again until the folder is gone: a process blocked in the kernel
 * may end late. Without cgroup.kill (before Linux 5.14) the keeper freezes the cgroup and kills each process.
 *
 * Limits: a program that reads cpu.max and memory.max of its own cgroup finds the limits in force. The new cgroup cannot
 * have these files when the parent cgroup has processes of its own (crun). In such a case, and if there is a limit, no
 * cgroup is made.
 *
 * Order: the keeper exists before the cgroup is made, so a cgroup is never left behind.
 *
 * The keeper has memory of its own, although a copy of the page tables costs a tenth of a millisecond: the OOM killer ends
 * all processes that share the memory of the chosen process, and the keeper must survive a killed guardian. The keeper's
 * exit signal is 0, so no wait() of the guardian without __WCLONE sees the keeper.
 *
 * The names of the keeper and the guardian do not contain "crun": `pkill crun` and `killall crun` spare both.
 */

#include "launcher/supervise/job_cgroup_os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/supervise/cgroup_limits_os.h"
#include "launcher/supervise/child_processes_os.h"
#include "launcher/supervise/close_descriptors_os.h"
#include "launcher/util/folder_list_os.h"
#include "base/cleanup.h"
#include "base/time.h"

enum {
    STACK_SIZE = 128 * 1024,
    DEPTH_MAX = 16, /* of cgroups made by workers */
    PAUSE_MAX_MS = 200,
    PROCESSES_MAX = 16384, /* in a round; the further ones have theirs later */
};

void job_cgroup_init(struct job_cgroup *c, int parent, struct job_cgroup_shared *shared)
{
    *c = (struct job_cgroup){.parent = shared ? parent : -1, .folder = -1, .pipe = -1, .shared = shared};
    if (shared && parent >= 0)
        *shared = (struct job_cgroup_shared){0};
}

/* ---- the folder ---- */

static pid_t processes[PROCESSES_MAX];

/* Fills `processes`; returns how many. */
static int read_processes(int folder)
{
    _cleanup_close_ int fd = openat(folder, "cgroup.procs", O_RDONLY | O_CLOEXEC);

    int n = fd < 0 ? 0 : child_processes_read(fd, processes, PROCESSES_MAX);
    return n > 0 ? n : 0; /* a cgroup of threads has no list */
}

static bool is_subfolder(int folder, const char *name)
{
    struct stat s;

    return name[0] != '.' && fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode);
}

/* Without cgroup.kill: kills each process of the cgroup and of the cgroups below. */
static void kill_each(int folder, int depth)
{
    struct folder_list list;
    const char *name;

    for (int n = read_processes(folder); n > 0; n--)
        (void)kill(processes[n - 1],
                   SIGKILL); /* a frozen process keeps its number; else ended, or another user's */
    if (depth >= DEPTH_MAX || folder_list_open_at(&list, folder, ".") < 0)
        return;
    while ((name = folder_list_next(&list))) {
        _cleanup_close_ int below =
            is_subfolder(folder, name) ? openat(folder, name, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        if (below >= 0)
            kill_each(below, depth + 1);
    }
    folder_list_close(&list);
}

static void kill_folder(int folder)
{
    if (cgroup_write(folder, "cgroup.kill", "1"))
        return;
    bool is_frozen = cgroup_write(folder, "cgroup.freeze", "1"); /* a kill takes effect in a frozen cgroup */
    kill_each(folder, 0);
    if (is_frozen)
        (void)cgroup_write(folder, "cgroup.freeze", "0"); /* processes that entered meanwhile: next round */
}

/* Removes the folder and all folders below. 0, or -errno: -EBUSY while there is a process inside. */
static int remove_folder(int parent, const char *name, int depth)
{
    struct folder_list list;
    const char *below;

    if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
        return 0;
    int r = -errno;
    if (r != -EBUSY || depth >= DEPTH_MAX)
        return r;
    _cleanup_close_ int folder = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || folder_list_open_at(&list, folder, ".") < 0)
        return r;
    while ((below = folder_list_next(&list)))
        if (is_subfolder(folder, below))
            (void)remove_folder(folder, below, depth + 1);
    folder_list_close(&list);
    return unlinkat(parent, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/* ---- the keeper ---- */

static _Alignas(64) char keeper_stack[STACK_SIZE];
static int keeper_pipe; /* the keeper's end */

static _Noreturn void clean_up(const struct job_cgroup *c)
{
    unsigned pause_ms = 1;

    for (;;) {
        _cleanup_close_ int folder = openat(c->parent, c->name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (folder >= 0)
            kill_folder(folder);
        int r = remove_folder(c->parent, c->name, 0);
        if (r != -EBUSY) /* 0, or the folder does not exist */
            _exit(0);
        sleep_ns(pause_ms * UINT64_C(1000000)); /* all signals are blocked */
        pause_ms = pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
    }
}

static int run_keeper(void *data)
{
    const struct job_cgroup *c = data;
    int keep[] = {c->parent, keeper_pipe};
    char byte;

    (void)prctl(PR_SET_NAME, "job-keeper");
    (void)setsid(); /* survives a kill of the guardian's process group; cannot fail in a fresh child */
    (void)close_descriptors_except(0, keep, 2);
    while (read(keeper_pipe, &byte, 1) < 0)
        ;
    clean_up(c);
}

/* True: the keeper still removes an earlier cgroup, and there is never a second keeper. */
static bool is_keeper_busy(struct job_cgroup *c)
{
    if (c->keeper && waitpid(c->keeper, NULL, __WCLONE | WNOHANG) != 0)
        c->keeper = c->shared->keeper = 0;
    return c->keeper != 0;
}

static int start_keeper(struct job_cgroup *c)
{
    _cleanup_close_ends_ int pipe[2] = {-1, -1}; /* the keeper has a copy of its end */

    if (pipe2(pipe, O_CLOEXEC) < 0)
        return -errno;
    keeper_pipe = pipe[0];
    c->keeper = clone(run_keeper, keeper_stack + STACK_SIZE, CLONE_PARENT_SETTID, c, &c->shared->keeper);
    if (c->keeper < 0) {
        int r = -errno;
        c->keeper = c->shared->keeper = 0;
        return r;
    }
    c->pipe = steal_fd(&pipe[1]);
    return 0;
}

/* Where a filter refuses the kill, the keeper ends by the end of the pipe: no folder is left. */
static void end_keeper(struct job_cgroup *c)
{
    (void)kill(c->keeper, SIGKILL); /* a child, not reaped yet */
    close_fd(&c->pipe);
    while (waitpid(c->keeper, NULL, __WCLONE) < 0 && errno == EINTR)
        ;
    c->keeper = 0;
    c->shared->keeper = 0;
}

/* ---- for the guardian ---- */

/* Not the process id: process namespaces with a common cgroup have the same ids. */
static int choose_name(struct job_cgroup *c)
{
    uint64_t number;

    if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != (ssize_t)sizeof(number))
        return -EAGAIN;
    (void)snprintf(c->name, sizeof(c->name), "crun-%016llx", (unsigned long long)number); /* fits */
    return 0;
}

void job_cgroup_make(struct job_cgroup *c)
{
    struct cgroup_limits limits;

    if (c->parent < 0)
        return;
    cgroup_limits_read(c->parent, &limits); /* for each generation: limits may change */
    int r = is_keeper_busy(c) ? -EBUSY : choose_name(c);
    if (!r)
        r = cgroup_limits_enable(c->parent, &limits) ? start_keeper(c) : -EOPNOTSUPP;
    if (!r && mkdirat(c->parent, c->name, 0755) < 0)
        r = -errno;
    if (!r) {
        c->folder = openat(c->parent, c->name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        r = c->folder < 0 ? -errno : cgroup_limits_write(c->folder, &limits) ? 0 : -EOPNOTSUPP;
    }
    c->shared->is_used = !r;
    c->shared->error = -r;
    if (r)
        job_cgroup_remove(c);
}

void job_cgroup_refused(struct job_cgroup *c, int error)
{
    c->shared->is_used = false;
    c->shared->error = error;
}

bool job_cgroup_holds_all(const struct job_cgroup *c)
{
    return c->folder >= 0 && c->shared->is_used;
}

void job_cgroup_kill(const struct job_cgroup *c)
{
    if (c->folder >= 0)
        kill_folder(c->folder);
}

int job_cgroup_count(const struct job_cgroup *c)
{
    return c->folder >= 0 ? read_processes(c->folder) : 0;
}

void job_cgroup_remove(struct job_cgroup *c)
{
    close_fd(&c->folder);
    if (c->keeper && remove_folder(c->parent, c->name, 0) != -EBUSY)
        end_keeper(c);
    /* The keeper reads the end of the pipe, and goes on if a process is left without an entry in any child list. */
    close_fd(&c->pipe);
}
