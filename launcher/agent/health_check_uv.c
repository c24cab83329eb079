/*
 * Happy path: the process is started in a session of its own, the output is read from a pipe, the process exits with 0; crun
 * reaps the process with its other children and calls health_check_reaped().
 *
 * Ways to fail: another exit code, a signal, no end within the time, no process at all. At the end of the time the session
 * gets SIGKILL and the check has failed at once, because a process waiting for a driver may not end on SIGKILL.
 */

#include "launcher/agent/health_check_uv.h"

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
#include "launcher/host/node_health.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/output/logs_os.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/supervise/worker_start.h"
#include "launcher/util/side_thread_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/util/signal_name.h"
#include "launcher/util/strlist.h"

enum {
    KEPT_MAX = 64 << 10, /* bytes of output */
    SHOWN_MAX = 200,     /* lines of output */
    LINE_SIZE = 512,
    LAST_LINE_MAX = 120, /* of the reason */
    APPEND_MS = 250,
    WHY_SIZE = 256,
};

struct health_check {
    struct health_check_config config;
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

/* Number of GPUs in the process's last successful built-in check: a GPU missing later is a failure. */
static int n_gpus_known = -1;

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
    struct health_log *l =
        c->config.logs->base && !c->config.logs->is_temporary ? calloc(1, sizeof(*l)) : NULL;
    const struct side_task task = {.run = append_health_log,
                                   .drop = drop_health_log,
                                   .done = on_log_kept,
                                   .data = l,
                                   .limit_ms = APPEND_MS};
    struct side_call *call;
    char host[256];

    if (!l)
        return;
    proc_info_host_name(host, sizeof(host));
    (void)snprintf(l->name, sizeof(l->name), "health_check_%s.log", host); /* fits */
    l->text = c->kept;
    c->kept = (struct buf){0};
    if (logs_copy(&l->logs, c->config.logs) < 0 || side_thread_submit(&call, c->config.loop, &task) != 0)
        drop_health_log(l); /* without a thread the log lacks the output */
}

/* ---- the end ---- */

static void on_check_closed(uv_handle_t *handle)
{
    struct health_check *c = handle->data;

    if (--c->n_open > 0)
        return;
    if (c->pipe >= 0)
        (void)close(c->pipe);
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

void health_check_stop(struct health_check *c)
{
    if (!c)
        return;
    kill_check(c);
    free_check(c);
}

static void end_check(struct health_check *c, const char *why)
{
    const struct health_check_config config = c->config;
    char copy[WHY_SIZE] = "";

    if (why)
        (void)snprintf(copy, sizeof(copy), "%s", why); /* fits */
    read_check_output(c);
    show_check_line(c);
    keep_output(c);
    free_check(c);
    config.on_end(config.data, why ? copy : NULL);
}

static void on_check_deadline(uv_timer_t *timer)
{
    struct health_check *c = timer->data;
    char why[WHY_SIZE];

    kill_check(c);
    (void)snprintf(why, sizeof(why), "no result within %d s (--health-check-timeout)",
                   c->config.timeout_s); /* fits */
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

static void remember_gpus(struct health_check *c)
{
    int n;

    if (strcmp(c->config.command, "builtin") == 0 && node_health_read_gpus(c->last, &n))
        n_gpus_known = n;
}

bool health_check_reaped(struct health_check *c, pid_t pid, int status)
{
    char why[WHY_SIZE];

    if (!c || pid != c->pid)
        return false;
    (void)kill(-pid, SIGKILL); /* processes left in the session */
    c->pid = 0;
    read_check_output(c);
    show_check_line(c);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        remember_gpus(c);
        end_check(c, NULL);
        return true;
    }
    describe_status(c, status, why);
    end_check(c, why);
    return true;
}

/* ---- the start ---- */

static int open_check_handles(struct health_check *c)
{
    int r = uv_timer_init(c->config.loop, &c->deadline);

    if (!r)
        r = uv_poll_init(c->config.loop, &c->poll, c->pipe);
    if (r)
        return r; /* an error here ends the loop, and only the loop's end closes the timer without a trace */
    c->poll.data = c->deadline.data = c;
    c->n_open = 2;
    return 0;
}

static void describe_environment(const struct health_check_config *config, struct strlist *list)
{
    for (char *const *e = config->environment; *e; e++)
        if (strncmp(*e, "GROUP_RANK=", sizeof("GROUP_RANK=") - 1) != 0)
            strlist_add_copy(list, *e);
    if (config->group_rank >= 0)
        strlist_add(list, "GROUP_RANK=%d", config->group_rank);
    if (config->logs->base)
        strlist_add(list, NODE_HEALTH_DIR "=%s", config->logs->base);
    if (n_gpus_known >= 0)
        strlist_add(list, NODE_HEALTH_GPUS "=%d", n_gpus_known);
}

static int spawn_check(struct health_check *c, int output)
{
    bool is_builtin = strcmp(c->config.command, "builtin") == 0;
    struct strlist arguments = {0}, environment = {0};
    _cleanup_close_ int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct worker_start start = {.file = is_builtin ? "/proc/self/exe" : "/bin/sh",
                                 .fds = {null, output, output, -1, -1, -1, -1}};

    strlist_add_copy(&arguments, is_builtin ? "crun" : "sh");
    strlist_add_copy(&arguments, is_builtin ? "--check-node" : "-c");
    if (!is_builtin)
        strlist_add_copy(&arguments, c->config.command);
    describe_environment(&c->config, &environment);
    start.argv = arguments.items;
    start.environment = environment.items;
    int r = arguments.failed || environment.failed ? -ENOMEM : spawn_worker(&start, NULL, &c->pid);
    strlist_finish(&arguments);
    strlist_finish(&environment);
    return r;
}

int health_check_start(struct health_check **ret, const struct health_check_config *config)
{
    struct health_check *c = calloc(1, sizeof(*c));
    int fds[2];

    if (!c)
        return -ENOMEM;
    c->config = *config;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(c);
        return -errno;
    }
    c->pipe = fds[0];
    (void)fcntl(fds[1], F_SETFL, 0); /* the child's end waits; cannot fail */
    int r = open_check_handles(c);
    if (r) {
        (void)close(fds[0]);
        (void)close(fds[1]);
        free(c);
        return r;
    }
    r = spawn_check(c, fds[1]);
    (void)close(fds[1]);
    if (r) {
        free_check(c);
        return r;
    }
    (void)uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT,
                        on_check_output); /* both fail only on misuse */
    (void)uv_timer_start(&c->deadline, on_check_deadline, (uint64_t)config->timeout_s * 1000, 0);
    *ret = c;
    return 0;
}
