/*
 * What a durable snapshot every second costs the training: the MNIST network at batch 64 with Adadelta, one second
 * with a snapshot and one without in turn, so that neighbours on the machine take from both alike.
 *
 *     snapshot_stall [SNAPSHOTS [FOLDER]]     60, in a folder below TMPDIR
 *
 * The stall is the time that crw_snapshots_save() keeps the step waiting; the goal is at most 1 % of the time. What
 * the thread that writes takes from the core besides is in the steps of the two kinds of seconds.
 */

#include "base/err.h"
#include "tests/support/c/mnist_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/c/clock.h"

enum { BATCH = 64, TENSORS_MAX = 32 };
static const double GOAL = 0.01;

struct training {
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    float *input;
    int64_t targets[BATCH];
    struct crw_tensor tensors[TENSORS_MAX];
    size_t n_tensors, n_bytes;
    uint64_t step;
};

static void must(int r)
{
    if (r != 0) {
        fprintf(stderr, "snapshot_stall: %s\n", crw_error_message());
        exit(1);
    }
}

static void add_tensor(struct training *t, struct crw_tensor tensor)
{
    size_t n = tensor.dtype == CRW_I64 ? 8 : 4;

    for (int i = 0; i < tensor.n_dims; i++)
        n *= (size_t)tensor.dims[i];
    t->tensors[t->n_tensors++] = tensor;
    t->n_bytes += n;
}

static void start(struct training *t)
{
    struct crw_optimizer_options options = crw_optimizer_defaults(CRW_ADADELTA);
    struct crw_rng rng;

    options.lr = 0.01;
    must(crw_model_create(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, BATCH, NULL, &t->model));
    must(crw_optimizer_create(&options, MNIST_PARAMETERS, &t->optimizer));
    crw_model_init(t->model, 0);
    t->input = calloc(BATCH, 28 * 28 * sizeof(float));
    crw_rng_seed(&rng, 1);
    crw_rng_uniform(&rng, t->input, (size_t)BATCH * 28 * 28, -1, 1);
    for (int i = 0; i < BATCH; i++)
        t->targets[i] = (int64_t)(i % MNIST_CLASSES);
    for (size_t i = 0; i < crw_model_n_tensors(t->model); i++)
        add_tensor(t, crw_model_tensor(t->model, i));
    for (size_t i = 0; i < crw_model_n_buffers(t->model); i++)
        add_tensor(t, crw_model_buffer(t->model, i));
    for (size_t i = 0; i < crw_optimizer_n_states(t->optimizer); i++) {
        struct crw_tensor state = {.dtype = CRW_F32, .n_dims = 1, .dims = {MNIST_PARAMETERS}};

        state.data = crw_optimizer_state(t->optimizer, i, &state.name);
        add_tensor(t, state);
    }
}

static void take_step(struct training *t)
{
    float loss;

    (void)crw_model_forward(t->model, t->input, BATCH, true, NULL);
    (void)crw_model_nll_loss(t->model, t->targets, CRW_IGNORE_INDEX, &loss);
    (void)crw_model_backward(t->model);
    crw_optimizer_step(t->optimizer, crw_model_parameters(t->model, NULL), crw_model_gradients(t->model));
    t->step++;
}

/* A second of steps; a snapshot after the first one, if there shall be one. Returns the steps per second. */
static double train_for_a_second(struct training *t, struct crw_snapshots *s, double *ret_stall_s)
{
    double began_s = now_s(), passed_s;
    uint64_t first = t->step;

    do {
        take_step(t);
        if (s && t->step == first + 1) {
            double save_s = now_s();

            must(crw_snapshots_save(s, t->step, t->tensors, t->n_tensors, NULL, 0));
            *ret_stall_s = now_s() - save_s;
        }
        passed_s = now_s() - began_s;
    } while (passed_s < 1);
    return (double)(t->step - first) / passed_s;
}

static void measure(struct training *t, struct crw_snapshots *s, int n)
{
    double stall_s = 0, sum_s = 0, worst_s = 0, with = 0, without = 0;
    const char *failure;
    int n_durable = 0;

    for (int i = 0; i < n; i++) {
        uint64_t saved = t->step + 1;

        with += train_for_a_second(t, s, &stall_s);
        n_durable += crw_snapshots_status(s, &failure) == saved;
        if (failure)
            fprintf(stderr, "snapshot_stall: %s\n", failure);
        sum_s += stall_s;
        worst_s = stall_s > worst_s ? stall_s : worst_s;
        crw_snapshots_wait(s);
        without += train_for_a_second(t, NULL, NULL);
    }
    printf("%d snapshots of %.2f MB, one each second, %d durable within theirs; %.0f steps/s\n", n,
           (double)t->n_bytes / 1e6, n_durable, with / n);
    printf(
        "a save keeps the step waiting for %.3f ms, at most %.3f ms: %.3f %% of the time, goal %.0f %%: %s\n",
        sum_s / n * 1e3, worst_s * 1e3, sum_s / n * 100, GOAL * 100, sum_s / n <= GOAL ? "met" : "not met");
    printf("steps in seconds with a snapshot beside those without: %+.2f %%\n", (with / without - 1) * 100);
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    char folder[512], command[600];
    int n = argc > 1 ? atoi(argv[1]) : 60;
    struct training t = {0};
    struct crw_snapshots *s;

    (void)snprintf(folder, sizeof(folder), "%s/snapshot-stall-XXXXXX",
                   argc > 2 ? argv[2]
                   : tmp    ? tmp
                            : "/tmp");
    if (n < 1 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: %s [SNAPSHOTS [FOLDER]]\n", argv[0]);
        return 2;
    }
    start(&t);
    take_step(&t);
    must(crw_snapshots_create(folder, 2, &s));
    measure(&t, s, n);
    crw_snapshots_destroy(s);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : 1;
}
