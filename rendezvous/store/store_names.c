/*
 * Names and values of the store. Everything that a client can make it hold is charged to one account, whose
 * limit is checked before anything is allocated.
 */

#include "base/cleanup.h"
#include "base/err.h"
#include "rendezvous/store/store_impl.h"

#include <errno.h>
#include <stdlib.h>

/* What is charged for a name on top of its bytes: the allocation and its share of the table. */
#define NAME_CHARGE (sizeof(struct store_entry) + 2 * sizeof(struct store_slot))

/* Small values get room to grow, so that a counter is updated in place. */
enum { VALUE_CAPACITY_MIN = 24 };

/* ---- names ---- */

static uint64_t name_charge(const struct store_entry *name)
{
    return NAME_CHARGE + name->key_size;
}

static bool fits_account(const struct store *s, uint64_t n)
{
    const struct blob_account *a = &s->account;

    if (a->owner > 0)
        return store_share_fits(a->shares[a->owner].bytes, a->bytes, n, s->limits.bytes_max);
    return a->bytes <= s->limits.bytes_max && n <= s->limits.bytes_max - a->bytes;
}

/* What waits to be freed is freed now if it is needed, and no more of it. */
bool store_has_room(struct store *s, uint64_t n)
{
    while (!fits_account(s, n)) {
        if (blob_collect(&s->account, 1) == 0)
            return false;
    }
    return true;
}

struct store_entry *store_find(struct store *s, struct wire_span key)
{
    return store_table_find(&s->names, key, store_table_hash(&s->names, key));
}

static int create_name(struct store *s, struct wire_span key, uint64_t hash, struct store_entry **ret)
{
    const uint64_t charge = NAME_CHARGE + key.size;

    if (key.size > UINT32_MAX || !store_has_room(s, charge))
        return STORE_E_BYTES;
    _cleanup_free_ struct store_entry *name = malloc(sizeof(*name) + key.size);
    if (!name)
        return -ENOMEM;
    *name = (struct store_entry){.hash = hash, .key_size = (uint32_t)key.size, .owner = s->account.owner};
    list_init(&name->waiters);
    list_init(&name->key.link);
    if (key.size > 0)
        memcpy(name->bytes, key.data, key.size);
    TRY(store_table_insert(&s->names, name, hash));
    blob_account_add(&s->account, name->owner, charge);
    *ret = steal_ptr(name);
    return 0;
}

int store_obtain(struct store *s, struct wire_span key, struct store_entry **ret)
{
    uint64_t hash = store_table_hash(&s->names, key);
    struct store_entry *name = store_table_find(&s->names, key, hash);

    if (!name)
        return create_name(s, key, hash, ret);
    *ret = name;
    return 0;
}

void store_free_name(struct store *s, struct store_entry *name)
{
    blob_unref(name->value);
    for (struct blob *b = name->queue_head, *next; b; b = next) {
        next = b->next;
        blob_unref(b);
    }
    blob_account_remove(&s->account, name->owner, name_charge(name));
    free(name);
}

static void charge_to(struct store *s, struct store_entry *name, uint16_t owner)
{
    if (name->owner == owner)
        return;
    blob_account_remove(&s->account, name->owner, name_charge(name));
    name->owner = owner;
    blob_account_add(&s->account, owner, name_charge(name));
}

/* May the owner pay for the name, which is charged to it or to another one? */
static bool may_charge_to(const struct store *s, const struct store_entry *name, uint16_t owner)
{
    const struct blob_account *a = &s->account;
    uint64_t charge = name_charge(name);

    return owner == 0 || owner == name->owner ||
           store_share_fits(a->shares[owner].bytes, a->bytes - charge, charge, s->limits.bytes_max);
}

/* The owner of what keeps the name: of the key, of the first item, or of the first wait. */
static uint16_t keeper_of(const struct store_entry *name)
{
    if (!name->value && name->queue_head)
        return name->queue_head->owner;
    if (!name->value && name->n_waiters > 0)
        return list_entry(name->waiters.next, struct wait_link, entry)->wait->owner;
    return name->owner;
}

/* A name that nothing hangs on is none. */
void store_tidy(struct store *s, struct store_entry *name)
{
    if (name->value || name->queue_head || name->n_waiters > 0 || name->n_pinned > 0) {
        uint16_t keeper = keeper_of(name);

        if (may_charge_to(s, name, keeper))
            charge_to(s, name, keeper);
        return;
    }
    store_table_remove(&s->names, name, name->hash);
    store_free_name(s, name);
}

/* ---- values ---- */

int store_create_blob(struct store *s, size_t capacity, struct blob **ret)
{
    if (capacity < VALUE_CAPACITY_MIN)
        capacity = VALUE_CAPACITY_MIN;
    if (!store_has_room(s, blob_charge(capacity)))
        return STORE_E_BYTES;
    *ret = blob_create(&s->account, capacity);
    return *ret ? 0 : -ENOMEM;
}

/* May the value be overwritten where it is? Not while it is being sent, and not if it wastes memory. */
static bool fits_in_place(const struct blob *b, size_t size)
{
    return b && b->refs == 1 && !b->last_part && b->capacity >= size &&
           b->capacity / 4 <= size + VALUE_CAPACITY_MIN;
}

/* May the owner of the request have this key as one more? It pays for the name as well then, which another one may have made by
 * waiting for it. */
static int check_new_key(struct store *s, const struct store_entry *name)
{
    const struct blob_account *a = &s->account;

    if (s->n_keys >= s->limits.keys_max)
        return STORE_E_KEYS;
    if (a->owner > 0 && !store_share_fits(a->shares[a->owner].keys, s->n_keys, 1, s->limits.keys_max))
        return STORE_E_KEYS;
    return may_charge_to(s, name, a->owner) ? 0 : STORE_E_BYTES;
}

int store_install(struct store *s, struct store_entry *name, struct blob *b)
{
    TRY(name->value ? 0 : check_new_key(s, name));
    if (!name->value) {
        charge_to(s, name, s->account.owner);
        store_keys_add(s, name);
    }
    blob_unref(name->value);
    name->value = b;
    return 0;
}

int store_write_value(struct store *s, struct store_entry *name, struct wire_span value)
{
    struct blob *b;

    if (fits_in_place(name->value, value.size)) {
        blob_fill(name->value, value);
        return 0;
    }
    TRY(name->value ? 0 : check_new_key(s, name));
    TRY(store_create_blob(s, value.size, &b));
    blob_fill(b, value);
    int r = store_install(s, name, b);
    if (r != 0)
        blob_unref(
            b); /* the owner's share had room for the value, but not for the name of another one as well */
    return r;
}

/* ---- extending ---- */

/* Up to this size a value that grows is copied to one allocation twice as large, so that most values have one part. */
enum { GROW_BY_COPY_MAX = STEP_VALUE_MAX, PART_MAX = 1 << 20 };

static int grow_by_copy(struct store *s, struct store_entry *name, size_t size)
{
    struct blob *old = name->value, *b;
    int r = store_create_blob(s, 2 * size, &b);

    if (r == STORE_E_BYTES)
        r = store_create_blob(s, size, &b);
    if (r != 0)
        return r;
    blob_append(b, old->data, old->total);
    blob_unref(old);
    name->value = b;
    return 0;
}

/* An eighth of the value, so that many small ones are linear, and the number of parts stays low. */
static size_t part_capacity(size_t total, size_t needed)
{
    size_t capacity = total / 8 < PART_MAX ? total / 8 : PART_MAX;

    return capacity > needed ? capacity : needed;
}

static int grow_by_part(struct store *s, struct store_entry *name, size_t needed)
{
    struct blob *part;
    int r = store_create_blob(s, part_capacity(name->value->total, needed), &part);

    if (r == STORE_E_BYTES)
        r = store_create_blob(s, needed, &part);
    if (r == 0)
        blob_add_part(name->value, part);
    return r;
}

int store_append_value(struct store *s, struct store_entry *name, struct wire_span value)
{
    struct blob *b = name->value;
    int r = 0;

    if (!b)
        return store_write_value(s, name, value);
    size_t room = blob_room(b);
    if (value.size > SIZE_MAX / 2 - b->total)
        return STORE_E_BYTES;
    if (room < value.size && !b->last_part && b->total + value.size <= GROW_BY_COPY_MAX)
        r = grow_by_copy(s, name, b->total + value.size);
    else if (room < value.size)
        r = grow_by_part(s, name, value.size);
    if (r == 0)
        blob_append(name->value, value.data, value.size);
    return r;
}

int store_install_behind(struct store *s, struct store_entry *name, struct blob *b)
{
    if (!name->value)
        return store_install(s, name, b);
    if (b->total > SIZE_MAX / 2 - name->value->total)
        return STORE_E_BYTES;
    blob_add_part(name->value, b);
    return 0;
}

/* ---- numbers ---- */

bool store_value_number(const struct blob *value, int64_t *ret)
{
    char text[NUMBER_SIZE_MAX + 1], *end;
    size_t n = value->total < NUMBER_SIZE_MAX ? value->total : NUMBER_SIZE_MAX;

    blob_copy(value, (uint8_t *)text, n);
    text[n] = '\0';
    errno = 0;
    *ret = strtoll(text, &end, 10);
    /* If the number may go on behind these bytes, nothing is known about it. */
    return end != text && errno == 0 && (value->total == n || end < text + n);
}
