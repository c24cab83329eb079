#pragma once

/* What all kernels share: launching, and whole-number division by what is the same for all threads. */

#include <cuda_runtime.h>

#include "worker-runtime/kernels/cuda/gemm_plan.h"
#include "worker-runtime/kernels/cuda/kernels.h"

constexpr int WARP = 32, ELEMENT_THREADS = 256, ELEMENT_BLOCKS_MAX = 2048;

template <class... P, class... A>
static cudaError_t launch(cudaStream_t stream, dim3 grid, unsigned n_threads, void (*kernel)(P...),
                          A... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(n_threads);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/* A grid for one thread an element; kernels stride over what a grid of this size leaves. */
static inline dim3 element_grid(size_t count)
{
    size_t n_blocks = (count + ELEMENT_THREADS - 1) / ELEMENT_THREADS;
    return dim3((unsigned)(n_blocks < (size_t)ELEMENT_BLOCKS_MAX ? n_blocks : (size_t)ELEMENT_BLOCKS_MAX));
}

static __device__ inline size_t first_element(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline size_t element_stride(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

/*
 * Division of 0 <= n < 2^31 by a number that all threads share: a multiplication and a shift (Granlund and
 * Montgomery; with ceil(2^(32 + shift) / divisor) - 2^32 as the multiplier it is exact for all such n).
 */
struct divider {
    unsigned divisor, multiplier, shift;
};

static inline struct divider divide_by(int divisor)
{
    struct divider d = {(unsigned)divisor, 0, 0};
    while ((1u << d.shift) < d.divisor)
        d.shift++;
    d.multiplier = (unsigned)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - d.divisor)) / d.divisor + 1);
    return d;
}

/* Returns the quotient and leaves the remainder. */
static __device__ inline int divide(int n, const struct divider &d, int *remainder)
{
    unsigned quotient = (__umulhi((unsigned)n, d.multiplier) + (unsigned)n) >> d.shift;
    *remainder = n - (int)(quotient * d.divisor);
    return (int)quotient;
}

/* Sum of a value over the lanes of a warp, on every lane, always paired in the same way. */
template <class T> static __device__ inline T warp_sum(T value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
