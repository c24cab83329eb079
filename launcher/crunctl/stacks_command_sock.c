#include "launcher/crunctl/stacks_command_sock.h"

#include <stdio.h>
#include <string.h>

#include "launcher/crunctl/control_client_sock.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_stacks_json.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/crunctl/job_survey_os.h"
#include "launcher/crunctl/other_nodes_sock.h"
#include "launcher/crunctl/print_os.h"
#include "base/cleanup.h"

enum { STACKS_PATIENCE_MS = 20000 };

static int print_stacks(const char *reply, size_t n, bool is_json)
{
    _cleanup_free_ char *text = is_json ? strndup(reply, n) : job_stacks_text(reply, n);

    if (text)
        return is_json ? print_json_line(text) : print_text(text);
    (void)fprintf(stderr, "crunctl: the stacks could not be taken, or crun is of another release\n");
    return 1;
}

static int ask_for_stacks(struct control_socket *s, bool is_json)
{
    _cleanup_(buf_finish) struct buf reply = {0};

    int r = control_client_ask(s, "stacks", STACKS_PATIENCE_MS, &reply);
    if (!r)
        return print_stacks((const char *)buf_bytes(&reply), buf_size(&reply), is_json);
    (void)fprintf(stderr, "crunctl: %s: %s\n", s->path, control_client_error(r));
    return 1;
}

static int print_looked_stacks(const struct query_answer *l, const char *job, bool is_json)
{
    if (l->n_jobs == 0) {
        (void)fprintf(stderr, "crunctl: the rendezvous has no job '%s'\n", job);
        return 3;
    }
    if (l->stacks)
        return print_stacks(l->stacks, strlen(l->stacks), is_json);
    (void)fprintf(
        stderr,
        "crunctl: no stacks of job '%s' have come: it does not run, none of its nodes answers, or its crun "
        "or the rendezvous is of an older release\n",
        job);
    return 1;
}

static int stacks_of_endpoint(struct survey_options *request, bool is_json)
{
    _cleanup_(query_answer_finish) struct query_answer looked = {0};

    return other_nodes_ask(request, &looked) == 0 ? print_looked_stacks(&looked, request->job, is_json) : 1;
}

static int stacks_of_front(const struct job_status *job, bool is_json)
{
    struct survey_options request = {.endpoint = job->socket, .job = job->job, .wants_stacks = true};

    return stacks_of_endpoint(&request, is_json);
}

static int stacks_of_sockets(struct survey_options *request, bool is_json)
{
    const char *job = request->job;
    _cleanup_(job_survey_finish) struct job_survey look;
    int code = job_survey_take(&look, request) == 0 ? 0 : 1;

    if (look.n_jobs == 0 && code == 0) {
        (void)fprintf(stderr, "crunctl: no job%s%s%s of yours runs on this node\n", job ? " '" : "",
                      job ? job : "", job ? "'" : "");
        code = 3;
    }
    for (size_t i = 0; i < look.n_jobs; i++) {
        struct control_socket s = {.path = look.jobs[i].socket, .is_named = request->socket != NULL};

        code |= *s.path == '@' ? stacks_of_front(&look.jobs[i], is_json) : ask_for_stacks(&s, is_json);
    }
    return code;
}

int stacks_command(struct survey_options *request, bool is_json)
{
    return request->endpoint ? stacks_of_endpoint(request, is_json) : stacks_of_sockets(request, is_json);
}
