/*
 * From the caller's layers to steps: checks that each layer fits what comes out of the one before, decides
 * which layers are run in one pass, and allocates what lies between the steps.
 */

#include "worker-runtime/model/model.h"

#include <errno.h>
#include <string.h>

#include "worker-runtime/base/error.h"

static const char *const kind_names[CRW_LAYER_KIND_COUNT] = {
    [CRW_LAYER_LINEAR] = "linear",           [CRW_LAYER_CONV2D] = "conv2d",
    [CRW_LAYER_BATCHNORM2D] = "batchnorm2d", [CRW_LAYER_RELU] = "relu",
    [CRW_LAYER_MAXPOOL2D] = "maxpool2d",     [CRW_LAYER_FLATTEN] = "flatten",
    [CRW_LAYER_LOG_SOFTMAX] = "log_softmax",
};

/* Largest tensor, floats: keeps every index of a kernel inside an int. */
enum { TENSOR_MAX = 1 << 29 };

static int fail_layer(size_t i, const struct crw_layer *layer, struct activation in, const char *why)
{
    return crw_fail(CRW_E_ARGUMENT, "layer %zu (%s%s%s) cannot take %d x %d x %d: %s", i,
                    kind_names[layer->kind], layer->name ? " " : "", layer->name ? layer->name : "",
                    in.channels, in.height, in.width, why);
}

static bool has_parameters(enum crw_layer_kind kind)
{
    return kind == CRW_LAYER_LINEAR || kind == CRW_LAYER_CONV2D || kind == CRW_LAYER_BATCHNORM2D;
}

static bool wants_image(enum crw_layer_kind kind)
{
    return kind == CRW_LAYER_CONV2D || kind == CRW_LAYER_BATCHNORM2D || kind == CRW_LAYER_MAXPOOL2D;
}

static void activation_measure(struct activation *a)
{
    a->stored = a->flat ? 1 : cpu_stored_channels(a->channels);
    a->size = (size_t)(a->flat ? a->channels : a->stored) * (size_t)a->height * (size_t)a->width;
}

/* Only the convolution reads pixels of any number of channels: for it the input stays as slim as it is. */
static struct activation input_activation(const struct crw_layer *layers, size_t n_layers,
                                          struct crw_shape input)
{
    struct activation a = {.channels = input.channels, .height = input.height, .width = input.width};
    a.flat = input.height == 1 && input.width == 1 && !(n_layers && wants_image(layers[0].kind));
    activation_measure(&a);
    if (n_layers && layers[0].kind == CRW_LAYER_CONV2D) {
        a.stored = a.channels;
        a.size = (size_t)a.channels * (size_t)a.height * (size_t)a.width;
    }
    return a;
}

/* Fields that a kind does not have. The kernel of a pooling is the only one that there is; as many channels leave a batch norm as
 * come in. */
static bool has_foreign_field(const struct crw_layer *layer)
{
    bool has_out = layer->kind == CRW_LAYER_LINEAR || layer->kind == CRW_LAYER_CONV2D ||
                   (layer->kind == CRW_LAYER_BATCHNORM2D && layer->out == layer->in);
    bool has_window = layer->kind == CRW_LAYER_MAXPOOL2D && layer->kernel == 2;

    return (!has_parameters(layer->kind) && layer->in != 0) || (!has_out && layer->out != 0) ||
           (layer->kind != CRW_LAYER_CONV2D && !has_window && layer->kernel != 0);
}

/* NULL, or why layer cannot take in; else *ret_out is what leaves it. */
static const char *layer_output(const struct crw_layer *layer, struct activation in,
                                struct activation *ret_out)
{
    struct activation out = in;
    if (has_foreign_field(layer))
        return "in, out or kernel is set, and layers of this kind have another one or none";
    if (wants_image(layer->kind) && in.flat)
        return "it works on images";
    switch (layer->kind) {
    case CRW_LAYER_LINEAR:
        if (!in.flat)
            return "it works on vectors; put a flatten before it";
        if (layer->in != in.channels || layer->out < 1)
            return "its number of inputs or outputs is wrong";
        out.channels = layer->out;
        break;
    case CRW_LAYER_CONV2D:
        if (layer->in != in.channels || layer->out < 1)
            return "its number of channels is wrong";
        if (layer->kernel < 1 || layer->kernel > in.height || layer->kernel > in.width)
            return "its kernel does not fit into the image";
        out.channels = layer->out;
        out.height = in.height - layer->kernel + 1;
        out.width = in.width - layer->kernel + 1;
        break;
    case CRW_LAYER_BATCHNORM2D:
        if (layer->in != in.channels)
            return "its number of channels is wrong";
        break;
    case CRW_LAYER_MAXPOOL2D:
        if (in.height < 2 || in.width < 2)
            return "the image is smaller than the 2 x 2 window";
        out.height = in.height / 2;
        out.width = in.width / 2;
        break;
    case CRW_LAYER_FLATTEN:
        out = (struct activation){
            .channels = in.channels * in.height * in.width, .height = 1, .width = 1, .flat = true};
        break;
    case CRW_LAYER_LOG_SOFTMAX:
        if (!in.flat)
            return "it works on vectors; put a flatten before it";
        break;
    case CRW_LAYER_RELU:
    case CRW_LAYER_KIND_COUNT:
        break;
    }
    activation_measure(&out);
    *ret_out = out;
    return NULL;
}

static bool too_large(double a, double b, double c)
{
    return a * b * c > TENSOR_MAX;
}

/* As stored: channels may be padded. */
static bool weights_too_large(const struct crw_layer *layer)
{
    double padding = CPU_LANES_MAX, kernel = layer->kind == CRW_LAYER_CONV2D ? layer->kernel : 1;
    return too_large(layer->in + padding, layer->out + padding, kernel * kernel);
}

/* Names of parameters are those of their layers, so two of one name could not be told apart in a file. */
static bool is_name_taken(const struct crw_layer *layers, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (has_parameters(layers[k].kind) && strcmp(layers[k].name, layers[i].name) == 0)
            return true;
    return false;
}

int model_check(const struct crw_layer *layers, size_t n_layers, struct crw_shape input, int max_batch)
{
    if (n_layers == 0)
        return crw_fail(CRW_E_ARGUMENT, "a model needs at least one layer");
    if (max_batch < 1 || input.channels < 1 || input.height < 1 || input.width < 1 ||
        too_large(max_batch * ((double)input.channels + CPU_LANES_MAX), input.height, input.width))
        return crw_fail(CRW_E_ARGUMENT, "a model cannot take batches of %d inputs of %d x %d x %d", max_batch,
                        input.channels, input.height, input.width);
    struct activation a = input_activation(layers, n_layers, input);
    for (size_t i = 0; i < n_layers; i++) {
        const struct crw_layer *layer = &layers[i];
        if (layer->kind < 0 || layer->kind >= CRW_LAYER_KIND_COUNT)
            return crw_fail(CRW_E_ARGUMENT, "layer %zu is of kind %d, which does not exist", i,
                            (int)layer->kind);
        if (has_parameters(layer->kind) && !layer->name)
            return fail_layer(i, layer, a, "it has parameters and needs a name for them");
        if (weights_too_large(layer))
            return fail_layer(i, layer, a, "its weights are too large");
        if (has_parameters(layer->kind) && is_name_taken(layers, i))
            return fail_layer(i, layer, a, "an earlier layer has this name");
        struct activation out = a;
        const char *why = layer_output(layer, a, &out);
        if (!why && too_large(max_batch * ((double)out.channels + CPU_LANES_MAX), out.height, out.width))
            why = "what comes out is too large";
        if (why)
            return fail_layer(i, layer, a, why);
        a = out;
    }
    if (!a.flat)
        return crw_fail(CRW_E_ARGUMENT, "the last layer leaves an image of %d x %d x %d; end with a flatten",
                        a.channels, a.height, a.width);
    return 0;
}

static enum crw_layer_kind kind_at(const struct crw_model *model, size_t i)
{
    return i < model->n_layers ? model->layers[i].kind : CRW_LAYER_KIND_COUNT;
}

/* How the layers from i on are run: the kind of one step and how many layers it takes. */
static enum step_kind step_at(const struct crw_model *model, size_t i, size_t *ret_n_layers)
{
    static const enum step_kind one_layer[CRW_LAYER_KIND_COUNT] = {
        [CRW_LAYER_LINEAR] = STEP_LINEAR,           [CRW_LAYER_CONV2D] = STEP_CONV,
        [CRW_LAYER_BATCHNORM2D] = STEP_NORM,        [CRW_LAYER_RELU] = STEP_RELU,
        [CRW_LAYER_MAXPOOL2D] = STEP_POOL,          [CRW_LAYER_FLATTEN] = STEP_FLATTEN,
        [CRW_LAYER_LOG_SOFTMAX] = STEP_LOG_SOFTMAX,
    };
    *ret_n_layers = 1;
    if (kind_at(model, i) == CRW_LAYER_BATCHNORM2D && kind_at(model, i + 1) == CRW_LAYER_RELU) {
        bool pool = kind_at(model, i + 2) == CRW_LAYER_MAXPOOL2D;
        *ret_n_layers = pool ? 3 : 2;
        return pool ? STEP_NORM_RELU_POOL : STEP_NORM;
    }
    return one_layer[kind_at(model, i)];
}

/* Everything that is allocated answers NULL when memory ran out; one look at the end is enough. */
struct allocator {
    struct crw_model *model;
    bool failed;
};

static void *plan_alloc(struct allocator *a, size_t count, size_t size)
{
    void *memory = model_alloc(a->model, count, size);
    if (!memory)
        a->failed = true;
    return memory;
}

static float *take_floats(struct allocator *a, size_t count)
{
    return plan_alloc(a, count, sizeof(float));
}

static void plan_conv(struct allocator *a, struct model_step *step, int kernel)
{
    struct conv_step *conv = &step->conv;
    conv->shape = (struct conv_shape){
        .in_channels = step->in.channels,
        .out_channels = step->out.channels,
        .in_stored = step->in.stored,
        .out_stored = step->out.stored,
        .kernel = kernel,
        .in_height = step->in.height,
        .in_width = step->in.width,
        .out_height = step->out.height,
        .out_width = step->out.width,
    };
    conv->backward_shape = conv->shape;
    conv->backward_shape.in_stored = cpu_stored_channels(step->in.channels);
    size_t stored = (size_t)step->out.stored;
    conv->packed = take_floats(a, conv_packed_size(&conv->shape));
    conv->packed_backward = take_floats(a, conv_packed_size(&conv->backward_shape));
    conv->bias = take_floats(a, stored);
    conv->dw = take_floats(a, (size_t)(kernel * kernel * step->in.stored) * stored);
    conv->db = take_floats(a, stored);
    conv->frame = take_floats(a, conv_frame_size(&conv->shape));
}

/* buffers: running_mean, running_var, num_batches_tracked of the layer. */
static void plan_norm(struct allocator *a, struct model_step *step, bool relu,
                      const struct crw_tensor *buffers)
{
    size_t stored = (size_t)step->in.stored;
    step->norm = (struct norm_step){
        .relu = relu,
        .moments = plan_alloc(a, stored, sizeof(struct moments)),
        .mean = take_floats(a, stored),
        .inverse_deviation = take_floats(a, stored),
        .scale = take_floats(a, stored),
        .shift = take_floats(a, stored),
        .sum_dy = plan_alloc(a, stored, sizeof(double)),
        .sum_dy_x = plan_alloc(a, stored, sizeof(double)),
        .a = take_floats(a, stored),
        .b = take_floats(a, stored),
        .c = take_floats(a, stored),
        .running_mean = buffers[0].data,
        .running_var = buffers[1].data,
        .n_batches_tracked = buffers[2].data,
    };
}

static void plan_pool(struct allocator *a, struct model_step *step)
{
    size_t count = (size_t)a->model->max_batch * step->out.size;
    step->pool = (struct pool_shape){
        .channels = step->in.stored,
        .in_height = step->in.height,
        .in_width = step->in.width,
        .out_height = step->out.height,
        .out_width = step->out.width,
    };
    step->which = plan_alloc(a, count, 1);
    if (step->kind == STEP_NORM_RELU_POOL)
        step->centred = take_floats(a, count);
}

/* tensor: the first of the layer's own, weight and bias. */
static void plan_parameters(struct crw_model *model, struct model_step *step, size_t tensor)
{
    step->weight = model->tensors[tensor].data;
    step->bias = model->tensors[tensor + 1].data;
    step->weight_gradient = model->gradients + (step->weight - model->parameters);
    step->bias_gradient = model->gradients + (step->bias - model->parameters);
}

int crw_model_set_gradients(struct crw_model *model, float *gradients)
{
    NEED(model, CRW_E_ARGUMENT);
    if (!gradients)
        gradients = model_own_gradients(model);
    if (!gradients)
        return crw_fail_errno(-ENOMEM, "cannot make %zu gradients", model->n_parameters);
    model->gradients = gradients;
    for (size_t i = 0; i < model->n_steps; i++) {
        struct model_step *step = &model->steps[i];

        if (!step->weight)
            continue;
        step->weight_gradient = gradients + (step->weight - model->parameters);
        step->bias_gradient = gradients + (step->bias - model->parameters);
    }
    return 0;
}

static bool is_norm(enum step_kind kind)
{
    return kind == STEP_NORM || kind == STEP_NORM_RELU_POOL;
}

/*
 * Gradients between the steps. Normalisation behind a convolution writes its gradient straight into the
 * convolution's frame, where it is used up before the next sample; everything else has a whole batch's.
 */
static void plan_gradients(struct allocator *a)
{
    struct crw_model *model = a->model;
    for (size_t i = 0; i < model->n_steps; i++) {
        struct model_step *step = &model->steps[i];
        struct model_step *next = i + 1 < model->n_steps ? &model->steps[i + 1] : NULL;
        if (step->kind == STEP_CONV && next && is_norm(next->kind)) {
            next->dx = step->conv.frame + conv_frame_offset(&step->conv.shape);
            next->dx_stride = conv_frame_stride(&step->conv.shape);
            next->dx_is_frame = true;
            continue;
        }
        if (next && i < model->first_trained)
            continue; /* no step before it has parameters, so none needs its gradient */
        step->dy = take_floats(a, (size_t)model->max_batch * step->out.size);
        if (next) {
            next->dx = step->dy;
            next->dx_stride = (size_t)step->out.width * (size_t)step->out.stored;
        }
    }
    model->d_output = model->steps[model->n_steps - 1].dy;
}

int model_plan(struct crw_model *model)
{
    struct allocator a = {.model = model};
    struct activation in = input_activation(model->layers, model->n_layers, model->input);
    size_t tensor = 0, buffer = 0;

    model->x_shape = in;
    model->x = take_floats(&a, (size_t)model->max_batch * in.size);
    model->steps = plan_alloc(&a, model->n_layers, sizeof(*model->steps));
    if (a.failed)
        goto no_memory;

    const float *x = model->x;
    for (size_t i = 0, n_layers; i < model->n_layers; i += n_layers) {
        struct model_step *step = &model->steps[model->n_steps];
        const struct crw_layer *layer = &model->layers[i];
        step->kind = step_at(model, i, &n_layers);
        step->in = in;
        step->dx_size = in.size;
        step->out = in;
        for (size_t k = 0; k < n_layers; k++)
            (void)layer_output(&layer[k], step->out, &step->out); /* fits: model_check() saw it */
        step->x = x;
        step->y = take_floats(&a, (size_t)model->max_batch * step->out.size);
        if (has_parameters(layer->kind)) {
            plan_parameters(model, step, tensor);
            tensor += 2;
            if (tensor == 2)
                model->first_trained = model->n_steps;
        }
        if (step->kind == STEP_CONV)
            plan_conv(&a, step, layer->kernel);
        if (is_norm(step->kind)) {
            plan_norm(&a, step, n_layers > 1, &model->buffers[buffer]);
            buffer += 3;
        }
        if (step->kind == STEP_POOL || step->kind == STEP_NORM_RELU_POOL)
            plan_pool(&a, step);
        in = step->out;
        x = step->y;
        model->n_steps++;
    }
    if (tensor == 0)
        model->first_trained = model->n_steps;
    plan_gradients(&a);
    model->log_probabilities = take_floats(&a, (size_t)model->max_batch * (size_t)in.channels);
    if (!a.failed)
        return 0;
no_memory:
    return crw_fail_errno(-ENOMEM, "cannot make a model for batches of %d", model->max_batch);
}

/* The first convolution reads an input without padding, and the gradient that it writes is padded. */
static void plan_input(struct allocator *a)
{
    struct model_step *step = &a->model->steps[0];
    int stored = step->in.flat ? 1 : cpu_stored_channels(step->in.channels);

    step->dx_size = (size_t)(step->in.flat ? step->in.channels : stored) * (size_t)step->in.height *
                    (size_t)step->in.width;
    step->dx_stride = (size_t)step->in.width * (size_t)stored;
    step->spare_dx = take_floats(a, (size_t)a->model->max_batch * step->dx_size);
}

int model_plan_input_gradient(struct crw_model *model)
{
    struct allocator a = {.model = model};

    if (model->has_spares)
        return 0;
    plan_input(&a);
    for (size_t i = 0; i < model->first_trained && i + 1 < model->n_steps; i++) {
        struct model_step *step = &model->steps[i], *next = &model->steps[i + 1];

        step->dy = take_floats(&a, (size_t)model->max_batch * step->out.size);
        next->spare_dx = step->dy;
        next->dx_stride = (size_t)step->out.width * (size_t)step->out.stored;
    }
    if (a.failed)
        return crw_fail_errno(-ENOMEM, "cannot make room for the gradient of a model's input");
    model->has_spares = true;
    return 0;
}

int model_plan_rounding(struct crw_model *model)
{
    struct allocator a = {.model = model};
    for (size_t i = 0; i < model->n_steps; i++) {
        struct model_step *step = &model->steps[i];
        if (step->kind != STEP_LINEAR && step->kind != STEP_CONV)
            continue;
        step->rounded.x = take_floats(&a, (size_t)model->max_batch * step->in.size);
        if (step->kind == STEP_LINEAR) {
            step->rounded.weight = take_floats(&a, (size_t)step->in.channels * (size_t)step->out.channels);
            step->rounded.dy = take_floats(&a, (size_t)model->max_batch * step->out.size);
        }
    }
    if (a.failed)
        return crw_fail_errno(-ENOMEM, "cannot make a model compute in bf16");
    return 0;
}
