/*
 * Memory that runs out in the client machine and its encoders: whichever allocation fails, the request was
 * not made, nothing of it is in the output, and what was there before goes on.
 */

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/client.h"
#include "tests/support/c/failing_alloc.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

#define N_KEYS 40

static struct wire_span keys[N_KEYS], values[N_KEYS];

static int request_word(struct client *c)
{
    return client_request(c, &(struct wire_request){.op = WIRE_OP_PING, .word = 1});
}

static int request_plain(struct client *c)
{
    return client_request(c, &(struct wire_request){.op = WIRE_OP_LIST_KEYS});
}

static int request_key(struct client *c)
{
    return client_request(c, &(struct wire_request){.op = WIRE_OP_GET, .key = keys[0]});
}

static int request_amount(struct client *c)
{
    return client_request(c, &(struct wire_request){.op = WIRE_OP_ADD, .key = keys[0], .amount = 1});
}

static int request_value(struct client *c)
{
    return client_request(c, &(struct wire_request){.op = WIRE_OP_SET, .key = keys[0], .value = values[0]});
}

static int request_compare(struct client *c)
{
    return client_request(
        c, &(struct wire_request){
               .op = WIRE_OP_COMPARE_SET, .key = keys[0], .value = values[0], .desired = values[0]});
}

static int request_pairs(struct client *c)
{
    return client_multi_set(c, keys, values, N_KEYS);
}

static int request_wait(struct client *c)
{
    return client_keys(c, WIRE_OP_WAIT, keys, N_KEYS);
}

/* In the order in which they are made; the wait last, as nothing can follow it. */
static int (*const requests[])(struct client *c) = {
    request_word, request_plain, request_key, request_amount, request_value, request_compare, request_pairs,
    request_key,  request_key,   request_key, request_key,    request_key,   request_wait,    client_cancel,
};

/* Makes a request; if memory runs out, checks that nothing happened and makes it again. */
static void make(struct client *c, int (*request)(struct client *c))
{
    size_t n_out = buf_size(&c->out), n_pending = client_n_pending(c);
    bool waiting = c->waiting;
    int r = request(c);

    if (r) {
        assert_int_equal(r, -ENOMEM);
        assert_true(failing_alloc_fired());
        assert_int_equal(buf_size(&c->out), n_out);
        assert_int_equal(client_n_pending(c), n_pending);
        assert_int_equal(c->waiting, waiting);
        assert_int_equal(request(c), 0);
    }
    assert_true(buf_size(&c->out) > n_out);
}

/* All bytes of the conversation when nothing fails. */
static void converse(struct buf *ret_out, size_t fail_at)
{
    _cleanup_(client_finish) struct client c;

    client_init(&c);
    failing_alloc_arm(fail_at);
    for (size_t i = 0; i < ARRAY_SIZE(requests); i++)
        make(&c, requests[i]);
    *ret_out = c.out;
    c.out = (struct buf){0};
}

static void test_every_allocation_fails_once(void **state)
{
    _cleanup_(buf_finish) struct buf expected = {0};
    size_t live = failing_alloc_live(), k = 1;
    bool fired = true;

    for (size_t i = 0; i < N_KEYS; i++) {
        keys[i] = wire_span("/a key of some length", 21);
        values[i] = wire_span("a value", 7);
    }
    converse(&expected, 0);
    for (; fired; k++) {
        _cleanup_(buf_finish) struct buf out = {0};

        converse(&out, k);
        fired = failing_alloc_fired();
        failing_alloc_arm(0);
        assert_int_equal(buf_size(&out), buf_size(&expected));
        assert_memory_equal(buf_bytes(&out), buf_bytes(&expected), buf_size(&expected));
    }
    assert_true(k > 5); /* buffers and ring have grown more than once */
    buf_reset(&expected);
    assert_int_equal(failing_alloc_live(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation_fails_once)};

    return cmocka_run_group_tests_name("proto/client_memory", tests, NULL, NULL);
}
