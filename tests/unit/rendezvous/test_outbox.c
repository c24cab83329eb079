/*
 * The outbox: whatever is put in comes out in the same order, however it is sent, and large values are
 * referred to and let go.
 */

#include <stdlib.h>
#include <string.h>

#include "rendezvous/store/blob.h"
#include "rendezvous/store/outbox.h"

#include "tests/support/c/cmocka_fixed.h"

static struct blob *make_blob(struct blob_account *account, size_t size, uint8_t fill)
{
    struct blob *b = blob_create(account, size);

    assert_non_null(b);
    memset(b->data, fill, size);
    b->size = (uint32_t)size;
    b->total = size;
    return b;
}

/* Sends as a socket that takes at most n bytes at a time would; the iovec list may have max entries. */
static size_t drain(struct outbox *o, uint8_t *to, size_t n, int max)
{
    size_t sent = 0;

    while (outbox_size(o) > 0) {
        struct iovec iov[8];
        int n_iov = outbox_iov(o, iov, max);
        size_t round = 0;

        assert_true(n_iov > 0 && n_iov <= max);
        for (int i = 0; i < n_iov; i++) {
            size_t take = iov[i].iov_len < n - round ? iov[i].iov_len : n - round;

            assert_true(iov[i].iov_len > 0);
            memcpy(to + sent + round, iov[i].iov_base, take);
            round += take;
        }
        outbox_consume(o, round);
        sent += round;
    }
    return sent;
}

static const size_t sizes[] = {0, 1, OUTBOX_COPY_MAX, OUTBOX_COPY_MAX + 1, 5, 100000, 100001, 0, 3};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]), ALL_MAX = 400000 };

static size_t expected_bytes(uint8_t *to)
{
    size_t n = 0;

    for (size_t i = 0; i < N_SIZES; i++) {
        for (int j = 0; j < 8; j++)
            to[n++] = (uint8_t)(sizes[i] >> (8 * j));
        memset(to + n, (int)i, sizes[i]);
        n += sizes[i];
    }
    return n;
}

static void check_order(size_t chunk, int max)
{
    uint8_t *expected = malloc(ALL_MAX), *got = malloc(ALL_MAX);
    struct blob_account account = {0};
    struct outbox o = {0};
    size_t n = expected_bytes(expected);

    for (size_t i = 0; i < N_SIZES; i++) {
        struct blob *b = make_blob(&account, sizes[i], (uint8_t)i);

        assert_int_equal(outbox_put_blob(&o, b), 0);
        blob_unref(b); /* the outbox keeps what it needs */
    }
    assert_int_equal(outbox_size(&o), n);
    assert_int_equal(drain(&o, got, chunk, max), n);
    assert_memory_equal(got, expected, n);
    assert_int_equal(account.bytes, 0);
    outbox_finish(&o);
    free(expected);
    free(got);
}

static void test_order(void **state)
{
    for (int max = 1; max <= 8; max++) {
        check_order(1000000, max);
        check_order(4096, max);
        check_order(7, max);
    }
}

/* A client that keeps reading a little, while more is put in, needs no more room than what waits. */
static void test_room_is_reused(void **state)
{
    struct blob_account account = {0};
    struct blob *b = make_blob(&account, OUTBOX_COPY_MAX + 1, 9);
    struct outbox o = {0};

    assert_int_equal(outbox_put_blob(&o, b), 0);
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(outbox_put_blob(&o, b), 0);
        outbox_consume(&o, sizeof(uint64_t) + b->size);
    }
    assert_true(o.refs_capacity <= 8);
    assert_true(o.bytes.capacity <= 1024);
    outbox_finish(&o);
    assert_int_equal(b->refs, 1);
    blob_unref(b);
    assert_int_equal(account.bytes, 0);
}

static void test_finish_lets_go(void **state)
{
    struct blob_account account = {0};
    struct blob *b = make_blob(&account, 100000, 1);
    struct outbox o = {0};

    assert_int_equal(outbox_put_blob(&o, b), 0);
    assert_int_equal(b->refs, 2);
    outbox_consume(&o, 50);
    outbox_finish(&o);
    assert_int_equal(b->refs, 1);
    blob_unref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_room_is_reused),
        cmocka_unit_test(test_finish_lets_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
