#pragma once

/*
 * The safetensors container: u64 little-endian length N of a JSON header, the header, then the bytes of
 * the tensors. Pure: bytes in, bytes out. The checksums in a snapshot's metadata are strings here;
 * snapshot_image.h gives them their meaning.
 *
 *   header    {"__metadata__":{"key":"value",...},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
 *             UTF-8, begins with "{", padded with spaces so that 8 + N is a multiple of 8
 *   offsets   relative to the end of the header; together they tile the data: no hole, no overlap
 *   length    the file ends where the last tensor ends
 */

#include "base/buf.h"
#include "worker-runtime/crw.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SAFETENSORS_DIMS_MAX = 4,           /* what struct crw_tensor can hold */
    SAFETENSORS_HEADER_MAX = 100000000, /* bytes; the format's own bound */
};

enum safetensors_result {
    SAFETENSORS_E_BAD = 1, /* the format does not allow it; *ret_why is the reason */
};

struct safetensors_tensor {
    const char *name;
    enum crw_dtype dtype;
    int n_dims;
    int64_t dims[SAFETENSORS_DIMS_MAX];
    uint64_t begin, end; /* relative to the data */
};

struct safetensors_string {
    const char *key;
    const char *value;
    size_t at, size; /* where the value is written in the file, without its quotes */
};

/* A parsed header. It points into memory of its own, not into the file. */
struct safetensors {
    struct safetensors_tensor *tensors; /* by offset */
    size_t n_tensors;
    struct safetensors_string *strings; /* by key */
    size_t n_strings;
    size_t data_at; /* 8 + N */
    char *text;
};

/*
 * Length N of the header of a file of that size, from its first 8 bytes (fewer when the size is smaller):
 * how much has to be there for safetensors_parse(). 0, or SAFETENSORS_E_BAD with *ret_why.
 */
int safetensors_header_length(const uint8_t *file, uint64_t size, uint64_t *ret_n, const char **ret_why);

/*
 * Reads the header of a whole file of untrusted bytes and checks everything that the format promises; the
 * content of the tensors is not looked at, only the first 8 + N bytes have to be there.
 * 0, -ENOMEM, or SAFETENSORS_E_BAD with *ret_why (a literal).
 */
int safetensors_parse(const uint8_t *file, size_t size, struct safetensors *ret, const char **ret_why);

void safetensors_finish(struct safetensors *st);

/* NULL when there is none. */
const struct safetensors_string *safetensors_find_string(const struct safetensors *st, const char *key);
const struct safetensors_tensor *safetensors_find_tensor(const struct safetensors *st, const char *name);

/*
 * Appends a whole file to out: tensors with wide elements first, so that each is aligned, else in the
 * order given; strings in the order given. 0, -ENOMEM, or SAFETENSORS_E_BAD with *ret_why when the format
 * cannot hold it: a name twice, text that is not UTF-8, a negative dimension. out grows only on success.
 */
int safetensors_encode(const struct crw_tensor *tensors, size_t n_tensors, const struct crw_pair *strings,
                       size_t n_strings, struct buf *out, const char **ret_why);

/* Bytes of such a tensor; false when it has more dimensions than we know, a negative one, or no such size. */
bool safetensors_count_bytes(enum crw_dtype dtype, int n_dims, const int64_t *dims, uint64_t *ret_n_bytes);

/* The format's name of a type ("F32"), and its bytes per element. */
const char *safetensors_dtype_name(enum crw_dtype dtype);
size_t safetensors_dtype_size(enum crw_dtype dtype);

/* The byte at the end or behind it must be ASCII: a NUL, or the end of a header. */
bool safetensors_text_is_utf8(const uint8_t *text, size_t size);

/* Sorts items whose first member is a text. False: two items have the same text. */
bool safetensors_sort_texts(void *items, size_t n, size_t size);
