/* Whose address it is. */

#include <arpa/inet.h>
#include <errno.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_addresses),
                                       cmocka_unit_test(test_address_towards)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
