#include "rendezvous/session/look_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/frame.h"
#include "rendezvous/session/fields_json.h"

static const struct field request_fields[] = {
    {"job", FIELD_TEXT_AT(struct look_request, job)},
    {"from", FIELD_U32_AT(struct look_request, from, 0, INT32_MAX)},
    {"stacks", FIELD_BOOL, offsetof(struct look_request, stacks)},
};

static const struct field piece_fields[] = {
    {"piece", FIELD_U32_AT(struct look_piece, piece, 0, LOOK_PIECES_MAX - 1)},
    {"pieces", FIELD_U32_AT(struct look_piece, pieces, 1, LOOK_PIECES_MAX), .required = true},
};

static const struct field job_fields[] = {
    {"job", FIELD_TEXT_AT(struct look_job, job), .required = true},
    {"state", FIELD_TEXT_AT(struct look_job, state), .required = true},
    {"generation", FIELD_I64, offsetof(struct look_job, generation), -1, INT32_MAX, .required = true},
    {"restarts", FIELD_U32_AT(struct look_job, restarts, 0, INT32_MAX), .required = true},
    {"max_restarts", FIELD_U32_AT(struct look_job, max_restarts, 0, INT32_MAX), .required = true},
    {"n_nodes", FIELD_U32_AT(struct look_job, n_nodes, 0, SESSION_NODES_MAX), .required = true},
};

static const struct field node_fields[] = {
    {"host", FIELD_TEXT_AT(struct look_node, host), .required = true},
    {"state", FIELD_TEXT_AT(struct look_node, state), .required = true},
    {"group_rank", FIELD_I32, offsetof(struct look_node, group_rank), -1, INT32_MAX, .missing = -1},
    {"workers", FIELD_U32_AT(struct look_node, n_workers, 0, SESSION_WORKERS_MAX)},
    {"silent_ms", FIELD_U32_AT(struct look_node, silent_ms, 0, INT32_MAX)},
};

/* ---- writing ---- */

static int put_object(struct buf *out, const cJSON *json)
{
    _cleanup_free_ char *text = cJSON_PrintUnformatted(json);

    return text ? frame_put_body(out, text, strlen(text)) : -ENOMEM;
}

/* {"NAME":{...}} */
static int put_part(struct buf *out, const char *name, const struct field *fields, size_t n_fields,
                    const void *from)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    cJSON *part = json ? cJSON_AddObjectToObject(json, name) : NULL;

    TRY(part ? fields_write(part, fields, n_fields, from) : -ENOMEM);
    return put_object(out, json);
}

int look_put_request(struct buf *out, const struct look_request *request)
{
    return put_part(out, "look", FIELDS_OF(request_fields), request);
}

int look_put_watch(struct buf *out, const struct look_watch *watch)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "{\"watch\":%u%s}", (unsigned)watch->ms,
                     watch->stacks ? ",\"stacks\":true" : ""); /* fits */

    return frame_put_body(out, text, (size_t)n);
}

int look_put_job(struct buf *out, const struct look_job *job)
{
    return put_part(out, "looked_job", FIELDS_OF(job_fields), job);
}

int look_put_node(struct buf *out, const struct look_node *node)
{
    return put_part(out, "looked_node", FIELDS_OF(node_fields), node);
}

int look_put_end(struct buf *out, uint32_t next)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "{\"looked\":%u}", (unsigned)next);

    return frame_put_body(out, text, (size_t)n);
}

int look_put_status(struct buf *out, const struct look_piece *piece, const char *node_json)
{
    _cleanup_free_ char *text = NULL;

    if (strlen(node_json) > LOOK_NODE_JSON_MAX)
        return -EMSGSIZE;
    int n = asprintf(&text, "{\"status\":{\"piece\":%u,\"pieces\":%u,\"node\":%s}}", (unsigned)piece->piece,
                     (unsigned)piece->pieces, node_json);
    return n < 0 ? -ENOMEM : frame_put_body(out, text, (size_t)n);
}

/* ---- reading ---- */

bool look_read_request(const struct cJSON *json, struct look_request *ret)
{
    *ret = (struct look_request){0};
    return fields_read(json, FIELDS_OF(request_fields), ret, NULL);
}

bool look_read_piece(const struct cJSON *json, struct look_piece *ret)
{
    *ret = (struct look_piece){0};
    return fields_read(json, FIELDS_OF(piece_fields), ret, NULL) && ret->piece < ret->pieces &&
           cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(json, "node"));
}

static bool read_u32(const cJSON *json, const char *name, uint32_t *ret)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);

    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= INT32_MAX))
        return false;
    *ret = (uint32_t)item->valuedouble;
    return true;
}

bool look_get_watch(const uint8_t *body, size_t n, struct look_watch *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);

    *ret = (struct look_watch){.stacks = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "stacks"))};
    return json && read_u32(json, "watch", &ret->ms);
}

bool look_get_reply(const uint8_t *body, size_t n, struct look_reply *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const struct {
        const char *name;
        enum look_kind kind;
        const struct field *fields;
        size_t n_fields;
        void *to;
    } parts[] = {
        {"looked_job", LOOK_JOB, FIELDS_OF(job_fields), &ret->job},
        {"looked_node", LOOK_NODE, FIELDS_OF(node_fields), &ret->node},
    };
    struct look_piece piece;

    *ret = (struct look_reply){.kind = LOOK_END};
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        const cJSON *part = cJSON_GetObjectItemCaseSensitive(json, parts[i].name);

        if (!part)
            continue;
        ret->kind = parts[i].kind;
        return fields_read(part, parts[i].fields, parts[i].n_fields, parts[i].to, NULL);
    }
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(json, "status");
    if (status)
        ret->kind = LOOK_STATUS;
    return status ? look_read_piece(status, &piece) : read_u32(json, "looked", &ret->next);
}
