#include "launcher/crunctl/stacks_command_sock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/crunctl/control_client_sock.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/job_stacks_json.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/crunctl/job_survey_os.h"
#include "launcher/crunctl/other_nodes_sock.h"
#include "launcher/crunctl/print_os.h"
#include "launcher/util/strlist.h"
#include "base/cleanup.h"

enum { STACKS_PATIENCE_MS = 20000 };

/* 0 or -errno. */
static int ask_for_name(struct control_socket *s, const char *job, enum job_match *ret)
{
    _cleanup_free_ char *reply = NULL;
    struct job_status status = {.crun_pid = 0};
    size_t n = 0;

    int r = control_client_ask(s, "status", CONTROL_PATIENCE_MS, &reply, &n);
    if (!r)
        r = job_status_from_json(reply, n, &status);
    if (r)
        return r;
    *ret = job_status_match(status.job, job);
    job_status_finish(&status);
    return 0;
}

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
    _cleanup_free_ char *reply = NULL;
    size_t n = 0;

    int r = control_client_ask(s, "stacks", STACKS_PATIENCE_MS, &reply, &n);
    if (!r)
        return print_stacks(reply, n, is_json);
    (void)fprintf(stderr, "crunctl: %s: %s\n", s->path, control_client_error(r));
    return 1;
}

/* A socket that a killed crun left is passed over, if it was not named. 0 or 1. */
static int find_match(struct control_socket *s, const char *job, enum job_match *ret)
{
    int r = ask_for_name(s, job, ret);

    if (r == 0 || (!s->is_named && (r == -ECONNREFUSED || r == -ENOENT)))
        return 0;
    (void)fprintf(stderr, "crunctl: %s: %s\n", s->path, control_client_error(r));
    return 1;
}

static int take_all(const struct strlist *paths, const char *job, bool is_named, bool is_json, int *n_found)
{
    enum job_match *matches = calloc(paths->n_items + 1, sizeof(*matches)), best = JOB_MATCH_BEGINNING;
    int code = matches ? 0 : 1;

    for (size_t i = 0; matches && i < paths->n_items; i++) {
        struct control_socket s = {.path = paths->items[i], .is_named = is_named};

        code |= find_match(&s, job, &matches[i]);
        best = matches[i] > best ? matches[i] : best;
    }
    for (size_t i = 0; matches && i < paths->n_items; i++) {
        struct control_socket s = {.path = paths->items[i], .is_named = is_named};

        if (matches[i] < best)
            continue;
        ++*n_found;
        code |= ask_for_stacks(&s, is_json);
    }
    free(matches);
    return code;
}

int stacks_command(char *const *environment, const char *socket, const char *job, bool is_json)
{
    struct strlist sockets = {0};
    int n_found = 0;

    int code = control_client_list(environment, socket, &sockets) == 0 ? 0 : 1;
    code |= take_all(&sockets, job, socket != NULL, is_json, &n_found);
    strlist_finish(&sockets);
    if (n_found > 0 || code)
        return code;
    (void)fprintf(stderr, "crunctl: no job%s%s%s of yours runs on this node\n", job ? " '" : "",
                  job ? job : "", job ? "'" : "");
    return 3;
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

int stacks_of_endpoint(const struct survey_options *request, bool is_json)
{
    struct survey_options stacks = *request;
    struct query_answer looked;

    stacks.wants_stacks = true;
    int code =
        other_nodes_ask(&stacks, &looked) == 0 ? print_looked_stacks(&looked, request->job, is_json) : 1;
    query_answer_finish(&looked);
    return code;
}
