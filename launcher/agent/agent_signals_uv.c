/* Signals to crun. worker_group.c decides about their meaning. */

#include "launcher/agent/agent_signals_uv.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/agent/agent_children_uv.h"
#include "launcher/agent/agent_hang_uv.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/supervise/suspend.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"

struct agent_signals {
    const struct agent_host *host;
    struct agent_children *children;
    struct agent_hang *hang;
    uv_poll_t poll;
};

static bool is_from_process(const struct signalfd_siginfo *info)
{
    return info->ssi_code == SI_USER || info->ssi_code == SI_TKILL || info->ssi_code == SI_QUEUE;
}

/* Looked up at once: the sender of a signal may end at any time. pid 0: the terminal. */
static void note_sender(const struct agent_host *host, pid_t pid, uid_t uid)
{
    char text[80] = "the terminal";

    if (host->group->interrupt)
        return;
    if (pid)
        proc_info_sender((int)pid, uid, text, sizeof(text));
    host->note_sender(host->data, text);
}

static bool ends_the_job(const struct agent_host *host, uint32_t signal)
{
    return signal < 64 && (host->job->signals & UINT64_C(1) << (signal - 1));
}

/* Of a signal that does not end the job. */
static enum group_event_kind event_of_signal(uint32_t signal)
{
    return signal == SIGTSTP ? GROUP_SUSPEND : signal == SIGCONT ? GROUP_RESUME : GROUP_PASS_SIGNAL;
}

/* The far end is gone or has left the front, and the rendezvous has gone with them. */
static bool has_lost_front(const struct job *job)
{
    struct pollfd link = {.fd = job->output_fd};

    return job_has_front_rendezvous(job) && poll(&link, 1, 0) > 0 && link.revents & POLLHUP;
}

/* From the front of the job, which has sent the signal to all nodes; without the front each node is alone. */
static bool is_for_all(const struct agent_host *host, const struct signalfd_siginfo *info)
{
    bool is_queued = info->ssi_code == SI_QUEUE && info->ssi_int == JOB_SIGNAL_OF_ALL;

    return host->job->output_fd && (is_queued || has_lost_front(host->job));
}

/* sender: 0 when unknown. */
static struct group_event make_signal_event(const struct agent_host *host, uint32_t signal, pid_t sender)
{
    return (struct group_event){.kind = ends_the_job(host, signal) ? GROUP_SIGNAL : event_of_signal(signal),
                                .now_ns = now_ns(),
                                .worker = -1,
                                .pid = sender,
                                .value = (int)signal};
}

/* A signal of a worker to the guardian, its parent. Only signals that end the job: batch systems signal the guardian, too, and a
 * worker has no reason to have any other signal passed on. */
void agent_signals_pass(const struct agent_host *host, int signal, pid_t sender)
{
    if (signal <= 0 || !ends_the_job(host, (uint32_t)signal))
        return;
    note_sender(host, sender, getuid());
    host->dispatch(host->data, make_signal_event(host, (uint32_t)signal, sender));
}

/* The stacks come first; a second SIGQUIT does not wait. */
static bool is_put_off(const struct agent_signals *s, const struct group_event *event)
{
    const struct worker_group *g = s->host->group;

    return event->value == SIGQUIT && event->kind == GROUP_SIGNAL && g->state == GROUP_RUNNING &&
           !g->interrupt && agent_hang_put_off_quit(s->hang, event);
}

void agent_signals_read(struct agent_signals *s)
{
    struct signalfd_siginfo info;

    while (!uv_is_closing((uv_handle_t *)&s->poll) &&
           read(s->host->config->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            agent_children_reap(s->children);
            continue;
        }
        pid_t sender = is_from_process(&info) ? (pid_t)info.ssi_pid : 0;
        struct group_event event = make_signal_event(s->host, info.ssi_signo, sender);
        event.stops_job = event.kind == GROUP_SIGNAL && is_for_all(s->host, &info);
        if (event.kind == GROUP_SIGNAL && !event.stops_job && (sender || info.ssi_code == SI_KERNEL))
            note_sender(s->host, sender, info.ssi_uid);
        if (info.ssi_signo == SIGTSTP && !suspend_is_possible())
            continue; /* the kernel would ignore the stop */
        if (!is_put_off(s, &event))
            s->host->dispatch(s->host->data, event);
    }
}

static void on_signals(uv_poll_t *poll, int status, int events)
{
    agent_signals_read(poll->data);
}

void agent_signals_close(struct agent_signals *s)
{
    if (!uv_is_closing((uv_handle_t *)&s->poll))
        uv_close((uv_handle_t *)&s->poll, NULL);
}

int agent_signals_create(struct agent_signals **ret, const struct agent_host *host,
                         struct agent_children *children, struct agent_hang *hang)
{
    static struct agent_signals signals; /* a process has one agent */
    struct agent_signals *s = &signals;

    TRY(uv_poll_init(host->loop, &s->poll, host->config->signal_fd));
    s->host = host;
    s->children = children;
    s->hang = hang;
    s->poll.data = s;
    *ret = s;
    return uv_poll_start(&s->poll, UV_READABLE, on_signals);
}
