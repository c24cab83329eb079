/*
 * Collectives, groups and started works as programs call them. Workers are forked by crw_launch(), which is
 * itself under test, so nothing here needs a store. In a worker a failed check ends the worker with 99.
 */

#include "worker-runtime/crw.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/clock.h"
#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/sanitized.h"

enum { RANKS_MAX = 8, CHECK_FAILED = 99 };

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, crw_rank(group), #condition,    \
                    crw_error_message());                                                                    \
            _exit(CHECK_FAILED);                                                                             \
        }                                                                                                    \
    } while (0)

typedef int (*worker_fn)(struct crw_group *group, void *data);

static void run(int world_size, worker_fn function)
{
    if (crw_launch(function, NULL, world_size) != 0)
        fail_msg("%d ranks: %s", world_size, crw_error_message());
}

static void run_all_sizes(worker_fn function)
{
    for (int world_size = 1; world_size <= RANKS_MAX; world_size += IS_SANITIZED ? 3 : 1)
        run(world_size, function);
}

/* ---- every collective, now and started ---- */

enum { COUNT = 12345 };

/* What every collective is tried with; one for each that is under way. */
struct arrays {
    int32_t mine[COUNT], result[COUNT];
    int32_t all[RANKS_MAX * COUNT];
};

static void fill(const struct crw_group *group, struct arrays *a)
{
    static int32_t numbers[RANKS_MAX * COUNT + RANKS_MAX];
    const bool is_first = numbers[1] == 0;

    for (int i = 0; is_first && i < COUNT * RANKS_MAX + RANKS_MAX; i++)
        numbers[i] = i;
    for (int i = 0; i < COUNT; i++)
        a->mine[i] = i * (crw_rank(group) + 1);
    memcpy(a->all, numbers + crw_rank(group), sizeof(a->all));
    memset(a->result, 0, sizeof(a->result));
}

/* mine of all ranks added up. */
static int32_t sum_at(const struct crw_group *group, int i)
{
    int n = crw_world_size(group);

    return i * (n * (n + 1) / 2);
}

struct collective {
    int (*now)(struct crw_group *group, struct arrays *a, int root);
    int (*start)(struct crw_group *group, struct arrays *a, int root, struct crw_work **work);
    void (*check)(struct crw_group *group, const struct arrays *a, int root);
};

static int all_reduce_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_all_reduce(group, a->mine, COUNT, CRW_I32, CRW_SUM);
}

static int all_reduce_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_all_reduce_start(group, a->mine, COUNT, CRW_I32, CRW_SUM, work);
}

static void all_reduce_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(a->mine[i] == sum_at(group, i));
}

static int reduce_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_reduce(group, a->mine, COUNT, CRW_I32, CRW_SUM, root);
}

static int reduce_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_reduce_start(group, a->mine, COUNT, CRW_I32, CRW_SUM, root, work);
}

static void reduce_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(a->mine[i] == (crw_rank(group) == root ? sum_at(group, i) : i * (crw_rank(group) + 1)));
}

static int reduce_scatter_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_reduce_scatter(group, a->all, a->result, COUNT, CRW_I32, CRW_MAX);
}

static int reduce_scatter_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_reduce_scatter_start(group, a->all, a->result, COUNT, CRW_I32, CRW_MAX, work);
}

static void reduce_scatter_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(a->result[i] == crw_rank(group) * COUNT + i + crw_world_size(group) - 1);
}

static int broadcast_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_broadcast(group, a->mine, sizeof(a->mine), root);
}

static int broadcast_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_broadcast_start(group, a->mine, sizeof(a->mine), root, work);
}

static void broadcast_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(a->mine[i] == i * (root + 1));
}

static int all_gather_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_all_gather(group, a->mine, sizeof(a->mine), a->all);
}

static int all_gather_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_all_gather_start(group, a->mine, sizeof(a->mine), a->all, work);
}

static void all_gather_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT * crw_world_size(group); i++)
        CHECK(a->all[i] == i % COUNT * (i / COUNT + 1));
}

static int gather_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_gather(group, a->mine, sizeof(a->mine), crw_rank(group) == root ? a->all : NULL, root);
}

static int gather_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_gather_start(group, a->mine, sizeof(a->mine), crw_rank(group) == root ? a->all : NULL, root,
                            work);
}

static void gather_check(struct crw_group *group, const struct arrays *a, int root)
{
    if (crw_rank(group) == root)
        all_gather_check(group, a, root);
}

static int scatter_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_scatter(group, crw_rank(group) == root ? a->all : NULL, sizeof(a->result), a->result, root);
}

static int scatter_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_scatter_start(group, crw_rank(group) == root ? a->all : NULL, sizeof(a->result), a->result,
                             root, work);
}

static void scatter_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(a->result[i] == crw_rank(group) * COUNT + i + root);
}

static int barrier_now(struct crw_group *group, struct arrays *a, int root)
{
    return crw_barrier(group);
}

static int barrier_start(struct crw_group *group, struct arrays *a, int root, struct crw_work **work)
{
    return crw_barrier_start(group, work);
}

static void barrier_check(struct crw_group *group, const struct arrays *a, int root)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(a->mine[i] == i * (crw_rank(group) + 1));
}

static const struct collective collectives[] = {
    {all_reduce_now, all_reduce_start, all_reduce_check},
    {reduce_now, reduce_start, reduce_check},
    {reduce_scatter_now, reduce_scatter_start, reduce_scatter_check},
    {broadcast_now, broadcast_start, broadcast_check},
    {all_gather_now, all_gather_start, all_gather_check},
    {gather_now, gather_start, gather_check},
    {scatter_now, scatter_start, scatter_check},
    {barrier_now, barrier_start, barrier_check},
};

enum { N_COLLECTIVES = sizeof(collectives) / sizeof(collectives[0]) };

static struct arrays *make_arrays(struct crw_group *group, int n)
{
    struct arrays *a = calloc((size_t)n, sizeof(*a));

    CHECK(a);
    for (int i = 0; i < n; i++)
        fill(group, &a[i]);
    return a;
}

/* In turn, each with another root. */
static int call_all(struct crw_group *group, void *data)
{
    struct arrays *a = make_arrays(group, 1);

    for (int c = 0; c < N_COLLECTIVES; c++) {
        int root = c % crw_world_size(group);

        fill(group, a);
        CHECK(collectives[c].now(group, a, root) == 0);
        collectives[c].check(group, a, root);
    }
    free(a);
    return 0;
}

/* All at once; the order in which they are waited for is not the one in which they were started. A call that
 * is not started comes after them. */
static int start_all(struct crw_group *group, void *data)
{
    struct arrays *a = make_arrays(group, N_COLLECTIVES);
    struct crw_work *works[N_COLLECTIVES];
    int64_t last = crw_rank(group);

    for (int round = 0; round < (IS_SANITIZED ? 2 : 5); round++) {
        int root = round % crw_world_size(group);

        for (int c = 0; c < N_COLLECTIVES; c++) {
            fill(group, &a[c]);
            CHECK(collectives[c].start(group, &a[c], root, &works[c]) == 0);
        }
        CHECK(crw_all_reduce(group, &last, 1, CRW_I64, CRW_MAX) == 0);
        CHECK(last == crw_world_size(group) - 1);
        for (int c = N_COLLECTIVES - 1; c >= 0; c--) {
            CHECK(crw_work_test(works[c]));
            CHECK(crw_work_wait(works[c]) == 0);
            collectives[c].check(group, &a[c], root);
        }
    }
    free(a);
    return 0;
}

static int poll_for_one(struct crw_group *group, void *data)
{
    int64_t sum = 1;
    struct crw_work *work;
    int32_t go = 0;

    if (crw_rank(group) == 0) {
        CHECK(crw_all_reduce_start(group, &sum, 1, CRW_I64, CRW_SUM, &work) == 0);
        CHECK(!crw_work_test(work)); /* the other one waits for our message */
        CHECK(crw_send(group, &go, sizeof(go), 1) == 0);
        while (!crw_work_test(work))
            usleep(100);
        CHECK(crw_work_wait(work) == 0);
    } else {
        CHECK(crw_recv(group, &go, sizeof(go), 0) == 0);
        CHECK(crw_all_reduce(group, &sum, 1, CRW_I64, CRW_SUM) == 0);
    }
    CHECK(sum == 2);
    return 0;
}

static void collectives_work(void **state)
{
    run_all_sizes(call_all);
}

static void started_collectives_work(void **state)
{
    run_all_sizes(start_all);
}

static void a_started_collective_can_be_polled(void **state)
{
    run(2, poll_for_one);
}

/* ---- messages ---- */

/* Everybody sends long messages to everybody before anybody receives: started, that is no deadlock. */
static int exchange_started(struct crw_group *group, void *data)
{
    enum { N_BYTES = 600000, N_MESSAGES = 2 };
    static uint8_t in[RANKS_MAX][N_MESSAGES][N_BYTES], out[N_MESSAGES][N_BYTES], bytes[N_BYTES + 256];
    struct crw_work *works[RANKS_MAX * N_MESSAGES * 2];
    int n_works = 0, rank = crw_rank(group), world_size = crw_world_size(group);

    for (int i = 0; i < (int)sizeof(bytes); i++)
        bytes[i] = (uint8_t)i;
    for (int m = 0; m < N_MESSAGES; m++) {
        memcpy(out[m], bytes + rank * 3 + m, N_BYTES);
        for (int peer = 0; peer < world_size; peer++)
            if (peer != rank)
                CHECK(crw_send_start(group, out[m], N_BYTES, peer, &works[n_works++]) == 0);
    }
    for (int m = 0; m < N_MESSAGES; m++)
        for (int peer = world_size - 1; peer >= 0; peer--)
            if (peer != rank)
                CHECK(crw_recv_start(group, in[peer][m], N_BYTES, peer, &works[n_works++]) == 0);
    CHECK(crw_barrier(group) == 0);
    for (int i = 0; i < n_works; i++)
        CHECK(crw_work_wait(works[i]) == 0);
    for (int peer = 0; peer < world_size; peer++)
        for (int m = 0; m < N_MESSAGES; m++)
            CHECK(peer == rank || memcmp(in[peer][m], bytes + peer * 3 + m, N_BYTES) == 0);
    return 0;
}

/* One that is not started comes after those that are. */
static int mix_messages(struct crw_group *group, void *data)
{
    enum { N = 100 };
    int sent[N], got = -1;
    struct crw_work *works[N];

    for (int i = 0; i < N; i++) {
        sent[i] = i;
        if (crw_rank(group) == 0 && i % 2)
            CHECK(crw_send(group, &sent[i], sizeof(got), 1) == 0);
        else if (crw_rank(group) == 0)
            CHECK(crw_send_start(group, &sent[i], sizeof(got), 1, &works[i]) == 0);
        else
            CHECK(crw_recv(group, &got, sizeof(got), 0) == 0 && got == i);
    }
    for (int i = 0; crw_rank(group) == 0 && i < N; i += 2)
        CHECK(crw_work_wait(works[i]) == 0);
    return 0;
}

/* A ring, as pipelines do it. */
static int pass_around(struct crw_group *group, void *data)
{
    int rank = crw_rank(group), world_size = crw_world_size(group);
    int64_t token = 0;

    for (int round = 0; round < 300; round++) {
        if (rank > 0)
            CHECK(crw_recv(group, &token, sizeof(token), rank - 1) == 0);
        token++;
        CHECK(crw_send(group, &token, sizeof(token), (rank + 1) % world_size) == 0);
        if (rank == 0)
            CHECK(crw_recv(group, &token, sizeof(token), world_size - 1) == 0);
        CHECK(token == (int64_t)round * world_size + (rank == 0 ? world_size : rank + 1));
        if (rank > 0)
            token = 0;
    }
    return 0;
}

static void started_messages_pass_each_other(void **state)
{
    run_all_sizes(exchange_started);
}

static void messages_keep_their_order(void **state)
{
    run(2, mix_messages);
}

static void messages_go_around(void **state)
{
    run(2, pass_around);
    run(5, pass_around);
}

/* ---- groups of ranks ---- */

/* The group's own numbers, in the order of the members; nobody hears the others' calls. */
static int halve(struct crw_group *group, void *data)
{
    int rank = crw_rank(group), world_size = crw_world_size(group), n[2] = {0, 0};
    int members[2][RANKS_MAX];
    struct crw_group *halves[2], *mine;

    for (int i = world_size - 1; i >= 0; i--)
        members[i % 2][n[i % 2]++] = i;
    for (int h = 0; h < 2; h++)
        CHECK(crw_group_new(group, members[h], n[h], &halves[h]) == 0);
    CHECK(!halves[!(rank % 2)]);
    mine = halves[rank % 2];
    CHECK(mine && crw_world_size(mine) == n[rank % 2] && members[rank % 2][crw_rank(mine)] == rank);
    CHECK(crw_is_primary(mine) == (rank >= world_size - 2));
    for (int round = 0; round < 100 * (1 + rank % 2); round++) {
        int64_t sum = rank;

        CHECK(crw_all_reduce(mine, &sum, 1, CRW_I64, CRW_SUM) == 0);
        CHECK(sum == (rank % 2 ? n[1] * n[1] : n[0] * (n[0] - 1)));
    }
    call_all(mine, NULL);
    start_all(mine, NULL);
    exchange_started(mine, NULL);
    CHECK(crw_barrier(group) == 0);
    crw_group_destroy(mine);
    CHECK(crw_barrier(group) == 0);
    return 0;
}

/* Groups of groups, arenas of their own, and a mistake in one that the other does not hear of. */
static int nest(struct crw_group *group, void *data)
{
    static const int outer_members[] = {3, 1, 2}, inner_members[] = {2, 0};
    struct crw_group *outer, *inner = NULL;
    float *shared;

    CHECK(crw_group_new(group, outer_members, 3, &outer) == 0);
    CHECK(!outer == (crw_rank(group) == 0));
    if (outer) {
        CHECK(crw_group_new(outer, inner_members, 2, &inner) == 0); /* the world's 2 and 3 */
        CHECK(!inner == (crw_rank(group) == 1));
    }
    if (inner) {
        CHECK(crw_rank(inner) == (crw_rank(group) == 3));
        CHECK(crw_shared_alloc(inner, 1000 * sizeof(*shared), (void **)&shared) == 0);
        for (int i = 0; i < 1000; i++)
            shared[i] = (float)(crw_rank(inner) + i);
        CHECK(crw_all_reduce(inner, shared, 1000, CRW_F32, CRW_SUM) == 0);
        CHECK(shared[999] == 1999);
        CHECK(crw_broadcast(inner, shared, 4, crw_rank(inner)) == CRW_E_ARGUMENT);
        CHECK(crw_all_reduce(outer, shared, 1000, CRW_F32, CRW_MAX) == 0);
        CHECK(shared[999] == 1999);
    } else if (outer) {
        float other[1000] = {0};

        CHECK(crw_all_reduce(outer, other, 1000, CRW_F32, CRW_MAX) == 0);
        CHECK(other[999] == 1999);
    }
    CHECK(crw_barrier(group) == 0);
    crw_group_destroy(outer); /* before the one that was made from it */
    if (inner)
        CHECK(crw_barrier(inner) == 0);
    crw_group_destroy(inner);
    return 0;
}

static int ask_for_nonsense(struct crw_group *group, void *data)
{
    static const int twice[] = {0, 0}, outside[] = {0, 2}, negative[] = {-1};
    int self = crw_rank(group);
    struct crw_group *none = group;

    CHECK(crw_group_new(group, twice, 2, &none) == CRW_E_ARGUMENT);
    CHECK(strstr(crw_error_message(), "twice"));
    CHECK(crw_group_new(group, outside, 2, &none) == CRW_E_ARGUMENT);
    CHECK(crw_group_new(group, negative, 1, &none) == CRW_E_ARGUMENT);
    CHECK(crw_group_new(group, twice, 0, &none) == CRW_E_ARGUMENT);
    CHECK(crw_group_new(group, &self, 1, &none) == CRW_E_ARGUMENT);
    CHECK(strstr(crw_error_message(), "different members"));
    /* One rank's mistake is everybody's result. */
    CHECK(crw_group_new(group, self ? outside : &self, self ? 2 : 1, &none) == CRW_E_ARGUMENT);
    CHECK(strstr(crw_error_message(), self ? "cannot be a member" : "rank 1 failed in the same call"));
    CHECK(none == group);
    CHECK(crw_barrier(group) == 0);
    return 0;
}

static void groups_of_ranks_work(void **state)
{
    for (int world_size = 2; world_size <= RANKS_MAX; world_size++)
        run(world_size, halve);
}

static void groups_of_groups_work(void **state)
{
    run(4, nest);
}

static void impossible_groups_are_refused(void **state)
{
    run(2, ask_for_nonsense);
}

/* The end of a rank ends its groups and no other. */
static int lose_a_stranger(struct crw_group *group, void *data)
{
    static const int left[] = {0, 1}, right[] = {2, 3};
    struct crw_group *pair, *other;
    int64_t value = 1;

    CHECK(crw_group_new(group, left, 2, &pair) == 0);
    CHECK(crw_group_new(group, right, 2, &other) == 0);
    if (crw_rank(group) == 3)
        raise(SIGKILL);
    if (crw_rank(group) == 2) {
        CHECK(crw_barrier(other) == CRW_E_PEER);
        CHECK(strstr(crw_error_message(), "rank 1 ended")); /* in the pair */
        return 0;
    }
    CHECK(crw_barrier(group) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank 3 ended"));
    CHECK(crw_all_reduce(pair, &value, 1, CRW_I64, CRW_SUM) == 0 && value == 2);
    return 0;
}

static void a_death_ends_the_groups_of_the_dead(void **state)
{
    assert_int_equal(crw_launch(lose_a_stranger, NULL, 4), CRW_E_PEER);
    assert_non_null(strstr(crw_error_message(), "worker 3 of 4 was killed by signal 9"));
}

/* ---- peers that die in the middle ---- */

/* Which call, and how. */
struct death {
    int collective; /* or N_COLLECTIVES: a message */
    bool started;
    double *died_ms; /* shared: when */
};

static int receive_or_call(struct crw_group *group, const struct death *death, struct arrays *a)
{
    struct crw_work *work;
    int last = crw_world_size(group) - 1, r;

    if (death->collective == N_COLLECTIVES)
        r = death->started ? crw_recv_start(group, a->mine, sizeof(a->mine), last, &work)
                           : crw_recv(group, a->mine, sizeof(a->mine), last);
    else
        r = death->started ? collectives[death->collective].start(group, a, 0, &work)
                           : collectives[death->collective].now(group, a, 0);
    return death->started && r == 0 ? crw_work_wait(work) : r;
}

/* The last rank takes part a few times and dies; the others must come back from the call in which it is
 * missing, or from the next one. */
static int lose_the_last(struct crw_group *group, void *data)
{
    const struct death *death = data;
    struct arrays *a = make_arrays(group, 1);
    bool last = crw_rank(group) == crw_world_size(group) - 1;
    int r = 0;

    for (int i = 0; i < 3 && death->collective < N_COLLECTIVES; i++)
        CHECK(collectives[death->collective].now(group, a, 0) == 0);
    if (last) {
        usleep(3000); /* the others are asleep by then */
        *death->died_ms = now_ms();
        raise(SIGKILL);
    }
    for (int i = 0; i < 3 && r == 0; i++)
        r = receive_or_call(group, death, a);
    CHECK(r == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank"));
    CHECK(crw_barrier(group) == CRW_E_PEER);
    free(a);
    return CRW_E_PEER;
}

enum { FREED_MS = 20000 }; /* on a busy machine, and well before any time-out; test_group.c measures closer */

static void a_killed_peer_ends_every_call(void **state)
{
    double *died_ms = mmap(NULL, sizeof(*died_ms), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(died_ms != MAP_FAILED);
    for (int c = 0; c <= N_COLLECTIVES; c++) {
        for (int started = 0; started < 2; started++) {
            struct death death = {.collective = c, .started = started, .died_ms = died_ms};

            assert_int_equal(crw_launch(lose_the_last, &death, 2 + c % 3), CRW_E_PEER);
            assert_non_null(strstr(crw_error_message(), "was killed by signal 9"));
            assert_true(now_ms() - *died_ms < FREED_MS);
        }
    }
    munmap(died_ms, sizeof(*died_ms));
}

/* A long message whose receiver dies: the sender must not wait for room for ever. */
static int send_to_the_dead(struct crw_group *group, void *data)
{
    static uint8_t bytes[1000000];

    if (crw_rank(group) == 1) {
        CHECK(crw_recv(group, bytes, 1, 0) == 0);
        raise(SIGKILL);
    }
    CHECK(crw_send(group, bytes, 1, 1) == 0);
    CHECK(crw_send(group, bytes, sizeof(bytes), 1) == CRW_E_PEER);
    return CRW_E_PEER;
}

static void a_killed_receiver_frees_its_sender(void **state)
{
    assert_int_equal(crw_launch(send_to_the_dead, NULL, 2), CRW_E_PEER);
    assert_non_null(strstr(crw_error_message(), "worker 1 of 2 was killed by signal 9"));
}

/* All that were started fail, each by itself. */
static int start_into_the_void(struct crw_group *group, void *data)
{
    struct arrays *a = make_arrays(group, N_COLLECTIVES);
    struct crw_work *works[N_COLLECTIVES];

    if (crw_rank(group) == 1)
        raise(SIGKILL);
    for (int c = 0; c < N_COLLECTIVES; c++)
        CHECK(collectives[c].start(group, &a[c], 0, &works[c]) == 0);
    for (int c = 0; c < N_COLLECTIVES; c++) {
        CHECK(crw_work_wait(works[c]) == CRW_E_PEER);
        CHECK(strstr(crw_error_message(), "rank 1 ended"));
    }
    free(a);
    return CRW_E_PEER;
}

static void all_that_were_started_fail(void **state)
{
    assert_int_equal(crw_launch(start_into_the_void, NULL, 2), CRW_E_PEER);
}

/* ---- arguments ---- */

static int call_wrongly(struct crw_group *group, void *data)
{
    struct crw_work *work = NULL;
    float x[2] = {0, 0};
    int self = crw_rank(group);

    CHECK(crw_reduce(group, x, 1, CRW_F32, CRW_SUM, 2) == CRW_E_ARGUMENT);
    CHECK(crw_reduce(group, x, 1, CRW_U8, CRW_SUM, 0) == CRW_E_ARGUMENT);
    CHECK(crw_reduce_scatter(group, x, x, SIZE_MAX / 8, CRW_F32, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(crw_gather(group, x, 4, x, -1) == CRW_E_ARGUMENT);
    CHECK(crw_gather(group, x, SIZE_MAX, x, 0) == CRW_E_ARGUMENT);
    CHECK(crw_scatter(group, x, 4, x, 2) == CRW_E_ARGUMENT);
    CHECK(crw_send(group, x, 4, self) == CRW_E_ARGUMENT);
    CHECK(crw_send(group, x, 4, 2) == CRW_E_ARGUMENT);
    CHECK(crw_recv(group, x, 4, -1) == CRW_E_ARGUMENT);
    CHECK(crw_recv(group, x, SIZE_MAX, !self) == CRW_E_ARGUMENT);
    CHECK(crw_all_reduce_start(group, x, 1, CRW_BOOL, CRW_SUM, &work) == CRW_E_ARGUMENT);
    CHECK(crw_broadcast_start(group, x, 4, 9, &work) == CRW_E_ARGUMENT);
    CHECK(crw_send_start(group, x, 4, self, &work) == CRW_E_ARGUMENT);
    CHECK(!work);
    CHECK(crw_store_set(group, "key", "value", 5) == CRW_E_ENVIRONMENT);
    CHECK(crw_barrier(group) == 0);
    return 0;
}

static void wrong_arguments_are_refused(void **state)
{
    run(2, call_wrongly);
}

/* ---- crw_launch ---- */

struct seen {
    int rank[4], n;
};

static int write_to_shared(struct crw_group *group, void *data)
{
    struct seen *seen = data;

    CHECK(crw_barrier(group) == 0);
    seen->rank[crw_rank(group)] = crw_world_size(group);
    return 0;
}

static void workers_share_what_was_shared(void **state)
{
    struct seen *seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct seen own = {.n = 7};

    assert_true(seen != MAP_FAILED);
    assert_int_equal(crw_launch(write_to_shared, seen, 4), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(seen->rank[i], 4);
    assert_int_equal(crw_launch(write_to_shared, &own, 2), 0);
    assert_true(own.n == 7 && own.rank[0] == 0);
    munmap(seen, sizeof(*seen));
}

static int return_three(struct crw_group *group, void *data)
{
    if (crw_rank(group) == 1)
        return 3;
    return crw_barrier(group);
}

static int return_errno(struct crw_group *group, void *data)
{
    return crw_rank(group) == 0 ? -5 : 0;
}

static int return_failure(struct crw_group *group, void *data)
{
    return crw_rank(group) == 1 ? crw_broadcast(group, data, 1, 7) : crw_barrier(group);
}

/* Rank 0 does not listen to SIGTERM and looks at nothing. */
static int hang_on(struct crw_group *group, void *data)
{
    if (crw_rank(group) == 1)
        return 4;
    for (;;)
        pause();
}

/* Who has to be killed is killed after five seconds. A busy machine may need as long, but not every time. */
static void expect_nobody_is_killed(int (*worker)(struct crw_group *group, void *data), int n_workers,
                                    const char *message)
{
    double took_ms = 1e9;

    for (int round = 0; round < 5 && took_ms > 4500; round++) {
        double began_ms = now_ms();

        assert_int_equal(crw_launch(worker, NULL, n_workers), CRW_E_PEER);
        assert_string_equal(crw_error_message(), message);
        took_ms = now_ms() - began_ms;
    }
    assert_true(took_ms < 4500);
}

static void results_of_workers_are_told(void **state)
{
    expect_nobody_is_killed(return_three, 3, "worker 1 of 3 ended with 3");
    expect_nobody_is_killed(return_errno, 2,
                            "worker 0 of 2 ended with 1"); /* and not with the sentence before */
    expect_nobody_is_killed(return_failure, 2,
                            "worker 1 of 2 ended with 9: rank 7 cannot be the root: there are 2 ranks");
    assert_int_equal(crw_launch(hang_on, NULL, 2), CRW_E_PEER);
    assert_string_equal(crw_error_message(), "worker 1 of 2 ended with 4");
    assert_int_equal(crw_launch(return_three, NULL, 0), CRW_E_ARGUMENT);
    assert_int_equal(crw_launch(return_three, NULL, 1000000), CRW_E_ARGUMENT);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static int say_something(struct crw_group *group, void *data)
{
    printf("rank %d;", crw_rank(group));
    return 0;
}

/* What the parent had in its buffer is written once, and what the workers say is not lost. */
static void stdio_is_written_once(void **state)
{
    char path[] = "/tmp/crw-launch.XXXXXX", text[200] = "";
    int fd = mkstemp(path), before = dup(STDOUT_FILENO);

    assert_true(fd >= 0 && before >= 0);
    unlink(path);
    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    printf("parent;");
    assert_int_equal(crw_launch(say_something, NULL, 1), 0);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
    assert_string_equal(text, "parent;rank 0;");
    close(fd);
    close(before);
}

static int leave_together(struct crw_group *group, void *data)
{
    struct crw_group *own = NULL;
    int self = crw_rank(group);

    if (self == 0)
        usleep(20000);
    CHECK(crw_finish(NULL) == 0);
    CHECK(crw_group_new(group, (const int[]){0, 1}, 2, &own) == 0);
    CHECK(crw_finish(own) == 0);
    return 0;
}

static void finishing_waits_for_all(void **state)
{
    run(2, leave_together);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_work),
        cmocka_unit_test(started_collectives_work),
        cmocka_unit_test(a_started_collective_can_be_polled),
        cmocka_unit_test(started_messages_pass_each_other),
        cmocka_unit_test(messages_keep_their_order),
        cmocka_unit_test(messages_go_around),
        cmocka_unit_test(groups_of_ranks_work),
        cmocka_unit_test(groups_of_groups_work),
        cmocka_unit_test(impossible_groups_are_refused),
        cmocka_unit_test(a_death_ends_the_groups_of_the_dead),
        cmocka_unit_test(a_killed_peer_ends_every_call),
        cmocka_unit_test(a_killed_receiver_frees_its_sender),
        cmocka_unit_test(all_that_were_started_fail),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(workers_share_what_was_shared),
        cmocka_unit_test(results_of_workers_are_told),
        cmocka_unit_test(stdio_is_written_once),
        cmocka_unit_test(finishing_waits_for_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
