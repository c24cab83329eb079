/*
 * `train` with a program whose parameters count the samples they were trained on:
 *
 *     count-samples toy [options of train]
 *
 * One weight for each sample. A sample's input is 1 at its own weight and 0 elsewhere, and its target is set so that
 * its gradient there is the number of ranks, and after averaging 1. With SGD and a learning rate of 1 each use of a
 * sample takes exactly 1 from its weight, and from the bias. So the weights of a snapshot say how often each sample
 * was committed, and they say it by the same way that training itself goes: batch, all-reduce, optimizer, snapshot,
 * resume. What the trainer believes about its position has no part in it.
 *
 * COUNT_PAUSE_US: time for a batch, so that there is something to kill. COUNT_WRONG: one sample is taken for another,
 * to see that the counter finds it.
 */

#include "worker-runtime/programs/trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_SAMPLES = 211 };

/* What is known of a sample when its loss is asked for. */
struct target {
    uint32_t sample, n; /* of n in its batch */
};

static int world_size;
static useconds_t pause_us;
static bool wrong;

static int open_samples(void *data, uint32_t *ret_n_training, uint32_t *ret_n_test, char *error, size_t n)
{
    *ret_n_training = N_SAMPLES;
    *ret_n_test = 0;
    return 0;
}

static void close_samples(void *data)
{
}

static void gather(void *data, enum part part, const uint32_t *samples, size_t n, float *input, void *targets)
{
    struct target *target = targets;

    memset(input, 0, n * N_SAMPLES * sizeof(*input));
    for (size_t i = 0; i < n; i++) {
        target[i] = (struct target){.sample = samples[i], .n = (uint32_t)n};
        if (wrong && samples[i] == 3)
            target[i].sample = 4;
        input[i * N_SAMPLES + target[i].sample] = 1;
    }
    (void)usleep(pause_us);
}

/* The gradient of the mean of squares is 2 (output - target) / n. */
static int loss(struct crw_model *model, const void *targets, float *ret_loss)
{
    const struct target *target = targets;
    const float *weights = crw_model_parameters(model, NULL);
    uint32_t n = target[0].n;
    float *numbers = calloc(n, sizeof(*numbers));
    int result;

    if (!numbers)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        numbers[i] = weights[target[i].sample] + weights[N_SAMPLES] - (float)n * (float)world_size / 2;
    result = crw_model_mse_loss(model, numbers, ret_loss);
    free(numbers);
    return result;
}

int main(int argc, char **argv)
{
    const struct crw_layer layers[] = {{.kind = CRW_LAYER_LINEAR, .name = "net", .in = N_SAMPLES, .out = 1}};
    const struct program program = {
        .name = "count-samples",
        .samples_name = "samples",
        .layers = layers,
        .n_layers = 1,
        .input = {.channels = N_SAMPLES, .height = 1, .width = 1},
        .target_size = sizeof(struct target),
        .open = open_samples,
        .close = close_samples,
        .gather = gather,
        .loss = loss,
    };
    const char *pause = getenv("COUNT_PAUSE_US");
    struct train_options options;
    struct crw_group *group;
    struct crw_env env;
    char error[512];

    if (train_options_parse(argv, &options, error, sizeof(error)) != 0) {
        fprintf(stderr, "count-samples: %s\n", error);
        return TRAIN_USAGE;
    }
    if (crw_env_read(&env) != 0 || crw_group_create(&env, &group) != 0) {
        fprintf(stderr, "count-samples: %s\n", crw_error_message());
        return TRAIN_FAILED;
    }
    options.optimizer = CRW_SGD;
    options.lr = 1;
    world_size = crw_world_size(group);
    pause_us = pause ? (useconds_t)atoi(pause) : 0;
    wrong = getenv("COUNT_WRONG") != NULL;
    return trainer_run(&program, &options, &env, group);
}
