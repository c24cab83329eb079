/*
 * Which hosts are numeric addresses, and what is shown and counted of the end of a connection.
 */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include "proto/address.h"

#include "tests/support/c/cmocka_fixed.h"

static void numeric_addresses(void **state)
{
    static const char *const hosts[] = {
        "127.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1", "fe80::1:2:3", "::ffff:10.0.0.1"};

    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++)
        if (!address_is_numeric(hosts[i]))
            fail_msg("%s is not taken for an address", hosts[i]);
}

/* inet_aton() would take some of these for addresses; a resolver may look them up. */
static void names_and_malformed_addresses(void **state)
{
    static const char *const hosts[] = {"",           "localhost", "node3",  "10.1",     "10.0.0.256",
                                        "0x7f.0.0.1", "[::1]",     "::1%lo", "1.2.3.4 ", ":::"};

    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++)
        if (address_is_numeric(hosts[i]))
            fail_msg("'%s' is taken for an address", hosts[i]);
}

static union address_endpoint endpoint(const char *host)
{
    union address_endpoint e = {.any = {.sa_family = AF_UNIX}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(29400)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(29400)};

    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1)
        memcpy(&e, &v4, sizeof(v4));
    else if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1)
        memcpy(&e, &v6, sizeof(v6));
    return e;
}

static void text_of_an_endpoint(void **state)
{
    static const char *const cases[][2] = {
        {"10.1.2.3", "10.1.2.3"}, {"::ffff:10.1.2.3", "10.1.2.3"}, {"2001:db8::7", "2001:db8::7"}, {"", ""}};
    char text[INET6_ADDRSTRLEN], little[8] = "before";

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        union address_endpoint e = endpoint(cases[i][0]);

        assert_int_equal(address_format(&e.any, text, sizeof(text)), cases[i][1][0] != '\0');
        assert_string_equal(text, cases[i][1]);
        assert_int_equal(address_port(&e.any), cases[i][1][0] ? 29400 : 0);
    }
    union address_endpoint long_one = endpoint("10.1.2.3");
    assert_false(address_format(&long_one.any, little, sizeof(little)));
    assert_string_equal(little, "");
}

/* Hosts of one network, as a host may have each address of its IPv6 network. */
static void network_of_an_endpoint(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {{"10.1.2.3", "::ffff:10.1.2.3", true},
                 {"10.1.2.3", "10.1.2.4", false},
                 {"2001:db8::7", "2001:db8::ffff:0:0:8", true},
                 {"2001:db8::7", "2001:db8:0:1::7", false}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        union address_endpoint a = endpoint(cases[i].a), b = endpoint(cases[i].b);

        assert_int_equal(address_network(&a.any) == address_network(&b.any), cases[i].same);
        assert_true(address_network(&a.any) != 0);
    }
    union address_endpoint local = endpoint("");
    assert_true(address_network(&local.any) == 0);
}

static void hosts_of_two_endpoints(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"10.1.2.3", "10.1.2.3", true},
        {"10.1.2.3", "::ffff:10.1.2.3", true},
        {"::ffff:10.1.2.3", "::ffff:10.1.2.3", true},
        {"10.1.2.3", "10.1.2.4", false},
        {"::ffff:10.1.2.3", "10.1.2.4", false},
        {"2001:db8::7", "2001:db8::7", true},
        {"2001:db8::7", "2001:db8::8", false}, /* of one network */
        {"2001:db8::7", "2001:db8:0:1::7", false},
        {"10.1.2.3", "::10.1.2.3", false},     /* that is IPv6 */
        {"32.1.13.184", "2001:db8::7", false}, /* begins with the same bytes */
        {"", "", false},                       /* unix sockets */
        {"10.1.2.3", "", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        union address_endpoint a = endpoint(cases[i].a), b = endpoint(cases[i].b);

        ((struct sockaddr_in *)&b)->sin_port = htons(1); /* at the same place in both families */
        if (address_is_same_host(&a.any, &b.any) != cases[i].same ||
            address_is_same_host(&b.any, &a.any) != cases[i].same)
            fail_msg("'%s' and '%s'", cases[i].a, cases[i].b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numeric_addresses),      cmocka_unit_test(names_and_malformed_addresses),
        cmocka_unit_test(text_of_an_endpoint),    cmocka_unit_test(network_of_an_endpoint),
        cmocka_unit_test(hosts_of_two_endpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
