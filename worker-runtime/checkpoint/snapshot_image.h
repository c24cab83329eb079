#pragma once

/*
 * The bytes of a snapshot: a safetensors file with checksums of all tensors in its metadata. Pure.
 *
 * Keys that begin with "crw." are ours, all others the caller's:
 *   crw.format           "1"
 *   crw.step             decimal
 *   crw.crc32c.<tensor>  CRC-32C of the tensor's bytes, 8 lower-case hex digits
 *   crw.header_crc32c    CRC-32C of the first 8 + N bytes, counted with this value as "00000000"
 * The last one covers the length, the JSON and the padding, so no bit of the file is outside a checksum.
 *
 * To change the format: what an old reader may ignore is a new key. Anything else is a new number in
 * crw.format, which old readers refuse by name, and a reader here for both.
 */

#include "worker-runtime/checkpoint/safetensors.h"

enum snapshot_image_result {
    SNAPSHOT_IMAGE_E_BAD = 1, /* the caller's arguments do not make a snapshot; *ret_why is the reason */
    SNAPSHOT_IMAGE_E_DAMAGED, /* structure or checksum wrong; *ret_why names it */
    SNAPSHOT_IMAGE_E_FORMAT,  /* whole, but of a format that we do not know */
};

enum { SNAPSHOT_WHY_MAX = 256 };

/*
 * Copies everything into image, with zeros for the checksums: the part that must happen while the tensors
 * stand still. 0, -ENOMEM, or SNAPSHOT_IMAGE_E_BAD with the reason; image grows only on success.
 */
int snapshot_image_stage(uint64_t step, const struct crw_tensor *tensors, size_t n_tensors,
                         const struct crw_pair *meta, size_t n_meta, struct buf *image,
                         char ret_why[SNAPSHOT_WHY_MAX]);

/* Computes the checksums of a staged image and writes them where they belong. 0 or -ENOMEM. */
int snapshot_image_seal(uint8_t *image, size_t size);

/* Gives the CRC-32C of n bytes of a file from `at` on. 0 or -errno. */
struct snapshot_bytes {
    int (*crc)(void *data, uint64_t at, uint64_t n, uint32_t *ret_crc);
    void *data;
};

/*
 * Checks an untrusted file of that size completely, of which the header is in memory. 0, -ENOMEM, crc's result, or
 * SNAPSHOT_IMAGE_E_DAMAGED or SNAPSHOT_IMAGE_E_FORMAT with the reason, which continues a sentence about the file
 * ("it is truncated").
 */
int snapshot_image_check(const uint8_t *header, size_t size, const struct snapshot_bytes *bytes,
                         struct safetensors *ret, uint64_t *ret_step, char ret_why[SNAPSHOT_WHY_MAX]);
