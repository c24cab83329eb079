#include "rendezvous/blob.h"

#include <assert.h>
#include <stdlib.h>

struct blob *blob_create(struct blob_account *account, size_t capacity)
{
    struct blob *b;

    if (capacity > SIZE_MAX - sizeof(*b))
        return NULL;
    b = malloc(sizeof(*b) + capacity);
    if (!b)
        return NULL;
    *b = (struct blob){.account = account, .capacity = capacity, .refs = 1};
    account->bytes += blob_charge(capacity);
    return b;
}

void blob_unref(struct blob *b)
{
    if (!b)
        return;
    assert(b->refs > 0);
    if (--b->refs > 0)
        return;
    assert(b->account->bytes >= blob_charge(b->capacity));
    b->account->bytes -= blob_charge(b->capacity);
    free(b);
}
