/*
 * How fast one core trains: the MNIST network at batch 64, forward, loss, backward and Adadelta, and the
 * kernels that it spends its time in. Prints numbers and never fails for being slow.
 *
 *     train_step_bench [seconds for each number, default 1] [only this table of kernels]
 *
 * With CRW_BENCH_BRIEF set it prints one number, images per second: train_step_bench.py reads that.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "tests/support/c/mnist_net.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/model/model.h"

enum { BATCH = 64, CLASSES = MNIST_CLASSES };

static double seconds_each = 1;

/* This thread's time on a core: what neighbours on the machine take is not ours. */
static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *random_floats(size_t count, uint64_t seed)
{
    struct crw_rng rng;
    float *x = aligned_alloc(64, (count * sizeof(*x) + 63) / 64 * 64);
    if (!x)
        abort();
    crw_rng_seed(&rng, seed);
    crw_rng_uniform(&rng, x, count, -1, 1);
    return x;
}

/* Seconds for one call: the best of ten stretches. */
static double best_time(void (*call)(void *), void *data)
{
    double best = 1e30;
    call(data);
    for (int stretch = 0; stretch < 10; stretch++) {
        int n = 0;
        double start = now(), passed;
        do {
            call(data);
            n++;
            passed = now() - start;
        } while (passed < seconds_each / 10);
        if (passed / n < best)
            best = passed / n;
    }
    return best;
}

/* ------------------------------------------------------------------ the whole step */

struct training {
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    float *x;
    int64_t targets[BATCH];
};

static void forward(void *data)
{
    struct training *t = data;
    float loss;
    (void)crw_model_forward(t->model, t->x, BATCH, true, NULL);
    (void)crw_model_nll_loss(t->model, t->targets, CRW_IGNORE_INDEX, &loss);
}

static void backward(void *data)
{
    struct training *t = data;
    (void)crw_model_backward(t->model);
}

static void step_optimizer(void *data)
{
    struct training *t = data;
    crw_optimizer_step(t->optimizer, crw_model_parameters(t->model, NULL), crw_model_gradients(t->model));
}

static void whole_step(void *data)
{
    forward(data);
    backward(data);
    step_optimizer(data);
}

static void evaluate(void *data)
{
    struct training *t = data;
    (void)crw_model_forward(t->model, t->x, BATCH, false, NULL);
}

static int training_start(struct training *t, const struct cpu_kernels *kernels)
{
    struct crw_optimizer_options options = crw_optimizer_defaults(CRW_ADADELTA);
    size_t count;
    int r = crw_model_create(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, BATCH, NULL, &t->model);
    if (r)
        return r;
    t->model->kernels = kernels;
    crw_model_init(t->model, 0);
    (void)crw_model_parameters(t->model, &count);
    options.lr = 0.01;
    r = crw_optimizer_create(&options, count, &t->optimizer);
    t->x = random_floats((size_t)BATCH * 28 * 28, 1);
    for (int i = 0; i < BATCH; i++)
        t->targets[i] = (uint8_t)(i % CLASSES);
    return r;
}

static void training_end(struct training *t)
{
    crw_model_destroy(t->model);
    crw_optimizer_destroy(t->optimizer);
    free(t->x);
}

/* ------------------------------------------------------------------ kernels by themselves */

struct kernel_call {
    const struct cpu_kernels *kernels;
    struct conv_shape conv;
    float *x, *w, *packed, *packed_backward, *y, *frame, *dx, *dw, *bias;
    int n, in, out;
};

static void call_conv_forward(void *data)
{
    struct kernel_call *c = data;
    c->kernels->conv_forward(&c->conv, c->x, c->packed, c->bias, c->y);
}

static void call_conv_backward_weights(void *data)
{
    struct kernel_call *c = data;
    c->kernels->conv_backward_weights(&c->conv, c->x, c->frame, c->dw, c->bias);
}

static void call_conv_backward_input(void *data)
{
    struct kernel_call *c = data;
    c->kernels->conv_backward_input(&c->conv, c->frame, c->packed_backward, c->dx);
}

static void call_linear_forward(void *data)
{
    struct kernel_call *c = data;
    c->kernels->linear_forward(c->n, c->in, c->out, c->x, c->w, c->bias, c->y);
}

static void call_linear_backward_weights(void *data)
{
    struct kernel_call *c = data;
    c->kernels->linear_backward_weights(c->n, c->in, c->out, c->x, c->y, c->dw, c->bias);
}

static void call_linear_backward_input(void *data)
{
    struct kernel_call *c = data;
    c->kernels->linear_backward_input(c->n, c->in, c->out, c->y, c->w, c->dx);
}

static void report(const char *name, void (*call)(void *), struct kernel_call *c, double multiply_adds)
{
    double t = best_time(call, c);
    printf("    %-28s %8.1f GFLOP/s  %9.2f us\n", name, 2e-9 * multiply_adds / t, 1e6 * t);
}

static void report_conv(const struct cpu_kernels *kernels, const char *name, int in, int out, int size)
{
    struct kernel_call c = {
        .kernels = kernels,
        .conv = {.in_channels = in,
                 .out_channels = out,
                 .in_stored = in == 1 ? 1 : cpu_stored_channels(in),
                 .out_stored = cpu_stored_channels(out),
                 .kernel = 3,
                 .in_height = size,
                 .in_width = size,
                 .out_height = size - 2,
                 .out_width = size - 2},
    };
    size_t n_in = (size_t)(size * size * c.conv.in_stored);
    size_t n_out = (size_t)(c.conv.out_height * c.conv.out_width * c.conv.out_stored);
    c.x = random_floats(n_in, 1);
    c.w = random_floats((size_t)(in * out * 9), 2);
    c.packed = random_floats(conv_packed_size(&c.conv), 3);
    c.packed_backward = random_floats(conv_packed_size(&c.conv), 3);
    c.y = random_floats(n_out, 3);
    c.frame = random_floats(conv_frame_size(&c.conv), 4);
    c.dx = random_floats(n_in, 3);
    c.dw = random_floats((size_t)(9 * c.conv.in_stored * c.conv.out_stored), 3);
    c.bias = random_floats((size_t)c.conv.out_stored, 3);
    kernels->conv_pack_forward(&c.conv, c.w, c.packed);
    kernels->conv_pack_backward(&c.conv, c.w, c.packed_backward);

    char line[64];
    double work = (double)in * out * 9 * c.conv.out_height * c.conv.out_width;
    (void)snprintf(line, sizeof(line), "%s forward, one sample", name);
    report(line, call_conv_forward, &c, work);
    (void)snprintf(line, sizeof(line), "%s dw", name);
    report(line, call_conv_backward_weights, &c, work);
    if (in > 1) {
        (void)snprintf(line, sizeof(line), "%s dx", name);
        report(line, call_conv_backward_input, &c, work);
    }
    float *const all[] = {c.x, c.w, c.packed, c.packed_backward, c.y, c.frame, c.dx, c.dw, c.bias};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        free(all[i]);
}

static void report_linear(const struct cpu_kernels *kernels, const char *name, int in, int out)
{
    struct kernel_call c = {.kernels = kernels, .n = BATCH, .in = in, .out = out};
    c.x = random_floats((size_t)(BATCH * in), 1);
    c.w = random_floats((size_t)(in * out), 2);
    c.y = random_floats((size_t)(BATCH * out), 3);
    c.dx = random_floats((size_t)(BATCH * in), 3);
    c.dw = random_floats((size_t)(in * out), 3);
    c.bias = random_floats((size_t)out, 3);

    char line[64];
    double work = (double)BATCH * in * out;
    (void)snprintf(line, sizeof(line), "%s forward, batch of %d", name, BATCH);
    report(line, call_linear_forward, &c, work);
    (void)snprintf(line, sizeof(line), "%s dw", name);
    report(line, call_linear_backward_weights, &c, work);
    (void)snprintf(line, sizeof(line), "%s dx", name);
    report(line, call_linear_backward_input, &c, work);
    float *const all[] = {c.x, c.w, c.y, c.dx, c.dw, c.bias};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        free(all[i]);
}

static int report_table(const struct cpu_kernels *kernels)
{
    struct training t = {0};
    int r = training_start(&t, kernels);
    if (r) {
        (void)fprintf(stderr, "%s\n", crw_error_message());
        return r;
    }
    printf("kernels %s\n", kernels->name);
    printf("    training step              %9.0f images/s\n", BATCH / best_time(whole_step, &t));
    printf("    forward and loss           %9.2f us/image\n", 1e6 / BATCH * best_time(forward, &t));
    printf("    backward                   %9.2f us/image\n", 1e6 / BATCH * best_time(backward, &t));
    printf("    Adadelta                   %9.2f us/image\n", 1e6 / BATCH * best_time(step_optimizer, &t));
    printf("    evaluation                 %9.0f images/s\n", BATCH / best_time(evaluate, &t));
    training_end(&t);
    report_conv(kernels, "conv1 1x32", 1, 32, 28);
    report_conv(kernels, "conv2 32x64", 32, 64, 13);
    report_linear(kernels, "fc1 1600x128", 1600, 128);
    return 0;
}

static int report_brief(void)
{
    struct training t = {0};
    int r = training_start(&t, cpu_kernels_best());
    if (!r)
        printf("%.1f\n", BATCH / best_time(whole_step, &t));
    training_end(&t);
    return r;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seconds_each = strtod(argv[1], NULL);
    if (getenv("CRW_BENCH_BRIEF"))
        return report_brief() ? EXIT_FAILURE : EXIT_SUCCESS;
    for (const struct cpu_kernels *const *k = cpu_kernels_all(); *k; k++)
        if ((argc < 3 || strcmp(argv[2], (*k)->name) == 0) && report_table(*k))
            return EXIT_FAILURE;
    return EXIT_SUCCESS;
}
