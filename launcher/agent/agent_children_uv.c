#include "launcher/agent/agent_children_uv.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "launcher/agent/agent_health_uv.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/host/own_cgroup_os.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/output/output_uv.h"
#include "launcher/supervise/child_processes_os.h"
#include "launcher/supervise/job_cgroup_os.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/proc_stat_os.h"
#include "launcher/util/side_thread_uv.h"
#include "launcher/util/trace_os.h"
#include "base/err.h"

enum {
    INHERITED_MAX = 64,
    LISTED_MAX = 16384,
    SWEEP_INTERVAL_MS = 10,
    STUCK_NAMED_MAX = 16,
    PARENTS_MAX = 32,
    STUCK_FIRST_MS = 1000, /* after SIGKILL; then pauses that double */
    STUCK_LAST_MS = 1000,  /* for the look before the end of crun */
};

struct agent_children {
    const struct agent_host *host;
    struct agent_health *health;
    struct guardian_job *guardians;
    bool has_sought, has_traced;    /* for cgroups; how the job is contained */
    int cgroup_error;               /* errno: why no cgroup can be made */
    pid_t inherited[INHERITED_MAX]; /* children from before crun was executed (by a shell): not the job's */
    size_t n_inherited;
    uv_timer_t sweep; /* runs while crun kills the children of a lost guardian */
    uv_timer_t stuck; /* runs from the order to kill on; .data: the children */
    uint64_t stuck_ms;
    struct side_call *look; /* of the timer; NULL: none is under way */
};

static pid_t listed[LISTED_MAX];

/* ---- the cgroup ---- */

void agent_children_seek_cgroup(struct agent_children *c)
{
    struct guardian_job *guardians = c->guardians;

    if (c->has_sought)
        return;
    c->has_sought = true;
    void *shared =
        mmap(NULL, sizeof(*guardians->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = shared == MAP_FAILED ? -errno : own_cgroup_open();
    if (fd < 0) {
        c->cgroup_error = -fd;
        if (shared != MAP_FAILED)
            (void)munmap(shared, sizeof(*guardians->shared));
        return;
    }
    guardians->shared = shared;
    guardians->cgroup = fd;
}

void agent_children_spare_keeper(struct agent_children *c)
{
    const struct job_cgroup_shared *shared = c->guardians->shared;
    pid_t keeper = shared ? shared->keeper : 0;

    if (keeper > 0 && c->n_inherited < ARRAY_SIZE(c->inherited) && kill(keeper, 0) == 0)
        c->inherited[c->n_inherited++] = keeper;
}

static const char *containment_of(const struct agent_children *c)
{
    const struct job_cgroup_shared *shared = c->guardians->shared;

    return shared && shared->is_used ? "cgroup" : "process tree";
}

/* With the reason, once. */
static void trace_containment(struct agent_children *c, const struct agent_step *step)
{
    const struct job_cgroup_shared *shared = c->guardians->shared;
    int error = shared ? shared->error : c->cgroup_error;

    if (c->has_traced || !trace_sink || step->event->kind != GROUP_STARTED)
        return;
    c->has_traced = true;
    trace_line("containment: %s%s%s", containment_of(c), error ? ": " : "", error ? strerror(error) : "");
}

static void describe_containment(void *self, struct job_status *ret)
{
    text_copy(ret->containment, sizeof(ret->containment), containment_of(self));
}

/* ---- children ---- */

static bool is_among(const pid_t *pids, size_t n, pid_t pid)
{
    for (size_t i = 0; i < n; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

/* Fills `listed` with children that are the job's. Returns their number; negative without /proc. */
static int list_children(const struct agent_children *c)
{
    int n = child_processes_list(listed, LISTED_MAX);

    for (int i = 0; i < n; i++)
        if (is_among(c->inherited, c->n_inherited, listed[i]))
            listed[i--] = listed[--n];
    return n;
}

/* As process 1 of a container crun also adopts, and reaps here, processes of other programs. */
bool agent_children_reap(struct agent_children *c)
{
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        agent_health_reaped(c->health, pid, status);
        if (c->host->generation && pid == c->host->generation->guardian)
            c->host->generation->guardian = 0;
        for (size_t i = 0; i < c->n_inherited; i++)
            if (c->inherited[i] == pid)
                c->inherited[i] = c->inherited[--c->n_inherited];
    }
    return pid == 0;
}

/* One round. The guardian's children become crun's before the guardian is reaped, so no child means an end of the job's processes.
 * Without /proc (n is negative) only wait() can find out whether there is a child. */
static void on_sweep(uv_timer_t *timer)
{
    struct agent_children *c = timer->data;

    bool has_children = agent_children_reap(c);
    if (c->host->generation->guardian)
        return;
    int n = list_children(c);
    for (int i = 0; i < n; i++)
        (void)kill(listed[i], SIGKILL); /* ended meanwhile, or setuid */
    if (n > 0 || (n < 0 && has_children))
        return;
    (void)uv_timer_stop(timer); /* cannot fail on a timer that exists */
    output_flush(c->host->output);
    host_dispatch(c->host, GROUP_EMPTY, -1);
}

void agent_children_sweep(struct agent_children *c)
{
    (void)uv_timer_start(&c->sweep, on_sweep, 0, SWEEP_INTERVAL_MS); /* fails only without a callback */
}

/* ---- processes that SIGKILL does not end ---- */

/* A look at all processes of the machine, for a side thread: facts of the loop, and lines as the result. */
struct stuck_look {
    pid_t crun, inherited[INHERITED_MAX];
    size_t n_inherited;
    bool has_guardian;
    char lines[STUCK_NAMED_MAX][256];
    int n_lines, n_workers;
    pid_t workers[];
};

static int local_rank_of(const struct stuck_look *l, pid_t pid)
{
    for (int i = 0; i < l->n_workers; i++)
        if (l->workers[i] == pid)
            return i;
    return -1;
}

static bool is_below(pid_t pid, pid_t ancestor)
{
    struct proc_stat stat;

    for (int depth = 0; depth < PARENTS_MAX && pid > 1 && proc_stat_read(pid, &stat); depth++) {
        if (stat.parent == ancestor)
            return true;
        pid = stat.parent;
    }
    return false;
}

/* A worker, a process of the job in state D, or a child that a lost guardian has left. The keeper and a zygote may stay. */
static bool is_stuck(const struct stuck_look *l, pid_t pid)
{
    struct proc_stat stat;

    if (pid <= 0 || !proc_stat_read(pid, &stat) || stat.has_ended ||
        is_among(l->inherited, l->n_inherited, pid))
        return false;
    if (stat.state == 'D' || local_rank_of(l, pid) >= 0)
        return is_below(pid, l->crun);
    return stat.parent == l->crun && !l->has_guardian;
}

static void look_for_stuck(void *data)
{
    struct stuck_look *l = data;
    _cleanup_(folder_list_close) struct folder_list processes;
    const char *name;

    if (folder_list_open(&processes, "/proc") != 0)
        return;
    while (l->n_lines < STUCK_NAMED_MAX && (name = folder_list_next(&processes))) {
        pid_t pid = (pid_t)atol(name);

        if (is_stuck(l, pid))
            proc_info_stuck(pid, local_rank_of(l, pid), l->lines[l->n_lines++], sizeof(l->lines[0]));
    }
}

static struct stuck_look *create_look(const struct agent_children *c)
{
    const struct worker_group *g = c->host->group;
    size_t n = (size_t)g->config.n_workers;
    struct stuck_look *l = calloc(1, sizeof(*l) + n * sizeof(l->workers[0]));

    if (!l)
        return NULL;
    l->crun = getpid();
    l->has_guardian = c->host->generation && c->host->generation->guardian;
    memcpy(l->inherited, c->inherited, sizeof(l->inherited));
    l->n_inherited = c->n_inherited;
    l->n_workers = g->config.n_workers;
    for (size_t i = 0; i < n; i++)
        l->workers[i] = g->workers[i].pid;
    return l;
}

static void print_look(struct stuck_look *l)
{
    for (int i = 0; i < l->n_lines; i++)
        log_line("%s", l->lines[i]);
    free(l);
}

static void on_looked(void *owner, void *data)
{
    struct agent_children *c = owner;

    c->look = NULL;
    print_look(data);
}

static void on_stuck(uv_timer_t *timer)
{
    struct agent_children *c = timer->data;
    struct side_task task = {
        .kind = SIDE_OTHER, .run = look_for_stuck, .drop = free, .done = on_looked, .owner = c};

    if (c->host->group->state != GROUP_KILLING)
        return;
    task.data = c->look ? NULL : create_look(c);
    if (task.data && side_thread_submit(&c->look, c->host->loop, &task) != 0)
        free(task.data);
    c->stuck_ms *= 2;
    (void)uv_timer_start(timer, on_stuck, c->stuck_ms, 0); /* fails only without a callback */
}

/* Processes that SIGKILL does not end wait in the kernel, mostly in a driver or a dead network file system. The
 * guardian has ended by now, so such processes are crun's children. */
void agent_children_print_stuck(const struct agent_children *c)
{
    const struct side_order order = {
        .kind = SIDE_OTHER, .run = look_for_stuck, .drop = free, .data = create_look(c)};

    int r = order.data ? side_work_call(&order, STUCK_LAST_MS) : -ENOMEM;
    if (r == 0)
        print_look(order.data);
    else if (r == -EBUSY)
        free(order.data);
    log_line(
        "some processes of the job do not end on SIGKILL; crun ends without them, they go as soon as the kernel "
        "lets them");
}

static void after_step(void *self, const struct agent_step *step)
{
    struct agent_children *c = self;

    trace_containment(c, step);
    if (c->host->group->state != GROUP_KILLING || uv_is_active((const uv_handle_t *)&c->stuck))
        return;
    c->stuck_ms = STUCK_FIRST_MS;
    (void)uv_timer_start(&c->stuck, on_stuck, c->stuck_ms, 0); /* fails only without a callback */
}

/* ---- life ---- */

static void stop_stuck(void *self)
{
    struct agent_children *c = self;

    free(side_thread_cancel(c->look));
    uv_close((uv_handle_t *)&c->stuck, NULL);
}

struct agent_children *agent_children_create(struct agent_observer *observer, const struct agent_host *host,
                                             struct guardian_job *guardians, struct agent_health *health)
{
    static struct agent_children children; /* a process has one agent */
    struct agent_children *c = &children;

    *c = (struct agent_children){.host = host, .health = health, .guardians = guardians};
    (void)uv_timer_init(host->loop, &c->sweep); /* cannot fail */
    (void)uv_timer_init(host->loop, &c->stuck); /* cannot fail */
    c->sweep.data = c->stuck.data = c;
    int n = child_processes_list(c->inherited, INHERITED_MAX);
    c->n_inherited = n > 0 ? (size_t)n : 0;
    if (n < 0)
        agent_children_seek_cgroup(c);
    if (n < 0 && guardians->cgroup < 0)
        log_line(
            "there is no /proc here, and no cgroup can be made: what workers leave behind in sessions of their "
            "own cannot be found and ended");
    *observer = (struct agent_observer){.self = c,
                                        .after = after_step,
                                        .describe = describe_containment,
                                        .handle = (uv_handle_t *)&c->sweep,
                                        .stop = stop_stuck};
    return c;
}
