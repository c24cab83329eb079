#include "launcher/supervise/zygote_os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/supervise/guardian_orders_os.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/supervise/worker_start.h"
#include "launcher/supervise/zygote_source.h"
#include "launcher/util/send_descriptors_sock.h"
#include "launcher/util/strlist.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"

enum { N_ORDER_FDS = SPAWN_FD_END + 2 };
static_assert((int)N_ORDER_FDS <= (int)SEND_DESCRIPTORS_MAX, "all fit");

/* zygote.py has these numbers, too. */
static_assert(sizeof(struct zygote_order) == 16, "ORDER_SIZE in zygote.py");
static_assert(sizeof(struct zygote_report) == 24 + ZYGOTE_TEXT_SIZE, "Zygote.report() in zygote.py");

/* ---- the guardian's side ---- */

int zygote_launch(struct zygote *z, const struct worker_start *start, struct job_cgroup *cgroup)
{
    struct worker_start spawn = *start;
    _cleanup_close_ends_ int pair[2] = {-1, -1}; /* the zygote copies its end */

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    spawn.fds[SPAWN_NOTICE_FD] = pair[1];
    TRY(fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : spawn_worker(&spawn, cgroup, &z->pid));
    z->link = steal_fd(&pair[0]);
    z->is_loading = true;
    z->is_awaited = !z->is_renewed;
    z->is_renewed = true;
    z->has_reported = z->is_stuck = false;
    z->loading_since_ns = now_ns();
    return 0;
}

void zygote_reaped(struct zygote *z, const struct worker_start *start, int status)
{
    z->pid = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !z->is_stuck)
        (void)!ftruncate(start->fds[SPAWN_IMPORT_FD],
                         0); /* killed from outside; else a module is imported by the workers alone */
}

/* In the order of the numbers in the worker. Descriptors shared with crun are taken from the guardian. */
static int list_worker_fds(const struct worker_start *start, int *fds)
{
    struct worker_start given = *start;

    for (int i = 0; i < SPAWN_NOTICE_FD; i++)
        if (given.fds[i] < 0)
            given.fds[i] = i;
    return worker_start_list_fds(&given, fds);
}

int zygote_start_worker(struct zygote *z, int worker, const struct ordered_start *r, pid_t crun,
                        int *ret_handshake)
{
    struct zygote_order order = {
        .kind = ZYGOTE_START, .worker = (uint32_t)worker, .guardian = getpid(), .crun = (int32_t)crun};
    _cleanup_close_ends_ int pair[2] = {-1, -1};
    int fds[N_ORDER_FDS];

    if (z->link < 0)
        return -EPIPE;
    if (z->is_loading && !z->is_awaited)
        return -EBUSY;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    fds[0] = r->fd;
    fds[1] = pair[1];
    int n = 2 + list_worker_fds(&r->start, fds + 2);
    int error = send_descriptors(z->link, &order, sizeof(order), fds, n, MSG_DONTWAIT);
    if (!error)
        *ret_handshake = steal_fd(&pair[0]);
    return error;
}

bool zygote_receive(struct zygote *z, struct zygote_report *ret)
{
    ssize_t n = recv(z->link, ret, sizeof(*ret), MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n != sizeof(*ret)) {
        close_fd(&z->link); /* leaves the epoll set; unread orders end their handshakes */
        if (z->pid > 0)
            (void)kill(z->pid, SIGKILL); /* useless now; not reaped yet, so the number is valid */
        return false;
    }
    ret->text[ZYGOTE_TEXT_SIZE - 1] = '\0';
    if (ret->kind != ZYGOTE_DROPPED)
        z->is_loading = ret->kind == ZYGOTE_LOADING;
    if (ret->kind == ZYGOTE_READY || (ret->kind == ZYGOTE_LOADING && ret->value))
        z->is_awaited = false;
    z->has_reported = true;
    z->loading_since_ns = now_ns();
    return true;
}

void zygote_end(struct zygote *z)
{
    struct zygote_order order = {.kind = ZYGOTE_END};
    bool is_importing = z->is_loading && z->has_reported; /* the list is saved, and no order is read */

    if (z->link < 0 ||
        (!is_importing && send_descriptors(z->link, &order, sizeof(order), NULL, 0, MSG_DONTWAIT) == 0))
        return;
    if (z->pid > 0)
        (void)kill(z->pid, SIGKILL); /* not reaped, so the number is valid */
}

/* ---- crun's side ---- */

int zygote_open_source(void)
{
    return memory_file_make("crun-zygote", zygote_source, zygote_source_size);
}

void zygote_environment(char *const *of_worker, const char *varies, struct strlist *out)
{
    static const char name[] = "PYTHONPATH=";
    const char *path = NULL;

    for (char *const *e = of_worker; *e; e++)
        if (strncmp(*e, name, strlen(name)) == 0)
            path = *e + strlen(name);
        else
            strlist_add_copy(out, *e);
    strlist_add(out, "%s/proc/self/fd/%d%s%s", name, SPAWN_STATE_FD, path ? ":" : "", path ? path : "");
    if (varies)
        strlist_add(out, "%s=%s", "CRUN_ZYGOTE_VARIES", varies); /* removed by the zygote */
}

static bool is_python_program(const char *file)
{
    _cleanup_free_ char *path = realpath(file, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    char head[4] = "";

    if (!slash || strncmp(slash + 1, "python", strlen("python")) != 0)
        return false;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, head, sizeof(head)) == sizeof(head) &&
           memcmp(head, "\177ELF", sizeof(head)) == 0;
}

/* An interpreter without the zygote's import would run the script without a rank. So only CPython is accepted, by name and
 * kind, without options of the user, and only when the source can be found by path. */
const char *zygote_refuses(const char *file, const char *script)
{
    if (!script)
        return "the program is not a Python script";
    if (*script == '-')
        return "the interpreter has options of its own";
    if (strchr(script, '$'))
        return "the script differs between workers";
    if (!is_python_program(file))
        return "the interpreter is a script or not CPython; set PYTHON_EXEC to the interpreter itself";
    if (access("/proc/self/fd", X_OK) < 0)
        return "there is no /proc";
    return NULL;
}
