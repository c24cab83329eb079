#pragma once

/*
 * What the store has under one name: a value, a queue, waiting clients, and clients that were released for
 * an item of the queue. It exists as long as one of these does.
 */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/list.h"
#include "proto/wire.h"
#include "rendezvous/store/store_keys.h"

struct blob;

struct store_entry {
    uint64_t hash;
    struct store_key key;    /* in store.keys while it has a value */
    struct blob *value;      /* NULL: not a key */
    struct blob *queue_head; /* linked by blob.next */
    struct blob *queue_tail;
    uint64_t queue_size;
    struct list waiters; /* of struct wait_link, in the order in which they began to wait */
    uint32_t n_waiters;
    uint32_t n_pinned; /* clients whose store_client.promised, or store_task.waking, this is */
    uint32_t key_size;
    uint16_t owner;  /* what the name is charged to: see store_share.h */
    uint8_t bytes[]; /* the key */
};

static inline bool store_entry_is(const struct store_entry *name, struct wire_span key)
{
    return name->key_size == key.size && (key.size == 0 || memcmp(name->bytes, key.data, key.size) == 0);
}

/* As CHECK and WAIT see it. */
static inline bool store_entry_exists(const struct store_entry *name)
{
    return name && (name->value || name->queue_head);
}
