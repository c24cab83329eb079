#include "launcher/front/host_channel_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "launcher/front/bootstrap.h"
#include "launcher/front/front_remedy.h"
#include "launcher/front/line_cutter.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/supervise/worker_start.h"

enum {
    TICK_S = 2,
    SILENT_TICKS = 10,  /* counted, so that a stopped front does not lose its hosts */
    FAREWELL_TICKS = 2, /* for the exit status and the last lines of a launch command without output */
    WHY_SIZE = 512,
};

enum channel_end { CHANNEL_IN, CHANNEL_OUT, CHANNEL_ERR };

struct host_channel {
    const struct host_channel_handler *handler;
    unsigned host;
    const char *name;
    const char *command; /* first word of the launch command */
    pid_t pid;           /* 0: reaped */
    int status;
    uv_pipe_t pipe[3]; /* by descriptor of the launch command */
    bool is_over[3];   /* the pipe has ended */
    bool is_greeted, is_closed, has_reported, has_remedy, has_note;
    unsigned n_silent, n_farewell; /* ticks */
    struct channel_link link;
    uv_write_t copy; /* of the portable build, from memory that all channels share */
    char size[32];   /* of the copy, as a line */
    struct line_cutter noise, errors;
    char why[WHY_SIZE]; /* "": no reason was given */
};

/* ---- end ---- */

static void note_why(struct host_channel *c, const char *text)
{
    (void)snprintf(c->why, sizeof(c->why), "%s", text);
}

static void report_lost(struct host_channel *c, const char *otherwise)
{
    if (c->is_closed || c->has_reported)
        return;
    c->has_reported = true;
    c->handler->on_lost(c->handler->data, c->host, c->why[0] ? c->why : otherwise);
}

static void break_channel(struct host_channel *c, const char *why)
{
    note_why(c, why);
    report_lost(c, why);
}

/* For an end without a reason on standard error. */
static void describe_end(const struct host_channel *c, char text[WHY_SIZE])
{
    const char *noise = c->is_greeted ? "" : c->noise.line;
    char code[32] = "";

    if (!c->pid && WIFEXITED(c->status) && WEXITSTATUS(c->status) != 0)
        (void)snprintf(code, sizeof(code), " with exit code %d", WEXITSTATUS(c->status)); /* fits */
    if (strstr(noise, BOOTSTRAP_MARK))
        (void)snprintf(text, WHY_SIZE,
                       "`%.100s`, the launch command, has printed its last words, which it has to run on the "
                       "host: /bin/sh -c SCRIPT",
                       c->command); /* fits */
    else
        (void)snprintf(text, WHY_SIZE, "%s has ended%s%s%.300s",
                       c->is_greeted ? "its connection" : "the launch command", code,
                       *noise ? " after the line: " : "", noise); /* fits */
}

/* The reason is on standard error, and in the exit status. */
static void report_when_over(struct host_channel *c)
{
    char text[WHY_SIZE];

    if (!c->is_over[CHANNEL_OUT])
        return;
    bool is_known = c->is_over[CHANNEL_ERR] && !c->pid;
    if (!is_known && c->n_farewell < FAREWELL_TICKS)
        return;
    describe_end(c, text);
    report_lost(c, text);
}

/* ---- writing ---- */

/* After an error of a write the end of standard output follows, with the reason. */
void host_channel_flush(struct host_channel *c)
{
    channel_writer_flush(&c->link.out);
}

struct channel_link *host_channel_link(struct host_channel *c)
{
    return &c->link;
}

struct buf *host_channel_out(struct host_channel *c)
{
    return &c->link.out.queued;
}

void host_channel_give_copy(struct host_channel *c, char *bytes, size_t n)
{
    uv_stream_t *in = (uv_stream_t *)&c->pipe[CHANNEL_IN];
    const uv_buf_t parts[] = {uv_buf_init(c->size, (unsigned)snprintf(c->size, sizeof(c->size), "%zu\n", n)),
                              uv_buf_init(bytes, (unsigned)n)};

    int r = c->is_closed || c->copy.data ? 0 : uv_write(&c->copy, in, parts, n > 0 ? 2 : 1, NULL);
    c->copy.data = c; /* one copy for each host */
    if (r < 0)
        break_channel(c, "the copy of crun could not be sent");
}

/* ---- reading: in front of the greeting ---- */

static void on_noise_line(void *data, const char *line)
{
    struct host_channel *c = data;
    char machine[65], hash[65];
    int r = channel_greeting_check(line);

    if (r < 0) {
        break_channel(c, "its crun has another protocol");
    } else if (r > 0) {
        c->is_greeted = true;
        c->why[0] = 0;
        c->handler->on_greeted(c->handler->data, c->host);
    } else if (sscanf(line, BOOTSTRAP_NEEDS "%64s %64s", machine, hash) == 2) {
        c->handler->on_needs(c->handler->data, c->host, hash);
    } else if (strncmp(line, BOOTSTRAP_FAILED, strlen(BOOTSTRAP_FAILED)) == 0) {
        note_why(c, line + strlen(BOOTSTRAP_FAILED));
    }
}

/* Before the greeting: the reason of a failure; later a line of the far end. */
static void on_error_line(void *data, const char *line)
{
    struct host_channel *c = data;

    _cleanup_free_ char *remedy = front_remedy(line, c->name);
    if (!*line || (remedy && !*remedy))
        return;
    if (c->is_greeted && !c->is_closed)
        c->handler->on_line(c->handler->data, c->host, line);
    if (c->is_greeted)
        return;
    line += strncmp(line, "crun: ", 6) == 0 ? 6 : 0;
    if (!c->has_remedy) /* the first one is the cause: "host key has changed", then "verification failed" */
        note_why(c, remedy ? remedy : line);
    c->has_remedy = c->has_remedy || remedy;
}

/* Lines are looked at until one is the greeting: what follows is frames. A line may close the channel. */
static void look_for_greeting(struct host_channel *c)
{
    struct buf *in = &c->link.in;

    while (!c->is_greeted && !c->is_closed && buf_size(in) > 0) {
        const uint8_t *end = memchr(buf_bytes(in), '\n', buf_size(in));
        const size_t n = end ? (size_t)(end - buf_bytes(in)) + 1 : buf_size(in);

        line_cutter_feed(&c->noise, (const char *)buf_bytes(in), n, on_noise_line, c);
        buf_consume(in, n);
    }
}

/* ---- reading: frames ---- */

static const char *why_broken(const struct host_channel *c)
{
    static const char head[] = "\n" CHANNEL_GREETING;

    if (buf_size(&c->link.in) >= sizeof(head) - 1 &&
        memcmp(buf_bytes(&c->link.in), head, sizeof(head) - 1) == 0)
        return "the launch command has started two processes for one host, or copies its input";
    return "the other end broke the protocol of the channel";
}

static void take_note(struct host_channel *c, const struct channel_frame *frame)
{
    (void)snprintf(c->why, sizeof(c->why), "%.*s", (int)frame->n,
                   (const char *)frame->bytes); /* cut if long */
    text_clean(c->why);
    c->has_note = true;
}

/* The handler may close the channel. */
static int take_frame(void *data, const struct channel_frame *frame)
{
    struct host_channel *c = data;

    if (frame->kind == CHANNEL_NOTE)
        take_note(c, frame);
    else if (frame->kind != CHANNEL_PONG)
        return c->handler->on_frame(c->handler->data, c->host, frame);
    return 0;
}

static void on_output(struct host_channel *c)
{
    int r = 0;

    c->n_silent = 0;
    look_for_greeting(c);
    if (c->is_greeted)
        r = channel_link_take(&c->link, take_frame, c);
    if (r == -ENOMEM)
        break_channel(c, "no memory is left for its output");
    else if (r == -EMFILE)
        break_channel(c, "it opened more connections or streams than its workers can have");
    else if (r < 0)
        break_channel(c, why_broken(c));
    if (buf_size(&c->link.in) == 0)
        buf_clear(&c->link.in, CHANNEL_PAYLOAD_MAX);
    host_channel_flush(c);
}

static void on_channel_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    static char bytes[64 << 10]; /* copied before the next read */

    *ret = uv_buf_init(bytes, sizeof(bytes));
}

static void on_channel_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *bytes)
{
    struct host_channel *c = stream->data;
    enum channel_end end = stream == (uv_stream_t *)&c->pipe[CHANNEL_OUT] ? CHANNEL_OUT : CHANNEL_ERR;

    if (n < 0) {
        (void)uv_read_stop(stream);
        c->is_over[end] = true;
        if (end == CHANNEL_ERR)
            line_cutter_end(&c->errors, on_error_line, c);
        report_when_over(c);
    } else if (end == CHANNEL_ERR) {
        line_cutter_feed(&c->errors, bytes->base, (size_t)n, on_error_line, c);
    } else if (n > 0 && buf_append(&c->link.in, bytes->base, (size_t)n) < 0) {
        break_channel(c, "no memory is left for its output");
    } else if (n > 0) {
        on_output(c);
    }
}

/* ---- life ---- */

static void close_ends(int fds[6])
{
    for (int i = 0; i < 6; i++)
        cleanup_close(&fds[i]);
}

/* fds[2 * i]: for reading, of descriptor i; fds[2 * i + 1]: for writing. */
static int open_pipes(int fds[6])
{
    for (int i = 0; i < 3; i++)
        if (pipe2(&fds[2 * i], O_CLOEXEC) < 0)
            return -errno;
    return 0;
}

static int adopt_pipes(struct host_channel *c, uv_loop_t *loop, int fds[6])
{
    static const int own[3] = {1, 2, 4};

    for (int i = 0; i < 3; i++) {
        TRY(uv_pipe_open(&c->pipe[i], fds[own[i]]));
        fds[own[i]] = -1;
    }
    TRY(uv_read_start((uv_stream_t *)&c->pipe[CHANNEL_OUT], on_channel_alloc, on_channel_read));
    return uv_read_start((uv_stream_t *)&c->pipe[CHANNEL_ERR], on_channel_alloc, on_channel_read);
}

/* The next tick reports the failure. */
static void fail_start(struct host_channel *c, int error)
{
    note_why(c, strerror(-error));
    c->is_over[CHANNEL_OUT] = c->is_over[CHANNEL_ERR] = true;
}

struct host_channel *host_channel_start(uv_loop_t *loop, unsigned host, const char *name,
                                        const struct host_launch *launch,
                                        const struct host_channel_handler *handler)
{
    int fds[6] = {-1, -1, -1, -1, -1, -1};
    struct host_channel *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->handler = handler;
    c->host = host;
    c->name = name;
    c->command = launch->argv[0];
    channel_link_init(&c->link, false, (uv_stream_t *)&c->pipe[CHANNEL_IN]);
    for (int i = 0; i < 3; i++) {
        (void)uv_pipe_init(loop, &c->pipe[i], 0); /* cannot fail */
        c->pipe[i].data = c;
    }
    int r = open_pipes(fds);
    struct worker_start start = {.file = launch->file,
                                 .argv = launch->argv,
                                 .environment = launch->environment,
                                 .fds = WORKER_START_NO_FDS};
    start.fds[0] = fds[0];
    start.fds[1] = fds[3];
    start.fds[2] = fds[5];
    if (r == 0)
        r = spawn_worker(&start, NULL, &c->pid);
    if (r == 0)
        r = adopt_pipes(c, loop, fds);
    close_ends(fds);
    if (r < 0)
        fail_start(c, r);
    return c;
}

const char *host_channel_note(const struct host_channel *c)
{
    return c->has_note ? c->why : NULL;
}

void host_channel_tick(struct host_channel *c)
{
    if (c->is_closed) {
        if (c->pid && ++c->n_farewell > FAREWELL_TICKS)
            (void)kill(c->pid, SIGKILL); /* not reaped: the number is the command's */
        return;
    }
    if (c->is_over[CHANNEL_OUT]) {
        c->n_farewell++;
        report_when_over(c);
    } else if (c->is_greeted) {
        if (++c->n_silent > SILENT_TICKS)
            break_channel(c, "nothing came from it for 20 s");
        else if (channel_frame_append(host_channel_out(c), CHANNEL_PING, 0, NULL, 0) == 0)
            host_channel_flush(c);
    }
}

unsigned host_channel_silence_s(const struct host_channel *c)
{
    return c->is_greeted && !c->is_closed && c->n_silent > 1 ? (c->n_silent - 1) * TICK_S : 0;
}

bool host_channel_reap(struct host_channel *c, pid_t pid, int status)
{
    if (c->pid != pid)
        return false;
    c->pid = 0;
    c->status = status;
    report_when_over(c);
    return true;
}

void host_channel_close(struct host_channel *c)
{
    if (c->is_closed)
        return;
    c->is_closed = c->link.is_over = c->link.out.is_broken = true;
    c->n_farewell = 0;
    if (!c->is_greeted && c->pid)
        (void)kill(c->pid, SIGTERM); /* as above */
    for (int i = 0; i < 3; i++)
        uv_close((uv_handle_t *)&c->pipe[i], NULL);
}

bool host_channel_is_alive(const struct host_channel *c)
{
    return c->pid != 0;
}

void host_channel_destroy(struct host_channel *c)
{
    if (!c)
        return;
    channel_link_finish(&c->link);
    free(c);
}
