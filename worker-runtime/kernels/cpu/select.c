/*
 * Which kernels this processor runs: asked at run time, because the library is built for all of them.
 */

#include "worker-runtime/kernels/cpu/kernels.h"

extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;

static const struct cpu_kernels *const tables[] = {
#if defined(__x86_64__)
    &cpu_kernels_avx512, &cpu_kernels_avx2,
#endif
    &cpu_kernels_base, NULL};

const struct cpu_kernels *const *cpu_kernels_all(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return tables + 2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return tables + 1;
#endif
    return tables;
}

const struct cpu_kernels *cpu_kernels_best(void)
{
    return *cpu_kernels_all();
}
