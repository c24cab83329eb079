/*
 * Happy path: posix_spawn() with a pipe as standard output, read until its end.
 *
 * Ways it fails: the tool does not end in time (SIGKILL by its pidfd; what it has printed counts), the process has ended, ptrace
 * is not permitted (the tool prints why, which is no stack). The event loop reaps the tool, as it does every child that it does
 * not know; only its end is waited for here, and not for long.
 *
 * A tool that does not detach leaves the process stopped: examined_os.h continues it at the end of the tool, and once more
 * SETTLE_MS after a kill. A tool that does not end on SIGKILL waits in state D: a thread continues the process when that tool
 * has ended. No SIGTERM comes before SIGKILL: gdb then ends as late and leaves more processes stopped.
 */

#include "launcher/watch/stack_tool_os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/util/side_thread_os.h"
#include "launcher/watch/examined_os.h"
#include "launcher/watch/proc_sample_os.h"
#include "base/cleanup.h"
#include "base/strbuf.h"
#include "base/time.h"

enum {
    AT_ONCE = 4,
    TOOL_MS = 4000,
    TOOL_BLOCKED_MS = 1500,
    ATTACH_MS =
        1000, /* a tool that has been at work for so long may wait for a process that cannot be paused */
    STILL_BLOCKED_MS = 300,
    POLL_MS = 50,
    END_MS = 500,    /* for a tool that was killed, or has closed its output */
    SETTLE_MS = 100, /* between the two looks at a process whose tool was killed */
};

/* ---- finding ---- */

static char *find_in(const char *folder, size_t n, const char *name)
{
    _cleanup_free_ char *path = n ? strbuf_format("%.*s/%s", (int)n, folder, name) : NULL;

    return path && access(path, X_OK) == 0 ? steal_ptr(path) : NULL;
}

static char *find_on_path(const char *folders, const char *name)
{
    for (const char *at = folders; at && *at;) {
        size_t n = strcspn(at, ":");
        char *path = find_in(at, n, name);
        if (path)
            return path;
        at += n + (at[n] == ':');
    }
    return NULL;
}

static char *find_py_spy(char *const *environment, const char *python)
{
    const char *given = envp_get(environment, "CRUN_PYSPY"), *slash = python ? strrchr(python, '/') : NULL;

    if (given && *given)
        return strdup(given);
    char *path = slash ? find_in(python, (size_t)(slash - python), "py-spy") : NULL;
    return path ? path : find_on_path(envp_get(environment, "PATH"), "py-spy");
}

void stack_tools_find(struct stack_tools *t, char *const *environment, const char *python)
{
    const char *folders = envp_get(environment, "PATH");

    t->paths[STACK_TOOL_PY_SPY] = find_py_spy(environment, python);
    t->paths[STACK_TOOL_EU_STACK] = find_on_path(folders, "eu-stack");
    t->paths[STACK_TOOL_GDB] = find_on_path(folders, "gdb");
}

void stack_tools_finish(struct stack_tools *t)
{
    for (int i = 0; i < STACK_TOOL_COUNT; i++) {
        free(t->paths[i]);
        t->paths[i] = NULL;
    }
}

enum stack_tool stack_tools_choose(const struct stack_tools *t, bool is_python)
{
    for (int tool = is_python ? STACK_TOOL_PY_SPY : STACK_TOOL_EU_STACK; tool < STACK_TOOL_COUNT; tool++)
        if (t->paths[tool])
            return (enum stack_tool)tool;
    return STACK_TOOL_NONE;
}

/* ---- running ---- */

struct tool_slot {
    struct stack_job *job; /* NULL: the slot is free */
    int fd, pidfd;         /* -1: none; fd: from the end of the tool on */
    struct examined examined;
    uint64_t settled_ns; /* the time of the second look, once the tool has ended */
    bool begins_again;   /* after it */
    uint64_t deadline_ns;
    uint64_t attached_ns; /* by when a tool has paused a process that can be paused */
    uint64_t blocked_ns;  /* since when every look found the process in state D; 0: the last one did not */
};

static int start_process(const char *path, char *const *argv, int output, pid_t *ret)
{
    static char path_variable[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin", locale[] = "LC_ALL=C.UTF-8",
                no_download[] = "DEBUGINFOD_URLS=";
    char *const environment[] = {path_variable, locale, no_download, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;

    (void)sigemptyset(&none); /* neither can fail */
    (void)sigfillset(&defaults);
    if (posix_spawn_file_actions_init(&files) != 0)
        return -ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&files); /* cannot fail */
        return -ENOMEM;
    }
    /* Those below fail only without memory or for wrong arguments; the tool then inherits what crun has. */
    (void)posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&files, output, 1);
    (void)posix_spawn_file_actions_adddup2(&files, output, 2);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setsigdefault(&attributes, &defaults);
    (void)posix_spawnattr_setflags(&attributes,
                                   POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    int r = posix_spawn(ret, path, &files, &attributes, argv, environment);
    (void)posix_spawnattr_destroy(&attributes); /* neither can fail */
    (void)posix_spawn_file_actions_destroy(&files);
    return -r;
}

static int start_tool(const struct stack_tools *t, const struct stack_job *job, int output, pid_t *ret)
{
    static char dump[] = "dump", full[] = "--full-filenames", of[] = "--pid", native[] = "--native",
                nonblocking[] = "--nonblocking", p[] = "-p", nx[] = "-nx", batch[] = "-batch", ex[] = "-ex",
                all[] = "thread apply all bt 64";
    char pid[16], *path = t->paths[job->tool];
    char *last = job->is_native ? native : job->is_blocked ? nonblocking : NULL;
    char *const py_spy[] = {path, dump, full, of, pid, last, NULL};
    char *const eu_stack[] = {path, p, pid, NULL};
    char *const gdb[] = {path, nx, batch, p, pid, ex, all, NULL};

    (void)snprintf(pid, sizeof(pid), "%d", (int)job->pid); /* fits */
    return start_process(path,
                         job->tool == STACK_TOOL_PY_SPY     ? py_spy
                         : job->tool == STACK_TOOL_EU_STACK ? eu_stack
                                                            : gdb,
                         output, ret);
}

static uint64_t tool_limit_ns(const struct stack_job *job, uint64_t limit_ns)
{
    uint64_t own_ns = (uint64_t)(job->is_blocked ? TOOL_BLOCKED_MS : TOOL_MS) * 1000000u;

    return own_ns < limit_ns ? own_ns : limit_ns;
}

/* Without a tool there is no text. */
static void start_job(const struct stack_tools *t, struct stack_job *job, uint64_t limit_ns,
                      struct tool_slot *slot)
{
    _cleanup_close_ends_ int ends[2] = {-1, -1};
    pid_t pid;

    *slot = (struct tool_slot){.fd = -1};
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    examined_begin(&slot->examined, job->pid);
    if (start_tool(t, job, ends[1], &pid) != 0)
        return;
    uint64_t now = now_ns();
    slot->job = job;
    slot->fd = steal_fd(&ends[0]);
    slot->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    slot->deadline_ns = now + tool_limit_ns(job, limit_ns);
    slot->attached_ns = now + ATTACH_MS * 1000000u;
    (void)fcntl(slot->fd, F_SETFL, O_NONBLOCK); /* a pipe: cannot fail */
}

/* ---- the end of a tool ---- */

static void pause_to_settle(void)
{
    sleep_ns(SETTLE_MS * UINT64_C(1000000)); /* no signal is delivered to this thread */
}

struct left_tool {
    int pidfd;
    struct examined examined;
};

static void await_left_tool(void *data)
{
    struct left_tool *left = data;
    struct pollfd ended = {.fd = left->pidfd, .events = POLLIN};

    (void)poll(&ended, 1, -1); /* no signal ends it */
    for (int n_looks = 0; n_looks < 2; pause_to_settle())
        n_looks += examined_continue(&left->examined);
    (void)close(left->pidfd);
}

/* Takes over the pidfd. Without memory or a thread the process stays as the tool leaves it. */
static void leave_tool(struct tool_slot *slot)
{
    struct left_tool *left = malloc(sizeof(*left));
    const struct side_order order = {.kind = SIDE_OTHER, .run = await_left_tool, .drop = free, .data = left};
    struct side_work *work;

    if (left)
        *left = (struct left_tool){.pidfd = slot->pidfd, .examined = slot->examined};
    if (left && side_work_start(&work, &order) == 0) {
        free(side_work_take(work)); /* NULL: the thread frees it */
        return;
    }
    (void)close(slot->pidfd);
    free(left);
}

/* A process that the tool has paused stays so until the tool has ended: the next look would take it for stopped. */
static bool await_end(const struct tool_slot *slot)
{
    struct pollfd ended = {.fd = slot->pidfd, .events = POLLIN};

    return poll(&ended, 1, END_MS) == 1;
}

/* False: the tool had to be killed. */
static bool end_tool(struct tool_slot *slot, bool is_at_end)
{
    if (slot->pidfd < 0 || (is_at_end && await_end(slot)))
        return true;
    (void)syscall(SYS_pidfd_send_signal, slot->pidfd, SIGKILL, NULL, 0); /* it may have ended */
    if (!await_end(slot)) {
        leave_tool(slot);
        slot->pidfd = -1;
    }
    return false;
}

static bool is_over(const struct stack_tools *t, uint64_t deadline_ns)
{
    return atomic_load(&t->is_cancelled) || now_ns() >= deadline_ns;
}

/* The second look, after a kill: a thread of the process may have taken its signal only now. */
static void settle(const struct stack_tools *t, struct tool_slot *slot, uint64_t end_ns, uint64_t limit_ns)
{
    struct stack_job *job = slot->job;

    if (now_ns() < slot->settled_ns || (!examined_continue(&slot->examined) && !is_over(t, UINT64_MAX)))
        return;
    slot->job = NULL;
    if (!slot->begins_again)
        return;
    job->is_late = is_over(t, end_ns);
    if (!job->is_late)
        start_job(t, job, limit_ns, slot);
}

static void end_job(struct tool_slot *slot, bool is_at_end)
{
    slot->settled_ns = end_tool(slot, is_at_end) ? 0 : now_ns() + SETTLE_MS * 1000000u;
    if (slot->pidfd >= 0)
        (void)close(slot->pidfd);
    (void)close(slot->fd); /* only read */
    slot->fd = slot->pidfd = -1;
    (void)examined_continue(&slot->examined); /* false: settle() looks again */
}

/* ---- the output of a tool ---- */

/* False at the end. What comes behind STACK_OUTPUT_MAX is read and dropped: a tool that cannot print does not detach. */
static bool read_output(struct tool_slot *slot)
{
    struct stack_job *job = slot->job;
    char dropped[4096];

    if (!job->text)
        job->text = malloc(STACK_OUTPUT_MAX + 1);
    size_t room = job->text ? STACK_OUTPUT_MAX - job->n_text : 0;
    ssize_t n = read(slot->fd, room ? job->text + job->n_text : dropped, room ? room : sizeof(dropped));
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (job->text) {
        job->n_text += room ? (size_t)n : 0;
        job->text[job->n_text] = '\0';
    }
    return n > 0;
}

/*
 * Whether the tool waits in vain. A wait for a remote disk may be of the kind that signals end (state S) until one comes, as that
 * of the tool which pauses the process; from then on it is in state D.
 */
static bool is_in_vain(struct tool_slot *slot)
{
    uint64_t now = now_ns();

    if (slot->job->is_blocked || now < slot->attached_ns)
        return false;
    if (proc_sample_state(slot->job->pid) != 'D')
        slot->blocked_ns = 0;
    else if (!slot->blocked_ns)
        slot->blocked_ns = now;
    return slot->blocked_ns && now - slot->blocked_ns >= STILL_BLOCKED_MS * 1000000u;
}

/* Another try that pauses nothing follows. */
static void begin_again(struct tool_slot *slot)
{
    struct stack_job *job = slot->job;

    end_job(slot, false);
    slot->begins_again = job->tool == STACK_TOOL_PY_SPY;
    job->is_blocked = true;
    job->n_text = 0;
    free(job->text);
    job->text = NULL;
}

static void look_at_tool(const struct stack_tools *t, struct tool_slot *slot, bool is_readable)
{
    bool is_at_end = is_readable && !read_output(slot);

    slot->job->is_late = !is_at_end && is_over(t, slot->deadline_ns);
    if (is_at_end || slot->job->is_late)
        end_job(slot, is_at_end);
    else if (is_in_vain(slot))
        begin_again(slot);
}

static void poll_slots(const struct stack_tools *t, struct tool_slot slots[AT_ONCE], uint64_t end_ns,
                       uint64_t limit_ns)
{
    struct pollfd polled[AT_ONCE];

    for (int i = 0; i < AT_ONCE; i++)
        polled[i] = (struct pollfd){.fd = slots[i].job ? slots[i].fd : -1, .events = POLLIN};
    (void)poll(polled, AT_ONCE, POLL_MS); /* an error is seen by the next read */
    for (int i = 0; i < AT_ONCE; i++) {
        if (slots[i].job && slots[i].fd >= 0)
            look_at_tool(t, &slots[i], polled[i].revents);
        if (slots[i].job && slots[i].fd < 0)
            settle(t, &slots[i], end_ns, limit_ns);
    }
}

static bool any_busy(const struct tool_slot slots[AT_ONCE])
{
    for (int i = 0; i < AT_ONCE; i++)
        if (slots[i].job)
            return true;
    return false;
}

void stack_tools_run(const struct stack_tools *t, struct stack_job *jobs, size_t n_jobs, uint64_t limit_ns)
{
    struct tool_slot slots[AT_ONCE] = {{.job = NULL}};
    uint64_t end_ns = now_ns() + limit_ns;
    size_t next = 0;

    while (next < n_jobs || any_busy(slots)) {
        for (int i = 0; i < AT_ONCE && next < n_jobs; i++) {
            if (slots[i].job)
                continue;
            struct stack_job *job = &jobs[next++];
            job->is_late = job->tool != STACK_TOOL_NONE && is_over(t, end_ns);
            if (job->tool != STACK_TOOL_NONE && !job->is_late)
                start_job(t, job, limit_ns, &slots[i]);
        }
        if (any_busy(slots))
            poll_slots(t, slots, end_ns, limit_ns);
    }
}

void stack_tools_cancel(struct stack_tools *t)
{
    atomic_store(&t->is_cancelled, true);
}
