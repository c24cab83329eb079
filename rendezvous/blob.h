#pragma once

/*
 * A value: bytes with a reference count. The store holds one reference; a reply that is being sent holds
 * another, so a large value is sent from where it is stored, and may be replaced meanwhile.
 *
 * Every blob is charged to an account until its last reference is dropped. A value that was replaced but is
 * still being sent to a client that does not read therefore counts against the store's limit. One thread
 * only: the count is not atomic.
 */

#include <stddef.h>
#include <stdint.h>

struct blob_account {
    uint64_t bytes;
};

struct blob {
    struct blob_account *account;
    struct blob *next; /* in a queue, which owns that reference; NULL elsewhere */
    size_t size;
    size_t capacity;
    uint32_t refs;
    uint8_t data[];
};

/* What a blob of that capacity is charged with. */
static inline uint64_t blob_charge(size_t capacity)
{
    return sizeof(struct blob) + (uint64_t)capacity;
}

/* Room for capacity bytes, size 0, one reference for the caller. NULL when memory is out. */
struct blob *blob_create(struct blob_account *account, size_t capacity);

static inline struct blob *blob_ref(struct blob *b)
{
    b->refs++;
    return b;
}

/* Frees with the last reference; NULL does nothing. */
void blob_unref(struct blob *b);
