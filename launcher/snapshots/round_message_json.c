#include "launcher/snapshots/round_message_json.h"

#include <cjson/cJSON.h>
#include <errno.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

static const char *const kinds[ROUND_MESSAGE_KIND_COUNT] = {"have", "choice", "go"};

static const struct field message_fields[] = {
    {"kind", FIELD_WORD_AT(struct round_message, kind, kinds), .required = true},
    {"attempt", FIELD_U32_AT(struct round_message, attempt, 0, UINT32_MAX)},
    {"node", FIELD_I32, offsetof(struct round_message, node), 0, SESSION_NODES_MAX - 1},
    {"good", FIELD_BOOL, offsetof(struct round_message, is_good)},
    {"exists", FIELD_BOOL, offsetof(struct round_message, choice.exists)},
    {"step", FIELD_U64, offsetof(struct round_message, choice.step), 0, FIELD_EXACT_MAX},
    {"of", FIELD_U32_AT(struct round_message, choice.generation, 0, UINT32_MAX)},
    {"world", FIELD_U32_AT(struct round_message, choice.world_size, 0, UINT32_MAX)},
};

static const struct field run_fields[] = {
    {"step", FIELD_U64, offsetof(struct block_run, step), 0, FIELD_EXACT_MAX},
    {"generation", FIELD_U32_AT(struct block_run, generation, 0, UINT32_MAX)},
    {"world", FIELD_U32_AT(struct block_run, world_size, 1, INT32_MAX), .required = true},
    {"first", FIELD_U32_AT(struct block_run, first, 0, INT32_MAX)},
    {"n", FIELD_U32_AT(struct block_run, n, 1, INT32_MAX), .required = true},
    {"tier", FIELD_U32_AT(struct block_run, tier, 0, UINT32_MAX)},
};

static int write_runs(cJSON *json, const struct round_message *message)
{
    cJSON *runs = message->n_runs > 0 ? cJSON_AddArrayToObject(json, "runs") : NULL;
    int r = message->n_runs > 0 && !runs ? -ENOMEM : 0;

    for (size_t i = 0; !r && i < message->n_runs; i++) {
        cJSON *run = fields_append_object(runs);
        r = run ? fields_write(run, run_fields, ARRAY_SIZE(run_fields), &message->runs[i]) : -ENOMEM;
    }
    return r;
}

int round_message_put(struct buf *out, const struct agent_message *head, const struct round_message *message)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    int r = json ? fields_write(json, message_fields, ARRAY_SIZE(message_fields), message) : -ENOMEM;

    if (!r)
        r = write_runs(json, message);
    _cleanup_free_ char *text = r ? NULL : cJSON_PrintUnformatted(json);
    return text ? agent_message_put(out, head, "blocks", text) : -ENOMEM;
}

static bool read_runs(const cJSON *json, struct round_message *ret)
{
    const cJSON *run, *runs = cJSON_GetObjectItemCaseSensitive(json, "runs");

    cJSON_ArrayForEach(run, runs)
    {
        struct block_run *to = &ret->runs[ret->n_runs];
        if (ret->n_runs == ROUND_RUNS_MAX || !fields_read(run, run_fields, ARRAY_SIZE(run_fields), to, NULL))
            return false;
        to->node = ret->node;
        ret->n_runs++;
    }
    return true;
}

bool round_message_get(const uint8_t *body, size_t n, struct agent_message *ret_head,
                       struct round_message *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *blocks = cJSON_GetObjectItemCaseSensitive(json, "blocks");

    *ret = (struct round_message){0};
    return blocks && agent_message_read(json, ret_head) &&
           fields_read(blocks, message_fields, ARRAY_SIZE(message_fields), ret, NULL) &&
           read_runs(blocks, ret);
}
