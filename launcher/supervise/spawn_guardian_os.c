#include "launcher/supervise/spawn_guardian_os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/job_cgroup_os.h"

#include "launcher/supervise/worker_start.h"
#include "base/cleanup.h"
#include "base/err.h"

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

enum { KEEP_MAX = SPAWN_FD_END + 2 }; /* of the zygote, the link and the folder of cgroups */

static size_t list_kept(const struct worker_start *zygote, int link, int cgroup, int keep[KEEP_MAX])
{
    int n = zygote ? worker_start_list_fds(zygote, keep) : 0;

    keep[n++] = link;
    if (cgroup >= 0)
        keep[n++] = cgroup;
    qsort(keep, (size_t)n, sizeof(*keep), compare_ints);
    return (size_t)n;
}

/* fork() without the handlers of libraries. _Fork() came with glibc 2.34; the system call is what it makes. */
static pid_t fork_plainly(void)
{
#ifdef HAVE_PLAIN_FORK
    return _Fork();
#else
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

int spawn_guardian(size_t n_workers, const struct worker_start *zygote, const struct spawn_guardian_job *job,
                   pid_t *ret_pid, int *ret_link)
{
    struct job_cgroup cgroup;
    _cleanup_free_ struct guardian_worker *state = calloc(n_workers, sizeof(*state));

    const size_t n_unsent_max = 2 * n_workers + GUARDIAN_UNSENT_MORE;
    _cleanup_free_ struct guardian_report *unsent = calloc(n_unsent_max, sizeof(*unsent));
    int link[2], keep[KEEP_MAX];

    if (!state || !unsent)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) < 0)
        return -errno;
    struct guardian_setup setup = {.state = state,
                                   .n_workers = n_workers,
                                   .unsent = unsent,
                                   .n_unsent_max = n_unsent_max,
                                   .link = link[1],
                                   .keep = keep,
                                   .crun = getpid(),
                                   .zygote = zygote,
                                   .cgroup = &cgroup,
                                   .job = job};
    job_cgroup_init(&cgroup, job->cgroup, job->shared);
    setup.n_keep = list_kept(zygote, link[1], cgroup.parent, keep);

    /* Without the fork handlers of libraries: libuv's opens a pipe, and aborts the child where there is no descriptor for
     * it. The guardian makes system calls only, as the output thread may hold the lock of malloc() now. */
    pid_t pid = fork_plainly();
    if (pid == 0)
        guardian_run(&setup);
    int r = pid < 0 ? -errno : 0;
    (void)close(link[1]); /* the guardian has its own */
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
