#pragma once

/*
 * A digest (FNV-1a, 64 bits) of what was seen or printed, to be compared with that of the next time. It is not made for bytes
 * that an attacker chooses.
 */

#include <stddef.h>
#include <stdint.h>

#define DIGEST_EMPTY UINT64_C(0xcbf29ce484222325)

static inline uint64_t digest_add(uint64_t digest, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return digest;
}
