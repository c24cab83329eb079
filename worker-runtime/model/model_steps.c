/*
 * One step of a model: what the kernels are called with, forward and backward, and the arithmetic of batch
 * normalisation over whole channels, which is too little to be a kernel.
 */

#include "worker-runtime/model/model.h"

#include <math.h>
#include <string.h>

static const double norm_eps = 1e-5, norm_momentum = 0.1; /* PyTorch's defaults */

static const float *step_x(const struct model_step *step, int sample)
{
    return step->x + (size_t)sample * step->in.size;
}

static float *step_y(const struct model_step *step, int sample)
{
    return step->y + (size_t)sample * step->out.size;
}

static const float *step_dy(const struct model_step *step, int sample)
{
    return step->dy + (size_t)sample * step->out.size;
}

static float *step_dx(const struct model_step *step, int sample)
{
    return step->dx_is_frame ? step->dx : step->dx + (size_t)sample * step->dx_size;
}

static size_t count_pixels(const struct activation *a)
{
    return (size_t)a->height * (size_t)a->width;
}

bool step_is_norm(const struct model_step *step)
{
    return step->kind == STEP_NORM || step->kind == STEP_NORM_RELU_POOL;
}

/* The step's input as it is, or rounded. */
static const float *rounded_x(const struct crw_model *model, const struct model_step *step, int first,
                              int count)
{
    if (!model->bf16)
        return step_x(step, first);
    float *x = step->rounded.x + (size_t)first * step->in.size;
    model->kernels->round_bf16((size_t)count * step->in.size, step_x(step, first), x);
    return x;
}

/* What rounded_x() answered in this batch's forward. */
static const float *seen_x(const struct crw_model *model, const struct model_step *step, int sample)
{
    return model->bf16 ? step->rounded.x + (size_t)sample * step->in.size : step_x(step, sample);
}

static void round_in_place(const struct crw_model *model, float *x, size_t count)
{
    if (model->bf16)
        model->kernels->round_bf16(count, x, x);
}

/* ---- convolution ---- */

static void forward_conv(const struct crw_model *model, struct model_step *step, int first, int count)
{
    for (int s = first; s < first + count; s++)
        model->kernels->conv_forward(&step->conv.shape, rounded_x(model, step, s, 1), step->conv.packed,
                                     step->conv.bias, step_y(step, s));
}

/* Where the step after could not write into the frame itself. */
static void copy_into_frame(const struct model_step *step, const float *dy)
{
    const struct conv_shape *shape = &step->conv.shape;
    size_t row = (size_t)shape->out_width * (size_t)shape->out_stored;
    float *first = step->conv.frame + conv_frame_offset(shape);
    for (int r = 0; r < shape->out_height; r++)
        memcpy(first + (size_t)r * conv_frame_stride(shape), dy + (size_t)r * row, row * sizeof(*dy));
}

static void backward_conv(const struct crw_model *model, struct model_step *step, int first, int count)
{
    const struct conv_step *conv = &step->conv;
    for (int s = first; s < first + count; s++) {
        if (step->dy)
            copy_into_frame(step, step_dy(step, s));
        round_in_place(model, conv->frame, conv_frame_size(&conv->shape));
        model->kernels->conv_backward_weights(&conv->shape, seen_x(model, step, s), conv->frame, conv->dw,
                                              conv->db);
        if (step->dx)
            model->kernels->conv_backward_input(&conv->backward_shape, conv->frame, conv->packed_backward,
                                                step_dx(step, s));
    }
}

static void conv_prepare(const struct crw_model *model, struct model_step *step)
{
    struct conv_step *conv = &step->conv;
    model->kernels->conv_pack_forward(&conv->shape, step->weight, conv->packed);
    round_in_place(model, conv->packed, conv_packed_size(&conv->shape));
    memcpy(conv->bias, step->bias, (size_t)step->out.channels * sizeof(float));
}

static void conv_prepare_backward(const struct crw_model *model, struct model_step *step)
{
    struct conv_step *conv = &step->conv;
    if (step->dx) {
        model->kernels->conv_pack_backward(&conv->backward_shape, step->weight, conv->packed_backward);
        round_in_place(model, conv->packed_backward, conv_packed_size(&conv->backward_shape));
    }
    size_t n_stored = (size_t)(conv->shape.kernel * conv->shape.kernel * conv->shape.in_stored) *
                      (size_t)conv->shape.out_stored;
    memset(conv->dw, 0, n_stored * sizeof(float));
    memset(conv->db, 0, (size_t)conv->shape.out_stored * sizeof(float));
}

/* [row][column][in][out] to PyTorch's [out][in][row][column]. */
static void conv_finish_backward(struct model_step *step)
{
    const struct conv_shape *s = &step->conv.shape;
    int area = s->kernel * s->kernel;
    for (int place = 0; place < area; place++)
        for (int i = 0; i < s->in_channels; i++) {
            const float *from = step->conv.dw + (place * s->in_stored + i) * s->out_stored;
            for (int o = 0; o < s->out_channels; o++)
                step->weight_gradient[(o * s->in_channels + i) * area + place] = from[o];
        }
    memcpy(step->bias_gradient, step->conv.db, (size_t)s->out_channels * sizeof(float));
}

/* ---- batch normalisation ---- */

static void norm_prepare_backward(struct model_step *step)
{
    size_t stored = (size_t)step->in.stored;
    memset(step->norm.sum_dy, 0, stored * sizeof(double));
    memset(step->norm.sum_dy_x, 0, stored * sizeof(double));
}

void step_observe(const struct crw_model *model, struct model_step *step, int sample)
{
    size_t n = count_pixels(&step->in);
    model->kernels->moments_add(n, step->in.stored, step_x(step, sample), n * (size_t)sample,
                                step->norm.moments);
}

/* Moving averages use the unbiased variance, the batch itself the biased one. */
static void track(struct norm_step *norm, int c, double mean, double unbiased)
{
    norm->running_mean[c] = (float)((1 - norm_momentum) * norm->running_mean[c] + norm_momentum * mean);
    norm->running_var[c] = (float)((1 - norm_momentum) * norm->running_var[c] + norm_momentum * unbiased);
}

/* Rounded where PyTorch rounds, so that the normalised values are the same bits. */
void step_observed(const struct crw_model *model, struct model_step *step)
{
    struct norm_step *norm = &step->norm;
    double m = (double)count_pixels(&step->in) * model->n;
    for (int c = 0; c < step->in.channels; c++) {
        norm->mean[c] = norm->running_mean[c];
        norm->inverse_deviation[c] = 1 / sqrtf(norm->running_var[c] + (float)norm_eps);
        if (model->training) {
            norm->mean[c] = (float)norm->moments[c].mean;
            norm->inverse_deviation[c] =
                (float)(1 / sqrt((double)((float)norm->moments[c].m2 / (float)m) + norm_eps));
            track(norm, c, norm->moments[c].mean, norm->moments[c].m2 / (m - 1));
        }
        norm->scale[c] = step->weight[c] * norm->inverse_deviation[c];
        norm->shift[c] = fmaf(-norm->mean[c], norm->scale[c], step->bias[c]);
    }
    if (model->training)
        ++*norm->n_batches_tracked;
}

static void forward_norm(const struct crw_model *model, struct model_step *step, int first, int count)
{
    const struct norm_step *norm = &step->norm;
    for (int s = first; s < first + count; s++)
        model->kernels->norm_forward(count_pixels(&step->in), step->in.stored, step_x(step, s), norm->scale,
                                     norm->shift, norm->relu, step_y(step, s));
}

static void forward_norm_relu_pool(const struct crw_model *model, struct model_step *step, int first,
                                   int count)
{
    const struct norm_step *norm = &step->norm;
    for (int s = first; s < first + count; s++) {
        size_t at = (size_t)s * step->out.size;
        model->kernels->norm_relu_pool_forward(&step->pool, step_x(step, s), norm->mean, norm->scale,
                                               norm->shift, step->y + at, step->which + at,
                                               step->centred + at);
    }
}

void step_observe_backward(const struct crw_model *model, struct model_step *step, int sample)
{
    struct norm_step *norm = &step->norm;
    if (step->kind == STEP_NORM_RELU_POOL) {
        size_t at = (size_t)sample * step->out.size;
        model->kernels->norm_relu_pool_backward_sums(&step->pool, step->dy + at, step->which + at,
                                                     step->centred + at, norm->sum_dy, norm->sum_dy_x);
        return;
    }
    model->kernels->norm_backward_sums(count_pixels(&step->in), step->in.stored, step_dy(step, sample),
                                       step_x(step, sample), step_y(step, sample), norm->mean, norm->relu,
                                       norm->sum_dy, norm->sum_dy_x);
}

/*
 * With d = 1 / deviation: dgamma = d * sum(dy * (x - mean)), dbeta = sum(dy), and
 * dx = gamma * d / m * (m * dy - dbeta - (x - mean) * d * dgamma), here as a * dy + b * (x - mean) + c.
 */
void step_observed_backward(const struct crw_model *model, struct model_step *step)
{
    struct norm_step *norm = &step->norm;
    double m = (double)count_pixels(&step->in) * model->n;
    for (int c = 0; c < step->in.channels; c++) {
        double d = norm->inverse_deviation[c], scale = norm->scale[c];
        step->weight_gradient[c] = (float)(d * norm->sum_dy_x[c]);
        step->bias_gradient[c] = (float)norm->sum_dy[c];
        norm->a[c] = norm->scale[c];
        norm->b[c] = (float)(-scale * d * d * norm->sum_dy_x[c] / m);
        norm->c[c] = (float)(-scale * norm->sum_dy[c] / m);
    }
}

static void backward_norm(const struct crw_model *model, struct model_step *step, int first, int count)
{
    const struct norm_step *norm = &step->norm;
    for (int s = first; step->dx && s < first + count; s++)
        model->kernels->norm_backward_input(step->in.height, step->in.width, step->in.stored,
                                            step_dy(step, s), step_x(step, s), step_y(step, s), norm->mean,
                                            norm->a, norm->b, norm->c, norm->relu, step_dx(step, s),
                                            step->dx_stride);
}

static void backward_norm_relu_pool(const struct crw_model *model, struct model_step *step, int first,
                                    int count)
{
    const struct norm_step *norm = &step->norm;
    for (int s = first; step->dx && s < first + count; s++)
        model->kernels->norm_relu_pool_backward_input(
            &step->pool, step_dy(step, s), step->which + (size_t)s * step->out.size, step_x(step, s),
            norm->mean, norm->a, norm->b, norm->c, step_dx(step, s), step->dx_stride);
}

/* ---- relu, pooling, flatten ---- */

static void forward_relu(const struct crw_model *model, struct model_step *step, int first, int count)
{
    model->kernels->relu_forward((size_t)count * step->out.size, step_x(step, first), step_y(step, first));
}

static void backward_relu(const struct crw_model *model, struct model_step *step, int first, int count)
{
    if (step->dx)
        model->kernels->relu_backward((size_t)count * step->out.size, step_y(step, first),
                                      step_dy(step, first), step_dx(step, first));
}

static void forward_pool(const struct crw_model *model, struct model_step *step, int first, int count)
{
    for (int s = first; s < first + count; s++)
        model->kernels->pool_forward(&step->pool, step_x(step, s), step_y(step, s),
                                     step->which + (size_t)s * step->out.size);
}

static void backward_pool(const struct crw_model *model, struct model_step *step, int first, int count)
{
    for (int s = first; step->dx && s < first + count; s++)
        model->kernels->pool_backward(&step->pool, step_dy(step, s), step->which + (size_t)s * step->out.size,
                                      step_dx(step, s));
}

/* Pixel by pixel to channel by channel, PyTorch's order of features. */
static void forward_flatten(const struct crw_model *model, struct model_step *step, int first, int count)
{
    if (step->in.flat) {
        memcpy(step_y(step, first), step_x(step, first), (size_t)count * step->in.size * sizeof(float));
        return;
    }
    size_t n_pixels = count_pixels(&step->in), stored = (size_t)step->in.stored;
    for (int s = first; s < first + count; s++) {
        const float *x = step_x(step, s);
        float *y = step_y(step, s);
        for (int c = 0; c < step->in.channels; c++)
            for (size_t p = 0; p < n_pixels; p++)
                *y++ = x[p * stored + (size_t)c];
    }
}

static void backward_flatten(const struct crw_model *model, struct model_step *step, int first, int count)
{
    if (!step->dx)
        return;
    if (step->in.flat) {
        memcpy(step_dx(step, first), step_dy(step, first), (size_t)count * step->in.size * sizeof(float));
        return;
    }
    size_t n_pixels = count_pixels(&step->in), stored = (size_t)step->in.stored;
    for (int s = first; s < first + count; s++) {
        const float *dy = step_dy(step, s);
        float *dx = step_dx(step, s);
        for (int c = 0; c < step->in.channels; c++)
            for (size_t p = 0; p < n_pixels; p++)
                dx[p * stored + (size_t)c] = *dy++;
    }
}

/* ---- linear, log_softmax ---- */

static size_t n_weights(const struct model_step *step)
{
    return (size_t)step->in.channels * (size_t)step->out.channels;
}

static void linear_prepare(const struct crw_model *model, struct model_step *step)
{
    if (model->bf16)
        model->kernels->round_bf16(n_weights(step), step->weight, step->rounded.weight);
}

static const float *rounded_weight(const struct crw_model *model, const struct model_step *step)
{
    return model->bf16 ? step->rounded.weight : step->weight;
}

static void forward_linear(const struct crw_model *model, struct model_step *step, int first, int count)
{
    model->kernels->linear_forward(count, step->in.channels, step->out.channels,
                                   rounded_x(model, step, first, count), rounded_weight(model, step),
                                   step->bias, step_y(step, first));
}

static void backward_linear(const struct crw_model *model, struct model_step *step, int first, int count)
{
    int in = step->in.channels, out = step->out.channels;
    const float *dy = step_dy(step, first);
    if (model->bf16) {
        model->kernels->round_bf16((size_t)count * step->out.size, dy, step->rounded.dy);
        dy = step->rounded.dy;
    }
    model->kernels->linear_backward_weights(count, in, out, seen_x(model, step, first), dy,
                                            step->weight_gradient, step->bias_gradient);
    if (step->dx)
        model->kernels->linear_backward_input(count, in, out, dy, rounded_weight(model, step),
                                              step_dx(step, first));
}

static void forward_log_softmax(const struct crw_model *model, struct model_step *step, int first, int count)
{
    model_log_softmax_forward(count, step->out.channels, step_x(step, first), step_y(step, first));
}

static void backward_log_softmax(const struct crw_model *model, struct model_step *step, int first, int count)
{
    if (step->dx)
        model_log_softmax_backward(count, step->out.channels, step_y(step, first), step_dy(step, first),
                                   step_dx(step, first));
}

/* ---- by kind ---- */

static const struct {
    void (*forward)(const struct crw_model *, struct model_step *, int first, int count);
    void (*backward)(const struct crw_model *, struct model_step *, int first, int count);
} steps[STEP_KIND_COUNT] = {
    [STEP_CONV] = {forward_conv, backward_conv},
    [STEP_NORM] = {forward_norm, backward_norm},
    [STEP_NORM_RELU_POOL] = {forward_norm_relu_pool, backward_norm_relu_pool},
    [STEP_RELU] = {forward_relu, backward_relu},
    [STEP_POOL] = {forward_pool, backward_pool},
    [STEP_FLATTEN] = {forward_flatten, backward_flatten},
    [STEP_LINEAR] = {forward_linear, backward_linear},
    [STEP_LOG_SOFTMAX] = {forward_log_softmax, backward_log_softmax},
};

void step_prepare(const struct crw_model *model, struct model_step *step)
{
    if (step->kind == STEP_CONV)
        conv_prepare(model, step);
    if (step->kind == STEP_LINEAR)
        linear_prepare(model, step);
    if (step_is_norm(step))
        memset(step->norm.moments, 0, (size_t)step->in.stored * sizeof(struct moments));
}

void step_prepare_backward(const struct crw_model *model, struct model_step *step)
{
    if (step->kind == STEP_CONV)
        conv_prepare_backward(model, step);
    if (step_is_norm(step))
        norm_prepare_backward(step);
}

void step_forward(const struct crw_model *model, struct model_step *step, int first, int count)
{
    steps[step->kind].forward(model, step, first, count);
}

void step_backward(const struct crw_model *model, struct model_step *step, int first, int count)
{
    steps[step->kind].backward(model, step, first, count);
}

void step_finish_backward(const struct crw_model *model, struct model_step *step)
{
    if (step->kind == STEP_CONV)
        conv_finish_backward(step);
}
