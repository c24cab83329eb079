/*
 * Waiting. A wait is the set of names that were missing when it began. Each of these has a link in its
 * name's list of waiters; a name that is written takes its links off, and the wait whose last link goes
 * is over. So a key that is set and deleted again stays counted, as in PyTorch. A client has one wait
 * at most: a second one replaces the first.
 *
 * A push releases one waiter whose wait ends with it, which then pops. If it never does, because it gave up or died in between,
 * the others would sleep beside a queue that is not empty; so the release is passed on to the next.
 */

#include "rendezvous/store/store_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/err.h"

static uint64_t wait_charge(const struct store_wait *w)
{
    return sizeof(*w) + (uint64_t)w->n_room * sizeof(w->links[0]);
}

/* Up to this many links are taken apart at once. */
enum { DROP_AT_ONCE_MAX = 64 };

static void free_wait(struct store *s, struct store_wait *w)
{
    blob_account_remove(&s->account, w->owner, wait_charge(w));
    free(w);
}

/* The client does not wait any more. */
static void detach_wait(struct store *s, struct store_wait *w)
{
    w->client->wait = NULL;
    w->client = NULL;
    s->n_waiting--;
}

/* Takes the last n links out of the lists of waiters. True when none is left. */
static bool unlink_some(struct store *s, struct store_wait *w, uint64_t n)
{
    for (; w->n_links > 0 && n > 0; n--) {
        struct wait_link *link = &w->links[--w->n_links];

        if (list_is_empty(&link->entry))
            continue;
        list_unlink(&link->entry);
        link->name->n_waiters--;
        store_tidy(s, link->name);
    }
    return w->n_links == 0;
}

/* Until store_clean_waits() comes to it, a large one stays in the lists, where it ends no wait. */
void store_drop_wait(struct store *s, struct store_wait *w)
{
    detach_wait(s, w);
    if (w->n_links <= DROP_AT_ONCE_MAX) {
        (void)unlink_some(s, w, UINT64_MAX);
        free_wait(s, w);
        return;
    }
    w->next_dropped = s->dropped;
    s->dropped = w;
}

bool store_clean_waits(struct store *s, uint64_t *units)
{
    while (s->dropped && *units > 0) {
        struct store_wait *w = s->dropped;
        uint64_t n = w->n_links < *units ? w->n_links : *units;

        *units -= n;
        if (!unlink_some(s, w, n))
            return true;
        s->dropped = w->next_dropped;
        free_wait(s, w);
    }
    return s->dropped;
}

static void release(struct call *call, struct store_wait *w)
{
    struct store_client *client = w->client;

    detach_wait(call->store, w);
    free_wait(call->store, w);
    if (client == call->client)
        call_reply_u8(call, WIRE_WAIT_STOP);
    else
        list_append(&call->store->released, &client->released);
}

/* The name of this link was written. */
static void satisfy_link(struct call *call, struct wait_link *link)
{
    struct store_wait *w = link->wait;

    list_unlink(&link->entry);
    link->name->n_waiters--;
    if (--w->n_missing == 0 && w->client)
        release(call, w);
}

/* Takes the pin off; the name may be gone then. */
static void end_waking(struct call *call)
{
    struct store_entry *name = steal_ptr(call->client->task.waking);

    name->n_pinned--;
    store_tidy(call->store, name);
}

/* Satisfies the longest waiting link; true when that ended a wait. */
static bool wake_one(struct call *call, struct store_entry *name)
{
    struct wait_link *link = list_entry(name->waiters.next, struct wait_link, entry);
    struct store_client *client = link->wait->client;
    bool ends = client && link->wait->n_missing == 1;

    satisfy_link(call, link);
    if (ends && call->client->task.wake_until == 0) {
        client->promised = name;
        name->n_pinned++;
        if (client->relayed)
            call->store->on_promise(client);
    }
    return ends;
}

int store_wake_on(struct call *call)
{
    struct store_task *t = &call->client->task;

    while (t->waking && t->waking->n_waiters > 0) {
        struct wait_link *link = list_entry(t->waking->waiters.next, struct wait_link, entry);
        bool one = t->wake_until == 0;

        if (one ? !t->waking->queue_head : link->number >= t->wake_until)
            break;
        if (!call_spend(call, 1))
            return STORE_MORE;
        if (wake_one(call, t->waking) && one)
            break;
    }
    if (t->waking)
        end_waking(call);
    return 0;
}

static int begin_waking(struct call *call, struct store_entry *name, uint64_t until)
{
    struct store_task *t = &call->client->task;

    if (name->n_waiters == 0)
        return 0;
    t->active = true;
    t->waking = name;
    t->wake_until = until;
    name->n_pinned++;
    return store_wake_on(call);
}

int store_wake_all(struct call *call, struct store_entry *name)
{
    return begin_waking(call, name, call->store->last_number + 1);
}

/* One waiter, for one item of the queue: the longest waiting whose wait ends with it. One that waits for another name, too,
 * would not pop the item; it is passed, and has one name less to wait for. */
int store_wake_first(struct call *call, struct store_entry *name)
{
    return begin_waking(call, name, 0);
}

/* The queue that the client was promised an item of, and is not any more. */
struct store_entry *store_end_promise(struct store_client *client)
{
    struct store_entry *name = steal_ptr(client->promised);

    if (name)
        name->n_pinned--;
    return name;
}

/* The client was released for an item that it did not pop: the next one may. At once: the waiters that are passed were
 * each made by a request, and leave the list. */
void store_pass_on(struct store *s, struct store_client *client)
{
    struct store_entry *name = store_end_promise(client);
    struct store_client no_client = {0};
    struct call call = {.store = s, .client = &no_client, .budget = &STORE_BUDGET_NONE};

    if (!name)
        return;
    if (name->queue_head)
        (void)store_wake_first(&call, name);
    store_tidy(s, name);
}

static int create_wait(struct call *call, size_t n_room, struct store_wait **ret)
{
    struct store *s = call->store;
    struct store_wait *w;
    uint64_t size = sizeof(*w) + (uint64_t)n_room * sizeof(w->links[0]);

    if (call->client->wait)
        store_drop_wait(s, call->client->wait);
    store_pass_on(s, call->client);
    if (!store_has_room(s, size))
        return STORE_E_BYTES;
    w = calloc(1, size);
    if (!w)
        return -ENOMEM;
    w->client = call->client;
    w->n_room = n_room;
    w->owner = call->client->owner;
    call->client->wait = w;
    s->n_waiting++;
    blob_account_add(&s->account, w->owner, size);
    *ret = w;
    return 0;
}

/* A repeated name finds its own link last, unless another client began to wait for it in between; then it has two, which
 * are satisfied together. */
static bool is_linked(const struct store_entry *name, const struct store_wait *w)
{
    return name->n_waiters > 0 && list_entry(name->waiters.prev, struct wait_link, entry)->wait == w;
}

static int link_wait(struct store *s, struct store_wait *w, struct store_entry *name)
{
    struct wait_link *link = &w->links[w->n_links];

    if (name->n_waiters >= s->limits.waiters_max) {
        store_tidy(s, name); /* it may have been made for this link */
        return STORE_E_WAITERS;
    }
    *link = (struct wait_link){.name = name, .wait = w, .number = ++s->last_number};
    list_append(&name->waiters, &link->entry);
    name->n_waiters++;
    w->n_links++;
    w->n_missing++;
    return 0;
}

int store_wait_for_name(struct call *call, struct store_entry *name)
{
    struct store_wait *w;

    TRY(create_wait(call, 1, &w));
    int r = link_wait(call->store, w, name);
    if (r != 0)
        store_drop_wait(call->store, w);
    return r;
}

int store_wait_again(struct store *s, struct store_client *c, const struct store_client *promised)
{
    struct call call = {.store = s, .client = c, .budget = &STORE_BUDGET_NONE};

    s->account.owner = c->owner;
    return store_wait_for_name(&call, promised->promised);
}

size_t store_waits_for(const struct store_client *c, struct wire_span *ret_name)
{
    const struct store_wait *w = c->wait;
    size_t n = 0;

    for (size_t i = 0; w && !w->building && i < w->n_links; i++) {
        const struct wait_link *link = &w->links[i];

        if (list_is_empty(&link->entry)) /* written since */
            continue;
        if (n++ == 0)
            *ret_name = wire_span(link->name->bytes, link->name->key_size);
    }
    return n;
}

static size_t count_missing(struct store *s, struct wire_span list)
{
    struct wire_span key;
    size_t n = 0;

    while (wire_next_key(&list, &key))
        n += !store_entry_exists(store_find(s, key));
    return n;
}

/* The wait that is being built, with this name. It replaces the client's last one only once a name is missing. */
static int link_name(struct call *call, size_t n_room, struct store_wait **w, struct wire_span key)
{
    struct store *s = call->store;
    struct store_entry *name = store_find(s, key);

    if (store_entry_exists(name) || (name && *w && is_linked(name, *w)))
        return 0;
    if (!*w) {
        TRY(create_wait(call, n_room, w)); /* may free the name */
        (*w)->building = true;
        (*w)->n_missing = 1;
    }
    TRY(store_obtain(s, key, &name));
    return link_wait(s, *w, name);
}

/* Looks the names up, from where it stopped. */
static int link_missing(struct call *call, size_t n_room, struct store_wait **w)
{
    struct wire_span all = call->request->items, list, key;
    struct store_task *t = &call->client->task;

    list = wire_span(all.data + t->offset, all.size - t->offset);
    t->active = true;
    while (list.size > 0) {
        if (!call_spend(call, 2))
            return STORE_MORE;
        (void)wire_next_key(&list, &key); /* there is one: the request was decoded */
        TRY(link_name(call, n_room, w, key));
        t->offset = all.size - list.size;
    }
    return 0;
}

/* All names were looked up: does anything remain to wait for? */
static bool end_building(struct call *call, struct store_wait *w)
{
    if (!w)
        return false;
    w->building = false;
    if (--w->n_missing > 0)
        return true;
    detach_wait(call->store, w); /* no link of it is in a list */
    free_wait(call->store, w);
    return false;
}

int store_wait_for_keys(struct call *call, bool *ret_waits)
{
    struct store_wait *last = call->client->wait, *w = last && last->building ? last : NULL;
    uint64_t cost = 2 * (uint64_t)call->request->n_items; /* a name may have to be made */
    size_t n_room = call->request->n_items;

    *ret_waits = false;
    if (call->client->task.offset == 0 && !call_fits(call, cost))
        return STORE_MORE;
    /* In one turn the number of missing names is known ahead; later it may change between two turns. */
    if (call->client->task.offset == 0 && cost <= call->budget->units)
        n_room = count_missing(call->store, call->request->items);
    int r = n_room > 0 ? link_missing(call, n_room, &w) : 0;
    if (r == 0)
        *ret_waits = end_building(call, w);
    else if (r != STORE_MORE && w)
        store_drop_wait(call->store, w);
    return r;
}
