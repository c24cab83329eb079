/*
 * Happy path of a start: the folders and log files that a thread has made (attempt_files_uv.h), a notice socket for each
 * worker, arguments and environments with the ranks, then an order for each worker to the guardian: the guardian of the
 * generation before, or a new guardian.
 *
 * Ways to fail: no descriptors, no process. Each failure is logged with the remedy. Orders not read yet by the guardian wait
 * here, in order.
 */

#include "launcher/agent/generation_uv.h"

#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/agent/agent_uv.h"
#include "launcher/supervise/guardian_release_os.h"
#include "launcher/host/local_address_os.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/cli/job.h"
#include "launcher/output/attempt_files_uv.h"
#include "launcher/output/output_uv.h"
#include "launcher/cli/plan.h"
#include "launcher/supervise/guardian_orders_os.h"
#include "launcher/util/log_os.h"
#include "launcher/supervise/worker_start.h"
#include "launcher/supervise/zygote_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "proto/address.h"
#include "proto/worker_notice.h"
#include "rendezvous/server/server_uv.h"
#include "rendezvous/session/session_message.h"

enum {
    GUARDIAN_END_MS = 3000
}; /* for the zygote to write its list of modules, and both to end; and after SIGKILL */

/* ---- arguments, environments and descriptors of workers ---- */

/* Contents of the orders to start workers; freed afterwards. */
struct worker_starts {
    int n_workers;
    struct described_start {
        bool is_selected;
        struct worker_start start;
        struct worker_attributes attributes;
        struct strlist arguments, environment;
    } workers[];
};

/* The worker has copies. */
static void close_worker_fds(struct worker_start *w)
{
    for (int i = 1; i <= SPAWN_NOTICE_FD; i++) /* 0 is common to all workers; the rest is not owned */
        close_fd(&w->fds[i]);
}

static void free_starts(struct worker_starts *s)
{
    for (int i = 0; s && i < s->n_workers; i++) {
        strlist_finish(&s->workers[i].arguments);
        strlist_finish(&s->workers[i].environment);
        close_worker_fds(&s->workers[i].start);
    }
    free(s);
}

/* selected NULL: all. */
static struct worker_starts *new_starts(const struct agent_config *config, const bool *selected)
{
    int n = config->job->n_workers;
    struct worker_starts *s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->workers[0]));

    if (!s)
        return NULL;
    s->n_workers = n;
    for (int i = 0; i < n; i++)
        s->workers[i] = (struct described_start){.is_selected = !selected || selected[i],
                                                 .start = {.file = config->file, .fds = WORKER_START_NO_FDS}};
    return s;
}

static int describe_worker(struct described_start *w, const struct agent_config *config,
                           const struct plan *plan, int i)
{
    if (plan_environment(plan, i, &w->environment) == PLAN_E_DEVICES) {
        log_line(
            "--virtual-local-rank: local_rank %d exceeds available GPUs in CUDA_VISIBLE_DEVICES (or in "
            "HIP_VISIBLE_DEVICES, where that is set); name one for each of the %d workers",
            i, plan->local_world_size);
        return -EINVAL;
    }
    plan_arguments(config->command, i, &w->arguments);
    if (w->environment.failed || w->arguments.failed)
        return -ENOMEM;
    w->start.argv = w->arguments.items;
    w->start.environment = w->environment.items;
    if (config->bindings)
        w->attributes = (struct worker_attributes){.is_bound = true, .cpus = config->bindings[i]};
    w->start.attributes = &w->attributes;
    return 0;
}

/* The own node's address for ranks of other nodes, if the connection of workers to the worker store does not show the address. */
static const char *own_address(const struct job *job, const struct rank_assignment *assignment)
{
    if (assignment->group_world_size > 1 && job->local_addr && address_is_numeric(job->local_addr))
        return job->local_addr;
    return assignment->group_world_size > 1 && assignment->own_host[0] ? assignment->own_host : NULL;
}

/* Without the variable gloo listens at the address of its host's name, which is 127.0.1.1 by the default of Debian. torchrun leaves
 * that to the user; with --hosts crun has chosen the address, or the user has by a network. */
static const char *find_interface(const struct job *job, const struct plan *plan, char ret[IF_NAMESIZE])
{
    bool is_chosen = (job->output_fd || job->found_addr) && plan->local_addr;

    return is_chosen && local_address_interface(plan->local_addr, ret) ? ret : NULL;
}

static int describe_workers(struct generation *g, struct worker_starts *s, const struct agent_config *config,
                            const struct rank_assignment *assignment, int restarts)
{
    const struct job *job = config->job;
    struct plan plan = {
        .local_world_size = job->n_workers,
        .place = assignment,
        .role = job->role,
        .run_id = job->worker_run_id,
        .worker_has_store = job->worker_has_store,
        .generation = g->number,
        .restart_count = restarts,
        .max_restarts = job->max_restarts,
        .shutdown_timeout_s = job->shutdown_timeout_s,
        .virtual_local_rank = job->virtual_local_rank,
        .signals = job->signals_text,
        .attempt_dir = g->attempt_dir,
        .has_flat_files = g->has_flat_files,
        .notice_fd = SPAWN_NOTICE_FD,
        .local_addr = own_address(job, assignment),
        .key_fd = g->host->worker_memory->key < 0 ? 0 : SPAWN_KEY_FD,
        .seals = job->seals,
        .blocks_fd = g->host->worker_memory->door[1] < 0 ? 0 : SPAWN_BLOCKS_FD,
        .environment = config->environment,
    };
    char interface[IF_NAMESIZE];

    plan.interface = find_interface(job, &plan, interface);
    for (int i = 0; i < job->n_workers; i++) {
        if (!s->workers[i].is_selected)
            continue;
        plan.state_fd = g->host->worker_memory->states[i] < 0 ? 0 : SPAWN_STATE_FD;
        TRY(describe_worker(&s->workers[i], config, &plan, i));
    }
    return 0;
}

static int take_streams(struct generation *g, struct worker_start *start, struct worker_files *w)
{
    for (int i = 0; i < 3; i++)
        start->fds[i] = steal_fd(&w->stdio[i]);
    for (int which = 0; which < 2; which++)
        TRY(w->streams[which] ? output_add(g->host->output, &w->streams[which]) : 0);
    return 0;
}

static int open_descriptors(struct generation *g, struct worker_starts *s, struct attempt_files *files)
{
    for (int i = 0; i < g->n_workers; i++) {
        struct worker_start *start = &s->workers[i].start;
        int pair[2];

        if (!s->workers[i].is_selected)
            continue;
        TRY(take_streams(g, start, &files->workers[i]));
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            return -errno;
        g->workers[i].notice_fd = pair[0];
        start->fds[SPAWN_NOTICE_FD] = pair[1];
        start->fds[SPAWN_STATE_FD] =
            g->host->worker_memory->states[i]; /* not owned: struct worker_memory is */
        start->fds[SPAWN_KEY_FD] = g->host->worker_memory->key;
        start->fds[SPAWN_BLOCKS_FD] = g->host->worker_memory->door[1];
    }
    return 0;
}

/* *ret is NULL after an error. */
static int make_starts(struct generation *g, const struct rank_assignment *assignment, int restarts,
                       struct attempt_files *files, const bool *selected, struct worker_starts **ret)
{
    const struct agent_config *config = g->host->config;
    struct worker_starts *s = new_starts(config, selected);

    int r = s ? describe_workers(g, s, config, assignment, restarts) : -ENOMEM;
    if (!r)
        r = open_descriptors(g, s, files);
    if (r)
        free_starts(s);
    *ret = r ? NULL : s;
    return r;
}

/* ---- notices from workers ---- */

/* Reads the notices of a worker. Freed when libuv has closed the handle, perhaps after the generation. */
struct notice_listener {
    uv_poll_t poll;
    struct generation *generation;
    int worker;
};

static void on_notice(uv_poll_t *poll, int status, int events)
{
    struct notice_listener *listener = poll->data;
    struct generation *g = listener->generation;
    struct generation_worker *w = &g->workers[listener->worker];
    uint8_t record[NOTICE_SIZE];
    struct worker_notice notice;
    ssize_t n;

    while ((n = recv(w->notice_fd, record, sizeof(record), MSG_DONTWAIT)) > 0)
        if (worker_notice_decode(record, (size_t)n, &notice)) {
            if (notice.kind == NOTICE_READY)
                w->keeps_store = notice.detail == READY_KEEPS_STORE;
            g->host->on_notice(g->host->data, listener->worker, &notice);
        }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        (void)uv_poll_stop(poll); /* the worker has closed the socket, or has ended */
}

static void free_listener(uv_handle_t *handle)
{
    free(handle->data);
}

static void stop_listening(struct generation_worker *w)
{
    if (w->listener)
        uv_close((uv_handle_t *)&w->listener->poll, free_listener);
    w->listener = NULL;
}

static int listen_to_worker(struct generation *g, int worker)
{
    _cleanup_free_ struct notice_listener *listener = calloc(1, sizeof(*listener));

    if (!listener)
        return -ENOMEM;
    *listener = (struct notice_listener){.generation = g, .worker = worker};
    TRY(uv_poll_init(g->host->loop, &listener->poll, g->workers[worker].notice_fd));
    uv_poll_t *poll = &listener->poll;
    poll->data = g->workers[worker].listener = steal_ptr(listener);
    return uv_poll_start(poll, UV_READABLE | UV_DISCONNECT, on_notice);
}

/* Only workers that may be replaced send notices. */
static int listen_to_workers(struct generation *g, const struct worker_starts *starts)
{
    int r = 0;

    for (int i = 0; !r && g->host->config->job->replace && i < g->n_workers; i++)
        if (starts->workers[i].is_selected)
            r = listen_to_worker(g, i);
    return r;
}

static void on_link(uv_poll_t *poll, int status, int events);

/* ---- orders ---- */

enum { ORDERS_MAX = 16384 }; /* 4 orders (begin, start, stop, kill) x 4,096 workers */

static int queue_order(struct generation *g, const struct guardian_order *order)
{
    return buf_size(&g->unsent) < ORDERS_MAX * sizeof(*order) ? buf_append(&g->unsent, order, sizeof(*order))
                                                              : -ENOMEM;
}

static int send_one(const struct generation *g, const struct guardian_order *order)
{
    if (order->kind == GUARDIAN_START)
        return guardian_send_start(g->link, order->worker, &g->starts->workers[order->worker].start,
                                   g->host->warm);
    return send(g->link, order, sizeof(*order), MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static bool has_unread_orders(const struct generation *g)
{
    int n_bytes;

    return ioctl(g->link, SIOCOUTQ, &n_bytes) == 0 && n_bytes > 0;
}

/* Returns 0 or -errno. ETOOMANYREFS: more descriptors of the user are on their way than a process may open, by orders not
 * yet or just read by the guardian, or by other programs. */
static int send_order(const struct generation *g, const struct guardian_order *order)
{
    int r = send_one(g, order);

    if (r != -ETOOMANYREFS)
        return r;
    return has_unread_orders(g) ? -EAGAIN : send_one(g, order);
}

static bool is_link_full(int r)
{
    return r == -EAGAIN || r == -ENOBUFS || r == -ENOMEM || r == -EINTR;
}

/* Reports a worker that cannot be started in the guardian's place. Every other order fails only when the guardian has
 * ended, as the end of the link shows, too. */
static void report_unsent(struct generation *g, const struct guardian_order *order, int r)
{
    const struct guardian_report report = {
        .kind = GUARDIAN_EXEC_FAILED, .worker = order->worker, .value = -r, .time_ns = now_ns()};

    if (order->kind == GUARDIAN_START && r != -EPIPE && r != -ECONNRESET)
        g->host->on_report(g->host->data, &report);
}

static void watch_link(struct generation *g)
{
    if (uv_is_closing((const uv_handle_t *)&g->poll))
        return;
    /* Fails only for a closing handle. */
    (void)uv_poll_start(&g->poll, UV_READABLE | UV_DISCONNECT | (buf_size(&g->unsent) > 0 ? UV_WRITABLE : 0),
                        on_link);
}

/* Sends as many orders as the link takes. */
static void send_orders(struct generation *g)
{
    struct guardian_order order;

    while (buf_size(&g->unsent) > 0) {
        memcpy(&order, buf_bytes(&g->unsent), sizeof(order));
        int r = send_order(g, &order);
        if (is_link_full(r))
            return;
        buf_consume(&g->unsent, sizeof(order));
        if (r)
            report_unsent(g, &order, r);
    }
    free_starts(steal_ptr(g->starts));
}

/* A stopped guardian would not read an order. The process id is valid until the guardian is reaped. */
static void continue_guardian(const struct generation *g)
{
    if (g->guardian)
        (void)kill(g->guardian, SIGCONT);
}

void generation_order(struct generation *g, const struct guardian_order *order)
{
    bool was_waiting = buf_size(&g->unsent) > 0;

    continue_guardian(g);
    if (queue_order(g, order) != 0) {
        log_line(
            "an order to the guardian is lost: out of memory"); /* the machine has a deadline for its effect */
        return;
    }
    if (!was_waiting)
        send_orders(g);
    if (uv_is_active((const uv_handle_t *)&g->poll))
        watch_link(g);
}

void generation_pass_lease_on(struct generation *g)
{
    const struct guardian_order order = {.kind = GUARDIAN_LEASE, .time_ns = g->host->lease_end_ns};

    if (g->link >= 0 && !g->empty)
        generation_order(g, &order);
}

/* Takes over the starts, in any case. */
static int start_workers(struct generation *g, struct worker_starts *starts)
{
    int r = g->starts ? -EBUSY /* a replacement comes after the end of the replacement before */
                      : listen_to_workers(g, starts);

    if (r) {
        free_starts(starts);
        return r;
    }
    g->starts = starts;
    continue_guardian(g);
    for (int i = 0; i < g->n_workers; i++) {
        const struct guardian_order order = {.kind = GUARDIAN_START, .worker = i};
        TRY(starts->workers[i].is_selected ? queue_order(g, &order) : 0);
    }
    if (buf_size(&g->unsent) == 0) /* all workers remain: there is nothing to send */
        free_starts(steal_ptr(g->starts));
    watch_link(g); /* the loop sends the orders: a failed order is an event of the group machine */
    return 0;
}

/* ---- the guardian ---- */

/* With a zygote, whose command line and environment are the first worker's. */
static int spawn_warm_guardian(struct generation *g, const struct worker_start *first)
{
    _cleanup_close_ int source = zygote_open_source(),
                        import = memory_file_make("crun-zygote-import", NULL, 0); /* name of the module */
    _cleanup_(strlist_finish) struct strlist environment = {0};

    if (source < 0 || import < 0)
        return source < 0 ? source : import;
    zygote_environment(first->environment,
                       g->host->config->job->virtual_local_rank ? "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES"
                                                                : NULL,
                       &environment);
    struct worker_start zygote = {.file = first->file,
                                  .argv = first->argv,
                                  .environment = environment.items,
                                  .fds = WORKER_START_NO_FDS,
                                  .attributes = g->n_workers == 1 ? first->attributes : NULL};
    zygote.fds[SPAWN_STATE_FD] = source;
    zygote.fds[SPAWN_IMPORT_FD] = import;
    return environment.failed
               ? -ENOMEM
               : spawn_guardian((size_t)g->n_workers, &zygote, &g->host->guardians, &g->guardian, &g->link);
}

/* False: there is no guardian, or the guardian has ended meanwhile. */
static bool take_kept_guardian(struct generation *g)
{
    struct kept_guardian *kept = &g->host->kept;

    if (!kept->pid)
        return false;
    g->guardian = kept->pid;
    g->link = kept->link;
    *kept = (struct kept_guardian){.link = -1};
    if (guardian_send_begin(g->link, g->host->death_notice) == 0)
        return true;
    (void)close(g->link); /* ends the guardian; the agent reaps the guardian */
    g->guardian = 0;
    g->link = -1;
    return false;
}

/* Takes the kept guardian or makes a guardian; the first order begins the generation. */
static int get_guardian(struct generation *g, const struct worker_start *first)
{
    if (take_kept_guardian(g))
        return 0;
    int r = g->host->warm
                ? spawn_warm_guardian(g, first)
                : spawn_guardian((size_t)g->n_workers, NULL, &g->host->guardians, &g->guardian, &g->link);
    r = r ? r : guardian_send_begin(g->link, g->host->death_notice);
    bool has_ended = r == -EPIPE || r == -ECONNRESET; /* its report with the reason is in the link */
    return has_ended ? 0 : r;
}

/* The guardian stays for the next generation, if alive and waiting for orders. */
static void keep_guardian(struct generation *g)
{
    if (!g->empty || !g->guardian || g->is_guardian_ending)
        return;
    g->host->kept = (struct kept_guardian){.pid = g->guardian, .link = g->link};
    g->guardian = 0;
    g->link = -1;
}

static bool await_guardian(pid_t pid)
{
    for (uint64_t end_ns = now_ns() + GUARDIAN_END_MS * UINT64_C(1000000);;) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return true;
        if (now_ns() >= end_ns)
            return false;
        sleep_ns(50000);
    }
}

void generation_dismiss_guardian(struct generation *g)
{
    const struct guardian_order order = {.kind = GUARDIAN_END};

    if (g->empty)
        generation_order(g, &order);
}

void generation_end_guardian(struct kept_guardian *kept)
{
    const struct guardian_order order = {.kind = GUARDIAN_END};

    if (!kept->pid)
        return;
    /* Perhaps once more. The guardian may have been stopped. When the order fails, the guardian has ended. */
    (void)kill(kept->pid, SIGCONT);
    (void)send(kept->link, &order, sizeof(order), MSG_NOSIGNAL);
    if (!await_guardian(kept->pid)) {
        (void)kill(kept->pid, SIGKILL); /* no child is left but a zygote, which dies, too */
        if (!await_guardian(kept->pid)) /* in the kernel, at a hanging disk */
            log_line("the guardian (process %d) does not end on SIGKILL; crun ends without it",
                     (int)kept->pid);
    }
    (void)close(kept->link); /* ends a guardian still there */
    *kept = (struct kept_guardian){.link = -1};
}

/* ---- link ---- */

/*
 * When a guardian ends with an order unread, the first recv() fails with ECONNRESET, once. The guardian's earlier reports,
 * perhaps GUARDIAN_EMPTY, can still be read after the error, and then comes the end.
 */
static ssize_t receive_report(struct generation *g, struct guardian_report *report)
{
    for (bool was_reset = false;;) {
        ssize_t n = recv(g->link, report, sizeof(*report), MSG_DONTWAIT);
        if (n >= 0 || (errno != EINTR && (errno != ECONNRESET || was_reset)))
            return n < 0 ? -errno : n;
        was_reset = was_reset || errno == ECONNRESET;
    }
}

/* status is negative when the kernel reports an error on the socket; libuv has stopped the poll handle then. */
static void on_link(uv_poll_t *poll, int status, int events)
{
    struct generation *g = poll->data;
    struct guardian_report report;
    ssize_t n = 0;

    if (status >= 0 && (events & UV_WRITABLE)) {
        send_orders(g);
        watch_link(g);
    }
    while (!g->empty && (n = receive_report(g, &report)) == sizeof(report)) {
        g->empty = report.kind == GUARDIAN_EMPTY;
        g->is_guardian_ending = g->empty && report.value != 0;
        g->host->on_report(g->host->data,
                           &report); /* with GUARDIAN_EMPTY the last time; g may be closing afterwards */
    }
    bool has_more = n == -EAGAIN || n == -ENOMEM || n == -ENOBUFS; /* without memory: still readable */
    if (g->empty &&
        !uv_is_closing(
            (uv_handle_t *)
                poll)) /* the guardian ends: the end of the link would stay readable until the next generation */
        (void)uv_poll_stop(poll);
    if (g->empty || (has_more && status >= 0))
        return;
    (void)uv_poll_stop(poll);
    g->host->on_lost(g->host->data);
}

void generation_notify(struct generation *g, int worker, const struct worker_notice *notice)
{
    uint8_t record[NOTICE_SIZE];

    worker_notice_encode(notice, record);
    (void)send(g->workers[worker].notice_fd, record, sizeof(record),
               MSG_NOSIGNAL | MSG_DONTWAIT); /* see worker_notice.h */
}

/* ---- life ---- */

static void free_generation(struct generation *g)
{
    for (int i = 0; i < g->n_workers; i++)
        close_fd(&g->workers[i].notice_fd);
    close_fd(&g->link);
    close_fd(&g->held_port);
    buf_finish(&g->unsent);
    free_starts(g->starts);
    free(g->attempt_dir);
    free(g);
}

static void on_poll_closed(uv_handle_t *handle)
{
    free_generation(handle->data);
}

void generation_destroy(struct generation *g)
{
    if (!g)
        return;
    generation_close_store(g);
    for (int i = 0; i < g->n_workers; i++)
        stop_listening(&g->workers[i]);
    guardian_release_set_link(-1);
    (void)uv_poll_stop(&g->poll); /* cannot fail on an existing handle */
    keep_guardian(g);
    uv_close((uv_handle_t *)&g->poll, on_poll_closed);
}

static void take_folder(struct generation *g, struct attempt_files *files)
{
    free(g->attempt_dir);
    g->attempt_dir = steal_ptr(files->dir);
    g->has_flat_files = files->is_flat;
}

static void log_cannot_start(const struct generation *g, int r)
{
    if (r && r != -EINVAL)
        log_line("cannot start %d worker%s: %s%s", g->n_workers, g->n_workers == 1 ? "" : "s", strerror(-r),
                 log_remedy(r));
}

static int watch_guardian(struct generation *g)
{
    g->poll.data = g;
    int r = uv_poll_start(&g->poll, UV_READABLE | UV_DISCONNECT, on_link);
    if (!r && g->host->lease_end_ns)
        generation_pass_lease_on(g);
    return r;
}

static struct generation *new_generation(struct generation_host *host, uint32_t number)
{
    int n_workers = host->config->job->n_workers;
    struct generation *g = calloc(1, sizeof(*g) + (size_t)n_workers * sizeof(g->workers[0]));

    if (!g)
        return NULL;
    *g = (struct generation){
        .host = host, .number = number, .n_workers = n_workers, .link = -1, .held_port = -1};
    for (int i = 0; i < n_workers; i++)
        g->workers[i].notice_fd = -1;
    return g;
}

/* 0 or -errno, with a line logged: then g has no handle. */
static int prepare_generation(struct generation *g, const struct rank_assignment *assignment, int restarts,
                              struct attempt_files *files, struct worker_starts **ret)
{
    take_folder(g, files);
    int r = make_starts(g, assignment, restarts, files, NULL, ret);
    if (!r)
        r = get_guardian(g, &(*ret)->workers[0].start);
    if (!r)
        r = uv_poll_init(g->host->loop, &g->poll, g->link);
    if (r)
        free_starts(*ret);
    log_cannot_start(g, r);
    return r;
}

int generation_create(struct generation **ret, struct generation_host *host, uint32_t number, int restarts,
                      const struct rank_assignment *assignment, struct attempt_files *files,
                      struct server *store)
{
    struct generation *g = new_generation(host, number);
    struct worker_starts *starts;

    if (!g)
        return -ENOMEM;
    int r = prepare_generation(g, assignment, restarts, files, &starts);
    if (r) {
        free_generation(g); /* closes the link, which ends a guardian already there */
        return r;
    }
    r = watch_guardian(g);
    if (!r)
        r = start_workers(g, starts);
    else
        free_starts(starts);
    if (r) {
        log_cannot_start(g, r);
        generation_destroy(g);
        return r;
    }
    guardian_release_set_link(g->link);
    g->server = store;
    *ret = g;
    return 0;
}

/* ---- replacing ---- */

/* Closes the agent's ends of a failed worker. */
static void close_worker(struct generation_worker *w)
{
    stop_listening(w);
    close_fd(&w->notice_fd); /* the process with the other end has ended */
    *w = (struct generation_worker){.notice_fd = -1};
}

static void notify_place(struct generation *g, int worker, const struct rank_assignment *r, int restarts,
                         int cause_rank)
{
    const struct worker_notice notice = {
        .kind = NOTICE_GENERATION, .generation = g->number, .rank = cause_rank, .detail = r->master_port};
    const struct worker_notice_place place = {.rank = r->rank_base + (uint32_t)worker,
                                              .world_size = r->world_size,
                                              .group_rank = r->group_rank,
                                              .group_world_size = r->group_world_size,
                                              .role_rank = r->role_rank_base + (uint32_t)worker,
                                              .role_world_size = r->role_world_size,
                                              .restart_count = (uint32_t)restarts,
                                              .master_addr = r->master_addr};
    uint8_t record[NOTICE_PLACE_SIZE];

    worker_notice_encode_place(&notice, &place, record);
    (void)send(g->workers[worker].notice_fd, record, sizeof(record),
               MSG_NOSIGNAL | MSG_DONTWAIT); /* as above */
}

void generation_close_store(struct generation *g)
{
    server_stop(steal_ptr(g->server), NULL, NULL);
}

int generation_replace(struct generation *g, uint32_t number, int restarts,
                       const struct rank_assignment *assignment, struct attempt_files *files,
                       struct server *store, const bool *failed, int cause_rank)
{
    struct worker_starts *starts;

    g->number = number;
    g->server = store;
    for (int i = 0; i < g->n_workers; i++)
        if (failed[i])
            close_worker(&g->workers[i]);
    take_folder(g, files);
    int r = make_starts(g, assignment, restarts, files, failed, &starts);
    for (int i = 0; !r && i < g->n_workers; i++) /* first: the remaining workers prepare meanwhile */
        if (!failed[i])
            notify_place(g, i, assignment, restarts, cause_rank);
    if (!r)
        r = start_workers(g, starts);
    log_cannot_start(g, r);
    return r;
}
