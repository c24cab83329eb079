/*
 * Writes a safetensors file into memory. The arguments are the caller's, so what the format cannot hold
 * is refused and not written: a reader of it would refuse it later, when it matters.
 */

#include "worker-runtime/checkpoint/safetensors.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int put_text(struct buf *b, const char *text)
{
    return buf_append(b, text, strlen(text));
}

static int put_quoted(struct buf *b, const char *text)
{
    int r = put_text(b, "\"");

    for (; r == 0 && *text; text++) {
        uint8_t c = (uint8_t)*text;
        char escape[8];

        if (c == '"' || c == '\\')
            (void)snprintf(escape, sizeof(escape), "\\%c", c);
        else if (c < 0x20)
            (void)snprintf(escape, sizeof(escape), "\\u%04x", c);
        else
            (void)snprintf(escape, sizeof(escape), "%c", c);
        r = put_text(b, escape);
    }
    return r == 0 ? put_text(b, "\"") : r;
}

static int put_strings(struct buf *b, const struct crw_pair *strings, size_t n_strings)
{
    int r = put_text(b, "\"__metadata__\":{");

    for (size_t i = 0; r == 0 && i < n_strings; i++) {
        if (i > 0)
            r = put_text(b, ",");
        if (r == 0)
            r = put_quoted(b, strings[i].key);
        if (r == 0)
            r = put_text(b, ":");
        if (r == 0)
            r = put_quoted(b, strings[i].value);
    }
    return r == 0 ? put_text(b, "}") : r;
}

static int put_tensor(struct buf *b, const struct crw_tensor *t, uint64_t begin, uint64_t end)
{
    char number[64];
    int r = put_quoted(b, t->name);

    if (r == 0)
        r = put_text(b, ":{\"dtype\":\"");
    if (r == 0)
        r = put_text(b, safetensors_dtype_name(t->dtype));
    if (r == 0)
        r = put_text(b, "\",\"shape\":[");
    for (int i = 0; r == 0 && i < t->n_dims; i++) {
        (void)snprintf(number, sizeof(number), "%s%" PRId64, i ? "," : "", t->dims[i]);
        r = put_text(b, number);
    }
    (void)snprintf(number, sizeof(number), "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
    return r == 0 ? put_text(b, number) : r;
}

static bool is_text(const char *text)
{
    return text && safetensors_text_is_utf8((const uint8_t *)text, strlen(text));
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts texts. */
static bool has_duplicate(const char **texts, size_t n)
{
    if (n > 1)
        qsort(texts, n, sizeof(*texts), compare_texts);
    for (size_t i = 1; i < n; i++)
        if (strcmp(texts[i - 1], texts[i]) == 0)
            return true;
    return false;
}

static const char *find_fault_of_tensor(const struct crw_tensor *t, uint64_t *data_size)
{
    uint64_t n;

    if ((unsigned)t->dtype >= CRW_DTYPE_COUNT)
        return "a tensor has no type";
    if (!safetensors_count_bytes(t->dtype, t->n_dims, t->dims, &n) ||
        __builtin_add_overflow(*data_size, n, data_size) || *data_size > SIZE_MAX / 2)
        return "a tensor has an impossible shape";
    if (!is_array(t->data, n, 1))
        return "a tensor has no data";
    if (!is_text(t->name) || strcmp(t->name, "__metadata__") == 0)
        return "a tensor has an impossible name";
    return NULL;
}

/* NULL when the format can hold it all. texts: room for as many as there are tensors or strings. */
static const char *find_fault(const struct crw_tensor *tensors, size_t n_tensors,
                              const struct crw_pair *strings, size_t n_strings, const char **texts)
{
    uint64_t data_size = 0;

    for (size_t i = 0; i < n_tensors; i++) {
        const char *fault = find_fault_of_tensor(&tensors[i], &data_size);

        if (fault)
            return fault;
        texts[i] = tensors[i].name;
    }
    if (has_duplicate(texts, n_tensors))
        return "two tensors have one name";
    for (size_t i = 0; i < n_strings; i++) {
        if (!is_text(strings[i].key) || !is_text(strings[i].value))
            return "a string is not UTF-8";
        texts[i] = strings[i].key;
    }
    return has_duplicate(texts, n_strings) ? "two strings have one key" : NULL;
}

static uint64_t count_tensor_bytes(const struct crw_tensor *t)
{
    uint64_t n = 0;

    (void)safetensors_count_bytes(t->dtype, t->n_dims, t->dims, &n); /* find_fault() saw that it works */
    return n;
}

static int put_header(struct buf *b, const struct crw_tensor *tensors, size_t n_tensors,
                      const struct crw_pair *strings, size_t n_strings, uint64_t *ret_data_size)
{
    uint64_t at = 0;
    int r = put_text(b, "{");

    if (r == 0)
        r = put_strings(b, strings, n_strings);
    for (size_t width = 8; r == 0 && width > 0; width /= 2) {
        for (size_t i = 0; r == 0 && i < n_tensors; i++) {
            if (safetensors_dtype_size(tensors[i].dtype) != width)
                continue;
            r = put_text(b, ",");
            if (r == 0)
                r = put_tensor(b, &tensors[i], at, at + count_tensor_bytes(&tensors[i]));
            at += count_tensor_bytes(&tensors[i]);
        }
    }
    if (r == 0)
        r = put_text(b, "}");
    while (r == 0 && buf_size(b) % 8 != 0)
        r = put_text(b, " ");
    *ret_data_size = at;
    return r;
}

/* In the order of put_header(). The room is there. */
static void put_data(struct buf *out, const struct crw_tensor *tensors, size_t n_tensors)
{
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < n_tensors; i++) {
            if (safetensors_dtype_size(tensors[i].dtype) == width)
                (void)buf_append(out, tensors[i].data, (size_t)count_tensor_bytes(&tensors[i]));
        }
    }
}

int safetensors_encode(const struct crw_tensor *tensors, size_t n_tensors, const struct crw_pair *strings,
                       size_t n_strings, struct buf *out, const char **ret_why)
{
    size_t n_texts = n_tensors > n_strings ? n_tensors : n_strings;
    const char **texts = calloc(n_texts + 1, sizeof(*texts));
    struct buf header = {0};
    uint64_t data_size;
    const char *why;
    int r;

    if (!texts)
        return -ENOMEM;
    why = find_fault(tensors, n_tensors, strings, n_strings, texts);
    free(texts);
    if (why) {
        *ret_why = why;
        return SAFETENSORS_E_BAD;
    }
    r = put_header(&header, tensors, n_tensors, strings, n_strings, &data_size);
    if (r == 0 && buf_size(&header) > SAFETENSORS_HEADER_MAX) {
        *ret_why = "the names and strings are too long";
        r = SAFETENSORS_E_BAD;
    }
    if (r == 0 && ((out->capacity < data_size && !memory_has_room(data_size, 1)) ||
                   !buf_reserve(out, 8 + buf_size(&header) + (size_t)data_size)))
        r = -ENOMEM;
    if (r == 0) {
        /* None of these can fail: the room is there. */
        (void)buf_append_u64(out, buf_size(&header));
        (void)buf_append(out, buf_bytes(&header), buf_size(&header));
        put_data(out, tensors, n_tensors);
    }
    buf_finish(&header);
    return r;
}
