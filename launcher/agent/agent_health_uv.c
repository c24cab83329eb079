/*
 * When the health check runs, and its consequences. A job of several nodes: before this node reports that it is
 * ready, so that no other node waits for workers that will not come. An unfit node stays in the job and repeats the check
 * when the rendezvous needs the node. Else: between the decision to start and the start; an unfit node ends the job.
 *
 * The check is a program of the user's, or crun --check-node, in a process and a session of its own with a deadline. A driver
 * or file system that hangs keeps that process, and nothing else. The lines of the check are read from a pipe, shown with a prefix, and appended to
 * health_check_HOST.log in --log-dir. crun reaps the process with its other children and calls agent_health_reaped().
 *
 * Ways to fail: another exit code than 0, a signal, no end within the time, no process at all. At the end of the time the
 * session gets SIGKILL and the check has failed at once, because a process waiting for a driver may not end on SIGKILL.
 */

#include "launcher/agent/agent_health_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/host/node_health.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/output/logs_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/supervise/worker_start.h"
#include "launcher/util/side_thread_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/util/signal_name.h"
#include "launcher/util/strlist.h"
#include "base/time.h"

#define SECOND_NS UINT64_C(1000000000)

enum {
    CHECK_PAUSE_MIN_S = 5,
    CHECK_PAUSE_MAX_S = 60,
    KEPT_MAX = 64 << 10, /* bytes of output */
    SHOWN_MAX = 200,     /* lines of output */
    LINE_SIZE = 512,
    LAST_LINE_MAX = 120, /* of the reason */
    APPEND_MS = 250,
    WHY_SIZE = 256,
};

struct agent_health {
    const struct agent_host *host;
    void (*on_fit)(void *data);
    void (*on_unfit)(void *data, const char *why);
    struct health_check *check; /* while a check runs; or NULL */
    uint64_t after_ns;          /* earliest begin of a repeated check */
    uint64_t pause_ns;          /* 0: the node is fit, or was not checked */
    uv_timer_t again;
    int n_gpus; /* in the last successful built-in check: a GPU missing later is a failure; -1: not known */
};

/* A process. Freed when libuv has closed the handles. */
struct health_check {
    struct agent_health *owner;
    pid_t pid; /* 0 once reaped, or left behind */
    int pipe;
    uv_poll_t poll;
    uv_timer_t deadline;
    int n_open; /* handles not yet closed by libuv */
    struct buf kept;
    char line[LINE_SIZE], last[LINE_SIZE];
    size_t n_line;
    int n_shown;
};

/* ---- output ---- */

static void show_check_line(struct health_check *c)
{
    if (c->n_line == 0)
        return;
    c->line[c->n_line] = 0;
    memcpy(c->last, c->line, c->n_line + 1);
    c->n_line = 0;
    c->n_shown++;
    if (c->n_shown <= SHOWN_MAX)
        log_line("health check: %s", c->last);
    else if (c->n_shown == SHOWN_MAX + 1)
        log_line("health check: its further lines are not shown");
}

static void take_check_output(struct health_check *c, const char *bytes, size_t n)
{
    size_t room = KEPT_MAX - buf_size(&c->kept);

    (void)buf_append(&c->kept, bytes, n < room ? n : room); /* without memory the bytes are only shown */
    for (size_t i = 0; i < n; i++) {
        bool is_end = bytes[i] == '\n' || bytes[i] == '\r';

        if (!is_end)
            c->line[c->n_line++] = (unsigned char)bytes[i] < ' ' ? ' ' : bytes[i];
        if (is_end || c->n_line == LINE_SIZE - 1)
            show_check_line(c);
    }
}

static void read_check_output(struct health_check *c)
{
    char bytes[4096];
    ssize_t n;

    for (int i = 0; i < 64 && (n = read(c->pipe, bytes, sizeof(bytes))) > 0; i++)
        take_check_output(c, bytes, (size_t)n);
}

static void on_check_output(uv_poll_t *poll, int status, int events)
{
    struct health_check *c = poll->data;
    char byte;

    read_check_output(c);
    if (status < 0 || (events & UV_DISCONNECT && read(c->pipe, &byte, 0) == 0))
        (void)uv_poll_stop(poll); /* the kernel reports the end of the process */
}

/* ---- the log file ---- */

struct health_log {
    struct logs logs;
    char name[300];
    struct buf text;
};

static void append_health_log(void *data)
{
    struct health_log *l = data;

    (void)logs_append(&l->logs, l->name, (const char *)buf_bytes(&l->text),
                      buf_size(&l->text)); /* the lines were shown */
}

static void drop_health_log(void *data)
{
    struct health_log *l = data;

    logs_finish(&l->logs);
    buf_finish(&l->text);
    free(l);
}

static void on_log_kept(void *owner, void *data)
{
    if (data)
        drop_health_log(data);
}

static void keep_output(struct health_check *c)
{
    const struct agent_host *host = c->owner->host;
    struct health_log *l = host->logs->base && !host->logs->is_temporary ? calloc(1, sizeof(*l)) : NULL;
    const struct side_task task = {.run = append_health_log,
                                   .drop = drop_health_log,
                                   .done = on_log_kept,
                                   .data = l,
                                   .limit_ms = APPEND_MS};
    struct side_call *call;
    char name[256];

    if (!l)
        return;
    proc_info_host_name(name, sizeof(name));
    (void)snprintf(l->name, sizeof(l->name), "health_check_%s.log", name); /* fits */
    l->text = c->kept;
    c->kept = (struct buf){0};
    if (logs_copy(&l->logs, host->logs) < 0 || side_thread_submit(&call, host->loop, &task) != 0)
        drop_health_log(l); /* without a thread the log lacks the output */
}

/* ---- the end ---- */

/* The node stays in the job, and the check is repeated when the rendezvous needs the node. */
static void report_unfit(struct agent_health *h, const char *why)
{
    uint64_t longest_ns = CHECK_PAUSE_MAX_S * SECOND_NS;

    h->pause_ns = h->pause_ns ? 2 * h->pause_ns : CHECK_PAUSE_MIN_S * SECOND_NS;
    if (h->pause_ns > longest_ns)
        h->pause_ns = longest_ns;
    h->after_ns = now_ns() + h->pause_ns;
    log_line("the health check of this node failed (%s); the job goes on without it where it can", why);
    membership_unfit(h->host->membership, why);
}

static void decide(struct agent_health *h, const char *why)
{
    h->check = NULL;
    if (why && h->host->job->meeting == JOB_ROUNDS) {
        report_unfit(h, why);
    } else if (why) {
        log_line("the health check of this node failed (%s); no worker is started here", why);
        h->on_unfit(h->host->data, why);
    } else {
        h->pause_ns = 0;
        h->on_fit(h->host->data);
    }
}

static void on_no_check(uv_timer_t *timer)
{
    decide(timer->data, "it could not be started");
}

static void on_check_closed(uv_handle_t *handle)
{
    struct health_check *c = handle->data;

    if (--c->n_open > 0)
        return;
    close_fd(&c->pipe);
    buf_finish(&c->kept);
    free(c);
}

static void free_check(struct health_check *c)
{
    uv_close((uv_handle_t *)&c->poll, on_check_closed);
    uv_close((uv_handle_t *)&c->deadline, on_check_closed);
}

/* Kills the session of the check, with all processes in the session. */
static void kill_check(struct health_check *c)
{
    if (c->pid > 0)
        (void)kill(-c->pid, SIGKILL); /* the process exists until reaped */
    c->pid = 0;
}

/* why NULL: the node is fit. */
static void end_check(struct health_check *c, const char *why)
{
    read_check_output(c);
    show_check_line(c);
    keep_output(c);
    free_check(c);
    decide(c->owner, why);
}

static void on_check_deadline(uv_timer_t *timer)
{
    struct health_check *c = timer->data;
    char why[WHY_SIZE];

    kill_check(c);
    (void)snprintf(why, sizeof(why), "no result within %d s (--health-check-timeout)",
                   c->owner->host->job->health_check_timeout_s); /* fits */
    end_check(c, why);
}

static void describe_status(const struct health_check *c, int status, char why[WHY_SIZE])
{
    char name[SIGNAL_NAME_SIZE], end[64];

    if (WIFSIGNALED(status))
        (void)snprintf(end, sizeof(end), "ended by %s",
                       signal_name(WTERMSIG(status), name) ? name : "a signal"); /* fits */
    else
        (void)snprintf(end, sizeof(end), "exit code %d", WEXITSTATUS(status));                      /* fits */
    (void)snprintf(why, WHY_SIZE, "%s%s%.*s", end, c->last[0] ? ": " : "", LAST_LINE_MAX, c->last); /* fits */
}

static bool is_builtin(const struct agent_health *h)
{
    return strcmp(h->host->job->health_check, "builtin") == 0;
}

void agent_health_reaped(struct agent_health *h, pid_t pid, int status)
{
    struct health_check *c = h->check;
    bool is_fit = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    char why[WHY_SIZE];

    if (!c || pid != c->pid)
        return;
    (void)kill(-pid, SIGKILL); /* processes left in the session */
    c->pid = 0;
    read_check_output(c);
    show_check_line(c);
    if (is_fit && is_builtin(h))
        (void)node_health_read_gpus(c->last, &h->n_gpus); /* unchanged by another line */
    describe_status(c, status, why);
    end_check(c, is_fit ? NULL : why);
}

/* ---- the start ---- */

/* With several nodes the rank of the generation before; before the first generation the rank asked for by --node-rank. */
static int group_rank_of_check(const struct agent_host *host)
{
    if (host->job->meeting == JOB_ROUNDS && host->generation == NULL)
        return host->job->node_rank;
    return (int)host->assignment->group_rank;
}

static void describe_environment(const struct agent_health *h, struct strlist *list)
{
    int group_rank = group_rank_of_check(h->host);

    for (char *const *e = h->host->config->environment; *e; e++)
        if (strncmp(*e, "GROUP_RANK=", sizeof("GROUP_RANK=") - 1) != 0)
            strlist_add_copy(list, *e);
    if (group_rank >= 0)
        strlist_add(list, "GROUP_RANK=%d", group_rank);
    if (h->host->logs->base)
        strlist_add(list, NODE_HEALTH_DIR "=%s", h->host->logs->base);
    if (h->n_gpus >= 0)
        strlist_add(list, NODE_HEALTH_GPUS "=%d", h->n_gpus);
}

static int spawn_check(struct health_check *c, int output)
{
    const struct agent_health *h = c->owner;
    bool builtin = is_builtin(h);
    _cleanup_(strlist_finish) struct strlist arguments = {0}, environment = {0};
    _cleanup_close_ int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct worker_start start = {.file = builtin ? "/proc/self/exe" : "/bin/sh",
                                 .fds = {null, output, output, -1, -1, -1, -1}};

    strlist_add_copy(&arguments, builtin ? "crun" : "sh");
    strlist_add_copy(&arguments, builtin ? "--check-node" : "-c");
    if (!builtin)
        strlist_add_copy(&arguments, h->host->job->health_check);
    describe_environment(h, &environment);
    start.argv = arguments.items;
    start.environment = environment.items;
    return arguments.failed || environment.failed ? -ENOMEM : spawn_worker(&start, NULL, &c->pid);
}

static int open_check(struct health_check *c, int *ret_output)
{
    _cleanup_close_ends_ int fds[2] = {-1, -1};

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    (void)fcntl(fds[1], F_SETFL, 0); /* the child's end waits; cannot fail */
    TRY(uv_poll_init(c->owner->host->loop, &c->poll, fds[0]));
    (void)uv_timer_init(c->owner->host->loop, &c->deadline); /* cannot fail */
    c->poll.data = c->deadline.data = c;
    c->n_open = 2;
    c->pipe = steal_fd(&fds[0]);
    *ret_output = steal_fd(&fds[1]);
    return 0;
}

static int start_check(struct agent_health *h)
{
    _cleanup_free_ struct health_check *c = calloc(1, sizeof(*c));
    _cleanup_close_ int output = -1;

    if (!c)
        return -ENOMEM;
    c->owner = h;
    TRY(open_check(c, &output));
    int r = spawn_check(c, output);
    if (r) {
        free_check(steal_ptr(c));
        return r;
    }
    (void)uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT,
                        on_check_output); /* both fail only on misuse */
    (void)uv_timer_start(&c->deadline, on_check_deadline,
                         (uint64_t)h->host->job->health_check_timeout_s * 1000, 0);
    h->check = steal_ptr(c);
    return 0;
}

void agent_health_begin(struct agent_health *h)
{
    agent_health_end(h);
    int r = start_check(h);
    if (r == 0)
        return;
    log_line("cannot start the health check: %s", strerror(-r));
    (void)uv_timer_start(&h->again, on_no_check, 0, 0); /* fails only without a callback */
}

static void on_check_again(uv_timer_t *timer)
{
    agent_health_begin(timer->data);
}

void agent_health_again(struct agent_health *h)
{
    uint64_t now = now_ns();

    if (h->check || uv_is_active((const uv_handle_t *)&h->again))
        return;
    uint64_t ms = h->after_ns > now ? (h->after_ns - now) / 1000000 : 0;
    uv_update_time(h->host->loop);
    (void)uv_timer_start(&h->again, on_check_again, ms, 0); /* as above */
}

bool agent_health_is_checking(const struct agent_health *h)
{
    return h->check;
}

void agent_health_end(struct agent_health *h)
{
    struct health_check *c = steal_ptr(h->check);

    (void)uv_timer_stop(&h->again); /* cannot fail on a timer that exists */
    if (!c)
        return;
    kill_check(c);
    free_check(c);
}

static void describe_health(void *self, struct job_status *ret)
{
    const struct agent_health *h = self;

    if (h->pause_ns > 0)
        text_copy(ret->nodes[0].state, sizeof(ret->nodes[0].state), "unfit");
}

static void stop_health(void *self)
{
    agent_health_end(self);
}

struct agent_health *agent_health_create(struct agent_observer *observer, const struct agent_host *host,
                                         void (*on_fit)(void *data),
                                         void (*on_unfit)(void *data, const char *why))
{
    static struct agent_health health; /* a process has one agent */
    struct agent_health *h = &health;

    *h = (struct agent_health){.host = host, .on_fit = on_fit, .on_unfit = on_unfit, .n_gpus = -1};
    (void)uv_timer_init(host->loop, &h->again); /* cannot fail */
    h->again.data = h;
    *observer = (struct agent_observer){
        .self = h, .describe = describe_health, .handle = (uv_handle_t *)&h->again, .stop = stop_health};
    return h;
}
