/*
 * How nodes agree on a secret: a frame is the same in whatever slices it comes; a request counts for its user and job alone; a
 * reply counts for the request, the user and the job that it answers, and neither is taken for the other.
 */

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/key_exchange.h"

#include "tests/support/c/cmocka_fixed.h"

enum { USER = 1000, OTHER = 1001 };

static const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE] = {1, 2, 3};
static const uint8_t other_nonce[KEY_EXCHANGE_NONCE_SIZE] = {1, 2, 4};
static const uint8_t secret[KEY_EXCHANGE_SECRET_SIZE] = {9, 8, 7};

static void frames_come_in_any_slices(void **state)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    struct key_exchange_frame frame;
    size_t size;

    assert_int_equal(key_exchange_put(&bytes, KEY_EXCHANGE_CREDENTIAL, "MUNGE:abc:", 10), 0);
    for (size_t n = 0; n < buf_size(&bytes); n++)
        assert_int_equal(key_exchange_decode(buf_bytes(&bytes), n, &frame, &size), KEY_EXCHANGE_E_MORE);
    assert_int_equal(buf_append(&bytes, "more", 4), 0);
    assert_int_equal(key_exchange_decode(buf_bytes(&bytes), buf_size(&bytes), &frame, &size), 0);
    assert_int_equal(size, buf_size(&bytes) - 4);
    assert_int_equal(frame.code, KEY_EXCHANGE_CREDENTIAL);
    assert_int_equal(frame.credential_size, 10);
    assert_memory_equal(frame.credential, "MUNGE:abc:", 10);
}

static void every_refusal_has_a_sentence(void **state)
{
    for (int code = KEY_EXCHANGE_REFUSED; code < KEY_EXCHANGE_CODE_COUNT; code++) {
        _cleanup_(buf_finish) struct buf bytes = {0};
        struct key_exchange_frame frame;
        size_t size;

        assert_int_equal(key_exchange_put(&bytes, (enum key_exchange_code)code, NULL, 0), 0);
        assert_int_equal(key_exchange_decode(buf_bytes(&bytes), buf_size(&bytes), &frame, &size), 0);
        assert_int_equal(frame.code, code);
        assert_true(strlen(key_exchange_refusal(frame.code)) > 10);
    }
    assert_string_not_equal(key_exchange_refusal(KEY_EXCHANGE_REFUSED),
                            key_exchange_refusal(KEY_EXCHANGE_OTHER_JOB));
}

static void broken_frames_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } broken[] = {
        {"\x00", 1},
        {"\xc6"
         "crunkey2\n",
         10},
        {"\xc6"
         "crunkey1\n\x04\x00\x00",
         13}, /* an unknown code */
        {"\xc6"
         "crunkey1\n\x00\x00\x00",
         13}, /* no credential */
        {"\xc6"
         "crunkey1\n\x01\x01\x00",
         13}, /* a refusal with one */
        {"\xc6"
         "crunkey1\n\x00\x01\x10",
         13}, /* 4097 bytes */
        {"\xc6"
         "crunkey1\n\x00\x02\x00"
         "a\0",
         15}, /* a zero would cut it */
    };
    struct key_exchange_frame frame;
    char long_credential[KEY_EXCHANGE_CREDENTIAL_MAX + 1];
    _cleanup_(buf_finish) struct buf bytes = {0};
    size_t size;

    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
        assert_int_equal(key_exchange_decode((const uint8_t *)broken[i].bytes, broken[i].n, &frame, &size),
                         KEY_EXCHANGE_E_BAD);
    memset(long_credential, 'a', sizeof(long_credential));
    assert_true(key_exchange_put(&bytes, KEY_EXCHANGE_CREDENTIAL, long_credential, sizeof(long_credential)) <
                0);
    assert_int_equal(
        key_exchange_put(&bytes, KEY_EXCHANGE_CREDENTIAL, long_credential, KEY_EXCHANGE_CREDENTIAL_MAX), 0);
    assert_true(buf_size(&bytes) <= KEY_EXCHANGE_FRAME_MAX);
    assert_int_equal(key_exchange_decode(buf_bytes(&bytes), buf_size(&bytes), &frame, &size), 0);
}

static struct key_exchange_payload payload_of(const struct buf *bytes, uid_t uid)
{
    return (struct key_exchange_payload){.bytes = buf_bytes(bytes), .n = buf_size(bytes), .uid = uid};
}

static void requests_count_for_their_user_and_job(void **state)
{
    _cleanup_(buf_finish) struct buf request = {0}, reply = {0};
    uint8_t found[KEY_EXCHANGE_NONCE_SIZE];
    struct key_exchange_payload p;

    assert_int_equal(key_request_put(&request, nonce, "job-1"), 0);
    p = payload_of(&request, USER);
    assert_int_equal(key_request_check(&p, USER, "job-1", found), KEY_EXCHANGE_CREDENTIAL);
    assert_memory_equal(found, nonce, sizeof(nonce));
    assert_int_equal(key_request_check(&p, USER, "job-2", found), KEY_EXCHANGE_OTHER_JOB);
    assert_int_equal(key_request_check(&p, USER, "job-", found), KEY_EXCHANGE_OTHER_JOB);
    assert_int_equal(key_request_check(&p, USER, "job-11", found), KEY_EXCHANGE_OTHER_JOB);
    p.uid = OTHER;
    assert_int_equal(key_request_check(&p, USER, "job-1", found), KEY_EXCHANGE_REFUSED);
    p.uid = 0; /* root is another user, too */
    assert_int_equal(key_request_check(&p, USER, "job-1", found), KEY_EXCHANGE_REFUSED);
    assert_int_equal(key_reply_put(&reply, nonce, secret, "job-1"), 0);
    p = payload_of(&reply, USER);
    assert_int_equal(key_request_check(&p, USER, "job-1", found), KEY_EXCHANGE_REFUSED);
    for (size_t n = 0; n < buf_size(&request); n++) { /* without a byte of its job, or of more */
        p = (struct key_exchange_payload){.bytes = buf_bytes(&request), .n = n, .uid = USER};
        assert_int_not_equal(key_request_check(&p, USER, "job-1", found), KEY_EXCHANGE_CREDENTIAL);
    }
}

static void replies_count_for_their_request(void **state)
{
    _cleanup_(buf_finish) struct buf reply = {0}, request = {0};
    uint8_t found[KEY_EXCHANGE_SECRET_SIZE];
    struct key_exchange_payload p;

    assert_int_equal(key_reply_put(&reply, nonce, secret, "job-1"), 0);
    p = payload_of(&reply, USER);
    assert_null(key_reply_check(&p, USER, "job-1", nonce, found));
    assert_memory_equal(found, secret, sizeof(secret));
    assert_non_null(key_reply_check(&p, USER, "job-1", other_nonce, found));
    assert_non_null(key_reply_check(&p, USER, "job-2", nonce, found));
    assert_non_null(key_reply_check(&p, OTHER, "job-1", nonce, found));
    assert_int_equal(key_request_put(&request, nonce, "job-1 and thirty-two bytes more than that"), 0);
    p = payload_of(&request, USER);
    assert_non_null(key_reply_check(&p, USER, "job-1", nonce, found));
    for (size_t n = 0; n < buf_size(&reply); n++) {
        p = (struct key_exchange_payload){.bytes = buf_bytes(&reply), .n = n, .uid = USER};
        assert_non_null(key_reply_check(&p, USER, "job-1", nonce, found));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_in_any_slices),
        cmocka_unit_test(every_refusal_has_a_sentence),
        cmocka_unit_test(broken_frames_are_refused),
        cmocka_unit_test(requests_count_for_their_user_and_job),
        cmocka_unit_test(replies_count_for_their_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
