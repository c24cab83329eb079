/*
 * Base64: the vectors of RFC 4648, all lengths there and back, and what is refused.
 */

#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_vectors(void **state)
{
    static const char *const texts[] = {
        "",     "",         "f",     "Zg==",     "fo",     "Zm8=",     "foo",          "Zm9v",
        "foob", "Zm9vYg==", "fooba", "Zm9vYmE=", "foobar", "Zm9vYmFy", "\xff\xfe\xfd", "//79"};
    char out[64];

    for (size_t i = 0; i < ARRAY_SIZE(texts); i += 2) {
        base64_encode(texts[i], strlen(texts[i]), out);
        assert_string_equal(out, texts[i + 1]);
        assert_int_equal(strlen(out), base64_size(strlen(texts[i])));
    }
}

static void test_there_and_back(void **state)
{
    uint8_t bytes[300];
    char text[404];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 167 + 13);
    for (size_t n = 0; n <= sizeof(bytes); n++) {
        struct buf out = {0};

        base64_encode(bytes, n, text);
        assert_true(base64_decode(text, &out));
        assert_int_equal(buf_size(&out), n);
        assert_true(n == 0 || memcmp(buf_bytes(&out), bytes, n) == 0);
        buf_finish(&out);
    }
}

static void test_refused(void **state)
{
    static const char *const texts[] = {"Z",    "Zg",       "Zg=",      "Zm9",    "====",
                                        "Z===", "Zg==Zg==", "Zm8=Zm8=", "Zm9v\n", "Zm-v",
                                        "Zm_v", "Zh==",     "Zm9=",     "Zm9v ",  "\x80\x80\x80\x80",
                                        "Zg=v", "=g=="};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct buf out = {0};

        if (base64_decode(texts[i], &out))
            fail_msg("\"%s\" was decoded", texts[i]);
        buf_finish(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
