#include "worker-runtime/programs/held.h"

#include <stdlib.h>
#include <string.h>

#include "worker-runtime/programs/trainer.h"

/* ------------------------------------------------------------------ layout: own, then a part of each arena */

/* In front of the running statistics. */
struct own_head {
    struct train_position position;
    uint64_t optimizer_steps;
};

static size_t own_size(const struct trainer *t)
{
    return sizeof(struct own_head) + state_committed_bytes(&t->state);
}

/* Behind what is own, on a line of its own. */
static size_t parts_at(const struct trainer *t)
{
    return (own_size(t) + 63) / 64 * 64;
}

static size_t begin_of(const struct trainer *t, int part, int n_parts)
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

static uint32_t layout_of(const struct trainer *t)
{
    const uint64_t facts[] = {crw_model_hash(t->model),
                              n_arenas(t),
                              (uint64_t)t->held.part,
                              (uint64_t)t->held.n_parts,
                              (uint64_t)crw_world_size(t->group),
                              (uint64_t)crw_rank(t->group),
                              t->options->batch_size};
    uint32_t crc = crw_crc32c(0, facts, sizeof(facts));

    for (size_t i = 0; i < t->state.recipe.n; i++)
        crc = crw_crc32c(crc, t->state.recipe.entries[i].value, strlen(t->state.recipe.entries[i].value) + 1);
    return crc;
}

/* ------------------------------------------------------------------ */

int held_open(struct trainer *t)
{
    struct held *h = &t->held;
    size_t n_floats;

    h->part = t->env->local_rank;
    h->n_parts = t->env->local_world_size;
    n_floats = begin_of(t, h->part + 1, h->n_parts) - begin_of(t, h->part, h->n_parts);
    h->own = malloc(2 * own_size(t)); /* one more for held_restore() */
    if (!h->own)
        return -1;
    /* Without it a failure costs the steps since the last snapshot, as anywhere else. */
    (void)crw_memory_open(t->group, parts_at(t) + n_arenas(t) * n_floats * sizeof(float), layout_of(t),
                          &h->memory);
    return 0;
}

void held_close(struct held *h)
{
    crw_memory_close(h->memory);
    free(h->own);
    *h = (struct held){0};
}

int64_t held_number(const struct trainer *t)
{
    return (int64_t)(t->state.position.step + t->state.position.epoch);
}

static void write_own(const struct trainer *t, uint8_t *to)
{
    const struct own_head head = {t->state.position, crw_optimizer_steps(t->optimizer)};

    memcpy(to, &head, sizeof(head));
    memcpy(to + sizeof(head), t->state.committed, state_committed_bytes(&t->state));
}

static void read_own(struct trainer *t, const uint8_t *from)
{
    struct own_head head;

    memcpy(&head, from, sizeof(head));
    memcpy(t->state.committed, from + sizeof(head), state_committed_bytes(&t->state));
    t->state.position = head.position;
    state_restored(&t->state, head.optimizer_steps);
}

void held_commit(struct trainer *t)
{
    const struct held *h = &t->held;
    size_t begin, count;
    uint8_t *to;

    if (!h->memory || t->device) /* what is on the host is not the state then */
        return;
    begin = begin_of(t, h->part, h->n_parts);
    count = begin_of(t, h->part + 1, h->n_parts) - begin;
    to = crw_memory_begin(h->memory);
    write_own(t, to);
    to += parts_at(t);
    for (size_t i = 0; i < n_arenas(t); i++, to += count * sizeof(float))
        memcpy(to, arena(t, i) + begin, count * sizeof(float));
    crw_memory_commit(h->memory, (uint64_t)held_number(t));
}

struct recovery_offer held_offer(const struct trainer *t, bool alive)
{
    struct recovery_offer offer = {
        .alive = alive ? held_number(t) : RECOVERY_NONE,
        .memory = {RECOVERY_NONE, RECOVERY_NONE},
        .n_parts = t->held.n_parts,
    };
    uint64_t numbers[2];
    size_t n = t->held.memory ? crw_memory_list(t->held.memory, numbers) : 0;

    for (size_t i = 0; i < n; i++)
        offer.memory[i] = (int64_t)numbers[i];
    return offer;
}

/* ------------------------------------------------------------------ back */

/* Of this rank, before anything is overwritten: false when it has none of that number. */
static bool save_own(struct trainer *t, const struct recovery_choice *choice,
                     const struct recovery_offer *mine)
{
    const uint8_t *slot;

    if (!recovery_has(mine, choice->number))
        return false;
    if (mine->alive == choice->number) {
        write_own(t, t->held.own);
        return true;
    }
    slot = crw_memory_find(t->held.memory, (uint64_t)choice->number);
    memcpy(t->held.own, slot, own_size(t));
    return true;
}

/* Parts of one arena from those who hold them. Every rank ends up with all. */
static int gather_parts(struct trainer *t, const struct recovery_choice *choice, size_t i, size_t slot_offset)
{
    const uint8_t *slot = t->held.memory ? crw_memory_find(t->held.memory, (uint64_t)choice->number) : NULL;

    for (int part = 0; part < choice->n_parts; part++) {
        size_t begin = begin_of(t, part, choice->n_parts),
               count = begin_of(t, part + 1, choice->n_parts) - begin;
        int r;

        if (part == crw_rank(t->group))
            memcpy(arena(t, i) + begin, slot + slot_offset, count * sizeof(float));
        r = crw_broadcast(t->group, arena(t, i) + begin, count * sizeof(float), part);
        if (r != 0)
            return r;
    }
    return 0;
}

static int restore_from_memory(struct trainer *t, const struct recovery_choice *choice)
{
    const struct held *h = &t->held;
    size_t count = begin_of(t, h->part + 1, h->n_parts) - begin_of(t, h->part, h->n_parts);
    const uint8_t *slot;

    for (size_t i = 0; i < n_arenas(t); i++) {
        int r = gather_parts(t, choice, i, parts_at(t) + i * count * sizeof(float));
        if (r != 0)
            return r;
    }
    slot = crw_rank(t->group) == 0 ? crw_memory_find(h->memory, (uint64_t)choice->number) : NULL;
    if (slot)
        memcpy(h->own, slot, own_size(t));
    return crw_broadcast(t->group, h->own, own_size(t), 0);
}

static int restore_alive(struct trainer *t, const struct recovery_choice *choice)
{
    for (size_t i = 0; i < n_arenas(t); i++) {
        int r = crw_broadcast(t->group, arena(t, i), t->n_parameters * sizeof(float), choice->from);
        if (r != 0)
            return r;
    }
    if (crw_rank(t->group) == choice->from)
        write_own(t, t->held.own);
    return crw_broadcast(t->group, t->held.own, own_size(t), choice->from);
}

int held_restore(struct trainer *t, const struct recovery_choice *choice, const struct recovery_offer *mine)
{
    bool has_own = save_own(t, choice, mine);
    uint8_t *own = has_own ? t->held.own + own_size(t) : NULL;
    int r;

    if (own)
        memcpy(own, t->held.own, own_size(t));
    r = choice->kind == RECOVERY_ALIVE ? restore_alive(t, choice) : restore_from_memory(t, choice);
    if (r == 0)
        read_own(t, own ? own : t->held.own);
    if (r == 0)
        held_commit(t);
    return r;
}
