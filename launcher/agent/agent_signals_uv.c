/*
 * Signals to crun, and the children that are crun's own: the guardian, processes inherited from before the exec, and
 * whatever a lost guardian leaves to crun, which is a subreaper. What a signal means is decided by worker_group.c.
 */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/agent/agent_hang_uv.h"
#include "launcher/agent/agent_health_uv.h"
#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/host/own_cgroup_os.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/supervise/child_processes_os.h"
#include "launcher/supervise/job_cgroup_os.h"
#include "launcher/supervise/suspend.h"
#include "launcher/util/log_os.h"
#include "launcher/util/trace_os.h"
#include "base/err.h"
#include "base/time.h"

enum {
    SWEEP_INTERVAL_MS = 10,
    STUCK_NAMED_MAX = 16,
};

/* ---- children ---- */

int agent_list_inherited(struct agent *a)
{
    int n = child_processes_list(a->inherited, (int)ARRAY_SIZE(a->inherited));

    a->n_inherited = n > 0 ? (size_t)n : 0;
    return n;
}

void agent_seek_cgroup(struct agent *a)
{
    struct spawn_guardian_job *guardians = &a->generation_host.guardians;

    if (a->has_sought_cgroup)
        return;
    a->has_sought_cgroup = true;
    void *shared =
        mmap(NULL, sizeof(*guardians->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = shared == MAP_FAILED ? -errno : own_cgroup_open();
    if (fd < 0) {
        a->cgroup_error = -fd;
        if (shared != MAP_FAILED)
            (void)munmap(shared, sizeof(*guardians->shared));
        return;
    }
    guardians->shared = shared;
    guardians->cgroup = fd;
}

void agent_spare_keeper(struct agent *a)
{
    const struct job_cgroup_shared *shared = a->generation_host.guardians.shared;
    pid_t keeper = shared ? shared->keeper : 0;

    if (keeper > 0 && a->n_inherited < ARRAY_SIZE(a->inherited) && kill(keeper, 0) == 0)
        a->inherited[a->n_inherited++] = keeper;
}

const char *agent_containment(const struct agent *a)
{
    const struct job_cgroup_shared *shared = a->generation_host.guardians.shared;

    return shared && shared->is_used ? "cgroup" : "process tree";
}

void agent_trace_containment(struct agent *a)
{
    const struct job_cgroup_shared *shared = a->generation_host.guardians.shared;
    int error = shared ? shared->error : a->cgroup_error;

    a->has_traced_containment = true;
    if (trace_sink)
        trace_line("containment: %s%s%s", agent_containment(a), error ? ": " : "",
                   error ? strerror(error) : "");
}

static bool is_inherited(const struct agent *a, pid_t pid)
{
    for (size_t i = 0; i < a->n_inherited; i++)
        if (a->inherited[i] == pid)
            return true;
    return false;
}

/* As process 1 of a container crun also adopts processes of other programs; they are reaped here, too. */
bool agent_reap(struct agent *a)
{
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        agent_health_reaped(a->health, pid, status);
        if (a->host.generation && pid == a->host.generation->guardian)
            a->host.generation->guardian = 0;
        for (size_t i = 0; i < a->n_inherited; i++)
            if (a->inherited[i] == pid)
                a->inherited[i] = a->inherited[--a->n_inherited];
    }
    return pid == 0;
}

/* One round. The guardian itself is among the children until it has been reaped, and its children become crun's
 * before that: so no children means that nothing is left. Without /proc (a negative number) only wait() can find out
 * whether there are any. */
static void on_sweep(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    bool has_children = agent_reap(a);
    if (a->host.generation->guardian)
        return;
    int n = child_processes_signal(SIGKILL, a->inherited, a->n_inherited);
    if (n > 0 || (n < 0 && has_children))
        return;
    (void)uv_timer_stop(timer); /* cannot fail on a timer that exists */
    output_flush(a->output);
    agent_dispatch_kind(a, GROUP_EMPTY);
}

void agent_start_sweep(struct agent *a)
{
    (void)uv_timer_start(&a->sweep, on_sweep, 0, SWEEP_INTERVAL_MS); /* fails only without a callback */
}

static int local_rank_of(const struct agent *a, pid_t pid)
{
    for (int i = 0; i < a->group.config.n_workers; i++)
        if (a->group.workers[i].pid == pid)
            return i;
    return -1;
}

static void log_stuck(const struct agent *a, pid_t pid)
{
    char text[256];

    proc_info_stuck(pid, local_rank_of(a, pid), text, sizeof(text));
    log_line("%s", text);
}

/* Processes that SIGKILL does not end wait in the kernel, mostly in a driver or a dead network file system. The
 * guardian has ended by now, so they are crun's children. */
void agent_print_stuck(struct agent *a)
{
    pid_t pids[STUCK_NAMED_MAX];

    int n = child_processes_list(pids, STUCK_NAMED_MAX);
    for (int i = 0; i < n; i++)
        if (!is_inherited(a, pids[i]))
            log_stuck(a, pids[i]);
    log_line(
        "some processes of the job do not end on SIGKILL; crun ends without them, they go as soon as the kernel "
        "lets them");
}

/* ---- signals ---- */

static bool is_from_process(const struct signalfd_siginfo *info)
{
    return info->ssi_code == SI_USER || info->ssi_code == SI_TKILL || info->ssi_code == SI_QUEUE;
}

/* Looked up at once: the sender of a signal may end at any time. */
static void note_sender(struct agent *a, const struct signalfd_siginfo *info)
{
    if (a->group.interrupt)
        return;
    if (is_from_process(info) && info->ssi_pid)
        proc_info_sender((int)info->ssi_pid, info->ssi_uid, a->sender, sizeof(a->sender));
    else if (info->ssi_code == SI_KERNEL)
        (void)snprintf(a->sender, sizeof(a->sender), "the terminal");
}

static bool ends_the_job(const struct agent *a, uint32_t signal)
{
    return signal < 64 && (a->config->job->signals & UINT64_C(1) << (signal - 1));
}

/* Signals other than those that end the job. */
static enum group_event_kind event_of_signal(uint32_t signal)
{
    return signal == SIGTSTP ? GROUP_SUSPEND : signal == SIGCONT ? GROUP_RESUME : GROUP_PASS_SIGNAL;
}

/* sender: 0 when unknown. */
static void dispatch_signal(struct agent *a, uint32_t signal, pid_t sender)
{
    agent_dispatch(
        a, (struct group_event){.kind = ends_the_job(a, signal) ? GROUP_SIGNAL : event_of_signal(signal),
                                .now_ns = now_ns(),
                                .worker = -1,
                                .pid = sender,
                                .value = (int)signal});
}

/* A signal of a worker to the guardian, its parent. Only those that end the job: the guardian is signalled by batch
 * systems, too, and a worker has no reason to pass on another one to itself. */
void agent_on_worker_signal(struct agent *a, int signal, pid_t sender)
{
    if (signal <= 0 || !ends_the_job(a, (uint32_t)signal))
        return;
    if (!a->group.interrupt)
        proc_info_sender((int)sender, getuid(), a->sender, sizeof(a->sender));
    dispatch_signal(a, (uint32_t)signal, sender);
}

/* The stacks first; a second SIGQUIT does not wait for them. */
static bool is_put_off(struct agent *a, uint32_t signal, pid_t sender)
{
    if (signal != SIGQUIT || !ends_the_job(a, signal) || a->group.state != GROUP_RUNNING ||
        a->group.interrupt)
        return false;
    return agent_hang_put_off_quit(a->hang, sender);
}

void agent_on_signals(uv_poll_t *poll, int status, int events)
{
    struct agent *a = poll->data;
    struct signalfd_siginfo info;

    while (read(a->config->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            agent_reap(a);
            continue;
        }
        if (ends_the_job(a, info.ssi_signo))
            note_sender(a, &info);
        if (info.ssi_signo == SIGTSTP && !suspend_is_possible())
            continue; /* the kernel would ignore it */
        pid_t sender = is_from_process(&info) ? (pid_t)info.ssi_pid : 0;
        if (!is_put_off(a, info.ssi_signo, sender))
            dispatch_signal(a, info.ssi_signo, sender);
        if (uv_is_closing((uv_handle_t *)poll))
            return;
    }
}
