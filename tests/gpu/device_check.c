/*
 * On a device: device_check drop | memory [PARAMETERS]. Prints one JSON object; exits 0 when all checks hold, 1 when
 * not, 77 when there is no device. The same source is built for the emulated device, where its figures mean nothing.
 *
 *   drop    NaN is planted where a broken-off collective leaves garbage. Steps that are taken carry it into the
 *           parameters (so the planting works); behind steps that are dropped the state has every bit still.
 *   memory  the optimizers over 1e8 (or PARAMETERS) parameters of random values: bytes per second beside a copy's.
 */

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/kernels/cuda/kernels.h"
#include "worker-runtime/model/model.h"

enum { TIMEOUT_MS = 60000 };

static void must(cudaError_t r, const char *what)
{
    if (r == cudaSuccess)
        return;
    (void)fprintf(stderr, "device_check: %s: %s\n", what, cudaGetErrorString(r));
    exit(1);
}

static void must_backend(int r, const struct backend *b)
{
    if (r == 0)
        return;
    (void)fprintf(stderr, "device_check: %s\n", b->error_message());
    exit(1);
}

/* ---- drop ---- */

enum { BATCH = 8, N_ITEMS = 64, N_INPUTS = 20, N_OUTPUTS = 4 };

static const struct crw_layer layers[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = N_INPUTS, .out = 64},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "b", .in = 64, .out = N_OUTPUTS},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

/* What stands in for NCCL. */
static int enter_planting(void *data)
{
    return 0;
}

static void leave_planting(void *data)
{
}

static int plant(void *data, float *values, size_t count, void *stream)
{
    must(cudaMemsetAsync(values, 0xff, count * sizeof(*values), stream), "cannot plant NaN");
    return 0;
}

static float inputs[N_ITEMS * N_INPUTS];
static int64_t classes[N_ITEMS];
static uint32_t list[N_ITEMS];

/* Three steps with planted NaN; whether the parameters have every bit still, and are finite. */
static void train(const struct backend *b, bool take, bool *ret_same, bool *ret_finite)
{
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct backend_trainer *trainer;
    const struct backend_reducer reducer = {
        .enter = enter_planting, .sum = plant, .leave = leave_planting, .n_ranks = 1};
    struct crw_trained progress;

    if (crw_model_create(layers, ARRAY_SIZE(layers), (struct crw_shape){N_INPUTS, 1, 1}, BATCH, NULL,
                         &model) != 0)
        exit(1);
    crw_model_init(model, 1);
    const struct crw_optimizer_options sgd = crw_optimizer_defaults(CRW_SGD);
    if (crw_optimizer_create(&sgd, model->n_parameters, &optimizer) != 0)
        exit(1);
    const uint32_t before = crw_model_crc32c(model);
    const struct backend_trainer_options options = {
        .model = model, .ignore_index = CRW_IGNORE_INDEX, .optimizer = sgd, .reducer = &reducer};
    const struct crw_samples samples = {.inputs = inputs, .targets = classes, .n = N_ITEMS};
    must_backend(b->trainer_create(&options, &trainer), b);
    must_backend(b->trainer_set_data(trainer, BACKEND_TRAIN, &samples), b);
    must_backend(b->trainer_start(trainer, list, N_ITEMS, 0), b);
    for (int i = 0; i < 3; i++) {
        must_backend(b->trainer_step(trainer, BATCH, true), b);
        must_backend(b->trainer_wait(trainer, TIMEOUT_MS, &progress), b);
        must_backend(b->trainer_end_step(trainer, take), b);
    }
    must_backend(b->trainer_stage(trainer), b);
    must_backend(b->trainer_download(trainer, TIMEOUT_MS, take ? 3 : 0), b);
    *ret_same = crw_model_crc32c(model) == before;
    *ret_finite = isfinite(crw_gradients_norm(model->parameters, model->n_parameters));
    b->trainer_destroy(trainer);
    crw_optimizer_destroy(optimizer);
    crw_model_destroy(model);
}

static int check_drop(const struct backend *b)
{
    bool taken_same, taken_finite, dropped_same, dropped_finite;
    struct crw_rng rng;

    /* This program's CUDA runtime is not the plugin's: it must not begin in the plugin's capture, where plant() is called. */
    must(cudaSetDevice(0), "cannot use the device");
    crw_rng_seed(&rng, 1);
    crw_rng_uniform(&rng, inputs, ARRAY_SIZE(inputs), -1, 1);
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        classes[i] = i % N_OUTPUTS;
        list[i] = i;
    }
    train(b, true, &taken_same, &taken_finite);
    train(b, false, &dropped_same, &dropped_finite);
    (void)printf(
        "{\"planted_nan_reaches_parameters\": %s, \"state_behind_dropped_steps_is_unchanged\": %s}\n",
        !taken_same && !taken_finite ? "true" : "false", dropped_same ? "true" : "false");
    return !taken_same && !taken_finite && dropped_same && dropped_finite ? 0 : 1;
}

/* ---- memory ---- */

enum { N_TIMED = 10 };
static size_t n_parameters = 100000000;

struct arena {
    struct cuda_queue q;
    cudaEvent_t begin, end;
    float *p, *g, *states[2], *copy;
    struct cuda_commit *commit;
    struct cuda_optimizer_options *options;
    struct cuda_tally *tally;
};

static void *on_device(size_t n_bytes)
{
    void *memory;
    must(cudaMalloc(&memory, n_bytes), "cannot allocate");
    must(cudaMemset(memory, 0, n_bytes), "cannot clear");
    return memory;
}

/* Zeros would take the slow paths of division and square root in every element. */
static float *random_floats(size_t count, float from, float to)
{
    enum { N_PIECE = 1 << 20 };
    static float piece[N_PIECE];
    float *values = on_device(count * sizeof(float));
    struct crw_rng rng;

    crw_rng_seed(&rng, count + (uint64_t)(to * 100));
    for (size_t i = 0; i < count; i += N_PIECE) {
        const size_t n = count - i < N_PIECE ? count - i : N_PIECE;
        crw_rng_uniform(&rng, piece, n, from, to);
        must(cudaMemcpy(values + i, piece, n * sizeof(float), cudaMemcpyHostToDevice), "cannot fill memory");
    }
    return values;
}

static void make_arena(struct arena *a)
{
    must(cudaStreamCreate(&a->q.stream), "cannot make a stream");
    must(cudaEventCreate(&a->begin), "cannot make an event");
    must(cudaEventCreate(&a->end), "cannot make an event");
    a->q.workspace = on_device(CUDA_WORKSPACE_FLOATS * sizeof(float));
    a->p = random_floats(n_parameters, -1, 1);
    a->g = random_floats(n_parameters, -0.1f, 0.1f);
    a->states[0] = random_floats(n_parameters, 1e-4f, 1e-2f); /* squares, for one optimizer or the other */
    a->states[1] = random_floats(n_parameters, 1e-4f, 2e-2f);
    a->copy = on_device(n_parameters * sizeof(float));
    a->commit = on_device(sizeof(*a->commit));
    a->options = on_device(sizeof(*a->options));
    a->tally = on_device(sizeof(*a->tally));
    const struct cuda_tally one = {.n_losses = 1, .n_batches = 1};
    must(cudaMemcpy(a->tally, &one, sizeof(one), cudaMemcpyHostToDevice), "cannot set the tally");
}

static void free_arena(struct arena *a)
{
    void *const memory[] = {a->q.workspace, a->p,      a->g,       a->states[0], a->states[1],
                            a->copy,        a->commit, a->options, a->tally};
    for (size_t i = 0; i < ARRAY_SIZE(memory); i++)
        must(cudaFree(memory[i]), "cannot free memory");
    must(cudaEventDestroy(a->begin), "cannot destroy an event");
    must(cudaEventDestroy(a->end), "cannot destroy an event");
    must(cudaStreamDestroy(a->q.stream), "cannot destroy a stream");
}

/* Bytes per second of what was queued between begin and now. */
static double bandwidth(struct arena *a, double n_bytes)
{
    float ms;
    must(cudaEventRecord(a->end, a->q.stream), "cannot record");
    must(cudaEventSynchronize(a->end), "cannot wait");
    must(cudaEventElapsedTime(&ms, a->begin, a->end), "cannot measure");
    return n_bytes / (1e-3 * ms);
}

static double time_copy(struct arena *a)
{
    const size_t n_bytes = n_parameters * sizeof(float);
    for (int i = -2; i < N_TIMED; i++) {
        if (i == 0)
            must(cudaEventRecord(a->begin, a->q.stream), "cannot record");
        must(cudaMemcpyAsync(a->copy, a->g, n_bytes, cudaMemcpyDeviceToDevice, a->q.stream), "cannot copy");
    }
    return bandwidth(a, 2.0 * N_TIMED * (double)n_bytes);
}

/* n_arrays: read and written, each. */
static double time_optimizer(struct arena *a, const struct cuda_optimizer_options *options, int n_states,
                             int n_arrays)
{
    must(cudaMemcpy(a->options, options, sizeof(*options), cudaMemcpyHostToDevice), "cannot set options");
    must(cuda_commit_begin(&a->q, NULL, a->options, a->tally, 1, 1, NULL, a->commit), "cannot begin a step");
    for (int i = -2; i < N_TIMED; i++) {
        if (i == 0)
            must(cudaEventRecord(a->begin, a->q.stream), "cannot record");
        must(cuda_optimizer_step(&a->q, options->of.kind, a->commit, n_parameters, a->p, a->g,
                                 n_states > 0 ? a->states[0] : NULL, n_states > 1 ? a->states[1] : NULL),
             "cannot step");
    }
    return bandwidth(a, (double)n_arrays * N_TIMED * (double)(n_parameters * sizeof(float)));
}

static int check_memory(void)
{
    static const struct {
        const char *name;
        struct cuda_optimizer_options options;
        int n_states, n_arrays;
    } cases[] = {
        {"sgd", {{.kind = CRW_SGD, .lr = 0.01}}, 0, 3},
        {"sgd_momentum", {{.kind = CRW_SGD, .lr = 0.01, .momentum = 0.9}}, 1, 5},
        {"adamw", {{.kind = CRW_ADAMW, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}}, 2, 7},
        {"adadelta", {{.kind = CRW_ADADELTA, .lr = 0.01, .rho = 0.9, .eps = 1e-6}}, 2, 7},
    };
    struct arena a;
    make_arena(&a);
    const double copy = time_copy(&a);
    (void)printf("{\"copy_gb_per_s\": %.1f", 1e-9 * copy);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        (void)printf(", \"fraction_%s\": %.3f", cases[i].name,
                     time_optimizer(&a, &cases[i].options, cases[i].n_states, cases[i].n_arrays) / copy);
    (void)printf("}\n");
    free_arena(&a);
    return 0;
}

int main(int argc, char **argv)
{
    struct backend_plugin plugin;
    const char *why;
    int code = 2;

    if (backend_open("crw-cuda", &plugin) != 0) {
        (void)fprintf(stderr, "device_check: %s\n", crw_error_message());
        return 1;
    }
    if (plugin.backend->count_devices(&why) <= 0) {
        (void)fprintf(stderr, "device_check: no device: %s\n", why);
        code = 77;
    } else if (argc == 2 && strcmp(argv[1], "drop") == 0) {
        code = check_drop(plugin.backend);
    } else if ((argc == 2 || argc == 3) && strcmp(argv[1], "memory") == 0) {
        n_parameters = argc == 3 ? strtoul(argv[2], NULL, 10) : n_parameters;
        code = n_parameters > 0 ? check_memory() : 2;
    }
    if (code == 2)
        (void)fprintf(stderr, "usage: device_check drop | memory [PARAMETERS]\n");
    backend_close(&plugin);
    return code;
}
