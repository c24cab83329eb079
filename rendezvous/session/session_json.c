#include "rendezvous/session/session_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "base/err.h"
#include "proto/frame.h"

static const struct field cause_fields[] = {
    {"kind", FIELD_WORD_AT(struct session_cause, kind, session_cause_names)},
    {"fatal", FIELD_BOOL, offsetof(struct session_cause, fatal)},
    {"group_rank", FIELD_I32, offsetof(struct session_cause, group_rank), -1, INT32_MAX, .missing = -1},
    {"rank", FIELD_I32, offsetof(struct session_cause, rank), -1, INT32_MAX, .missing = -1},
    {"local_rank", FIELD_I32, offsetof(struct session_cause, local_rank), -1, INT32_MAX, .missing = -1},
    {"exit_code", FIELD_I32_AT(struct session_cause, exit_code)},
    {"pid", FIELD_I64_AT(struct session_cause, pid)},
    {"host", FIELD_TEXT, offsetof(struct session_cause, host), .size = SESSION_HOST_SIZE},
    {"text", FIELD_TEXT, offsetof(struct session_cause, text), .size = SESSION_TEXT_SIZE},
};

static const struct field params_fields[] = {
    {"min_nodes", FIELD_U32_AT(struct session_params, min_nodes, 1, SESSION_NODES_MAX), .required = true},
    {"max_nodes", FIELD_U32_AT(struct session_params, max_nodes, 1, SESSION_NODES_MAX), .required = true},
    {"max_restarts", FIELD_U32_AT(struct session_params, max_restarts, 0, SESSION_COUNT_MAX),
     .required = true},
    {"max_changes", FIELD_U32_AT(struct session_params, max_changes, 0, SESSION_COUNT_MAX), .required = true},
    {"join_timeout_ms", FIELD_U32_AT(struct session_params, join_timeout_ms, 1, SESSION_TIMEOUT_MS_MAX),
     .required = true},
    {"last_call_ms", FIELD_U32_AT(struct session_params, last_call_ms, 0, SESSION_TIMEOUT_MS_MAX),
     .required = true},
    {"node_timeout_ms", FIELD_U32_AT(struct session_params, node_timeout_ms, 1, SESSION_TIMEOUT_MS_MAX),
     .required = true},
    {"node_timeout_origin",
     FIELD_U32_AT(struct session_params, node_timeout_origin, 0, SESSION_TIMEOUT_ORIGIN_COUNT - 1)},
    {"local_store", FIELD_U32_AT(struct session_params, local_store, 0, 1)},
    {"foreign", FIELD_U32_AT(struct session_params, foreign, 0, 1)},
    {"lease_ms", FIELD_U32_AT(struct session_params, lease_ms, 0, SESSION_TIMEOUT_MS_MAX)},
    {"lease_auto", FIELD_U32_AT(struct session_params, lease_auto, 0, 1)},
};

static const struct field report_fields[] = {
    {"phase", FIELD_WORD_AT(struct session_report, phase, session_phase_names), .required = true},
    {"instance", FIELD_HEX, offsetof(struct session_report, instance)},
    {"generation", FIELD_I64, offsetof(struct session_report, generation), -1, INT32_MAX, .missing = -1},
    {"group_rank", FIELD_I32, offsetof(struct session_report, group_rank), -1, INT32_MAX, .missing = -1},
    {"port", FIELD_U16, offsetof(struct session_report, port), 0, UINT16_MAX},
    {"restarts", FIELD_U32_AT(struct session_report, restarts, 0, UINT32_MAX)},
    {"changes", FIELD_U32_AT(struct session_report, changes, 0, UINT32_MAX)},
    {"drain", FIELD_BOOL, offsetof(struct session_report, drain)},
    {"stop_signal", FIELD_U32_AT(struct session_report, stop_signal, 0, SESSION_SIGNAL_MAX)},
    {"quiet", FIELD_BOOL, offsetof(struct session_report, quiet)},
    {"keeps_keys", FIELD_BOOL, offsetof(struct session_report, keeps_keys)},
    {"cut_from", FIELD_U32_AT(struct session_report, cut_from, 0, UINT32_MAX)},
    {"age_ns", FIELD_U64, offsetof(struct session_report, age_ns), 0, FIELD_EXACT_MAX},
    {"unfit", FIELD_TEXT, offsetof(struct session_report, unfit), .size = SESSION_UNFIT_SIZE},
};

static const struct field hello_fields[] = {
    {"job", FIELD_TEXT, offsetof(struct session_hello, job), .size = SESSION_JOB_SIZE, .required = true},
    {"nonce_high", FIELD_HEX, offsetof(struct session_hello, nonce.high), .required = true},
    {"nonce_low", FIELD_HEX, offsetof(struct session_hello, nonce.low), .required = true},
    {"attempt", FIELD_U32_AT(struct session_hello, attempt, 1, UINT32_MAX), .required = true},
    {"host", FIELD_TEXT, offsetof(struct session_hello, host), .size = SESSION_HOST_SIZE},
    {"addr", FIELD_TEXT, offsetof(struct session_hello, addr), .size = SESSION_ADDR_SIZE},
    {"own", FIELD_TEXT, offsetof(struct session_hello, own), .size = SESSION_NUMERIC_SIZE},
    {"role", FIELD_TEXT, offsetof(struct session_hello, role), .size = SESSION_ROLE_SIZE},
    {"workers", FIELD_U32_AT(struct session_hello, n_workers, 1, SESSION_WORKERS_MAX), .required = true},
    {"node_rank", FIELD_I32, offsetof(struct session_hello, node_rank), -1, SESSION_NODES_MAX - 1,
     .missing = -1},
    {"can_report", FIELD_BOOL, offsetof(struct session_hello, can_report)},
};

static const struct field view_fields[] = {
    {"view", FIELD_WORD_AT(struct session_view, kind, session_view_names), .required = true},
    {"term", FIELD_U64, offsetof(struct session_view, term), 0, FIELD_EXACT_MAX},
    {"leader", FIELD_TEXT, offsetof(struct session_view, leader), .size = SESSION_ADDR_SIZE},
    {"lease_ms", FIELD_U32_AT(struct session_view, lease_ms, 0, SESSION_TIMEOUT_MS_MAX)},
    {"instance", FIELD_HEX, offsetof(struct session_view, instance)},
    {"generation", FIELD_I64, offsetof(struct session_view, generation), -1, INT32_MAX, .missing = -1},
    {"drain", FIELD_BOOL, offsetof(struct session_view, drain)},
    {"quiet", FIELD_BOOL, offsetof(struct session_view, quiet)},
    {"standby", FIELD_BOOL, offsetof(struct session_view, standby)},
    {"check", FIELD_BOOL, offsetof(struct session_view, check)},
    {"unfit", FIELD_TEXT, offsetof(struct session_view, unfit), .size = SESSION_TEXT_SIZE},
    {"ready", FIELD_U32_AT(struct session_view, n_ready, 0, SESSION_NODES_MAX)},
    {"min_nodes", FIELD_U32_AT(struct session_view, min_nodes, 0, SESSION_NODES_MAX)},
    {"max_nodes", FIELD_U32_AT(struct session_view, max_nodes, 0, SESSION_NODES_MAX)},
    {"restarts", FIELD_U32_AT(struct session_view, restarts, 0, SESSION_COUNT_MAX)},
    {"changes", FIELD_U32_AT(struct session_view, changes, 0, SESSION_COUNT_MAX)},
    {"verdict", FIELD_WORD_AT(struct session_view, verdict, session_verdict_names)},
    {"stop_signal", FIELD_U32_AT(struct session_view, stop_signal, 0, SESSION_SIGNAL_MAX)},
};

static const struct field waiting_fields[] = {
    {"left_ms", FIELD_U32_AT(struct session_waiting, left_ms, 0, UINT32_MAX)},
    {"present", FIELD_TEXT, offsetof(struct session_waiting, present), .size = SESSION_NAMES_SIZE},
    {"other_jobs", FIELD_TEXT, offsetof(struct session_waiting, other_jobs), .size = SESSION_NAMES_SIZE},
    {"refused", FIELD_TEXT, offsetof(struct session_waiting, refused), .size = SESSION_TEXT_SIZE},
};

static const struct field place_fields[] = {
    {"group_rank", FIELD_U32_AT(struct rank_assignment, group_rank, 0, SESSION_NODES_MAX), .required = true},
    {"group_world_size", FIELD_U32_AT(struct rank_assignment, group_world_size, 1, SESSION_NODES_MAX),
     .required = true},
    {"rank_base", FIELD_U32_AT(struct rank_assignment, rank_base, 0, INT32_MAX), .required = true},
    {"world_size", FIELD_U32_AT(struct rank_assignment, world_size, 1, INT32_MAX), .required = true},
    {"role_rank_base", FIELD_U32_AT(struct rank_assignment, role_rank_base, 0, INT32_MAX), .required = true},
    {"role_world_size", FIELD_U32_AT(struct rank_assignment, role_world_size, 1, INT32_MAX),
     .required = true},
    {"master_addr", FIELD_TEXT_AT(struct rank_assignment, master_addr), .required = true},
    {"master_port", FIELD_U16, offsetof(struct rank_assignment, master_port), 0, UINT16_MAX,
     .required = true},
    {"key_space", FIELD_U32_AT(struct rank_assignment, key_space, 0, INT32_MAX)},
};

/* ---- parts ---- */

static int add_object(cJSON *object, const char *name, const struct field *fields, size_t n_fields,
                      const void *from)
{
    cJSON *part = cJSON_AddObjectToObject(object, name);

    return part ? fields_write(part, fields, n_fields, from) : -ENOMEM;
}

int session_json_add_cause(struct cJSON *object, const struct session_cause *cause)
{
    if (cause->kind == SESSION_CAUSE_NONE)
        return 0;
    return add_object(object, "cause", FIELDS_OF(cause_fields), cause);
}

int session_json_add_params(struct cJSON *object, const struct session_params *params)
{
    return add_object(object, "params", FIELDS_OF(params_fields), params);
}

bool session_json_read_cause(const struct cJSON *object, struct session_cause *ret,
                             char error[FIELDS_ERROR_SIZE])
{
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(object, "cause");

    *ret = session_cause_empty(SESSION_CAUSE_NONE);
    if (part && !fields_read(part, FIELDS_OF(cause_fields), ret, error))
        return false;
    text_clean(ret->host); /* both sides print the texts */
    text_clean(ret->text);
    return true;
}

bool session_json_read_params(const struct cJSON *object, struct session_params *ret,
                              char error[FIELDS_ERROR_SIZE])
{
    return fields_read(cJSON_GetObjectItemCaseSensitive(object, "params"), FIELDS_OF(params_fields), ret,
                       error);
}

/* ---- writing ---- */

/* The texts are bounded: with every byte escaped a body stays below FRAME_BODY_MAX. */
static int put_json_frame(struct buf *out, cJSON *json)
{
    char body[FRAME_BODY_MAX];

    if (!cJSON_PrintPreallocated(json, body, sizeof(body), false))
        return -EMSGSIZE;
    return frame_put_body(out, body, strlen(body));
}

static int add_report(cJSON *json, const struct session_report *report)
{
    cJSON *part = cJSON_AddObjectToObject(json, "report");

    TRY(part ? fields_write(part, FIELDS_OF(report_fields), report) : -ENOMEM);
    return session_json_add_cause(part, &report->cause);
}

int session_json_put_hello(struct buf *out, const struct session_hello *hello)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    if (!json || !cJSON_AddNumberToObject(json, "hello", SESSION_VERSION))
        return -ENOMEM;
    TRY(fields_write(json, FIELDS_OF(hello_fields), hello));
    TRY(session_json_add_params(json, &hello->params));
    TRY(add_report(json, &hello->report));
    return put_json_frame(out, json);
}

int session_json_put_report(struct buf *out, const struct session_report *report)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    TRY(json ? add_report(json, report) : -ENOMEM);
    return put_json_frame(out, json);
}

static const char renew_head[] = "{\"renew\":", renewed_head[] = "{\"renewed\":";

static int put_renewal(struct buf *out, const char *head, uint32_t number)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "%s%u}", head, (unsigned)number); /* fits */

    return frame_put_body(out, text, (size_t)n);
}

int session_json_put_renew(struct buf *out, uint32_t number)
{
    return put_renewal(out, renew_head, number);
}

int session_json_put_renewed(struct buf *out, uint32_t number)
{
    return put_renewal(out, renewed_head, number);
}

/* Renewals come each second from every node, so a renewal is not parsed as JSON. */
static bool get_renewal(const uint8_t *body, size_t n, const char *head, uint32_t *ret)
{
    size_t at = strlen(head);
    uint64_t number = 0;

    if (n < at + 2 || n > at + 11 || memcmp(body, head, at) != 0 || body[n - 1] != '}')
        return false;
    for (; at < n - 1; at++) {
        if (body[at] < '0' || body[at] > '9')
            return false;
        number = number * 10 + (uint64_t)(body[at] - '0');
    }
    *ret = (uint32_t)number;
    return number <= UINT32_MAX;
}

bool session_json_get_renewed(const uint8_t *body, size_t n, uint32_t *ret)
{
    return get_renewal(body, n, renewed_head, ret);
}

static int add_missing(cJSON *json, const struct session_view *view)
{
    if (view->n_missing == 0)
        return 0;
    cJSON *list = cJSON_AddArrayToObject(json, "missing");
    for (uint32_t i = 0; i < view->n_missing; i++)
        if (!list || !cJSON_AddItemToArray(list, cJSON_CreateNumber(view->missing[i])))
            return -ENOMEM;
    return 0;
}

int session_json_put_view(struct buf *out, const struct session_view *view)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();

    TRY(json ? fields_write(json, FIELDS_OF(view_fields), view) : -ENOMEM);
    if (view->kind == SESSION_VIEW_START)
        TRY(add_object(json, "place", FIELDS_OF(place_fields), &view->place));
    TRY(add_missing(json, view));
    if (view->kind == SESSION_VIEW_WAIT)
        TRY(add_object(json, "waiting", FIELDS_OF(waiting_fields), &view->waiting));
    TRY(session_json_add_cause(json, &view->cause));
    return put_json_frame(out, json);
}

/* ---- reading ---- */

static cJSON *parse_object(const uint8_t *body, size_t n, char error[SESSION_JSON_ERROR_SIZE])
{
    cJSON *json = cJSON_ParseWithLength((const char *)body, n);

    if (!json)
        (void)snprintf(error, SESSION_JSON_ERROR_SIZE, "a body of %zu bytes is not JSON, or memory is out",
                       n);
    return json;
}

static bool json_fault(const char *what, const char part[FIELDS_ERROR_SIZE],
                       char error[SESSION_JSON_ERROR_SIZE])
{
    (void)snprintf(error, SESSION_JSON_ERROR_SIZE, "a %s cannot be understood: %s", what, part);
    return false;
}

static bool read_report(const cJSON *json, struct session_report *ret, char error[FIELDS_ERROR_SIZE])
{
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(json, "report");

    if (!fields_read(part, FIELDS_OF(report_fields), ret, error))
        return false;
    text_clean(ret->unfit);
    return session_json_read_cause(part, &ret->cause, error);
}

static bool read_hello(const cJSON *json, const cJSON *version, struct session_hello *ret,
                       char error[SESSION_JSON_ERROR_SIZE])
{
    char part[FIELDS_ERROR_SIZE];

    if (!cJSON_IsNumber(version) || version->valuedouble != SESSION_VERSION) {
        (void)snprintf(
            error, SESSION_JSON_ERROR_SIZE,
            "the agent speaks version %g of the agent session and this rendezvous version %d; use the "
            "same release of crun on all nodes",
            cJSON_IsNumber(version) ? version->valuedouble : 0.0, SESSION_VERSION);
        return false;
    }
    return (fields_read(json, FIELDS_OF(hello_fields), ret, part) &&
            session_json_read_params(json, &ret->params, part) && read_report(json, &ret->report, part)) ||
           json_fault("hello", part, error);
}

/* Messages about anything but the rounds. */
static bool read_look(const cJSON *json, struct session_json_message *ret)
{
    const cJSON *look = cJSON_GetObjectItemCaseSensitive(json, "look");
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(json, "status");

    ret->kind = look ? SESSION_JSON_LOOK : SESSION_JSON_STATUS;
    return (look && look_read_request(look, &ret->look)) ||
           (!look && status && look_read_piece(status, &ret->piece));
}

bool session_json_get_message(const uint8_t *body, size_t n, struct session_json_message *ret,
                              char error[SESSION_JSON_ERROR_SIZE])
{
    char part[FIELDS_ERROR_SIZE];

    ret->kind = SESSION_JSON_RENEW;
    if (get_renewal(body, n, renew_head, &ret->renewal))
        return true;
    _cleanup_json_ cJSON *json = parse_object(body, n, error);
    if (!json)
        return false;
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(json, "hello");
    if (read_look(json, ret))
        return true;
    ret->kind = SESSION_JSON_AGENT_MESSAGE;
    if (agent_message_read(json, &ret->agent_message))
        return true;
    ret->kind = version ? SESSION_JSON_HELLO : SESSION_JSON_REPORT;
    if (version)
        return read_hello(json, version, &ret->hello, error);
    return read_report(json, &ret->report, part) || json_fault("report", part, error);
}

static bool read_missing_ranks(const cJSON *json, struct session_view *ret, char error[FIELDS_ERROR_SIZE])
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "missing"), *item;

    ret->n_missing = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble >= SESSION_NODES_MAX) {
            (void)snprintf(error, FIELDS_ERROR_SIZE, "'missing' is not a list of node ranks");
            return false;
        }
        if (ret->n_missing < SESSION_MISSING_MAX)
            ret->missing[ret->n_missing++] = (uint32_t)item->valueint;
    }
    return true;
}

/* Releases without the field send nothing here. */
static bool read_waiting(const cJSON *json, struct session_waiting *ret, char error[FIELDS_ERROR_SIZE])
{
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(json, "waiting");

    *ret = (struct session_waiting){0};
    if (part && !fields_read(part, FIELDS_OF(waiting_fields), ret, error))
        return false;
    text_clean(ret->present); /* the agent prints the texts */
    text_clean(ret->other_jobs);
    text_clean(ret->refused);
    return true;
}

static bool read_assignment(const cJSON *json, struct session_view *ret, char error[FIELDS_ERROR_SIZE])
{
    ret->place = (struct rank_assignment){0};
    if (ret->kind != SESSION_VIEW_START)
        return true;
    return fields_read(cJSON_GetObjectItemCaseSensitive(json, "place"), FIELDS_OF(place_fields), &ret->place,
                       error);
}

static bool read_view(const cJSON *json, struct session_view *ret, char error[FIELDS_ERROR_SIZE])
{
    if (!fields_read(json, FIELDS_OF(view_fields), ret, error))
        return false;
    text_clean(ret->unfit); /* the agent prints the texts */
    text_clean(ret->leader);
    return true;
}

bool session_json_get_view(const uint8_t *body, size_t n, struct session_view *ret,
                           char error[SESSION_JSON_ERROR_SIZE])
{
    _cleanup_json_ cJSON *json = parse_object(body, n, error);
    char part[FIELDS_ERROR_SIZE];

    if (!json)
        return false;
    return (read_view(json, ret, part) && read_assignment(json, ret, part) &&
            read_missing_ranks(json, ret, part) && read_waiting(json, &ret->waiting, part) &&
            session_json_read_cause(json, &ret->cause, part)) ||
           json_fault("view", part, error);
}
