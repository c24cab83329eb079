/*
 * What the kernel knows of a connection whose words have come and were not read. That words which wait for a lost packet
 * count alike needs a network that loses some: `tests/soak rounds-loss`.
 */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/agents/tcp_liveness_os.h"

#include "tests/support/c/cmocka_fixed.h"

struct pair {
    int listener, near, far;
};

static void set_up(struct pair *p)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);

    p->listener = socket(AF_INET, SOCK_STREAM, 0);
    p->near = socket(AF_INET, SOCK_STREAM, 0);
    assert_return_code(bind(p->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_return_code(listen(p->listener, 1), 0);
    assert_return_code(getsockname(p->listener, (struct sockaddr *)&at, &size), 0);
    assert_return_code(connect(p->near, (struct sockaddr *)&at, sizeof(at)), 0);
    p->far = accept(p->listener, NULL, NULL);
    assert_return_code(p->far, 0);
    tcp_liveness_tune(p->near);
    tcp_liveness_tune(p->far);
}

static void tear_down(struct pair *p)
{
    (void)close(p->far);
    (void)close(p->near);
    (void)close(p->listener);
}

static void what_was_not_read_is_seen(void **state)
{
    char byte = 'x';
    struct pair p;

    set_up(&p);
    assert_true(tcp_liveness_slack_ns(p.near) < UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write(p.far, &byte, 1), 1);
        assert_int_equal(recv(p.near, &byte, 1, MSG_PEEK), 1); /* it has come */
        assert_true(tcp_liveness_slack_ns(p.near) == UINT64_MAX);
        assert_int_equal(read(p.near, &byte, 1), 1);
        assert_true(tcp_liveness_slack_ns(p.near) < UINT64_MAX);
    }
    tear_down(&p);
}

static void what_was_acknowledged_was_so_not_long_ago(void **state)
{
    char byte = 'x';
    struct pair p;

    set_up(&p);
    assert_int_equal(write(p.near, &byte, 1), 1);
    assert_int_equal(read(p.far, &byte, 1), 1);
    assert_true(tcp_liveness_acknowledged_ms(p.near) < 60000);
    tear_down(&p);
}

static void what_is_no_socket_tells_nothing(void **state)
{
    int pipes[2];

    assert_return_code(pipe(pipes), 0);
    tcp_liveness_tune(pipes[0]);
    assert_int_equal(tcp_liveness_slack_ns(pipes[0]), 0);
    assert_int_equal(tcp_liveness_acknowledged_ms(pipes[0]), UINT32_MAX);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_not_read_is_seen),
        cmocka_unit_test(what_was_acknowledged_was_so_not_long_ago),
        cmocka_unit_test(what_is_no_socket_tells_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
