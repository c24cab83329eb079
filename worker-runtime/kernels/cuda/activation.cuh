#pragma once

/* Relu and the maximum as PyTorch counts them, for every kernel that has one in it. */

#include <cuda_runtime.h>

/* NaN passes through: what is not at most 0 stays. */
static __device__ inline float relu(float x)
{
    return x <= 0 ? 0 : x;
}

static __device__ inline bool lives(float y)
{
    return !(y <= 0);
}

/* The first largest wins; a NaN wins over everything, and the first NaN stays. */
static __device__ inline bool beats(float candidate, float best)
{
    return candidate > best || (candidate != candidate && best == best);
}
