/*
 * The quota of connections of an address: what one address may have, that others are not concerned, and that ends are counted once.
 */

#include <arpa/inet.h>
#include <netinet/in.h>

#include "proto/address.h"
#include "rendezvous/server/address_quota.h"
#include "rendezvous/server/conn_owner.h"

#include "tests/support/c/cmocka_fixed.h"

enum { HERE = 0x0100000a, THERE = 0x0200000a };

static void an_address_has_so_many(void **state)
{
    struct address_quota q = {.max = 3};

    for (int fd = 5; fd < 8; fd++)
        assert_true(address_quota_take(&q, fd, HERE));
    assert_false(address_quota_take(&q, 8, HERE));
    assert_true(address_quota_take(&q, 9, THERE));

    address_quota_release(&q, 8); /* it was not counted */
    assert_false(address_quota_take(&q, 8, HERE));
    address_quota_release(&q, 6);
    address_quota_release(&q, 6);
    assert_true(address_quota_take(&q, 1000, HERE));
    assert_true(address_quota_take(&q, 1000, HERE)); /* the one before was given away */
    assert_false(address_quota_take(&q, 6, HERE));
    address_quota_finish(&q);
}

static void without_a_quota_nothing_is_counted(void **state)
{
    struct address_quota q = {.max = 0};

    for (int fd = 5; fd < 100; fd++)
        assert_true(address_quota_take(&q, fd, HERE));
    address_quota_release(&q, 7);
    assert_null(q.counter_of_fd);
    address_quota_finish(&q);
}

/* Sockets come and go in any order, and all counters are as at the start. */
static void nothing_is_left(void **state)
{
    struct address_quota q = {.max = 1000};

    for (int round = 0; round < 50; round++) {
        for (int fd = 3; fd < 900; fd++)
            assert_true(address_quota_take(&q, fd, (uint64_t)(fd % 37)));
        for (int fd = 899; fd >= 3; fd--)
            address_quota_release(&q, (fd * 7 + round) % 897 + 3);
        for (int fd = 3; fd < 900; fd++)
            address_quota_release(&q, fd);
    }
    for (int i = 0; i < ADDRESS_QUOTA_COUNTERS; i++)
        assert_int_equal(q.counts[i], 0);
    address_quota_finish(&q);
}

/* Owner 0 shares its counter with no other one. */
static void counters_of_owners(void **state)
{
    struct address_quota q = {.max = 100000};

    assert_true(address_quota_take(&q, 3, 0));
    assert_int_equal(address_quota_counter(&q, 3), 0);
    for (uint64_t owner = 1; owner < 3 * ADDRESS_QUOTA_COUNTERS; owner++) {
        assert_true(address_quota_take(&q, 4, owner));
        assert_in_range(address_quota_counter(&q, 4), 1, ADDRESS_QUOTA_COUNTERS - 1);
    }
    assert_int_equal(q.counts[0], 1);
    assert_int_equal(address_quota_counter(&q, 5), 0);
    assert_int_equal(address_quota_counter(&q, 100000), 0);
    address_quota_finish(&q);
}

static uint64_t network_of(const char *host)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1)
        return address_network((const struct sockaddr *)&v4);
    return inet_pton(AF_INET6, host, &v6.sin6_addr) == 1 ? address_network((const struct sockaddr *)&v6) : 0;
}

/* Those whose user is not known. */
static void owners_of_networks(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"10.0.0.1", "10.0.0.1", true},
        {"10.0.0.1", "10.0.0.2", false},
        {"10.0.0.1", "::ffff:10.0.0.1", true},
        {"127.0.0.1", "127.8.9.10", true}, /* this machine */
        {"127.0.0.1", "::1", true},
        {"127.0.0.1", "::ffff:127.0.0.1", true},
        {"127.0.0.1", "", true}, /* a unix socket */
        {"127.0.0.1", "128.0.0.1", false},
        {"2001:db8::7", "2001:db8::8", true},
        {"2001:db8::7", "2001:db8:0:1::7", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct conn_owner a = conn_owner_network(network_of(cases[i].a));
        struct conn_owner b = conn_owner_network(network_of(cases[i].b));

        assert_true(a.id != 0 && !a.is_own && conn_owner_quota(&a) == a.id);
        if ((a.id == b.id) != cases[i].same)
            fail_msg("'%s' and '%s'", cases[i].a, cases[i].b);
    }
}

static void owners_that_are_users(void **state)
{
    struct conn_owner unknown = conn_owner_network(0);
    struct conn_owner mine = conn_owner_user(1000, true), root = conn_owner_user(0, true);
    struct conn_owner other = conn_owner_user(UINT32_MAX - 1, false);
    /* Its first bytes are those of the user 800. */
    struct conn_owner far = conn_owner_network(network_of("2003:0:100::1")),
                      near = conn_owner_user(800, true);

    assert_true(mine.id != root.id && root.id != other.id && other.id != unknown.id && root.id != 0);
    assert_int_equal(conn_owner_uid(&mine), 1000);
    assert_int_equal(conn_owner_uid(&other), UINT32_MAX - 1);
    assert_int_equal(conn_owner_quota(&mine), 0);
    assert_int_equal(conn_owner_quota(&root), 0);
    assert_int_equal(conn_owner_quota(&near), 0);
    assert_int_equal(conn_owner_quota(&other), other.id);
    assert_true(conn_owner_quota(&far) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_has_so_many), cmocka_unit_test(without_a_quota_nothing_is_counted),
        cmocka_unit_test(nothing_is_left),        cmocka_unit_test(counters_of_owners),
        cmocka_unit_test(owners_of_networks),     cmocka_unit_test(owners_that_are_users),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
