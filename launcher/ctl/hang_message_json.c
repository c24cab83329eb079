#include "launcher/ctl/hang_message_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>

#include "base/utf8.h"
#include "base/cleanup.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/node_ranks_json.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

static const struct field notice_fields[] = {
    {"kind", FIELD_U32_AT(struct hang_notice, kind, 0, HANG_NOTICE_KIND_COUNT - 1)},
    {"node", FIELD_I32, offsetof(struct hang_notice, node), 0, SESSION_NODES_MAX - 1},
    {"unusual", FIELD_U32_AT(struct hang_notice, n_unusual, 0, UINT32_MAX)},
    {"mostly", FIELD_BOOL, offsetof(struct hang_notice, waits_mostly)},
    {"stacks", FIELD_BOOL, offsetof(struct hang_notice, with_stacks)},
    {"rank", FIELD_I32, offsetof(struct hang_notice, rank), -1, INT32_MAX, .missing = -1},
    {"activity", FIELD_TEXT_AT(struct hang_notice, stall.activity)},
    {"bytes_per_s", FIELD_U64, offsetof(struct hang_notice, stall.bytes_per_s), 0, FIELD_EXACT_MAX},
    {"waiting", FIELD_U32_AT(struct hang_notice, stall.n_waiting, 0, UINT32_MAX)},
    {"waits_ms", FIELD_U32_AT(struct hang_notice, stall.waits_ms, 0, UINT32_MAX)},
    {"text", FIELD_TEXT_AT(struct hang_notice, text)},
};

int hang_notice_put(struct buf *out, const struct agent_message *head, const struct hang_notice *notice)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    int r = json ? fields_write(json, FIELDS_OF(notice_fields), notice) : -ENOMEM;
    _cleanup_free_ char *text = r ? NULL : cJSON_PrintUnformatted(json);

    return text ? agent_message_put(out, head, "hang", text) : -ENOMEM;
}

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

static bool read_ranks(const cJSON *ranks, struct hang_message *ret)
{
    _cleanup_(job_status_finish) struct job_status s = {0};

    return job_status_add_node(&s, "", -1, 0) == 0 &&
           node_ranks_take(ranks, &s, &ret->piece, ret->ranks) == 0;
}

bool hang_message_get(const uint8_t *body, size_t n, struct hang_message *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks"),
                *notice = cJSON_GetObjectItemCaseSensitive(json, "hang");

    *ret = (struct hang_message){.has_ranks = ranks};
    if (!json || !agent_message_read(json, &ret->head))
        return false;
    if (ranks)
        return read_ranks(ranks, ret);
    bool is_read = notice && fields_read(notice, FIELDS_OF(notice_fields), &ret->notice, NULL);
    clean_lines(ret->notice.text);
    text_clean(ret->notice.stall.activity);
    return is_read;
}
