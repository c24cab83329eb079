/*
 * The smallest job there is: linear regression on made-up samples, SGD, mean squared error. A network of 10
 * inputs and 2 outputs, or 20 and 1.
 *
 * The samples, so that another program can make the same: from one generator with seed 1, for each sample
 * in turn, its inputs, uniform in [-1, 1), then one number of noise for each output, uniform in [-0.1, 0.1).
 * Output j is (input[2j] - input[2j + 1]) + noise[j].
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/programs/programs.h"

enum { N_SAMPLES = 1000, DATA_SEED = 1 };

struct toy {
    int n_inputs, n_outputs;
    float *inputs, *outputs; /* [N_SAMPLES][n_inputs], [N_SAMPLES][n_outputs] */
};

static int toy_make_samples(void *data, uint32_t *ret_n_training, uint32_t *ret_n_test, char *error, size_t n)
{
    struct toy *toy = data;
    size_t n_in = (size_t)toy->n_inputs, n_out = (size_t)toy->n_outputs;
    struct crw_rng rng;

    toy->inputs = calloc(N_SAMPLES, n_in * sizeof(float));
    toy->outputs = calloc(N_SAMPLES, n_out * sizeof(float));
    if (!toy->inputs || !toy->outputs) {
        snprintf(error, n, "out of memory for %d samples", N_SAMPLES);
        return -1;
    }
    crw_rng_seed(&rng, DATA_SEED);
    for (size_t i = 0; i < N_SAMPLES; i++) {
        float *in = toy->inputs + i * n_in, *out = toy->outputs + i * n_out;

        crw_rng_uniform(&rng, in, n_in, -1.0f, 1.0f);
        crw_rng_uniform(&rng, out, n_out, -0.1f, 0.1f);
        for (size_t j = 0; j < n_out; j++)
            out[j] = (in[2 * j] - in[2 * j + 1]) + out[j];
    }
    *ret_n_training = N_SAMPLES;
    *ret_n_test = 0;
    return 0;
}

static void free_samples(void *data)
{
    struct toy *toy = data;

    free(toy->inputs);
    free(toy->outputs);
}

static void toy_gather(void *data, enum part part, const uint32_t *samples, size_t n, float *input,
                       void *targets)
{
    const struct toy *toy = data;
    size_t n_in = (size_t)toy->n_inputs, n_out = (size_t)toy->n_outputs;
    float *output = targets;

    for (size_t i = 0; i < n; i++) {
        memcpy(input + i * n_in, toy->inputs + samples[i] * n_in, n_in * sizeof(float));
        memcpy(output + i * n_out, toy->outputs + samples[i] * n_out, n_out * sizeof(float));
    }
}

static void toy_resident(void *data, enum part part, struct crw_samples *ret)
{
    const struct toy *toy = data;

    *ret = (struct crw_samples){.inputs = toy->inputs, .targets = toy->outputs, .n = N_SAMPLES};
}

static int toy_loss(struct crw_model *model, const void *targets, float *ret_loss)
{
    return crw_model_mse_loss(model, targets, ret_loss);
}

int toy_run(const struct train_options *options, const struct crw_env *env, struct crw_group *group)
{
    bool wide = options->shape == TRAIN_SHAPE_20X1;
    struct toy toy = {.n_inputs = wide ? 20 : 10, .n_outputs = wide ? 1 : 2};
    const struct crw_layer layers[] = {
        {.kind = CRW_LAYER_LINEAR, .name = "net", .in = toy.n_inputs, .out = toy.n_outputs},
    };
    const struct program program = {
        .name = "toy",
        .samples_name = "samples",
        .layers = layers,
        .n_layers = 1,
        .input = {.channels = toy.n_inputs, .height = 1, .width = 1},
        .target_size = (size_t)toy.n_outputs * sizeof(float),
        .open = toy_make_samples,
        .close = free_samples,
        .gather = toy_gather,
        .loss = toy_loss,
        .loss_kind = CRW_MSE,
        .resident = toy_resident,
        .data = &toy,
    };

    return trainer_run(&program, options, env, group);
}
