/*
 * The device side of training, on the emulated runtime, beside the CPU's model and optimizer: the same
 * losses, the same parameters, with graph and without, reduced on another stream, staged while training goes
 * on, resumed bit for bit; and gradients that are dropped, or hang, leave the state as it was.
 *
 * The emulation runs work as late and as badly ordered as streams allow, so a wait that is missing is seen; other
 * schedules: tests/fakes/cuda_host/runtime.cpp.
 */

#include "worker-runtime/cuda/backend_os.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/err.h"
#include "worker-runtime/model/model.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_ITEMS = 40, BATCH = 6, N_STATES = 2, TIMEOUT_MS = 10000 };

const struct backend *crw_backend(void);

/* ---- networks and data ---- */

struct net {
    const char *name;
    const struct crw_layer *layers;
    size_t n_layers;
    struct crw_shape input;
    int n_outputs;
    enum crw_loss loss;
    bool numbers; /* inputs are floats, not bytes */
    bool gaps;    /* the samples with IGNORED do not count */
};

/* Told apart from a class, and from PyTorch's default, by all of its 64 bits. */
#define IGNORED (INT64_C(1) << 40 | 1)

static const struct crw_layer small_mnist[] = {
    {.kind = CRW_LAYER_CONV2D, .name = "conv1", .in = 1, .out = 5, .kernel = 3},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n1", .in = 5},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {.kind = CRW_LAYER_CONV2D, .name = "conv2", .in = 5, .out = 18, .kernel = 3},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n2", .in = 18},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {.kind = CRW_LAYER_FLATTEN},
    {.kind = CRW_LAYER_LINEAR, .name = "fc1", .in = 18, .out = 11},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "fc2", .in = 11, .out = 10},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

/* Every other way to have these layers: normalisation first, alone and with relu, pooling and relu alone. */
static const struct crw_layer colourful[] = {
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n0", .in = 3},
    {.kind = CRW_LAYER_CONV2D, .name = "conv1", .in = 3, .out = 4, .kernel = 2},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {.kind = CRW_LAYER_CONV2D, .name = "conv2", .in = 4, .out = 6, .kernel = 1},
    {.kind = CRW_LAYER_BATCHNORM2D, .name = "n1", .in = 6},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_FLATTEN},
    {.kind = CRW_LAYER_FLATTEN},
    {.kind = CRW_LAYER_LINEAR, .name = "fc", .in = 36, .out = 3},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

static const struct crw_layer perceptron[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = 20, .out = 33},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "b", .in = 33, .out = 4},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

static const struct crw_layer scores[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = 20, .out = 33},
    {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "b", .in = 33, .out = 4},
};

static const struct crw_layer regression[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = 20, .out = 3},
};

static const struct crw_layer many_classes[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = 20, .out = 1000},
    {.kind = CRW_LAYER_LOG_SOFTMAX},
};

static const struct net nets[] = {
    {"small mnist", small_mnist, ARRAY_SIZE(small_mnist), {1, 12, 12}, 10},
    {"colourful", colourful, ARRAY_SIZE(colourful), {3, 6, 7}, 3},
    {"perceptron", perceptron, ARRAY_SIZE(perceptron), {20, 1, 1}, 4},
    {"scores", scores, ARRAY_SIZE(scores), {20, 1, 1}, 4, CRW_CROSS_ENTROPY, true},
    {"regression", regression, ARRAY_SIZE(regression), {20, 1, 1}, 3, CRW_MSE, true},
    {"gaps", perceptron, ARRAY_SIZE(perceptron), {20, 1, 1}, 4, CRW_NLL, .gaps = true},
    {"gaps in scores", scores, ARRAY_SIZE(scores), {20, 1, 1}, 4, CRW_CROSS_ENTROPY, true, true},
    {"many classes", many_classes, ARRAY_SIZE(many_classes), {20, 1, 1}, 1000, .gaps = true},
};

static const struct crw_optimizer_options adadelta = {
    .kind = CRW_ADADELTA, .lr = 0.5, .rho = 0.9, .eps = 1e-6};

/* One training, on the CPU and on the device, from the same start. */
struct pair {
    const struct net *net;
    size_t n_features;
    uint8_t *items;
    int64_t labels[N_ITEMS];
    float *inputs, outputs[N_ITEMS * 4]; /* the same as numbers; and what a regression looks for */
    float table[256];
    uint32_t list[N_ITEMS];
    size_t next;     /* in the list, of the CPU */
    uint64_t steps;  /* that the device took */
    float cpu_scale; /* what the reducer does to gradients */

    struct crw_model *cpu, *host; /* the CPU's, and the host's copy of the device's */
    struct crw_optimizer *cpu_optimizer, *host_optimizer;
    struct backend_trainer_options options;
    struct backend_trainer *trainer;
};

static struct crw_model *new_model(const struct net *net)
{
    struct crw_model *model;
    assert_int_equal(crw_model_create(net->layers, net->n_layers, net->input, BATCH, NULL, &model), 0);
    crw_model_init(model, 7);
    return model;
}

static struct crw_optimizer *new_optimizer(const struct crw_model *model)
{
    struct crw_optimizer *optimizer;
    assert_int_equal(crw_optimizer_create(&adadelta, model->n_parameters, &optimizer), 0);
    return optimizer;
}

static struct crw_samples samples_of(const struct pair *p)
{
    return (struct crw_samples){
        .inputs = p->net->numbers ? (const void *)p->inputs : p->items,
        .table = p->net->numbers ? NULL : p->table,
        .targets = p->net->loss == CRW_MSE ? (const void *)p->outputs : p->labels,
        .n = N_ITEMS,
    };
}

static struct backend_trainer *new_trainer(const struct pair *p)
{
    const struct crw_samples samples = samples_of(p);
    struct backend_trainer *t;
    if (crw_backend()->trainer_create(&p->options, &t) != 0)
        fail_msg("%s", crw_backend()->error_message());
    assert_int_equal(crw_backend()->trainer_set_data(t, BACKEND_TRAIN, &samples), 0);
    return t;
}

static void fill(struct pair *p)
{
    const struct crw_shape *in = &p->net->input;
    struct crw_rng rng;
    crw_rng_seed(&rng, 3);
    p->n_features = (size_t)(in->channels * in->height * in->width);
    p->items = test_malloc(N_ITEMS * p->n_features);
    for (size_t i = 0; i < N_ITEMS * p->n_features; i++)
        p->items[i] = (uint8_t)crw_rng_u32(&rng);
    for (size_t i = 0; i < N_ITEMS; i++)
        p->labels[i] = crw_rng_u32(&rng) % (uint32_t)p->net->n_outputs;
    for (size_t i = 1; p->net->gaps && i < N_ITEMS; i += 5)
        p->labels[i] = IGNORED;
    for (int i = 0; i < 256; i++)
        p->table[i] = ((float)i / 255 - 0.5f) / 0.3f;
    p->inputs = test_malloc(N_ITEMS * p->n_features * sizeof(*p->inputs));
    for (size_t i = 0; i < N_ITEMS * p->n_features; i++)
        p->inputs[i] = p->table[p->items[i]];
    crw_rng_uniform(&rng, p->outputs, ARRAY_SIZE(p->outputs), -1, 1);
    assert_int_equal(crw_randperm(1, N_ITEMS, p->list), 0);
}

static void begin(struct pair *p, const struct net *net, const struct backend_reducer *reducer)
{
    *p = (struct pair){.net = net, .cpu_scale = 1};
    fill(p);
    p->cpu = new_model(net);
    p->host = new_model(net);
    p->cpu_optimizer = new_optimizer(p->cpu);
    p->host_optimizer = new_optimizer(p->host);
    p->options = (struct backend_trainer_options){.model = p->host,
                                                  .loss = net->loss,
                                                  .ignore_index = IGNORED,
                                                  .optimizer = adadelta,
                                                  .reducer = reducer};
    for (size_t i = 0; i < N_STATES; i++)
        p->options.states[i] = crw_optimizer_state(p->host_optimizer, i, NULL);
    p->trainer = new_trainer(p);
    assert_int_equal(crw_backend()->trainer_start(p->trainer, p->list, N_ITEMS, 0), 0);
}

static void end(struct pair *p)
{
    crw_backend()->trainer_destroy(p->trainer);
    crw_model_destroy(p->cpu);
    crw_model_destroy(p->host);
    crw_optimizer_destroy(p->cpu_optimizer);
    crw_optimizer_destroy(p->host_optimizer);
    test_free(p->items);
    test_free(p->inputs);
}

/* ---- both sides ---- */

static const float *batch(const struct pair *p, const uint32_t *numbers, int n, int64_t *targets)
{
    static float x[BATCH * 256];
    assert_true((size_t)n * p->n_features <= ARRAY_SIZE(x));
    for (int s = 0; s < n; s++) {
        targets[s] = p->labels[numbers[s]];
        for (size_t f = 0; f < p->n_features; f++)
            x[(size_t)s * p->n_features + f] = p->table[p->items[numbers[s] * p->n_features + f]];
    }
    return x;
}

static float cpu_loss(struct pair *p, const uint32_t *numbers, int n, const int64_t *targets)
{
    float outputs[BATCH * 4], loss;
    const size_t n_outputs = (size_t)p->net->n_outputs;
    if (p->net->loss == CRW_NLL)
        assert_int_equal(crw_model_nll_loss(p->cpu, targets, IGNORED, &loss), 0);
    if (p->net->loss == CRW_CROSS_ENTROPY)
        assert_int_equal(crw_model_cross_entropy_loss(p->cpu, targets, IGNORED, &loss), 0);
    if (p->net->loss != CRW_MSE)
        return loss;
    for (int s = 0; s < n; s++)
        memcpy(outputs + (size_t)s * n_outputs, p->outputs + numbers[s] * n_outputs,
               n_outputs * sizeof(float));
    assert_int_equal(crw_model_mse_loss(p->cpu, outputs, &loss), 0);
    return loss;
}

/* Forward, loss, backward of the next n samples. */
static float cpu_batch(struct pair *p, int n)
{
    int64_t targets[BATCH];
    const uint32_t *numbers = p->list + p->next;
    assert_int_equal(crw_model_forward(p->cpu, batch(p, numbers, n, targets), n, true, NULL), 0);
    float loss = cpu_loss(p, numbers, n, targets);
    assert_int_equal(crw_model_backward(p->cpu), 0);
    p->next += (size_t)n;
    return loss;
}

static void cpu_take(struct pair *p)
{
    crw_gradients_scale(p->cpu->gradients, p->cpu->n_parameters, p->cpu_scale);
    crw_optimizer_step(p->cpu_optimizer, p->cpu->parameters, p->cpu->gradients);
}

static float cpu_step(struct pair *p, int n)
{
    float loss = cpu_batch(p, n);
    cpu_take(p);
    return loss;
}

static void check_close(const char *what, const float *actual, const float *expected, size_t count,
                        double tolerance)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)actual[i] - expected[i]) <= tolerance))
            fail_msg("%s[%zu] is %.9g; the CPU says %.9g", what, i, actual[i], expected[i]);
}

/* The device's state, staged and downloaded, is the CPU's. */
static void check_state(struct pair *p, double tolerance)
{
    assert_int_equal(crw_backend()->trainer_stage(p->trainer), 0);
    assert_int_equal(crw_backend()->trainer_download(p->trainer, TIMEOUT_MS, p->steps), 0);
    check_close("parameter", p->host->parameters, p->cpu->parameters, p->cpu->n_parameters, tolerance);
    for (size_t i = 0; i < p->cpu->n_buffers; i++) {
        const struct crw_tensor *actual = &p->host->buffers[i], *expected = &p->cpu->buffers[i];
        if (expected->dtype == CRW_I64)
            assert_int_equal(*(int64_t *)actual->data, *(int64_t *)expected->data);
        else
            check_close(expected->name, actual->data, expected->data, (size_t)expected->dims[0], tolerance);
    }
}

static struct crw_trained device_step(struct pair *p, int n)
{
    struct crw_trained progress = {0};
    if (crw_backend()->trainer_step(p->trainer, n, true) != 0 ||
        crw_backend()->trainer_wait(p->trainer, TIMEOUT_MS, &progress) != 0 ||
        crw_backend()->trainer_end_step(p->trainer, progress.finite) != 0)
        fail_msg("%s", crw_backend()->error_message());
    p->steps += progress.finite;
    return progress;
}

/* An epoch whose last batch is short: two captured sizes. */
static void trains_as_the_cpu_does(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(nets); i++) {
        struct pair p;
        begin(&p, &nets[i], NULL);
        for (size_t used = 0, step = 1; used < N_ITEMS; step++) {
            int n = N_ITEMS - used < BATCH ? (int)(N_ITEMS - used) : BATCH;
            struct crw_trained progress = device_step(&p, n);
            float expected = cpu_step(&p, n);
            used += (size_t)n;
            if (!(fabs(progress.loss - expected) < 2e-5))
                fail_msg("%s: the loss of step %zu is %.7f; the CPU says %.7f", nets[i].name, step,
                         progress.loss, expected);
            assert_true(progress.finite);
            assert_int_equal(progress.n_samples, n);
        }
        check_state(&p, 2e-4);
        end(&p);
    }
}

/* Three batches of different sizes are one step, normalised one by one, and clipped. */
static void accumulates_and_clips(void **state)
{
    static const int sizes[] = {BATCH, 2, BATCH - 1};
    for (size_t i = 0; i < ARRAY_SIZE(nets); i++) {
        struct crw_trained progress;
        struct pair p;
        begin(&p, &nets[i], NULL);
        crw_backend()->trainer_destroy(p.trainer);
        p.options.accumulates = true;
        p.options.clip_norm = 0.01;
        p.trainer = new_trainer(&p);
        assert_int_equal(crw_backend()->trainer_start(p.trainer, p.list, N_ITEMS, 0), 0);
        float *sums = test_calloc(p.cpu->n_parameters, sizeof(float));
        for (int step = 0; step < 2; step++) {
            double loss = 0;
            memset(sums, 0, p.cpu->n_parameters * sizeof(float));
            for (size_t b = 0; b < ARRAY_SIZE(sizes); b++) {
                const bool last = b + 1 == ARRAY_SIZE(sizes);
                assert_int_equal(crw_backend()->trainer_step(p.trainer, sizes[b], last), 0);
                loss += cpu_batch(&p, sizes[b]) / ARRAY_SIZE(sizes);
                crw_gradients_add(sums, p.cpu->gradients, p.cpu->n_parameters);
            }
            const double norm = crw_gradients_norm(sums, p.cpu->n_parameters) / ARRAY_SIZE(sizes);
            assert_true(norm > 0.01);
            p.cpu_scale = (float)(0.01 / (norm + 1e-6) / ARRAY_SIZE(sizes));
            memcpy(p.cpu->gradients, sums, p.cpu->n_parameters * sizeof(float));
            cpu_take(&p);
            assert_int_equal(crw_backend()->trainer_wait(p.trainer, TIMEOUT_MS, &progress), 0);
            assert_true(progress.finite);
            assert_int_equal(crw_backend()->trainer_end_step(p.trainer, true), 0);
            p.steps++;
            assert_true(fabs(progress.norm - norm) < 1e-4 * norm);
            if (!(fabs(progress.loss - loss) < 2e-5))
                fail_msg("%s: the loss is %.7f; the CPU says %.7f", nets[i].name, progress.loss, loss);
        }
        check_state(&p, 2e-4);
        test_free(sums);
        end(&p);
    }
}

/* More sizes than there are graphs for: some in pieces. */
static void trains_batches_of_many_sizes(void **state)
{
    struct pair p;
    begin(&p, &nets[0], NULL);
    for (int s = 0; s < 2 * BATCH; s++) {
        int n = 1 + s % BATCH;
        if (p.next + (size_t)n > N_ITEMS)
            break;
        device_step(&p, n);
        cpu_step(&p, n);
    }
    assert_true(p.steps > BATCH);
    check_state(&p, 2e-4);
    end(&p);
}

/* Gradients alone change nothing, be they taken late or dropped; a dropped step's samples are the next one's. */
static void gradients_change_nothing_until_they_are_taken(void **state)
{
    const struct backend *b = crw_backend();
    struct crw_trained progress;
    struct pair p;
    begin(&p, &nets[0], NULL);
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);
    for (int s = 0; s < 3; s++) {
        assert_int_equal(b->trainer_step(p.trainer, BATCH, true), 0);
        assert_int_equal(b->trainer_wait(p.trainer, TIMEOUT_MS, &progress), 0);
        assert_int_equal(b->trainer_step(p.trainer, BATCH, true), CRW_E_ARGUMENT);
        check_state(&p, 1e-4);
        assert_int_equal(b->trainer_end_step(p.trainer, false), 0);
        assert_int_equal(b->trainer_end_step(p.trainer, true), CRW_E_ARGUMENT);
    }
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);
    check_state(&p, 1e-4);
    end(&p);
}

/* What is saved is the state of the step that the caller has counted, or nothing. */
static void downloads_only_the_step_asked_for(void **state)
{
    const struct backend *b = crw_backend();
    struct pair p;
    begin(&p, &nets[2], NULL);
    device_step(&p, BATCH);
    const uint32_t before = crw_model_crc32c(p.host);
    assert_int_equal(b->trainer_stage(p.trainer), 0);
    assert_int_equal(b->trainer_download(p.trainer, TIMEOUT_MS, 0), CRW_E_MISMATCH);
    assert_non_null(strstr(b->error_message(), "the state of step 1, not of step 0"));
    assert_int_equal(crw_model_crc32c(p.host), before);
    end(&p);
}

static void trains_in_lower_precision(void **state)
{
    static const struct {
        enum crw_products precision;
        double tolerance;
    } cases[] = {{CRW_PRODUCTS_TF32, 5e-3}, {CRW_PRODUCTS_BF16, 5e-2}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pair p;
        begin(&p, &nets[0], NULL);
        crw_backend()->trainer_destroy(p.trainer);
        p.options.precision = cases[i].precision;
        p.trainer = new_trainer(&p);
        assert_int_equal(crw_backend()->trainer_start(p.trainer, p.list, N_ITEMS, 0), 0);
        double loss = device_step(&p, BATCH).loss, expected = cpu_step(&p, BATCH);
        assert_true(fabs(loss - expected) < cases[i].tolerance);
        assert_true(loss != expected); /* it did round */
        end(&p);
    }
}

static void evaluates(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(nets); i++) {
        struct crw_trained progress;
        struct pair p;
        uint64_t n_correct = 0;
        double sum = 0;
        int n_counted = 0;
        begin(&p, &nets[i], NULL);
        for (int s = 0; s < 3; s++) {
            device_step(&p, BATCH);
            cpu_step(&p, BATCH);
        }
        const struct crw_samples samples = samples_of(&p);
        assert_int_equal(crw_backend()->trainer_set_data(p.trainer, BACKEND_EVALUATE, &samples), 0);
        assert_int_equal(crw_backend()->trainer_evaluate(p.trainer, 1, N_ITEMS - 1, TIMEOUT_MS, &progress),
                         0);
        for (uint32_t number = 1; number < N_ITEMS; number++) {
            int64_t target;
            assert_int_equal(crw_model_forward(p.cpu, batch(&p, &number, 1, &target), 1, false, NULL), 0);
            if (target == IGNORED)
                continue;
            n_counted++;
            sum += cpu_loss(&p, &number, 1, &target);
            if (nets[i].loss != CRW_MSE)
                n_correct += crw_model_correct(p.cpu, &target, NULL);
        }
        assert_int_equal(progress.n_samples, N_ITEMS - 1);
        assert_int_equal(progress.n_correct, n_correct);
        assert_true(fabs(progress.loss - sum / n_counted) < 1e-4);
        assert_int_equal(crw_backend()->trainer_evaluate(p.trainer, 1, N_ITEMS, TIMEOUT_MS, &progress),
                         CRW_E_ARGUMENT);
        end(&p);
    }
}

/* What is staged behind step 2 is the state of step 2, although step 3 was taken before it was copied. And a
 * trainer that begins with it goes on with the same bits. */
static void resumes_bit_for_bit(void **state)
{
    struct pair p;
    begin(&p, &nets[0], NULL);
    for (int s = 0; s < 4; s++) {
        if (s == 2)
            assert_int_equal(crw_backend()->trainer_stage(p.trainer), 0);
        else if (s < 2)
            cpu_step(&p, BATCH);
        device_step(&p, BATCH);
    }
    assert_int_equal(crw_backend()->trainer_download(p.trainer, TIMEOUT_MS, 2), 0);
    check_close("parameter of step 2", p.host->parameters, p.cpu->parameters, p.cpu->n_parameters, 1e-4);

    struct crw_model *again = new_model(p.net);
    struct crw_optimizer *again_optimizer = new_optimizer(again);
    struct pair resumed = p;
    resumed.host = again;
    resumed.options.model = again;
    memcpy(again->parameters, p.host->parameters, again->n_parameters * sizeof(float));
    for (size_t i = 0; i < N_STATES; i++) {
        resumed.options.states[i] = crw_optimizer_state(again_optimizer, i, NULL);
        memcpy(resumed.options.states[i], p.options.states[i], again->n_parameters * sizeof(float));
    }
    for (size_t i = 0; i < again->n_buffers; i++)
        memcpy(again->buffers[i].data, p.host->buffers[i].data,
               again->buffers[i].dtype == CRW_I64 ? sizeof(int64_t)
                                                  : (size_t)again->buffers[i].dims[0] * sizeof(float));
    resumed.trainer = new_trainer(&resumed);
    assert_int_equal(crw_backend()->trainer_upload(resumed.trainer, 2), 0);
    assert_int_equal(crw_backend()->trainer_start(resumed.trainer, p.list, N_ITEMS, 2 * BATCH), 0);
    device_step(&resumed, BATCH);
    device_step(&resumed, BATCH);

    assert_int_equal(crw_backend()->trainer_stage(resumed.trainer), 0);
    assert_int_equal(crw_backend()->trainer_stage(p.trainer), 0);
    assert_int_equal(crw_backend()->trainer_download(resumed.trainer, TIMEOUT_MS, 4), 0);
    assert_int_equal(crw_backend()->trainer_download(p.trainer, TIMEOUT_MS, 4), 0);
    assert_memory_equal(again->parameters, p.host->parameters, again->n_parameters * sizeof(float));
    for (size_t i = 0; i < N_STATES; i++)
        assert_memory_equal(resumed.options.states[i], p.options.states[i],
                            again->n_parameters * sizeof(float));

    crw_backend()->trainer_destroy(resumed.trainer);
    crw_model_destroy(again);
    crw_optimizer_destroy(again_optimizer);
    end(&p);
}

/* ---- reducing ---- */

/* Halves gradients, when it may; leaves NaN behind instead, when it was broken off. As a communicator, it is entered
 * before anything is queued. */
struct halver {
    struct range {
        struct halver *owner;
        float *values;
        size_t count;
    } ranges[64];
    size_t n_ranges, n_floats;
    bool hangs, broken, refuses, closed, entered;
    int n_entered;
};

static bool halve(void *data)
{
    struct range *r = data;
    if (r->owner->hangs)
        return false;
    for (size_t i = 0; i < r->count; i++)
        r->values[i] = r->owner->broken ? NAN : r->values[i] / 2;
    return true;
}

static int enter_halver(void *data)
{
    struct halver *h = data;
    assert_false(h->entered);
    if (h->closed)
        return CRW_E_PEER;
    h->entered = true;
    h->n_entered++;
    return 0;
}

static void leave_halver(void *data)
{
    struct halver *h = data;
    assert_true(h->entered);
    h->entered = false;
}

static int queue_halving(void *data, float *values, size_t count, void *stream)
{
    struct halver *h = data;
    assert_true(h->entered);
    if (h->refuses)
        return CRW_E_PEER;
    assert_true(h->n_ranges < ARRAY_SIZE(h->ranges));
    struct range *r = &h->ranges[h->n_ranges++];
    *r = (struct range){h, values, count};
    h->n_floats += count;
    assert_int_equal(cuda_host_enqueue(stream, halve, r), cudaSuccess);
    return 0;
}

static struct backend_reducer reducer_of(struct halver *h)
{
    return (struct backend_reducer){enter_halver, queue_halving, leave_halver, h, 1};
}

/* On the device each tensor begins at a multiple of 256 bytes. */
static size_t count_device_floats(const struct crw_model *model)
{
    size_t count = 0;
    for (size_t i = 0; i < model->n_tensors; i++) {
        size_t n = 1;
        for (int d = 0; d < model->tensors[i].n_dims; d++)
            n *= (size_t)model->tensors[i].dims[d];
        count += (n + 63) / 64 * 64;
    }
    return count;
}

static void reduces_on_another_stream(void **state)
{
    struct halver halver = {0};
    struct backend_reducer reducer = reducer_of(&halver);
    struct pair p;
    begin(&p, &nets[0], &reducer);
    p.cpu_scale = 0.5f;
    for (int s = 0; s < 3; s++) {
        int n = s < 2 ? BATCH : 2;
        device_step(&p, n);
        cpu_step(&p, n);
    }
    assert_int_equal(halver.n_floats, 2 * count_device_floats(p.cpu)); /* once for the graph of each size */
    assert_int_equal(halver.n_entered, 3);
    check_state(&p, 1e-4);
    end(&p);
}

static const struct crw_layer wide[] = {
    {.kind = CRW_LAYER_LINEAR, .name = "a", .in = 20, .out = 600},  {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "b", .in = 600, .out = 600}, {.kind = CRW_LAYER_RELU},
    {.kind = CRW_LAYER_LINEAR, .name = "c", .in = 600, .out = 3},   {.kind = CRW_LAYER_LOG_SOFTMAX},
};
static const struct net wide_net = {"wide", wide, ARRAY_SIZE(wide), {20, 1, 1}, 3};

/* More than one bucket, and the buckets tile the arena. */
static void reduces_in_buckets(void **state)
{
    struct halver halver = {0};
    struct backend_reducer reducer = reducer_of(&halver);
    struct pair p;
    begin(&p, &wide_net, &reducer);
    p.cpu_scale = 0.5f;
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);
    assert_int_equal(halver.n_ranges, 2);
    assert_int_equal(halver.n_floats, count_device_floats(p.cpu));
    assert_true(halver.ranges[0].values > halver.ranges[1].values); /* the last layers first */
    check_state(&p, 1e-4);
    end(&p);
}

/* Gradients are summed over ranks, and the change of the state makes their mean. */
static void divides_by_the_number_of_ranks(void **state)
{
    struct halver halver = {0};
    struct backend_reducer reducer = reducer_of(&halver);
    struct pair p;
    reducer.n_ranks = 4;
    begin(&p, &nets[0], &reducer);
    p.cpu_scale = 0.5f / 4;
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);
    check_state(&p, 1e-4);
    end(&p);
}

/* Queues a step's batches of `n` samples, on the CPU too, whose gradients become the mean of the batches; waits. */
static void make_gradients(struct pair *p, int n_batches, int n)
{
    struct crw_trained progress;
    float *sums = test_calloc(p->cpu->n_parameters, sizeof(float));
    for (int b = 0; b < n_batches; b++) {
        assert_int_equal(crw_backend()->trainer_step(p->trainer, n, b + 1 == n_batches), 0);
        cpu_batch(p, n);
        crw_gradients_add(sums, p->cpu->gradients, p->cpu->n_parameters);
    }
    memcpy(p->cpu->gradients, sums, p->cpu->n_parameters * sizeof(float));
    test_free(sums);
    assert_int_equal(crw_backend()->trainer_wait(p->trainer, TIMEOUT_MS, &progress), 0);
}

/* As the caller does with the mean over the ranks. */
static struct crw_trained put_scaled_gradients(struct pair *p, float scale)
{
    const struct backend *b = crw_backend();
    struct crw_trained progress;
    size_t count;
    float *gradients = b->trainer_gradients(p->trainer, &count);
    assert_int_equal(count, count_device_floats(p->cpu));
    crw_gradients_scale(gradients, count, scale);
    b->trainer_reduced(p->trainer);
    assert_int_equal(b->trainer_wait(p->trainer, TIMEOUT_MS, &progress), 0);
    return progress;
}

/* Gradients go to the host, in one bucket or several, and what the host makes of them is taken. A step that is dropped
 * leaves nothing. No reducer is called. */
static void takes_what_the_host_makes_of_gradients(void **state)
{
    static const struct net *const cases[] = {&nets[0], &wide_net};
    const struct backend_reducer uncallable = {.n_ranks = 1};
    for (int i = 0; i < 4; i++) {
        const int n_batches = 1 + i / 2;
        struct pair p;
        begin(&p, cases[i % 2], &uncallable);
        crw_backend()->trainer_destroy(p.trainer);
        p.options.reduces_on_host = p.options.skip_not_finite = true;
        p.options.accumulates = n_batches > 1;
        p.trainer = new_trainer(&p);
        assert_int_equal(crw_backend()->trainer_start(p.trainer, p.list, N_ITEMS, 0), 0);
        p.cpu_scale = 0.5f / (float)n_batches;
        for (int step = 0; step < 3; step++) {
            make_gradients(&p, n_batches, BATCH - step);
            const double norm = crw_gradients_norm(p.cpu->gradients, p.cpu->n_parameters) * p.cpu_scale;
            const struct crw_trained progress = put_scaled_gradients(&p, 0.5f);
            assert_true(progress.finite && fabs(progress.norm - norm) < 1e-4 * norm);
            assert_int_equal(crw_backend()->trainer_end_step(p.trainer, true), 0);
            cpu_take(&p);
            p.steps++;
        }
        check_state(&p, 2e-4);
        make_gradients(&p, n_batches, 2);
        assert_false(put_scaled_gradients(&p, NAN).finite);
        assert_int_equal(crw_backend()->trainer_end_step(p.trainer, false), 0);
        assert_int_equal(crw_backend()->trainer_stage(p.trainer), 0);
        assert_int_equal(crw_backend()->trainer_download(p.trainer, TIMEOUT_MS, p.steps), 0);
        check_close("parameter", p.host->parameters, p.cpu->parameters, p.cpu->n_parameters, 2e-4);
        end(&p);
    }
}

/* A collective that never ends: the wait does, and the state is saved behind its back. Released, the garbage that it
 * leaves reaches nothing. */
static void a_hanging_collective_costs_one_step(void **state)
{
    const struct backend *b = crw_backend();
    struct halver halver = {0};
    struct backend_reducer reducer = reducer_of(&halver);
    struct crw_trained progress;
    struct pair p;
    begin(&p, &nets[0], &reducer);
    p.cpu_scale = 0.5f;
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);

    halver.hangs = true;
    assert_int_equal(b->trainer_step(p.trainer, BATCH, true), 0);
    assert_int_equal(b->trainer_wait(p.trainer, 30, &progress), CRW_E_TIMEOUT);
    assert_non_null(strstr(b->error_message(), "30 ms"));
    check_state(&p, 1e-4);
    assert_int_equal(b->trainer_end_step(p.trainer, true), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_set_lr(p.trainer, 1),
                     CRW_E_ARGUMENT); /* it would wait behind the collective */
    assert_int_equal(b->trainer_upload(p.trainer, 0), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_start(p.trainer, p.list, 1, 0), CRW_E_ARGUMENT);

    halver.closed = halver.broken = true;
    halver.hangs = false;
    assert_int_equal(b->trainer_wait(p.trainer, TIMEOUT_MS, &progress), 0);
    assert_int_equal(b->trainer_end_step(p.trainer, false), 0);
    assert_int_equal(b->trainer_step(p.trainer, BATCH, true), CRW_E_PEER); /* nothing is launched any more */
    check_state(&p, 1e-4);
    end(&p);
}

/* The memory of a device that nothing releases is left alone: freeing it would wait for ever. */
static void ends_with_a_collective_that_hangs(void **state)
{
    static struct halver halver; /* the device looks at it as long as the process lives */
    static struct backend_trainer *left_behind;
    struct backend_reducer reducer = reducer_of(&halver);
    struct crw_trained progress;
    struct pair p;
    begin(&p, &nets[2], &reducer);
    halver.hangs = true;
    assert_int_equal(crw_backend()->trainer_step(p.trainer, BATCH, true), 0);
    assert_int_equal(crw_backend()->trainer_wait(p.trainer, 1, &progress), CRW_E_TIMEOUT);
    left_behind = p.trainer; /* still reachable, for the leak checker */
    end(&p);
    assert_non_null(left_behind);
}

static void a_refused_collective_changes_nothing(void **state)
{
    struct halver halver = {.refuses = true};
    struct backend_reducer reducer = reducer_of(&halver);
    struct pair p;
    begin(&p, &nets[0], &reducer);
    assert_int_equal(crw_backend()->trainer_step(p.trainer, BATCH, true), CRW_E_PEER);
    assert_false(halver.entered);
    check_state(&p, 0);
    end(&p);
}

/* ---- what is refused ---- */

static void refuses(void **state)
{
    const struct backend *b = crw_backend();
    struct crw_trained progress;
    struct backend_trainer *t;
    struct pair p;
    begin(&p, &nets[0], NULL);
    assert_int_equal(b->trainer_step(p.trainer, BATCH + 1, true), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_step(p.trainer, 0, true), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_start(p.trainer, (uint32_t[]){N_ITEMS}, 1, 0), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_start(p.trainer, p.list, 3, 4), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_start(p.trainer, p.list, 3, 0), 0);
    assert_int_equal(b->trainer_step(p.trainer, 4, true), CRW_E_ARGUMENT);
    const struct crw_samples samples = samples_of(&p);
    assert_int_equal(b->trainer_set_data(p.trainer, BACKEND_TRAIN, &samples), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_step(p.trainer, 1, false), CRW_E_ARGUMENT); /* not made for it */
    assert_int_equal(b->trainer_download(p.trainer, TIMEOUT_MS, 0), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_wait(p.trainer, TIMEOUT_MS, &progress), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_end_step(p.trainer, true), CRW_E_ARGUMENT);
    assert_int_equal(b->trainer_evaluate(p.trainer, 0, 1, TIMEOUT_MS, &progress), CRW_E_ARGUMENT);

    cuda_host_set_devices(0);
    assert_int_equal(b->trainer_create(&p.options, &t), -EIO);
    assert_non_null(strstr(b->error_message(), "device"));
    cuda_host_set_devices(1);

    struct crw_model *headless;
    static const struct crw_layer linear = {.kind = CRW_LAYER_LINEAR, .name = "a", .in = 2, .out = 2};
    assert_int_equal(crw_model_create(&linear, 1, (struct crw_shape){2, 1, 1}, 1, NULL, &headless), 0);
    struct backend_trainer_options options = p.options;
    options.model = headless; /* the loss is that of log_softmax */
    assert_int_equal(b->trainer_create(&options, &t), CRW_E_ARGUMENT);
    options.model = p.host;
    options.loss = CRW_MSE;
    assert_int_equal(b->trainer_create(&options, &t), CRW_E_ARGUMENT);
    crw_model_destroy(headless);
    end(&p);
}

static void follows_the_learning_rate(void **state)
{
    struct pair p;
    begin(&p, &nets[2], NULL);
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);
    assert_int_equal(crw_backend()->trainer_set_lr(p.trainer, 0.01), 0);
    crw_optimizer_set_lr(p.cpu_optimizer, 0.01);
    device_step(&p, BATCH);
    cpu_step(&p, BATCH);
    check_state(&p, 1e-5);
    end(&p);
}

/* Gradients that are not finite: the step is left out if that was asked for. */
static void leaves_out_what_is_not_finite(void **state)
{
    struct halver halver = {.broken = true};
    struct backend_reducer reducer = reducer_of(&halver);
    struct pair p;
    begin(&p, &nets[0], &reducer);
    crw_backend()->trainer_destroy(p.trainer);
    p.options.skip_not_finite = true;
    p.trainer = new_trainer(&p);
    assert_int_equal(crw_backend()->trainer_start(p.trainer, p.list, N_ITEMS, 0), 0);
    struct crw_trained progress = device_step(&p, BATCH);
    assert_false(progress.finite);
    check_state(&p, 0);
    end(&p);
}

/* As on the CPU, the loss of such a batch is no number; the step is not taken. */
static void leaves_out_a_batch_in_which_nothing_counts(void **state)
{
    struct pair p;
    begin(&p, &nets[5], NULL);
    crw_backend()->trainer_destroy(p.trainer);
    for (size_t i = 0; i < N_ITEMS; i++)
        p.labels[i] = IGNORED;
    p.options.skip_not_finite = true;
    p.trainer = new_trainer(&p);
    assert_int_equal(crw_backend()->trainer_start(p.trainer, p.list, N_ITEMS, 0), 0);
    struct crw_trained progress = device_step(&p, BATCH);
    assert_true(isnan(cpu_batch(&p, BATCH)));
    assert_true(isnan(progress.loss));
    assert_false(progress.finite);
    check_state(&p, 0);
    end(&p);
}

static void refuses_targets_that_are_no_class(void **state)
{
    static const int64_t wrong[] = {-1, CRW_IGNORE_INDEX, 4, 256, INT64_C(1) << 32, IGNORED - 1};
    const struct backend *b = crw_backend();
    struct backend_trainer *t;
    struct pair p;
    begin(&p, &nets[5], NULL);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        const struct crw_samples samples = samples_of(&p);
        p.labels[N_ITEMS - 1] = wrong[i];
        assert_int_equal(b->trainer_create(&p.options, &t), 0);
        assert_int_equal(b->trainer_set_data(t, BACKEND_TRAIN, &samples), CRW_E_ARGUMENT);
        assert_non_null(strstr(b->error_message(), "of sample 39 is not one of 4 classes"));
        b->trainer_destroy(t);
    }
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_as_the_cpu_does),
        cmocka_unit_test(accumulates_and_clips),
        cmocka_unit_test(trains_batches_of_many_sizes),
        cmocka_unit_test(gradients_change_nothing_until_they_are_taken),
        cmocka_unit_test(downloads_only_the_step_asked_for),
        cmocka_unit_test(trains_in_lower_precision),
        cmocka_unit_test(evaluates),
        cmocka_unit_test(resumes_bit_for_bit),
        cmocka_unit_test(reduces_on_another_stream),
        cmocka_unit_test(reduces_in_buckets),
        cmocka_unit_test(a_hanging_collective_costs_one_step),
        cmocka_unit_test(divides_by_the_number_of_ranks),
        cmocka_unit_test(takes_what_the_host_makes_of_gradients),
        cmocka_unit_test(a_refused_collective_changes_nothing),
        cmocka_unit_test(refuses),
        cmocka_unit_test(follows_the_learning_rate),
        cmocka_unit_test(leaves_out_what_is_not_finite),
        cmocka_unit_test(leaves_out_a_batch_in_which_nothing_counts),
        cmocka_unit_test(refuses_targets_that_are_no_class),
        cmocka_unit_test(ends_with_a_collective_that_hangs), /* last: its device hangs */
    };

    return cmocka_run_group_tests_name("kernel_trainer", tests, NULL, NULL);
}
