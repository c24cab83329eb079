/*
 * What `train` may write into a snapshot when the other ranks end in the middle of a collective. The functions of the
 * group are this program's (--wrap): rank 1 has gone one step further than this rank, and dies between two broadcasts.
 */

#include "tests/support/c/snapshots/content.h"
#include "worker-runtime/checkpoint/snapshot.h"
#include "worker-runtime/programs/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

enum { STEP = 30, ROOM = 1 << 16 };

static char folder[128];
static int
    n_whole; /* broadcasts that come whole; the next one brings half of its bytes, and then rank 1 is dead */

int __wrap_crw_rank(const struct crw_group *group);
int __wrap_crw_world_size(const struct crw_group *group);
int __wrap_crw_barrier(struct crw_group *group);
int __wrap_crw_all_gather(struct crw_group *group, const void *mine, size_t n, void *all);
int __wrap_crw_all_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                          enum crw_op op);
int __wrap_crw_broadcast(struct crw_group *group, void *data, size_t n_bytes, int root);

/* Of the test of an epoch's end. */
static int this_rank;
static bool has_trained; /* the next barrier closes the epoch, and rank 0 is dead */
static size_t last_broadcast, before_barrier;

int __wrap_crw_rank(const struct crw_group *group)
{
    return this_rank;
}

int __wrap_crw_world_size(const struct crw_group *group)
{
    return 2;
}

int __wrap_crw_barrier(struct crw_group *group)
{
    before_barrier = last_broadcast;
    return has_trained ? CRW_E_PEER : 0;
}

/* Of what the ranks have, rank 1's is one commit newer. */
int __wrap_crw_all_gather(struct crw_group *group, const void *mine, size_t n, void *all)
{
    struct recovery_offer *offers = all;

    if (this_rank != 0) {
        memcpy(all, mine, n);
        memcpy((char *)all + n, mine, n);
        return 0;
    }
    assert_int_equal(n, sizeof(*offers));
    memcpy(&offers[0], mine, n);
    memcpy(&offers[1], mine, n);
    offers[1].alive++;
    return 0;
}

int __wrap_crw_all_reduce(struct crw_group *group, void *data, size_t count, enum crw_dtype dtype,
                          enum crw_op op)
{
    return 0;
}

int __wrap_crw_broadcast(struct crw_group *group, void *data, size_t n_bytes, int root)
{
    last_broadcast = n_bytes;
    if (this_rank != 0)
        return 0; /* rank 0 has the same */
    memset(data, 0x3f, n_whole > 0 ? n_bytes : n_bytes / 2);
    return n_whole-- > 0 ? 0 : CRW_E_PEER;
}

/* ---- a trainer after a step ---- */

static const struct crw_layer layers[] = {
    {.kind = CRW_LAYER_CONV2D, .name = "c", .in = 1, .out = 2, .kernel = 3},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n", .in = 2},
    {.kind = CRW_LAYER_FLATTEN},
    {.kind = CRW_LAYER_LINEAR, .name = "f", .in = 8, .out = 2},
};
enum { N_LAYERS = sizeof(layers) / sizeof(layers[0]) };

static const struct train_options options = {.batch_size = 1, .snapshot_dir = folder, .keep = 3};
static const struct crw_env env = {.local_world_size = 1};

static int open_trainer(void **state)
{
    static struct trainer t;
    struct crw_optimizer_options optimizer = crw_optimizer_defaults(CRW_ADAMW);
    struct train_recipe recipe = {0};

    t = (struct trainer){.options = &options, .env = &env, .primary = true, .alive = true};
    (void)snprintf(folder, sizeof(folder), "/tmp/crw-test-saves-XXXXXX");
    if (!mkdtemp(folder) ||
        crw_model_create(layers, N_LAYERS, (struct crw_shape){1, 4, 4}, 1, NULL, &t.model))
        return -1;
    t.n_parameters = crw_model_count_parameters(layers, N_LAYERS);
    if (crw_optimizer_create(&optimizer, t.n_parameters, &t.optimizer) ||
        state_create(&t.state, t.model, t.optimizer, &recipe) ||
        crw_snapshots_create(folder, 3, &t.snapshots))
        return -1;
    t.state.position.step = STEP;
    t.saved_step = UINT64_MAX;
    t.checkpoint.n_parts = 1;
    t.checkpoint.own = calloc(1, ROOM);
    *state = &t;
    return t.checkpoint.own ? 0 : -1;
}

static int close_trainer(void **state)
{
    struct trainer *t = *state;

    crw_snapshots_destroy(t->snapshots);
    free(t->checkpoint.own);
    state_finish(&t->state);
    crw_optimizer_destroy(t->optimizer);
    crw_model_destroy(t->model);
    folder_empty(folder);
    return rmdir(folder);
}

/* ---- the tests ---- */

static void saves_a_whole_state(void **state)
{
    struct trainer *t = *state;

    trainer_save(t);
    crw_snapshots_wait(t->snapshots);
    assert_int_equal(folder_count(folder), 1);
}

/* Parameters of step 31, the optimizer's and the counters of step 30: with a right checksum. */
static void saves_nothing_of_two_steps(void **state)
{
    struct trainer *t = *state;

    for (int whole = 0; whole < 4; whole++) {
        t->alive = true;
        n_whole = whole; /* of parameters, two arrays of the optimizer, the rank's own */
        assert_int_equal(trainer_resume(t), -1);
        trainer_save(t);
        crw_snapshots_wait(t->snapshots);
        assert_int_equal(folder_count(folder), 0);
    }
}

/* The test at the end of an epoch is cut off: the state of before is still whole. */
static void statistics_that_came_half_change_nothing(void **state)
{
    struct trainer *t = *state;
    size_t n = state_committed_bytes(&t->state);
    uint8_t before[256];

    assert_true(n > 0 && n <= sizeof(before));
    memcpy(before, t->state.committed, n);
    n_whole = 0;
    assert_int_equal(state_broadcast_statistics(&t->state, NULL, 1), CRW_E_PEER);
    assert_memory_equal(t->state.committed, before, n);
    n_whole = 1;
    assert_int_equal(state_broadcast_statistics(&t->state, NULL, 1), 0);
    assert_memory_not_equal(t->state.committed, before, n);
}

static int open_samples(void *data, uint32_t *ret_n_training, uint32_t *ret_n_test, char *error, size_t n)
{
    *ret_n_training = 8;
    *ret_n_test = 0;
    return 0;
}

static void close_samples(void *data)
{
}

static void gather(void *data, enum part part, const uint32_t *samples, size_t n, float *input, void *targets)
{
    memset(input, 0, n * 16 * sizeof(float));
    memset(targets, 0, n * 2 * sizeof(float));
}

static int loss(struct crw_model *model, const void *targets, float *ret_loss)
{
    has_trained = true;
    return crw_model_mse_loss(model, targets, ret_loss);
}

static const struct program program = {
    .name = "small",
    .samples_name = "samples",
    .layers = layers,
    .n_layers = N_LAYERS,
    .input = {1, 4, 4},
    .target_size = 2 * sizeof(float),
    .open = open_samples,
    .close = close_samples,
    .gather = gather,
    .loss = loss,
    .loss_kind = CRW_MSE,
};

/* Rank 0 dies before the epoch is closed: this host's sum of losses is its own, rank 0's host has another one. */
static void a_host_saves_no_step_that_was_not_shared(void **state)
{
    struct train_options all = options;
    const struct crw_env alone = {.world_size = 1, .local_world_size = 1};
    struct trainer *t = *state;
    struct crw_group *group;

    all.save_on_every_host = true;
    all.epochs = all.save_every_epochs = all.accumulate = 1;
    all.lr = 0.1;
    all.prefetch = 1;
    all.backend = TRAIN_BACKEND_CPU;
    assert_int_equal(crw_group_create(&alone, &group), 0);
    this_rank = 1;
    assert_int_equal(trainer_run(&program, &all, &alone, group), TRAIN_FAILED);
    this_rank = 0;
    has_trained = false;
    crw_group_destroy(group);
    assert_int_equal(folder_count(folder), 0);
    assert_int_equal(before_barrier,
                     state_committed_bytes(&t->state)); /* statistics are rank 0's without a test, too */
}

/* ---- the last save ---- */

static int sync_result;

static int sync_slowly(void *data, int fd)
{
    (void)usleep(600000);
    return sync_result;
}

/* The state saved on a disk that is slow, or fails. */
static void save_slowly(struct trainer *t, int result)
{
    static struct snapshot_io io;

    crw_snapshots_destroy(t->snapshots);
    io = snapshot_io_system;
    io.sync = sync_slowly;
    io.retry_ms = 0;
    sync_result = result;
    assert_int_equal(snapshots_create(folder, 3, &io, &t->snapshots), 0);
    trainer_save(t);
}

/* What trainer_finish_saves() writes to stderr. */
static const char *finish(struct trainer *t, bool stops, int *ret)
{
    static char text[4096];
    int file = memfd_create("stderr", MFD_CLOEXEC), before = dup(STDERR_FILENO);
    ssize_t n;

    assert_true(file >= 0 && before >= 0);
    (void)dup2(file, STDERR_FILENO);
    *ret = trainer_finish_saves(t, stops);
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    n = pread(file, text, sizeof(text) - 1, 0);
    (void)close(file);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void a_rank_that_saves_no_last_step_names_failed_saves(void **state)
{
    struct trainer *t = *state;
    int r;

    save_slowly(t, -EIO);
    crw_snapshots_wait(t->snapshots);
    t->primary = false;
    t->shared_step = STEP - 1;
    assert_non_null(strstr(finish(t, false, &r), "Input/output error"));
    assert_int_equal(r, 0);
}

static void the_last_save_is_not_called_postponed(void **state)
{
    struct trainer *t = *state;
    int r;

    save_slowly(t, 0);
    t->primary = false; /* a report that is open would show the warning of rank 0 */
    t->shared_step = ++t->state.position.step;
    assert_string_equal(finish(t, false, &r), "");
    assert_int_equal(r, 0);
}

/* Of ten seconds the last step has spent all but 0.3. */
static void the_grace_begins_with_the_request(void **state)
{
    struct trainer *t = *state;
    struct crw_snapshots *snapshots;
    int r;

    save_slowly(t, 0);
    snapshots = t->snapshots;
    t->asked_at = report_now() - 9.7;
    (void)setenv("CRUN_SHUTDOWN_TIMEOUT", "10", 1);
    assert_non_null(strstr(finish(t, true, &r), "is not on disk"));
    (void)unsetenv("CRUN_SHUTDOWN_TIMEOUT");
    assert_int_equal(r, -1);
    t->snapshots = snapshots;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_trainer, close_trainer)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(saves_a_whole_state),
        TEST(saves_nothing_of_two_steps),
        TEST(a_host_saves_no_step_that_was_not_shared),
        TEST(a_rank_that_saves_no_last_step_names_failed_saves),
        TEST(the_last_save_is_not_called_postponed),
        TEST(the_grace_begins_with_the_request),
        TEST(statistics_that_came_half_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
