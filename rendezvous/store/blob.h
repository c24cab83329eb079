#pragma once

/*
 * A value: bytes with a reference count. The store holds one reference; a reply that is being sent holds
 * another, so a large value is sent from where it is stored, and may be replaced meanwhile.
 *
 * A value that APPEND extends beyond its first allocation gets further parts. Nothing that was written is ever
 * copied or moved then, whatever the size of the value, and a reply that is being sent is not affected: it
 * ends at the size that the value had when the reply was made.
 *
 * Every blob is charged to an account until it is freed, and there to the owner whose client made it. A value that was replaced but
 * is still being sent to a client that does not read therefore counts against the store's limit. Giving many pages back to the kernel
 * takes time: a large value without references waits in the account for blob_collect().
 * One thread only: the count is not atomic.
 */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/store/store_share.h"

struct blob;

struct blob_account {
    uint64_t bytes;
    struct blob *garbage;       /* without references, not freed yet; linked by blob.next */
    struct store_share *shares; /* by the number of the owner; NULL: all clients have number 0 */
    uint16_t owner;             /* of what is allocated now */
};

static inline void blob_account_add(struct blob_account *a, uint16_t owner, uint64_t n)
{
    a->bytes += n;
    if (owner > 0)
        a->shares[owner].bytes += n;
}

static inline void blob_account_remove(struct blob_account *a, uint16_t owner, uint64_t n)
{
    assert(a->bytes >= n);
    a->bytes -= n;
    if (owner > 0)
        a->shares[owner].bytes -= n;
}

struct blob {
    struct blob_account *account;
    struct blob
        *next; /* in a queue or in garbage, which owns that reference; in a ring of parts; else NULL */
    struct blob *last_part; /* its next is the first part; NULL: no parts. The value owns its parts. */
    size_t total;           /* bytes of the value: here and in all parts. In a part: not used */
    uint32_t size;          /* bytes here */
    uint32_t capacity;
    uint32_t refs;
    uint16_t owner;
    uint8_t data[];
};

/* Bytes of a blob, its parts not counted. */
enum { BLOB_CAPACITY_MAX = 1 << 30 };

/* What a blob of that capacity is charged with. */
static inline uint64_t blob_charge(size_t capacity)
{
    return sizeof(struct blob) + (uint64_t)capacity;
}

/* Room for capacity bytes, size 0, one reference for the caller. NULL when memory is out, or beyond
 * BLOB_CAPACITY_MAX. */
struct blob *blob_create(struct blob_account *account, size_t capacity);

static inline struct blob *blob_ref(struct blob *b)
{
    b->refs++;
    return b;
}

/* Frees with the last reference, or leaves that to blob_collect(); NULL does nothing. */
void blob_unref(struct blob *b);

/* Frees garbage, about max_bytes of it or more by one part. Returns the bytes of account that it freed: 0 when
 * there is no garbage. */
uint64_t blob_collect(struct blob_account *account, uint64_t max_bytes);

/* Bytes that can be appended to the value without another part. */
static inline size_t blob_room(const struct blob *b)
{
    const struct blob *last = b->last_part ? b->last_part : b;

    return last->capacity - last->size;
}

/* Appends up to blob_room() bytes. */
void blob_append(struct blob *b, const uint8_t *data, size_t n);

/* The part becomes the end of the value b, which owns it then. It has no parts of its own and one reference. */
void blob_add_part(struct blob *b, struct blob *part);

/* The part that follows `part` of the value b; NULL at the end. The first part of a value is b itself. */
static inline struct blob *blob_next_part(const struct blob *b, const struct blob *part)
{
    if (part == b)
        return b->last_part ? b->last_part->next : NULL;
    return part == b->last_part ? NULL : part->next;
}

/* Copies n bytes of the value, from its start; n is at most b->total. */
void blob_copy(const struct blob *b, uint8_t *to, size_t n);
