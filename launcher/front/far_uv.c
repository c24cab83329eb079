#include "launcher/front/far_uv.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/decimal.h"
#include "base/err.h"
#include "base/list.h"
#include "base/minmax.h"
#include "base/random_os.h"
#include "launcher/cli/job.h"
#include "launcher/cli/options.h"
#include "launcher/front/channel_streams.h"
#include "launcher/front/far_header.h"
#include "launcher/front/far_start_os.h"
#include "launcher/output/output_handover_sock.h"
#include "launcher/util/envp.h"
#include "launcher/util/log_os.h"
#include "proto/secret_os.h"
#include "rendezvous/server/client_owner_os.h"
#include "rendezvous/server/server_uv.h"

extern char **environ;

enum {
    FAR_OUT_MAX = 512 << 10, /* bytes for the front above which no output is read */
    CONNECTIONS_MAX = 256,
    TICK_MS = 500,
    SILENCE_MS = 20000,
    KILL_AFTER_MS = 5000, /* behind the agent's own time limit */
    FLUSH_MS =
        5000, /* for the front to take the rest once the agent has ended and the front is gone or done */
    SHUTDOWN_DEFAULT_S = 30,
};

/* A descriptor that carries a stream. */
struct far_end {
    uv_poll_t poll;
    struct list entry;
    struct far *far;
    int fd;
    struct channel_open open;
    struct channel_stream *stream; /* NULL: before the first byte, and when both ends have ended the stream */
    struct buf pending;            /* for the descriptor */
    size_t left;                   /* bytes that may still be read; SIZE_MAX while the agent runs */
    bool is_read;                  /* more may be read */
    bool is_broken;                /* the descriptor takes nothing any more */
    bool ends_writing;             /* behind the pending bytes nothing follows */
};

struct far {
    uv_loop_t loop;
    uv_poll_t input, output, signals, listener, handover, failure;
    uv_timer_t tick;
    const sigset_t *mask;
    struct buf in, out;
    struct far_header header;
    struct channel_streams streams;
    struct list ends;
    struct far_agent agent;
    struct far_end *stdin_end; /* NULL: closed */
    unsigned n_connections;
    int diag; /* of client_owner_find(); negative: the kernel has none */
    char endpoint[32];
    char sentence[CHANNEL_TEXT_MAX + 1]; /* of a start that failed, so far */
    size_t n_sentence;
    uint64_t heard_ms, kill_ms, flush_ms; /* last frame of the front; deadlines, 0: none */
    uint64_t shutdown_ms;
    bool has_started, has_ended, is_ending, is_deaf, has_result;
    bool has_no_input; /* the front grants nothing any more */
    struct channel_result result;
    uint8_t chunk[CHANNEL_PAYLOAD_MAX];
};

static void on_end_event(uv_poll_t *poll, int status, int events);
static void start_ending(struct far *f);
static void finish_if_done(struct far *f);

/* Memory is out, or a descriptor cannot be watched: the agent ends, and the far end behind it. */
static void require_far(struct far *f, int r)
{
    char sentence[128];

    if (!r || f->is_ending)
        return;
    (void)snprintf(sentence, sizeof(sentence), "the far end of the channel cannot go on: %s",
                   strerror(-r)); /* fits */
    if (channel_frame_append(&f->out, CHANNEL_NOTE, 0, sentence, strlen(sentence)) != 0)
        log_line("%s", sentence);
    start_ending(f);
}

static int watch(struct far *f, uv_poll_t *poll, int fd, uv_poll_cb on_event)
{
    int r = fd < 0 ? fd : uv_poll_init(&f->loop, poll, fd);

    poll->data = f;
    return r || !on_event ? r : uv_poll_start(poll, UV_READABLE, on_event);
}

/* Cannot fail. A start that failed leaves handles that libuv does not know. */
static void stop_poll(uv_poll_t *poll)
{
    if (poll->loop)
        (void)uv_poll_stop(poll);
}

/* ---- to the front ---- */

static bool is_out_full(const struct far *f)
{
    return buf_size(&f->out) > FAR_OUT_MAX;
}

static void update_end(struct far_end *e)
{
    const bool has_window = !e->stream || e->stream->may_send > 0;
    int events = (e->is_read && has_window && !is_out_full(e->far) ? UV_READABLE : 0) |
                 (buf_size(&e->pending) > 0 ? UV_WRITABLE : 0);

    if (events)
        require_far(e->far, uv_poll_start(&e->poll, events, on_end_event));
    else
        (void)uv_poll_stop(&e->poll); /* cannot fail */
}

static void drop_end(struct far_end *e);

/* The front takes nothing any more. Writers of output get EPIPE. */
static void go_deaf(struct far *f)
{
    f->is_deaf = true;
    stop_poll(&f->output);
    stop_poll(&f->input);
    list_for_each_safe(at, &f->ends) drop_end(list_entry(at, struct far_end, entry));
    start_ending(f);
}

static void on_output(uv_poll_t *poll, int status, int events);

/* Behind each event. */
static void flush_far(struct far *f)
{
    const bool was_full = is_out_full(f);
    ssize_t n = 1;

    while (!f->is_deaf && n > 0 && buf_size(&f->out) > 0) {
        n = write(STDOUT_FILENO, buf_bytes(&f->out), buf_size(&f->out));
        if (n > 0)
            buf_consume(&f->out, (size_t)n);
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        go_deaf(f);
    if (f->is_deaf)
        buf_reset(&f->out);
    else if (buf_size(&f->out) > 0)
        require_far(f, uv_poll_start(&f->output, UV_WRITABLE, on_output));
    else
        stop_poll(&f->output);
    if (was_full && !is_out_full(f))
        list_for_each_entry(struct far_end, e, &f->ends, entry) update_end(e);
    finish_if_done(f);
}

static void on_output(uv_poll_t *poll, int status, int events)
{
    flush_far(poll->data);
}

static void send_note(struct far *f, const char *sentence)
{
    require_far(f, channel_frame_append(&f->out, CHANNEL_NOTE, 0, sentence, strlen(sentence)));
}

/* ---- ends ---- */

static void free_end(uv_handle_t *handle)
{
    struct far_end *e = handle->data;

    buf_finish(&e->pending);
    free(e);
}

static void close_end(struct far_end *e)
{
    e->far->n_connections -= e->open.kind == CHANNEL_CONNECTION;
    if (e == e->far->stdin_end)
        e->far->stdin_end = NULL;
    list_unlink(&e->entry);
    uv_close((uv_handle_t *)&e->poll, free_end);
    (void)close(e->fd); /* libuv has taken it from its epoll instance */
}

/* Frees the stream when it is gone, and closes the descriptor when nothing is left to do with it. */
static void close_if_done(struct far_end *e)
{
    if (e->stream && channel_streams_drop_ended(&e->far->streams, e->stream))
        e->stream = NULL;
    if (!e->is_read && !e->stream && buf_size(&e->pending) == 0 &&
        (e->open.kind != CHANNEL_STDIN || e->ends_writing))
        close_end(e);
    else
        update_end(e);
}

static int add_end(struct far *f, int fd, const struct channel_open *open, struct far_end **ret)
{
    struct far_end *e = calloc(1, sizeof(*e));
    int r = e ? uv_poll_init(&f->loop, &e->poll, fd) : -ENOMEM;

    if (r) {
        free(e);
        return r;
    }
    e->poll.data = e;
    e->far = f;
    e->fd = fd;
    e->open = *open;
    e->left = SIZE_MAX;
    e->is_read = open->kind != CHANNEL_STDIN;
    list_append(&f->ends, &e->entry);
    *ret = e;
    return 0;
}

static void stop_reading_end(struct far_end *e)
{
    e->is_read = false;
    if (e->stream)
        require_far(e->far, channel_stream_send_end(e->stream, &e->far->out));
    close_if_done(e);
}

static int open_end_stream(struct far_end *e)
{
    struct channel_stream *stream;

    if (e->stream)
        return 0;
    int r = channel_streams_open(&e->far->streams, &e->open, &e->far->out, &stream);
    if (!r) {
        stream->data = e;
        e->stream = stream;
    }
    return r;
}

static void read_far_end(struct far_end *e)
{
    struct far *f = e->far;
    const size_t room = e->stream ? e->stream->may_send : CHANNEL_PAYLOAD_MAX;
    const size_t size = min_size(min_size(room, sizeof(f->chunk)), e->left);

    if (size == 0 || is_out_full(f)) {
        update_end(e);
        return;
    }
    ssize_t n = read(e->fd, f->chunk, size);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        int r = open_end_stream(e);
        require_far(f, r ? r : channel_stream_send(e->stream, f->chunk, (size_t)n, &f->out));
        e->left -= e->left == SIZE_MAX ? 0 : (size_t)n;
        update_end(e);
    }
    if (n <= 0 || e->left == 0)
        stop_reading_end(e);
}

/* The descriptor takes nothing: the front's bytes are dropped. */
static void break_end(struct far_end *e)
{
    e->is_broken = true;
    buf_reset(&e->pending);
}

static void drop_end(struct far_end *e)
{
    break_end(e);
    e->ends_writing = true;
    if (e->stream)
        e->stream->has_received_end = true;
    stop_reading_end(e);
}

static void grant_bytes(struct far_end *e, size_t n)
{
    if (e->stream)
        require_far(e->far, channel_stream_grant(e->stream, n, &e->far->out));
}

static void write_far_end(struct far_end *e)
{
    const size_t before = buf_size(&e->pending);
    ssize_t n = before > 0 ? write(e->fd, buf_bytes(&e->pending), before) : 0;

    if (n > 0)
        buf_consume(&e->pending, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        break_end(e);
    grant_bytes(e, before - buf_size(&e->pending));
    if (e->ends_writing && buf_size(&e->pending) == 0 && e->open.kind == CHANNEL_CONNECTION)
        (void)shutdown(e->fd, SHUT_WR); /* fails on a connection that is gone */
    close_if_done(e);
}

/* The read comes last: it may free the end. */
static void on_end_event(uv_poll_t *poll, int status, int events)
{
    struct far_end *e = poll->data;
    struct far *f = e->far;

    if (buf_size(&e->pending) > 0 && (status < 0 || events & UV_WRITABLE))
        write_far_end(e);
    else if (e->is_read)
        read_far_end(e);
    flush_far(f);
}

/* ---- the agent ---- */

/* Another user of the host has no business in the job, and could use up the connections. */
static bool is_own_client(const struct far *f, int fd)
{
    uid_t user;

    return f->diag < 0 || (client_owner_find(f->diag, fd, &user) == 0 && user == geteuid());
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct far *f = poll->data;
    const struct channel_open open = {.kind = CHANNEL_CONNECTION};
    struct far_end *e;
    int fd, one = 1;

    (void)uv_fileno((uv_handle_t *)poll, &fd); /* cannot fail */
    fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && err_is_shortage(-errno))
        stop_poll(poll); /* until the next tick: the client would be reported without end */
    if (fd < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (f->n_connections >= CONNECTIONS_MAX || !is_own_client(f, fd) || add_end(f, fd, &open, &e) != 0) {
        (void)close(fd); /* the client finds a closed connection */
        return;
    }
    f->n_connections++;
    require_far(f, open_end_stream(e));
    close_if_done(e);
    flush_far(f);
}

/* A worker with local rank 0 belongs to this host: does rank 0? */
static void decide_on_stdin(struct far *f, uint32_t rank)
{
    struct far_end *e = f->stdin_end;

    if (!e || f->streams.wants_stdin)
        return;
    if (rank != 0) {
        e->ends_writing = true;
        close_if_done(e); /* the workers here read end of file */
        return;
    }
    int r = channel_streams_want_stdin(&f->streams, &f->out, &e->stream);
    if (!r)
        e->stream->data = e;
    require_far(f, r);
}

static void take_handovers(struct far *f)
{
    struct output_handover h;
    struct far_end *e;
    int fd, r;

    while ((r = output_handover_receive(f->agent.handover, &h, &fd)) == 1) {
        const struct channel_open open = {h.which ? CHANNEL_STDERR : CHANNEL_STDOUT, h.rank, h.local_rank,
                                          h.attempt};

        r = add_end(f, fd, &open, &e);
        if (r) {
            (void)close(fd); /* the worker's write fails */
            require_far(f, r);
            continue;
        }
        update_end(e);
        if (h.local_rank == 0)
            decide_on_stdin(f, h.rank);
    }
    if (r < 0)
        stop_poll(&f->handover);
    require_far(f, r == -EPIPE ? 0 : r); /* the agent ends or has ended */
}

static void read_failure(struct far *f)
{
    ssize_t n;

    do {
        n = read(f->agent.failure, f->sentence + f->n_sentence, CHANNEL_TEXT_MAX - f->n_sentence);
        f->n_sentence += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    stop_poll(&f->failure);
    if (f->n_sentence > 0)
        send_note(f, f->sentence);
    f->n_sentence = 0;
}

static void on_agent_news(uv_poll_t *poll, int status, int events)
{
    take_handovers(poll->data);
    read_failure(poll->data);
    flush_far(poll->data);
}

/* What the agent and its workers had written is still read; processes that a worker left behind are not waited for. */
static void limit_reading(struct far_end *e)
{
    int n = 0;

    (void)ioctl(e->fd, FIONREAD, &n); /* cannot fail for a pipe or socket */
    e->left = (size_t)n;
}

static void on_agent_end(struct far *f, int status)
{
    f->has_ended = true;
    f->result = (struct channel_result){
        .has_exited = WIFEXITED(status),
        .code = (uint32_t)(WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status))};
    take_handovers(f);
    read_failure(f);
    stop_poll(&f->listener);
    list_for_each_safe(at, &f->ends)
    {
        struct far_end *e = list_entry(at, struct far_end, entry);

        break_end(e);
        e->ends_writing = true;
        if (e->is_read)
            limit_reading(e);
        if (!e->is_read || e->left == 0)
            stop_reading_end(e);
    }
}

static void reap_agent(struct far *f)
{
    int status;

    if (f->has_started && !f->has_ended && waitpid(f->agent.pid, &status, WNOHANG) == f->agent.pid)
        on_agent_end(f, status);
}

static void on_signal_fd(uv_poll_t *poll, int status, int events)
{
    struct far *f = poll->data;
    struct signalfd_siginfo info;
    int fd;

    (void)uv_fileno((uv_handle_t *)poll, &fd); /* cannot fail */
    while (read(fd, &info, sizeof(info)) == sizeof(info))
        if (info.ssi_signo != SIGCHLD)
            start_ending(f);
    reap_agent(f);
    flush_far(f);
}

static void signal_agent(struct far *f, int signal)
{
    if (f->has_started && !f->has_ended)
        (void)kill(f->agent.pid, signal); /* not reaped: the number is the agent's */
}

/* A signal to the front is for the whole job, a signal to this process for its node. */
static void pass_signal(struct far *f, int signal)
{
    bool has_agent = f->has_started && !f->has_ended;

    if (has_agent && sigqueue(f->agent.pid, signal, (union sigval){.sival_int = JOB_SIGNAL_OF_ALL}) < 0)
        signal_agent(f, signal); /* too many queued signals */
}

/* Ends the agent, once. */
static void start_ending(struct far *f)
{
    if (f->is_ending)
        return;
    f->is_ending = true;
    signal_agent(f, SIGTERM);
    f->kill_ms = uv_now(&f->loop) + f->shutdown_ms + KILL_AFTER_MS;
    f->flush_ms = f->has_ended || !f->has_started ? uv_now(&f->loop) + FLUSH_MS : 0;
}

static bool is_reading_one(const struct far *f)
{
    list_for_each_entry(struct far_end, e, &f->ends, entry)
    {
        const bool is_stuck = f->has_no_input && e->stream && e->stream->may_send == 0;

        if (e->is_read && !is_stuck)
            return true;
    }
    return false;
}

/* Sends the result when all that was written is on its way. Ends the loop when the front has all, or takes nothing. */
static void finish_if_done(struct far *f)
{
    const bool is_late = f->flush_ms && uv_now(&f->loop) >= f->flush_ms;

    if (f->has_ended && !f->has_result && (f->is_deaf || !is_reading_one(f))) {
        f->has_result = true;
        (void)channel_result_append(&f->out,
                                    &f->result); /* without memory the end of the channel is the result */
        (void)uv_poll_start(&f->output, UV_WRITABLE, on_output); /* fails for a closed handle only */
    }
    const bool has_all = f->has_result || (f->is_ending && !f->has_started);
    if (is_late || (has_all && (f->is_deaf || buf_size(&f->out) == 0)))
        uv_stop(&f->loop);
}

static void on_tick(uv_timer_t *timer)
{
    struct far *f = timer->data;
    const uint64_t now = uv_now(&f->loop);

    if (now - f->heard_ms >= SILENCE_MS && !f->is_deaf) {
        log_line("the front has been silent for %d s", SILENCE_MS / 1000);
        go_deaf(f);
    }
    if (!f->has_ended)
        require_far(f, uv_poll_start(&f->listener, UV_READABLE, on_listener));
    reap_agent(f); /* where the wait of SIGCHLD has failed */
    if (f->is_ending && now >= f->kill_ms)
        signal_agent(f, SIGKILL);
    if (f->is_ending && f->has_ended && !f->flush_ms)
        f->flush_ms = now + FLUSH_MS;
    flush_far(f);
}

/* ---- the front's frames ---- */

static uint64_t find_shutdown_ms(const struct far_header *h)
{
    const char *variable =
        envp_get(h->variables.items ? h->variables.items : environ, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    char error[OPTIONS_ERROR_SIZE];
    struct options options;
    uint64_t seconds = SHUTDOWN_DEFAULT_S;

    if (h->arguments.items && options_parse(h->arguments.items, environ, &options, error) == 0 &&
        options.value[OPTION_SHUTDOWN_TIMEOUT].set)
        seconds = (uint64_t)options.value[OPTION_SHUTDOWN_TIMEOUT].number;
    else if (variable)
        (void)decimal_parse(variable, 0, INT_MAX, &seconds); /* the agent refuses another text */
    return min_size(seconds, INT_MAX) * 1000;
}

static int watch_agent(struct far *f)
{
    static const enum channel_stream_kind kinds[] = {CHANNEL_STDIN, CHANNEL_AGENT_OUT, CHANNEL_AGENT_ERR};
    int r = watch(f, &f->handover, f->agent.handover, on_agent_news);

    if (!r)
        r = watch(f, &f->failure, f->agent.failure, on_agent_news);
    for (size_t i = 0; !r && i < ARRAY_SIZE(kinds); i++) {
        struct far_end *e;

        r = add_end(f, f->agent.stdio[i], &(struct channel_open){.kind = kinds[i]}, &e);
        if (!r)
            update_end(e);
        if (!r && i == 0)
            f->stdin_end = e;
    }
    return r;
}

static void start_agent(struct far *f)
{
    char sentence[128];
    int r = far_agent_start(&f->agent, &f->header, f->endpoint, f->mask);

    f->shutdown_ms = find_shutdown_ms(&f->header);
    far_header_finish(&f->header);
    f->has_started = !r;
    if (!r) {
        require_far(f, watch_agent(f));
        return;
    }
    (void)snprintf(sentence, sizeof(sentence), "cannot start crun: %s%s", strerror(-r),
                   log_remedy(r)); /* cut if long */
    send_note(f, sentence);
    start_ending(f);
}

static int take_header(struct far *f, const struct channel_frame *frame)
{
    int r = far_header_take(&f->header, frame);

    if (frame->kind == CHANNEL_SECRET) {
        secret_hide_process();
        explicit_bzero(buf_bytes(&f->in), CHANNEL_HEAD + frame->n);
    }
    if (r == 1)
        start_agent(f);
    return r < 0 ? r : 0;
}

static void take_data(struct far_end *e, const struct channel_frame *frame)
{
    struct far *f = e->far;

    if (frame->kind == CHANNEL_END_OF_STREAM)
        e->ends_writing = true;
    else if (frame->kind == CHANNEL_DATA && e->is_broken)
        grant_bytes(e, frame->n);
    else if (frame->kind == CHANNEL_DATA)
        require_far(f, buf_append(&e->pending, frame->bytes, frame->n));
    write_far_end(e);
}

static int take_frame(struct far *f, const struct channel_frame *frame)
{
    struct channel_stream *stream;

    if (frame->kind == CHANNEL_PING)
        return buf_size(&f->out) > 2 * FAR_OUT_MAX ? 0
                                                   : channel_frame_append(&f->out, CHANNEL_PONG, 0, NULL, 0);
    if (!f->has_started)
        return take_header(f, frame);
    if (frame->kind == CHANNEL_SIGNAL) {
        pass_signal(f, frame->bytes[0]);
        return frame->bytes[0] > 0 && frame->bytes[0] < NSIG ? 0 : -EBADMSG;
    }
    int r = channel_streams_apply(&f->streams, frame, &stream);
    if (!r && stream)
        take_data(stream->data, frame);
    return r;
}

/* The front is gone, or not understood. */
static void close_input(struct far *f)
{
    stop_poll(&f->input);
    f->has_no_input = true;
    start_ending(f);
}

static const char *why_header_is_bad(int r)
{
    return r == -E2BIG     ? "environment and arguments of the job are above 4 MiB"
           : r == -EBADMSG ? "the front broke the protocol of the channel"
                           : strerror(-r);
}

static void take_frames(struct far *f)
{
    struct channel_frame frame;
    size_t size;
    int r = 1;

    while (r == 1 && !f->is_deaf) {
        r = channel_frame_take(buf_bytes(&f->in), buf_size(&f->in), false, &frame, &size);
        if (r != 1)
            break;
        r = take_frame(f, &frame);
        buf_consume(&f->in, size);
        r = r < 0 ? r : 1;
    }
    if (r < 0) {
        send_note(f, why_header_is_bad(r));
        close_input(f);
    }
}

static void on_input(uv_poll_t *poll, int status, int events)
{
    struct far *f = poll->data;
    uint8_t *to = buf_reserve(&f->in, CHANNEL_HEAD + CHANNEL_PAYLOAD_MAX);

    ssize_t n = to ? read(STDIN_FILENO, to, CHANNEL_HEAD + CHANNEL_PAYLOAD_MAX) : -1;
    if (n > 0) {
        f->heard_ms = uv_now(&f->loop);
        buf_commit(&f->in, (size_t)n);
        take_frames(f);
    } else if (!to || n == 0 || (errno != EAGAIN && errno != EINTR)) {
        if (!f->header.has_secret && !f->has_started)
            send_note(
                f,
                "the standard input of crun --front-channel ended before the job's secret: the launch command has to pass its own on");
        close_input(f);
    }
    flush_far(f);
}

/* ---- start and end ---- */

static int send_greeting(struct far *f)
{
    struct channel_greeting greeting = {.version = CRUN_VERSION};
    struct utsname name;
    uint64_t nonce;

    int r = random_fill(&nonce, sizeof(nonce));
    if (r || uname(&name) < 0)
        return r ? r : -errno;
    (void)snprintf(greeting.machine, sizeof(greeting.machine), "%s", name.machine); /* __NEW_UTS_LEN is 64 */
    (void)snprintf(greeting.nonce, sizeof(greeting.nonce), "%016llx", (unsigned long long)nonce); /* fits */
    return channel_greeting_append(&f->out, &greeting);
}

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
    int r = uv_loop_init(&f->loop);

    f->diag = client_owner_open();
    if (!r)
        r = watch(f, &f->input, STDIN_FILENO, on_input);
    if (!r)
        r = watch(f, &f->output, STDOUT_FILENO, NULL);
    if (!r)
        r = watch(f, &f->signals, open_signal_fd(), on_signal_fd);
    if (!r)
        r = watch(f, &f->listener, listen_for_agent(f->endpoint), on_listener);
    if (!r)
        r = uv_timer_init(&f->loop, &f->tick);
    f->tick.data = f;
    return r ? r : send_greeting(f);
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
    list_init(&f.ends);
    channel_streams_init(&f.streams, true);
    int r = open_far(&f);
    if (r) {
        log_line("cannot open the far end of a channel: %s%s", strerror(-r), log_remedy(r));
        return 1;
    }
    f.heard_ms = uv_now(&f.loop);
    (void)uv_timer_start(&f.tick, on_tick, TICK_MS, TICK_MS); /* fails only without a callback */
    flush_far(&f);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT); /* until uv_stop() */
    if (!f.has_ended)
        return 1;
    return (int)(f.result.has_exited ? f.result.code : 128 + f.result.code);
}
