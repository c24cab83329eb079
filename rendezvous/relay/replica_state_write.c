/*
 * One record after another, each with what the walk through the replica has come to. Places of waits and of promised names are counted on
 * both sides in the order of their records.
 */

#include <errno.h>

#include "rendezvous/relay/replica_state.h"
#include "rendezvous/store/store_impl.h"

enum {
    HEAD_SIZE = 5,
    BYTES_MAX = 16 * 1024, /* in a record */
    LINKS_MAX = 1024,
    TARGET = REPLICA_STATE_PIECE_MAX - 2 * BYTES_MAX,
    STEPS_MAX = 2048,
    NAMES_MAX = 256, /* that are passed in a step */
};
static_assert(LINKS_MAX * 16 <= BYTES_MAX, "a record fits behind TARGET");

bool replica_state_is_quiet(const struct replica *r)
{
    const struct store *s = r->store;

    if (r->stage != REPLICA_IDLE || s->dropped || s->account.garbage || !list_is_empty(&s->released) ||
        !list_is_empty(&s->listings) || !list_is_empty(&s->ghosts))
        return false;
    for (uint32_t i = 0; i < r->n_numbers; i++) {
        const struct relay_node *n = r->by_number[i] ? &r->by_number[i]->node : NULL;

        if (n && (n->stage != RELAY_RECEIVING || n->broken || buf_size(&n->link.queue) > 0))
            return false;
    }
    return true;
}

/* Those behind are made by entries that are not executed. */
static uint32_t count_created(const struct replica *r)
{
    uint32_t n = 0;

    while (n < r->n_numbers && (!r->by_number[n] || r->by_number[n]->is_created))
        n++;
    return n;
}

void replica_state_writer_init(struct replica_state_writer *w, struct replica *r)
{
    *w = (struct replica_state_writer){
        .replica = r, .n_numbers = count_created(r), .key = r->store->keys.next};
    r->confirmed = r->executed;
}

/* ---- records ---- */

static int put_record(struct replica_state_writer *w, enum replica_state_record kind, size_t size)
{
    if (!buf_reserve(w->out, HEAD_SIZE + size))
        return -ENOMEM;
    (void)buf_append_u8(w->out, (uint8_t)kind); /* the room is there, for what the caller appends, too */
    return buf_append_u32(w->out, (uint32_t)size);
}

static int put_two_u64(struct replica_state_writer *w, enum replica_state_record kind, uint64_t a, uint64_t b)
{
    int r = put_record(w, kind, 16);

    if (r == 0)
        r = buf_append_u64(w->out, a);
    return r < 0 ? r : buf_append_u64(w->out, b);
}

static int put_two_u32(struct replica_state_writer *w, enum replica_state_record kind, uint32_t a, uint32_t b)
{
    int r = put_record(w, kind, 8);

    if (r == 0)
        r = buf_append_u32(w->out, a);
    return r < 0 ? r : buf_append_u32(w->out, b);
}

/* Up to BYTES_MAX of what follows the last record. */
static int put_bytes(struct replica_state_writer *w)
{
    struct wire_span *s = w->bytes[0].size > 0 ? &w->bytes[0] : &w->bytes[1];
    size_t n = s->size < BYTES_MAX ? s->size : BYTES_MAX;
    int r = put_record(w, REPLICA_STATE_BYTES, n);

    if (r == 0)
        r = buf_append(w->out, s->data, n);
    *s = wire_span(s->data + n, s->size - n);
    return r;
}

/* ---- nodes ---- */

static int put_node(struct replica_state_writer *w, const struct replica_node *of)
{
    const struct relay_node *n = &of->node;
    const struct relay_link *l = &n->link;
    const uint64_t numbers[] = {
        l->known, l->base, l->next, l->taken, n->last_promise, buf_size(&l->unacked), buf_size(&n->message)};
    int r = put_record(w, REPLICA_STATE_NODE, sizeof(of->nonce) + sizeof(numbers));

    if (r == 0)
        r = buf_append(w->out, of->nonce, sizeof(of->nonce));
    for (size_t i = 0; r == 0 && i < sizeof(numbers) / sizeof(numbers[0]); i++)
        r = buf_append_u64(w->out, numbers[i]);
    w->bytes[0] = wire_span(buf_bytes(&l->unacked), buf_size(&l->unacked));
    w->bytes[1] = wire_span(buf_bytes(&n->message), buf_size(&n->message));
    w->wait = n->waits.next;
    return r;
}

/* What else it has is used within an entry alone. */
static int put_wait(struct replica_state_writer *w, struct relay_wait *wait)
{
    const struct store_wait *of = wait->client.wait;
    const uint64_t numbers[] = {wait->id, of ? of->n_room : 0, of ? of->n_links : 0};
    int r = put_record(w, REPLICA_STATE_WAIT, sizeof(numbers) + 1);

    for (size_t i = 0; r == 0 && i < sizeof(numbers) / sizeof(numbers[0]); i++)
        r = buf_append_u64(w->out, numbers[i]);
    wait->place = w->n_waits++;
    return r < 0 ? r : buf_append_u8(w->out, of != NULL);
}

static void next_node(struct replica_state_writer *w)
{
    w->number++;
    w->wait = NULL;
}

static int step_nodes(struct replica_state_writer *w)
{
    struct replica_node *n = w->number < w->n_numbers ? w->replica->by_number[w->number] : NULL;

    if (w->number == w->n_numbers) {
        w->stage = REPLICA_WRITE_KEYS;
        return 0;
    }
    if (!n) {
        next_node(w);
        return put_record(w, REPLICA_STATE_NO_NODE, 0);
    }
    if (!w->wait)
        return put_node(w, n);
    if (w->wait == &n->node.waits) {
        next_node(w);
        return 0;
    }
    struct relay_wait *wait = list_entry(w->wait, struct relay_wait, link);
    w->wait = w->wait->next;
    return put_wait(w, wait);
}

/* ---- names ---- */

static int put_name(struct replica_state_writer *w, struct store_entry *name)
{
    int r = put_record(w, REPLICA_STATE_NAME, 5);

    if (r == 0)
        r = buf_append_u32(w->out, name->key_size);
    if (name->n_pinned > 0)
        name->place = w->n_promised++;
    w->name = name;
    w->bytes[0] = wire_span(name->bytes, name->key_size);
    w->part = name->value;
    w->item = name->queue_head;
    w->link = name->waiters.next;
    return r < 0 ? r : buf_append_u8(w->out, name->n_pinned > 0);
}

static int put_blob(struct replica_state_writer *w, const struct blob *b, enum replica_state_record kind)
{
    bool is_value = kind == REPLICA_STATE_VALUE;
    int r = put_record(w, kind, is_value ? 16 : 8);

    if (r == 0 && is_value)
        r = buf_append_u64(w->out, w->name->key.born);
    if (r == 0)
        r = buf_append_u32(w->out, b->capacity);
    if (r == 0)
        r = buf_append_u32(w->out, b->size);
    w->bytes[0] = wire_span(b->data, b->size);
    return r;
}

static int put_part(struct replica_state_writer *w)
{
    struct blob *value = w->name->value, *part = w->part;

    w->part = blob_next_part(value, part);
    return put_blob(w, part, part == value ? REPLICA_STATE_VALUE : REPLICA_STATE_PART);
}

static int put_item(struct replica_state_writer *w)
{
    struct blob *item = w->item;

    w->item = item->next;
    return put_blob(w, item, REPLICA_STATE_ITEM);
}

/* All waiters are clients of nodes. */
static int put_link(struct replica_state_writer *w)
{
    const struct wait_link *link = list_entry(w->link, struct wait_link, entry);
    const struct relay_wait *wait = list_entry(link->wait->client, struct relay_wait, client);

    w->link = w->link->next;
    (void)buf_append_u32(w->out, wait->place); /* the room is there */
    (void)buf_append_u32(w->out, (uint32_t)(link - link->wait->links));
    return buf_append_u64(w->out, link->number);
}

static int put_links(struct replica_state_writer *w)
{
    size_t n = 0;

    for (struct list *l = w->link; n < LINKS_MAX && l != &w->name->waiters; l = l->next)
        n++;
    int r = put_record(w, REPLICA_STATE_LINKS, 16 * n);
    for (; r == 0 && n > 0; n--)
        r = put_link(w);
    return r;
}

/* What there is under the name that was begun, then the name that `next` finds. */
static int step_name(struct replica_state_writer *w, int (*next)(struct replica_state_writer *w))
{
    if (!w->name)
        return next(w);
    if (w->part)
        return put_part(w);
    if (w->item)
        return put_item(w);
    if (w->link != &w->name->waiters)
        return put_links(w);
    w->name = NULL;
    return 0;
}

static int next_key(struct replica_state_writer *w)
{
    struct list *key = w->key;

    if (key == &w->replica->store->keys) {
        w->stage = REPLICA_WRITE_OTHERS;
        return 0;
    }
    w->key = key->next;
    return put_name(w, list_entry(list_entry(key, struct store_key, link), struct store_entry, key));
}

static int next_other(struct replica_state_writer *w)
{
    for (int i = 0; i < NAMES_MAX; i++) {
        struct store_entry *name = store_table_next(&w->replica->store->names, &w->cursor);

        if (name && !name->value)
            return put_name(w, name);
        if (!name) {
            w->stage = REPLICA_WRITE_PROMISES;
            w->number = 0;
            return 0;
        }
    }
    return 0;
}

/* ---- the rest ---- */

static int step_promises(struct replica_state_writer *w)
{
    struct replica_node *n = w->number < w->n_numbers ? w->replica->by_number[w->number] : NULL;

    if (w->number == w->n_numbers)
        w->stage = REPLICA_WRITE_END;
    else if (!n || w->wait == &n->node.waits)
        next_node(w);
    else if (!w->wait)
        w->wait = n->node.waits.next;
    else {
        const struct relay_wait *wait = list_entry(w->wait, struct relay_wait, link);

        w->wait = w->wait->next;
        if (wait->client.promised)
            return put_two_u32(w, REPLICA_STATE_PROMISE, wait->place, wait->client.promised->place);
    }
    return 0;
}

static int put_end(struct replica_state_writer *w)
{
    const struct store *s = w->replica->store;
    int r = put_record(w, REPLICA_STATE_END, 24);

    if (r == 0)
        r = buf_append_u64(w->out, s->n_keys);
    if (r == 0)
        r = buf_append_u64(w->out, s->n_waiting);
    w->stage = REPLICA_WRITE_DONE;
    return r < 0 ? r : buf_append_u64(w->out, s->account.bytes);
}

static int step(struct replica_state_writer *w)
{
    if (w->bytes[0].size > 0 || w->bytes[1].size > 0)
        return put_bytes(w);
    switch (w->stage) {
    case REPLICA_WRITE_HEAD:
        w->stage = REPLICA_WRITE_NODES;
        return put_two_u64(w, REPLICA_STATE_HEAD, w->replica->executed, w->replica->store->last_number);
    case REPLICA_WRITE_NODES:
        return step_nodes(w);
    case REPLICA_WRITE_KEYS:
        return step_name(w, next_key);
    case REPLICA_WRITE_OTHERS:
        return step_name(w, next_other);
    case REPLICA_WRITE_PROMISES:
        return step_promises(w);
    case REPLICA_WRITE_END:
        return put_end(w);
    case REPLICA_WRITE_DONE:
        break;
    }
    return 0;
}

int replica_state_write(struct replica_state_writer *w, struct buf *out)
{
    size_t before = buf_size(out);
    int r = 0;

    w->out = out;
    for (int i = 0;
         r == 0 && i < STEPS_MAX && w->stage != REPLICA_WRITE_DONE && buf_size(out) - before < TARGET; i++)
        r = step(w);
    return r;
}
