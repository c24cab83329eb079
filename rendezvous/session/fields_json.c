#include "rendezvous/session/fields_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum { HEX_DIGITS = 16 };

/* ---- writing ---- */

static size_t *list_size(const struct field *f, const void *of)
{
    return (size_t *)(uintptr_t)((const char *)of + f->n_offset);
}

static int64_t load(const struct field *f, const void *from)
{
    const char *at = (const char *)from + f->offset;

    switch (f->type) {
    case FIELD_BOOL:
        return *(const bool *)(const void *)at;
    case FIELD_U16:
        return *(const uint16_t *)(const void *)at;
    case FIELD_U32:
    case FIELD_WORD:
        return *(const uint32_t *)(const void *)at;
    case FIELD_I32:
        return *(const int32_t *)(const void *)at;
    case FIELD_LIST:
        return (int64_t)*list_size(f, from);
    default:
        return *(const int64_t *)(const void *)at;
    }
}

static bool write_list(cJSON *object, const struct field *f, const char *elements, size_t n)
{
    cJSON *list = cJSON_AddArrayToObject(object, f->name);
    bool is_whole = list;

    for (size_t i = 0; is_whole && i < n; i++) {
        cJSON *element = fields_append_object(list);

        is_whole = element && fields_write(element, f->fields, f->n_fields, elements + i * f->size) == 0;
    }
    return is_whole;
}

static bool write_clean(cJSON *object, const char *name, const char *text)
{
    _cleanup_free_ char *copy = text_utf8_copy(text, strlen(text));

    return copy && cJSON_AddStringToObject(object, name, copy);
}

static bool write_field(cJSON *object, const struct field *f, const void *from)
{
    const char *at = (const char *)from + f->offset;
    int64_t value = f->type == FIELD_TEXT ? at[0] : load(f, from);
    char hex[HEX_DIGITS + 1];

    if (!f->required && !f->always && value == f->missing)
        return !f->null || cJSON_AddNullToObject(object, f->name);
    switch (f->type) {
    case FIELD_BOOL:
        return cJSON_AddBoolToObject(object, f->name, value != 0);
    case FIELD_HEX:
        (void)snprintf(hex, sizeof(hex), "%016" PRIx64, (uint64_t)value);
        return cJSON_AddStringToObject(object, f->name, hex);
    case FIELD_TEXT:
        return f->clean ? write_clean(object, f->name, at)
                        : cJSON_AddStringToObject(object, f->name, at) != NULL;
    case FIELD_WORD:
        return cJSON_AddStringToObject(object, f->name, f->words[value]);
    case FIELD_LIST:
        return write_list(object, f, at, (size_t)value);
    default:
        return cJSON_AddNumberToObject(object, f->name, (double)value);
    }
}

cJSON *fields_append_object(cJSON *list)
{
    _cleanup_json_ cJSON *object = cJSON_CreateObject();

    return object && cJSON_AddItemToArray(list, object) ? steal_ptr(object) : NULL;
}

int fields_write(struct cJSON *object, const struct field *fields, size_t n_fields, const void *from)
{
    for (size_t i = 0; i < n_fields; i++)
        if (!write_field(object, &fields[i], from))
            return -ENOMEM;
    return 0;
}

/* ---- reading ---- */

static void store(const struct field *f, void *to, int64_t value)
{
    char *at = (char *)to + f->offset;

    switch (f->type) {
    case FIELD_BOOL:
        *(bool *)(void *)at = value != 0;
        break;
    case FIELD_U16:
        *(uint16_t *)(void *)at = (uint16_t)value;
        break;
    case FIELD_U32:
    case FIELD_WORD:
        *(uint32_t *)(void *)at = (uint32_t)value;
        break;
    case FIELD_I32:
        *(int32_t *)(void *)at = (int32_t)value;
        break;
    case FIELD_LIST:
        *list_size(f, to) = (size_t)value;
        break;
    default:
        *(int64_t *)(void *)at = value;
        break;
    }
}

static bool read_json_number(const cJSON *item, const struct field *f, void *to)
{
    double value = cJSON_IsNumber(item) ? item->valuedouble : 0.5;

    if (!(value >= (double)f->min && value <= (double)f->max) || value != (double)(int64_t)value)
        return false;
    store(f, to, (int64_t)value);
    return true;
}

static bool read_hex(const cJSON *item, const struct field *f, void *to)
{
    const char *text = cJSON_GetStringValue(item);

    if (!text || strlen(text) != HEX_DIGITS || strspn(text, "0123456789abcdef") != HEX_DIGITS)
        return false;
    store(f, to, (int64_t)strtoull(text, NULL, 16));
    return true;
}

static bool read_json_text(const cJSON *item, const struct field *f, void *to)
{
    const char *text = cJSON_GetStringValue(item);

    if (!text || strlen(text) >= f->size)
        return false;
    memcpy((char *)to + f->offset, text, strlen(text) + 1);
    return true;
}

static bool read_list(const cJSON *list, const struct field *f, void *to)
{
    size_t *n = list_size(f, to);
    const cJSON *item;

    *n = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (*n == (size_t)f->max)
            break;
        if (!fields_read(item, f->fields, f->n_fields, (char *)to + f->offset + (*n)++ * f->size, NULL))
            return false;
    }
    return cJSON_IsArray(list);
}

static bool read_word(const cJSON *item, const struct field *f, void *to)
{
    const char *text = cJSON_GetStringValue(item);

    for (unsigned i = 0; text && i < f->size; i++) {
        if (strcmp(text, f->words[i]) == 0) {
            store(f, to, i);
            return true;
        }
    }
    return false;
}

static bool read_json_field(const cJSON *item, const struct field *f, void *to)
{
    switch (f->type) {
    case FIELD_BOOL:
        store(f, to, cJSON_IsTrue(item));
        return cJSON_IsBool(item);
    case FIELD_HEX:
        return read_hex(item, f, to);
    case FIELD_TEXT:
        return read_json_text(item, f, to);
    case FIELD_WORD:
        return read_word(item, f, to);
    case FIELD_LIST:
        return read_list(item, f, to);
    default:
        return read_json_number(item, f, to);
    }
}

static bool field_fault(const struct field *f, char error[FIELDS_ERROR_SIZE])
{
    static const char *const faults[FIELD_TYPE_COUNT] = {
        [FIELD_BOOL] = "neither true nor false",
        [FIELD_HEX] = "not 16 hexadecimal digits",
        [FIELD_WORD] = "not one of the words for it",
        [FIELD_LIST] = "not a list of such objects",
    };

    if (faults[f->type])
        (void)snprintf(error, FIELDS_ERROR_SIZE, "'%s' is %s", f->name, faults[f->type]);
    else if (f->type == FIELD_TEXT)
        (void)snprintf(error, FIELDS_ERROR_SIZE, "'%s' is not a text below %zu bytes", f->name, f->size);
    else
        (void)snprintf(error, FIELDS_ERROR_SIZE,
                       "'%s' is not a whole number between %" PRId64 " and %" PRId64, f->name, f->min,
                       f->max);
    return false;
}

static bool set_missing_field(const struct field *f, void *to, char error[FIELDS_ERROR_SIZE])
{
    if (f->required) {
        (void)snprintf(error, FIELDS_ERROR_SIZE, "'%s' is missing", f->name);
        return false;
    }
    if (f->type == FIELD_TEXT)
        ((char *)to)[f->offset] = 0;
    else
        store(f, to, f->missing);
    return true;
}

/* The fields of a body come in the order of the table when it was written here: look behind the last one
 * before searching all. */
static const cJSON *find_word(const cJSON *object, const cJSON **last, const char *name)
{
    const cJSON *next = *last ? (*last)->next : object->child;

    if (!next || !next->string || strcmp(next->string, name) != 0)
        next = cJSON_GetObjectItemCaseSensitive(object, name);
    if (next)
        *last = next;
    return next;
}

bool fields_read(const struct cJSON *object, const struct field *fields, size_t n_fields, void *to,
                 char *error)
{
    char unused[FIELDS_ERROR_SIZE];
    const cJSON *last = NULL;

    error = error ? error : unused;
    if (!cJSON_IsObject(object)) {
        (void)snprintf(error, FIELDS_ERROR_SIZE, "it is not an object");
        return false;
    }
    for (size_t i = 0; i < n_fields; i++) {
        const cJSON *item = find_word(object, &last, fields[i].name);

        if (!item || (fields[i].null && cJSON_IsNull(item))) {
            if (!set_missing_field(&fields[i], to, error))
                return false;
        } else if (!read_json_field(item, &fields[i], to)) {
            return field_fault(&fields[i], error);
        }
    }
    return true;
}

void fields_cleanup_json(struct cJSON **json)
{
    cJSON_Delete(*json);
}
