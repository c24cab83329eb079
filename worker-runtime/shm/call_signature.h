#pragma once

/*
 * Signature of a collective call: operation, root or type, and count in one number. Ranks with different signatures get
 * CRW_E_ARGUMENT.
 *
 *   bits 56..63  operation
 *   bits 40..55  detail: the root, or data type and reduction
 *   bits  0..39  elements or bytes
 */

#include "worker-runtime/crw.h"

#include <assert.h>
#include <stdint.h>

enum {
    SIGNATURE_SHIFT = 56,
    SIGNATURE_SIZE_BITS = 40, /* 1 TiB at most */
    SIGNATURE_ALLOC = 0xff,   /* operation of shm_alloc() */
};

enum operation {
    OP_BARRIER = 1,
    OP_BROADCAST,
    OP_ALL_GATHER,
    OP_GATHER,
    OP_SCATTER,
    OP_ALL_REDUCE,
    OP_REDUCE_SCATTER,
    /* One for each type and operation, because the detail is the root: the last. */
    OP_REDUCE,
};

static_assert((int)OP_REDUCE + (int)CRW_DTYPE_COUNT * (int)CRW_OP_COUNT < SIGNATURE_ALLOC,
              "one byte for all");
enum { WORLD_MAX = 1 << (SIGNATURE_SHIFT - SIGNATURE_SIZE_BITS) }; /* a rank is the largest detail */

/* operation: one of the above, or OP_REDUCE and something. n: fits into SIGNATURE_SIZE_BITS. */
static inline uint64_t call_signature(unsigned operation, unsigned detail, uint64_t n)
{
    return (uint64_t)operation << SIGNATURE_SHIFT | (uint64_t)detail << SIGNATURE_SIZE_BITS | n;
}
