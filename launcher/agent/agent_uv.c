/*
 * Happy path: GROUP_START, one generation is created, its guardian reports workers that start and end, then
 * that it is empty; the group machine says finish; the loop runs dry and the exit code is returned.
 *
 * Ways it ends otherwise: a worker fails (report, perhaps the next generation), a signal (passed on, then
 * killed after the grace), the guardian is killed (its workers die by the kernel, what they started falls
 * to us, who are a subreaper too, and is killed here), a guardian that does not do what it is told (killed,
 * then as before), a process that even SIGKILL does not end (named, and left behind).
 *
 * crun itself may be SIGKILLed at any point: the guardian sees the link end and kills everything.
 */

#include "launcher/agent/agent_uv.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "launcher/host/cgroup_os.h"
#include "launcher/supervise/child_processes_os.h"
#include "launcher/util/envp.h"
#include "launcher/report/events_os.h"
#include "launcher/report/failures_os.h"
#include "launcher/agent/generation_uv.h"
#include "launcher/supervise/worker_group.h"
#include "launcher/supervise/guardian_os.h"
#include "launcher/host/worker_memory_os.h"
#include "launcher/cli/job.h"
#include "launcher/output/logs_os.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/output/output_uv.h"
#include "launcher/report/report.h"
#include "launcher/util/log_os.h"
#include "launcher/util/signal_name.h"
#include "launcher/rdzv/rdzv_static_uv.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "base/err.h"
#include "base/time.h"
#include "proto/worker_notice.h"
#include "rendezvous/server_uv.h"
#include "rendezvous/session_message.h"

enum {
    SWEEP_PACE_MS = 10,
    STUCK_NAMED_MAX = 16,
    CONSOLE_PATIENCE_MS = 1000, /* at the end, for what it has not taken yet */
};

struct agent {
    const struct agent_config *config;
    struct worker_group group;
    struct logs logs;
    struct worker_memory worker_memory;
    uv_loop_t loop;
    uv_poll_t signals;
    uv_timer_t deadline; /* of the group */
    uv_timer_t sweep;    /* runs while we kill what a lost guardian left to us */
    struct output *output;
    struct events *events; /* NULL: nobody wants them */
    struct generation_host host;
    struct generation *generation;   /* NULL before the first */
    struct rank_assignment place;    /* of the current or next generation */
    struct server *store;            /* for the next generation to take; or NULL */
    int held_port;                   /* the same: a port that is kept free; or -1 */
    struct rdzv_static_uv *fixed;    /* JOB_STATIC */
    struct membership *nodes;        /* JOB_ROUNDS */
    struct session_cause peer_cause; /* why the generation is over, if it is because of another node */
    bool is_leaving;                 /* JOB_STATIC: only waiting for the other nodes */
    pid_t strangers[64]; /* children we were born with (a shell's that exec'ed crun): not the job's */
    size_t n_strangers;
    long oom_kills_before;
    char sender[80]; /* of the first signal that told us to stop, in words; "" when unknown */
    bool start_failed;
    bool replace_failed;
    bool gave_up;                    /* something cannot be killed */
    struct failures_outcome outcome; /* of the reports so far */
    int exit_code;
};

static void dispatch(struct agent *a, struct group_event event);

static void dispatch_kind(struct agent *a, enum group_event_kind kind)
{
    dispatch(a, (struct group_event){.kind = kind, .now_ns = now_ns(), .worker = -1});
}

/* ------------------------------------------------------------------ reports of the guardian */

static void end_generation(struct agent *a)
{
    struct generation *g = a->generation;

    if (g && g->empty && g->guardian)
        (void)kill(g->guardian, SIGKILL); /* it has nothing left, and is ending unless somebody stopped it */
    generation_destroy(g);
    a->generation = NULL;
}

static void on_report(void *data, const struct guardian_report *report)
{
    static const enum group_event_kind kinds[] = {
        [GUARDIAN_STARTED] = GROUP_STARTED, [GUARDIAN_EXEC_FAILED] = GROUP_EXEC_FAILED,
        [GUARDIAN_EXITED] = GROUP_EXITED,   [GUARDIAN_LEFT] = GROUP_LEFT,
        [GUARDIAN_EMPTY] = GROUP_EMPTY,
    };
    struct agent *a = data;

    if (report->kind == 0 || report->kind >= ARRAY_SIZE(kinds))
        return; /* not of our making; the link belongs to the two of us, but nothing may crash crun */
    if (report->worker < 0 || report->worker >= a->config->job->n_workers)
        return; /* the same */
    if (report->kind == GUARDIAN_EMPTY)
        output_flush(a->output); /* before anything is said about its end */
    if (report->kind == GUARDIAN_EXITED)
        a->group.workers[report->worker].max_rss_kib = report->max_rss_kib;
    dispatch(a, (struct group_event){.kind = kinds[report->kind],
                                     .now_ns = report->time_ns,
                                     .worker = report->worker,
                                     .pid = report->pid,
                                     .value = report->value,
                                     .unasked = report->unasked});
}

static void on_ready(void *data, int worker, uint32_t generation)
{
    dispatch(data, (struct group_event){
                       .kind = GROUP_READY, .now_ns = now_ns(), .worker = worker, .value = (int)generation});
}

static void on_guardian_lost(void *data)
{
    dispatch_kind(data, GROUP_GUARDIAN_LOST);
}

/* ------------------------------------------------------------------ children of our own */

/* Waits for whatever has ended. As process 1 of a container that includes strangers handed to us. False when
 * there is no child at all. */
static bool reap(struct agent *a)
{
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        if (a->generation && pid == a->generation->guardian)
            a->generation->guardian = 0;
        for (size_t i = 0; i < a->n_strangers; i++)
            if (a->strangers[i] == pid)
                a->strangers[i] = a->strangers[--a->n_strangers];
    }
    return pid == 0;
}

/* One round of killing what a lost guardian left to us. The guardian itself is among our children until it
 * has been waited for, and its children become ours before that: so no children means that nothing is left.
 * Without /proc (a negative number) only wait() tells whether there are any.
 */
static void on_sweep(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    bool has_children = reap(a);
    if (a->generation->guardian)
        return;
    int n = child_processes_signal(SIGKILL, a->strangers, a->n_strangers);
    if (n > 0 || (n < 0 && has_children))
        return;
    (void)uv_timer_stop(timer); /* cannot fail on a timer that exists */
    output_flush(a->output);
    dispatch_kind(a, GROUP_EMPTY);
}

static bool guardian_is_lost(const struct agent *a)
{
    return !uv_is_active((const uv_handle_t *)&a->generation->poll);
}

/* ------------------------------------------------------------------ signals */

static bool is_from_process(const struct signalfd_siginfo *info)
{
    return info->ssi_code == SI_USER || info->ssi_code == SI_TKILL || info->ssi_code == SI_QUEUE;
}

/* At once: who sends a signal may be gone a moment later. */
static void note_sender(struct agent *a, const struct signalfd_siginfo *info)
{
    if (a->group.interrupt)
        return;
    if (is_from_process(info) && info->ssi_pid)
        proc_info_sender((int)info->ssi_pid, info->ssi_uid, a->sender, sizeof(a->sender));
    else if (info->ssi_code == SI_KERNEL)
        (void)snprintf(a->sender, sizeof(a->sender), "the terminal");
}

/* The first SIGTERM of a scheduler that wants this node back, while the job cannot go on with fewer nodes. */
static bool wants_drain(const struct agent *a, int signal)
{
    return signal == SIGTERM && a->nodes && a->group.state == GROUP_RUNNING && !a->group.interrupt &&
           (int)a->place.group_world_size <= a->config->job->min_nodes;
}

static void leave_unmet(struct agent *a);

/* The workers are gone; whoever is still waited for (other nodes, the console) is not any longer. */
static void hurry(struct agent *a)
{
    if (a->is_leaving) {
        leave_unmet(a);
        return;
    }
    if (a->nodes)
        membership_hurry(a->nodes);
    output_abandon(a->output);
}

static void on_signals(uv_poll_t *poll, int status, int events)
{
    struct agent *a = poll->data;
    struct signalfd_siginfo info;

    while (read(a->config->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            reap(a);
            continue;
        }
        if (a->group.state == GROUP_DONE) {
            hurry(a);
            return;
        }
        note_sender(a, &info);
        if (wants_drain(a, (int)info.ssi_signo)) {
            membership_drain(a->nodes);
            dispatch(a, (struct group_event){.kind = GROUP_DRAIN,
                                             .now_ns = now_ns(),
                                             .worker = -1,
                                             .pid = is_from_process(&info) ? (pid_t)info.ssi_pid : 0,
                                             .value = (int)info.ssi_signo});
            continue;
        }
        dispatch(a, (struct group_event){.kind = GROUP_SIGNAL,
                                         .now_ns = now_ns(),
                                         .worker = -1,
                                         .pid = is_from_process(&info) ? (pid_t)info.ssi_pid : 0,
                                         .value = (int)info.ssi_signo});
    }
}

/* ------------------------------------------------------------------ actions */

/* Alone, a node makes its place itself: a fresh store, and all ranks are its own. */
static int make_place(struct agent *a)
{
    const struct job *job = a->config->job;
    uint32_t n = (uint32_t)job->n_workers;

    a->place = (struct rank_assignment){.group_world_size = 1, .world_size = n, .role_world_size = n};
    session_copy_text(a->place.master_addr, sizeof(a->place.master_addr), job->master_addr);
    if (job->worker_has_store) {
        int r = worker_store_hold(&a->held_port, &a->place.master_port);
        if (r)
            log_line("cannot find a free port for the store of the workers: %s", strerror(-r));
        return r;
    }
    int r = worker_store_open(&a->store, &a->loop, job->master_addr, job->master_port, &a->place.master_port);
    if (r)
        log_line("cannot open the worker store at %s port %u: %s%s", job->master_addr, job->master_port,
                 strerror(-r),
                 r == -EADDRINUSE
                     ? "; another program has it, choose another --master-port or use --standalone"
                     : "");
    return r;
}

static void drop_store(struct agent *a)
{
    if (a->held_port >= 0)
        (void)close(a->held_port);
    a->held_port = -1;
    if (a->store)
        server_stop(a->store, NULL, NULL);
    a->store = NULL;
}

static void tell_place(struct agent *a)
{
    const struct rank_assignment *p = &a->place;

    events_place(a->events, &(struct event_place){.group_rank = (int)p->group_rank,
                                                  .group_world_size = (int)p->group_world_size,
                                                  .rank_base = (int)p->rank_base,
                                                  .world_size = (int)p->world_size,
                                                  .role_rank_base = (int)p->role_rank_base,
                                                  .role_world_size = (int)p->role_world_size});
}

static void do_spawn(struct agent *a)
{
    end_generation(a); /* its workers are gone, so nobody misses its store */
    int r = a->config->job->meeting == JOB_ALONE ? make_place(a) : 0;

    a->host.death_notice = a->nodes ? membership_death_notice(a->nodes) : NULL;
    if (!r)
        r = generation_create(&a->generation, &a->host, a->group.generation, a->group.restarts, &a->place,
                              a->store);
    if (r) {
        drop_store(a);
    } else {
        a->generation->held_port = a->held_port;
        a->held_port = -1;
    }
    a->store = NULL;
    a->start_failed = r != 0;
    if (!r && a->group.generation == 0)
        a->oom_kills_before = cgroup_oom_kills(""); /* behind the start, where nobody waits for it */
}

static void notify_all(struct agent *a, struct worker_notice notice)
{
    notice.generation = a->group.generation;
    for (int i = 0; i < a->group.config.n_workers; i++)
        /* One of whose start nothing is known yet has its socket all the same, and reads it when it is there. */
        if (a->group.workers[i].state == GROUP_WORKER_RUNNING ||
            a->group.workers[i].state == GROUP_WORKER_NONE)
            generation_notify(a->generation, i, &notice);
}

static void do_notify_failed(struct agent *a, int worker)
{
    notify_all(a, (struct worker_notice){.kind = NOTICE_PEER_FAILED,
                                         .rank = (int)a->place.rank_base + worker,
                                         .detail = group_worker_code(&a->group.workers[worker])});
}

static void do_signal(struct agent *a, int signal)
{
    const struct guardian_order order = {.kind = GUARDIAN_SIGNAL, .signal = signal};

    generation_order(a->generation, &order);
}

static void do_kill(struct agent *a)
{
    const struct guardian_order order = {.kind = GUARDIAN_KILL};

    if (!guardian_is_lost(a))
        generation_order(a->generation, &order);
    else
        (void)uv_timer_start(&a->sweep, on_sweep, 0, SWEEP_PACE_MS); /* fails only without a callback */
}

static void do_replace(struct agent *a)
{
    int n = a->group.config.n_workers;
    bool *lost = calloc((size_t)n, sizeof(*lost));
    int r = lost ? 0 : -ENOMEM;

    for (int i = 0; !r && i < n; i++)
        lost[i] = a->group.workers[i].state == GROUP_WORKER_NONE;
    generation_close_store(a->generation); /* who stays has no use for it */
    if (!r)
        r = make_place(a);
    if (!r)
        r = generation_replace(a->generation, a->group.generation, a->group.restarts, &a->place, a->store,
                               lost, a->group.cause_worker);
    a->store = NULL; /* the generation's */
    a->replace_failed = r != 0;
    free(lost);
}

static void do_kill_condemned(struct agent *a)
{
    for (int i = 0; i < a->group.config.n_workers; i++) {
        const struct guardian_order order = {.kind = GUARDIAN_KILL_WORKER, .worker = i};

        if (a->group.workers[i].condemned && !a->group.workers[i].lost)
            generation_order(a->generation, &order);
    }
}

static void on_deadline(uv_timer_t *timer)
{
    dispatch_kind(timer->data, GROUP_TIMER);
}

static void do_arm(struct agent *a, uint64_t deadline_ns)
{
    uint64_t now = now_ns();
    uint64_t ms = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;

    uv_update_time(&a->loop);
    (void)uv_timer_start(&a->deadline, on_deadline, ms, 0); /* fails only without a callback */
}

static void do_report(struct agent *a)
{
    const struct failures_source source = {
        .group = &a->group,
        .job = a->config->job,
        .environment = a->config->environment,
        .program = a->config->file,
        .run_dir = a->logs.run,
        .log_dir = a->logs.run,
        .rank_base = (int)a->place.rank_base,
        .oom_kills = a->oom_kills_before < 0 ? -1 : cgroup_oom_kills("") - a->oom_kills_before,
        .sender = a->sender,
        .gave_up = a->gave_up,
    };

    failures_tell(&source, &a->outcome);
}

/* The link ends by this, and what the guardian had becomes ours. */
static void do_kill_guardian(struct agent *a)
{
    if (!a->generation->guardian)
        return;
    log_line(
        "the guardian (process %d) has not ended everything in time; crun kills it and does the rest itself",
        (int)a->generation->guardian);
    (void)kill(a->generation->guardian, SIGKILL);
}

static bool is_stranger(const struct agent *a, pid_t pid)
{
    for (size_t i = 0; i < a->n_strangers; i++)
        if (a->strangers[i] == pid)
            return true;
    return false;
}

static int local_rank_of(const struct agent *a, pid_t pid)
{
    for (int i = 0; i < a->group.config.n_workers; i++)
        if (a->group.workers[i].pid == pid)
            return i;
    return -1;
}

/* Processes that SIGKILL does not end sit in the kernel, mostly in a driver or a dead network file system.
 * The guardian is gone by now, so they are our children. */
static void do_give_up(struct agent *a)
{
    pid_t pids[STUCK_NAMED_MAX];

    int n = child_processes_list(pids, STUCK_NAMED_MAX);
    for (int i = 0; i < n; i++)
        if (!is_stranger(a, pids[i])) {
            char text[256];
            proc_info_stuck(pids[i], local_rank_of(a, pids[i]), text, sizeof(text));
            log_line("%s", text);
        }
    a->gave_up = true;
    log_line(
        "some processes of the job do not end on SIGKILL; crun ends without them, they go as soon as the kernel "
        "lets them");
}

/* ------------------------------------------------------------------ other nodes */

static void do_notify_peer(struct agent *a)
{
    notify_all(a, (struct worker_notice){.kind = NOTICE_PEER_FAILED,
                                         .rank = a->peer_cause.rank,
                                         .detail = a->peer_cause.exit_code});
}

static void do_failed(struct agent *a, int worker)
{
    const struct group_worker *w = worker < 0 ? NULL : &a->group.workers[worker];
    struct session_cause cause = {.kind = SESSION_CAUSE_WORKER,
                                  .group_rank = (int32_t)a->place.group_rank,
                                  .rank = -1,
                                  .local_rank = worker};

    proc_info_host_name(cause.host, sizeof(cause.host));
    if (w) {
        cause.rank = (int32_t)a->place.rank_base + worker;
        cause.pid = w->pid;
        cause.exit_code = group_worker_code(w);
        cause.fatal = w->state == GROUP_WORKER_EXEC_FAILED;
    } else {
        cause.exit_code = -SIGKILL;
        session_copy_text(cause.text, sizeof(cause.text),
                          "the parent process of the workers was killed from outside");
    }
    if (w && cause.fatal)
        (void)snprintf(cause.text, sizeof(cause.text), "%.300s could not be started: %s", a->config->file,
                       strerror(w->status)); /* a cut one still helps */
    else if (w)
        failures_read_message(a->generation->attempt_dir, worker, cause.text, sizeof(cause.text));
    if (a->group.is_draining && !cause.text[0])
        session_copy_text(cause.text, sizeof(cause.text),
                          "it had been asked to stop, as a node has to go away");
    membership_failed(a->nodes, &cause, w ? w->ended_ns : now_ns());
}

static void do_leave(struct agent *a, int signal)
{
    char why[64] = "it cannot go on";
    char name[SIGNAL_NAME_SIZE];

    if (signal)
        (void)snprintf(why, sizeof(why), "it was told to stop by %s",
                       signal_name(signal, name) ? name : "a signal"); /* fits */
    membership_leave(a->nodes, why);
}

static void on_start(void *data, uint32_t generation, int restarts, const struct rank_assignment *place,
                     struct server *store)
{
    struct agent *a = data;

    a->place = *place;
    a->store = store;
    tell_place(a);
    dispatch(a, (struct group_event){.kind = GROUP_START,
                                     .now_ns = now_ns(),
                                     .worker = -1,
                                     .generation = generation,
                                     .restarts = restarts});
}

static void on_stop(void *data, const struct session_cause *cause)
{
    struct agent *a = data;

    a->peer_cause = *cause;
    dispatch_kind(a, GROUP_STOP);
}

static void on_drain(void *data)
{
    dispatch_kind(data, GROUP_DRAIN);
}

static void on_end(void *data, int exit_code, const struct session_cause *cause)
{
    struct agent *a = data;

    a->peer_cause = cause ? *cause : (struct session_cause){.rank = -1};
    dispatch(a,
             (struct group_event){.kind = GROUP_END, .now_ns = now_ns(), .worker = -1, .value = exit_code});
}

static void on_placed(void *data, const struct rank_assignment *place)
{
    struct agent *a = data;

    a->place = *place;
    tell_place(a);
    dispatch_kind(a, GROUP_START);
}

static void on_not_placed(void *data)
{
    dispatch_kind(data, GROUP_START_FAILED);
}

static void on_nodes_gone(void *data)
{
    struct agent *a = data;

    a->nodes = NULL;
}

static void on_left(void *data);

static int meet(struct agent *a)
{
    const struct job *job = a->config->job;
    const struct rdzv_static_host fixed = {.loop = &a->loop,
                                           .job = job,
                                           .environment = a->config->environment,
                                           .on_placed = on_placed,
                                           .on_failed = on_not_placed,
                                           .on_left = on_left,
                                           .data = a};
    const struct membership_host nodes = {.loop = &a->loop,
                                          .job = job,
                                          .on_start = on_start,
                                          .on_stop = on_stop,
                                          .on_drain = on_drain,
                                          .on_end = on_end,
                                          .on_gone = on_nodes_gone,
                                          .data = a};

    if (job->meeting == JOB_STATIC)
        return rdzv_static_uv_create(&a->fixed, &fixed);
    int r = membership_create(&a->nodes, &nodes);
    if (!r)
        membership_ready(a->nodes);
    return r;
}

static void begin(struct agent *a)
{
    if (a->config->job->meeting == JOB_ALONE)
        dispatch_kind(a, GROUP_START);
    else if (meet(a) != 0)
        dispatch_kind(a, GROUP_START_FAILED);
}

/* ------------------------------------------------------------------ the end */

static void close_handles(struct agent *a)
{
    uv_close((uv_handle_t *)&a->signals, NULL);
    uv_close((uv_handle_t *)&a->deadline, NULL);
    uv_close((uv_handle_t *)&a->sweep, NULL);
}

static void on_output_end(void *data)
{
    close_handles(data);
}

static void on_console_patience(uv_timer_t *timer)
{
    struct agent *a = timer->data;

    output_abandon(a->output);
}

static void finish(struct agent *a)
{
    if (a->generation && a->generation->empty && a->generation->guardian) {
        (void)kill(a->generation->guardian, SIGKILL); /* it has nothing left; somebody may have stopped it */
        (void)waitpid(a->generation->guardian, NULL, 0);
    }
    (void)uv_timer_stop(&a->sweep); /* cannot fail on a timer that exists */
    events_end(a->events, &a->group, &a->outcome, a->exit_code,
               a->generation ? a->generation->attempt_dir : NULL);
    end_generation(a);
    drop_store(a);
    rdzv_static_uv_destroy(a->fixed);
    a->fixed = NULL;
    membership_destroy(a->nodes);
    if (a->group.interrupt) /* whoever told us to stop does not wait for a slow console */
        (void)uv_timer_start(&a->deadline, on_console_patience, CONSOLE_PATIENCE_MS, 0);
    if (!a->gave_up)
        output_end(a->output);
    else /* somebody who cannot be killed may hold a pipe for ever */
        output_abandon(a->output);
}

static void on_left(void *data)
{
    struct agent *a = data;

    if (a->is_leaving) {
        a->is_leaving = false;
        finish(a);
    }
}

/* Told to stop while it waits for other nodes: how they end is not known. */
static void leave_unmet(struct agent *a)
{
    a->exit_code = 1;
    on_left(a);
}

static void do_finish(struct agent *a, int code)
{
    /* Without a report (a start that failed) no worker has a code. */
    bool is_worker_s = code && a->config->job->exit_code_of_worker && a->outcome.worker_code;
    a->exit_code = is_worker_s ? a->outcome.worker_code : code;
    if (a->nodes && a->group.is_ending) {
        a->exit_code = code;
        membership_tell_end(a->nodes);
    }
    if (!a->fixed || code != 0) {
        finish(a);
        return;
    }
    a->is_leaving = true;
    rdzv_static_uv_leave(a->fixed);
}

static void perform(struct agent *a, const struct group_action *action)
{
    switch (action->kind) {
    case GROUP_DO_SPAWN:
        do_spawn(a);
        break;
    case GROUP_DO_NOTIFY_FAILED:
        do_notify_failed(a, action->value);
        break;
    case GROUP_DO_NOTIFY_STOP:
        notify_all(a, (struct worker_notice){.kind = NOTICE_STOP, .rank = -1, .detail = action->value});
        break;
    case GROUP_DO_SIGNAL:
        do_signal(a, action->value);
        break;
    case GROUP_DO_KILL:
        do_kill(a);
        break;
    case GROUP_DO_ARM:
        do_arm(a, action->deadline_ns);
        break;
    case GROUP_DO_DISARM:
        (void)uv_timer_stop(&a->deadline); /* cannot fail on a timer that exists */
        break;
    case GROUP_DO_REPORT:
        do_report(a);
        break;
    case GROUP_DO_START_AGAIN:
        events_restart(a->events, &a->group, &a->outcome);
        dispatch_kind(a, GROUP_START);
        break;
    case GROUP_DO_KILL_GUARDIAN:
        do_kill_guardian(a);
        break;
    case GROUP_DO_GIVE_UP:
        do_give_up(a);
        break;
    case GROUP_DO_REPLACE:
        do_replace(a);
        break;
    case GROUP_DO_KILL_CONDEMNED:
        do_kill_condemned(a);
        break;
    case GROUP_DO_FINISH:
        do_finish(a, action->value);
        break;
    case GROUP_DO_FAILED:
        do_failed(a, action->value);
        break;
    case GROUP_DO_DONE:
        membership_done(a->nodes);
        break;
    case GROUP_DO_READY:
        membership_ready(a->nodes);
        break;
    case GROUP_DO_LEAVE:
        do_leave(a, action->value);
        break;
    case GROUP_DO_NOTIFY_PEER:
        do_notify_peer(a);
        break;
    }
}

static void dispatch(struct agent *a, struct group_event event)
{
    struct group_actions actions;

    group_step(&a->group, &event, &actions);
    events_step(a->events, &a->group, &event, &actions);
    for (size_t i = 0; i < actions.n_items; i++)
        perform(a, &actions.items[i]);
    if (a->start_failed) {
        a->start_failed = false;
        dispatch_kind(a, GROUP_START_FAILED);
    }
    if (a->replace_failed) {
        a->replace_failed = false;
        dispatch_kind(a, GROUP_REPLACE_FAILED);
    }
}

/* ------------------------------------------------------------------ life */

static int open_loop(struct agent *a)
{
    int r = uv_loop_init(&a->loop);

    if (r)
        return r;
    r = uv_poll_init(&a->loop, &a->signals, a->config->signal_fd);
    if (!r)
        r = uv_timer_init(&a->loop, &a->deadline);
    if (!r)
        r = uv_timer_init(&a->loop, &a->sweep);
    a->signals.data = a->deadline.data = a->sweep.data = a;
    return r ? r : uv_poll_start(&a->signals, UV_READABLE, on_signals);
}

static int agent_init(struct agent *a, const struct agent_config *config)
{
    const struct job *job = config->job;
    const struct group_config group_config = {
        .n_workers = job->n_workers,
        .max_restarts = job->max_restarts,
        .grace_ns = (uint64_t)job->shutdown_timeout_s * 1000000000u,
        .placed = job->meeting == JOB_ROUNDS,
        /* With other nodes it takes more than this one to decide it; a store of a worker dies with it. */
        .replace = job->replace && job->meeting == JOB_ALONE && !job->worker_has_store,
        .reform_ns = (uint64_t)job->replace_timeout_s * 1000000000u,
    };

    *a = (struct agent){.config = config, .oom_kills_before = -1, .held_port = -1};
    int n_strangers = child_processes_list(a->strangers, (int)ARRAY_SIZE(a->strangers));
    a->n_strangers = n_strangers > 0 ? (size_t)n_strangers : 0;
    if (n_strangers < 0)
        log_line(
            "there is no /proc here: what workers leave behind in sessions of their own cannot be found and ended");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return -errno;
    int r = group_init(&a->group, &group_config);
    if (!r)
        r = logs_init(&a->logs, job->log_dir, config->environment, job->n_workers);
    if (!r)
        r = worker_memory_init(&a->worker_memory, job->n_workers);
    if (!r)
        r = open_loop(a);
    if (!r)
        r = output_create(&a->output, &a->loop, job, config->environment, on_output_end, a);
    a->host = (struct generation_host){.loop = &a->loop,
                                       .config = config,
                                       .worker_memory = &a->worker_memory,
                                       .logs = &a->logs,
                                       .output = a->output,
                                       .on_report = on_report,
                                       .on_lost = on_guardian_lost,
                                       .on_ready = on_ready,
                                       .data = a};
    return r;
}

static bool say_in_order(void *data, const char *lines)
{
    struct agent *a = data;

    return output_say(a->output, lines);
}

/* A temporary folder stays when the user asked for the files in it, or has to know why the job failed. */
static void end_logs(const struct agent *a)
{
    const struct job *job = a->config->job;

    if (!job_has_logs(job) && (a->exit_code == 0 || !a->outcome.has_files))
        logs_remove_temporary(&a->logs);
    else
        logs_remove_empty(&a->logs);
    if (a->logs.is_temporary && a->logs.run && a->exit_code == 0 && job_hides_output(job))
        log_line("the workers' output is in %s", a->logs.run);
}

int agent_run(const struct agent_config *config)
{
    struct agent a;

    int r = agent_init(&a, config);
    if (r) { /* the process is about to exit: what was opened goes with it */
        log_line("cannot start: %s", strerror(-r));
        return 1;
    }
    a.events = events_create(config->job, config->file);
    log_redirect(say_in_order, &a);
    on_signals(&a.signals, 0, UV_READABLE); /* told to stop before anything was started? */
    if (a.group.state == GROUP_IDLE)
        begin(&a);
    (void)uv_run(&a.loop, UV_RUN_DEFAULT); /* ends when the last handle is closed */
    (void)uv_loop_close(&a.loop);          /* nothing is open any more */
    log_redirect(NULL, NULL);
    events_destroy(a.events);
    end_logs(&a);
    output_destroy(a.output);
    group_finish(&a.group);
    worker_memory_finish(&a.worker_memory);
    logs_finish(&a.logs);
    return a.exit_code;
}
