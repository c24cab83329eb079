/* The report of a failed generation, to the letter. */

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/supervise/worker_group.h"
#include "launcher/report/report.h"

#include "tests/support/c/cmocka_fixed.h"

static struct group_worker workers[2] = {{.started_ns = 1000000000}, {.started_ns = 1000000000}};

static const struct report_failure crash = {
    .local_rank = 1,
    .rank = 1,
    .pid = 20222,
    .exit_code = 1,
    .ended_ns = 3314000000,
    .time_s = 100,
    .time_text = "2026-11-21_07:40:17",
};

static const struct report_failure victim = {
    .local_rank = 0,
    .rank = 0,
    .pid = 20221,
    .exit_code = -SIGTERM,
    .stopped = true,
    .ended_ns = 3315000000,
    .time_s = 101,
    .time_text = "2026-11-21_07:40:18",
};

static void expect(const struct report *report, const char *expected)
{
    char *text = report_compose(report);

    assert_string_equal(text, expected);
    free(text);
}

static void test_table(void **state)
{
    const struct worker_group g = {
        .workers = workers, .cause = GROUP_CAUSE_WORKER, .cause_worker = 1, .config.n_workers = 2};
    const struct report_failure failures[] = {crash, victim};
    const struct report report = {.group = &g,
                                  .failures = failures,
                                  .n_failures = 2,
                                  .root = report_find_root(failures, 2),
                                  .title = "train.py",
                                  .host = "host.example"};

    expect(&report,
           "crun: rank 1 (local rank 1, pid 20222) failed first, 2.314 s after its start: exit code 1\n"
           "crun: ended after crun had asked them to stop: rank 0 (killed by signal 15 (SIGTERM))\n"
           "============================================================\n"
           "train.py FAILED\n"
           "------------------------------------------------------------\n"
           "Failures:\n"
           "[1]:\n"
           "  time      : 2026-11-21_07:40:18\n"
           "  host      : host.example\n"
           "  rank      : 0 (local_rank: 0)\n"
           "  exitcode  : -15 (pid: 20221)  (SIGTERM)\n"
           "  error_file: <N/A>\n"
           "  traceback : Signal 15 (SIGTERM) received by PID 20221\n"
           "------------------------------------------------------------\n"
           "Root Cause (first observed failure):\n"
           "[0]:\n"
           "  time      : 2026-11-21_07:40:17\n"
           "  host      : host.example\n"
           "  rank      : 1 (local_rank: 1)\n"
           "  exitcode  : 1 (pid: 20222) \n"
           "  error_file: <N/A>\n"
           "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
           "============================================================\n");
}

static void test_narrow_table_and_traceback(void **state)
{
    struct report_failure f = crash;
    const struct worker_group g = {
        .workers = workers, .cause = GROUP_CAUSE_WORKER, .cause_worker = 1, .config.n_workers = 2};
    const struct report report = {
        .group = &g, .failures = &f, .n_failures = 1, .root = 0, .title = "x", .host = "h", .log_dir = "/l"};

    f.error_file = "/e";
    f.message = "Traceback:\n  line\nValueError: boom";
    expect(&report,
           "crun: rank 1 (local rank 1, pid 20222) failed first, 2.314 s after its start: exit code 1\n"
           "crun: error files and logs are kept in /l\n"
           "=================================\n"
           "x FAILED\n"
           "---------------------------------\n"
           "Failures:\n"
           "  <NO_OTHER_FAILURES>\n"
           "---------------------------------\n"
           "Root Cause (first observed failure):\n"
           "[0]:\n"
           "  time      : 2026-11-21_07:40:17\n"
           "  host      : h\n"
           "  rank      : 1 (local_rank: 1)\n"
           "  exitcode  : 1 (pid: 20222) \n"
           "  error_file: /e\n"
           "  traceback : Traceback:\n"
           "    line\n"
           "  ValueError: boom\n"
           "=================================\n");
}

static void test_restart_has_no_table(void **state)
{
    struct report_failure f = crash;
    const struct worker_group g = {.workers = workers,
                                   .cause = GROUP_CAUSE_WORKER,
                                   .cause_worker = 1,
                                   .config = {.n_workers = 2, .max_restarts = 3},
                                   .restarts = 1,
                                   .will_restart = true};
    const struct report report = {
        .group = &g, .failures = &f, .n_failures = 1, .root = 0, .title = "x", .host = "h", .oom_kills = 1};

    f.exit_code = -SIGKILL;
    f.max_rss_kib = 2048;
    expect(&report,
           "crun: rank 1 (local rank 1, pid 20222) failed first, 2.314 s after its start: killed by signal 9 "
           "(SIGKILL)\n"
           "crun: the kernel's OOM killer has killed 1 process of this cgroup; rank 1 had used 2 MiB\n"
           "crun: 1/3 attempts left; will restart worker group\n");
}

static void test_signal(void **state)
{
    const struct worker_group g = {
        .workers = workers, .cause = GROUP_CAUSE_SIGNAL, .interrupt = SIGTERM, .escalated = true};
    const struct report_failure failures[] = {victim};
    struct report report = {.group = &g,
                            .failures = failures,
                            .n_failures = 1,
                            .root = 0,
                            .title = "x",
                            .host = "h",
                            .sender = "process 77 (bash)"};

    expect(&report,
           "crun: stopped by SIGTERM from process 77 (bash)\n"
           "crun: not everything had ended in time; what was left has been killed\n");
    report.sender = "";
    report.gave_up = true;
    expect(&report,
           "crun: stopped by SIGTERM\n"
           "crun: not everything could be killed, see above; end it before you start the job again\n");
}

static void test_no_restart_without_progress(void **state)
{
    const struct worker_group g = {.workers = workers,
                                   .cause = GROUP_CAUSE_WORKER,
                                   .is_final = true,
                                   .restarts = 1,
                                   .config = {.n_workers = 2, .max_restarts = 3}};
    const struct report report = {.group = &g,
                                  .failures = &crash,
                                  .n_failures = 1,
                                  .title = "x",
                                  .host = "h",
                                  .final_why = "the last restart has reached no step"};

    char *text = report_compose(&report);
    assert_non_null(text);
    assert_non_null(strstr(text, "crun: the last restart has reached no step; the job has failed\n"));
    assert_null(strstr(text, "the rule"));
    assert_null(strstr(text, "restarts are used"));
    free(text);
}

/* A worker that crun has killed alone, and the rule that rules out a restart. */
static void test_killed_for_an_option(void **state)
{
    struct group_worker killed[2] = {{.started_ns = 1000000000},
                                     {.started_ns = 1000000000, .kill_option = "--on-line"}};
    const struct worker_group g = {.workers = killed,
                                   .cause = GROUP_CAUSE_WORKER,
                                   .cause_worker = 1,
                                   .is_final = true,
                                   .config = {.n_workers = 2, .max_restarts = 3}};
    struct report_failure f = crash;
    f.exit_code = -SIGKILL;
    const struct report report = {
        .group = &g, .failures = &f, .n_failures = 1, .title = "x", .host = "h", .oom_kills = 2};
    const char start[] =
        "crun: rank 1 (local rank 1, pid 20222) failed first, 2.314 s after its start: killed by signal 9 (SIGKILL)\n"
        "crun: that signal came from crun, for --on-line\n"
        "crun: the rule on that line rules out a restart; the job has failed\n";

    char *text = report_compose(&report);
    assert_memory_equal(text, start, sizeof(start) - 1);
    free(text);
}

/* What is known of a signal that ended the first worker. */
static void test_where_a_signal_came_from(void **state)
{
    static const struct {
        int signal;
        bool stopped, core_dumped;
        long oom_kills;
        const char *core_pattern, *line;
    } cases[] = {
        {SIGKILL, false, false, 0, "",
         "that signal did not come from crun, nor has the kernel's OOM killer killed anything"},
        {SIGKILL, false, false, -1, "",
         "did not come from crun; whether the kernel's OOM killer sent it cannot be known"},
        {SIGKILL, false, false, 2, "", "OOM killer has killed 2 processes of this cgroup"},
        {SIGTERM, false, false, 0, "", "that signal did not come from crun\n"},
        {SIGTERM, true, false, 0, "", NULL},
        {SIGSEGV, false, false, 0, "core", NULL},
        {SIGSEGV, false, true, 0, "/cores/%p", "its core dump went to /cores/%p ("},
        {SIGABRT, false, true, 0, "|/lib/collect %P", "its core dump went to the program /lib/collect %P ("},
        {SIGABRT, false, true, 0, "", NULL},
    };
    const struct worker_group g = {.workers = workers,
                                   .cause = GROUP_CAUSE_WORKER,
                                   .cause_worker = 1,
                                   .config = {.n_workers = 2},
                                   .will_restart = true};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct report_failure f = crash;
        f.exit_code = -cases[i].signal;
        f.stopped = cases[i].stopped;
        f.core_dumped = cases[i].core_dumped;
        const struct report report = {.group = &g,
                                      .failures = &f,
                                      .n_failures = 1,
                                      .root = 0,
                                      .title = "x",
                                      .host = "h",
                                      .oom_kills = cases[i].oom_kills,
                                      .core_pattern = cases[i].core_pattern};
        char *text = report_compose(&report);
        const char *second = strchr(text, '\n') + 1;
        bool has_line =
            strncmp(second, "crun: 0/0 attempts", 18) != 0 && strncmp(second, "crun: -1/0 attempts", 19) != 0;
        if (has_line != (cases[i].line != NULL) || (cases[i].line && !strstr(second, cases[i].line)))
            fail_msg("case %zu: %s", i, text);
        free(text);
    }
}

/* Everything at once: still no more than a dozen lines before the table. */
static void test_twelve_lines_at_most(void **state)
{
    struct report_failure failures[20];
    struct group_worker many[20] = {{0}};
    const struct worker_group g = {.workers = many,
                                   .cause = GROUP_CAUSE_WORKER,
                                   .cause_worker = 1,
                                   .config = {.n_workers = 20, .max_restarts = 1},
                                   .restarts = 1,
                                   .escalated = true};

    for (int i = 0; i < 20; i++) {
        failures[i] = i < 10 ? crash : victim;
        failures[i].local_rank = failures[i].rank = i;
    }
    failures[0].exit_code = -SIGKILL;
    failures[0].core_dumped = true;
    const struct report report = {.group = &g,
                                  .failures = failures,
                                  .n_failures = 20,
                                  .root = 0,
                                  .title = "x",
                                  .host = "h",
                                  .log_dir = "/l",
                                  .core_pattern = "core",
                                  .oom_kills = 1,
                                  .last_lines = "1\n2\n3\n4\n"};
    char *text = report_compose(&report);
    int n = 0;
    for (const char *line = text; strncmp(line, "crun: ", 6) == 0; line = strchr(line, '\n') + 1)
        n++;
    assert_int_equal(n, 12);
    free(text);
}

static void test_exec(void **state)
{
    struct group_worker failed[1] = {{.state = GROUP_WORKER_EXEC_FAILED, .status = 8 /* ENOEXEC */}};
    const struct worker_group g = {.workers = failed, .cause = GROUP_CAUSE_EXEC, .config.n_workers = 1};
    const struct report report = {.group = &g, .root = -1, .title = "x", .host = "h", .program = "./x"};

    expect(&report,
           "crun: rank 0 could not be started: ./x: Exec format error; the file is neither a program of this "
           "machine nor begins with \"#!\"\n");
}

static void test_exec_of_a_bad_interpreter(void **state)
{
    struct group_worker failed[1] = {{.state = GROUP_WORKER_EXEC_FAILED, .status = 2 /* ENOENT */}};
    const struct worker_group g = {.workers = failed, .cause = GROUP_CAUSE_EXEC, .config.n_workers = 1};
    const struct report report = {
        .group = &g, .root = -1, .title = "x", .host = "h", .program = "./x", .interpreter = "/no/sh"};

    expect(&report,
           "crun: rank 0 could not be started: ./x: its \"#!\" line names /no/sh, which cannot be "
           "run: No such file or directory\n");
}

/* Names are the user's, or those of whoever wrote the file: none moves a cursor or begins a line. */
static void test_control_characters(void **state)
{
    struct group_worker failed[1] = {{.state = GROUP_WORKER_EXEC_FAILED, .status = 2 /* ENOENT */}};
    const struct worker_group g = {.workers = failed, .cause = GROUP_CAUSE_EXEC, .config.n_workers = 1};
    struct report report = {.group = &g,
                            .root = -1,
                            .title = "x",
                            .host = "h",
                            .program = "./a\nb",
                            .interpreter = "/bin/sh\r",
                            .log_dir = "/tmp/\033]0;x\007"};

    expect(
        &report,
        "crun: rank 0 could not be started: ./a b: its \"#!\" line names /bin/sh with a carriage return "
        "behind it (the file has the line ends of Windows), which cannot be run: No such file or directory\n"
        "crun: error files and logs are kept in /tmp/?]0;x?\n");
    report.interpreter = "/bin/\033[2J";
    expect(&report,
           "crun: rank 0 could not be started: ./a b: its \"#!\" line names /bin/?[2J, which cannot be run: "
           "No such file or directory\n"
           "crun: error files and logs are kept in /tmp/?]0;x?\n");
}

static void test_root(void **state)
{
    struct report_failure f[3] = {victim, crash, crash};

    assert_int_equal(report_find_root(f, 0), -1);
    assert_int_equal(report_find_root(f, 1), 0); /* only victims: the first of them */
    assert_int_equal(report_find_root(f, 3), 1); /* ties: the first to end */
    f[2].time_s--;
    assert_int_equal(report_find_root(f, 3), 2); /* its error file says that it failed earlier */
    f[0].time_s = 0;
    assert_int_equal(report_find_root(f, 3), 2); /* victims do not count */
    f[0].error_file = "e";
    assert_int_equal(report_find_root(f, 3), 0); /* unless they recorded an error of their own */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_narrow_table_and_traceback),
        cmocka_unit_test(test_restart_has_no_table),
        cmocka_unit_test(test_signal),
        cmocka_unit_test(test_where_a_signal_came_from),
        cmocka_unit_test(test_no_restart_without_progress),
        cmocka_unit_test(test_killed_for_an_option),
        cmocka_unit_test(test_twelve_lines_at_most),
        cmocka_unit_test(test_exec),
        cmocka_unit_test(test_exec_of_a_bad_interpreter),
        cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_root),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
