#include "rendezvous/store/store_keys.h"

#include <stdlib.h>
#include <string.h>

#include "rendezvous/store/store_impl.h"

/* In store_key.born of a ghost, on top of the number. */
#define GHOST (UINT64_C(1) << 63)

struct store_ghost {
    struct store_key key;
    struct list link; /* in store.ghosts, in the order of their deaths */
    uint64_t died;
    size_t size;
    uint8_t name[];
};

static uint64_t ghost_charge(const struct store_ghost *g)
{
    return sizeof(*g) + g->size;
}

/* ---- keys ---- */

void store_keys_add(struct store *s, struct store_entry *name)
{
    name->key.born = ++s->last_number;
    list_append(&s->keys, &name->key.link);
    s->n_keys++;
    if (name->owner > 0)
        s->account.shares[name->owner].keys++;
}

static void break_listings(struct store *s)
{
    while (!list_is_empty(&s->listings)) {
        struct store_listing *l = list_entry(s->listings.next, struct store_listing, link);

        list_unlink(&l->at.link);
        list_unlink(&l->link);
    }
}

/* A ghost is for the clients that list the keys, whatever the one that deletes may hold. */
static bool has_room_for_all(struct store *s, uint64_t n)
{
    uint16_t owner = s->account.owner;

    s->account.owner = 0;
    bool has_room = store_has_room(s, n);
    s->account.owner = owner;
    return has_room;
}

static struct store_ghost *create_ghost(struct store *s, const struct store_entry *name)
{
    size_t size = name->key_size;
    struct store_ghost *g;

    if (s->ghost_bytes + sizeof(*g) + size > STORE_GHOSTS_MAX || !has_room_for_all(s, sizeof(*g) + size))
        return NULL;
    g = malloc(sizeof(*g) + size);
    if (!g)
        return NULL;
    *g = (struct store_ghost){.key.born = name->key.born | GHOST, .died = ++s->last_number, .size = size};
    if (size > 0)
        memcpy(g->name, name->bytes, size);
    return g;
}

/* The ghost takes the place of the entry in the list. */
static void leave_ghost(struct store *s, struct store_entry *name)
{
    struct store_ghost *g = create_ghost(s, name);

    if (!g) {
        break_listings(s);
        return;
    }
    list_append(&name->key.link, &g->key.link); /* ahead of the entry, which leaves */
    list_append(&s->ghosts, &g->link);
    s->ghost_bytes += ghost_charge(g);
    blob_account_add(&s->account, 0, ghost_charge(g));
}

void store_keys_remove(struct store *s, struct store_entry *name)
{
    if (!list_is_empty(&s->listings) &&
        list_entry(s->listings.prev, struct store_listing, link)->until > name->key.born)
        leave_ghost(s, name);
    list_unlink(&name->key.link);
    name->key.born = 0;
    s->n_keys--;
    if (name->owner > 0)
        s->account.shares[name->owner].keys--;
}

bool store_keys_clean(struct store *s, uint64_t n)
{
    for (; !list_is_empty(&s->ghosts); n--) {
        struct store_ghost *g = list_entry(s->ghosts.next, struct store_ghost, link);

        if (!list_is_empty(&s->listings) &&
            list_entry(s->listings.next, struct store_listing, link)->until <= g->died)
            return false;
        if (n == 0)
            return true;
        list_unlink(&g->link);
        list_unlink(&g->key.link);
        s->ghost_bytes -= ghost_charge(g);
        blob_account_remove(&s->account, 0, ghost_charge(g));
        free(g);
    }
    return false;
}

/* ---- listings ---- */

void store_listing_begin(struct store *s, struct store_listing *l)
{
    l->at.born = 0;
    l->until = ++s->last_number;
    list_append(&s->listings, &l->link);
    list_append(s->keys.next, &l->at.link); /* ahead of the first key */
}

/* Is this place one that the listing shows? */
static bool listing_shows(const struct store_listing *l, struct store_key *key, struct wire_span *ret_name)
{
    const struct store_ghost *g = list_entry(key, struct store_ghost, key);
    const struct store_entry *name = list_entry(key, struct store_entry, key);

    if (key->born == 0)
        return false;
    if (!(key->born & GHOST))
        *ret_name = wire_span(name->bytes, name->key_size);
    else if (g->died >= l->until)
        *ret_name = wire_span(g->name, g->size);
    else
        return false;
    return true;
}

enum listing_result store_listing_next(struct store *s, struct store_listing *l, uint64_t *units,
                                       struct wire_span *ret_name)
{
    struct list *pos = l->at.link.next;
    enum listing_result r = LISTING_MORE;

    if (list_is_empty(&l->link))
        return LISTING_BROKEN;
    for (; *units > 0 && r == LISTING_MORE; --*units) {
        struct store_key *key = list_entry(pos, struct store_key, link);

        if (pos == &s->keys || (key->born & ~GHOST) > l->until) {
            r = LISTING_END;
            break;
        }
        if (listing_shows(l, key, ret_name))
            r = LISTING_KEY;
        pos = pos->next;
    }
    list_move(pos, &l->at.link);
    return r;
}

void store_listing_end(struct store_listing *l)
{
    if (l->until == 0)
        return;
    list_unlink(&l->at.link); /* a broken one is its own list */
    list_unlink(&l->link);
    l->until = 0;
}
