/*
 * The agent among other nodes: turns decisions of the rendezvous into events of the group machine, and reports of the
 * machine into messages to the rendezvous. Decides nothing.
 */

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/agent/agent_hang_uv.h"
#include "launcher/agent/agent_health_uv.h"
#include "launcher/agent/agent_impl_uv.h"
#include "launcher/agent/agent_restarts_uv.h"
#include "launcher/agent/agent_start_uv.h"
#include "launcher/agent/agent_status_uv.h"
#include "launcher/agent/asked_stacks_uv.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/rdzv/rdzv_static_uv.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/host/worker_beat_os.h"
#include "launcher/report/events_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/signal_name.h"
#include "base/time.h"

/* ---- to the workers and to the rendezvous ---- */

void agent_notify_peer_failed(struct agent *a)
{
    agent_notify_workers(a, (struct worker_notice){.kind = NOTICE_PEER_FAILED,
                                                   .rank = a->peer_cause.rank,
                                                   .detail = a->peer_cause.exit_code});
}

static void describe_worker_failure(struct agent *a, int worker, struct session_cause *cause)
{
    const struct failures_source source = agent_failures_source(a);
    const struct group_worker *w = &a->group.workers[worker];

    cause->rank = (int32_t)a->assignment.rank_base + worker;
    cause->pid = w->pid;
    cause->exit_code = group_worker_code(w);
    if (w->state == GROUP_WORKER_EXEC_FAILED) {
        cause->fatal = group_exec_is_final(w->status);
        (void)snprintf(cause->text, sizeof(cause->text), "%.300s could not be started: %s",
                       a->host.config->file, strerror(w->status)); /* truncated if long */
    } else if (worker == source.line_worker) {
        cause->fatal = a->group.is_final;
        text_copy(cause->text, sizeof(cause->text), source.line_cause);
    } else {
        failures_read_message(&source, worker, cause->text, sizeof(cause->text)); /* "": it may follow */
    }
}

/* No single worker has failed. */
static void describe_node_failure(const struct worker_group *g, struct session_cause *cause)
{
    if (g->cause == GROUP_CAUSE_GUARDIAN) {
        cause->exit_code = -SIGKILL;
        text_copy(cause->text, sizeof(cause->text),
                  "the parent process of the workers was killed from outside");
    } else if (g->cause == GROUP_CAUSE_START) {
        (void)snprintf(cause->text, sizeof(cause->text), "its workers could not be started: %s",
                       strerror(g->start_error)); /* fits */
    } else {
        text_copy(cause->text, sizeof(cause->text),
                  "its workers were to remain, and have begun to end; they are restarted");
    }
}

/* In front of the text of the worker, which may be long. */
static void add_final_reason(struct session_cause *cause, const char *why)
{
    char text[2 * SESSION_TEXT_SIZE];

    (void)snprintf(text, sizeof(text), "%s%s%s", why, cause->text[0] ? ": " : "", cause->text); /* fits */
    text_copy(cause->text, sizeof(cause->text), text);
    cause->fatal = true;
}

void agent_report_failed(struct agent *a, int worker)
{
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER,
                                  .group_rank = (int32_t)a->assignment.group_rank,
                                  .rank = -1,
                                  .local_rank = worker};

    proc_info_host_name(cause.host, sizeof(cause.host));
    if (a->group.cause == GROUP_CAUSE_REJOIN) {
        text_copy(cause.text, sizeof(cause.text),
                  "its remaining workers could not go on in the next generation; they are restarted");
    } else if (worker >= 0) {
        describe_worker_failure(a, worker, &cause);
    } else {
        describe_node_failure(&a->group, &cause);
    }
    if (a->group.is_final && *agent_restarts_why(a->restarts))
        add_final_reason(&cause, agent_restarts_why(a->restarts));
    if (a->group.is_draining && !cause.text[0])
        text_copy(cause.text, sizeof(cause.text), "it had been asked to stop, as a node has to go away");
    membership_report(a->host.membership, (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED,
                                                                 .cause = &cause,
                                                                 .when_ns = a->group.cause_ns});
}

/* Before the meeting has begun (a signal at the start, no memory for the meeting) no other node knows of this node. */
void agent_leave_job(struct agent *a, int signal)
{
    char why[64] = "it cannot go on";
    char name[SIGNAL_NAME_SIZE];

    if (signal)
        (void)snprintf(why, sizeof(why), "%s was stopped by %s", a->group.stops_job ? "the job" : "it",
                       signal_name(signal, name) ? name : "a signal"); /* fits */
    if (a->host.membership)
        membership_leave(a->host.membership, why, a->group.stops_job ? signal : 0);
}

/* ---- from the rendezvous: membership_uv ---- */

static uint32_t on_find_cut(void *data)
{
    const struct agent *a = data;
    uint32_t cut_from = 0;

    for (int i = 0; a->worker_memory.states && cut_from == 0 && i < a->group.config.n_workers; i++)
        cut_from = worker_cut_read(a->worker_memory.states[i], a->group.workers[i].pid);
    return cut_from;
}

/* Remaining workers have other peers from now on. */
static void forget_cuts(const struct agent *a)
{
    for (int i = 0; a->worker_memory.states && i < a->group.config.n_workers; i++)
        worker_cut_clear(a->worker_memory.states[i]);
}

/* An agreed key is known by the first start. 0 or -errno. */
static int lend_key(struct agent *a)
{
    const struct job_keys *keys = a->host.config->keys;

    return keys && keys->has_secret && a->worker_memory.key < 0
               ? worker_memory_add_key(&a->worker_memory, keys->kept->of[KEY_WORKER].bytes, KEY_SIZE)
               : 0;
}

/* The nodes of this generation may find a kept store at another address. 0 or -errno. */
static int listen_with_kept_store(struct agent *a, const struct server *offered)
{
    const struct rank_assignment *r = &a->assignment;
    struct server *kept = offered || !a->host.generation ? NULL : a->host.generation->server;

    return kept && r->group_rank == 0 ? worker_store_listen_for(kept, r->master_addr, r->master_port) : 0;
}

static void on_start(void *data, uint32_t generation, int restarts, const struct rank_assignment *assignment,
                     struct server *store)
{
    struct agent *a = data;

    forget_cuts(a);
    a->assignment = *assignment;
    agent_start_take_store(a->start, store);
    int r = lend_key(a);
    if (r < 0) {
        log_line("cannot lend the workers the key of the job: %s", strerror(-r));
        agent_dispatch_start_failed(a, r);
        return;
    }
    r = listen_with_kept_store(a, store);
    if (r < 0) {
        log_line("the worker store cannot listen at %s port %u: %s", assignment->master_addr,
                 assignment->master_port, strerror(-r));
        agent_dispatch_start_failed(a, r);
        return;
    }
    events_place(a->host.events, &a->assignment);
    agent_dispatch(a, (struct group_event){
                          .kind = GROUP_START,
                          .now_ns = now_ns(),
                          .worker = -1,
                          .generation = generation,
                          .restarts = restarts,
                          .is_needed = (int)assignment->group_world_size <= a->host.job->min_nodes,
                      });
}

static void on_cause(void *data, const struct session_cause *cause)
{
    struct agent *a = data;

    events_peer(a->host.events, &a->group, cause);
}

/* At once: the report comes when the last worker has ended. */
static void print_peer_stop(const struct agent *a)
{
    char why[SESSION_TEXT_SIZE + SESSION_HOST_SIZE + 64];

    if (a->group.state != GROUP_STOPPING || agent_count_unended(a) == 0)
        return;
    session_cause_describe(&a->peer_cause, why, sizeof(why));
    const struct job *job = a->host.job;
    const char *which = job->output_fd == 0 ? " of this node" : ""; /* hosts of a front print as one */
    log_line("%s; stopping the workers%s, up to %d s", why, which, job->shutdown_timeout_s);
}

static void on_peer_failed(void *data, const struct session_cause *cause)
{
    struct agent *a = data;

    a->peer_cause = *cause;
    agent_dispatch_kind(a, GROUP_PEER_FAILED);
    print_peer_stop(a);
}

/* This process did not run when the guardian ended the workers. */
static void on_fenced(void *data, const struct session_cause *cause)
{
    char why[SESSION_TEXT_SIZE + SESSION_HOST_SIZE + 64];

    (void)data;
    session_cause_describe(cause, why, sizeof(why));
    log_line("%s; its workers have ended", why);
}

static void on_fence(void *data, const struct session_cause *cause)
{
    struct agent *a = data;

    a->peer_cause = *cause;
    agent_dispatch_kind(a, GROUP_LEASE_ENDED);
    if (agent_count_unended(a) > 0)
        print_peer_stop(a);
    else
        on_fenced(a, cause);
}

/* The guardian gets the lease, which also holds while crun does not run. */
static void on_lease(void *data, uint64_t end_ns)
{
    struct agent *a = data;

    a->generation_host.lease_end_ns = end_ns == UINT64_MAX ? 0 : end_ns;
    if (a->host.generation)
        generation_pass_lease_on(a->host.generation);
}

static void on_all_quiet(void *data)
{
    const struct agent *a = data;

    agent_hang_all_quiet(a->hang);
}

static void on_drain(void *data)
{
    agent_dispatch_kind(data, GROUP_DRAIN);
}

static void on_check(void *data)
{
    const struct agent *a = data;

    agent_health_again(a->health);
}

static void on_end(void *data, int exit_code, const struct session_cause *cause)
{
    struct agent *a = data;
    int stop_signal = membership_stop_signal(a->host.membership);

    a->peer_cause = cause ? *cause : (struct session_cause){.rank = -1};
    agent_dispatch(a, (struct group_event){.kind = stop_signal ? GROUP_SIGNAL : GROUP_END,
                                           .now_ns = now_ns(),
                                           .worker = -1,
                                           .value = stop_signal ? stop_signal : exit_code,
                                           .stops_job = stop_signal > 0});
}

/* ---- from the rendezvous: rdzv_static_uv ---- */

static void on_assigned(void *data, const struct rank_assignment *assignment)
{
    struct agent *a = data;

    a->assignment = *assignment;
    events_place(a->host.events, &a->assignment);
    agent_dispatch_kind(a, GROUP_START);
}

static void on_not_assigned(void *data)
{
    agent_dispatch_kind(data, GROUP_START_FAILED);
}

static void on_others_done(void *data)
{
    agent_dispatch_kind(data, GROUP_OTHERS_DONE);
}

static void report_status(void *data, struct buf *out)
{
    const struct agent *a = data;

    agent_status_report(&a->host, asked_stacks_for_look(a->stacks), out);
}

static void take_stacks_for_look(void *data)
{
    const struct agent *a = data;

    (void)asked_stacks_ask(a->stacks, true);
}

static void on_agent_message(void *data, const uint8_t *body, size_t n)
{
    const struct agent *a = data;

    for (size_t i = 0; i < PART_COUNT; i++)
        if (a->parts[i].take_message)
            a->parts[i].take_message(a->parts[i].self, body, n);
}

int agent_meet(struct agent *a)
{
    const struct job *job = a->host.job;
    const struct rdzv_static_host static_host = {.loop = &a->loop,
                                                 .job = job,
                                                 .environment = a->host.config->environment,
                                                 .on_assigned = on_assigned,
                                                 .on_failed = on_not_assigned,
                                                 .on_departed = on_others_done,
                                                 .data = a};
    const struct membership_host membership_host = {.loop = &a->loop,
                                                    .job = job,
                                                    .keys = a->host.config->keys,
                                                    .on_start = on_start,
                                                    .on_cause = on_cause,
                                                    .on_stop = on_peer_failed,
                                                    .on_fence = on_fence,
                                                    .on_fenced = on_fenced,
                                                    .on_drain = on_drain,
                                                    .on_quiet = on_all_quiet,
                                                    .on_check = on_check,
                                                    .on_end = on_end,
                                                    .on_closed = agent_on_membership_closed,
                                                    .data = a,
                                                    .listener = {.on_lease = on_lease,
                                                                 .report = report_status,
                                                                 .take_stacks = take_stacks_for_look,
                                                                 .find_cut = on_find_cut,
                                                                 .on_agent_message = on_agent_message,
                                                                 .data = a}};

    if (job->meeting == JOB_STATIC)
        return rdzv_static_uv_create(&a->rdzv_static, &static_host);
    a->host.membership = membership_create(&membership_host);
    if (job->health_check)
        agent_health_begin(a->health);
    else
        membership_ready(a->host.membership, 0, false);
    return 0;
}
