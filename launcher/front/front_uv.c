#include "launcher/front/front_uv.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/front/front.h"
#include "launcher/front/front_copy_openssl.h"
#include "launcher/front/front_output_uv.h"
#include "launcher/front/front_plan.h"
#include "launcher/front/front_server_uv.h"
#include "launcher/front/front_stdin_uv.h"
#include "launcher/front/front_streams_uv.h"
#include "launcher/front/host_channel_uv.h"
#include "launcher/cli/job.h"
#include "launcher/util/log_os.h"
#include "launcher/util/read_disk_os.h"
#include "launcher/util/side_thread_os.h"
#include "launcher/util/signal_name.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/secret_os.h"

enum { FRONT_TICK_MS = 2000, FAREWELL_TICKS_MAX = 2 };

struct front_loop {
    const struct front_setup *setup;
    struct front core;
    const char **names; /* of the hosts */
    uv_loop_t loop;
    uv_timer_t tick;
    uv_poll_t signals;
    struct host_channel_handler handler;
    struct host_channel **channels; /* by host; NULL: not started */
    struct front_streams streams;
    int exit_code;
    unsigned n_expected; /* usable hosts, as the rendezvous knows them */
    unsigned n_farewell; /* ticks since the end */
    bool is_finished, is_output_over, is_closed;
};

static void front_dispatch(struct front_loop *f, struct front_event event);

/* ---- end ---- */

static void close_front(struct front_loop *f)
{
    bool is_alive = false;

    for (unsigned i = 0; i < f->core.config.n_hosts; i++)
        is_alive = is_alive || (f->channels[i] && host_channel_is_alive(f->channels[i]));
    bool is_patient = is_alive && f->n_farewell < FAREWELL_TICKS_MAX && f->core.n_signals < 3;
    if (!f->is_finished || !f->is_output_over || is_patient || f->is_closed)
        return;
    f->is_closed = true;
    front_server_stop(f->streams.server);
    uv_close((uv_handle_t *)&f->tick, NULL);
    uv_close((uv_handle_t *)&f->signals, NULL);
}

static void on_output_end(void *data)
{
    struct front_loop *f = data;

    f->is_output_over = true;
    log_redirect(NULL, NULL);
    close_front(f);
}

static void finish_front(struct front_loop *f, int exit_code)
{
    f->is_finished = true;
    f->exit_code = exit_code;
    front_streams_finish(&f->streams);
    front_stdin_close(steal_ptr(f->streams.input));
    if (f->core.n_signals < 3)
        front_output_end(f->streams.output, exit_code);
    else
        front_output_abandon(f->streams.output);
}

/* ---- actions ---- */

static void close_host(struct front_loop *f, unsigned host)
{
    struct host_channel *c = f->channels[host];

    if (!c || f->is_finished)
        return;
    front_streams_close_host(&f->streams, host, c);
    host_channel_close(c);
}

static void launch_host(struct front_loop *f, unsigned host)
{
    const struct host_launch launch = {.file = f->setup->launch_file,
                                       .argv = f->setup->plan->hosts[host].launch.items,
                                       .environment = f->setup->environment};
    f->channels[host] =
        host_channel_start(&f->loop, host, f->setup->plan->hosts[host].login, &launch, &f->handler);
}

static void signal_host(struct front_loop *f, unsigned host, int signal)
{
    const uint32_t number = (uint32_t)signal;

    (void)channel_numbers_append(host_channel_out(f->channels[host]), CHANNEL_SIGNAL, 0, &number,
                                 1); /* without memory the signal is lost */
    host_channel_flush(f->channels[host]);
}

/* Without a rendezvous of its own the front asks the agents. */
static void end_front_job(struct front_loop *f)
{
    if (f->streams.server)
        front_server_end_job(f->streams.server, f->core.cause);
    for (unsigned i = 0; i < f->core.config.n_hosts && !f->streams.server; i++)
        if (f->core.hosts[i].state == FRONT_RUNNING)
            signal_host(f, i, SIGTERM);
}

static void carry_out(struct front_loop *f, const struct front_action *a)
{
    switch (a->kind) {
    case FRONT_DO_LAUNCH:
        launch_host(f, a->host);
        break;
    case FRONT_DO_SIGNAL:
        signal_host(f, a->host, a->value);
        break;
    case FRONT_DO_CLOSE:
        close_host(f, a->host);
        break;
    case FRONT_DO_SAY:
        log_line("%s", front_why(&f->core));
        break;
    case FRONT_DO_END_JOB:
        end_front_job(f);
        break;
    case FRONT_DO_FINISH:
        finish_front(f, a->value);
        break;
    }
}

static void front_dispatch(struct front_loop *f, struct front_event event)
{
    event.now_ms = uv_now(&f->loop);
    front_step(&f->core, event);
    for (size_t i = 0; i < f->core.n_actions; i++)
        carry_out(f, &f->core.actions[i]);
    if (f->streams.server && f->n_expected != f->core.n_usable) {
        f->n_expected = f->core.n_usable;
        front_server_expect(f->streams.server, f->n_expected);
    }
    close_front(f);
}

/* ---- events of channels ---- */

static void on_host_needs(void *data, unsigned host, const char *hash)
{
    struct front_loop *f = data;
    const struct file_part *build = front_copies_find(f->setup->copies, hash);

    front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_COPY, .host = host});
    host_channel_give_copy(f->channels[host], build ? build->bytes : NULL, build ? build->n_bytes : 0);
}

static int append_texts(struct buf *out, enum channel_kind kind, const struct strlist *list)
{
    for (size_t i = 0; i < list->n_items; i++)
        TRY(channel_frame_append(out, kind, 0, list->items[i], strlen(list->items[i])));
    return 0;
}

static int append_header(const struct front_loop *f, unsigned host, struct buf *out)
{
    const struct front_plan *plan = f->setup->plan;
    const struct secret *secret = f->setup->secret;
    const uint32_t start[] = {(uint32_t)f->setup->job->shutdown_timeout_s,
                              (uint32_t)plan->hosts[host].n_workers};

    TRY(channel_frame_append(out, CHANNEL_SECRET, 0, secret->bytes, secret->bytes ? secret->size : 0));
    TRY(channel_frame_append(out, CHANNEL_DIRECTORY, 0, plan->directory, strlen(plan->directory)));
    TRY(append_texts(out, CHANNEL_VARIABLE, &plan->variables));
    TRY(append_texts(out, CHANNEL_ARGUMENT, &plan->hosts[host].agent));
    return channel_numbers_append(out, CHANNEL_START, 0, start, 2);
}

static void on_host_greeted(void *data, unsigned host)
{
    struct front_loop *f = data;
    struct host_channel *c = f->channels[host];
    int r = append_header(f, host, host_channel_out(c));

    channel_streams_limit(&host_channel_link(c)->streams, (size_t)f->setup->plan->hosts[host].n_workers);
    if (r == 0) {
        host_channel_flush(c);
        front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_GREETED, .host = host});
        return;
    }
    close_host(f, host);
    front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_LOST, .host = host, .text = strerror(-r)});
}

static void on_host_lost(void *data, unsigned host, const char *why)
{
    struct front_loop *f = data;
    const char *note = host_channel_note(f->channels[host]);

    close_host(f, host);
    front_dispatch(f, (struct front_event){.kind = note ? FRONT_EVENT_REFUSED : FRONT_EVENT_LOST,
                                           .host = host,
                                           .text = note ? note : why});
}

/* A killed agent has reported nothing. */
static void lose_agent(struct front_loop *f, unsigned host, int signal)
{
    char name[SIGNAL_NAME_SIZE], why[SIGNAL_NAME_SIZE + 64];

    if (signal_name(signal, name))
        (void)snprintf(why, sizeof(why), "crun was ended there by %s", name);
    else
        (void)snprintf(why, sizeof(why), "crun was ended there by signal %d", signal);
    on_host_lost(f, host, why);
}

static int on_host_frame(void *data, unsigned host, const struct channel_frame *frame)
{
    struct front_loop *f = data;

    size_t n_nodes = front_server_n_nodes(f->streams.server);
    if (n_nodes != f->core.n_joined)
        front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_JOINED, .value = (int)n_nodes});
    if (frame->kind != CHANNEL_RESULT)
        return front_streams_frame(&f->streams, host, f->channels[host], frame);
    if (host_channel_note(f->channels[host])) {
        on_host_lost(f, host, "");
        return 0;
    }
    if (!frame->result.has_exited) {
        lose_agent(f, host, (int)frame->result.code);
        return 0;
    }
    close_host(f, host);
    front_dispatch(
        f, (struct front_event){.kind = FRONT_EVENT_RESULT, .host = host, .value = (int)frame->result.code});
    return 0;
}

static void on_host_line(void *data, unsigned host, const char *line)
{
    const struct front_loop *f = data;

    if (*line)
        log_line("[%s] %s", f->names[host], line);
}

static void on_output_granted(void *data, unsigned host, uint32_t stream, size_t n)
{
    struct front_loop *f = data;

    if (!f->is_finished)
        front_streams_grant(f->channels[host], stream, n);
}

/* ---- signals, time ---- */

static void reap_launches(struct front_loop *f)
{
    int status;

    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (unsigned i = 0; i < f->core.config.n_hosts; i++)
            if (f->channels[i] && host_channel_reap(f->channels[i], pid, status))
                break;
    close_front(f);
}

static void take_signal(struct front_loop *f, int signal)
{
    if (signal == SIGCHLD)
        reap_launches(f);
    else if (signal == SIGTSTP)
        log_line("a job on several hosts cannot be suspended");
    else if (signal == SIGUSR1 || signal == SIGUSR2)
        front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_PASS, .value = signal});
    else if (signal != SIGCONT) {
        front_output_hurry(f->streams.output); /* results come behind the last output */
        front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_SIGNAL, .value = signal});
    }
}

static void on_front_signals(uv_poll_t *poll, int status, int events)
{
    struct front_loop *f = poll->data;
    struct signalfd_siginfo info;

    while (!f->is_closed && read(f->setup->signal_fd, &info, sizeof(info)) == sizeof(info))
        take_signal(f, (int)info.ssi_signo);
}

static void tick_host(struct front_loop *f, unsigned host)
{
    if (!f->channels[host] && f->core.hosts[host].state == FRONT_STARTING)
        front_dispatch(
            f, (struct front_event){.kind = FRONT_EVENT_LOST, .host = host, .text = strerror(ENOMEM)});
    if (!f->channels[host])
        return;
    host_channel_tick(f->channels[host]);
    unsigned silence_s = host_channel_silence_s(f->channels[host]);
    if (silence_s != f->core.hosts[host].silence_s)
        front_dispatch(
            f, (struct front_event){.kind = FRONT_EVENT_SILENT, .host = host, .value = (int)silence_s});
}

static void on_front_tick(uv_timer_t *timer)
{
    struct front_loop *f = timer->data;

    f->n_farewell += f->is_finished;
    for (unsigned i = 0; i < f->core.config.n_hosts; i++)
        tick_host(f, i);
    if (f->streams.input)
        front_stdin_go_on(f->streams.input);
    front_dispatch(f, (struct front_event){.kind = FRONT_EVENT_TICK});
}

/* ---- life ---- */

static int prepare_hosts(struct front_loop *f, const struct front_plan *plan)
{
    const size_t n = plan->list.n;
    const struct front_config config = {.n_hosts = (unsigned)n,
                                        .min_nodes = (unsigned)plan->min_nodes,
                                        .max_nodes = (unsigned)plan->max_nodes,
                                        .grace_ms = f->setup->grace_ms,
                                        .hosts_rendezvous = plan->hosts_rendezvous,
                                        .exit_code_of_worker = f->setup->job->exit_code_of_worker};

    f->names = calloc(n, sizeof(const char *));
    f->channels = calloc(n, sizeof(struct host_channel *));
    if (!f->names || !f->channels)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        f->names[i] = plan->list.hosts[i].name;
    return front_init(&f->core, &config, f->names);
}

static int open_services(struct front_loop *f)
{
    const struct front_setup *setup = f->setup;
    const struct front_output_config output = {.job = setup->job,
                                               .environment = setup->environment,
                                               .hosts = f->names,
                                               .n_hosts = f->core.config.n_hosts,
                                               .n_ranks = setup->plan->n_ranks,
                                               .granted = on_output_granted,
                                               .on_end = on_output_end,
                                               .data = f};

    f->streams.loop = &f->loop;
    f->streams.n_usable = &f->core.n_usable;
    f->streams.lines.names = f->names;
    f->streams.lines.n_hosts = f->core.config.n_hosts;
    TRY(front_output_create(&f->streams.output, &f->loop, &output));
    TRY(front_stdin_create(&f->streams.input, &f->loop));
    return setup->plan->hosts_rendezvous
               ? front_server_create(&f->streams.server, &f->loop, setup->secret, setup->plan->admits,
                                     setup->plan->job_id, setup->environment)
               : 0;
}

static int begin_front(struct front_loop *f)
{
    f->handler = (struct host_channel_handler){.data = f,
                                               .on_needs = on_host_needs,
                                               .on_greeted = on_host_greeted,
                                               .on_frame = on_host_frame,
                                               .on_line = on_host_line,
                                               .on_lost = on_host_lost};
    TRY(uv_loop_init(&f->loop));
    TRY(prepare_hosts(f, f->setup->plan));
    TRY(uv_poll_init(&f->loop, &f->signals, f->setup->signal_fd));
    TRY(open_services(f));
    front_streams_init(&f->streams);
    (void)uv_timer_init(&f->loop, &f->tick); /* none of these can fail */
    f->tick.data = f->signals.data = f;
    (void)uv_timer_start(&f->tick, on_front_tick, FRONT_TICK_MS, FRONT_TICK_MS);
    (void)uv_poll_start(&f->signals, UV_READABLE, on_front_signals);
    return 0;
}

static bool show_in_order(void *data, const char *lines)
{
    return front_streams_say(data, lines);
}

static void finish_loop(struct front_loop *f)
{
    for (unsigned i = 0; i < f->core.config.n_hosts; i++)
        host_channel_destroy(f->channels[i]);
    front_output_destroy(f->streams.output);
    front_finish(&f->core);
    free(f->names);
    free(f->channels);
}

int front_run(const struct front_setup *setup)
{
    static struct front_loop f; /* in reach until the exit, also after a failed start */

    f = (struct front_loop){.setup = setup};
    int r = begin_front(&f);
    if (r < 0) {
        log_line("cannot start: %s%s", strerror(-r), log_remedy(r));
        return 1;
    }
    log_redirect(show_in_order, &f.streams);
    on_front_signals(&f.signals, 0, 0); /* an earlier signal */
    front_dispatch(&f, (struct front_event){.kind = FRONT_EVENT_BEGIN});
    (void)uv_run(&f.loop, UV_RUN_DEFAULT); /* ends when the last handle is closed */
    log_redirect(NULL, NULL);
    if (side_thread_is_any_hung() || front_output_is_left(f.streams.output))
        _exit(f.exit_code); /* the thread still uses memory */
    finish_loop(&f);
    (void)uv_loop_close(&f.loop); /* no handle is open any more */
    return f.exit_code;
}
