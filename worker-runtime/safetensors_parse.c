#include "worker-runtime/safetensors.h"

/*
 * Reads the header of a safetensors file. The bytes are not trusted.
 *
 * The JSON that the format allows has exactly three levels, so this is a reader of that shape and not of
 * JSON: it cannot recurse, every number is a u64, and whatever is not expected is refused where it stands.
 * (A general parser would have to be stopped from rounding offsets to double, from taking a name twice and
 * from nesting.) Memory is bounded by the header, which is bounded by the file.
 *
 * Happy path: length, UTF-8, "{", entries, "}", spaces; then names are unique, sizes fit shapes, offsets
 * tile the data, and the file ends there. The first thing that is otherwise ends it, with a literal that
 * says what.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const uint8_t *file;
    size_t at, end;
    char *text; /* where decoded strings go; as large as the header, which they cannot outgrow */
    size_t text_size;
    size_t tensors_capacity, strings_capacity;
    struct safetensors *st;
    const char *why;
};

static int bad(struct reader *r, const char *why)
{
    r->why = why;
    return SAFETENSORS_E_BAD;
}

/* ------------------------------------------------------------------ tokens */

static void skip_space(struct reader *r)
{
    while (r->at < r->end && strchr(" \t\n\r", r->file[r->at]) && r->file[r->at])
        r->at++;
}

/* Takes the character if it comes next, after any space. */
static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || r->file[r->at] != (uint8_t)c)
        return false;
    r->at++;
    return true;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The four digits behind \u. */
static bool take_code_unit(struct reader *r, uint32_t *ret_unit)
{
    uint32_t unit = 0;

    if (r->end - r->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(r->file[r->at++]);

        if (digit < 0)
            return false;
        unit = unit << 4 | (uint32_t)digit;
    }
    *ret_unit = unit;
    return true;
}

static void put_utf8(struct reader *r, uint32_t c)
{
    char *to = r->text + r->text_size;

    if (c < 0x80) {
        to[0] = (char)c;
        r->text_size += 1;
    } else if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 0x3f));
        r->text_size += 2;
    } else if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 0x3f));
        to[2] = (char)(0x80 | (c & 0x3f));
        r->text_size += 3;
    } else {
        to[0] = (char)(0xf0 | c >> 18);
        to[1] = (char)(0x80 | (c >> 12 & 0x3f));
        to[2] = (char)(0x80 | (c >> 6 & 0x3f));
        to[3] = (char)(0x80 | (c & 0x3f));
        r->text_size += 4;
    }
}

/* What follows \u, the second half of a surrogate pair included. */
static bool take_unicode_escape(struct reader *r)
{
    uint32_t c, low;

    if (!take_code_unit(r, &c) || c == 0)
        return false;
    if (c >= 0xdc00 && c <= 0xdfff)
        return false;
    if (c >= 0xd800 && c <= 0xdbff) {
        if (r->end - r->at < 2 || r->file[r->at] != '\\' || r->file[r->at + 1] != 'u')
            return false;
        r->at += 2;
        if (!take_code_unit(r, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    put_utf8(r, c);
    return true;
}

static bool take_escape(struct reader *r)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *letter;
    uint8_t c;

    if (r->at == r->end)
        return false;
    c = r->file[r->at++];
    if (c == 'u')
        return take_unicode_escape(r);
    letter = c ? strchr(letters, c) : NULL;
    if (!letter)
        return false;
    put_utf8(r, (uint8_t)meanings[letter - letters]);
    return true;
}

/* A string becomes C text, so a NUL in it is refused. *ret_at and *ret_size: its raw bytes in the file. */
static int take_string(struct reader *r, const char **ret_text, size_t *ret_at, size_t *ret_size)
{
    size_t begin = r->text_size, at;

    if (!take(r, '"'))
        return bad(r, "its header is no JSON of the expected form");
    at = r->at;
    while (r->at < r->end && r->file[r->at] != '"') {
        uint8_t c = r->file[r->at++];

        if (c < 0x20)
            return bad(r, "its header has a control character in a string");
        if (c != '\\')
            r->text[r->text_size++] = (char)c;
        else if (!take_escape(r))
            return bad(r, "its header has an impossible escape in a string");
    }
    if (r->at == r->end)
        return bad(r, "its header ends inside a string");
    *ret_text = r->text + begin;
    *ret_at = at;
    *ret_size = r->at - at;
    r->at++;
    r->text[r->text_size++] = '\0';
    return 0;
}

static int take_key(struct reader *r, const char **ret_key)
{
    size_t at, size;
    int result = take_string(r, ret_key, &at, &size);

    if (result == 0 && !take(r, ':'))
        return bad(r, "its header is no JSON of the expected form");
    return result;
}

static int take_number(struct reader *r, uint64_t *ret_value)
{
    uint64_t value = 0;
    size_t at;

    skip_space(r);
    at = r->at;
    while (r->at < r->end && r->file[r->at] >= '0' && r->file[r->at] <= '9') {
        uint64_t digit = (uint64_t)(r->file[r->at] - '0');

        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
            return bad(r, "its header has a number that is too large");
        r->at++;
    }
    if (r->at == at || (r->file[at] == '0' && r->at - at > 1))
        return bad(r, "its header has something else where a number must be");
    *ret_value = value;
    return 0;
}

/* [1,2,3], at most max numbers. */
static int take_numbers(struct reader *r, uint64_t *numbers, int max, int *ret_n)
{
    int n = 0;

    if (!take(r, '['))
        return bad(r, "its header has something else where a list must be");
    if (!take(r, ']')) {
        do {
            int result;

            if (n == max)
                return bad(r, "its header has a list that is too long");
            result = take_number(r, &numbers[n++]);
            if (result != 0)
                return result;
        } while (take(r, ','));
        if (!take(r, ']'))
            return bad(r, "its header has a list without end");
    }
    *ret_n = n;
    return 0;
}

/* Calls entry for each key of an object whose "{" comes next. */
static int take_object(struct reader *r, int (*entry)(struct reader *r, const char *key, void *data), void *data)
{
    if (!take(r, '{'))
        return bad(r, "its header has something else where an object must be");
    if (take(r, '}'))
        return 0;
    do {
        const char *key;
        int result = take_key(r, &key);

        if (result == 0)
            result = entry(r, key, data);
        if (result != 0)
            return result;
    } while (take(r, ','));
    if (!take(r, '}'))
        return bad(r, "its header has an object without end");
    return 0;
}

/* ------------------------------------------------------------------ entries */

/* Room for one more in a growing array. */
static int grow(void **array, size_t n, size_t *capacity, size_t size)
{
    size_t more = *capacity ? *capacity * 2 : 16;
    void *larger;

    if (n < *capacity)
        return 0;
    larger = reallocarray(*array, more, size);
    if (!larger)
        return -ENOMEM;
    *array = larger;
    *capacity = more;
    return 0;
}

static int read_string_entry(struct reader *r, const char *key, void *data)
{
    struct safetensors_string string = {.key = key};
    struct safetensors *st = r->st;
    void *array = st->strings;
    int result = take_string(r, &string.value, &string.at, &string.size);

    if (result == 0)
        result = grow(&array, st->n_strings, &r->strings_capacity, sizeof(string));
    if (result != 0)
        return result;
    st->strings = array;
    st->strings[st->n_strings++] = string;
    return 0;
}

enum field { FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_OFFSETS = 4, FIELD_ALL = 7 };

struct entry {
    struct safetensors_tensor tensor;
    unsigned seen; /* set of enum field */
};

static int read_dtype(struct reader *r, struct safetensors_tensor *tensor)
{
    const char *name;
    size_t at, size;
    int result = take_string(r, &name, &at, &size);

    if (result != 0)
        return result;
    for (int i = 0; i < CRW_DTYPE_COUNT; i++) {
        if (strcmp(name, safetensors_dtype_name((enum crw_dtype)i)) == 0) {
            tensor->dtype = (enum crw_dtype)i;
            return 0;
        }
    }
    return bad(r, "it has a tensor of an unknown type");
}

static int read_shape(struct reader *r, struct safetensors_tensor *tensor)
{
    uint64_t dims[SAFETENSORS_DIMS_MAX];
    int result = take_numbers(r, dims, SAFETENSORS_DIMS_MAX, &tensor->n_dims);

    if (result != 0)
        return result;
    for (int i = 0; i < tensor->n_dims; i++) {
        if (dims[i] > INT64_MAX)
            return bad(r, "its header has a number that is too large");
        tensor->dims[i] = (int64_t)dims[i];
    }
    return 0;
}

static int read_offsets(struct reader *r, struct safetensors_tensor *tensor)
{
    uint64_t offsets[2];
    int n, result = take_numbers(r, offsets, 2, &n);

    if (result != 0)
        return result;
    if (n != 2 || offsets[0] > offsets[1])
        return bad(r, "it has a tensor that ends before it begins");
    tensor->begin = offsets[0];
    tensor->end = offsets[1];
    return 0;
}

static int read_field(struct reader *r, const char *key, void *data)
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
    struct entry *entry = data;

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(key, fields[i].key) != 0)
            continue;
        if (entry->seen & fields[i].field)
            return bad(r, "it describes a tensor twice");
        entry->seen |= fields[i].field;
        return fields[i].read(r, &entry->tensor);
    }
    return bad(r, "it says something unknown about a tensor");
}

static int read_tensor_entry(struct reader *r, const char *key)
{
    struct entry entry = {.tensor = {.name = key}};
    struct safetensors *st = r->st;
    void *array = st->tensors;
    uint64_t n_bytes;
    int result = take_object(r, read_field, &entry);

    if (result != 0)
        return result;
    if (entry.seen != FIELD_ALL)
        return bad(r, "it does not say all about a tensor");
    if (!safetensors_count_bytes(entry.tensor.dtype, entry.tensor.n_dims, entry.tensor.dims, &n_bytes) ||
        n_bytes != entry.tensor.end - entry.tensor.begin)
        return bad(r, "it has a tensor whose bytes do not fit its shape");
    result = grow(&array, st->n_tensors, &r->tensors_capacity, sizeof(entry.tensor));
    if (result != 0)
        return result;
    st->tensors = array;
    st->tensors[st->n_tensors++] = entry.tensor;
    return 0;
}

static int read_entry(struct reader *r, const char *key, void *data)
{
    bool *seen_metadata = data;

    if (strcmp(key, "__metadata__") != 0)
        return read_tensor_entry(r, key);
    if (*seen_metadata)
        return bad(r, "it has two sets of metadata");
    *seen_metadata = true;
    return take_object(r, read_string_entry, NULL);
}

/* ------------------------------------------------------------------ the whole */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_tensor *)a)->name, ((const struct safetensors_tensor *)b)->name);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_string *)a)->key, ((const struct safetensors_string *)b)->key);
}

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

    if (st->n_tensors > 0)
        qsort(st->tensors, st->n_tensors, sizeof(*st->tensors), compare_names);
    for (size_t i = 1; i < st->n_tensors; i++)
        if (compare_names(&st->tensors[i - 1], &st->tensors[i]) == 0)
            return bad(r, "it has two tensors of one name");
    if (st->n_strings > 0)
        qsort(st->strings, st->n_strings, sizeof(*st->strings), compare_keys);
    for (size_t i = 1; i < st->n_strings; i++)
        if (compare_keys(&st->strings[i - 1], &st->strings[i]) == 0)
            return bad(r, "it has two strings of one key");
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
            return bad(r, "its tensors overlap or leave a hole");
        at = st->tensors[i].end;
    }
    if (at > data_size)
        return bad(r, "it is truncated");
    if (at < data_size)
        return bad(r, "it goes on behind its last tensor");
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
static int find_header(struct reader *r, size_t size)
{
    uint64_t n;
    int result = safetensors_header_length(r->file, size, &n, &r->why);

    if (result != 0)
        return result;
    r->at = 8;
    r->end = 8 + (size_t)n;
    if (n < 2 || r->file[8] != '{')
        return bad(r, "its header does not begin with \"{\"");
    if (!safetensors_text_is_utf8(r->file + 8, (size_t)n))
        return bad(r, "its header is not UTF-8");
    return 0;
}

static int read_header(struct reader *r, size_t size)
{
    bool seen_metadata = false;
    int result = find_header(r, size);

    if (result != 0)
        return result;
    r->st->data_at = r->end;
    r->text = r->st->text = malloc(r->end - r->at);
    if (!r->text)
        return -ENOMEM;
    result = take_object(r, read_entry, &seen_metadata);
    if (result != 0)
        return result;
    skip_space(r);
    if (r->at != r->end)
        return bad(r, "its header goes on behind its JSON");
    /* Two quotes became one NUL, and no escape is shorter than what it means. */
    assert(r->text_size <= r->end - 8);
    result = check_unique(r);
    return result == 0 ? check_tiling(r, size - r->end) : result;
}

int safetensors_parse(const uint8_t *file, size_t size, struct safetensors *ret, const char **ret_why)
{
    struct safetensors st = {0};
    struct reader r = {.file = file, .st = &st};
    int result = read_header(&r, size);

    if (result == 0) {
        *ret = st;
        return 0;
    }
    if (result == SAFETENSORS_E_BAD)
        *ret_why = r.why;
    safetensors_finish(&st);
    return result;
}
