/*
 * Batches gathered ahead.
 *
 * A ring of n_ahead + 1 slots: one is in the caller's hands, the thread fills the others and waits when
 * all are full. `made` counts batches gathered, `handed` those given out, both of this epoch; slot k %
 * n_slots holds batch k. The thread may fill batch `made` while made < handed + n_ahead: then its slot is
 * neither waiting to be handed out nor the one last handed out, which is handed - 1.
 *
 * The sampler belongs to the thread that gathers: the loader's while an epoch is open, the caller's while
 * it is not. crw_loader_start() closes the epoch and waits for the batch in the making before it touches
 * it.
 */

#include "worker-runtime/crw.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/lock_os.h"
#include "base/thread_os.h"
#include "worker-runtime/base/error.h"
#include "base/memory.h"

struct slot {
    struct crw_batch batch;
    int result; /* of gather() */
    uint32_t *samples;
    float *input;
    uint8_t *targets;
};

struct crw_loader {
    struct crw_loader_options options;
    struct slot *slots;
    size_t n_slots;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;

    /* Protected by lock. */
    uint64_t made, handed;
    bool open;    /* batches of this epoch are still to be made */
    bool making;  /* the thread is gathering one, without the lock */
    bool closing; /* the thread has to end */
};

static void fill_slot(const struct crw_loader *l, struct slot *slot)
{
    const struct crw_loader_options *o = &l->options;
    size_t n = crw_sampler_next(o->sampler, slot->samples, o->batch_size);

    slot->result = n > 0 ? o->gather(o->data, slot->samples, n, slot->input, slot->targets) : 0;
    if (slot->result)
        n = 0;
    slot->batch = (struct crw_batch){
        .n = n,
        .samples = slot->samples,
        .input = slot->input,
        .targets = slot->targets,
        .consumed = crw_sampler_consumed(o->sampler),
    };
}

/* ---- the thread ---- */

static bool loader_has_room(const struct crw_loader *l)
{
    return l->open && l->made < l->handed + (uint64_t)l->options.n_ahead;
}

static void *gather_ahead(void *data)
{
    struct crw_loader *l = data;

    hold_lock(&l->lock);
    while (!l->closing) {
        struct slot *slot = &l->slots[l->made % l->n_slots];

        if (!loader_has_room(l)) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        l->making = true;
        pthread_mutex_unlock(&l->lock);
        fill_slot(l, slot);
        pthread_mutex_lock(&l->lock);
        l->making = false;
        l->made++;
        if (slot->batch.n == 0)
            l->open = false;
        pthread_cond_broadcast(&l->changed);
    }
    return NULL;
}

/* ---- the caller's side ---- */

static bool has_room_for_slots(const struct crw_loader *l)
{
    const struct crw_loader_options *o = &l->options;
    double sample = sizeof(float) * (double)o->input_size + (double)o->target_size + sizeof(uint32_t);
    double all = (double)l->n_slots * ((double)o->batch_size * sample + sizeof(struct slot));

    return all < 0x1p63 && memory_has_room((uint64_t)all, 1);
}

static bool make_slots(struct crw_loader *l)
{
    const struct crw_loader_options *o = &l->options;

    l->slots = calloc(l->n_slots, sizeof(*l->slots));
    for (size_t i = 0; l->slots && i < l->n_slots; i++) {
        struct slot *slot = &l->slots[i];

        slot->samples = calloc(o->batch_size, sizeof(*slot->samples));
        slot->input = calloc(o->batch_size, o->input_size * sizeof(*slot->input));
        slot->targets = calloc(o->batch_size, o->target_size);
        if (!slot->samples || !slot->input || !slot->targets)
            return false;
    }
    return l->slots != NULL;
}

int crw_loader_create(const struct crw_loader_options *options, struct crw_loader **ret)
{
    struct crw_loader *l;
    int r = -ENOMEM;

    NEED(options && options->sampler && options->gather && ret, CRW_E_ARGUMENT);
    if (options->batch_size < 1 || options->input_size < 1 || options->target_size < 1 ||
        options->n_ahead < 0)
        return crw_fail(CRW_E_ARGUMENT,
                        "a loader cannot make %d batches ahead of %zu samples of %zu floats and "
                        "%zu bytes",
                        options->n_ahead, options->batch_size, options->input_size, options->target_size);
    l = calloc(1, sizeof(*l));
    if (!l)
        return crw_fail_errno(-ENOMEM, "cannot make a loader");
    l->options = *options;
    l->n_slots = (size_t)options->n_ahead + 1;
    pthread_mutex_init(&l->lock, NULL); /* these two cannot fail on Linux */
    pthread_cond_init(&l->changed, NULL);
    if (has_room_for_slots(l) && make_slots(l))
        r = options->n_ahead > 0 ? thread_start(&l->thread, gather_ahead, l) : 0;
    l->has_thread = r == 0 && options->n_ahead > 0;
    if (r < 0) {
        crw_loader_destroy(l);
        return crw_fail_errno(r, "cannot make a loader of batches of %zu samples", options->batch_size);
    }
    *ret = l;
    return 0;
}

void crw_loader_destroy(struct crw_loader *l)
{
    if (!l)
        return;
    if (l->has_thread) {
        pthread_mutex_lock(&l->lock);
        l->closing = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    for (size_t i = 0; l->slots && i < l->n_slots; i++) {
        free(l->slots[i].samples);
        free(l->slots[i].input);
        free(l->slots[i].targets);
    }
    free(l->slots);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int crw_loader_start(struct crw_loader *l, uint64_t epoch, uint64_t consumed)
{
    NEED(l, CRW_E_ARGUMENT);
    hold_lock(&l->lock);
    l->open = false;
    while (l->making)
        pthread_cond_wait(&l->changed, &l->lock);
    int r = crw_sampler_start(l->options.sampler, epoch, consumed);
    l->made = 0;
    l->handed = 0;
    l->open = r == 0;
    pthread_cond_broadcast(&l->changed);
    return r;
}

/* The slot's batch; a failed one ends the epoch. */
static int hand_out(const struct slot *slot, struct crw_batch *ret)
{
    *ret = slot->batch;
    return slot->result;
}

int crw_loader_next(struct crw_loader *l, struct crw_batch *ret)
{
    int r = 0;

    NEED(l && ret, CRW_E_ARGUMENT);
    *ret = (struct crw_batch){0};
    if (!l->has_thread) { /* no thread, so no lock is needed */
        if (l->open) {
            fill_slot(l, &l->slots[0]);
            r = hand_out(&l->slots[0], ret);
            l->open = ret->n > 0;
        }
        return r;
    }
    hold_lock(&l->lock);
    while (l->handed == l->made && (l->open || l->making))
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->handed < l->made) {
        r = hand_out(&l->slots[l->handed % l->n_slots], ret);
        l->handed++;
        pthread_cond_broadcast(&l->changed);
    }
    return r;
}
