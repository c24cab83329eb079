#include "rendezvous/store/blob.h"

#include <stdlib.h>
#include <string.h>

/* What is freed where the last reference is dropped: below a tenth of a millisecond. */
enum { FREE_AT_ONCE_MAX = 1 << 20 };

struct blob *blob_create(struct blob_account *account, size_t capacity)
{
    struct blob *b;

    if (capacity > BLOB_CAPACITY_MAX)
        return NULL;
    b = malloc(sizeof(*b) + capacity);
    if (!b)
        return NULL;
    *b =
        (struct blob){.account = account, .capacity = (uint32_t)capacity, .refs = 1, .owner = account->owner};
    blob_account_add(account, account->owner, blob_charge(capacity));
    return b;
}

static uint64_t free_blob(struct blob *b)
{
    uint64_t charge = blob_charge(b->capacity);

    blob_account_remove(b->account, b->owner, charge);
    free(b);
    return charge;
}

void blob_unref(struct blob *b)
{
    if (!b)
        return;
    assert(b->refs > 0);
    if (--b->refs > 0)
        return;
    if (!b->last_part && b->capacity <= FREE_AT_ONCE_MAX) {
        (void)free_blob(b);
        return;
    }
    b->next = b->account->garbage;
    b->account->garbage = b;
}

/* Takes the first part off b; NULL: it has none. */
static struct blob *take_part(struct blob *b)
{
    struct blob *last = b->last_part, *first;

    if (!last)
        return NULL;
    first = last->next;
    if (first == last)
        b->last_part = NULL;
    else
        last->next = first->next;
    return first;
}

uint64_t blob_collect(struct blob_account *account, uint64_t max_bytes)
{
    uint64_t freed = 0;

    while (account->garbage && freed < max_bytes) {
        struct blob *b = account->garbage, *part = take_part(b);

        if (!part) {
            account->garbage = b->next;
            part = b;
        }
        freed += free_blob(part);
    }
    return freed;
}

void blob_append(struct blob *b, const uint8_t *data, size_t n)
{
    struct blob *last = b->last_part ? b->last_part : b;

    assert(n <= blob_room(b));
    if (n > 0)
        memcpy(last->data + last->size, data, n);
    last->size += (uint32_t)n;
    b->total += n;
}

void blob_add_part(struct blob *b, struct blob *part)
{
    assert(part->refs == 1 && !part->last_part && !part->next);
    if (b->last_part) {
        part->next = b->last_part->next;
        b->last_part->next = part;
    } else {
        part->next = part;
    }
    b->last_part = part;
    b->total += part->size;
}

void blob_copy(const struct blob *b, uint8_t *to, size_t n)
{
    for (const struct blob *part = b; n > 0; part = blob_next_part(b, part)) {
        size_t size = part->size < n ? part->size : n;

        memcpy(to, part->data, size);
        to += size;
        n -= size;
    }
}
