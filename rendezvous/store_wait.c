/*
 * Waiting. A wait is the set of names that were missing when it began. Each of these has a link in its
 * name's list of waiters; a name that is written takes its links off, and the wait whose last link goes
 * is over. So a key that is set and deleted again stays counted, as in PyTorch. A client has one wait
 * at most: a second one replaces the first.
 *
 * A push releases one waiter whose wait ends with it, which then pops. If it never does, because it gave up or died in between,
 * the others would sleep beside a queue that is not empty; so the release is passed on to the next.
 */

#include "rendezvous/store_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"

struct wait_link {
    struct list entry; /* in name.waiters, or unlinked: this name was written */
    struct store_entry *name;
    struct store_wait *wait;
};

struct store_wait {
    struct store_client *client;
    size_t n_missing;
    size_t n_links;
    struct wait_link links[];
};

static uint64_t wait_charge(const struct store_wait *w)
{
    return sizeof(*w) + (uint64_t)w->n_links * sizeof(w->links[0]);
}

static void free_wait(struct store *s, struct store_wait *w)
{
    w->client->wait = NULL;
    s->n_waiting--;
    s->account.bytes -= wait_charge(w);
    free(w);
}

void store_drop_wait(struct store *s, struct store_wait *w)
{
    for (size_t i = 0; i < w->n_links; i++) {
        struct wait_link *link = &w->links[i];

        if (!link->name || list_is_empty(&link->entry))
            continue;
        list_unlink(&link->entry);
        link->name->n_waiters--;
        store_tidy(s, link->name);
    }
    free_wait(s, w);
}

static void release(struct call *call, struct store_wait *w)
{
    struct store_client *client = w->client;

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
    if (--w->n_missing == 0)
        release(call, w);
}

/* A wait has at most one link for a name, so releasing one never frees the next link of the list. */
void store_wake_all(struct call *call, struct store_entry *name)
{
    list_for_each_safe(pos, &name->waiters) satisfy_link(call, list_entry(pos, struct wait_link, entry));
}

/* One waiter, for one item of the queue: the longest waiting whose wait ends with it. One that waits for another name, too,
 * would not pop the item; it is passed, and has one name less to wait for. */
void store_wake_first(struct call *call, struct store_entry *name)
{
    list_for_each_safe(pos, &name->waiters)
    {
        struct wait_link *link = list_entry(pos, struct wait_link, entry);
        struct store_client *client = link->wait->client;
        bool ends = link->wait->n_missing == 1;

        satisfy_link(call, link);
        if (!ends)
            continue;
        client->promised = name;
        name->n_promised++;
        return;
    }
}

/* The queue that the client was promised an item of, and is not any more. */
static struct store_entry *take_promise(struct store_client *client)
{
    struct store_entry *name = steal_ptr(client->promised);

    if (name)
        name->n_promised--;
    return name;
}

void store_end_promise(struct store_client *client)
{
    (void)take_promise(client); /* the caller has the name, and tidies it */
}

/* The client was released for an item that it did not pop: the next one may. */
void store_pass_on(struct call *call, struct store_client *client)
{
    struct store_entry *name = take_promise(client);

    if (!name)
        return;
    if (name->queue_head)
        store_wake_first(call, name);
    store_tidy(call->store, name);
}

static int create_wait(struct call *call, size_t n_links, struct store_wait **ret)
{
    struct store *s = call->store;
    struct store_wait *w;
    uint64_t size = sizeof(*w) + (uint64_t)n_links * sizeof(w->links[0]);

    if (call->client->wait)
        store_drop_wait(s, call->client->wait);
    store_pass_on(call, call->client);
    if (!store_has_room(s, size))
        return STORE_E_BYTES;
    w = calloc(1, size);
    if (!w)
        return -ENOMEM;
    w->client = call->client;
    w->n_links = n_links;
    call->client->wait = w;
    s->n_waiting++;
    s->account.bytes += size;
    *ret = w;
    return 0;
}

/* Waits of one client are linked one after another, so a repeated name finds its own link last. */
static bool is_linked(const struct store_entry *name, const struct store_wait *w)
{
    return name->n_waiters > 0 && list_entry(name->waiters.prev, struct wait_link, entry)->wait == w;
}

static int link_wait(struct store *s, struct store_wait *w, struct wait_link *link, struct store_entry *name)
{
    if (name->n_waiters >= s->limits.waiters_max) {
        store_tidy(s, name); /* it may have been made for this link */
        return STORE_E_WAITERS;
    }
    *link = (struct wait_link){.name = name, .wait = w};
    list_append(&name->waiters, &link->entry);
    name->n_waiters++;
    w->n_missing++;
    return 0;
}

int store_wait_for_name(struct call *call, struct store_entry *name)
{
    struct store_wait *w;
    int r = create_wait(call, 1, &w);

    if (r != 0)
        return r;
    r = link_wait(call->store, w, &w->links[0], name);
    if (r != 0)
        store_drop_wait(call->store, w);
    return r;
}

static size_t count_missing(struct store *s, struct wire_span list)
{
    struct wire_span key;
    size_t n = 0;

    while (wire_next_key(&list, &key))
        n += !store_entry_exists(store_find(s, key));
    return n;
}

static int link_missing(struct store *s, struct store_wait *w, struct wire_span list)
{
    struct wire_span key;
    size_t n = 0;

    while (wire_next_key(&list, &key)) {
        struct store_entry *name = store_find(s, key);
        int r = 0;

        if (store_entry_exists(name) || (name && is_linked(name, w)))
            continue;
        if (!name)
            r = store_obtain(s, key, &name);
        if (r == 0)
            r = link_wait(s, w, &w->links[n++], name);
        if (r != 0)
            return r;
    }
    return 0;
}

int store_wait_for_keys(struct call *call, struct wire_span list, bool *ret_waits)
{
    size_t n_missing = count_missing(call->store, list);
    struct store_wait *w;
    int r;

    *ret_waits = n_missing > 0;
    if (n_missing == 0)
        return 0;
    r = create_wait(call, n_missing, &w);
    if (r != 0)
        return r;
    r = link_missing(call->store, w, list);
    if (r != 0)
        store_drop_wait(call->store, w);
    return r;
}
