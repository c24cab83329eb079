/* What all nodes say and exit with when a job of several nodes is over. */

#include <stdlib.h>
#include <string.h>

#include "launcher/report/job_result.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct session_cause worker = {.kind = SESSION_CAUSE_WORKER,
                                            .group_rank = 1,
                                            .rank = 9,
                                            .local_rank = 1,
                                            .exit_code = -9,
                                            .pid = 4711,
                                            .host = "gpu7"};

static void test_worker(void **state)
{
    const struct job_result v = {.kind = SESSION_VERDICT_FAILURE,
                                 .cause = &worker,
                                 .title = "train.py",
                                 .time_text = "2026-11-21_07:40:17",
                                 .restarts = 3,
                                 .max_restarts = 3};
    char *text = job_result_compose(&v);

    assert_string_equal(
        text,
        "crun: the job has failed on all nodes: rank 9 (local rank 1) on gpu7 was ended by signal 9\n"
        "crun: all 3 restarts are used\n"
        "============================================================\n"
        "train.py FAILED\n"
        "------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-11-21_07:40:17\n"
        "  host      : gpu7\n"
        "  rank      : 9 (local_rank: 1)\n"
        "  exitcode  : -9 (pid: 4711)  (SIGKILL)\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 4711\n"
        "============================================================\n");
    free(text);
    assert_int_equal(job_result_code(&v, false), 1);
    assert_int_equal(job_result_code(&v, true), 137);
}

static void test_others(void **state)
{
    static const struct session_cause lost = {.kind = SESSION_CAUSE_LOST,
                                              .group_rank = 2,
                                              .rank = -1,
                                              .host = "a"},
                                      none = {.rank = -1};
    static const struct {
        enum session_verdict kind;
        const struct session_cause *cause;
        const char *text;
        int code;
    } cases[] = {
        {SESSION_VERDICT_SUCCESS, &none, "", 0},
        {SESSION_VERDICT_FAILURE, &lost, "crun: the job has failed on all nodes: a (node 2) was lost\n", 1},
        {SESSION_VERDICT_DRAINED, &lost,
         "crun: all nodes have stopped because a was asked to; start the job again to go on\n", 1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct job_result v = {
            .kind = cases[i].kind, .cause = cases[i].cause, .title = "x", .time_text = ""};
        char *text = job_result_compose(&v);
        assert_string_equal(text, cases[i].text);
        assert_int_equal(job_result_code(&v, true), cases[i].code);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worker), cmocka_unit_test(test_others)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
