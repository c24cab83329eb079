/*
 * A classifier on made-up samples: two linear layers with a relu between them, cross-entropy, AdamW. At every
 * batch the loss is averaged over all ranks and their correct predictions are gathered.
 *
 * The samples, so that another program can make the same: from one generator with seed 1, first a centre
 * for each class, [class][input], uniform in [-1, 1). Then for each sample, the training ones first: one
 * number u, uniform in [0, 1), and the class is the whole part of u * 10; and its inputs, uniform in [-1, 1),
 * each added to its class's centre.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/programs/programs.h"

enum { N_TRAINING = 1000, N_TEST = 500, N_SAMPLES = N_TRAINING + N_TEST, DATA_SEED = 1 };
enum { N_INPUTS = 20, N_HIDDEN = 64, N_CLASSES = 10 };

static const struct crw_layer layers[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "hidden", .in = N_INPUTS, .out = N_HIDDEN},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "output", .in = N_HIDDEN, .out = N_CLASSES},
};

struct classifier {
    float inputs[N_SAMPLES][N_INPUTS];
    int64_t classes[N_SAMPLES];
    uint8_t *flags, *all_flags; /* correct or not: of a batch, and of all ranks' batches */
};

static void make_sample(struct crw_rng *rng, float centres[N_CLASSES][N_INPUTS], float *input,
                        int64_t *ret_class)
{
    float u;

    crw_rng_uniform(rng, &u, 1, 0.0f, 1.0f);
    *ret_class = (int64_t)((double)u * N_CLASSES);
    crw_rng_uniform(rng, input, N_INPUTS, -1.0f, 1.0f);
    for (int i = 0; i < N_INPUTS; i++)
        input[i] += centres[*ret_class][i];
}

static int classifier_make_samples(void *data, uint32_t *ret_n_training, uint32_t *ret_n_test, char *error,
                                   size_t n)
{
    struct classifier *c = data;
    float centres[N_CLASSES][N_INPUTS];
    struct crw_rng rng;

    if (!c->flags || !c->all_flags) {
        snprintf(error, n, "out of memory for the flags of a batch");
        return -1;
    }
    crw_rng_seed(&rng, DATA_SEED);
    crw_rng_uniform(&rng, centres[0], N_CLASSES * N_INPUTS, -1.0f, 1.0f);
    for (int i = 0; i < N_SAMPLES; i++)
        make_sample(&rng, centres, c->inputs[i], &c->classes[i]);
    *ret_n_training = N_TRAINING;
    *ret_n_test = N_TEST;
    return 0;
}

static void free_flags(void *data)
{
    struct classifier *c = data;

    free(c->flags);
    free(c->all_flags);
}

static void classifier_gather(void *data, enum part part, const uint32_t *samples, size_t n, float *input,
                              void *targets)
{
    const struct classifier *c = data;
    uint32_t first = part == PART_TEST ? N_TRAINING : 0;
    int64_t *classes = targets;

    for (size_t i = 0; i < n; i++) {
        memcpy(input + i * N_INPUTS, c->inputs[first + samples[i]], sizeof(c->inputs[0]));
        classes[i] = c->classes[first + samples[i]];
    }
}

static void classifier_resident(void *data, enum part part, struct crw_samples *ret)
{
    const struct classifier *c = data;
    uint32_t first = part == PART_TEST ? N_TRAINING : 0;

    *ret = (struct crw_samples){.inputs = c->inputs[first],
                                .targets = c->classes + first,
                                .n = part == PART_TEST ? N_TEST : N_TRAINING};
}

static int classifier_loss(struct crw_model *model, const void *targets, float *ret_loss)
{
    return crw_model_cross_entropy_loss(model, targets, CRW_IGNORE_INDEX, ret_loss);
}

/* Every rank learns which samples of all ranks were right; all ranks' batches are of one size. */
static int accuracy(void *data, struct crw_group *group, struct crw_model *model,
                    const struct crw_batch *batch, double *ret_accuracy)
{
    struct classifier *c = data;
    size_t n_all = batch->n * (size_t)crw_world_size(group), n_correct = 0;

    (void)crw_model_correct(model, batch->targets, c->flags);
    TRY(crw_all_gather(group, c->flags, batch->n, c->all_flags));
    for (size_t i = 0; i < n_all; i++)
        n_correct += c->all_flags[i];
    *ret_accuracy = (double)n_correct / (double)n_all;
    return 0;
}

int classifier_run(const struct train_options *options, const struct crw_env *env, struct crw_group *group)
{
    struct classifier classifier = {
        .flags = malloc(options->batch_size),
        .all_flags = malloc(options->batch_size * (size_t)crw_world_size(group)),
    };
    const struct program program = {
        .name = "classifier",
        .samples_name = "samples",
        .layers = layers,
        .n_layers = sizeof(layers) / sizeof(layers[0]),
        .input = {.channels = N_INPUTS, .height = 1, .width = 1},
        .target_size = sizeof(int64_t),
        .open = classifier_make_samples,
        .close = free_flags,
        .gather = classifier_gather,
        .loss = classifier_loss,
        .loss_kind = CRW_CROSS_ENTROPY,
        .resident = classifier_resident,
        .accuracy = accuracy,
        .data = &classifier,
    };

    return trainer_run(&program, options, env, group);
}
