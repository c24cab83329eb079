/*
 * TLS with a job's key, between two links in memory: the same plaintext however the records are sliced; each kind of peer
 * without the key ends both links before a byte of plaintext is delivered; an altered record is never delivered. Links of an
 * agent have OpenSSL's records, those of a node's store sealed ones.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/tls_openssl.h"
#include "tests/support/c/failing_alloc.h"

#include "tests/support/c/cmocka_fixed.h"

static const char secret[] = "a secret of more than sixteen bytes";
static const enum key_purpose purposes[] = {KEY_AGENT, KEY_RELAY};

struct fixture {
    struct tls_context *client_context, *server_context;
    struct tls_link *client, *server;
    struct buf to_server, to_client; /* records on their way */
    struct buf at_server, at_client; /* plaintext that arrived */
    int server_result, client_result;
};

static void derive(struct secret_key *ret, const char *of, enum key_purpose purpose, const char *job)
{
    const char *why;

    assert_int_equal(key_derive(ret, of, strlen(of), purpose, job, &why), 0);
}

/* The server knows the secret of job "alpha" alone, and of the administrator. */
static int find_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    if (strcmp(job, "alpha") != 0 && purpose != KEY_ADMIN)
        return 0;
    derive(ret, secret, purpose, job);
    return 1;
}

static void connect_as(struct fixture *f, enum key_purpose purpose, const char *job,
                       const struct secret_key *key)
{
    char why[TLS_ERROR_SIZE];

    *f = (struct fixture){0};
    assert_int_equal(tls_context_client(&f->client_context, purpose, job, key, why), 0);
    assert_int_equal(tls_context_server(&f->server_context, find_key, NULL, why), 0);
    assert_int_equal(tls_link_create(&f->client, f->client_context, NULL), 0);
    assert_int_equal(tls_link_create(&f->server, f->server_context, NULL), 0);
    assert_int_equal(tls_link_receive(f->client, NULL, 0, &f->at_client, &f->to_server), 0);
}

static void connect_for(struct fixture *f, enum key_purpose purpose)
{
    struct secret_key key;

    derive(&key, secret, purpose, "alpha");
    connect_as(f, purpose, "alpha", &key);
}

static void connect_with(struct fixture *f, const char *of, const char *job)
{
    struct secret_key key;

    derive(&key, of, KEY_AGENT, job);
    connect_as(f, KEY_AGENT, job, &key);
}

static void disconnect(struct fixture *f)
{
    tls_link_free(f->client);
    tls_link_free(f->server);
    tls_context_free(f->client_context);
    tls_context_free(f->server_context);
    buf_finish(&f->to_server);
    buf_finish(&f->to_client);
    buf_finish(&f->at_server);
    buf_finish(&f->at_client);
}

static int deliver(struct tls_link *to, struct buf *wire, size_t slice, struct buf *plain,
                   struct buf *answers)
{
    int r = 0;

    while (buf_size(wire) > 0 && r == 0) {
        size_t n = buf_size(wire) < slice ? buf_size(wire) : slice;

        r = tls_link_receive(to, buf_bytes(wire), n, plain, answers);
        buf_consume(wire, n);
    }
    return r;
}

/* Until neither end has anything to send, or one has failed. */
static void exchange(struct fixture *f, size_t slice)
{
    while (buf_size(&f->to_server) + buf_size(&f->to_client) > 0 && f->server_result == 0 &&
           f->client_result == 0) {
        f->server_result = deliver(f->server, &f->to_server, slice, &f->at_server, &f->to_client);
        f->client_result = deliver(f->client, &f->to_client, slice, &f->at_client, &f->to_server);
    }
}

static void same_text(enum key_purpose purpose, size_t slice)
{
    struct fixture f;

    connect_for(&f, purpose);
    exchange(&f, slice);
    assert_string_equal(tls_link_error(f.client), "");
    assert_string_equal(tls_link_error(f.server), "");
    assert_true(tls_link_is_established(f.client));
    assert_true(tls_link_is_established(f.server));
    assert_string_equal(tls_link_job(f.server), "alpha");
    assert_int_equal(tls_link_purpose(f.server), purpose);

    assert_int_equal(tls_link_send(f.client, "hello", 5, &f.to_server), 0);
    assert_int_equal(tls_link_send(f.server, "view", 4, &f.to_client), 0);
    exchange(&f, slice);
    assert_int_equal(buf_size(&f.at_server), 5);
    assert_memory_equal(buf_bytes(&f.at_server), "hello", 5);
    assert_int_equal(buf_size(&f.at_client), 4);
    assert_memory_equal(buf_bytes(&f.at_client), "view", 4);
    disconnect(&f);
}

static void same_text_in_slices_of_any_size(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(purposes); i++)
        for (size_t slice = 1; slice < 2000; slice += slice < 8 ? 1 : 311)
            same_text(purposes[i], slice);
}

/* The client's last message of the handshake and its first data arrive in the same slices. */
static void text_right_behind_the_handshake(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(purposes); i++)
        for (size_t slice = 1; slice < 300; slice += 7) {
            struct fixture f;

            connect_for(&f, purposes[i]);
            assert_int_equal(deliver(f.server, &f.to_server, slice, &f.at_server, &f.to_client), 0);
            assert_int_equal(deliver(f.client, &f.to_client, slice, &f.at_client, &f.to_server), 0);
            assert_true(tls_link_is_established(f.client));
            assert_false(tls_link_is_established(f.server));
            assert_int_equal(tls_link_send(f.client, "hello", 5, &f.to_server), 0);
            assert_int_equal(tls_link_finish(f.client, &f.to_server), 0);
            exchange(&f, slice);
            assert_int_equal(buf_size(&f.at_server), 5);
            assert_memory_equal(buf_bytes(&f.at_server), "hello", 5);
            assert_true(tls_link_is_finished(f.server));
            disconnect(&f);
        }
}

static void much_at_once(void **state)
{
    enum { SIZE = 5 << 20 };
    uint8_t *bytes = malloc(SIZE);

    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * i >> 3);
    for (size_t i = 0; i < ARRAY_SIZE(purposes); i++) {
        struct fixture f;

        connect_for(&f, purposes[i]);
        exchange(&f, 100000);
        assert_int_equal(tls_link_send(f.client, bytes, SIZE, &f.to_server), 0);
        exchange(&f, 100000);
        assert_int_equal(buf_size(&f.at_server), SIZE);
        assert_memory_equal(buf_bytes(&f.at_server), bytes, SIZE);
        disconnect(&f);
    }
    free(bytes);
}

static void assert_refused(struct fixture *f, const char *at_server)
{
    exchange(f, 4096);
    assert_int_equal(f->server_result, -EPROTO);
    assert_int_equal(f->client_result, -EPROTO); /* by the alert */
    assert_false(tls_link_is_established(f->server));
    assert_false(tls_link_is_established(f->client));
    assert_non_null(strstr(tls_link_error(f->server), at_server));
    assert_non_null(strstr(tls_link_error(f->client), "same secret"));
    assert_int_equal(buf_size(&f->at_server) + buf_size(&f->at_client), 0);
    disconnect(f);
}

static void a_peer_without_the_key_is_refused(void **state)
{
    struct fixture f;
    struct secret_key key;

    connect_with(&f, "another secret of some length", "alpha");
    assert_refused(&f, "its secret is another one");
    connect_with(&f, secret, "beta"); /* the right secret for a job that has none here */
    assert_refused(&f, "there is no secret for what it presents");

    derive(&key, secret, KEY_AGENT, "beta"); /* the key of another job */
    connect_as(&f, KEY_AGENT, "alpha", &key);
    assert_refused(&f, "its secret is another one");
    derive(&key, secret, KEY_WORKER, "alpha"); /* a worker's key is not an agent's */
    connect_as(&f, KEY_AGENT, "alpha", &key);
    assert_refused(&f, "its secret is another one");
    derive(&key, secret, KEY_AGENT, "alpha");
    connect_as(&f, KEY_ADMIN, "", &key);
    assert_refused(&f, "its secret is another one");
}

static void replay_recorded(enum key_purpose purpose)
{
    struct buf recorded = {0}, plain = {0}, out = {0};
    struct tls_link *victim;
    struct fixture f;

    connect_for(&f, purpose);
    assert_int_equal(buf_append(&recorded, buf_bytes(&f.to_server), buf_size(&f.to_server)), 0);
    exchange(&f, 4096);
    assert_int_equal(tls_link_send(f.client, "hello", 5, &f.to_server), 0);
    assert_int_equal(buf_append(&recorded, buf_bytes(&f.to_server), buf_size(&f.to_server)), 0);

    assert_int_equal(tls_link_create(&victim, f.server_context, NULL), 0);
    assert_int_equal(tls_link_receive(victim, buf_bytes(&recorded), buf_size(&recorded), &plain, &out),
                     -EPROTO);
    assert_false(tls_link_is_established(victim));
    assert_int_equal(buf_size(&plain), 0);
    tls_link_free(victim);
    disconnect(&f);
    buf_finish(&recorded);
    buf_finish(&plain);
    buf_finish(&out);
}

static void what_was_recorded_opens_nothing(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(purposes); i++)
        replay_recorded(purposes[i]);
}

/* A record that is repeated, comes back to its sender, or comes on another connection with the same key. */
static void a_record_is_good_for_one_place(void **state)
{
    for (int kind = 0; kind < 3; kind++) {
        struct fixture f, other;
        struct buf again = {0};

        connect_for(&f, KEY_RELAY);
        connect_for(&other, KEY_RELAY);
        exchange(&f, 4096);
        exchange(&other, 4096);
        assert_int_equal(tls_link_send(f.client, "hello", 5, &f.to_server), 0);
        assert_int_equal(buf_append(&again, buf_bytes(&f.to_server), buf_size(&f.to_server)), 0);
        exchange(&f, 4096);
        assert_int_equal(buf_size(&f.at_server), 5);
        struct tls_link *victim = kind == 0 ? f.server : kind == 1 ? f.client : other.server;
        buf_reset(&f.at_server);
        assert_int_equal(deliver(victim, &again, 4096, &f.at_server, &f.to_client), -EPROTO);
        assert_non_null(strstr(tls_link_error(victim), "a record was changed on the way"));
        assert_int_equal(buf_size(&f.at_server), 0);
        assert_int_equal(tls_link_send(victim, "x", 1, &f.to_client), -EPROTO);
        disconnect(&f);
        disconnect(&other);
        buf_finish(&again);
    }
}

/* OpenSSL takes records without data for ever, and replies to some of them. */
static void nothing_of_tls_follows_sealed_records(void **state)
{
    static const uint8_t head[] = {0x17, 3, 3, 0, 40};
    uint8_t record[200] = {0};
    struct fixture f;

    memcpy(record, head, sizeof(head));
    connect_for(&f, KEY_RELAY);
    exchange(&f, 4096);
    assert_int_equal(tls_link_receive(f.server, record, sizeof(record), &f.at_server, &f.to_client), -EPROTO);
    assert_non_null(strstr(tls_link_error(f.server), "it sends records of TLS"));
    assert_int_equal(buf_size(&f.to_client), 0);
    disconnect(&f);
}

/* A record that is lost with its memory must not be followed by others: the peer would take them for the next ones. */
static void nothing_follows_a_record_without_memory(void **state)
{
    static uint8_t bytes[150000];

    for (size_t k = 1;; k++) {
        struct fixture f;

        connect_for(&f, KEY_RELAY);
        exchange(&f, 4096);
        failing_alloc_arm(k);
        int r = tls_link_send(f.client, bytes, sizeof(bytes), &f.to_server);
        bool has_failed = failing_alloc_fired();
        failing_alloc_arm(0);
        assert_int_equal(r, has_failed ? -ENOMEM : 0);
        assert_int_equal(tls_link_send(f.client, "tail", 4, &f.to_server), has_failed ? -EPROTO : 0);
        assert_int_equal(deliver(f.server, &f.to_server, 4096, &f.at_server, &f.to_client), 0);
        assert_int_equal(buf_size(&f.at_server), has_failed ? 0 : sizeof(bytes) + 4);
        disconnect(&f);
        if (!has_failed)
            break;
    }
}

/* Every bit of a record in turn: never delivered. */
static void an_altered_record_ends_the_link(void **state)
{
    for (size_t bit = 0; bit < 2 * 8 * 25; bit++) {
        struct fixture f;
        size_t at = bit / 2;

        connect_for(&f, purposes[bit % 2]);
        exchange(&f, 4096);
        assert_int_equal(tls_link_send(f.client, "hello", 5, &f.to_server), 0);
        if (at / 8 >= buf_size(&f.to_server))
            fail();
        buf_bytes(&f.to_server)[at / 8] ^= (uint8_t)(1 << at % 8);
        exchange(&f, 4096);
        assert_int_equal(buf_size(&f.at_server), 0);
        disconnect(&f);
    }
}

static void an_older_version_is_refused(void **state)
{
    /* A ClientHello of TLS 1.2 without the extension that lists 1.3: version, random, no session, one suite (ECDHE with
     * AES), no compression, no extensions. */
    static const uint8_t head[] = {0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3};
    static const uint8_t tail[] = {0, 0, 2, 0xc0, 0x2f, 1, 0};
    uint8_t hello[sizeof(head) + 32 + sizeof(tail)] = {0};
    struct buf plain = {0}, out = {0};
    struct fixture f;

    memcpy(hello, head, sizeof(head));
    memcpy(hello + sizeof(head) + 32, tail, sizeof(tail));
    connect_with(&f, secret, "alpha");
    assert_int_equal(tls_link_receive(f.server, hello, sizeof(hello), &plain, &out), -EPROTO);
    assert_non_null(strstr(tls_link_error(f.server), "unsupported protocol"));
    buf_finish(&plain);
    buf_finish(&out);
    disconnect(&f);
}

/* A record of two bytes, the head of another message, and a ClientHello of 8 KiB. */
static void a_first_record_without_a_short_client_hello_is_refused(void **state)
{
    static const uint8_t starts[][8] = {
        {0x16, 3, 1, 0, 2, 1, 0, 0x16}, {0x16, 3, 1, 0, 45, 2, 1, 0}, {0x16, 3, 1, 0, 45, 1, 0, 0x20}};

    for (size_t i = 0; i < ARRAY_SIZE(starts); i++) {
        struct buf plain = {0}, out = {0};
        struct fixture f;

        connect_with(&f, secret, "alpha");
        assert_int_equal(tls_link_receive(f.server, starts[i], sizeof(starts[i]), &plain, &out), -EPROTO);
        assert_string_equal(tls_link_error(f.server),
                            "TLS failed (the first record has no ClientHello of at most 8192 bytes)");
        buf_finish(&plain);
        buf_finish(&out);
        disconnect(&f);
    }
}

static void an_end_differs_from_a_cut(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(purposes); i++) {
        struct fixture f;

        connect_for(&f, purposes[i]);
        exchange(&f, 4096);
        assert_false(tls_link_is_finished(f.server));
        assert_int_equal(tls_link_finish(f.client, &f.to_server), 0);
        exchange(&f, 1);
        assert_true(tls_link_is_finished(f.server));
        disconnect(&f);
    }
}

static void nothing_is_sent_before_the_proof(void **state)
{
    struct buf out = {0};
    struct fixture f;

    connect_with(&f, secret, "alpha");
    assert_int_equal(tls_link_send(f.client, "hello", 5, &out), -EPROTO);
    assert_int_equal(buf_size(&out), 0);
    disconnect(&f);
}

static void keys_differ_by_secret_purpose_and_job(void **state)
{
    static const struct {
        const char *secret;
        enum key_purpose purpose;
        const char *job;
    } rows[] = {
        {"0123456789abcdef", KEY_AGENT, "a"}, {"0123456789abcdef", KEY_WORKER, "a"},
        {"0123456789abcdef", KEY_STORE, "a"}, {"0123456789abcdef", KEY_AGENT, "b"},
        {"0123456789abcdef", KEY_AGENT, ""},  {"0123456789abcdeg", KEY_AGENT, "a"},
    };
    struct secret_key keys[ARRAY_SIZE(rows)];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        derive(&keys[i], rows[i].secret, rows[i].purpose, rows[i].job);
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(keys[i].bytes, keys[j].bytes, KEY_SIZE);
    }
}

/* By Python's hmac: hmac(hmac(salt, secret), b"agent\0job\1"), SHA-256. */
static void a_key_is_hkdf(void **state)
{
    static const uint8_t expected[KEY_SIZE] = {
        0xd0, 0xbe, 0x5b, 0x27, 0x2d, 0x8d, 0xd8, 0xfe, 0x6a, 0xef, 0xcc, 0x2f, 0x0b, 0xda, 0x25, 0xa6,
        0x70, 0x88, 0x6e, 0x5b, 0x8c, 0x52, 0x5b, 0xfd, 0x79, 0x1d, 0xab, 0xcf, 0xfd, 0x70, 0x0c, 0x66};
    struct secret_key key;

    derive(&key, "0123456789abcdef", KEY_AGENT, "job");
    assert_memory_equal(key.bytes, expected, KEY_SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_in_slices_of_any_size),
        cmocka_unit_test(text_right_behind_the_handshake),
        cmocka_unit_test(much_at_once),
        cmocka_unit_test(a_peer_without_the_key_is_refused),
        cmocka_unit_test(what_was_recorded_opens_nothing),
        cmocka_unit_test(a_record_is_good_for_one_place),
        cmocka_unit_test(nothing_of_tls_follows_sealed_records),
        cmocka_unit_test(nothing_follows_a_record_without_memory),
        cmocka_unit_test(an_altered_record_ends_the_link),
        cmocka_unit_test(an_older_version_is_refused),
        cmocka_unit_test(a_first_record_without_a_short_client_hello_is_refused),
        cmocka_unit_test(an_end_differs_from_a_cut),
        cmocka_unit_test(nothing_is_sent_before_the_proof),
        cmocka_unit_test(keys_differ_by_secret_purpose_and_job),
        cmocka_unit_test(a_key_is_hkdf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
