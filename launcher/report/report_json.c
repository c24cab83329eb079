#include "launcher/report/report_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/session/fields_json.h"

static const char *string_of(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* A number, or a number written as text, as PyTorch does. */
static int64_t integer_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble < 1e15)
        return (int64_t)item->valuedouble;
    return cJSON_IsString(item) ? strtoll(item->valuestring, NULL, 10) : 0;
}

int report_json_read(const char *bytes, size_t n_bytes, char **ret_message, int64_t *ret_time_s)
{
    _cleanup_json_ cJSON *root = cJSON_ParseWithLength(bytes, n_bytes);
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    const cJSON *extra = cJSON_GetObjectItemCaseSensitive(message, "extraInfo");
    const char *text = cJSON_GetStringValue(message);

    if (!text)
        text = string_of(extra, "py_callstack");
    if (!text)
        text = string_of(message, "message");
    if (!text)
        return REPORT_JSON_E_BAD;
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    *ret_message = copy;
    *ret_time_s = integer_of(cJSON_IsObject(message) ? extra : root, "timestamp");
    return 0;
}

char *report_json_with_code(const char *bytes, size_t n_bytes, int exit_code)
{
    _cleanup_json_ cJSON *root = cJSON_ParseWithLength(bytes, n_bytes);
    cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");

    if (cJSON_IsObject(message) && !cJSON_AddNumberToObject(message, "errorCode", exit_code))
        return NULL;
    return cJSON_PrintUnformatted(root); /* NULL when root is */
}

char *report_json_of_launcher(const char *message, int64_t time_s)
{
    _cleanup_json_ cJSON *root = cJSON_CreateObject();
    cJSON *inner = cJSON_AddObjectToObject(root, "message");
    char time_text[24];

    (void)snprintf(time_text, sizeof(time_text), "%" PRId64, time_s); /* fits */
    cJSON *text = cJSON_AddStringToObject(inner, "message", message);
    cJSON *extra = cJSON_AddObjectToObject(inner, "extraInfo");
    bool is_whole = text && cJSON_AddStringToObject(extra, "py_callstack", message) &&
                    cJSON_AddStringToObject(extra, "timestamp", time_text);
    return is_whole ? cJSON_PrintUnformatted(root) : NULL;
}
