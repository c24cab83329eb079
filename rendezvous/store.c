/*
 * Requests: find the entry, change it, append the reply, release waiting clients. Names and values are in
 * store_names.c, waiting in store_wait.c.
 *
 * Failure: an allocation fails or a limit is reached. Replies of fixed size have their room reserved before
 * anything is changed, so a request either is executed and answered, or is not executed.
 */

#include "rendezvous/store_impl.h"

#include <errno.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "rendezvous/counter.h"

/* Room for every reply of fixed size, with the release of the caller's own wait ahead of it. */
enum { FIXED_REPLY_MAX = 32 };

static int reply_value(struct call *call, struct store_entry *name)
{
    if (name && name->value)
        return outbox_put_blob(call->out, name->value);
    return buf_append_u64(&call->out->bytes, 0);
}

/* ---- keys ---- */

/* Writes with store_write_value() or store_append_value() and releases waiting clients. */
static int write_key(struct call *call, struct wire_span key, struct wire_span value,
                     int (*write)(struct store *, struct store_entry *, struct wire_span))
{
    struct store_entry *name;
    int r = store_obtain(call->store, key, &name);

    if (r != 0)
        return r;
    r = write(call->store, name, value);
    if (r == 0)
        store_wake_all(call, name);
    else
        store_tidy(call->store, name);
    return r;
}

static int do_set(struct call *call)
{
    return write_key(call, call->request->key, call->request->value, store_write_value);
}

static int do_append(struct call *call)
{
    return write_key(call, call->request->key, call->request->value, store_append_value);
}

static int do_multi_set(struct call *call)
{
    struct wire_span list = call->request->items, key, value;

    while (wire_next_pair(&list, &key, &value)) {
        int r = write_key(call, key, value, store_write_value);

        if (r != 0)
            return r;
    }
    return 0;
}

static int do_get(struct call *call)
{
    return reply_value(call, store_find(call->store, call->request->key));
}

static int do_multi_get(struct call *call)
{
    struct wire_span list = call->request->items, key;

    while (wire_next_key(&list, &key)) {
        int r = reply_value(call, store_find(call->store, key));

        if (r < 0)
            return r;
    }
    return 0;
}

static bool span_equals(struct wire_span a, struct wire_span b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* A missing key matches only an empty expected value; what stays is answered by the caller's own words. */
static int do_compare_set(struct call *call)
{
    const struct wire_request *q = call->request;
    struct store_entry *name = store_find(call->store, q->key);
    struct blob *current = name ? name->value : NULL;
    int r;

    if (!current && q->value.size > 0)
        return wire_put_vec(&call->out->bytes, q->value);
    if (current && !span_equals(wire_span(current->data, current->size), q->value))
        return outbox_put_blob(call->out, current);
    /* The room first: a value that was stored must be answered. */
    if (outbox_reserve(call->out, FIXED_REPLY_MAX, q->desired.size) < 0)
        return -ENOMEM;
    r = write_key(call, q->key, q->desired, store_write_value);
    if (r != 0)
        return r;
    return reply_value(call, store_find(call->store, q->key));
}

/* Adds to the number in the value, text in base 10; *ret_name and *ret_sum are set on success only. */
static int add_to_key(struct store *s, struct wire_span key, int64_t amount, struct store_entry **ret_name,
                      int64_t *ret_sum)
{
    char text[COUNTER_TEXT_MAX];
    struct store_entry *name;
    int64_t old = 0, sum;
    int r = store_obtain(s, key, &name);

    if (r != 0)
        return r;
    if (name->value && !counter_parse(name->value->data, name->value->size, &old))
        return STORE_E_NUMBER;
    /* Past the end it wraps, as it does in PyTorch's build; in unsigned numbers that is defined. */
    sum = (int64_t)((uint64_t)old + (uint64_t)amount);
    r = store_write_value(s, name, wire_span(text, counter_format(text, sum)));
    if (r != 0) {
        store_tidy(s, name);
        return r;
    }
    *ret_name = name;
    *ret_sum = sum;
    return 0;
}

static int do_add(struct call *call)
{
    struct store_entry *name;
    int64_t sum;
    int r = add_to_key(call->store, call->request->key, call->request->amount, &name, &sum);

    if (r != 0)
        return r;
    store_wake_all(call, name);
    call_reply_i64(call, sum);
    return 0;
}

/* The count is never reset: a client that comes after completion passes at once and counts on. */
static int do_barrier(struct call *call)
{
    struct store_entry *name;
    int64_t arrived;
    int r = add_to_key(call->store, call->request->key, 1, &name, &arrived);

    if (r != 0)
        return r;
    if (arrived < call->request->amount)
        return store_wait_for_name(call, name);
    store_wake_all(call, name);
    call_reply_u8(call, WIRE_WAIT_STOP);
    return 0;
}

static int do_check(struct call *call)
{
    struct wire_span list = call->request->items, key;
    uint8_t status = WIRE_CHECK_READY;

    while (wire_next_key(&list, &key)) {
        if (!store_entry_exists(store_find(call->store, key))) {
            status = WIRE_CHECK_NOT_READY;
            break;
        }
    }
    call_reply_u8(call, status);
    return 0;
}

static int do_delete_key(struct call *call)
{
    struct store *s = call->store;
    struct store_entry *name = store_find(s, call->request->key);
    bool is_key = name && name->value;

    if (is_key) {
        blob_unref(steal_ptr(name->value));
        s->n_keys--;
        store_tidy(s, name);
    }
    call_reply_i64(call, is_key);
    return 0;
}

static int do_getnumkeys(struct call *call)
{
    call_reply_i64(call, (int64_t)call->store->n_keys);
    return 0;
}

static int do_list_keys(struct call *call)
{
    struct store *s = call->store;
    struct store_entry *name;
    size_t cursor = 0;

    call_reply_i64(call, (int64_t)s->n_keys);
    while ((name = store_table_next(&s->names, &cursor))) {
        int r = name->value ? wire_put_vec(&call->out->bytes, wire_span(name->key, name->key_size)) : 0;

        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- waiting ---- */

static int do_wait(struct call *call)
{
    bool waits;
    int r = store_wait_for_keys(call, call->request->items, &waits);

    if (r == 0 && !waits)
        call_reply_u8(call, WIRE_WAIT_STOP);
    return r;
}

static int do_cancel_wait(struct call *call)
{
    if (call->client->wait)
        store_drop_wait(call->store, call->client->wait);
    store_pass_on(call, call->client);
    call_reply_u8(call, WIRE_WAIT_CANCELED);
    return 0;
}

/* ---- queues ---- */

static int do_queue_push(struct call *call)
{
    struct store *s = call->store;
    struct store_entry *name;
    struct blob *b;
    int r = store_obtain(s, call->request->key, &name);

    if (r != 0)
        return r;
    r = store_create_blob(s, call->request->value.size, &b);
    if (r != 0) {
        store_tidy(s, name);
        return r;
    }
    blob_fill(b, call->request->value);
    if (name->queue_tail)
        name->queue_tail->next = b;
    else
        name->queue_head = b;
    name->queue_tail = b;
    name->queue_size++;
    store_wake_first(call, name);
    return 0;
}

/* Takes the first item off. */
static void shift_queue(struct store_entry *name)
{
    struct blob *b = name->queue_head;

    name->queue_head = b->next;
    if (!name->queue_head)
        name->queue_tail = NULL;
    name->queue_size--;
    b->next = NULL;
    blob_unref(b);
}

static int do_queue_pop(struct call *call)
{
    struct store_entry *name = store_find(call->store, call->request->key);
    int r = 0;

    call_reply_i64(call, name ? (int64_t)name->queue_size : 0);
    if (!name)
        return 0;
    if (name->queue_head)
        r = outbox_put_blob(call->out, name->queue_head);
    if (r < 0)
        return r; /* the item stays for a client that can be answered */
    if (name->queue_head)
        shift_queue(name);
    if (call->client->promised == name)
        store_end_promise(call->client);
    store_tidy(call->store, name);
    return 0;
}

static int do_queue_len(struct call *call)
{
    struct store_entry *name = store_find(call->store, call->request->key);

    call_reply_i64(call, name ? (int64_t)name->queue_size : 0);
    return 0;
}

/* ---- requests ---- */

static int do_ping(struct call *call)
{
    (void)buf_append_u32(&call->out->bytes, call->request->word); /* the room is reserved */
    return 0;
}

static int do_validate(struct call *call)
{
    return STORE_E_VALIDATED;
}

/* Whether the request may be left out when its reply cannot be sent. 0 is no value: each operation decides. */
enum effect {
    EFFECT_READS = 1, /* changes nothing, so it may */
    EFFECT_WRITES,    /* changes keys, queues, waits or the connection, so it may not */
};

/* How many bytes of its own the reply takes; references to stored values are not counted. 0 is no value. */
enum reply_size {
    REPLY_SIZE_SMALL = 1, /* a fixed size, or one stored value */
    REPLY_SIZE_ECHO,      /* COMPARE_SET: may be the expected value of the request */
    REPLY_SIZE_LIST,      /* as many keys or values as the client asks for */
};

struct operation {
    int (*apply)(struct call *);
    enum effect effect;
    enum reply_size reply_size;
};

/* Positional, so that the compiler refuses a row that leaves a column out. */
static const struct operation operations[] = {
    [WIRE_OP_VALIDATE] = {do_validate, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_SET] = {do_set, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_COMPARE_SET] = {do_compare_set, EFFECT_WRITES, REPLY_SIZE_ECHO},
    [WIRE_OP_GET] = {do_get, EFFECT_READS, REPLY_SIZE_SMALL},
    [WIRE_OP_ADD] = {do_add, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_CHECK] = {do_check, EFFECT_READS, REPLY_SIZE_SMALL},
    [WIRE_OP_WAIT] = {do_wait, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_GETNUMKEYS] = {do_getnumkeys, EFFECT_READS, REPLY_SIZE_SMALL},
    [WIRE_OP_DELETE_KEY] = {do_delete_key, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_APPEND] = {do_append, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_MULTI_GET] = {do_multi_get, EFFECT_READS, REPLY_SIZE_LIST},
    [WIRE_OP_MULTI_SET] = {do_multi_set, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_CANCEL_WAIT] = {do_cancel_wait, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_PING] = {do_ping, EFFECT_READS, REPLY_SIZE_SMALL},
    [WIRE_OP_QUEUE_PUSH] = {do_queue_push, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_QUEUE_POP] = {do_queue_pop, EFFECT_WRITES, REPLY_SIZE_SMALL},
    [WIRE_OP_QUEUE_LEN] = {do_queue_len, EFFECT_READS, REPLY_SIZE_SMALL},
    [WIRE_OP_LIST_KEYS] = {do_list_keys, EFFECT_READS, REPLY_SIZE_LIST},
    [WIRE_OP_BARRIER] = {do_barrier, EFFECT_WRITES, REPLY_SIZE_SMALL},
};
static_assert(ARRAY_SIZE(operations) == WIRE_OP_COUNT, "every operation has its row");

bool store_only_reads(enum wire_op op)
{
    assert((unsigned)op < WIRE_OP_COUNT);
    return operations[op].effect == EFFECT_READS;
}

bool store_reply_may_be_huge(const struct wire_request *request)
{
    assert((unsigned)request->op < WIRE_OP_COUNT);
    switch (operations[request->op].reply_size) {
    case REPLY_SIZE_SMALL:
        return false;
    case REPLY_SIZE_ECHO:
        return request->value.size > OUTBOX_COPY_MAX;
    case REPLY_SIZE_LIST:
        return true;
    }
    return true; /* not reached: each row has one of these */
}

int store_apply(struct store *s, struct store_client *c, const struct wire_request *request,
                struct outbox *out)
{
    struct call call = {.store = s, .client = c, .request = request, .out = out};

    assert((unsigned)request->op < WIRE_OP_COUNT);
    if (!buf_reserve(&out->bytes, FIXED_REPLY_MAX))
        return -ENOMEM;
    return operations[request->op].apply(&call);
}

const char *store_error(int result)
{
    static const char *const words[STORE_E_COUNT] = {
        [STORE_E_NUMBER] = "asked to count on a value that is not a number",
        [STORE_E_VALIDATED] = "sent VALIDATE twice",
        [STORE_E_KEYS] = "asked for one key more than the limit (--max-keys)",
        [STORE_E_BYTES] = "asked for more memory than the limit (--max-bytes)",
        [STORE_E_WAITERS] = "is one more waiter for a key than the limit (--max-waiters)",
    };

    if (result < 0)
        return strerror(-result);
    assert(result > 0 && result < STORE_E_COUNT);
    return words[result];
}

/* ---- life ---- */

int store_init(struct store *s, const struct store_limits *limits, const uint8_t seed[SIPHASH_SEED_SIZE])
{
    *s = (struct store){.limits = *limits};
    list_init(&s->released);
    return store_table_init(&s->names, seed);
}

void store_finish(struct store *s)
{
    struct store_entry *name;
    size_t cursor = 0;

    if (!s->names.now.slots)
        return;
    assert(s->n_waiting == 0);
    while ((name = store_table_next(&s->names, &cursor)))
        store_free_name(s, name);
    store_table_finish(&s->names);
    assert(s->account.bytes == 0);
    *s = (struct store){0};
}

void store_client_init(struct store_client *c)
{
    *c = (struct store_client){0};
    list_init(&c->released);
}

void store_client_finish(struct store *s, struct store_client *c)
{
    struct call call = {.store = s};

    list_unlink(&c->released);
    if (c->wait)
        store_drop_wait(s, c->wait);
    store_pass_on(&call, c);
}
