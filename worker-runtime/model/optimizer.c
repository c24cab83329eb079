/*
 * SGD, AdamW and Adadelta as PyTorch's torch.optim counts them: scalars in double, rounded once, then one
 * pass over the whole arena. The passes are kernels; here is what PyTorch does in Python.
 *
 * To add an optimizer:
 *   crw.h                            the kind, before CRW_OPTIMIZER_KIND_COUNT
 *   this file                        names and number of states, defaults, check of the options, step
 *   kernels/cpu/fast_optimizer.c     the pass; fast.h, fast.c and kernels.h name the pass
 *   programs/options.c               the word of train --optimizer, in the order of the kinds
 *   man                              train.1, crw_model.3, libcrw.3
 *   tests                            unit/worker-runtime/test_optimizer.c and test_kernels.c; the peer in workers/torch_trainer.py
 * A GPU refuses a kind without a row in the table `optimizers` of cuda/cuda_trainer.c. A row needs a pass in kernels/cuda/step.cu.
 */

#include "worker-runtime/model/optimizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/base/error.h"
#include "base/memory.h"
#include "worker-runtime/kernels/cpu/kernels.h"

enum { N_STATES_MAX = 2, ALIGNMENT = 64 };

struct crw_optimizer {
    struct crw_optimizer_options options;
    const struct cpu_kernels *kernels;
    size_t count;
    size_t n_states;
    float *states[N_STATES_MAX];
    uint64_t steps;
};

static const char *const state_names[CRW_OPTIMIZER_KIND_COUNT][N_STATES_MAX] = {
    [CRW_SGD] = {"momentum_buffer"},
    [CRW_ADAMW] = {"exp_avg", "exp_avg_sq"},
    [CRW_ADADELTA] = {"square_avg", "acc_delta"},
};

static const struct crw_optimizer_options defaults[CRW_OPTIMIZER_KIND_COUNT] = {
    [CRW_SGD] = {.kind = CRW_SGD, .lr = 1e-3},
    [CRW_ADAMW] =
        {.kind = CRW_ADAMW, .lr = 1e-3, .weight_decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    [CRW_ADADELTA] = {.kind = CRW_ADADELTA, .lr = 1.0, .rho = 0.9, .eps = 1e-6},
};

struct crw_optimizer_options crw_optimizer_defaults(enum crw_optimizer_kind kind)
{
    NEED(kind >= 0 && kind < CRW_OPTIMIZER_KIND_COUNT, (struct crw_optimizer_options){.kind = kind});
    return defaults[kind];
}

const struct crw_optimizer_options *optimizer_options(const struct crw_optimizer *o)
{
    return &o->options;
}

/* Written so that NaN is outside. */
static bool within(double x, double low, double below)
{
    return x >= low && x < below;
}

/* What PyTorch's constructors refuse. */
static int check_optimizer_options(const struct crw_optimizer_options *o)
{
    if (o->kind < 0 || o->kind >= CRW_OPTIMIZER_KIND_COUNT)
        return crw_fail(CRW_E_ARGUMENT, "there is no optimizer of kind %d", (int)o->kind);
    if (!within(o->lr, 0, INFINITY) || !within(o->weight_decay, 0, INFINITY))
        return crw_fail(CRW_E_ARGUMENT, "learning rate %g or weight decay %g is negative or no number", o->lr,
                        o->weight_decay);
    if (o->kind == CRW_SGD && !within(o->momentum, 0, INFINITY))
        return crw_fail(CRW_E_ARGUMENT, "momentum %g of SGD is negative or no number", o->momentum);
    if (o->kind == CRW_SGD && o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return crw_fail(CRW_E_ARGUMENT, "Nesterov's SGD needs a momentum and no dampening");
    if (o->kind == CRW_ADAMW && (!within(o->beta1, 0, 1) || !within(o->beta2, 0, 1)))
        return crw_fail(CRW_E_ARGUMENT, "betas %g and %g of AdamW must be at least 0 and below 1", o->beta1,
                        o->beta2);
    if (o->kind == CRW_ADADELTA && !(o->rho >= 0 && o->rho <= 1))
        return crw_fail(CRW_E_ARGUMENT, "rho %g of Adadelta must be from 0 to 1", o->rho);
    if (o->kind != CRW_SGD && !within(o->eps, 0, INFINITY))
        return crw_fail(CRW_E_ARGUMENT, "epsilon %g is negative or no number", o->eps);
    return 0;
}

static size_t count_states(const struct crw_optimizer_options *o)
{
    if (o->kind == CRW_SGD)
        return o->momentum != 0 ? 1 : 0;
    return N_STATES_MAX;
}

int crw_optimizer_create(const struct crw_optimizer_options *options, size_t count,
                         struct crw_optimizer **ret)
{
    NEED(options && ret, CRW_E_ARGUMENT);
    TRY(check_optimizer_options(options));

    struct crw_optimizer *o = calloc(1, sizeof(*o));
    if (!o)
        return crw_fail_errno(-ENOMEM, "cannot make an optimizer");
    o->options = *options;
    o->kernels = cpu_kernels_best();
    o->count = count;
    o->n_states = count_states(options);
    size_t n_bytes = (count * sizeof(float) + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    for (size_t i = 0; i < o->n_states; i++) {
        if (memory_has_room(count, sizeof(float)))
            o->states[i] = aligned_alloc(ALIGNMENT, n_bytes);
        if (!o->states[i]) {
            crw_optimizer_destroy(o);
            return crw_fail_errno(-ENOMEM, "cannot make the state of an optimizer over %zu parameters",
                                  count);
        }
        memset(o->states[i], 0, n_bytes);
    }
    *ret = o;
    return 0;
}

void crw_optimizer_destroy(struct crw_optimizer *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < N_STATES_MAX; i++)
        free(o->states[i]);
    free(o);
}

static void step_sgd(struct crw_optimizer *o, float *p, const float *g)
{
    const struct crw_optimizer_options *options = &o->options;
    o->kernels->sgd(
        &(struct sgd_step){
            .minus_lr = (float)-options->lr,
            .weight_decay = (float)options->weight_decay,
            .momentum = (float)options->momentum,
            .one_minus_dampening = (float)(1 - options->dampening),
            .nesterov = options->nesterov,
            .first = o->steps == 1,
        },
        o->count, p, g, o->states[0]);
}

static void step_adamw(struct crw_optimizer *o, float *p, const float *g)
{
    const struct crw_optimizer_options *options = &o->options;
    double correction1 = 1 - pow(options->beta1, (double)o->steps);
    double correction2 = 1 - pow(options->beta2, (double)o->steps);
    o->kernels->adamw(
        &(struct adamw_step){
            .decay = (float)(1 - options->lr * options->weight_decay),
            .one_minus_beta1 = (float)(1 - options->beta1),
            .beta2 = (float)options->beta2,
            .one_minus_beta2 = (float)(1 - options->beta2),
            .sqrt_correction2 = (float)sqrt(correction2),
            .eps = (float)options->eps,
            .minus_step_size = (float)-(options->lr / correction1),
        },
        o->count, p, g, o->states[0], o->states[1]);
}

static void step_adadelta(struct crw_optimizer *o, float *p, const float *g)
{
    const struct crw_optimizer_options *options = &o->options;
    o->kernels->adadelta(
        &(struct adadelta_step){
            .minus_lr = (float)-options->lr,
            .weight_decay = (float)options->weight_decay,
            .rho = (float)options->rho,
            .one_minus_rho = (float)(1 - options->rho),
            .eps = (float)options->eps,
        },
        o->count, p, g, o->states[0], o->states[1]);
}

void crw_optimizer_step(struct crw_optimizer *o, float *parameters, const float *gradients)
{
    static void (*const step[CRW_OPTIMIZER_KIND_COUNT])(struct crw_optimizer *, float *, const float *) = {
        [CRW_SGD] = step_sgd,
        [CRW_ADAMW] = step_adamw,
        [CRW_ADADELTA] = step_adadelta,
    };
    NEED(o && ((parameters && gradients) || o->count == 0));
    o->steps++;
    step[o->options.kind](o, parameters, gradients);
}

void crw_optimizer_set_lr(struct crw_optimizer *o, double lr)
{
    NEED(o);
    o->options.lr = lr;
}

size_t crw_optimizer_n_states(const struct crw_optimizer *o)
{
    return o ? o->n_states : 0;
}

float *crw_optimizer_state(const struct crw_optimizer *o, size_t i, const char **ret_name)
{
    NEED(o && i < o->n_states, NULL);
    if (ret_name)
        *ret_name = state_names[o->options.kind][i];
    return o->states[i];
}

uint64_t crw_optimizer_steps(const struct crw_optimizer *o)
{
    return o ? o->steps : 0;
}

void crw_optimizer_set_steps(struct crw_optimizer *o, uint64_t steps)
{
    NEED(o);
    o->steps = steps;
}
