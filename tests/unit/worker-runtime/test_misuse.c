/*
 * Mistakes of a caller: each is a result and a sentence, and ends no process in any build. A case is an expression that runs in a
 * child of its own, which sees 64 MiB of memory. The generator of any_arguments.py covers all functions.
 */

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/support/c/bounded_child.h"
#include "tests/support/c/cmocka_fixed.h"
#include "base/memory.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"

enum { BATCH = 4 };

static char folder[] = "/tmp/test-misuse.XXXXXX", path[64];
static float floats[4096];
static int64_t targets[BATCH];

/* ---- what the cases use ---- */

#define OUT(type) ((type[]){0})

/* What is only there to be called wrongly has to be made right. */
static void made(int r)
{
    if (r) {
        fprintf(stderr, "not made: %d: %s\n", r, crw_error_message());
        _exit(119);
    }
}

static struct crw_group *group(void)
{
    struct crw_group *g = NULL;

    made(crw_init(NULL, 0, 1, &g));
    return g;
}

static struct crw_model *model(void)
{
    const struct crw_layer layers[] = {{CRW_LAYER_LINEAR, "f", 3, 5}};
    struct crw_model *m = NULL;

    made(crw_model_create(layers, 1, (struct crw_shape){3, 1, 1}, BATCH, NULL, &m));
    crw_model_init(m, 1);
    return m;
}

static struct crw_model *model_behind_loss(void)
{
    struct crw_model *m = model();
    float loss;

    made(crw_model_forward(m, floats, BATCH, true, NULL));
    made(crw_model_nll_loss(m, targets, CRW_IGNORE_INDEX, &loss));
    return m;
}

static struct crw_optimizer *optimizer(void)
{
    const struct crw_optimizer_options sgd = crw_optimizer_defaults(CRW_SGD);
    struct crw_optimizer *o = NULL;

    made(crw_optimizer_create(&sgd, 10, &o));
    return o;
}

static struct crw_sampler *sampler(void)
{
    struct crw_sampler *s = NULL;

    made(crw_sampler_create(&(struct crw_sampler_options){.n_samples = 10, .world_size = 1}, &s));
    return s;
}

static int no_gather(void *data, const uint32_t *samples, size_t n, float *input, void *to)
{
    return 0;
}

static struct crw_snapshots *snapshots(void)
{
    struct crw_snapshots *s = NULL;

    made(crw_snapshots_create(folder, 1, &s));
    return s;
}

static struct crw_tensor tensor(const char *name, enum crw_dtype dtype, int64_t n, void *data)
{
    return (struct crw_tensor){.name = name, .dtype = dtype, .n_dims = 1, .dims = {n}, .data = data};
}

static int save(struct crw_tensor t)
{
    return crw_snapshots_save(snapshots(), 7, &t, 1, NULL, 0);
}

static int read_back(struct crw_tensor t)
{
    const struct crw_tensor good = tensor("a", CRW_F32, 4, floats);
    struct crw_snapshots *s = snapshots();
    struct crw_snapshot *found = NULL;

    made(crw_snapshots_save(s, 7, &good, 1, NULL, 0));
    crw_snapshots_destroy(s);
    made(crw_snapshot_open_newest(folder, NULL, NULL, NULL, NULL, &found));
    return crw_snapshot_read(found, &t);
}

/* A failed save, which nobody has asked for: it is there for the next call. */
static int status_without_place(void)
{
    struct crw_snapshots *s = snapshots();
    const struct crw_tensor t = tensor("a", CRW_F32, 4, floats);
    const char *failure = NULL;

    made(rmdir(folder) == 0 || chmod(folder, 0700) == 0 ? 0 : 1);
    made(crw_snapshots_save(s, 7, &t, 1, NULL, 0));
    crw_snapshots_wait(s);
    (void)crw_snapshots_status(s, NULL);
    (void)crw_snapshots_status(s, &failure);
    return 0;
}

static int create(struct crw_layer layer, struct crw_shape input, int max_batch)
{
    const struct crw_layer layers[] = {layer, {CRW_LAYER_FLATTEN}};
    struct crw_model *m = NULL;

    return crw_model_create(layers, 2, input, max_batch, NULL, &m);
}

static int optimize(struct crw_optimizer_options options, size_t count)
{
    struct crw_optimizer *o = NULL;

    return crw_optimizer_create(&options, count, &o);
}

static int sample(struct crw_sampler_options options)
{
    struct crw_sampler *s = NULL;

    return crw_sampler_create(&options, &s);
}

static int load(bool has_sampler, bool has_gather, size_t input_size, int n_ahead)
{
    const struct crw_loader_options options = {
        .sampler = has_sampler ? sampler() : NULL,
        .batch_size = 2,
        .input_size = input_size,
        .target_size = 2,
        .n_ahead = n_ahead,
        .gather = has_gather ? no_gather : NULL,
    };
    struct crw_loader *l = NULL;

    return crw_loader_create(&options, &l);
}

/* 0 when backward wrote to the model's own memory again, and not to what the caller has taken away. */
static int backward_into_own_gradients(void)
{
    struct crw_model *m = model_behind_loss();
    float *own = crw_model_gradients(m), away[20] = {0};

    made(crw_model_set_gradients(m, away));
    made(crw_model_set_gradients(m, NULL));
    made(crw_model_backward(m));
    return crw_model_gradients(m) == own && own[15] != 0 && away[15] == 0 ? 0 : 1;
}

/* The same where the caller gave the memory at first. */
static int backward_into_first_own_gradients(void)
{
    const struct crw_layer layers[] = {{CRW_LAYER_LINEAR, "f", 3, 5}};
    float given[20] = {0}, loss;
    struct crw_model *m = NULL;

    made(crw_model_create(layers, 1, (struct crw_shape){3, 1, 1}, BATCH, given, &m));
    made(crw_model_set_gradients(m, NULL));
    made(crw_model_forward(m, floats, BATCH, true, NULL));
    made(crw_model_nll_loss(m, targets, CRW_IGNORE_INDEX, &loss));
    made(crw_model_backward(m));
    return crw_model_gradients(m) != given && crw_model_gradients(m)[15] != 0 && given[15] == 0 ? 0 : 1;
}

/* Gradients are written and not added, so the second call gives the same bits. */
static int backward_twice(void)
{
    struct crw_model *m = model_behind_loss();
    float once[20];

    made(crw_model_backward(m));
    memcpy(once, crw_model_gradients(m), sizeof(once));
    made(crw_model_backward(m));
    const void *before = once, *after = crw_model_gradients(m);
    return memcmp(before, after, sizeof(once));
}

static int ignore(int64_t index)
{
    struct crw_model *m = model_behind_loss();
    const int64_t ignored[BATCH] = {index, index, index, index};
    float loss = 0;
    int r = crw_model_nll_loss(m, ignored, index, &loss);

    return r ? r : isnan(loss) ? 0 : 1;
}

static int loss_of(int64_t target)
{
    struct crw_model *m = model_behind_loss();
    float loss;

    targets[1] = target;
    return crw_model_cross_entropy_loss(m, targets, CRW_IGNORE_INDEX, &loss);
}

static int start_epoch(uint64_t consumed)
{
    return crw_sampler_start(sampler(), 0, consumed);
}

static int no_worker(struct crw_group *g, void *data)
{
    return 0;
}

/* What each rank of two wants is there, and both together are not. */
static int share_40_mib(struct crw_group *g, void *data)
{
    return crw_shared_alloc(g, 40 << 20, OUT(void *));
}

/* 64 GiB without a block on the disk, whose header promises them. */
static int open_sparse(void)
{
    struct crw_snapshot *s = NULL;

    return crw_snapshot_open(path, &s);
}

static void make_sparse_file(void)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[68719476736],\"data_offsets\":[0,68719476736]}}";
    const uint64_t n = sizeof(header) - 1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0 && write(fd, &n, 8) == 8 && write(fd, header, n) == (ssize_t)n);
    assert_int_equal(ftruncate(fd, (off_t)(8 + n + (64ull << 30))), 0);
    assert_int_equal(close(fd), 0);
}

/* ---- the cases ---- */

#define NOTHING ""
#define SHAPE(...) ((struct crw_shape){__VA_ARGS__})
#define LAYER(...) ((struct crw_layer){__VA_ARGS__})
#define SGD(...) ((struct crw_optimizer_options){.kind = CRW_SGD, __VA_ARGS__})
/* name, result, part of the sentence, call */
#define CASES(X)                                                                                             \
    X("all_reduce on NULL", CRW_E_ARGUMENT, "group", crw_all_reduce(NULL, floats, 1, CRW_F32, CRW_SUM))      \
    X("broadcast on NULL", CRW_E_ARGUMENT, "group", crw_broadcast(NULL, floats, 1, 0))                       \
    X("barrier on NULL", CRW_E_ARGUMENT, "group", crw_barrier(NULL))                                         \
    X("send on NULL", CRW_E_ARGUMENT, "group", crw_send(NULL, floats, 1, 0))                                 \
    X("shared_alloc on NULL", CRW_E_ARGUMENT, "group", crw_shared_alloc(NULL, 1, OUT(void *)))               \
    X("rank of NULL", -1, NOTHING, crw_rank(NULL))                                                           \
    X("all_reduce of NULL", CRW_E_ARGUMENT, "NULL", crw_all_reduce(group(), NULL, 4, CRW_F32, CRW_SUM))      \
    X("gather into NULL", CRW_E_ARGUMENT, "NULL", crw_gather(group(), floats, 4, NULL, 0))                   \
    X("all_reduce of nothing at NULL", 0, NOTHING, crw_all_reduce(group(), NULL, 0, CRW_F32, CRW_SUM))       \
    X("type 77", CRW_E_ARGUMENT, "cannot be reduced",                                                        \
      crw_all_reduce(group(), floats, 1, (enum crw_dtype)77, CRW_SUM))                                       \
    X("operation 77", CRW_E_ARGUMENT, "cannot be reduced",                                                   \
      crw_all_reduce(group(), floats, 1, CRW_F32, (enum crw_op)77))                                          \
    X("root -1", CRW_E_ARGUMENT, "cannot be the root", crw_broadcast(group(), floats, 1, -1))                \
    X("2^48 elements", CRW_E_ARGUMENT, "impossible",                                                         \
      crw_all_reduce(group(), floats, (size_t)1 << 48, CRW_F32, CRW_SUM))                                    \
    X("a message to itself", CRW_E_ARGUMENT, "exchange messages", crw_send(group(), floats, 1, 0))           \
    X("work without a place", CRW_E_ARGUMENT, "NULL", crw_barrier_start(group(), NULL))                      \
    X("work NULL", CRW_E_ARGUMENT, "work", crw_work_wait(NULL))                                              \
    X("shared_alloc of 512 GiB", -ENOMEM, "available",                                                       \
      crw_shared_alloc(group(), (size_t)512 << 30, OUT(void *)))                                             \
    X("shared_alloc of more than two ranks have", CRW_E_PEER, "available",                                   \
      crw_launch(share_40_mib, NULL, 2))                                                                     \
    X("shared_alloc of what one rank has", 0, NOTHING, crw_launch(share_40_mib, NULL, 1))                    \
    X("shared_alloc of SIZE_MAX", CRW_E_ARGUMENT, "impossible",                                              \
      crw_shared_alloc(group(), SIZE_MAX, OUT(void *)))                                                      \
    X("a group of NULL", CRW_E_ARGUMENT, "no group",                                                         \
      crw_group_new(group(), NULL, 1, OUT(struct crw_group *)))                                              \
    X("a member that is not", CRW_E_ARGUMENT, "member",                                                      \
      crw_group_new(group(), (int[]){5}, 1, OUT(struct crw_group *)))                                        \
    X("an address with a wrong port", CRW_E_ARGUMENT, "no address",                                          \
      crw_init("tcp://host:wrong", 0, 1, OUT(struct crw_group *)))                                           \
    X("an address without a store", CRW_E_TIMEOUT, "127.0.0.1",                                              \
      crw_init("tcp://127.0.0.1:1", 0, 2, OUT(struct crw_group *)))                                          \
    X("an address without a store, by default", CRW_E_TIMEOUT, "127.0.0.1",                                  \
      (unsetenv("CRW_TIMEOUT_MS"), crw_init("tcp://127.0.0.1:1", 0, 2, OUT(struct crw_group *))))            \
    X("rank 3 of 2", CRW_E_ARGUMENT, "rank 3", crw_init("tcp://h:1", 3, 2, OUT(struct crw_group *)))         \
    X("launch of nothing", CRW_E_ARGUMENT, "function", crw_launch(NULL, NULL, 1))                            \
    X("launch of -1", CRW_E_ARGUMENT, "-1 workers", crw_launch(no_worker, NULL, -1))                         \
    X("environment NULL", CRW_E_ARGUMENT, "ret_env", crw_env_read(NULL))                                     \
    X("2^60 bytes of state", CRW_E_NOT_FOUND, "launcher",                                                    \
      crw_memory_open(group(), (size_t)1 << 60, 1, OUT(struct crw_memory *)))                                \
    X("channels near INT_MAX", CRW_E_ARGUMENT, "inputs of 2147483647",                                       \
      create(LAYER(CRW_LAYER_FLATTEN), SHAPE(INT_MAX, 1, 1), 1))                                             \
    X("channels below INT_MAX", CRW_E_ARGUMENT, "inputs of 2147483632",                                      \
      create(LAYER(CRW_LAYER_FLATTEN), SHAPE(INT_MAX - 15, 2, 2), 1))                                        \
    X("outputs near INT_MAX", CRW_E_ARGUMENT, "too large",                                                   \
      create(LAYER(CRW_LAYER_LINEAR, "f", 3, INT_MAX), SHAPE(3, 1, 1), 1))                                   \
    X("a model of 8 GiB", -ENOMEM, "cannot make a model",                                                    \
      create(LAYER(CRW_LAYER_LINEAR, "f", 20000, 20000), SHAPE(20000, 1, 1), 1))                             \
    X("pooling by 3", CRW_E_ARGUMENT, "kernel",                                                              \
      create(LAYER(CRW_LAYER_MAXPOOL2D, .kernel = 3), SHAPE(1, 9, 9), 1))                                    \
    X("normalisation with outputs", CRW_E_ARGUMENT, "out",                                                   \
      create(LAYER(CRW_LAYER_BATCHNORM2D, "n", 2, 7, 5), SHAPE(2, 4, 4), 1))                                 \
    X("normalisation with as many outputs as inputs", 0, "",                                                 \
      create(LAYER(CRW_LAYER_BATCHNORM2D, "n", 2, 2), SHAPE(2, 4, 4), 1))                                    \
    X("a layer of kind 77", CRW_E_ARGUMENT, "kind 77",                                                       \
      create(LAYER((enum crw_layer_kind)77), SHAPE(2, 1, 1), 1))                                             \
    X("layers NULL", CRW_E_ARGUMENT, "layers",                                                               \
      crw_model_create(NULL, 1, SHAPE(1, 1, 1), 1, NULL, OUT(struct crw_model *)))                           \
    X("gradients NULL", 0, NOTHING, backward_into_own_gradients())                                           \
    X("gradients NULL, first given", 0, NOTHING, backward_into_first_own_gradients())                        \
    X("forward of NULL", CRW_E_ARGUMENT, "input", crw_model_forward(model(), NULL, 1, true, NULL))           \
    X("a batch of 0", CRW_E_ARGUMENT, "batch of 0", crw_model_forward(model(), floats, 0, true, NULL))       \
    X("backward without a forward", CRW_E_ARGUMENT, "forward", crw_model_backward(model()))                  \
    X("backward twice", 0, NOTHING, backward_twice())                                                        \
    X("backward from NULL", CRW_E_ARGUMENT, "d_output",                                                      \
      crw_model_backward_from(model_behind_loss(), NULL, NULL))                                              \
    X("ignore INT64_MAX", 0, NOTHING, ignore(INT64_MAX))                                                     \
    X("ignore INT64_MIN", 0, NOTHING, ignore(INT64_MIN))                                                     \
    X("target 5 of 5", CRW_E_ARGUMENT, "target 5", loss_of(5))                                               \
    X("target INT64_MIN", CRW_E_ARGUMENT, "not one of 5", loss_of(INT64_MIN))                                \
    X("parameter 99", 0, "crw_model_tensor", crw_model_tensor(model(), 99).name != NULL)                     \
    X("buffer 0 of none", 0, "crw_model_buffer", crw_model_buffer(model(), 0).name != NULL)                  \
    X("computing in fp64", CRW_E_ARGUMENT, "fp32 or bf16", crw_model_set_precision(model(), CRW_F64))        \
    X("state 0 of none", 0, "crw_optimizer_state", crw_optimizer_state(optimizer(), 0, NULL) != NULL)        \
    X("defaults of kind 77", CRW_E_ARGUMENT, "kind 77",                                                      \
      optimize(crw_optimizer_defaults((enum crw_optimizer_kind)77), 1))                                      \
    X("SIZE_MAX parameters", -ENOMEM, "cannot make the state", optimize(SGD(.momentum = 0.9), SIZE_MAX))     \
    X("2^40 parameters", -ENOMEM, "cannot make the state", optimize(SGD(.momentum = 0.9), (size_t)1 << 40))  \
    X("a step with NULL", 0, "gradients", (crw_optimizer_step(optimizer(), floats, NULL), 0))                \
    X("sampler of rank 2 of 2", CRW_E_ARGUMENT, "rank 2",                                                    \
      sample((struct crw_sampler_options){9, 2, 2, 0, 0, 0}))                                                \
    X("2^32 - 1 samples", -ENOMEM, "samples",                                                                \
      sample((struct crw_sampler_options){UINT32_MAX, 0, 1, 0, 0, 0}))                                       \
    X("an epoch behind its end", CRW_E_ARGUMENT, "behind 11", start_epoch(11))                               \
    X("SIZE_MAX of a batch", 1, NOTHING,                                                                     \
      (int)(made(crw_sampler_start(s_ = sampler(), 0, 0)), crw_sampler_batches_left(s_, SIZE_MAX)))          \
    X("gather NULL", CRW_E_ARGUMENT, "gather", load(true, false, 2, 0))                                      \
    X("sampler NULL", CRW_E_ARGUMENT, "sampler", load(false, true, 2, 0))                                    \
    X("floats that overflow", -ENOMEM, "cannot make a loader", load(true, true, SIZE_MAX / 4 + 2, 0))        \
    X("INT_MAX batches ahead", -ENOMEM, "cannot make a loader", load(true, true, 2, INT_MAX))                \
    X("folder NULL", CRW_E_ARGUMENT, "folder", crw_snapshots_create(NULL, 1, OUT(struct crw_snapshots *)))   \
    X("status without a place", 0, NOTHING, status_without_place())                                          \
    X("a tensor without name", CRW_E_ARGUMENT, "name", save(tensor(NULL, CRW_F32, 1, floats)))               \
    X("a tensor without data", CRW_E_ARGUMENT, "data", save(tensor("a", CRW_F32, 1, NULL)))                  \
    X("a tensor of 1 GiB", -ENOMEM, "cannot copy", save(tensor("a", CRW_F32, 1 << 28, floats)))              \
    X("read without name", CRW_E_ARGUMENT, "name", read_back(tensor(NULL, CRW_F32, 4, floats)))              \
    X("read into NULL", CRW_E_ARGUMENT, "data", read_back(tensor("a", CRW_F32, 4, NULL)))                    \
    X("a file that promises 64 GiB", -ENOMEM, "cannot hold", open_sparse())                                  \
    X("norm of NULL", 1, "gradients", isnan(crw_gradients_norm(NULL, 3)))                                    \
    X("a reducer of NULL", CRW_E_ARGUMENT, "gradients",                                                      \
      crw_reducer_create(group(), NULL, 3, 0, OUT(struct crw_reducer *)))                                    \
    X("a trainer of nothing", CRW_E_ARGUMENT, "o->group",                                                    \
      crw_trainer_create(&(struct crw_trainer_options){0}, OUT(struct crw_trainer *)))

struct misuse {
    const char *name;
    int result;
    const char *sentence;
    int number;
};

#define ROW(name_, result_, sentence_, call_) {name_, result_, sentence_, __COUNTER__},
static const struct misuse cases[] = {CASES(ROW)};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))

static int call_case(int number)
{
    struct crw_sampler *s_ = NULL;
    int at = 0;

#define CALL(name_, result_, sentence_, call_)                                                               \
    if (at++ == number)                                                                                      \
        return call_;
    CASES(CALL)
    return s_ ? 118 : 117;
}

static int check_case(void *data)
{
    const struct misuse *c = data;
    int r;

    memory_pretend(64 << 20);
    r = call_case(c->number);
    if (r == c->result && strstr(crw_error_message(), c->sentence))
        return 0;
    fprintf(stderr, "%s: %d, not %d: \"%s\", not \"%s\"\n", c->name, r, c->result, crw_error_message(),
            c->sentence);
    return 1;
}

static void every_mistake_is_a_sentence(void **state)
{
    int n_wrong = 0;

    for (size_t i = 0; i < N_CASES; i++) {
        int status = run_bounded(check_case, (void *)(uintptr_t)&cases[i], stderr);

        if (status)
            fprintf(stderr, "case \"%s\" ended with %#x\n", cases[i].name, (unsigned)status);
        n_wrong += status != 0;
    }
    fprintf(stderr, "%zu cases, %d wrong\n", N_CASES, n_wrong);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_mistake_is_a_sentence)};
    char command[128];
    int r;

    if (!mkdtemp(folder) || setenv("CRW_TIMEOUT_MS", "500", 1))
        return 1;
    (void)snprintf(path, sizeof(path), "%s.sparse", folder);
    make_sparse_file();
    r = cmocka_run_group_tests(tests, NULL, NULL);
    (void)snprintf(command, sizeof(command), "rm -rf %s %s", folder, path);
    return system(command) ? 1 : r;
}
