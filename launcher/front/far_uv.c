#include "launcher/front/far_uv.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <uv.h>

#include "base/err.h"
#include "launcher/cli/job.h"
#include "launcher/front/channel_port_uv.h"
#include "launcher/front/far_header.h"
#include "launcher/front/far_start_os.h"
#include "launcher/output/output_handover_sock.h"
#include "launcher/util/log_os.h"
#include "proto/secret_os.h"
#include "rendezvous/server/client_owner_os.h"
#include "rendezvous/server/server_uv.h"

enum {
    TICK_MS = 500,
    SILENCE_MS = 20000,
    KILL_AFTER_MS = 5000, /* behind the agent's own time limit */
    FLUSH_MS = 5000,      /* for the front to take the rest once the agent has ended by request */
};

enum far_state {
    FAR_HEADER,   /* no agent yet */
    FAR_RUNNING,  /* the agent runs */
    FAR_DRAINING, /* the agent has ended, its output is still read */
    FAR_DONE,     /* what is left for the front is queued */
};

struct far {
    uv_loop_t loop;
    uv_pipe_t input, output;
    uv_poll_t signals, listener, handover;
    uv_timer_t tick;
    uv_prepare_t turn;
    const sigset_t *mask;
    struct far_header header;
    struct channel_link link;
    struct far_agent agent;
    int diag; /* of client_owner_find(); negative: the kernel has none */
    char endpoint[32];
    bool is_closed;   /* the job has a secret */
    bool has_refused; /* a client whose owner is not known */
    enum far_state state;
    uint64_t heard_ms; /* last bytes of the front */
    uint64_t
        deadline_ms; /* the agent was asked to end, and is killed then; later: the loop ends then. 0: none */
    struct channel_result result;
};

static int watch(struct far *f, uv_poll_t *poll, int fd, uv_poll_cb on_event)
{
    int r = fd < 0 ? fd : uv_poll_init(&f->loop, poll, fd);

    poll->data = f;
    return r ? r : uv_poll_start(poll, UV_READABLE, on_event);
}

static void send_note(struct far *f, const char *sentence)
{
    if (channel_frame_append(&f->link.out.queued, CHANNEL_NOTE, 0, sentence, strlen(sentence)) != 0)
        log_line("%s", sentence);
}

/* ---- end ---- */

static void signal_agent(const struct far *f, int signal)
{
    if (f->state == FAR_RUNNING)
        (void)kill(f->agent.pid, signal); /* not reaped: the number is the agent's */
}

/* A signal to the front is for the whole job, a signal to this process for its node. */
static void pass_signal(const struct far *f, int signal)
{
    const union sigval value = {.sival_int = JOB_SIGNAL_OF_ALL};

    if (f->state == FAR_RUNNING && sigqueue(f->agent.pid, signal, value) < 0)
        signal_agent(f, signal); /* too many queued signals */
}

/* Ends the agent, once. */
static void end_agent(struct far *f)
{
    const uint64_t agent_ms = f->header.start.shutdown_s * UINT64_C(1000) + KILL_AFTER_MS;

    if (f->deadline_ms)
        return;
    signal_agent(f, SIGTERM);
    f->deadline_ms = uv_now(&f->loop) + (f->state == FAR_RUNNING ? agent_ms : FLUSH_MS);
    if (f->state == FAR_HEADER)
        f->state = FAR_DONE;
}

/* The front is gone, or is not understood. The agent sees that by its end of the link for output, and leaves the job at once where
 * the rendezvous was the front's: a request to other nodes would find no rendezvous. */
static void leave_front(struct far *f)
{
    if (f->link.is_deaf)
        return;
    (void)uv_read_stop((uv_stream_t *)&f->input); /* these two cannot fail */
    (void)uv_poll_stop(&f->listener);
    if (f->state == FAR_RUNNING)
        (void)shutdown(f->agent.links[FAR_LINK_OUTPUT], SHUT_RDWR); /* fails where the agent has ended */
    f->link.is_over = true;
    channel_link_go_deaf(&f->link);
    end_agent(f);
}

/* Memory is out, or a descriptor cannot be watched: the agent ends, and the far end behind it. */
static void require_far(struct far *f, int r)
{
    char sentence[128];

    if (!r || f->deadline_ms)
        return;
    (void)snprintf(sentence, sizeof(sentence), "the far end of the channel cannot go on: %s",
                   strerror(-r)); /* fits */
    send_note(f, sentence);
    end_agent(f);
}

/* In front of each wait for events. */
static void on_turn(uv_prepare_t *turn)
{
    struct far *f = turn->data;
    const uint32_t result[] = {f->result.has_exited, f->result.code};

    require_far(f, f->link.failure);
    if (f->link.out.is_broken)
        leave_front(f);
    if (f->state == FAR_DRAINING && list_is_empty(&f->link.ports)) {
        f->state = FAR_DONE;
        (void)channel_numbers_append(&f->link.out.queued, CHANNEL_RESULT, 0, result,
                                     2); /* without memory the end of the channel is the result */
    }
    channel_writer_flush(&f->link.out);
    if (f->state == FAR_DONE && channel_writer_size(&f->link.out) == 0)
        uv_stop(&f->loop);
}

/* ---- the agent ---- */

/* Another user of the host has no business in the job, and could use up the connections. */
static bool is_own_client(struct far *f, int fd)
{
    uid_t user;

    if (f->diag < 0 && f->is_closed && !f->has_refused)
        log_line(
            "the kernel there names no owners of connections (inet_diag), by which crun admits the agent alone: take "
            "--security=open, or a crund (--rdzv-endpoint)");
    f->has_refused = f->diag < 0;
    return f->diag < 0 ? !f->is_closed : (client_owner_find(f->diag, fd, &user) == 0 && user == geteuid());
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct far *f = poll->data;
    const struct channel_open open = {.kind = CHANNEL_CONNECTION};
    struct channel_stream *stream;
    int fd, one = 1;

    (void)uv_fileno((uv_handle_t *)poll, &fd); /* cannot fail */
    fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && err_is_shortage(-errno))
        (void)uv_poll_stop(poll); /* until the next tick: the client would be reported without end */
    if (fd < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!channel_streams_have_room(&f->link.streams, CHANNEL_CONNECTION) || !is_own_client(f, fd)) {
        (void)close(fd); /* the client finds a closed connection */
        return;
    }
    int r = channel_streams_open(&f->link.streams, &open, &f->link.out.queued, &stream);
    require_far(f, r ? r : channel_port_create(&f->link, fd, &open, stream));
}

/* A worker with local rank 0 belongs to this host: does rank 0? Workers of other hosts read end of file. */
static void decide_on_stdin(struct far *f, uint32_t rank)
{
    struct channel_port *port = NULL;

    list_for_each_entry(struct channel_port, p, &f->link.ports, entry)
    {
        if (p->open.kind == CHANNEL_STDIN && !p->stream)
            port = p;
    }
    if (!port || f->link.is_deaf)
        return;
    if (rank != 0) {
        channel_port_close(port);
        return;
    }
    require_far(f, channel_port_open(port));
}

/* The stream is opened before its first byte: the front makes a log file for a silent worker, too. */
static int add_output(struct far *f, int fd, const struct channel_open *open)
{
    struct channel_streams *streams = &f->link.streams;
    struct channel_stream *stream = NULL;
    int r = channel_streams_have_room(streams, open->kind)
                ? channel_streams_open(streams, open, &f->link.out.queued, &stream)
                : 0;
    int s = channel_port_create(&f->link, fd, open, stream);

    return r ? r : s;
}

static void take_handovers(struct far *f)
{
    static const enum channel_stream_kind kinds[OUTPUT_WHICH_COUNT] = {
        [OUTPUT_STDOUT] = CHANNEL_STDOUT,         [OUTPUT_STDERR] = CHANNEL_STDERR,
        [OUTPUT_ERROR_FILE] = CHANNEL_ERROR_FILE, [OUTPUT_STACKS] = CHANNEL_STACKS,
        [OUTPUT_NCCL_TEXT] = CHANNEL_NCCL_TEXT,   [OUTPUT_NCCL_JSON] = CHANNEL_NCCL_JSON};
    struct output_handover h;
    int fd, r;

    while ((r = output_handover_receive(f->agent.links[FAR_LINK_OUTPUT], &h, &fd)) == 1) {
        const struct channel_open open = {kinds[h.which], h.rank, h.local_rank, h.attempt};

        require_far(f, add_output(f, fd, &open));
        if (h.which <= OUTPUT_STDERR && h.local_rank == 0)
            decide_on_stdin(f, h.rank);
    }
    if (r < 0)
        (void)uv_poll_stop(&f->handover); /* cannot fail */
    require_far(f, r == -EPIPE ? 0 : r);  /* the agent ends or has ended */
}

static void on_handover(uv_poll_t *poll, int status, int events)
{
    take_handovers(poll->data);
}

/* What the agent and its workers had written is still read; processes that a worker left behind are not waited for. */
static void on_agent_end(struct far *f, int status)
{
    char sentence[CHANNEL_TEXT_MAX];

    take_handovers(f);
    ssize_t n = read(f->agent.links[FAR_LINK_FAILURE], sentence, sizeof(sentence));
    if (n > 0)
        require_far(f, channel_frame_append(&f->link.out.queued, CHANNEL_NOTE, 0, sentence, (size_t)n));
    f->state = FAR_DRAINING;
    f->result = (struct channel_result){
        .has_exited = WIFEXITED(status),
        .code = (uint32_t)(WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status))};
    if (f->deadline_ms)
        f->deadline_ms = uv_now(&f->loop) + FLUSH_MS;
    (void)uv_poll_stop(&f->listener); /* cannot fail */
    list_for_each_entry_safe(struct channel_port, p, &f->link.ports, entry) channel_port_drain(p);
}

static void reap_agent(struct far *f)
{
    int status;

    if (f->state == FAR_RUNNING && waitpid(f->agent.pid, &status, WNOHANG) == f->agent.pid)
        on_agent_end(f, status);
}

static void on_far_signals(uv_poll_t *poll, int status, int events)
{
    struct far *f = poll->data;
    struct signalfd_siginfo info;
    int fd;

    (void)uv_fileno((uv_handle_t *)poll, &fd); /* cannot fail */
    while (read(fd, &info, sizeof(info)) == sizeof(info))
        if (info.ssi_signo != SIGCHLD)
            end_agent(f);
    reap_agent(f);
}

static void on_far_tick(uv_timer_t *timer)
{
    struct far *f = timer->data;
    const uint64_t now = uv_now(&f->loop);

    if (now - f->heard_ms >= SILENCE_MS && !f->link.is_deaf) {
        log_line("the front has been silent for %d s", SILENCE_MS / 1000);
        leave_front(f);
    }
    if (f->state <= FAR_RUNNING && !f->link.is_deaf)
        require_far(f, uv_poll_start(&f->listener, UV_READABLE, on_listener));
    reap_agent(f); /* where the wait of SIGCHLD has failed */
    if (!f->deadline_ms || now < f->deadline_ms)
        return;
    if (f->state == FAR_RUNNING)
        signal_agent(f, SIGKILL);
    else
        uv_stop(&f->loop);
}

/* ---- the front's frames ---- */

static void start_agent(struct far *f)
{
    static const struct {
        enum channel_stream_kind kind;
        enum far_link link;
    } ends[] = {
        {CHANNEL_STDIN, FAR_LINK_IN}, {CHANNEL_AGENT_OUT, FAR_LINK_OUT}, {CHANNEL_AGENT_ERR, FAR_LINK_ERR}};
    char sentence[128];
    int r = far_agent_start(&f->agent, &f->header, f->endpoint, f->mask);

    far_header_finish(&f->header);
    channel_streams_limit(&f->link.streams, f->header.start.n_workers);
    if (r) {
        (void)snprintf(sentence, sizeof(sentence), "cannot start crun: %s%s", strerror(-r),
                       log_remedy(r)); /* cut if long */
        send_note(f, sentence);
        f->state = FAR_DONE;
        return;
    }
    f->state = FAR_RUNNING;
    require_far(f, watch(f, &f->handover, f->agent.links[FAR_LINK_OUTPUT], on_handover));
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        require_far(f, channel_port_create(&f->link, f->agent.links[ends[i].link],
                                           &(struct channel_open){.kind = ends[i].kind}, NULL));
}

static int take_header(struct far *f, const struct channel_frame *frame)
{
    int r = far_header_take(&f->header, frame);

    if (frame->kind == CHANNEL_SECRET) {
        f->is_closed = frame->n > 0;
        secret_hide_process();
        explicit_bzero(buf_bytes(&f->link.in), CHANNEL_HEAD + frame->n);
    }
    if (r == 1)
        start_agent(f);
    return r < 0 ? r : 0;
}

static int take_front_frame(void *data, const struct channel_frame *frame)
{
    struct far *f = data;
    struct channel_writer *out = &f->link.out;
    struct channel_stream *stream;

    if (frame->kind == CHANNEL_PING && channel_writer_size(out) <= 2 * CHANNEL_OUT_MAX)
        return channel_frame_append(&out->queued, CHANNEL_PONG, 0, NULL, 0);
    if (frame->kind == CHANNEL_PING || f->state == FAR_DONE)
        return 0;
    if (f->state == FAR_HEADER)
        return take_header(f, frame);
    if (frame->kind == CHANNEL_SIGNAL) {
        pass_signal(f, (int)frame->signal);
        return 0;
    }
    int r = channel_streams_apply(&f->link.streams, frame, &stream);
    return r || !stream || !stream->data ? r : channel_port_take(stream->data, frame);
}

static const char *why_refused(int r)
{
    return r == -E2BIG     ? "environment and arguments of the job are above 4 MiB"
           : r == -EBADMSG ? "the front broke the protocol of the channel"
                           : strerror(-r);
}

static void on_input_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    struct far *f = handle->data;
    uint8_t *to = buf_reserve(&f->link.in, CHANNEL_HEAD + CHANNEL_PAYLOAD_MAX);

    *ret = uv_buf_init((char *)to, to ? CHANNEL_HEAD + CHANNEL_PAYLOAD_MAX : 0);
}

static void on_input(uv_stream_t *input, ssize_t n, const uv_buf_t *bytes)
{
    struct far *f = input->data;

    if (n > 0) {
        f->heard_ms = uv_now(&f->loop);
        buf_commit(&f->link.in, (size_t)n);
        int r = channel_link_take(&f->link, take_front_frame, f);
        if (r < 0) {
            send_note(f, why_refused(r));
            leave_front(f);
        }
    } else if (n < 0) {
        if (f->state == FAR_HEADER && !f->header.has_secret)
            send_note(
                f,
                "the standard input of crun --front-channel ended before the job's secret: the launch command has to pass its own on");
        leave_front(f);
    }
}

/* ---- start and end ---- */

/* Where the agent connects instead of to the rendezvous. Returns a descriptor or -errno. */
static int listen_for_agent(char endpoint[32])
{
    uint16_t port;
    int fd, r = server_open_tcp("127.0.0.1", 0, &fd, &port);

    if (r < 0)
        return r;
    (void)snprintf(endpoint, 32, "127.0.0.1:%u", port); /* fits */
    return fd;
}

static int open_signal_fd(void)
{
    static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    sigset_t set;

    (void)sigemptyset(&set); /* none of the calls can fail */
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        (void)sigaddset(&set, signals[i]);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

static int open_far(struct far *f)
{
    static const char greeting[] = "\n" CHANNEL_GREETING CRUN_VERSION "\n";
    int r = uv_loop_init(&f->loop);

    if (r)
        return r;
    (void)uv_pipe_init(&f->loop, &f->input, 0); /* none of these can fail */
    (void)uv_pipe_init(&f->loop, &f->output, 0);
    (void)uv_timer_init(&f->loop, &f->tick);
    (void)uv_prepare_init(&f->loop, &f->turn);
    f->input.data = f->tick.data = f->turn.data = f;
    channel_link_init(&f->link, true, (uv_stream_t *)&f->output);
    f->diag = client_owner_open();
    r = uv_pipe_open(&f->input, STDIN_FILENO);
    if (!r)
        r = uv_pipe_open(&f->output, STDOUT_FILENO);
    if (!r)
        r = watch(f, &f->signals, open_signal_fd(), on_far_signals);
    if (!r)
        r = watch(f, &f->listener, listen_for_agent(f->endpoint), on_listener);
    if (!r)
        r = uv_read_start((uv_stream_t *)&f->input, on_input_alloc, on_input);
    return r ? r : buf_append(&f->link.out.queued, greeting, strlen(greeting));
}

static bool is_pipe_or_socket(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* srun --unbuffered gives the step a terminal. Such a terminal must not change line ends. */
static bool makes_bytes_pass(int terminal)
{
    struct termios mode;

    if (tcgetattr(terminal, &mode) < 0)
        return false;
    mode.c_oflag &= ~(tcflag_t)OPOST;
    return tcsetattr(terminal, TCSANOW, &mode) == 0;
}

int far_run(const sigset_t *before)
{
    static struct far f;

    if (!is_pipe_or_socket(STDIN_FILENO) ||
        !(is_pipe_or_socket(STDOUT_FILENO) || makes_bytes_pass(STDOUT_FILENO))) {
        log_line(
            "--front-channel is for crun --hosts, which speaks on pipes or sockets as standard input and output");
        return 2;
    }
    f.mask = before;
    f.result = (struct channel_result){.has_exited = 1, .code = 1}; /* without an agent */
    int r = open_far(&f);
    if (r) {
        log_line("cannot open the far end of a channel: %s%s", strerror(-r), log_remedy(r));
        return 1;
    }
    f.heard_ms = uv_now(&f.loop);
    (void)uv_timer_start(&f.tick, on_far_tick, TICK_MS, TICK_MS); /* these fail only without a callback */
    (void)uv_prepare_start(&f.turn, on_turn);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT); /* until uv_stop() */
    return (int)(f.result.has_exited ? f.result.code : 128 + f.result.code);
}
