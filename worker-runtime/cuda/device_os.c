/*
 * Training on a GPU, as programs see training: the plugin's trainer and communicator, tied to the group of the own rank.
 *
 * Happy path: the plugin is opened, the rank's device chosen, a communicator made through the worker store (no NCCL for
 * a world of size 1), and a trainer made that sums over the communicator. A step is gradients, agreement, change of the
 * state:
 *
 *   crw_trainer_step    queues gradients and the sum of all ranks' gradients
 *   crw_trainer_wait    the rank's device has completed the sums, and the rank's communicator had not failed by then
 *   crw_trainer_commit  all ranks meet, through the group and not through NCCL; then each rank changes its state
 *
 * A complete agreement proves that every rank's part of the sums was complete before any rank broke a collective off.
 * The order of the two looks in crw_trainer_wait matters: first the device, then the communicator; the thread that
 * breaks off marks the communicator as failed first.
 *
 * With CRW_REDUCTION_HOST there is no communicator. crw_trainer_wait() averages the gradients of all ranks by
 * crw_all_reduce(), and crw_all_reduce() finds a peer's failure as every collective of the group does.
 *
 * Ways to fail: no plugin, no driver, fewer devices than ranks, no NCCL, a missing rank, and a peer that fails in a
 * step. crw_trainer_wait() or crw_trainer_commit() reports the failed peer, and the state stays as before the step. A
 * rank that failed between the two calls may leave other ranks a single step ahead, never more.
 */

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "worker-runtime/crw_trainer.h"
#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"
#include "worker-runtime/model/optimizer.h"

enum {
    TIMEOUT_DEFAULT_MS = 300000,
    WAIT_SLICE_MS = 20,
    BREAK_OFF_MS = 10000,
    CONNECT_MS = 60000,
    N_ATTEMPTS = 2,
    N_STATES_MAX = 2,
    NAME_SIZE = 64
};

_Static_assert(CRW_COMMIT_VALUES_MAX < 16, "they are copied to the stack");

struct crw_trainer {
    struct crw_group *group;
    struct crw_optimizer *optimizer;
    struct backend_plugin plugin;
    struct backend_comm *comm; /* NULL: alone, or the host reduces */
    struct backend_reducer reducer;
    struct backend_trainer *trainer;
    int timeout_ms;
    bool shared_gpu;
    bool reduces_on_host;
    char transport[64]; /* of the host; "": ask the communicator */
    int64_t broken_ms;  /* when the communicator was first seen to have failed; 0: not yet */
    bool waited;        /* for the gradients of the last complete step, with success */
    bool finite;        /* all gradients of the step were finite */
};

/* Trainers that the process has connected so far. Rank 0's number tells apart the communicators of a generation. */
static atomic_int n_trainers;

/* Sets the error with the plugin's sentence: the plugin has a copy of the error module. */
static int fail_as(const struct backend *b, int result)
{
    return result ? crw_fail(result, "%s", b->error_message()) : 0;
}

int crw_device_count(const char **ret_why)
{
    static _Thread_local char why_not[512];
    struct backend_plugin plugin;
    const char *why = "";
    int n = 0;

    if (backend_open("crw-cuda", &plugin) != 0) {
        (void)snprintf(why_not, sizeof(why_not), "%s", crw_error_message());
        n = access("/dev/nvidiactl", F_OK) == 0 ? -1 : 0; /* the driver's own device */
    } else {
        n = plugin.backend->count_devices(&why);
        (void)snprintf(why_not, sizeof(why_not), "%s", why);
        backend_close(&plugin);
    }
    if (ret_why)
        *ret_why = why_not;
    return n;
}

/* ---- choosing a device ---- */

static int choose_device(struct crw_trainer *t, bool oversubscribe, int *ret_device)
{
    const struct crw_env *env = &t->group->env;
    const char *why;
    int n = t->plugin.backend->count_devices(&why);

    if (n <= 0)
        return crw_fail(CRW_E_NOT_FOUND, "there is no GPU for rank %d: %s", env->rank, why);
    if (env->local_rank >= n && !oversubscribe)
        return crw_fail(
            CRW_E_NOT_FOUND,
            "there is no GPU for rank %d: it is number %d on its host, and %d of them may be used there "
            "(CUDA_VISIBLE_DEVICES); start as many workers as GPUs, or let them share one for a test "
            "(train --oversubscribe-gpu)",
            env->rank, env->local_rank, n);
    *ret_device = env->local_rank % n;
    t->shared_gpu = env->local_world_size > n;
    return 0;
}

/* Before NCCL is opened, and in the own process alone: variables set by a launcher would change other programs. */
static void set_nccl_defaults(const struct crw_env *env)
{
    env_set_default("NCCL_DEBUG", "WARN");
    env_set_default("NCCL_RAS_ENABLE", "0"); /* a listening socket for a tool */
    if (env->group_world_size == 1)
        env_set_default("NCCL_SOCKET_IFNAME", "lo"); /* the default: any other, even without a route */
}

/* NCCL accepts two ranks on a GPU only with these variables; before 2.30.3 see nccl_name_own_host(), too. */
static void set_nccl_oversubscribed(void)
{
    env_set_default("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    env_set_default("NCCL_NVLS_ENABLE", "0");
    env_set_default("NCCL_MAX_CTAS", "1");
    env_set_default("NCCL_PROTO", "Simple"); /* ranks take turns, and other protocols need more turns */
}

/* ---- the communicator ---- */

/* Collective. */
static int connect_ranks(struct crw_trainer *t, int device)
{
    const struct backend *b = t->plugin.backend;
    struct crw_group *group = t->group;
    const int number = atomic_fetch_add(&n_trainers, 1);
    /* Rank 0's number, because a replaced rank counts from 0; and whether any rank shares its GPU. */
    int64_t common[] = {crw_rank(group) == 0 ? number : -1, t->shared_gpu};
    char name[NAME_SIZE];
    struct backend_comm_options options = {
        .library = env_text("CRW_NCCL_LIBRARY"),
        .store = {.set = store_conn_set, .get = store_conn_get, .add = store_conn_add, .conn = &group->store},
        .name = name,
        .rank = crw_rank(group),
        .world_size = crw_world_size(group),
        .device = device,
        .timeout_ms = t->timeout_ms < CONNECT_MS ? t->timeout_ms : CONNECT_MS,
        .n_attempts = N_ATTEMPTS,
        .failed_fd = group->detector ? failure_detector_failed_fd(group->detector) : -1,
    };

    if (options.world_size == 1 || t->reduces_on_host)
        return 0;
    TRY(crw_all_reduce(group, common, ARRAY_SIZE(common), CRW_I64, CRW_MAX));
    (void)snprintf(name, sizeof(name), "%d.%d", group->env.restart_count, (int)common[0]);
    options.shared_gpu = common[1];
    int r = fail_as(b, b->comm_create(&options, &t->comm));
    if (r == 0) {
        b->comm_reducer(t->comm, &t->reducer);
        b->comm_guard(t->comm, t->trainer);
    }
    return r;
}

/* ---- making and ending ---- */

static int make_trainer(struct crw_trainer *t, const struct crw_trainer_options *o, int device)
{
    const struct backend *b = t->plugin.backend;
    struct backend_trainer_options options = {
        .model = o->model,
        .loss = o->loss,
        .ignore_index = o->ignore_index ? *o->ignore_index : CRW_IGNORE_INDEX,
        .optimizer = *optimizer_options(o->optimizer),
        .device = device,
        .precision = o->products,
        .blas_library = env_text("CRW_CUBLASLT_LIBRARY"),
        .skip_not_finite = true,
        .clip_norm = o->clip_norm,
        .accumulates = o->accumulates,
        .reducer =
            crw_world_size(t->group) > 1 ? &t->reducer : NULL, /* filled when the ranks are connected */
        .reduces_on_host = t->reduces_on_host,
    };

    for (size_t i = 0; i < crw_optimizer_n_states(o->optimizer); i++)
        options.states[i] = crw_optimizer_state(o->optimizer, i, NULL);
    return fail_as(b, b->trainer_create(&options, &t->trainer));
}

static int check_trainer_options(const struct crw_trainer_options *o)
{
    NEED(o && o->group && o->model && o->optimizer, CRW_E_ARGUMENT);
    if (o->loss < 0 || o->loss >= CRW_LOSS_COUNT || o->products < 0 || o->products >= CRW_PRODUCTS_COUNT)
        return crw_fail(CRW_E_ARGUMENT, "a trainer with loss %d and products %d; there is no such thing",
                        (int)o->loss, (int)o->products);
    if (o->reduction < 0 || o->reduction >= CRW_REDUCTION_COUNT)
        return crw_fail(CRW_E_ARGUMENT, "a trainer with reduction %d; there is no such thing",
                        (int)o->reduction);
    if (!(o->clip_norm >= 0) || o->timeout_ms < 0)
        return crw_fail(CRW_E_ARGUMENT,
                        "a trainer with clip_norm %g and a timeout of %d ms; neither may be negative",
                        o->clip_norm, o->timeout_ms);
    return 0;
}

/*
 * A failed rank must not leave the other ranks waiting in NCCL: all ranks fail, with the failed rank's sentence. The
 * sentence of the lowest failed rank wins; ranks with CRW_E_PEER, which only follow another failure, come last.
 * Collective.
 */
static int vote_on_result(struct crw_group *group, int result)
{
    const int64_t follows = result == CRW_E_PEER ? (int64_t)1 << 32 : 0;
    int64_t first = result ? -(int64_t)crw_rank(group) - 1 - follows : INT64_MIN;
    char why[512];

    (void)snprintf(why, sizeof(why), "%s", crw_error_message());
    TRY(crw_all_reduce(group, &first, 1, CRW_I64, CRW_MAX));
    if (first != INT64_MIN)
        TRY(crw_broadcast(group, why, sizeof(why), (int)((-first - 1) & UINT32_MAX)));
    return first == INT64_MIN ? 0 : crw_fail(result ? result : CRW_E_PEER, "%s", why);
}

/* Else ranks would wait for each other in different places. Collective. */
static int check_alike(struct crw_group *group, enum crw_reduction reduction)
{
    int64_t extremes[] = {reduction, -(int64_t)reduction};

    TRY(crw_all_reduce(group, extremes, 2, CRW_I64, CRW_MAX));
    if (extremes[0] != -extremes[1])
        return crw_fail(CRW_E_ARGUMENT,
                        "some ranks average gradients by NCCL and others on the host; all have to choose "
                        "the same (train --reduce)");
    return 0;
}

static int connect_and_make_trainer(struct crw_trainer *t, const struct crw_trainer_options *options)
{
    int device = 0;
    int r = backend_open("crw-cuda", &t->plugin);

    if (r == 0)
        r = choose_device(t, options->oversubscribe, &device);
    r = vote_on_result(t->group, r);
    if (r == 0)
        r = check_alike(t->group, options->reduction);
    if (r == 0) /* before the communicator: connecting is slow, and memory may be short */
        r = vote_on_result(t->group, make_trainer(t, options, device));
    if (r == 0 && options->nccl_defaults && !t->reduces_on_host)
        set_nccl_defaults(&t->group->env);
    if (r == 0 && options->oversubscribe && !t->reduces_on_host)
        set_nccl_oversubscribed();
    return r == 0 ? vote_on_result(t->group, connect_ranks(t, device)) : r;
}

int crw_trainer_create(const struct crw_trainer_options *options, struct crw_trainer **ret)
{
    int r = check_trainer_options(options);
    struct crw_trainer *t;

    NEED(ret, CRW_E_ARGUMENT);
    if (r)
        return r;
    t = calloc(1, sizeof(*t));
    if (!t)
        return crw_fail_errno(-ENOMEM, "cannot make a trainer");
    t->group = options->group;
    t->optimizer = options->optimizer;
    t->timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_DEFAULT_MS;
    t->reduces_on_host = options->reduction == CRW_REDUCTION_HOST && crw_world_size(t->group) > 1;
    t->reducer.n_ranks = 1; /* the host's result is a mean */
    if (t->reduces_on_host)
        (void)snprintf(t->transport, sizeof(t->transport),
                       "libcrw averages the gradients of %d workers on the host", crw_world_size(t->group));
    r = connect_and_make_trainer(t, options);
    if (r) {
        crw_trainer_destroy(t);
        return r;
    }
    *ret = t;
    return 0;
}

const char *crw_trainer_transport(const struct crw_trainer *t)
{
    if (!t || !t->comm)
        return t ? t->transport : "";
    return t->plugin.backend->comm_describe(t->comm);
}

const char *crw_trainer_products(const struct crw_trainer *t)
{
    return t ? t->plugin.backend->trainer_products(t->trainer) : "";
}

/* First the graphs, which refer to the communicator; then the communicator, which breaks off a hanging collective that
 * keeps the device busy; then the trainer's memory. */
void crw_trainer_destroy(struct crw_trainer *t)
{
    if (!t)
        return;
    if (t->comm)
        t->plugin.backend->comm_destroy(t->comm);
    if (t->trainer)
        t->plugin.backend->trainer_destroy(t->trainer);
    backend_close(&t->plugin);
    free(t);
}

/* ---- in and out ---- */

int crw_trainer_set_data(struct crw_trainer *t, const struct crw_samples *training,
                         const struct crw_samples *test)
{
    NEED(t && training && training->inputs && training->targets, CRW_E_ARGUMENT);
    NEED(!test || (test->inputs && test->targets), CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;
    int r = b->trainer_set_data(t->trainer, BACKEND_TRAIN, training);

    if (r == 0 && test)
        r = b->trainer_set_data(t->trainer, BACKEND_EVALUATE, test);
    return fail_as(b, r);
}

int crw_trainer_load(struct crw_trainer *t)
{
    NEED(t, CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;

    t->waited = false;
    return fail_as(b, b->trainer_upload(t->trainer, crw_optimizer_steps(t->optimizer)));
}

int crw_trainer_set_lr(struct crw_trainer *t, double lr)
{
    NEED(t, CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;

    crw_optimizer_set_lr(t->optimizer, lr);
    return fail_as(b, b->trainer_set_lr(t->trainer, lr));
}

int crw_trainer_start(struct crw_trainer *t, const uint32_t *samples, size_t count)
{
    NEED(t && is_array(samples, count, sizeof(*samples)), CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;

    t->waited = false;
    return fail_as(b, b->trainer_start(t->trainer, samples, count, 0));
}

int crw_trainer_step(struct crw_trainer *t, int n, bool last)
{
    NEED(t, CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;

    return fail_as(b, b->trainer_step(t->trainer, n, last));
}

/* ---- waiting ---- */

static int64_t now_ms(void)
{
    return (int64_t)(now_ns() / 1000000);
}

/* 0, or the failure of the communicator. */
static int check_comm(struct crw_trainer *t)
{
    int failed = t->comm ? t->plugin.backend->comm_check(t->comm) : 0;
    if (failed && !t->broken_ms)
        t->broken_ms = now_ms();
    return failed;
}

/* End of waiting: a collective that a failed communicator has broken off ends soon, or never. */
static int64_t deadline_of(struct crw_trainer *t, int64_t began_ms)
{
    int64_t deadline = began_ms + t->timeout_ms;
    if (check_comm(t) && t->broken_ms + BREAK_OFF_MS < deadline)
        deadline = t->broken_ms + BREAK_OFF_MS;
    return deadline;
}

/* Not to the end where the communicator has failed: such gradients are not taken anyway. */
static int wait_for_gradients(struct crw_trainer *t, struct crw_trained *progress)
{
    const struct backend *b = t->plugin.backend;
    const int64_t deadline = now_ms() + t->timeout_ms;
    int r;

    do
        r = b->trainer_wait(t->trainer, WAIT_SLICE_MS, progress);
    while (r == CRW_E_TIMEOUT && now_ms() < deadline && check_comm(t) == 0);
    return fail_as(b, r);
}

/* As the CPU's reducer: the same sums in the same order, then the mean. After a failure the step is dropped: the
 * gradients are neither the own rank's nor the mean of all ranks. */
static int reduce_on_host(struct crw_trainer *t, struct crw_trained *progress)
{
    const struct backend *b = t->plugin.backend;
    size_t count;
    float *gradients = b->trainer_gradients(t->trainer, &count);
    int r = crw_all_reduce(t->group, gradients, count, CRW_F32, CRW_AVG);

    if (r) {
        (void)b->trainer_end_step(t->trainer, false); /* cannot fail behind a wait */
        return r;
    }
    b->trainer_reduced(t->trainer);
    return fail_as(b, b->trainer_wait(t->trainer, WAIT_SLICE_MS, progress));
}

int crw_trainer_wait(struct crw_trainer *t, struct crw_trained *ret)
{
    NEED(t && ret, CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;
    struct crw_trained progress;
    int r = wait_for_gradients(t, &progress), failed = check_comm(t);

    if (r == 0 && t->reduces_on_host && !t->waited) /* once for each step */
        r = reduce_on_host(t, &progress);
    t->waited = false;
    if (r == CRW_E_ARGUMENT)
        return r;
    if (failed) /* the gradients may be wrong or missing */
        return fail_as(b, failed);
    if (r)
        return r;
    t->waited = true;
    t->finite = progress.finite;
    *ret = progress;
    return 0;
}

/* ---- agreeing ---- */

int crw_trainer_commit(struct crw_trainer *t, double *values, size_t count, bool *ret_committed)
{
    NEED(t && ret_committed && is_array(values, count, sizeof(*values)), CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;
    const int n_ranks = crw_world_size(t->group);
    double sums[1 + CRW_COMMIT_VALUES_MAX];

    if (count > CRW_COMMIT_VALUES_MAX || !t->waited)
        return crw_fail(CRW_E_ARGUMENT,
                        "a step is committed behind crw_trainer_wait(), with at most %d values",
                        CRW_COMMIT_VALUES_MAX);
    t->waited = false;
    sums[0] = t->finite;
    for (size_t i = 0; i < count; i++)
        sums[1 + i] = values[i];
    TRY(crw_all_reduce(t->group, sums, 1 + count, CRW_F64, CRW_SUM));
    for (size_t i = 0; i < count; i++)
        values[i] = sums[1 + i] / n_ranks;
    *ret_committed = sums[0] == n_ranks;
    TRY(fail_as(b, b->trainer_end_step(t->trainer, *ret_committed)));
    if (*ret_committed)
        crw_optimizer_set_steps(t->optimizer, crw_optimizer_steps(t->optimizer) + 1);
    return 0;
}

/* ---- out ---- */

int crw_trainer_save(struct crw_trainer *t)
{
    NEED(t, CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;
    const int64_t began = now_ms();
    int r = b->trainer_stage(t->trainer);

    if (r)
        return fail_as(b, r);
    do
        r = b->trainer_download(t->trainer, WAIT_SLICE_MS, crw_optimizer_steps(t->optimizer));
    while (r == CRW_E_TIMEOUT && now_ms() < deadline_of(t, began));
    return fail_as(b, r);
}

int crw_trainer_test(struct crw_trainer *t, uint32_t first, uint32_t count, struct crw_trained *ret)
{
    NEED(t && ret, CRW_E_ARGUMENT);
    const struct backend *b = t->plugin.backend;

    return fail_as(b, b->trainer_evaluate(t->trainer, first, count, t->timeout_ms, ret));
}
