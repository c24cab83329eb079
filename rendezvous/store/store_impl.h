#pragma once

/*
 * Internal to the store core: what store.c (requests), store_names.c (names and values), store_keys.c
 * (keys in order), store_value.c (large values) and store_wait.c (waiting) share. No other file includes this.
 *
 * Results are 0, -ENOMEM and STORE_E_... throughout.
 */

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "rendezvous/store/store_entry.h"
#include "rendezvous/store/store.h"

/* One request under way. */
struct call {
    struct store *store;
    struct store_client *client;
    const struct wire_request *request;
    struct outbox *out;
    struct store_budget *budget;
};

/* May the request go on? Takes n units off, or what is left of them. */
static inline bool call_spend(struct call *call, uint64_t n)
{
    struct store_budget *b = call->budget;

    if (b->units == 0)
        return false;
    b->units -= n < b->units ? n : b->units;
    return true;
}

/* May a request of that cost begin in this turn? What fits into one turn is not cut. */
static inline bool call_fits(const struct call *call, uint64_t cost)
{
    const struct store_budget *b = call->budget;

    return b->units >= (cost < b->turn ? cost : b->turn);
}

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

/* May that much more be charged to the client whose request is executed? */
bool store_has_room(struct store *s, uint64_t n);

/* NULL when there is none. */
struct store_entry *store_find(struct store *s, struct wire_span key);

/* Finds or creates. */
int store_obtain(struct store *s, struct wire_span key, struct store_entry **ret);

/* Frees the name if nothing hangs on it; else it is charged to an owner of what does (store_share.h). */
void store_tidy(struct store *s, struct store_entry *name);

/* Frees the name, value and queue; it is out of the table, or the table is on its way out. */
void store_free_name(struct store *s, struct store_entry *name);

int store_create_blob(struct store *s, size_t capacity, struct blob **ret);

/* These do not release waiters. A refused one changed nothing. */
int store_write_value(struct store *s, struct store_entry *name, struct wire_span value);
int store_append_value(struct store *s, struct store_entry *name, struct wire_span value);

/* Replaces the value in place. */
static inline void blob_fill(struct blob *b, struct wire_span value)
{
    b->size = 0;
    b->total = 0;
    blob_append(b, value.data, value.size);
}

/* A value that is all there becomes the name's, in place of what it had, or behind it. If that
 * succeeds, the name owns the caller's reference. */
int store_install(struct store *s, struct store_entry *name, struct blob *b);
int store_install_behind(struct store *s, struct store_entry *name, struct blob *b);

/* The number that the value begins with: as in PyTorch, counters are decimal text, so whatever a client SETs can be counted on,
 * and GET reads a counter. False where std::stoll() throws: no digits, or out of range. A number with this many bytes or more of
 * white space and digits, which then goes on, is none. */
enum { NUMBER_SIZE_MAX = 4096 };
bool store_value_number(const struct blob *value, int64_t *ret);

/* ---- store_value.c ---- */

/* Values up to this size are copied and compared at once. */
enum { STEP_VALUE_MAX = 64 * 1024 };

/* Copies the value to task.fresh, in steps. 0: it is all there. */
int store_prepare(struct call *call, struct wire_span value);

/* Compares the value of the request's key with `expected`, in steps. 0: *ret_current is the key's value at this moment,
 * or NULL, and *ret_equal is about that one. */
int store_compare(struct call *call, struct wire_span expected, struct blob **ret_current, bool *ret_equal);

/* The values of MULTI_GET's keys, at the moment when they are looked up, in steps; then their bytes, in steps. */
int store_collect_values(struct call *call);
int store_reply_values(struct call *call);

/* ---- store_wait.c ---- */

struct wait_link {
    struct list entry; /* in name.waiters, or unlinked: this name was written */
    struct store_entry *name;
    struct store_wait *wait;
    uint64_t number; /* ascending in name.waiters */
};

struct store_wait {
    struct store_client *client; /* NULL: dropped */
    struct store_wait *next_dropped;
    size_t
        n_missing; /* links in lists of waiters; and one more until all names of the request were looked up */
    size_t n_links; /* used */
    size_t n_room;
    bool building;
    uint16_t owner; /* as the client's */
    struct wait_link links[];
};

/* The caller waits for those of the request's keys that are missing, in steps; *ret_waits: there are some. */
int store_wait_for_keys(struct call *call, bool *ret_waits);

/* The caller waits until this one is written, whether it is there or not. */
int store_wait_for_name(struct call *call, struct store_entry *name);

/* The name was written: releases all clients that wait for it now, in steps. 0: done, and the name may be freed. */
int store_wake_all(struct call *call, struct store_entry *name);

/* An item was pushed: releases one client, in steps. */
int store_wake_first(struct call *call, struct store_entry *name);

/* Goes on with task.waking, if there is any. */
int store_wake_on(struct call *call);

/* Takes waits of departed clients apart, in *units. False when none is left. */
bool store_clean_waits(struct store *s, uint64_t *units);

/* The wait w is given up; a large one is taken apart later. */
void store_drop_wait(struct store *s, struct store_wait *w);

/* The client pops the item that it was released for, or never will. The name of the queue, which the caller tidies, or NULL. */
struct store_entry *store_end_promise(struct store_client *client);

/* The client will not pop the item that it was released for: the next one may. */
void store_pass_on(struct store *s, struct store_client *client);
