/*
 * Eight table look-ups per eight bytes. For CRC-32C the crc32 instruction where the processor has SSE 4.2 (asked at run time).
 */

#include "base/crc32.h"

#include <pthread.h>
#include <string.h>

/* steps[0] takes the checksum over one byte; steps[k] over that byte followed by k zero bytes. */
struct crc_table {
    uint32_t polynomial; /* lowest bit first */
    uint32_t steps[8][256];
};

static struct crc_table castagnoli = {.polynomial = 0x82f63b78u}, ieee = {.polynomial = 0xedb88320u};
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void crc_table_fill(struct crc_table *t)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? t->polynomial : 0);
        t->steps[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            t->steps[k][i] = (t->steps[k - 1][i] >> 8) ^ t->steps[0][t->steps[k - 1][i] & 0xff];
}

static void crc_tables_fill(void)
{
    crc_table_fill(&castagnoli);
    crc_table_fill(&ieee);
}

static uint32_t crc_by_table(const struct crc_table *t, uint32_t crc, const uint8_t *p, size_t n_bytes)
{
    (void)pthread_once(&tables_once, crc_tables_fill); /* fails only for a broken once object */
    crc = ~crc;
    for (; n_bytes >= 8; p += 8, n_bytes -= 8) {
        crc ^= p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = t->steps[7][crc & 0xff] ^ t->steps[6][crc >> 8 & 0xff] ^ t->steps[5][crc >> 16 & 0xff] ^
              t->steps[4][crc >> 24] ^ t->steps[3][p[4]] ^ t->steps[2][p[5]] ^ t->steps[1][p[6]] ^
              t->steps[0][p[7]];
    }
    while (n_bytes--)
        crc = (crc >> 8) ^ t->steps[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

uint32_t crc32c_table(uint32_t crc, const void *data, size_t n_bytes)
{
    return crc_by_table(&castagnoli, crc, data, n_bytes);
}

uint32_t crc32_zlib(uint32_t crc, const void *data, size_t n_bytes)
{
    return crc_by_table(&ieee, crc, data, n_bytes);
}

#if defined(__x86_64__)

#include <nmmintrin.h>

/* clang from 17 on counts the instruction as a feature of its own. */
__attribute__((target("sse4.2,crc32"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data,
                                                                     size_t n_bytes)
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

uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
    return __builtin_cpu_supports("sse4.2") ? crc32c_sse42(crc, data, n_bytes)
                                            : crc32c_table(crc, data, n_bytes);
}

#else

uint32_t crc32c(uint32_t crc, const void *data, size_t n_bytes)
{
    return crc32c_table(crc, data, n_bytes);
}

#endif
