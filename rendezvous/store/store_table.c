/*
 * Two arrays while a move is under way: new names go to `now`; `old` only loses names. A slot of `old`
 * that lost its name keeps a mark so that longer probe chains across it stay whole; in `now` a removal
 * pulls the chain together instead, so no marks ever pile up there.
 *
 * A move visits MOVE_STEP slots with every change. Growth happens at 3/4 load to twice the size and
 * shrinking at 1/8 to half, so the next resize cannot be due before old is empty; were it, the rest is
 * moved at once.
 *
 * A large array is mapped, and `old` gives its pages back while it is emptied: to unmap hundreds of MiB at once takes tens
 * of milliseconds. A page that was given back reads as empty slots, which is right up to the last slot that was empty
 * from the start: no probe chain of a name behind it begins before it.
 */

#include "rendezvous/store/store_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "rendezvous/store/store_entry.h"

enum { SLOTS_MIN = 64, MOVE_STEP = 8, RELEASE_SLOTS = 1 << 14 };

/* What a slot of `old` holds after its name left. Never dereferenced. */
static struct store_entry moved_name;
#define MOVED (&moved_name)

static bool is_mapped(size_t n_slots)
{
    return n_slots > RELEASE_SLOTS;
}

static int slots_init(struct store_slots *s, size_t n)
{
    if (is_mapped(n))
        s->slots =
            mmap(NULL, n * sizeof(*s->slots), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else
        s->slots = calloc(n, sizeof(*s->slots));
    if (!s->slots || s->slots == MAP_FAILED) {
        s->slots = NULL;
        return -ENOMEM;
    }
    s->mask = n - 1;
    return 0;
}

static void slots_finish(struct store_slots *s)
{
    if (s->slots && is_mapped(s->mask + 1))
        (void)munmap(s->slots, (s->mask + 1) * sizeof(*s->slots)); /* cannot fail: a mapping of its own */
    else
        free(s->slots);
    *s = (struct store_slots){0};
}

int store_table_init(struct store_table *t, const uint8_t seed[SIPHASH_SEED_SIZE])
{
    *t = (struct store_table){0};
    memcpy(t->seed, seed, SIPHASH_SEED_SIZE);
    return slots_init(&t->now, SLOTS_MIN);
}

void store_table_finish(struct store_table *t)
{
    slots_finish(&t->now);
    slots_finish(&t->old);
}

uint64_t store_table_hash(const struct store_table *t, struct wire_span key)
{
    return siphash13(t->seed, key.data, key.size);
}

static struct store_entry *slots_find(const struct store_slots *s, struct wire_span key, uint64_t hash)
{
    for (size_t i = hash & s->mask; s->slots[i].name; i = (i + 1) & s->mask) {
        struct store_entry *name = s->slots[i].name;

        if (s->slots[i].hash == hash && name != MOVED && store_entry_is(name, key))
            return name;
    }
    return NULL;
}

struct store_entry *store_table_find(const struct store_table *t, struct wire_span key, uint64_t hash)
{
    struct store_entry *name = slots_find(&t->now, key, hash);

    if (!name && t->old.slots)
        name = slots_find(&t->old, key, hash);
    return name;
}

static void slots_put(struct store_slots *s, struct store_entry *name, uint64_t hash)
{
    size_t i = hash & s->mask;

    while (s->slots[i].name)
        i = (i + 1) & s->mask;
    s->slots[i] = (struct store_slot){.hash = hash, .name = name};
}

/* Gives pages back up to the slot `empty`, which was empty from the start. */
static void release_pages(struct store_table *t, size_t empty)
{
    if (!is_mapped(t->old.mask + 1) || empty - t->old_released < RELEASE_SLOTS)
        return;
    /* Fails at most for want of memory; then the pages go with the rest. */
    (void)madvise(t->old.slots + t->old_released, RELEASE_SLOTS * sizeof(*t->old.slots), MADV_DONTNEED);
    t->old_released += RELEASE_SLOTS;
}

static void move_some(struct store_table *t, size_t n)
{
    for (; t->old.slots && n > 0; n--) {
        struct store_slot *slot = &t->old.slots[t->old_next];

        if (!slot->name) {
            release_pages(t, t->old_next);
        } else if (slot->name != MOVED) {
            slots_put(&t->now, slot->name, slot->hash);
            slot->name = MOVED;
        }
        if (t->old_next++ == t->old.mask)
            slots_finish(&t->old);
    }
}

static int resize(struct store_table *t, size_t n)
{
    struct store_slots fresh;

    move_some(t, SIZE_MAX);
    TRY(slots_init(&fresh, n));
    t->old = t->now;
    t->old_next = t->old_released = 0;
    t->now = fresh;
    return 0;
}

int store_table_insert(struct store_table *t, struct store_entry *name, uint64_t hash)
{
    size_t n = t->now.mask + 1;

    if (t->used >= n - n / 4) {
        int r = resize(t, n * 2);

        /* Without memory it goes on with longer chains, but one slot must stay free: it ends them. */
        if (r < 0 && t->used + 1 >= n)
            return r;
    }
    slots_put(&t->now, name, hash);
    t->used++;
    move_some(t, MOVE_STEP);
    return 0;
}

/* Empties slot i and moves back whatever its absence would hide. */
static void slots_pull(struct store_slots *s, size_t i)
{
    for (size_t j = (i + 1) & s->mask; s->slots[j].name; j = (j + 1) & s->mask) {
        size_t home = s->slots[j].hash & s->mask;

        if (((j - home) & s->mask) >= ((j - i) & s->mask)) {
            s->slots[i] = s->slots[j];
            i = j;
        }
    }
    s->slots[i].name = NULL;
}

static struct store_slot *slots_locate(const struct store_slots *s, const struct store_entry *name,
                                       uint64_t hash)
{
    for (size_t i = hash & s->mask; s->slots[i].name; i = (i + 1) & s->mask) {
        if (s->slots[i].name == name)
            return &s->slots[i];
    }
    return NULL;
}

void store_table_remove(struct store_table *t, const struct store_entry *name, uint64_t hash)
{
    struct store_slot *slot = slots_locate(&t->now, name, hash);

    if (slot) {
        slots_pull(&t->now, (size_t)(slot - t->now.slots));
    } else {
        assert(t->old.slots);
        slot = slots_locate(&t->old, name, hash);
        assert(slot);
        slot->name = MOVED;
    }
    t->used--;
    move_some(t, MOVE_STEP);
    if (!t->old.slots && t->now.mask >= SLOTS_MIN && t->used < (t->now.mask + 1) / 8)
        (void)resize(t, (t->now.mask + 1) / 2); /* a table too large is no failure */
}

static struct store_entry *slots_next(const struct store_slots *s, size_t *i)
{
    while (*i <= s->mask) {
        struct store_entry *name = s->slots[(*i)++].name;

        if (name && name != MOVED)
            return name;
    }
    return NULL;
}

struct store_entry *store_table_next(const struct store_table *t, size_t *cursor)
{
    size_t n = t->now.mask + 1;
    struct store_entry *name = NULL;

    if (*cursor < n)
        name = slots_next(&t->now, cursor);
    if (!name && t->old.slots) {
        size_t i = *cursor - n;

        name = slots_next(&t->old, &i);
        *cursor = n + i;
    }
    return name;
}
