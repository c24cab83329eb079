/*
 * The safetensors codec: what we write we read, and each rule of the format has headers that break it.
 */

#include "worker-runtime/checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/c/cmocka_fixed.h"

/* A file with this JSON and so many bytes of data; in memory of exactly its size, for the sanitizer. */
static uint8_t *make_file(const char *json, size_t data_size, size_t *ret_size)
{
    size_t n = strlen(json);
    uint8_t *file = malloc(8 + n + data_size);

    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(n >> (8 * i));
    memcpy(file + 8, json, n);
    memset(file + 8 + n, 0x55, data_size);
    *ret_size = 8 + n + data_size;
    return file;
}

static void assert_bad(const uint8_t *file, size_t size, const char *words)
{
    struct safetensors st = {.n_tensors = 4711};
    const char *why = "";

    assert_int_equal(safetensors_parse(file, size, &st, &why), SAFETENSORS_E_BAD);
    if (!strstr(why, words))
        fail_msg("\"%s\" does not say \"%s\"", why, words);
    assert_int_equal(st.n_tensors, 4711);
}

static void reads_what_the_format_allows(void **state)
{
    static const struct {
        const char *json;
        size_t data_size, n_tensors, n_strings;
    } cases[] = {
        {"{}", 0, 0, 0},
        {"{}      ", 0, 0, 0},
        {"{\"__metadata__\":{}}", 0, 0, 0},
        {"{\"__metadata__\":{\"a\":\"b\",\"c\":\"\"}}", 0, 0, 2},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1, 0},
        {"{\"x\":{\"data_offsets\":[0,6],\"shape\":[1,3],\"dtype\":\"BF16\"}}", 6, 1, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, 1, 0},
        {"{ \"x\" : {\"dtype\" :\t\"U8\",\r\n\"shape\": [ 1 , 2 ], \"data_offsets\" : [0,2] } }\n", 2, 1, 0},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
         "\"a\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
         3, 2, 0},
        {"{\"x\":{\"dtype\":\"BOOL\",\"shape\":[1,1,1,1],\"data_offsets\":[0,1]}}", 1, 1, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct safetensors st;
        const char *why = "";
        size_t size;
        uint8_t *file = make_file(cases[i].json, cases[i].data_size, &size);

        if (safetensors_parse(file, size, &st, &why) != 0)
            fail_msg("%s: %s", cases[i].json, why);
        assert_int_equal(st.n_tensors, cases[i].n_tensors);
        assert_int_equal(st.n_strings, cases[i].n_strings);
        assert_int_equal(st.data_at, 8 + strlen(cases[i].json));
        safetensors_finish(&st);
        free(file);
    }
}

static void decodes_escapes(void **state)
{
    static const char json[] =
        "{\"__metadata__\":{\"k\\u00e9y\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u20ac\\ud83d\\ude00\"}}";
    const struct safetensors_string *string;
    struct safetensors st;
    const char *why;
    size_t size;
    uint8_t *file = make_file(json, 0, &size);

    assert_int_equal(safetensors_parse(file, size, &st, &why), 0);
    string = safetensors_find_string(&st, "k\xc3\xa9y");
    assert_non_null(string);
    assert_string_equal(string->value, "\"\\/\b\f\n\r\tA\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_int_equal(file[string->at - 1], '"');
    assert_int_equal(file[string->at + string->size], '"');
    assert_null(safetensors_find_string(&st, "key"));
    safetensors_finish(&st);
    free(file);
}

#define TENSOR(fields) "{\"x\":{" fields "}}"
#define STRING(text) "{\"__metadata__\":{\"k\":\"" text "\"}}"

static void refuses_what_the_format_forbids(void **state)
{
    static const struct {
        const char *json;
        size_t data_size;
        const char *words;
    } cases[] = {
        {" {}", 0, "does not begin"},
        {"[]", 0, "does not begin"},
        {"{", 0, "does not begin"},
        {"{}x", 0, "behind its JSON"},
        {"{}{}", 0, "behind its JSON"},
        {"{ ", 0, "no JSON of the expected form"},
        {"{,}", 0, "no JSON of the expected form"},
        {"{\"x\"}", 0, "no JSON of the expected form"},
        {"{\"x\":1}", 0, "where an object must be"},
        {"{\"x\":null}", 0, "where an object must be"},
        {"{\"x\":[]}", 0, "where an object must be"},
        {"{\"x\":{}}", 0, "a tensor lacks a field"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1]"), 1, "a tensor lacks a field"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],"), 1, "no JSON of the expected form"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"shape\":[1]"), 1, "twice"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":[1]"), 1, "unknown"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]") "}", 1, "behind its JSON"},
        {TENSOR("\"dtype\":\"F8\",\"shape\":[1],\"data_offsets\":[0,1]"), 1, "unknown type"},
        {TENSOR("\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]"), 1, "expected form"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]"), 1, "where a list must be"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]"), 1, "where a number must be"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]"), 1, "without end"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1e0],\"data_offsets\":[0,1]"), 1, "without end"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]"), 1, "where a number must be"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]"), 1, "where a number must be"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]"), 1, "where a number must be"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]"), 1, "too long"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]"), 1, "ends before it begins"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]"), 1, "too long"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]"), 1, "ends before it begins"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,18446744073709551616]"), 1, "too large"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,1]"), 1, "too large"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4294967296]"), 1,
         "do not fit its shape"},
        {TENSOR("\"dtype\":\"F64\",\"shape\":[2305843009213693953],\"data_offsets\":[0,8]"), 8, "do not fit"},
        {TENSOR("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,3]"), 3, "do not fit its shape"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]"), 1, "truncated"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]"), 3, "goes on behind"},
        {TENSOR("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]"), 3, "hole"},
        {"{}", 1, "goes on behind"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4, "two tensors of one name"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "two strings of one key"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "two sets"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "expected form"},
        {"{\"__metadata__\":{\"k\":{}}}", 0, "expected form"},
        {"{\"__metadata__\":{\"k\":\"v\"", 0, "without end"},
        {STRING("\x01"), 0, "control character"},
        {STRING("\n"), 0, "control character"},
        {STRING("\\x"), 0, "impossible escape"},
        {STRING("\\u0000"), 0, "impossible escape"},
        {STRING("\\u12"), 0, "impossible escape"},
        {STRING("\\u123g"), 0, "impossible escape"},
        {STRING("\\ud800"), 0, "impossible escape"},
        {STRING("\\ud800\\u0041"), 0, "impossible escape"},
        {STRING("\\udc00"), 0, "impossible escape"},
        {"{\"__metadata__\":{\"k\":\"\\ud800\\u", 0, "impossible escape"},
        {"{\"__metadata__\":{\"k\":\"\\", 0, "impossible escape"},
        {"{\"__metadata__\":{\"k\":\"v", 0, "ends inside a string"},
        {STRING("\x80"), 0, "UTF-8"},
        {STRING("\xc0\x80"), 0, "UTF-8"},
        {STRING("\xc3"), 0, "UTF-8"},
        {STRING("\xe0\x80\x80"), 0, "UTF-8"},
        {STRING("\xed\xa0\x80"), 0, "UTF-8"},
        {STRING("\xf0\x80\x80\x80"), 0, "UTF-8"},
        {STRING("\xf4\x90\x80\x80"), 0, "UTF-8"},
        {STRING("\xf8\x88\x80\x80\x80"), 0, "UTF-8"},
        {"{\xf0", 0, "UTF-8"}, /* the header ends inside a character, and so does the memory */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t size;
        uint8_t *file = make_file(cases[i].json, cases[i].data_size, &size);

        assert_bad(file, size, cases[i].words);
        free(file);
    }
}

static void refuses_impossible_lengths(void **state)
{
    static const uint8_t cases[][8] = {
        {0},                                              /* no header at all */
        {1},                                              /* only "{" */
        {3},                                              /* one more than there is */
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, /* overflows with the 8 */
        {0x01, 0xe1, 0xf5, 0x05},                         /* one more than the bound */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t file[10];

        memcpy(file, cases[i], 8);
        memcpy(file + 8, "{}", 2);
        assert_bad(file, sizeof(file), "");
    }
    for (size_t n = 0; n < 8; n++) {
        uint8_t *file = calloc(1, n + 1);

        assert_bad(file, n, "too short");
        free(file);
    }
}

static struct buf encode(const struct crw_tensor *tensors, size_t n_tensors, const struct crw_pair *strings,
                         size_t n_strings)
{
    struct buf b = {0};
    const char *why = "";

    if (safetensors_encode(tensors, n_tensors, strings, n_strings, &b, &why) != 0)
        fail_msg("cannot encode: %s", why);
    return b;
}

static void reads_what_it_wrote(void **state)
{
    float weights[6] = {1, -2, 3, -4, 5, 6};
    uint8_t flags[3] = {7, 8, 9};
    int64_t counter = -5;
    const struct crw_tensor tensors[] = {
        {"flags", CRW_U8, 1, {3}, flags},
        {"we\"i\\ghts\n", CRW_F32, 2, {2, 3}, weights},
        {"counter", CRW_I64, 0, {0}, &counter},
        {"empty", CRW_F16, 3, {2, 0, 1}, NULL},
    };
    const struct crw_pair strings[] = {{"k\xc3\xa9y", "\xe2\x82\xac\x01\x7f"}, {"", ""}};
    struct buf b = encode(tensors, 4, strings, 2);
    const struct safetensors_tensor *t;
    struct safetensors st;
    const char *why = "";

    if (safetensors_parse(buf_bytes(&b), buf_size(&b), &st, &why) != 0)
        fail_msg("%s", why);
    assert_int_equal(st.n_tensors, 4);
    assert_int_equal(st.n_strings, 2);
    assert_int_equal(st.data_at % 8, 0);
    assert_string_equal(safetensors_find_string(&st, "k\xc3\xa9y")->value, "\xe2\x82\xac\x01\x7f");
    assert_string_equal(safetensors_find_string(&st, "")->value, "");
    t = safetensors_find_tensor(&st, "counter");
    assert_int_equal(t->begin, 0);
    assert_memory_equal(buf_bytes(&b) + st.data_at + t->begin, &counter, sizeof(counter));
    t = safetensors_find_tensor(&st, "we\"i\\ghts\n");
    assert_int_equal(t->dtype, CRW_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 2);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->begin % 4, 0);
    assert_memory_equal(buf_bytes(&b) + st.data_at + t->begin, weights, sizeof(weights));
    t = safetensors_find_tensor(&st, "flags");
    assert_memory_equal(buf_bytes(&b) + st.data_at + t->begin, flags, sizeof(flags));
    assert_null(safetensors_find_tensor(&st, "nothing"));
    safetensors_finish(&st);
    buf_finish(&b);
}

/* Every prefix of a good file is bad, and so is every file with a byte behind it. */
static void refuses_every_truncation(void **state)
{
    float weights[3] = {1, 2, 3};
    const struct crw_tensor tensor = {"w", CRW_F32, 1, {3}, weights};
    struct buf b = encode(&tensor, 1, NULL, 0);

    for (size_t n = 0; n < buf_size(&b); n++) {
        uint8_t *prefix = malloc(n + 1);

        memcpy(prefix, buf_bytes(&b), n);
        assert_bad(prefix, n, "");
        free(prefix);
    }
    assert_int_equal(buf_append_u8(&b, 0), 0);
    assert_bad(buf_bytes(&b), buf_size(&b), "goes on behind");
    buf_finish(&b);
}

static void refuses_to_write_what_it_could_not_read(void **state)
{
    static uint8_t byte;
    static const struct {
        struct crw_tensor tensors[2];
        size_t n_tensors;
        struct crw_pair strings[2];
        size_t n_strings;
        const char *words;
    } cases[] = {
        {{{"a", CRW_U8, 1, {1}, &byte}, {"a", CRW_U8, 1, {1}, &byte}}, 2, {{0}}, 0, "one name"},
        {{{"__metadata__", CRW_U8, 1, {1}, &byte}}, 1, {{0}}, 0, "name"},
        {{{NULL, CRW_U8, 1, {1}, &byte}}, 1, {{0}}, 0, "name"},
        {{{"\xff", CRW_U8, 1, {1}, &byte}}, 1, {{0}}, 0, "name"},
        {{{"a", CRW_DTYPE_COUNT, 1, {1}, &byte}}, 1, {{0}}, 0, "type"},
        {{{"a", CRW_U8, 5, {1, 1, 1, 1}, &byte}}, 1, {{0}}, 0, "shape"},
        {{{"a", CRW_U8, -1, {1}, &byte}}, 1, {{0}}, 0, "shape"},
        {{{"a", CRW_U8, 1, {-1}, &byte}}, 1, {{0}}, 0, "shape"},
        {{{"a", CRW_F64, 2, {INT64_MAX, 2}, &byte}}, 1, {{0}}, 0, "shape"},
        {{{0}}, 0, {{"k", "1"}, {"k", "2"}}, 2, "one key"},
        {{{0}}, 0, {{"k", "\x80"}}, 1, "UTF-8"},
        {{{0}}, 0, {{"k", NULL}}, 1, "UTF-8"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = {0};
        const char *why = "";

        assert_int_equal(safetensors_encode(cases[i].tensors, cases[i].n_tensors, cases[i].strings,
                                            cases[i].n_strings, &b, &why),
                         SAFETENSORS_E_BAD);
        if (!strstr(why, cases[i].words))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, why, cases[i].words);
        assert_int_equal(buf_size(&b), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_the_format_allows),
        cmocka_unit_test(decodes_escapes),
        cmocka_unit_test(refuses_what_the_format_forbids),
        cmocka_unit_test(refuses_impossible_lengths),
        cmocka_unit_test(reads_what_it_wrote),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test(refuses_to_write_what_it_could_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
