/* Whose address it is. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "launcher/host/local_address_os.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct sockaddr *address_of(const char *text)
{
    static struct sockaddr_in v4;
    static struct sockaddr_in6 v6;

    v4 = (struct sockaddr_in){.sin_family = AF_INET};
    v6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return (const struct sockaddr *)&v4;
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return (const struct sockaddr *)&v6;
}

static void test_addresses(void **state)
{
    static const struct {
        const char *address;
        bool is_loopback, is_own;
    } cases[] = {
        {"127.0.0.1", true, true},        {"127.1.2.3", true, true},          {"::1", true, true},
        {"::ffff:127.0.0.1", true, true}, {"192.0.2.1", false, false}, /* for documentation: nobody has it */
        {"2001:db8::1", false, false},    {"::ffff:192.0.2.1", false, false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        if (local_address_is_loopback(address_of(cases[i].address)) != cases[i].is_loopback ||
            local_address_is_own(address_of(cases[i].address)) != cases[i].is_own)
            fail_msg("%s", cases[i].address);
    }
}

static void test_address_towards(void **state)
{
    static const struct {
        const char *host, *from;
        size_t size;
        int result;
    } cases[] = {
        {"127.0.0.1", "127.0.0.1", 64, 0}, {"127.1.2.3", "127.1.2.3", 64, 0},
        {"localhost", "", 64, -EINVAL},    {"", "", 64, -EINVAL},
        {"127.0.0.1", "", 9, -ENOBUFS},    {"127.0.0.1", "127.0.0.1", 10, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char from[64] = "";

        if (local_address_towards(cases[i].host, from, cases[i].size) != cases[i].result ||
            (cases[i].result == 0 && strcmp(from, cases[i].from) != 0))
            fail_msg("case %zu (%s): %s", i, cases[i].host, from);
    }
}

static void test_networks(void **state)
{
    static const struct {
        const char *network;
        int result;
    } cases[] = {
        {"10.1.0.0", -EINVAL},
        {"10.1.0.0/", -EINVAL},
        {"10.1.0.0/33", -EINVAL},
        {"10.1.0.0/-1", -EINVAL},
        {"10.1.0/16", -EINVAL},
        {"/16", -EINVAL},
        {"eth0/16", -EINVAL},
        {"fd00::/129", -EINVAL},
        {"1111:1111:1111:1111:1111:1111:1111:1111:1111:1111/8", -EINVAL},
        {"127.0.0.0/8", -EADDRNOTAVAIL},
        {"::1/128", -EADDRNOTAVAIL},
        {"fe80::/10", -EADDRNOTAVAIL},
        {"198.51.100.0/24", -EADDRNOTAVAIL},
        {"2001:db8::/32", -EADDRNOTAVAIL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char found[64] = "";
        if (local_address_in(cases[i].network, found, sizeof(found)) != cases[i].result || found[0])
            fail_msg("%s: %s", cases[i].network, found);
    }
}

/* For each prefix of an own address: the address is found, and is not once a bit of the prefix differs. */
static void test_prefixes(void **state)
{
    char own[64], network[80], found[64];
    struct in_addr bits;

    if (local_address_in(LOCAL_ADDRESS_ANY_V4, own, sizeof(own)) != 0)
        skip(); /* nothing but loopback */
    assert_int_equal(local_address_in(LOCAL_ADDRESS_ANY_V4, found, 3), -ENOBUFS);
    assert_true(local_address_interface("127.0.0.1", found) && strcmp(found, "lo") == 0);
    assert_true(local_address_interface(own, found) && strcmp(found, "lo") != 0 && if_nametoindex(found) > 0);
    assert_true(!local_address_interface("198.51.100.1", found) && !local_address_interface("lo", found));
    for (int n = 1; n <= 32; n++) {
        assert_int_equal(inet_pton(AF_INET, own, &bits), 1);
        (void)snprintf(network, sizeof(network), "%s/%d", own, n);
        assert_int_equal(local_address_in(network, found, sizeof(found)), 0);
        assert_string_equal(found, own);
        bits.s_addr ^= htonl(UINT32_C(1) << (32 - n));
        (void)snprintf(network, sizeof(network), "%s/%d", inet_ntoa(bits), n);
        int r = local_address_in(network, found, sizeof(found));
        assert_true(r == -EADDRNOTAVAIL || (r == 0 && strcmp(found, own) != 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_addresses), cmocka_unit_test(test_networks),
                                       cmocka_unit_test(test_prefixes),
                                       cmocka_unit_test(test_address_towards)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
