#include "tests/support/c/store_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/support/c/wire_messages.h"

/* The keys as they are on the wire, each with a "/" in front; spans and bytes are one block. NULL: no memory. */
static struct wire_span *name_keys(const struct wire_span *keys, size_t n_keys)
{
    size_t total = (n_keys + 1) * sizeof(*keys);
    struct wire_span *named;
    uint8_t *to;

    for (size_t i = 0; i < n_keys; i++)
        total += 1 + keys[i].size;
    named = malloc(total);
    if (!named)
        return NULL;
    to = (uint8_t *)(named + n_keys + 1);
    for (size_t i = 0; i < n_keys; i++) {
        named[i] = wire_span(to, 1 + keys[i].size);
        *to++ = '/';
        if (keys[i].size > 0)
            memcpy(to, keys[i].data, keys[i].size);
        to += keys[i].size;
    }
    return named;
}

/* *ret_named is the caller's to free, whatever the result. */
static int begin(struct client_sock *s, enum wire_op op, int timeout_ms, const struct wire_span *keys,
                 size_t n_keys, struct wire_span **ret_named)
{
    struct client_sock_call call = {.op = op, .timeout_ms = timeout_ms};

    *ret_named = name_keys(keys, n_keys);
    if (n_keys > 0)
        call.key = keys[0];
    return *ret_named ? client_sock_begin(s, call) : -ENOMEM;
}

/* The end of a call whose request is in the machine if r is 0. */
static int end(struct client_sock *s, int r, struct wire_reply *ret_reply)
{
    return client_sock_end(s, r ? r : client_sock_exchange(s, ret_reply));
}

/* WAIT and its reply. */
static int await_keys(struct client_sock *s, const struct wire_span *named, size_t n_keys)
{
    struct wire_reply reply;
    int r = client_keys(&s->machine, WIRE_OP_WAIT, named, n_keys);

    return r ? r : client_sock_exchange(s, &reply);
}

/* ADD, BARRIER */
static int call_amount(struct client_sock *s, struct client_sock_call call, struct wire_span named,
                       int64_t amount, int64_t *ret_number)
{
    struct wire_reply reply = {0};
    int r = client_sock_begin(s, call);

    if (!r)
        r = client_request(&s->machine,
                           &(struct wire_request){.op = call.op, .key = named, .amount = amount});
    r = end(s, r, &reply);
    *ret_number = reply.number;
    return r;
}

int store_call_join(struct client_sock *s, int64_t *ret_n_joined)
{
    struct wire_span key = wire_span("init/", 5); /* the one name without "/" in front */
    struct client_sock_call call = {.op = WIRE_OP_ADD, .key = key, .timeout_ms = -1};

    return call_amount(s, call, key, 1, ret_n_joined);
}

int store_call_barrier(struct client_sock *s, struct wire_span key, int64_t world_size, int timeout_ms)
{
    _cleanup_free_ struct wire_span *named = name_keys(&key, 1);
    struct client_sock_call call = {.op = WIRE_OP_BARRIER, .key = key, .timeout_ms = timeout_ms};
    int64_t status;

    return named ? call_amount(s, call, *named, world_size, &status) : -ENOMEM;
}

/* APPEND, QUEUE_PUSH */
static int put_value(struct client_sock *s, enum wire_op op, struct wire_span key, struct wire_span value)
{
    _cleanup_free_ struct wire_span *named = NULL;
    int r = begin(s, op, -1, &key, 1, &named);

    if (!r)
        r = client_request(&s->machine, &(struct wire_request){.op = op, .key = *named, .value = value});
    return end(s, r, NULL);
}

int store_call_append(struct client_sock *s, struct wire_span key, struct wire_span value)
{
    return put_value(s, WIRE_OP_APPEND, key, value);
}

int store_call_queue_push(struct client_sock *s, struct wire_span key, struct wire_span value)
{
    return put_value(s, WIRE_OP_QUEUE_PUSH, key, value);
}

int store_call_multi_set(struct client_sock *s, const struct wire_span *keys, const struct wire_span *values,
                         size_t n_pairs)
{
    _cleanup_free_ struct wire_span *named = NULL;
    int r = begin(s, WIRE_OP_MULTI_SET, -1, keys, n_pairs, &named);

    if (!r)
        r = client_multi_set(&s->machine, named, values, n_pairs);
    return end(s, r, NULL);
}

int store_call_wait(struct client_sock *s, const struct wire_span *keys, size_t n_keys, int timeout_ms)
{
    _cleanup_free_ struct wire_span *named = NULL;
    int r = begin(s, WIRE_OP_WAIT, timeout_ms, keys, n_keys, &named);

    if (!r)
        r = await_keys(s, named, n_keys);
    return client_sock_end(s, r);
}

int store_call_check(struct client_sock *s, const struct wire_span *keys, size_t n_keys, bool *ret_all)
{
    _cleanup_free_ struct wire_span *named = NULL;
    struct wire_reply reply = {0};
    int r = begin(s, WIRE_OP_CHECK, -1, keys, n_keys, &named);

    if (!r)
        r = client_keys(&s->machine, WIRE_OP_CHECK, named, n_keys);
    r = end(s, r, &reply);
    *ret_all = r == 0 && reply.number == WIRE_CHECK_READY;
    return r;
}

int store_call_multi_get(struct client_sock *s, const struct wire_span *keys, size_t n_keys, int timeout_ms,
                         struct wire_span *ret_values)
{
    _cleanup_free_ struct wire_span *named = NULL;
    struct wire_reply reply;
    int r = begin(s, WIRE_OP_MULTI_GET, timeout_ms, keys, n_keys, &named);

    if (r || n_keys == 0)
        return client_sock_end(s, r);
    r = await_keys(s, named, n_keys);
    if (!r)
        r = client_keys(&s->machine, WIRE_OP_MULTI_GET, named, n_keys);
    r = end(s, r, &reply);
    for (size_t i = 0; !r && i < n_keys; i++)
        (void)wire_next_key(&reply.items, &ret_values[i]); /* the decoder has counted them */
    return r;
}

int store_call_compare_set(struct client_sock *s, struct wire_span key, struct wire_span expected,
                           struct wire_span desired, struct wire_span *ret_value)
{
    _cleanup_free_ struct wire_span *named = NULL;
    struct wire_reply reply;
    int r = begin(s, WIRE_OP_COMPARE_SET, -1, &key, 1, &named);

    if (!r)
        r = client_request(&s->machine, &(struct wire_request){.op = WIRE_OP_COMPARE_SET,
                                                               .key = *named,
                                                               .value = expected,
                                                               .desired = desired});
    r = end(s, r, &reply);
    if (!r)
        *ret_value = reply.value;
    return r;
}

/* GETNUMKEYS, LIST_KEYS */
static int ask_plain(struct client_sock *s, enum wire_op op, struct wire_reply *ret_reply)
{
    struct client_sock_call call = {.op = op, .timeout_ms = -1};
    int r = client_sock_begin(s, call);

    if (!r)
        r = client_request(&s->machine, &(struct wire_request){.op = op});
    return end(s, r, ret_reply);
}

int store_call_num_keys(struct client_sock *s, int64_t *ret_n_keys)
{
    struct wire_reply reply = {0};
    int r = ask_plain(s, WIRE_OP_GETNUMKEYS, &reply);

    if (!r)
        *ret_n_keys = reply.number;
    return r;
}

int store_call_list_keys(struct client_sock *s, struct wire_span *ret_list)
{
    struct wire_reply reply;
    int r = ask_plain(s, WIRE_OP_LIST_KEYS, &reply);

    if (!r)
        *ret_list = reply.items;
    return r;
}

bool store_call_next_key(struct wire_span *list, struct wire_span *ret_key)
{
    struct wire_span key;

    while (wire_next_key(list, &key)) {
        if (key.size > 0 && key.data[0] == '/') {
            *ret_key = wire_span(key.data + 1, key.size - 1);
            return true;
        }
    }
    return false;
}

int store_call_queue_len(struct client_sock *s, struct wire_span key, int64_t *ret_len)
{
    _cleanup_free_ struct wire_span *named = NULL;
    struct wire_reply reply;
    int r = begin(s, WIRE_OP_QUEUE_LEN, -1, &key, 1, &named);

    if (!r)
        r = client_request(&s->machine, &(struct wire_request){.op = WIRE_OP_QUEUE_LEN, .key = *named});
    r = end(s, r, &reply);
    if (!r)
        *ret_len = reply.number;
    return r;
}

int store_call_queue_pop(struct client_sock *s, struct wire_span key, int timeout_ms,
                         struct wire_span *ret_value)
{
    _cleanup_free_ struct wire_span *named = NULL;
    bool waits = timeout_ms != 0;
    struct wire_reply reply;
    int r = begin(s, WIRE_OP_QUEUE_POP, waits ? timeout_ms : -1, &key, 1, &named);

    if (!r && waits)
        r = await_keys(s, named, 1);
    if (!r)
        r = client_request(&s->machine, &(struct wire_request){.op = WIRE_OP_QUEUE_POP, .key = *named});
    r = end(s, r, &reply);
    if (!r && reply.number == 0)
        return STORE_CALL_EMPTY;
    if (!r)
        *ret_value = reply.value;
    return r;
}
