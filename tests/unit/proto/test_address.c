/*
 * Which hosts are numeric addresses.
 */

#include <stddef.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numeric_addresses),
        cmocka_unit_test(names_and_malformed_addresses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
