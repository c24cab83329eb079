/*
 * The order of the services of a server: each order is tried with clients of all services, and ended by a drain and by a
 * stop. Two places matter: the fence has to be in front of the store, the keys of jobs behind the rounds.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/frame.h"
#include "proto/key_exchange.h"
#include "proto/wire.h"
#include "rendezvous/daemon/compose_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/relay/relay.h"
#include "rendezvous/server/server_impl_uv.h"

#include "tests/support/c/failing_alloc.h"

#include "tests/support/c/cmocka_fixed.h"

enum { TURNS = 8 };

static const uint8_t greeting[] = {WIRE_OP_VALIDATE, 0xce, 0xf7, 0x85, 0x3c};
static const uint8_t no_record[] = {TLS_FIRST_BYTE, 0, 0, 0, 0, 0, 0, 0};
static const uint8_t ping[] = {WIRE_OP_PING, 1, 2, 3, 4};

static uv_loop_t loop;
static struct server *server;
static uint16_t port;
static unsigned n_begun, n_cancelled, n_proofs, n_sessions;
static bool stopped;

static int find_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    *ret = (struct secret_key){.bytes = {1}};
    return 1;
}

static int begin_exchange(void *data, struct exchange_conn *c, const char *credential, size_t n)
{
    n_begun++;
    return 0;
}

static void cancel_exchange(void *data, struct exchange_conn *c)
{
    n_cancelled++;
}

/* What begins with a record of TLS is a proof for a fence, and a session for the rounds. */
static void note_line(void *data, const char *line)
{
    n_proofs += strstr(line, "an agent's proof failed") != NULL;
    n_sessions += strstr(line, "agent, client") != NULL;
}

static void note_stopped(void *data)
{
    stopped = true;
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static const struct server_exchange exchange = {.begin = begin_exchange, .cancel = cancel_exchange};
static const struct server_security security = {.find_key = find_key, .fence = true, .exchange = &exchange};

static void start(const struct server_part *parts)
{
    static const struct server_rounds rounds = {0};
    static const struct server_config config = {.rounds = &rounds, .security = &security, .log = note_line};

    stopped = false;
    n_begun = n_cancelled = n_proofs = n_sessions = 0;
    assert_int_equal(server_compose(&server, &loop, &config, parts), 0);
    assert_int_equal(server_listen_tcp(server, "127.0.0.1", 0, &port), 0);
}

static int connect_client(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    turn();
    return fd;
}

static void send_all(int fd, const void *bytes, size_t n)
{
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
    turn();
}

/* Whether the reply to these bytes begins with that one. */
static bool is_answered(int fd, const void *bytes, size_t n, uint8_t first)
{
    uint8_t reply = (uint8_t)~first;

    send_all(fd, bytes, n);
    return recv(fd, &reply, 1, MSG_DONTWAIT) == 1 && reply == first;
}

static void ask_exchange(int fd)
{
    struct buf request = {0};

    assert_int_equal(key_exchange_put(&request, KEY_EXCHANGE_CREDENTIAL, "x", 1), 0);
    send_all(fd, buf_bytes(&request), buf_size(&request));
    buf_finish(&request);
}

static size_t place_of(const struct server_part *parts, const char *name)
{
    for (size_t i = 0; i < SERVER_PARTS; i++)
        if (strcmp(parts[i].name, name) == 0)
            return i;
    fail_msg("no part is named %s", name);
    return 0;
}

static bool is_in_front(const struct server_part *parts, const char *name, const char *other)
{
    return place_of(parts, name) < place_of(parts, other);
}

static void try_order(const struct server_part *parts, bool drains)
{
    int fds[4];

    start(parts);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        fds[i] = connect_client();
    /* The two that matter. */
    send_all(fds[0], no_record, sizeof(no_record));
    assert_int_equal(n_proofs, is_in_front(parts, "fence", "store"));
    assert_int_equal(n_sessions, is_in_front(parts, "store", "fence"));
    assert_int_equal(rounds_shell_of(server)->core.config.keeps_keys, is_in_front(parts, "rounds", "keys"));
    /* In any order. */
    send_all(fds[1], greeting, sizeof(greeting));
    assert_true(is_answered(fds[1], ping, sizeof(ping), 1));
    send_all(fds[2], greeting, sizeof(greeting));
    assert_true(is_answered(fds[2], FRAME_OPENING, FRAME_OPENING_SIZE, FRAME_FIRST_BYTE));
    ask_exchange(fds[3]);
    assert_int_equal(n_begun, 1);
    if (drains)
        server_drain(server, 1, note_stopped, NULL);
    else
        server_stop(server, note_stopped, NULL);
    assert_int_equal(n_cancelled, 1);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_true(stopped);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        (void)close(fds[i]);
}

/* The n-th order of all. */
static void take_order(struct server_part parts[SERVER_PARTS], unsigned n)
{
    for (unsigned i = 0; i < SERVER_PARTS; i++)
        parts[i] = server_parts[i];
    for (unsigned left = SERVER_PARTS; left > 1; left--) {
        struct server_part last = parts[left - 1];

        parts[left - 1] = parts[n % left];
        parts[n % left] = last;
        n /= left;
    }
}

static void test_two_places_matter(void **state)
{
    struct server_part parts[SERVER_PARTS];
    unsigned n_orders = 1;

    for (unsigned i = 2; i <= SERVER_PARTS; i++)
        n_orders *= i;
    for (unsigned n = 0; n < n_orders; n++) {
        take_order(parts, n);
        try_order(parts, n % 2 == 0);
    }
}

static void test_the_order_of_the_table_has_both(void **state)
{
    assert_true(is_in_front(server_parts, "fence", "store"));
    assert_true(is_in_front(server_parts, "rounds", "keys"));
    try_order(server_parts, false);
}

static int set_up(void **state)
{
    return uv_loop_init(&loop);
}

static int tear_down(void **state)
{
    return uv_loop_close(&loop);
}

static void check_creation(const struct server_config *config)
{
    size_t k, live = failing_alloc_live();
    bool fired = true;

    for (k = 1; fired; k++) {
        failing_alloc_arm(k);
        int r = server_create(&server, &loop, config);
        fired = failing_alloc_fired();
        failing_alloc_arm(0);
        if (r == 0) {
            server_stop(server, note_stopped, NULL);
            assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
        }
        assert_int_equal(r, fired ? -ENOMEM : 0);
        if (failing_alloc_live() != live)
            fail_msg("k = %zu: %zu allocations were not given back", k, failing_alloc_live() - live);
    }
    assert_true(k > 8);
}

/* Without memory for one of its services there is no server, and nothing of the others stays. */
static void test_creation_without_memory(void **state)
{
    static const struct server_rounds rounds[] = {{0}, {.state = "etcd://127.0.0.1:1/x"}};
    struct store_relay relay = {0};

    for (size_t i = 0; i < ARRAY_SIZE(rounds); i++)
        check_creation(
            &(struct server_config){.rounds = &rounds[i], .security = &security, .log = note_line});
    check_creation(&(struct server_config){.relay = &relay, .security = &security, .log = note_line});
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_places_matter),
        cmocka_unit_test(test_creation_without_memory),
        cmocka_unit_test(test_the_order_of_the_table_has_both),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
