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

#include "launcher/agent_uv.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "launcher/cgroup_os.h"
#include "launcher/children.h"
#include "launcher/environment.h"
#include "launcher/events_os.h"
#include "launcher/failures_os.h"
#include "launcher/generation_uv.h"
#include "launcher/group.h"
#include "launcher/guardian.h"
#include "launcher/job.h"
#include "launcher/logs_os.h"
#include "launcher/machine_os.h"
#include "launcher/output_uv.h"
#include "launcher/report.h"
#include "launcher/say.h"
#include "proto/base/err.h"
#include "proto/notice.h"

enum {
    SWEEP_PACE_MS = 10,
    STUCK_NAMED_MAX = 16,
    CONSOLE_PATIENCE_MS = 1000, /* at the end, for what it has not taken yet */
};

struct agent {
    const struct agent_config *config;
    struct group group;
    struct logs logs;
    uv_loop_t loop;
    uv_poll_t signals;
    uv_timer_t deadline; /* of the group */
    uv_timer_t sweep;    /* runs while we kill what a lost guardian left to us */
    struct output *output;
    struct events *events; /* NULL: nobody wants them */
    struct generation_host host;
    struct generation *generation; /* NULL before the first */
    pid_t strangers[64]; /* children we were born with (a shell's that exec'ed crun): not the job's */
    size_t n_strangers;
    long oom_kills_before;
    char sender[80]; /* of the first signal that told us to stop, in words; "" when unknown */
    bool start_failed;
    bool gave_up; /* something cannot be killed */
    struct failures_outcome outcome; /* of the reports so far */
    int exit_code;
};

static void dispatch(struct agent *a, struct group_event event);

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock; the guardian's times are of it */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

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
                                     .value = report->value});
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
    int n = children_signal(SIGKILL, a->strangers, a->n_strangers);
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
        machine_describe_sender((int)info->ssi_pid, info->ssi_uid, a->sender, sizeof(a->sender));
    else if (info->ssi_code == SI_KERNEL)
        (void)snprintf(a->sender, sizeof(a->sender), "the terminal");
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
        if (a->group.state == GROUP_DONE) { /* only the console has not taken everything yet */
            output_abandon(a->output);
            return;
        }
        note_sender(a, &info);
        dispatch(a, (struct group_event){.kind = GROUP_SIGNAL,
                                         .now_ns = now_ns(),
                                         .worker = -1,
                                         .pid = is_from_process(&info) ? (pid_t)info.ssi_pid : 0,
                                         .value = (int)info.ssi_signo});
    }
}

/* ------------------------------------------------------------------ actions */

static void do_spawn(struct agent *a)
{
    end_generation(a); /* its workers are gone, so nobody misses its store */
    int r = generation_create(&a->generation, &a->host, a->group.generation, a->group.restarts);

    a->start_failed = r != 0;
    if (!r && a->group.generation == 0)
        a->oom_kills_before = cgroup_oom_kills(""); /* behind the start, where nobody waits for it */
}

static void notify_all(struct agent *a, struct notice notice)
{
    notice.generation = a->group.generation;
    for (int i = 0; i < a->group.config.n_workers; i++)
        if (a->group.workers[i].state == GROUP_WORKER_RUNNING)
            generation_notify(a->generation, i, &notice);
}

static void do_notify_failed(struct agent *a, int worker)
{
    notify_all(a, (struct notice){.kind = NOTICE_PEER_FAILED,
                                  .rank = worker,
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
        .attempt_dir = a->generation ? a->generation->attempt_dir : NULL,
        .log_dir = a->logs.run,
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
    say("the guardian (process %d) has not ended everything in time; crun kills it and does the rest itself",
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

    int n = children_list(pids, STUCK_NAMED_MAX);
    for (int i = 0; i < n; i++)
        if (!is_stranger(a, pids[i]))
            machine_say_stuck(pids[i], local_rank_of(a, pids[i]));
    a->gave_up = true;
    say("some processes of the job do not end on SIGKILL; crun ends without them, they go as soon as the kernel "
        "lets them");
}

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

static void do_finish(struct agent *a, int code)
{
    a->exit_code = code && a->config->job->exit_code_of_worker ? a->outcome.worker_code : code;
    if (a->generation && a->generation->empty && a->generation->guardian) {
        (void)kill(a->generation->guardian, SIGKILL); /* it has nothing left; somebody may have stopped it */
        (void)waitpid(a->generation->guardian, NULL, 0);
    }
    (void)uv_timer_stop(&a->sweep); /* cannot fail on a timer that exists */
    events_end(a->events, &a->group, &a->outcome, a->exit_code, a->generation ? a->generation->attempt_dir : NULL);
    end_generation(a);
    if (a->group.interrupt) /* whoever told us to stop does not wait for a slow console */
        (void)uv_timer_start(&a->deadline, on_console_patience, CONSOLE_PATIENCE_MS, 0);
    if (!a->gave_up)
        output_end(a->output);
    else /* somebody who cannot be killed may hold a pipe for ever */
        output_abandon(a->output);
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
        notify_all(a, (struct notice){.kind = NOTICE_STOP, .rank = -1, .detail = action->value});
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
    case GROUP_DO_FINISH:
        do_finish(a, action->value);
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
    };

    *a = (struct agent){.config = config, .oom_kills_before = -1};
    int n_strangers = children_list(a->strangers, (int)ARRAY_SIZE(a->strangers));
    a->n_strangers = n_strangers > 0 ? (size_t)n_strangers : 0;
    if (n_strangers < 0)
        say("there is no /proc here: what workers leave behind in sessions of their own cannot be found and ended");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return -errno;
    int r = group_init(&a->group, &group_config);
    if (!r)
        r = logs_init(&a->logs, job->log_dir, config->environment, job->n_workers);
    if (!r)
        r = open_loop(a);
    if (!r)
        r = output_create(&a->output, &a->loop, job, config->environment, on_output_end, a);
    a->host = (struct generation_host){.loop = &a->loop,
                                       .config = config,
                                       .logs = &a->logs,
                                       .output = a->output,
                                       .on_report = on_report,
                                       .on_lost = on_guardian_lost,
                                       .data = a};
    return r;
}

static bool say_in_order(void *data, const char *lines)
{
    struct agent *a = data;

    return output_say(a->output, lines);
}

int agent_run(const struct agent_config *config)
{
    struct agent a;

    int r = agent_init(&a, config);
    if (r) { /* the process is about to exit: what was opened goes with it */
        say("cannot start: %s", strerror(-r));
        return 1;
    }
    a.events = events_create(config->job, config->file);
    say_through(say_in_order, &a);
    on_signals(&a.signals, 0, UV_READABLE); /* told to stop before anything was started? */
    if (a.group.state == GROUP_IDLE)
        dispatch_kind(&a, GROUP_START);
    (void)uv_run(&a.loop, UV_RUN_DEFAULT); /* ends when the last handle is closed */
    (void)uv_loop_close(&a.loop);          /* nothing is open any more */
    say_through(NULL, NULL);
    events_destroy(a.events);
    if (a.exit_code == 0 || !a.outcome.has_files)
        logs_remove_temporary(&a.logs);
    output_destroy(a.output);
    group_finish(&a.group);
    logs_finish(&a.logs);
    return a.exit_code;
}
