/*
 * CRC-32C (Castagnoli), the checksum of snapshots and parameters. The crc32 instruction where the processor
 * has SSE 4.2 (asked at run time), else eight table look-ups per eight bytes.
 */

#include "worker-runtime/base/crc32c.h"
#include "worker-runtime/base/error.h"

#include <pthread.h>
#include <string.h>

/* table[0] steps the checksum over one byte; table[k] over that byte followed by k zero bytes. */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_fill(void)
{
    const uint32_t polynomial = 0x82f63b78u; /* 0x1edc6f41, lowest bit first */
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? polynomial : 0);
        table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
}

uint32_t crc32c_table(uint32_t crc, const void *data, size_t n_bytes)
{
    (void)pthread_once(&table_once, table_fill); /* fails only for a broken once object */
    const uint8_t *p = data;
    crc = ~crc;
    for (; n_bytes >= 8; p += 8, n_bytes -= 8) {
        crc ^= p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = table[7][crc & 0xff] ^ table[6][crc >> 8 & 0xff] ^ table[5][crc >> 16 & 0xff] ^
              table[4][crc >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    while (n_bytes--)
        crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)

#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t n_bytes)
{
    const uint8_t *p = data;
    uint64_t wide = (uint32_t)~crc;
    for (; n_bytes >= 8; p += 8, n_bytes -= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof(word));
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    while (n_bytes--)
        crc = _mm_crc32_u8(crc, *p++);
    return ~crc;
}

uint32_t crw_crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
    if (!is_array(data, n_bytes, 1))
        return crc;
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_sse42(crc, data, n_bytes);
    return crc32c_table(crc, data, n_bytes);
}

#else

uint32_t crw_crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
    return is_array(data, n_bytes, 1) ? crc32c_table(crc, data, n_bytes) : crc;
}

#endif
