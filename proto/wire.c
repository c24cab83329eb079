/*
 * Decoders of the TCPStore wire; the encoders are in wire_put.c.
 *
 * The happy path is one pass: the type byte picks a row of `layouts`, which lists the fields that follow, and
 * the fields are taken one after another. A message of few fields that is not complete is simply walked
 * again from its start when more has arrived: that is at most three length fields, whatever its size. Only
 * a list may have many, so only inside a list does the scanner remember its place; that keeps the cost of
 * a list linear however it is sliced.
 *
 * What ends in WIRE_E_BAD: an unknown type byte, and a length or count above its limit, as soon as its
 * eight bytes are there. Everything else that a peer can send is valid or incomplete.
 *
 * Replies are decoded by the same means. They have no type byte, so the caller names the operation, and a
 * status that does not exist or a queue of negative length is bad as well.
 *
 * Not here: what the fields mean (whether a magic is right, whether a number makes sense), I/O.
 */

#include "proto/wire.h"

#include "base/err.h"

enum { LENGTH_SIZE = 8, AMOUNT_SIZE = 8, WORD_SIZE = 4 };

enum shape {
    SHAPE_PLAIN,       /* nothing follows */
    SHAPE_WORD,        /* u32 */
    SHAPE_KEY,         /* key */
    SHAPE_KEY_AMOUNT,  /* key, i64 */
    SHAPE_KEY_VALUE,   /* key, value */
    SHAPE_COMPARE_SET, /* key, value, value */
    SHAPE_KEYS,        /* count, then that many keys */
    SHAPE_PAIRS,       /* count, then that many (key, value) */
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
    enum shape shape;
    enum reply_shape reply;
};

static const struct layout layouts[] = {
    [WIRE_OP_VALIDATE] = {"VALIDATE", SHAPE_WORD, REPLY_NONE},
    [WIRE_OP_SET] = {"SET", SHAPE_KEY_VALUE, REPLY_NONE},
    [WIRE_OP_COMPARE_SET] = {"COMPARE_SET", SHAPE_COMPARE_SET, REPLY_VALUE},
    [WIRE_OP_GET] = {"GET", SHAPE_KEY, REPLY_VALUE},
    [WIRE_OP_ADD] = {"ADD", SHAPE_KEY_AMOUNT, REPLY_NUMBER},
    [WIRE_OP_CHECK] = {"CHECK", SHAPE_KEYS, REPLY_STATUS},
    [WIRE_OP_WAIT] = {"WAIT", SHAPE_KEYS, REPLY_STATUS},
    [WIRE_OP_GETNUMKEYS] = {"GETNUMKEYS", SHAPE_PLAIN, REPLY_NUMBER},
    [WIRE_OP_DELETE_KEY] = {"DELETE_KEY", SHAPE_KEY, REPLY_NUMBER},
    [WIRE_OP_APPEND] = {"APPEND", SHAPE_KEY_VALUE, REPLY_NONE},
    [WIRE_OP_MULTI_GET] = {"MULTI_GET", SHAPE_KEYS, REPLY_VALUES},
    [WIRE_OP_MULTI_SET] = {"MULTI_SET", SHAPE_PAIRS, REPLY_NONE},
    [WIRE_OP_CANCEL_WAIT] = {"CANCEL_WAIT", SHAPE_PLAIN, REPLY_STATUS},
    [WIRE_OP_PING] = {"PING", SHAPE_WORD, REPLY_WORD},
    [WIRE_OP_QUEUE_PUSH] = {"QUEUE_PUSH", SHAPE_KEY_VALUE, REPLY_NONE},
    [WIRE_OP_QUEUE_POP] = {"QUEUE_POP", SHAPE_KEY, REPLY_POPPED},
    [WIRE_OP_QUEUE_LEN] = {"QUEUE_LEN", SHAPE_KEY, REPLY_NUMBER},
    [WIRE_OP_LIST_KEYS] = {"LIST_KEYS", SHAPE_PLAIN, REPLY_COUNT_KEYS},
    [WIRE_OP_BARRIER] = {"BARRIER", SHAPE_KEY_AMOUNT, REPLY_STATUS},
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
    uint64_t size, end;

    if (n_left < LENGTH_SIZE)
        return wire_need(w, w->position + LENGTH_SIZE + n_behind);
    size = wire_load_u64(w->data + w->position);
    if (size > max)
        return wire_bad(w, too_long, size);
    end = w->position + LENGTH_SIZE + size;
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
    int r = take_fixed(w, WORD_SIZE, &field);

    if (r)
        return r;
    *ret_word = wire_load_u32(field);
    return 0;
}

static inline int take_key_amount(struct walk *w, struct wire_request *request)
{
    const uint8_t *field;
    int r = scan_key(w, AMOUNT_SIZE, &request->key);

    if (!r)
        r = take_fixed(w, AMOUNT_SIZE, &field);
    if (r)
        return r;
    request->amount = (int64_t)wire_load_u64(field);
    return 0;
}

static inline int take_key_value(struct walk *w, struct wire_request *request)
{
    int r = scan_key(w, LENGTH_SIZE, &request->key);

    return r ? r : scan_value(w, 0, &request->value);
}

static int take_compare_set(struct walk *w, struct wire_request *request)
{
    int r = scan_key(w, 2 * LENGTH_SIZE, &request->key);

    if (!r)
        r = scan_value(w, LENGTH_SIZE, &request->value);
    return r ? r : scan_value(w, 0, &request->desired);
}

/* The count of a list is read once; from then on the scanner holds the place. */
static int start_list(struct walk *w, unsigned vecs_per_item)
{
    struct wire_scanner *s = w->scanner;
    const uint8_t *field;
    uint64_t count, end;
    int r = take_fixed(w, LENGTH_SIZE, &field);

    if (r)
        return r;
    count = wire_load_u64(field);
    if (count > w->limits->keys_max)
        return wire_bad(w, "more keys than the limit", count);
    end = w->position + count * vecs_per_item * LENGTH_SIZE; /* if all of them are empty */
    if (end > w->limits->message_max)
        return wire_bad(w, "message longer than the limit", end);
    s->position = w->position;
    s->items_left = count * vecs_per_item;
    return 0;
}

/* Walks the vectors of a list from where the last call stopped. In a list of pairs an odd number of
 * vectors left means that a value comes next. */
static int take_list(struct walk *w, unsigned vecs_per_item, struct wire_request *request)
{
    struct wire_scanner *s = w->scanner;
    size_t start = 1 + LENGTH_SIZE;
    struct wire_span vec;
    int r;

    if (s->position == 0) {
        r = start_list(w, vecs_per_item);
        if (r)
            return r;
    }
    w->position = s->position;
    while (s->items_left > 0) {
        uint64_t n_behind = (s->items_left - 1) * LENGTH_SIZE;
        bool is_value = vecs_per_item == 2 && s->items_left % 2 == 1;

        r = is_value ? scan_value(w, n_behind, &vec) : scan_key(w, n_behind, &vec);
        if (r)
            return r;
        s->position = w->position;
        s->items_left--;
    }
    request->n_items = (size_t)wire_load_u64(w->data + 1);
    request->items = wire_span(w->data + start, w->position - start);
    return 0;
}

static inline int take_fields(struct walk *w, enum shape shape, struct wire_request *request)
{
    switch (shape) {
    case SHAPE_PLAIN:
        return 0;
    case SHAPE_WORD:
        return take_word(w, &request->word);
    case SHAPE_KEY:
        return scan_key(w, 0, &request->key);
    case SHAPE_KEY_AMOUNT:
        return take_key_amount(w, request);
    case SHAPE_KEY_VALUE:
        return take_key_value(w, request);
    case SHAPE_COMPARE_SET:
        return take_compare_set(w, request);
    case SHAPE_KEYS:
        return take_list(w, 1, request);
    case SHAPE_PAIRS:
        return take_list(w, 2, request);
    }
    __builtin_unreachable(); /* the shape comes from our own table */
}

int wire_decode(struct wire_scanner *s, const struct wire_limits *limits, const uint8_t *data, size_t n,
                struct wire_request *ret_request, size_t *ret_size)
{
    struct walk w = {.scanner = s, .limits = limits, .data = data, .n = n, .position = 1};
    struct wire_request request = {0};
    int r;

    if (n == 0)
        return wire_need(&w, 1);
    if (data[0] >= WIRE_OP_COUNT)
        return wire_bad(&w, "unknown operation", data[0]);
    request.op = (enum wire_op)data[0];
    r = take_fields(&w, layouts[data[0]].shape, &request);
    if (r)
        return r;
    *ret_request = request;
    *ret_size = w.position;
    *s = (struct wire_scanner){0};
    return 0;
}

/* ------------------------------------------------------------------ replies */

static int take_status(struct walk *w, struct wire_reply *reply)
{
    const uint8_t *field;
    int r = take_fixed(w, 1, &field);

    if (r)
        return r;
    if (*field > 1)
        return wire_bad(w, "unknown status", *field);
    reply->number = *field;
    return 0;
}

static int scan_number(struct walk *w, struct wire_reply *reply)
{
    const uint8_t *field;
    int r = take_fixed(w, AMOUNT_SIZE, &field);

    if (r)
        return r;
    reply->number = (int64_t)wire_load_u64(field);
    return 0;
}

static int take_nonce(struct walk *w, struct wire_reply *reply)
{
    uint32_t word;
    int r = take_word(w, &word);

    if (r)
        return r;
    reply->number = word;
    return 0;
}

static int take_popped(struct walk *w, struct wire_reply *reply)
{
    int r = scan_number(w, reply);

    if (r)
        return r;
    if (reply->number < 0)
        return wire_bad(w, "negative queue length", (uint64_t)reply->number);
    return reply->number > 0 ? scan_value(w, 0, &reply->value) : 0;
}

/* The vectors of a reply, from where the last call stopped. The first of them is at `start`. */
static int take_reply_list(struct walk *w, size_t start, bool keys, struct wire_reply *reply)
{
    struct wire_scanner *s = w->scanner;
    struct wire_span vec;
    int r;

    w->position = s->position;
    while (s->items_left > 0) {
        uint64_t n_behind = (s->items_left - 1) * LENGTH_SIZE;

        r = keys ? scan_key(w, n_behind, &vec) : scan_value(w, n_behind, &vec);
        if (r)
            return r;
        s->position = w->position;
        s->items_left--;
    }
    reply->items = wire_span(w->data + start, w->position - start);
    return 0;
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
    return take_reply_list(w, 0, false, reply);
}

static int take_count_keys(struct walk *w, struct wire_reply *reply)
{
    int r = w->scanner->position == 0 ? start_list(w, 1) : 0;

    if (r)
        return r;
    reply->n_items = (size_t)wire_load_u64(w->data);
    return take_reply_list(w, LENGTH_SIZE, true, reply);
}

static int scan_reply(struct walk *w, size_t n_items, struct wire_reply *reply)
{
    switch (layouts[reply->op].reply) {
    case REPLY_NONE:
        return 0;
    case REPLY_WORD:
        return take_nonce(w, reply);
    case REPLY_NUMBER:
        return scan_number(w, reply);
    case REPLY_STATUS:
        return take_status(w, reply);
    case REPLY_VALUE:
        return scan_value(w, 0, &reply->value);
    case REPLY_POPPED:
        return take_popped(w, reply);
    case REPLY_VALUES:
        return take_values(w, n_items, reply);
    case REPLY_COUNT_KEYS:
        return take_count_keys(w, reply);
    }
    __builtin_unreachable(); /* the shape comes from our own table */
}

int wire_decode_reply(struct wire_scanner *s, const struct wire_limits *limits, enum wire_op op,
                      size_t n_items, const uint8_t *data, size_t n, struct wire_reply *ret_reply,
                      size_t *ret_size)
{
    struct walk w = {.scanner = s, .limits = limits, .data = data, .n = n};
    struct wire_reply reply = {.op = op};
    int r = scan_reply(&w, n_items, &reply);

    if (r)
        return r;
    *ret_reply = reply;
    *ret_size = w.position;
    *s = (struct wire_scanner){0};
    return 0;
}

/* ------------------------------------------------------------------ lists */

/* Takes a vector off the front of the list. False when the list is over, or (not after a successful
 * wire_decode()) when its bytes do not hold a vector. */
static bool next_vec(struct wire_span *list, struct wire_span *ret_vec)
{
    uint64_t size;

    if (list->size < LENGTH_SIZE)
        return false;
    size = wire_load_u64(list->data);
    if (size > list->size - LENGTH_SIZE)
        return false;
    *ret_vec = wire_span(list->data + LENGTH_SIZE, (size_t)size);
    list->data += LENGTH_SIZE + size;
    list->size -= LENGTH_SIZE + (size_t)size;
    return true;
}

bool wire_next_key(struct wire_span *list, struct wire_span *ret_key)
{
    return next_vec(list, ret_key);
}

bool wire_next_pair(struct wire_span *list, struct wire_span *ret_key, struct wire_span *ret_value)
{
    struct wire_span rest = *list;

    if (!next_vec(&rest, ret_key) || !next_vec(&rest, ret_value))
        return false;
    *list = rest;
    return true;
}
