#pragma once

/*
 * Vectors of CPU_LANES floats in the compiler's own notation, so that one source serves every instruction
 * set: the build compiles it once for each with the options of that set, and CPU_ISA in the names.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(CPU_LANES) || !defined(CPU_ISA)
#error "compiled by worker-runtime/kernels/cpu/meson.build, which sets CPU_LANES and CPU_ISA"
#endif

#define ISA_JOIN2(a, b) a##b
#define ISA_JOIN(a, b) ISA_JOIN2(a, b)
#define ISA_NAME(name) ISA_JOIN(name, CPU_ISA)

/* In front of a loop whose count is a constant once its function is inlined: no loop may be left, or what it
 * counts through cannot live in registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * CPU_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * CPU_LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * CPU_LANES), aligned(4), may_alias));

INLINE vf load(const float *p)
{
    return *(const vf_unaligned *)p;
}

INLINE void store(float *p, vf v)
{
    *(vf_unaligned *)p = v;
}

/* Widened and narrowed lane by lane, which compilers turn into one instruction; of __builtin_convertvector
 * gcc 12 makes sixty. */
INLINE vi load_bytes(const uint8_t *p)
{
    vi wide;
    for (int l = 0; l < CPU_LANES; l++)
        wide[l] = p[l];
    return wide;
}

INLINE void store_bytes(uint8_t *p, vi v)
{
    for (int l = 0; l < CPU_LANES; l++)
        p[l] = (uint8_t)v[l];
}

/* mask: all bits of a lane or none, as comparisons make it. */
INLINE vf select_f(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

INLINE vi select_i(vi mask, vi yes, vi no)
{
    return (mask & yes) | (~mask & no);
}

/* yes where mask, else +0. */
INLINE vf keep(vi mask, vf yes)
{
    return (vf)(mask & (vi)yes);
}

typedef float vf2 __attribute__((vector_size(8)));
typedef float vf4 __attribute__((vector_size(16)));
typedef float vf8 __attribute__((vector_size(32)));

INLINE float sum_4(vf4 v)
{
    vf2 half = __builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3);
    return half[0] + half[1];
}

INLINE float sum_8(vf8 v)
{
    return sum_4(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
}

/* Halves first. */
INLINE float sum_lanes(vf v)
{
#if CPU_LANES == 4
    return sum_4(v);
#elif CPU_LANES == 8
    return sum_8(v);
#else
    return sum_8(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#endif
}
