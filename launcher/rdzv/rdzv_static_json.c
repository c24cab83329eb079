#include "launcher/rdzv/rdzv_static_json.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "base/strbuf.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

enum { RANKS_MAX = 1 << 30 }; /* of all workers of a job */

char *rdzv_static_json_role(const char *role, uint32_t rank, uint32_t n_workers)
{
    _cleanup_json_ cJSON *object = cJSON_CreateObject();

    return cJSON_AddStringToObject(object, "role", role) && cJSON_AddNumberToObject(object, "rank", rank) &&
                   cJSON_AddNumberToObject(object, "local_world_size", n_workers)
               ? cJSON_PrintUnformatted(object)
               : NULL;
}

char *rdzv_static_json_ranks(const struct rank_assignment *p)
{
    return strbuf_format("[%u, %u, %u, %u]", p->rank_base, p->world_size, p->role_rank_base,
                         p->role_world_size);
}

static bool read_count(const cJSON *item, uint32_t max, uint32_t *ret)
{
    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > max)
        return false;
    *ret = (uint32_t)item->valuedouble;
    return true;
}

bool rdzv_static_json_read_role(const void *bytes, size_t n, struct rdzv_static_role *ret)
{
    _cleanup_json_ cJSON *object = cJSON_ParseWithLength(bytes, n);
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "role"));
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(object, "local_world_size");

    ret->role = role && read_count(count, SESSION_WORKERS_MAX, &ret->n_workers) ? strdup(role) : NULL;
    return ret->role;
}

bool rdzv_static_json_read_ranks(const void *bytes, size_t n, struct rank_assignment *ret)
{
    _cleanup_json_ cJSON *list = cJSON_ParseWithLength(bytes, n);
    uint32_t *const numbers[] = {&ret->rank_base, &ret->world_size, &ret->role_rank_base,
                                 &ret->role_world_size};
    bool good = cJSON_IsArray(list) && cJSON_GetArraySize(list) == 4;

    for (int i = 0; good && i < 4; i++)
        good = read_count(cJSON_GetArrayItem(list, i), RANKS_MAX, numbers[i]);
    return good;
}
