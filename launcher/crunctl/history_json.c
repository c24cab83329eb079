#include "launcher/crunctl/history_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "launcher/crunctl/history.h"
#include "rendezvous/session/fields_json.h"

static const struct field line_fields[] = {
    {"run_id", FIELD_TEXT_AT(struct history_line, job), .required = true},
    {"run", FIELD_TEXT_AT(struct history_line, run)},
    {"host", FIELD_TEXT_AT(struct history_line, host)},
    {"program", FIELD_TEXT_AT(struct history_line, program)},
    {"result", FIELD_TEXT_AT(struct history_line, result)},
    {"signal", FIELD_TEXT_AT(struct history_line, signal)},
    {"crun_pid", FIELD_I64_AT(struct history_line, crun_pid)},
    {"generation", FIELD_I64_AT(struct history_line, generation)},
    {"restarts", FIELD_I32_AT(struct history_line, restarts)},
    {"world_size", FIELD_I32_AT(struct history_line, world_size)},
    {"group_world_size", FIELD_I32_AT(struct history_line, group_world_size)},
    {"exit_code", FIELD_I32_AT(struct history_line, exit_code)},
};

/* "2026-11-22T08:20:01.123456789Z"; 0 when it is not that. */
static int64_t seconds_of(const char *text)
{
    struct tm utc = {0};

    return strptime(text, "%Y-%m-%dT%H:%M:%S", &utc) ? (int64_t)timegm(&utc) : 0;
}

static void read_mark(const cJSON *json, struct history_line *ret)
{
    const cJSON *line = cJSON_GetObjectItemCaseSensitive(json, "line");
    const cJSON *rank = cJSON_GetObjectItemCaseSensitive(json, "rank");

    ret->mark_rank = cJSON_IsNumber(rank) ? rank->valueint : -1;
    if (cJSON_IsString(line))
        (void)snprintf(ret->mark, sizeof(ret->mark), "%s", line->valuestring); /* cut when it is long */
}

bool history_line_from_json(const char *bytes, size_t n, struct history_line *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength(bytes, n);
    const cJSON *event = cJSON_GetObjectItemCaseSensitive(json, "event");
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(json, "time");
    const cJSON *reason = cJSON_GetObjectItemCaseSensitive(json, "reason");

    *ret = (struct history_line){0};
    if (!cJSON_IsString(event) || !cJSON_IsString(time) ||
        !fields_read(json, FIELDS_OF(line_fields), ret, NULL))
        return false;
    ret->kind = events_kind(event->valuestring);
    ret->time_s = seconds_of(time->valuestring);
    if (cJSON_IsString(reason)) /* the log has longer ones than are kept here */
        (void)snprintf(ret->reason, sizeof(ret->reason), "%s", reason->valuestring);
    if (ret->kind == EVENT_MARK)
        read_mark(json, ret);
    return true;
}

static bool add_generation_object(cJSON *list, const struct history_generation *g)
{
    cJSON *object = fields_append_object(list);
    bool added = object && cJSON_AddNumberToObject(object, "generation", (double)g->number) &&
                 cJSON_AddNumberToObject(object, "started", (double)g->started_s) &&
                 cJSON_AddNumberToObject(object, "ended", (double)g->ended_s) &&
                 cJSON_AddNumberToObject(object, "nodes", g->n_nodes) &&
                 cJSON_AddNumberToObject(object, "workers", g->n_workers) &&
                 cJSON_AddNumberToObject(object, "restarts", g->restarts) &&
                 cJSON_AddNumberToObject(object, "marks", g->n_marks);
    events_add_text(object, "reason", g->reason);
    if (g->n_marks > 0) {
        added = added && cJSON_AddNumberToObject(object, "mark_rank", g->mark_rank);
        events_add_text(object, "mark", g->mark);
    }
    return added;
}

char *history_to_json(const struct history_run *run)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    cJSON *list;

    if (!json || !cJSON_AddNumberToObject(json, "version", 1))
        return NULL;
    events_add_text(json, "job", run->start.job);
    events_add_text(json, "run", run->start.run);
    events_add_text(json, "host", run->start.host);
    events_add_text(json, "program", run->start.program);
    events_add_text(json, "result", run->result);
    if (!run->result[0] && run->life != HISTORY_LIFE_UNKNOWN &&
        !cJSON_AddBoolToObject(json, "runs", run->life == HISTORY_LIFE_RUNS))
        return NULL;
    if (run->reason[0])
        events_add_text(json, "reason", run->reason);
    if (!cJSON_AddNumberToObject(json, "crun_pid", (double)run->start.crun_pid) ||
        !cJSON_AddNumberToObject(json, "exit_code", run->exit_code) ||
        !cJSON_AddNumberToObject(json, "started", (double)run->start.time_s) ||
        !cJSON_AddNumberToObject(json, "ended", (double)run->ended_s))
        return NULL;
    list = cJSON_AddArrayToObject(json, "generations");
    for (size_t i = 0; list && i < run->n_generations; i++)
        if (!add_generation_object(list, &run->generations[i]))
            return NULL;
    return list ? cJSON_PrintUnformatted(json) : NULL;
}
