#pragma once

/*
 * The table of names: open addressing with linear probing over a keyed hash. It grows and shrinks in
 * steps, a few slots with every insertion and removal, so no single request pays for moving a million
 * names. It does not own the names.
 */

#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"
#include "base/siphash.h"

struct store_entry;

struct store_slot {
    uint64_t hash;
    struct store_entry *name; /* NULL: free */
};

struct store_slots {
    struct store_slot *slots;
    size_t mask; /* number of slots - 1 */
};

struct store_table {
    struct store_slots now;
    struct store_slots old; /* being emptied into now; slots NULL: no move under way */
    size_t old_next;        /* first slot of old that was not moved yet */
    size_t old_released;    /* slots of old whose pages were given back */
    size_t used;            /* names in both */
    uint8_t seed[SIPHASH_SEED_SIZE];
};

/* Returns 0 or -ENOMEM. */
int store_table_init(struct store_table *t, const uint8_t seed[SIPHASH_SEED_SIZE]);
void store_table_finish(struct store_table *t);

uint64_t store_table_hash(const struct store_table *t, struct wire_span key);

/* NULL when there is none. */
struct store_entry *store_table_find(const struct store_table *t, struct wire_span key, uint64_t hash);

/* The name must not be in the table. Returns 0 or -ENOMEM (unchanged). */
int store_table_insert(struct store_table *t, struct store_entry *name, uint64_t hash);

/* The name must be in the table. */
void store_table_remove(struct store_table *t, const struct store_entry *name, uint64_t hash);

/* Walks all names: start with *cursor = 0; NULL at the end. The table must not change meanwhile. */
struct store_entry *store_table_next(const struct store_table *t, size_t *cursor);
