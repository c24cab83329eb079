#pragma once

/*
 * The table of names: open addressing with linear probing over a keyed hash. It grows and shrinks in
 * steps, a few slots with every insertion and removal, so no single request pays for moving a million
 * names. It does not own the names.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"
#include "rendezvous/siphash.h"

struct name;

struct name_slot {
    uint64_t hash;
    struct name *name; /* NULL: free */
};

struct name_slots {
    struct name_slot *slots;
    size_t mask; /* number of slots - 1 */
};

struct name_table {
    struct name_slots now;
    struct name_slots old; /* being emptied into now; slots NULL: no move under way */
    size_t old_next;       /* first slot of old that was not moved yet */
    size_t used;           /* names in both */
    uint8_t seed[SIPHASH_SEED_SIZE];
};

/* Returns 0 or -ENOMEM. */
int name_table_init(struct name_table *t, const uint8_t seed[SIPHASH_SEED_SIZE]);
void name_table_finish(struct name_table *t);

uint64_t name_table_hash(const struct name_table *t, struct wire_span key);

/* NULL when there is none. */
struct name *name_table_find(const struct name_table *t, struct wire_span key, uint64_t hash);

/* The name must not be in the table. Returns 0 or -ENOMEM (unchanged). */
int name_table_insert(struct name_table *t, struct name *name, uint64_t hash);

/* The name must be in the table. */
void name_table_remove(struct name_table *t, const struct name *name, uint64_t hash);

/* Walks all names: start with *cursor = 0; NULL at the end. The table must not change meanwhile. */
struct name *name_table_next(const struct name_table *t, size_t *cursor);
