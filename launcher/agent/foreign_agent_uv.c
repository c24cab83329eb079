/*
 * crun --agent-fd: the membership of a node whose workers another program starts and watches (the foreign agent). It
 * owns the session, serves the worker store when this node has group rank 0, and the rendezvous when the endpoint is
 * here; decisions go to the agent as lines, and what the agent reports comes as lines (foreign_lines_json.h).
 *
 * Happy path: ready -> start; the agent starts workers; done -> end.
 *
 * Ways it fails: a worker fails (failed, then ready when the others have ended); another node does (stop; the agent stops its
 * workers, then ready). The agent ends without a word: the end of the connection tells, and the other nodes learn it at
 * once. A line that is no command, or an agent that does not read: the same, with a sentence.
 */

#include "launcher/agent/foreign_agent_uv.h"

#include <signal.h>
#include <string.h>
#include <uv.h>

#include "base/err.h"
#include "base/utf8.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "launcher/agent/foreign_lines_json.h"
#include "launcher/cli/job.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/util/log_os.h"
#include "rendezvous/server/server_uv.h"

struct foreign_agent {
    const struct job *job;
    uv_loop_t loop;
    uv_pipe_t pipe;
    struct membership *membership;
    struct server *store; /* of the present generation, if this node serves it */
    struct rank_assignment assignment;
    char cause[SESSION_TEXT_SIZE + 256];
    char line[FOREIGN_LINE_MAX]; /* what was read of a line */
    size_t n_line;
    bool is_running; /* a generation was started, and neither side has ended it */
    bool has_ended;
    int exit_code;
};

/* ---- the end ---- */

/* A rendezvous that is served here keeps the loop until the other nodes have asked how the job ended. */
static void end_foreign(struct foreign_agent *a, int exit_code)
{
    if (a->has_ended)
        return;
    a->has_ended = true;
    a->exit_code = exit_code;
    server_stop(steal_ptr(a->store), NULL, NULL);
    membership_destroy(a->membership);
    uv_close((uv_handle_t *)&a->pipe, NULL);
}

static void leave_foreign(struct foreign_agent *a, const char *why)
{
    if (a->has_ended)
        return;
    membership_leave(a->membership, why, 0);
    end_foreign(a, 1);
}

/* ---- to the agent ---- */

/* A line is short, and the agent reads: a socket that does not take one belongs to an agent that hangs. */
static void send_line(struct foreign_agent *a, char *line)
{
    _cleanup_free_ char *text = line;
    size_t n = text ? strlen(text) : 0;
    uv_buf_t buffer = uv_buf_init(text, (unsigned)n);

    int r = text ? uv_try_write((uv_stream_t *)&a->pipe, &buffer, 1) : UV_ENOMEM;
    if (r >= 0 && (size_t)r == n)
        return;
    log_line("--agent-fd: the agent does not take an event: %s", r < 0 ? strerror(-r) : "it does not read");
    leave_foreign(a, "its agent does not answer");
}

static void on_foreign_start(void *data, uint32_t generation, int restarts,
                             const struct rank_assignment *assignment, struct server *store)
{
    struct foreign_agent *a = data;

    server_stop(steal_ptr(a->store), NULL, NULL);
    a->store = store;
    a->assignment = *assignment;
    a->is_running = true;
    send_line(a, foreign_start_line(generation, assignment, generation > 0 ? a->cause : ""));
}

static void on_foreign_cause(void *data, const struct session_cause *cause)
{
    struct foreign_agent *a = data;

    a->cause[0] = '\0';
    if (cause->kind != SESSION_CAUSE_NONE)
        session_cause_describe(cause, a->cause, sizeof(a->cause));
}

static void on_foreign_stop(void *data, const struct session_cause *cause)
{
    struct foreign_agent *a = data;

    if (a->is_running) /* else the agent has ended the generation itself */
        send_line(a, foreign_end_line("stop", NULL, a->cause));
    a->is_running = false;
}

/* No agent sends a request to drain here, and none of crun's own is in the job. */
static void on_foreign_drain(void *data)
{
}

static void on_foreign_end(void *data, int exit_code, const struct session_cause *cause)
{
    struct foreign_agent *a = data;
    const char *text = membership_end_text(a->membership);

    a->is_running = false;
    send_line(a, foreign_end_line("end", &exit_code, text ? text : a->cause));
    if (a->has_ended)
        return;
    membership_print_end(a->membership);
    end_foreign(a, exit_code);
}

static void on_foreign_closed(void *data)
{
    struct foreign_agent *a = data;

    a->membership = NULL;
}

/* ---- from the agent ---- */

static void report_foreign_failure(struct foreign_agent *a, const struct foreign_command *command)
{
    struct session_cause cause = session_cause_empty(SESSION_CAUSE_WORKER);

    cause.group_rank = (int32_t)a->assignment.group_rank;
    cause.fatal = command->is_fatal;
    cause.exit_code = 1;
    proc_info_host_name(cause.host, sizeof(cause.host));
    text_copy(cause.text, sizeof(cause.text), command->text);
    membership_report(
        a->membership,
        (struct session_event){.kind = SESSION_EVENT_GROUP_FAILED, .cause = &cause, .when_ns = now_ns()});
}

/* A command of a generation that has ended meanwhile has no effect: the agent's next one is READY. */
static void obey(struct foreign_agent *a, const struct foreign_command *command)
{
    switch (command->kind) {
    case FOREIGN_READY:
        server_stop(steal_ptr(a->store), NULL, NULL);
        a->is_running = false;
        membership_ready(a->membership, 0, false);
        break;
    case FOREIGN_FAILED:
        if (a->is_running)
            report_foreign_failure(a, command);
        a->is_running = false;
        break;
    case FOREIGN_DONE:
        if (a->is_running)
            membership_report(a->membership, (struct session_event){.kind = SESSION_EVENT_GROUP_DONE});
        break;
    default:
        leave_foreign(a, command->text[0] ? command->text : "its agent goes away");
        break;
    }
}

static void take_line(struct foreign_agent *a, const char *line, size_t n)
{
    struct foreign_command command;
    char fault[FOREIGN_FAULT_SIZE];

    if (foreign_command_read(line, n, &command, fault)) {
        obey(a, &command);
        return;
    }
    log_line("--agent-fd: a line is no command: %s", fault);
    leave_foreign(a, "its agent sends what is no command");
}

static void take_bytes(struct foreign_agent *a, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && !a->has_ended; i++) {
        if (bytes[i] != '\n' && a->n_line < sizeof(a->line)) {
            a->line[a->n_line++] = bytes[i];
            continue;
        }
        size_t n_line = a->n_line;
        a->n_line = 0;
        take_line(a, a->line, n_line);
    }
}

static void give_buffer(uv_handle_t *handle, size_t wanted, uv_buf_t *ret)
{
    static char bytes[FOREIGN_LINE_MAX];

    *ret = uv_buf_init(bytes, sizeof(bytes));
}

static void on_foreign_bytes(uv_stream_t *pipe, ssize_t n, const uv_buf_t *buffer)
{
    struct foreign_agent *a = pipe->data;

    if (n < 0)
        leave_foreign(a, "its agent has ended");
    else
        take_bytes(a, buffer->base, (size_t)n);
}

/* ---- life ---- */

static int open_foreign(struct foreign_agent *a, struct job_keys *keys)
{
    const struct membership_host host = {.loop = &a->loop,
                                         .job = a->job,
                                         .keys = keys,
                                         .on_start = on_foreign_start,
                                         .on_cause = on_foreign_cause,
                                         .on_stop = on_foreign_stop,
                                         .on_drain = on_foreign_drain,
                                         .on_end = on_foreign_end,
                                         .on_closed = on_foreign_closed,
                                         .data = a};

    TRY(uv_loop_init(&a->loop));
    TRY(uv_pipe_init(&a->loop, &a->pipe, 0));
    TRY(uv_pipe_open(&a->pipe, a->job->agent_fd));
    a->pipe.data = a;
    TRY(uv_read_start((uv_stream_t *)&a->pipe, give_buffer, on_foreign_bytes));
    a->membership = membership_create(&host);
    return 0;
}

int foreign_agent_run(const struct job *job, struct job_keys *keys)
{
    static struct foreign_agent a;
    sigset_t none;

    a.job = job;
    (void)sigemptyset(&none); /* main() has blocked signals; here each has its default action */
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    int r = open_foreign(&a, keys);
    if (r) {
        log_line("--agent-fd=%d: %s; it has to be a connected socket", job->agent_fd, strerror(-r));
        return 1;
    }
    (void)uv_run(&a.loop, UV_RUN_DEFAULT);
    return a.exit_code;
}
