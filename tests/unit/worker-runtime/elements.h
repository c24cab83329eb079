#pragma once

/* Arrays for tests of reductions, of every type. */

#include "worker-runtime/crw.h"

#include <stdint.h>

/* Rank's data, the same for whoever makes it; sums of it round. */
static inline void fill_elements(enum crw_dtype dtype, void *data, size_t count, unsigned rank)
{
    unsigned seed = rank * 7919 + 17;

    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        switch (dtype) {
        case CRW_F32:
            ((float *)data)[i] = ((float)(seed >> 8) - 8e6f) * 1e-3f;
            break;
        case CRW_F64:
            ((double *)data)[i] = ((double)seed - 2e9) * 1e-5;
            break;
        case CRW_BF16:
            ((uint16_t *)data)[i] = (uint16_t)(0x3f00 | (seed >> 24) | (seed >> 8 & 0x8000));
            break;
        case CRW_I64:
            ((int64_t *)data)[i] = (int64_t)seed - 2000000000;
            break;
        default:
            ((int32_t *)data)[i] = (int32_t)seed;
        }
    }
}

static const enum crw_dtype dtypes[] = {CRW_F32, CRW_F64, CRW_BF16, CRW_I64, CRW_I32};
