/* The worker notice record: byte for byte, as another implementation would read it. */

#include <string.h>

#include "proto/worker_notice.h"

#include "tests/support/c/cmocka_fixed.h"

static const uint8_t record[NOTICE_SIZE] = {
    20, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 3, 0, 0, 0, 0xF7, 0xFF, 0xFF, 0xFF,
};

static void test_encode(void **state)
{
    const struct worker_notice n = {.kind = NOTICE_PEER_FAILED, .generation = 258, .rank = 3, .detail = -9};
    uint8_t out[NOTICE_SIZE];

    worker_notice_encode(&n, out);
    assert_memory_equal(out, record, NOTICE_SIZE);
}

static void test_decode(void **state)
{
    uint8_t newer[NOTICE_SIZE + 4];
    struct worker_notice n;

    assert_true(worker_notice_decode(record, sizeof(record), &n));
    assert_int_equal(n.kind, NOTICE_PEER_FAILED);
    assert_int_equal(n.generation, 258);
    assert_int_equal(n.rank, 3);
    assert_int_equal(n.detail, -9);

    memcpy(newer, record, sizeof(record));
    memset(newer + NOTICE_SIZE, 0xAA, 4);
    newer[0] = sizeof(newer);
    assert_true(
        worker_notice_decode(newer, sizeof(newer), &n));       /* a newer crun's record, longer by a field */
    assert_true(worker_notice_decode(newer, NOTICE_SIZE, &n)); /* and as the socket cuts it */
}

static void test_refuses_short(void **state)
{
    uint8_t small[NOTICE_SIZE];
    struct worker_notice n;

    for (size_t size = 0; size < NOTICE_SIZE; size++)
        assert_false(worker_notice_decode(record, size, &n));
    memcpy(small, record, sizeof(record));
    small[0] = NOTICE_SIZE - 1;
    assert_false(worker_notice_decode(small, sizeof(small), &n));
}

static void test_place(void **state)
{
    const struct worker_notice notice = {NOTICE_GENERATION, 7, -1, 29500};
    const struct worker_notice_place place = {3, 4, 1, 2, 5, 6, 8, "10.0.0.1"};
    uint8_t out[NOTICE_PLACE_SIZE];
    struct worker_notice n;

    worker_notice_encode_place(&notice, &place, out);
    assert_true(worker_notice_decode(out, NOTICE_SIZE, &n)); /* as a reader of the short record gets it */
    assert_memory_equal(&n, &notice, sizeof(n));
    assert_int_equal(wire_load_u32(out), NOTICE_PLACE_SIZE);
    static const uint32_t fields[] = {3, 4, 1, 2, 5, 6, 8};
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(wire_load_u32(out + 20 + 4 * i), fields[i]);
    assert_string_equal((const char *)out + 48, "10.0.0.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_refuses_short),
        cmocka_unit_test(test_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
