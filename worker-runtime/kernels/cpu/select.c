/*
 * Which kernels this processor runs: asked at run time, because the library is built for all of them.
 */

#include "worker-runtime/kernels/cpu/kernels.h"

#include <pthread.h>

extern const struct cpu_kernels cpu_kernels_base;

enum { N_TABLES_MAX = 4 };

/* Worst first, ends with NULL. */
static const struct cpu_kernels *runnable[N_TABLES_MAX + 1] = {&cpu_kernels_ref, &cpu_kernels_base};
static size_t n_runnable = 2;

#if defined(__x86_64__)

extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;

static void ask_processor(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        runnable[n_runnable++] = &cpu_kernels_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        runnable[n_runnable++] = &cpu_kernels_avx512;
}

#else

static void ask_processor(void)
{
}

#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct cpu_kernels *const *cpu_kernels_all(void)
{
    (void)pthread_once(&once, ask_processor); /* fails only for a broken once object */
    return runnable;
}

const struct cpu_kernels *cpu_kernels_best(void)
{
    (void)cpu_kernels_all();
    return runnable[n_runnable - 1];
}
