#include "launcher/agent/agent_status_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/asked_stacks_uv.h"
#include "launcher/ctl/control_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/node_ranks_json.h"
#include "launcher/ctl/proc_usage_os.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/output/logs_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/util/trace_os.h"
#include "base/cleanup.h"
#include "base/time.h"

struct agent_status {
    const struct agent_host *host;
    struct control *control; /* NULL: there is no socket */
    int64_t started_s;       /* since 1970 */
    struct asked_stacks *stacks;
};

static const char *job_state_of(const struct worker_group *g, bool has_generation)
{
    static const char *const names[GROUP_STATE_COUNT] = {
        [GROUP_IDLE] = "waiting",      [GROUP_RUNNING] = "running",   [GROUP_REPLACING] = "running",
        [GROUP_STOPPING] = "stopping", [GROUP_SWEEPING] = "stopping", [GROUP_KILLING] = "stopping",
        [GROUP_LEAVING] = "waiting",   [GROUP_DONE] = "ended",
    };

    return g->state == GROUP_IDLE && has_generation ? "restarting" : names[g->state];
}

static const char *worker_state_of(const struct worker_group *g, const struct group_worker *w)
{
    if (w->state == GROUP_WORKER_NONE)
        return "starting";
    if (w->state == GROUP_WORKER_RUNNING)
        return g->state == GROUP_RUNNING || g->state == GROUP_REPLACING ? "running" : "stopping";
    return w->state == GROUP_WORKER_ENDED && w->status == 0 ? "succeeded" : "failed";
}

/* The log of standard output, or else of standard error. */
static void name_worker_log(const struct agent_host *host, int i, struct worker_status *ret)
{
    const struct job *job = host->job;
    const struct group_worker *w = &host->group->workers[i];
    int streams = job->redirects[i] | job->tees[i];

    if (w->state == GROUP_WORKER_NONE || !streams)
        return;
    _cleanup_free_ char *path =
        logs_worker_file(host->logs, w->generation, i, streams & JOB_STDOUT ? "stdout.log" : "stderr.log");
    if (path && strlen(path) < sizeof(ret->log))
        (void)strcpy(ret->log, path);
}

/* The memory file outlives a process of the worker: beats of a former process are older than the start. */
static void describe_steps(const struct agent_host *host, int i, struct worker_status *ret)
{
    const struct group_worker *w = &host->group->workers[i];
    struct worker_beat beat;

    if (w->state == GROUP_WORKER_NONE || !host->worker_memory->states ||
        !worker_beat_read(host->worker_memory->states[i], &beat) || beat.at_ns < w->ordered_ns)
        return;
    ret->last_step = beat.step;
    ret->step_ms = wall_clock_ns(beat.at_ns) / 1000000;
    ret->steps_per_s = worker_beat_rate(&beat, w->ordered_ns, now_ns());
}

static void describe_worker_status(const struct agent_host *host, int i, struct worker_status *ret)
{
    const struct group_worker *w = &host->group->workers[i];

    if (host->assignment->world_size > 0)
        ret->rank = (int32_t)host->assignment->rank_base + i;
    ret->pid = w->pid;
    (void)snprintf(ret->state, sizeof(ret->state), "%s", worker_state_of(host->group, w)); /* fits */
    if (strcmp(ret->state, "failed") == 0)
        ret->exit_code = group_worker_code(w);
    if (w->state != GROUP_WORKER_NONE && w->started_ns > 0)
        ret->started_s = wall_clock_ns(w->started_ns) / 1000000000;
    name_worker_log(host, i, ret);
    describe_steps(host, i, ret);
}

int agent_status_describe(const struct agent_status *s, struct job_status *ret)
{
    const struct agent_host *h = s->host;
    const struct job *job = h->job;
    char host[JOB_STATUS_NAME_SIZE];

    *ret = (struct job_status){
        .crun_pid = getpid(),
        .generation = h->group->generation,
        .restarts = h->group->restarts,
        .max_restarts = job->max_restarts,
        .n_nodes = h->assignment->group_world_size > 0 ? (int32_t)h->assignment->group_world_size : 1,
        .started_s = s->started_s};

    proc_info_host_name(host, sizeof(host));
    text_copy(ret->job, sizeof(ret->job), job->run_id_text);
    text_copy(ret->program, sizeof(ret->program), job->program_name);
    text_copy(ret->state, sizeof(ret->state), job_state_of(h->group, h->generation));
    if (h->membership)
        text_copy(ret->rendezvous, sizeof(ret->rendezvous), membership_endpoint(h->membership));
    int r = job_status_add_node(ret, host,
                                h->assignment->world_size > 0 ? (int32_t)h->assignment->group_rank : -1,
                                (size_t)job->n_workers);
    if (!r)
        ret->nodes[0].generation = h->group->generation;
    for (int i = 0; !r && i < job->n_workers; i++)
        describe_worker_status(h, i, &ret->nodes[0].workers[i]);
    return r;
}

static char *status_json(void *data)
{
    const struct agent_status *status = data;
    _cleanup_(job_status_finish) struct job_status s;

    return status->host->describe(status->host->data, &s) == 0 ? job_status_to_json(&s) : NULL;
}

/* Only the hosted rendezvous answers: other nodes are asked there, by crunctl itself. */
static int look_at_nodes(void *data, struct buf *out)
{
    const struct agent_status *s = data;

    return s->host->membership ? membership_look(s->host->membership, out) : -ENOENT;
}

static void read_own_usage(struct node_status *n)
{
    for (size_t i = 0; i < n->n_workers; i++) {
        n->workers[i].log[0] = '\0'; /* a path of this machine */
        proc_usage_read(&n->workers[i]);
    }
}

/* Without memory a look misses this node. */
void agent_status_report(const struct agent_host *host, const char *stacks, struct buf *out)
{
    _cleanup_(job_status_finish) struct job_status s;

    if (host->describe(host->data, &s) == 0) {
        read_own_usage(&s.nodes[0]);
        s.nodes[0].taken_ms = (int64_t)(now_ns() / 1000000);
        (void)node_ranks_put(out, NULL, &(struct node_ranks){.node = &s.nodes[0], .stacks = stacks});
    }
}

static bool ask_for_stacks(void *data)
{
    const struct agent_status *s = data;

    return asked_stacks_ask(s->stacks, false);
}

const struct named_file *agent_status_socket(const struct agent_status *s)
{
    return control_file(s ? s->control : NULL);
}

void agent_status_send_stacks(struct agent_status *s, const char *json)
{
    if (s && s->control)
        control_send_stacks(s->control, json);
}

static void stop_status(void *self)
{
    struct agent_status *s = self;

    control_destroy(steal_ptr(s->control));
}

struct agent_status *agent_status_open(struct agent_observer *observer, const struct agent_host *host,
                                       struct asked_stacks *stacks)
{
    static struct agent_status status; /* a process has one agent */
    struct agent_status *s = &status;
    const struct control_host control_host = {.loop = host->loop,
                                              .environment = host->config->environment,
                                              .job = host->job->run_id_text,
                                              .status = status_json,
                                              .take_stacks = ask_for_stacks,
                                              .nodes = look_at_nodes,
                                              .data = s};

    *s = (struct agent_status){
        .host = host, .started_s = wall_clock_ns(now_ns()) / 1000000000, .stacks = stacks};
    *observer = (struct agent_observer){.self = s, .stop = stop_status};
    int r = control_create(&s->control, &control_host);
    if (r && trace_sink)
        trace_line("control socket: %s", strerror(-r));
    return s;
}
