#pragma once

/* Over a whole arena: its end is no multiple of anything. */

#include "worker-runtime/kernels/cpu/fast_vector.h"

INLINE vf rounded(vf x)
{
    typedef uint32_t vu __attribute__((vector_size(4 * CPU_LANES)));
    vu bits = (vu)x;
    vu nearest = bits + 0x7fff + ((bits >> 16) & 1);
    vi is_nan = x != x;
    return (vf)(((is_nan & (vi)(bits | 0x400000)) | (~is_nan & (vi)nearest)) & (int32_t)0xffff0000);
}

static void round_bf16(size_t count, const float *x, float *y)
{
    size_t i = 0;
    for (; i + CPU_LANES <= count; i += CPU_LANES)
        store(y + i, rounded(load(x + i)));
    if (i < count) {
        vf rest = {0};
        memcpy(&rest, x + i, (count - i) * sizeof(*x));
        rest = rounded(rest);
        memcpy(y + i, &rest, (count - i) * sizeof(*y));
    }
}

/* Blocks in fp32, their sums in double: as good as double for what a norm is used for. */
static double sum_squares(size_t count, const float *x)
{
    enum { BLOCK = 64 * CPU_LANES };
    double sum = 0;
    size_t i = 0;
    while (i + CPU_LANES <= count) {
        size_t end = count - i < BLOCK ? count : i + BLOCK;
        vf even = {0}, odd = {0};
        for (; i + 2 * CPU_LANES <= end; i += 2 * CPU_LANES) {
            vf a = load(x + i), b = load(x + i + CPU_LANES);
            even += a * a;
            odd += b * b;
        }
        if (i + CPU_LANES <= end) {
            vf a = load(x + i);
            even += a * a;
            i += CPU_LANES;
        }
        sum += (double)sum_lanes(even + odd);
    }
    for (; i < count; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static void scale(size_t count, float factor, float *x)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

static void add(size_t count, const float *restrict x, float *restrict y)
{
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}
