/*
 * The MNIST convnet on images in MNIST's format, data-parallel, resuming from its snapshot.
 *
 * Written to be copied: the network, where its samples come from and how a batch is made of them. What
 * happens with a batch is in trainer.c.
 */

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/format.h"
#include "worker-runtime/programs/idx_os.h"
#include "worker-runtime/programs/programs.h"

enum { ROWS = 28, COLUMNS = 28, PIXELS = ROWS * COLUMNS };

static const struct crw_layer layers[] = {
    {.kind = CRW_LAYER_CONV2D, .name = "conv1", .in = 1, .out = 32, .kernel = 3},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n1", .in = 32},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {.kind = CRW_LAYER_CONV2D, .name = "conv2", .in = 32, .out = 64, .kernel = 3},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n2", .in = 64},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {.kind = CRW_LAYER_FLATTEN},
    {.kind = CRW_LAYER_LINEAR, .name = "fc1", .in = 1600, .out = 128},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "fc2", .in = 128, .out = 10},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

/* Images and what is on them. */
struct labelled {
    struct idx images, labels;
    int64_t *classes; /* the labels, as losses take them */
};

struct mnist {
    const char *folder;
    struct labelled parts[2]; /* by enum part */
    float normalized[256];    /* pixel -> input value */
};

__attribute__((format(printf, 3, 4))) static int mnist_fail(char *error, size_t n, const char *format, ...)
{
    (void)format_arguments(error, n, format);
    return -1;
}

static int open_idx(const char *folder, const char *name, int n_dims, struct idx *ret, char *error, size_t n)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return mnist_fail(error, n, "--data %s: the path is too long", folder);
    return idx_open(path, n_dims, ret, error, n);
}

static int mnist_check(const char *folder, const struct labelled *part, const char *what, char *error,
                       size_t n)
{
    const struct idx *images = &part->images, *labels = &part->labels;

    if (images->dims[0] != ROWS || images->dims[1] != COLUMNS)
        return mnist_fail(error, n, "the %s images in %s are %u x %u, expected 28 x 28", what, folder,
                          images->dims[0], images->dims[1]);
    if (images->n_items != labels->n_items)
        return mnist_fail(error, n, "%s has %u %s images but %u labels", folder, images->n_items, what,
                          labels->n_items);
    if (images->n_items == 0)
        return mnist_fail(error, n, "%s has no %s images", folder, what);
    return 0;
}

static int read_part(const char *folder, struct labelled *part, const char *what, char *error, size_t n)
{
    const struct idx *labels = &part->labels;

    TRY(mnist_check(folder, part, what, error, n));
    part->classes = calloc(labels->n_items, sizeof(*part->classes));
    if (!part->classes)
        return mnist_fail(error, n, "out of memory for the classes of the %s images", what);
    for (uint32_t i = 0; i < labels->n_items; i++) {
        if (labels->data[i] > 9)
            return mnist_fail(error, n, "%s: label %u of the %s images is %u, expected 0 to 9", folder, i,
                              what, labels->data[i]);
        part->classes[i] = labels->data[i];
    }
    return 0;
}

static int open_mnist(void *data, uint32_t *ret_n_training, uint32_t *ret_n_test, char *error, size_t n)
{
    struct mnist *m = data;
    struct labelled *training = &m->parts[PART_TRAINING], *test = &m->parts[PART_TEST];

    if (open_idx(m->folder, "train-images-idx3-ubyte", 2, &training->images, error, n) < 0 ||
        open_idx(m->folder, "train-labels-idx1-ubyte", 0, &training->labels, error, n) < 0 ||
        open_idx(m->folder, "t10k-images-idx3-ubyte", 2, &test->images, error, n) < 0 ||
        open_idx(m->folder, "t10k-labels-idx1-ubyte", 0, &test->labels, error, n) < 0 ||
        read_part(m->folder, training, "training", error, n) < 0 ||
        read_part(m->folder, test, "test", error, n) < 0)
        return -1;
    for (int i = 0; i < 256; i++)
        m->normalized[i] = ((float)i / 255.0f - 0.1307f) / 0.3081f;
    *ret_n_training = training->images.n_items;
    *ret_n_test = test->images.n_items;
    return 0;
}

static void close_mnist(void *data)
{
    struct mnist *m = data;

    for (int part = 0; part < 2; part++) {
        idx_close(&m->parts[part].images);
        idx_close(&m->parts[part].labels);
        free(m->parts[part].classes);
    }
}

static void mnist_gather(void *data, enum part part, const uint32_t *samples, size_t n, float *input,
                         void *targets)
{
    const struct mnist *m = data;
    const struct labelled *from = &m->parts[part];
    int64_t *classes = targets;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *pixels = from->images.data + (size_t)samples[i] * PIXELS;

        for (int p = 0; p < PIXELS; p++)
            *input++ = m->normalized[pixels[p]];
        classes[i] = from->classes[samples[i]];
    }
}

static void mnist_resident(void *data, enum part part, struct crw_samples *ret)
{
    const struct mnist *m = data;
    const struct labelled *from = &m->parts[part];

    *ret = (struct crw_samples){.inputs = from->images.data,
                                .table = m->normalized,
                                .targets = from->classes,
                                .n = from->images.n_items};
}

static int mnist_loss(struct crw_model *model, const void *targets, float *ret_loss)
{
    return crw_model_nll_loss(model, targets, CRW_IGNORE_INDEX, ret_loss);
}

int mnist_run(const struct train_options *options, const struct crw_env *env, struct crw_group *group)
{
    struct mnist mnist = {.folder = options->data};
    const struct program program = {
        .name = "mnist",
        .samples_name = "images",
        .layers = layers,
        .n_layers = sizeof(layers) / sizeof(layers[0]),
        .input = {.channels = 1, .height = ROWS, .width = COLUMNS},
        .target_size = sizeof(int64_t),
        .open = open_mnist,
        .close = close_mnist,
        .gather = mnist_gather,
        .loss = mnist_loss,
        .loss_kind = CRW_NLL,
        .resident = mnist_resident,
        .data = &mnist,
    };

    return trainer_run(&program, options, env, group);
}
