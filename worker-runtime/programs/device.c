#include "worker-runtime/programs/device.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "worker-runtime/programs/trainer.h"

int device_wanted(struct trainer *t, bool *ret_wanted)
{
    const char *why;
    int n = t->options->backend == TRAIN_BACKEND_CPU ? 0 : crw_device_count(&why);

    *ret_wanted = n > 0;
    if (n < 0 && t->options->backend != TRAIN_BACKEND_CUDA && trainer_is_first_of_host(t))
        fprintf(stderr, "train: warning: rank %d trains on CPUs, because no GPU can be used: %s\n",
                crw_rank(t->group), why);
    if (t->options->backend != TRAIN_BACKEND_CUDA || *ret_wanted)
        return 0;
    return trainer_fail(t, "--backend cuda: there is no GPU: %s", why);
}

/* ---- making and ending ---- */

static int copy_samples(struct device *d)
{
    const struct program *p = d->t->program;
    struct crw_samples training, test;

    p->resident(p->data, PART_TRAINING, &training);
    if (d->t->n_test > 0)
        p->resident(p->data, PART_TEST, &test);
    return crw_trainer_set_data(d->trainer, &training, d->t->n_test > 0 ? &test : NULL);
}

static int make_device_trainer(struct device *d)
{
    static const enum crw_products products[] = {
        [TRAIN_FP32] = CRW_PRODUCTS_F32, [TRAIN_BF16] = CRW_PRODUCTS_BF16, [TRAIN_TF32] = CRW_PRODUCTS_TF32};
    struct trainer *t = d->t;
    const struct crw_trainer_options options = {
        .group = t->group,
        .model = t->model,
        .optimizer = t->optimizer,
        .loss = t->program->loss_kind,
        .products = products[t->options->precision],
        .clip_norm = t->options->clip_norm,
        .accumulates = t->options->accumulate > 1,
        .oversubscribe = t->options->oversubscribe_gpu,
        .nccl_defaults = true,
        .reduction = t->options->reduce == TRAIN_REDUCE_HOST ? CRW_REDUCTION_HOST : CRW_REDUCTION_NCCL,
    };

    if (crw_trainer_create(&options, &d->trainer) != 0 || copy_samples(d) != 0)
        return trainer_fail(t, "%s", crw_error_message());
    return 0;
}

static int allocate_order(struct device *d)
{
    const struct trainer *t = d->t;
    size_t share = t->n_training / (size_t)crw_world_size(t->group) + 1;

    d->capacity = share / t->options->batch_size + 1;
    d->samples = malloc(d->capacity * t->options->batch_size * sizeof(*d->samples));
    d->batches = malloc(d->capacity * sizeof(*d->batches));
    return d->samples && d->batches ? 0 : -1;
}

int device_create(struct trainer *t, struct device **ret)
{
    struct device *d = calloc(1, sizeof(*d));

    int r;

    if (d)
        d->t = t;
    if (!d || allocate_order(d) < 0)
        r = trainer_fail(t, "out of memory for the order of the samples");
    else
        r = make_device_trainer(d);
    if (r < 0)
        device_destroy(d);
    else
        *ret = d;
    return r;
}

void device_destroy(struct device *d)
{
    if (!d)
        return;
    crw_trainer_destroy(d->trainer);
    free(d->samples);
    free(d->batches);
    free(d);
}

/* ---- an epoch ---- */

int device_start_epoch(struct device *d, double lr)
{
    const struct train_position *p = &d->t->state.position;
    struct crw_sampler *sampler = d->t->sampler;
    size_t batch_size = d->t->options->batch_size, count = 0, n;

    TRY(crw_sampler_start(sampler, p->epoch, p->consumed));
    d->n_batches = d->next = 0;
    while (d->n_batches < d->capacity &&
           (n = crw_sampler_next(sampler, d->samples + count, batch_size)) > 0) {
        d->batches[d->n_batches++] =
            (struct device_batch){.n = (int)n, .consumed = crw_sampler_consumed(sampler)};
        count += n;
    }
    TRY(crw_trainer_set_lr(d->trainer, lr));
    return crw_trainer_start(d->trainer, d->samples, count);
}

int device_queue_step(struct device *d, struct step *s)
{
    uint64_t accumulate = d->t->options->accumulate;

    while (d->next < d->n_batches && s->n_batches < accumulate) {
        const struct device_batch *b = &d->batches[d->next++];

        s->n_batches++;
        s->n_samples += (uint64_t)b->n;
        s->consumed = b->consumed;
        TRY(crw_trainer_step(d->trainer, b->n, s->n_batches == accumulate || d->next == d->n_batches));
    }
    return 0;
}
