/*
 * Collectives in shared memory. Ranks are processes, as in life, or threads on one mapping, so that
 * ThreadSanitizer sees all of them; neither needs a store. What the collectives must give is computed here
 * in the plainest way, and compared bit for bit.
 */

#include "worker-runtime/shm/shm_collectives_os.h"
#include "worker-runtime/shm/shm_p2p_os.h"
#include "worker-runtime/shm/reduce_ops.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/clock.h"
#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/sanitized.h"

enum { TIMEOUT_MS = 20000, RANKS_MAX = 8 };

/* In a rank a failed check ends the rank; the test sees it in the exit code. */
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, shm->rank, #condition,          \
                    crw_error_message());                                                                    \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

typedef void (*body_fn)(struct shm *shm);

/* ---- ranks as processes ---- */

static bool pinned; /* each rank to a core of its own */

/* To number `wanted` of the cores that this process may use. */
static void pin_to_core(int wanted)
{
    cpu_set_t all, one;
    int core = -1;

    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof(all), &all) != 0)
        _exit(3);
    for (int i = 0; i <= wanted; i++)
        do
            core++;
        while (core < CPU_SETSIZE && !CPU_ISSET(core, &all));
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0)
        _exit(3);
}

static void run_rank(int fd, int rank, int world_size, int timeout_ms, body_fn body)
{
    struct shm_head *head;
    struct shm own, *shm = &own;

    if (pinned)
        pin_to_core(rank);
    if (shm_map_memory(fd, world_size, &head) != 0 ||
        shm_init(shm, fd, head, true, rank, world_size, timeout_ms) != 0)
        _exit(2);
    body(shm);
    shm_finish(shm);
    _exit(0);
}

static void fork_ranks(int fd, int world_size, int timeout_ms, body_fn body, pid_t *pids)
{
    for (int rank = 0; rank < world_size; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing */
            run_rank(fd, rank, world_size, timeout_ms, body);
        }
    }
}

static int start_ranks(int world_size, int timeout_ms, body_fn body, pid_t *pids)
{
    int fd;

    assert_int_equal(shm_create_memory(world_size, &fd), 0);
    fork_ranks(fd, world_size, timeout_ms, body, pids);
    return fd;
}

static void expect_exit(pid_t pid, int code)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void run_processes(int world_size, body_fn body)
{
    pid_t pids[RANKS_MAX];
    int fd = start_ranks(world_size, TIMEOUT_MS, body, pids);

    for (int rank = 0; rank < world_size; rank++)
        expect_exit(pids[rank], 0);
    close(fd);
}

/* ---- ranks as threads ---- */

struct rank_thread {
    struct shm shm;
    body_fn body;
};

static void *run_rank_thread(void *data)
{
    struct rank_thread *t = data;

    t->body(&t->shm);
    return NULL;
}

static void run_threads(int world_size, body_fn body)
{
    struct rank_thread ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    struct shm_head *head;
    int fd;

    assert_int_equal(shm_create_memory(world_size, &fd), 0);
    assert_int_equal(shm_map_memory(fd, world_size, &head), 0);
    for (int rank = 0; rank < world_size; rank++) {
        assert_int_equal(
            shm_init(&ranks[rank].shm, dup(fd), head, rank == world_size - 1, rank, world_size, TIMEOUT_MS),
            0);
        ranks[rank].body = body;
    }
    for (int rank = 0; rank < world_size; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, run_rank_thread, &ranks[rank]), 0);
    for (int rank = 0; rank < world_size; rank++)
        pthread_join(threads[rank], NULL);
    for (int rank = 0; rank < world_size; rank++)
        shm_finish(&ranks[rank].shm);
    close(fd);
}

/* ThreadSanitizer sees the threads of one process; AddressSanitizer sees as much in processes. Three ranks go the way of more. */
#ifdef __SANITIZE_THREAD__
enum { PROCESSES_MAX = 2 };
#else
enum { PROCESSES_MAX = IS_SANITIZED ? 3 : RANKS_MAX };
#endif

static void run_everywhere(body_fn body)
{
    for (int world_size = 1; world_size <= PROCESSES_MAX; world_size++)
        run_processes(world_size, body);
    if (!IS_SANITIZED)
        run_threads(1, body);
    run_threads(2, body);
    run_threads(5, body);
}

/* ---- all_reduce ---- */

/* Anything, but the same for everybody who asks: values whose sum depends on the order. */
static double value_at(int rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ((double)x - 2147483648.0) * (i % 7 == 0 ? 1e-3 : 1.0);
}

/* The nearer one of the two neighbours; of two that are equally near the even one. */
static uint16_t to_bf16(float x)
{
    uint32_t bits, bits_above;
    float below, above;

    memcpy(&bits, &x, 4);
    bits &= 0xffff0000; /* towards zero */
    bits_above = bits + 0x10000;
    memcpy(&below, &bits, 4);
    memcpy(&above, &bits_above, 4);
    if (fabs((double)x - (double)below) == fabs((double)above - (double)x))
        return (uint16_t)((bits & 0x10000 ? bits_above : bits) >> 16);
    return (
        uint16_t)((fabs((double)x - (double)below) < fabs((double)above - (double)x) ? bits : bits_above) >>
                  16);
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, 4);
    return value;
}

static const enum crw_dtype dtypes[] = {CRW_F32, CRW_F64, CRW_I64, CRW_I32, CRW_BF16};
enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]), ELEMENT_MAX = 8 };

/* Elements from number `first` on. */
static void fill_from(void *data, enum crw_dtype dtype, int rank, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double value = value_at(rank, first + i);

        if (dtype == CRW_F32)
            ((float *)data)[i] = (float)value;
        else if (dtype == CRW_F64)
            ((double *)data)[i] = value;
        else if (dtype == CRW_I64)
            ((int64_t *)data)[i] = (int64_t)value;
        else if (dtype == CRW_I32)
            ((int32_t *)data)[i] = (int32_t)(value / 16);
        else
            ((uint16_t *)data)[i] = to_bf16((float)value);
    }
}

static void fill(void *data, enum crw_dtype dtype, int rank, size_t count)
{
    fill_from(data, dtype, rank, 0, count);
}

/* In type, which values are converted to by `of`. */
#define EXPECT(type, of, check)                                                                              \
    do {                                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                 \
            type expected = of(value_at(0, first + i));                                                      \
            for (int rank = 1; rank < shm->world_size; rank++) {                                             \
                type next = of(value_at(rank, first + i));                                                   \
                if (op != CRW_MAX)                                                                           \
                    expected += next;                                                                        \
                else if (next > expected)                                                                    \
                    expected = next;                                                                         \
            }                                                                                                \
            if (op == CRW_AVG)                                                                               \
                expected /= (type)shm->world_size;                                                           \
            check                                                                                            \
        }                                                                                                    \
    } while (0)
#define SAME(type) CHECK(memcmp((const type *)data + i, &expected, sizeof(expected)) == 0);
#define AS_I32(x) ((int32_t)((x) / 16))
#define AS_BF16(x) from_bf16(to_bf16((float)(x)))

static void expect_from(struct shm *shm, const void *data, enum crw_dtype dtype, enum crw_op op, size_t first,
                        size_t count)
{
    if (dtype == CRW_F32)
        EXPECT(float, (float), SAME(float));
    else if (dtype == CRW_F64)
        EXPECT(double, (double), SAME(double));
    else if (dtype == CRW_I64)
        EXPECT(int64_t, (int64_t), SAME(int64_t));
    else if (dtype == CRW_I32)
        EXPECT(int32_t, AS_I32, SAME(int32_t));
    else
        EXPECT(float, AS_BF16, CHECK(((const uint16_t *)data)[i] == to_bf16(expected)););
}

static void expect(struct shm *shm, const void *data, enum crw_dtype dtype, enum crw_op op, size_t count)
{
    expect_from(shm, data, dtype, op, 0, count);
}

static const size_t counts[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 100, 511, 1024, 4097, 32767, 32769, 70001};

static void all_reduce_anywhere(struct shm *shm)
{
    size_t capacity = counts[sizeof(counts) / sizeof(counts[0]) - 1];
    void *data = malloc(capacity * 8);

    CHECK(data);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (int d = 0; d < N_DTYPES; d++) {
            for (int op = 0; op < CRW_OP_COUNT; op++) {
                if (IS_SANITIZED && counts[c] > 1024 && op != (int)(c + (size_t)d) % CRW_OP_COUNT)
                    continue; /* the operations are the same for few elements */
                fill(data, dtypes[d], shm->rank, counts[c]);
                CHECK(shm_all_reduce(shm, data, counts[c], dtypes[d], (enum crw_op)op) == 0);
                expect(shm, data, dtypes[d], (enum crw_op)op, counts[c]);
            }
        }
    }
    free(data);
}

static void all_reduce_in_an_arena(struct shm *shm)
{
    size_t capacity = counts[sizeof(counts) / sizeof(counts[0]) - 1] + 3;
    float *data, *second;

    CHECK(shm_alloc(shm, capacity * 4, (void **)&data) == 0);
    CHECK(shm_alloc(shm, 12345, (void **)&second) == 0);
    CHECK((uintptr_t)data % 64 == 0 && (uintptr_t)second % 64 == 0);
    for (size_t i = 0; i < capacity; i++)
        CHECK(data[i] == 0);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        size_t offset = c % 4; /* not aligned, and another place each time */

        fill(data + offset, CRW_F32, shm->rank, counts[c]);
        CHECK(shm_all_reduce(shm, data + offset, counts[c], CRW_F32, CRW_SUM) == 0);
        expect(shm, data + offset, CRW_F32, CRW_SUM, counts[c]);
    }
    fill(second, CRW_F32, shm->rank, 3000);
    CHECK(shm_all_reduce(shm, second, 3000, CRW_F32, CRW_AVG) == 0);
    expect(shm, second, CRW_F32, CRW_AVG, 3000);
}

/* Odd ranks use their arena, even ones do not, and nobody the same place. */
static void all_reduce_in_mixed_places(struct shm *shm)
{
    enum { COUNT = 70001 };
    float *arena, *heap = malloc(COUNT * sizeof(*heap)), *data;

    CHECK(shm_alloc(shm, (COUNT + 64) * sizeof(*arena), (void **)&arena) == 0);
    data = shm->rank % 2 ? arena + shm->rank : heap;
    for (int round = 0; round < 3; round++) {
        fill(data, CRW_F32, shm->rank, COUNT);
        CHECK(shm_all_reduce(shm, data, COUNT, CRW_F32, CRW_SUM) == 0);
        expect(shm, data, CRW_F32, CRW_SUM, COUNT);
    }
    free(heap);
}

/* The result is root's; the others keep what they had. */
static void reduce_to_a_root(struct shm *shm)
{
    enum { COUNT = 70001 };
    uint8_t *data[2] = {malloc(COUNT * ELEMENT_MAX)}, *before = malloc(COUNT * ELEMENT_MAX);
    int turn = 0;

    CHECK(data[0] && before && shm_alloc(shm, COUNT * ELEMENT_MAX, (void **)&data[1]) == 0);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (int d = 0; d < N_DTYPES; d++) {
            enum crw_op op = (enum crw_op)(turn % CRW_OP_COUNT);
            void *mine = data[(turn + shm->rank * (turn % 3 == 0)) % 2]; /* all here, all there, or mixed */
            int root = turn++ % shm->world_size;
            size_t n_bytes = counts[c] * reduce_element_size(dtypes[d]);

            fill(mine, dtypes[d], shm->rank, counts[c]);
            memcpy(before, mine, n_bytes);
            CHECK(shm_reduce(shm, mine, counts[c], dtypes[d], op, root) == 0);
            if (shm->rank == root)
                expect(shm, mine, dtypes[d], op, counts[c]);
            else
                CHECK(memcmp(mine, before, n_bytes) == 0);
        }
    }
    free(data[0]);
    free(before);
}

/* Into another array, and to where the part was. */
static void reduce_and_scatter(struct shm *shm)
{
    enum { COUNT = 40001 };
    size_t world_size = (size_t)shm->world_size, rank = (size_t)shm->rank;
    uint8_t *data[2] = {malloc(world_size * COUNT * ELEMENT_MAX)}, *apart = malloc(COUNT * ELEMENT_MAX);
    int turn = 0;

    CHECK(data[0] && apart && shm_alloc(shm, world_size * COUNT * ELEMENT_MAX, (void **)&data[1]) == 0);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && counts[c] <= COUNT; c++) {
        for (int d = 0; d < N_DTYPES; d++) {
            enum crw_op op = (enum crw_op)(turn % CRW_OP_COUNT);
            uint8_t *mine = data[(turn + shm->rank * (turn % 3 == 0)) % 2];
            size_t first = rank * counts[c];
            uint8_t *result = turn++ % 2 ? apart : mine + first * reduce_element_size(dtypes[d]);

            fill(mine, dtypes[d], shm->rank, world_size * counts[c]);
            CHECK(shm_reduce_scatter(shm, mine, result, counts[c], dtypes[d], op) == 0);
            expect_from(shm, result, dtypes[d], op, first, counts[c]);
        }
    }
    free(data[0]);
    free(apart);
}

static void reduce_gives_what_it_must(void **state)
{
    run_everywhere(reduce_to_a_root);
}

static void reduce_scatter_gives_what_it_must(void **state)
{
    run_everywhere(reduce_and_scatter);
}

static void all_reduce_gives_what_it_must(void **state)
{
    run_everywhere(all_reduce_anywhere);
}

static void all_reduce_works_in_arenas(void **state)
{
    run_everywhere(all_reduce_in_an_arena);
}

static void all_reduce_works_in_mixed_places(void **state)
{
    run_everywhere(all_reduce_in_mixed_places);
}

static void lets_nan_win(void **state)
{
    const float a[] = {1, NAN, 1, INFINITY}, b[] = {NAN, 1, -INFINITY, 2}, c[] = {3, 3, 3, 3};
    const void *sources[] = {a, b, c};
    float out[4];
    void *target = out;

    reduce(CRW_F32, CRW_MAX, sources, 3, &target, 1, 0, 4);
    assert_true(isnan(out[0]) && isnan(out[1]));
    assert_true(out[2] == 3 && out[3] == INFINITY);
    reduce(CRW_F32, CRW_SUM, sources, 3, &target, 1, 2, 3);
    assert_true(out[2] == -INFINITY && out[3] == INFINITY);
}

/* Large arrays of two ranks are reduced at several places at once: the same bits as element by element. */
static void large_pairs_are_reduced_as_single_elements(void **state)
{
    enum { N = 150001, BEGIN = 3, N_BYTES = N * 8 };
    uint8_t *a = malloc(N_BYTES), *b = malloc(N_BYTES), *expected = malloc(N_BYTES);

    assert_true(a && b && expected);
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        size_t size = reduce_element_size(dtypes[d]);

        for (int op = 0; op < CRW_OP_COUNT; op++) {
            void *both[] = {a, b}, *target = expected;

            if (!reduce_supports(dtypes[d], op))
                continue;
            fill(a, dtypes[d], 0, N);
            fill(b, dtypes[d], 1, N);
            reduce(dtypes[d], op, (const void *const *)both, 2, &target, 1, BEGIN, N);
            reduce(dtypes[d], op, (const void *const *)both, 2, both, 2, BEGIN, N);
            assert_memory_equal(a + BEGIN * size, expected + BEGIN * size, (N - BEGIN) * size);
            assert_memory_equal(b + BEGIN * size, expected + BEGIN * size, (N - BEGIN) * size);
            fill(expected, dtypes[d], 0, N);
            assert_memory_equal(a, expected, BEGIN * size);
        }
    }
    free(a);
    free(b);
    free(expected);
}

static void wraps_integers(void **state)
{
    const int64_t a[] = {INT64_MAX, -7, INT64_MIN}, b[] = {1, 0, INT64_MAX};
    const void *sources[] = {a, b};
    int64_t out[3];
    void *target = out;

    reduce(CRW_I64, CRW_SUM, sources, 2, &target, 1, 0, 3);
    assert_true(out[0] == INT64_MIN && out[1] == -7 && out[2] == -1);
    reduce(CRW_I64, CRW_AVG, sources, 2, &target, 1, 1, 2);
    assert_true(out[1] == -3);
    reduce(CRW_I64, CRW_MAX, sources, 2, &target, 1, 0, 3);
    assert_true(out[0] == INT64_MAX && out[1] == 0 && out[2] == INT64_MAX);
    assert_false(reduce_supports(CRW_F16, CRW_SUM));
    assert_false(reduce_supports(CRW_F32, CRW_OP_COUNT));
}

static void rounds_bf16_once(void **state)
{
    /* 256 + 1 + 1: rounded after each addition it would stay 256. NaN stays one, and large sums are infinite. */
    const uint16_t a[] = {0x4380, 0x7fff, 0x7f7f, 0xff80}, b[] = {0x3f80, 0x0000, 0x7f7f, 0x3f80};
    const uint16_t c[] = {0x3f80, 0x0000, 0x0000, 0x0000};
    const void *sources[] = {a, b, c};
    uint16_t out[4];
    void *target = out;

    reduce(CRW_BF16, CRW_SUM, sources, 3, &target, 1, 0, 4);
    assert_int_equal(out[0], to_bf16(258));
    assert_true(isnan(from_bf16(out[1])));
    assert_true(out[2] == 0x7f80 && out[3] == 0xff80);
    reduce(CRW_BF16, CRW_MAX, sources, 3, &target, 1, 0, 1);
    assert_int_equal(out[0], 0x4380);
}

/* ---- the others ---- */

static uint8_t byte_at(int rank, size_t i, int round)
{
    return (uint8_t)(i * 31 + (size_t)rank * 7 + (size_t)round);
}

static const size_t sizes[] = {0, 1, 100, SHM_BOUNCE - 1, SHM_BOUNCE, SHM_BOUNCE + 1, 3 * SHM_BOUNCE + 17};

static void broadcast_bytes(struct shm *shm)
{
    enum { SIZE_MAX_HERE = 3 * SHM_BOUNCE + 17 };
    uint8_t *arena, *heap = malloc(SIZE_MAX_HERE);

    CHECK(shm_alloc(shm, SIZE_MAX_HERE, (void **)&arena) == 0);
    for (int round = 0; round < 2 * 7; round++) {
        size_t n = sizes[round % 7];
        int root = round % shm->world_size;
        uint8_t *data = round < 7 ? heap : arena;

        for (size_t i = 0; i < n; i++)
            data[i] = byte_at(shm->rank, i, round);
        CHECK(shm_broadcast(shm, data, n, root) == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(data[i] == byte_at(root, i, round));
    }
    free(heap);
}

static void gather_bytes(struct shm *shm)
{
    enum { SIZE_MAX_HERE = 3 * SHM_BOUNCE + 17 };
    uint8_t *data = malloc(SIZE_MAX_HERE), *all = malloc((size_t)SIZE_MAX_HERE * (size_t)shm->world_size);

    CHECK(data && all);
    for (int round = 0; round < 7; round++) {
        size_t n = sizes[round];

        for (size_t i = 0; i < n; i++)
            data[i] = byte_at(shm->rank, i, round);
        CHECK(shm_all_gather(shm, data, n, all) == 0);
        for (int rank = 0; rank < shm->world_size; rank++)
            for (size_t i = 0; i < n; i++)
                CHECK(all[(size_t)rank * n + i] == byte_at(rank, i, round));
    }
    free(data);
    free(all);
}

enum { SIZE_LARGEST = 3 * SHM_BOUNCE + 17 };

/* A rank's part; may lie in an arena or not, and every rank decides for itself. */
static uint8_t *place_for(struct shm *shm, uint8_t *const places[2], int round)
{
    return places[(round / 7 + shm->rank * (round / 14)) % 2];
}

static void gather_to_a_root(struct shm *shm)
{
    uint8_t *places[2] = {malloc(SIZE_LARGEST)},
            *all = malloc((size_t)SIZE_LARGEST * (size_t)shm->world_size);

    CHECK(places[0] && all && shm_alloc(shm, SIZE_LARGEST, (void **)&places[1]) == 0);
    for (int round = 0; round < 21; round++) {
        size_t n = sizes[round % 7];
        int root = round % shm->world_size;
        uint8_t *data = place_for(shm, places, round);

        for (size_t i = 0; i < n; i++)
            data[i] = byte_at(shm->rank, i, round);
        CHECK(shm_gather(shm, data, n, shm->rank == root ? all : NULL, root) == 0);
        for (int rank = 0; shm->rank == root && rank < shm->world_size; rank++)
            for (size_t i = 0; i < n; i++)
                CHECK(all[(size_t)rank * n + i] == byte_at(rank, i, round));
    }
    free(places[0]);
    free(all);
}

static void scatter_from_a_root(struct shm *shm)
{
    size_t capacity = (size_t)SIZE_LARGEST * (size_t)shm->world_size;
    uint8_t *places[2] = {malloc(capacity)}, *data = malloc(SIZE_LARGEST);

    CHECK(places[0] && data && shm_alloc(shm, capacity, (void **)&places[1]) == 0);
    for (int round = 0; round < 21; round++) {
        size_t n = sizes[round % 7];
        int root = round % shm->world_size;
        uint8_t *all = place_for(shm, places, round);

        for (int rank = 0; shm->rank == root && rank < shm->world_size; rank++)
            for (size_t i = 0; i < n; i++)
                all[(size_t)rank * n + i] = byte_at(rank, i, round + root);
        CHECK(shm_scatter(shm, shm->rank == root ? all : NULL, n, data, root) == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(data[i] == byte_at(shm->rank, i, round + root));
    }
    free(places[0]);
    free(data);
}

/* Everybody's part from where it is, to where it is. */
static void gather_in_place(struct shm *shm)
{
    uint8_t *places[2] = {malloc((size_t)SIZE_LARGEST * (size_t)shm->world_size)};

    CHECK(places[0] &&
          shm_alloc(shm, (size_t)SIZE_LARGEST * (size_t)shm->world_size, (void **)&places[1]) == 0);
    for (int round = 0; round < 21; round++) {
        size_t n = sizes[round % 7];
        uint8_t *all = place_for(shm, places, round), *own = all + n * (size_t)shm->rank;

        for (size_t i = 0; i < n; i++)
            own[i] = byte_at(shm->rank, i, round);
        CHECK(shm_all_gather(shm, own, n, all) == 0);
        for (int rank = 0; rank < shm->world_size; rank++)
            for (size_t i = 0; i < n; i++)
                CHECK(all[(size_t)rank * n + i] == byte_at(rank, i, round));
    }
    free(places[0]);
}

/* Reductions leave results in the bounce buffers for a while; whoever comes next must not write there. */
static void mix_everything(struct shm *shm)
{
    enum { COUNT = 5000 };
    int32_t data[COUNT], part[COUNT], *all = malloc(sizeof(data) * (size_t)shm->world_size);

    CHECK(all);
    for (int round = 0; round < 60; round++) {
        int root = round % shm->world_size;

        for (int i = 0; i < COUNT; i++)
            data[i] = i + round;
        CHECK(shm_all_reduce(shm, data, COUNT, CRW_I32, CRW_MAX) == 0);
        for (int i = 0; i < COUNT * shm->world_size; i++)
            all[i] = i - round;
        CHECK(shm_scatter(shm, all, sizeof(part), part, root) == 0);
        CHECK(shm_reduce(shm, part, COUNT, CRW_I32, CRW_SUM, root) == 0);
        CHECK(shm_gather(shm, data, sizeof(data), all, root) == 0);
        for (int i = 0; i < COUNT; i++) {
            CHECK(data[i] == i + round);
            CHECK(shm->rank != root || all[i + COUNT * (shm->world_size - 1)] == i + round);
            CHECK(part[i] == (shm->rank == root ? shm->world_size * (i - round) +
                                                      COUNT * shm->world_size * (shm->world_size - 1) / 2
                                                : i + COUNT * shm->rank - round));
        }
        CHECK(shm_broadcast(shm, data, sizeof(data), root) == 0);
        CHECK(shm_all_gather(shm, data, sizeof(data), all) == 0);
    }
    free(all);
}

static void gather_gives_what_it_must(void **state)
{
    run_everywhere(gather_to_a_root);
}

static void scatter_gives_what_it_must(void **state)
{
    run_everywhere(scatter_from_a_root);
}

static void all_gather_works_in_place(void **state)
{
    run_everywhere(gather_in_place);
}

static void collectives_do_not_disturb_each_other(void **state)
{
    run_everywhere(mix_everything);
}

/* ---- messages ---- */

static const size_t message_sizes[] = {0, 1, 7, 8, 4096, 32 * 1024, 100 * 1024, 512 * 1024, 1100001};
enum { N_MESSAGES = sizeof(message_sizes) / sizeof(message_sizes[0]), MESSAGE_MAX = 1100001 };

static void send_round(struct shm_p2p *p, uint8_t *data, int to)
{
    struct shm *shm = p->shm;

    for (int m = 0; m < N_MESSAGES; m++) {
        for (size_t i = 0; i < message_sizes[m]; i++)
            data[i] = byte_at(shm->rank, i, m);
        CHECK(shm_p2p_send(p, data, message_sizes[m], to) == 0);
    }
}

static void receive_round(struct shm_p2p *p, uint8_t *data, int from)
{
    struct shm *shm = p->shm;

    for (int m = 0; m < N_MESSAGES; m++) {
        CHECK(shm_p2p_receive(p, data, message_sizes[m], from) == 0);
        for (size_t i = 0; i < message_sizes[m]; i++)
            CHECK(data[i] == byte_at(from, i, m));
    }
}

/* From each to each; the smaller number sends first, so that long messages find their receiver. */
static void exchange_messages(struct shm *shm)
{
    uint8_t *data = malloc(MESSAGE_MAX);
    struct shm_p2p p;

    CHECK(data && shm_p2p_init(&p, shm) == 0);
    for (int a = 0; a < shm->world_size; a++) {
        for (int b = a + 1; b < shm->world_size; b++) {
            if (shm->rank == a) {
                send_round(&p, data, b);
                receive_round(&p, data, b);
            } else if (shm->rank == b) {
                receive_round(&p, data, a);
                send_round(&p, data, a);
            }
        }
    }
    CHECK(shm_barrier(shm) == 0);
    shm_p2p_finish(&p);
    free(data);
}

static void messages_arrive(void **state)
{
    run_everywhere(exchange_messages);
}

static void expect_other_sizes(struct shm *shm)
{
    uint8_t data[1000] = {1, 2, 3};
    struct shm_p2p p;

    CHECK(shm_p2p_init(&p, shm) == 0);
    if (shm->rank == 0) {
        CHECK(shm_p2p_send(&p, data, 1000, 1) == 0);
        CHECK(shm_p2p_send(&p, data, 3, 1) == 0);
        CHECK(shm_p2p_send(&p, data, 2, 1) == 0);
    } else {
        CHECK(shm_p2p_receive(&p, data, 10, 0) == CRW_E_ARGUMENT);
        CHECK(strstr(crw_error_message(), "1000 bytes") && strstr(crw_error_message(), "expected 10"));
        CHECK(shm_p2p_receive(&p, data, 4, 0) == CRW_E_ARGUMENT);
        CHECK(shm_p2p_receive(&p, data + 500, 2, 0) == 0);
        CHECK(data[500] == 1 && data[501] == 2);
    }
    shm_p2p_finish(&p);
}

static void messages_of_other_sizes_are_dropped(void **state)
{
    run_processes(2, expect_other_sizes);
}

/* What was said before leaving is heard. */
static void send_and_leave(struct shm *shm)
{
    uint64_t data = 7;
    struct shm_p2p p;

    CHECK(shm_p2p_init(&p, shm) == 0);
    if (shm->rank == 0) {
        for (int i = 0; i < 3; i++)
            CHECK(shm_p2p_send(&p, &data, sizeof(data), 1) == 0);
    } else {
        usleep(20000);
        for (int i = 0; i < 3; i++)
            CHECK(shm_p2p_receive(&p, &data, sizeof(data), 0) == 0 && data == 7);
        CHECK(shm_p2p_receive(&p, &data, sizeof(data), 0) == CRW_E_PEER);
        CHECK(strstr(crw_error_message(), "rank 0 left the group"));
        CHECK(shm_p2p_send(&p, &data, sizeof(data), 0) == CRW_E_PEER);
    }
    shm_p2p_finish(&p);
}

static void messages_outlive_their_sender(void **state)
{
    run_processes(2, send_and_leave);
}

/* Two places, so that nobody can be told from the round after. */
static void meet_often(struct shm *shm)
{
    for (int round = 0; round < 2000; round++) {
        int64_t sum = shm->rank + round;

        CHECK(shm_barrier(shm) == 0);
        CHECK(shm_all_reduce(shm, &sum, 1, CRW_I64, CRW_SUM) == 0);
        CHECK(sum == (int64_t)shm->world_size * (shm->world_size - 1) / 2 + (int64_t)round * shm->world_size);
    }
}

static void broadcast_gives_what_it_must(void **state)
{
    run_everywhere(broadcast_bytes);
}

static void all_gather_gives_what_it_must(void **state)
{
    run_everywhere(gather_bytes);
}

static void ranks_stay_together(void **state)
{
    run_everywhere(meet_often);
}

enum { ALMOST_WRAPPED = -10 };

static void go_on_almost_wrapped(struct shm *shm)
{
    shm->arrived = (uint32_t)ALMOST_WRAPPED;
    meet_often(shm);
}

/* The counter of phases wraps after two thousand million of them: begin just before. */
static void phases_wrap_around(void **state)
{
    enum { WORLD_SIZE = 3 };
    pid_t pids[WORLD_SIZE];
    struct shm_head *head;
    struct shm shm;
    int fd;

    assert_int_equal(shm_create_memory(WORLD_SIZE, &fd), 0);
    assert_int_equal(shm_map_memory(fd, WORLD_SIZE, &head), 0);
    assert_int_equal(shm_init(&shm, dup(fd), head, true, 0, WORLD_SIZE, TIMEOUT_MS), 0);
    for (int rank = 0; rank < WORLD_SIZE; rank++)
        atomic_store(&shm.lines[rank].arrived, (uint32_t)ALMOST_WRAPPED);
    fork_ranks(fd, WORLD_SIZE, TIMEOUT_MS, go_on_almost_wrapped, pids);
    for (int rank = 0; rank < WORLD_SIZE; rank++)
        expect_exit(pids[rank], 0);
    shm_finish(&shm);
    close(fd);
}

static void call_different_things(struct shm *shm)
{
    float data[100] = {0};
    int64_t sum = 1;

    if (shm->rank == 0)
        CHECK(shm_barrier(shm) == CRW_E_ARGUMENT);
    else
        CHECK(shm_all_reduce(shm, data, 100, CRW_F32, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(shm_all_reduce(shm, data, shm->rank ? 100 : 99, CRW_F32, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(shm_all_reduce(shm, data, 10, shm->rank ? CRW_F32 : CRW_I64, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(shm_broadcast(shm, data, 10, shm->rank ? 1 : 0) == CRW_E_ARGUMENT);
    CHECK(shm_reduce(shm, data, 100, CRW_F32, shm->rank ? CRW_SUM : CRW_AVG, 0) == CRW_E_ARGUMENT);
    CHECK(shm_reduce(shm, data, 100, CRW_F32, CRW_SUM, shm->rank ? 1 : 0) == CRW_E_ARGUMENT);
    CHECK(shm_reduce_scatter(shm, data, data, 1, shm->rank ? CRW_I32 : CRW_F32, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(shm_gather(shm, data, 4, data, shm->rank ? 1 : 0) == CRW_E_ARGUMENT);
    CHECK(shm_scatter(shm, data, shm->rank ? 4 : 8, data, 0) == CRW_E_ARGUMENT);
    CHECK(strstr(crw_error_message(), "same order"));
    CHECK(shm_all_reduce(shm, &sum, 1, CRW_I64, CRW_SUM) == 0);
    CHECK(sum == shm->world_size);
}

static void different_calls_are_refused_everywhere(void **state)
{
    run_processes(2, call_different_things);
    run_processes(3, call_different_things);
}

static void allocate_too_much(struct shm *shm)
{
    void *data = NULL;

    CHECK(shm_alloc(shm, SIZE_MAX / 2, &data) == CRW_E_ARGUMENT);
    CHECK(!data);
    CHECK(shm_alloc(shm, 1000, &data) == 0);
    memset(data, 1, 1000);
    CHECK(shm_barrier(shm) == 0);
}

static void impossible_sizes_are_refused(void **state)
{
    run_processes(2, allocate_too_much);
}

static void memory_for_another_world_is_refused(void **state)
{
    struct shm_head *head;
    int fd;

    assert_int_equal(shm_create_memory(2, &fd), 0);
    assert_int_equal(shm_map_memory(fd, 3, &head), CRW_E_STORE);
    assert_int_equal(shm_map_memory(fd, 1, &head), CRW_E_STORE);
    close(fd);
}

/* ---- where memory comes from ---- */

static uint64_t allocated_bytes(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

static void allocate_with_a_limit_on_rank_1(struct shm *shm)
{
    const struct rlimit limit = {8 << 20, 8 << 20};
    uint64_t before;
    void *data;

    CHECK(shm_barrier(shm) == 0);
    before = allocated_bytes(shm->fd);
    CHECK(shm_barrier(shm) == 0);
    if (shm->rank == 1)
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(shm_alloc(shm, 16 << 20, &data) == -EFBIG);
    CHECK(strstr(crw_error_message(), "shared memory for 2 ranks"));
    CHECK(shm_barrier(shm) == 0);
    CHECK(allocated_bytes(shm->fd) == before); /* nothing is kept of what could not be had whole */
    CHECK(shm_barrier(shm) == 0);
    CHECK(shm_alloc(shm, 1 << 20, &data) == 0);
    memset(data, 1, 1 << 20);
    CHECK(shm_barrier(shm) == 0);
}

/* So it lies on the NUMA node of the rank that writes it. */
static void each_rank_allocates_its_own_part(void **state)
{
    enum { HEAD = 64 * 1024, BOUNCES = 2 * SHM_BOUNCE };
    struct shm_head *head;
    struct shm ranks[3];
    int fd;

    assert_int_equal(shm_create_memory(3, &fd), 0);
    assert_true(allocated_bytes(fd) < HEAD);
    assert_int_equal(shm_map_memory(fd, 3, &head), 0);
    assert_true(allocated_bytes(fd) < HEAD);
    for (int rank = 2; rank >= 0; rank--) {
        uint64_t before = allocated_bytes(fd);

        assert_int_equal(shm_init(&ranks[rank], dup(fd), head, rank == 0, rank, 3, TIMEOUT_MS), 0);
        assert_int_equal(allocated_bytes(fd) - before, BOUNCES);
    }
    for (int rank = 2; rank >= 0; rank--)
        shm_finish(&ranks[rank]);
    close(fd);
    run_processes(2, allocate_with_a_limit_on_rank_1);
}

/* ---- failures ---- */

static int ready_pipe[2];

static void say_ready(struct shm *shm)
{
    char c = 'r';

    CHECK(write(ready_pipe[1], &c, 1) == 1);
}

/* Rank 0 never comes; the others are asleep by then or still looking, as the moment has it. */
static void wait_for_rank_0(struct shm *shm)
{
    float data[5000] = {0};

    say_ready(shm);
    if (shm->rank == 0)
        pause();
    CHECK(shm_all_reduce(shm, data, 5000, CRW_F32, CRW_SUM) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank 0 was killed by signal 9"));
    CHECK(shm_barrier(shm) == CRW_E_PEER);
    _exit(7);
}

/* Kills rank 0 and says so, as the watch does in life; how long it took until the others were free. */
static double kill_rank_0(int world_size, bool asleep)
{
    struct shm_head *head;
    pid_t pids[RANKS_MAX];
    struct shm watcher;
    double killed_ms, freed_ms;
    char c;
    int fd;

    assert_int_equal(pipe(ready_pipe), 0);
    fd = start_ranks(world_size, TIMEOUT_MS, wait_for_rank_0, pids);
    for (int i = 0; i < world_size; i++)
        assert_int_equal(read(ready_pipe[0], &c, 1), 1);
    if (asleep)
        usleep(20000);
    kill(pids[0], SIGKILL);
    assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
    killed_ms = now_ms();
    assert_int_equal(shm_map_memory(fd, world_size, &head), 0);
    assert_int_equal(shm_init(&watcher, fd, head, true, 0, world_size, TIMEOUT_MS), 0);
    shm_fail(&watcher, (struct shm_failure){.kind = SHM_FAILURE_DIED, .rank = 0, .detail = -9});
    for (int rank = 1; rank < world_size; rank++)
        expect_exit(pids[rank], 7);
    freed_ms = now_ms() - killed_ms;
    shm_finish(&watcher);
    close(ready_pipe[0]);
    close(ready_pipe[1]);
    return freed_ms;
}

/* One fast round shows that nobody waits for a time-out; each round may meet a busy machine. */
static void a_dead_rank_frees_the_others(void **state)
{
    double fastest_ms = TIMEOUT_MS;

    for (int round = 0; round < 8; round++) {
        double ms = kill_rank_0(2 + round % 4, round >= 4);

        assert_true(ms < TIMEOUT_MS / 2);
        if (ms < fastest_ms)
            fastest_ms = ms;
    }
    assert_true(fastest_ms < 1000);
}

static void leave_early(struct shm *shm)
{
    CHECK(shm_barrier(shm) == 0);
    if (shm->rank == 1)
        return;
    CHECK(shm_barrier(shm) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank 1 left the group"));
}

static void a_rank_that_leaves_frees_the_others(void **state)
{
    run_processes(2, leave_early);
    run_processes(4, leave_early);
}

/* Others may still be reading what a rank said in the phase before the one that failed. */
static void who_has_failed_writes_no_more(void **state)
{
    static uint8_t before[2][SHM_BOUNCE], data[70000], all[2 * sizeof(data)];
    struct shm_slot slots[2];
    struct shm_head *head;
    struct shm shm, gone;
    int fd;

    assert_int_equal(shm_create_memory(2, &fd), 0);
    assert_int_equal(shm_map_memory(fd, 2, &head), 0);
    assert_int_equal(shm_init(&gone, dup(fd), head, false, 1, 2, TIMEOUT_MS), 0);
    assert_int_equal(shm_init(&shm, fd, head, true, 0, 2, TIMEOUT_MS), 0);
    shm_finish(&gone);
    memset(data, 1, sizeof(data));
    assert_int_equal(shm_all_gather(&shm, data, sizeof(data), all), CRW_E_PEER);
    for (int i = 0; i < 2; i++)
        memcpy(before[i], shm_bounce(&shm, 0, i), SHM_BOUNCE);
    memcpy(slots, shm.lines[0].slots, sizeof(slots));
    memset(data, 2, sizeof(data));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shm_all_gather(&shm, data, sizeof(data), all), CRW_E_PEER);
        assert_int_equal(shm_gather(&shm, data, sizeof(data), all, 0), CRW_E_PEER);
        assert_int_equal(shm_broadcast(&shm, data, sizeof(data), 0), CRW_E_PEER);
        assert_int_equal(shm_scatter(&shm, all, sizeof(data), data, 0), CRW_E_PEER);
        assert_int_equal(shm_all_reduce(&shm, data, 10, CRW_F32, CRW_SUM), CRW_E_PEER);
        assert_int_equal(shm_all_reduce(&shm, data, 10000, CRW_F32, CRW_SUM), CRW_E_PEER);
        assert_int_equal(shm_reduce(&shm, data, 10000, CRW_F32, CRW_SUM, 1), CRW_E_PEER);
        assert_int_equal(shm_reduce_scatter(&shm, data, all, 5000, CRW_F32, CRW_SUM), CRW_E_PEER);
        assert_int_equal(shm_barrier(&shm), CRW_E_PEER);
        assert_non_null(strstr(crw_error_message(), "rank 1 left the group"));
    }
    for (int i = 0; i < 2; i++)
        assert_memory_equal(before[i], shm_bounce(&shm, 0, i), SHM_BOUNCE);
    assert_memory_equal(slots, shm.lines[0].slots, sizeof(slots));
    shm_finish(&shm);
}

static void wait_in_vain(struct shm *shm)
{
    int r;

    if (shm->rank == 0) {
        char c;

        CHECK(read(ready_pipe[0], &c, 1) == 1); /* the others have given up */
        CHECK(shm_barrier(shm) == CRW_E_PEER);
        CHECK(strstr(crw_error_message(), "waited too long"));
        return;
    }
    r = shm_barrier(shm);
    CHECK(r == CRW_E_TIMEOUT || r == CRW_E_PEER);
}

static void a_deadline_ends_the_group(void **state)
{
    pid_t pids[RANKS_MAX];
    int fd;

    assert_int_equal(pipe(ready_pipe), 0);
    fd = start_ranks(3, 100, wait_in_vain, pids);
    expect_exit(pids[1], 0);
    expect_exit(pids[2], 0);
    assert_int_equal(write(ready_pipe[1], "g", 1), 1);
    expect_exit(pids[0], 0);
    close(ready_pipe[0]);
    close(ready_pipe[1]);
    close(fd);
}

/* Signals that somebody handles end no wait. */
static void ignore_signal(int signal_number)
{
}

static void wait_under_signals(struct shm *shm)
{
    signal(SIGUSR1, ignore_signal);
    say_ready(shm);
    if (shm->rank == 0)
        usleep(150000);
    CHECK(shm_barrier(shm) == 0);
}

static void signals_end_no_wait(void **state)
{
    pid_t pids[RANKS_MAX];
    int fd;

    assert_int_equal(pipe(ready_pipe), 0);
    fd = start_ranks(2, TIMEOUT_MS, wait_under_signals, pids);
    for (int i = 0; i < 2; i++) {
        char c;

        assert_int_equal(read(ready_pipe[0], &c, 1), 1);
    }
    for (int i = 0; i < 20; i++) {
        kill(pids[1], SIGUSR1);
        usleep(2000);
    }
    expect_exit(pids[0], 0);
    expect_exit(pids[1], 0);
    close(ready_pipe[0]);
    close(ready_pipe[1]);
    close(fd);
}

static void failures_are_packed_whole(void **state)
{
    static const struct {
        struct shm_failure failure;
        const char *words;
    } cases[] = {
        {{SHM_FAILURE_DIED, 4095, -15}, "rank 4095 was killed by signal 15"},
        {{SHM_FAILURE_DIED, 0, 255}, "rank 0 exited with code 255"},
        {{SHM_FAILURE_DIED, 3, 0}, "rank 3 ended"},
        {{SHM_FAILURE_DIED, -1, 5}, "a peer failed"},
        {{SHM_FAILURE_TIMEOUT, 2, 0}, "rank 2 waited too long"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shm_head *head;
        struct shm shm;
        int fd;

        assert_int_equal(shm_create_memory(1, &fd), 0);
        assert_int_equal(shm_map_memory(fd, 1, &head), 0);
        assert_int_equal(shm_init(&shm, fd, head, true, 0, 1, TIMEOUT_MS), 0);
        shm_fail(&shm, cases[i].failure);
        shm_fail(&shm, (struct shm_failure){SHM_FAILURE_DIED, 1, 1}); /* too late to be told */
        assert_int_equal(shm_barrier(&shm), CRW_E_PEER);
        assert_non_null(strstr(crw_error_message(), cases[i].words));
        shm_finish(&shm);
    }
}

static void expect_spinning(struct shm *shm)
{
    CHECK(shm_barrier(shm) == 0);
    CHECK(shm->spin_ns == 50 * 1000);
}

static void expect_no_spinning(struct shm *shm)
{
    CHECK(shm_barrier(shm) == 0);
    CHECK(shm->spin_ns == 1000);
}

/* Each of them sees one core, and yet they are not more than the cores that they have. */
static void pinned_ranks_are_not_crowded(void **state)
{
    pid_t pids[2];
    cpu_set_t all;
    int fd;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    if (CPU_COUNT(&all) < 2) {
        print_message("skipped: there is one core\n");
        skip();
    }
    pinned = true;
    fd = start_ranks(2, TIMEOUT_MS, expect_spinning, pids);
    pinned = false;
    for (int rank = 0; rank < 2; rank++)
        expect_exit(pids[rank], 0);
    close(fd);
    if (CPU_COUNT(&all) < RANKS_MAX)
        run_processes(RANKS_MAX, expect_no_spinning);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pinned_ranks_are_not_crowded),
        cmocka_unit_test(all_reduce_gives_what_it_must),
        cmocka_unit_test(all_reduce_works_in_arenas),
        cmocka_unit_test(all_reduce_works_in_mixed_places),
        cmocka_unit_test(reduce_gives_what_it_must),
        cmocka_unit_test(reduce_scatter_gives_what_it_must),
        cmocka_unit_test(lets_nan_win),
        cmocka_unit_test(large_pairs_are_reduced_as_single_elements),
        cmocka_unit_test(wraps_integers),
        cmocka_unit_test(rounds_bf16_once),
        cmocka_unit_test(broadcast_gives_what_it_must),
        cmocka_unit_test(all_gather_gives_what_it_must),
        cmocka_unit_test(gather_gives_what_it_must),
        cmocka_unit_test(scatter_gives_what_it_must),
        cmocka_unit_test(all_gather_works_in_place),
        cmocka_unit_test(collectives_do_not_disturb_each_other),
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(messages_of_other_sizes_are_dropped),
        cmocka_unit_test(messages_outlive_their_sender),
        cmocka_unit_test(ranks_stay_together),
        cmocka_unit_test(phases_wrap_around),
        cmocka_unit_test(different_calls_are_refused_everywhere),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(memory_for_another_world_is_refused),
        cmocka_unit_test(each_rank_allocates_its_own_part),
        cmocka_unit_test(a_dead_rank_frees_the_others),
        cmocka_unit_test(a_rank_that_leaves_frees_the_others),
        cmocka_unit_test(who_has_failed_writes_no_more),
        cmocka_unit_test(a_deadline_ends_the_group),
        cmocka_unit_test(signals_end_no_wait),
        cmocka_unit_test(failures_are_packed_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
