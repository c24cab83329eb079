#include "launcher/crunctl/query_answer_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/utf8.h"
#include "base/err.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "proto/frame.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/session/session_json.h"

/* The words of crun's own status. */
static const char *job_word_of(const char *state)
{
    static const struct {
        const char *state, *word;
    } words[] = {{"gathering", "waiting"}, {"ending", "stopping"}, {"closed", "ended"}};

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(words[i].state, state) == 0)
            return words[i].word;
    return "running";
}

/* A job whose nodes fill several answers comes again in each. */
static int take_job(struct query_answer *l, const struct look_job *job)
{
    if (l->n_jobs > 0 && strcmp(l->jobs[l->n_jobs - 1].job, job->job) == 0)
        return 0;
    if (!array_resize(l->jobs, l->n_jobs + 1))
        return -ENOMEM;
    struct job_status *s = &l->jobs[l->n_jobs++];
    *s = (struct job_status){.generation = job->generation,
                             .restarts = (int32_t)job->restarts,
                             .max_restarts = (int32_t)job->max_restarts,
                             .n_nodes = (int32_t)job->n_nodes};
    text_copy(s->job, sizeof(s->job), job->job);
    text_copy(s->state, sizeof(s->state), job_word_of(job->state));
    return 0;
}

static int take_node(struct query_answer *l, const struct look_node *node)
{
    struct job_status *s = l->n_jobs > 0 ? &l->jobs[l->n_jobs - 1] : NULL;

    TRY(s ? job_status_add_node(s, node->host, node->group_rank, 0) : -EBADMSG);
    struct node_status *added = &s->nodes[s->n_nodes_known - 1];
    added->is_remote = true;
    text_copy(added->state, sizeof(added->state), node->state);
    l->n_unreported++;
    return 0;
}

/* Of the agent that was asked for them. Without memory they are not there yet. */
static void take_stacks(struct query_answer *l, const cJSON *status)
{
    const cJSON *node = cJSON_GetObjectItemCaseSensitive(status, "node"),
                *stacks = cJSON_GetObjectItemCaseSensitive(node, "stacks");

    if (cJSON_IsObject(stacks) && !l->stacks)
        l->stacks = cJSON_PrintUnformatted(stacks);
}

static int take_status(struct query_answer *l, const uint8_t *body, size_t n)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(json, "status");
    struct job_status *s = l->n_jobs > 0 ? &l->jobs[l->n_jobs - 1] : NULL;

    if (!s || s->n_nodes_known == 0)
        return -EBADMSG;
    l->n_unreported -= s->nodes[s->n_nodes_known - 1].n_workers == 0 && l->n_unreported > 0;
    take_stacks(l, status);
    return node_ranks_take(status, s, NULL, NULL);
}

/* Jobs are known to the crund that leads. */
static int take_leader(struct query_answer *l, const char *leader)
{
    (void)snprintf(l->refusal, sizeof(l->refusal), "it does not lead%s%.200s%s", *leader ? ": " : "", leader,
                   *leader ? " does" : ", and does not know which crund does");
    text_clean(l->refusal);
    return -EACCES;
}

static int take_refusal(struct query_answer *l, const uint8_t *body, size_t n)
{
    char error[SESSION_JSON_ERROR_SIZE];
    struct session_view view;

    if (!session_json_get_view(body, n, &view, error))
        return -EBADMSG;
    if (view.kind == SESSION_VIEW_ELSEWHERE)
        return take_leader(l, view.leader);
    if (view.kind != SESSION_VIEW_REFUSED)
        return -EBADMSG;
    text_copy(l->refusal, sizeof(l->refusal), view.cause.text);
    text_clean(l->refusal);
    return -EACCES;
}

int query_answer_take(struct query_answer *l, const uint8_t *body, size_t n)
{
    struct look_reply reply;

    if (!look_get_reply(body, n, &reply))
        return take_refusal(l, body, n);
    switch (reply.kind) {
    case LOOK_JOB:
        return take_job(l, &reply.job);
    case LOOK_NODE:
        return take_node(l, &reply.node);
    case LOOK_STATUS:
        return take_status(l, body, n);
    default:
        l->next = reply.next;
        l->is_over = true;
        return 0;
    }
}

int query_answer_take_frames(struct query_answer *l, const uint8_t *bytes, size_t n)
{
    struct frame_reader reader = {.stage = FRAME_STAGE_FRAMES};
    struct frame frame;
    size_t at = 0, size;
    int r = 0;

    while (r == 0 && !l->is_over && frame_decode(&reader, bytes + at, n - at, &frame, &size) == 0) {
        at += size;
        if (frame.kind == FRAME_BODY)
            r = query_answer_take(l, frame.body.data, frame.body.size);
    }
    return r || l->is_over ? r : -EBADMSG;
}

void query_answer_finish(struct query_answer *l)
{
    for (size_t i = 0; i < l->n_jobs; i++)
        job_status_finish(&l->jobs[i]);
    free(l->jobs);
    free(l->stacks);
    *l = (struct query_answer){0};
}
