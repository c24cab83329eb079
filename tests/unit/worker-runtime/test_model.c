/*
 * Whole networks against PyTorch: initialisation to the last bit; outputs, gradients, losses of training
 * steps, running statistics and evaluation within a stated tolerance. Every table of kernels that this
 * processor can run has to pass.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tests/support/c/mnist_net.h"
#include "tests/support/c/sanitized.h"
#include "tests/unit/worker-runtime/torch_vectors.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/model/model.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct crw_layer odd[] = {
    {CRW_LAYER_CONV2D, "c1", 3, 5, 3},
    {CRW_LAYER_BATCHNORM2D, "n1", 5},
    {CRW_LAYER_RELU},
    {CRW_LAYER_CONV2D, "c2", 5, 7, 2},
    {CRW_LAYER_RELU},
    {CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {CRW_LAYER_BATCHNORM2D, "n2", 7},
    {CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {CRW_LAYER_FLATTEN},
    {CRW_LAYER_LINEAR, "f1", 7, 6},
    {CRW_LAYER_RELU},
    {CRW_LAYER_LINEAR, "f2", 6, 4},
    {CRW_LAYER_LOG_SOFTMAX},
};

static const struct crw_layer norm_first[] = {
    {CRW_LAYER_BATCHNORM2D, "n1", 2},
    {CRW_LAYER_CONV2D, "c1", 2, 17, 3},
    {CRW_LAYER_BATCHNORM2D, "n2", 17},
    {CRW_LAYER_RELU},
    {CRW_LAYER_MAXPOOL2D, .kernel = 2},
    {CRW_LAYER_CONV2D, "c2", 17, 3, 1},
    {CRW_LAYER_FLATTEN},
    {CRW_LAYER_LOG_SOFTMAX},
};

static const struct small_net {
    const char *name;
    const struct crw_layer *layers;
    size_t n_layers;
    struct crw_shape input;
    int n;
    size_t n_outputs, n_parameters, n_running;
    const float *output, *gradients, *losses, *parameters, *running, *eval;
} small_nets[] = {
#define SMALL_NET(net, ...)                                                                                  \
    {                                                                                                        \
        .name = #net, .layers = net, .n_layers = ARRAY_SIZE(net), .input = __VA_ARGS__,                      \
        .n_outputs = ARRAY_SIZE(net##_output), .n_parameters = ARRAY_SIZE(net##_gradients),                  \
        .n_running = ARRAY_SIZE(net##_running), .output = net##_output, .gradients = net##_gradients,        \
        .losses = net##_losses, .parameters = net##_parameters, .running = net##_running, .eval = net##_eval \
    }
    SMALL_NET(odd, {3, 9, 8}, .n = 5),
    SMALL_NET(norm_first, {2, 6, 7}, .n = 3),
};

static struct crw_model *model_for(const struct crw_layer *layers, size_t n_layers, struct crw_shape input,
                                   int batch, const struct cpu_kernels *kernels)
{
    struct crw_model *model = NULL;
    if (crw_model_create(layers, n_layers, input, batch, NULL, &model))
        fail_msg("%s", crw_error_message());
    model->kernels = kernels;
    return model;
}

static void draw(uint64_t seed, float *out, size_t count, float a, float b)
{
    struct crw_rng rng;
    crw_rng_seed(&rng, seed);
    crw_rng_uniform(&rng, out, count, a, b);
}

static float *inputs(uint64_t seed, int n, struct crw_shape shape)
{
    size_t count = (size_t)(n * shape.channels * shape.height * shape.width);
    float *x = calloc(count, sizeof(*x));
    assert_non_null(x);
    draw(seed, x, count, -0.5f, 2.8f);
    return x;
}

static float loss_of_step(struct crw_model *model, uint64_t seed, int n, struct crw_shape shape, int classes,
                          const float **ret_output)
{
    uint32_t order[64];
    int64_t targets[64];
    assert_int_equal(crw_randperm(seed, (uint32_t)n, order), 0);
    for (int i = 0; i < n; i++)
        targets[i] = order[i] % (uint32_t)classes;
    float *x = inputs(seed, n, shape);
    float loss;
    assert_int_equal(crw_model_forward(model, x, n, true, ret_output), 0);
    free(x);
    assert_int_equal(crw_model_nll_loss(model, targets, CRW_IGNORE_INDEX, &loss), 0);
    assert_int_equal(crw_model_backward(model), 0);
    return loss;
}

/* |a - b| <= tolerance * (1 + |b|) */
static void assert_close(const char *what, const float *a, const float *b, size_t count, double tolerance)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - b[i]) <= tolerance * (1 + fabs((double)b[i]))))
            fail_msg("%s, element %zu of %zu: %.9g, PyTorch has %.9g", what, i, count, (double)a[i],
                     (double)b[i]);
}

static void check_running(struct crw_model *model, const float *expected, size_t count, double tolerance)
{
    size_t at = 0;
    for (size_t i = 0; i < crw_model_n_buffers(model); i++) {
        struct crw_tensor b = crw_model_buffer(model, i);
        if (b.dtype != CRW_F32)
            continue;
        assert_close(b.name, b.data, expected + at, (size_t)b.dims[0], tolerance);
        at += (size_t)b.dims[0];
    }
    assert_int_equal(at, count);
}

/* gamma and beta as the vectors' generator sets them, by the number of the layer. */
static void set_norms(struct crw_model *model)
{
    size_t tensor = 0;
    for (size_t i = 0; i < model->n_layers; i++) {
        enum crw_layer_kind kind = model->layers[i].kind;
        if (kind == CRW_LAYER_BATCHNORM2D) {
            struct crw_tensor gamma = crw_model_tensor(model, tensor),
                              beta = crw_model_tensor(model, tensor + 1);
            draw(50 + i, gamma.data, (size_t)gamma.dims[0], -1, 1.5f);
            draw(70 + i, beta.data, (size_t)beta.dims[0], -1, 1);
        }
        if (kind == CRW_LAYER_BATCHNORM2D || kind == CRW_LAYER_CONV2D || kind == CRW_LAYER_LINEAR)
            tensor += 2;
    }
}

static void check_small_net(const struct small_net *net, const struct cpu_kernels *kernels)
{
    struct crw_model *model = model_for(net->layers, net->n_layers, net->input, net->n, kernels);
    struct crw_optimizer_options sgd = {.kind = CRW_SGD, .lr = 0.1, .momentum = 0.9};
    struct crw_optimizer *optimizer = NULL;
    size_t count;
    float *parameters = crw_model_parameters(model, &count);
    int classes = (int)(net->n_outputs / (size_t)net->n);

    assert_int_equal(count, net->n_parameters);
    crw_model_init(model, 3);
    set_norms(model);
    assert_int_equal(crw_optimizer_create(&sgd, count, &optimizer), 0);
    for (uint64_t step = 0; step < 5; step++) {
        const float *output;
        float loss = loss_of_step(model, 400 + step, net->n, net->input, classes, &output);
        assert_close("loss", &loss, &net->losses[step], 1, 2e-6);
        if (step == 0) {
            assert_close("output", output, net->output, net->n_outputs, 2e-6);
            assert_close("gradients", crw_model_gradients(model), net->gradients, count, 2e-6);
        }
        crw_optimizer_step(optimizer, parameters, crw_model_gradients(model));
    }
    assert_close("parameters", parameters, net->parameters, count, 5e-6);
    check_running(model, net->running, net->n_running, 5e-6);
    float *x = inputs(500, net->n, net->input);
    const float *eval;
    assert_int_equal(crw_model_forward(model, x, net->n, false, &eval), 0);
    assert_close("eval", eval, net->eval, net->n_outputs, 1e-5);
    free(x);
    crw_optimizer_destroy(optimizer);
    crw_model_destroy(model);
}

static void test_small_nets(void **state)
{
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_SIZE(small_nets); i++) {
            print_message("%s with kernels %s\n", small_nets[i].name, (*kernels)->name);
            check_small_net(&small_nets[i], *kernels);
        }
}

/* Each gradient's norm, and four of its elements measured by its norm. */
static void check_mnist_gradients(struct crw_model *model)
{
    for (size_t i = 0; i < crw_model_n_tensors(model); i++) {
        struct crw_tensor t = crw_model_tensor(model, i);
        const float *expected = &mnist_gradients[5 * i];
        const float *g = crw_model_gradients(model) + ((float *)t.data - crw_model_parameters(model, NULL));
        size_t n = 1;
        double norm = 0;
        for (int d = 0; d < t.n_dims; d++)
            n *= (size_t)t.dims[d];
        for (size_t k = 0; k < n; k++)
            norm += (double)g[k] * g[k];
        norm = sqrt(norm);
        size_t picked[4] = {0, n / 3, 2 * n / 3, n - 1};
        /* The bias in front of a normalisation has no gradient but rounding noise. */
        double tolerance = 2e-5 * expected[0] + 1e-6;
        if (fabs(norm - expected[0]) > tolerance)
            fail_msg("gradient of %s: norm %.9g, PyTorch has %.9g", t.name, norm, (double)expected[0]);
        for (int k = 0; k < 4; k++)
            if (fabs((double)g[picked[k]] - expected[1 + k]) > tolerance)
                fail_msg("gradient of %s, element %zu: %.9g, PyTorch has %.9g", t.name, picked[k],
                         (double)g[picked[k]], (double)expected[1 + k]);
    }
}

static void check_after_ten_steps(struct crw_model *model)
{
    check_running(model, mnist_running, ARRAY_SIZE(mnist_running), 2e-3);
    float *x = inputs(2000, 5, mnist_input);
    const float *eval;
    assert_int_equal(crw_model_forward(model, x, 5, false, &eval), 0);
    assert_close("eval", eval, mnist_eval, ARRAY_SIZE(mnist_eval), 2e-3);
    free(x);
}

/* With a sanitizer a step takes half a second: one step, and no look at what ten leave behind. */
static void check_mnist(const struct cpu_kernels *kernels)
{
    const size_t n_steps = IS_SANITIZED ? 1 : ARRAY_SIZE(mnist_losses);
    struct crw_model *model = model_for(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, 64, kernels);
    struct crw_optimizer_options options = crw_optimizer_defaults(CRW_ADADELTA);
    struct crw_optimizer *optimizer = NULL;
    size_t count;
    float *parameters = crw_model_parameters(model, &count);

    crw_model_init(model, 0);
    assert_int_equal(crw_optimizer_create(&options, count, &optimizer), 0);
    for (uint64_t step = 0; step < n_steps; step++) {
        const float *output;
        float loss = loss_of_step(model, 1000 + step, 64, mnist_input, 10, &output);
        /* Rounding that tips a relu or a pooling window the other way shows from there on: 6e-6 was seen. */
        assert_close("loss", &loss, &mnist_losses[step], 1, step == 0 ? 1e-6 : 5e-5);
        if (step == 0) {
            assert_close("output", output, mnist_output, ARRAY_SIZE(mnist_output), 2e-6);
            check_mnist_gradients(model);
        }
        crw_optimizer_step(optimizer, parameters, crw_model_gradients(model));
    }
    if (n_steps == ARRAY_SIZE(mnist_losses))
        check_after_ten_steps(model);
    crw_optimizer_destroy(optimizer);
    crw_model_destroy(model);
}

static void test_mnist_ten_steps(void **state)
{
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++) {
        print_message("mnist with kernels %s\n", (*kernels)->name);
        check_mnist(*kernels);
    }
}

/* A second model that does the same has the same bits. */
static void test_same_bits_every_time(void **state)
{
    struct crw_model *models[2];
    const float *output;
    for (int m = 0; m < 2; m++) {
        models[m] = model_for(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, 64, cpu_kernels_best());
        crw_model_init(models[m], 5);
    }
    (void)loss_of_step(models[1], 2, 33, mnist_input, 10, &output); /* leaves nothing behind but statistics */
    for (int m = 0; m < 2; m++)
        (void)loss_of_step(models[m], 1, 31, mnist_input, 10, &output);
    size_t count;
    (void)crw_model_parameters(models[0], &count);
    assert_memory_equal(crw_model_gradients(models[0]), crw_model_gradients(models[1]),
                        count * sizeof(float));
    crw_model_destroy(models[0]);
    crw_model_destroy(models[1]);
}

static void test_backward_writes_instead_of_adding(void **state)
{
    struct crw_model *model =
        model_for(odd, ARRAY_SIZE(odd), (struct crw_shape){3, 9, 8}, 5, cpu_kernels_best());
    const float *output;
    size_t count;
    (void)crw_model_parameters(model, &count);
    crw_model_init(model, 1);
    (void)loss_of_step(model, 1, 5, (struct crw_shape){3, 9, 8}, 4, &output);
    float *once = calloc(count, sizeof(*once));
    assert_non_null(once);
    memcpy(once, crw_model_gradients(model), count * sizeof(*once));
    assert_int_equal(crw_model_backward(model), 0);
    assert_memory_equal(once, crw_model_gradients(model), count * sizeof(*once));
    free(once);
    crw_model_destroy(model);
}

static void test_initialisation_to_the_last_bit(void **state)
{
    struct crw_model *model =
        model_for(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, 1, cpu_kernels_best());
    for (size_t i = 0; i < ARRAY_SIZE(mnist_init); i++) {
        crw_model_init(model, mnist_init[i].seed);
        assert_int_equal(crw_model_crc32c(model), mnist_init[i].crc);
    }
    crw_model_destroy(model);

    static const struct crw_layer linear[] = {{CRW_LAYER_LINEAR, "fc", 10, 2}};
    static const float weight[] = {-0.0023675405f, 0.169638351f, -0.260269731f, -0.232724354f};
    static const float bias[] = {0.114859335f, 0.26259172f};
    model = model_for(linear, 1, (struct crw_shape){10, 1, 1}, 1, cpu_kernels_best());
    crw_model_init(model, 0);
    assert_memory_equal(crw_model_tensor(model, 0).data, weight, sizeof(weight));
    assert_memory_equal(crw_model_tensor(model, 1).data, bias, sizeof(bias));
    crw_model_destroy(model);

    static const float conv_weight[] = {-0.0024956069f, 0.17881453f, -0.274348378f};
    static const float conv_bias[] = {-0.0762254f, -0.0148237152f};
    model = model_for(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, 1, cpu_kernels_best());
    crw_model_init(model, 0);
    assert_memory_equal(crw_model_tensor(model, 0).data, conv_weight, sizeof(conv_weight));
    assert_memory_equal(crw_model_tensor(model, 1).data, conv_bias, sizeof(conv_bias));
    crw_model_destroy(model);
}

static void test_names_and_places(void **state)
{
    static const char *const names[] = {"conv1.weight", "conv1.bias", "n1.weight",  "n1.bias",
                                        "conv2.weight", "conv2.bias", "n2.weight",  "n2.bias",
                                        "fc1.weight",   "fc1.bias",   "fc2.weight", "fc2.bias"};
    static const char *const buffers[] = {"n1.running_mean", "n1.running_var", "n1.num_batches_tracked",
                                          "n2.running_mean", "n2.running_var", "n2.num_batches_tracked"};
    float gradients[225226] = {0};
    struct crw_model *model = NULL;
    size_t count, at = 0;

    assert_int_equal(crw_model_count_parameters(mnist_layers, ARRAY_SIZE(mnist_layers)), MNIST_PARAMETERS);
    assert_int_equal(
        crw_model_create(mnist_layers, ARRAY_SIZE(mnist_layers), mnist_input, 2, gradients, &model), 0);
    float *parameters = crw_model_parameters(model, &count);
    assert_int_equal(count, 225226);
    assert_ptr_equal(crw_model_gradients(model), gradients);
    assert_int_equal(crw_model_n_tensors(model), ARRAY_SIZE(names));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct crw_tensor t = crw_model_tensor(model, i);
        assert_string_equal(t.name, names[i]);
        assert_ptr_equal(t.data, parameters + at);
        size_t n = 1;
        for (int d = 0; d < t.n_dims; d++)
            n *= (size_t)t.dims[d];
        at += n;
    }
    assert_int_equal(at, count);
    assert_int_equal(crw_model_n_buffers(model), ARRAY_SIZE(buffers));
    for (size_t i = 0; i < ARRAY_SIZE(buffers); i++)
        assert_string_equal(crw_model_buffer(model, i).name, buffers[i]);
    struct crw_tensor tracked = crw_model_buffer(model, 2);
    assert_int_equal(tracked.dtype, CRW_I64);
    assert_int_equal(tracked.n_dims, 0);

    const float *output;
    crw_model_init(model, 0);
    (void)loss_of_step(model, 0, 2, mnist_input, 10, &output);
    assert_int_equal(*(int64_t *)tracked.data, 1);
    assert_true(gradients[225225] != 0);
    crw_model_init(model, 0);
    assert_int_equal(*(int64_t *)tracked.data, 0);
    crw_model_destroy(model);
}

/* Bias of 1, 2, 3 and weights of 0 make the input [1,2,3]; facts of the loss by hand. */
static void test_log_softmax_and_loss(void **state)
{
    static const struct crw_layer layers[] = {{CRW_LAYER_LINEAR, "f", 3, 3}, {CRW_LAYER_LOG_SOFTMAX}};
    static const float x[] = {1, 2, 3, 1, -1, 0};
    /* With the identity as weights, the gradient of the bias is the sum of the rows of dlogits. */
    static const float expected[] = {0.0450152904f - 0.167379558f, 0.122364245f + 0.0450152792f,
                                     -0.167379498f + 0.12236423f};
    for (const struct cpu_kernels *const *kernels = cpu_kernels_all(); *kernels; kernels++) {
        struct crw_model *model = model_for(layers, 2, (struct crw_shape){3, 1, 1}, 2, *kernels);
        float *p = crw_model_parameters(model, NULL);
        p[0] = p[4] = p[8] = 1;
        float loss;
        assert_int_equal(crw_model_forward(model, x, 2, true, NULL), 0);
        assert_int_equal(crw_model_nll_loss(model, (const int64_t[]){2, 0}, CRW_IGNORE_INDEX, &loss), 0);
        assert_true(fabsf(loss - 0.407606006f) < 1e-7f);
        assert_int_equal(crw_model_backward(model), 0);
        assert_close("bias gradient", crw_model_gradients(model) + 9, expected, 3, 1e-7);
        crw_model_destroy(model);
    }
}

static void test_refuses_a_class_that_does_not_exist(void **state)
{
    static const struct crw_layer layers[] = {{CRW_LAYER_LINEAR, "f", 3, 3}, {CRW_LAYER_LOG_SOFTMAX}};
    static const float x[] = {1, 2, 3};
    struct crw_model *model = model_for(layers, 2, (struct crw_shape){3, 1, 1}, 1, cpu_kernels_best());
    static const int64_t wrong[] = {3, -1, 256, INT64_MIN, (int64_t)1 << 32};
    float loss = 7;
    assert_int_equal(crw_model_forward(model, x, 1, true, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        char expected[64];
        (void)snprintf(expected, sizeof(expected), "target %lld of sample 0", (long long)wrong[i]);
        assert_int_equal(crw_model_nll_loss(model, &wrong[i], CRW_IGNORE_INDEX, &loss), CRW_E_ARGUMENT);
        assert_non_null(strstr(crw_error_message(), expected));
        assert_int_equal(crw_model_backward(model), CRW_E_ARGUMENT);
    }
    assert_true(loss == 7);
    crw_model_destroy(model);
}

/* Gradients of a loss of the caller's own, to the parameters and to the input. */
static void check_input_gradient(const struct crw_layer *layers, size_t n_layers, struct crw_shape input,
                                 int n, const float *d_input, size_t n_inputs, const float *d_parameters,
                                 const struct cpu_kernels *kernels)
{
    struct crw_model *model = model_for(layers, n_layers, input, n + 1, kernels);
    float *x = calloc(n_inputs, sizeof(*x)), *found = calloc(n_inputs, sizeof(*found)), d_output[64];
    size_t count, n_outputs;
    (void)crw_model_parameters(model, &count);
    n_outputs = (size_t)n * (size_t)model->steps[model->n_steps - 1].out.channels;
    assert_true(x && found && n_outputs <= ARRAY_SIZE(d_output));
    crw_model_init(model, 3);
    draw(600, x, n_inputs, -0.5f, 2.8f);
    draw(601, d_output, n_outputs, -1, 1);
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(crw_model_forward(model, x, n, true, NULL), 0);
        memset(found, 0, n_inputs * sizeof(*found));
        assert_int_equal(crw_model_backward_from(model, d_output, turn == 1 ? NULL : found), 0);
        assert_close("parameters", crw_model_gradients(model), d_parameters, count, 2e-6);
        if (turn != 1)
            assert_close("input", found, d_input, n_inputs, 2e-6);
    }
    free(x);
    free(found);
    crw_model_destroy(model);
}

static void test_backward_from_a_gradient(void **state)
{
    static const struct crw_layer relu_first[] = {
        {CRW_LAYER_RELU}, {CRW_LAYER_MAXPOOL2D}, {CRW_LAYER_FLATTEN}, {CRW_LAYER_LINEAR, "f", 12, 5}};
    for (const struct cpu_kernels *const *k = cpu_kernels_all(); *k; k++) {
        check_input_gradient(odd, ARRAY_SIZE(odd), (struct crw_shape){3, 9, 8}, 5, odd_d_input,
                             ARRAY_SIZE(odd_d_input), odd_d_parameters, *k);
        check_input_gradient(norm_first, ARRAY_SIZE(norm_first), (struct crw_shape){2, 6, 7}, 3,
                             norm_first_d_input, ARRAY_SIZE(norm_first_d_input), norm_first_d_parameters, *k);
        check_input_gradient(relu_first, ARRAY_SIZE(relu_first), (struct crw_shape){3, 4, 5}, 2,
                             relu_first_d_input, ARRAY_SIZE(relu_first_d_input), relu_first_d_parameters, *k);
    }
}

/* What the hook is called for, and whether the gradients from there on were final. */
struct hook_calls {
    struct crw_model *model;
    float *seen; /* gradients as they were when they were announced */
    size_t begins[16], n, count;
    int result_at_2;
};

static int note_call(void *data, size_t begin)
{
    struct hook_calls *h = data;
    size_t end = h->n ? h->begins[h->n - 1] : h->count;

    assert_true(begin < end && h->n < ARRAY_SIZE(h->begins));
    memcpy(h->seen + begin, crw_model_gradients(h->model) + begin, (end - begin) * sizeof(float));
    h->begins[h->n++] = begin;
    return h->n == 2 ? h->result_at_2 : 0;
}

static void test_gradient_hook(void **state)
{
    struct hook_calls h = {
        .model = model_for(odd, ARRAY_SIZE(odd), (struct crw_shape){3, 9, 8}, 5, cpu_kernels_best())};
    const float *output;

    (void)crw_model_parameters(h.model, &h.count);
    h.seen = calloc(h.count, sizeof(*h.seen));
    assert_non_null(h.seen);
    crw_model_init(h.model, 1);
    crw_model_set_gradient_hook(h.model, note_call, &h);
    (void)loss_of_step(h.model, 1, 5, (struct crw_shape){3, 9, 8}, 4, &output);
    assert_int_equal(h.n, 4); /* two linear layers; a convolution and what follows it; the first two layers */
    assert_int_equal(h.begins[h.n - 1], 0);
    assert_memory_equal(h.seen, crw_model_gradients(h.model), h.count * sizeof(*h.seen));
    h.n = 0;
    h.result_at_2 = -5;
    assert_int_equal(crw_model_backward(h.model), -5);
    assert_int_equal(h.n, 2);
    crw_model_set_gradient_hook(h.model, NULL, NULL);
    assert_int_equal(crw_model_backward(h.model), 0);
    free(h.seen);
    crw_model_destroy(h.model);
}

static void test_refuses_wrong_batches(void **state)
{
    static const struct crw_layer one_pixel[] = {
        {CRW_LAYER_CONV2D, "c", 1, 4, 3}, {CRW_LAYER_BATCHNORM2D, "n", 4}, {CRW_LAYER_FLATTEN}};
    static const float x[18] = {0};
    struct crw_model *model = model_for(one_pixel, 3, (struct crw_shape){1, 3, 3}, 2, cpu_kernels_best());
    assert_int_equal(crw_model_backward(model), CRW_E_ARGUMENT);
    assert_int_equal(crw_model_mse_loss(model, x, &(float){0}), CRW_E_ARGUMENT);
    assert_int_equal(crw_model_forward(model, x, 3, true, NULL), CRW_E_ARGUMENT);
    assert_int_equal(crw_model_forward(model, x, 0, true, NULL), CRW_E_ARGUMENT);
    assert_int_equal(crw_model_forward(model, x, 1, true, NULL),
                     CRW_E_ARGUMENT); /* one value has no variance */
    assert_non_null(strstr(crw_error_message(), "larger batch"));
    assert_int_equal(crw_model_forward(model, x, 1, false, NULL), 0);
    assert_int_equal(crw_model_mse_loss(model, x, &(float){0}), 0);
    assert_int_equal(crw_model_backward(model), CRW_E_ARGUMENT); /* not a forward to learn from */
    assert_int_equal(crw_model_forward(model, x, 2, true, NULL), 0);
    crw_model_destroy(model);
}

static void test_refuses_wrong_chains(void **state)
{
    static const struct {
        const char *sentence;
        struct crw_shape input;
        struct crw_layer layers[3];
        size_t n_layers;
    } wrong[] = {
        {"at least one", {1, 1, 1}, {{0}}, 0},
        {"batches of", {0, 1, 1}, {{CRW_LAYER_RELU}}, 1},
        {"number of inputs", {4, 1, 1}, {{CRW_LAYER_LINEAR, "f", 5, 2}}, 1},
        {"put a flatten", {1, 4, 4}, {{CRW_LAYER_LINEAR, "f", 16, 2}}, 1},
        {"works on images", {4, 1, 1}, {{CRW_LAYER_LINEAR, "f", 4, 4}, {CRW_LAYER_MAXPOOL2D}}, 2},
        {"number of channels", {1, 4, 4}, {{CRW_LAYER_CONV2D, "c", 2, 4, 3}}, 1},
        {"does not fit", {1, 4, 4}, {{CRW_LAYER_CONV2D, "c", 1, 4, 5}}, 1},
        {"number of channels", {1, 4, 4}, {{CRW_LAYER_BATCHNORM2D, "n", 2}}, 1},
        {"smaller than", {1, 1, 4}, {{CRW_LAYER_MAXPOOL2D}}, 1},
        {"cannot take 4 x 1 x 1: an earlier layer has this name",
         {4, 1, 1},
         {{CRW_LAYER_LINEAR, "f", 4, 4}, {CRW_LAYER_RELU, "f"}, {CRW_LAYER_LINEAR, "f", 4, 2}},
         3},
        {"needs a name", {4, 1, 1}, {{CRW_LAYER_LINEAR, NULL, 4, 4}}, 1},
        {"end with a flatten", {1, 4, 4}, {{CRW_LAYER_RELU}}, 1},
        {"does not exist", {1, 4, 4}, {{CRW_LAYER_KIND_COUNT}}, 1},
        {"too large", {1 << 20, 1, 1}, {{CRW_LAYER_LINEAR, "f", 1 << 20, 1 << 20}}, 1},
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct crw_model *model = NULL;
        assert_int_equal(
            crw_model_create(wrong[i].layers, wrong[i].n_layers, wrong[i].input, 2, NULL, &model),
            CRW_E_ARGUMENT);
        assert_null(model);
        if (!strstr(crw_error_message(), wrong[i].sentence))
            fail_msg("chain %zu: \"%s\" does not say \"%s\"", i, crw_error_message(), wrong[i].sentence);
    }
    crw_model_destroy(NULL);
}

static void test_hash_tells_networks_apart(void **state)
{
    struct crw_layer other[ARRAY_SIZE(mnist_layers)];
    uint32_t hashes[4];
    for (int i = 0; i < 4; i++) {
        memcpy(other, mnist_layers, sizeof(mnist_layers));
        if (i == 2)
            other[11].name = "fc3";
        if (i == 3)
            other[9].out = other[11].in = 64;
        struct crw_model *model = model_for(other, ARRAY_SIZE(other), mnist_input, 1 + i, cpu_kernels_best());
        crw_model_init(model, (uint64_t)i);
        hashes[i] = crw_model_hash(model);
        crw_model_destroy(model);
    }
    assert_int_equal(hashes[0], hashes[1]); /* batch size and values do not matter */
    assert_int_not_equal(hashes[0], hashes[2]);
    assert_int_not_equal(hashes[0], hashes[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_initialisation_to_the_last_bit),
        cmocka_unit_test(test_names_and_places),
        cmocka_unit_test(test_log_softmax_and_loss),
        cmocka_unit_test(test_small_nets),
        cmocka_unit_test(test_mnist_ten_steps),
        cmocka_unit_test(test_same_bits_every_time),
        cmocka_unit_test(test_backward_writes_instead_of_adding),
        cmocka_unit_test(test_backward_from_a_gradient),
        cmocka_unit_test(test_gradient_hook),
        cmocka_unit_test(test_refuses_a_class_that_does_not_exist),
        cmocka_unit_test(test_refuses_wrong_batches),
        cmocka_unit_test(test_refuses_wrong_chains),
        cmocka_unit_test(test_hash_tells_networks_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
