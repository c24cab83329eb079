#pragma once

/*
 * Structs to and from JSON objects by tables of fields. A field with the default value is not written (but see
 * `always` and `null`), a missing field reads as the default, a field without a row in the table is ignored; a
 * field of the wrong type or out of bounds is named.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct cJSON;

enum field_type {
    FIELD_BOOL,
    FIELD_U16,
    FIELD_U32,
    FIELD_I32,
    FIELD_I64,  /* within 2^53 */
    FIELD_U64,  /* within 2^53 */
    FIELD_HEX,  /* uint64_t as 16 hexadecimal digits: all bits */
    FIELD_TEXT, /* char[size] */
    FIELD_WORD, /* an enum by name */
    FIELD_LIST, /* an array of structs in the struct; more elements than `max` are left out */
    FIELD_TYPE_COUNT
};

struct field {
    const char *name;
    enum field_type type;
    size_t offset;
    int64_t min, max; /* numbers */
    size_t size;      /* FIELD_TEXT: of the array; FIELD_WORD: number of words; FIELD_LIST: of an element */
    const char *const *words;   /* FIELD_WORD: by the value of the enum */
    int64_t missing;            /* numbers and words: the default */
    const struct field *fields; /* FIELD_LIST: of an element */
    size_t n_fields, n_offset;  /* FIELD_LIST: number of fields; of the size_t with the number of elements */
    bool required;              /* always written, and must be there */
    bool always;                /* always written, and may be missing */
    bool null;                  /* the default is written as null */
    bool clean;                 /* FIELD_TEXT: of any origin; text_utf8_copy() is written */
};

/* A double of JSON holds so much exactly. */
#define FIELD_EXACT_MAX (INT64_C(1) << 53)

#define FIELD_U32_AT(structure, member, low, high)                                                           \
    .type = FIELD_U32, .offset = offsetof(structure, member), .min = (low), .max = (high)
/* Any number of the type. */
#define FIELD_I32_AT(structure, member)                                                                      \
    .type = FIELD_I32, .offset = offsetof(structure, member), .min = INT32_MIN, .max = INT32_MAX
/* An amount; -1: unknown. */
#define FIELD_I64_AT(structure, member)                                                                      \
    .type = FIELD_I64, .offset = offsetof(structure, member), .min = -1, .max = FIELD_EXACT_MAX

#define FIELD_TEXT_AT(structure, member)                                                                     \
    .type = FIELD_TEXT, .offset = offsetof(structure, member), .size = sizeof(((structure *)NULL)->member)

/* A list by the table of its elements. */
#define FIELD_LIST_AT(structure, member, n_member, table)                                                    \
    .type = FIELD_LIST, .offset = offsetof(structure, member),                                               \
    .max = sizeof(((structure *)NULL)->member) / sizeof(((structure *)NULL)->member[0]),                     \
    .size = sizeof(((structure *)NULL)->member[0]), .fields = (table),                                       \
    .n_fields = sizeof(table) / sizeof((table)[0]), .n_offset = offsetof(structure, n_member)

/* A table, as the two arguments of the functions below. */
#define FIELDS_OF(table) (table), sizeof(table) / sizeof((table)[0])

/* An enum by a table of names. */
#define FIELD_WORD_AT(structure, member, names)                                                              \
    .type = FIELD_WORD, .offset = offsetof(structure, member), .size = sizeof(names) / sizeof((names)[0]),   \
    .words = (names)

enum { FIELDS_ERROR_SIZE = 256 };

/* A variable with this attribute owns an object, deleted together with the variable. */
#define _cleanup_json_ _cleanup_(fields_cleanup_json)
void fields_cleanup_json(struct cJSON **json);

/* An empty object at the end of the list, which owns it; NULL without memory. */
struct cJSON *fields_append_object(struct cJSON *list);

/* 0 or -ENOMEM. */
int fields_write(struct cJSON *object, const struct field *fields, size_t n_fields, const void *from);

/* False, with a part of a sentence in error ("'port' is not a number between 0 and 65535"). error: FIELDS_ERROR_SIZE bytes, or NULL. */
bool fields_read(const struct cJSON *object, const struct field *fields, size_t n_fields, void *to,
                 char *error);
