/* How much memory a buffer takes. */

#include "base/buf.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_one_large_reservation_takes_no_more(void **state)
{
    enum { LARGE = 9 << 20 };
    struct buf b = {0};

    assert_non_null(buf_reserve(&b, LARGE));
    assert_int_equal(b.capacity, LARGE);
    buf_finish(&b);
}

static void test_small_appends_double(void **state)
{
    struct buf b = {0};
    size_t last = 0;
    int n_growths = 0;

    for (int i = 0; i < 1 << 20; i++) {
        assert_int_equal(buf_append(&b, "x", 1), 0);
        n_growths += b.capacity != last;
        last = b.capacity;
    }
    assert_in_range(n_growths, 2, 20);
    assert_true(b.capacity <= 2 << 20);
    buf_finish(&b);
}

static void test_reservations_that_no_memory_has(void **state)
{
    struct buf b = {0};

    assert_int_equal(buf_append(&b, "xyz", 3), 0);
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_null(buf_reserve(&b, SIZE_MAX - 2));
    assert_int_equal(buf_size(&b), 3);
    buf_finish(&b);
}

static void test_small_memory_is_kept(void **state)
{
    struct buf b = {0};

    buf_clear(&b, 0);
    assert_int_equal(buf_append(&b, "xyz", 3), 0);
    const uint8_t *data = b.data;
    buf_consume(&b, 1);
    buf_clear(&b, b.capacity);
    assert_int_equal(buf_size(&b), 0);
    assert_ptr_equal(buf_reserve(&b, b.capacity), data);
    buf_clear(&b, b.capacity - 1);
    assert_null(b.data);
    assert_int_equal(b.capacity, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_large_reservation_takes_no_more),
        cmocka_unit_test(test_small_appends_double),
        cmocka_unit_test(test_small_memory_is_kept),
        cmocka_unit_test(test_reservations_that_no_memory_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
