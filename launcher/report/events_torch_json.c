/* torchrun's own event lines, for programs that read those (docs/torchrun-contract.md, section 9). Their time is always 0. */

#include <cjson/cJSON.h>
#include <stdio.h>

#include "launcher/report/events.h"
#include "base/cleanup.h"
#include "rendezvous/session/fields_json.h"

/* Python's tuples of one become lists of one. */
static void add_list_of_one(cJSON *object, const char *name, bool known, int value)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);

    (void)cJSON_AddItemToArray(list, known ? cJSON_CreateNumber(value) : cJSON_CreateNull());
}

static void add_number_or_null(cJSON *object, const char *name, bool known, double value)
{
    (void)cJSON_AddItemToObject(object, name, known ? cJSON_CreateNumber(value) : cJSON_CreateNull());
}

/* The inner metadata is JSON in a string. Malloc'ed. */
static char *inner_metadata(const struct event_job *job, const struct event_torch *e)
{
    _cleanup_json_ cJSON *inner = cJSON_CreateObject();

    add_number_or_null(inner, "group_world_size", !e->is_first, job->place.group_world_size);
    events_add_text(inner, "entry_point", job->entry_point);
    if (e->worker) {
        add_list_of_one(inner, "local_rank", true, e->worker->local_rank);
        add_list_of_one(inner, "role_rank", true, job->place.role_rank_base + e->worker->local_rank);
        add_list_of_one(inner, "role_world_size", true, job->place.role_world_size);
        add_list_of_one(inner, "exit_code", e->knows_ending, e->worker->code);
        add_list_of_one(inner, "worker_pid", e->knows_ending, e->worker->pid);
    }
    return cJSON_PrintUnformatted(inner);
}

static void add_text_or_null(cJSON *object, const char *name, const char *text)
{
    if (text)
        events_add_text(object, name, text);
    else
        (void)cJSON_AddNullToObject(object, name);
}

static void add_metadata(cJSON *metadata, const struct event_job *job, const struct event_torch *e,
                         const char *inner)
{
    char id[16] = "";

    if (e->worker)
        (void)snprintf(id, sizeof(id), "%d", (int)e->worker->pid); /* fits */
    events_add_text(metadata, "run_id", job->worker_run_id);
    add_number_or_null(metadata, "global_rank", e->worker != NULL,
                       e->worker ? job->place.rank_base + e->worker->local_rank : 0);
    add_number_or_null(metadata, "group_rank", !e->is_first, job->place.group_rank);
    add_text_or_null(metadata, "worker_id", e->worker ? id : NULL);
    events_add_text(metadata, "role", job->role);
    events_add_text(metadata, "hostname", job->host);
    (void)cJSON_AddStringToObject(metadata, "state", e->state);
    (void)cJSON_AddNumberToObject(metadata, "total_run_time", (double)e->run_s);
    (void)cJSON_AddStringToObject(metadata, "rdzv_backend", job->rdzv_backend);
    add_text_or_null(metadata, "raw_error", e->raw_error);
    (void)cJSON_AddStringToObject(metadata, "metadata", inner);
    (void)cJSON_AddNumberToObject(metadata, "agent_restarts", e->restarts);
    add_number_or_null(metadata, "duration_ms", e->duration_ms >= 0, e->duration_ms);
}

char *events_torch_line(const struct event_job *job, const struct event_torch *event)
{
    cJSON *line = cJSON_CreateObject();
    _cleanup_free_ char *inner = inner_metadata(job, event);
    char name[64];

    (void)snprintf(name, sizeof(name), "torchelastic.worker.status.%s", event->state); /* states are short */
    (void)cJSON_AddStringToObject(line, "name", name);
    (void)cJSON_AddStringToObject(line, "source", event->worker ? "WORKER" : "AGENT");
    (void)cJSON_AddNumberToObject(line, "timestamp", 0);
    add_metadata(cJSON_AddObjectToObject(line, "metadata"), job, event, inner ? inner : "");
    return events_print(line);
}
