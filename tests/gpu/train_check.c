/*
 * The MNIST network on a real device beside the CPU: the loss curve, resuming bit for bit, and how long a
 * step takes. Prints one JSON object; exits 0 when all checks hold, 1 when not, 77 when there is no device.
 *
 * The images are noise: the arithmetic is the same, and nothing has to be carried along. argv[1]: how many
 * steps to time (default 2000).
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/model/model.h"

enum { BATCH = 64, N_ITEMS = 4096, N_PIXELS = 784, N_COMPARED = 30, N_RESUMED = 10, TIMEOUT_MS = 60000 };

static const struct crw_layer mnist[] = {
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

static const struct crw_optimizer_options adadelta = {
    .kind = CRW_ADADELTA, .lr = 0.01, .rho = 0.9, .eps = 1e-6};

static uint8_t items[N_ITEMS * N_PIXELS];
static int64_t labels[N_ITEMS];
static uint32_t list[N_ITEMS];
static float table[256];

/* A model, its optimizer's state, and the device's trainer for them. */
struct side {
    struct crw_model *model;
    struct crw_optimizer *optimizer;
    struct backend_trainer *trainer;
    uint64_t steps; /* that the device took */
};

static void must(int r, const struct backend *b)
{
    if (r == 0)
        return;
    (void)fprintf(stderr, "train_check: %s\n", b ? b->error_message() : crw_error_message());
    exit(1);
}

static void fill(void)
{
    struct crw_rng rng;
    crw_rng_seed(&rng, 1);
    for (size_t i = 0; i < sizeof(items); i++)
        items[i] = (uint8_t)crw_rng_u32(&rng);
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        labels[i] = crw_rng_u32(&rng) % 10;
        list[i] = i;
    }
    for (int i = 0; i < 256; i++)
        table[i] = ((float)i / 255 - 0.1307f) / 0.3081f;
}

static void make(struct side *s, const struct backend *b, enum backend_precision precision)
{
    struct crw_shape input = {1, 28, 28};
    *s = (struct side){0};
    must(crw_model_create(mnist, ARRAY_SIZE(mnist), input, BATCH, NULL, &s->model), NULL);
    crw_model_init(s->model, 1);
    must(crw_optimizer_create(&adadelta, s->model->n_parameters, &s->optimizer), NULL);
    struct backend_trainer_options options = {
        .model = s->model, .ignore_index = CRW_IGNORE_INDEX, .optimizer = adadelta, .precision = precision};
    for (size_t i = 0; i < 2; i++)
        options.states[i] = crw_optimizer_state(s->optimizer, i, NULL);
    must(b->trainer_create(&options, &s->trainer), b);
    const struct backend_samples samples = {.inputs = items, .table = table, .targets = labels, .n = N_ITEMS};
    must(b->trainer_set_data(s->trainer, BACKEND_TRAIN, &samples), b);
    must(b->trainer_start(s->trainer, list, N_ITEMS, 0), b);
}

static void destroy(struct side *s, const struct backend *b)
{
    b->trainer_destroy(s->trainer);
    crw_optimizer_destroy(s->optimizer);
    crw_model_destroy(s->model);
}

/* As train takes its steps: each is waited for before it is taken. */
static double device_steps(struct side *s, const struct backend *b, int n)
{
    struct backend_progress progress = {0};
    for (int i = 0; i < n; i++) {
        must(b->trainer_step(s->trainer, BATCH, true), b);
        must(b->trainer_wait(s->trainer, TIMEOUT_MS, &progress), b);
        must(b->trainer_end_step(s->trainer, true), b);
        s->steps++;
    }
    return progress.loss;
}

static double cpu_step(struct side *s, int number)
{
    static float x[BATCH * N_PIXELS];
    int64_t targets[BATCH];
    float loss;
    for (int i = 0; i < BATCH; i++) {
        size_t item = (size_t)(number * BATCH + i);
        targets[i] = labels[item];
        for (size_t p = 0; p < N_PIXELS; p++)
            x[(size_t)i * N_PIXELS + p] = table[items[item * N_PIXELS + p]];
    }
    must(crw_model_forward(s->model, x, BATCH, true, NULL), NULL);
    must(crw_model_nll_loss(s->model, targets, CRW_IGNORE_INDEX, &loss), NULL);
    must(crw_model_backward(s->model), NULL);
    crw_optimizer_step(s->optimizer, s->model->parameters, s->model->gradients);
    return loss;
}

/* The largest distance of the loss curves. */
static double compare_curves(const struct backend *b, enum backend_precision precision)
{
    struct side cpu, device;
    double largest = 0;
    make(&cpu, b, precision);
    make(&device, b, precision);
    for (int i = 0; i < N_COMPARED; i++)
        largest = fmax(largest, fabs(device_steps(&device, b, 1) - cpu_step(&cpu, i)));
    destroy(&cpu, b);
    destroy(&device, b);
    return largest;
}

static void download(struct side *s, const struct backend *b)
{
    must(b->trainer_stage(s->trainer), b);
    must(b->trainer_download(s->trainer, TIMEOUT_MS, s->steps), b);
}

static void copy_state(struct side *to, const struct side *from)
{
    size_t n_bytes = from->model->n_parameters * sizeof(float);
    memcpy(to->model->parameters, from->model->parameters, n_bytes);
    for (size_t i = 0; i < 2; i++)
        memcpy(crw_optimizer_state(to->optimizer, i, NULL), crw_optimizer_state(from->optimizer, i, NULL),
               n_bytes);
    for (size_t i = 0; i < from->model->n_buffers; i++) {
        const struct crw_tensor *t = &from->model->buffers[i];
        memcpy(to->model->buffers[i].data, t->data,
               t->dtype == CRW_I64 ? 8 : (size_t)t->dims[0] * sizeof(float));
    }
}

/* Ten steps, saved, ten more; and the same ten again from what was saved. */
static bool resumes(const struct backend *b)
{
    struct side first, second;
    make(&first, b, BACKEND_EXACT);
    make(&second, b, BACKEND_EXACT);
    device_steps(&first, b, N_RESUMED);
    download(&first, b);
    copy_state(&second, &first);
    must(b->trainer_upload(second.trainer, N_RESUMED), b);
    second.steps = N_RESUMED;
    must(b->trainer_start(second.trainer, list, N_ITEMS, N_RESUMED * BATCH), b);
    device_steps(&first, b, N_RESUMED);
    device_steps(&second, b, N_RESUMED);
    download(&first, b);
    download(&second, b);
    bool same = crw_model_crc32c(first.model) == crw_model_crc32c(second.model);
    destroy(&first, b);
    destroy(&second, b);
    return same;
}

/* Microseconds of a step. */
static double time_steps(const struct backend *b, enum backend_precision precision, int n_steps)
{
    enum { STEPS_OF_EPOCH = N_ITEMS / BATCH };
    struct timespec begin, end;
    struct side s;
    double seconds = 0;
    int n = 0;
    make(&s, b, precision);
    device_steps(&s, b, STEPS_OF_EPOCH); /* capture, load, warm up */
    while (n < n_steps) {
        must(b->trainer_start(s.trainer, list, N_ITEMS, 0), b);
        (void)clock_gettime(CLOCK_MONOTONIC, &begin);
        device_steps(&s, b, STEPS_OF_EPOCH);
        (void)clock_gettime(CLOCK_MONOTONIC, &end);
        seconds += (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        n += STEPS_OF_EPOCH;
    }
    destroy(&s, b);
    return 1e6 * seconds / n;
}

int main(int argc, char **argv)
{
    struct backend_plugin plugin;
    const char *why;
    must(backend_open("crw-cuda", &plugin), NULL);
    const struct backend *b = plugin.backend;
    if (b->count_devices(&why) <= 0) {
        (void)fprintf(stderr, "train_check: no device: %s\n", why);
        backend_close(&plugin);
        return 77;
    }
    fill();
    const int n_timed = argc > 1 ? atoi(argv[1]) : 2000;
    const double exact = compare_curves(b, BACKEND_EXACT), tf32 = compare_curves(b, BACKEND_TF32);
    const bool same = resumes(b), close = exact < 1e-3 && tf32 < 2e-2;
    (void)printf(
        "{\"loss_distance_exact\": %.3g, \"loss_distance_tf32\": %.3g, \"resumes_bit_exact\": %s, "
        "\"step_us_exact\": %.1f, \"step_us_tf32\": %.1f, \"step_us_bf16\": %.1f}\n",
        exact, tf32, same ? "true" : "false", time_steps(b, BACKEND_EXACT, n_timed),
        time_steps(b, BACKEND_TF32, n_timed), time_steps(b, BACKEND_BF16, n_timed));
    backend_close(&plugin);
    return same && close ? 0 : 1;
}
