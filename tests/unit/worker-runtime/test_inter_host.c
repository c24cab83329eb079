/*
 * Groups over several hosts as a program meets them. The hosts are processes of one machine that say they
 * are on different ones (GROUP_RANK), and speak over 127.0.0.1; they meet through a real store daemon (the
 * first argument is its path). Results are compared bit by bit with those of one host. With "encrypted" as the second
 * argument the ranks have a key and encrypt what they send to other hosts.
 */

#include "proto/worker_notice.h"
#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/net/peer_table.h"
#include "worker-runtime/crw.h"
#include "tests/support/c/daemon_process.h"
#include "tests/unit/worker-runtime/elements.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/clock.h"
#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/rank_check.h"
#include "tests/support/c/sanitized.h"

enum { RANKS_MAX = 160, HOSTS_MAX = 8 };

static int generation; /* of the test that runs: each has keys of its own */

/* ---- ranks ---- */

/* Ranks of each host; zeroes at the end. */
struct shape {
    int sizes[HOSTS_MAX + 1];
};

static int count_hosts(struct shape shape)
{
    int n = 0;

    while (shape.sizes[n] > 0)
        n++;
    return n;
}

static int count_ranks(struct shape shape)
{
    int n = 0;

    for (int i = 0; shape.sizes[i] > 0; i++)
        n += shape.sizes[i];
    return n;
}

static struct crw_env env_of(struct shape shape, int rank)
{
    int host = 0, first = 0;

    while (rank >= first + shape.sizes[host])
        first += shape.sizes[host++];
    return (struct crw_env){
        .launched = true,
        .rank = rank,
        .world_size = count_ranks(shape),
        .local_rank = rank - first,
        .local_world_size = shape.sizes[host],
        .group_rank = host,
        .group_world_size = count_hosts(shape),
        .generation = generation,
        .master_addr = "127.0.0.1",
        .master_port = daemon_port,
        .notice_fd = -1,
    };
}

typedef void (*body_fn)(struct crw_group *group);

struct ranks {
    int n;
    pid_t pids[RANKS_MAX];
    int ready[2];
};

static int ready_fd; /* of a rank: says that it is about to wait */

static void say_ready(void)
{
    CHECK(write(ready_fd, "r", 1) == 1);
}

static void wait_ready(const struct ranks *r, int n)
{
    for (int i = 0; i < n; i++) {
        char c;

        assert_int_equal(read(r->ready[0], &c, 1), 1);
    }
}

static void start_ranks(struct ranks *r, struct shape shape, body_fn body)
{
    generation++;
    r->n = count_ranks(shape);
    assert_int_equal(pipe2(r->ready, O_CLOEXEC), 0);
    for (int rank = 0; rank < r->n; rank++) {
        struct crw_env env = env_of(shape, rank);
        struct crw_group *group;

        r->pids[rank] = fork();
        assert_true(r->pids[rank] >= 0);
        if (r->pids[rank] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing */
        ready_fd = r->ready[1];
        CHECK(crw_group_create(&env, &group) == 0);
        body(group);
        crw_group_destroy(group);
        _exit(0);
    }
}

static void expect_exit(pid_t pid, int code)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void end_ranks(const struct ranks *r)
{
    for (int rank = 0; rank < r->n; rank++)
        expect_exit(r->pids[rank], 0);
    close(r->ready[0]);
    close(r->ready[1]);
}

static void run_ranks(struct shape shape, body_fn body)
{
    struct ranks r;

    start_ranks(&r, shape, body);
    end_ranks(&r);
}

static const struct shape shapes[] = {
    {{1, 1}}, {{2, 2}}, {{1, 2}}, {{3, 1, 2}}, {{1, 1, 1, 1, 1}},
};

static void run_shapes(body_fn body)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        run_ranks(shapes[i], body);
}

/* ---- what all have in mind ---- */

enum { COUNT_MAX = 300001 };

static size_t size_of(enum crw_dtype dtype)
{
    return reduce_element_size(dtype);
}

/* What one host would make of it, bit for bit. */
static void reduce_all(enum crw_dtype dtype, enum crw_op op, size_t count, int world_size, void *result)
{
    void *sources[RANKS_MAX] = {0};

    for (int i = 0; i < world_size; i++) {
        sources[i] = malloc(count * size_of(dtype) + 1);
        CHECK(sources[i]);
        fill_elements(dtype, sources[i], count, (unsigned)i);
    }
    reduce(dtype, op, (const void *const *)sources, world_size, &result, 1, 0, count);
    for (int i = 0; i < world_size; i++)
        free(sources[i]);
}

static uint8_t mine[COUNT_MAX * 8], expected[COUNT_MAX * 8], result[COUNT_MAX * 8];

static const size_t counts[] = {0, 3, 1000, 40003};

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- reductions ---- */

static void check_reductions(struct crw_group *group, enum crw_dtype dtype, enum crw_op op, size_t count)
{
    int rank = crw_rank(group), world_size = crw_world_size(group), root = world_size - 1;
    size_t n = count * size_of(dtype), part = count / (size_t)world_size;

    reduce_all(dtype, op, count, world_size, expected);
    fill_elements(dtype, mine, count, (unsigned)rank);
    CHECK(crw_reduce_scatter(group, mine, result, part, dtype, op) == 0);
    CHECK(memcmp(result, expected + (size_t)rank * part * size_of(dtype), part * size_of(dtype)) == 0);
    memcpy(result, mine, n);
    CHECK(crw_reduce(group, result, count, dtype, op, root) == 0);
    CHECK(memcmp(result, rank == root ? expected : mine, n) == 0);
    CHECK(crw_all_reduce(group, mine, count, dtype, op) == 0);
    CHECK(memcmp(mine, expected, n) == 0);
}

/* The way of an array depends on its bytes, not on its type: sanitized, each count has half of them. The period of types
 * shares no factor with the number of operations, so that no operation is left out. */
static bool is_left_out(size_t dtype, size_t count)
{
    return IS_SANITIZED && (dtype + count) % 2 != 0;
}

static void reduce_everything(struct crw_group *group)
{
    for (size_t d = 0; d < N_OF(dtypes); d++)
        for (size_t c = 0; c < N_OF(counts); c++)
            if (!is_left_out(d, c))
                check_reductions(group, dtypes[d], (enum crw_op)((d + c) % CRW_OP_COUNT), counts[c]);
    check_reductions(group, CRW_F32, CRW_AVG, COUNT_MAX);
    check_reductions(group, CRW_BF16, CRW_SUM, COUNT_MAX);
}

static void reductions_have_the_bits_of_one_host(void **state)
{
    run_shapes(reduce_everything);
}

static void reduce_in_shared_memory(struct crw_group *group)
{
    int rank = crw_rank(group), world_size = crw_world_size(group);
    float *arena, *second;
    void *none;

    CHECK(crw_shared_alloc(group, COUNT_MAX * sizeof(float), (void **)&arena) == 0);
    reduce_all(CRW_F32, CRW_AVG, COUNT_MAX, world_size, expected);
    for (int round = 0; round < (IS_SANITIZED ? 2 : 3); round++) {
        fill_elements(CRW_F32, arena, COUNT_MAX, (unsigned)rank);
        CHECK(crw_all_reduce(group, arena, COUNT_MAX, CRW_F32, CRW_AVG) == 0);
        CHECK(memcmp(arena, expected, COUNT_MAX * sizeof(float)) == 0);
    }
    /* One rank's array is elsewhere: its host goes another way, and nobody else notices. */
    second = rank == 0 ? (float *)mine : arena;
    fill_elements(CRW_F32, second, COUNT_MAX, (unsigned)rank);
    CHECK(crw_all_reduce(group, second, COUNT_MAX, CRW_F32, CRW_AVG) == 0);
    CHECK(memcmp(second, expected, COUNT_MAX * sizeof(float)) == 0);
    CHECK(crw_shared_alloc(group, rank == 0 ? 100 : 200, &none) == CRW_E_ARGUMENT);
    CHECK(crw_barrier(group) == 0);
}

/* With three rails a piece is no multiple of what the chain combines at once. */
static void arrays_are_used_where_they_lie(void **state)
{
    run_shapes(reduce_in_shared_memory);
    setenv("CRW_TIMEOUT_MS", "30000", 1);
    run_ranks((struct shape){{3, 3}}, reduce_in_shared_memory);
    unsetenv("CRW_TIMEOUT_MS");
}

/* ---- what goes over the network ---- */

static int64_t bytes_sent(void)
{
    int64_t n = 0;

    for (int fd = 3; fd < 256; fd++) {
        struct tcp_info info = {0};
        socklen_t size = sizeof(info);

        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
            n += (int64_t)(info.tcpi_bytes_sent + info.tcpi_notsent_bytes - info.tcpi_bytes_retrans);
    }
    return n;
}

/* Of all ranks since `before`. */
static int64_t sum_sent(struct crw_group *group, int64_t before)
{
    int64_t n = bytes_sent() - before;

    CHECK(crw_all_reduce(group, &n, 1, CRW_I64, CRW_SUM) == 0);
    return n;
}

static bool one_on_each_host;

static void compare_bytes(struct crw_group *group)
{
    int world_size = crw_world_size(group);
    size_t part = COUNT_MAX / (size_t)world_size, count = part * (size_t)world_size;
    int64_t before, all_reduced, scattered, reduced;

    fill_elements(CRW_F32, mine, count, (unsigned)crw_rank(group));
    before = bytes_sent();
    CHECK(crw_reduce_scatter(group, mine, result, part, CRW_F32, CRW_SUM) == 0);
    scattered = sum_sent(group, before);
    before = bytes_sent();
    CHECK(crw_reduce(group, mine, count, CRW_F32, CRW_SUM, world_size - 1) == 0);
    reduced = sum_sent(group, before);
    before = bytes_sent();
    CHECK(crw_all_reduce(group, mine, count, CRW_F32, CRW_SUM) == 0);
    all_reduced = sum_sent(group, before);
    /* Half of it where each host has one rank; else (hosts - 1) vectors up, and down what hosts below want. */
    CHECK(100 * scattered < (one_on_each_host ? 52 : 82) * all_reduced);
    CHECK(100 * reduced < 52 * all_reduced); /* to the last host: nothing comes down */
}

static void hosts_get_only_the_results_that_they_want(void **state)
{
    one_on_each_host = false;
    run_ranks((struct shape){{3, 1, 2}}, compare_bytes);
    one_on_each_host = true;
    run_ranks((struct shape){{1, 1}}, compare_bytes);
    run_ranks((struct shape){{1, 1, 1, 1}}, compare_bytes);
}

/* ---- moves ---- */

static void check_moves(struct crw_group *group, size_t n)
{
    int rank = crw_rank(group), world_size = crw_world_size(group);

    for (int root = 0; root < world_size; root++) {
        fill_elements(CRW_I32, mine, n / 4 + 1, (unsigned)(rank == root ? 99 : rank));
        fill_elements(CRW_I32, expected, n / 4 + 1, 99);
        CHECK(crw_broadcast(group, mine, n, root) == 0);
        CHECK(memcmp(mine, expected, n) == 0);

        fill_elements(CRW_I32, mine, n * (size_t)world_size / 4 + 1, 5);
        CHECK(crw_scatter(group, rank == root ? mine : NULL, n, result, root) == 0);
        CHECK(memcmp(result, mine + (size_t)rank * n, n) == 0);

        fill_elements(CRW_I32, expected, n / 4 + 1, (unsigned)rank);
        memset(result, 0, n * (size_t)world_size);
        CHECK(crw_gather(group, expected, n, rank == root ? result : NULL, root) == 0);
        for (int i = 0; rank == root && i < world_size; i++) {
            fill_elements(CRW_I32, expected, n / 4 + 1, (unsigned)i);
            CHECK(memcmp(result + (size_t)i * n, expected, n) == 0);
        }
    }
    fill_elements(CRW_I32, mine, n / 4 + 1, (unsigned)rank);
    CHECK(crw_all_gather(group, mine, n, result) == 0);
    for (int i = 0; i < world_size; i++) {
        fill_elements(CRW_I32, expected, n / 4 + 1, (unsigned)i);
        CHECK(memcmp(result + (size_t)i * n, expected, n) == 0);
    }
    CHECK(crw_barrier(group) == 0);
}

static void move_everything(struct crw_group *group)
{
    static const size_t sizes[] = {0, 100, 5000, 70001, 200003};

    for (size_t i = 0; i < N_OF(sizes); i++)
        check_moves(group, sizes[i]);
}

static void data_arrives_where_it_should(void **state)
{
    run_shapes(move_everything);
}

/* ---- calls that differ ---- */

static void differ(struct crw_group *group)
{
    int rank = crw_rank(group), last = crw_world_size(group) - 1;
    float data[10000] = {0};

    for (int odd = 0; odd <= last; odd++) {
        bool is_odd = rank == odd;

        CHECK((is_odd ? crw_barrier(group) : crw_all_reduce(group, data, 1, CRW_F32, CRW_SUM)) ==
              CRW_E_ARGUMENT);
        CHECK(crw_all_reduce(group, data, is_odd ? 9999 : 10000, CRW_F32, CRW_SUM) == CRW_E_ARGUMENT);
        CHECK(crw_broadcast(group, data, is_odd ? 4 : 40000, 0) == CRW_E_ARGUMENT);
        CHECK(crw_reduce(group, data, 10, CRW_F32, CRW_SUM, is_odd ? 0 : last) == CRW_E_ARGUMENT);
        CHECK(strstr(crw_error_message(), "different collectives"));
        CHECK(crw_barrier(group) == 0);
    }
    check_reductions(group, CRW_F32, CRW_SUM, 50003);
}

static void calls_that_differ_are_told_to_all(void **state)
{
    run_shapes(differ);
}

/* ---- a few KiB over many hosts ---- */

static void use_few_kib(struct crw_group *group)
{
    static const size_t kib[] = {1700, 4097, 8191, 8192};

    for (size_t c = 0; c < N_OF(kib); c++)
        for (size_t d = 0; d < N_OF(dtypes); d++)
            if (!is_left_out(d, c))
                check_reductions(group, dtypes[d], (enum crw_op)((d + c) % CRW_OP_COUNT), kib[c]);
    check_moves(group, 9001);
    check_moves(group, 32768);
    differ(group);
}

/* Enough hosts that a chain takes more steps than an all-to-all. */
static void a_few_kib_have_the_bits_of_one_host(void **state)
{
    run_ranks((struct shape){{1, 1, 1, 1, 1, 1, 1}}, use_few_kib);
    run_ranks((struct shape){{2, 1, 2, 1, 1, 2}}, use_few_kib);
}

/* ---- calls that are started ---- */

static void start_many(struct crw_group *group)
{
    enum { N = 8, COUNT = 40000 };
    int rank = crw_rank(group), world_size = crw_world_size(group);
    static int32_t arrays[N][COUNT];
    struct crw_work *works[N];

    for (int i = 0; i < N; i++) {
        size_t count = i % 2 ? COUNT : 10;

        for (size_t k = 0; k < count; k++)
            arrays[i][k] = rank + i;
        CHECK(crw_all_reduce_start(group, arrays[i], count, CRW_I32, CRW_SUM, &works[i]) == 0);
    }
    CHECK(crw_barrier(group) == 0);
    for (int i = 0; i < N; i++) {
        CHECK(crw_work_wait(works[i]) == 0);
        CHECK(arrays[i][9] == world_size * (world_size - 1) / 2 + i * world_size);
    }
}

static void calls_can_be_started(void **state)
{
    run_shapes(start_many);
}

/* ---- messages ---- */

static void send_round(struct crw_group *group, size_t n)
{
    int rank = crw_rank(group), world_size = crw_world_size(group);

    fill_elements(CRW_I32, mine, n / 4 + 1, (unsigned)rank);
    for (int i = 1; i < world_size; i++) /* everybody to everybody, before anybody receives */
        CHECK(crw_send(group, mine, n, (rank + i) % world_size) == 0);
    for (int i = 1; i < world_size; i++) {
        int from = (rank - i + world_size) % world_size;

        fill_elements(CRW_I32, expected, n / 4 + 1, (unsigned)from);
        CHECK(crw_recv(group, result, n, from) == 0);
        CHECK(memcmp(result, expected, n) == 0);
    }
}

static void send_everything(struct crw_group *group)
{
    int rank = crw_rank(group), last = crw_world_size(group) - 1;
    struct crw_work *work;

    for (int round = 0; round < 3; round++) {
        send_round(group, 0);
        send_round(group, 100);
        send_round(group, 160 * 1024);
    }
    if (rank == 0) { /* longer than anything holds */
        fill_elements(CRW_I32, mine, COUNT_MAX, 1);
        CHECK(crw_send(group, mine, COUNT_MAX * 4, last) == 0);
        CHECK(crw_send(group, mine, 77, last) == 0);
        CHECK(crw_send(group, mine, 4, last) == 0);
    } else if (rank == last) {
        fill_elements(CRW_I32, expected, COUNT_MAX, 1);
        CHECK(crw_recv_start(group, result, COUNT_MAX * 4, 0, &work) == 0);
        CHECK(crw_work_wait(work) == 0);
        CHECK(memcmp(result, expected, COUNT_MAX * 4) == 0);
        CHECK(crw_recv(group, result, 78, 0) == CRW_E_ARGUMENT);
        CHECK(crw_recv(group, result, 4, 0) == 0);
    }
    CHECK(crw_barrier(group) == 0);
    if (rank == 0)
        CHECK(crw_send(group, "bye", 4, last) == 0); /* and leaves */
    if (rank == last) {
        CHECK(crw_recv(group, result, 4, 0) == 0 && strcmp((char *)result, "bye") == 0);
        CHECK(crw_recv(group, result, 4, 0) == CRW_E_PEER);
    }
}

static void messages_arrive(void **state)
{
    run_shapes(send_everything);
}

/* ---- groups of some ranks ---- */

static void use_group(struct crw_group *group)
{
    check_moves(group, 50001);
    check_reductions(group, CRW_F32, CRW_SUM, 1000);
}

static void make_groups(struct crw_group *world)
{
    int n = crw_world_size(world), members[RANKS_MAX];
    struct crw_group *backwards, *some, *of_some;

    for (int i = 0; i < n; i++)
        members[i] = n - 1 - i;
    CHECK(crw_group_new(world, members, n, &backwards) == 0);
    CHECK(crw_rank(backwards) == n - 1 - crw_rank(world));
    use_group(backwards);
    members[0] = n - 1;
    members[1] = 0;
    CHECK(crw_group_new(world, members, 2, &some) == 0);
    CHECK((some != NULL) == (crw_rank(world) == 0 || crw_rank(world) == n - 1));
    if (some) {
        use_group(some);
        members[0] = 1;
        members[1] = 0;
        CHECK(crw_group_new(some, members, 2, &of_some) == 0);
        use_group(of_some);
        crw_group_destroy(of_some);
        use_group(some);
    }
    use_group(world);
    crw_group_destroy(some);
    use_group(backwards);
    crw_group_destroy(backwards);
    members[0] = 0;
    members[1] = crw_rank(world) == 0 ? 0 : 1; /* makes no sense on rank 0: nobody gets one */
    CHECK(crw_group_new(world, members, 2, &some) == CRW_E_ARGUMENT);
    use_group(world);
}

static void groups_of_some_work(void **state)
{
    run_shapes(make_groups);
}

static void have_two_worlds(struct crw_group *group)
{
    struct crw_group *second;
    struct crw_env env = env_of((struct shape){{2, 1}}, crw_rank(group));

    CHECK(crw_group_create(&env, &second) == 0);
    use_group(second);
    use_group(group);
    crw_group_destroy(second);
    use_group(group);
}

static void several_worlds_work(void **state)
{
    run_ranks((struct shape){{2, 1}}, have_two_worlds);
}

/* ---- ranks that die ---- */

static int victim;

static void wait_for_victim(struct crw_group *group)
{
    static float data[COUNT_MAX];

    CHECK(crw_all_reduce(group, data, COUNT_MAX, CRW_F32, CRW_SUM) == 0);
    say_ready();
    if (crw_rank(group) == victim)
        pause();
    CHECK(crw_all_reduce(group, data, COUNT_MAX, CRW_F32, CRW_SUM) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "group is over"));
    CHECK(crw_barrier(group) == CRW_E_PEER);
    _exit(7);
}

static void wait_for_message(struct crw_group *group)
{
    char c;

    CHECK(crw_barrier(group) == 0);
    say_ready();
    if (crw_rank(group) == victim)
        pause();
    CHECK(crw_recv(group, &c, 1, victim) == CRW_E_PEER);
    _exit(7);
}

/* The last rank sends to the first one for as long as there is a group; one of all dies in the middle of it. */
static void stream_messages(struct crw_group *group)
{
    int rank = crw_rank(group), last = crw_world_size(group) - 1, r = 0;

    CHECK(crw_barrier(group) == 0);
    for (int i = 0; r == 0; i++) {
        if (rank == last)
            r = crw_send(group, mine, sizeof(mine), 0);
        else if (rank == 0)
            r = crw_recv(group, result, sizeof(result), last);
        if (i == 0)
            say_ready();
        if (rank != 0 && rank != last)
            pause();
    }
    CHECK(r == CRW_E_PEER);
    CHECK(crw_barrier(group) == CRW_E_PEER);
    _exit(7);
}

/* Nothing else frees them: the time-out is half an hour. What it takes is printed, not judged. */
static void kill_one(struct shape shape, int rank, body_fn body)
{
    struct ranks r;
    double killed;

    victim = rank;
    start_ranks(&r, shape, body);
    wait_ready(&r, r.n);
    usleep(20000); /* most of them are in the call now; either way it has to end */
    killed = now_ms();
    assert_int_equal(kill(r.pids[rank], SIGKILL), 0);
    for (int i = 0; i < r.n; i++)
        if (i != rank)
            expect_exit(r.pids[i], 7);
    print_message("rank %d of %d on %d hosts killed: the others were gone after %.1f ms\n", rank, r.n,
                  count_hosts(shape), now_ms() - killed);
    assert_int_equal(waitpid(r.pids[rank], NULL, 0), r.pids[rank]);
    close(r.ready[0]);
    close(r.ready[1]);
}

static void a_death_frees_everybody(void **state)
{
    kill_one((struct shape){{1, 1}}, 0, wait_for_victim);
    kill_one((struct shape){{1, 1}}, 1, wait_for_victim);
    for (int rank = 0; rank < 4; rank++)
        kill_one((struct shape){{2, 2}}, rank, wait_for_victim);
    kill_one((struct shape){{1, 1, 1, 1, 1}}, 2, wait_for_victim);
    kill_one((struct shape){{3, 1, 2}}, 2, wait_for_victim);
    kill_one((struct shape){{3, 1, 2}}, 5, wait_for_message);
    kill_one((struct shape){{1, 1, 1}}, 0, wait_for_message);
    kill_one((struct shape){{1, 1}}, 1, stream_messages);
    kill_one((struct shape){{1, 1}}, 0, stream_messages);
    kill_one((struct shape){{1, 1, 1}}, 1, stream_messages);
}

static void leave_early(struct crw_group *group)
{
    float data[10000] = {0};

    CHECK(crw_barrier(group) == 0);
    if (crw_rank(group) == 1)
        return;
    CHECK(crw_all_reduce(group, data, 10000, CRW_F32, CRW_SUM) == CRW_E_PEER);
    CHECK(crw_barrier(group) == CRW_E_PEER);
}

/* Nobody's end is the reason, so each of them looks out for news as long as it may: not in all shapes. */
static void who_leaves_is_not_waited_for(void **state)
{
    run_ranks((struct shape){{1, 1}}, leave_early);
    run_ranks((struct shape){{2, 2}}, leave_early);
    run_ranks((struct shape){{1, 1, 1, 1, 1}}, leave_early);
}

static void receive_from_one_that_leaves(struct crw_group *group)
{
    char c;

    CHECK(crw_barrier(group) == 0);
    if (crw_rank(group) == 3)
        return;
    CHECK(crw_recv(group, &c, 1, 3) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank 3 left the group"));
    CHECK(crw_send(group, &c, 1, 3) == CRW_E_PEER);
    sleep(1); /* the others find rank 3, and not this one, missing */
}

/* Rank 3 goes on in another group, so its process and its connections stay. */
static void receive_from_one_that_left_this_group(struct crw_group *group)
{
    const int members[] = {0, 1, 2, 3};
    int rank = crw_rank(group);
    struct crw_group *second;
    char c, text[4];

    CHECK(crw_group_new(group, members, 4, &second) == 0);
    if (rank == 3) {
        crw_group_destroy(group);
    } else {
        CHECK(crw_recv(group, &c, 1, 3) == CRW_E_PEER);
        CHECK(crw_send(group, &c, 1, 3) == CRW_E_PEER);
    }
    use_group(second);
    if (rank == 0)
        CHECK(crw_send(second, "bye", 4, 3) == 0); /* arrives although its sender leaves */
    if (rank == 3) {
        usleep(300000);
        CHECK(crw_recv(second, text, 4, 0) == 0 && strcmp(text, "bye") == 0);
        CHECK(crw_recv(second, text, 4, 0) == CRW_E_PEER);
    }
    crw_group_destroy(second);
    if (rank == 3) /* which has no other group any more */
        _exit(0);
}

/* The ranks have different numbers on their hosts, so no connection between them exists before. */
static void who_leaves_sends_nothing_more(void **state)
{
    setenv("CRW_TIMEOUT_MS", "20000", 1);
    run_ranks((struct shape){{2, 2}}, receive_from_one_that_leaves);
    run_ranks((struct shape){{2, 2}}, receive_from_one_that_left_this_group);
    unsetenv("CRW_TIMEOUT_MS");
}

static void wait_for_a_message_in_vain(struct crw_group *group)
{
    struct crw_work *work;
    char c;
    int r = 0;

    CHECK(crw_recv_start(group, &c, 1, 1 - crw_rank(group), &work) == 0);
    while (r == 0)
        r = crw_barrier(group);
    CHECK(r == CRW_E_PEER || r == CRW_E_TIMEOUT);
    r = crw_work_wait(work);
    CHECK(r == CRW_E_PEER || r == CRW_E_TIMEOUT);
}

/* The time-out of a message ends the group under a collective of another thread. */
static void a_message_that_never_comes_ends_the_group(void **state)
{
    setenv("CRW_TIMEOUT_MS", "500", 1);
    run_ranks((struct shape){{1, 1}}, wait_for_a_message_in_vain);
    unsetenv("CRW_TIMEOUT_MS");
}

/* ---- ranks that are slow ---- */

/* SLOW_S: longer than a silent host is waited for. */
enum { SLOW_COUNT = (IS_SANITIZED ? 4 : 16) << 20, SLOW_S = 15 };

static void receive_late(struct crw_group *group)
{
    float *data = calloc(SLOW_COUNT, sizeof(*data));

    CHECK(data);
    if (crw_rank(group) == 0) {
        data[SLOW_COUNT - 1] = 7;
        CHECK(crw_send(group, data, SLOW_COUNT * sizeof(*data), 1) == 0);
    } else {
        sleep(SLOW_S);
        CHECK(crw_recv(group, data, SLOW_COUNT * sizeof(*data), 0) == 0);
        CHECK(data[SLOW_COUNT - 1] == 7);
    }
    CHECK(crw_barrier(group) == 0);
    free(data);
}

/* Rank 1 stops in the middle of the call; the test lets it go on. */
static void stop_in_a_collective(struct crw_group *group)
{
    float *data = calloc(SLOW_COUNT, sizeof(*data));
    struct crw_work *work;

    CHECK(data);
    CHECK(crw_all_reduce_start(group, data, SLOW_COUNT, CRW_F32, CRW_SUM, &work) == 0);
    usleep(10000);
    if (crw_rank(group) == 1)
        raise(SIGSTOP);
    CHECK(crw_work_wait(work) == 0);
    CHECK(crw_barrier(group) == 0);
    free(data);
}

static void a_busy_rank_is_waited_for(void **state)
{
    struct ranks late, stopped;
    int status;

    start_ranks(&late, (struct shape){{1, 1}}, receive_late);
    start_ranks(&stopped, (struct shape){{1, 1}}, stop_in_a_collective);
    assert_int_equal(waitpid(stopped.pids[1], &status, WUNTRACED), stopped.pids[1]);
    assert_true(WIFSTOPPED(status));
    sleep(SLOW_S);
    assert_int_equal(kill(stopped.pids[1], SIGCONT), 0);
    end_ranks(&stopped);
    end_ranks(&late);
}

/* The longest connection of this process has carried a part of a long call by now: shuts it down. */
static bool cut_data_link(void)
{
    for (int fd = 3; fd < 64; fd++) {
        struct tcp_info info = {0};
        socklen_t size = sizeof(info);

        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_bytes_received > 1 << 20)
            return shutdown(fd, SHUT_RDWR) == 0;
    }
    return false;
}

static void lose_a_link(struct crw_group *group)
{
    float *data = calloc(2 * SLOW_COUNT, sizeof(*data));
    char expected_cause[64];
    struct crw_work *work;

    CHECK(data);
    CHECK(crw_all_reduce_start(group, data, 2 * SLOW_COUNT, CRW_F32, CRW_SUM, &work) == 0);
    while (crw_rank(group) == 1 && !cut_data_link())
        usleep(100);
    CHECK(crw_work_wait(work) == CRW_E_PEER);
    (void)snprintf(expected_cause, sizeof(expected_cause), "the connection to rank %d was lost",
                   1 - crw_rank(group));
    CHECK(strstr(crw_error_message(), expected_cause));
    sleep(1); /* the reason of the other rank must not be that this one left */
}

static void a_lost_link_names_the_rank_behind_it(void **state)
{
    run_ranks((struct shape){{1, 1}}, lose_a_link);
}

/* ---- many at once ---- */

static int go[2]; /* closed by the test: the senders may begin */

static void send_to_rank_0(struct crw_group *group)
{
    int world_size = crw_world_size(group);
    char c = 'c';

    CHECK(close(go[1]) == 0);
    CHECK(crw_barrier(group) == 0);
    say_ready();
    if (crw_rank(group) > 0) {
        CHECK(read(go[0], &c, 1) == 0);
        CHECK(crw_send(group, &c, 1, 0) == 0);
    } else {
        for (int from = 1; from < world_size; from++)
            CHECK(crw_recv(group, &c, 1, from) == 0);
    }
    CHECK(crw_barrier(group) == 0);
}

/* All ranks of the larger host make their control connections to the same rank, and later all send to it while it
 * stands still. */
static void many_connect_to_one_rank(void **state)
{
    struct ranks r;

    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    start_ranks(&r, (struct shape){{1, IS_SANITIZED ? 40 : 150}}, send_to_rank_0);
    wait_ready(&r, r.n);
    assert_int_equal(kill(r.pids[0], SIGSTOP), 0);
    close(go[1]);
    usleep(1500 * 1000);
    assert_int_equal(kill(r.pids[0], SIGCONT), 0);
    end_ranks(&r);
    close(go[0]);
}

/* ---- strangers ---- */

static int call_rank_0(struct crw_group *group)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct peer_table table;
    char key[64];
    void *value;
    size_t n;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(key, sizeof(key), "crw/group/%d/0/host/0", generation);
    CHECK(crw_store_get(group, key, 10000, &value, &n) == 0);
    CHECK(peer_table_init(&table, crw_world_size(group)) == 0);
    CHECK(peer_table_add(&table, 0, value, n));
    to.sin_port = htons(table.peers[0].port);
    CHECK(inet_pton(AF_INET, table.peers[0].address, &to.sin_addr) == 1);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    peer_table_finish(&table);
    free(value);
    return fd;
}

/* It answers nothing, and closes. */
static void expect_refusal(int fd, const uint8_t *said, size_t n)
{
    char c;

    CHECK(send(fd, said, n, MSG_NOSIGNAL) == (ssize_t)n);
    CHECK(recv(fd, &c, 1, 0) <= 0);
    close(fd);
}

static void be_strange(struct crw_group *group)
{
    struct net_hello hello = {.purpose = NET_CONTROL, .from = 1, .to = 0};
    uint8_t bytes[NET_HELLO_SIZE];
    int silent[100];

    if (crw_rank(group) == 1) {
        memset(bytes, 'G', sizeof(bytes));
        expect_refusal(call_rank_0(group), bytes, sizeof(bytes));
        net_hello_encode(&hello, bytes); /* the token is wrong */
        expect_refusal(call_rank_0(group), bytes, sizeof(bytes));
        for (size_t i = 0; i < N_OF(silent); i++) { /* more than there are slots for */
            silent[i] = call_rank_0(group);
            CHECK(send(silent[i], bytes, i % sizeof(bytes), MSG_NOSIGNAL) == (ssize_t)(i % sizeof(bytes)));
        }
        expect_refusal(call_rank_0(group), bytes, sizeof(bytes));
    }
    use_group(group);
    send_round(group, 1000); /* connections made now get in */
    if (crw_rank(group) == 1)
        for (size_t i = 0; i < N_OF(silent); i++)
            close(silent[i]);
    use_group(group);
}

static void strangers_change_nothing(void **state)
{
    run_ranks((struct shape){{1, 1}}, be_strange);
    run_ranks((struct shape){{1, 2}}, be_strange);
}

/* ---- what cannot be ---- */

/* ---- encryption ---- */

enum { KEY_BYTES = 32 };

/* As crun lends it. */
static void lend_key(void)
{
    uint8_t key[KEY_BYTES] = "of a job of the tests";
    char number[16];
    int fd = memfd_create("key", MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && write(fd, key, sizeof(key)) == sizeof(key));
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    (void)snprintf(number, sizeof(number), "%d", fd);
    CHECK(setenv("CRUN_KEY_FD", number, 1) == 0);
}

/* Two ranks on two hosts with these settings, and what their group says. */
static void expect_no_group(const char *const settings[2], bool have_key, const char *message)
{
    pid_t pids[2];

    generation++;
    for (int rank = 0; rank < 2; rank++) {
        struct crw_env env = env_of((struct shape){{1, 1}}, rank);
        struct crw_group *group;

        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] > 0)
            continue;
        unsetenv("CRUN_KEY_FD");
        if (have_key)
            lend_key();
        CHECK(setenv("CRW_ENCRYPT", settings[rank], 1) == 0);
        CHECK(crw_group_create(&env, &group) == CRW_E_ENVIRONMENT);
        if (!strstr(crw_error_message(), message))
            fprintf(stderr, "rank %d: %s\n", rank, crw_error_message());
        CHECK(strstr(crw_error_message(), message));
        _exit(0);
    }
    for (int rank = 0; rank < 2; rank++)
        expect_exit(pids[rank], 0);
}

enum { FDS_MAX = 1024 };

/* This rank's TCP connections to other ranks. */
static void find_connections(bool ret[FDS_MAX])
{
    for (int fd = 0; fd < FDS_MAX; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t size = sizeof(peer);

        ret[fd] = getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sin_family == AF_INET &&
                  ntohs(peer.sin_port) != daemon_port;
    }
}

/* What a process between the hosts can do to these. Past ThreadSanitizer: a descriptor that the group's thread closes meanwhile is no
 * race of the group. */
static int inject_bytes(const bool connections[FDS_MAX], const bool except[FDS_MAX])
{
    const char junk[64] = {16, 0, 0, 0, 'j', 'u', 'n', 'k'}; /* a record of 16 bytes, and a part of one */
    int n = 0;

    for (int fd = 0; fd < FDS_MAX; fd++)
        if (connections[fd] && !(except && except[fd]))
            n += syscall(SYS_sendto, fd, junk, sizeof(junk), MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) ==
                 sizeof(junk);
    return n;
}

static const char changed[] = "what came from rank 1 is not what it sent";

/* Rank 0 shows rank 1 by these that it has passed a barrier: rank 1 may pass it earlier. */
static int passed[2];

/* A message is lost; the group is not. */
static void find_changed_message(struct crw_group *group)
{
    bool before[FDS_MAX], after[FDS_MAX];
    int number = 7;

    find_connections(before);
    if (crw_rank(group) == 1) {
        CHECK(crw_send(group, &number, sizeof(number), 0) == 0);
        find_connections(after);
        CHECK(inject_bytes(after, before) == 1);
    } else {
        CHECK(crw_recv(group, &number, sizeof(number), 1) == 0 && number == 7);
        CHECK(crw_recv(group, &number, sizeof(number), 1) == CRW_E_PEER);
        CHECK(strstr(crw_error_message(), changed));
    }
    CHECK(crw_barrier(group) == 0);
}

static void find_changed_data(struct crw_group *group)
{
    bool connections[FDS_MAX];
    char c = 0;
    int r = 0;

    find_changed_message(group);
    find_connections(connections);
    if (crw_rank(group) == 0) {
        CHECK(write(passed[1], &c, 1) == 1);
    } else {
        CHECK(read(passed[0], &c, 1) == 1);
        CHECK(inject_bytes(connections, NULL) >=
              3); /* both ways of the exchange, and the control connections */
    }
    while (r == 0)
        r = crw_barrier(group);
    CHECK(r == CRW_E_PEER);
    if (crw_rank(group) == 0 && !strstr(crw_error_message(), changed))
        fprintf(stderr, "%s\n", crw_error_message());
    CHECK(crw_rank(group) == 1 || strstr(crw_error_message(), changed));
}

static void changed_data_ends_the_group(void **state)
{
    const char *key_fd = getenv("CRUN_KEY_FD"), *encrypt = getenv("CRW_ENCRYPT");
    struct ranks r;

    if (!key_fd)
        lend_key();
    setenv("CRW_ENCRYPT", "1", 1);
    assert_int_equal(pipe2(passed, O_CLOEXEC), 0);
    start_ranks(&r, (struct shape){{1, 1}}, find_changed_data);
    end_ranks(&r);
    close(passed[0]);
    close(passed[1]);
    if (!key_fd)
        unsetenv("CRUN_KEY_FD");
    if (!encrypt)
        unsetenv("CRW_ENCRYPT");
}

static void all_ranks_encrypt_or_none(void **state)
{
    expect_no_group((const char *const[]){"1", "0"}, true, "CRW_ENCRYPT must have one value on all nodes");
    expect_no_group((const char *const[]){"", "1"}, true, "CRW_ENCRYPT must have one value on all nodes");
    expect_no_group((const char *const[]){"1", "1"}, false, "the job has no key");
    expect_no_group((const char *const[]){"yes", "yes"}, true, "CRW_ENCRYPT is \"yes\"");
}

static void impossible_places_are_refused(void **state)
{
    struct crw_env env = env_of((struct shape){{1, 1}}, 0);
    struct crw_group *group;

    generation++;
    env.group_world_size = 1;
    assert_int_equal(crw_group_create(&env, &group), CRW_E_ENVIRONMENT);
    assert_non_null(strstr(crw_error_message(), "GROUP_WORLD_SIZE"));
    env.world_size = 65537;
    env.group_world_size = 4;
    assert_int_equal(crw_group_create(&env, &group), CRW_E_ENVIRONMENT);
    assert_non_null(strstr(crw_error_message(), "65536"));
    setenv("CRUN_LOCAL_ADDR", "host.example", 1);
    env = env_of((struct shape){{1, 1}}, 0);
    assert_int_equal(crw_group_create(&env, &group), -EINVAL);
    assert_non_null(strstr(crw_error_message(), "host.example"));
    unsetenv("CRUN_LOCAL_ADDR");
}

/* An address of this machine that other machines can reach. */
static bool own_address(char address[INET_ADDRSTRLEN])
{
    struct ifaddrs *all;
    bool found = false;

    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        found = inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
                          address, INET_ADDRSTRLEN);
    }
    freeifaddrs(all);
    return found;
}

/* Rank 0 reaches the store at a loopback address, as the host of the store does where its name leads there. */
static void loopback_beside_other_hosts_is_refused(void **state)
{
    char address[INET_ADDRSTRLEN];
    pid_t pids[2];

    if (!own_address(address)) {
        print_message("skipped: this machine has a loopback interface only\n");
        skip();
    }
    generation++;
    for (int rank = 0; rank < 2; rank++) {
        struct crw_env env = env_of((struct shape){{1, 1}}, rank);
        struct crw_group *group;

        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] > 0)
            continue;
        if (rank == 1)
            setenv("CRUN_LOCAL_ADDR", address, 1);
        CHECK(crw_group_create(&env, &group) == CRW_E_ENVIRONMENT);
        CHECK(strstr(crw_error_message(), "rank 0 listens on 127.0.0.1"));
        CHECK(strstr(crw_error_message(), "CRUN_LOCAL_ADDR"));
        _exit(0);
    }
    for (int rank = 0; rank < 2; rank++)
        expect_exit(pids[rank], 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_have_the_bits_of_one_host),
        cmocka_unit_test(arrays_are_used_where_they_lie),
        cmocka_unit_test(hosts_get_only_the_results_that_they_want),
        cmocka_unit_test(data_arrives_where_it_should),
        cmocka_unit_test(calls_that_differ_are_told_to_all),
        cmocka_unit_test(a_few_kib_have_the_bits_of_one_host),
        cmocka_unit_test(calls_can_be_started),
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(groups_of_some_work),
        cmocka_unit_test(several_worlds_work),
        cmocka_unit_test(a_death_frees_everybody),
        cmocka_unit_test(who_leaves_is_not_waited_for),
        cmocka_unit_test(who_leaves_sends_nothing_more),
        cmocka_unit_test(a_message_that_never_comes_ends_the_group),
        cmocka_unit_test(a_busy_rank_is_waited_for),
        cmocka_unit_test(a_lost_link_names_the_rank_behind_it),
        cmocka_unit_test(many_connect_to_one_rank),
        cmocka_unit_test(strangers_change_nothing),
        cmocka_unit_test(all_ranks_encrypt_or_none),
        cmocka_unit_test(changed_data_ends_the_group),
        cmocka_unit_test(impossible_places_are_refused),
        cmocka_unit_test(loopback_beside_other_hosts_is_refused),
    };

    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "encrypted") != 0)) {
        fprintf(stderr, "usage: test_inter_host PATH-OF-CRUND [encrypted]\n");
        return 2;
    }
    daemon_path = argv[1];
    if (argc == 3) {
        lend_key();
        CHECK(setenv("CRW_ENCRYPT", "1", 1) == 0);
    }
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
