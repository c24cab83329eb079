/*
 * Conversations of nodes of a static rendezvous with their store, without a socket: replies of the store, and the
 * requests of the node that follow, which have to be those of torchrun's agents.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/rdzv/rdzv_static_json.h"
#include "launcher/rdzv/rdzv_static.h"

#include "tests/support/c/cmocka_fixed.h"

static void reply_bytes(struct rdzv_static *n, const void *bytes, size_t size)
{
    assert_int_equal(buf_append(&n->client.in, bytes, size), 0);
}

static void reply_u64(struct rdzv_static *n, uint64_t v)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    reply_bytes(n, bytes, sizeof(bytes));
}

static void reply_value(struct rdzv_static *n, const char *text)
{
    reply_u64(n, strlen(text));
    reply_bytes(n, text, strlen(text));
}

/* The next request that the node wants to send; its key is at *ret_key. */
static enum wire_op next_request(struct rdzv_static *n, char key[128], char value[256])
{
    static const struct wire_limits limits = WIRE_LIMITS_DEFAULT;
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size;

    assert_int_equal(
        wire_decode(&scanner, &limits, buf_bytes(&n->client.out), buf_size(&n->client.out), &request, &size),
        0);
    struct wire_span list = request.items, name = request.key;
    if (request.n_items > 0)
        assert_true(wire_next_key(&list, &name));
    (void)snprintf(key, 128, "%.*s", (int)name.size, (const char *)name.data);
    (void)snprintf(value, 256, "%.*s", (int)request.value.size, (const char *)request.value.data);
    buf_consume(&n->client.out, size);
    return request.op;
}

static void expect(struct rdzv_static *n, enum wire_op op, const char *key, const char *value)
{
    char got_key[128], got_value[256];

    assert_true(buf_size(&n->client.out) > 0);
    assert_int_equal(next_request(n, got_key, got_value), op);
    if (key)
        assert_string_equal(got_key, key);
    if (value)
        assert_string_equal(got_value, value);
}

static void expect_nothing(struct rdzv_static *n)
{
    assert_int_equal(buf_size(&n->client.out), 0);
}

static void receive(struct rdzv_static *n, enum rdzv_static_stage stage)
{
    assert_int_equal(rdzv_static_receive(n), 0);
    assert_int_equal(n->stage, stage);
}

/* Up to the point where all have to wait for others. */
static void join(struct rdzv_static *n, uint32_t rank, const char *role, uint64_t connected)
{
    const struct rdzv_static_config config = {
        .run_id = "job", .role = role, .rank = rank, .n_nodes = 2, .n_workers = rank + 2};
    char key[64], value[96];

    rdzv_static_init(n, &config);
    assert_int_equal(rdzv_static_join(n), 0);
    expect(n, WIRE_OP_VALIDATE, NULL, NULL);
    expect(n, WIRE_OP_PING, NULL, NULL);
    expect(n, WIRE_OP_ADD, "init/", NULL);
    reply_bytes(n, (const uint8_t[]){(uint8_t)rank, 0, 0, 0}, 4);
    reply_u64(n, connected);
    receive(n, STATIC_GATHERING);
    assert_int_equal(n->n_there, connected);
    (void)snprintf(key, sizeof(key), "/job/torchelastic/role_info/%u", rank);
    (void)snprintf(value, sizeof(value), "{\"role\":\"%s\",\"rank\":%u,\"local_world_size\":%u}", role, rank,
                   rank + 2);
    expect(n, WIRE_OP_SET, key, value);
}

static void node_0_assigns_all_ranks(void **state)
{
    struct rdzv_static n;

    join(&n, 0, "a", 1);
    expect(&n, WIRE_OP_WAIT, "/job/torchelastic/role_info/0", NULL);
    expect_nothing(&n);
    reply_bytes(&n, "\0", 1);
    receive(&n, STATIC_READING);
    expect(&n, WIRE_OP_MULTI_GET, "/job/torchelastic/role_info/0", NULL);
    reply_value(&n, "{\"role\": \"a\", \"rank\": 0, \"local_world_size\": 2}"); /* as Python writes it */
    reply_value(&n, "{\"role\": \"b\", \"rank\": 1, \"local_world_size\": 3}");
    receive(&n, STATIC_ASSIGNED);
    expect(&n, WIRE_OP_SET, "/job/torchelastic/assigned_ranks/0", "[0, 5, 0, 2]");
    expect(&n, WIRE_OP_SET, "/job/torchelastic/assigned_ranks/1", "[2, 5, 0, 3]");
    expect_nothing(&n);
    assert_int_equal(n.assignment.world_size, 5);
    assert_int_equal(n.assignment.role_world_size, 2);
    assert_int_equal(n.assignment.group_world_size, 2);
    rdzv_static_finish(&n);
}

static void others_read_their_ranks(void **state)
{
    struct rdzv_static n;

    join(&n, 1, "a", 2);
    expect(&n, WIRE_OP_WAIT, "/job/torchelastic/assigned_ranks/1", NULL);
    reply_bytes(&n, "\0", 1);
    receive(&n, STATIC_READING);
    expect(&n, WIRE_OP_GET, "/job/torchelastic/assigned_ranks/1", NULL);
    reply_value(&n, "[2, 5, 2, 5]");
    receive(&n, STATIC_ASSIGNED);
    assert_int_equal(n.assignment.group_rank, 1);
    assert_int_equal(n.assignment.rank_base, 2);
    assert_int_equal(n.assignment.role_rank_base, 2);
    rdzv_static_finish(&n);
}

/* The release of a WAIT may cross the request for the number of nodes. */
static void counting_does_not_lose_the_release(void **state)
{
    for (int crossed = 0; crossed < 2; crossed++) {
        struct rdzv_static n;

        join(&n, 1, "a", 2);
        expect(&n, WIRE_OP_WAIT, NULL, NULL);
        assert_int_equal(rdzv_static_count(&n), 0);
        expect(&n, WIRE_OP_CANCEL_WAIT, NULL, NULL);
        expect(&n, WIRE_OP_GET, "init/", NULL);
        expect(&n, WIRE_OP_ADD, "/job/torchelastic/crun_nodes/1", NULL);
        expect(&n, WIRE_OP_WAIT, "/job/torchelastic/assigned_ranks/1", NULL);
        if (!crossed) {
            reply_bytes(&n, "\1", 1); /* cancelled */
            reply_value(&n, "2");
            reply_u64(&n, 2);
            receive(&n, STATIC_GATHERING);
            assert_int_equal(n.n_there, 2);
            assert_true(n.has_twin);
        }
        reply_bytes(&n, "\0", 1);
        receive(&n, STATIC_READING);
        rdzv_static_finish(&n);
    }
}

static void identical_nodes_exchange_nothing(void **state)
{
    const struct rdzv_static_config config = {
        .run_id = "job", .role = "a", .rank = 2, .n_nodes = 4, .n_workers = 8, .identical = true};
    struct rdzv_static n;

    rdzv_static_init(&n, &config);
    assert_int_equal(rdzv_static_join(&n), 0);
    buf_consume(&n.client.out, buf_size(&n.client.out));
    reply_bytes(&n, "\2\0\0\0", 4);
    reply_u64(&n, 3);
    receive(&n, STATIC_ASSIGNED);
    expect_nothing(&n);
    assert_int_equal(n.assignment.rank_base, 16);
    assert_int_equal(n.assignment.world_size, 32);
    rdzv_static_finish(&n);
}

static void leave(struct rdzv_static *n, uint64_t count)
{
    join(n, 0, "a", 2);
    buf_consume(&n->client.out, buf_size(&n->client.out));
    reply_bytes(n, "\0", 1);
    receive(n, STATIC_READING);
    reply_value(n, "{\"role\": \"a\", \"rank\": 0, \"local_world_size\": 2}");
    reply_value(n, "{\"role\": \"a\", \"rank\": 1, \"local_world_size\": 3}");
    receive(n, STATIC_ASSIGNED);
    buf_consume(&n->client.out, buf_size(&n->client.out));
    assert_int_equal(rdzv_static_leave(n), 0);
    expect(n, WIRE_OP_ADD, "/job/torchelastic/agent/terminal_state/num_members", NULL);
    reply_u64(n, count);
    receive(n, STATIC_LEAVING);
}

static void the_last_node_releases_all(void **state)
{
    struct rdzv_static n;

    leave(&n, 1);
    expect(&n, WIRE_OP_WAIT, "/job/torchelastic/agent/terminal_state/last_member", NULL);
    reply_bytes(&n, "\0", 1);
    receive(&n, STATIC_DEPARTED);
    rdzv_static_finish(&n);

    leave(&n, 2);
    expect(&n, WIRE_OP_SET, "/job/torchelastic/agent/terminal_state/last_member", "<val_ignored>");
    expect(&n, WIRE_OP_WAIT, "/job/torchelastic/agent/terminal_state/last_member", NULL);
    reply_bytes(&n, "\0", 1);
    receive(&n, STATIC_DEPARTED);
    rdzv_static_finish(&n);
}

static void wrong_values_in_the_store_are_refused(void **state)
{
    static const char *const ranks[] = {"",   "[1, 2, 3]",        "[1, 2, 3, -4]",
                                        "{}", "[1, 2, 3, \"4\"]", "[1e99, 1, 1, 1]"};
    static const char *const roles[] = {"", "[]", "{\"role\": 1, \"local_world_size\": 1}",
                                        "{\"role\": \"a\"}", "{\"role\": \"a\", \"local_world_size\": 1e9}"};
    struct rank_assignment assignment;
    struct rdzv_static_role role;
    struct rdzv_static n;

    for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++)
        assert_false(rdzv_static_json_read_ranks(ranks[i], strlen(ranks[i]), &assignment));
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
        assert_false(rdzv_static_json_read_role(roles[i], strlen(roles[i]), &role));
    join(&n, 1, "a", 2);
    reply_bytes(&n, "\0", 1);
    receive(&n, STATIC_READING);
    reply_value(&n, "[1, 2]");
    assert_int_equal(rdzv_static_receive(&n), STATIC_E_BAD);
    rdzv_static_finish(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_0_assigns_all_ranks),
        cmocka_unit_test(others_read_their_ranks),
        cmocka_unit_test(counting_does_not_lose_the_release),
        cmocka_unit_test(identical_nodes_exchange_nothing),
        cmocka_unit_test(the_last_node_releases_all),
        cmocka_unit_test(wrong_values_in_the_store_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
