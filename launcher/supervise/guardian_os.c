/*
 * Happy path: close what is not ours, start the workers in order, then sleep until the kernel has something:
 * a worker ended (its pidfd), another child ended (SIGCHLD), crun has an order (the link). When the last
 * worker has ended, say how many processes are left; when none is left, say so and end.
 *
 * Why pidfds and not wait(-1) alone: epoll hands out descriptors in the order in which they became ready, so
 * when several workers die at once, crun hears of them in the order in which they died.
 *
 * Killing: a killed process hands its children to us, the nearest subreaper. So SIGKILL to all our children,
 * wait, and again, until the kernel says there are none: process groups, sessions and double forks do not
 * matter. A timeout paces the rounds, because a grandchild that becomes ours while its former parent lives
 * on tells nobody.
 *
 * Replacing: when one worker has failed and the others stay, crun orders a new one in its place. What the old one
 * left in its session is killed; what has left that session cannot be told from what other workers have started,
 * and goes when they go.
 *
 * crun's end: kill everything, and when nothing is left, tell the rendezvous, where there is one.
 *
 * Ways it dies: with an empty house after GUARDIAN_EMPTY, or by SIGKILL. Then its workers get SIGKILL from
 * the kernel (their parent-death signal), the rest falls to crun, which is a subreaper as well. Every other
 * signal is blocked for life: a batch system that signals all processes of a job must not take away the one
 * that cleans up.
 */

#include "launcher/supervise/guardian_os.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher/supervise/child_processes_os.h"
#include "launcher/supervise/death_notice_sock.h"
#include "launcher/output/logs_os.h"
#include "launcher/supervise/replacement_os.h"
#include "launcher/supervise/spawn_os.h"
#include "base/time.h"

enum {
    KILL_PACE_MS = 10,
    CRUN_END_MS = 500,
    TOKEN_LINK = -1, /* epoll data: a worker's number, or one of these */
    TOKEN_CHILD = -2,
};

struct guardian {
    const struct guardian_setup *setup;
    int epoll_fd;
    int child_fd;  /* signalfd of SIGCHLD */
    size_t n_live; /* workers not waited for */
    bool killing;
    bool orphaned; /* crun is gone */
    bool told_left;
    bool helpless; /* something is left that cannot be found */
    bool sweeping; /* for some worker */
};

static void report(struct guardian *g, struct guardian_report r)
{
    r.time_ns = now_ns();
    /* Fails only when crun is gone, and then the link's end is what we act on. */
    (void)send(g->setup->link, &r, sizeof(r), MSG_NOSIGNAL);
}

static int64_t microseconds(struct timeval t)
{
    return (int64_t)t.tv_sec * 1000000 + t.tv_usec;
}

/* ------------------------------------------------------------------ start */

/* Closes every descriptor above 2 that is not in keep[]: listening sockets of crun above all, which must
 * not stay open here when crun closes them. */
static void close_others(const struct guardian_setup *s)
{
    unsigned from = 3;

    for (size_t i = 0; i < s->n_keep; i++) {
        unsigned kept = (unsigned)s->keep[i];
        if (kept > from)
            (void)syscall(SYS_close_range, from, kept - 1, 0u); /* an old kernel leaves them open */
        from = kept + 1;
    }
    (void)syscall(SYS_close_range, from, ~0u, 0u);
}

static void close_kept(const struct guardian_setup *s)
{
    for (size_t i = 0; i < s->n_keep; i++)
        if (s->keep[i] != s->link)
            (void)close(s->keep[i]);
}

static void block_signals(void)
{
    sigset_t all;

    (void)sigfillset(&all); /* cannot fail */
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
}

static int watch(struct guardian *g, int fd, int token)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = token};

    return epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static bool open_watches(struct guardian *g)
{
    sigset_t child;

    (void)sigemptyset(&child); /* cannot fail, nor can the next */
    (void)sigaddset(&child, SIGCHLD);
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    return g->epoll_fd >= 0 && g->child_fd >= 0 && watch(g, g->setup->link, TOKEN_LINK) == 0 &&
           watch(g, g->child_fd, TOKEN_CHILD) == 0;
}

/* Without a pidfd (an old kernel, no descriptor left) the worker is found by SIGCHLD like any other child. */
static void watch_worker(struct guardian *g, size_t i)
{
    struct guardian_worker *w = &g->setup->state[i];

    w->pidfd = (int)syscall(SYS_pidfd_open, w->pid, 0u);
    if (w->pidfd >= 0 && watch(g, w->pidfd, (int)i) < 0) {
        (void)close(w->pidfd);
        w->pidfd = -1;
    }
}

static bool start_worker(struct guardian *g, size_t i, const struct spawn_worker *worker)
{
    struct guardian_worker *w = &g->setup->state[i];

    int r = spawn_worker(worker, &w->pid);
    if (r) {
        report(g, (struct guardian_report){.kind = GUARDIAN_EXEC_FAILED, .worker = (int)i, .value = -r});
        return false;
    }
    g->n_live++;
    watch_worker(g, i);
    report(g, (struct guardian_report){.kind = GUARDIAN_STARTED, .worker = (int)i, .pid = w->pid});
    return true;
}

static void start_workers(struct guardian *g)
{
    for (size_t i = 0; i < g->setup->n_workers; i++)
        if (!start_worker(g, i, &g->setup->workers[i]))
            return;
}

/* ------------------------------------------------------------------ ends of children */

static struct guardian_worker *find_worker(struct guardian *g, pid_t pid)
{
    for (size_t i = 0; i < g->setup->n_workers; i++)
        if (g->setup->state[i].pid == pid)
            return &g->setup->state[i];
    return NULL;
}

/* Waits for one child that has ended and, if it was a worker, tells. */
static void reap(struct guardian *g, pid_t pid)
{
    struct guardian_worker *w = find_worker(g, pid);
    struct rusage usage;
    int status;

    if (wait4(pid, &status, WNOHANG, &usage) != pid || !w)
        return;
    bool asked = w->asked;
    if (w->pidfd >= 0)
        (void)close(w->pidfd); /* leaves the epoll set by this */
    *w = (struct guardian_worker){.pidfd = -1, .ended = pid};
    g->n_live--;
    report(g, (struct guardian_report){.kind = GUARDIAN_EXITED,
                                       .worker = (int)(w - g->setup->state),
                                       .pid = pid,
                                       .value = status,
                                       .unasked = !asked,
                                       .max_rss_kib = usage.ru_maxrss,
                                       .user_us = microseconds(usage.ru_utime),
                                       .system_us = microseconds(usage.ru_stime)});
}

/*
 * Waits for all ended children but workers that epoll will name in their turn. Such a worker hides those
 * behind it in the kernel's list; as its pidfd is readable, we are back here at once.
 * False when there is no child at all.
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
        reap(g, info.si_pid);
    }
}

/* ------------------------------------------------------------------ orders */

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* Signals the worker's group, which is named by the worker and cannot be another's before we wait for it. One that has
 * ended already, and is not waited for yet, was not asked to. */
static void signal_worker(struct guardian_worker *w, int signal)
{
    if (w->pid <= 0)
        return;
    w->asked = w->asked || !has_ended(w->pid);
    (void)kill(-w->pid, signal); /* ESRCH: between its end and our wait */
}

static void signal_groups(struct guardian *g, int signal)
{
    for (size_t i = 0; i < g->setup->n_workers; i++)
        signal_worker(&g->setup->state[i], signal);
}

/* Signals what our workers left behind and became ours. */
static void signal_left(struct guardian *g, int signal)
{
    pid_t pids[1024];

    int n = child_processes_list(pids, (int)(sizeof(pids) / sizeof(pids[0])));
    for (int i = 0; i < n; i++)
        if (!find_worker(g, pids[i]))
            (void)kill(pids[i], signal);
}

static bool is_stopped(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* One that somebody has stopped would learn of its signal only by SIGKILL. The others get no SIGCONT: it would take
 * back the stop by which a debugger, or LeakSanitizer at a program's end, is just attaching. */
static void wake_stopped(struct guardian *g)
{
    pid_t pids[1024];

    int n = child_processes_list(pids, (int)(sizeof(pids) / sizeof(pids[0])));
    for (int i = 0; i < n; i++)
        if (is_stopped(pids[i]))
            (void)kill(find_worker(g, pids[i]) ? -pids[i] : pids[i], SIGCONT);
}

static struct guardian_worker *find_session(struct guardian *g, pid_t session)
{
    for (size_t i = 0; i < g->setup->n_workers; i++)
        if (g->setup->state[i].sweep && g->setup->state[i].ended == session)
            return &g->setup->state[i];
    return NULL;
}

/*
 * Kills our children in sessions of workers that were replaced. A number names the same session for as long
 * as anybody is in it, and our children keep theirs until we wait for them. What those had started becomes
 * ours by that, and its turn comes when their end wakes us: until a look finds nobody.
 */
static void sweep_sessions(struct guardian *g)
{
    pid_t pids[1024];
    bool any = false;

    int n = child_processes_list(pids, (int)(sizeof(pids) / sizeof(pids[0])));
    for (int i = 0; i < n; i++)
        if (!find_worker(g, pids[i]) && find_session(g, getsid(pids[i]))) {
            (void)kill(pids[i], SIGKILL);
            any = true;
        }
    if (any)
        return;
    g->sweeping = false;
    for (size_t i = 0; i < g->setup->n_workers; i++)
        g->setup->state[i].sweep = false;
}

static void start_replacement(struct guardian *g, const struct guardian_order *order,
                              const struct replacement *r)
{
    struct guardian_worker *w = &g->setup->state[order->worker];

    if (g->killing || w->pid > 0)
        return; /* too late; the end of everything is told in any case */
    w->sweep = w->ended > 0;
    g->sweeping = g->sweeping || w->sweep;
    if (order->error)
        report(g, (struct guardian_report){
                      .kind = GUARDIAN_EXEC_FAILED, .worker = order->worker, .value = order->error});
    else
        (void)start_worker(g, (size_t)order->worker, &r->worker);
}

static void obey_order(struct guardian *g, const struct guardian_order *order, const struct replacement *r)
{
    switch (order->kind) {
    case GUARDIAN_KILL:
        g->killing = true;
        break;
    case GUARDIAN_KILL_WORKER:
        signal_worker(&g->setup->state[order->worker], SIGKILL);
        break;
    case GUARDIAN_START:
        start_replacement(g, order, r);
        break;
    default:
        signal_groups(g, order->signal);
        signal_left(g, order->signal);
        wake_stopped(g);
        break;
    }
}

static void obey(struct guardian *g)
{
    struct guardian_order order;
    struct replacement replacement;

    ssize_t n = replacement_receive(g->setup->link, &order, &replacement);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* crun is gone; a closed link would wake us for ever */
        g->killing = true;
        g->orphaned = n == 0 || errno == ECONNRESET;
        (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, g->setup->link, NULL);
        return;
    }
    obey_order(g, &order, &replacement);
    replacement_finish(&replacement);
}

/* ------------------------------------------------------------------ life */

static void drain_child_signals(struct guardian *g)
{
    struct signalfd_siginfo info;

    while (read(g->child_fd, &info, sizeof(info)) > 0)
        continue;
}

static void wait_for_something(struct guardian *g)
{
    struct epoll_event events[64];

    int n = epoll_wait(g->epoll_fd, events, (int)(sizeof(events) / sizeof(events[0])),
                       g->killing ? KILL_PACE_MS : -1);
    for (int i = 0; i < n; i++) {
        int token = events[i].data.fd;

        if (token == TOKEN_LINK)
            obey(g);
        else if (token == TOKEN_CHILD)
            drain_child_signals(g);
        else if (g->setup->state[token].pid > 0)
            reap(g, g->setup->state[token].pid);
    }
}

static void kill_everything(struct guardian *g)
{
    signal_groups(g, SIGKILL);
    /* How many there were shows in the next wait. Without /proc nobody can tell who they are: once the workers
     * have ended, there is nothing left that we could do. */
    if (child_processes_signal(SIGKILL, NULL, 0) < 0 && g->n_live == 0)
        g->helpless = true;
}

static void tell_left(struct guardian *g)
{
    pid_t pids[1024];

    g->told_left = true;
    int n = child_processes_list(pids, (int)(sizeof(pids) / sizeof(pids[0])));
    report(g, (struct guardian_report){.kind = GUARDIAN_LEFT, .value = n < 0 ? 0 : n});
}

/* Not only its end of the link. A process that ends closes its files a moment before its children get another
 * parent. */
static bool is_dead(pid_t crun)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (int i = 0; i < CRUN_END_MS && getppid() == crun; i++)
        (void)nanosleep(&pause, NULL); /* all signals are blocked */
    return getppid() != crun;
}

_Noreturn void guardian_run(const struct guardian_setup *setup)
{
    struct guardian g = {.setup = setup};

    block_signals();
    (void)setsid(); /* out of reach of the terminal; cannot fail in a fresh child */
    (void)prctl(PR_SET_NAME, "crun-guardian");
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT); /* should somebody have stopped us, crun's end wakes us up */
    close_others(setup);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || !open_watches(&g)) {
        report(&g, (struct guardian_report){.kind = GUARDIAN_EXEC_FAILED, .value = errno});
        _exit(1);
    }
    start_workers(&g);
    close_kept(setup);

    while (reap_others(&g) && !g.helpless) {
        if (g.n_live == 0 && !g.told_left)
            tell_left(&g);
        if (g.killing)
            kill_everything(&g);
        else if (g.sweeping)
            sweep_sessions(&g);
        wait_for_something(&g);
    }
    report(&g, (struct guardian_report){.kind = GUARDIAN_EMPTY});
    if (g.orphaned && !g.helpless && is_dead(setup->crun)) {
        if (setup->death_notice)
            death_notice_say(setup->death_notice);
        if (setup->logs)
            logs_remove_empty(setup->logs);
    }
    _exit(0);
}
