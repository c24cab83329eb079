/*
 * The outgoing connection of an agent: addresses are tried in turn, also behind one that the kernel refuses within connect(),
 * and the peer's address is known when the peer has reset the connection already.
 */

#include "launcher/rdzv/tcp_client_uv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

struct dial {
    uv_loop_t loop;
    struct tcp_client *client;
    int listener;
    struct resolver_addresses addresses;
    unsigned n_connected, n_lost;
    char why[256];
    bool reset; /* the peer resets the connection before on_connected() looks at it */
    char peer[INET_ADDRSTRLEN];
    uint16_t peer_port;
};

/* connect() to it fails within the call: a TCP connection to all hosts of a network cannot be. */
static union address_endpoint address_that_fails_at_once(void)
{
    return (union address_endpoint){
        .v4 = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = INADDR_BROADCAST}};
}

static union address_endpoint open_listener(struct dial *d)
{
    union address_endpoint a = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(a.v4);

    d->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(d->listener >= 0);
    assert_int_equal(bind(d->listener, &a.any, size), 0);
    assert_int_equal(listen(d->listener, 1), 0);
    assert_int_equal(getsockname(d->listener, &a.any, &size), 0);
    return a;
}

static int set_up_dial(void **state)
{
    static struct dial d;

    memset(&d, 0, sizeof(d));
    d.listener = -1;
    assert_int_equal(uv_loop_init(&d.loop), 0);
    *state = &d;
    return 0;
}

static int tear_down_dial(void **state)
{
    struct dial *d = *state;

    if (d->listener >= 0)
        (void)close(d->listener);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&d->loop), 0);
    return 0;
}

static void reset_connection(struct dial *d)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    int fd = accept(d->listener, NULL, NULL);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    assert_int_equal(close(fd), 0);
}

static void on_test_connected(void *data)
{
    struct dial *d = data;

    d->n_connected++;
    if (d->reset)
        reset_connection(d);
    const union address_endpoint *peer = tcp_client_peer(d->client);
    assert_non_null(peer);
    assert_int_equal(peer->any.sa_family, AF_INET);
    assert_non_null(inet_ntop(AF_INET, &peer->v4.sin_addr, d->peer, sizeof(d->peer)));
    d->peer_port = ntohs(peer->v4.sin_port);
    if (!d->reset)
        tcp_client_close(d->client);
}

static void on_test_bytes(void *data, const uint8_t *bytes, size_t n)
{
    fail_msg("%zu bytes of a peer that sends none", n);
}

static void on_test_lost(void *data, const char *why)
{
    struct dial *d = data;

    d->n_lost++;
    (void)snprintf(d->why, sizeof(d->why), "%s", why); /* truncated if long */
}

static void dial_until_it_ends(struct dial *d)
{
    const struct tcp_client_config config = {.loop = &d->loop,
                                             .addresses = &d->addresses,
                                             .on_connected = on_test_connected,
                                             .on_bytes = on_test_bytes,
                                             .on_lost = on_test_lost,
                                             .data = d};

    assert_int_equal(tcp_client_dial(&d->client, &config), 0);
    assert_null(tcp_client_peer(d->client));
    (void)uv_run(&d->loop, UV_RUN_DEFAULT);
}

static void an_address_that_fails_at_once_is_followed_by_the_next(void **state)
{
    struct dial *d = *state;
    union address_endpoint open = open_listener(d);

    d->addresses = (struct resolver_addresses){
        .n = 3, .items = {address_that_fails_at_once(), address_that_fails_at_once(), open}};
    dial_until_it_ends(d);
    assert_string_equal(d->why, "");
    assert_int_equal(d->n_connected, 1);
    assert_int_equal(d->peer_port, ntohs(open.v4.sin_port));
}

static void the_last_address_that_fails_at_once_ends_the_dial(void **state)
{
    struct dial *d = *state;

    d->addresses = (struct resolver_addresses){
        .n = 2, .items = {address_that_fails_at_once(), address_that_fails_at_once()}};
    dial_until_it_ends(d);
    assert_int_equal(d->n_connected, 0);
    assert_int_equal(d->n_lost, 1);
    assert_string_equal(d->why, uv_strerror(UV_ENETUNREACH));
}

static void the_peer_of_a_connection_that_was_reset_is_known(void **state)
{
    struct dial *d = *state;
    union address_endpoint open = open_listener(d);

    d->addresses = (struct resolver_addresses){.n = 1, .items = {open}};
    d->reset = true;
    dial_until_it_ends(d);
    assert_int_equal(d->n_connected, 1);
    assert_string_equal(d->peer, "127.0.0.1");
    assert_int_equal(d->peer_port, ntohs(open.v4.sin_port));
    assert_int_equal(d->n_lost, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_address_that_fails_at_once_is_followed_by_the_next, set_up_dial,
                                        tear_down_dial),
        cmocka_unit_test_setup_teardown(the_last_address_that_fails_at_once_ends_the_dial, set_up_dial,
                                        tear_down_dial),
        cmocka_unit_test_setup_teardown(the_peer_of_a_connection_that_was_reset_is_known, set_up_dial,
                                        tear_down_dial),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
