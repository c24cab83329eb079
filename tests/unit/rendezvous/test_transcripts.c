/*
 * Every recorded conversation with PyTorch's server, byte for byte, against the store core.
 *
 * Left out: what the recordings' README calls defects of the reference, and the legacy server. The order
 * of keys in a LIST_KEYS reply is free.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "tests/support/c/store_harness.h"
#include "tests/support/c/transcript.h"

#include "tests/support/c/cmocka_fixed.h"

static const char *const defects[] = {
    "06b-",               /* COMPARE_SET that stores nothing releases waiters */
    "15b-",               /* stale waiters of queues */
    "err-no-validate",    /* serves who never validated */
    "err-validate-split", /* closes when VALIDATE comes in two segments */
    "err-bad-magic",      /* closes only when more arrives */
    "legacy-",
};

static bool is_defect(const char *path)
{
    const char *name = strrchr(path, '/') + 1;

    for (size_t i = 0; i < ARRAY_SIZE(defects); i++) {
        if (strncmp(name, defects[i], strlen(defects[i])) == 0)
            return true;
    }
    return false;
}

static int compare_spans(const void *a, const void *b)
{
    const struct wire_span *x = a, *y = b;
    size_t n = x->size < y->size ? x->size : y->size;
    int r = n > 0 ? memcmp(x->data, y->data, n) : 0;

    return r ? r : (x->size > y->size) - (x->size < y->size);
}

/* Is the reply to LIST_KEYS the same set of keys? */
static bool same_keys(const uint8_t *a, const uint8_t *b, size_t size)
{
    struct wire_span lists[2] = {wire_span(a + 8, size - 8), wire_span(b + 8, size - 8)};
    struct wire_span keys[2][64];
    size_t n[2] = {0, 0};

    for (int i = 0; i < 2; i++) {
        while (n[i] < 64 && wire_next_key(&lists[i], &keys[i][n[i]]))
            n[i]++;
        qsort(keys[i], n[i], sizeof(keys[i][0]), compare_spans);
    }
    if (n[0] != n[1] || lists[0].size > 0 || lists[1].size > 0)
        return false;
    for (size_t i = 0; i < n[0]; i++) {
        if (compare_spans(&keys[0][i], &keys[1][i]) != 0)
            return false;
    }
    return memcmp(a, b, 8) == 0;
}

static void expect_bytes(struct harness *h, const char *path, const struct transcript_event *e, bool is_list)
{
    _cleanup_free_ uint8_t *got = malloc(e->size);
    size_t n;

    assert_non_null(got);
    n = harness_take(h, (unsigned)e->connection, got, e->size);
    if (n == e->size && (is_list ? same_keys(got, e->data, n) : memcmp(got, e->data, n) == 0))
        return;
    fail_msg("%s:%d: the reply differs (%zu of %zu bytes)", path, e->line, n, e->size);
}

static void play_event(struct harness *h, const char *path, const struct transcript_event *e, bool *is_list)
{
    unsigned c = (unsigned)e->connection;

    switch (e->kind) {
    case TRANSCRIPT_CLIENT_BYTES:
        *is_list = e->size == 1 && e->data[0] == WIRE_OP_LIST_KEYS;
        harness_feed(h, c, e->data, e->size);
        break;
    case TRANSCRIPT_SERVER_BYTES:
        expect_bytes(h, path, e, *is_list);
        break;
    case TRANSCRIPT_CLIENT_CLOSE:
        harness_close(h, c);
        h->clients[c].closed = true;
        break;
    case TRANSCRIPT_SERVER_CLOSE:
        if (!h->clients[c].closed)
            fail_msg("%s:%d: the connection should be closed here", path, e->line);
        break;
    case TRANSCRIPT_KIND_COUNT:
        fail();
    }
}

static int play(void *data, const char *path)
{
    unsigned *n_played = data;
    struct transcript t;
    struct harness h;
    bool is_list[HARNESS_CLIENTS_MAX] = {false};

    if (is_defect(path))
        return 0;
    assert_int_equal(transcript_read(path, &t, NULL), 0);
    assert_true(t.n_connections <= HARNESS_CLIENTS_MAX);
    assert_int_equal(harness_init(&h, NULL), 0);
    for (size_t i = 0; i < t.n_events; i++)
        play_event(&h, path, &t.events[i], &is_list[t.events[i].connection]);
    for (int i = 0; i < t.n_connections; i++) {
        if (harness_pending(&h, (unsigned)i) > 0)
            fail_msg("%s: more was answered on connection %d than recorded", path, i + 1);
    }
    harness_finish(&h);
    transcript_finish(&t);
    (*n_played)++;
    return 0;
}

static void test_all(void **state)
{
    unsigned n_played = 0;

    assert_int_equal(transcript_for_each(transcript_folder(), "", play, &n_played), 0);
    print_message("%u conversations\n", n_played);
    assert_true(n_played >= 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
