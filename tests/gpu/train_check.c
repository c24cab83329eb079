/*
 * The MNIST network on a device. Prints one JSON object with a figure for each precision (exact, tf32, bf16); exits 0 when
 * all checks hold, 1 when not, 77 when there is no device.
 *
 *   train_check check [STEPS]   the distance of the loss curve from the CPU's in fp32 (30), and whether ten steps behind
 *                               a saved state are the same bits again
 *   train_check time [STEPS]    microseconds of a step (2000), in epochs of 64
 *   train_check steps N         N steps and the state fetched, for tools that watch memory
 *
 * The images are noise: the arithmetic is the same, and nothing has to be carried along. With TRAIN_CHECK_MODEL=small the
 * network is small enough for the emulated device.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "worker-runtime/cuda/backend_os.h"
#include "worker-runtime/model/model.h"

#include "tests/support/c/mnist_net.h"

enum {
    N_CLASSES = 10,
    STEPS_OF_EPOCH = 64,
    BATCH_MAX = 64,
    N_PIXELS_MAX = 784,
    N_RESUMED = 10,
    TIMEOUT_MS = 60000
};

static const struct crw_layer small_layers[] = {
    {.kind = CRW_LAYER_CONV2D, .name = "conv1", .in = 1, .out = 16, .kernel = 3},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n1", .in = 16},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {.kind = CRW_LAYER_FLATTEN},
    {.kind = CRW_LAYER_LINEAR, .name = "fc1", .in = 256, .out = 32},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "fc2", .in = 32, .out = N_CLASSES},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

/* n_items: an epoch of STEPS_OF_EPOCH. */
static struct {
    const struct crw_layer *layers;
    size_t n_layers;
    struct crw_shape input;
    uint32_t batch, n_items, n_pixels;
} net = {mnist_layers, ARRAY_SIZE(mnist_layers), {1, 28, 28}, 64, 64 * STEPS_OF_EPOCH, 784};

static void choose_net(void)
{
    const char *name = getenv("TRAIN_CHECK_MODEL");
    if (!name || strcmp(name, "small") != 0)
        return;
    net.layers = small_layers;
    net.n_layers = ARRAY_SIZE(small_layers);
    net.input = (struct crw_shape){1, 10, 10};
    net.batch = 16;
    net.n_items = 16 * STEPS_OF_EPOCH;
    net.n_pixels = 100;
}

static const struct crw_optimizer_options adadelta = {
    .kind = CRW_ADADELTA, .lr = 0.01, .rho = 0.9, .eps = 1e-6};

/* distance_max: of the loss curves, some 20 times what 30 steps of the whole network have on the emulated device. */
static const struct {
    const char *name;
    enum crw_products precision;
    double distance_max;
} precisions[] = {
    {"exact", CRW_PRODUCTS_F32, 1e-3}, {"tf32", CRW_PRODUCTS_TF32, 5e-3}, {"bf16", CRW_PRODUCTS_BF16, 2e-2}};

static uint8_t items[BATCH_MAX * STEPS_OF_EPOCH * N_PIXELS_MAX];
static int64_t labels[BATCH_MAX * STEPS_OF_EPOCH];
static uint32_t list[BATCH_MAX * STEPS_OF_EPOCH];
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
    for (uint32_t i = 0; i < net.n_items; i++) {
        labels[i] = crw_rng_u32(&rng) % N_CLASSES;
        list[i] = i;
    }
    for (int i = 0; i < 256; i++)
        table[i] = ((float)i / 255 - 0.1307f) / 0.3081f;
}

static void make(struct side *s, const struct backend *b, enum crw_products precision)
{
    *s = (struct side){0};
    must(crw_model_create(net.layers, net.n_layers, net.input, (int)net.batch, NULL, &s->model), NULL);
    crw_model_init(s->model, 1);
    must(crw_optimizer_create(&adadelta, s->model->n_parameters, &s->optimizer), NULL);
    struct backend_trainer_options options = {
        .model = s->model, .ignore_index = CRW_IGNORE_INDEX, .optimizer = adadelta, .precision = precision};
    for (size_t i = 0; i < 2; i++)
        options.states[i] = crw_optimizer_state(s->optimizer, i, NULL);
    must(b->trainer_create(&options, &s->trainer), b);
    const struct crw_samples samples = {.inputs = items, .table = table, .targets = labels, .n = net.n_items};
    must(b->trainer_set_data(s->trainer, BACKEND_TRAIN, &samples), b);
    must(b->trainer_start(s->trainer, list, net.n_items, 0), b);
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
    struct crw_trained progress = {0};
    for (int i = 0; i < n; i++) {
        if (s->steps % STEPS_OF_EPOCH == 0)
            must(b->trainer_start(s->trainer, list, net.n_items, 0), b);
        must(b->trainer_step(s->trainer, (int)net.batch, true), b);
        must(b->trainer_wait(s->trainer, TIMEOUT_MS, &progress), b);
        must(b->trainer_end_step(s->trainer, true), b);
        s->steps++;
    }
    return progress.loss;
}

static double cpu_step(struct side *s, int number)
{
    static float x[BATCH_MAX * N_PIXELS_MAX];
    int64_t targets[BATCH_MAX];
    float loss;
    for (size_t i = 0; i < net.batch; i++) {
        const size_t item = (size_t)number % STEPS_OF_EPOCH * net.batch + i;
        targets[i] = labels[item];
        for (size_t p = 0; p < net.n_pixels; p++)
            x[i * net.n_pixels + p] = table[items[item * net.n_pixels + p]];
    }
    must(crw_model_forward(s->model, x, (int)net.batch, true, NULL), NULL);
    must(crw_model_nll_loss(s->model, targets, CRW_IGNORE_INDEX, &loss), NULL);
    must(crw_model_backward(s->model), NULL);
    crw_optimizer_step(s->optimizer, s->model->parameters, s->model->gradients);
    return loss;
}

static void cpu_curve(const struct backend *b, int n_steps, double *losses)
{
    struct side cpu;
    make(&cpu, b, CRW_PRODUCTS_F32);
    for (int i = 0; i < n_steps; i++)
        losses[i] = cpu_step(&cpu, i);
    destroy(&cpu, b);
}

/* The largest distance of the loss curves; NaN if there is one in them. */
static double curve_distance(const struct backend *b, enum crw_products precision, int n_steps,
                             const double *losses)
{
    struct side device;
    double largest = 0;
    make(&device, b, precision);
    for (int i = 0; i < n_steps; i++) {
        const double distance = fabs(device_steps(&device, b, 1) - losses[i]);
        largest = distance <= largest ? largest : distance;
    }
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
static bool resumes(const struct backend *b, enum crw_products precision)
{
    struct side first, second;
    make(&first, b, precision);
    make(&second, b, precision);
    device_steps(&first, b, N_RESUMED);
    download(&first, b);
    copy_state(&second, &first);
    must(b->trainer_upload(second.trainer, N_RESUMED), b);
    second.steps = N_RESUMED;
    must(b->trainer_start(second.trainer, list, net.n_items, N_RESUMED * net.batch), b);
    device_steps(&first, b, N_RESUMED);
    device_steps(&second, b, N_RESUMED);
    download(&first, b);
    download(&second, b);
    bool same = crw_model_crc32c(first.model) == crw_model_crc32c(second.model);
    destroy(&first, b);
    destroy(&second, b);
    return same;
}

static int check(const struct backend *b, int n_steps)
{
    double *losses = calloc((size_t)n_steps, sizeof(*losses));
    bool hold = losses;
    if (!losses)
        return 1;
    cpu_curve(b, n_steps, losses);
    (void)printf("{\"steps\": %d", n_steps);
    for (size_t i = 0; i < ARRAY_SIZE(precisions); i++) {
        const double distance = curve_distance(b, precisions[i].precision, n_steps, losses);
        const bool same = resumes(b, precisions[i].precision);
        (void)printf(", \"loss_distance_%s\": %.3g, \"resumes_%s\": %s", precisions[i].name, distance,
                     precisions[i].name, same ? "true" : "false");
        hold = hold && same && distance <= precisions[i].distance_max;
    }
    (void)printf("}\n");
    free(losses);
    return hold ? 0 : 1;
}

/* Microseconds of a step. */
static double time_steps(const struct backend *b, enum crw_products precision, int n_steps)
{
    struct timespec begin, end;
    struct side s;
    make(&s, b, precision);
    device_steps(&s, b, n_steps < STEPS_OF_EPOCH ? n_steps : STEPS_OF_EPOCH); /* capture, load, warm up */
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    device_steps(&s, b, n_steps);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    destroy(&s, b);
    return (1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec)) /
           n_steps;
}

static int print_times(const struct backend *b, int n_steps)
{
    (void)printf("{\"steps\": %d", n_steps);
    for (size_t i = 0; i < ARRAY_SIZE(precisions); i++)
        (void)printf(", \"step_us_%s\": %.1f", precisions[i].name,
                     time_steps(b, precisions[i].precision, n_steps));
    (void)printf("}\n");
    return 0;
}

static int take_steps(const struct backend *b, int n_steps)
{
    bool finite = true;
    (void)printf("{\"steps\": %d", n_steps);
    for (size_t i = 0; i < ARRAY_SIZE(precisions); i++) {
        struct side s;
        make(&s, b, precisions[i].precision);
        const double loss = device_steps(&s, b, n_steps);
        download(&s, b);
        finite = finite && isfinite(loss) &&
                 isfinite(crw_gradients_norm(s.model->parameters, s.model->n_parameters));
        destroy(&s, b);
        (void)printf(", \"loss_%s\": %.4f", precisions[i].name, loss);
    }
    (void)printf("}\n");
    return finite ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct backend *b, int n_steps);
        int n_steps;
    } modes[] = {{"check", check, 30}, {"time", print_times, 2000}, {"steps", take_steps, 0}};
    struct backend_plugin plugin;
    const char *why;
    int code = 2;

    must(backend_open("crw-cuda", &plugin), NULL);
    choose_net();
    fill();
    if (plugin.backend->count_devices(&why) <= 0) {
        (void)fprintf(stderr, "train_check: no device: %s\n", why);
        code = 77;
    }
    for (size_t i = 0; code == 2 && argc > 1 && i < ARRAY_SIZE(modes); i++) {
        const int n_steps = argc > 2 ? atoi(argv[2]) : modes[i].n_steps;
        if (strcmp(argv[1], modes[i].name) == 0 && n_steps > 0)
            code = modes[i].run(plugin.backend, n_steps);
    }
    if (code == 2)
        (void)fprintf(stderr, "usage: train_check check [STEPS] | time [STEPS] | steps N\n");
    backend_close(&plugin);
    return code;
}
