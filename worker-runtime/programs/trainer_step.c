/*
 * One step of the training: batches, gradients, their reduction, the optimizer. Nothing changes before all ranks'
 * gradients are there and are numbers.
 */

#include "worker-runtime/programs/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_fault_due(const struct trainer *t, bool early)
{
    return fault_is_due(&t->options->fault, early, t->env->restart_count, crw_rank(t->group),
                        t->state.position.step + 1);
}

static void happen_fault(struct trainer *t, struct step *s)
{
    if (!is_fault_due(t, false))
        return;
    fault_happen(&t->options->fault);
    s->loss = NAN;
    t->reduced[0] = NAN;
}

/* The numbers behind the gradients, which are averaged with them. */
static void set_extra(struct trainer *t, const struct step *s)
{
    float *extra = t->reduced + t->n_parameters;

    extra[EXTRA_LOSS] = s->loss;
    extra[EXTRA_STOP] = trainer_is_asked_to_stop(t) ? 1.0f : 0.0f;
}

int trainer_gradients_ready(void *data, size_t begin)
{
    struct trainer *t = data;

    crw_reducer_ready(t->reducer, begin);
    return 0;
}

/* Forward, loss, backward of one batch. Its gradients end up in, or are added to, t->reduced. */
static int train_batch(struct trainer *t, const struct crw_batch *batch, struct step *s)
{
    const struct program *p = t->program;
    double accuracy;

    float loss = NAN; /* where there is none, all ranks refuse the step together */
    bool has_loss = crw_model_forward(t->model, batch->input, (int)batch->n, true, NULL) == 0 &&
                    p->loss(t->model, batch->targets, &loss) == 0;

    if (!has_loss)
        snprintf(t->error, sizeof(t->error), "a batch of step %" PRIu64 " has no loss: %s",
                 t->state.position.step + 1, crw_error_message());
    s->refused |= !has_loss;
    s->loss += loss;
    if (t->batch_gradients == t->reduced) {
        happen_fault(t, s);
        set_extra(t, s); /* backward starts to send it */
    }
    if (has_loss)
        (void)crw_model_backward(t->model); /* cannot fail behind both */
    if (t->batch_gradients != t->reduced) {
        if (s->n_batches == 0)
            memcpy(t->reduced, t->batch_gradients, t->n_parameters * sizeof(float));
        else
            crw_gradients_add(t->reduced, t->batch_gradients, t->n_parameters);
    }
    s->n_samples += batch->n;
    s->consumed = batch->consumed;
    s->n_batches++;
    if (!p->accuracy)
        return 0;
    if (p->accuracy(p->data, t->group, t->model, batch, &accuracy) != 0)
        return -1;
    s->accuracy += accuracy;
    return 0;
}

/* --accumulate batches, or as many as are left of the epoch. */
static enum step_result train_batches(struct trainer *t, struct step *s)
{
    while (s->n_batches < t->options->accumulate) {
        struct crw_batch batch;

        (void)crw_loader_next(t->loader, &batch); /* gather_training() does not fail */
        if (batch.n == 0)
            break;
        if (train_batch(t, &batch, s) != 0)
            return STEP_FAILED;
    }
    if (s->n_batches == 0)
        return STEP_NO_DATA;
    s->loss /= (float)s->n_batches;
    s->accuracy = t->program->accuracy ? s->accuracy / (double)s->n_batches : NAN;
    return STEP_DONE;
}

/* The mean over all ranks, of gradients, loss and wishes to stop. */
static int reduce_step(struct trainer *t, struct step *s)
{
    const float *extra = t->reduced + t->n_parameters;

    if (t->batch_gradients != t->reduced)
        set_extra(t, s);
    int r = crw_reducer_finish(t->reducer);
    t->timed_out = r == CRW_E_TIMEOUT;
    if (r)
        return -1;
    s->loss_all = extra[EXTRA_LOSS];
    s->stop = extra[EXTRA_STOP] > 0.0f;
    return 0;
}

/* All ranks see the same mean, so all of them leave; the one that knows the reason prints it. */
static int refuse_step(struct trainer *t, const struct step *s, double norm)
{
    uint64_t step = t->state.position.step + 1;

    /* Where no loss is at fault, it was a gradient, of an unknown rank. */
    t->follows = isfinite(s->loss) && !isfinite(s->loss_all);
    if (s->refused)
        return -1;
    if (!isfinite(s->loss))
        snprintf(t->error, sizeof(t->error),
                 "the loss of step %" PRIu64
                 " is %f, so the step is not taken: a lower "
                 "--lr or --clip-norm may help",
                 step, (double)s->loss);
    else
        snprintf(t->error, sizeof(t->error),
                 "a loss or gradient of step %" PRIu64
                 " is no finite number on some rank "
                 "(mean loss %f, gradient norm %f), so the step is not taken",
                 step, s->loss_all, norm);
    return -1;
}

/* The sum over a step's batches becomes their mean, and no longer than --clip-norm. */
static int scale_gradients(struct trainer *t, const struct step *s)
{
    double scale = 1.0 / (double)s->n_batches;
    double norm = crw_gradients_norm(t->reduced, t->n_parameters) * scale;

    if (!isfinite(norm) || !isfinite(s->loss_all))
        return refuse_step(t, s, norm);
    /* As torch.nn.utils.clip_grad_norm_. */
    if (t->options->clip_norm > 0 && t->options->clip_norm < norm + 1e-6)
        scale *= t->options->clip_norm / (norm + 1e-6);
    if (scale != 1)
        crw_gradients_scale(t->reduced, t->n_parameters, (float)scale);
    return 0;
}

static void commit(struct trainer *t, const struct step *s)
{
    struct train_position *p = &t->state.position;

    state_commit(&t->state);
    p->step++;
    p->batches += s->n_batches;
    p->loss_sum += (double)s->loss * (double)s->n_batches;
    p->loss_all_sum += s->loss_all * (double)s->n_batches;
    p->consumed = s->consumed;
    memory_checkpoint_commit(t);
}

/* ---- on a device ---- */

/* What the ranks exchange while they agree on a step. */
enum { MEAN_LOSS, MEAN_STOP, MEAN_CORRECT, MEAN_SAMPLES, N_MEANS };

/* As on the CPU: gradients of all ranks, the agreement of all ranks on them, then the change of the state. */
static enum step_result finish_on_device(struct trainer *t, struct step *s)
{
    struct crw_trained trained;
    double means[N_MEANS];
    bool committed;
    int r = crw_trainer_wait(t->device->trainer, &trained);

    t->follows = r == CRW_E_PEER;
    if (r)
        return STEP_FAILED;
    means[MEAN_LOSS] = trained.loss;
    means[MEAN_STOP] = trainer_is_asked_to_stop(t) ? 1 : 0;
    means[MEAN_CORRECT] = (double)trained.n_correct;
    means[MEAN_SAMPLES] = (double)s->n_samples;
    r = crw_trainer_commit(t->device->trainer, means, N_MEANS, &committed);
    t->follows = r != 0;
    if (r)
        return STEP_FAILED;
    s->loss = (float)trained.loss;
    s->loss_all = means[MEAN_LOSS];
    s->stop = means[MEAN_STOP] > 0;
    s->accuracy = t->program->accuracy ? means[MEAN_CORRECT] / means[MEAN_SAMPLES] : NAN;
    if (!committed) {
        (void)refuse_step(t, s, trained.norm);
        return STEP_FAILED;
    }
    commit(t, s);
    return STEP_DONE;
}

static enum step_result train_step_on_device(struct trainer *t, struct step *s)
{
    t->error[0] = '\0';
    int r = device_queue_step(t->device, s);
    if (r == 0 && s->n_batches == 0)
        return STEP_NO_DATA;
    if (r == 0)
        happen_fault(t, s);
    t->follows = r == CRW_E_PEER;
    enum step_result result = r == 0 ? finish_on_device(t, s) : STEP_FAILED;
    if (result == STEP_FAILED && t->error[0] == '\0')
        (void)trainer_fail(t, "%s", crw_error_message());
    return result;
}

/* ---- one step ---- */

enum step_result trainer_step(struct trainer *t, struct step *s)
{
    if (is_fault_due(t, true))
        fault_happen(&t->options->fault); /* does not return */
    if (t->device)
        return train_step_on_device(t, s);

    t->error[0] = '\0';
    enum step_result result = train_batches(t, s);
    if (result == STEP_NO_DATA)
        return STEP_NO_DATA;
    if (result == STEP_DONE && t->batch_gradients != t->reduced)
        happen_fault(t, s);
    if (result == STEP_FAILED || reduce_step(t, s) != 0) {
        t->follows = true;
        snprintf(t->error, sizeof(t->error), "%s", crw_error_message());
        return STEP_FAILED;
    }
    if (scale_gradients(t, s) != 0)
        return STEP_FAILED;
    crw_optimizer_step(t->optimizer, crw_model_parameters(t->model, NULL), t->reduced);
    commit(t, s);
    return STEP_DONE;
}
