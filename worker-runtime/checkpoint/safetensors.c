/*
 * What reading and writing the container share: types, sizes, text.
 */

#include "worker-runtime/checkpoint/safetensors.h"

#include "base/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [CRW_F32] = {"F32", 4}, [CRW_F64] = {"F64", 8},   [CRW_F16] = {"F16", 2}, [CRW_BF16] = {"BF16", 2},
    [CRW_I64] = {"I64", 8}, [CRW_I32] = {"I32", 4},   [CRW_I16] = {"I16", 2}, [CRW_I8] = {"I8", 1},
    [CRW_U8] = {"U8", 1},   [CRW_BOOL] = {"BOOL", 1},
};

static_assert(sizeof(dtypes) / sizeof(dtypes[0]) == CRW_DTYPE_COUNT, "a type without a name");

const char *safetensors_dtype_name(enum crw_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t safetensors_dtype_size(enum crw_dtype dtype)
{
    return dtypes[dtype].size;
}

bool safetensors_count_bytes(enum crw_dtype dtype, int n_dims, const int64_t *dims, uint64_t *ret_n_bytes)
{
    uint64_t n = dtypes[dtype].size;

    if (n_dims < 0 || n_dims > SAFETENSORS_DIMS_MAX)
        return false;
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(n, (uint64_t)dims[i], &n))
            return false;
    *ret_n_bytes = n;
    return true;
}

bool safetensors_text_is_utf8(const uint8_t *text, size_t size)
{
    for (size_t n; size > 0; size -= n, text += n) {
        n = utf8_sequence(text);
        if (n == 0)
            return false;
    }
    return true;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool safetensors_sort_texts(void *items, size_t n, size_t size)
{
    const uint8_t *item = items;

    if (n > 1)
        qsort(items, n, size, compare_texts);
    for (; n > 1; n--, item += size)
        if (compare_texts(item, item + size) == 0)
            return false;
    return true;
}

void safetensors_finish(struct safetensors *st)
{
    free(st->tensors);
    free(st->strings);
    free(st->text);
    *st = (struct safetensors){0};
}

static int compare_key(const void *key, const void *string)
{
    return strcmp(key, ((const struct safetensors_string *)string)->key);
}

const struct safetensors_string *safetensors_find_string(const struct safetensors *st, const char *key)
{
    if (st->n_strings == 0)
        return NULL;
    return bsearch(key, st->strings, st->n_strings, sizeof(*st->strings), compare_key);
}

const struct safetensors_tensor *safetensors_find_tensor(const struct safetensors *st, const char *name)
{
    for (size_t i = 0; i < st->n_tensors; i++)
        if (strcmp(st->tensors[i].name, name) == 0)
            return &st->tensors[i];
    return NULL;
}
