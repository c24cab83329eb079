#include "launcher/ctl/hang_message_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

static const struct field result_fields[] = {
    {"rank", FIELD_I32, offsetof(struct hang_result, rank), -1, INT32_MAX, .missing = -1},
    {"text", FIELD_TEXT, offsetof(struct hang_result, text), .size = HANG_TEXT_SIZE},
};

static const struct field stall_fields[] = {
    {"kind", FIELD_U32_AT(struct stall_message, kind, 0, STALL_MESSAGE_KIND_COUNT - 1)},
    {"node", FIELD_I32, offsetof(struct stall_message, node), 0, SESSION_NODES_MAX - 1},
    {"unusual", FIELD_U32_AT(struct stall_message, n_unusual, 0, UINT32_MAX)},
    {"mostly", FIELD_BOOL, offsetof(struct stall_message, waits_mostly)},
    {"stacks", FIELD_BOOL, offsetof(struct stall_message, with_stacks)},
    {"rank", FIELD_I32, offsetof(struct stall_message, rank), -1, INT32_MAX, .missing = -1},
    {"activity", FIELD_U32_AT(struct stall_message, facts.activity, 0, ACTIVITY_COUNT - 1)},
    {"bytes_per_s", FIELD_U64, offsetof(struct stall_message, facts.bytes_per_s), 0, FIELD_EXACT_MAX},
    {"waiting", FIELD_U32_AT(struct stall_message, facts.n_waiting, 0, UINT32_MAX)},
    {"waits_ms", FIELD_U32_AT(struct stall_message, facts.waits_ms, 0, UINT32_MAX)},
    {"text", FIELD_TEXT_AT(struct stall_message, text)},
};

/* ---- writing ---- */

static int put_message(struct buf *out, const struct agent_message *head, const char *name,
                       const struct field *fields, size_t n_fields, const void *from)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    int r = json ? fields_write(json, fields, n_fields, from) : -ENOMEM;
    _cleanup_free_ char *text = r ? NULL : cJSON_PrintUnformatted(json);

    return text ? agent_message_put(out, head, name, text) : -ENOMEM;
}

int hang_result_put(struct buf *out, const struct agent_message *head, const struct hang_result *result)
{
    return put_message(out, head, "hang", result_fields, ARRAY_SIZE(result_fields), result);
}

int stall_message_put(struct buf *out, const struct agent_message *head, const struct stall_message *message)
{
    return put_message(out, head, "stall", stall_fields, ARRAY_SIZE(stall_fields), message);
}

/* ---- reading ---- */

/* Lines stay lines, and an agent fills no terminal. */
static void clean_lines(char *text)
{
    int n = 0;

    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        text_clean(line);
        bool is_last = ++n == HANG_LINES_MAX;
        if (end && !is_last)
            *end = '\n';
        line = end && !is_last ? end + 1 : NULL;
    }
}

static bool read_take(const cJSON *json, int32_t *ret)
{
    const cJSON *to = cJSON_GetObjectItemCaseSensitive(json, "to");

    if (!cJSON_IsNumber(to) || !(to->valuedouble >= 0 && to->valuedouble < SESSION_NODES_MAX))
        return false;
    *ret = (int32_t)to->valuedouble;
    return true;
}

static bool read_ranks(const cJSON *ranks, struct hang_message *ret)
{
    struct job_status s = {0};
    bool is_read =
        job_status_add_node(&s, "", -1, 0) == 0 && node_ranks_take(ranks, &s, &ret->piece, ret->ranks) == 0;

    job_status_finish(&s);
    return is_read;
}

bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks"),
                *hang = cJSON_GetObjectItemCaseSensitive(json, "hang"),
                *take = cJSON_GetObjectItemCaseSensitive(json, "take"),
                *stall = cJSON_GetObjectItemCaseSensitive(json, "stall");

    *ret = (struct hang_message){.kind = hang    ? HANG_MESSAGE_RESULT
                                         : take  ? HANG_MESSAGE_TAKE
                                         : stall ? HANG_MESSAGE_STALL
                                                 : HANG_MESSAGE_RANKS};
    if (!json || !agent_message_read(json, &ret->head))
        return false;
    if (take)
        return read_take(take, &ret->take_to);
    if (!hang && !stall)
        return ranks && read_ranks(ranks, ret);
    bool is_read = hang ? fields_read(hang, result_fields, ARRAY_SIZE(result_fields), &ret->result, NULL)
                        : fields_read(stall, stall_fields, ARRAY_SIZE(stall_fields), &ret->stall, NULL);
    clean_lines(hang ? ret->result.text : ret->stall.text);
    return is_read;
}
