/*
 * Trainers with CRW_REDUCTION_HOST: 2 to 4 ranks that share one emulated GPU, without NCCL, beside the same training on the
 * CPU. A batch is one sample, with one input that is not 0 and a power of two: all products are exact, and the device
 * has to agree with the CPU bit for bit.
 *
 * CRW_PLUGIN_DIR names the folder of the emulated plugin.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

enum { N_INPUTS = 5, N_OUTPUTS = 4, N_ITEMS = 24, N_STEPS = 8, N_BATCHES_MAX = 2, RANKS_MAX = 4 };

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, crw_rank(group), #condition,    \
                    crw_error_message());                                                                    \
            _exit(99);                                                                                       \
        }                                                                                                    \
    } while (0)

static const struct crw_layer layer = {
    .kind = CRW_LAYER_LINEAR, .name = "a", .in = N_INPUTS, .out = N_OUTPUTS};
enum { N_PARAMETERS = (N_INPUTS + 1) * N_OUTPUTS };

/* What is trained, the same on all ranks. */
struct recipe {
    enum crw_optimizer_kind optimizer;
    int n_batches; /* of a step */
    double clip_norm;
};

/* One side of a rank's training. */
struct side {
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct crw_trainer *trainer; /* NULL: the CPU */
};

/* ---- samples ---- */

static float inputs[N_ITEMS][N_INPUTS], targets[N_ITEMS][N_OUTPUTS];

static void fill(int rank)
{
    for (int i = 0; i < N_ITEMS; i++) {
        inputs[i][(i + rank) % N_INPUTS] = (float)(1 << (i * 7 + rank) % 3);
        for (int o = 0; o < N_OUTPUTS; o++)
            targets[i][o] = (float)((i * 5 + o * 3 + rank * 11) % 9 - 4) * 0.7f;
    }
}

/* ---- both sides ---- */

static void make_model(struct crw_group *group, const struct recipe *recipe, struct side *s)
{
    struct crw_optimizer_options o = crw_optimizer_defaults(recipe->optimizer);

    o.lr = 0.3;
    if (recipe->optimizer == CRW_SGD)
        o.momentum = 0.9;
    CHECK(crw_model_create(&layer, 1, (struct crw_shape){N_INPUTS, 1, 1}, 1, NULL, &s->model) == 0);
    CHECK(crw_optimizer_create(&o, N_PARAMETERS, &s->optimizer) == 0);
    crw_model_init(s->model, 4);
}

static struct crw_trainer_options options_of(struct crw_group *group, const struct recipe *recipe,
                                             const struct side *s)
{
    return (struct crw_trainer_options){
        .group = group,
        .model = s->model,
        .optimizer = s->optimizer,
        .loss = CRW_MSE,
        .reduction = CRW_REDUCTION_HOST,
        .clip_norm = recipe->clip_norm,
        .accumulates = recipe->n_batches > 1,
        .oversubscribe = true,
        .nccl_defaults = true,
    };
}

static void make_trainer(struct crw_group *group, const struct recipe *recipe, struct side *s)
{
    static const struct crw_samples samples = {.inputs = inputs, .targets = targets, .n = N_ITEMS};
    uint32_t list[N_ITEMS];

    make_model(group, recipe, s);
    const struct crw_trainer_options options = options_of(group, recipe, s);
    CHECK(crw_trainer_create(&options, &s->trainer) == 0);
    CHECK(crw_trainer_set_data(s->trainer, &samples, NULL) == 0);
    CHECK(crw_trainer_load(s->trainer) == 0);
    for (uint32_t i = 0; i < N_ITEMS; i++)
        list[i] = i;
    CHECK(crw_trainer_start(s->trainer, list, N_ITEMS) == 0);
}

static void end_side(struct side *s)
{
    crw_trainer_destroy(s->trainer);
    crw_optimizer_destroy(s->optimizer);
    crw_model_destroy(s->model);
}

static void queue_step(struct crw_group *group, const struct recipe *recipe, const struct side *s)
{
    for (int b = 1; b <= recipe->n_batches; b++)
        CHECK(crw_trainer_step(s->trainer, 1, b == recipe->n_batches) == 0);
}

static struct crw_trained step_on_device(struct crw_group *group, const struct recipe *recipe,
                                         const struct side *s, bool expected_committed)
{
    struct crw_trained trained;
    bool committed;

    queue_step(group, recipe, s);
    CHECK(crw_trainer_wait(s->trainer, &trained) == 0);
    CHECK(trained.finite == expected_committed);
    if (crw_is_primary(group)) { /* they are averaged once: no other rank has to come again */
        const double norm = trained.norm;
        CHECK(crw_trainer_wait(s->trainer, &trained) == 0);
        CHECK(trained.finite == expected_committed && (trained.norm == norm || isnan(norm)));
    }
    CHECK(crw_trainer_commit(s->trainer, NULL, 0, &committed) == 0);
    CHECK(committed == expected_committed);
    return trained;
}

/* The norm of the mean over batches and ranks. As train does it. */
static double step_on_cpu(struct crw_group *group, const struct recipe *recipe, const struct side *s,
                          int first)
{
    static float sums[N_PARAMETERS];
    double scale = 1.0 / recipe->n_batches, squares = 0, norm;
    float loss;

    memset(sums, 0, sizeof(sums));
    for (int b = 0; b < recipe->n_batches; b++) {
        CHECK(crw_model_forward(s->model, inputs[first + b], 1, true, NULL) == 0);
        CHECK(crw_model_mse_loss(s->model, targets[first + b], &loss) == 0);
        CHECK(crw_model_backward(s->model) == 0);
        crw_gradients_add(sums, crw_model_gradients(s->model), N_PARAMETERS);
    }
    CHECK(crw_all_reduce(group, sums, N_PARAMETERS, CRW_F32, CRW_AVG) == 0);
    for (int i = 0; i < N_PARAMETERS; i++)
        squares += (double)sums[i] * sums[i];
    norm = sqrt(squares) * scale;
    if (recipe->clip_norm > 0 && recipe->clip_norm < norm + 1e-6)
        scale *= recipe->clip_norm / (norm + 1e-6);
    crw_gradients_scale(sums, N_PARAMETERS, (float)scale);
    crw_optimizer_step(s->optimizer, crw_model_parameters(s->model, NULL), sums);
    return norm;
}

static void check_same(struct crw_group *group, const struct side *device, const struct side *cpu)
{
    uint32_t mine, all[RANKS_MAX];

    CHECK(crw_trainer_save(device->trainer) == 0);
    CHECK(memcmp(crw_model_parameters(device->model, NULL), crw_model_parameters(cpu->model, NULL),
                 N_PARAMETERS * sizeof(float)) == 0);
    mine = crw_model_crc32c(device->model);
    CHECK(crw_all_gather(group, &mine, sizeof(mine), all) == 0);
    for (int r = 0; r < crw_world_size(group); r++)
        CHECK(all[r] == mine);
}

/* ---- tests ---- */

static int train_on_both(struct crw_group *group, void *data)
{
    const struct recipe *recipe = data;
    struct side device = {0}, cpu = {0};

    fill(crw_rank(group));
    make_trainer(group, recipe, &device);
    make_model(group, recipe, &cpu);
    CHECK(strstr(crw_trainer_transport(device.trainer), "libcrw averages the gradients of"));
    for (int step = 0; step < N_STEPS; step++) {
        const double norm = step_on_cpu(group, recipe, &cpu, step * recipe->n_batches);
        const struct crw_trained trained = step_on_device(group, recipe, &device, true);
        CHECK(fabs(trained.norm - norm) <= 1e-12 * norm);
        if (step % 3 == 0)
            check_same(group, &device, &cpu);
    }
    check_same(group, &device, &cpu);
    CHECK(!getenv("NCCL_DEBUG") && !getenv("NCCL_MAX_CTAS"));
    end_side(&device);
    end_side(&cpu);
    return 0;
}

static void has_the_bits_of_the_cpu(void **state)
{
    static const struct recipe recipes[] = {{CRW_SGD, 1, 0},
                                            {CRW_ADADELTA, N_BATCHES_MAX, 0},
                                            {CRW_ADAMW, 1, 0.05},
                                            {CRW_SGD, N_BATCHES_MAX, 0.05}};

    for (int i = 0; i < (int)(sizeof(recipes) / sizeof(recipes[0])); i++) {
        struct recipe recipe = recipes[i];
        const int n = RANKS_MAX - i % 3;
        if (crw_launch(train_on_both, &recipe, n) != 0)
            fail_msg("recipe %d, %d ranks: %s", i, n, crw_error_message());
    }
}

/* A gradient of rank 1 is no number: no rank takes the step, and all go on with the next samples. */
static int drop_a_step(struct crw_group *group, void *data)
{
    static const struct recipe recipe = {CRW_SGD, 1, 0};
    static const uint32_t rest[] = {2, 3, 4};
    struct side device = {0}, cpu = {0};

    fill(crw_rank(group));
    if (crw_rank(group) == 1)
        targets[1][0] = NAN;
    make_trainer(group, &recipe, &device);
    make_model(group, &recipe, &cpu);
    (void)step_on_device(group, &recipe, &device, true);
    (void)step_on_cpu(group, &recipe, &cpu, 0);
    for (int i = 0; i < 2; i++) { /* dropped, its sample is the next step's */
        (void)step_on_device(group, &recipe, &device, false);
        check_same(group, &device, &cpu);
    }
    CHECK(crw_trainer_start(device.trainer, rest, 3) == 0);
    for (int i = 2; i < 5; i++) {
        (void)step_on_device(group, &recipe, &device, true);
        (void)step_on_cpu(group, &recipe, &cpu, i);
    }
    check_same(group, &device, &cpu);
    end_side(&device);
    end_side(&cpu);
    return 0;
}

static void drops_a_step_that_is_not_finite(void **state)
{
    if (crw_launch(drop_a_step, NULL, 3) != 0)
        fail_msg("%s", crw_error_message());
}

static int *survived; /* by all processes */

/* The others wait in their sum when rank 1 dies. Its gradients are lost, and the state is that of the step before. */
static int lose_a_peer(struct crw_group *group, void *data)
{
    static const struct recipe recipe = {CRW_SGD, 1, 0};
    struct side device = {0}, cpu = {0};
    struct crw_trained trained;
    bool committed;

    (void)signal(SIGTERM, SIG_IGN); /* crw_launch() ends the others */
    fill(crw_rank(group));
    make_trainer(group, &recipe, &device);
    make_model(group, &recipe, &cpu);
    (void)step_on_device(group, &recipe, &device, true);
    (void)step_on_cpu(group, &recipe, &cpu, 0);
    queue_step(group, &recipe, &device);
    if (crw_rank(group) == 1) {
        (void)usleep(200000);
        raise(SIGKILL);
    }
    CHECK(crw_trainer_wait(device.trainer, &trained) == CRW_E_PEER);
    CHECK(strstr(crw_error_message(), "rank 1 ended"));
    CHECK(crw_trainer_commit(device.trainer, NULL, 0, &committed) == CRW_E_ARGUMENT);
    CHECK(crw_trainer_wait(device.trainer, &trained) == CRW_E_ARGUMENT); /* the step is dropped */
    CHECK(crw_trainer_save(device.trainer) == 0);
    CHECK(memcmp(crw_model_parameters(device.model, NULL), crw_model_parameters(cpu.model, NULL),
                 N_PARAMETERS * sizeof(float)) == 0);
    end_side(&device);
    end_side(&cpu);
    survived[crw_rank(group)] = 1;
    return CRW_E_PEER;
}

static void a_dead_peer_ends_the_step(void **state)
{
    survived = mmap(NULL, sizeof(int[RANKS_MAX]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(survived, MAP_FAILED);
    assert_int_equal(crw_launch(lose_a_peer, NULL, 3), CRW_E_PEER);
    assert_string_equal(crw_error_message(), "worker 1 of 3 was killed by signal 9");
    assert_true(survived[0] && survived[2]);
    (void)munmap(survived, sizeof(int[RANKS_MAX]));
}

/* Of unlike ranks none gets a trainer, and none waits for another. */
static int make_unlike(struct crw_group *group, void *data)
{
    static const struct recipe recipe = {CRW_SGD, 1, 0};
    struct side s = {0};

    make_model(group, &recipe, &s);
    struct crw_trainer_options options = options_of(group, &recipe, &s);
    options.reduction = CRW_REDUCTION_COUNT;
    CHECK(crw_trainer_create(&options, &s.trainer) == CRW_E_ARGUMENT);
    CHECK(strstr(crw_error_message(), "a trainer with reduction 2; there is no such thing"));
    options.reduction = crw_rank(group) == 1 ? CRW_REDUCTION_NCCL : CRW_REDUCTION_HOST;
    CHECK(crw_trainer_create(&options, &s.trainer) == CRW_E_ARGUMENT);
    CHECK(strstr(crw_error_message(), "some ranks average gradients by NCCL and others on the host"));
    CHECK(!s.trainer);
    CHECK(crw_barrier(group) == 0);
    end_side(&s);
    return 0;
}

static void all_ranks_reduce_alike(void **state)
{
    if (crw_launch(make_unlike, NULL, 3) != 0)
        fail_msg("%s", crw_error_message());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits_of_the_cpu),
        cmocka_unit_test(drops_a_step_that_is_not_finite),
        cmocka_unit_test(a_dead_peer_ends_the_step),
        cmocka_unit_test(all_ranks_reduce_alike),
    };

    if (setenv("CRW_NCCL_LIBRARY", "/nonexistent/libnccl.so.2", 1) != 0)
        return EXIT_FAILURE;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
