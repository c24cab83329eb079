#include "rendezvous/session/agent_message_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "proto/frame.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

static const char prefix[] = "{\"relay\":";

static const struct field head_fields[] = {
    {"relay", FIELD_I32, offsetof(struct agent_message, to), AGENT_MESSAGE_TO_ALL, SESSION_NODES_MAX - 1,
     .required = true},
    {"generation", FIELD_I64, offsetof(struct agent_message, generation), 0, INT32_MAX, .required = true},
};

int agent_message_put(struct buf *out, const struct agent_message *head, const char *name, const char *json)
{
    _cleanup_free_ char *text = NULL;
    int n = asprintf(&text, "%s%d,\"generation\":%lld,\"%s\":%s}", prefix, (int)head->to,
                     (long long)head->generation, name, json);

    return n < 0 ? -ENOMEM : frame_put_body(out, text, (size_t)n);
}

bool agent_message_is_body(const uint8_t *body, size_t n)
{
    return n > strlen(prefix) && memcmp(body, prefix, strlen(prefix)) == 0;
}

bool agent_message_read(const struct cJSON *json, struct agent_message *ret)
{
    *ret = (struct agent_message){0};
    return fields_read(json, FIELDS_OF(head_fields), ret, NULL);
}
