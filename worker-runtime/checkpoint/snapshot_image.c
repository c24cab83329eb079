/*
 * Staging writes the checksums' places as zeros, sealing finds them again with the reader that will check
 * them later: writer and checker cannot disagree about what is covered.
 *
 * The header's checksum is looked at before anything else in the metadata, the format's number included:
 * a flipped bit must not look like a newer format.
 */

#include "worker-runtime/checkpoint/snapshot_image.h"

#include "base/cleanup.h"
#include "base/crc32.h"
#include "base/decimal.h"
#include "base/err.h"
#include "base/format.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/crw.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define OURS "crw."
#define KEY_FORMAT OURS "format"
#define KEY_STEP OURS "step"
#define KEY_HEADER OURS "header_crc32c"
#define KEY_TENSOR OURS "crc32c."
#define FORMAT "1"

enum { N_FIXED = 3, CRC_DIGITS = 8 };
static const char no_crc[CRC_DIGITS + 1] = "00000000";

static int explain(int result, char why[SNAPSHOT_WHY_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int explain(int result, char why[SNAPSHOT_WHY_MAX], const char *format, ...)
{
    (void)format_arguments(why, SNAPSHOT_WHY_MAX, format);
    return result;
}

static char *tensor_key(const char *name)
{
    size_t size = sizeof(KEY_TENSOR) + strlen(name);
    char *key = malloc(size);

    if (key)
        (void)snprintf(key, size, KEY_TENSOR "%s", name);
    return key;
}

static bool is_tensor_key(const char *key)
{
    return strncmp(key, KEY_TENSOR, strlen(KEY_TENSOR)) == 0;
}

/* ---- staging ---- */

static void free_tensor_keys(struct crw_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((char *)(uintptr_t)pairs[i].key); /* tensor_key() made it */
}

/* Our pairs, then one for each tensor, then the caller's. */
static int make_pairs(const char *step, const struct crw_tensor *tensors, size_t n_tensors,
                      const struct crw_pair *meta, size_t n_meta, struct crw_pair *pairs)
{
    pairs[0] = (struct crw_pair){KEY_FORMAT, FORMAT};
    pairs[1] = (struct crw_pair){KEY_STEP, step};
    pairs[2] = (struct crw_pair){KEY_HEADER, no_crc};
    for (size_t i = 0; i < n_tensors; i++) {
        pairs[N_FIXED + i] = (struct crw_pair){tensor_key(tensors[i].name), no_crc};
        if (!pairs[N_FIXED + i].key) {
            free_tensor_keys(pairs + N_FIXED, i);
            return -ENOMEM;
        }
    }
    if (n_meta > 0)
        memcpy(pairs + N_FIXED + n_tensors, meta, n_meta * sizeof(*meta));
    return 0;
}

static int check_arguments(const struct crw_tensor *tensors, size_t n_tensors, const struct crw_pair *meta,
                           size_t n_meta, char why[SNAPSHOT_WHY_MAX])
{
    for (size_t i = 0; i < n_tensors; i++)
        if (!tensors[i].name)
            return explain(SNAPSHOT_IMAGE_E_BAD, why, "tensor %zu has no name", i);
    for (size_t i = 0; i < n_meta; i++)
        if (!meta[i].key || strncmp(meta[i].key, OURS, strlen(OURS)) == 0)
            return explain(SNAPSHOT_IMAGE_E_BAD, why, "the key \"%s\" is reserved for the library",
                           meta[i].key ? meta[i].key : "");
    return 0;
}

int snapshot_image_stage(uint64_t step, const struct crw_tensor *tensors, size_t n_tensors,
                         const struct crw_pair *meta, size_t n_meta, struct buf *image,
                         char ret_why[SNAPSHOT_WHY_MAX])
{
    _cleanup_free_ struct crw_pair *pairs = NULL;
    size_t n_pairs = N_FIXED + n_tensors + n_meta;
    char step_text[24];
    const char *why;

    TRY(check_arguments(tensors, n_tensors, meta, n_meta, ret_why));
    pairs = calloc(n_pairs, sizeof(*pairs));
    if (!pairs)
        return -ENOMEM;
    (void)snprintf(step_text, sizeof(step_text), "%" PRIu64, step);
    TRY(make_pairs(step_text, tensors, n_tensors, meta, n_meta, pairs));
    int r = safetensors_encode(tensors, n_tensors, pairs, n_pairs, image, &why);
    free_tensor_keys(pairs + N_FIXED, n_tensors);
    return r == SAFETENSORS_E_BAD ? explain(SNAPSHOT_IMAGE_E_BAD, ret_why, "%s", why) : r;
}

/* ---- checksums ---- */

uint32_t crw_crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
    return is_array(data, n_bytes, 1) ? crc32c(crc, data, n_bytes) : crc;
}

/* Over the length and the header, with zeros for the eight digits at `at`. */
static uint32_t header_crc(const uint8_t *image, size_t header_end, size_t at)
{
    uint32_t crc = crw_crc32c(0, image, at);

    crc = crw_crc32c(crc, no_crc, CRC_DIGITS);
    return crw_crc32c(crc, image + at + CRC_DIGITS, header_end - at - CRC_DIGITS);
}

static void crc_to_digits(uint32_t crc, char digits[CRC_DIGITS + 1])
{
    (void)snprintf(digits, CRC_DIGITS + 1, "%08" PRIx32, crc);
}

/* The raw bytes in the file are compared: another spelling of the same number is a changed file. */
static bool crc_matches(uint32_t crc, const uint8_t *image, const struct safetensors_string *string)
{
    char digits[CRC_DIGITS + 1];

    crc_to_digits(crc, digits);
    return string->size == CRC_DIGITS && memcmp(image + string->at, digits, CRC_DIGITS) == 0;
}

static uint32_t tensor_crc(const uint8_t *image, const struct safetensors *st,
                           const struct safetensors_tensor *t)
{
    return crw_crc32c(0, image + st->data_at + t->begin, (size_t)(t->end - t->begin));
}

/* NULL when the key is not there or, with *ret_r -ENOMEM, when it could not be looked for. */
static const struct safetensors_string *find_tensor_string(const struct safetensors *st, const char *name,
                                                           int *ret_r)
{
    _cleanup_free_ char *key = tensor_key(name);

    *ret_r = key ? 0 : -ENOMEM;
    return key ? safetensors_find_string(st, key) : NULL;
}

static int seal_tensors(uint8_t *image, const struct safetensors *st)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        char digits[CRC_DIGITS + 1];
        int r;
        const struct safetensors_string *string = find_tensor_string(st, st->tensors[i].name, &r);

        if (r)
            return r;
        assert(string && string->size == CRC_DIGITS); /* staging wrote it */
        crc_to_digits(tensor_crc(image, st, &st->tensors[i]), digits);
        memcpy(image + string->at, digits, CRC_DIGITS);
    }
    return 0;
}

int snapshot_image_seal(uint8_t *image, size_t size)
{
    const struct safetensors_string *string;
    struct safetensors st;
    char digits[CRC_DIGITS + 1];
    const char *why;
    int r = safetensors_parse(image, size, &st, &why);

    assert(r != SAFETENSORS_E_BAD); /* staging wrote it */
    if (r)
        return r;
    r = seal_tensors(image, &st);
    if (r == 0) {
        string = safetensors_find_string(&st, KEY_HEADER);
        assert(string && string->size == CRC_DIGITS);
        crc_to_digits(header_crc(image, st.data_at, string->at), digits);
        memcpy(image + string->at, digits, CRC_DIGITS);
    }
    safetensors_finish(&st);
    return r;
}

/* ---- checking ---- */

static int check_image_header(const uint8_t *image, const struct safetensors *st, char why[SNAPSHOT_WHY_MAX])
{
    const struct safetensors_string *crc = safetensors_find_string(st, KEY_HEADER);
    const struct safetensors_string *format = safetensors_find_string(st, KEY_FORMAT);

    if (!crc || crc->size != CRC_DIGITS)
        return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "it has no checksum over its header");
    if (!crc_matches(header_crc(image, st->data_at, crc->at), image, crc))
        return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "the checksum of its header is wrong");
    if (!format || strcmp(format->value, FORMAT) != 0)
        return explain(SNAPSHOT_IMAGE_E_FORMAT, why, "its format is \"%s\" and only \"" FORMAT "\" is known",
                       format ? format->value : "");
    return 0;
}

static int check_step(const struct safetensors *st, uint64_t *ret_step, char why[SNAPSHOT_WHY_MAX])
{
    const struct safetensors_string *string = safetensors_find_string(st, KEY_STEP);

    if (!string || !*string->value)
        return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "it has no step");
    if (!decimal_parse(string->value, 0, UINT64_MAX, ret_step))
        return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "its step is no number");
    return 0;
}

static int check_tensors(const uint8_t *image, const struct safetensors *st,
                         const struct snapshot_bytes *bytes, char why[SNAPSHOT_WHY_MAX])
{
    size_t n_keys = 0;

    for (size_t i = 0; i < st->n_strings; i++)
        n_keys += is_tensor_key(st->strings[i].key);
    if (n_keys != st->n_tensors)
        return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "it has %zu tensors and %zu checksums", st->n_tensors,
                       n_keys);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct safetensors_tensor *t = &st->tensors[i];
        uint32_t crc = 0;
        int r;
        const struct safetensors_string *string = find_tensor_string(st, t->name, &r);

        if (r)
            return r;
        if (!string)
            return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "tensor %.100s has no checksum", t->name);
        TRY(bytes->crc(bytes->data, st->data_at + t->begin, t->end - t->begin, &crc));
        if (!crc_matches(crc, image, string))
            return explain(SNAPSHOT_IMAGE_E_DAMAGED, why, "the checksum of tensor %.100s is wrong", t->name);
    }
    return 0;
}

int snapshot_image_check(const uint8_t *header, size_t size, const struct snapshot_bytes *bytes,
                         struct safetensors *ret, uint64_t *ret_step, char ret_why[SNAPSHOT_WHY_MAX])
{
    struct safetensors st;
    const char *why;
    uint64_t step = 0;
    int r = safetensors_parse(header, size, &st, &why);

    if (r == SAFETENSORS_E_BAD)
        return explain(SNAPSHOT_IMAGE_E_DAMAGED, ret_why, "%s", why);
    if (r)
        return r;
    r = check_image_header(header, &st, ret_why);
    if (r == 0)
        r = check_step(&st, &step, ret_why);
    if (r == 0)
        r = check_tensors(header, &st, bytes, ret_why);
    if (r) {
        safetensors_finish(&st);
        return r;
    }
    *ret = st;
    *ret_step = step;
    return 0;
}
