/* What Ctrl-Z does, by where crun was started. */

#include "launcher/supervise/suspend.h"

#include "base/err.h"
#include "tests/support/c/cmocka_fixed.h"

static void test_where_it_stops(void **state)
{
    static const struct {
        const char *where;
        bool stops;
        size_t n;
        struct suspend_process line[5]; /* pid, group, session */
    } cases[] = {
        {"shell with job control", true, 3, {{50, 50, 10}, {10, 10, 10}, {9, 9, 9}}},
        {"script below such a shell", true, 4, {{51, 50, 10}, {50, 50, 10}, {10, 10, 10}, {9, 9, 9}}},
        {"nohup below such a shell", true, 3, {{50, 50, 10}, {10, 10, 10}, {1, 1, 1}}},
        {"time or sudo in a group of its own", true, 3, {{60, 60, 10}, {50, 50, 10}, {10, 10, 10}}},
        {"ssh -t, tmux new: crun leads the session", false, 3, {{50, 50, 50}, {9, 9, 9}, {1, 1, 1}}},
        {"ssh -t, script that leads the session", false, 3, {{51, 50, 50}, {50, 50, 50}, {9, 9, 9}}},
        {"docker exec -it: the parent is outside", false, 2, {{50, 50, 50}, {0, 0, 0}}},
        {"setsid below a shell", false, 2, {{60, 60, 60}, {10, 10, 10}}},
        {"process 1", false, 2, {{1, 1, 1}, {0, 0, 0}}},
        {"process 1 in the session of a shell outside", false, 2, {{1, 0, 0}, {0, 0, 0}}},
        {"nsenter: the session is outside", true, 2, {{50, 0, 0}, {0, 0, 0}}},
        {"orphan of a session, below process 1", false, 2, {{50, 40, 40}, {1, 1, 1}}},
        {"shell as process 1 of a container", true, 2, {{50, 50, 1}, {1, 1, 1}}},
        {"no /proc beyond the parent", true, 2, {{51, 50, 10}, {50, 50, 10}}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (suspend_will_stop(cases[i].line, cases[i].n) != cases[i].stops)
            fail_msg("%s", cases[i].where);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_where_it_stops)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
