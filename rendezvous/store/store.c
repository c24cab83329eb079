/*
 * Requests: find the entry, change it, append the reply, release waiting clients. Names and values are in
 * store_names.c, waiting in store_wait.c.
 *
 * Failure: an allocation fails or a limit is reached. Replies of fixed size have their room reserved before
 * anything is changed, so a request either is executed and answered, or is not executed.
 */

#include "rendezvous/store/store_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/err.h"

/* Room for every reply of fixed size, with the release of the caller's own wait ahead of it. */
enum { FIXED_REPLY_MAX = 32 };

/* ---- keys ---- */

/* Replaces the value, or extends the value. */
static int write_in_steps(struct call *call, struct store_entry *name, struct wire_span value)
{
    struct store_task *t = &call->client->task;
    bool extends = call->request->op == WIRE_OP_APPEND;

    if (value.size <= STEP_VALUE_MAX)
        return (extends ? store_append_value : store_write_value)(call->store, name, value);
    TRY((extends ? store_install_behind : store_install)(call->store, name, t->fresh));
    t->fresh = NULL; /* owned by the name now */
    return 0;
}

/* Writes the value and releases waiting clients. The name may be freed then. */
static int write_key(struct call *call, struct wire_span key, struct wire_span value)
{
    struct store_entry *name;

    if (value.size > STEP_VALUE_MAX)
        TRY(store_prepare(call, value));
    TRY(store_obtain(call->store, key, &name));
    int r = write_in_steps(call, name, value);
    if (r == 0)
        return store_wake_all(call, name);
    store_tidy(call->store, name);
    return r;
}

/* SET and APPEND; a second call goes on with the release of waiting clients. */
static int do_write(struct call *call)
{
    if (call->client->task.waking)
        return store_wake_on(call);
    return write_key(call, call->request->key, call->request->value);
}

/* The next pair; the task holds the place of the pair behind before waiting clients are released. */
static int write_pair(struct call *call, struct wire_span *list)
{
    struct store_task *t = &call->client->task;
    struct wire_span rest = *list, key, value;

    (void)wire_next_pair(&rest, &key, &value); /* there is one: the request was decoded */
    int r = write_key(call, key, value);
    if (r != 0 && !(r == STORE_MORE && t->waking))
        return r;
    t->offset += list->size - rest.size;
    *list = rest;
    return r;
}

static int do_multi_set(struct call *call)
{
    struct wire_span all = call->request->items, list;
    struct store_task *t = &call->client->task;

    TRY(store_wake_on(call));
    if (!t->counted && !call_fits(call, 2 * (uint64_t)call->request->n_items))
        return STORE_MORE;
    t->active = true;
    t->counted = true;
    list = wire_span(all.data + t->offset, all.size - t->offset);
    while (list.size > 0)
        TRY(call_spend(call, 2) ? write_pair(call, &list) : STORE_MORE);
    return 0;
}

static int do_get(struct call *call)
{
    struct store_entry *name = store_find(call->store, call->request->key);

    if (name && name->value)
        return outbox_put_blob(call->out, name->value);
    return buf_append_u64(&call->out->bytes, 0);
}

static int do_multi_get(struct call *call)
{
    TRY(store_collect_values(call));
    return store_reply_values(call);
}

/* Stores the desired value; the task keeps a large one for the reply. */
static int write_desired(struct call *call)
{
    const struct wire_request *q = call->request;
    bool large = q->desired.size > OUTBOX_COPY_MAX;
    struct store_entry *name;

    TRY(large ? store_prepare(call, q->desired) : 0);
    if (outbox_reserve(call->out, FIXED_REPLY_MAX, q->desired.size) < 0)
        return -ENOMEM; /* a value that was stored must be answered */
    TRY(store_obtain(call->store, q->key, &name));
    int r = large ? store_install(call->store, name, call->client->task.fresh)
                  : store_write_value(call->store, name, q->desired);
    if (r != 0) {
        store_tidy(call->store, name);
        return r;
    }
    if (large)
        (void)blob_ref(name->value); /* a reference for the name and another for the reply */
    return store_wake_all(call, name);
}

/* The reply where nothing is stored: as long as the client likes, so the reply leaves in steps, as fast as the client reads. */
static int echo_expected(struct call *call)
{
    struct wire_span expected = call->request->value;
    struct store_task *t = &call->client->task;

    if (!t->counted) {
        call_reply_i64(call, (int64_t)expected.size);
        t->active = true;
        t->counted = true;
        t->n_done = 0;
    }
    while (t->n_done < expected.size) {
        size_t n = expected.size - t->n_done;

        if (n > OUTBOX_COPY_MAX)
            n = OUTBOX_COPY_MAX;
        if (outbox_size(call->out) >= call->budget->output_max || !call_spend(call, n / STORE_UNIT_BYTES))
            return STORE_MORE;
        TRY(buf_append(&call->out->bytes, expected.data + t->n_done, n));
        t->n_done += n;
    }
    return 0;
}

/* A missing key matches only an empty expected value; what stays is answered by the caller's own words. */
static int do_compare_set(struct call *call)
{
    const struct wire_request *q = call->request;
    struct store_task *t = &call->client->task;
    struct blob *current;
    bool equal;
    int r;

    if (t->counted)
        return echo_expected(call);
    if (t->waking) {
        r = store_wake_on(call);
    } else {
        r = store_compare(call, q->value, &current, &equal);
        if (r == 0 && !current && q->value.size > 0)
            return echo_expected(call);
        if (r == 0 && current && !equal)
            return outbox_put_blob(call->out, current);
        if (r == 0)
            r = write_desired(call);
    }
    if (r != 0)
        return r;
    return t->fresh ? outbox_put_blob(call->out, t->fresh) : wire_put_vec(&call->out->bytes, q->desired);
}

enum { NUMBER_SIZE = sizeof("-9223372036854775808") };

/* The number in base 10, without a NUL, at the end of text. By hand: snprintf() takes a tenth of an ADD. */
static struct wire_span format_number(char text[NUMBER_SIZE], int64_t number)
{
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t at = NUMBER_SIZE;

    do {
        text[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0)
        text[--at] = '-';
    return wire_span(text + at, NUMBER_SIZE - at);
}

/* Adds to the number in the value, text in base 10; *ret_name and *ret_sum are set on success only. */
static int add_to_key(struct store *s, struct wire_span key, int64_t amount, struct store_entry **ret_name,
                      int64_t *ret_sum)
{
    char text[NUMBER_SIZE];
    struct store_entry *name;
    int64_t old = 0, sum;

    TRY(store_obtain(s, key, &name));
    if (name->value && !store_value_number(name->value, &old))
        return STORE_E_NUMBER;
    /* Past the end the sum wraps, as in PyTorch's build; unsigned numbers make the wrap defined. */
    sum = (int64_t)((uint64_t)old + (uint64_t)amount);
    int r = store_write_value(s, name, format_number(text, sum));
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
    struct store_task *t = &call->client->task;
    struct store_entry *name;
    int64_t sum = t->number;
    int r;

    if (t->waking) {
        r = store_wake_on(call);
    } else {
        r = add_to_key(call->store, call->request->key, call->request->amount, &name, &sum);
        if (r == 0)
            r = store_wake_all(call, name);
    }
    if (r == STORE_MORE)
        t->number = sum;
    if (r == 0)
        call_reply_i64(call, sum);
    return r;
}

/* The count is never reset: a client that comes after completion passes at once and counts on. */
static int do_barrier(struct call *call)
{
    struct store_entry *name;
    int64_t arrived;
    int r;

    if (call->client->task.waking) {
        r = store_wake_on(call);
    } else {
        TRY(add_to_key(call->store, call->request->key, 1, &name, &arrived));
        if (arrived < call->request->amount)
            return store_wait_for_name(call, name);
        r = store_wake_all(call, name);
    }
    if (r == 0)
        call_reply_u8(call, WIRE_WAIT_STOP);
    return r;
}

static int do_check(struct call *call)
{
    struct wire_span all = call->request->items, list, key;
    struct store_task *t = &call->client->task;

    if (t->offset == 0 && !call_fits(call, call->request->n_items))
        return STORE_MORE;
    list = wire_span(all.data + t->offset, all.size - t->offset);
    while (list.size > 0) {
        if (!call_spend(call, 1)) {
            t->offset = all.size - list.size;
            return STORE_MORE;
        }
        (void)wire_next_key(&list, &key); /* there is one: the request was decoded */
        if (!store_entry_exists(store_find(call->store, key))) {
            call_reply_u8(call, WIRE_CHECK_NOT_READY);
            return 0;
        }
    }
    call_reply_u8(call, WIRE_CHECK_READY);
    return 0;
}

static int do_delete_key(struct call *call)
{
    struct store *s = call->store;
    struct store_entry *name = store_find(s, call->request->key);
    bool is_key = name && name->value;

    if (is_key) {
        store_keys_remove(s, name);
        blob_unref(steal_ptr(name->value));
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

/* The keys that exist now, however long it takes to send them. */
static int do_list_keys(struct call *call)
{
    struct store_task *t = &call->client->task;
    struct wire_span name;

    if (!t->active || !t->counted) {
        store_listing_begin(call->store, &t->listing);
        t->active = true;
        t->counted = true;
        call_reply_i64(call, (int64_t)call->store->n_keys);
    }
    for (;;) {
        if (outbox_size(call->out) >= call->budget->output_max)
            return STORE_MORE;
        switch (store_listing_next(call->store, &t->listing, &call->budget->units, &name)) {
        case LISTING_KEY:
            TRY(wire_put_vec(&call->out->bytes, name));
            break;
        case LISTING_END:
            return 0;
        case LISTING_MORE:
            return STORE_MORE;
        case LISTING_BROKEN:
            return STORE_E_LISTING;
        }
    }
}

/* ---- waiting ---- */

static int do_wait(struct call *call)
{
    bool waits;

    TRY(store_wait_for_keys(call, &waits));
    if (!waits)
        call_reply_u8(call, WIRE_WAIT_STOP);
    return 0;
}

static int do_cancel_wait(struct call *call)
{
    if (call->client->wait)
        store_drop_wait(call->store, call->client->wait);
    store_pass_on(call->store, call->client);
    call_reply_u8(call, WIRE_WAIT_CANCELED);
    return 0;
}

/* ---- queues ---- */

static void append_item(struct store_entry *name, struct blob *b)
{
    if (name->queue_tail)
        name->queue_tail->next = b;
    else
        name->queue_head = b;
    name->queue_tail = b;
    name->queue_size++;
}

/* The item with a reference for the queue, all copied. */
static int create_item(struct call *call, struct blob **ret)
{
    struct wire_span value = call->request->value;

    if (value.size > STEP_VALUE_MAX) {
        TRY(store_prepare(call, value));
        *ret = steal_ptr(call->client->task.fresh);
        return 0;
    }
    TRY(store_create_blob(call->store, value.size, ret));
    blob_append(*ret, value.data, value.size);
    return 0;
}

static int do_queue_push(struct call *call)
{
    struct store_entry *name;
    struct blob *b;

    if (call->client->task.waking)
        return store_wake_on(call);
    TRY(create_item(call, &b));
    int r = store_obtain(call->store, call->request->key, &name);
    if (r != 0) {
        blob_unref(b);
        return r;
    }
    append_item(name, b);
    return store_wake_first(call, name);
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
        (void)store_end_promise(call->client); /* tidied below */
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
    EFFECT_WAITS,     /* changes waits or the connection, or is repeated by waiting clients, so it may not */
    EFFECT_WRITES,    /* changes keys or queues, so it may not */
};

struct operation {
    int (*apply)(struct call *);
    enum effect effect;
};

/* Positional, so that the compiler refuses a row that leaves a column out. */
static const struct operation operations[] = {
    [WIRE_OP_VALIDATE] = {do_validate, EFFECT_WAITS},
    [WIRE_OP_SET] = {do_write, EFFECT_WRITES},
    [WIRE_OP_COMPARE_SET] = {do_compare_set, EFFECT_WRITES},
    [WIRE_OP_GET] = {do_get, EFFECT_READS},
    [WIRE_OP_ADD] = {do_add, EFFECT_WRITES},
    [WIRE_OP_CHECK] = {do_check, EFFECT_READS},
    [WIRE_OP_WAIT] = {do_wait, EFFECT_WAITS},
    [WIRE_OP_GETNUMKEYS] = {do_getnumkeys, EFFECT_READS},
    [WIRE_OP_DELETE_KEY] = {do_delete_key, EFFECT_WRITES},
    [WIRE_OP_APPEND] = {do_write, EFFECT_WRITES},
    [WIRE_OP_MULTI_GET] = {do_multi_get, EFFECT_READS},
    [WIRE_OP_MULTI_SET] = {do_multi_set, EFFECT_WRITES},
    [WIRE_OP_CANCEL_WAIT] = {do_cancel_wait, EFFECT_WAITS},
    [WIRE_OP_PING] = {do_ping, EFFECT_READS},
    [WIRE_OP_QUEUE_PUSH] = {do_queue_push, EFFECT_WRITES},
    [WIRE_OP_QUEUE_POP] = {do_queue_pop, EFFECT_WAITS},
    [WIRE_OP_QUEUE_LEN] = {do_queue_len, EFFECT_READS},
    [WIRE_OP_LIST_KEYS] = {do_list_keys, EFFECT_READS},
    [WIRE_OP_BARRIER] = {do_barrier, EFFECT_WRITES},
};
static_assert(ARRAY_SIZE(operations) == WIRE_OP_COUNT, "every operation has its row");

bool store_only_reads(enum wire_op op)
{
    assert((unsigned)op < WIRE_OP_COUNT);
    return operations[op].effect == EFFECT_READS;
}

bool store_may_change_a_key(const struct wire_request *request)
{
    return operations[request->op].effect == EFFECT_WRITES &&
           (request->op != WIRE_OP_ADD || request->amount != 0);
}

int store_apply(struct store *s, struct store_client *c, const struct wire_request *request,
                struct outbox *out, struct store_budget *budget)
{
    struct call call = {.store = s, .client = c, .request = request, .out = out, .budget = budget};

    assert((unsigned)request->op < WIRE_OP_COUNT);
    if (!buf_reserve(&out->bytes, FIXED_REPLY_MAX))
        return -ENOMEM;
    s->account.owner = c->owner;
    int r = operations[request->op].apply(&call);
    if (r == STORE_MORE)
        c->task.active = true;
    else if (c->task.active)
        store_client_give_up(s, c);
    return r;
}

/* Giving memory back is cheaper than copying to it. */
enum { CLEAN_UNIT_BYTES = 2 * STORE_UNIT_BYTES };

bool store_clean(struct store *s, uint64_t units)
{
    uint64_t bytes = units < UINT64_MAX / CLEAN_UNIT_BYTES ? units * CLEAN_UNIT_BYTES : UINT64_MAX;
    bool more = store_clean_waits(s, &units);

    more = store_keys_clean(s, units) || more;
    (void)blob_collect(&s->account, bytes);
    return more || s->account.garbage;
}

const char *store_error(int result)
{
    static const char *const words[STORE_E_COUNT] = {
        [STORE_E_NUMBER] = "asked to count on a value that is not a number",
        [STORE_E_VALIDATED] = "sent VALIDATE twice",
        [STORE_E_KEYS] = "asked for one key more than the limit, or than its share (--max-keys)",
        [STORE_E_BYTES] = "asked for more memory than the limit, or than its share (--max-bytes)",
        [STORE_E_LISTING] = "did not read its list of keys while others deleted too many of them",
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
    list_init(&s->keys);
    list_init(&s->listings);
    list_init(&s->ghosts);
    return store_table_init(&s->names, seed);
}

int store_share_out(struct store *s, unsigned n)
{
    s->account.shares = calloc(n, sizeof(*s->account.shares));
    return s->account.shares ? 0 : -ENOMEM;
}

void store_finish(struct store *s)
{
    struct store_entry *name;
    size_t cursor = 0;

    if (!s->names.now.slots)
        return;
    assert(s->n_waiting == 0 && list_is_empty(&s->listings));
    (void)store_clean(s, UINT64_MAX);
    while ((name = store_table_next(&s->names, &cursor)))
        store_free_name(s, name);
    store_table_finish(&s->names);
    (void)store_clean(s, UINT64_MAX);
    assert(s->account.bytes == 0);
    free(s->account.shares);
    *s = (struct store){0};
}

void store_client_init(struct store_client *c)
{
    *c = (struct store_client){0};
    list_init(&c->released);
}

void store_client_finish(struct store *s, struct store_client *c)
{
    list_unlink(&c->released);
    if (c->wait)
        store_drop_wait(s, c->wait);
    store_pass_on(s, c);
    store_client_give_up(s, c);
}
