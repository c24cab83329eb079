/*
 * Sealed records between ranks of different hosts, without a network: the bytes themselves, and what a process between the hosts
 * may do to them.
 *
 * The vectors were made with Python's hmac and hashlib and with the package cryptography, from the texts of
 * record_seal_openssl.h and net_seal_openssl.h.
 */

#include "worker-runtime/net/net_seal_openssl.h"
#include "worker-runtime/net/sealed_stream_openssl.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/c/cmocka_fixed.h"

static const enum seal_cipher ciphers[] = {SEAL_CIPHER_AES, SEAL_CIPHER_CHACHA};

/* ---- keys ---- */

/* What a secret is made of, and which byte of it differs; -1: none. */
enum {
    KEY_AT = 0,
    HELLO_AT = KEY_SIZE,
    ANSWER_AT = HELLO_AT + NET_HELLO_SIZE,
    SECRET_INPUTS = ANSWER_AT + NET_ANSWER_HEAD
};

static struct secret_key secret_of(enum net_role sender, int changed)
{
    uint8_t in[SECRET_INPUTS];
    struct secret_key of_generation, ret;

    for (int i = 0; i < SECRET_INPUTS; i++)
        in[i] = (uint8_t)(i < HELLO_AT ? i : i < ANSWER_AT ? i - HELLO_AT + 1 : i - ANSWER_AT + 101);
    if (changed >= 0)
        in[changed] ^= 1;
    memcpy(of_generation.bytes, in, KEY_SIZE);
    assert_true(net_seal_secret(&of_generation, in + HELLO_AT, in + ANSWER_AT, sender, &ret));
    return ret;
}

static struct record_seal *seal_of(enum seal_cipher cipher, enum net_role sender, int changed, bool encrypts,
                                   uint32_t key_records)
{
    const struct secret_key secret = secret_of(sender, changed);
    struct record_seal *seal = NULL;

    assert_int_equal(record_seal_new(cipher, &secret, encrypts, key_records, &seal), 0);
    return seal;
}

/* The usual end, of the connecting rank's records. */
static struct record_seal *usual(enum seal_cipher cipher, bool encrypts)
{
    return seal_of(cipher, NET_ROLE_CONNECTS, -1, encrypts, SEAL_KEY_RECORDS);
}

static void seal(struct record_seal *s, const char *text, uint8_t *record)
{
    const struct iovec part = {(void *)(uintptr_t)text, strlen(text)};

    assert_int_equal(record_seal_close(s, &part, part.iov_len, record), 0);
}

static void hex_of(const uint8_t *bytes, size_t n, char *ret)
{
    for (size_t i = 0; i < n; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

enum { VECTOR_RECORDS = 4, VECTOR_KEY_RECORDS = 3, VECTOR_SIZE = 8 + SEAL_EXTRA };

static const char *const vectors[][VECTOR_RECORDS] = {
    {"080000002d6d3fb1101bfd6fbcad7cc4b783f0ddba501b71fd17e761",
     "0800000025137aaa83e28c080650ea9873f669219744fd6939ecc7e9",
     "080000002a93b3f3d3d93a16ea11a02f2d7257a2ab99431545dc6183",
     "08000000df6f003bf5fa7ef2d485addf2fe6ab67147226b52b037337"}, /* of the second key */
    {"08000000ed191ea2aa8c1e857b159fd5510b8b9855db4b9a44eb45ad",
     "08000000b964d38e61024313c05d842695977dab37b86e21c0c70bd0",
     "08000000b9b3d26326d193e48badb30c0e3bd7b098694b6fc00286b4",
     "08000000065d3f7fe8deb584011efac00f6abea034242bf3f473c63e"},
};

static void records_are_those_of_the_document(void **state)
{
    const struct secret_key secret = secret_of(NET_ROLE_CONNECTS, -1);
    char hex[2 * KEY_SIZE + 1]; /* of the longest, the secret */

    hex_of(secret.bytes, sizeof(secret), hex);
    assert_string_equal(hex, "3255aec2f6096938614af31add812cc7a538883fc667afad02c7935a06a9ee37");
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        struct record_seal *out = seal_of(ciphers[c], NET_ROLE_CONNECTS, -1, true, VECTOR_KEY_RECORDS);
        struct record_seal *in = seal_of(ciphers[c], NET_ROLE_CONNECTS, -1, false, VECTOR_KEY_RECORDS);

        for (int i = 0; i < VECTOR_RECORDS; i++) {
            uint8_t record[VECTOR_SIZE], data[8];

            seal(out, "gradient", record);
            hex_of(record, sizeof(record), hex);
            assert_string_equal(hex, vectors[c][i]);
            assert_int_equal(record_seal_size(record), 8);
            assert_int_equal(record_seal_open(in, record, 8, data), 0);
            assert_memory_equal(data, "gradient", 8);
        }
        record_seal_free(out);
        record_seal_free(in);
    }
}

/* A record of a connection whose hello or answer differs in a byte (a rank, the group, the link, the generation, the cipher, a
 * nonce), of another key, or of the other direction. */
static void records_of_other_connections_are_refused(void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        uint8_t record[VECTOR_SIZE], data[8];
        struct record_seal *out = usual(ciphers[c], true);

        seal(out, "gradient", record);
        for (int i = -1; i < SECRET_INPUTS; i++) {
            struct record_seal *in =
                seal_of(ciphers[c], i < 0 ? NET_ROLE_ACCEPTS : NET_ROLE_CONNECTS, i, false, SEAL_KEY_RECORDS);

            if (record_seal_open(in, record, 8, data) != -EBADMSG)
                fail_msg("byte %d does not matter", i);
            record_seal_free(in);
        }
        struct record_seal *other_cipher = usual(ciphers[1 - c], false);
        assert_int_equal(record_seal_open(other_cipher, record, 8, data), -EBADMSG);
        record_seal_free(other_cipher);
        record_seal_free(out);
    }
}

/* ---- what may be done to the stream ---- */

enum { SENT = 3, STREAM_MAX = 4 * 64 };

static const char *const sent[SENT] = {"the first one", "a second", "and the third one"};

struct stream {
    uint8_t bytes[STREAM_MAX];
    size_t n, begins[SENT + 1]; /* of the records */
};

static struct stream record_stream(enum seal_cipher cipher)
{
    struct record_seal *out = usual(cipher, true);
    struct stream s = {0};

    for (int i = 0; i < SENT; i++) {
        seal(out, sent[i], s.bytes + s.n);
        s.n += strlen(sent[i]) + SEAL_EXTRA;
        s.begins[i + 1] = s.n;
    }
    record_seal_free(out);
    return s;
}

/* Gives the bytes to a receiver in pieces; returns the bytes of data that it took. -EBADMSG: and then an error. */
static ssize_t receive_stream(enum seal_cipher cipher, const uint8_t *bytes, size_t n, size_t piece,
                              char *ret, size_t *ret_n)
{
    struct sealed_in in = {.seal = usual(cipher, false)};
    ssize_t r = 0;

    *ret_n = 0;
    for (size_t done = 0; r >= 0 && (done < n || sealed_in_holds(&in));) {
        uint8_t *room;
        ssize_t wanted = sealed_in_room(&in, &room);

        assert_true(wanted >= 0);
        if (wanted > 0) {
            size_t now = (size_t)wanted < n - done ? (size_t)wanted : n - done;

            now = now < piece ? now : piece;
            memcpy(room, bytes + done, now);
            sealed_in_came(&in, now);
            done += now;
        }
        r = sealed_in_take(&in, ret + *ret_n, 5); /* less than any record has */
        *ret_n += r > 0 ? (size_t)r : 0;
        assert_true(*ret_n <= STREAM_MAX);
    }
    if (r < 0) { /* for good */
        uint8_t *room;

        assert_int_equal(sealed_in_take(&in, ret, 1), r);
        assert_int_equal(sealed_in_room(&in, &room), r);
        assert_true(sealed_in_holds(&in));
    }
    sealed_in_finish(&in);
    return r < 0 ? r : 0;
}

static const char all_sent[] = "the first onea secondand the third one";

static void pieces_of_any_size_come_together(void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        struct stream s = record_stream(ciphers[c]);

        for (size_t piece = 1; piece <= s.n; piece++) {
            char came[STREAM_MAX];
            size_t n;

            assert_int_equal(receive_stream(ciphers[c], s.bytes, s.n, piece, came, &n), 0);
            assert_int_equal(n, sizeof(all_sent) - 1);
            assert_memory_equal(came, all_sent, n);
        }
    }
}

/* Nothing of a changed record is taken, and nothing behind it. A larger size waits for bytes that do not come. */
static void each_changed_bit_is_found(void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        const struct stream s = record_stream(ciphers[c]);

        for (size_t i = 0; i < 8 * s.n; i++) {
            struct stream changed = s;
            size_t n, before = i / 8 < s.begins[1] ? 0 : i / 8 < s.begins[2] ? 1 : 2, good = 0;
            char came[STREAM_MAX];

            for (size_t k = 0; k < before; k++)
                good += strlen(sent[k]);
            changed.bytes[i / 8] ^= (uint8_t)(1 << i % 8);
            ssize_t r = receive_stream(ciphers[c], changed.bytes, s.n, s.n, came, &n);
            bool larger = record_seal_size(changed.bytes + s.begins[before]) > strlen(sent[before]);

            if (n != good || (r != -EBADMSG && !larger))
                fail_msg("bit %zu is changed, and %zu bytes are taken (%zd)", i, n, r);
        }
    }
}

static void receive_order(enum seal_cipher cipher, const int *order, int n_records, size_t expected)
{
    struct stream s = record_stream(cipher), other = {0};
    char came[STREAM_MAX];
    size_t n;

    for (int i = 0; i < n_records; i++) {
        size_t size = s.begins[order[i] + 1] - s.begins[order[i]];

        memcpy(other.bytes + other.n, s.bytes + s.begins[order[i]], size);
        other.n += size;
    }
    assert_int_equal(receive_stream(cipher, other.bytes, other.n, other.n, came, &n), -EBADMSG);
    assert_int_equal(n, expected);
    assert_memory_equal(came, all_sent, n);
}

static void records_count_in_their_order_alone(void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        receive_order(ciphers[c], (const int[]){1, 0, 2}, 3, 0);            /* exchanged */
        receive_order(ciphers[c], (const int[]){0, 2}, 2, strlen(sent[0])); /* left out */
        receive_order(ciphers[c], (const int[]){0, 0}, 2, strlen(sent[0])); /* twice */
        receive_order(ciphers[c], (const int[]){0, 1, 0}, 3,
                      strlen(sent[0]) + strlen(sent[1])); /* again later */
    }
}

static void a_cut_record_is_not_taken(void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        struct stream s = record_stream(ciphers[c]);

        for (size_t end = 0; end < s.n; end++) {
            char came[STREAM_MAX];
            size_t n, whole = end < s.begins[1] ? 0 : strlen(sent[0]);

            whole += end < s.begins[2] ? 0 : strlen(sent[1]);
            assert_int_equal(receive_stream(ciphers[c], s.bytes, end, end + 1, came, &n), 0);
            assert_int_equal(n, whole);
        }
    }
}

/* ---- long ones ---- */

/* What is sent in pieces that a socket takes, and received in pieces that a collective wants. */
static void play_long(enum seal_cipher cipher, size_t n, size_t takes, size_t wants)
{
    struct sealed_out out = {.seal = usual(cipher, true)};
    struct sealed_in in = {.seal = usual(cipher, false)};
    uint8_t *data = malloc(n), *came = malloc(n), *pipe = malloc(n + (n / SEAL_DATA_MAX + 2) * SEAL_EXTRA);
    size_t n_sent = 0, n_pipe = 0, n_read = 0, n_came = 0;

    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    while (n_sent < n) {
        const struct iovec parts[] = {{data + n_sent, (n - n_sent) / 3},
                                      {data + n_sent + (n - n_sent) / 3, n}};
        size_t rest;

        if (out.n_data == 0)
            assert_int_equal(sealed_out_fill(&out, parts, n - n_sent), 0);
        const uint8_t *bytes = sealed_out_rest(&out, &rest);
        rest = rest < takes ? rest : takes;
        memcpy(pipe + n_pipe, bytes, rest);
        n_pipe += rest;
        n_sent += sealed_out_sent(&out, rest);
    }
    while (n_came < n) {
        uint8_t *room;
        ssize_t wanted = sealed_in_room(&in, &room), got;

        assert_true(wanted >= 0);
        if (wanted > 0) {
            size_t now = (size_t)wanted < n_pipe - n_read ? (size_t)wanted : n_pipe - n_read;

            memcpy(room, pipe + n_read, now);
            sealed_in_came(&in, now);
            n_read += now;
        }
        got = sealed_in_take(&in, came + n_came, n - n_came < wants ? n - n_came : wants);
        assert_true(got >= 0);
        n_came += (size_t)got;
    }
    assert_int_equal(n_read, n_pipe);
    assert_false(sealed_in_holds(&in));
    assert_memory_equal(came, data, n);
    free(data);
    free(came);
    free(pipe);
    sealed_out_finish(&out);
    sealed_in_finish(&in);
}

static void long_data_takes_many_records(void **state)
{
    for (size_t c = 0; c < ARRAY_SIZE(ciphers); c++) {
        play_long(ciphers[c], 1, 1, 1);
        play_long(ciphers[c], SEAL_DATA_MAX, SEAL_RECORD_MAX, SEAL_DATA_MAX);
        play_long(ciphers[c], SEAL_DATA_MAX + 1, 1000, SEAL_DATA_MAX - 1);
        play_long(ciphers[c], 10 * SEAL_DATA_MAX + 77, SEAL_RECORD_MAX, 256 * 1024);
        play_long(ciphers[c], 3 * SEAL_DATA_MAX, 4096, 100);
    }
}

static void sizes_are_bounded(void **state)
{
    static const uint8_t none[] = {0, 0, 0, 0}, most[] = {0, 0, 1, 0}, more[] = {1, 0, 1, 0},
                         all[] = {255, 255, 255, 255};
    struct sealed_in in = {.seal = usual(SEAL_CIPHER_AES, false)};
    uint8_t *room;

    assert_int_equal(record_seal_size(none), 0);
    assert_int_equal(record_seal_size(most), SEAL_DATA_MAX);
    assert_int_equal(record_seal_size(more), 0);
    assert_int_equal(record_seal_size(all), 0);
    assert_true(sealed_in_room(&in, &room) >= SEAL_HEAD);
    memcpy(room, more, sizeof(more));
    sealed_in_came(&in, sizeof(more));
    assert_int_equal(sealed_in_take(&in, &(uint8_t){0}, 1), -EBADMSG); /* at once: nothing is waited for */
    sealed_in_finish(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_those_of_the_document),
        cmocka_unit_test(records_of_other_connections_are_refused),
        cmocka_unit_test(pieces_of_any_size_come_together),
        cmocka_unit_test(each_changed_bit_is_found),
        cmocka_unit_test(records_count_in_their_order_alone),
        cmocka_unit_test(a_cut_record_is_not_taken),
        cmocka_unit_test(long_data_takes_many_records),
        cmocka_unit_test(sizes_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
