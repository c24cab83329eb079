/*
 * The server around the store, on a loop of the test's own: what it holds for a client, that it ends with
 * nothing left, and that it survives memory running out at any allocation. What it does with whole
 * processes on real networks is in tests/integration/test_crund.py.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/daemon/compose_uv.h"
#include "rendezvous/server/store_shell_uv.h"
#include "tests/support/c/failing_alloc.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

enum { TURNS = 8, BIG = 300000 };

static uv_loop_t loop;
static struct server *server;
static uint16_t port;
static char folder[] = "/tmp/test_server.XXXXXX", path[sizeof(folder) + 16];
static bool stopped;
static unsigned n_lines, n_started;

static void count_line(void *data, const char *line)
{
    assert_non_null(line);
    n_lines++;
}

static int start(void)
{
    struct server_config config = {.log = count_line};
    int r;

    n_lines = 0;
    stopped = false;
    (void)snprintf(path, sizeof(path), "%s/%u", folder, n_started++ % 10);
    r = server_create(&server, &loop, &config);
    if (r < 0)
        return r;
    r = server_listen_tcp(server, "127.0.0.1", 0, &port);
    if (r == 0)
        r = server_listen_unix(server, path);
    if (r < 0) {
        server_stop(server, NULL, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
    }
    return r;
}

static void note_stopped(void *data)
{
    *(bool *)data = true;
}

/* The loop has nothing left to wait for when the server says that it stopped. */
static void stop(void)
{
    server_stop(server, note_stopped, &stopped);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_true(stopped);
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static int connect_tcp(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    turn();
    return fd;
}

/* What is sent has arrived when send() returns, so that a count of turns says when the server is idle. */
static int connect_client(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    turn();
    return fd;
}

/* Sends as much as the server takes; a server that closed takes nothing. */
static void say(int fd, const struct buf *b)
{
    time_t deadline = time(NULL) + 60;
    size_t sent = 0;

    for (; sent < buf_size(b) && time(NULL) < deadline; turn()) {
        ssize_t n = send(fd, buf_bytes(b) + sent, buf_size(b) - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno != EAGAIN)
            return;
        sent += n > 0 ? (size_t)n : 0;
    }
}

/* Bytes that are there, up to n. */
static size_t hear(int fd, uint8_t *to, size_t n)
{
    size_t got = 0;

    for (int idle = 0; got < n && idle < 20; turn()) {
        ssize_t r = recv(fd, to + got, n - got, MSG_DONTWAIT);

        idle = r > 0 ? 0 : idle + 1;
        got += r > 0 ? (size_t)r : 0;
    }
    return got;
}

static struct buf hello, store_big, get_big, wait_for_door, open_door, many;

static void write_messages(void)
{
    static const uint8_t big[BIG];
    struct wire_span key = wire_span("/big", 4), door = wire_span("/door", 5);
    int r = 0;

    r |= wire_put_word(&hello, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC);
    r |= wire_put_word(&hello, WIRE_OP_PING, 0x01020304);
    r |= wire_put_key_value(&store_big, WIRE_OP_SET, key, wire_span(big, BIG));
    r |= wire_put_keys(&wait_for_door, WIRE_OP_WAIT, &door, 1);
    r |= wire_put_key_value(&open_door, WIRE_OP_SET, door, wire_span("1", 1));
    for (int i = 0; i < 40; i++)
        r |= wire_put_key(&get_big, WIRE_OP_GET, key);
    for (int i = 0; i < 400; i++)
        r |= wire_put_key_amount(&many, WIRE_OP_ADD, wire_span("/n", 2), 1);
    assert_int_equal(r, 0);
}

static void free_messages(void)
{
    buf_finish(&hello);
    buf_finish(&store_big);
    buf_finish(&get_big);
    buf_finish(&wait_for_door);
    buf_finish(&open_door);
    buf_finish(&many);
}

/* ---- tests ---- */

static void test_idle_client_is_small(void **state)
{
    uint8_t reply[4];
    int fds[50];
    size_t live;

    assert_true(sizeof(struct peer) < 1024);
    assert_int_equal(start(), 0);
    live = failing_alloc_live();
    for (int i = 0; i < 50; i++) {
        fds[i] = connect_client();
        say(fds[i], &hello);
        assert_int_equal(hear(fds[i], reply, 4), 4);
        assert_memory_equal(reply, "\4\3\2\1", 4);
    }
    /* One allocation each, and the shared reply buffer. */
    assert_in_range(failing_alloc_live() - live, 50, 51);
    for (int i = 0; i < 50; i++)
        (void)close(fds[i]); /* nothing is pending on it */
    turn();
    assert_in_range(failing_alloc_live() - live, 0, 1);
    stop();
}

static void test_listens_where_it_is_told(void **state)
{
    uint16_t again = 0;

    assert_int_equal(start(), 0);
    assert_true(port > 0);
    assert_int_equal(server_listen_tcp(server, "127.0.0.1", port, &again), -EADDRINUSE);
    assert_int_equal(server_listen_tcp(server, "localhost", 0, &again), -EINVAL);
    assert_int_equal(server_listen_tcp(server, "", 0, &again), -EINVAL);
    assert_int_equal(server_listen_tcp(server, "192.0.2.1", 0, &again), -EADDRNOTAVAIL);
    assert_int_equal(again, 0);
    assert_int_equal(server_listen_tcp(server, "127.0.0.1", 0, &again), 0);
    assert_true(again > 0 && again != port);
    assert_int_equal(server_listen_unix(server, ""), -EINVAL);
    assert_int_equal(server_listen_unix(server, "/nowhere/at/all"), -ENOENT);
    stop();
}

static void test_stop_closes_everybody(void **state)
{
    uint8_t reply[4];
    int fd;

    assert_int_equal(start(), 0);
    fd = connect_client();
    say(fd, &hello);
    assert_int_equal(hear(fd, reply, 4), 4);
    say(fd, &wait_for_door);
    stop();
    assert_int_equal(recv(fd, reply, 1, 0), 0);
    (void)close(fd); /* nothing is pending on it */
}

static uint16_t own_port(int fd)
{
    struct sockaddr_in own;
    socklen_t size = sizeof(own);

    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &size), 0);
    return ntohs(own.sin_port);
}

struct seen_wait {
    char host[64], key[8];
    uint16_t port;
    size_t key_size, n_keys;
};

struct seen_waits {
    struct seen_wait *items;
    size_t n;
};

static void see_wait(void *data, const char *host, uint16_t client_port, struct wire_span key, size_t n_keys)
{
    struct seen_waits *seen = data;
    struct seen_wait *w = &seen->items[seen->n++];

    *w = (struct seen_wait){.port = client_port, .key_size = key.size, .n_keys = n_keys};
    (void)snprintf(w->host, sizeof(w->host), "%s", host);
    memcpy(w->key, key.data, key.size < sizeof(w->key) ? key.size : sizeof(w->key));
}

static size_t list_waits(struct seen_wait *waits, size_t n)
{
    struct seen_waits seen = {.items = waits};

    server_visit_waits(server, n, see_wait, &seen);
    return seen.n;
}

/* Clients over TCP by their end of the connection; at most as many as there is room for. */
static void test_waiting_clients_are_listed(void **state)
{
    static const char long_key[200] = {[199] = '7'};
    struct wire_span key = wire_span(long_key, sizeof(long_key));
    struct seen_wait waits[4];
    struct buf wait_for_long = {0};
    int clients[3];

    assert_int_equal(start(), 0);
    assert_int_equal(list_waits(waits, 4), 0);
    for (int i = 0; i < 3; i++) {
        clients[i] = i == 1 ? connect_client() : connect_tcp();
        say(clients[i], &hello);
    }
    assert_int_equal(list_waits(waits, 4), 0);
    assert_int_equal(wire_put_keys(&wait_for_long, WIRE_OP_WAIT, &key, 1), 0);
    say(clients[0], &wait_for_door);
    say(clients[1], &wait_for_door);
    say(clients[2], &wait_for_long);
    assert_int_equal(list_waits(waits, 1), 1);
    assert_int_equal(list_waits(waits, 4), 2);
    assert_string_equal(waits[0].host, "127.0.0.1");
    assert_int_equal(waits[0].port, own_port(clients[0]));
    assert_int_equal(waits[0].key_size, 5);
    assert_memory_equal(waits[0].key, "/door", 5);
    assert_int_equal(waits[1].port, own_port(clients[2]));
    assert_int_equal(waits[1].key_size, sizeof(long_key));
    assert_int_equal(waits[1].n_keys, 1);
    say(clients[1], &open_door);
    assert_int_equal(list_waits(waits, 4), 1);
    for (int i = 0; i < 3; i++)
        (void)close(clients[i]); /* nothing is pending on it */
    buf_finish(&wait_for_long);
    stop();
}

/* Two servers on one loop, as crun has while one generation ends and the next begins. */
static void test_two_on_one_loop(void **state)
{
    struct server *first;
    bool first_stopped = false;
    uint8_t reply[4];
    int fd;

    assert_int_equal(start(), 0);
    first = server;
    assert_int_equal(start(), 0);
    server_stop(first, note_stopped, &first_stopped);
    fd = connect_client();
    say(fd, &hello);
    assert_int_equal(hear(fd, reply, 4), 4);
    assert_true(first_stopped && !stopped);
    (void)close(fd); /* nothing is pending on it */
    stop();
}

/* Replies for one client, 12 MiB of them, go out in many turns of the loop: the others have theirs between. */
static void test_turn_is_bounded(void **state)
{
    int room = 64 << 20, waiting, fd, n_turns = 0;
    size_t expected = 4 + 40 * (8 + (size_t)BIG), got = 0;
    time_t deadline;
    static uint8_t bytes[1 << 20];

    assert_int_equal(start(), 0);
    fd = connect_tcp();
    /* So that the socket never fills by itself; without the right to it the test shows less. */
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
    say(fd, &hello);
    say(fd, &store_big);
    deadline = time(NULL) + 60;
    assert_int_equal(send(fd, buf_bytes(&get_big), buf_size(&get_big), 0), buf_size(&get_big));
    for (; got < expected && time(NULL) < deadline; n_turns++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        assert_int_equal(ioctl(fd, FIONREAD, &waiting), 0);
        assert_in_range(waiting, 0, 1 << 20);
        for (ssize_t n; (n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0;)
            got += (size_t)n;
    }
    assert_int_equal(got, expected);
    assert_true(n_turns > 12);
    (void)close(fd); /* nothing is pending on it */
    stop();
}

enum { SILENT = 100, EXPIRED_MAX = 32 };

/* Clients that expire together are closed in parts: a flood of them must not hold up a turn of the loop. */
static void test_expired_clients_are_closed_in_parts(void **state)
{
    struct server_limits limits = SERVER_LIMITS_DEFAULT;
    const struct server_config config = {.limits = &limits};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    time_t deadline = time(NULL) + 60;
    int fds[SILENT];

    limits.handshake_ms = 1000;
    assert_int_equal(server_create(&server, &loop, &config), 0);
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s/silent", folder);
    assert_int_equal(server_listen_unix(server, to.sun_path), 0);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&to, sizeof(to)), 0);
    }
    while (server_n_clients(server) < SILENT && time(NULL) < deadline)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(server_n_clients(server), SILENT);
    uv_sleep(limits.handshake_ms + 100);
    for (unsigned left = SILENT; left > 0 && time(NULL) < deadline; left = server_n_clients(server)) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        assert_in_range(left - server_n_clients(server), 0, EXPIRED_MAX);
    }
    assert_int_equal(server_n_clients(server), 0);
    for (int i = 0; i < SILENT; i++)
        (void)close(fds[i]); /* nothing is pending on it */
    stop();
}

/* Everything that allocates: a large message in pieces, replies that are not read, waits, many replies. */
static void converse(void)
{
    uint8_t bytes[4096];
    int a = connect_client(), b = connect_client();

    say(a, &hello);
    say(b, &hello);
    say(b, &wait_for_door);
    say(a, &store_big);
    say(a, &get_big);
    say(a, &many);
    while (hear(a, bytes, sizeof(bytes)) == sizeof(bytes))
        ;
    say(a, &open_door);
    (void)hear(b, bytes, sizeof(bytes)); /* whoever was cut off hears nothing */
    (void)close(a);
    (void)close(b);
    turn();
}

/* The server is still there for others. */
static void check_served(void)
{
    uint8_t reply[4] = {0};
    int fd = connect_client();

    say(fd, &hello);
    assert_int_equal(hear(fd, reply, 4), 4);
    assert_memory_equal(reply, "\4\3\2\1", 4);
    (void)close(fd); /* nothing is pending on it */
    turn();
}

static void test_memory_runs_out(void **state)
{
    size_t k, live = failing_alloc_live();
    bool fired = true;

    for (k = 1; fired; k++) {
        failing_alloc_arm(k);
        if (start() == 0) {
            converse();
            fired = failing_alloc_fired();
            failing_alloc_arm(0);
            check_served();
            stop();
        }
        failing_alloc_arm(0);
        if (failing_alloc_live() != live)
            fail_msg("k = %zu: %zu allocations were not given back", k, failing_alloc_live() - live);
    }
    print_message("%zu allocations failed, one at a time\n", k - 2);
    assert_true(k > 15);
}

static int set_up(void **state)
{
    write_messages();
    if (!mkdtemp(folder))
        return -1;
    return uv_loop_init(&loop);
}

static int tear_down(void **state)
{
    free_messages();
    (void)rmdir(folder);
    return uv_loop_close(&loop);
}

/* A store of crun is of one job alone, whose size is not known here. */
static void a_store_without_limits_takes_as_many_as_there_are_descriptors(void **state)
{
    const struct server_config own = {.limits = NULL};
    const struct server_limits limits = SERVER_LIMITS_DEFAULT;
    const struct server_config daemon = {.limits = &limits};
    struct server *made;

    assert_int_equal(server_create(&made, &loop, &own), 0);
    assert_int_equal(made->admission.limit, UINT_MAX);
    assert_string_equal(server_option(made, " (--max-connections)"), "");
    server_stop(made, NULL, NULL);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(server_create(&made, &loop, &daemon), 0);
    assert_int_equal(made->admission.limit, 100000);
    assert_string_equal(server_option(made, " (--max-connections)"), " (--max-connections)");
    server_stop(made, NULL, NULL);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_client_is_small),
        cmocka_unit_test(test_listens_where_it_is_told),
        cmocka_unit_test(test_stop_closes_everybody),
        cmocka_unit_test(test_waiting_clients_are_listed),
        cmocka_unit_test(test_two_on_one_loop),
        cmocka_unit_test(test_turn_is_bounded),
        cmocka_unit_test(test_expired_clients_are_closed_in_parts),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(a_store_without_limits_takes_as_many_as_there_are_descriptors),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
