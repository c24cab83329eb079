/*
 * Work goes in blocks that stay in the first-level cache: the block of the first two ranks into an
 * accumulator, the others on top in rank order, then the result to all targets. Two ranks in place, the
 * common case on small machines, have a loop of their own without accumulator (900,904 bytes: 7 instead
 * of 20 microseconds on two cores).
 *
 * The loops are plain, for the compiler to vectorise, and compiled once more for AVX2 where the linker
 * can choose at start. That changes no bit: each element is still one addition after the other, and
 * nothing here can be fused. Tiles in vector registers for any number of ranks were tried: gcc 12 spills
 * them.
 *
 * bfloat16 is added up in fp32 and rounded once, to the nearest and to even: the sum of many ranks loses
 * no more than the sum of two.
 */

#include "worker-runtime/shm/reduce_ops.h"

#include <assert.h>
#include <string.h>

/* Sanitizers cannot run before the linker has chosen, and not every compiler knows the attribute. */
#if defined(__x86_64__) && defined(__has_attribute) && !defined(__SANITIZE_ADDRESS__) &&                     \
    !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#if __has_attribute(target_clones)
#define FAST __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef FAST
#define FAST
#endif

enum { BLOCK_BYTES = 4096 };

/* What is done to a block. */
struct kernel {
    void (*combine)(void *acc, const void *a, const void *b, size_t n); /* acc = a op b; acc may be a or b */
    void (*finish)(void *acc, size_t n, int n_sources);                 /* NULL: nothing */
    void (*pair)(void *a, void *b, size_t n);                           /* a = b = finish(a op b) */
};

#define DEFINE_COMBINE(name, type, expression)                                                               \
    FAST static void name(void *acc_, const void *a_, const void *b_, size_t n)                              \
    {                                                                                                        \
        type *acc = acc_;                                                                                    \
        const type *a = a_, *b = b_;                                                                         \
                                                                                                             \
        for (size_t i = 0; i < n; i++) {                                                                     \
            type x = a[i], y = b[i];                                                                         \
                                                                                                             \
            acc[i] = (expression);                                                                           \
        }                                                                                                    \
    }

#define DEFINE_FINISH(name, type, expression)                                                                \
    FAST static void name(void *acc_, size_t n, int n_sources)                                               \
    {                                                                                                        \
        type *acc = acc_;                                                                                    \
                                                                                                             \
        for (size_t i = 0; i < n; i++) {                                                                     \
            type x = acc[i];                                                                                 \
                                                                                                             \
            acc[i] = (expression);                                                                           \
        }                                                                                                    \
    }

/*
 * A pair of large arrays is read at PLACES places at once, a STRETCH of each in turn, and AHEAD bytes are asked for before
 * they are needed: one stream keeps too few reads on their way to use the memory's bandwidth, and the processor's own
 * prefetching ends at each page. 26 MB with two cores: 6.4 ms with one place, 4.9 with four, 4.7 with four and prefetching.
 */
enum { PLACES = 4, STRETCH = 256, LINE = 64, AHEAD = 6144, PLACES_MIN_BYTES = 128 << 10 };

/* Beyond the end of an array it does nothing: it never faults. */
static inline void prefetch_stretch(const void *at)
{
    for (uintptr_t i = AHEAD; i < AHEAD + STRETCH; i += LINE)
        __builtin_prefetch((const void *)((uintptr_t)at + i), 1, 3);
}

#define DEFINE_PAIR(name, type, expression)                                                                  \
    FAST static void name(void *a_, void *b_, size_t n)                                                      \
    {                                                                                                        \
        type *restrict a = a_, *restrict b = b_;                                                             \
        enum { PER_STRETCH = STRETCH / sizeof(type) };                                                       \
        const size_t part =                                                                                  \
            n * sizeof(type) < PLACES_MIN_BYTES ? 0 : n / PLACES / PER_STRETCH * PER_STRETCH;                \
                                                                                                             \
        for (size_t i = 0; i < part; i += PER_STRETCH) {                                                     \
            for (size_t first = i; first < PLACES * part; first += part) {                                   \
                prefetch_stretch(a + first);                                                                 \
                prefetch_stretch(b + first);                                                                 \
                for (size_t k = first; k < first + PER_STRETCH; k++) {                                       \
                    type x = a[k], y = b[k];                                                                 \
                                                                                                             \
                    a[k] = b[k] = (expression);                                                              \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        for (size_t i = PLACES * part; i < n; i++) {                                                         \
            type x = a[i], y = b[i];                                                                         \
                                                                                                             \
            a[i] = b[i] = (expression);                                                                      \
        }                                                                                                    \
    }

/* Integers wrap around: signed overflow would be undefined. NaN wins a maximum: the second test lets it in,
 * and then nothing is greater. */
#define ADD(x, y) ((x) + (y))
#define ADD_I64(x, y) ((int64_t)((uint64_t)(x) + (uint64_t)(y)))
#define ADD_I32(x, y) ((int32_t)((uint32_t)(x) + (uint32_t)(y)))
#define MAX_FLOAT(x, y) ((y) > (x) || (y) != (y) ? (y) : (x))
#define MAX_INTEGER(x, y) ((y) > (x) ? (y) : (x))

/* A type's kernels, and its row of the table below. */
#define DEFINE_KERNELS(suffix, type, add, max)                                                               \
    DEFINE_COMBINE(add_##suffix, type, add(x, y))                                                            \
    DEFINE_COMBINE(max_##suffix, type, max(x, y))                                                            \
    DEFINE_FINISH(divide_##suffix, type, x / (type)n_sources)                                                \
    DEFINE_PAIR(add_pair_##suffix, type, add(x, y))                                                          \
    DEFINE_PAIR(average_pair_##suffix, type, add(x, y) / 2)                                                  \
    DEFINE_PAIR(max_pair_##suffix, type, max(x, y))
#define KERNELS(suffix)                                                                                      \
    {                                                                                                        \
        [CRW_SUM] = {add_##suffix, NULL, add_pair_##suffix},                                                 \
        [CRW_AVG] = {add_##suffix, divide_##suffix, average_pair_##suffix},                                  \
        [CRW_MAX] = {max_##suffix, NULL, max_pair_##suffix},                                                 \
    }

DEFINE_KERNELS(f32, float, ADD, MAX_FLOAT)
DEFINE_KERNELS(f64, double, ADD, MAX_FLOAT)
DEFINE_KERNELS(i64, int64_t, ADD_I64, MAX_INTEGER)
DEFINE_KERNELS(i32, int32_t, ADD_I32, MAX_INTEGER)

/* A type that is added up in another one comes with the ways there and back. */
struct reducible {
    size_t size;                                       /* of an element */
    size_t acc_size;                                   /* of a partial sum */
    void (*widen)(void *acc, const void *a, size_t n); /* NULL: the same type */
    void (*narrow)(void *out, const void *acc, size_t n);
    struct kernel kernels[CRW_OP_COUNT]; /* of partial sums */
};

FAST static void widen_bf16(void *acc_, const void *a_, size_t n)
{
    uint32_t *acc = acc_; /* the bits of a float */
    const uint16_t *a = a_;

    for (size_t i = 0; i < n; i++)
        acc[i] = (uint32_t)a[i] << 16;
}

/* Adding half of what is cut off may carry NaN into infinity: NaN stays one. */
FAST static void narrow_bf16(void *out_, const void *acc_, size_t n)
{
    uint16_t *out = out_;
    const uint32_t *acc = acc_;

    for (size_t i = 0; i < n; i++) {
        uint32_t x = acc[i];
        uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
        uint32_t quiet = x >> 16 | 0x40;

        out[i] = (uint16_t)((x & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
    }
}

static const struct reducible reducibles[CRW_DTYPE_COUNT] = {
    [CRW_F32] = {4, 4, NULL, NULL, KERNELS(f32)},
    [CRW_F64] = {8, 8, NULL, NULL, KERNELS(f64)},
    [CRW_BF16] = {2, 4, widen_bf16, narrow_bf16, KERNELS(f32)},
    [CRW_I64] = {8, 8, NULL, NULL, KERNELS(i64)},
    [CRW_I32] = {4, 4, NULL, NULL, KERNELS(i32)},
};

bool reduce_supports(enum crw_dtype dtype, enum crw_op op)
{
    return (unsigned)dtype < CRW_DTYPE_COUNT && (unsigned)op < CRW_OP_COUNT && reducibles[dtype].size > 0;
}

size_t reduce_element_size(enum crw_dtype dtype)
{
    return reducibles[dtype].size;
}

/* n elements of all sources from that byte on, combined into acc. */
static void reduce_block(const struct reducible *type, const struct kernel *kernel,
                         const void *const *sources, int n_sources, size_t offset, size_t n, uint8_t *acc)
{
    if (n_sources == 1)
        memcpy(acc, (const uint8_t *)sources[0] + offset, n * type->size);
    else
        kernel->combine(acc, (const uint8_t *)sources[0] + offset, (const uint8_t *)sources[1] + offset, n);
    for (int i = 2; i < n_sources; i++)
        kernel->combine(acc, acc, (const uint8_t *)sources[i] + offset, n);
    if (kernel->finish)
        kernel->finish(acc, n, n_sources);
}

/* The same for a type that is added up in another one; acc begins with the elements in the end. */
static void reduce_wide_block(const struct reducible *type, const struct kernel *kernel,
                              const void *const *sources, int n_sources, size_t offset, size_t n,
                              uint8_t *acc)
{
    _Alignas(64) uint8_t sums[BLOCK_BYTES], next[BLOCK_BYTES];

    type->widen(sums, (const uint8_t *)sources[0] + offset, n);
    for (int i = 1; i < n_sources; i++) {
        type->widen(next, (const uint8_t *)sources[i] + offset, n);
        kernel->combine(sums, sums, next, n);
    }
    if (kernel->finish)
        kernel->finish(sums, n, n_sources);
    type->narrow(acc, sums, n);
}

void reduce(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
            void *const *targets, int n_targets, size_t begin, size_t end)
{
    const struct reducible *type = &reducibles[dtype];
    const struct kernel *kernel = &type->kernels[op];
    size_t size = type->size, block = BLOCK_BYTES / type->acc_size;
    _Alignas(64) uint8_t acc[BLOCK_BYTES];

    assert(reduce_supports(dtype, op) && n_sources >= 1 && begin <= end);
    if (!type->widen && n_sources == 2 && n_targets == 2 && sources[0] == targets[0] &&
        sources[1] == targets[1]) {
        kernel->pair((uint8_t *)targets[0] + begin * size, (uint8_t *)targets[1] + begin * size, end - begin);
        return;
    }
    for (size_t i = begin; i < end; i += block) {
        size_t n = end - i < block ? end - i : block;

        (type->widen ? reduce_wide_block : reduce_block)(type, kernel, sources, n_sources, i * size, n, acc);
        for (int t = 0; t < n_targets; t++)
            memcpy((uint8_t *)targets[t] + i * size, acc, n * size);
    }
}

/* ---- in steps ---- */

size_t reduce_partial_size(enum crw_dtype dtype)
{
    return reducibles[dtype].acc_size;
}

/* A source's n elements onto the partial sums, or, the first one, in their place. */
static void take_source(const struct reducible *type, const struct kernel *kernel, const uint8_t *source,
                        size_t n, uint8_t *partial, bool first)
{
    _Alignas(64) uint8_t wide[BLOCK_BYTES];

    if (first && type->widen) {
        type->widen(partial, source, n);
    } else if (first) {
        memcpy(partial, source, n * type->size);
    } else if (type->widen) {
        type->widen(wide, source, n);
        kernel->combine(partial, partial, wide, n);
    } else {
        kernel->combine(partial, partial, source, n);
    }
}

static void take_sources(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
                         size_t begin, size_t end, uint8_t *partial, bool first)
{
    const struct reducible *type = &reducibles[dtype];
    size_t block = BLOCK_BYTES / type->acc_size;

    assert(reduce_supports(dtype, op) && begin <= end);
    for (size_t i = begin; i < end; i += block) {
        size_t n = end - i < block ? end - i : block;

        for (int k = 0; k < n_sources; k++)
            take_source(type, &type->kernels[op], (const uint8_t *)sources[k] + i * type->size, n,
                        partial + (i - begin) * type->acc_size, first && k == 0);
    }
}

void reduce_begin(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
                  size_t begin, size_t end, void *partial)
{
    assert(n_sources >= 1);
    take_sources(dtype, op, sources, n_sources, begin, end, partial, true);
}

void reduce_more(enum crw_dtype dtype, enum crw_op op, const void *const *sources, int n_sources,
                 size_t begin, size_t end, void *partial)
{
    take_sources(dtype, op, sources, n_sources, begin, end, partial, false);
}

void reduce_end(enum crw_dtype dtype, enum crw_op op, void *partial, int n_sources, void *const *targets,
                int n_targets, size_t begin, size_t end)
{
    const struct reducible *type = &reducibles[dtype];
    const struct kernel *kernel = &type->kernels[op];
    size_t block = BLOCK_BYTES / type->acc_size;
    _Alignas(64) uint8_t narrowed[BLOCK_BYTES];

    for (size_t i = begin; i < end; i += block) {
        size_t n = end - i < block ? end - i : block;
        uint8_t *acc = (uint8_t *)partial + (i - begin) * type->acc_size;

        if (kernel->finish)
            kernel->finish(acc, n, n_sources);
        if (type->narrow) {
            type->narrow(narrowed, acc, n);
            acc = narrowed;
        }
        for (int t = 0; t < n_targets; t++)
            memcpy((uint8_t *)targets[t] + i * type->size, acc, n * type->size);
    }
}
