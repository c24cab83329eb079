/*
 * Requests with large values or with many of them, in steps. A step copies or compares at most STEP_VALUE_MAX bytes;
 * what was done is in the client's store_task.
 *
 * A value that is written is copied to a blob of its own first and becomes the key's in one step, so no client ever
 * sees half of it. A value that is compared may be replaced between two steps; the comparison then begins anew with the
 * new one, and after a few times is made at once.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "rendezvous/store/store_impl.h"

enum { RESTARTS_MAX = 4 };

/* ---- one large value ---- */

static size_t step_size(size_t done, size_t size)
{
    return size - done < STEP_VALUE_MAX ? size - done : STEP_VALUE_MAX;
}

int store_prepare(struct call *call, struct wire_span value)
{
    struct store_task *t = &call->client->task;

    if (!t->fresh) {
        TRY(store_create_blob(call->store, value.size, &t->fresh));
        t->active = true;
    }
    while (t->fresh->total < value.size) {
        size_t done = t->fresh->total, n = step_size(done, value.size);

        /* Twice: the pages are new. */
        if (!call_spend(call, 2 * n / STORE_UNIT_BYTES))
            return STORE_MORE;
        blob_append(t->fresh, value.data + done, n);
    }
    return 0;
}

/* Are n bytes of the value, from `from` on, equal to these? */
static bool part_equals(const struct blob *b, size_t from, const uint8_t *data, size_t n)
{
    for (const struct blob *part = b; n > 0; part = blob_next_part(b, part)) {
        size_t here = part->size > from ? part->size - from : 0;

        if (here > n)
            here = n;
        if (here > 0 && memcmp(part->data + from, data, here) != 0)
            return false;
        data += here;
        n -= here;
        from = from > part->size ? from - part->size : 0;
    }
    return true;
}

/* Remembers the value that is compared, or that it is another one than it was. */
static void compare_begin(struct store_task *t, struct blob *current)
{
    if (t->seen == current && t->seen_size == current->total)
        return;
    if (t->seen)
        t->n_restarts++;
    blob_unref(t->seen);
    t->seen = blob_ref(current);
    t->seen_size = current->total;
    t->n_done = 0;
    t->active = true;
}

static int compare_steps(struct call *call, struct blob *current, struct wire_span expected, bool *ret_equal)
{
    struct store_task *t = &call->client->task;

    compare_begin(t, current);
    *ret_equal = false;
    while (t->n_done < expected.size) {
        size_t n = step_size(t->n_done, expected.size);

        if (!call_spend(call, n / STORE_UNIT_BYTES) && t->n_restarts < RESTARTS_MAX)
            return STORE_MORE;
        if (!part_equals(current, t->n_done, expected.data + t->n_done, n))
            return 0;
        t->n_done += n;
    }
    *ret_equal = true;
    return 0;
}

int store_compare(struct call *call, struct wire_span expected, struct blob **ret_current, bool *ret_equal)
{
    struct store_entry *name = store_find(call->store, call->request->key);
    struct blob *current = name ? name->value : NULL;

    *ret_current = current;
    *ret_equal = false;
    if (!current || current->total != expected.size)
        return 0;
    if (expected.size <= STEP_VALUE_MAX) {
        *ret_equal = part_equals(current, 0, expected.data, expected.size);
        return 0;
    }
    return compare_steps(call, current, expected, ret_equal);
}

/* ---- many values ---- */

struct store_values {
    size_t n;
    struct {
        struct blob *blob; /* own reference; NULL: the key is missing */
        size_t size;
    } items[];
};

/* Not charged to the store: a client has one of these at most, and the request that it comes from, which is charged
 * to the shell's account, is half as large. */
static int create_values(struct store_task *t, size_t n)
{
    t->values = malloc(sizeof(*t->values) + n * sizeof(t->values->items[0]));
    if (!t->values)
        return -ENOMEM;
    t->values->n = 0;
    t->active = true;
    return 0;
}

static void collect_value(struct call *call, struct wire_span key)
{
    struct store_values *v = call->client->task.values;
    struct store_entry *name = store_find(call->store, key);
    struct blob *b = name ? name->value : NULL;

    v->items[v->n].blob = b ? blob_ref(b) : NULL;
    v->items[v->n].size = b ? b->total : 0;
    v->n++;
}

int store_collect_values(struct call *call)
{
    struct store_task *t = &call->client->task;
    struct wire_span all = call->request->items, list, key;

    if (!t->values) {
        size_t n = call->request->n_items;

        TRY(call_fits(call, n) ? create_values(t, n) : STORE_MORE);
    }
    list = wire_span(all.data + t->offset, all.size - t->offset);
    while (list.size > 0) {
        if (!call_spend(call, 1))
            return STORE_MORE;
        (void)wire_next_key(&list, &key); /* there is one: the request was decoded */
        collect_value(call, key);
        t->offset = all.size - list.size;
    }
    return 0;
}

static uint64_t reply_cost(size_t size)
{
    return 1 + (size <= OUTBOX_COPY_MAX ? size / STORE_UNIT_BYTES : 0);
}

int store_reply_values(struct call *call)
{
    struct store_task *t = &call->client->task;

    for (; t->n_done < t->values->n; t->n_done++) {
        struct blob *b = t->values->items[t->n_done].blob;
        size_t size = t->values->items[t->n_done].size;

        if (outbox_size(call->out) >= call->budget->output_max || !call_spend(call, reply_cost(size)))
            return STORE_MORE;
        TRY(b ? outbox_put_value(call->out, b, size) : buf_append_u64(&call->out->bytes, 0));
        blob_unref(b);
        t->values->items[t->n_done].blob = NULL;
    }
    return 0;
}

static void values_free(struct store_values *v)
{
    for (size_t i = 0; v && i < v->n; i++)
        blob_unref(v->items[i].blob);
    free(v);
}

/* ---- the end of a task ---- */

void store_client_give_up(struct store *s, struct store_client *client)
{
    struct store_task *t = &client->task;
    struct call call = {.store = s, .client = client, .budget = &STORE_BUDGET_NONE};

    if (t->waking)
        (void)store_wake_on(&call);
    blob_unref(t->fresh);
    blob_unref(t->seen);
    values_free(t->values);
    store_listing_end(&t->listing);
    *t = (struct store_task){0};
}
