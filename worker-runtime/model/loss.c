/*
 * Losses: what the output of a model is worth, and the gradient of that, where backward begins.
 *
 * Sums over a batch are made in double; what PyTorch computes per element is computed per element in fp32,
 * in its order.
 */

#include "worker-runtime/model/model.h"

#include <math.h>
#include <string.h>

#include "worker-runtime/base/error.h"

static const struct model_step *last_step(const struct crw_model *model)
{
    return &model->steps[model->n_steps - 1];
}

/* Mean of what the targets' log-probabilities lack; sets their gradients in model->d_output. */
static float nll(struct crw_model *model, const float *log_probabilities, const uint8_t *targets)
{
    int features = last_step(model)->out.channels, n = model->n;
    double sum = 0;

    memset(model->d_output, 0, (size_t)n * (size_t)features * sizeof(float));
    for (int s = 0; s < n; s++) {
        if (targets[s] >= features) {
            (void)crw_fail(CRW_E_ARGUMENT, "target %d of sample %d is not one of %d classes", targets[s], s,
                           features);
            return NAN;
        }
        sum -= log_probabilities[s * features + targets[s]];
        model->d_output[s * features + targets[s]] = -1.0f / (float)n;
    }
    return (float)(sum / n);
}

float crw_model_nll_loss(struct crw_model *model, const uint8_t *targets)
{
    return nll(model, last_step(model)->y, targets);
}

float crw_model_cross_entropy_loss(struct crw_model *model, const uint8_t *targets)
{
    int features = last_step(model)->out.channels;

    model->kernels->log_softmax_forward(model->n, features, last_step(model)->y, model->log_probabilities);
    float loss = nll(model, model->log_probabilities, targets);
    model->kernels->log_softmax_backward(model->n, features, model->log_probabilities, model->d_output,
                                         model->d_output);
    return loss;
}

float crw_model_mse_loss(struct crw_model *model, const float *targets)
{
    const float *y = last_step(model)->y;
    size_t count = (size_t)model->n * (size_t)last_step(model)->out.channels;
    const float factor = (float)(2.0 / (double)count);
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        float difference = y[i] - targets[i];
        float square = difference * difference;
        sum += square;
        model->d_output[i] = factor * difference;
    }
    return (float)(sum / (double)count);
}

/* As torch.argmax: the first of the largest; a NaN is larger than all, and the first one stays. */
static int first_largest(const float *row, int features)
{
    int best = 0;

    for (int c = 1; c < features; c++) {
        if (row[c] > row[best] || (isnan(row[c]) && !isnan(row[best])))
            best = c;
    }
    return best;
}

size_t crw_model_correct(const struct crw_model *model, const uint8_t *targets, uint8_t *flags)
{
    const float *y = last_step(model)->y;
    int features = last_step(model)->out.channels;
    size_t n_correct = 0;

    for (int s = 0; s < model->n; s++) {
        bool correct = first_largest(y + (ptrdiff_t)s * features, features) == targets[s];

        n_correct += correct;
        if (flags)
            flags[s] = correct;
    }
    return n_correct;
}
