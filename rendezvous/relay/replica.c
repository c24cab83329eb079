/*
 * The log is consumed as entries are executed. On the serving process the shell sends each entry when it is appended; here they
 * only wait for their confirmation.
 */

#include "rendezvous/relay/replica.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { RELEASE_BATCH = 128 };

/* ---- life ---- */

void replica_init(struct replica *r, struct store *s, const struct replica_host *host)
{
    *r = (struct replica){.store = s, .host = *host, .bytes_max = s->limits.bytes_max};
}

void replica_finish(struct replica *r)
{
    buf_finish(&r->log);
    free(r->by_number);
    *r = (struct replica){0};
}

void replica_forget(struct replica *r, struct replica_node *n)
{
    if (n->number > 0 && n->number <= r->n_numbers)
        r->by_number[n->number - 1] = NULL;
    if (r->current == n)
        r->current = NULL;
}

/* ---- the log ---- */

static int append(struct replica *r, enum replica_kind kind, uint32_t number, struct wire_span bytes,
                  struct wire_span *ret)
{
    size_t size = REPLICA_ENTRY_HEAD + bytes.size;

    if (!buf_reserve(&r->log, size))
        return -ENOMEM;
    (void)buf_append_u32(&r->log, (uint32_t)(size - 4)); /* the room is there */
    (void)buf_append_u8(&r->log, (uint8_t)kind);
    (void)buf_append_u32(&r->log, number);
    (void)buf_append_u64(&r->log, r->bytes_max);
    if (bytes.size > 0)
        (void)buf_append(&r->log, bytes.data, bytes.size);
    r->appended++;
    *ret = wire_span(buf_bytes(&r->log) + buf_size(&r->log) - size, size);
    return 0;
}

/* Room for the node's place: its entry can then be executed on this side in any case. */
static int give_number(struct replica *r, struct replica_node *n)
{
    if (r->n_numbers == r->n_room) {
        uint32_t room = r->n_room > 0 ? 2 * r->n_room : 16;
        struct replica_node **more = realloc(r->by_number, room * sizeof(struct replica_node *));

        if (!more)
            return -ENOMEM;
        r->by_number = more;
        r->n_room = room;
    }
    r->by_number[r->n_numbers++] = n;
    if (n)
        n->number = r->n_numbers;
    return 0;
}

int replica_append_node(struct replica *r, struct replica_node *n, struct wire_span *ret)
{
    int result = r->n_numbers < UINT32_MAX ? give_number(r, n) : -ENOMEM;

    if (result == 0) {
        result = append(r, REPLICA_NODE, n->number, wire_span(n->nonce, sizeof(n->nonce)), ret);
        if (result < 0) {
            r->n_numbers--;
            n->number = 0;
        }
    }
    return result;
}

int replica_append_frame(struct replica *r, struct replica_node *n, struct wire_span frame,
                         struct wire_span *ret)
{
    return append(r, REPLICA_FRAME, n->number, frame, ret);
}

int replica_append_drop(struct replica *r, struct replica_node *n, struct wire_span *ret)
{
    int result = append(r, REPLICA_DROP, n->number, wire_span(NULL, 0), ret);

    n->is_dropped = true;
    return result;
}

bool replica_next_entry(const struct replica *r, size_t *offset, struct wire_span *ret)
{
    if (*offset >= buf_size(&r->log))
        return false;
    const uint8_t *entry = buf_bytes(&r->log) + *offset;
    *ret = wire_span(entry, 4 + (size_t)wire_load_u32(entry));
    *offset += ret->size;
    return true;
}

void replica_confirm(struct replica *r, uint64_t n)
{
    if (n > r->confirmed && n <= r->appended)
        r->confirmed = n;
}

void replica_join(struct replica *r)
{
    r->is_alone = false;
}

bool replica_has_joined(const struct replica *r)
{
    return !r->is_alone && r->confirmed >= r->executed;
}

/* ---- the backup ---- */

/* The node of that nonce gets the next number. */
static int make_node(struct replica *r, const uint8_t *nonce, struct replica_node **ret)
{
    struct replica_node *n = r->host.create(r->host.data, nonce);

    if (!n)
        return -ENOMEM;
    if (n->number > 0)
        return -EPROTO; /* it has one already */
    int result = r->n_numbers < UINT32_MAX ? give_number(r, n) : -ENOMEM;
    if (result < 0) {
        relay_node_finish(&n->node);
        r->host.dropped(r->host.data, n, result);
    }
    *ret = n;
    return result;
}

int replica_restore_node(struct replica *r, const uint8_t *nonce, struct replica_node **ret)
{
    if (!nonce)
        return r->n_numbers < UINT32_MAX ? give_number(r, NULL) : -ENOMEM;
    int result = make_node(r, nonce, ret);
    if (result == 0)
        (*ret)->is_created = true;
    return result;
}

static bool is_whole(const uint8_t *entry, size_t n)
{
    if (n < REPLICA_ENTRY_HEAD || wire_load_u32(entry) != n - 4)
        return false;
    size_t rest = n - REPLICA_ENTRY_HEAD;
    switch (entry[4]) {
    case REPLICA_NODE:
        return rest == RELAY_NONCE_SIZE;
    case REPLICA_FRAME:
        return rest > 0 && relay_link_frame_size(entry + REPLICA_ENTRY_HEAD, rest) == rest;
    case REPLICA_DROP:
        return rest == 0;
    default:
        return false;
    }
}

int replica_receive(struct replica *r, const uint8_t *entry, size_t size)
{
    struct replica_node *n;
    int result = 0;

    if (!is_whole(entry, size))
        return -EPROTO;
    uint32_t number = wire_load_u32(entry + 5);
    if (entry[4] == REPLICA_NODE)
        result = number == r->n_numbers + 1 ? make_node(r, entry + REPLICA_ENTRY_HEAD, &n) : -EPROTO;
    else if (number == 0 || number > r->n_numbers)
        result = -EPROTO;
    if (result == 0)
        result = buf_append(&r->log, entry, size);
    r->appended += result == 0;
    r->confirmed = r->appended;
    return result;
}

uint64_t replica_confirmable(const struct replica *r)
{
    return buf_size(&r->log) > REPLICA_BACKLOG_MAX ? r->executed : r->appended;
}

/* ---- executing ---- */

static bool may_begin(const struct replica *r)
{
    return buf_size(&r->log) > 0 && !r->is_held && (r->is_alone || r->executed < r->confirmed);
}

bool replica_is_busy(const struct replica *r)
{
    return !r->is_blocked && (r->stage != REPLICA_IDLE || may_begin(r));
}

static void drop(struct replica *r, struct replica_node *n, int reason)
{
    replica_forget(r, n);
    relay_node_finish(&n->node);
    r->host.dropped(r->host.data, n, reason);
}

/* Takes the entry off the log; what it is about is the current node. */
static int begin_entry(struct replica *r)
{
    const uint8_t *entry = buf_bytes(&r->log);
    size_t size = 4 + (size_t)wire_load_u32(entry);
    uint32_t number = wire_load_u32(entry + 5);
    struct replica_node *n = r->by_number[number - 1];
    int result = 0;

    r->store->limits.bytes_max = wire_load_u64(entry + 9);
    r->current = n;
    if (n && entry[4] == REPLICA_NODE) {
        n->is_created = true;
        r->host.created(r->host.data, n);
    } else if (n && entry[4] == REPLICA_FRAME) {
        result = relay_link_feed(&n->node.link, entry + REPLICA_ENTRY_HEAD, size - REPLICA_ENTRY_HEAD,
                                 r->is_backup);
    } else if (n) {
        drop(r, n, 0);
    }
    buf_consume(&r->log, size);
    r->executed++;
    r->stage = REPLICA_REQUESTS;
    return result;
}

static int run_requests(struct replica *r)
{
    struct store_budget budget = {.units = STORE_TURN_UNITS, .turn = STORE_TURN_UNITS};
    int result = r->current ? relay_node_run(&r->current->node, &budget) : RELAY_NODE_IDLE;

    if (result == RELAY_NODE_TURN)
        return 0;
    r->stage = REPLICA_RELEASES;
    return result < 0 ? result : 0;
}

static void run_releases(struct replica *r)
{
    for (int i = 0; i < RELEASE_BATCH && !list_is_empty(&r->store->released); i++) {
        struct list *entry = r->store->released.next;
        struct relay_node *n;

        list_unlink(entry);
        n = relay_node_release(list_entry(entry, struct store_client, released));
        r->host.has_output(r->host.data, list_entry(n, struct replica_node, node));
    }
    if (list_is_empty(&r->store->released))
        r->stage = REPLICA_CLEANING;
}

static int run_stage(struct replica *r)
{
    switch (r->stage) {
    case REPLICA_IDLE:
        break;
    case REPLICA_REQUESTS:
        return run_requests(r);
    case REPLICA_RELEASES:
        run_releases(r);
        break;
    case REPLICA_CLEANING:
        if (store_clean(r->store, STORE_TURN_UNITS))
            break;
        r->stage = REPLICA_IDLE;
        if (r->current)
            r->host.has_output(r->host.data, r->current);
        r->current = NULL;
        break;
    }
    return 0;
}

/* A node that breaks the rules does so on both sides. */
static int take_result(struct replica *r, int result)
{
    if (result != -EPROTO || !r->current)
        return result;
    r->stage = REPLICA_RELEASES; /* of clients that it leaves behind */
    drop(r, r->current, result);
    return 0;
}

/* A turn of the loop: small requests together, or a part of a large one. */
enum { STEPS_MAX = 256 };

int replica_run(struct replica *r)
{
    int result = 0;

    for (int i = 0; i < STEPS_MAX && result == 0 && replica_is_busy(r); i++) {
        bool begins = r->stage == REPLICA_IDLE;

        result = take_result(r, begins ? begin_entry(r) : run_stage(r));
        if (!begins && r->stage == REPLICA_REQUESTS)
            break; /* it used a whole turn */
    }
    return result;
}

int replica_run_all(struct replica *r)
{
    int result = 0;

    while (result == 0 && replica_is_busy(r))
        result = replica_run(r);
    return result;
}
