/*
 * Random requests of several clients, answered by the store and by a model that is as simple as possible:
 * arrays, linear searches, small fixed sizes. Every reply of every client has to be the same bytes.
 *
 * The seed is printed on failure; CRUN_MODEL_SEED runs one again.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/c/store_harness.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_CLIENTS = 5, N_NAMES = 6, VALUE_MAX = 600, QUEUE_MAX = 64, REPLY_MAX = 1 << 16, N_STEPS = 4000 };

struct value {
    size_t size;
    uint8_t data[VALUE_MAX];
};

struct model_name {
    bool is_key;
    struct value value;
    struct value queue[QUEUE_MAX];
    size_t queue_size;
};

struct model_client {
    bool waits;
    unsigned promised; /* 1 + the queue whose push released it, 0: none */
    bool missing[N_NAMES];
    uint64_t since[N_NAMES]; /* order of waiting for each name */
    uint8_t heard[REPLY_MAX];
    size_t n_heard;
};

static struct model {
    struct model_name names[N_NAMES];
    struct model_client clients[N_CLIENTS];
    uint64_t now;
} model;

static struct harness store;
static unsigned seed;

/* ---- random ---- */

static unsigned below(unsigned n)
{
    return (unsigned)(random() % n);
}

/* Mostly small, sometimes a number, sometimes a bit longer. */
static struct wire_span random_value(uint8_t data[VALUE_MAX / 8])
{
    static const char *const numbers[] = {"7", "-3", "9223372036854775807", " 12x", "x"};
    size_t n = below(4) ? below(10) : below(VALUE_MAX / 8);

    if (below(3) == 0) {
        const char *text = numbers[below(5)];

        return wire_span(text, strlen(text));
    }
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)random();
    return wire_span(data, n);
}

static struct wire_span key_of(unsigned name)
{
    static const char *const keys[N_NAMES] = {"/a", "/b", "/c", "", "/a-longer-name-than-the-others", "/f"};

    return wire_span(keys[name], strlen(keys[name]));
}

/* ---- the model ---- */

static void answer(unsigned client, const void *data, size_t n)
{
    struct model_client *c = &model.clients[client];

    assert_true(c->n_heard + n <= REPLY_MAX);
    if (n > 0)
        memcpy(c->heard + c->n_heard, data, n);
    c->n_heard += n;
}

static void answer_i64(unsigned client, int64_t v)
{
    answer(client, &v, sizeof(v)); /* the tests run on little endian hosts only, as PyTorch does */
}

static void answer_u8(unsigned client, uint8_t v)
{
    answer(client, &v, 1);
}

static void answer_value(unsigned client, const struct value *v)
{
    answer_i64(client, (int64_t)v->size);
    answer(client, v->data, v->size);
}

static void put(struct value *to, struct wire_span from)
{
    to->size = from.size;
    if (from.size > 0)
        memcpy(to->data, from.data, from.size);
}

static bool equals(const struct value *a, struct wire_span b)
{
    return a->size == b.size && (b.size == 0 || memcmp(a->data, b.data, b.size) == 0);
}

static bool exists(unsigned name)
{
    return model.names[name].is_key || model.names[name].queue_size > 0;
}

static void satisfy(unsigned client, unsigned name)
{
    struct model_client *c = &model.clients[client];

    c->missing[name] = false;
    for (unsigned i = 0; i < N_NAMES; i++) {
        if (c->missing[i])
            return;
    }
    c->waits = false;
    answer_u8(client, WIRE_WAIT_STOP);
}

static void wake_all(unsigned name)
{
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        if (model.clients[i].waits && model.clients[i].missing[name])
            satisfy(i, name);
    }
}

static unsigned longest_waiting(unsigned name)
{
    unsigned first = N_CLIENTS;

    for (unsigned i = 0; i < N_CLIENTS; i++) {
        const struct model_client *c = &model.clients[i];

        if (c->waits && c->missing[name] &&
            (first == N_CLIENTS || c->since[name] < model.clients[first].since[name]))
            first = i;
    }
    return first;
}

/* One that waits for another name, too, is passed by. */
static void wake_first(unsigned name)
{
    unsigned first;

    while ((first = longest_waiting(name)) < N_CLIENTS) {
        satisfy(first, name);
        if (model.clients[first].waits)
            continue;
        model.clients[first].promised = 1 + name;
        return;
    }
}

static void pass_on(unsigned client)
{
    unsigned promised = model.clients[client].promised;

    model.clients[client].promised = 0;
    if (promised && model.names[promised - 1].queue_size > 0)
        wake_first(promised - 1);
}

static void write_key(unsigned name, struct wire_span value)
{
    model.names[name].is_key = true;
    put(&model.names[name].value, value);
    wake_all(name);
}

static void stop_waiting(unsigned client)
{
    model.clients[client].waits = false;
    memset(model.clients[client].missing, 0, sizeof(model.clients[client].missing));
    pass_on(client);
}

static void wait_for(unsigned client, unsigned name)
{
    struct model_client *c = &model.clients[client];

    c->waits = true;
    c->missing[name] = true;
    c->since[name] = model.now++;
}

/* Returns false where the client is cut off. */
static bool count(unsigned name, int64_t amount, int64_t *ret)
{
    struct model_name *n = &model.names[name];
    char text[VALUE_MAX + 1] = "0", *end;

    if (n->is_key) {
        memcpy(text, n->value.data, n->value.size);
        text[n->value.size] = '\0';
    }
    errno = 0;
    *ret = strtoll(text, &end, 10);
    if (end == text || errno != 0)
        return false;
    *ret = (int64_t)((uint64_t)*ret + (uint64_t)amount);
    (void)snprintf(text, sizeof(text), "%lld", (long long)*ret);
    n->is_key = true;
    put(&n->value, wire_span(text, strlen(text)));
    return true;
}

/* ---- one request to both ---- */

static struct buf message;

static void send(unsigned client)
{
    harness_feed(&store, client, buf_bytes(&message), buf_size(&message));
    buf_reset(&message);
}

static void say_hello(unsigned client)
{
    assert_int_equal(wire_put_word(&message, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC), 0);
    send(client);
}

static void reconnect(unsigned client)
{
    harness_close(&store, client);
    stop_waiting(client);
    model.clients[client].n_heard = 0;
    say_hello(client);
}

static void step_count(unsigned c, unsigned name)
{
    bool barrier = below(4) == 0;
    int64_t amount =
        barrier ? (int64_t)below(6) - 1 : (int64_t)(((uint64_t)random() << 40) ^ (uint64_t)random());
    int64_t sum = 0;
    enum wire_op op = barrier ? WIRE_OP_BARRIER : WIRE_OP_ADD;

    assert_int_equal(wire_put_key_amount(&message, op, key_of(name), amount), 0);
    send(c);
    if (!count(name, barrier ? 1 : amount, &sum)) {
        assert_int_equal(store.clients[c].result, STORE_E_NUMBER);
        reconnect(c);
        return;
    }
    if (barrier && sum < amount) {
        stop_waiting(c);
        wait_for(c, name);
        return;
    }
    wake_all(name);
    if (barrier)
        answer_u8(c, WIRE_WAIT_STOP);
    else
        answer_i64(c, sum);
}

static void step_write(unsigned c, unsigned name)
{
    struct model_name *n = &model.names[name];
    uint8_t data[VALUE_MAX / 8];
    struct wire_span value = random_value(data);

    if (below(3) == 0 && (!n->is_key || n->value.size + value.size <= VALUE_MAX)) {
        uint8_t all[VALUE_MAX];
        size_t old = n->is_key ? n->value.size : 0;

        assert_int_equal(wire_put_key_value(&message, WIRE_OP_APPEND, key_of(name), value), 0);
        if (old > 0)
            memcpy(all, n->value.data, old);
        if (value.size > 0)
            memcpy(all + old, value.data, value.size);
        send(c);
        write_key(name, wire_span(all, old + value.size));
        return;
    }
    assert_int_equal(wire_put_key_value(&message, WIRE_OP_SET, key_of(name), value), 0);
    send(c);
    write_key(name, value);
}

static void step_compare_set(unsigned c, unsigned name)
{
    struct model_name *n = &model.names[name];
    uint8_t data[VALUE_MAX / 8], copy[VALUE_MAX];
    struct wire_span desired = random_value(data), expected = wire_span("x", below(2));
    struct value v;

    if (n->is_key && below(2)) {
        expected = wire_span(copy, n->value.size);
        memcpy(copy, n->value.data, n->value.size);
    }
    assert_int_equal(wire_put_compare_set(&message, key_of(name), expected, desired), 0);
    send(c);
    if (n->is_key ? equals(&n->value, expected) : expected.size == 0) {
        write_key(name, desired);
        put(&v, desired);
    } else if (n->is_key) {
        v = n->value;
    } else {
        put(&v, expected);
    }
    answer_value(c, &v);
}

static void step_queue(unsigned c, unsigned name)
{
    struct model_name *n = &model.names[name];
    uint8_t data[VALUE_MAX / 8];

    if (below(2) && n->queue_size < QUEUE_MAX) {
        struct wire_span value = random_value(data);

        assert_int_equal(wire_put_key_value(&message, WIRE_OP_QUEUE_PUSH, key_of(name), value), 0);
        send(c);
        put(&n->queue[n->queue_size++], value);
        wake_first(name);
        return;
    }
    assert_int_equal(wire_put_key(&message, WIRE_OP_QUEUE_LEN, key_of(name)), 0);
    assert_int_equal(wire_put_key(&message, WIRE_OP_QUEUE_POP, key_of(name)), 0);
    send(c);
    answer_i64(c, (int64_t)n->queue_size);
    answer_i64(c, (int64_t)n->queue_size);
    if (model.clients[c].promised == 1 + name)
        model.clients[c].promised = 0;
    if (n->queue_size > 0) {
        answer_value(c, &n->queue[0]);
        memmove(&n->queue[0], &n->queue[1], --n->queue_size * sizeof(n->queue[0]));
    }
}

/* The list of names that GET, MULTI_GET, CHECK and WAIT are asked about. */
static size_t random_names(unsigned names[N_NAMES], struct wire_span keys[N_NAMES])
{
    size_t n = below(N_NAMES);

    for (size_t i = 0; i < n; i++) {
        names[i] = below(N_NAMES);
        keys[i] = key_of(names[i]);
    }
    return n;
}

static void step_look(unsigned c)
{
    static const struct value nothing;
    unsigned names[N_NAMES];
    struct wire_span keys[N_NAMES];
    size_t n = random_names(names, keys);
    bool check = below(2), all = true;

    assert_int_equal(wire_put_keys(&message, check ? WIRE_OP_CHECK : WIRE_OP_MULTI_GET, keys, n), 0);
    send(c);
    for (size_t i = 0; i < n; i++) {
        const struct model_name *name = &model.names[names[i]];

        all = all && exists(names[i]);
        if (!check)
            answer_value(c, name->is_key ? &name->value : &nothing);
    }
    if (check)
        answer_u8(c, all ? WIRE_CHECK_READY : WIRE_CHECK_NOT_READY);
}

static void step_wait(unsigned c)
{
    unsigned names[N_NAMES];
    struct wire_span keys[N_NAMES];
    size_t n = random_names(names, keys);
    bool all = true;

    if (below(4) == 0) {
        assert_int_equal(wire_put_plain(&message, WIRE_OP_CANCEL_WAIT), 0);
        send(c);
        stop_waiting(c);
        answer_u8(c, WIRE_WAIT_CANCELED);
        return;
    }
    assert_int_equal(wire_put_keys(&message, WIRE_OP_WAIT, keys, n), 0);
    send(c);
    for (size_t i = 0; i < n; i++)
        all = all && exists(names[i]);
    if (all) {
        answer_u8(c, WIRE_WAIT_STOP);
        return;
    }
    stop_waiting(c);
    for (size_t i = 0; i < n; i++) {
        if (!exists(names[i]) && !model.clients[c].missing[names[i]])
            wait_for(c, names[i]);
    }
}

static void step_delete(unsigned c, unsigned name)
{
    struct model_name *n = &model.names[name];
    int64_t n_keys = 0;

    assert_int_equal(wire_put_key(&message, WIRE_OP_DELETE_KEY, key_of(name)), 0);
    assert_int_equal(wire_put_plain(&message, WIRE_OP_GETNUMKEYS), 0);
    send(c);
    answer_i64(c, n->is_key);
    n->is_key = false;
    for (unsigned i = 0; i < N_NAMES; i++)
        n_keys += model.names[i].is_key;
    answer_i64(c, n_keys);
}

static void step(void)
{
    unsigned c = below(N_CLIENTS), name = below(N_NAMES);

    switch (below(9)) {
    case 0:
        step_count(c, name);
        break;
    case 1:
    case 2:
        step_write(c, name);
        break;
    case 3:
        step_compare_set(c, name);
        break;
    case 4:
        step_queue(c, name);
        break;
    case 5:
        step_look(c);
        break;
    case 6:
        step_wait(c);
        break;
    case 7:
        step_delete(c, name);
        break;
    default:
        if (below(20) == 0)
            reconnect(c);
    }
}

static void compare(unsigned n_step)
{
    static uint8_t heard[REPLY_MAX];

    for (unsigned i = 0; i < N_CLIENTS; i++) {
        struct model_client *c = &model.clients[i];
        size_t n = harness_take(&store, i, heard, sizeof(heard));

        if (n != c->n_heard || memcmp(heard, c->heard, n) != 0)
            fail_msg("seed %u, step %u: client %u heard %zu bytes, the model says %zu or others", seed,
                     n_step, i, n, c->n_heard);
        assert_int_equal(c->waits, store.clients[i].client.wait != NULL);
        c->n_heard = 0;
    }
}

static void run(void)
{
    memset(&model, 0, sizeof(model));
    srandom(seed);
    assert_int_equal(harness_init(&store, NULL), 0);
    for (unsigned i = 0; i < N_CLIENTS; i++)
        say_hello(i);
    for (unsigned i = 0; i < N_STEPS; i++) {
        step();
        compare(i);
    }
    harness_finish(&store);
    buf_finish(&message);
}

static void test_same_as_model(void **state)
{
    const char *given = getenv("CRUN_MODEL_SEED");

    for (seed = given ? (unsigned)atoi(given) : 0; seed < 40 || given; seed++) {
        run();
        if (given)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_as_model)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
