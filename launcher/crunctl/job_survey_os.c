#include "launcher/crunctl/job_survey_os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/time.h"
#include "launcher/crunctl/control_client_sock.h"
#include "launcher/crunctl/gpu_usage_os.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/job_stragglers.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/crunctl/node_usage_os.h"
#include "launcher/crunctl/other_nodes_sock.h"

void job_survey_finish(struct job_survey *look)
{
    for (size_t i = 0; i < look->n_jobs; i++)
        job_status_finish(&look->jobs[i]);
    free(look->jobs);
    strlist_finish(&look->sockets);
    *look = (struct job_survey){0};
}

static int take_reply(struct job_survey *look, struct survey_options *o, const char *bytes, size_t n)
{
    struct job_status *jobs = reallocarray(look->jobs, look->n_jobs + 1, sizeof(*jobs));

    if (!jobs)
        return -ENOMEM;
    look->jobs = jobs;
    int r = job_status_from_json(bytes, n, &jobs[look->n_jobs]);
    if (!r && job_status_match(jobs[look->n_jobs].job, o->job) == JOB_MATCH_NONE)
        job_status_finish(&jobs[look->n_jobs]);
    else if (!r)
        look->n_jobs++;
    return r;
}

/* Paths in the answer of another user's process: root opens none of them. */
static void drop_logs(struct job_status *s)
{
    for (size_t n = 0; n < s->n_nodes_known; n++)
        for (size_t i = 0; i < s->nodes[n].n_workers; i++)
            s->nodes[n].workers[i].log[0] = '\0';
}

static int ask_socket(struct job_survey *look, struct survey_options *o, struct control_socket *s)
{
    _cleanup_free_ char *reply = NULL;
    size_t n = 0, n_before = look->n_jobs;
    uint64_t answered_ns;

    int r = control_client_ask(s, "status", CONTROL_PATIENCE_MS, &reply, &n);
    if (!r)
        r = take_reply(look, o, reply, n);
    answered_ns = now_ns();
    if (r || look->n_jobs == n_before)
        return r;
    struct job_status *job = &look->jobs[n_before];
    job->socket = s->path;
    if (o->wants_stacks)
        return 0;
    if (s->is_foreign)
        drop_logs(job);
    other_nodes_add(job, o, s);
    for (size_t i = 0; i < job->n_nodes_known; i++)
        if (!job->nodes[i].is_remote)
            job->nodes[i].age_ms = (int64_t)(now_ns() - answered_ns) / 1000000;
    job_stragglers_mark(job);
    return 0;
}

/* A socket that a killed crun left is passed over: the next crun of that name removes it. One that was named has to answer, and for
 * stacks each one that is there. */
static int ask_sockets(struct job_survey *look, struct survey_options *o)
{
    int result = 0;

    for (size_t i = 0; i < look->sockets.n_items; i++) {
        struct control_socket s = {.path = look->sockets.items[i], .is_named = o->socket != NULL};
        int r = ask_socket(look, o, &s);

        if (!r || (!s.is_named && (r == -ECONNREFUSED || r == -ENOENT)))
            continue;
        (void)fprintf(stderr, "crunctl: %s: %s\n", s.path, control_client_error(r));
        if (s.is_named || o->wants_stacks)
            result = r;
    }
    return result;
}

static void keep_best_matches(struct job_survey *look, const char *asked)
{
    enum job_match best = JOB_MATCH_BEGINNING;
    size_t n = 0;

    for (size_t i = 0; i < look->n_jobs; i++)
        if (job_status_match(look->jobs[i].job, asked) > best)
            best = JOB_MATCH_WHOLE;
    for (size_t i = 0; i < look->n_jobs; i++) {
        if (job_status_match(look->jobs[i].job, asked) >= best)
            look->jobs[n++] = look->jobs[i];
        else
            job_status_finish(&look->jobs[i]);
    }
    look->n_jobs = n;
}

static void read_own_nodes(struct job_survey *look)
{
    struct gpu_status gpus[JOB_STATUS_GPUS_MAX];
    size_t n_gpus = look->n_jobs > 0 ? gpu_usage_read(gpus, JOB_STATUS_GPUS_MAX) : 0;

    for (size_t i = 0; i < look->n_jobs; i++)
        for (size_t n = 0; n < look->jobs[i].n_nodes_known; n++) {
            struct node_status *node = &look->jobs[i].nodes[n];

            if (node->is_remote)
                continue;
            node_usage_read(node);
            memcpy(node->gpus, gpus, n_gpus * sizeof(*gpus));
            node->n_gpus = n_gpus;
        }
}

static int ask_endpoint(struct job_survey *ret, struct survey_options *request)
{
    struct query_answer looked;
    int r = other_nodes_ask(request, &looked);

    ret->jobs = looked.jobs;
    ret->n_jobs = looked.n_jobs;
    looked.jobs = NULL;
    looked.n_jobs = 0;
    query_answer_finish(&looked);
    ret->taken_ns = now_ns();
    for (size_t i = 0; i < ret->n_jobs; i++)
        job_stragglers_mark(&ret->jobs[i]);
    return r;
}

int job_survey_take(struct job_survey *ret, struct survey_options *request)
{
    *ret = (struct job_survey){0};
    if (request->endpoint)
        return ask_endpoint(ret, request);
    int r = control_client_list(request->environment, request->socket, &ret->sockets);
    if (!r)
        r = ask_sockets(ret, request);
    keep_best_matches(ret, request->job);
    ret->taken_ns = now_ns();
    if (!request->wants_stacks)
        read_own_nodes(ret);
    return r;
}

void job_survey_compare(struct job_survey *look, const struct job_survey *before)
{
    int64_t ms = (int64_t)(look->taken_ns - before->taken_ns) / 1000000;

    for (size_t i = 0; i < look->n_jobs; i++)
        for (size_t k = 0; k < before->n_jobs; k++)
            if (strcmp(look->jobs[i].job, before->jobs[k].job) == 0 &&
                look->jobs[i].crun_pid == before->jobs[k].crun_pid)
                job_status_compare(&look->jobs[i], &before->jobs[k], ms);
}

size_t job_survey_count_ranks(const struct job_survey *look)
{
    size_t n_ranks = 0;

    for (size_t i = 0; i < look->n_jobs; i++)
        for (size_t n = 0; n < look->jobs[i].n_nodes_known; n++)
            n_ranks += look->jobs[i].nodes[n].n_workers;
    return n_ranks;
}
