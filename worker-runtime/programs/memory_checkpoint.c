#include "worker-runtime/programs/memory_checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "worker-runtime/programs/trainer.h"

/* ---- layout of a slot: what is this rank's own, then its part of each arena ---- */

/* The first bytes of what is this rank's own; the running statistics follow. */
struct own_state {
    struct train_position position;
    uint64_t optimizer_steps;
};

static size_t own_size(const struct trainer *t)
{
    return sizeof(struct own_state) + state_committed_bytes(&t->state);
}

/* Offset of the arenas' parts: behind what is own, aligned to a cache line. */
static size_t parts_at(const struct trainer *t)
{
    return (own_size(t) + 63) / 64 * 64;
}

static size_t part_begin(const struct trainer *t, int part, int n_parts)
{
    return t->n_parameters * (size_t)part / (size_t)n_parts;
}

/* Parameters and each array of the optimizer, all of one length. */
static size_t n_arenas(const struct trainer *t)
{
    return 1 + crw_optimizer_n_states(t->optimizer);
}

static float *arena(const struct trainer *t, size_t i)
{
    const char *name;

    return i == 0 ? crw_model_parameters(t->model, NULL) : crw_optimizer_state(t->optimizer, i - 1, &name);
}

/* Checksum of all that must be equal for a slot to be used again: network, optimizer, ranks and recipe. */
static uint32_t layout_of(const struct trainer *t)
{
    const uint64_t facts[] = {crw_model_hash(t->model),
                              n_arenas(t),
                              (uint64_t)t->checkpoint.part,
                              (uint64_t)t->checkpoint.n_parts,
                              (uint64_t)crw_world_size(t->group),
                              (uint64_t)crw_rank(t->group),
                              t->options->batch_size};
    uint32_t crc = crw_crc32c(0, facts, sizeof(facts));

    for (size_t i = 0; i < t->state.recipe.n; i++)
        crc = crw_crc32c(crc, t->state.recipe.entries[i].value, strlen(t->state.recipe.entries[i].value) + 1);
    return crc;
}

/* ---- saving ---- */

int memory_checkpoint_open(struct trainer *t)
{
    struct memory_checkpoint *c = &t->checkpoint;

    c->part = t->env->local_rank;
    c->n_parts = t->env->local_world_size;
    c->begin = part_begin(t, c->part, c->n_parts);
    c->count = part_begin(t, c->part + 1, c->n_parts) - c->begin;
    c->own = malloc(2 * own_size(t)); /* the second half is for memory_checkpoint_restore() */
    if (!c->own)
        return -1;
    /* A failure here is not one of the training: without a checkpoint in memory a failed rank costs the
     * steps since the last snapshot. */
    (void)crw_memory_open(t->group, parts_at(t) + n_arenas(t) * c->count * sizeof(float), layout_of(t),
                          &c->memory);
    return 0;
}

void memory_checkpoint_close(struct memory_checkpoint *c)
{
    crw_memory_close(c->memory);
    free(c->own);
    *c = (struct memory_checkpoint){0};
}

int64_t memory_checkpoint_number(const struct trainer *t)
{
    return (int64_t)(t->state.position.step + t->state.position.epoch);
}

static void write_own(const struct trainer *t, uint8_t *to)
{
    const struct own_state head = {t->state.position, crw_optimizer_steps(t->optimizer)};

    memcpy(to, &head, sizeof(head));
    memcpy(to + sizeof(head), t->state.committed, state_committed_bytes(&t->state));
}

static void read_own(struct trainer *t, const uint8_t *from)
{
    struct own_state head;

    memcpy(&head, from, sizeof(head));
    memcpy(t->state.committed, from + sizeof(head), state_committed_bytes(&t->state));
    t->state.position = head.position;
    state_restored(&t->state, head.optimizer_steps);
}

void memory_checkpoint_commit(struct trainer *t)
{
    const struct memory_checkpoint *c = &t->checkpoint;

    if (!c->memory || t->device) /* the host's copy of the state is older then */
        return;
    uint8_t *to = crw_memory_begin(c->memory);
    write_own(t, to);
    to += parts_at(t);
    for (size_t i = 0; i < n_arenas(t); i++, to += c->count * sizeof(float))
        memcpy(to, arena(t, i) + c->begin, c->count * sizeof(float));
    crw_memory_commit(c->memory, (uint64_t)memory_checkpoint_number(t));
}

struct recovery_offer memory_checkpoint_offer(const struct trainer *t, bool alive)
{
    struct recovery_offer offer = {
        .alive = alive ? memory_checkpoint_number(t) : RECOVERY_NONE,
        .memory = {RECOVERY_NONE, RECOVERY_NONE},
        .n_parts = t->checkpoint.n_parts,
    };
    uint64_t numbers[2];
    size_t n = t->checkpoint.memory ? crw_memory_list(t->checkpoint.memory, numbers) : 0;

    for (size_t i = 0; i < n; i++)
        offer.memory[i] = (int64_t)numbers[i];
    return offer;
}

/* ---- restoring ---- */

/* Copies what is this rank's own out of the chosen state, before anything is overwritten. False: this
 * rank has no state of that number. */
static bool save_own(struct trainer *t, const struct recovery_choice *choice,
                     const struct recovery_offer *mine)
{
    if (!recovery_has(mine, choice->number))
        return false;
    if (mine->alive == choice->number) {
        write_own(t, t->checkpoint.own);
        return true;
    }
    const uint8_t *slot = crw_memory_find(t->checkpoint.memory, (uint64_t)choice->number);
    memcpy(t->checkpoint.own, slot, own_size(t));
    return true;
}

/* Rank k of a host has part k of arena i, at slot_offset of its slot: each broadcasts its part, so all
 * ranks get the whole arena. */
static int gather_parts(struct trainer *t, const struct recovery_choice *choice, size_t i, size_t slot_offset)
{
    const uint8_t *slot =
        t->checkpoint.memory ? crw_memory_find(t->checkpoint.memory, (uint64_t)choice->number) : NULL;

    for (int part = 0; part < choice->n_parts; part++) {
        size_t begin = part_begin(t, part, choice->n_parts),
               count = part_begin(t, part + 1, choice->n_parts) - begin;

        if (part == crw_rank(t->group)) {
            assert(slot); /* a rank with a part has memory */
            memcpy(arena(t, i) + begin, slot + slot_offset, count * sizeof(float));
        }
        TRY(crw_broadcast(t->group, arena(t, i) + begin, count * sizeof(float), part));
    }
    return 0;
}

static int restore_from_memory(struct trainer *t, const struct recovery_choice *choice)
{
    const struct memory_checkpoint *c = &t->checkpoint;

    for (size_t i = 0; i < n_arenas(t); i++)
        TRY(gather_parts(t, choice, i, parts_at(t) + i * c->count * sizeof(float)));
    const uint8_t *slot =
        crw_rank(t->group) == 0 ? crw_memory_find(c->memory, (uint64_t)choice->number) : NULL;
    if (slot)
        memcpy(c->own, slot, own_size(t));
    return crw_broadcast(t->group, c->own, own_size(t), 0);
}

static int restore_alive(struct trainer *t, const struct recovery_choice *choice)
{
    for (size_t i = 0; i < n_arenas(t); i++)
        TRY(crw_broadcast(t->group, arena(t, i), t->n_parameters * sizeof(float), choice->from));
    if (crw_rank(t->group) == choice->from)
        write_own(t, t->checkpoint.own);
    return crw_broadcast(t->group, t->checkpoint.own, own_size(t), choice->from);
}

int memory_checkpoint_restore(struct trainer *t, const struct recovery_choice *choice,
                              const struct recovery_offer *mine)
{
    bool has_own = save_own(t, choice, mine);
    uint8_t *own = has_own ? t->checkpoint.own + own_size(t) : NULL;

    if (own)
        memcpy(own, t->checkpoint.own, own_size(t));
    TRY(choice->kind == RECOVERY_ALIVE ? restore_alive(t, choice) : restore_from_memory(t, choice));
    read_own(t, own ? own : t->checkpoint.own);
    memory_checkpoint_commit(t);
    return 0;
}
