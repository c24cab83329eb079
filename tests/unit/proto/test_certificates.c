/*
 * TLS with certificates. Two tables: what is refused before there is a peer, and what a handshake of two ends with
 * different files ends with. Each sentence names the file or the remedy.
 */

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/tls_openssl.h"
#include "tests/support/c/test_certificates.h"

#include "tests/support/c/cmocka_fixed.h"

struct named_files {
    const char *cert, *key, *ca; /* without folder and suffix */
};

/* As the programs do it. */
static int load(struct tls_context **ret, const struct named_files *names, bool server,
                enum key_purpose purpose, const char *host, char error[CERTIFICATE_ERROR_SIZE])
{
    char cert[TEST_PATH_SIZE], key[TEST_PATH_SIZE], ca[TEST_PATH_SIZE];
    const struct certificate_paths paths = {.cert = test_certificate_path(cert, names->cert, ".pem"),
                                            .key = test_certificate_path(key, names->key, ".key"),
                                            .ca = test_certificate_path(ca, names->ca, ".pem")};
    struct certificate_files files;

    int r = certificate_files_read(&files, &paths, error);
    if (r < 0)
        return r;
    r = server ? tls_context_server_certified(ret, &files, error)
               : tls_context_client_certified(ret, purpose, host, &files, error);
    certificate_files_finish(&files);
    return r;
}

static void files_that_cannot_be_used(void **state)
{
    static const struct {
        struct named_files names;
        const char *words;
    } rows[] = {
        {{"absent", "node", "ca"}, "cannot read the certificate in"},
        {{"node", "absent", "ca"}, "cannot read the private key in"},
        {{"node", "node", "absent"}, "cannot read the certificates of CAs in"},
        {{"empty", "node", "ca"}, "there is no certificate in"},
        {{"node", "node", "empty"}, "there is no certificate in"},
        {{"node", "next", "ca"}, "does not belong to the certificate in"},
        {{"expired", "expired", "ca"}, "has expired on"},
        {{"node", "node", "expired-ca"}, "has expired on"},
        {{"locked", "locked", "ca"}, "has a passphrase"},
        {{"node", "empty", "ca"}, "there is no private key in"},
        {{"node", "public", "ca"}, "chmod o="},
    };
    char path[TEST_PATH_SIZE], public_path[TEST_PATH_SIZE];

    (void)fclose(fopen(test_certificate_path(path, "empty", ".key"), "w"));
    assert_int_equal(chmod(path, 0600), 0);
    (void)fclose(fopen(test_certificate_path(public_path, "public", ".key"), "w"));
    assert_int_equal(chmod(public_path, 0644), 0);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (int server = 0; server < 2; server++) {
            char error[CERTIFICATE_ERROR_SIZE] = "";
            struct tls_context *c = NULL;

            assert_true(load(&c, &rows[i].names, server, KEY_AGENT, NULL, error) < 0);
            assert_null(c);
            if (!strstr(error, rows[i].words) || !strstr(error, test_certificates))
                fail_msg("row %zu: %s", i, error);
        }
}

/* ---- handshakes ---- */

struct certified_pair {
    struct tls_context *client_context, *server_context;
    struct tls_link *client, *server;
    struct buf to_server, to_client, at_server, at_client;
    int client_result, server_result;
};

static int deliver_slices(struct tls_link *to, struct buf *wire, struct buf *plain, struct buf *answers)
{
    int r = 0;

    while (buf_size(wire) > 0 && r == 0) {
        size_t n = buf_size(wire) < 97 ? buf_size(wire) : 97;

        r = tls_link_receive(to, buf_bytes(wire), n, plain, answers);
        buf_consume(wire, n);
    }
    return r;
}

static void converse(struct certified_pair *p)
{
    while (buf_size(&p->to_server) + buf_size(&p->to_client) > 0 &&
           (p->server_result == 0 || p->client_result == 0)) {
        if (p->server_result == 0)
            p->server_result = deliver_slices(p->server, &p->to_server, &p->at_server, &p->to_client);
        else
            buf_reset(&p->to_server);
        if (p->client_result == 0)
            p->client_result = deliver_slices(p->client, &p->to_client, &p->at_client, &p->to_server);
        else
            buf_reset(&p->to_client);
    }
}

static void begin_conversation_to(struct certified_pair *p, const char *host)
{
    assert_int_equal(tls_link_create(&p->client, p->client_context, host), 0);
    assert_int_equal(tls_link_create(&p->server, p->server_context, NULL), 0);
    assert_int_equal(tls_link_receive(p->client, NULL, 0, &p->at_client, &p->to_server), 0);
    converse(p);
}

static void begin_conversation(struct certified_pair *p)
{
    begin_conversation_to(p, NULL);
}

static void end_conversation(struct certified_pair *p)
{
    tls_context_free(p->client_context); /* the links own them, too */
    tls_context_free(p->server_context);
    tls_link_free(p->client);
    tls_link_free(p->server);
    buf_finish(&p->to_server);
    buf_finish(&p->to_client);
    buf_finish(&p->at_server);
    buf_finish(&p->at_client);
}

static void load_or_fail(struct tls_context **ret, const struct named_files *names, bool server,
                         enum key_purpose purpose, const char *host)
{
    char error[CERTIFICATE_ERROR_SIZE] = "";

    if (load(ret, names, server, purpose, host, error) < 0)
        fail_msg("%s", error);
}

static const struct named_files node_files = {"node", "node", "ca"};

static void peers_that_are_accepted_and_refused(void **state)
{
    static const struct {
        struct named_files server, client;
        const char *host;
        const char *at_client, *at_server; /* NULL: accepted */
    } rows[] = {
        {{"node", "node", "ca"}, {"next", "next", "ca"}, "localhost", NULL, NULL},
        {{"node", "node", "ca"}, {"next", "next", "ca"}, "127.0.0.1", NULL, NULL},
        {{"node", "node", "ca"}, {"next", "next", "ca"}, NULL, NULL, NULL},
        {{"chained", "chained", "ca"}, {"chained", "chained", "ca"}, "rendezvous.test", NULL, NULL},
        {{"node", "node", "bundle"}, {"foreign", "foreign", "ca"}, "localhost", NULL, NULL},
        {{"node", "node", NULL}, {"foreign", "foreign", "ca"}, "localhost", NULL, NULL},
        {{"server", "server", "ca"}, {"node", "node", "ca"}, "localhost", NULL, NULL},
        {{"renamed", "renamed", "ca"},
         {"node", "node", "ca"},
         "localhost",
         "its certificate is not for localhost, but for DNS:elsewhere.test, IP Address:192.0.2.1: name the endpoint as",
         ""},
        {{"many", "many", "ca"},
         {"node", "node", "ca"},
         "localhost",
         ", DNS:host5.elsewhere.test, ...: name the endpoint",
         ""},
        {{"renamed", "renamed", "ca"}, {"node", "node", "ca"}, "127.0.0.1", "is not for 127.0.0.1", ""},
        {{"renamed", "renamed", "ca"}, {"node", "node", "ca"}, "test", "is not for test", ""},
        {{"unnamed", "unnamed", "ca"},
         {"node", "node", "ca"},
         "localhost",
         "is not for localhost, and for no host at all: name",
         ""},
        {{"foreign", "foreign", "ca"}, {"node", "node", "ca"}, "localhost", "/ca.pem (--tls-ca)", ""},
        {{"node", "node", "ca"},
         {"foreign", "foreign", "ca"},
         "localhost",
         "it does not accept the certificate",
         "its certificate is not accepted"},
        {{"node", "node", "ca"},
         {"server", "server", "ca"},
         "localhost",
         "it does not accept",
         "not accepted"},
    };

    for (size_t k = 0; k < 2 * ARRAY_SIZE(rows); k++) { /* each for a link with sealed records, too */
        size_t i = k / 2;
        enum key_purpose purpose = k % 2 ? KEY_RELAY : KEY_AGENT;
        struct certified_pair p = {0};

        load_or_fail(&p.server_context, &rows[i].server, true, purpose, NULL);
        load_or_fail(&p.client_context, &rows[i].client, false, purpose, rows[i].host);
        begin_conversation(&p);
        if (!rows[i].at_client) {
            assert_string_equal(tls_link_error(p.server), "");
            assert_string_equal(tls_link_error(p.client), "");
            assert_true(tls_link_is_established(p.server) && tls_link_is_certified(p.server));
            assert_int_equal(tls_link_purpose(p.server), purpose);
            assert_int_equal(tls_link_send(p.client, "hello", 5, &p.to_server), 0);
            assert_int_equal(tls_link_send(p.server, "view", 4, &p.to_client), 0);
            converse(&p);
            assert_memory_equal(buf_bytes(&p.at_server), "hello", 5);
            assert_memory_equal(buf_bytes(&p.at_client), "view", 4);
        } else {
            assert_false(tls_link_is_established(p.server));
            assert_false(tls_link_is_established(p.client)); /* perhaps it was */
            if (!strstr(tls_link_error(p.client), rows[i].at_client) ||
                !strstr(tls_link_error(p.server), rows[i].at_server))
                fail_msg("row %zu: client: %s, server: %s", i, tls_link_error(p.client),
                         tls_link_error(p.server));
            assert_int_equal(buf_size(&p.at_server) + buf_size(&p.at_client), 0);
        }
        end_conversation(&p);
    }
}

/* One context is for several rendezvous, each with a name of its own. */
static void a_connection_has_a_name_of_its_own(void **state)
{
    static const struct {
        const char *of_context, *of_link;
        const char *at_client; /* NULL: accepted */
    } rows[] = {
        {"elsewhere.test", "localhost", NULL},
        {"elsewhere.test", "127.0.0.1", NULL},
        {"localhost", "elsewhere.test", "its certificate is not for elsewhere.test"},
        {"localhost", "127.0.0.2",
         "is not for 127.0.0.2, but for DNS:localhost, DNS:rendezvous.test, IP Address:127.0.0.1:"},
        {NULL, "elsewhere.test", "its certificate is not for elsewhere.test"},
    };
    char long_name[512];
    struct certified_pair p = {0};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        p = (struct certified_pair){0};
        load_or_fail(&p.server_context, &node_files, true, KEY_AGENT, NULL);
        load_or_fail(&p.client_context, &node_files, false, KEY_AGENT, rows[i].of_context);
        begin_conversation_to(&p, rows[i].of_link);
        assert_int_equal(tls_link_is_established(p.client), !rows[i].at_client);
        assert_non_null(strstr(tls_link_error(p.client), rows[i].at_client ? rows[i].at_client : ""));
        end_conversation(&p);
    }
    memset(long_name, 'a', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    p = (struct certified_pair){0};
    load_or_fail(&p.client_context, &node_files, false, KEY_AGENT, NULL);
    assert_int_equal(tls_link_create(&p.client, p.client_context, long_name), -ENAMETOOLONG);
    tls_context_free(p.client_context);
}

/* A server without CAs would take any client; ours has some, and a client without a certificate is none. */
static void a_client_without_a_certificate_is_refused(void **state)
{
    const struct secret_key key = {{7}};
    struct certified_pair p = {0};
    char why[TLS_ERROR_SIZE];

    load_or_fail(&p.server_context, &node_files, true, KEY_AGENT, NULL);
    assert_int_equal(tls_context_client(&p.client_context, KEY_AGENT, "job", &key, why), 0);
    begin_conversation(&p);
    assert_false(tls_link_is_established(p.server));
    assert_false(tls_link_is_established(p.client));
    assert_non_null(strstr(tls_link_error(p.client), "this crun has none"));
    end_conversation(&p);
}

static int find_any_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    *ret = (struct secret_key){{7}};
    return 1;
}

static void a_server_without_certificates_is_refused(void **state)
{
    struct certified_pair p = {0};
    char why[TLS_ERROR_SIZE];

    load_or_fail(&p.client_context, &node_files, false, KEY_AGENT, "localhost");
    assert_int_equal(tls_context_server(&p.server_context, find_any_key, NULL, why), 0);
    begin_conversation(&p);
    assert_false(tls_link_is_established(p.server));
    assert_false(tls_link_is_established(p.client));
    assert_non_null(strstr(tls_link_error(p.client), "does the rendezvous have a certificate"));
    end_conversation(&p);
}

static void the_purpose_is_the_protocol(void **state)
{
    for (enum key_purpose purpose = 0; purpose < KEY_PURPOSE_COUNT; purpose++) {
        struct certified_pair p = {0};

        load_or_fail(&p.server_context, &node_files, true, KEY_AGENT, NULL);
        load_or_fail(&p.client_context, &node_files, false, purpose, "localhost");
        begin_conversation(&p);
        assert_true(tls_link_is_established(p.server));
        assert_int_equal(tls_link_purpose(p.server), purpose);
        end_conversation(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_cannot_be_used),
        cmocka_unit_test(peers_that_are_accepted_and_refused),
        cmocka_unit_test(a_connection_has_a_name_of_its_own),
        cmocka_unit_test(a_client_without_a_certificate_is_refused),
        cmocka_unit_test(a_server_without_certificates_is_refused),
        cmocka_unit_test(the_purpose_is_the_protocol),
    };

    make_test_certificates();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
