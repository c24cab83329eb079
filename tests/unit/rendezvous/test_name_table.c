/*
 * The table of names against an array of flags: random insertions and removals across many resizes.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rendezvous/store/store_entry.h"
#include "rendezvous/store/store_table.h"

#include "tests/support/c/cmocka_fixed.h"

enum { N_NAMES = 6000 };

static const uint8_t seed[SIPHASH_SEED_SIZE] = "names";
static struct store_entry *names[N_NAMES];
static bool present[N_NAMES];
static bool seen[N_NAMES];

static struct wire_span key_of(const struct store_entry *n)
{
    return wire_span(n->bytes, n->key_size);
}

static void make_names(const struct store_table *t)
{
    for (int i = 0; i < N_NAMES; i++) {
        char text[16];
        int n = snprintf(text, sizeof(text), "/%d", i);

        names[i] = calloc(1, sizeof(struct store_entry) + (size_t)n);
        assert_non_null(names[i]);
        names[i]->key_size = (uint32_t)n;
        memcpy(names[i]->bytes, text, (size_t)n);
        names[i]->hash = store_table_hash(t, key_of(names[i]));
        present[i] = false;
    }
}

static void free_names(void)
{
    for (int i = 0; i < N_NAMES; i++)
        free(names[i]);
}

static void toggle(struct store_table *t, int i)
{
    if (present[i])
        store_table_remove(t, names[i], names[i]->hash);
    else
        assert_int_equal(store_table_insert(t, names[i], names[i]->hash), 0);
    present[i] = !present[i];
}

static void check_all(const struct store_table *t)
{
    size_t cursor = 0, n = 0;
    struct store_entry *name;

    memset(seen, 0, sizeof(seen));
    while ((name = store_table_next(t, &cursor))) {
        char text[16] = {0};
        int i;

        memcpy(text, name->bytes + 1, name->key_size - 1);
        i = atoi(text);
        assert_true(present[i] && !seen[i]);
        seen[i] = true;
        n++;
    }
    assert_int_equal(n, t->used);
    for (int i = 0; i < N_NAMES; i++) {
        struct store_entry *found = store_table_find(t, key_of(names[i]), names[i]->hash);

        assert_ptr_equal(found, present[i] ? names[i] : NULL);
        assert_int_equal(seen[i], present[i]);
    }
}

/* Fills and empties again and again, to different depths, so that both resizes are met half done. */
static void test_random(void **state)
{
    struct store_table t;

    srandom(7);
    assert_int_equal(store_table_init(&t, seed), 0);
    make_names(&t);
    for (int round = 0; round < 60; round++) {
        int upto = 1 + (int)(random() % N_NAMES);
        bool fill = round % 2 == 0;

        for (int k = 0; k < 3 * upto; k++) {
            int i = (int)(random() % upto);

            if (present[i] != fill || random() % 8 == 0)
                toggle(&t, i);
        }
        check_all(&t);
    }
    store_table_finish(&t);
    free_names();
}

static void test_shrinks(void **state)
{
    struct store_table t;
    size_t largest;

    assert_int_equal(store_table_init(&t, seed), 0);
    make_names(&t);
    for (int i = 0; i < N_NAMES; i++)
        toggle(&t, i);
    largest = t.now.mask + 1;
    assert_true(largest <= 4 * N_NAMES);
    for (int i = 0; i < N_NAMES; i++)
        toggle(&t, i);
    /* Every change does a part of it. */
    for (size_t k = 0; k < largest; k++)
        toggle(&t, (int)(k / 2 % N_NAMES));
    assert_int_equal(t.used, 0);
    assert_int_equal(t.now.mask + 1, 64);
    check_all(&t);
    store_table_finish(&t);
    free_names();
}

/* ---- a large table ---- */

enum { N_LARGE = 240000, OLD_SLOTS = 1 << 18, STRIDE = sizeof(struct store_entry) + sizeof(uint64_t) };

static struct store_entry *large_name(char *all, size_t i)
{
    return (struct store_entry *)(all + i * STRIDE);
}

static void insert_large(struct store_table *t, char *all, uint64_t i)
{
    struct store_entry *name = large_name(all, i);

    name->key_size = sizeof(i);
    memcpy(name->bytes, &i, sizeof(i));
    name->hash = store_table_hash(t, key_of(name));
    assert_int_equal(store_table_insert(t, name, name->hash), 0);
}

static size_t resident_bytes(void *at, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), resident = 0;
    unsigned char *pages = calloc(n / page, 1);

    assert_true(pages && mincore(at, n, pages) == 0);
    for (size_t i = 0; i < n / page; i++)
        resident += (pages[i] & 1) * page;
    free(pages);
    return resident;
}

static void expect_large(const struct store_table *t, char *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_ptr_equal(store_table_find(t, key_of(large_name(all, i)), large_name(all, i)->hash),
                         large_name(all, i));
}

/* To unmap hundreds of MiB at once would hold up everybody. */
static void test_array_is_given_back_while_it_is_emptied(void **state)
{
    char *all = calloc(N_LARGE, STRIDE);
    struct store_table t;
    size_t i = 0;

    assert_non_null(all);
    assert_int_equal(store_table_init(&t, seed), 0);
    while (t.old.mask + 1 != OLD_SLOTS || t.old_next < OLD_SLOTS / 2)
        insert_large(&t, all, i++);
    expect_large(&t, all, i);
    store_table_remove(&t, large_name(all, 7), large_name(all, 7)->hash);
    insert_large(&t, all, 7);
    assert_true(resident_bytes(t.old.slots, OLD_SLOTS * sizeof(*t.old.slots)) <=
                OLD_SLOTS / 2 * sizeof(*t.old.slots) + (512 << 10));
    while (t.old.slots) {
        insert_large(&t, all, i++);
        if (i % 1000 == 0)
            expect_large(&t, all, i);
    }
    expect_large(&t, all, i);
    store_table_finish(&t);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_shrinks),
        cmocka_unit_test(test_array_is_given_back_while_it_is_emptied),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
