/*
 * A model: one arena of parameters, one of gradients, and a chain of steps that is walked forward and
 * backward. What a step does is in model_steps.c, how layers become steps in model_plan.c, where the
 * gradient comes from in loss.c.
 *
 * The walk. Images go through the chain one sample at a time as far as the next batch normalisation, which
 * has to see all samples first; on the way back likewise. Vectors go as a batch.
 */

#include "worker-runtime/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/base/error.h"
#include "base/memory.h"

enum { ALIGNMENT = 64, N_BUFFERS_OF_NORM = 3 };

/* ---- memory ---- */

void *model_alloc(struct crw_model *model, size_t count, size_t size)
{
    void **owned =
        memory_has_room(count, size) ? realloc(model->owned, (model->n_owned + 1) * sizeof(*owned)) : NULL;
    if (!owned)
        return NULL;
    model->owned = owned;
    size_t n_bytes = (count * size + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, n_bytes);
    if (!memory)
        return NULL;
    memset(memory, 0, n_bytes);
    owned[model->n_owned++] = memory;
    return memory;
}

void crw_model_destroy(struct crw_model *model)
{
    if (!model)
        return;
    for (size_t i = 0; i < model->n_owned; i++)
        free(model->owned[i]);
    free(model->owned);
    free(model);
}

/* ---- parameters ---- */

/* Weight (or gamma) and bias (or beta) of a layer, with their dimensions; n_dims 0: it has none. */
static void parameter_dims(const struct crw_layer *layer, struct crw_tensor *weight, struct crw_tensor *bias)
{
    *weight = *bias = (struct crw_tensor){.dtype = CRW_F32};
    switch (layer->kind) {
    case CRW_LAYER_LINEAR:
        *weight = (struct crw_tensor){.n_dims = 2, .dims = {layer->out, layer->in}};
        *bias = (struct crw_tensor){.n_dims = 1, .dims = {layer->out}};
        break;
    case CRW_LAYER_CONV2D:
        *weight =
            (struct crw_tensor){.n_dims = 4, .dims = {layer->out, layer->in, layer->kernel, layer->kernel}};
        *bias = (struct crw_tensor){.n_dims = 1, .dims = {layer->out}};
        break;
    case CRW_LAYER_BATCHNORM2D:
        *weight = *bias = (struct crw_tensor){.n_dims = 1, .dims = {layer->in}};
        break;
    case CRW_LAYER_RELU:
    case CRW_LAYER_MAXPOOL2D:
    case CRW_LAYER_FLATTEN:
    case CRW_LAYER_LOG_SOFTMAX:
    case CRW_LAYER_KIND_COUNT:
        break;
    }
}

static size_t tensor_count(const struct crw_tensor *t)
{
    size_t count = t->n_dims > 0;
    for (int d = 0; d < t->n_dims; d++)
        count *= (size_t)t->dims[d];
    return count;
}

size_t crw_model_count_parameters(const struct crw_layer *layers, size_t n_layers)
{
    size_t count = 0;
    NEED(is_array(layers, n_layers, sizeof(*layers)), 0);
    for (size_t i = 0; i < n_layers; i++) {
        struct crw_tensor weight, bias;
        parameter_dims(&layers[i], &weight, &bias);
        count += tensor_count(&weight) + tensor_count(&bias);
    }
    return count;
}

static const char *joined_name(struct crw_model *model, const char *layer, const char *what)
{
    size_t n = strlen(layer) + 1 + strlen(what) + 1;
    char *name = model_alloc(model, n, 1);
    if (name)
        (void)snprintf(name, n, "%s.%s", layer, what);
    return name;
}

/* False: out of memory. */
static bool add_parameters(struct crw_model *model, const struct crw_layer *layer, float **next)
{
    struct crw_tensor *t = &model->tensors[model->n_tensors];
    parameter_dims(layer, &t[0], &t[1]);
    if (t[0].n_dims == 0)
        return true;
    for (int i = 0; i < 2; i++) {
        t[i].name = joined_name(model, layer->name, i == 0 ? "weight" : "bias");
        t[i].data = *next;
        *next += tensor_count(&t[i]);
    }
    model->n_tensors += 2;
    return t[0].name && t[1].name;
}

static bool add_buffers(struct crw_model *model, const struct crw_layer *layer)
{
    if (layer->kind != CRW_LAYER_BATCHNORM2D)
        return true;
    struct crw_tensor *b = &model->buffers[model->n_buffers];
    size_t channels = (size_t)layer->in;
    b[0] = (struct crw_tensor){.name = joined_name(model, layer->name, "running_mean"), .n_dims = 1};
    b[1] = (struct crw_tensor){.name = joined_name(model, layer->name, "running_var"), .n_dims = 1};
    b[2] =
        (struct crw_tensor){.name = joined_name(model, layer->name, "num_batches_tracked"), .dtype = CRW_I64};
    b[0].dims[0] = b[1].dims[0] = layer->in;
    b[0].data = model_alloc(model, channels, sizeof(float));
    b[1].data = model_alloc(model, channels, sizeof(float));
    b[2].data = model_alloc(model, 1, sizeof(int64_t));
    model->n_buffers += N_BUFFERS_OF_NORM;
    for (int i = 0; i < N_BUFFERS_OF_NORM; i++)
        if (!b[i].name || !b[i].data)
            return false;
    return true;
}

static void reset_to_defaults(struct crw_model *model);

float *model_own_gradients(struct crw_model *model)
{
    if (!model->own_gradients)
        model->own_gradients = model_alloc(model, model->n_parameters, sizeof(float));
    return model->own_gradients;
}

/* Copies the layers, allocates the arenas and names what is in them. False: out of memory. */
static bool make_arenas(struct crw_model *model, const struct crw_layer *layers, size_t n_layers,
                        float *gradients)
{
    model->n_layers = n_layers;
    model->n_parameters = crw_model_count_parameters(layers, n_layers);
    model->layers = model_alloc(model, n_layers, sizeof(*layers));
    model->tensors = model_alloc(model, 2 * n_layers, sizeof(*model->tensors));
    model->buffers = model_alloc(model, N_BUFFERS_OF_NORM * n_layers, sizeof(*model->buffers));
    model->parameters = model_alloc(model, model->n_parameters, sizeof(float));
    model->gradients = gradients ? gradients : model_own_gradients(model);
    if (!model->layers || !model->tensors || !model->buffers || !model->parameters || !model->gradients)
        return false;

    float *next = model->parameters;
    for (size_t i = 0; i < n_layers; i++) {
        model->layers[i] = layers[i];
        if (layers[i].name) {
            char *name = model_alloc(model, strlen(layers[i].name) + 1, 1);
            if (!name)
                return false;
            model->layers[i].name = strcpy(name, layers[i].name);
        }
        if (!add_parameters(model, &layers[i], &next) || !add_buffers(model, &layers[i]))
            return false;
    }
    reset_to_defaults(model);
    return true;
}

int crw_model_create(const struct crw_layer *layers, size_t n_layers, struct crw_shape input, int max_batch,
                     float *gradients, struct crw_model **ret_model)
{
    NEED(ret_model && is_array(layers, n_layers, sizeof(*layers)), CRW_E_ARGUMENT);
    TRY(model_check(layers, n_layers, input, max_batch));

    struct crw_model *model = calloc(1, sizeof(*model));
    if (!model)
        return crw_fail_errno(-ENOMEM, "cannot make a model");
    model->kernels = cpu_kernels_best();
    model->input = input;
    model->max_batch = max_batch;
    int r = make_arenas(model, layers, n_layers, gradients)
                ? model_plan(model)
                : crw_fail_errno(-ENOMEM, "cannot make a model of %zu parameters",
                                 crw_model_count_parameters(layers, n_layers));
    if (r) {
        crw_model_destroy(model);
        return r;
    }
    *ret_model = model;
    return 0;
}

/* Batch normalisation starts as the identity; what is drawn at random is zero until crw_model_init(). */
static void reset_to_defaults(struct crw_model *model)
{
    size_t tensor = 0, buffer = 0;
    for (size_t i = 0; i < model->n_layers; i++) {
        const struct crw_layer *layer = &model->layers[i];
        struct crw_tensor weight, bias;
        parameter_dims(layer, &weight, &bias);
        if (layer->kind == CRW_LAYER_BATCHNORM2D) {
            float *gamma = model->tensors[tensor].data, *beta = model->tensors[tensor + 1].data;
            float *mean = model->buffers[buffer].data, *variance = model->buffers[buffer + 1].data;
            for (int c = 0; c < layer->in; c++) {
                gamma[c] = variance[c] = 1;
                beta[c] = mean[c] = 0;
            }
            *(int64_t *)model->buffers[buffer + 2].data = 0;
            buffer += N_BUFFERS_OF_NORM;
        }
        tensor += weight.n_dims ? 2 : 0;
    }
}

/*
 * torch.nn.init.kaiming_uniform_(a=sqrt(5)) for the weights, 1/sqrt(fan_in) for the biases: the same number
 * but for its last bit, so each is computed as PyTorch does.
 */
void crw_model_init(struct crw_model *model, uint64_t seed)
{
    struct crw_rng rng;
    size_t tensor = 0;

    NEED(model);
    crw_rng_seed(&rng, seed);
    reset_to_defaults(model);
    for (size_t i = 0; i < model->n_layers; i++) {
        const struct crw_layer *layer = &model->layers[i];
        struct crw_tensor weight, bias;
        parameter_dims(layer, &weight, &bias);
        if (layer->kind == CRW_LAYER_LINEAR || layer->kind == CRW_LAYER_CONV2D) {
            size_t n_outputs = tensor_count(&bias), n_inputs = tensor_count(&weight) / n_outputs;
            double fan_in = (double)n_inputs;
            double gain = sqrt(2.0 / (1 + 5));
            double weight_bound = sqrt(3.0) * (gain / sqrt(fan_in)), bias_bound = 1 / sqrt(fan_in);
            crw_rng_uniform(&rng, model->tensors[tensor].data, tensor_count(&weight), (float)-weight_bound,
                            (float)weight_bound);
            crw_rng_uniform(&rng, model->tensors[tensor + 1].data, n_outputs, (float)-bias_bound,
                            (float)bias_bound);
        }
        tensor += weight.n_dims ? 2 : 0;
    }
}

float *crw_model_parameters(struct crw_model *model, size_t *ret_count)
{
    if (model && ret_count)
        *ret_count = model->n_parameters;
    return model ? model->parameters : NULL;
}

float *crw_model_gradients(struct crw_model *model)
{
    return model ? model->gradients : NULL;
}

size_t crw_model_n_tensors(const struct crw_model *model)
{
    return model ? model->n_tensors : 0;
}

struct crw_tensor crw_model_tensor(const struct crw_model *model, size_t i)
{
    NEED(model && i < model->n_tensors, (struct crw_tensor){0});
    return model->tensors[i];
}

size_t crw_model_n_buffers(const struct crw_model *model)
{
    return model ? model->n_buffers : 0;
}

struct crw_tensor crw_model_buffer(const struct crw_model *model, size_t i)
{
    NEED(model && i < model->n_buffers, (struct crw_tensor){0});
    return model->buffers[i];
}

static uint32_t hash_int(uint32_t crc, int value)
{
    uint32_t v = (uint32_t)value;
    uint8_t bytes[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    return crw_crc32c(crc, bytes, sizeof(bytes));
}

uint32_t crw_model_hash(const struct crw_model *model)
{
    uint32_t crc = 0;
    NEED(model, 0);
    crc = hash_int(crc, model->input.channels);
    crc = hash_int(crc, model->input.height);
    crc = hash_int(crc, model->input.width);
    for (size_t i = 0; i < model->n_layers; i++) {
        const struct crw_layer *layer = &model->layers[i];
        const char *name = layer->name ? layer->name : "";
        crc = hash_int(crc, layer->kind);
        crc = hash_int(crc, layer->in);
        crc = hash_int(crc, layer->out);
        crc = hash_int(crc, layer->kernel);
        crc = crw_crc32c(crc, name, strlen(name) + 1);
    }
    return crc;
}

uint32_t crw_model_crc32c(const struct crw_model *model)
{
    return model ? crw_crc32c(0, model->parameters, model->n_parameters * sizeof(float)) : 0;
}

int crw_model_set_precision(struct crw_model *model, enum crw_dtype precision)
{
    NEED(model, CRW_E_ARGUMENT);
    if (precision != CRW_F32 && precision != CRW_BF16)
        return crw_fail(CRW_E_ARGUMENT, "a model computes in fp32 or bf16, not in type %d", (int)precision);
    if (precision == CRW_BF16 && !model->can_round) {
        TRY(model_plan_rounding(model));
        model->can_round = true;
    }
    model->bf16 = precision == CRW_BF16;
    return 0;
}

/* ---- forward ---- */

/* From PyTorch's [n][channels][height][width] to ours. */
static void take_input(struct crw_model *model, const float *input, int n)
{
    const struct activation *a = &model->x_shape;
    size_t n_pixels = (size_t)a->height * (size_t)a->width;
    if (a->flat || (a->stored == 1 && a->channels == 1)) {
        memcpy(model->x, input, (size_t)n * a->size * sizeof(*input));
        return;
    }
    for (int s = 0; s < n; s++) {
        float *x = model->x + (size_t)s * a->size;
        for (int c = 0; c < a->channels; c++)
            for (size_t p = 0; p < n_pixels; p++)
                x[p * (size_t)a->stored + (size_t)c] = *input++;
    }
}

/* Steps first.. that a sample passes before it meets the next normalisation or becomes a vector. */
static size_t end_of_samplewise(const struct crw_model *model, size_t first)
{
    size_t end = first + 1;
    while (end < model->n_steps && !model->steps[end].in.flat && !step_is_norm(&model->steps[end]))
        end++;
    return end;
}

static void observe_all(struct crw_model *model, struct model_step *norm)
{
    for (int s = 0; model->training && s < model->n; s++)
        step_observe(model, norm, s);
    step_observed(model, norm);
}

/* Steps [first, end) for all samples, one after the other, and the statistics of the normalisation behind. */
static void forward_samplewise(struct crw_model *model, size_t first, size_t end)
{
    struct model_step *norm =
        end < model->n_steps && step_is_norm(&model->steps[end]) ? &model->steps[end] : NULL;
    for (int s = 0; s < model->n; s++) {
        for (size_t i = first; i < end; i++)
            step_forward(model, &model->steps[i], s, 1);
        if (norm && model->training)
            step_observe(model, norm, s);
    }
    if (norm)
        step_observed(model, norm);
}

/* Batch statistics of one single value have no variance; PyTorch refuses them, too. */
static int check_batch(const struct crw_model *model, int n, bool training)
{
    if (n < 1 || n > model->max_batch)
        return crw_fail(CRW_E_ARGUMENT, "a batch of %d does not fit a model made for batches of 1 to %d", n,
                        model->max_batch);
    for (size_t i = 0; training && i < model->n_steps; i++) {
        const struct model_step *step = &model->steps[i];
        if (step_is_norm(step) && n * step->in.height * step->in.width == 1)
            return crw_fail(CRW_E_ARGUMENT,
                            "batch normalisation needs more than one value per channel to train "
                            "on; use a larger batch");
    }
    return 0;
}

int crw_model_forward(struct crw_model *model, const float *input, int n, bool training,
                      const float **ret_output)
{
    NEED(model && input, CRW_E_ARGUMENT);
    TRY(check_batch(model, n, training));
    model->can_go_back = false;
    model->n = n;
    model->training = training;
    take_input(model, input, n);
    for (size_t i = 0; i < model->n_steps; i++)
        step_prepare(model, &model->steps[i]);

    if (step_is_norm(&model->steps[0]))
        observe_all(model, &model->steps[0]);
    for (size_t i = 0, end; i < model->n_steps; i = end) {
        if (model->steps[i].in.flat) {
            step_forward(model, &model->steps[i], 0, n);
            end = i + 1;
        } else {
            end = end_of_samplewise(model, i);
            forward_samplewise(model, i, end);
        }
    }
    if (ret_output)
        *ret_output = model->steps[model->n_steps - 1].y;
    return 0;
}

/* ---- backward ---- */

/* Steps [first, end) for all samples, last step first, and the sums of the normalisation in front. */
static void backward_samplewise(struct crw_model *model, size_t first, size_t end)
{
    struct model_step *norm =
        first > 0 && step_is_norm(&model->steps[first - 1]) ? &model->steps[first - 1] : NULL;
    for (int s = 0; s < model->n; s++) {
        for (size_t i = end; i-- > first;)
            step_backward(model, &model->steps[i], s, 1);
        if (norm)
            step_observe_backward(model, norm, s);
    }
    if (norm)
        step_observed_backward(model, norm);
}

/* The first of the steps before end, at least stop, that a sample passes on its way back without waiting for others. */
static size_t start_of_samplewise(const struct crw_model *model, size_t stop, size_t end)
{
    size_t first = end - 1;
    while (first > stop && !step_is_norm(&model->steps[first - 1]))
        first--;
    return first;
}

/* Steps [first, end) are done: their gradients are in the arena, and all behind them were before. */
static int finish_steps(struct crw_model *model, size_t first, size_t end)
{
    const float *begin = NULL;

    for (size_t i = end; i-- > first;) {
        step_finish_backward(model, &model->steps[i]);
        if (model->steps[i].weight_gradient)
            begin = model->steps[i].weight_gradient;
    }
    if (!begin || !model->gradient_hook)
        return 0;
    return model->gradient_hook(model->gradient_hook_data, (size_t)(begin - model->gradients));
}

/* From the last step to step `stop`, with the gradient of the output in d_output. */
static int walk_back(struct crw_model *model, size_t stop)
{
    for (size_t i = stop; i < model->n_steps; i++)
        step_prepare_backward(model, &model->steps[i]);
    for (size_t end = model->n_steps, first; end > stop; end = first) {
        if (model->steps[end - 1].in.flat) {
            first = end - 1;
            step_backward(model, &model->steps[first], 0, model->n);
        } else {
            first = start_of_samplewise(model, stop, end);
            backward_samplewise(model, first, end);
        }
        TRY(finish_steps(model, first, end));
    }
    return 0;
}

static int check_training(const struct crw_model *model)
{
    NEED(model, CRW_E_ARGUMENT);
    if (model->n == 0 || !model->training)
        return crw_fail(CRW_E_ARGUMENT, "backward needs a forward with `training` set before it");
    return 0;
}

int crw_model_backward(struct crw_model *model)
{
    TRY(check_training(model));
    if (!model->can_go_back)
        return crw_fail(CRW_E_ARGUMENT, "backward needs a loss of the last forward's output");
    return walk_back(model, model->first_trained);
}

/* Steps up to the first trained one compute the gradients of their inputs, or do not. */
static void want_input_gradient(struct crw_model *model, bool wanted)
{
    for (size_t i = 0; i <= model->first_trained && i < model->n_steps; i++)
        model->steps[i].dx = wanted ? model->steps[i].spare_dx : NULL;
}

/* From our layout to PyTorch's [n][channels][height][width]. */
static void give_input_gradient(const struct crw_model *model, float *d_input)
{
    const struct model_step *step = &model->steps[0];
    size_t n_pixels = (size_t)step->in.height * (size_t)step->in.width;

    if (step->in.flat) {
        memcpy(d_input, step->dx, (size_t)model->n * step->dx_size * sizeof(*d_input));
        return;
    }
    size_t stored = step->dx_size / n_pixels;
    for (int s = 0; s < model->n; s++) {
        const float *dx = step->dx + (size_t)s * step->dx_size;
        for (int c = 0; c < step->in.channels; c++)
            for (size_t p = 0; p < n_pixels; p++)
                *d_input++ = dx[p * stored + (size_t)c];
    }
}

int crw_model_backward_from(struct crw_model *model, const float *d_output, float *d_input)
{
    TRY(check_training(model));
    NEED(d_output, CRW_E_ARGUMENT);
    if (d_input)
        TRY(model_plan_input_gradient(model));
    memcpy(model->d_output, d_output,
           (size_t)model->n * model->steps[model->n_steps - 1].out.size * sizeof(*d_output));
    if (!d_input)
        return walk_back(model, model->first_trained);
    want_input_gradient(model, true);
    int r = walk_back(model, 0);
    if (r == 0)
        give_input_gradient(model, d_input);
    want_input_gradient(model, false);
    return r;
}

void crw_model_set_gradient_hook(struct crw_model *model, int (*hook)(void *data, size_t begin), void *data)
{
    NEED(model);
    model->gradient_hook = hook;
    model->gradient_hook_data = data;
}
