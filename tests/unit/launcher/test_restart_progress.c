/* Steps of generations that fail, and after which there is no further restart. */

#include "launcher/supervise/restart_progress.h"

#include "base/err.h"
#include "tests/support/c/cmocka_fixed.h"

enum { GENERATIONS_MAX = 8, NEVER = -1 };

static void test_when_it_ends(void **state)
{
    static const struct {
        int limit;
        int64_t steps
            [GENERATIONS_MAX]; /* the highest step at the end of each generation; all others are as the last */
        int last; /* the generation after which there is no restart; NEVER: not within the table */
        const char *why;
    } cases[] = {
        {1, {-1, -1, -1, -1, -1, -1, -1, -1}, 1, "the last restart has reached no step"},
        {3, {-1, -1, -1, -1, -1, -1, -1, -1}, 3, "the last 3 restarts have reached no step"},
        {1, {100, 100, 100, 100, 100, 100, 100, 100}, 1, "the last restart has not got beyond step 100"},
        {2, {100, 101, 101, 102, 102, 102, 103, 104}, 5, "the last 2 restarts have not got beyond step 102"},
        {2, {100, 101, 101, 102, 102, 103, 103, 104}, NEVER, NULL},
        {2, {0, 0, 0, 1, 1, 1, 1, 1}, 2, "the last 2 restarts have not got beyond step 0"},
        {2, {-1, -1, 0, 0, 0, 0, 0, 0}, 4, "the last 2 restarts have not got beyond step 0"},
        {2, {100, 50, 50, 50, 50, 50, 50, 50}, 2, "the last 2 restarts have not got beyond step 100"},
        {0, {5, 5, 5, 5, 5, 5, 5, 5}, NEVER, NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct restart_progress p = {.limit = cases[i].limit};
        int generation = 0;

        for (; generation < GENERATIONS_MAX; generation++) {
            restart_progress_note(&p, cases[i].steps[generation], generation > 0);
            if (restart_progress_is_used_up(&p))
                break;
        }
        assert_int_equal(generation == GENERATIONS_MAX ? NEVER : generation, cases[i].last);
        if (cases[i].why) {
            char why[128];
            restart_progress_describe(&p, why, sizeof(why));
            assert_string_equal(why, cases[i].why);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when_it_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
