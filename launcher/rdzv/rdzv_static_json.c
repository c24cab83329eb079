#include "launcher/rdzv/rdzv_static_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/session/session_message.h"

enum { RANKS_MAX = 1 << 30 }; /* of all workers of a job */

char *rdzv_static_json_role(const char *role, uint32_t rank, uint32_t n_workers)
{
    cJSON *object = cJSON_CreateObject();
    char *text = NULL;

    if (cJSON_AddStringToObject(object, "role", role) && cJSON_AddNumberToObject(object, "rank", rank) &&
        cJSON_AddNumberToObject(object, "local_world_size", n_workers))
        text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    return text;
}

char *rdzv_static_json_ranks(const struct rank_assignment *p)
{
    char *text;

    if (asprintf(&text, "[%u, %u, %u, %u]", p->rank_base, p->world_size, p->role_rank_base,
                 p->role_world_size) < 0)
        return NULL;
    return text;
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
    cJSON *object = cJSON_ParseWithLength(bytes, n);
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "role"));
    struct rdzv_static_role read = {0};
    bool good = role && read_count(cJSON_GetObjectItemCaseSensitive(object, "local_world_size"),
                                   SESSION_WORKERS_MAX, &read.n_workers);

    if (good)
        read.role = strdup(role);
    cJSON_Delete(object);
    if (!read.role)
        return false;
    *ret = read;
    return true;
}

bool rdzv_static_json_read_ranks(const void *bytes, size_t n, struct rank_assignment *ret)
{
    cJSON *list = cJSON_ParseWithLength(bytes, n);
    uint32_t numbers[4];
    bool good = cJSON_IsArray(list) && cJSON_GetArraySize(list) == 4;

    for (int i = 0; good && i < 4; i++)
        good = read_count(cJSON_GetArrayItem(list, i), RANKS_MAX, &numbers[i]);
    cJSON_Delete(list);
    if (!good)
        return false;
    ret->rank_base = numbers[0];
    ret->world_size = numbers[1];
    ret->role_rank_base = numbers[2];
    ret->role_world_size = numbers[3];
    return true;
}
