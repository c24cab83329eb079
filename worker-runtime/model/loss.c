/*
 * Losses of the output of a model, and the gradient with which backward begins.
 *
 * Sums over a batch are made in double; what PyTorch computes per element is computed per element in fp32,
 * in its order.
 */

#include "worker-runtime/model/model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "worker-runtime/base/error.h"

static const struct model_step *last_step(const struct crw_model *model)
{
    return &model->steps[model->n_steps - 1];
}

static int check_forward(const struct crw_model *model, const void *targets, const float *ret_loss)
{
    NEED(model && targets && ret_loss, CRW_E_ARGUMENT);
    return model->n > 0 ? 0 : crw_fail(CRW_E_ARGUMENT, "a loss needs a forward before it");
}

/* By libm on every processor: a row costs a handful of exponentials beside thousands of products. */
void model_log_softmax_forward(int n, int features, const float *x, float *y)
{
    for (int s = 0; s < n; s++, x += features, y += features) {
        float largest = x[0];
        for (int i = 1; i < features; i++)
            largest = x[i] > largest ? x[i] : largest;
        float sum = 0;
        for (int i = 0; i < features; i++)
            sum += expf(x[i] - largest);
        float log_sum = logf(sum);
        for (int i = 0; i < features; i++)
            y[i] = x[i] - largest - log_sum;
    }
}

void model_log_softmax_backward(int n, int features, const float *y, const float *dy, float *dx)
{
    for (int s = 0; s < n; s++, y += features, dy += features, dx += features) {
        float sum = 0;
        for (int i = 0; i < features; i++)
            sum += dy[i];
        for (int i = 0; i < features; i++)
            dx[i] = dy[i] - expf(y[i]) * sum;
    }
}

/* How many samples count, or CRW_E_ARGUMENT as a negative number. */
static int count_targets(const struct crw_model *model, const int64_t *targets, int64_t ignore_index)
{
    int classes = last_step(model)->out.channels, count = 0;

    for (int s = 0; s < model->n; s++) {
        if (targets[s] == ignore_index)
            continue;
        if (targets[s] < 0 || targets[s] >= classes)
            return -crw_fail(CRW_E_ARGUMENT, "target %" PRId64 " of sample %d is not one of %d classes",
                             targets[s], s, classes);
        count++;
    }
    return count;
}

/*
 * The mean of the targets' negative log-probabilities over the samples that count, and its gradient with respect to
 * the log-probabilities in model->d_output. As in PyTorch the mean over no samples is NaN and its gradient zero.
 */
static int nll(struct crw_model *model, const float *log_probabilities, const int64_t *targets,
               int64_t ignore_index, float *ret_loss)
{
    int features = last_step(model)->out.channels, count = count_targets(model, targets, ignore_index);
    double sum = 0;

    if (count < 0)
        return -count;
    memset(model->d_output, 0, (size_t)model->n * (size_t)features * sizeof(float));
    for (int s = 0; s < model->n; s++) {
        if (targets[s] == ignore_index)
            continue;
        ptrdiff_t at = (ptrdiff_t)s * features + (ptrdiff_t)targets[s]; /* a class */
        sum -= log_probabilities[at];
        model->d_output[at] = -1.0f / (float)count;
    }
    *ret_loss = count > 0 ? (float)(sum / count) : NAN;
    return 0;
}

int crw_model_nll_loss(struct crw_model *model, const int64_t *targets, int64_t ignore_index, float *ret_loss)
{
    TRY(check_forward(model, targets, ret_loss));
    int r = nll(model, last_step(model)->y, targets, ignore_index, ret_loss);
    model->can_go_back = r == 0;
    return r;
}

int crw_model_cross_entropy_loss(struct crw_model *model, const int64_t *targets, int64_t ignore_index,
                                 float *ret_loss)
{
    TRY(check_forward(model, targets, ret_loss));
    model->can_go_back = false;
    int features = last_step(model)->out.channels;
    model_log_softmax_forward(model->n, features, last_step(model)->y, model->log_probabilities);
    TRY(nll(model, model->log_probabilities, targets, ignore_index, ret_loss));
    model_log_softmax_backward(model->n, features, model->log_probabilities, model->d_output,
                               model->d_output);
    model->can_go_back = true;
    return 0;
}

int crw_model_mse_loss(struct crw_model *model, const float *targets, float *ret_loss)
{
    TRY(check_forward(model, targets, ret_loss));
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
    *ret_loss = (float)(sum / (double)count);
    model->can_go_back = true;
    return 0;
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

size_t crw_model_correct(const struct crw_model *model, const int64_t *targets, uint8_t *flags)
{
    NEED(model && targets, 0);
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
