/*
 * Finds the state from which the training goes on.
 *
 * The state of a rank that is still running is the newest there is. Else the first rank of each host looks into its
 * folder. Folders may differ, when each host has its own: the rank that holds the newest snapshot sends it to all others,
 * unless the state in memory is newer.
 */

#include "base/err.h"
#include "worker-runtime/programs/trainer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"

static void warn_of_snapshot(void *data, const char *sentence)
{
    trainer_warn(data, sentence);
}

/* What a rank has found in its folder. */
struct found {
    int64_t any; /* 0: no file, or none that is whole */
    uint64_t step, epoch;
};

static bool is_newer(const struct found *a, const struct found *b)
{
    if (!a->any || !b->any)
        return a->any && !b->any;
    return a->step != b->step ? a->step > b->step : a->epoch > b->epoch;
}

/* What each rank has, malloc'ed, by rank. Collective; NULL: some rank could not, which that rank has reported. */
static void *gather_from_all(struct trainer *t, const void *mine, size_t size)
{
    _cleanup_free_ void *all = calloc((size_t)crw_world_size(t->group), size);
    int r = trainer_agree(t, all ? 0 : trainer_fail(t, "out of memory for what the ranks have"));

    if (r == 0 && crw_all_gather(t->group, mine, size, all) != 0)
        r = trainer_agree(t, trainer_fail(t, "%s", crw_error_message()));
    return r == 0 ? steal_ptr(all) : NULL;
}

/* The lowest rank that holds the newest, into *ret_holder, and what it has. Collective. */
static int find_holder(struct trainer *t, const struct found *mine, int *ret_holder, struct found *ret_newest)
{
    _cleanup_free_ struct found *all = gather_from_all(t, mine, sizeof(*mine));

    *ret_holder = 0;
    if (!all)
        return -1;
    for (int i = 1; i < crw_world_size(t->group); i++)
        if (is_newer(&all[i], &all[*ret_holder]))
            *ret_holder = i;
    *ret_newest = all[*ret_holder];
    return 0;
}

/* Looks into the folder of this host. 0, also when there is nothing whole; -1 with the reason in t->error. */
static int load_newest(struct trainer *t, struct found *ret, bool *ret_damaged)
{
    *ret = (struct found){0};
    *ret_damaged = false;
    if (!t->options->snapshot_dir || !trainer_is_first_of_host(t))
        return 0;
    int r = state_load(&t->state, t->options->snapshot_dir, warn_of_snapshot, t, t->error, sizeof(t->error));
    if (r == 0)
        *ret = (struct found){1, t->state.position.step, t->state.position.epoch};
    *ret_damaged = r == CRW_E_DAMAGED; /* t->error is the reason */
    return r == 0 || r == CRW_E_NOT_FOUND || r == CRW_E_DAMAGED ? 0 : -1;
}

/* What the holder has read arrives everywhere; where no rank has any, the first rank's fresh state does. */
static int resume_from_disk(struct trainer *t, int holder)
{
    if (state_broadcast(&t->state, t->group, holder) != 0)
        return -1;
    memory_checkpoint_commit(t);
    t->saved_step = t->shared_step = t->state.position.step;
    if (holder != 0)
        report_say(&t->report, "the newest snapshot is on the host of rank %d", holder);
    return 0;
}

/* What all ranks have in their processes and in memory. */
static int choose(struct trainer *t, const struct recovery_offer *mine, struct recovery_choice *ret)
{
    _cleanup_free_ struct recovery_offer *all = gather_from_all(t, mine, sizeof(*mine));

    if (!all)
        return -1;
    *ret = recovery_choose(all, crw_world_size(t->group));
    return 0;
}

static void report_where_from(struct trainer *t, const char *from, const char *key)
{
    const struct train_position *p = &t->state.position;

    report_resume(&t->report, from, key, p->step, p->epoch, p->consumed, crw_group_restart_count(t->group));
}

static int restore(struct trainer *t, const struct recovery_choice *choice, const struct recovery_offer *mine)
{
    t->alive = mine->alive == choice->number; /* else it is overwritten from here on */
    if (memory_checkpoint_restore(t, choice, mine) != 0)
        return trainer_agree(t, trainer_fail(t, "%s", crw_error_message()));
    t->alive = true;
    t->saved_step = UINT64_MAX;
    t->shared_step = t->state.position.consumed == 0 ? t->state.position.step : UINT64_MAX;
    if (choice->number == 0)
        return 0; /* there is nothing to speak of */
    if (choice->kind == RECOVERY_ALIVE)
        report_where_from(t, "the ranks that went on, of the state", "peers");
    else
        report_where_from(t, "memory, of the state", "memory");
    if (t->state.position.consumed == 0)
        trainer_save_epoch(t); /* what failed may have been writing it */
    return 0;
}

int trainer_resume(struct trainer *t)
{
    const struct recovery_offer mine = memory_checkpoint_offer(t, t->alive);
    struct recovery_choice choice = {0};
    struct found found = {0}, newest = {0};
    bool damaged = false;
    int holder;

    TRY(choose(t, &mine, &choice));
    if (choice.kind == RECOVERY_ALIVE)
        return restore(t, &choice, &mine);
    t->alive = false;
    if (trainer_agree(t, load_newest(t, &found, &damaged)) < 0 ||
        find_holder(t, &found, &holder, &newest) < 0)
        return -1;
    if (choice.kind == RECOVERY_MEMORY &&
        (!newest.any || choice.number > (int64_t)(newest.step + newest.epoch)))
        return restore(t, &choice, &mine);
    /* Damaged files alone are work that is lost, and no new training. */
    if (!newest.any && trainer_agree(t, damaged ? -1 : 0) < 0)
        return -1;
    if (resume_from_disk(t, holder) < 0)
        return trainer_agree(t, trainer_fail(t, "%s", crw_error_message()));
    t->alive = true;
    if (newest.any)
        report_where_from(t, "the snapshot", "snapshot");
    return 0;
}
