/*
 * What does it cost to average gradients of GPUs on the host? Ranks that share one emulated GPU train the MNIST network
 * with CRW_REDUCTION_HOST, beside the CPU's reducer with the same 900,904 bytes.
 *
 *     CRW_PLUGIN_DIR=build/tests/fakes/cuda_host/plugin host_reduce_bench [RANKS [STEPS]]
 *
 * The emulated device does its work when it is queued (CUDA_HOST_SCHEDULE=early), so crw_trainer_wait() has the all-reduce
 * and the norm alone; the copies to and from the device are not in it, because the emulation has no bus. Prints the lower
 * quartile of rank 0, in microseconds, and the ratio; and the same beside a step of batch 64 on the CPU.
 */

#include "base/err.h"
#include "base/time.h"
#include "tests/support/c/mnist_net.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/crw_trainer.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, STEPS_MAX = 1000, N_PIXELS = 28 * 28 };

struct bench {
    int steps;
};

struct training {
    struct crw_group *group;
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct crw_trainer *trainer; /* of steps of one sample: the gradients are as many as with any other */
    float *x;
    int64_t targets[BATCH];
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double lower_quartile(double *times, int n)
{
    qsort(times, (size_t)n, sizeof(*times), compare);
    return times[n / 4];
}

static int make_training(struct crw_group *group, struct training *t)
{
    struct crw_optimizer_options options = crw_optimizer_defaults(CRW_ADADELTA);
    struct crw_rng rng;
    int r = crw_model_create(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, BATCH, NULL, &t->model);

    if (r == 0)
        r = crw_optimizer_create(&options, MNIST_PARAMETERS, &t->optimizer);
    t->group = group;
    t->x = malloc((size_t)BATCH * N_PIXELS * sizeof(*t->x));
    if (r || !t->x)
        return r ? r : -1;
    crw_model_init(t->model, 0);
    crw_rng_seed(&rng, (uint64_t)crw_rank(group));
    crw_rng_uniform(&rng, t->x, (size_t)BATCH * N_PIXELS, -1, 1);
    for (int i = 0; i < BATCH; i++)
        t->targets[i] = i % MNIST_CLASSES;
    return 0;
}

static int make_trainer(struct training *t)
{
    const struct crw_trainer_options options = {
        .group = t->group,
        .model = t->model,
        .optimizer = t->optimizer,
        .loss = CRW_NLL,
        .reduction = CRW_REDUCTION_HOST,
        .oversubscribe = true,
    };
    const struct crw_samples samples = {.inputs = t->x, .targets = t->targets, .n = BATCH};
    int r = crw_trainer_create(&options, &t->trainer);

    if (r == 0)
        r = crw_trainer_set_data(t->trainer, &samples, NULL);
    return r == 0 ? crw_trainer_load(t->trainer) : r;
}

/* ---- what is measured ---- */

static int time_host_reduction(struct training *t, int steps, double *ret_us)
{
    static const uint32_t sample[] = {0};
    double times[STEPS_MAX];
    struct crw_trained trained;
    bool committed;
    int r = 0;

    for (int step = 0; r == 0 && step < steps; step++) {
        r = crw_trainer_start(t->trainer, sample, 1);
        if (r == 0)
            r = crw_trainer_step(t->trainer, 1, true);
        if (r == 0)
            r = crw_barrier(t->group);
        const double began_us = now_us();
        if (r == 0)
            r = crw_trainer_wait(t->trainer, &trained);
        times[step] = now_us() - began_us;
        if (r == 0)
            r = crw_trainer_commit(t->trainer, NULL, 0, &committed);
    }
    *ret_us = lower_quartile(times, steps);
    return r;
}

static int time_reducer(struct training *t, int steps, double *ret_us)
{
    double times[STEPS_MAX];
    struct crw_reducer *reducer;
    void *gradients;
    int r = crw_shared_alloc(t->group, MNIST_PARAMETERS * sizeof(float), &gradients);

    if (r == 0)
        r = crw_reducer_create(t->group, gradients, MNIST_PARAMETERS, MNIST_PARAMETERS * sizeof(float),
                               &reducer);
    if (r)
        return r;
    for (int step = 0; r == 0 && step < steps; step++) {
        r = crw_barrier(t->group);
        const double began_us = now_us();
        if (r == 0)
            r = crw_reducer_finish(reducer);
        times[step] = now_us() - began_us;
    }
    crw_reducer_destroy(reducer);
    *ret_us = lower_quartile(times, steps);
    return r;
}

static int time_cpu_step(struct training *t, int steps, double *ret_us)
{
    double times[STEPS_MAX];
    float loss;
    int r = 0;

    for (int step = 0; r == 0 && step < steps; step++) {
        const double began_us = now_us();
        r = crw_model_forward(t->model, t->x, BATCH, true, NULL);
        if (r == 0)
            r = crw_model_nll_loss(t->model, t->targets, CRW_IGNORE_INDEX, &loss);
        if (r == 0)
            r = crw_model_backward(t->model);
        crw_optimizer_step(t->optimizer, crw_model_parameters(t->model, NULL), crw_model_gradients(t->model));
        times[step] = now_us() - began_us;
    }
    *ret_us = lower_quartile(times, steps);
    return r;
}

static int run(struct crw_group *group, void *data)
{
    const struct bench *bench = data;
    struct training t = {0};
    double host_us = 0, reducer_us = 0, step_us = 0;
    int r = make_training(group, &t);

    if (r == 0)
        r = make_trainer(&t);
    if (r == 0)
        r = time_host_reduction(&t, bench->steps, &host_us);
    if (r == 0)
        r = time_reducer(&t, bench->steps, &reducer_us);
    if (r == 0)
        r = time_cpu_step(&t, bench->steps, &step_us);
    if (r == 0 && crw_is_primary(group)) {
        printf(
            "gradients of MNIST, %d ranks: averaged on the host in %.0f us, by the CPU's reducer in %.0f us, ratio %.1f\n",
            crw_world_size(group), host_us, reducer_us, host_us / reducer_us);
        printf("a step of batch %d on the CPU: %.0f us, ratio %.3f\n", BATCH, step_us, host_us / step_us);
    }
    if (r)
        fprintf(stderr, "host_reduce_bench: %s\n", crw_error_message());
    crw_trainer_destroy(t.trainer);
    crw_optimizer_destroy(t.optimizer);
    crw_model_destroy(t.model);
    free(t.x);
    return r;
}

int main(int argc, char **argv)
{
    int n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    struct bench bench = {.steps = argc > 2 ? atoi(argv[2]) : 40};

    if (bench.steps < 4 || bench.steps > STEPS_MAX || setenv("CUDA_HOST_SCHEDULE", "early", 1) != 0) {
        fprintf(stderr, "usage: %s [RANKS [STEPS]]\n", argv[0]);
        return 2;
    }
    if (crw_launch(run, &bench, n_ranks) == 0)
        return 0;
    fprintf(stderr, "host_reduce_bench: %s\n", crw_error_message());
    return 1;
}
