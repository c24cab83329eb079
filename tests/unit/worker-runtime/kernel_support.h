#pragma once

/*
 * For the tests of CUDA kernels on the host: memory, inputs, and the two questions every result is asked. Is
 * it the twin's within a stated tolerance, and is it the same bits when blocks and threads run in the
 * opposite order?
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker-runtime/kernels/cuda/kernels.h"

/* A test by its name and body, run once for each order of execution. */
struct kernel_case {
    const char *name;
    void (*body)(void);
    bool approximate; /* results from exp(), log() or tensor cores: their last bits depend on the machine */
};

/*
 * Runs all; the value for main() to return. Environment:
 *   KERNEL_CRCS=FILE      checksums of all results whose bits do not depend on the machine are compared with FILE's. The
 *                         emulation writes FILE where there is none. The last line of output is a JSON object of counts.
 *   KERNEL_MEMORY=device  kernels get memory of cudaMalloc(), for tools that watch it; the test's is copied there and back.
 *                         On the emulation the host cannot touch it. One order only. Otherwise both sides see the same
 *                         pinned memory.
 */
int kernel_run(const char *group, const struct kernel_case *cases, size_t n_cases);

/* Memory that lives until the body returns, and starts as NaN; for kernels as kernel_memory.h passes it. */
void *kernel_device(size_t n_bytes);
float *kernel_device_floats(size_t count);
/* Random numbers, about normal, the same in both orders. */
float *kernel_random(size_t count);
/* Their absolute values. */
float *kernel_absolute(const float *values, size_t count);
float *kernel_zeros(size_t count);
void *kernel_copy(const void *data, size_t n_bytes);
uint32_t kernel_random_u32(void);

/* For kernel_memory.h: where the device has what begins there; NULL stays NULL. */
void *kernel_on_device(const void *memory);
/* The same for its members; valid until the next call. */
const struct cuda_norm *kernel_norm_on_device(const struct cuda_norm *norm);

struct cuda_queue kernel_queue(enum crw_products precision);
/* Asserts that it was launched, and runs it; with KERNEL_MEMORY=device the results come back then: one launch for each. */
void kernel_done(const struct cuda_queue *q, cudaError_t launched);

/* |actual - expected| <= tolerance * scale[i] everywhere (scale NULL: 1), or both NaN. */
void kernel_check(const char *what, const float *actual, const float *expected, size_t count,
                  double tolerance, const float *scale);
/* Bit for bit. */
void kernel_check_bytes(const char *what, const void *actual, const void *expected, size_t n_bytes);

/* Of a sum of products, relative to the sum of their absolute values: what rounding the operands costs at
 * most (two of 2^-11, two of 2^-8), and for fp32 what thousands of additions cost in practice. */
static inline double kernel_tolerance(enum crw_products precision)
{
    switch (precision) {
    case CRW_PRODUCTS_TF32:
        return 1.0e-3;
    case CRW_PRODUCTS_BF16:
        return 8.0e-3;
    case CRW_PRODUCTS_F32:
    case CRW_PRODUCTS_COUNT:
        break;
    }
    return 2e-6;
}
