/*
 * Names and values of the store. Everything that a client can make it hold is charged to one account, whose
 * limit is checked before anything is allocated.
 */

#include "rendezvous/store_impl.h"

#include <errno.h>
#include <stdlib.h>

/* What is charged for a name on top of its bytes: the allocation and its share of the table. */
#define NAME_CHARGE (sizeof(struct store_entry) + 2 * sizeof(struct store_slot))

/* Small values get room to grow, so that a counter is updated in place. */
enum { VALUE_CAPACITY_MIN = 24 };

/* ---- names ---- */

bool store_has_room(const struct store *s, uint64_t n)
{
    return s->account.bytes <= s->limits.bytes_max && n <= s->limits.bytes_max - s->account.bytes;
}

struct store_entry *store_find(struct store *s, struct wire_span key)
{
    return store_table_find(&s->names, key, store_table_hash(&s->names, key));
}

static int create_name(struct store *s, struct wire_span key, uint64_t hash, struct store_entry **ret)
{
    uint64_t charge = NAME_CHARGE + key.size;
    struct store_entry *name;
    int r;

    if (key.size > UINT32_MAX || !store_has_room(s, charge))
        return STORE_E_BYTES;
    name = malloc(sizeof(*name) + key.size);
    if (!name)
        return -ENOMEM;
    *name = (struct store_entry){.hash = hash, .key_size = (uint32_t)key.size};
    list_init(&name->waiters);
    if (key.size > 0)
        memcpy(name->key, key.data, key.size);
    r = store_table_insert(&s->names, name, hash);
    if (r < 0) {
        free(name);
        return r;
    }
    s->account.bytes += charge;
    *ret = name;
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
    s->account.bytes -= NAME_CHARGE + name->key_size;
    free(name);
}

/* A name that nothing hangs on is none. */
void store_tidy(struct store *s, struct store_entry *name)
{
    if (name->value || name->queue_head || name->n_waiters > 0 || name->n_promised > 0)
        return;
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
    return b && b->refs == 1 && b->capacity >= size && b->capacity / 4 <= size + VALUE_CAPACITY_MIN;
}

int store_write_value(struct store *s, struct store_entry *name, struct wire_span value)
{
    struct blob *b;
    int r;

    if (fits_in_place(name->value, value.size)) {
        blob_fill(name->value, value);
        return 0;
    }
    if (!name->value && s->n_keys >= s->limits.keys_max)
        return STORE_E_KEYS;
    r = store_create_blob(s, value.size, &b);
    if (r != 0)
        return r;
    blob_fill(b, value);
    if (!name->value)
        s->n_keys++;
    blob_unref(name->value);
    name->value = b;
    return 0;
}

/* Capacity for an APPEND: doubling keeps many small ones linear, a large value grows by an eighth. */
static size_t appended_capacity(size_t capacity, size_t needed)
{
    size_t step = capacity < (1u << 20) ? capacity : capacity / 8;

    return capacity + step > needed ? capacity + step : needed;
}

int store_append_value(struct store *s, struct store_entry *name, struct wire_span value)
{
    struct blob *old = name->value, *b;
    int r;

    if (!old)
        return store_write_value(s, name, value);
    if (value.size > SIZE_MAX / 2 - old->size)
        return STORE_E_BYTES;
    if (old->refs > 1 || old->capacity - old->size < value.size) {
        r = store_create_blob(s, appended_capacity(old->capacity, old->size + value.size), &b);
        if (r == STORE_E_BYTES)
            r = store_create_blob(s, old->size + value.size, &b);
        if (r != 0)
            return r;
        blob_fill(b, wire_span(old->data, old->size));
        blob_unref(old);
        name->value = b;
    }
    b = name->value;
    if (value.size > 0)
        memcpy(b->data + b->size, value.data, value.size);
    b->size += value.size;
    return 0;
}
