/*
 * Computes what a test made up: reads cases from standard input, writes the results to standard output, with one table
 * of kernels.
 *
 *     crw-number-cases            prints the tables that this processor runs
 *     crw-number-cases TABLE      reads cases until the end of the input
 *
 * The input has 32-bit integers, floats, doubles and 64-bit integers without padding, in the order of the calls of take()
 * here. All results are floats.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"
#include "worker-runtime/model/model.h"

enum case_kind { CASE_CHAIN, CASE_OPTIMIZER, CASE_SAMPLER };

/* How a step of a chain ends; the losses behind are those of enum crw_loss. */
enum ending { END_FORWARD, END_D_OUTPUT, END_D_INPUT, END_LOSS };

static const struct cpu_kernels *table;

/* In place of cpu_kernels_best(), for models and optimizers: see meson.build. */
const struct cpu_kernels *__wrap_cpu_kernels_best(void);
const struct cpu_kernels *__wrap_cpu_kernels_best(void)
{
    return table;
}

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "crw-number-cases: %s: %s\n", what, crw_error_message());
    exit(1);
}

static void check(int result, const char *what)
{
    if (result)
        give_up(what);
}

/* False at the end of the input. */
static bool take_some(void *to, size_t size)
{
    size_t n = size ? fread(to, 1, size, stdin) : 0;

    if (n != 0 && n != size)
        give_up("the input ends in the middle of a case");
    return n == size;
}

static void take(void *to, size_t size)
{
    if (!take_some(to, size))
        give_up("the input ends in the middle of a case");
}

static int32_t take_int(void)
{
    int32_t value;

    take(&value, sizeof(value));
    return value;
}

static void *take_array(size_t count, size_t size)
{
    void *array = malloc(count * size + 1);

    if (!array)
        give_up("out of memory");
    take(array, count * size);
    return array;
}

static void give(const void *from, size_t size)
{
    if (fwrite(from, 1, size, stdout) != size)
        give_up("cannot write");
}

/* Every result is a float: counts are below 2^24. */
static void give_count(uint64_t count)
{
    float value = (float)count;

    give(&value, sizeof(value));
}

/* ---- chains of layers ---- */

struct chain {
    struct crw_model *model;
    size_t n_inputs, n_outputs, n_parameters;
};

static void take_layers(struct crw_layer *layers, char (*names)[16], size_t n_layers)
{
    for (size_t i = 0; i < n_layers; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "layer%zu", i);
        layers[i] = (struct crw_layer){.kind = (enum crw_layer_kind)take_int(), .name = names[i]};
        layers[i].in = take_int();
        layers[i].out = take_int();
        layers[i].kernel = take_int();
    }
}

static void take_buffers(struct crw_model *model)
{
    for (size_t i = 0; i < crw_model_n_buffers(model); i++) {
        struct crw_tensor t = crw_model_buffer(model, i);

        if (t.dtype == CRW_F32)
            take(t.data, (size_t)t.dims[0] * sizeof(float));
    }
}

static void give_buffers(const struct crw_model *model)
{
    for (size_t i = 0; i < crw_model_n_buffers(model); i++) {
        struct crw_tensor t = crw_model_buffer(model, i);

        if (t.dtype == CRW_F32)
            give(t.data, (size_t)t.dims[0] * sizeof(float));
        else
            give_count((uint64_t) * (int64_t *)t.data);
    }
}

/* The fields behind the case's kind, up to the steps. */
static struct chain take_chain(void)
{
    enum { N_LAYERS_MAX = 32 };
    struct crw_layer layers[N_LAYERS_MAX];
    char names[N_LAYERS_MAX][16];
    struct chain chain;
    size_t n_layers = (size_t)take_int();
    struct crw_shape input;
    float *parameters;

    if (n_layers > N_LAYERS_MAX)
        give_up("too many layers");
    take_layers(layers, names, n_layers);
    input.channels = take_int();
    input.height = take_int();
    input.width = take_int();
    check(crw_model_create(layers, n_layers, input, take_int(), NULL, &chain.model), "crw_model_create");
    check(crw_model_set_precision(chain.model, take_int() ? CRW_BF16 : CRW_F32), "crw_model_set_precision");
    chain.n_inputs = (size_t)input.channels * (size_t)input.height * (size_t)input.width;
    chain.n_outputs = (size_t)take_int();
    parameters = crw_model_parameters(chain.model, &chain.n_parameters);
    take(parameters, chain.n_parameters * sizeof(float));
    take_buffers(chain.model);
    return chain;
}

static void run_loss(const struct chain *chain, enum crw_loss loss, size_t n)
{
    int64_t ignore_index;
    float value = 0;
    void *targets;

    take(&ignore_index, sizeof(ignore_index));
    targets = take_array(loss == CRW_MSE ? n * chain->n_outputs : n,
                         loss == CRW_MSE ? sizeof(float) : sizeof(int64_t));
    if (loss == CRW_NLL)
        check(crw_model_nll_loss(chain->model, targets, ignore_index, &value), "crw_model_nll_loss");
    else if (loss == CRW_CROSS_ENTROPY)
        check(crw_model_cross_entropy_loss(chain->model, targets, ignore_index, &value),
              "cross_entropy_loss");
    else
        check(crw_model_mse_loss(chain->model, targets, &value), "crw_model_mse_loss");
    give(&value, sizeof(value));
    give(chain->model->d_output, n * chain->n_outputs * sizeof(float));
    give_count(loss == CRW_MSE ? 0 : crw_model_correct(chain->model, targets, NULL));
    check(crw_model_backward(chain->model), "crw_model_backward");
    free(targets);
}

static void run_backward_from(const struct chain *chain, size_t n, bool with_d_input)
{
    float *d_output = take_array(n * chain->n_outputs, sizeof(float));
    float *d_input = with_d_input ? calloc(n * chain->n_inputs, sizeof(float)) : NULL;

    if (with_d_input && !d_input)
        give_up("out of memory");
    check(crw_model_backward_from(chain->model, d_output, d_input), "crw_model_backward_from");
    if (d_input)
        give(d_input, n * chain->n_inputs * sizeof(float));
    free(d_output);
    free(d_input);
}

static void run_chain_step(const struct chain *chain)
{
    size_t n = (size_t)take_int();
    int training = take_int(), ending = take_int();
    float *input = take_array(n * chain->n_inputs, sizeof(float));
    const float *output;

    check(crw_model_forward(chain->model, input, (int)n, training, &output), "crw_model_forward");
    give(output, n * chain->n_outputs * sizeof(float));
    if (ending >= END_LOSS)
        run_loss(chain, (enum crw_loss)(ending - END_LOSS), n);
    else if (ending != END_FORWARD)
        run_backward_from(chain, n, ending == END_D_INPUT);
    if (ending != END_FORWARD)
        give(crw_model_gradients(chain->model), chain->n_parameters * sizeof(float));
    give_buffers(chain->model);
    free(input);
}

static void run_chain(void)
{
    struct chain chain = take_chain();

    for (int n_steps = take_int(); n_steps > 0; n_steps--)
        run_chain_step(&chain);
    crw_model_destroy(chain.model);
}

/* ---- optimizers ---- */

static struct crw_optimizer_options take_optimizer_options(void)
{
    struct crw_optimizer_options o = crw_optimizer_defaults((enum crw_optimizer_kind)take_int());
    double *const fields[] = {&o.lr,    &o.weight_decay, &o.momentum, &o.dampening,
                              &o.beta1, &o.beta2,        &o.eps,      &o.rho};

    o.nesterov = take_int();
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        take(fields[i], sizeof(double));
    return o;
}

/* As a snapshot does: another optimizer goes on with the states and the number of steps. */
static struct crw_optimizer *resumed(struct crw_optimizer *o, const struct crw_optimizer_options *options,
                                     size_t count)
{
    struct crw_optimizer *next;

    check(crw_optimizer_create(options, count, &next), "crw_optimizer_create");
    for (size_t i = 0; i < crw_optimizer_n_states(o); i++)
        memcpy(crw_optimizer_state(next, i, NULL), crw_optimizer_state(o, i, NULL), count * sizeof(float));
    crw_optimizer_set_steps(next, crw_optimizer_steps(o));
    crw_optimizer_destroy(o);
    return next;
}

static void run_optimizer(void)
{
    struct crw_optimizer_options options = take_optimizer_options();
    size_t count = (size_t)take_int();
    int n_steps = take_int(), resume_at = take_int();
    float *parameters = take_array(count, sizeof(float));
    struct crw_optimizer *o;

    check(crw_optimizer_create(&options, count, &o), "crw_optimizer_create");
    for (int step = 0; step < n_steps; step++) {
        float *gradients;
        double lr;

        if (step == resume_at)
            o = resumed(o, &options, count);
        take(&lr, sizeof(lr));
        gradients = take_array(count, sizeof(float));
        crw_optimizer_set_lr(o, lr);
        crw_optimizer_step(o, parameters, gradients);
        free(gradients);
    }
    give(parameters, count * sizeof(float));
    for (size_t i = 0; i < crw_optimizer_n_states(o); i++)
        give(crw_optimizer_state(o, i, NULL), count * sizeof(float));
    crw_optimizer_destroy(o);
    free(parameters);
}

/* ---- samplers ---- */

static void run_sampler(void)
{
    struct crw_sampler_options options = {.n_samples = (uint32_t)take_int()};
    uint64_t seed_epoch_consumed[3];
    uint32_t *indices = take_array(0, 1), n_taken = 0, n_batches, n;
    struct crw_sampler *s;
    size_t batch;

    options.rank = take_int();
    options.world_size = take_int();
    options.shuffle = take_int();
    options.drop_last = take_int();
    batch = (size_t)take_int();
    take(seed_epoch_consumed, sizeof(seed_epoch_consumed));
    options.seed = seed_epoch_consumed[0];
    check(crw_sampler_create(&options, &s), "crw_sampler_create");
    check(crw_sampler_start(s, seed_epoch_consumed[1], seed_epoch_consumed[2]), "crw_sampler_start");
    n_batches = (uint32_t)crw_sampler_batches_left(s, batch);
    do {
        indices = realloc(indices, (n_taken + batch) * sizeof(*indices));
        if (!indices)
            give_up("out of memory");
        n = (uint32_t)crw_sampler_next(s, indices + n_taken, batch);
        n_taken += n;
    } while (n > 0);
    give_count(n_taken);
    give_count(n_batches);
    give_count(crw_sampler_consumed(s));
    for (uint32_t i = 0; i < n_taken; i++)
        give_count(indices[i]);
    crw_sampler_destroy(s);
    free(indices);
}

static void print_tables(void)
{
    for (const struct cpu_kernels *const *k = cpu_kernels_all(); *k; k++)
        puts((*k)->name);
}

static const struct cpu_kernels *table_named(const char *name)
{
    const struct cpu_kernels *const *k = cpu_kernels_all();

    while (*k && strcmp((*k)->name, name) != 0)
        k++;
    return *k;
}

int main(int argc, char **argv)
{
    static void (*const run[])(void) = {run_chain, run_optimizer, run_sampler};
    int32_t kind;

    if (argc < 2) {
        print_tables();
        return 0;
    }
    table = table_named(argv[1]);
    if (!table) {
        fprintf(stderr, "crw-number-cases: this processor has no table %s\n", argv[1]);
        return 2;
    }
    while (take_some(&kind, sizeof(kind)))
        run[kind]();
    return fflush(stdout) == 0 ? 0 : 1;
}
