/*
 * Reads the header of a safetensors file. The bytes are not trusted.
 *
 * The JSON that the format allows has exactly three levels, so this is a reader of that shape and not of
 * JSON: it cannot recurse, every number is a u64, and whatever is not expected is refused where it stands.
 * (A general parser would have to be stopped from rounding offsets to double, from taking a name twice and
 * from nesting.) Memory is bounded by the header, which is bounded by the file.
 *
 * Happy path: length, UTF-8, "{", entries, "}", spaces; then names are unique, sizes fit shapes, offsets
 * tile the data, and the file ends there. At the first violation the reader stops and returns a constant string that
 * names it.
 */

#include "base/err.h"
#include "worker-runtime/checkpoint/safetensors_scan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct scan scan;
    size_t tensors_capacity, strings_capacity;
    struct safetensors *st;
};

static int refuse_header(struct reader *r, const char *why)
{
    return scan_refuse(&r->scan, why);
}

/* ---- entries ---- */

/* Room for one more in a growing array. */
static int grow_header(void **array, size_t n, size_t *capacity, size_t size)
{
    size_t more = *capacity ? *capacity * 2 : 16;

    if (n < *capacity)
        return 0;
    void *larger = reallocarray(*array, more, size);
    if (!larger)
        return -ENOMEM;
    *array = larger;
    *capacity = more;
    return 0;
}

static int read_string_entry(void *data, const char *key)
{
    struct reader *r = data;
    struct safetensors_string string = {.key = key};
    struct safetensors *st = r->st;
    void *array = st->strings;

    TRY(scan_string(&r->scan, &string.value, &string.at, &string.size));
    TRY(grow_header(&array, st->n_strings, &r->strings_capacity, sizeof(string)));
    st->strings = array;
    st->strings[st->n_strings++] = string;
    return 0;
}

enum field { FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_OFFSETS = 4, FIELD_ALL = 7 };

struct header_entry {
    struct reader *r;
    struct safetensors_tensor tensor;
    unsigned seen; /* set of enum field */
};

static int read_dtype(struct reader *r, struct safetensors_tensor *tensor)
{
    const char *name;
    size_t at, size;

    TRY(scan_string(&r->scan, &name, &at, &size));
    for (int i = 0; i < CRW_DTYPE_COUNT; i++) {
        if (strcmp(name, safetensors_dtype_name((enum crw_dtype)i)) == 0) {
            tensor->dtype = (enum crw_dtype)i;
            return 0;
        }
    }
    return refuse_header(r, "it has a tensor of an unknown type");
}

static int read_shape(struct reader *r, struct safetensors_tensor *tensor)
{
    uint64_t dims[SAFETENSORS_DIMS_MAX];

    TRY(scan_numbers(&r->scan, dims, SAFETENSORS_DIMS_MAX, &tensor->n_dims));
    for (int i = 0; i < tensor->n_dims; i++) {
        if (dims[i] > INT64_MAX)
            return refuse_header(r, "its header has a number that is too large");
        tensor->dims[i] = (int64_t)dims[i];
    }
    return 0;
}

static int read_offsets(struct reader *r, struct safetensors_tensor *tensor)
{
    uint64_t offsets[2];
    int n;

    TRY(scan_numbers(&r->scan, offsets, 2, &n));
    if (n != 2 || offsets[0] > offsets[1])
        return refuse_header(r, "it has a tensor that ends before it begins");
    tensor->begin = offsets[0];
    tensor->end = offsets[1];
    return 0;
}

static int read_tensor_field(void *data, const char *key)
{
    static const struct {
        const char *key;
        enum field field;
        int (*read)(struct reader *r, struct safetensors_tensor *tensor);
    } fields[] = {
        {"dtype", FIELD_DTYPE, read_dtype},
        {"shape", FIELD_SHAPE, read_shape},
        {"data_offsets", FIELD_OFFSETS, read_offsets},
    };
    struct header_entry *entry = data;
    struct reader *r = entry->r;

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(key, fields[i].key) != 0)
            continue;
        if (entry->seen & fields[i].field)
            return refuse_header(r, "it describes a tensor twice");
        entry->seen |= fields[i].field;
        return fields[i].read(r, &entry->tensor);
    }
    return refuse_header(r, "a tensor has an unknown field");
}

static int read_tensor_entry(struct reader *r, const char *key)
{
    struct header_entry entry = {.r = r, .tensor = {.name = key}};
    struct safetensors *st = r->st;
    void *array = st->tensors;
    uint64_t n_bytes;

    TRY(scan_object(&r->scan, read_tensor_field, &entry));
    if (entry.seen != FIELD_ALL)
        return refuse_header(r, "a tensor lacks a field");
    if (!safetensors_count_bytes(entry.tensor.dtype, entry.tensor.n_dims, entry.tensor.dims, &n_bytes) ||
        n_bytes != entry.tensor.end - entry.tensor.begin)
        return refuse_header(r, "the bytes of a tensor in it do not fit its shape");
    TRY(grow_header(&array, st->n_tensors, &r->tensors_capacity, sizeof(entry.tensor)));
    st->tensors = array;
    st->tensors[st->n_tensors++] = entry.tensor;
    return 0;
}

struct whole {
    struct reader *r;
    bool seen_metadata;
};

static int read_entry(void *data, const char *key)
{
    struct whole *whole = data;
    struct reader *r = whole->r;

    if (strcmp(key, "__metadata__") != 0)
        return read_tensor_entry(r, key);
    if (whole->seen_metadata)
        return refuse_header(r, "it has two sets of metadata");
    whole->seen_metadata = true;
    return scan_object(&r->scan, read_string_entry, r);
}

/* ---- the whole ---- */

static int compare_places(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return 0;
}

static int check_unique(struct reader *r)
{
    struct safetensors *st = r->st;

    if (!safetensors_sort_texts(st->tensors, st->n_tensors, sizeof(*st->tensors)))
        return refuse_header(r, "it has two tensors of one name");
    if (!safetensors_sort_texts(st->strings, st->n_strings, sizeof(*st->strings)))
        return refuse_header(r, "it has two strings of one key");
    return 0;
}

/* Leaves the tensors by offset. */
static int check_tiling(struct reader *r, uint64_t data_size)
{
    struct safetensors *st = r->st;
    uint64_t at = 0;

    if (st->n_tensors > 0)
        qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), compare_places);
    for (size_t i = 0; i < st->n_tensors; i++) {
        if (st->tensors[i].begin != at)
            return refuse_header(r, "its tensors overlap or leave a hole");
        at = st->tensors[i].end;
    }
    if (at > data_size)
        return refuse_header(r, "it is truncated");
    if (at < data_size)
        return refuse_header(r, "it goes on behind its last tensor");
    return 0;
}

int safetensors_header_length(const uint8_t *file, uint64_t size, uint64_t *ret_n, const char **ret_why)
{
    uint64_t n = 0;

    *ret_why = "it is too short to have a header";
    if (size < 8)
        return SAFETENSORS_E_BAD;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | file[i];
    *ret_why = "the length of its header is impossible";
    if (n > SAFETENSORS_HEADER_MAX)
        return SAFETENSORS_E_BAD;
    *ret_why = "it ends before its header does";
    if (n > size - 8)
        return SAFETENSORS_E_BAD;
    *ret_n = n;
    return 0;
}

/* Sets at and end to the header's JSON. */
static int find_header(struct scan *s, size_t size)
{
    uint64_t n;

    TRY(safetensors_header_length(s->file, size, &n, &s->why));
    s->at = 8;
    s->end = 8 + (size_t)n;
    if (n < 2 || s->file[8] != '{')
        return scan_refuse(s, "its header does not begin with \"{\"");
    if (s->file[s->end - 1] >= 0x80 || !safetensors_text_is_utf8(s->file + 8, (size_t)n))
        return scan_refuse(s, "its header is not UTF-8");
    return 0;
}

static int read_header(struct reader *r, size_t size)
{
    struct whole whole = {.r = r};
    struct scan *s = &r->scan;

    TRY(find_header(s, size));
    r->st->data_at = s->end;
    s->text = r->st->text = malloc(s->end - s->at);
    if (!s->text)
        return -ENOMEM;
    TRY(scan_object(s, read_entry, &whole));
    scan_space(s);
    if (s->at != s->end)
        return refuse_header(r, "its header goes on behind its JSON");
    /* Two quotes became one NUL, and no escape is shorter than what it means. */
    assert(s->text_size <= s->end - 8);
    TRY(check_unique(r));
    return check_tiling(r, size - s->end);
}

int safetensors_parse(const uint8_t *file, size_t size, struct safetensors *ret, const char **ret_why)
{
    struct safetensors st = {0};
    struct reader r = {.scan = {.file = file}, .st = &st};
    int result = read_header(&r, size);

    if (result == 0) {
        *ret = st;
        return 0;
    }
    if (result == SAFETENSORS_E_BAD)
        *ret_why = r.scan.why;
    safetensors_finish(&st);
    return result;
}
