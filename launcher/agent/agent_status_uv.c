/* What crunctl is shown of the job: facts of the group machine, as they are at the moment of the request. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/utf8.h"
#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/ctl/control_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/proc_usage_os.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/util/trace_os.h"
#include "launcher/watch/watch_uv.h"
#include "rendezvous/session/look_json.h"
#include "base/cleanup.h"
#include "base/minmax.h"
#include "base/time.h"

enum { WORKERS_OF_A_PIECE = 24 }; /* of at most 600 bytes each: a frame */

static const char *job_state_of(const struct worker_group *g, bool has_generation)
{
    switch (g->state) {
    case GROUP_IDLE:
        return has_generation ? "restarting" : "waiting";
    case GROUP_RUNNING:
    case GROUP_REPLACING:
        return "running";
    case GROUP_LEAVING:
        return "waiting";
    case GROUP_DONE:
        return "ended";
    default:
        return "stopping";
    }
}

static const char *worker_state_of(const struct worker_group *g, const struct group_worker *w)
{
    switch (w->state) {
    case GROUP_WORKER_NONE:
        return "starting";
    case GROUP_WORKER_RUNNING:
        return g->state == GROUP_RUNNING || g->state == GROUP_REPLACING ? "running" : "stopping";
    case GROUP_WORKER_ENDED:
        return w->status == 0 ? "succeeded" : "failed";
    default:
        return "failed";
    }
}

/* Of its standard output, or else of its standard error. */
static void name_worker_log(const struct agent *a, int i, struct worker_status *ret)
{
    const struct job *job = a->config->job;
    const struct group_worker *w = &a->group.workers[i];
    int streams = job->redirects[i] | job->tees[i];

    if (w->state == GROUP_WORKER_NONE || !streams)
        return;
    _cleanup_free_ char *path =
        logs_worker_file(&a->logs, w->generation, i, streams & JOB_STDOUT ? "stdout.log" : "stderr.log");
    if (path && strlen(path) < sizeof(ret->log))
        (void)strcpy(ret->log, path);
}

bool agent_read_beat(const struct agent *a, int worker, struct worker_beat *ret)
{
    const struct group_worker *w = &a->group.workers[worker];

    return a->worker_memory.states && w->state != GROUP_WORKER_NONE &&
           worker_beat_read(a->worker_memory.states[worker], ret) && ret->at_ns >= w->ordered_ns;
}

static void describe_step(const struct agent *a, int i, struct worker_status *ret)
{
    struct worker_beat beat;

    if (!agent_read_beat(a, i, &beat))
        return;
    ret->last_step = beat.step;
    ret->step_ms = wall_clock_ns(beat.at_ns) / 1000000;
    ret->steps_per_s = worker_beat_rate(&beat, a->group.workers[i].ordered_ns, now_ns());
}

static void describe_worker_status(const struct agent *a, int i, struct worker_status *ret)
{
    const struct group_worker *w = &a->group.workers[i];

    if (a->assignment.world_size > 0)
        ret->rank = (int32_t)a->assignment.rank_base + i;
    ret->pid = w->pid;
    (void)snprintf(ret->state, sizeof(ret->state), "%s", worker_state_of(&a->group, w)); /* fits */
    if (strcmp(ret->state, "failed") == 0)
        ret->exit_code = group_worker_code(w);
    describe_step(a, i, ret);
    ret->straggler = agent_is_straggler(a, i);
    agent_describe_beats(a, i, ret);
    ret->hang = a->is_hang_reported && !a->hang_elsewhere && (!a->stands_out || a->hang_worker == i);
    if (w->state != GROUP_WORKER_NONE && w->started_ns > 0)
        ret->started_s = wall_clock_ns(w->started_ns) / 1000000000;
    name_worker_log(a, i, ret);
}

int agent_describe_job(const struct agent *a, struct job_status *ret)
{
    const struct job *job = a->config->job;
    char host[JOB_STATUS_NAME_SIZE];

    *ret = (struct job_status){
        .crun_pid = getpid(),
        .generation = a->group.generation,
        .restarts = a->group.restarts,
        .max_restarts = job->max_restarts,
        .n_nodes = a->assignment.group_world_size > 0 ? (int32_t)a->assignment.group_world_size : 1,
        .started_s = a->started_s};

    proc_info_host_name(host, sizeof(host));
    text_copy(ret->job, sizeof(ret->job), job->run_id_text);
    text_copy(ret->program, sizeof(ret->program), job->program_name);
    text_copy(ret->state, sizeof(ret->state), job_state_of(&a->group, a->generation));
    text_copy(ret->containment, sizeof(ret->containment), agent_containment(a));
    if (a->membership)
        text_copy(ret->rendezvous, sizeof(ret->rendezvous), membership_endpoint(a->membership));
    int r =
        job_status_add_node(ret, host, a->assignment.world_size > 0 ? (int32_t)a->assignment.group_rank : -1,
                            (size_t)job->n_workers);
    if (!r)
        ret->nodes[0].generation = a->group.generation;
    if (!r && a->check_pause_ns > 0)
        text_copy(ret->nodes[0].state, sizeof(ret->nodes[0].state), "unfit");
    for (int i = 0; !r && i < job->n_workers; i++)
        describe_worker_status(a, i, &ret->nodes[0].workers[i]);
    return r;
}

static char *status_json(void *data)
{
    struct job_status s;
    char *json = NULL;

    if (agent_describe_job(data, &s) == 0)
        json = job_status_to_json(&s);
    job_status_finish(&s);
    return json;
}

/* Only the hosted rendezvous answers: other nodes are asked there, by crunctl itself. */
static int look_at_nodes(void *data, struct buf *out)
{
    struct agent *a = data;

    return a->membership ? membership_look(a->membership, out) : -ENOENT;
}

static void read_own_usage(struct node_status *n)
{
    struct proc_usage usage;

    for (size_t i = 0; i < n->n_workers; i++) {
        struct worker_status *w = &n->workers[i];

        w->log[0] = '\0'; /* a path of this machine */
        w->has_usage = proc_usage_read(w->pid, &usage);
        w->cpu_ms = w->has_usage ? usage.cpu_ms : 0;
        w->rss_kib = w->has_usage ? usage.rss_kib : 0;
    }
}

/* Their own piece: {"host":...,"workers":[],"stacks":{...}}. */
static char *stacks_piece_json(const struct node_status *n, const char *stacks)
{
    _cleanup_free_ char *node = job_status_node_to_json(n, 0, 0);
    char *json = NULL;

    if (!node || asprintf(&json, "%.*s,\"stacks\":%s}", (int)strlen(node) - 1, node, stacks) < 0)
        return NULL;
    return json;
}

/* Without memory a look misses this node. */
void agent_report_status(void *data, struct buf *out)
{
    struct job_status s;
    int r = agent_describe_job(data, &s);
    size_t n_workers = r ? 0 : s.nodes[0].n_workers;
    const char *stacks = agent_stacks_for_look(data);
    uint32_t n_max = LOOK_PIECES_MAX - (stacks ? 1 : 0), n_of_workers;
    struct look_piece piece = {.pieces =
                                   (uint32_t)((n_workers + WORKERS_OF_A_PIECE - 1) / WORKERS_OF_A_PIECE)};

    if (!r) {
        read_own_usage(&s.nodes[0]);
        s.nodes[0].taken_ms = (int64_t)(now_ns() / 1000000);
    }
    if (piece.pieces > n_max)
        piece.pieces = n_max; /* the first ranks */
    n_of_workers = piece.pieces;
    piece.pieces += stacks ? 1 : 0;
    for (; !r && piece.piece < piece.pieces; piece.piece++) {
        size_t first = (size_t)piece.piece * WORKERS_OF_A_PIECE;
        _cleanup_free_ char *json =
            piece.piece == n_of_workers
                ? stacks_piece_json(&s.nodes[0], stacks)
                : job_status_node_to_json(&s.nodes[0], first,
                                          min_size(WORKERS_OF_A_PIECE, n_workers - first));

        r = json ? look_put_status(out, &piece, json) : -ENOMEM;
    }
    job_status_finish(&s);
}

/* When they are being taken already, these are sent. */
static bool take_stacks_for_crunctl(void *data)
{
    struct agent *a = data;

    (void)watch_take_stacks(a->watch, WATCH_ASKED);
    if (a->watch)
        agent_ask_nodes(a);
    return a->watch != NULL;
}

void agent_open_control(struct agent *a)
{
    const struct control_host host = {.loop = &a->loop,
                                      .environment = a->config->environment,
                                      .job = a->config->job->run_id_text,
                                      .status = status_json,
                                      .take_stacks = take_stacks_for_crunctl,
                                      .nodes = look_at_nodes,
                                      .data = a};

    a->started_s = wall_clock_ns(now_ns()) / 1000000000;
    int r = control_create(&a->control, &host);
    a->host.guardians.socket = control_file(a->control);
    if (r && trace_sink)
        trace_line("control socket: %s", strerror(-r));
}
