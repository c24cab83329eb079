/*
 * Decoders and encoders of the TCPStore wire.
 *
 * The happy path is one pass: the type byte picks a row of `layouts` with the fields of the message, and
 * the fields are taken one after another. An incomplete message of few fields is simply walked
 * again from the start when more has arrived: at most three length fields, whatever the size. Only
 * a list may have many fields, so only inside a list does the scanner remember the place: the cost of
 * a list stays linear in slices of any size.
 *
 * WIRE_E_BAD: an unknown type byte, and a length or count above the limit, as soon as the
 * eight bytes are there. Everything else from a peer is valid or incomplete.
 *
 * Replies are decoded by the same means. Replies have no type byte, so the caller names the operation, and an
 * unknown status or a queue of negative length is bad as well.
 *
 * Not here: what the fields mean (whether a magic is right, whether a number makes sense), I/O.
 */

#include "proto/wire.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"

enum { LENGTH_SIZE = 8, AMOUNT_SIZE = 8, WORD_SIZE = 4 };

enum field {
    FIELD_END,
    FIELD_WORD,   /* u32 */
    FIELD_AMOUNT, /* i64 */
    FIELD_KEY,    /* a vector, as the next two */
    FIELD_VALUE,
    FIELD_DESIRED, /* another value */
    FIELD_KEYS,    /* count, then that many keys; the only field of a message, as the next one */
    FIELD_PAIRS,   /* count, then that many (key, value) */
    FIELD_COUNT
};

/* Bytes of a field without the content of vectors. */
static const uint8_t least_size[FIELD_COUNT] = {
    [FIELD_WORD] = WORD_SIZE,    [FIELD_AMOUNT] = AMOUNT_SIZE,  [FIELD_KEY] = LENGTH_SIZE,
    [FIELD_VALUE] = LENGTH_SIZE, [FIELD_DESIRED] = LENGTH_SIZE, [FIELD_KEYS] = LENGTH_SIZE,
    [FIELD_PAIRS] = LENGTH_SIZE,
};

enum reply_shape {
    REPLY_NONE,
    REPLY_WORD,       /* u32 */
    REPLY_NUMBER,     /* i64 */
    REPLY_STATUS,     /* one byte: 0 or 1 */
    REPLY_VALUE,      /* value */
    REPLY_POPPED,     /* i64 and, if that is above 0, a value */
    REPLY_VALUES,     /* as many values as keys were asked for */
    REPLY_COUNT_KEYS, /* count, then that many keys */
};

struct layout {
    const char *name;
    enum reply_shape reply;
    uint8_t fields[4]; /* of the request, in order; FIELD_END behind the last one */
};

static const struct layout layouts[] = {
    [WIRE_OP_VALIDATE] = {"VALIDATE", REPLY_NONE, {FIELD_WORD}},
    [WIRE_OP_SET] = {"SET", REPLY_NONE, {FIELD_KEY, FIELD_VALUE}},
    [WIRE_OP_COMPARE_SET] = {"COMPARE_SET", REPLY_VALUE, {FIELD_KEY, FIELD_VALUE, FIELD_DESIRED}},
    [WIRE_OP_GET] = {"GET", REPLY_VALUE, {FIELD_KEY}},
    [WIRE_OP_ADD] = {"ADD", REPLY_NUMBER, {FIELD_KEY, FIELD_AMOUNT}},
    [WIRE_OP_CHECK] = {"CHECK", REPLY_STATUS, {FIELD_KEYS}},
    [WIRE_OP_WAIT] = {"WAIT", REPLY_STATUS, {FIELD_KEYS}},
    [WIRE_OP_GETNUMKEYS] = {"GETNUMKEYS", REPLY_NUMBER},
    [WIRE_OP_DELETE_KEY] = {"DELETE_KEY", REPLY_NUMBER, {FIELD_KEY}},
    [WIRE_OP_APPEND] = {"APPEND", REPLY_NONE, {FIELD_KEY, FIELD_VALUE}},
    [WIRE_OP_MULTI_GET] = {"MULTI_GET", REPLY_VALUES, {FIELD_KEYS}},
    [WIRE_OP_MULTI_SET] = {"MULTI_SET", REPLY_NONE, {FIELD_PAIRS}},
    [WIRE_OP_CANCEL_WAIT] = {"CANCEL_WAIT", REPLY_STATUS},
    [WIRE_OP_PING] = {"PING", REPLY_WORD, {FIELD_WORD}},
    [WIRE_OP_QUEUE_PUSH] = {"QUEUE_PUSH", REPLY_NONE, {FIELD_KEY, FIELD_VALUE}},
    [WIRE_OP_QUEUE_POP] = {"QUEUE_POP", REPLY_POPPED, {FIELD_KEY}},
    [WIRE_OP_QUEUE_LEN] = {"QUEUE_LEN", REPLY_NUMBER, {FIELD_KEY}},
    [WIRE_OP_LIST_KEYS] = {"LIST_KEYS", REPLY_COUNT_KEYS},
    [WIRE_OP_BARRIER] = {"BARRIER", REPLY_STATUS, {FIELD_KEY, FIELD_AMOUNT}},
};
_Static_assert(ARRAY_SIZE(layouts) == WIRE_OP_COUNT, "each operation has its layout");

const char *wire_op_name(unsigned op)
{
    return op < WIRE_OP_COUNT ? layouts[op].name : "?";
}

bool wire_has_reply(enum wire_op op)
{
    return layouts[op].reply != REPLY_NONE;
}

/* One call of wire_decode() or wire_decode_reply(): the bytes that are there, and how far it got. */
struct walk {
    struct wire_scanner *scanner;
    const struct wire_limits *limits;
    const uint8_t *data;
    size_t n;
    size_t position; /* <= n */
};

static int wire_need(const struct walk *w, uint64_t need)
{
    w->scanner->need = need;
    return WIRE_E_MORE;
}

static int wire_bad(const struct walk *w, const char *error, uint64_t value)
{
    w->scanner->error = error;
    w->scanner->error_value = value;
    return WIRE_E_BAD;
}

/* The next n_bytes are a field of fixed size. */
static inline int take_fixed(struct walk *w, size_t n_bytes, const uint8_t **ret_field)
{
    if (w->n - w->position < n_bytes)
        return wire_need(w, w->position + n_bytes);
    *ret_field = w->data + w->position;
    w->position += n_bytes;
    return 0;
}

/* The next field is a vector of at most max bytes, with at least n_behind bytes of the message behind it. */
static inline int take_vec(struct walk *w, uint64_t max, const char *too_long, uint64_t n_behind,
                           struct wire_span *ret_vec)
{
    size_t n_left = w->n - w->position;

    if (n_left < LENGTH_SIZE)
        return wire_need(w, w->position + LENGTH_SIZE + n_behind);
    uint64_t size = wire_load_u64(w->data + w->position);
    if (size > max)
        return wire_bad(w, too_long, size);
    uint64_t end = w->position + LENGTH_SIZE + size;
    if (end + n_behind > w->limits->message_max)
        return wire_bad(w, "message longer than the limit", end + n_behind);
    if (n_left - LENGTH_SIZE < size)
        return wire_need(w, end + n_behind);
    *ret_vec = wire_span(w->data + w->position + LENGTH_SIZE, (size_t)size);
    w->position = (size_t)end;
    return 0;
}

static inline int scan_key(struct walk *w, uint64_t n_behind, struct wire_span *ret_key)
{
    return take_vec(w, w->limits->key_max, "key longer than the limit", n_behind, ret_key);
}

static inline int scan_value(struct walk *w, uint64_t n_behind, struct wire_span *ret_value)
{
    return take_vec(w, w->limits->value_max, "value longer than the limit", n_behind, ret_value);
}

static inline int take_word(struct walk *w, uint32_t *ret_word)
{
    const uint8_t *field;

    TRY(take_fixed(w, WORD_SIZE, &field));
    *ret_word = wire_load_u32(field);
    return 0;
}

static inline int take_number(struct walk *w, int64_t *ret_number)
{
    const uint8_t *field;

    TRY(take_fixed(w, AMOUNT_SIZE, &field));
    *ret_number = (int64_t)wire_load_u64(field);
    return 0;
}

/* The count of a list is read once; from then on the scanner holds the place. */
static int start_list(struct walk *w, unsigned vecs_per_item)
{
    struct wire_scanner *s = w->scanner;
    const uint8_t *field;

    TRY(take_fixed(w, LENGTH_SIZE, &field));
    uint64_t count = wire_load_u64(field);
    if (count > w->limits->keys_max)
        return wire_bad(w, "more keys than the limit", count);
    uint64_t end = w->position + count * vecs_per_item * LENGTH_SIZE; /* if all of them are empty */
    if (end > w->limits->message_max)
        return wire_bad(w, "message longer than the limit", end);
    s->position = w->position;
    s->items_left = count * vecs_per_item;
    return 0;
}

enum list_kind { LIST_KEYS, LIST_PAIRS, LIST_VALUES };

/* Walks the vectors of a list from where the last call stopped; the first one is at `start`. In a list of pairs an odd number
 * of vectors left means that a value comes next. */
static int walk_list(struct walk *w, enum list_kind kind, size_t start, struct wire_span *ret_items)
{
    struct wire_scanner *s = w->scanner;
    struct wire_span vec;

    w->position = s->position;
    while (s->items_left > 0) {
        uint64_t n_behind = (s->items_left - 1) * LENGTH_SIZE;
        bool is_value = kind == LIST_VALUES || (kind == LIST_PAIRS && s->items_left % 2 == 1);

        TRY(is_value ? scan_value(w, n_behind, &vec) : scan_key(w, n_behind, &vec));
        s->position = w->position;
        s->items_left--;
    }
    *ret_items = wire_span(w->data + start, w->position - start);
    return 0;
}

/* Position 0: the walk has not begun. */
static int take_list(struct walk *w, enum list_kind kind, size_t start, size_t *ret_n,
                     struct wire_span *ret_items)
{
    TRY(w->scanner->position == 0 ? start_list(w, kind == LIST_PAIRS ? 2 : 1) : 0);
    *ret_n = (size_t)wire_load_u64(w->data + start - LENGTH_SIZE);
    return walk_list(w, kind, start, ret_items);
}

static inline int take_field(struct walk *w, enum field field, uint64_t n_behind, struct wire_request *q)
{
    switch (field) {
    case FIELD_WORD:
        return take_word(w, &q->word);
    case FIELD_AMOUNT:
        return take_number(w, &q->amount);
    case FIELD_KEY:
        return scan_key(w, n_behind, &q->key);
    case FIELD_VALUE:
        return scan_value(w, n_behind, &q->value);
    case FIELD_DESIRED:
        return scan_value(w, n_behind, &q->desired);
    case FIELD_KEYS:
    case FIELD_PAIRS:
        return take_list(w, field == FIELD_PAIRS ? LIST_PAIRS : LIST_KEYS, 1 + LENGTH_SIZE, &q->n_items,
                         &q->items);
    default:
        __builtin_unreachable(); /* the field comes from our own table */
    }
}

static uint64_t size_behind(const uint8_t *field)
{
    uint64_t size = 0;

    while (*field && *++field)
        size += least_size[*field];
    return size;
}

int wire_decode(struct wire_scanner *s, const struct wire_limits *limits, const uint8_t *data, size_t n,
                struct wire_request *ret_request, size_t *ret_size)
{
    struct walk w = {.scanner = s, .limits = limits, .data = data, .n = n, .position = 1};
    struct wire_request request = {0};

    if (n == 0)
        return wire_need(&w, 1);
    if (data[0] >= WIRE_OP_COUNT)
        return wire_bad(&w, "unknown operation", data[0]);
    request.op = (enum wire_op)data[0];
    for (const uint8_t *field = layouts[data[0]].fields; *field; field++)
        TRY(take_field(&w, (enum field) * field, size_behind(field), &request));
    *ret_request = request;
    *ret_size = w.position;
    *s = (struct wire_scanner){0};
    return 0;
}

/* ------------------------------------------------------------------ replies */

static int take_status(struct walk *w, struct wire_reply *reply)
{
    const uint8_t *field;

    TRY(take_fixed(w, 1, &field));
    if (*field > 1)
        return wire_bad(w, "unknown status", *field);
    reply->number = *field;
    return 0;
}

static int take_nonce(struct walk *w, struct wire_reply *reply)
{
    uint32_t word;

    TRY(take_word(w, &word));
    reply->number = word;
    return 0;
}

static int take_popped(struct walk *w, struct wire_reply *reply)
{
    TRY(take_number(w, &reply->number));
    if (reply->number < 0)
        return wire_bad(w, "negative queue length", (uint64_t)reply->number);
    return reply->number > 0 ? scan_value(w, 0, &reply->value) : 0;
}

/* The request has the number of values. Position 0 is also where the first one starts, so a start is
 * recognised by items_left being 0. */
static int take_values(struct walk *w, size_t n_items, struct wire_reply *reply)
{
    struct wire_scanner *s = w->scanner;

    if (n_items == 0)
        return 0; /* nothing will come, and data may be NULL */
    if (s->position == 0 && s->items_left == 0)
        s->items_left = n_items;
    reply->n_items = n_items;
    return walk_list(w, LIST_VALUES, 0, &reply->items);
}

static int scan_reply(struct walk *w, size_t n_items, struct wire_reply *reply)
{
    switch (layouts[reply->op].reply) {
    case REPLY_NONE:
        return 0;
    case REPLY_WORD:
        return take_nonce(w, reply);
    case REPLY_NUMBER:
        return take_number(w, &reply->number);
    case REPLY_STATUS:
        return take_status(w, reply);
    case REPLY_VALUE:
        return scan_value(w, 0, &reply->value);
    case REPLY_POPPED:
        return take_popped(w, reply);
    case REPLY_VALUES:
        return take_values(w, n_items, reply);
    case REPLY_COUNT_KEYS:
        return take_list(w, LIST_KEYS, LENGTH_SIZE, &reply->n_items, &reply->items);
    }
    __builtin_unreachable(); /* the shape comes from our own table */
}

int wire_decode_reply(struct wire_scanner *s, const struct wire_limits *limits, enum wire_op op,
                      size_t n_items, const uint8_t *data, size_t n, struct wire_reply *ret_reply,
                      size_t *ret_size)
{
    struct walk w = {.scanner = s, .limits = limits, .data = data, .n = n};
    struct wire_reply reply = {.op = op};

    TRY(scan_reply(&w, n_items, &reply));
    *ret_reply = reply;
    *ret_size = w.position;
    *s = (struct wire_scanner){0};
    return 0;
}

/* ------------------------------------------------------------------ lists */

/* Takes a vector off the front of the list. False when the list is over, or (not after a successful
 * wire_decode()) when its bytes do not hold a vector. */
bool wire_next_key(struct wire_span *list, struct wire_span *ret_key)
{
    uint64_t size;

    if (list->size < LENGTH_SIZE)
        return false;
    size = wire_load_u64(list->data);
    if (size > list->size - LENGTH_SIZE)
        return false;
    *ret_key = wire_span(list->data + LENGTH_SIZE, (size_t)size);
    list->data += LENGTH_SIZE + size;
    list->size -= LENGTH_SIZE + (size_t)size;
    return true;
}

bool wire_next_pair(struct wire_span *list, struct wire_span *ret_key, struct wire_span *ret_value)
{
    struct wire_span rest = *list;

    if (!wire_next_key(&rest, ret_key) || !wire_next_key(&rest, ret_value))
        return false;
    *list = rest;
    return true;
}

/* ------------------------------------------------------------------ encoders */

/* Writers into reserved room; each returns the place of the next writer. */

static uint8_t *store_u64(uint8_t *to, uint64_t v)
{
    wire_store_u32(to, (uint32_t)v);
    wire_store_u32(to + WORD_SIZE, (uint32_t)(v >> 32));
    return to + AMOUNT_SIZE;
}

static uint8_t *store_bytes(uint8_t *to, struct wire_span bytes)
{
    if (bytes.size > 0) /* data may be NULL then */
        memcpy(to, bytes.data, bytes.size);
    return to + bytes.size;
}

static uint8_t *store_vec(uint8_t *to, struct wire_span vec)
{
    return store_bytes(store_u64(to, vec.size), vec);
}

/* The vector of a field, or the raw list; empty: the field has none. */
static struct wire_span span_of_field(const struct wire_request *q, enum field field)
{
    switch (field) {
    case FIELD_KEY:
        return q->key;
    case FIELD_VALUE:
        return q->value;
    case FIELD_DESIRED:
        return q->desired;
    case FIELD_KEYS:
    case FIELD_PAIRS:
        return q->items;
    default:
        return wire_span(NULL, 0);
    }
}

static uint8_t *store_field(uint8_t *to, const struct wire_request *q, enum field field)
{
    struct wire_span span = span_of_field(q, field);

    switch (field) {
    case FIELD_WORD:
        wire_store_u32(to, q->word);
        return to + WORD_SIZE;
    case FIELD_AMOUNT:
        return store_u64(to, (uint64_t)q->amount);
    case FIELD_KEYS:
    case FIELD_PAIRS:
        return store_bytes(store_u64(to, q->n_items), span);
    default:
        return store_vec(to, span);
    }
}

/* Adds the sizes to the total; false when no memory could hold the sum. */
static bool add_sizes(size_t *total, size_t a, size_t b)
{
    return !__builtin_add_overflow(*total, a, total) && !__builtin_add_overflow(*total, b, total);
}

/* Room for the whole message at once, so the buffer never holds half a message. NULL: no memory. */
static uint8_t *take_room(struct buf *out, size_t size)
{
    uint8_t *to = buf_reserve(out, size);

    if (to)
        buf_commit(out, size);
    return to;
}

int wire_put(struct buf *out, const struct wire_request *q)
{
    const uint8_t *fields = layouts[q->op].fields;
    size_t total = 1;

    for (const uint8_t *field = fields; *field; field++)
        if (!add_sizes(&total, least_size[*field], span_of_field(q, (enum field) * field).size))
            return -ENOMEM;
    uint8_t *to = take_room(out, total);
    if (!to)
        return -ENOMEM;
    *to++ = (uint8_t)q->op;
    for (const uint8_t *field = fields; *field; field++)
        to = store_field(to, q, (enum field) * field);
    return 0;
}

int wire_put_keys(struct buf *out, enum wire_op op, const struct wire_span *keys, size_t n_keys)
{
    size_t total = 1 + LENGTH_SIZE;

    for (size_t i = 0; i < n_keys; i++)
        if (!add_sizes(&total, LENGTH_SIZE, keys[i].size))
            return -ENOMEM;
    uint8_t *to = take_room(out, total);
    if (!to)
        return -ENOMEM;
    *to++ = (uint8_t)op;
    to = store_u64(to, n_keys);
    for (size_t i = 0; i < n_keys; i++)
        to = store_vec(to, keys[i]);
    return 0;
}

int wire_put_vec(struct buf *out, struct wire_span value)
{
    size_t total = 0;
    uint8_t *to = add_sizes(&total, LENGTH_SIZE, value.size) ? take_room(out, total) : NULL;

    if (!to)
        return -ENOMEM;
    (void)store_vec(to, value);
    return 0;
}
