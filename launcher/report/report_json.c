#include "launcher/report/report_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    cJSON *root = cJSON_ParseWithLength(bytes, n_bytes);
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    const cJSON *extra = cJSON_GetObjectItemCaseSensitive(message, "extraInfo");
    const char *text = cJSON_GetStringValue(message);
    int64_t time_s = integer_of(cJSON_IsObject(message) ? extra : root, "timestamp");
    int r = 0;

    if (!text)
        text = string_of(extra, "py_callstack");
    if (!text)
        text = string_of(message, "message");
    char *copy = text ? strdup(text) : NULL;
    if (!text)
        r = REPORT_JSON_E_BAD;
    else if (!copy)
        r = -ENOMEM;
    cJSON_Delete(root);
    if (r)
        return r;
    *ret_message = copy;
    *ret_time_s = time_s;
    return 0;
}

char *report_json_with_code(const char *bytes, size_t n_bytes, int exit_code)
{
    cJSON *root = cJSON_ParseWithLength(bytes, n_bytes);
    cJSON *message = cJSON_GetObjectItemCaseSensitive(root, "message");
    char *text = NULL;

    if (!cJSON_IsObject(message) || cJSON_AddNumberToObject(message, "errorCode", exit_code))
        text = cJSON_PrintUnformatted(root); /* NULL when root is */
    cJSON_Delete(root);
    return text;
}

char *report_json_of_launcher(const char *message, int64_t time_s)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *inner = cJSON_AddObjectToObject(root, "message");
    char time_text[24], *text = NULL;

    (void)snprintf(time_text, sizeof(time_text), "%" PRId64, time_s); /* fits */
    cJSON *said = cJSON_AddStringToObject(inner, "message", message);
    cJSON *extra = cJSON_AddObjectToObject(inner, "extraInfo");
    if (said && cJSON_AddStringToObject(extra, "py_callstack", message) &&
        cJSON_AddStringToObject(extra, "timestamp", time_text))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}
