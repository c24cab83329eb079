/*
 * The fence of a snapshot folder: which writers pass it, and what it looks like.
 */

#include <stdio.h>
#include <string.h>

#include "worker-runtime/checkpoint/snapshot_fence.h"

#include "tests/support/c/cmocka_fixed.h"

static struct run_identity writer(const char *instance, uint32_t generation)
{
    struct run_identity w = {.generation = generation};

    (void)snprintf(w.instance, sizeof(w.instance), "%s", instance);
    return w;
}

static enum snapshot_fence_result pass(struct snapshot_fence *f, const char *instance, uint32_t generation,
                                       bool claims)
{
    const struct run_identity w = writer(instance, generation);

    return snapshot_fence_pass(f, &w, claims);
}

static void test_the_later_generation_has_the_folder(void **state)
{
    struct snapshot_fence f = {0};

    assert_int_equal(pass(&f, "a", 3, true), SNAPSHOT_FENCE_CHANGED);
    assert_int_equal(pass(&f, "a", 3, false), SNAPSHOT_FENCE_OURS);
    assert_int_equal(pass(&f, "a", 4, true), SNAPSHOT_FENCE_CHANGED);
    assert_int_equal(pass(&f, "a", 3, false), SNAPSHOT_FENCE_LATER_GENERATION);
    assert_int_equal(pass(&f, "a", 3, true), SNAPSHOT_FENCE_LATER_GENERATION);
    assert_int_equal(f.owner.generation, 4);
    assert_int_equal(pass(&f, "a", 7, false),
                     SNAPSHOT_FENCE_CHANGED); /* a remaining worker, in a later generation */
    assert_int_equal(f.n_ended, 0);
}

static void test_a_new_run_has_the_folder_with_any_generation(void **state)
{
    struct snapshot_fence f = {0};

    (void)pass(&f, "a", 30, true);
    assert_int_equal(pass(&f, "b", 0, true), SNAPSHOT_FENCE_CHANGED);
    assert_string_equal(f.owner.instance, "b");
    assert_int_equal(f.owner.generation, 0);
    assert_int_equal(pass(&f, "a", 31, false), SNAPSHOT_FENCE_LATER_RUN);
    assert_int_equal(pass(&f, "a", 31, true), SNAPSHOT_FENCE_LATER_RUN); /* it has had its time */
    assert_int_equal(pass(&f, "c", 0, false), SNAPSHOT_FENCE_LATER_RUN);
    assert_int_equal(pass(&f, "c", 0, true), SNAPSHOT_FENCE_CHANGED);
    assert_int_equal(pass(&f, "b", 5, true), SNAPSHOT_FENCE_LATER_RUN);
}

static void test_the_oldest_runs_are_forgotten(void **state)
{
    struct snapshot_fence f = {0}, read;
    char name[16], text[SNAPSHOT_FENCE_TEXT_MAX];

    for (unsigned i = 0; i < SNAPSHOT_FENCE_ENDED_MAX + 3; i++) {
        (void)snprintf(name, sizeof(name), "run%u", i);
        assert_int_equal(pass(&f, name, i, true), SNAPSHOT_FENCE_CHANGED);
    }
    assert_int_equal(f.n_ended, SNAPSHOT_FENCE_ENDED_MAX);
    assert_int_equal(pass(&f, "run2", 0, true), SNAPSHOT_FENCE_LATER_RUN);
    assert_true(snapshot_fence_parse(text, snapshot_fence_format(&f, text), &read));
    assert_memory_equal(&read.owner, &f.owner, sizeof(f.owner));
    assert_int_equal(read.n_ended, f.n_ended);
    assert_string_equal(read.ended[31], f.ended[31]);
    assert_int_equal(pass(&f, "run1", 0, true), SNAPSHOT_FENCE_CHANGED); /* forgotten */
}

static void test_the_longest_text_fits(void **state)
{
    struct snapshot_fence f = {.owner = {.generation = INT32_MAX}, .n_ended = SNAPSHOT_FENCE_ENDED_MAX}, read;
    char text[SNAPSHOT_FENCE_TEXT_MAX];
    size_t n;

    memset(f.owner.instance, 'x', RUN_INSTANCE_SIZE - 1);
    for (size_t i = 0; i < f.n_ended; i++)
        memset(f.ended[i], 'y', RUN_INSTANCE_SIZE - 1);
    n = snapshot_fence_format(&f, text);
    assert_in_range(n, 1, sizeof(text) - 1);
    assert_true(snapshot_fence_parse(text, n, &read));
    assert_memory_equal(&read, &f, sizeof(f));
}

static void test_damaged_texts_count_as_none(void **state)
{
    static const char *const bad[] = {
        "",
        "crun snapshot fence 2\ninstance a\ngeneration 1\n",
        "crun snapshot fence 1\n",
        "crun snapshot fence 1\ninstance a\n",
        "crun snapshot fence 1\ninstance \ngeneration 1\n",
        "crun snapshot fence 1\ninstance a\ngeneration -1\n",
        "crun snapshot fence 1\ninstance a\ngeneration 99999999999\n",
        "crun snapshot fence 1\ninstance a\ngeneration 1",
        "crun snapshot fence 1\ninstance a\ngeneration 1\nended b",
        "crun snapshot fence 1\ninstance a\ngeneration 1\nmore\n",
        "crun snapshot fence 1\ninstance 0123456789012345678901234567890123\ngeneration 1\n",
    };
    struct snapshot_fence f;
    char text[SNAPSHOT_FENCE_TEXT_MAX + 1] = {0};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (snapshot_fence_parse(bad[i], strlen(bad[i]), &f))
            fail_msg("'%s' was read", bad[i]);
        assert_int_equal(f.owner.instance[0], 0);
    }
    assert_false(snapshot_fence_parse(text, sizeof(text), &f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_later_generation_has_the_folder),
        cmocka_unit_test(test_a_new_run_has_the_folder_with_any_generation),
        cmocka_unit_test(test_the_oldest_runs_are_forgotten),
        cmocka_unit_test(test_the_longest_text_fits),
        cmocka_unit_test(test_damaged_texts_count_as_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
