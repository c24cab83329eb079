/*
 * Happy path: fork() for the guardian, then vfork() and execve() for each worker. vfork() because the parent
 * sleeps until the child has executed or given up: the child's errno is then simply in the parent's memory,
 * no pipe has to carry it.
 *
 * Between vfork() and execve() the child runs on its parent's stack and memory. It only makes system calls,
 * and no signal handler can run there: the guardian has none, and blocks everything until the child unblocks.
 *
 * Ways a start fails: no process to be had (EAGAIN), no memory, and everything execve() can say.
 */

#include "launcher/supervise/spawn_os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "launcher/supervise/guardian_os.h"
#include "launcher/cli/numa.h"
#include "base/cleanup.h"
#include "base/err.h"

/* ------------------------------------------------------------------ limit of open files */

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

/* ------------------------------------------------------------------ workers */

static int place_descriptors(const struct spawn_worker *w)
{
    for (int i = 0; i < 3; i++)
        if (w->stdio[i] >= 0 && dup2(w->stdio[i], i) < 0)
            return errno;
    /* Behind those above, as their numbers may be taken by one of them. First all out of the way of all: they may
     * have each other's numbers, and dup2() onto itself would keep close-on-exec. */
    int special[] = {w->notice_fd, w->state_fd, w->cache_fd};
    for (size_t i = 0; i < ARRAY_SIZE(special); i++)
        if (special[i] >= 0 && special[i] < SPAWN_FD_END) {
            special[i] = fcntl(special[i], F_DUPFD_CLOEXEC, SPAWN_FD_END);
            if (special[i] < 0)
                return errno;
        }
    for (size_t i = 0; i < ARRAY_SIZE(special); i++)
        if (special[i] >= 0 && dup2(special[i], SPAWN_NOTICE_FD + (int)i) < 0)
            return errno;
    return syscall(SYS_close_range, (unsigned)SPAWN_FD_END, ~0u, 0u) < 0 ? errno : 0;
}

static int reset_signals(void)
{
    const struct sigaction fresh = {.sa_handler = SIG_DFL};
    sigset_t none;

    (void)sigemptyset(&none); /* cannot fail */
    /* crun ignores SIGPIPE for itself. The others are as crun was started with: an ignored SIGHUP stays so.
     */
    if (sigaction(SIGPIPE, &fresh, NULL) < 0 || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
        return errno;
    return 0;
}

/* In the child. Returns errno when the program could not be executed. */
static int become_worker(const struct spawn_worker *w, pid_t guardian)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return errno;
    if (getppid() != guardian)
        return ESRCH; /* it died before the line above could have told us */
    if (setsid() < 0)
        return errno;
    int r = place_descriptors(w);
    if (!r)
        r = reset_signals();
    if (!r && w->cpus && sched_setaffinity(0, sizeof(*w->cpus), (const cpu_set_t *)w->cpus) < 0)
        r = errno;
    if (!r && files_raised && setrlimit(RLIMIT_NOFILE, &files_before) < 0)
        r = errno;
    if (r)
        return r;
    (void)execve(w->file, w->argv, w->environment); /* returns only to say why not */
    return errno;
}

int spawn_worker(const struct spawn_worker *worker, pid_t *ret_pid)
{
    volatile int error = 0;
    pid_t guardian = getpid();

    pid_t pid = vfork();
    if (pid == 0) {
        error = become_worker(worker, guardian);
        _exit(127);
    }
    if (pid < 0)
        return -errno;
    if (error) {
        (void)waitpid(pid, NULL, 0); /* it has ended or is about to; there is nothing to learn */
        return -error;
    }
    *ret_pid = pid;
    return 0;
}

/* ------------------------------------------------------------------ guardian */

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* All descriptors the workers need, ascending. */
static size_t collect_descriptors(const struct spawn_worker *workers, size_t n_workers, int *keep)
{
    size_t n = 0;

    for (size_t i = 0; i < n_workers; i++) {
        const struct spawn_worker *w = &workers[i];
        const int fds[] = {w->stdio[0], w->stdio[1], w->stdio[2], w->notice_fd, w->state_fd, w->cache_fd};

        for (size_t j = 0; j < ARRAY_SIZE(fds); j++)
            if (fds[j] > 2)
                keep[n++] = fds[j];
    }
    qsort(keep, n, sizeof(*keep), compare_ints);
    return n;
}

int spawn_guardian(const struct spawn_worker *workers, size_t n_workers,
                   const struct death_notice *death_notice, const struct logs *logs, pid_t *ret_pid,
                   int *ret_link)
{
    _cleanup_free_ struct guardian_worker *state = calloc(n_workers, sizeof(*state));
    _cleanup_free_ int *keep = calloc(6 * n_workers + 1, sizeof(*keep));
    int link[2];

    if (!state || !keep)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) < 0)
        return -errno;
    struct guardian_setup setup = {.workers = workers,
                                   .state = state,
                                   .n_workers = n_workers,
                                   .link = link[1],
                                   .keep = keep,
                                   .crun = getpid(),
                                   .death_notice = death_notice,
                                   .logs = logs};
    setup.n_keep = collect_descriptors(workers, n_workers, keep);
    keep[setup.n_keep++] = link[1];
    qsort(keep, setup.n_keep, sizeof(*keep), compare_ints);

    pid_t pid = fork();
    if (pid == 0)
        guardian_run(&setup);
    int r = pid < 0 ? -errno : 0;
    (void)close(link[1]); /* the guardian's now */
    if (!r && fcntl(link[0], F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r) {
        (void)close(link[0]); /* which ends the guardian, if there is one */
        return r;
    }
    *ret_pid = pid;
    *ret_link = link[0];
    return 0;
}
