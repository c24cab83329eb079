#pragma once

/*
 * CRC-32C (Castagnoli), of snapshots and parameters, and CRC-32 as zlib and zip files have it, of blocks that Python writes. Start with
 * crc 0; pieces follow one another with the result of the piece before.
 */

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes);
uint32_t crc32_zlib(uint32_t crc, const void *data, size_t n_bytes);

/* The portable twin of crc32c(), for its test. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t n_bytes);
