#pragma once

/*
 * The keys in the order in which they were created, and lists of them (LIST_KEYS) that are sent while keys come
 * and go. A listing shows exactly the keys that existed when it began:
 *
 * - keys that were created later are behind its end, since each key has a number;
 * - a key that is deleted meanwhile leaves a ghost in its place, which has its name and the number of its death. The
 *   ghost goes as soon as no listing is old enough to see it.
 *
 * So a listing costs its place in the list, however slowly its client reads. When ghosts take more than
 * STORE_GHOSTS_MAX, or there is no room for them, all listings are broken: their clients cannot be given what they asked for.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "proto/wire.h"

struct store;
struct store_entry;

/* What the names of deleted keys may take that a listing still has to show. */
enum { STORE_GHOSTS_MAX = 64 << 20 };

/* A place in the list of keys: of an entry, of a ghost, or of a listing. */
struct store_key {
    struct list link;
    uint64_t
        born; /* the number of its creation; see store_keys.c for ghosts. 0: a listing, or not in the list */
};

struct store_listing {
    struct store_key at; /* in the list of keys, ahead of what comes next; unlinked: broken */
    struct list link;    /* in store.listings, the oldest first */
    uint64_t until;      /* it shows keys with a lower number; 0: not begun */
};

/* The entry has got a value, or is about to lose it. */
void store_keys_add(struct store *s, struct store_entry *name);
void store_keys_remove(struct store *s, struct store_entry *name);

void store_listing_begin(struct store *s, struct store_listing *l);

/* Results of store_listing_next(). */
enum listing_result {
    LISTING_KEY, /* *ret_name is the next one; it lives until the store is changed */
    LISTING_END,
    LISTING_MORE, /* no units left */
    LISTING_BROKEN,
};

/* Takes one unit off *units for every place that it looks at. */
enum listing_result store_listing_next(struct store *s, struct store_listing *l, uint64_t *units,
                                       struct wire_span *ret_name);

/* Accepts a listing that has not begun. */
void store_listing_end(struct store_listing *l);

/* Frees up to n ghosts that no listing shows. False when none of these is left. */
bool store_keys_clean(struct store *s, uint64_t n);
