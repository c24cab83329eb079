#include "launcher/report/events_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/report/disk_texts_uv.h"
#include "launcher/report/failures_os.h"
#include "launcher/supervise/worker_group.h"
#include "launcher/cli/job.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/util/line_file_os.h"
#include "launcher/util/control_path.h"
#include "launcher/util/log_os.h"
#include "launcher/util/read_disk_os.h"
#include "base/cleanup.h"
#include "base/time.h"

enum { RAW_ERROR_MAX = 64 << 10, HISTORY_MARKS_MAX = 100 /* of a generation */ };

struct events {
    struct event_job job;
    char host[256];
    char run[48];
    struct line_file *file;    /* NULL: not asked for */
    struct line_file *history; /* NULL: nowhere to write it */
    int n_marks;               /* of the generation, for the history */
    bool console;
    uint64_t begin_ns;   /* of generation 0 */
    int n_exits_written; /* exits of this generation that have been written */
    bool is_ready_written, is_failure_written;
    uint64_t replaced_cause_ns; /* of the failure before this generation */
    char peer_reason[SESSION_TEXT_SIZE + SESSION_HOST_SIZE +
                     64]; /* of the last event of another node; "": none */
};

/* ---- --event-log ---- */

/* Neither what a program prints nor the nodes of a large job, with one file in a home that they share, push other jobs out of the
 * history, which is bounded. */
static bool is_for_history(struct events *e, enum event_kind kind)
{
    if (kind == EVENT_MARK && ++e->n_marks > HISTORY_MARKS_MAX)
        return false;
    return e->history && e->job.place.group_rank == 0 && kind != EVENT_READY && kind != EVENT_EXIT;
}

static void write_event(struct events *e, const struct worker_group *g, struct event event, uint64_t at_ns)
{
    bool is_history = is_for_history(e, event.kind);

    if (!e->file && !is_history)
        return;
    event.monotonic_ns = at_ns;
    event.time_ns = wall_clock_ns(at_ns);
    event.generation = g->generation;
    event.restarts = g->restarts;
    _cleanup_free_ char *line = events_json_line(&e->job, &event);
    if (is_history)
        line_file_write(e->history, line ? line : "");
    line_file_write(e->file, line ? line : "{\"event\":\"lost\",\"reason\":\"out of memory\"}\n");
}

static struct event_ending ending_of(const struct worker_group *g, int local_rank)
{
    const struct group_worker *w = &g->workers[local_rank];

    return (struct event_ending){.local_rank = local_rank,
                                 .pid = w->pid,
                                 .code = group_worker_code(w),
                                 .core_dumped = WIFSIGNALED(w->status) && WCOREDUMP(w->status),
                                 .stopped = w->stopped,
                                 .max_rss_kib = w->max_rss_kib,
                                 .ran_ns = w->ended_ns - w->started_ns};
}

static void write_ready(struct events *e, const struct worker_group *g, uint64_t at_ns)
{
    _cleanup_free_ pid_t *pids = calloc((size_t)g->config.n_workers, sizeof(*pids));

    for (int i = 0; i < g->config.n_workers; i++) {
        if (g->workers[i].state == GROUP_WORKER_NONE || !pids)
            return;
        pids[i] = g->workers[i].pid;
    }
    e->is_ready_written = true;
    write_event(e, g, (struct event){.kind = EVENT_READY, .pids = pids, .took_ns = at_ns - g->started_ns},
                at_ns);
}

/* In the order in which they ended. */
static void write_exits(struct events *e, const struct worker_group *g)
{
    for (int i = 0; e->n_exits_written < g->n_ended && i < g->config.n_workers; i++) {
        if (g->workers[i].state != GROUP_WORKER_ENDED || g->workers[i].order != e->n_exits_written)
            continue;
        const struct event_ending ending = ending_of(g, i);
        write_event(e, g, (struct event){.kind = EVENT_EXIT, .ending = &ending}, g->workers[i].ended_ns);
        e->n_exits_written++;
        i = -1;
    }
}

static void write_failure(struct events *e, const struct worker_group *g, uint64_t at_ns)
{
    struct event_ending ending;
    struct event event = {.kind = EVENT_FAILURE, .cause = group_cause_name(g->cause)};

    if (g->cause == GROUP_CAUSE_NONE || g->cause == GROUP_CAUSE_SIGNAL || g->cause == GROUP_CAUSE_PEER)
        return; /* nothing has failed here */
    if (g->cause_ns == e->replaced_cause_ns)
        return; /* the failure that a replacement mends, until that has succeeded */
    e->is_failure_written = true;
    if (g->cause == GROUP_CAUSE_WORKER || g->cause == GROUP_CAUSE_EXEC) {
        ending = ending_of(g, g->cause_worker);
        event.ending = &ending;
    }
    if (g->cause == GROUP_CAUSE_EXEC) {
        event.number = g->workers[g->cause_worker].status;
        event.reason = strerror(event.number);
    }
    write_event(e, g, event, at_ns);
}

/* ---- --event-log-handler=console ---- */

static void print_torch(struct events *e, const struct worker_group *g, struct event_torch event)
{
    if (!e->console)
        return;
    event.restarts = g->restarts;
    _cleanup_free_ char *line = events_torch_line(&e->job, &event);
    if (line)
        log_lines(line);
}

static void print_rendezvous(struct events *e, const struct worker_group *g)
{
    bool is_first = g->generation == 0;

    print_torch(e, g, (struct event_torch){.state = "RENDEZVOUS", .is_first = is_first});
    print_torch(e, g, (struct event_torch){.state = "ASSIGN_WORKER_RANKS", .is_first = is_first});
}

/* The error file of a worker, or what torchrun writes for one without. Malloc'ed. */
static char *raw_error(const struct worker_group *g, int local_rank, const struct disk_texts *texts)
{
    const struct file_part *part =
        disk_texts_get(texts, (size_t)local_rank, g->workers[local_rank].generation);

    return strndup(
        part ? part->bytes
             : "{\"message\": \"<NONE>\", \"errorTraits\": {\"category\": \"system_terminated_error\", "
               "\"retryability\": \"False\"}}",
        RAW_ERROR_MAX);
}

static void print_worker_end(struct events *e, const struct worker_group *g, int local_rank, int64_t run_s,
                             const struct disk_texts *texts)
{
    const struct event_ending ending = ending_of(g, local_rank);
    bool failed = ending.code != 0;
    _cleanup_free_ char *error = failed ? raw_error(g, local_rank, texts) : NULL;

    print_torch(e, g,
                (struct event_torch){.state = failed                         ? "FAILED"
                                              : g->cause == GROUP_CAUSE_NONE ? "SUCCEEDED"
                                                                             : "TERMINATED",
                                     .worker = &ending,
                                     .knows_ending = failed,
                                     .raw_error = error,
                                     .run_s = run_s,
                                     .duration_ms = -1});
}

/* As in torchrun, the agent has "succeeded" when it ran to its end, whatever the result of the workers. */
static void print_end(struct events *e, const struct worker_group *g, int64_t run_s,
                      const struct disk_texts *texts)
{
    bool came_to_its_end = !g->interrupt && g->cause != GROUP_CAUSE_EXEC && g->cause != GROUP_CAUSE_START;

    for (int i = 0; came_to_its_end && i < g->config.n_workers; i++)
        print_worker_end(e, g, i, run_s, texts);
    print_torch(e, g,
                (struct event_torch){
                    .state = came_to_its_end ? "SUCCEEDED" : "FAILED", .run_s = run_s, .duration_ms = -1});
}

/* ---- steps ---- */

static void begin_generation(struct events *e, const struct worker_group *g, uint64_t at_ns)
{
    e->n_exits_written = e->n_marks = 0;
    e->is_ready_written = e->is_failure_written = false;
    e->peer_reason[0] = '\0';
    e->replaced_cause_ns = g->cause_ns;
    if (!e->begin_ns)
        e->begin_ns = at_ns;
    write_event(e, g, (struct event){.kind = EVENT_START}, at_ns);
    print_rendezvous(e, g);
}

static bool has_action(const struct group_actions *actions, enum group_action_kind kind)
{
    for (size_t i = 0; i < actions->n_items; i++)
        if (actions->items[i].kind == kind)
            return true;
    return false;
}

void events_step(struct events *e, const struct worker_group *g, const struct group_event *event,
                 const struct group_actions *actions)
{
    if (has_action(actions, GROUP_DO_SPAWN) || has_action(actions, GROUP_DO_REPLACE))
        begin_generation(e, g, event->now_ns);
    if (event->kind == GROUP_STARTED) {
        const struct event_ending started = {.local_rank = event->worker, .pid = event->pid};
        print_torch(e, g, (struct event_torch){.state = "START", .worker = &started, .duration_ms = -1});
    }
    if (event->kind == GROUP_STARTED && !e->is_ready_written)
        write_ready(e, g, event->now_ns);
    write_exits(e, g);
    if (!e->is_failure_written)
        write_failure(e, g, event->now_ns);
    if (event->kind == GROUP_SIGNAL)
        write_event(e, g, (struct event){.kind = EVENT_STOP, .number = event->value, .sender = event->pid},
                    event->now_ns);
}

/* A failure of this node has an event of its own. The rendezvous may report a cause twice: at the end of the generation
 * and, decided, with the next one. */
void events_peer(struct events *e, const struct worker_group *g, const struct session_cause *cause)
{
    char reason[sizeof(e->peer_reason)];
    const struct event_peer peer = {
        .host = cause->host, .group_rank = cause->group_rank, .rank = cause->rank};

    if (cause->kind == SESSION_CAUSE_NONE)
        return;
    session_cause_describe(cause, reason, sizeof(reason));
    bool is_own =
        cause->kind == SESSION_CAUSE_WORKER && cause->group_rank == (int32_t)e->job.place.group_rank;
    bool is_repeated = strcmp(reason, e->peer_reason) == 0;
    memcpy(e->peer_reason, reason, sizeof(e->peer_reason));
    if (!is_own && !is_repeated)
        write_event(e, g,
                    (struct event){.kind = EVENT_PEER,
                                   .cause = session_cause_names[cause->kind],
                                   .reason = reason,
                                   .peer = &peer},
                    now_ns());
}

void events_write(struct events *e, const struct worker_group *g, struct event event)
{
    write_event(e, g, event, now_ns());
}

void events_restart(struct events *e, const struct worker_group *g, const struct failures_outcome *outcome)
{
    write_event(e, g,
                (struct event){.kind = EVENT_RESTART,
                               .reason = *outcome->reason ? outcome->reason : NULL,
                               .left = g->config.max_restarts - g->restarts - 1},
                now_ns());
}

void events_end(struct events *e, const struct worker_group *g, const struct failures_outcome *outcome,
                int exit_code, const struct disk_texts *texts)
{
    uint64_t now = now_ns(), took = e->begin_ns ? now - e->begin_ns : 0;
    bool failed = g->cause != GROUP_CAUSE_NONE && g->cause != GROUP_CAUSE_SIGNAL;

    write_event(e, g,
                (struct event){.kind = EVENT_END,
                               .cause = failed || (exit_code && !g->interrupt) ? "failed"
                                        : g->interrupt                         ? "stopped"
                                                                               : "succeeded",
                               .reason = exit_code && *outcome->reason  ? outcome->reason
                                         : exit_code && *e->peer_reason ? e->peer_reason
                                                                        : NULL,
                               .number = exit_code,
                               .took_ns = took},
                now);
    print_end(e, g, (int64_t)(took / 1000000000u), texts);
}

/* ---- life ---- */

static const char *without_folder(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

struct events *events_create(const struct job *job, const char *file, char *const *environment)
{
    static struct events events; /* a process has one job */
    struct events *e = &events;
    char history[CONTROL_PATH_SIZE];
    uint32_t n = (uint32_t)job->n_workers;

    proc_info_host_name(e->host, sizeof(e->host));
    (void)snprintf(e->run, sizeof(e->run), "%lld-%d", (long long)wall_clock_ns(now_ns()),
                   (int)getpid()); /* fits */
    e->job = (struct event_job){.run_id = job->run_id_text,
                                .run = e->run,
                                .worker_run_id = job->worker_run_id,
                                .host = e->host,
                                .role = job->role,
                                .program = without_folder(job->program_name),
                                .entry_point = without_folder(file),
                                .rdzv_backend = job->rdzv_backend,
                                .n_workers = job->n_workers,
                                .max_restarts = job->max_restarts,
                                .crun = getpid(),
                                .place = {.group_world_size = 1, .world_size = n, .role_world_size = n}};
    e->console = job->event_console;
    if (control_history_path(environment, history))
        (void)line_file_open(&e->history, history, NULL); /* the job runs without it */
    int r = job->event_log ? line_file_open(&e->file, job->event_log, "event log") : 0;
    if (r)
        log_line("cannot open the event log %s: %s; the job goes on without it", job->event_log,
                 strerror(-r));
    return e;
}

void events_place(struct events *e, const struct rank_assignment *place)
{
    e->job.place = *place;
}

void events_begin_history(struct events *e)
{
    line_file_begin_history(e->history);
}

void events_destroy(struct events *e)
{
    line_file_close(e->file);
    line_file_close(e->history);
}
