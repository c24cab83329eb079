#include "tests/unit/worker-runtime/kernel_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_BLOCKS_MAX = 4096, N_RESULTS_MAX = 65536, N_RECORDS_MAX = 8192, N_PRINTED_MAX = 20 };

/* Memory of a test. Mapped memory has one address for both sides; device memory has another one, and the host a copy. */
struct block {
    unsigned char *host, *device;
    size_t n_bytes;
    bool used; /* by the launch that is being made */
};

/* A result whose bits do not depend on the machine. */
struct record {
    const char *test, *what;
    uint32_t crc;
};

static struct {
    struct block blocks[N_BLOCKS_MAX];
    size_t n_blocks;
    uint32_t random;
    uint32_t results[N_RESULTS_MAX]; /* checksums of what the first order gave */
    size_t n_results;
    bool reverse;
    float *workspace; /* made once: filling it costs more than most tests */
    const struct kernel_case *test;
    struct record records[N_RECORDS_MAX];
    size_t n_records;
} k;

#ifdef KERNEL_ON_GPU
enum { WRITES_CRCS = false };

/* On a real device the order is not chosen; that the second run has the same bits still shows that it does not matter. */
static void set_order(bool reverse)
{
}

static void guard_device_memory(void)
{
}
#else
enum { WRITES_CRCS = true };

static void set_order(bool reverse)
{
    cuda_host_reverse_order(reverse);
}

static void guard_device_memory(void)
{
    cuda_host_guard_memory();
}
#endif

/* ---- memory ---- */

static bool in_device_memory(void)
{
    const char *memory = getenv("KERNEL_MEMORY");
    return memory && strcmp(memory, "device") == 0;
}

/* In the order of the default stream, where the kernels are. */
static void copy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind)
{
    assert_int_equal(cudaMemcpyAsync(to, from, n_bytes, kind, NULL), cudaSuccess);
}

static struct block allocate(size_t n_bytes)
{
    struct block b = {.n_bytes = n_bytes};
    if (in_device_memory()) {
        guard_device_memory();
        assert_int_equal(cudaMalloc((void **)&b.device, n_bytes), cudaSuccess);
        b.host = test_malloc(n_bytes);
    } else {
        assert_int_equal(cudaHostAlloc((void **)&b.host, n_bytes, cudaHostAllocMapped), cudaSuccess);
        b.device = b.host;
    }
    memset(b.host, 0xff, n_bytes);
    return b;
}

/* A failure of CUDA's functions is one of a kernel before, which its test has reported. */
static void release(const struct block *b)
{
    if (b->device == b->host) {
        (void)cudaFreeHost(b->host);
        return;
    }
    (void)cudaFree(b->device);
    test_free(b->host);
}

void *kernel_on_device(const void *memory)
{
    const unsigned char *at = memory;
    for (size_t i = k.n_blocks; memory && i-- > 0;) {
        struct block *b = &k.blocks[i];
        if (at < b->host || at >= b->host + b->n_bytes)
            continue;
        if (b->device != b->host)
            copy(b->device, b->host, b->n_bytes, cudaMemcpyHostToDevice);
        b->used = true;
        return b->device + (at - b->host);
    }
    if (memory)
        fail_msg("a kernel gets memory that is not the device's");
    return NULL;
}

const struct cuda_norm *kernel_norm_on_device(const struct cuda_norm *norm)
{
    static struct cuda_norm on_device;
    on_device = (struct cuda_norm){
        .mean = kernel_on_device(norm->mean),
        .inverse_deviation = kernel_on_device(norm->inverse_deviation),
        .unbiased_variance = kernel_on_device(norm->unbiased_variance),
        .scale = kernel_on_device(norm->scale),
        .shift = kernel_on_device(norm->shift),
        .a = kernel_on_device(norm->a),
        .b = kernel_on_device(norm->b),
        .c = kernel_on_device(norm->c),
    };
    return &on_device;
}

/* Queued behind the kernel. */
static void fetch_used_blocks(void)
{
    bool any = !in_device_memory();
    for (size_t i = 0; i < k.n_blocks; i++) {
        struct block *b = &k.blocks[i];
        if (b->used && b->device != b->host)
            copy(b->host, b->device, b->n_bytes, cudaMemcpyDeviceToHost);
        any = any || b->used;
        b->used = false;
    }
    if (!any)
        fail_msg("a kernel got no memory of the device: kernel_memory.h lacks its function");
}

/* ---- checksums ---- */

static void record(const char *what, uint32_t crc)
{
    assert_true(k.n_records < N_RECORDS_MAX);
    k.records[k.n_records++] = (struct record){.test = k.test->name, .what = what, .crc = crc};
}

static int write_records(const char *group, FILE *file)
{
    (void)fprintf(file, "{\"%s\": [\n", group);
    for (size_t i = 0; i < k.n_records; i++)
        (void)fprintf(file, "{\"case\": \"%s\", \"what\": \"%s\", \"crc\": \"%08x\"}%s\n", k.records[i].test,
                      k.records[i].what, k.records[i].crc, i + 1 < k.n_records ? "," : "");
    (void)fprintf(file, "]}\n");
    const bool failed = ferror(file); /* of any of these */
    (void)printf("{\"crcs_written\": %zu}\n", k.n_records);
    return fclose(file) != 0 || failed;
}

/* Prints a difference between a result and the file's. */
static bool is_as_in(const char *group, size_t number, const char *line, const char *path, size_t n_differ)
{
    const struct record *r = &k.records[number];
    char test[64] = "", what[64] = "";
    unsigned crc = 0;
    const int n =
        sscanf(line, "{\"case\": \"%63[^\"]\", \"what\": \"%63[^\"]\", \"crc\": \"%8x\"}", test, what, &crc);
    const bool same_place = n == 3 && strcmp(test, r->test) == 0 && strcmp(what, r->what) == 0;
    if (same_place && crc == r->crc)
        return true;
    if (n_differ < N_PRINTED_MAX && same_place)
        (void)printf("%s: %s: %s (result %zu): CRC %08x, in %s %08x\n", group, r->test, r->what, number,
                     r->crc, path, crc);
    else if (n_differ < N_PRINTED_MAX)
        (void)printf("%s: %s: %s (result %zu) has another place in %s\n", group, r->test, r->what, number,
                     path);
    return false;
}

static int compare_records(const char *group, const char *path, FILE *file)
{
    char line[256];
    size_t n = 0, n_differ = 0;
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "{\"case\"", 7) != 0)
            continue;
        if (n < k.n_records && !is_as_in(group, n, line, path, n_differ))
            n_differ++;
        n++;
    }
    (void)fclose(file); /* it was read */
    if (n != k.n_records)
        (void)printf("%s: %zu results, and %s has %zu\n", group, k.n_records, path, n);
    (void)printf("{\"crcs_compared\": %zu, \"crcs_differ\": %zu}\n", n, n_differ);
    return n_differ > 0 || n != k.n_records;
}

/* With KERNEL_CRCS: compares with the file, or the emulation writes it. */
static int keep_records(const char *group)
{
    const char *path = getenv("KERNEL_CRCS");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!path)
        return 0;
    if (file)
        return compare_records(group, path, file);
    file = WRITES_CRCS ? fopen(path, "w") : NULL;
    if (file)
        return write_records(group, file);
    perror(path);
    return 1;
}

/* ---- running ---- */

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
        release(&k.blocks[i]);
    k.n_blocks = 0;
    return 0;
}

static void run_case(void **state)
{
    k.test = *state;
    for (int reverse = 0; reverse < (in_device_memory() ? 1 : 2); reverse++) {
        start(reverse);
        k.test->body();
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
    if (k.workspace)
        (void)cudaFree(k.workspace);
    return failed ? failed : keep_records(group);
}

void *kernel_device(size_t n_bytes)
{
    assert_true(k.n_blocks < N_BLOCKS_MAX);
    k.blocks[k.n_blocks] = allocate(n_bytes);
    return k.blocks[k.n_blocks++].host;
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

struct cuda_queue kernel_queue(enum crw_products precision)
{
    const size_t n_bytes = CUDA_WORKSPACE_FLOATS * sizeof(float);
    if (!k.workspace) {
        assert_int_equal(cudaMalloc((void **)&k.workspace, n_bytes), cudaSuccess);
        assert_int_equal(cudaMemsetAsync(k.workspace, 0xff, n_bytes, NULL), cudaSuccess);
    }
    return (struct cuda_queue){.workspace = k.workspace, .precision = precision};
}

void kernel_done(const struct cuda_queue *q, cudaError_t launched)
{
    if (launched != cudaSuccess)
        fail_msg("launch: %s", cudaGetErrorString(launched));
    fetch_used_blocks();
    assert_int_equal(cudaStreamSynchronize(q->stream), cudaSuccess);
}

/* The first order leaves its checksum, the second one must have the same. */
static void check_order(const char *what, uint32_t crc)
{
    assert_true(k.n_results < N_RESULTS_MAX);
    if (!k.reverse)
        k.results[k.n_results] = crc;
    else if (k.results[k.n_results] != crc)
        fail_msg("%s depends on the order in which blocks and threads run", what);
    k.n_results++;
    if (!k.reverse && !k.test->approximate)
        record(what, crc);
}

/* NaN is one value: a GPU's has other bits than a CPU's. */
static uint32_t checksum(const float *values, size_t count)
{
    static const uint32_t nan = 0x7fc00000;
    uint32_t crc = 0;
    for (size_t i = 0; i < count; i++)
        crc = crw_crc32c(crc, isnan(values[i]) ? (const void *)&nan : &values[i], sizeof(nan));
    return crc;
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
    check_order(what, checksum(actual, count));
}

void kernel_check_bytes(const char *what, const void *actual, const void *expected, size_t n_bytes)
{
    const uint8_t *a = actual, *e = expected;
    for (size_t i = 0; i < n_bytes; i++)
        if (a[i] != e[i])
            fail_msg("%s differs from its twin in byte %zu of %zu: %02x, not %02x", what, i, n_bytes, a[i],
                     e[i]);
    check_order(what, crw_crc32c(0, actual, n_bytes));
}
