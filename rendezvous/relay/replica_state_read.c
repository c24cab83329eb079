/*
 * Each record is checked by itself, and put where it belongs at once; what follows it in records of the kind BYTES is counted down. What
 * was read when one cannot be used is freed with the store and its nodes.
 */

#include <errno.h>
#include <stdlib.h>

#include "rendezvous/relay/replica_state.h"
#include "rendezvous/store/store_impl.h"

enum { HEAD_SIZE = 5 };

void replica_state_reader_init(struct replica_state_reader *in, struct replica *r)
{
    *in = (struct replica_state_reader){.replica = r};
}

void replica_state_reader_finish(struct replica_state_reader *in)
{
    blob_unref(in->part);
    buf_finish(&in->key);
    free(in->waits);
    free(in->names);
    *in = (struct replica_state_reader){0};
}

/* The array with room for one more pointer; NULL: memory is out, and the array stays. */
static void *grow(void *array, size_t n, size_t *room)
{
    size_t more = *room > 0 ? 2 * *room : 16;

    if (n < *room)
        return array;
    array = n < UINT32_MAX ? reallocarray(array, more, sizeof(void *)) : NULL;
    if (array)
        *room = more;
    return array;
}

/* ---- nodes ---- */

static int read_head(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    struct replica *r = in->replica;
    uint64_t executed = wire_load_u64(body), last_number = wire_load_u64(body + 8);

    if (in->has_head || last_number > INT64_MAX || executed > INT64_MAX)
        return -EPROTO;
    in->has_head = true;
    r->appended = r->confirmed = r->executed = executed;
    r->store->last_number = last_number;
    return 0;
}

static void await_bytes(struct replica_state_reader *in, int target, uint64_t n)
{
    in->target = target;
    in->left = n;
}

static int read_node(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    uint64_t numbers[7];

    for (size_t i = 0; i < 7; i++)
        numbers[i] = wire_load_u64(body + RELAY_NONCE_SIZE + 8 * i);
    int r = in->name ? -EPROTO : replica_restore_node(in->replica, body, &in->node);
    if (r < 0)
        return r;
    struct relay_node *node = &in->node->node;
    struct relay_link *l = &node->link;
    if (numbers[1] > numbers[2] || numbers[6] > node->limits.message_max)
        return -EPROTO;
    l->known = numbers[0] != 0;
    l->base = numbers[1];
    l->next = numbers[2];
    l->taken = l->arrived = numbers[3]; /* what it has sent since is in entries */
    node->last_promise = numbers[4];
    in->left_message = numbers[6];
    await_bytes(in, REPLICA_READ_UNACKED, numbers[5]);
    return 0;
}

static int read_no_node(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    in->node = NULL;
    return in->name ? -EPROTO : replica_restore_node(in->replica, NULL, NULL);
}

/* Whole frames, as many as are counted. */
static bool are_frames(const struct relay_link *l)
{
    const uint8_t *at = buf_bytes(&l->unacked);
    size_t left = buf_size(&l->unacked), size = 1;
    uint64_t n = 0;

    for (; left > 0 && size > 0; n++) {
        size = relay_link_frame_size(at, left);
        at += size;
        left -= size;
    }
    return left == 0 && n == l->next - l->base;
}

static int read_wait(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    uint64_t n_room = wire_load_u64(body + 8);
    bool waits = body[24] != 0;
    struct relay_wait **places = in->node && !in->name ? grow(in->waits, in->n_waits, &in->waits_room) : NULL;

    if (!in->node || in->name)
        return -EPROTO;
    if (!places)
        return -ENOMEM;
    in->waits = places;
    struct relay_wait *w = relay_node_add_wait(&in->node->node, wire_load_u64(body));
    if (!w)
        return -ENOMEM;
    in->waits[in->n_waits++] = w;
    if (n_room > in->node->node.limits.keys_max && n_room > 1)
        return -EPROTO;
    return waits ? store_restore_wait(in->replica->store, &w->client, n_room, wire_load_u64(body + 16)) : 0;
}

/* ---- names ---- */

static int read_name(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    uint32_t size = wire_load_u32(body);

    in->name = NULL;
    in->is_promised = body[4] != 0;
    await_bytes(in, REPLICA_READ_KEY, size);
    return 0;
}

static int end_name(struct replica_state_reader *in)
{
    size_t size = buf_size(&in->key);
    struct wire_span key = wire_span(size > 0 ? buf_bytes(&in->key) : (const uint8_t *)"", size);
    int r = store_find(in->replica->store, key) ? -EPROTO : store_obtain(in->replica->store, key, &in->name);

    buf_consume(&in->key, size);
    if (r != 0 || !in->is_promised)
        return r;
    struct store_entry **names = grow(in->names, in->n_names, &in->names_room);
    if (!names)
        return -ENOMEM;
    in->names = names;
    in->names[in->n_names++] = in->name;
    return 0;
}

/* An empty one, which bytes follow for. */
static int make_blob(struct replica_state_reader *in, const uint8_t *sizes, struct blob **ret)
{
    struct store *s = in->replica->store;
    uint32_t capacity = wire_load_u32(sizes), size = wire_load_u32(sizes + 4);

    if (!in->name || size > capacity || !store_has_room(s, blob_charge(capacity)))
        return -EPROTO;
    *ret = in->into = blob_create(&s->account, capacity);
    if (!*ret)
        return -ENOMEM;
    await_bytes(in, REPLICA_READ_BLOB, size);
    return 0;
}

static int read_value(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    struct store *s = in->replica->store;
    uint64_t born = wire_load_u64(body);
    uint64_t last = list_is_empty(&s->keys) ? 0 : list_entry(s->keys.prev, struct store_key, link)->born;
    int r = in->name && !in->name->value && born > last && born <= s->last_number &&
                    s->n_keys < s->limits.keys_max
                ? make_blob(in, body + 8, &in->name->value)
                : -EPROTO;

    if (r < 0)
        return r;
    in->name->key.born = born;
    list_append(&s->keys, &in->name->key.link);
    s->n_keys++;
    return 0;
}

/* It is the value's when it is whole. */
static int read_part(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    return in->name && in->name->value ? make_blob(in, body, &in->part) : -EPROTO;
}

static int read_item(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    struct blob *item;
    int r = make_blob(in, body, &item);

    if (r == 0)
        store_append_item(in->name, item);
    return r;
}

static int read_links(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    struct store *s = in->replica->store;

    for (; n >= 16 && in->name; body += 16, n -= 16) {
        uint32_t place = wire_load_u32(body);

        if (place >= in->n_waits || !store_restore_link(s, &in->waits[place]->client, wire_load_u32(body + 4),
                                                        in->name, wire_load_u64(body + 8)))
            return -EPROTO;
    }
    return n == 0 ? 0 : -EPROTO;
}

/* ---- the end ---- */

static int read_promise(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    uint32_t wait = wire_load_u32(body), name = wire_load_u32(body + 4);

    if (wait >= in->n_waits || name >= in->n_names || in->waits[wait]->client.wait ||
        in->waits[wait]->client.promised)
        return -EPROTO;
    in->waits[wait]->client.promised = in->names[name];
    in->names[name]->n_pinned++;
    return 0;
}

/* The same sums, and the numbers of links are counted in none of them: each wait has one at least. */
static int read_end(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    const struct store *s = in->replica->store;

    in->is_done = wire_load_u64(body) == s->n_keys && wire_load_u64(body + 8) == s->n_waiting &&
                  wire_load_u64(body + 16) == s->account.bytes;
    for (size_t i = 0; i < in->n_waits; i++)
        in->is_done = in->is_done && (!in->waits[i]->client.wait || in->waits[i]->client.wait->n_missing > 0);
    for (size_t i = 0; i < in->n_names; i++)
        in->is_done = in->is_done && in->names[i]->n_pinned > 0;
    return in->is_done ? 0 : -EPROTO;
}

/* ---- records ---- */

static int fill_target(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    switch (in->target) {
    case REPLICA_READ_NOTHING:
        break;
    case REPLICA_READ_KEY:
        return buf_append(&in->key, body, n);
    case REPLICA_READ_BLOB:
        blob_append(in->into, body, n);
        return 0;
    case REPLICA_READ_UNACKED:
        return buf_append(&in->node->node.link.unacked, body, n);
    case REPLICA_READ_MESSAGE:
        return buf_append(&in->node->node.message, body, n);
    }
    return -EPROTO;
}

/* All bytes of it are there. */
static int end_target(struct replica_state_reader *in)
{
    int target = in->target;

    in->target = REPLICA_READ_NOTHING;
    switch (target) {
    case REPLICA_READ_KEY:
        return end_name(in);
    case REPLICA_READ_BLOB:
        if (in->part)
            blob_add_part(in->name->value, in->part);
        in->part = NULL;
        return 0;
    case REPLICA_READ_UNACKED:
        await_bytes(in, REPLICA_READ_MESSAGE, in->left_message);
        return are_frames(&in->node->node.link) ? 0 : -EPROTO;
    default:
        return 0;
    }
}

static int read_bytes(struct replica_state_reader *in, const uint8_t *body, size_t n)
{
    if (n == 0 || n > in->left)
        return -EPROTO;
    in->left -= n;
    return fill_target(in, body, n);
}

struct record {
    int (*read)(struct replica_state_reader *in, const uint8_t *body, size_t n);
    size_t size; /* 0: any */
    bool is_empty;
};

static const struct record records[] = {
    [REPLICA_STATE_HEAD] = {read_head, 16},
    [REPLICA_STATE_NODE] = {read_node, RELAY_NONCE_SIZE + 7 * 8},
    [REPLICA_STATE_NO_NODE] = {read_no_node, 0, true},
    [REPLICA_STATE_BYTES] = {read_bytes},
    [REPLICA_STATE_WAIT] = {read_wait, 25},
    [REPLICA_STATE_NAME] = {read_name, 5},
    [REPLICA_STATE_VALUE] = {read_value, 16},
    [REPLICA_STATE_PART] = {read_part, 8},
    [REPLICA_STATE_ITEM] = {read_item, 8},
    [REPLICA_STATE_LINKS] = {read_links},
    [REPLICA_STATE_PROMISE] = {read_promise, 8},
    [REPLICA_STATE_END] = {read_end, 24},
};
static_assert(sizeof(records) / sizeof(records[0]) == REPLICA_STATE_RECORD_COUNT, "every record has its row");

static int read_record(struct replica_state_reader *in, unsigned kind, const uint8_t *body, size_t n)
{
    const struct record *record = kind < REPLICA_STATE_RECORD_COUNT ? &records[kind] : NULL;

    if (!record || ((record->size > 0 || record->is_empty) && n != record->size) || in->is_done ||
        in->has_head != (kind != REPLICA_STATE_HEAD) || (in->left > 0 && kind != REPLICA_STATE_BYTES))
        return -EPROTO;
    int r = record->read(in, body, n);
    while (r == 0 && in->left == 0 && in->target != REPLICA_READ_NOTHING)
        r = end_target(in);
    return r > 0 ? -EPROTO : r; /* a limit that the other side has not reached */
}

int replica_state_read(struct replica_state_reader *in, struct wire_span piece)
{
    int r = 0;

    while (r == 0 && piece.size > 0) {
        size_t size = piece.size >= HEAD_SIZE ? wire_load_u32(piece.data + 1) : SIZE_MAX;

        if (size > piece.size - HEAD_SIZE || piece.size < HEAD_SIZE)
            return -EPROTO;
        r = read_record(in, piece.data[0], piece.data + HEAD_SIZE, size);
        piece = wire_span(piece.data + HEAD_SIZE + size, piece.size - HEAD_SIZE - size);
    }
    return r;
}
