/* The agent's side of a hang: the report, the event, and the action of --hang-action. launcher/watch decides when a job hangs. */

#include "launcher/agent/agent_hang_uv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/agent_stall_uv.h"
#include "launcher/agent/asked_stacks_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/agent/hang_report_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/ctl/hang_message_json.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/store_hint.h"
#include "launcher/watch/waits.h"
#include "launcher/watch/watch_uv.h"
#include "base/time.h"
#include "rendezvous/server/server_uv.h"

enum {
    CULPRIT_MS = 10000,     /* for the end of a worker that was killed alone */
    SLOW_END_MAX_MS = 5000, /* after the signal to end; or half the grace, the shorter of both */
};

struct agent_hang {
    const struct agent_host *host;
    struct hang_reports *reports; /* of all nodes */
    struct asked_stacks *stacks;
    struct agent_stall *stall; /* NULL: partial stalls are not looked for */
    struct store_hint hint;    /* about MASTER_ADDR and MASTER_PORT */
    uv_timer_t timer;          /* after a signal to the workers, or the kill of a single worker */
    uint32_t generation;       /* of the worker that was killed alone */
    bool is_hanging;           /* the watch has reported a hang, and there is no progress yet */
    bool is_reported;          /* there is a report on the hang */
    bool stands_out;           /* in the report, a rank of this node */
    bool is_elsewhere;         /* the rank that stands out is on another node */
    int worker;                /* the first worker of the report */
    struct group_event quit;   /* SIGQUIT that waits for the stacks */
};

/* ---- questions of the watch ---- */

static bool is_store_unused(const struct agent_hang *h)
{
    const struct server *store = h->host->generation ? h->host->generation->server : NULL;

    return store && server_n_clients(store) == 0 && server_n_changes(store) == 0;
}

static struct watch_job describe_for_watch(void *data, struct watch_worker *workers)
{
    struct agent_hang *h = data;
    const struct generation *g = h->host->generation;
    const struct worker_group *group = h->host->group;
    struct watch_job job = {.generation = group->generation,
                            .rank_base = (int)h->host->assignment->rank_base,
                            .store_port = h->host->assignment->master_port,
                            .n_store_changes = g && g->server ? server_n_changes(g->server) : 0,
                            .folder = g ? g->attempt_dir : NULL};
    int n_running = 0, n_other = 0;

    for (int i = 0; i < group->config.n_workers; i++) {
        const struct group_worker *w = &group->workers[i];

        workers[i] = (struct watch_worker){.pid = w->state == GROUP_WORKER_RUNNING ? w->pid : 0,
                                           .has_succeeded = w->state == GROUP_WORKER_ENDED && w->status == 0};
        n_running += w->state == GROUP_WORKER_RUNNING;
        n_other += !workers[i].pid && !workers[i].has_succeeded;
    }
    job.is_at_work = group->state == GROUP_RUNNING && n_running > 0 && n_other == 0 && !group->is_suspended;
    if (store_hint_step(&h->hint, now_ns(), job.generation, job.is_at_work, is_store_unused(h)))
        watch_ask_python(h->host->watch);
    return job;
}

/* ---- the report ---- */

static void log_headline(const struct watch_stacks *s, bool is_alone)
{
    static const char *const reasons[] = {[WATCH_SLOW_END] = "workers do not end",
                                          [WATCH_ASKED] = "as asked for by crunctl",
                                          [WATCH_QUIT] = "SIGQUIT",
                                          [WATCH_LINE] = "a line that --on-line has a rule for"};
    const char *before = s->folder ? "; stacks: " : "", *folder = s->folder ? s->folder : "";

    if (s->reason == WATCH_HANG)
        log_line("hang: no rank%s has made progress for %llu s%s%s", is_alone ? "" : " of this node",
                 (unsigned long long)(s->silence_ns / 1000000000u), before, folder);
    else
        log_line("stacks: %s%s%s", reasons[s->reason], before, folder);
}

static void print_hang(const struct agent_hang *h, const struct event_hang *hang)
{
    hang_report_print(h->host, hang->is_hang ? EVENT_HANG : EVENT_STACKS, hang);
}

/* ---- the action ---- */

/* The hung worker ignored SIGKILL (probably state D). The end of any other worker is a failure as well. */
static void on_culprit_remains(uv_timer_t *timer)
{
    struct agent_hang *h = timer->data;

    if (h->host->group->state != GROUP_RUNNING || h->host->group->generation != h->generation)
        return;
    for (int i = 0; i < h->host->group->config.n_workers; i++)
        h->host->kill_worker(h->host->data, i, "--hang-action=restart");
}

/* In a static rendezvous no node knows of the others, so the ranks here may wait for ranks of another node. */
static bool may_act(const struct agent_hang *h)
{
    return h->host->job->meeting != JOB_STATIC && h->host->group->state == GROUP_RUNNING;
}

/* A failure like any other: the restart policy and its budget decide about the rest. Of several nodes, a node with a rank that stands
 * out acts first. */
static void restart_after_hang(struct agent_hang *h, int worker)
{
    if (h->host->job->meeting == JOB_ALONE || h->stands_out) {
        log_line("--hang-action=restart: killing rank %d", (int)h->host->assignment->rank_base + worker);
        h->host->kill_worker(h->host->data, worker, "--hang-action=restart");
    }
    h->generation = h->host->group->generation;
    (void)uv_timer_start(&h->timer, on_culprit_remains, CULPRIT_MS, 0); /* fails only without a callback */
}

static void send_signal(const struct agent_host *host, struct group_event event)
{
    event.now_ns = now_ns();
    host->dispatch(host->data, event);
}

/* Carries --hang-action out. worker: the first worker of the report on this node, -1: none. */
static void act_on_hang(struct agent_hang *h, int worker)
{
    enum job_hang_action action = h->host->job->hang_action;

    if (!may_act(h))
        return;
    if (action == JOB_HANG_STOP) /* of the signal that another node may send to the whole job */
        h->host->note_sender(h->host->data, "--hang-action=stop");
    if (worker < 0)
        return;
    if (action == JOB_HANG_RESTART)
        restart_after_hang(h, worker);
    if (action == JOB_HANG_STOP)
        send_signal(h->host, (struct group_event){
                                 .kind = GROUP_SIGNAL, .worker = -1, .value = SIGTERM, .stops_job = true});
}

/* Of all nodes, the node with the rank that stands out acts. */
static void on_report(void *data, const struct event_hang *hang, bool acts, int worker)
{
    struct agent_hang *h = data;
    int first = (int)h->host->assignment->rank_base;

    h->stands_out = hang->rank >= first && hang->rank < first + h->host->group->config.n_workers;
    h->is_elsewhere = hang->rank >= 0 && !h->stands_out;
    if (h->stands_out)
        h->worker = hang->rank - first;
    print_hang(h, hang);
    if (acts)
        act_on_hang(h, h->stands_out ? h->worker : worker);
}

static void on_stacks(void *data, const struct watch_stacks *s)
{
    struct agent_hang *h = data;
    const struct event_hang own = hang_report_own(h->host, s);

    h->stands_out = s->stands_out;
    h->is_elsewhere = false;
    h->worker = s->worker;
    log_headline(s, h->host->job->meeting != JOB_STATIC);
    if (s->reason == WATCH_HANG && h->host->membership)
        hang_reports_begin(h->reports, s);
    else
        print_hang(h, &own);
    asked_stacks_pass(h->stacks, s);
}

static void on_files(void *data, enum watch_reason reason, int worker)
{
    struct agent_hang *h = data;

    if (reason == WATCH_HANG && h->is_hanging && !hang_reports_defer(h->reports, worker))
        act_on_hang(h, worker);
    if (reason == WATCH_QUIT)
        send_signal(h->host, h->quit);
}

void agent_hang_all_quiet(struct agent_hang *h)
{
    if (!h->is_hanging || h->is_reported)
        return;
    h->is_reported =
        watch_take_stacks(h->host->watch, WATCH_HANG); /* false: stacks are being taken already */
}

/* Of several nodes the last node to become quiet completes a hang. */
static void on_hang(void *data)
{
    struct agent_hang *h = data;

    h->is_hanging = true;
    h->is_reported = false;
    if (h->host->membership)
        membership_report(h->host->membership,
                          (struct session_event){.kind = SESSION_EVENT_QUIET, .is_quiet = true});
    else
        agent_hang_all_quiet(h);
}

void agent_hang_forget(struct agent_hang *h)
{
    if (!h->is_hanging)
        return;
    h->is_hanging = h->is_reported = false;
    hang_reports_end(h->reports);
    if (h->host->membership)
        membership_report(h->host->membership,
                          (struct session_event){.kind = SESSION_EVENT_QUIET, .is_quiet = false});
}

static void on_resume(void *data)
{
    struct agent_hang *h = data;

    if (h->is_reported)
        log_line("the job makes progress again");
    agent_hang_forget(h);
}

static void give_hint(struct agent_hang *h, const struct hang_rank *ranks, size_t n_ranks)
{
    const struct rank_assignment *given = h->host->assignment;

    for (size_t i = 0; i < n_ranks && h->hint.n_looks > 0 && !h->hint.is_over && is_store_unused(h); i++) {
        if (!ranks[i].is_meeting)
            continue;
        log_line(
            "no worker has opened the worker store at %s:%u: does the script set MASTER_ADDR or MASTER_PORT "
            "itself, or call mp.spawn? (rank %d: %s; crun gave MASTER_ADDR=%s and MASTER_PORT=%u)",
            given->master_addr, given->master_port, ranks[i].rank, ranks[i].text, given->master_addr,
            given->master_port);
        h->hint.is_over = true;
    }
}

/* A hang has a report of its own. */
static void on_ranks(void *data, struct hang_rank *ranks, size_t n_ranks, int n_unusual)
{
    struct agent_hang *h = data;

    give_hint(h, ranks, n_ranks);
    if (!h->is_reported)
        agent_stall_take_ranks(h->stall, ranks, n_ranks, n_unusual);
}

static void describe_hang(void *self, struct job_status *ret)
{
    const struct agent_hang *h = self;

    for (int i = 0; i < h->host->group->config.n_workers; i++) {
        struct worker_status *w = &ret->nodes[0].workers[i];

        w->hang = h->is_reported && !h->is_elsewhere && (!h->stands_out || h->worker == i);
        if (h->host->watch && h->host->group->state == GROUP_RUNNING)
            w->waits_percent = waits_percent(watch_waits(h->host->watch), i);
    }
    agent_stall_describe(h->stall, &ret->nodes[0]);
    job_status_mark_slow(ret);
}

/* ---- other agents ---- */

/* Node 0 judges stalls of other nodes also behind the end of the own workers. */
static bool is_for_stalls(const struct hang_message *m, const struct worker_group *g)
{
    return (g->state == GROUP_RUNNING || g->state == GROUP_IDLE) &&
           (m->has_ranks ? m->piece.purpose == HANG_FOR_STALL : m->notice.kind < HANG_NOTICE_HANG);
}

static void take_for_hangs(struct agent_hang *h, const struct hang_message *message)
{
    if (!message->has_ranks && message->notice.kind == HANG_NOTICE_HANG)
        hang_reports_take(h->reports, &message->notice);
    else if (!message->has_ranks)
        asked_stacks_take_order(h->stacks, message->notice.node);
    else if (message->piece.purpose == HANG_FOR_CRUNCTL)
        asked_stacks_add(h->stacks, &message->piece);
    else
        hang_reports_add(h->reports, &message->piece);
}

static void take_hang_message(void *self, const uint8_t *body, size_t n)
{
    struct agent_hang *h = self;
    const struct worker_group *g = h->host->group;
    struct hang_message *message = malloc(sizeof(*message));

    if (message && hang_message_get(body, n, message) && message->head.generation == (int64_t)g->generation) {
        if (is_for_stalls(message, g))
            agent_stall_take_message(h->stall, message);
        else if (g->state == GROUP_RUNNING)
            take_for_hangs(h, message);
    }
    free(message);
}

/* ---- when workers have to end ---- */

static void on_slow_end(uv_timer_t *timer)
{
    struct agent_hang *h = timer->data;
    const struct worker_group *g = h->host->group;
    bool is_running = false;

    for (int i = 0; h->host->generation && i < g->config.n_workers; i++)
        is_running |= group_worker_may_run(&g->workers[i]);
    if (g->state == GROUP_STOPPING && is_running)
        (void)watch_take_stacks(h->host->watch, WATCH_SLOW_END); /* false: stacks are being taken already */
}

void agent_hang_watch_stop(struct agent_hang *h)
{
    unsigned ms = (unsigned)h->host->job->shutdown_timeout_s * 1000u / 2;

    if (h->host->watch && ms && !h->is_hanging)
        (void)uv_timer_start(&h->timer, on_slow_end, ms < SLOW_END_MAX_MS ? ms : SLOW_END_MAX_MS,
                             0); /* fails only without a callback */
}

bool agent_hang_put_off_quit(struct agent_hang *h, const struct group_event *quit)
{
    h->quit = *quit;
    return watch_take_stacks(h->host->watch, WATCH_QUIT);
}

/* ---- life ---- */

struct watch *agent_hang_open(struct agent_hang *h)
{
    const struct agent_host *host = h->host;
    const struct watch_host watch_host = {.loop = host->loop,
                                          .environment = host->config->environment,
                                          .python = host->config->file,
                                          .timeout_ns = (uint64_t)host->job->hang_timeout_s * 1000000000u,
                                          .n_workers = host->job->n_workers,
                                          .link = host->job->output_fd,
                                          .state_fds = host->worker_memory->states,
                                          .describe = describe_for_watch,
                                          .on_hang = on_hang,
                                          .on_resume = on_resume,
                                          .on_stacks = on_stacks,
                                          .on_files = on_files,
                                          .on_ranks = on_ranks,
                                          .data = h};

    struct watch *watch = NULL;
    int r = watch_create(&watch, &watch_host);
    if (r)
        log_line("hangs are not watched for: %s", strerror(-r));
    else if (watch_host.timeout_ns)
        h->stall = agent_stall_create(host);
    return watch;
}

static void stop_hang(void *self)
{
    struct agent_hang *h = self;

    watch_close(h->host->watch);
    agent_stall_stop(h->stall);
    hang_reports_stop(h->reports);
}

void agent_hang_destroy(struct agent_hang *h)
{
    watch_destroy(h->host->watch);
    agent_stall_destroy(h->stall);
}

struct agent_hang *agent_hang_create(struct agent_observer *observer, const struct agent_host *host,
                                     struct asked_stacks *stacks)
{
    static struct agent_hang hang; /* a process has one agent */
    struct agent_hang *h = &hang;

    *h = (struct agent_hang){
        .host = host, .stacks = stacks, .reports = hang_reports_create(host, on_report, h)};
    (void)uv_timer_init(host->loop, &h->timer); /* cannot fail */
    h->timer.data = h;
    *observer = (struct agent_observer){.self = h,
                                        .take_message = take_hang_message,
                                        .handle = (uv_handle_t *)&h->timer,
                                        .describe = describe_hang,
                                        .stop = stop_hang};
    return h;
}
