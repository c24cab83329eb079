/*
 * A program with a trainer of its own: trainer_of_ones_own [defaults]. Trains three steps of four classes with gaps, and
 * prints the names of the NCCL variables of its environment behind that, or the sentence of what failed.
 */

#include <stdio.h>
#include <string.h>

#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"

enum { N = 8, N_INPUTS = 2, N_CLASSES = 4, GAP = 99 };

extern char **environ;

static int fail(void)
{
    (void)fprintf(stderr, "%s\n", crw_error_message());
    return 1;
}

static int train(struct crw_trainer *t)
{
    static const float inputs[N][N_INPUTS] = {{1, 0}, {0, 1}, {1, 1}, {0, 0}, {2, 0}, {0, 2}, {2, 2}, {1, 2}};
    static const int64_t classes[N] = {0, GAP, 2, 3, GAP, 1, 2, 3};
    static const uint32_t list[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct crw_samples samples = {.inputs = inputs, .targets = classes, .n = N};
    struct crw_trained trained;
    bool committed = true;
    int r = crw_trainer_set_data(t, &samples, NULL);

    for (int step = 0; r == 0 && step < 3; step++) {
        r = crw_trainer_start(t, list, N);
        if (r == 0)
            r = crw_trainer_step(t, N, true);
        if (r == 0)
            r = crw_trainer_wait(t, &trained);
        if (r == 0)
            r = crw_trainer_commit(t, NULL, 0, &committed);
    }
    return r == 0 && !committed ? -1 : r;
}

static void print_variables(void)
{
    for (char **v = environ; *v; v++)
        if (strncmp(*v, "NCCL_", 5) == 0)
            (void)printf("%.*s\n", (int)strcspn(*v, "="), *v);
}

int main(int argc, char **argv)
{
    static const struct crw_layer layer = {
        .kind = CRW_LAYER_LINEAR, .name = "a", .in = N_INPUTS, .out = N_CLASSES};
    const int64_t gap = GAP;
    struct crw_optimizer_options sgd = crw_optimizer_defaults(CRW_SGD);
    struct crw_group *group;
    struct crw_model *model;
    struct crw_trainer *t;

    if (crw_init(NULL, 0, 1, &group) != 0 ||
        crw_model_create(&layer, 1, (struct crw_shape){N_INPUTS, 1, 1}, N, NULL, &model) != 0)
        return fail();
    crw_model_init(model, 1);
    struct crw_trainer_options options = {.group = group,
                                          .model = model,
                                          .loss = CRW_CROSS_ENTROPY,
                                          .ignore_index = &gap,
                                          .nccl_defaults = argc > 1};
    if (crw_optimizer_create(&sgd, crw_model_count_parameters(&layer, 1), &options.optimizer) != 0 ||
        crw_trainer_create(&options, &t) != 0 || train(t) != 0)
        return fail();
    print_variables();
    crw_trainer_destroy(t);
    crw_optimizer_destroy(options.optimizer);
    crw_model_destroy(model);
    return crw_finish(group) == 0 ? 0 : fail();
}
