/*
 * The group as a program meets it: ranks are processes that find each other through a real store daemon
 * (the first argument is its path), as under crun and torchrun. What is said about failures is tried by
 * killing ranks and by playing the launcher on the notice socket.
 */

#include "proto/worker_notice.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/group/group_os.h"
#include "tests/support/c/daemon_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/clock.h"
#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/rank_check.h"

enum { RANKS_MAX = 4 };

static int generation; /* of the test that runs: each has keys of its own */

/* ---- memory that runs out ---- */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

static _Thread_local bool next_calloc_fails;

/* The linker sends calloc() here. */
void *__wrap_calloc(size_t n, size_t size)
{
    if (!next_calloc_fails)
        return __real_calloc(n, size);
    next_calloc_fails = false;
    errno = ENOMEM;
    return NULL;
}

/* ---- ranks ---- */

static struct crw_env env_of(int rank, int world_size)
{
    struct crw_env env = {
        .launched = true,
        .rank = rank,
        .world_size = world_size,
        .local_rank = rank,
        .local_world_size = world_size,
        .group_world_size = 1,
        .generation = generation,
        .master_addr = "127.0.0.1",
        .master_port = daemon_port,
        .notice_fd = -1,
    };

    return env;
}

static int ready_pipe[2];

static void say_ready(void)
{
    CHECK(write(ready_pipe[1], "r", 1) == 1);
}

static void wait_ready(int n)
{
    for (int i = 0; i < n; i++) {
        char c;

        assert_int_equal(read(ready_pipe[0], &c, 1), 1);
    }
}

typedef void (*body_fn)(struct crw_group *group);

static struct crw_env own_env; /* of a rank */

static void run_rank(struct crw_env env, body_fn body)
{
    struct crw_group *group;

    own_env = env;
    CHECK(crw_group_create(&env, &group) == 0);
    body(group);
    crw_group_destroy(group);
    _exit(0);
}

struct ranks {
    int world_size;
    pid_t pids[RANKS_MAX];
    int notice_fds[RANKS_MAX]; /* the launcher's ends; -1 without notices */
};

static void start_ranks(struct ranks *r, int world_size, bool notices, body_fn body)
{
    generation++;
    r->world_size = world_size;
    assert_int_equal(pipe2(ready_pipe, O_CLOEXEC), 0);
    for (int rank = 0; rank < world_size; rank++) {
        struct crw_env env = env_of(rank, world_size);
        int fds[2] = {-1, -1};

        if (notices)
            assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
        env.notice_fd = fds[1];
        r->pids[rank] = fork();
        assert_true(r->pids[rank] >= 0);
        if (r->pids[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing */
            run_rank(env, body);
        }
        r->notice_fds[rank] = fds[0];
        if (fds[1] >= 0)
            close(fds[1]);
    }
}

static void expect_exit(pid_t pid, int code)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void finish_ranks(struct ranks *r)
{
    for (int rank = 0; rank < r->world_size; rank++)
        if (r->notice_fds[rank] >= 0)
            close(r->notice_fds[rank]);
    close(ready_pipe[0]);
    close(ready_pipe[1]);
}

static void run_ranks(int world_size, body_fn body)
{
    struct ranks r;

    start_ranks(&r, world_size, false, body);
    for (int rank = 0; rank < world_size; rank++)
        expect_exit(r.pids[rank], 0);
    finish_ranks(&r);
}

static void notify(const struct ranks *r, int rank, struct worker_notice notice)
{
    uint8_t record[NOTICE_SIZE];

    worker_notice_encode(&notice, record);
    /* A rank that another one freed may have ended already. */
    if (send(r->notice_fds[rank], record, sizeof(record), MSG_NOSIGNAL) < 0)
        assert_true(errno == EPIPE || errno == ECONNRESET);
}

/* ---- what works ---- */

static void use_everything(struct crw_group *group)
{
    int rank = crw_rank(group), world_size = crw_world_size(group);
    int64_t sum, all[RANKS_MAX];
    float *shared;
    char *value;
    char key[32];
    size_t n;

    for (int round = 0; round < 50; round++) {
        sum = rank + 1;
        CHECK(crw_all_reduce(group, &sum, 1, CRW_I64, CRW_SUM) == 0);
        CHECK(sum == world_size * (world_size + 1) / 2);
    }
    CHECK(crw_shared_alloc(group, 100000 * sizeof(*shared), (void **)&shared) == 0);
    for (int i = 0; i < 100000; i++)
        shared[i] = (float)(rank + i);
    CHECK(crw_all_reduce(group, shared, 100000, CRW_F32, CRW_MAX) == 0);
    for (int i = 0; i < 100000; i++)
        CHECK(shared[i] == (float)(world_size - 1 + i));
    sum = rank * 10;
    CHECK(crw_all_gather(group, &sum, sizeof(sum), all) == 0);
    for (int i = 0; i < world_size; i++)
        CHECK(all[i] == i * 10);
    CHECK(crw_broadcast(group, &sum, sizeof(sum), world_size - 1) == 0);
    CHECK(sum == (world_size - 1) * 10);
    CHECK(crw_barrier(group) == 0);
    CHECK(!crw_stop_requested(group));

    (void)snprintf(key, sizeof(key), "test/%d/name", generation);
    if (rank == world_size - 1)
        CHECK(crw_store_set(group, key, "value", 5) == 0);
    CHECK(crw_store_get(group, key, 10000, (void **)&value, &n) == 0);
    CHECK(n == 5 && strcmp(value, "value") == 0);
    free(value);
    (void)snprintf(key, sizeof(key), "test/%d/count", generation);
    CHECK(crw_store_add(group, key, 2, &sum) == 0);
    CHECK(sum % 2 == 0 && sum <= 2 * world_size);
    CHECK(crw_store_get(group, "test/nobody", 50, (void **)&value, &n) == CRW_E_TIMEOUT);
    CHECK(strstr(crw_error_message(), "test/nobody"));
}

static void groups_work(void **state)
{
    for (int world_size = 1; world_size <= RANKS_MAX; world_size++)
        run_ranks(world_size, use_everything);
}

static void a_process_can_have_several(struct crw_group *group)
{
    struct crw_env env = env_of(crw_rank(group), crw_world_size(group));
    struct crw_group *second, *third;

    CHECK(crw_group_create(&env, &second) == 0);
    CHECK(crw_barrier(second) == 0);
    CHECK(crw_barrier(group) == 0);
    crw_group_destroy(second);
    CHECK(crw_group_create(&env, &third) == 0);
    use_everything(third);
    crw_group_destroy(third);
    CHECK(crw_barrier(group) == 0);
}

static void several_groups_work(void **state)
{
    run_ranks(2, a_process_can_have_several);
}

static void one_rank_needs_nobody(void **state)
{
    struct crw_env env = {.world_size = 1, .local_world_size = 1, .group_world_size = 1, .notice_fd = -1};
    float data[100000], *shared;
    struct crw_group *group;
    uint8_t all[3];

    assert_int_equal(crw_group_create(&env, &group), 0);
    for (int i = 0; i < 100000; i++)
        data[i] = (float)i;
    assert_int_equal(crw_all_reduce(group, data, 100000, CRW_F32, CRW_AVG), 0);
    assert_true(data[99999] == 99999);
    assert_int_equal(crw_shared_alloc(group, 4000, (void **)&shared), 0);
    shared[999] = 3;
    assert_int_equal(crw_all_reduce(group, shared, 1000, CRW_F32, CRW_SUM), 0);
    assert_true(shared[999] == 3 && shared[0] == 0);
    assert_int_equal(crw_broadcast(group, data, sizeof(data), 0), 0);
    assert_int_equal(crw_all_gather(group, "abc", 3, all), 0);
    assert_memory_equal(all, "abc", 3);
    assert_int_equal(crw_barrier(group), 0);
    assert_int_equal(crw_store_set(group, "k", "v", 1), CRW_E_ENVIRONMENT);
    crw_group_destroy(group);
    crw_group_destroy(NULL);
}

static void wrong_calls_are_refused(struct crw_group *group)
{
    float x = 0;
    void *data;

    CHECK(crw_all_reduce(group, &x, 1, CRW_F16, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(crw_all_reduce(group, &x, SIZE_MAX / 4, CRW_F32, CRW_SUM) == CRW_E_ARGUMENT);
    CHECK(crw_broadcast(group, &x, 4, 2) == CRW_E_ARGUMENT);
    CHECK(crw_broadcast(group, &x, 4, -1) == CRW_E_ARGUMENT);
    CHECK(crw_broadcast(group, &x, SIZE_MAX, 0) == CRW_E_ARGUMENT);
    CHECK(crw_all_gather(group, &x, SIZE_MAX, &x) == CRW_E_ARGUMENT);
    CHECK(crw_shared_alloc(group, SIZE_MAX, &data) == CRW_E_ARGUMENT);
    CHECK(crw_barrier(group) == 0);
}

static void wrong_arguments_are_refused(void **state)
{
    struct crw_env env = env_of(0, 2);
    struct crw_group *group;

    run_ranks(2, wrong_calls_are_refused);
    env.local_world_size = 1;
    assert_int_equal(crw_group_create(&env, &group), CRW_E_ENVIRONMENT);
    assert_non_null(strstr(crw_error_message(), "GROUP_WORLD_SIZE is 1"));
    env = env_of(2, 2);
    assert_int_equal(crw_group_create(&env, &group), CRW_E_ARGUMENT);
}

/* ---- an address ---- */

static void address_of_daemon(char address[64])
{
    (void)snprintf(address, 64, "tcp://127.0.0.1:%d", daemon_port);
}

static pid_t start_by_address(int rank, int world_size)
{
    pid_t pid = fork();
    char address[64];

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    address_of_daemon(address);
    for (int round = 0; round < 2; round++) {
        struct crw_group *group;

        CHECK(crw_init(address, rank, world_size, &group) == 0);
        CHECK(crw_rank(group) == rank && crw_world_size(group) == world_size);
        CHECK(crw_is_primary(group) == (rank == 0));
        CHECK(crw_finish(group) == 0);
    }
    _exit(0);
}

static void start_all_by_address(void)
{
    enum { WORLD_SIZE = 3 };
    pid_t pids[WORLD_SIZE];

    for (int rank = WORLD_SIZE - 1; rank >= 0; rank--)
        pids[rank] = start_by_address(rank, WORLD_SIZE);
    for (int rank = 0; rank < WORLD_SIZE; rank++)
        expect_exit(pids[rank], 0);
}

/* Nobody started these ranks, and the store outlives them: the next ones use it again, and are not led
 * astray by what a job left there that died while it met. */
static void an_address_is_enough(void **state)
{
    char address[64];
    struct crw_group *group;

    start_all_by_address();
    start_all_by_address();
    address_of_daemon(address);
    assert_int_equal(crw_init(address, 0, 1, &group), 0);
    assert_int_equal(crw_store_set(group, "crw/group/0/0", "-/0 1 999999 7 7", 16), 0);
    assert_int_equal(crw_finish(group), 0);
    start_all_by_address();
}

static void no_address_is_the_environment(void **state)
{
    struct crw_group *group;

    unsetenv("RANK");
    assert_int_equal(crw_init(NULL, 5, 3, &group), 0);
    assert_int_equal(crw_rank(group), 0);
    assert_int_equal(crw_world_size(group), 1);
    assert_int_equal(crw_finish(group), 0);
    assert_int_equal(crw_finish(NULL), 0);
    setenv("RANK", "x", 1);
    assert_int_equal(crw_init(NULL, 0, 1, &group), CRW_E_ENVIRONMENT);
    unsetenv("RANK");
    assert_int_equal(crw_init("127.0.0.1:1", 0, 1, &group), CRW_E_ARGUMENT);
    assert_int_equal(crw_init("tcp://127.0.0.1:1", 1, 1, &group), CRW_E_ARGUMENT);
}

/* ---- peers that die ---- */

static void wait_for_the_last(struct crw_group *group)
{
    float data[5000] = {0};
    int last = crw_world_size(group) - 1;

    say_ready();
    if (crw_rank(group) == last)
        pause();
    CHECK(crw_all_reduce(group, data, 5000, CRW_F32, CRW_SUM) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank") && strstr(crw_error_message(), "group is over"));
    CHECK(crw_barrier(group) == CRW_E_PEER);
    _exit(7);
}

/* How long it took until all but the last were free. */
static double expect_freed(struct ranks *r, double since_ms)
{
    for (int rank = 0; rank < r->world_size - 1; rank++)
        expect_exit(r->pids[rank], 7);
    return now_ms() - since_ms;
}

/* One fast round shows that nobody waits for a time-out; each round may meet a busy machine. */
enum { ROUNDS = 5, FREED_BUSY_MS = 20000 };
#ifdef __SANITIZE_THREAD__
enum { FREED_MS = FREED_BUSY_MS }; /* it lets every process sleep a second before it ends */
#else
enum { FREED_MS = 1000 };
#endif

static void repeat(double (*round)(void))
{
    double fastest_ms = FREED_BUSY_MS;

    for (int i = 0; i < ROUNDS; i++) {
        double ms = round();

        assert_true(ms < FREED_BUSY_MS);
        if (ms < fastest_ms)
            fastest_ms = ms;
    }
    assert_true(fastest_ms < FREED_MS);
}

/* Kills the last rank while the others wait. */
static double kill_the_last(int world_size, body_fn body)
{
    struct ranks r;
    double killed_ms, freed_ms;

    start_ranks(&r, world_size, false, body);
    wait_ready(world_size);
    killed_ms = now_ms();
    kill(r.pids[world_size - 1], SIGKILL);
    freed_ms = expect_freed(&r, killed_ms);
    waitpid(r.pids[world_size - 1], NULL, 0);
    finish_ranks(&r);
    return freed_ms;
}

static double kill_one_of_two(void)
{
    return kill_the_last(2, wait_for_the_last);
}

static double kill_one_of_four(void)
{
    return kill_the_last(4, wait_for_the_last);
}

/* Nobody tells: the ranks see it themselves. */
static void a_killed_peer_ends_the_collective(void **state)
{
    repeat(kill_one_of_two);
    repeat(kill_one_of_four);
}

/* The launcher tells, for example of a rank on another host; the peer of this host still lives. */
static double tell_of_a_failure(void)
{
    struct ranks r;
    double told_ms, freed_ms;

    start_ranks(&r, 3, true, wait_for_the_last);
    wait_ready(3);
    told_ms = now_ms();
    for (int rank = 0; rank < 3; rank++)
        notify(&r, rank, (struct worker_notice){NOTICE_PEER_FAILED, (uint32_t)generation, 17, -11});
    freed_ms = expect_freed(&r, told_ms);
    kill(r.pids[2], SIGKILL);
    waitpid(r.pids[2], NULL, 0);
    finish_ranks(&r);
    return freed_ms;
}

static void a_notice_ends_the_collective(void **state)
{
    repeat(tell_of_a_failure);
}

static int go[2];

static void meet_when_told(struct crw_group *group)
{
    char byte;

    say_ready();
    CHECK(read(go[0], &byte, 1) == 1);
    CHECK(crw_barrier(group) == 0);
}

static void run_out_of_memory(struct crw_group *group)
{
    const int members[] = {0, 1};
    float gradients[100];
    struct crw_group *second;
    struct crw_reducer *reducer;

    next_calloc_fails = crw_rank(group) == 1;
    CHECK(crw_group_new(group, members, 2, &second) == -ENOMEM);
    CHECK(!next_calloc_fails);
    CHECK(crw_barrier(group) == 0);
    next_calloc_fails = crw_rank(group) == 1;
    CHECK(crw_reducer_create(group, gradients, 100, 0, &reducer) == -ENOMEM);
    CHECK(!next_calloc_fails);
    CHECK(crw_barrier(group) == 0);
    CHECK(crw_group_new(group, members, 2, &second) == 0);
    crw_group_destroy(second);
}

static void memory_that_runs_out_on_one_rank_fails_all(void **state)
{
    run_ranks(2, run_out_of_memory);
}

/* The notice says that rank 1 has ended, so that it ends the groups of both worlds. */
static void wait_in_two_worlds(struct crw_group *group)
{
    struct crw_group *second;
    char c;

    CHECK(crw_group_create(&own_env, &second) == 0);
    CHECK(crw_barrier(second) == 0);
    say_ready();
    CHECK(crw_recv(group, &c, 1, 1 - crw_rank(group)) == CRW_E_PEER);
    CHECK(crw_recv(second, &c, 1, 1 - crw_rank(group)) == CRW_E_PEER);
    crw_group_destroy(second);
    CHECK(crw_group_create(&own_env, &second) == CRW_E_PEER); /* one that comes later knows it, too */
}

static void a_notice_ends_all_worlds(void **state)
{
    struct ranks r;

    setenv("CRW_TIMEOUT_MS", "5000", 1);
    start_ranks(&r, 2, true, wait_in_two_worlds);
    unsetenv("CRW_TIMEOUT_MS");
    wait_ready(2);
    for (int rank = 0; rank < 2; rank++)
        notify(&r, rank, (struct worker_notice){NOTICE_PEER_FAILED, (uint32_t)generation, 1, 9});
    for (int rank = 0; rank < 2; rank++)
        expect_exit(r.pids[rank], 0);
    finish_ranks(&r);
}

static void notices_of_other_generations_are_dropped(void **state)
{
    struct ranks r;

    assert_int_equal(pipe(go), 0);
    start_ranks(&r, 2, true, meet_when_told);
    wait_ready(2);
    notify(&r, 0, (struct worker_notice){NOTICE_PEER_FAILED, (uint32_t)generation + 1, 1, 1});
    notify(&r, 1, (struct worker_notice){99, (uint32_t)generation, 1, 1});
    assert_int_equal(send(r.notice_fds[0], "short", 5, MSG_NOSIGNAL), 5);
    assert_int_equal(write(go[1], "go", 2), 2);
    expect_exit(r.pids[0], 0);
    expect_exit(r.pids[1], 0);
    finish_ranks(&r);
    (void)close(go[0]);
    (void)close(go[1]);
}

static void wait_for_a_key(struct crw_group *group)
{
    void *value;
    size_t n;

    say_ready();
    if (crw_rank(group) == crw_world_size(group) - 1)
        pause();
    CHECK(crw_store_get(group, "test/never", 20000, &value, &n) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "group is over"));
    _exit(7);
}

static double kill_one_of_three(void)
{
    return kill_the_last(3, wait_for_a_key);
}

static void a_killed_peer_ends_the_wait_for_the_store(void **state)
{
    repeat(kill_one_of_three);
}

/* Rank 1 never comes at all, and only the launcher knows. */
static void a_notice_ends_the_meeting(void **state)
{
    struct crw_env env;
    int fds[2], status;
    uint8_t record[NOTICE_SIZE];
    pid_t pid;

    generation++;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    env = env_of(0, 2);
    env.notice_fd = fds[1];
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct crw_group *group;

        _exit(crw_group_create(&env, &group) == CRW_E_PEER ? 7 : 1);
    }
    worker_notice_encode(&(struct worker_notice){NOTICE_PEER_FAILED, (uint32_t)generation, 1, 1}, record);
    assert_int_equal(send(fds[0], record, sizeof(record), MSG_NOSIGNAL), sizeof(record));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    close(fds[0]);
    close(fds[1]);
}

/* ---- stopping ---- */

static void work_until_stopped(struct crw_group *group)
{
    int64_t stop;

    CHECK(crw_stop_enable() == 0);
    say_ready();
    do {
        stop = crw_stop_requested(group);
        CHECK(crw_all_reduce(group, &stop, 1, CRW_I64, CRW_MAX) == 0);
    } while (!stop);
}

static void sigterm_is_a_request(void **state)
{
    struct ranks r;

    start_ranks(&r, 2, false, work_until_stopped);
    wait_ready(2);
    kill(r.pids[1], SIGTERM);
    expect_exit(r.pids[0], 0);
    expect_exit(r.pids[1], 0);
    finish_ranks(&r);
}

static void the_launcher_may_ask(void **state)
{
    struct ranks r;

    start_ranks(&r, 2, true, work_until_stopped);
    wait_ready(2);
    notify(&r, 0, (struct worker_notice){NOTICE_STOP, (uint32_t)generation, -1, SIGTERM});
    expect_exit(r.pids[0], 0);
    expect_exit(r.pids[1], 0);
    finish_ranks(&r);
}

/* It has obeyed the notice already when the signal comes. */
static void stop_and_be_asked_again(struct crw_group *group)
{
    CHECK(crw_stop_enable() == 0);
    while (!crw_stop_requested(group))
        usleep(1000);
    crw_group_destroy(group);
    raise(SIGTERM);
    _exit(0);
}

static void a_signal_behind_the_notice_kills_nobody(void **state)
{
    struct ranks r;

    start_ranks(&r, 1, true, stop_and_be_asked_again);
    notify(&r, 0, (struct worker_notice){NOTICE_STOP, (uint32_t)generation, -1, SIGTERM});
    expect_exit(r.pids[0], 0);
    finish_ranks(&r);
}

static int n_own;

static void own_handler(int signal_number)
{
    n_own++;
}

static void a_handler_of_the_program_stays(void **state)
{
    struct crw_env env = {.world_size = 1, .local_world_size = 1, .group_world_size = 1, .notice_fd = -1};
    struct crw_group *group;
    struct sigaction now;

    signal(SIGTERM, own_handler);
    assert_int_equal(crw_group_create(&env, &group), 0);
    assert_int_equal(crw_stop_enable(), 0);
    raise(SIGTERM);
    assert_int_equal(n_own, 1);
    assert_false(crw_stop_requested(group));
    crw_group_destroy(group);
    assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
    assert_true(now.sa_handler == own_handler);
    signal(SIGTERM, SIG_DFL);
    assert_int_equal(crw_group_create(&env, &group), 0);
    crw_group_destroy(group);
    assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_DFL);
}

/* An embedded library changes no signal by itself: the first call of crw_stop_enable() in this process. */
static void no_handler_unless_asked_for(void)
{
    struct crw_env env = {.world_size = 1, .local_world_size = 1, .group_world_size = 1, .notice_fd = -1};
    struct crw_group *group;
    struct sigaction now;

    CHECK(crw_group_create(&env, &group) == 0);
    CHECK(sigaction(SIGTERM, NULL, &now) == 0);
    CHECK(now.sa_handler == SIG_DFL);
    CHECK(crw_stop_enable() == 0);
    CHECK(sigaction(SIGTERM, NULL, &now) == 0);
    CHECK(now.sa_handler != SIG_DFL);
    crw_group_destroy(group);
    CHECK(sigaction(SIGTERM, NULL, &now) == 0);
    CHECK(now.sa_handler == SIG_DFL);
    CHECK(crw_group_create(&env, &group) == 0); /* asked for once, for the process */
    raise(SIGTERM);
    CHECK(crw_stop_requested(group));
    crw_group_destroy(group);
}

static void no_handler_unless_asked(void **state)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        no_handler_unless_asked_for();
        _exit(0);
    }
    expect_exit(pid, 0);
}

/* A number left in the environment by a parent may be anybody's descriptor. */
static void a_descriptor_of_another_kind_is_left_alone(void **state)
{
    struct crw_env env = {.world_size = 1, .local_world_size = 1, .group_world_size = 1};
    struct crw_group *group;
    int fds[2];
    char c;

    assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
    env.notice_fd = fds[0];
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_int_equal(crw_group_create(&env, &group), 0);
    crw_group_destroy(group);
    assert_int_equal(read(fds[0], &c, 1), 1);
    assert_int_equal(fcntl(fds[0], F_GETFD), 0);
    env.notice_fd = 999;
    assert_int_equal(crw_group_create(&env, &group), 0);
    crw_group_destroy(group);
    close(fds[0]);
    close(fds[1]);
}

/* What group_open_memory() does with a file that another process may have put into the store. */
static int open_described(int fd)
{
    char place[GROUP_PLACE_SIZE];
    int opened = -1, r;

    assert_int_equal(group_describe_memory(fd, place), 0);
    r = group_open_memory(place, &opened);
    if (opened >= 0)
        (void)close(opened);
    return r;
}

static void memory_of_others_is_refused(void **state)
{
    int fd = memfd_create("crw-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int pipes[2];

    (void)state;
    assert_true(fd >= 0 && ftruncate(fd, 4096) == 0 && pipe2(pipes, O_CLOEXEC) == 0);
    assert_int_equal(open_described(fd), CRW_E_ENVIRONMENT); /* it could be cut off under the mapping */
    assert_non_null(strstr(crw_error_message(), "writes to the job's store"));
    assert_int_equal(open_described(pipes[0]), CRW_E_ENVIRONMENT);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(open_described(fd), 0);
    if (geteuid() == 0) {
        assert_int_equal(fchown(fd, 65534, 65534), 0);
        assert_int_equal(open_described(fd), CRW_E_ENVIRONMENT);
    }
    (void)close(fd);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_work),
        cmocka_unit_test(several_groups_work),
        cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(memory_of_others_is_refused),
        cmocka_unit_test(an_address_is_enough),
        cmocka_unit_test(no_address_is_the_environment),
        cmocka_unit_test(a_killed_peer_ends_the_collective),
        cmocka_unit_test(a_notice_ends_the_collective),
        cmocka_unit_test(a_notice_ends_all_worlds),
        cmocka_unit_test(memory_that_runs_out_on_one_rank_fails_all),
        cmocka_unit_test(notices_of_other_generations_are_dropped),
        cmocka_unit_test(a_killed_peer_ends_the_wait_for_the_store),
        cmocka_unit_test(a_notice_ends_the_meeting),
        cmocka_unit_test(sigterm_is_a_request),
        cmocka_unit_test(the_launcher_may_ask),
        cmocka_unit_test(a_signal_behind_the_notice_kills_nobody),
        cmocka_unit_test(no_handler_unless_asked),
        cmocka_unit_test(a_handler_of_the_program_stays),
        cmocka_unit_test(a_descriptor_of_another_kind_is_left_alone),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s CRUND\n", argv[0]);
        return 2;
    }
    daemon_path = argv[1];
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
