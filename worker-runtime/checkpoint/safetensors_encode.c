/*
 * Writes a safetensors file into memory. Arguments that the format cannot hold are refused and not written: a reader of the
 * file would refuse the file later, when the file is needed.
 */

#include "worker-runtime/checkpoint/safetensors.h"

#include "base/cleanup.h"
#include "base/minmax.h"
#include "base/strbuf.h"
#include "worker-runtime/base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void put_quoted(struct strbuf *t, const char *text)
{
    strbuf_add(t, "\"");
    for (;;) {
        size_t n = 0;

        while ((uint8_t)text[n] >= 0x20 && text[n] != '"' && text[n] != '\\')
            n++;
        strbuf_add(t, "%.*s", (int)n, text);
        text += n;
        if (!*text)
            break;
        strbuf_add(t, (uint8_t)*text < 0x20 ? "\\u%04x" : "\\%c", *text);
        text++;
    }
    strbuf_add(t, "\"");
}

static void put_strings(struct strbuf *t, const struct crw_pair *strings, size_t n_strings)
{
    strbuf_add(t, "\"__metadata__\":{");
    for (size_t i = 0; i < n_strings; i++) {
        strbuf_add(t, "%s", i > 0 ? "," : "");
        put_quoted(t, strings[i].key);
        strbuf_add(t, ":");
        put_quoted(t, strings[i].value);
    }
    strbuf_add(t, "}");
}

static void put_tensor(struct strbuf *text, const struct crw_tensor *t, uint64_t begin, uint64_t end)
{
    strbuf_add(text, ",");
    put_quoted(text, t->name);
    strbuf_add(text, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(t->dtype));
    for (int i = 0; i < t->n_dims; i++)
        strbuf_add(text, "%s%" PRId64, i > 0 ? "," : "", t->dims[i]);
    strbuf_add(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

static bool is_text(const char *text)
{
    return text && safetensors_text_is_utf8((const uint8_t *)text, strlen(text));
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
    if (!safetensors_sort_texts(texts, n_tensors, sizeof(*texts)))
        return "two tensors have one name";
    for (size_t i = 0; i < n_strings; i++) {
        if (!is_text(strings[i].key) || !is_text(strings[i].value))
            return "a string is not UTF-8";
        texts[i] = strings[i].key;
    }
    return safetensors_sort_texts(texts, n_strings, sizeof(*texts)) ? NULL : "two strings have one key";
}

static uint64_t count_tensor_bytes(const struct crw_tensor *t)
{
    uint64_t n = 0;

    (void)safetensors_count_bytes(t->dtype, t->n_dims, t->dims, &n); /* find_fault() has checked the shape */
    return n;
}

/* Returns the bytes of all tensors. */
static uint64_t put_header(struct strbuf *t, const struct crw_tensor *tensors, size_t n_tensors,
                           const struct crw_pair *strings, size_t n_strings)
{
    uint64_t at = 0;

    strbuf_add(t, "{");
    put_strings(t, strings, n_strings);
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < n_tensors; i++) {
            uint64_t begin = at;

            if (safetensors_dtype_size(tensors[i].dtype) != width)
                continue;
            at += count_tensor_bytes(&tensors[i]);
            put_tensor(t, &tensors[i], begin, at);
        }
    }
    strbuf_add(t, "}");
    strbuf_add(t, "%*s", (int)(-buf_size(&t->buf) % 8), "");
    return at;
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

/* Adds length, header and data to out. */
static int put_file(const struct buf *header, const struct crw_tensor *tensors, size_t n_tensors,
                    uint64_t data_size, struct buf *out)
{
    if ((out->capacity < data_size && !memory_has_room(data_size, 1)) ||
        !buf_reserve(out, 8 + buf_size(header) + (size_t)data_size))
        return -ENOMEM;
    /* None of these can fail: the room is there. */
    (void)buf_append_u64(out, buf_size(header));
    (void)buf_append(out, buf_bytes(header), buf_size(header));
    put_data(out, tensors, n_tensors);
    return 0;
}

int safetensors_encode(const struct crw_tensor *tensors, size_t n_tensors, const struct crw_pair *strings,
                       size_t n_strings, struct buf *out, const char **ret_why)
{
    _cleanup_free_ const char **texts = calloc(max_size(n_tensors, n_strings) + 1, sizeof(*texts));
    _cleanup_(strbuf_finish) struct strbuf header = {0};
    uint64_t data_size;

    if (!texts)
        return -ENOMEM;
    const char *why = find_fault(tensors, n_tensors, strings, n_strings, texts);
    if (!why) {
        data_size = put_header(&header, tensors, n_tensors, strings, n_strings);
        if (buf_size(&header.buf) <= SAFETENSORS_HEADER_MAX)
            return header.failed ? -ENOMEM : put_file(&header.buf, tensors, n_tensors, data_size, out);
        why = "the names and strings are too long";
    }
    *ret_why = why;
    return SAFETENSORS_E_BAD;
}
