#include "tests/unit/worker-runtime/kernel_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_BLOCKS_MAX = 4096, N_RESULTS_MAX = 65536 };

static struct {
    void *blocks[N_BLOCKS_MAX];
    size_t n_blocks;
    uint32_t random;
    uint32_t results[N_RESULTS_MAX]; /* checksums of what the first order gave */
    size_t n_results;
    bool reverse;
    float *workspace; /* made once: filling it costs more than most tests */
} k;

#ifdef KERNEL_ON_GPU
/* On a real device: pinned memory that both sides see, and an order that is not chosen; that the second run has the
 * same bits still shows that it does not matter. */
static void set_order(bool reverse)
{
}

static cudaError_t allocate(void **ret, size_t n_bytes)
{
    cudaError_t r = cudaHostAlloc(ret, n_bytes, cudaHostAllocMapped);
    if (r == cudaSuccess)
        memset(*ret, 0xff, n_bytes);
    return r;
}

static void release(void *memory)
{
    (void)cudaFreeHost(memory); /* a failure is one of a kernel before, which its test has reported */
}
#else
static void set_order(bool reverse)
{
    cuda_host_reverse_order(reverse);
}

static cudaError_t allocate(void **ret, size_t n_bytes)
{
    return cudaMalloc(ret, n_bytes);
}

static void release(void *memory)
{
    (void)cudaFree(memory); /* cannot fail */
}
#endif

static void start(bool reverse)
{
    k.random = 12345;
    k.n_results = 0;
    k.reverse = reverse;
    set_order(reverse);
}

static int free_all(void **state)
{
    for (size_t i = 0; i < k.n_blocks; i++)
        release(k.blocks[i]);
    k.n_blocks = 0;
    return 0;
}

static void run_case(void **state)
{
    const struct kernel_case *test = *state;
    for (int reverse = 0; reverse < 2; reverse++) {
        start(reverse);
        test->body();
        free_all(NULL);
    }
}

int kernel_run(const char *group, const struct kernel_case *cases, size_t n_cases)
{
    struct CMUnitTest *tests = test_calloc(n_cases, sizeof(*tests));
    for (size_t i = 0; i < n_cases; i++) {
        tests[i].name = cases[i].name;
        tests[i].test_func = run_case;
        tests[i].teardown_func = free_all;
        tests[i].initial_state = (void *)(uintptr_t)&cases[i];
    }
    int failed = _cmocka_run_group_tests(group, tests, n_cases, NULL, NULL);
    test_free(tests);
    release(k.workspace);
    return failed;
}

void *kernel_device(size_t n_bytes)
{
    void *memory;
    assert_int_equal(allocate(&memory, n_bytes), cudaSuccess);
    assert_true(k.n_blocks < N_BLOCKS_MAX);
    k.blocks[k.n_blocks++] = memory;
    return memory;
}

float *kernel_device_floats(size_t count)
{
    return kernel_device(count * sizeof(float));
}

/* xorshift */
uint32_t kernel_random_u32(void)
{
    k.random ^= k.random << 13;
    k.random ^= k.random >> 17;
    k.random ^= k.random << 5;
    return k.random;
}

float *kernel_random(size_t count)
{
    float *values = kernel_device_floats(count);
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int j = 0; j < 4; j++)
            sum += (double)kernel_random_u32() / 4294967296.0 - 0.5;
        values[i] = (float)(sum * 1.732);
    }
    return values;
}

float *kernel_absolute(const float *values, size_t count)
{
    float *absolute = kernel_device_floats(count);
    for (size_t i = 0; i < count; i++)
        absolute[i] = fabsf(values[i]);
    return absolute;
}

void *kernel_copy(const void *data, size_t n_bytes)
{
    return memcpy(kernel_device(n_bytes), data, n_bytes);
}

float *kernel_zeros(size_t count)
{
    float *values = kernel_device_floats(count);
    memset(values, 0, count * sizeof(*values));
    return values;
}

struct cuda_queue kernel_queue(enum cuda_precision precision)
{
    if (!k.workspace)
        assert_int_equal(allocate((void **)&k.workspace, CUDA_WORKSPACE_FLOATS * sizeof(float)), cudaSuccess);
    return (struct cuda_queue){.workspace = k.workspace, .precision = precision};
}

void kernel_done(const struct cuda_queue *q, cudaError_t launched)
{
    if (launched != cudaSuccess)
        fail_msg("launch: %s", cudaGetErrorString(launched));
    assert_int_equal(cudaStreamSynchronize(q->stream), cudaSuccess);
}

/* The first order leaves its checksum, the second one must have the same. */
static void check_order(const char *what, const void *data, size_t n_bytes)
{
    uint32_t crc = crw_crc32c(0, data, n_bytes);
    assert_true(k.n_results < N_RESULTS_MAX);
    if (!k.reverse)
        k.results[k.n_results] = crc;
    else if (k.results[k.n_results] != crc)
        fail_msg("%s depends on the order in which blocks and threads run", what);
    k.n_results++;
}

void kernel_check(const char *what, const float *actual, const float *expected, size_t count,
                  double tolerance, const float *scale)
{
    for (size_t i = 0; i < count; i++) {
        double allowed = tolerance * (scale ? (double)scale[i] : 1);
        bool same = isnan(actual[i]) ? isnan(expected[i]) : fabs((double)actual[i] - expected[i]) <= allowed;
        if (!same && actual[i] != expected[i]) /* infinities */
            fail_msg("%s[%zu] of %zu is %.9g; its twin says %.9g, allowed %.3g", what, i, count, actual[i],
                     expected[i], allowed);
    }
    check_order(what, actual, count * sizeof(*actual));
}

void kernel_check_bytes(const char *what, const void *actual, const void *expected, size_t n_bytes)
{
    const uint8_t *a = actual, *e = expected;
    for (size_t i = 0; i < n_bytes; i++)
        if (a[i] != e[i])
            fail_msg("%s differs from its twin in byte %zu of %zu: %02x, not %02x", what, i, n_bytes, a[i],
                     e[i]);
    check_order(what, actual, n_bytes);
}
