/*
 * crund's command line: what is taken, what is refused, and that the defaults are those of the library.
 */

#include <string.h>

#include "base/err.h"
#include "rendezvous/daemon/daemon_options.h"

#include "tests/support/c/cmocka_fixed.h"

static struct daemon_options options;
static char error[512];

/* Up to three words behind the program's name. */
static int parse(const char *a, const char *b, const char *c)
{
    char words[3][128];
    const char *given[] = {a, b, c};
    char *argv[5] = {(char[]){"crund"}};
    int argc = 1;

    for (int i = 0; i < 3 && given[i]; i++) {
        assert_true(strlen(given[i]) < sizeof(words[i]));
        argv[argc++] = strcpy(words[i], given[i]);
    }
    error[0] = '\0';
    return daemon_options_parse(&options, argv, error, sizeof(error));
}

static void test_defaults_are_the_library_s(void **state)
{
    static const struct server_limits library = SERVER_LIMITS_DEFAULT;
    struct server_limits ours;

    assert_int_equal(parse(NULL, NULL, NULL), 0);
    ours = options.limits;
    assert_true(ours.wire.key_max == library.wire.key_max && ours.wire.value_max == library.wire.value_max);
    assert_true(ours.wire.keys_max == library.wire.keys_max &&
                ours.wire.message_max == library.wire.message_max);
    assert_true(ours.store.keys_max == library.store.keys_max &&
                ours.store.bytes_max == library.store.bytes_max);
    assert_true(ours.store.waiters_max == library.store.waiters_max);
    assert_true(ours.connections_max == library.connections_max && ours.output_max == library.output_max);
    assert_true(ours.output_all_max == library.output_all_max && ours.input_all_max == library.input_all_max);
    assert_true(ours.handshake_ms == library.handshake_ms && ours.frame_ms == library.frame_ms);
    assert_int_equal(options.n_addresses, 1);
    assert_string_equal(options.addresses[0].host, "127.0.0.1");
    assert_int_equal(options.addresses[0].port, 29400);
}

static void test_addresses(void **state)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
    } cases[] = {
        {"127.0.0.1:0", "127.0.0.1", 0},
        {"10.1.2.3", "10.1.2.3", 29400},
        {"10.1.2.3:65535", "10.1.2.3", 65535},
        {"[::1]:80", "::1", 80},
        {"[::1]", "::1", 29400},
        {"::1", "::1", 29400},
        {"fe80::1:2:3", "fe80::1:2:3", 29400},
        {":5", "::", 5},
        {"[::]:5", "::", 5},
        {"localhost:7", "127.0.0.1", 7},
        {"0.0.0.0:7", "0.0.0.0", 7},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(parse("--listen", cases[i].text, NULL), 0);
        assert_int_equal(options.n_addresses, 1);
        assert_string_equal(options.addresses[0].host, cases[i].host);
        assert_int_equal(options.addresses[0].port, cases[i].port);
        assert_null(options.addresses[0].unix_path);
    }
    assert_int_equal(parse("--listen-unix=/run/crund.sock", "--listen=:1", NULL), 0);
    assert_int_equal(options.n_addresses, 2);
    assert_string_equal(options.addresses[0].unix_path, "/run/crund.sock");
    assert_int_equal(options.addresses[1].port, 1);
}

static void test_wrong_addresses(void **state)
{
    static const char *const cases[] = {
        "host", "host.example:1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1",
        "[::1", "[::1]x",         "[::1]:",     "1.2.3:4",     "300.1.1.1:1"};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(parse("--listen", cases[i], NULL), OPTIONS_E_USAGE);
        assert_non_null(strstr(error, cases[i]));
    }
}

#define AT(member) offsetof(struct daemon_options, member), sizeof(((struct daemon_options *)0)->member)

static uint64_t number_at(size_t offset, size_t size)
{
    const void *member = (const char *)&options + offset;

    return size == sizeof(uint32_t) ? *(const uint32_t *)member : *(const uint64_t *)member;
}

static void test_numbers(void **state)
{
    static const struct {
        const char *option, *text;
        size_t offset, size;
        uint64_t value;
    } cases[] = {
        {"--max-keys", "0", AT(limits.store.keys_max), 0},
        {"--max-bytes", "100000", AT(limits.store.bytes_max), 100000},
        {"--max-bytes", "64K", AT(limits.store.bytes_max), 65536},
        {"--max-job-bytes", "2M", AT(limits.job_store.bytes_max), 2097152},
        {"--max-bytes", "3G", AT(limits.store.bytes_max), UINT64_C(3) << 30},
        {"--max-message", "16M", AT(limits.wire.message_max), 16 << 20},
        {"--handshake-timeout", "0.25", AT(limits.handshake_ms), 250},
        {"--drain-timeout", "0", AT(drain_ms), 0},
        {"--message-timeout", "7s", AT(limits.frame_ms), 7000},
        {"--max-jobs", "3", AT(rounds.max_jobs), 3},
        {"--max-nodes", "16384", AT(rounds.max_nodes), 16384},
        {"--max-agents", "5", AT(rounds.max_agents), 5},
        {"--grace", "0.5", AT(rounds.grace_ms), 500},
        {"--grace", "1.0004", AT(rounds.grace_ms), 1000},
        {"--grace", "1.99951s", AT(rounds.grace_ms), 2000},
        {"--grace", "2147483", AT(rounds.grace_ms), 2147483000},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(parse(cases[i].option, cases[i].text, NULL), 0);
        assert_true(number_at(cases[i].offset, cases[i].size) == cases[i].value);
    }
}

static void test_wrong_numbers(void **state)
{
    static const char *const cases[][2] = {
        {"--max-keys", ""},
        {"--max-keys", "-1"},
        {"--max-keys", "1K"},
        {"--max-keys", " 1"},
        {"--max-keys", "1x"},
        {"--max-keys", "99999999999999999999"},
        {"--max-bytes", "1"},
        {"--max-bytes", "1T"},
        {"--max-bytes", "18446744073709551615G"},
        {"--max-connections", "0"},
        {"--drain-timeout", "-1"},
        {"--drain-timeout", "inf"},
        {"--drain-timeout", "nan"},
        {"--drain-timeout", "1e9"},
        {"--handshake-timeout", "0"},
        {"--handshake-timeout", "x"},
        {"--grace", "0x10"},
        {"--grace", "1e1"},
        {"--grace", ".5"},
        {"--grace", "1.5.5"},
        {"--grace", "1.5x"},
        {"--grace", "99999999999999999999"},
        {"--sandbox", "on"},
        {"--sandbox", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(parse(cases[i][0], cases[i][1], NULL), OPTIONS_E_USAGE);
        assert_non_null(strstr(error, cases[i][0]));
    }
}

static void test_other_words(void **state)
{
    assert_int_equal(parse("--help", NULL, NULL), OPTIONS_E_HELP);
    assert_int_equal(parse("--version", NULL, NULL), OPTIONS_E_VERSION);
    assert_int_equal(parse("--nonsense", NULL, NULL), OPTIONS_E_USAGE);
    assert_non_null(strstr(error, "--nonsense"));
    assert_int_equal(parse("--max-keys", NULL, NULL), OPTIONS_E_USAGE);
    assert_int_equal(parse("-x", NULL, NULL), OPTIONS_E_USAGE);
    assert_int_equal(parse("file", NULL, NULL), OPTIONS_E_USAGE);
    assert_non_null(strstr(error, "file"));
}

static void test_certificates(void **state)
{
    static const struct {
        const char *words[3];
        const char *fault; /* NULL: accepted */
    } rows[] = {
        {{"--tls-cert=c", "--tls-key=k"}, NULL},
        {{"--tls-cert=c", "--tls-key=k", "--tls-ca=a"}, NULL},
        {{"--tls-cert=c", "--tls-key=k", "--security=require"}, "needs --tls-ca FILE"},
        {{"--tls-cert=c"}, "--tls-cert and --tls-key"},
        {{"--tls-key=k", "--tls-ca=a"}, "--tls-cert and --tls-key"},
        {{"--tls-ca=a"}, "--tls-ca: needs"},
        {{"--tls-cert=c", "--tls-key=k", "--secret-file=s"}, "in place of secrets"},
        {{"--tls-cert=c", "--tls-key=k", "--secrets=s"}, "in place of secrets"},
        {{"--security=require"}, "or --tls-cert FILE"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *const *w = rows[i].words;

        assert_int_equal(parse(w[0], w[1], w[2]), rows[i].fault ? OPTIONS_E_USAGE : 0);
        if (rows[i].fault)
            assert_non_null(strstr(error, rows[i].fault));
        else
            assert_string_equal(options.certificates.key, "k");
    }
}

static void test_etcd(void **state)
{
    static const struct {
        const char *words[3];
        const char *fault;
    } rows[] = {
        {{"--state=etcd://h1,h2:1/x", "--listen=10.0.0.1:5"}, NULL},
        {{"--state=etcd://h1/x"}, NULL},
        {{"--state=etcd://h1/x", "--listen=[::]:5", "--advertise=10.0.0.1:5"}, NULL},
        {{"--state=etcd://h1/x", "--advertise=[::1]:5", "--etcd-ca=f"}, NULL},
        {{"--state=etcd://h1/x", "--listen=[::]:5"}, "--advertise"},
        {{"--state=etcd://h1/x", "--listen=0.0.0.0:5"}, "--advertise"},
        {{"--state=etcd://h1/x", "--listen-unix=/tmp/s"}, "--advertise"},
        {{"--state=etcd://h1"}, "PREFIX"},
        {{"--state=etcd://h1/x", "--advertise=10.0.0.1"}, "HOST:PORT"},
        {{"--state=etcd://h1/x", "--advertise=10.0.0.1:0"}, "HOST:PORT"},
        {{"--state=etcd://h1/x", "--advertise=node1:5"}, "HOST:PORT"},
        {{"--state=/dir", "--advertise=10.0.0.1:5"}, "etcd://"},
        {{"--etcd-login=f"}, "etcd://"},
        {{"--state=etcd://h1/x", "--etcd-cert=c", "--etcd-key=k"}, "--etcd-ca"},
        {{"--state=etcd://h1/x", "--etcd-ca=c", "--etcd-key=k"}, "together"},
        {{"--state=etcd://h1/x", "--etcd-login=f", "--etcd-ca=c"}, NULL},
        {{"--state=etcd://h1/x", "--etcd-login=f"}, "--etcd-ca"},
        {{"--state=etcd://127.0.0.1,[::1]:1,localhost:2/x", "--etcd-login=f"}, NULL},
        {{"--state=etcd://127.0.0.1,10.0.0.1/x", "--etcd-login=f"}, "--etcd-ca"},
        {{"--state=etcd://127.evil.example/x", "--etcd-login=f"}, "--etcd-ca"},
        {{"--state=etcd://localhost.example/x", "--etcd-login=f"}, "--etcd-ca"},
        {{"--state=etcd://[::12]/x", "--etcd-login=f"}, "--etcd-ca"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *const *w = rows[i].words;

        if (parse(w[0], w[1], w[2]) != (rows[i].fault ? OPTIONS_E_USAGE : 0))
            fail_msg("%s: %s", w[0], error);
        if (rows[i].fault && !strstr(error, rows[i].fault))
            fail_msg("%s: \"%s\" does not name %s", w[0], error, rows[i].fault);
    }
}

/* In a unit of systemd, too: its options are these. */
static void test_options_that_are_gone(void **state)
{
    assert_int_equal(parse("--store-replicas=2", NULL, NULL), OPTIONS_E_USAGE);
    assert_string_equal(error,
                        "--store-replicas is gone: leave it out; a job restarts once, within --max-restarts, "
                        "when the crund with its keys ends");
    assert_int_equal(parse("--store-replicas", "1", NULL), OPTIONS_E_USAGE);
    assert_non_null(strstr(error, "is gone"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_the_library_s),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_wrong_addresses),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_other_words),
        cmocka_unit_test(test_certificates),
        cmocka_unit_test(test_etcd),
        cmocka_unit_test(test_options_that_are_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
