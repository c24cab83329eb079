#pragma once

/*
 * Internal to the store core: what store.c (requests), store_names.c (names and values) and store_wait.c
 * (waiting) share. No other file includes this.
 *
 * Results are 0, -ENOMEM and STORE_E_... throughout.
 */

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "rendezvous/store_entry.h"
#include "rendezvous/store.h"

/* One request under way. */
struct call {
    struct store *store;
    struct store_client *client;
    const struct wire_request *request;
    struct outbox *out;
};

/* ---- replies of fixed size: store_apply() reserved their room ---- */

static inline void call_reply_u8(struct call *call, uint8_t v)
{
    int r = buf_append_u8(&call->out->bytes, v);

    assert(r == 0);
    (void)r;
}

static inline void call_reply_i64(struct call *call, int64_t v)
{
    int r = buf_append_u64(&call->out->bytes, (uint64_t)v);

    assert(r == 0);
    (void)r;
}

/* ---- store_names.c ---- */

/* May that much more be charged? */
bool store_has_room(const struct store *s, uint64_t n);

/* NULL when there is none. */
struct store_entry *store_find(struct store *s, struct wire_span key);

/* Finds or creates. */
int store_obtain(struct store *s, struct wire_span key, struct store_entry **ret);

/* Frees the name if nothing hangs on it. */
void store_tidy(struct store *s, struct store_entry *name);

/* Frees the name, value and queue; it is out of the table, or the table is on its way out. */
void store_free_name(struct store *s, struct store_entry *name);

int store_create_blob(struct store *s, size_t capacity, struct blob **ret);

/* These do not release waiters. A refused one changed nothing. */
int store_write_value(struct store *s, struct store_entry *name, struct wire_span value);
int store_append_value(struct store *s, struct store_entry *name, struct wire_span value);

static inline void blob_fill(struct blob *b, struct wire_span value)
{
    if (value.size > 0)
        memcpy(b->data, value.data, value.size);
    b->size = value.size;
}

/* ---- store_wait.c ---- */

/* The caller waits for those of the keys that are missing; *ret_waits: there are some. */
int store_wait_for_keys(struct call *call, struct wire_span list, bool *ret_waits);

/* The caller waits until this one is written, whether it is there or not. */
int store_wait_for_name(struct call *call, struct store_entry *name);

/* The name was written: releases all waiting clients, or one. */
void store_wake_all(struct call *call, struct store_entry *name);
void store_wake_first(struct call *call, struct store_entry *name);

/* The wait w is given up; it is freed. */
void store_drop_wait(struct store *s, struct store_wait *w);

/* The client popped the item that it was released for. The caller tidies the name. */
void store_end_promise(struct store_client *client);

/* The client will not pop the item that it was released for: the next one may. */
void store_pass_on(struct call *call, struct store_client *client);
