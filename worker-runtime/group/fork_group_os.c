/*
 * A program that starts its own workers: crw_launch().
 *
 * The shared memory is made before the forks and inherited, so the ranks meet in it without a store.
 * After that the group is one like any other: ranks watch each other by pidfd.
 *
 * Happy path: all workers end with 0. Ways it fails: one ends otherwise; the others learn it from the
 * group and get SIGTERM, and SIGKILL when they do not end; a fork fails, which ends those that were
 * made. A worker with a result other than 0 leaves its group by ending, not before: so the others end after
 * it, and the cause is reported and not its consequences.
 */

#include "base/cleanup.h"
#include "proto/wait_sock.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 5000, EXIT_NO_GROUP = 125, SENTENCE_MAX = 1024 };

struct worker {
    pid_t pid;
    int status; /* of waitpid(), once it ended */
};

struct fork_launch {
    int n, n_running;
    struct worker *workers;
    struct pollfd *fds;              /* by rank; -1: ended or not started */
    char (*sentences)[SENTENCE_MAX]; /* by rank, in memory that the workers write to: why it failed; "" */
    int first_failed;                /* -1: none so far */
    int64_t deadline_ns; /* of those that were asked to stop; 0: not yet; INT64_MAX: they were killed */
};

/* ---- a worker ---- */

/* stdio was flushed before the fork; exit() would run what the parent registered for itself. */
__attribute__((noreturn)) static void leave_worker(int code)
{
    (void)fflush(NULL); /* a failure has no receiver any more */
    _exit(code);
}

__attribute__((noreturn)) static void worker_main(const struct fork_launch *l, int rank, int fd,
                                                  int (*function)(struct crw_group *, void *), void *data)
{
    const struct crw_env env = {
        .rank = rank,
        .world_size = l->n,
        .local_rank = rank,
        .local_world_size = l->n,
        .group_world_size = 1,
        .run_id = "none",
        .notice_fd = -1,
    };
    struct crw_group *group;
    int r, code = EXIT_NO_GROUP;

    error_forget();
    r = group_create_on(&env, fd, &group);
    if (r == 0) {
        r = function(group, data);
        code = r >= 0 && r <= 255 ? r : 1;
    }
    if (r == 0)
        crw_group_destroy(group);
    else
        (void)snprintf(l->sentences[rank], SENTENCE_MAX, "%s", crw_error_message());
    leave_worker(code);
}

/* ---- the launcher ---- */

static int start_worker(struct fork_launch *l, int rank, int fd, int (*function)(struct crw_group *, void *),
                        void *data)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        return crw_fail_errno(-errno, "cannot start worker %d of %d", rank, l->n);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* cannot fail for a signal that exists */
        if (getppid() != parent)
            _exit(EXIT_NO_GROUP); /* it died in between */
        for (int i = 0; i < rank; i++)
            (void)close(l->fds[i].fd); /* pidfds: nothing is pending */
        worker_main(l, rank, fd, function, data);
    }
    l->workers[rank].pid = pid;
    l->n_running++;
    l->fds[rank].fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return l->fds[rank].fd < 0 ? crw_fail_errno(-errno, "cannot watch worker %d of %d", rank, l->n) : 0;
}

static void send_to_all(const struct fork_launch *l, int signal_number)
{
    for (int i = 0; i < l->n; i++)
        if (l->fds[i].fd >= 0)
            (void)syscall(SYS_pidfd_send_signal, l->fds[i].fd, signal_number, NULL,
                          0); /* ended by now: fine */
}

/* It only reports that a peer failed. */
static bool is_consequence(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == CRW_E_PEER;
}

static void reap_worker(struct fork_launch *l, int rank)
{
    struct worker *w = &l->workers[rank];

    while (waitpid(w->pid, &w->status, 0) < 0 && errno == EINTR)
        continue;
    (void)close(l->fds[rank].fd); /* a pidfd: nothing is pending */
    l->fds[rank].fd = -1;
    l->n_running--;
    if (w->status == 0 || l->deadline_ns != 0)
        return;
    if (l->first_failed < 0 ||
        (is_consequence(l->workers[l->first_failed].status) && !is_consequence(w->status)))
        l->first_failed = rank;
}

static int grace_left_ms(const struct fork_launch *l)
{
    int64_t left_ns = l->deadline_ns - sock_now_ns();

    if (l->deadline_ns == 0 || l->deadline_ns == INT64_MAX)
        return -1;
    return left_ns > 0 ? (int)(left_ns / 1000000) + 1 : 0;
}

/* Workers that ended at the same time are reaped together before the first failure is chosen. */
static void wait_for_ends(struct fork_launch *l)
{
    int n = poll(l->fds, (nfds_t)l->n, grace_left_ms(l));
    bool failed_before = l->first_failed >= 0;

    for (int i = 0; n > 0 && i < l->n; i++)
        if (l->fds[i].fd >= 0 && l->fds[i].revents)
            reap_worker(l, i);
    if (!failed_before && l->first_failed >= 0) {
        send_to_all(l, SIGTERM);
        l->deadline_ns = sock_deadline_ns(GRACE_MS);
    } else if (n == 0) {
        send_to_all(l, SIGKILL);
        l->deadline_ns = INT64_MAX;
    }
}

static int launch_result(const struct fork_launch *l)
{
    if (l->first_failed < 0)
        return 0;
    int status = l->workers[l->first_failed].status;
    if (WIFSIGNALED(status))
        return crw_fail(CRW_E_PEER, "worker %d of %d was killed by signal %d", l->first_failed, l->n,
                        WTERMSIG(status));
    const char *why = l->sentences[l->first_failed];
    if (WEXITSTATUS(status) == EXIT_NO_GROUP)
        return crw_fail(CRW_E_PEER, "worker %d of %d could not join the group: %.*s", l->first_failed, l->n,
                        SENTENCE_MAX - 1, why);
    return crw_fail(CRW_E_PEER, "worker %d of %d ended with %d%s%.*s", l->first_failed, l->n,
                    WEXITSTATUS(status), *why ? ": " : "", SENTENCE_MAX - 1, why);
}

/* After a start that failed the workers can do nothing useful. */
static void kill_all_workers(struct fork_launch *l)
{
    for (int i = 0; i < l->n; i++) {
        if (l->workers[i].pid > 0) {
            (void)kill(l->workers[i].pid, SIGKILL); /* ours until waited for */
            (void)waitpid(l->workers[i].pid, NULL, 0);
        }
        cleanup_close(&l->fds[i].fd);
    }
}

static int run_workers(struct fork_launch *l, int fd, int (*function)(struct crw_group *, void *), void *data)
{
    int r = 0;

    (void)fflush(NULL); /* what is in the buffers is written once, here */
    for (int i = 0; r == 0 && i < l->n; i++)
        r = start_worker(l, i, fd, function, data);
    if (r) {
        kill_all_workers(l);
        return r;
    }
    while (l->n_running > 0)
        wait_for_ends(l);
    return launch_result(l);
}

int crw_launch(int (*function)(struct crw_group *group, void *data), void *data, int n)
{
    _cleanup_free_ struct worker *workers = NULL;
    _cleanup_free_ struct pollfd *fds = NULL;
    _cleanup_close_ int fd = -1;
    struct fork_launch l = {.n = n, .first_failed = -1};

    NEED(function, CRW_E_ARGUMENT);
    if (n < 1 || n > SHM_WORLD_MAX)
        return crw_fail(CRW_E_ARGUMENT, "%d workers are impossible; 1 to %d are supported", n, SHM_WORLD_MAX);
    l.workers = workers = calloc((size_t)n, sizeof(*workers));
    l.fds = fds = calloc((size_t)n, sizeof(*fds));
    if (!workers || !fds)
        return crw_fail_errno(-ENOMEM, "cannot start %d workers", n);
    for (int i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    l.sentences =
        mmap(NULL, (size_t)n * SENTENCE_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l.sentences == MAP_FAILED)
        return crw_fail_errno(-errno, "cannot start %d workers", n);
    int r = shm_create_memory(n, &fd);
    if (r == 0)
        r = run_workers(&l, fd, function, data);
    (void)munmap(l.sentences, (size_t)n * SENTENCE_MAX); /* our own mapping: cannot fail */
    return r;
}
