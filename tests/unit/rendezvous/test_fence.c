/*
 * The set of addresses of a fence: what was allowed is found in each form, nothing else is, and the set is bounded.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/err.h"
#include "rendezvous/keys/fence.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/sanitized.h"

static struct sockaddr *parse(const char *text)
{
    static struct sockaddr_in6 v6;
    static struct sockaddr_in v4;

    v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = (in_port_t)strlen(text)};
    v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = (in_port_t)strlen(text)};
    if (strchr(text, ':')) {
        assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
        return (struct sockaddr *)&v6;
    }
    assert_int_equal(inet_pton(AF_INET, text, &v4.sin_addr), 1);
    return (struct sockaddr *)&v4;
}

static void each_form_of_an_address_is_the_same(void **state)
{
    struct fence f = {0};

    assert_false(fence_allows(&f, parse("10.0.0.1")));
    assert_int_equal(fence_allow(&f, parse("10.0.0.1")), 0);
    assert_int_equal(fence_allow(&f, parse("::ffff:10.0.0.2")), 0);
    assert_int_equal(fence_allow(&f, parse("fd00::1")), 0);
    assert_int_equal(fence_allow(&f, parse("::ffff:10.0.0.1")), 0);
    assert_int_equal(f.n, 3);
    assert_true(fence_allows(&f, parse("10.0.0.1")));
    assert_true(fence_allows(&f, parse("::ffff:10.0.0.1")));
    assert_true(fence_allows(&f, parse("10.0.0.2")));
    assert_true(fence_allows(&f, parse("fd00::1")));
    assert_false(fence_allows(&f, parse("10.0.0.3")));
    assert_false(fence_allows(&f, parse("::10.0.0.1")));
    assert_false(fence_allows(&f, parse("fd00::2")));
    fence_finish(&f);
}

static void other_families(void **state)
{
    const struct sockaddr_un local = {.sun_family = AF_UNIX};
    const struct sockaddr other = {.sa_family = AF_APPLETALK};
    struct fence f = {0};

    assert_true(fence_allows(&f, (const struct sockaddr *)&local));
    assert_false(fence_allows(&f, &other));
    assert_int_equal(fence_allow(&f, &other), -EAFNOSUPPORT);
}

/* In an order that is neither rising nor falling, to the bound. */
static void as_many_as_there_may_be(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct fence f = {0};

    if (IS_SANITIZED) /* half a minute there, for what fewer addresses do, too */
        skip();
    for (uint32_t i = 0; i < FENCE_ADDRESSES_MAX; i++) {
        address.sin_addr.s_addr = htonl(0x0a000000 | (i * 40503u & 0xffff));
        assert_int_equal(fence_allow(&f, (struct sockaddr *)&address), 0);
    }
    assert_int_equal(f.n, FENCE_ADDRESSES_MAX);
    for (uint32_t i = 0; i < FENCE_ADDRESSES_MAX; i++) {
        address.sin_addr.s_addr = htonl(0x0a000000 | i);
        assert_true(fence_allows(&f, (struct sockaddr *)&address));
    }
    address.sin_addr.s_addr = htonl(0x0b000000);
    assert_false(fence_allows(&f, (struct sockaddr *)&address));
    assert_int_equal(fence_allow(&f, (struct sockaddr *)&address), -ENOSPC);
    assert_int_equal(fence_allow(&f, parse("10.0.0.7")), 0); /* it is there */
    fence_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_of_an_address_is_the_same),
        cmocka_unit_test(other_families),
        cmocka_unit_test(as_many_as_there_may_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
