/*
 * Happy path: vfork() and execve(). vfork() because the parent sleeps until the child has executed or given up: the
 * errno of the child is then simply in the parent's memory, without a pipe.
 *
 * Between vfork() and execve() the child runs on its parent's stack and memory. The child only makes system calls. No
 * signal handler can run meanwhile: the guardian has no handler, and blocks every signal until the child unblocks signals.
 *
 * Into a cgroup the child is started by clone3() (Linux 5.7), almost for free. When clone3() is refused, by an old kernel
 * or a filter of system calls, the child enters the cgroup before execve().
 *
 * Ways a start fails: no process (EAGAIN), no memory, no descriptor, and every error of execve(). Some errors pass
 * (group_exec_is_final() in worker_group.h).
 */

#include "launcher/supervise/spawn_worker_os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/supervise/cgroup_limits_os.h"
#include "launcher/supervise/close_descriptors_os.h"
#include "launcher/supervise/job_cgroup_os.h"
#include "launcher/supervise/worker_start.h"
#include "base/address_sanitizer.h"
#include "base/err.h"

/* ---- limits and signals restored for workers ---- */

static struct rlimit files_before;
static bool files_raised;

int spawn_raise_open_files(size_t *ret_limit)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return -errno;
    files_before = limit;
    limit.rlim_cur = limit.rlim_max;
    files_raised = files_before.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0;
    *ret_limit = files_raised ? limit.rlim_cur : files_before.rlim_cur;
    return 0;
}

static struct ignored_signal {
    int number;
    struct sigaction restored;
} ignored_signals[2];
static size_t n_ignored;

void spawn_ignore_signal(int signal, bool restore_default)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN}, fresh = {.sa_handler = SIG_DFL};
    struct ignored_signal *s = &ignored_signals[n_ignored];

    assert(n_ignored < ARRAY_SIZE(ignored_signals));
    n_ignored++;
    s->number = signal;
    (void)sigaction(signal, &ignore, &s->restored); /* cannot fail for an ignorable signal */
    if (restore_default)
        s->restored = fresh;
}

/* ---- in the child ---- */

static int place_descriptors(const struct worker_start *s)
{
    for (int i = 0; i < 3; i++)
        if (s->fds[i] >= 0 && dup2(s->fds[i], i) < 0)
            return errno;
    /* After stdio, because a source of stdio may have a special number. First each special descriptor moves above all
     * targets: special descriptors may have each other's numbers, and dup2() onto itself would keep close-on-exec. */
    int special[SPAWN_FD_END];
    for (int i = SPAWN_NOTICE_FD; i < SPAWN_FD_END; i++) {
        special[i] = s->fds[i];
        if (special[i] >= 0 && special[i] < SPAWN_FD_END) {
            special[i] = fcntl(special[i], F_DUPFD_CLOEXEC, SPAWN_FD_END);
            if (special[i] < 0)
                return errno;
        }
    }
    for (int i = SPAWN_NOTICE_FD; i < SPAWN_FD_END; i++)
        if (special[i] >= 0 && dup2(special[i], i) < 0)
            return errno;
    return -close_descriptors(SPAWN_FD_END, INT_MAX);
}

/* Signals not ignored by crun stay as at the start of crun: an ignored SIGHUP stays ignored. */
static int reset_signals(void)
{
    sigset_t none;

    for (size_t i = 0; i < n_ignored; i++)
        if (sigaction(ignored_signals[i].number, &ignored_signals[i].restored, NULL) < 0)
            return errno;
    (void)sigemptyset(&none); /* cannot fail */
    return sigprocmask(SIG_SETMASK, &none, NULL) < 0 ? errno : 0;
}

int spawn_set_attributes(pid_t pid, const struct worker_attributes *a)
{
    if (!a)
        return 0;
    if (a->is_bound && sched_setaffinity(pid, sizeof(a->cpus), (const cpu_set_t *)&a->cpus) < 0)
        return -errno;
    return 0;
}

/* Returns errno when the program could not be executed. */
static int become_worker(const struct worker_start *s, pid_t guardian, pid_t crun)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return errno;
    if (getppid() != guardian)
        return ESRCH; /* the guardian died before the line above had an effect */
    if (setsid() < 0)
        return errno;
    /* Where Yama restricts ptrace(), tools started by crun may look at the worker all the same; fails elsewhere. */
    (void)prctl(PR_SET_PTRACER, (unsigned long)crun);
    TRY(place_descriptors(s));
    TRY(reset_signals());
    TRY(-spawn_set_attributes(0, s->attributes));
    if (files_raised && setrlimit(RLIMIT_NOFILE, &files_before) < 0)
        return errno;
    (void)execve(s->file, s->argv, s->environment); /* returns only on failure */
    return errno;
}

/* Slow way into the cgroup: the kernel takes some milliseconds. Returns errno. */
static int enter_cgroup(int folder)
{
    return cgroup_write(folder, "cgroup.procs", "0") ? 0 : errno;
}

/* ---- in the guardian ---- */

/* vfork() into a cgroup is clone3(), as an instruction without a call around: the child would return from the call first,
 * and the child's next call would overwrite the parent's return address. So x86_64 takes the address off the stack first;
 * aarch64 has the address in a register. AddressSanitizer knows vfork() only. */
#if (defined(__x86_64__) || defined(__aarch64__)) && !IS_ADDRESS_SANITIZED
long spawn_clone3(const void *arguments, size_t size) __attribute__((returns_twice, visibility("hidden")));
__asm__(
    ".text\n"
    ".hidden spawn_clone3\n"
    ".globl spawn_clone3\n"
    ".type spawn_clone3, %function\n"
    "spawn_clone3:\n"
#ifdef __x86_64__
    "    popq %rdx\n"
    "    movl $435, %eax\n"
    "    syscall\n"
    "    pushq %rdx\n"
#else
    "    mov x8, #435\n"
    "    svc #0\n"
#endif
    "    ret\n"
    ".size spawn_clone3, .-spawn_clone3\n");
#else
static long spawn_clone3(const void *arguments, size_t size)
{
    return -ENOSYS;
}
#endif

/* As struct clone_args of a kernel with CLONE_INTO_CGROUP; headers may be older. */
struct clone_into_cgroup {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
        cgroup;
};

/* For want of memory or of process numbers a second try would fail as well. */
static bool is_fork_failure(long r)
{
    return r == -EAGAIN || r == -ENOMEM;
}

int spawn_worker(const struct worker_start *start, struct job_cgroup *cgroup, pid_t *ret_pid)
{
    const struct clone_into_cgroup into = {.flags = CLONE_VM | CLONE_VFORK |
                                                    UINT64_C(0x200000000), /* INTO_CGROUP */
                                           .exit_signal = SIGCHLD,
                                           .cgroup = cgroup ? (uint64_t)cgroup->folder : 0};
    const volatile pid_t guardian = getpid(), crun = getppid();
    const volatile bool has_cgroup = cgroup && cgroup->folder >= 0;
    volatile bool enters = false;
    volatile int error = 0, refused = 0;

    long pid = has_cgroup ? spawn_clone3(&into, sizeof(into)) : -ENOSYS;
    if (pid < 0 && !(has_cgroup && is_fork_failure(pid))) {
        enters = has_cgroup;
        pid = vfork();
        if (pid < 0)
            pid = -errno;
    }
    if (pid == 0) {
        refused = enters ? enter_cgroup(cgroup->folder) : 0;
        error = become_worker(start, guardian, crun);
        _exit(127);
    }
    if (pid < 0)
        return (int)pid;
    if (refused)
        job_cgroup_refused(cgroup, refused);
    if (error) {
        (void)waitpid((pid_t)pid, NULL, 0); /* the status is known: 127 */
        return -error;
    }
    *ret_pid = (pid_t)pid;
    return 0;
}
