#include "rendezvous/session/relay_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "proto/frame.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

static const char prefix[] = "{\"relay\":";

static const struct field relay_fields[] = {
    {"relay", FIELD_I32, offsetof(struct relay, to), RELAY_TO_ALL, SESSION_NODES_MAX - 1, .required = true},
    {"generation", FIELD_I64, offsetof(struct relay, generation), 0, INT32_MAX, .required = true},
};

int relay_put(struct buf *out, const struct relay *relay, const char *name, const char *json)
{
    char *text = NULL;
    int n = asprintf(&text, "%s%d,\"generation\":%lld,\"%s\":%s}", prefix, (int)relay->to,
                     (long long)relay->generation, name, json);

    if (n < 0)
        return -ENOMEM;
    int r = frame_put_body(out, text, (size_t)n);
    free(text);
    return r;
}

bool relay_is_body(const uint8_t *body, size_t n)
{
    return n > strlen(prefix) && memcmp(body, prefix, strlen(prefix)) == 0;
}

bool relay_read(const struct cJSON *json, struct relay *ret)
{
    char error[FIELDS_ERROR_SIZE];

    *ret = (struct relay){0};
    return fields_read(json, relay_fields, ARRAY_SIZE(relay_fields), ret, error);
}
