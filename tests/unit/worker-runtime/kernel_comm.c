/*
 * Communicators over the fake NCCL: ranks are processes, each with an emulated device of its own, which train
 * together, fail in every way the fake knows, and go on in another size. The test plays the launcher: when a
 * rank dies it makes failed_fd readable for the others.
 *
 * argv[1]: the fake libnccl, argv[2]: a shared object that is no NCCL.
 */

#include "worker-runtime/cuda/backend_os.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "base/err.h"
#include "tests/fakes/fake_nccl.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

enum { WORLD = 3, BATCH = 4, N_ITEMS = 64, N_FEATURES = 20, TIMEOUT_MS = 20000, N_ENTRIES = 256, KILLED = 2 };

static const int everything = 23203, no_revoke = 22703;

const struct backend *crw_backend(void);

static const char *library, *no_library;

/* ---- shared by the processes ---- */

struct shared {
    pthread_mutex_t lock;
    int n_entries;
    struct entry {
        char key[128];
        size_t n_bytes;
        uint8_t value[128];
    } entries[N_ENTRIES];
    uint32_t crc[FAKE_RANKS]; /* of each rank's parameters at the end */
    int timeout_ms, n_attempts;
    _Atomic int n_connected; /* ranks whose communicator is there */
};

static struct shared *shared;
static struct fake_nccl *fake;
static int failed_pipe[2];

#define CHECK(condition) check(condition, #condition, __LINE__)

static void check(bool holds, const char *condition, int line)
{
    if (holds)
        return;
    (void)fprintf(stderr, "process %d, line %d: %s; last error: %s\n", (int)getpid(), line, condition,
                  crw_backend()->error_message());
    _exit(1);
}

static void init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* The store: a table. With the lock held. */
static struct entry *find(const char *key, bool make)
{
    for (int i = 0; i < shared->n_entries; i++)
        if (strcmp(shared->entries[i].key, key) == 0)
            return &shared->entries[i];
    if (!make)
        return NULL;
    CHECK(shared->n_entries < N_ENTRIES);
    struct entry *e = &shared->entries[shared->n_entries++];
    (void)snprintf(e->key, sizeof(e->key), "%s", key);
    return e;
}

static int store_set(struct store_conn *conn, const char *key, const void *value, size_t n_bytes)
{
    pthread_mutex_lock(&shared->lock);
    struct entry *e = find(key, true);
    CHECK(n_bytes <= sizeof(e->value));
    memcpy(e->value, value, n_bytes);
    e->n_bytes = n_bytes;
    pthread_mutex_unlock(&shared->lock);
    return 0;
}

static int store_get(struct store_conn *conn, const char *key, int timeout_ms, void **ret_value,
                     size_t *ret_n_bytes)
{
    for (int waited = 0; waited <= timeout_ms; waited++) {
        pthread_mutex_lock(&shared->lock);
        struct entry *e = find(key, false);
        if (e) {
            *ret_value = malloc(e->n_bytes);
            memcpy(*ret_value, e->value, e->n_bytes);
            *ret_n_bytes = e->n_bytes;
        }
        pthread_mutex_unlock(&shared->lock);
        if (e)
            return 0;
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return CRW_E_TIMEOUT;
}

static int store_add(struct store_conn *conn, const char *key, int64_t amount, int64_t *ret_value)
{
    pthread_mutex_lock(&shared->lock);
    struct entry *e = find(key, true);
    int64_t value = 0;
    if (e->n_bytes)
        memcpy(&value, e->value, sizeof(value));
    value += amount;
    memcpy(e->value, &value, sizeof(value));
    e->n_bytes = sizeof(value);
    pthread_mutex_unlock(&shared->lock);
    *ret_value = value;
    return 0;
}

/* ---- the processes ---- */

typedef void (*rank_main)(int rank);

static void begin(int version, enum fake_fault fault, int fault_rank, int n_faults)
{
    memset(fake, 0, offsetof(struct fake_nccl, groups));
    memset(shared, 0, sizeof(*shared));
    init_lock(&fake->lock);
    init_lock(&shared->lock);
    fake->version = version;
    fake->fault = fault;
    fake->fault_rank = fault_rank;
    fake->n_faults_left = n_faults;
    shared->timeout_ms = 20000;
    shared->n_attempts = 2;
}

/* Starts a process for each rank; like the launcher, makes failed_fd readable for the others when one is killed. */
static void run(int n_ranks, rank_main body, int n_expected_to_die)
{
    pid_t pids[FAKE_RANKS];
    int n_died = 0;
    assert_int_equal(pipe(failed_pipe), 0);
    for (int rank = 0; rank < n_ranks; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0) {
            alarm(120);
            cuda_host_set_devices(FAKE_RANKS);
            close(failed_pipe[1]);
            body(rank);
            _exit(0);
        }
    }
    for (int ended = 0; ended < n_ranks; ended++) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        assert_true(pid > 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
            n_died++;
            assert_int_equal(write(failed_pipe[1], "x", 1), 1);
        } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            for (int rank = 0; rank < n_ranks; rank++)
                kill(pids[rank], SIGKILL);
            while (wait(NULL) > 0)
                continue;
            fail_msg("a rank ended with status %x", status);
        }
    }
    close(failed_pipe[0]);
    close(failed_pipe[1]);
    assert_int_equal(n_died, n_expected_to_die);
    assert_int_equal(fake->n_wrong_devices, 0);
}

static struct backend_comm_options comm_options(const char *name, int rank, int world_size)
{
    return (struct backend_comm_options){
        .library = library,
        .store = {.set = store_set, .get = store_get, .add = store_add},
        .name = name,
        .rank = rank,
        .world_size = world_size,
        .device = rank,
        .timeout_ms = shared->timeout_ms,
        .n_attempts = shared->n_attempts,
        .failed_fd = failed_pipe[0],
    };
}

static int create(const char *name, int rank, int world_size, struct backend_comm **ret)
{
    struct backend_comm_options options = comm_options(name, rank, world_size);
    return crw_backend()->comm_create(&options, ret);
}

/* ---- training ---- */

struct training {
    struct crw_model *model;
    struct backend_reducer reducer;
    struct backend_comm *comm;
    struct backend_trainer *trainer;
    uint64_t step;
};

static struct crw_model *new_model(void)
{
    static const struct crw_layer layers[] = {
        {.kind = CRW_LAYER_LINEAR, .name = "a", .in = N_FEATURES, .out = 33},
        {.kind = CRW_LAYER_RELU},
        {.kind = CRW_LAYER_LINEAR, .name = "b", .in = 33, .out = 4},
        {.kind = CRW_LAYER_LOG_SOFTMAX},
    };
    struct crw_model *model;
    CHECK(crw_model_create(layers, ARRAY_SIZE(layers), (struct crw_shape){N_FEATURES, 1, 1}, BATCH, NULL,
                           &model) == 0);
    crw_model_init(model, 5);
    return model;
}

/* A trainer for the model as it is, after so many steps, in a group; each rank's samples are other ones. */
static void train_in(struct training *t, struct backend_comm *comm, int rank)
{
    static uint8_t items[N_ITEMS * N_FEATURES];
    static int64_t labels[N_ITEMS];
    static float table[256];
    uint32_t list[N_ITEMS];
    for (int i = 0; i < N_ITEMS * N_FEATURES; i++)
        items[i] = (uint8_t)(i * 37 + i / 11);
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        labels[i] = i % 4;
        list[i] = (i + (uint32_t)rank * 16) % N_ITEMS;
    }
    for (int i = 0; i < 256; i++)
        table[i] = (float)i / 255;

    t->comm = comm;
    crw_backend()->comm_reducer(comm, &t->reducer);
    struct backend_trainer_options options = {
        .model = t->model,
        .device = rank,
        .ignore_index = CRW_IGNORE_INDEX,
        .optimizer = {.kind = CRW_SGD, .lr = 0.1},
        .reducer = &t->reducer,
    };
    CHECK(crw_backend()->trainer_create(&options, &t->trainer) == 0);
    const struct crw_samples samples = {.inputs = items, .table = table, .targets = labels, .n = N_ITEMS};
    CHECK(crw_backend()->trainer_set_data(t->trainer, BACKEND_TRAIN, &samples) == 0);
    CHECK(crw_backend()->trainer_upload(t->trainer, t->step) == 0);
    CHECK(crw_backend()->trainer_start(t->trainer, list, N_ITEMS, 0) == 0);
    crw_backend()->comm_guard(comm, t->trainer);
}

/* All ranks of the communicator come here, or it fails: the host's agreement. */
static bool agree(const struct training *t)
{
    char key[64];
    int64_t n;
    (void)snprintf(key, sizeof(key), "agree/%d/%d", t->reducer.n_ranks, (int)t->step);
    CHECK(store_add(NULL, key, 1, &n) == 0);
    while (n < t->reducer.n_ranks && crw_backend()->comm_check(t->comm) == 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        CHECK(store_add(NULL, key, 0, &n) == 0);
    }
    return n >= t->reducer.n_ranks;
}

/* False: the step was not taken. As crw_trainer_wait() and crw_trainer_commit() do it. */
static bool step(struct training *t)
{
    struct crw_trained progress;
    int r = crw_backend()->trainer_step(t->trainer, BATCH, true);
    CHECK(r == 0 || r == CRW_E_PEER || r == -EIO);
    if (r)
        return false;
    CHECK(crw_backend()->trainer_wait(t->trainer, TIMEOUT_MS, &progress) == 0);
    bool whole = crw_backend()->comm_check(t->comm) == 0 && agree(t);
    CHECK(crw_backend()->trainer_end_step(t->trainer, whole) == 0);
    t->step += whole;
    return whole;
}

/* The state comes back to the host, and the trainer goes. */
static void leave(struct training *t)
{
    CHECK(crw_backend()->trainer_stage(t->trainer) == 0);
    CHECK(crw_backend()->trainer_download(t->trainer, TIMEOUT_MS, t->step) == 0);
    crw_backend()->comm_guard(t->comm, NULL);
    crw_backend()->trainer_destroy(t->trainer);
}

static void finish(struct training *t, int rank)
{
    leave(t);
    shared->crc[rank] = crw_model_crc32c(t->model);
    crw_backend()->comm_destroy(t->comm);
    crw_model_destroy(t->model);
}

static void assert_same_parameters(int n_ranks, int without)
{
    int first = without == 0 ? 1 : 0;
    assert_int_not_equal(shared->crc[first], 0);
    for (int rank = first; rank < n_ranks; rank++)
        if (rank != without)
            assert_int_equal(shared->crc[rank], shared->crc[first]);
}

/* ---- all well ---- */

static void train_together(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm;
    CHECK(create("job", rank, WORLD, &comm) == 0);
    train_in(&t, comm, rank);
    for (int s = 0; s < 4; s++)
        CHECK(step(&t));
    CHECK(crw_backend()->comm_check(comm) == 0);
    CHECK(strstr(crw_backend()->comm_describe(comm), "an all-reduce of 4 MiB over 3 GPUs moves "));
    finish(&t, rank);
}

static void trains_over_ranks(void **state)
{
    begin(everything, FAULT_NONE, FAKE_NONE, 0);
    run(WORLD, train_together, 0);
    assert_same_parameters(WORLD, FAKE_NONE);
    assert_int_equal(fake->n_ids, 1);
    assert_int_equal(fake->n_waits_for_graphs, 0); /* each would cost two seconds */

    struct crw_model *untrained = new_model();
    assert_int_not_equal(shared->crc[0], crw_model_crc32c(untrained));
    crw_model_destroy(untrained);
}

static void sum_numbers(int rank)
{
    struct backend_reducer reducer;
    struct backend_comm *comm;
    cudaStream_t stream;
    float values[3] = {(float)rank, 1, (float)(rank * rank)};
    CHECK(create("numbers", rank, WORLD, &comm) == 0);
    CHECK(cudaStreamCreateWithPriority(&stream, 0, 0) == cudaSuccess);
    crw_backend()->comm_reducer(comm, &reducer);
    CHECK(reducer.n_ranks == WORLD && reducer.data == comm);
    CHECK(reducer.enter(comm) == 0);
    CHECK(reducer.sum(comm, values, 3, stream) == 0);
    reducer.leave(comm);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(values[0] == 3 && values[1] == 3 && values[2] == 5);
    crw_backend()->comm_destroy(comm);
}

static void sums_over_ranks(void **state)
{
    begin(everything, FAULT_NONE, FAKE_NONE, 0);
    run(WORLD, sum_numbers, 0);
}

static void alone(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm;
    library = "/nowhere/libnccl.so.2"; /* one needs no NCCL */
    CHECK(create("alone", 0, 1, &comm) == 0);
    train_in(&t, comm, 0);
    CHECK(step(&t));
    finish(&t, 0);
}

static void one_rank_needs_no_nccl(void **state)
{
    begin(everything, FAULT_NONE, FAKE_NONE, 0);
    run(1, alone, 0);
}

/* ---- connecting fails ---- */

static const enum fake_fault init_faults[] = {FAULT_INIT_REFUSED, FAULT_INIT_ERROR, FAULT_INIT_FOR_EVER,
                                              FAULT_ID};

/* One rank fails once: all abort and connect at the second attempt, with a new id. */
static void connects_at_the_second_attempt(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(init_faults); i++) {
        begin(everything, init_faults[i], init_faults[i] == FAULT_ID ? 0 : 1, 1);
        /* Of each attempt: the first uses all of it, the second has to end before. */
        shared->timeout_ms = init_faults[i] == FAULT_INIT_FOR_EVER ? 5000 : 20000;
        run(WORLD, train_together, 0);
        assert_same_parameters(WORLD, FAKE_NONE);
        assert_int_equal(fake->n_ids, init_faults[i] == FAULT_ID ? 1 : 2);
    }
}

static void cannot_connect(int rank)
{
    struct backend_comm *comm;
    int r = create("job", rank, WORLD, &comm);
    CHECK(r == -EIO || r == CRW_E_PEER || r == CRW_E_TIMEOUT);
    CHECK(strstr(crw_backend()->error_message(), "cannot connect"));
    if (fake->fault == FAULT_INIT_FOR_EVER && r == CRW_E_TIMEOUT)
        CHECK(strstr(crw_backend()->error_message(), "NCCL_P2P_DISABLE"));
    if (rank == fake->fault_rank && fake->fault == FAULT_INIT_ERROR)
        CHECK(strstr(crw_backend()->error_message(), "unhandled system error"));
}

static void gives_up_after_the_last_attempt(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(init_faults); i++) {
        begin(everything, init_faults[i], init_faults[i] == FAULT_ID ? 0 : 1, 100);
        shared->timeout_ms = init_faults[i] == FAULT_INIT_FOR_EVER ? 300 : 20000;
        run(WORLD, cannot_connect, 0);
    }
}

/* Transfers that arrive with wrong numbers are seen before they are gradients. */
static void get_wrong_sums(int rank)
{
    struct backend_comm *comm;
    int r = create("job", rank, WORLD, &comm);
    CHECK(r == -EIO || r == CRW_E_PEER ||
          rank != fake->fault_rank); /* the others may be done before its vote */
    if (r == 0)
        crw_backend()->comm_destroy(comm);
    if (rank == fake->fault_rank)
        CHECK(strstr(crw_backend()->error_message(), "gave wrong numbers") &&
              strstr(crw_backend()->error_message(), "NCCL_P2P_DISABLE=1"));
}

static void wrong_sums_are_an_error(void **state)
{
    begin(everything, FAULT_WRONG_SUM, 1, 1);
    fake->fault_from = 1; /* not the one that connects */
    run(WORLD, get_wrong_sums, 0);
}

static void miss_somebody(int rank)
{
    struct backend_comm *comm;
    if (rank == 1)
        return;
    int r = create("job", rank, WORLD, &comm);
    CHECK(r == CRW_E_TIMEOUT || r == CRW_E_PEER);
    if (r == CRW_E_TIMEOUT)
        CHECK(strstr(crw_backend()->error_message(), "missing: 1;"));
}

static void says_who_is_missing(void **state)
{
    begin(everything, FAULT_NONE, FAKE_NONE, 0);
    shared->timeout_ms = 200;
    shared->n_attempts = 1;
    run(WORLD, miss_somebody, 0);
}

/* A rank dies while the others connect: they need not wait for the deadline. */
static void die_before_connecting(int rank)
{
    struct backend_comm *comm;
    struct timespec before, after;
    if (rank == KILLED)
        raise(SIGKILL);
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(create("job", rank, WORLD, &comm) == CRW_E_PEER);
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK(strstr(crw_backend()->error_message(), "the group is over"));
    CHECK(after.tv_sec - before.tv_sec < 30);
}

static void connecting_ends_with_the_group(void **state)
{
    begin(everything, FAULT_NONE, FAKE_NONE, 0);
    shared->timeout_ms = 60000;
    run(WORLD, die_before_connecting, 1);
}

/* ---- failing in use ---- */

/* Waits until n ranks have counted themselves under a key. */
static void wait_for_ranks(const char *key, int64_t n)
{
    int64_t counted = 0;
    CHECK(store_add(NULL, key, 0, &counted) == 0);
    while (counted < n) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        CHECK(store_add(NULL, key, 0, &counted) == 0);
    }
}

/* Not before the others have taken their step, too: else it would be theirs that is lost. */
static void die_behind_the_others(int rank)
{
    int64_t n = 0;
    CHECK(store_add(NULL, "reached", rank != KILLED, &n) == 0);
    if (rank != KILLED)
        return;
    wait_for_ranks("reached", WORLD - 1);
    raise(SIGKILL);
}

/* Waits for the communicator's failure. */
static bool fails(struct backend_comm *comm)
{
    for (int waited = 0; waited < TIMEOUT_MS; waited++) {
        if (crw_backend()->comm_check(comm) != 0)
            return true;
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

/* Trains until a step is not taken; all but the killed rank go on without it. */
static void survive(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm, *smaller;
    CHECK(create("first", rank, WORLD, &comm) == 0);
    train_in(&t, comm, rank);
    for (int s = 0; s < 2; s++)
        CHECK(step(&t));
    die_behind_the_others(rank);
    leave(&t);
    uint32_t before = crw_model_crc32c(t.model);
    train_in(&t, comm, rank);

    CHECK(!step(
        &t)); /* its all-reduce was broken off, on this rank or on the other survivor, and left garbage */
    CHECK(t.step == 2);
    CHECK(fails(comm));
    CHECK(strstr(crw_backend()->error_message(), "the group is over"));
    leave(&t);
    CHECK(crw_model_crc32c(t.model) == before);

    crw_backend()->comm_destroy(comm);
    struct backend_comm_options options = comm_options("second", rank, WORLD - 1);
    options.failed_fd = -1; /* of the next generation */
    CHECK(crw_backend()->comm_create(&options, &smaller) == 0);
    train_in(&t, smaller, rank);
    for (int s = 0; s < 2; s++)
        CHECK(step(&t));
    CHECK(t.step == 4);
    finish(&t, rank);
}

static void survives_in(int version, enum fake_fault fault, int fault_rank)
{
    begin(version, fault, fault_rank, 1);
    shared->timeout_ms = 12000;
    run(WORLD, survive, 1);
    assert_same_parameters(WORLD, KILLED);
    assert_int_equal(fake->n_waits_for_graphs, 0);
}

static void a_killed_rank_costs_one_step(void **state)
{
    survives_in(everything, FAULT_NONE, FAKE_NONE);
    assert_int_equal(fake->n_revokes, 2);
    assert_int_equal(fake->n_ids, 2);
}

static void an_older_library_aborts(void **state)
{
    survives_in(no_revoke, FAULT_NONE, FAKE_NONE);
    assert_int_equal(fake->n_revokes, 0);
}

/* One rank has aborted and one has revoked: they find together again. */
static void a_failed_revoke_aborts(void **state)
{
    survives_in(everything, FAULT_REVOKE, 0);
    assert_int_equal(fake->n_revokes, 1);
}

static void a_hanging_abort_is_left_behind(void **state)
{
    survives_in(everything, FAULT_ABORT_HANGS, 0);
}

/* A peer dies while this rank is between two steps: the communicator is revoked before the next one is launched, and
 * nothing would release that. It is refused, and the state is there. */
static void step_behind_the_failure(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm;
    CHECK(create("first", rank, WORLD, &comm) == 0);
    train_in(&t, comm, rank);
    for (int s = 0; s < 2; s++)
        CHECK(step(&t));
    die_behind_the_others(rank);
    CHECK(fails(comm));
    CHECK(crw_backend()->trainer_step(t.trainer, BATCH, true) == CRW_E_PEER);
    finish(&t, rank);
}

static void launches_nothing_on_what_was_revoked(void **state)
{
    begin(everything, FAULT_NONE, FAKE_NONE, 0);
    run(WORLD, step_behind_the_failure, 1);
    assert_same_parameters(WORLD, KILLED);
    assert_int_equal(fake->n_waits_for_graphs, 0);
}

/* The trainer outlives the communicator, which was revoked: its graphs must not. */
static void end_in_the_order_of_a_program(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm;
    CHECK(create("first", rank, WORLD, &comm) == 0);
    train_in(&t, comm, rank);
    CHECK(step(&t));
    die_behind_the_others(rank);
    while (step(&t))
        continue;
    crw_backend()->comm_destroy(comm);
    crw_backend()->trainer_destroy(t.trainer);
    crw_model_destroy(t.model);
}

static void graphs_go_before_their_communicator(void **state)
{
    static const int *const versions[] = {&everything, &no_revoke};
    for (size_t i = 0; i < ARRAY_SIZE(versions); i++) {
        begin(*versions[i], FAULT_NONE, FAKE_NONE, 0);
        run(WORLD, end_in_the_order_of_a_program, 1);
        assert_int_equal(fake->n_waits_for_graphs, 0);
    }
}

/* A rank that never comes to the all-reduce, and an error that NCCL reports: the others learn it from the
 * launcher, because the rank that notices leaves. */
static void fail_in_use(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm;
    CHECK(create("job", rank, WORLD, &comm) == 0);
    /* A rank that fails while another one still checks the new communicator would fail that one's creation. */
    int64_t n_created;
    CHECK(store_add(NULL, "created", 1, &n_created) == 0);
    wait_for_ranks("created", WORLD);
    train_in(&t, comm, rank);
    for (int s = 0; s < 50 && step(&t); s++)
        CHECK(s < 40 || fake->fault == FAULT_NONE);
    CHECK(fails(comm));
    CHECK(crw_backend()->comm_check(comm) == (rank == fake->fault_rank % FAKE_RANKS ? -EIO : CRW_E_PEER));
    if (rank == fake->fault_rank % FAKE_RANKS) {
        CHECK(strstr(crw_backend()->error_message(), fake->fault == FAULT_ASYNC_ERROR
                                                         ? "network error (rank 2 closed its socket)"
                                                         : "refused"));
        CHECK(!strchr(crw_backend()->error_message(), '\n'));
        raise(SIGKILL); /* as a rank ends that cannot go on */
    }
    leave(&t);
    shared->crc[rank] = (uint32_t)t.step;
}

static void errors_in_use_drop_the_step(void **state)
{
    static const enum fake_fault faults[] = {FAULT_ASYNC_ERROR, FAULT_REDUCE_REFUSED};
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        begin(everything, faults[i], 1, 1);
        fake->fault_from = faults[i] == FAULT_ASYNC_ERROR ? 4 : 2; /* behind the probe */
        run(WORLD, fail_in_use, 1);
    }
}

/* A rank dies while the call of another's all-reduce is in progress: that one is aborted, the other revoked. */
static void connect_to_the_dead(int rank)
{
    struct training t = {.model = new_model()};
    struct backend_comm *comm;
    CHECK(create("job", rank, WORLD, &comm) == 0);
    shared->n_connected++;
    train_in(&t, comm, rank);
    for (int waited = 0; rank == KILLED && waited < TIMEOUT_MS; waited++) {
        if (fake->n_calls_in_flight && shared->n_connected == WORLD)
            break;
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (rank == KILLED)
        raise(SIGKILL);
    CHECK(!step(&t));
    CHECK(fails(comm) && crw_backend()->comm_check(comm) == CRW_E_PEER);
    finish(&t, rank);
}

static void a_call_in_progress_is_not_revoked(void **state)
{
    begin(everything, FAULT_CALL_HANGS, 0, 1);
    fake->fault_from = 2; /* behind the probe */
    run(WORLD, connect_to_the_dead, 1);
    assert_int_equal(fake->n_calls_in_flight, 1);
    assert_int_equal(fake->n_revokes, 1);
    assert_int_equal(fake->n_waits_for_graphs, 0);
    assert_same_parameters(WORLD, KILLED);
}

static void hang(int rank)
{
    struct training t = {.model = new_model()};
    struct crw_trained progress;
    struct backend_comm *comm;
    CHECK(create("job", rank, 2, &comm) == 0);
    train_in(&t, comm, rank);
    CHECK(step(&t));
    CHECK(crw_backend()->trainer_step(t.trainer, BATCH, true) == 0);
    CHECK(crw_backend()->trainer_wait(t.trainer, 200, &progress) == CRW_E_TIMEOUT);
    /* No failure is reported; it is the wait's deadline that ends it. */
    CHECK(crw_backend()->comm_check(comm) == 0);
    crw_backend()->comm_destroy(comm);
    CHECK(crw_backend()->trainer_wait(t.trainer, TIMEOUT_MS, &progress) == 0);
    CHECK(crw_backend()->trainer_end_step(t.trainer, false) == 0);
    CHECK(crw_backend()->trainer_stage(t.trainer) == 0);
    CHECK(crw_backend()->trainer_download(t.trainer, TIMEOUT_MS, 1) == 0);
    crw_backend()->trainer_destroy(t.trainer);
}

static void a_silent_hang_ends_with_the_deadline(void **state)
{
    begin(everything, FAULT_REDUCE_HANGS, 1, 1);
    fake->fault_from = 3; /* the probe and one step */
    run(2, hang, 0);
}

/* ---- the library ---- */

static void refuse_libraries(int rank)
{
    static const struct {
        const char *const *path;
        int result;
        const char *says;
    } cases[] = {{&no_library, CRW_E_MISMATCH, "no NCCL"}, {&library, CRW_E_MISMATCH, "too old"}};
    const struct backend *b = crw_backend();
    struct backend_comm_options options = comm_options("job", 0, 2);
    struct backend_comm *comm;

    options.library = "/nowhere/libnccl.so.2";
    CHECK(b->comm_create(&options, &comm) == CRW_E_NOT_FOUND);
    CHECK(strstr(b->error_message(), "LD_LIBRARY_PATH"));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        options.library = *cases[i].path;
        CHECK(b->comm_create(&options, &comm) == cases[i].result);
        CHECK(strstr(b->error_message(), cases[i].says));
    }
    options.rank = 2;
    CHECK(b->comm_create(&options, &comm) == CRW_E_ARGUMENT);
}

static void refuses_libraries(void **state)
{
    begin(21405, FAULT_NONE, FAKE_NONE, 0);
    run(1, refuse_libraries, 0);
}

static void *share(const char *name, size_t n_bytes, int *ret_fd)
{
    int fd = memfd_create(name, 0);
    if (fd < 0 || ftruncate(fd, (off_t)n_bytes) != 0)
        exit(2);
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        exit(2);
    *ret_fd = fd;
    return memory;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_over_ranks),
        cmocka_unit_test(sums_over_ranks),
        cmocka_unit_test(one_rank_needs_no_nccl),
        cmocka_unit_test(connects_at_the_second_attempt),
        cmocka_unit_test(gives_up_after_the_last_attempt),
        cmocka_unit_test(wrong_sums_are_an_error),
        cmocka_unit_test(says_who_is_missing),
        cmocka_unit_test(connecting_ends_with_the_group),
        cmocka_unit_test(a_killed_rank_costs_one_step),
        cmocka_unit_test(an_older_library_aborts),
        cmocka_unit_test(a_failed_revoke_aborts),
        cmocka_unit_test(a_hanging_abort_is_left_behind),
        cmocka_unit_test(errors_in_use_drop_the_step),
        cmocka_unit_test(launches_nothing_on_what_was_revoked),
        cmocka_unit_test(graphs_go_before_their_communicator),
        cmocka_unit_test(a_call_in_progress_is_not_revoked),
        cmocka_unit_test(a_silent_hang_ends_with_the_deadline),
        cmocka_unit_test(refuses_libraries),
    };
    char fd_text[16];
    int fake_fd, shared_fd;

    if (argc != 3)
        return 2;
    library = argv[1];
    no_library = argv[2];
    fake = share("fake-nccl", sizeof(*fake), &fake_fd);
    shared = share("store", sizeof(*shared), &shared_fd);
    (void)snprintf(fd_text, sizeof(fd_text), "%d", fake_fd);
    setenv("FAKE_NCCL_FD", fd_text, 1);
    return cmocka_run_group_tests_name("kernel_comm", tests, NULL, NULL);
}
