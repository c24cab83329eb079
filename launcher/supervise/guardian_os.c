/*
 * Happy path: close the descriptors of crun, then sleep until the kernel reports an event: crun sent an order (the link), a
 * worker ended (its pidfd), another child ended (SIGCHLD). A generation begins with GUARDIAN_BEGIN and an order for each
 * worker. When the last worker has ended and left processes, the guardian reports their number. When no process is left,
 * the guardian reports the end, and waits for the next generation or the end of the job.
 *
 * Why pidfds and not wait(-1) alone: epoll returns descriptors in the order of becoming ready. When several workers die at
 * once, the reports have the order of the deaths. A worker with a tracer (a debugger, strace) is an exception: the
 * guardian reports the end only after the tracer has waited for the worker.
 *
 * Killing: the children of a killed process become children of the guardian, the nearest subreaper. The guardian sends
 * SIGKILL to all children and reaps, again and again, until the kernel reports no children: process groups, sessions and
 * double forks do not matter. A timeout limits the time between rounds, because the adoption of a process with a living
 * former parent causes no event.
 *
 * Where crun may make cgroups, the workers have a cgroup of their own (job_cgroup_os.h). The guardian sends SIGKILL to the
 * cgroup as well, without need for /proc, and a keeper does the same when the guardian has been killed.
 *
 * A single guardian serves all generations, and generations do not mix: a generation ends when the guardian has no child
 * but the zygote, and crun orders no worker before the end. Processes in the cgroup that are no children are killed too.
 *
 * Replacing: when a worker has failed and the other workers stay, crun orders a new worker in the same place. Processes
 * left in the old worker's session are killed. Processes that have left the session cannot be distinguished from processes
 * started by other workers, and end with the other workers.
 *
 * Warm start: a zygote (zygote_os.h) forks the workers, and the guardian, the nearest subreaper above the zygote, adopts
 * the workers. A start under way counts as a live worker. An order to stop cancels the start; when the zygote cannot fork,
 * the start becomes a start by exec. The zygote is in no generation: no signal to the workers and no count of orphans
 * includes the zygote. A zygote that ends is launched again, a few times in each generation.
 *
 * Order of a signal that ends workers (--signal-order=worker-first): first the worker processes, so that an ending worker
 * can still use its loaders and loggers. A process group gets the signal when its worker has ended, or when half of the
 * grace is over.
 *
 * crun ends: kill every process; when no process is left, send the death notice to the rendezvous, if there is a
 * rendezvous. Before crun ends by a signal without a handler, crun sends GUARDIAN_RELEASE: then SIGTERM and the grace
 * come first.
 *
 * Lease: where other nodes may start in the place of the own node, crun sends the time until which its workers may run, and
 * a new time after each answer of the rendezvous. A kernel timer, which goes on during a suspension, wakes the guardian at
 * the end of the lease: no worker runs on, even when crun is stopped or hangs.
 *
 * Ways to end: without children after GUARDIAN_END or the end of crun; with children that cannot be listed (no /proc, and
 * no cgroup) after GUARDIAN_EMPTY; or by SIGKILL. After SIGKILL the workers get SIGKILL from the kernel (their parent-death
 * signal), and the other processes become children of crun, also a subreaper.
 *
 * Every other signal is blocked for life: a batch system that signals all processes of a job must not end the process that
 * cleans up. A signal from a worker is different: the worker means its parent, the launcher, so the guardian reports the
 * signal to crun.
 */

#include "launcher/supervise/guardian_os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/supervise/child_processes_os.h"
#include "launcher/supervise/death_notice_sock.h"
#include "launcher/output/logs_os.h"
#include "launcher/util/named_file_os.h"
#include "launcher/supervise/job_cgroup_os.h"
#include "launcher/supervise/guardian_orders_os.h"
#include "launcher/supervise/close_descriptors_os.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/supervise/zygote_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"

enum {
    KILL_INTERVAL_MS = 10,
    CRUN_END_MS = 500,
    ORDERS_AT_ONCE = 16, /* starts of workers, of a millisecond at most; then other events have their turn */
    UNSENT_MORE = 32,    /* unread reports that are about no worker */
    KEEP_MAX = SPAWN_FD_END + 2,
    LISTED_MAX = 16384, /* children per round: 4 for each of 4,096 workers, the most of a node */
    TOKEN_LINK = -1,    /* epoll data: the number of a worker, or a TOKEN_ */
    TOKEN_SIGNAL = -2,
    TOKEN_ZYGOTE = -3,
    TOKEN_LEASE = -4,
    TOKEN_HANDSHAKES = 1 << 20, /* and the number of a worker: its handshake socket */
};

/* State of a worker. The guardian allocates nothing. */
struct guardian_worker {
    pid_t pid;                  /* 0: not started, or reaped */
    int pidfd;                  /* -1: no pidfd, or not supported by the kernel */
    bool asked;                 /* the guardian has sent it a signal */
    bool is_traced_zombie;      /* ended, but cannot be reaped before the tracer has waited */
    pid_t ended;                /* pid and session of the process before; 0: none */
    bool sweep;                 /* processes left in session `ended` are being killed */
    int handshake;              /* of a start by the zygote, under way; 0: none */
    bool to_kill;               /* SIGKILL as soon as the start under way has ended */
    struct ordered_start start; /* bytes and descriptors of the start under way */
};

struct guardian {
    struct guardian_worker *state; /* allocated by crun, like unsent */
    size_t n_workers;
    struct guardian_report *unsent; /* room for reports not yet taken by crun */
    size_t n_unsent_max;            /* two for each worker and UNSENT_MORE */
    size_t unsent_at, n_unsent;     /* the first report, and how many */
    int link;
    int keep
        [KEEP_MAX]; /* descriptors of the zygote, the link and the folder of cgroups; all others above 2 are closed */
    size_t n_keep;
    pid_t crun;
    const struct worker_start *zygote_start; /* NULL: none, workers start by exec */
    struct job_cgroup cgroup;                /* of the workers */
    const struct guardian_job *job;
    int epoll_fd;
    int signal_fd; /* signalfd of all signals */
    int lease_fd;  /* timerfd; 0: no lease yet */
    size_t n_live; /* workers not reaped, and starts under way */
    bool killing;
    bool released;           /* GUARDIAN_RELEASE has come */
    uint64_t release_end_ns; /* SIGKILL then */
    int group_signal;        /* sent to the workers, not yet to their groups; 0: none */
    uint64_t group_signal_ns;
    bool has_lost_link;
    bool is_orphan; /* the link was lost because crun has ended */
    bool has_reported_orphans;
    bool cannot_list;       /* processes may be left, but cannot be found */
    bool sweeping;          /* for some worker */
    struct zygote zygote;   /* pid 0: none */
    bool is_zygote_lost;    /* in this generation; reported to crun */
    bool is_zygote_refused; /* for the life of the job, as above */
    bool is_running;        /* from GUARDIAN_BEGIN to GUARDIAN_EMPTY */
    size_t n_to_start;      /* orders to start still to come in the generation */
    bool refuses_starts;    /* until the next GUARDIAN_BEGIN */
    bool ending;            /* GUARDIAN_END has come */
    bool has_death_notice;
};

static pid_t listed[LISTED_MAX];
static struct death_notice latest_notice; /* from GUARDIAN_BEGIN */

static bool is_short_of_memory(int error)
{
    return error == ENOBUFS || error == ENOMEM || error == EINTR;
}

/* False: send the report again later. Every other error means that crun has ended, as the end of the link shows. */
static bool send_report(const struct guardian *g, const struct guardian_report *r)
{
    return send(g->link, r, sizeof(*r), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
           (errno != EAGAIN && !is_short_of_memory(errno));
}

static void send_unsent_reports(struct guardian *g)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = TOKEN_LINK};

    for (; g->n_unsent > 0 && send_report(g, &g->unsent[g->unsent_at]); g->n_unsent--)
        g->unsent_at = (g->unsent_at + 1) % g->n_unsent_max;
    if (g->n_unsent > 0 && is_short_of_memory(errno))
        sleep_ns(1000000); /* the link is writable; all signals are blocked */
    if (g->n_unsent > 0)
        event.events |= EPOLLOUT;
    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, g->link, &event); /* not watched any more: crun has ended */
}

/* Never waits: while crun is stopped, the guardian carries out the lease and earlier orders. Reports that the link does not
 * take are kept in order. A worker has at most two unread reports: crun starts the worker again only after its end. */
static void report_to_crun(struct guardian *g, struct guardian_report r)
{
    const size_t max = g->n_unsent_max;

    r.time_ns = now_ns();
    if (g->n_unsent == 0 && send_report(g, &r))
        return;
    bool is_needed = r.kind != GUARDIAN_SIGNALLED && r.kind != GUARDIAN_ZYGOTE;
    if (g->n_unsent < (is_needed ? max : UNSENT_MORE / 2))
        g->unsent[(g->unsent_at + g->n_unsent++) % max] = r;
    send_unsent_reports(g);
}

static void report_worker(struct guardian *g, enum guardian_report_kind kind, size_t worker, pid_t pid,
                          int value)
{
    report_to_crun(g,
                   (struct guardian_report){.kind = kind, .worker = (int)worker, .pid = pid, .value = value});
}

/* ---- start ---- */

/* Also takes back crun's signal handlers: workers unblock signals before they execute their program. */
static void block_all_signals(void)
{
    const struct sigaction fresh = {.sa_handler = SIG_DFL};
    struct sigaction was;
    sigset_t all;

    (void)sigfillset(&all); /* cannot fail */
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    for (int s = 1; s <= SIGRTMAX; s++) /* one call for most signals: start-up time */
        if (sigaction(s, &fresh, &was) == 0 && was.sa_handler == SIG_IGN)
            (void)sigaction(s, &was, NULL); /* restores SIG_IGN; cannot fail; all are blocked */
}

static int watch_descriptor(struct guardian *g, int fd, int token)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = token};

    return epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static bool open_watches(struct guardian *g)
{
    sigset_t all;

    (void)sigfillset(&all); /* cannot fail */
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->signal_fd = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    return g->epoll_fd >= 0 && g->signal_fd >= 0 && watch_descriptor(g, g->link, TOKEN_LINK) == 0 &&
           watch_descriptor(g, g->signal_fd, TOKEN_SIGNAL) == 0;
}

/* Without a pidfd (an old kernel, no descriptor left) the worker is found by SIGCHLD like any other child. */
static void watch_worker(struct guardian *g, size_t i)
{
    struct guardian_worker *w = &g->state[i];

    w->pidfd = (int)syscall(SYS_pidfd_open, w->pid, 0u);
    if (w->pidfd >= 0 && watch_descriptor(g, w->pidfd, (int)i) < 0)
        close_fd(&w->pidfd);
}

static void adopt_worker(struct guardian *g, size_t i, pid_t pid)
{
    struct guardian_worker *w = &g->state[i];

    w->pid = pid;
    g->n_live++;
    watch_worker(g, i);
    report_worker(g, GUARDIAN_STARTED, i, pid, 0);
    if (w->to_kill)
        (void)kill(-pid, SIGKILL);
}

static bool start_guarded_worker(struct guardian *g, size_t i, const struct worker_start *start)
{
    pid_t pid;

    int r = spawn_worker(start, &g->cgroup, &pid);
    if (r)
        report_worker(g, GUARDIAN_EXEC_FAILED, i, 0, -r);
    else
        adopt_worker(g, i, pid);
    return !r;
}

/* ---- starts by the zygote ---- */

static void end_handshake(struct guardian *g, struct guardian_worker *w)
{
    (void)close(w->handshake); /* leaves the epoll set; a forked worker without its byte ends */
    w->handshake = 0;
    ordered_start_finish(&w->start);
    g->n_live--;
}

static void cancel_starts(struct guardian *g)
{
    g->refuses_starts = true;
    for (size_t i = 0; i < g->n_workers; i++)
        if (g->state[i].handshake)
            end_handshake(g, &g->state[i]);
}

/* False: start the worker by exec. Takes over the contents of r. */
static bool start_by_zygote(struct guardian *g, size_t i, struct ordered_start *r)
{
    struct guardian_worker *w = &g->state[i];
    int handshake;

    if (g->zygote.link < 0 || zygote_start_worker(&g->zygote, (int)i, r, g->crun, &handshake) < 0)
        return false;
    if (watch_descriptor(g, handshake, TOKEN_HANDSHAKES + (int)i) < 0) {
        (void)close(handshake); /* the forked worker ends by the close */
        return false;
    }
    w->handshake = handshake;
    g->n_live++;
    w->start = *r;
    *r = ORDERED_START_NONE;
    return true;
}

static bool is_child(pid_t pid)
{
    siginfo_t info;

    return pid > 0 && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void report_zygote(struct guardian *g, enum zygote_report_kind kind, size_t worker, const char *reason)
{
    struct guardian_report report = {.kind = GUARDIAN_ZYGOTE, .value = (int32_t)kind, .worker = (int)worker};

    (void)snprintf(report.text, sizeof(report.text), "%s", reason); /* may be cut */
    report_to_crun(g, report);
}

/* The zygote has not forked the worker. crun knows already when the zygote has ended. reason NULL: nothing is reported. */
static void start_by_exec(struct guardian *g, size_t i, const char *reason)
{
    struct guardian_worker *w = &g->state[i];

    if (reason && !g->is_zygote_lost)
        report_zygote(g, ZYGOTE_NOT_FORKED, i, reason);
    bool has_started = start_guarded_worker(g, i, &w->start.start);
    end_handshake(g, w);
    if (!has_started)
        cancel_starts(g);
}

static void read_zygote(struct guardian *g);

/* The forked worker has sent its process id, or the socket has ended. */
static void finish_start(struct guardian *g, size_t i)
{
    struct guardian_worker *w = &g->state[i];
    struct {
        int32_t pid; /* 0: the fork failed */
        char reason[GUARDIAN_TEXT_SIZE];
    } fork = {0};

    read_zygote(g); /* an earlier report of the zygote may have started the worker */
    if (!w->handshake)
        return;
    ssize_t n = recv(w->handshake, &fork, sizeof(fork) - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool is_forked = n >= (ssize_t)sizeof(fork.pid) && is_child(fork.pid);
    int r = is_forked ? spawn_set_attributes(fork.pid, w->start.start.attributes) : 0;
    if (r)
        (void)snprintf(fork.reason, sizeof(fork.reason), "%s", strerror(-r)); /* fits */
    if (!is_forked || r || send(w->handshake, "", 1, MSG_NOSIGNAL) != 1) {
        start_by_exec(g, i, g->zygote.link < 0 ? NULL : fork.reason);
        return;
    }
    adopt_worker(g, i, fork.pid);
    end_handshake(g, w);
}

static void lose_zygote(struct guardian *g, const char *reason)
{
    if (!g->is_zygote_lost)
        report_zygote(g, ZYGOTE_REFUSED, 0, reason);
    g->is_zygote_lost = true;
}

/* The zygote's link has ended. */
static void on_zygote_end(struct guardian *g)
{
    const char *reason =
        g->zygote.is_stuck ? "an import does not end" : "the interpreter that forks workers has ended";

    if (g->ending || g->is_orphan || g->is_zygote_lost)
        return;
    if (g->zygote.n_renewals >= ZYGOTE_RENEWALS_MAX)
        lose_zygote(g, reason);
    else
        report_zygote(g, ZYGOTE_ENDED, 0, reason);
}

static void on_zygote_report(struct guardian *g, const struct zygote_report *r)
{
    struct guardian_report report = {.kind = GUARDIAN_ZYGOTE,
                                     .value = (int32_t)r->kind,
                                     .pid = r->value,
                                     .max_rss_kib = r->memory_kib,
                                     .took_us = r->took_us};

    if (r->kind == ZYGOTE_LOADING && g->ending)
        zygote_end(&g->zygote);
    if (r->kind == ZYGOTE_LOADING) { /* forks would come later than starts by exec */
        for (size_t i = 0; !g->zygote.is_awaited && i < g->n_workers; i++)
            if (g->state[i].handshake)
                start_by_exec(g, i, NULL);
        return;
    }
    if (r->kind == ZYGOTE_REFUSED)
        g->is_zygote_refused = g->is_zygote_lost = true;
    memcpy(report.text, r->text, sizeof(report.text));
    report_to_crun(g, report);
}

static void read_zygote(struct guardian *g)
{
    struct zygote_report r;

    if (g->zygote.link < 0)
        return;
    while (g->zygote.link >= 0 && zygote_receive(&g->zygote, &r))
        on_zygote_report(g, &r);
    if (g->zygote.link < 0)
        on_zygote_end(g);
}

static void launch_zygote(struct guardian *g)
{
    int r = zygote_launch(&g->zygote, g->zygote_start, &g->cgroup);

    if (!r && watch_descriptor(g, g->zygote.link, TOKEN_ZYGOTE) < 0) {
        (void)kill(g->zygote.pid, SIGKILL); /* a child, not reaped yet */
        close_fd(&g->zygote.link);
        r = -ENOSPC;
    }
    if (r)
        lose_zygote(g, strerror(-r));
}

/* Launches another zygote after the old zygote has ended and been reaped, unless workers need no zygote. */
static void renew_zygote(struct guardian *g)
{
    bool is_needed = g->zygote_start && !g->is_zygote_lost && !g->ending && !g->is_orphan && !g->released;

    if (!is_needed || g->zygote.link >= 0 || g->zygote.pid > 0)
        return;
    g->zygote.n_renewals++;
    launch_zygote(g);
}

/* Kills a zygote with an import that does not end. */
static void limit_loading(struct guardian *g)
{
    uint64_t limit_ns = g->zygote.loading_since_ns + ZYGOTE_PATIENCE_MS * UINT64_C(1000000);

    if (g->zygote.link < 0 || !g->zygote.is_loading || now_ns() < limit_ns)
        return;
    g->zygote.is_stuck = true;
    (void)kill(g->zygote.pid, SIGKILL); /* also ends the link */
}

/* end_ns 0: never. Makes the timer, which a job without a lease does not need. False: there is none. */
static bool set_lease(struct guardian *g, uint64_t end_ns)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(end_ns / 1000000000), .tv_nsec = (long)(end_ns % 1000000000)}};
    _cleanup_close_ int fd =
        g->lease_fd > 0 ? -1 : timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);

    if (fd >= 0 && watch_descriptor(g, fd, TOKEN_LEASE) == 0)
        g->lease_fd = steal_fd(&fd);
    return g->lease_fd > 0 && timerfd_settime(g->lease_fd, TFD_TIMER_ABSTIME, &at, NULL) == 0;
}

static void begin_generation(struct guardian *g, const struct ordered_start *r)
{
    if (g->lease_fd > 0)
        (void)set_lease(g, 0); /* the generation's lease follows */
    if (r->notice)
        latest_notice = *r->notice;
    g->has_death_notice = g->has_death_notice || r->notice;
    if (!g->zygote_start) /* else the cgroup holds the zygote already */
        job_cgroup_make(&g->cgroup);
    g->is_running = true;
    g->group_signal = 0;
    g->n_to_start = g->n_workers;
    g->killing = g->refuses_starts = g->has_reported_orphans = false;
    g->is_zygote_lost = g->is_zygote_refused;
    g->zygote.n_renewals = 0;
    for (size_t i = 0; i < g->n_workers; i++)
        g->state[i].ended = 0;
}

/* ---- ends of children ---- */

static struct guardian_worker *find_worker(struct guardian *g, pid_t pid)
{
    for (size_t i = 0; i < g->n_workers; i++)
        if (g->state[i].pid == pid)
            return &g->state[i];
    return NULL;
}

/* Reaps an ended child; reports the end of a worker. */
static void reap_child(struct guardian *g, pid_t pid)
{
    struct guardian_worker *w = find_worker(g, pid);
    struct rusage usage;
    int status;

    if (w && g->group_signal)
        (void)kill(-pid, g->group_signal); /* not reaped, so the number is valid */
    if (wait4(pid, &status, WNOHANG, &usage) != pid)
        return;
    if (pid == g->zygote.pid)
        zygote_reaped(&g->zygote, g->zygote_start, status); /* also ends the link */
    if (!w)
        return;
    bool asked = w->asked;
    close_fd(&w->pidfd); /* also leaves the epoll set */
    *w = (struct guardian_worker){.pidfd = -1, .ended = pid};
    g->n_live--;
    report_to_crun(g, (struct guardian_report){.kind = GUARDIAN_EXITED,
                                               .worker = (int)(w - g->state),
                                               .pid = pid,
                                               .value = status,
                                               .unasked = !asked,
                                               .max_rss_kib = usage.ru_maxrss});
}

/* The worker's pidfd is readable. While a tracer does not wait for the worker, the pidfd stays readable and would wake the
 * guardian again and again. The kernel sends SIGCHLD when the tracer has waited or detached: the guardian relies on
 * SIGCHLD from here on. */
static void on_worker_end(struct guardian *g, struct guardian_worker *w)
{
    pid_t pid = w->pid;

    reap_child(g, pid);
    if (w->pid != pid)
        return;
    close_fd(&w->pidfd); /* also leaves the epoll set */
    w->is_traced_zombie = true;
}

/*
 * Reaps all ended children, except workers with a pidfd: epoll returns each of these workers in turn. In the kernel's
 * list such a worker hides the children behind; as the worker's pidfd is readable, the next round comes at once.
 * False: there is no child at all.
 */
static bool reap_others(struct guardian *g)
{
    for (;;) {
        siginfo_t info = {0};

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
            return errno != ECHILD;
        if (info.si_pid == 0)
            return true;
        struct guardian_worker *w = find_worker(g, info.si_pid);
        if (w && w->pidfd >= 0)
            return true;
        reap_child(g, info.si_pid);
    }
}

/* ---- orders ---- */

/* The worker's pidfd shows the end even before a tracer has waited. */
static bool has_ended(const struct guardian_worker *w)
{
    struct pollfd end = {.fd = w->pidfd, .events = POLLIN};
    siginfo_t info = {0};

    if (w->is_traced_zombie)
        return true;
    if (w->pidfd >= 0)
        return poll(&end, 1, 0) == 1;
    return waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == w->pid;
}

/* Signals the worker, or its process group; the number cannot be reused before the worker is reaped. A worker already
 * ended, but not reaped, ended before the signal. */
static void signal_worker(struct guardian_worker *w, int signal, bool is_alone)
{
    if (w->pid <= 0)
        return;
    w->asked = w->asked || !has_ended(w);
    (void)kill(is_alone ? w->pid : -w->pid, signal); /* ESRCH: ended, not reaped yet */
}

static void signal_workers(struct guardian *g, int signal, bool are_alone)
{
    for (size_t i = 0; i < g->n_workers; i++)
        signal_worker(&g->state[i], signal, are_alone);
}

/* The signal is no request to end, so `asked` stays. */
static void pass_signal(struct guardian *g, int signal, bool are_alone)
{
    for (size_t i = 0; i < g->n_workers; i++)
        if (g->state[i].pid > 0)
            (void)kill(are_alone ? g->state[i].pid : -g->state[i].pid, signal); /* as above */
}

/* Fills `listed` with all children but the zygote and the keeper. Returns their number; negative without /proc. */
static int list_children(const struct guardian *g)
{
    const pid_t keeper = g->cgroup.keeper;
    int n = child_processes_list(listed, LISTED_MAX);

    for (int i = 0; i < n; i++)
        if (listed[i] == g->zygote.pid || listed[i] == keeper)
            listed[i--] = listed[--n];
    return n;
}

/* Without /proc: all processes in the cgroup, children or not. */
static int count_orphans(const struct guardian *g)
{
    int n = list_children(g);

    return n > 0 ? n : job_cgroup_count(&g->cgroup);
}

/* Signals the orphans, which became children of the guardian. */
static void signal_orphans(struct guardian *g, int signal)
{
    int n = list_children(g);

    for (int i = 0; i < n; i++)
        if (!find_worker(g, listed[i]))
            (void)kill(listed[i], signal); /* ended meanwhile, or setuid */
}

static bool is_stopped(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* A SIGSTOPped process acts on SIGTERM only after SIGCONT, so stopped children are continued. Others get no SIGCONT:
 * SIGCONT would undo the stop of a debugger, or of LeakSanitizer at a program's end, just attaching. */
static void continue_stopped(struct guardian *g)
{
    int n = list_children(g);

    for (int i = 0; i < n; i++)
        if (is_stopped(listed[i]))
            (void)kill(find_worker(g, listed[i]) ? -listed[i] : listed[i], SIGCONT);
}

static void request_end(struct guardian *g, int signal)
{
    bool is_first = g->job->group_delay_ms > 0 && g->n_live > 0;

    g->group_signal = is_first ? signal : 0;
    g->group_signal_ns = now_ns() + g->job->group_delay_ms * UINT64_C(1000000);
    signal_workers(g, signal, is_first);
    if (!is_first)
        signal_orphans(g, signal);
    continue_stopped(g);
}

/* Signals the groups after the delay. crun signals processes outside the groups when all workers have ended; after crun's
 * end the guardian does. */
static void signal_groups_in_time(struct guardian *g)
{
    if (!g->group_signal || (now_ns() < g->group_signal_ns && !(g->released && g->n_live == 0)))
        return;
    signal_workers(g, g->group_signal, false);
    signal_orphans(g, g->group_signal);
    continue_stopped(g);
    g->group_signal = 0;
}

static struct guardian_worker *find_session(struct guardian *g, pid_t session)
{
    for (size_t i = 0; i < g->n_workers; i++)
        if (g->state[i].sweep && g->state[i].ended == session)
            return &g->state[i];
    return NULL;
}

/*
 * Kills children in the sessions of replaced workers. A number names the same session as long as any process is in the
 * session, and children keep their session until reaped. By killing its children the guardian adopts the grandchildren,
 * and kills the grandchildren after the event of their parents' end: until a round finds no process.
 */
static void sweep_sessions(struct guardian *g)
{
    bool any = false;
    int n = list_children(g);

    for (int i = 0; i < n; i++)
        if (!find_worker(g, listed[i]) && find_session(g, getsid(listed[i]))) {
            (void)kill(listed[i], SIGKILL);
            any = true;
        }
    if (any)
        return;
    g->sweeping = false;
    for (size_t i = 0; i < g->n_workers; i++)
        g->state[i].sweep = false;
}

static void start_ordered_worker(struct guardian *g, const struct guardian_order *order,
                                 struct ordered_start *r)
{
    struct guardian_worker *w = &g->state[order->worker];

    g->n_to_start -= g->n_to_start > 0;
    if (g->killing || g->refuses_starts || w->pid > 0 || w->handshake)
        return; /* too late; GUARDIAN_EMPTY follows in any case */
    w->to_kill = false;
    w->sweep = w->ended > 0;
    g->sweeping = g->sweeping || w->sweep;
    if (order->error)
        report_worker(g, GUARDIAN_EXEC_FAILED, (size_t)order->worker, 0, order->error);
    else if (!start_by_zygote(g, (size_t)order->worker, r) &&
             !start_guarded_worker(g, (size_t)order->worker, &r->start))
        cancel_starts(g);
}

static void kill_worker(struct guardian *g, struct guardian_worker *w)
{
    w->to_kill = w->handshake > 0;
    signal_worker(w, SIGKILL, false);
}

static void begin_release(struct guardian *g)
{
    g->released = true;
    g->release_end_ns = now_ns() + g->job->grace_ms * UINT64_C(1000000);
    cancel_starts(g);
    request_end(g, SIGTERM);
}

/* Between two generations there is nothing to kill. */
static void begin_kill(struct guardian *g)
{
    if (!g->is_running)
        return;
    g->killing = true;
    cancel_starts(g);
}

/* ---- lease ---- */

static void on_lease_timer(struct guardian *g)
{
    uint64_t n;

    if (read(g->lease_fd, &n, sizeof(n)) == sizeof(n)) /* fails when set anew meanwhile */
        begin_kill(g);
}

static void carry_out_order(struct guardian *g, const struct guardian_order *order, struct ordered_start *r)
{
    switch (order->kind) {
    case GUARDIAN_BEGIN:
        begin_generation(g, r);
        break;
    case GUARDIAN_END:
        g->ending = true;
        if (g->zygote.pid > 0 && g->zygote.is_loading)
            (void)kill(g->zygote.pid, SIGKILL); /* its list is saved; not reaped, so the number is valid */
        else
            zygote_end(&g->zygote);
        break;
    case GUARDIAN_KILL:
        begin_kill(g);
        break;
    case GUARDIAN_LEASE:
        if (!set_lease(g, order->time_ns))
            begin_kill(g); /* no worker must run longer than the lease */
        break;
    case GUARDIAN_KILL_WORKER:
        kill_worker(g, &g->state[order->worker]);
        break;
    case GUARDIAN_START:
        start_ordered_worker(g, order, r);
        break;
    case GUARDIAN_PASS_SIGNAL: /* helpers (loaders, shells) may not expect the signal, whose default action ends them */
        pass_signal(g, order->signal, true);
        break;
    case GUARDIAN_FREEZE:
        pass_signal(g, order->signal, false);
        signal_orphans(g, order->signal);
        break;
    case GUARDIAN_RELEASE:
        begin_release(g);
        break;
    default:
        cancel_starts(g);
        request_end(g, order->signal);
        break;
    }
}

/* A closed link would stay readable. */
static void lose_link(struct guardian *g, bool is_end)
{
    g->n_unsent = 0;
    g->killing = !g->released;
    g->has_lost_link = true;
    g->is_orphan = is_end;
    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, g->link, NULL);
    cancel_starts(g);
    if (g->zygote.pid > 0)
        (void)kill(g->zygote.pid, SIGKILL); /* forks no more */
}

/* Reads and carries out an order; false: there was no order. */
static bool read_order(struct guardian *g)
{
    struct guardian_order order;
    struct ordered_start start;

    ssize_t n = guardian_receive_order(g->link, &order, &start);
    /* The link stays readable. When crun ends with unread reports, a reset comes first, then the orders that crun sent
     * before its end, then the end. */
    if (n < 0 && (errno == EAGAIN || errno == ECONNRESET || is_short_of_memory(errno)))
        return false;
    if (n <= 0) {
        lose_link(g, n == 0);
        return false;
    }
    carry_out_order(g, &order, &start);
    ordered_start_finish(&start);
    return true;
}

/* ---- signals to the guardian ---- */

/* The worker of a process: the process itself, or the leader of its session. */
static struct guardian_worker *find_worker_of(struct guardian *g, pid_t pid)
{
    struct guardian_worker *w = pid > 0 ? find_worker(g, pid) : NULL;
    pid_t session = w || pid <= 0 ? -1 : getsid(pid);

    return w || session <= 0 ? w : find_worker(g, session);
}

/* SIGCHLD only wakes the guardian. */
static void read_signals(struct guardian *g)
{
    struct signalfd_siginfo info;

    while (read(g->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD || info.ssi_signo == SIGCONT)
            continue;
        struct guardian_worker *w = find_worker_of(g, (pid_t)info.ssi_pid);
        if (w)
            report_worker(g, GUARDIAN_SIGNALLED, (size_t)(w - g->state), (pid_t)info.ssi_pid,
                          (int)info.ssi_signo);
    }
}

/* ---- life ---- */

static int limit_until(uint64_t end_ns)
{
    uint64_t now = now_ns();

    return now >= end_ns ? 0 : (int)((end_ns - now) / 1000000 + 1);
}

static int wait_limit_ms(const struct guardian *g)
{
    if (g->killing)
        return KILL_INTERVAL_MS;
    if (g->group_signal) /* before the end of a release */
        return limit_until(g->group_signal_ns);
    if (g->released)
        return limit_until(g->release_end_ns);
    return g->zygote.link >= 0 && g->zygote.is_loading ? ZYGOTE_PATIENCE_MS : -1;
}

static void on_link(struct guardian *g, uint32_t events)
{
    if (events & EPOLLOUT)
        send_unsent_reports(g);
    for (int i = 0; i < ORDERS_AT_ONCE && events & ~(uint32_t)EPOLLOUT && read_order(g); i++)
        ;
}

static void wait_for_events(struct guardian *g)
{
    struct epoll_event events[64];

    int n = epoll_wait(g->epoll_fd, events, (int)ARRAY_SIZE(events), wait_limit_ms(g));
    for (int i = 0; i < n; i++) {
        int token = events[i].data.fd;

        if (token == TOKEN_LINK)
            on_link(g, events[i].events);
        else if (token == TOKEN_SIGNAL)
            read_signals(g);
        else if (token == TOKEN_ZYGOTE)
            read_zygote(g);
        else if (token == TOKEN_LEASE)
            on_lease_timer(g);
        else if (token >= TOKEN_HANDSHAKES)
            finish_start(g, (size_t)(token - TOKEN_HANDSHAKES));
        else if (g->state[token].pid > 0 && g->state[token].pidfd >= 0)
            on_worker_end(g, &g->state[token]);
    }
}

/* The grace is over, or all workers have ended before: kills the orphans that SIGTERM did not end. With worker-first
 * orphans got SIGTERM only a moment ago, and have the rest of the grace. */
static void end_release(struct guardian *g)
{
    bool is_used = g->n_live == 0 && g->job->group_delay_ms == 0;

    if (g->released && (is_used || now_ns() >= g->release_end_ns))
        g->killing = true;
}

static void kill_children(struct guardian *g)
{
    signal_workers(g, SIGKILL, false);
    /* A zygote is also in the cgroup, and must stay. */
    bool kills_cgroup = g->zygote.pid <= 0 && job_cgroup_holds_all(&g->cgroup);
    if (kills_cgroup)
        job_cgroup_kill(&g->cgroup);
    /* The next wait shows whether children are left. Without /proc children cannot be listed: once the workers have
     * ended, the guardian can do nothing more without a cgroup. */
    int n = list_children(g);
    for (int i = 0; i < n; i++)
        (void)kill(listed[i], SIGKILL); /* ended meanwhile, or setuid */
    if (n < 0 && g->n_live == 0 && !kills_cgroup)
        g->cannot_list = true;
}

static bool have_workers_ended(const struct guardian *g)
{
    return g->n_live == 0 && g->is_running && (g->n_to_start == 0 || g->refuses_starts);
}

static void report_empty(struct guardian *g)
{
    if (!g->zygote_start)
        job_cgroup_remove(&g->cgroup);
    report_worker(g, GUARDIAN_EMPTY, 0, 0, g->cannot_list);
    g->is_running = g->killing = false;
}

/* A zygote is a child all the time, so a list of children shows whether the generation has ended. The list has all roots of
 * the generation, since only the guardian reaps: a process adopted meanwhile has an ancestor in the list. */
static void end_generation(struct guardian *g, bool has_children)
{
    if (!have_workers_ended(g))
        return;
    bool is_empty = g->zygote.pid > 0 ? list_children(g) <= 0 : !has_children;
    if (!is_empty && !g->has_reported_orphans)
        report_worker(g, GUARDIAN_ORPHANS, 0, 0, count_orphans(g));
    g->has_reported_orphans = g->has_reported_orphans || !is_empty;
    if (is_empty || g->cannot_list)
        report_empty(g);
}

/* Whether the guardian has nothing more to do, and crun has taken all reports, or waits for no report. */
static bool is_over(const struct guardian *g, bool has_children)
{
    if (g->cannot_list && !g->is_running)
        return g->n_unsent == 0;
    return !has_children && (g->ending || g->has_lost_link);
}

/* The end of the link is not enough: an ending process closes its files a moment before its children get another
 * parent. */
static bool has_crun_ended(pid_t crun)
{

    for (int i = 0; i < CRUN_END_MS && getppid() == crun; i++)
        sleep_ns(1000000); /* all signals are blocked */
    return getppid() != crun;
}

static char *command_line; /* of crun, as shown by `ps -f` and matched by `pkill -f` */
static size_t command_line_size;

void guardian_set_command_line(char **argv)
{
    char **last = argv;

    if (!argv[0])
        return;
    while (last[1])
        last++;
    command_line = argv[0];
    command_line_size = (size_t)(*last - *argv) + strlen(*last) + 1;
}

/* Neither the name nor the command line of the guardian matches a pattern for crun or for the program of the workers. The
 * guardian uses only copies of the arguments. */
static void set_names(pid_t crun)
{
    (void)prctl(PR_SET_NAME, "job-guardian");
    if (!command_line)
        return;
    memset(command_line, 0, command_line_size);
    (void)snprintf(command_line, command_line_size, "job-guardian of %d", (int)crun); /* may be cut */
}

/* The main function of the guardian, in the forked process. */
static _Noreturn void guardian_run(struct guardian *g)
{
    block_all_signals();
    (void)setsid(); /* a session without the terminal; cannot fail in a fresh child */
    set_names(g->crun);
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT); /* a stopped guardian is continued by the end of crun */
    /* Above all: listening sockets of crun, because their ports must be free when crun closes the sockets, and crun's end of
     * the link, because the guardian waits for the end of the link. */
    int r = close_descriptors_except(3, g->keep, g->n_keep);
    if (!r && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        r = -errno;
    if (!r && !open_watches(g))
        r = -errno;
    if (r) {
        report_worker(g, GUARDIAN_EXEC_FAILED, 0, 0, -r);
        _exit(1);
    }
    if (g->zygote_start) {
        job_cgroup_make(&g->cgroup);
        launch_zygote(g);
    }

    for (;;) {
        bool has_children = reap_others(g);

        end_generation(g, has_children);
        if (is_over(g, has_children))
            break;
        renew_zygote(g);
        limit_loading(g);
        signal_groups_in_time(g);
        end_release(g);
        if (g->killing && has_children)
            kill_children(g);
        else if (g->sweeping)
            sweep_sessions(g);
        wait_for_events(g);
    }
    job_cgroup_remove(&g->cgroup);
    if (g->is_orphan && !g->cannot_list && has_crun_ended(g->crun)) {
        if (g->has_death_notice)
            death_notice_send(&latest_notice);
        if (g->job->logs)
            logs_remove(g->job->logs, false);
        if (g->job->socket)
            named_file_remove(g->job->socket);
    }
    _exit(0);
}

/* ---- for crun ---- */

static void list_kept(struct guardian *g)
{
    int n = g->zygote_start ? worker_start_list_fds(g->zygote_start, g->keep) : 0;

    g->keep[n++] = g->link;
    if (g->cgroup.parent >= 0)
        g->keep[n++] = g->cgroup.parent;
    g->n_keep = (size_t)n;
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

int spawn_guardian(size_t n_workers, const struct worker_start *zygote, const struct guardian_job *job,
                   pid_t *ret_pid, int *ret_link)
{
    struct guardian g = {.n_workers = n_workers,
                         .n_unsent_max = 2 * n_workers + UNSENT_MORE,
                         .crun = getpid(),
                         .zygote_start = zygote,
                         .zygote = {.link = -1},
                         .job = job};
    _cleanup_free_ struct guardian_worker *state = g.state = calloc(n_workers, sizeof(*state));
    _cleanup_free_ struct guardian_report *unsent = g.unsent = calloc(g.n_unsent_max, sizeof(*unsent));
    _cleanup_close_ends_ int link[2] = {-1, -1};

    if (!state || !unsent)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) < 0)
        return -errno;
    g.link = link[1];
    job_cgroup_init(&g.cgroup, job->cgroup, job->shared);
    list_kept(&g);

    /* Without the fork handlers of libraries: libuv's opens a pipe, and aborts the child where there is no descriptor for
     * it. The guardian makes system calls only, as the output thread may hold the lock of malloc() now. */
    pid_t pid = fork_plainly();
    if (pid == 0)
        guardian_run(&g);
    if (pid < 0 || fcntl(link[0], F_SETFL, O_NONBLOCK) < 0)
        return -errno; /* a closed link ends the guardian, if there is one */
    *ret_pid = pid;
    *ret_link = steal_fd(&link[0]);
    return 0;
}
