/* /proc/PID/stat: lines as kernels write them, lines that are none, and this process. */

#include <sys/wait.h>
#include <unistd.h>

#include "launcher/util/proc_stat_os.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

#define REST                                                                                                 \
    " 4711 10 10 34816 20 4194304 300 9999 20 8888 500 250 77 66 20 0 1 0 12345 1000000 4096 18446744073709551615 1 1\n"

static void test_lines(void **state)
{
    static const char *const lines[] = {"12 (sh) S" REST, "12 (a) R 1 (b) S" REST, "12 (()) S" REST,
                                        "12 (a\nb c) S" REST, "12 (12345678901234567) S" REST};
    static const char *const names[] = {"sh", "a) R 1 (b", "()", "a\nb c", "123456789012345"};
    struct proc_stat stat;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        stat = (struct proc_stat){0};
        assert_true(proc_stat_parse(lines[i], &stat));
        assert_string_equal(stat.name, names[i]);
        assert_int_equal(stat.state, 'S');
        assert_false(stat.has_ended);
        assert_int_equal(stat.parent, 4711);
        assert_int_equal(stat.faults, 320);
        assert_int_equal(stat.cpu_ticks, 750);
        assert_int_equal(stat.rss_pages, 4096);
    }
}

static void test_ends(void **state)
{
    struct proc_stat stat;

    (void)state;
    assert_true(proc_stat_parse("12 (sh) Z 1 12 12 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 1\n", &stat));
    assert_true(stat.has_ended);
    assert_true(proc_stat_parse("12 (sh) X" REST, &stat));
    assert_true(stat.has_ended);
    assert_true(proc_stat_parse("12 (Z) D" REST, &stat));
    assert_false(stat.has_ended);
}

static void test_other_text(void **state)
{
    static const char *const texts[] = {"",
                                        "12",
                                        "12 (sh",
                                        "12 (sh)",
                                        "12 (sh) ",
                                        "12 (sh) S",
                                        ("12 (sh)S" REST),
                                        "12 (sh) S 4711 10 x 34816",
                                        "12 (sh) S 1 12 12 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 1 0 5 0 "};
    struct proc_stat stat = {.state = '?'};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        assert_false(proc_stat_parse(texts[i], &stat));
    assert_int_equal(stat.state, '?');
}

static void test_this_process(void **state)
{
    struct proc_stat stat, thread;

    (void)state;
    assert_true(proc_stat_read(getpid(), &stat));
    assert_int_equal(stat.state, 'R');
    assert_int_equal(stat.parent, getppid());
    assert_true(stat.rss_pages > 0 && stat.faults > 0);
    assert_true(proc_stat_read_thread(getpid(), getpid(), &thread));
    assert_int_equal(thread.parent, getppid());
    assert_false(proc_stat_read_thread(getpid(), 1, &thread));
}

static void test_child(void **state)
{
    struct proc_stat stat;
    siginfo_t info;
    pid_t pid = fork();

    (void)state;
    if (pid == 0)
        _exit(0);
    assert_true(pid > 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_true(proc_stat_read(pid, &stat));
    assert_true(stat.has_ended);
    assert_int_equal(stat.parent, getpid());
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(proc_stat_read(pid, &stat));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),        cmocka_unit_test(test_ends),  cmocka_unit_test(test_other_text),
        cmocka_unit_test(test_this_process), cmocka_unit_test(test_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
