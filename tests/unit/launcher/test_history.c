/* Lines of an event log in, generations and their ends out. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/crunctl/history.h"
#include "launcher/crunctl/history_json.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

#define AT(second) "{\"time\":\"2026-11-22T08:00:" second ".5Z\",\"run_id\":\"j\",\"host\":\"n1\","
#define START(second, pid, generation, restarts)                                                             \
    AT(second)                                                                                               \
    "\"event\":\"start\",\"crun_pid\":" pid ",\"generation\":" generation ",\"restarts\":" restarts          \
    ",\"program\":\"train.py\",\"world_size\":4,\"group_world_size\":2}\n"

static void add_all(struct history *h, const char *const *lines, size_t n)
{
    struct history_line line;

    for (size_t i = 0; i < n; i++)
        if (history_line_from_json(lines[i], strlen(lines[i]), &line))
            assert_int_equal(history_add(h, &line), 0);
}

static void format_seconds(int64_t seconds, char out[32])
{
    (void)snprintf(out, 32, "@%lld", (long long)(seconds - 1795334400)); /* 2026-11-22T08:00:00Z */
}

static void generations_have_durations_and_reasons(void **state)
{
    static const char *const lines[] = {
        AT("00") "\"event\":\"end\",\"result\":\"failed\"}", /* of a run that is not there any more */
        START("01", "7", "0", "0"),
        "not JSON",
        AT("03") "\"event\":\"failure\",\"cause\":\"worker\"}",
        AT("04") "\"event\":\"restart\",\"reason\":\"rank 1: exit code 3\"}",
        START("04", "7", "1", "1"),
        AT("09") "\"event\":\"peer\",\"cause\":\"lost\",\"reason\":\"n2 was lost\"}",
        START("10", "7", "2", "1"),
        AT("12") "\"event\":\"stop\",\"signal\":\"SIGTERM\"}",
        AT("15") "\"event\":\"end\",\"result\":\"stopped\",\"exit_code\":1}",
    };
    struct history h = {0};

    (void)state;
    add_all(&h, lines, ARRAY_SIZE(lines));
    assert_int_equal(h.n_runs, 1);
    char *text = history_text(&h.runs[h.n_runs - 1], 0, format_seconds);
    assert_string_equal(
        text,
        "j on n1: train.py, stopped with exit code 1 after 14 s\n"
        "GENERATION  STARTED                   LASTED NODES WORKERS RESTARTS  ENDED BECAUSE\n"
        "         0  @1                           3 s     2       4        0  rank 1: exit code 3\n"
        "         1  @4                           5 s     2       4        1  n2 was lost\n"
        "         2  @10                          5 s     2       4        1  stopped by SIGTERM\n");
    free(text);
    char *json = history_to_json(&h.runs[h.n_runs - 1]);
    assert_non_null(strstr(
        json,
        "{\"version\":1,\"job\":\"j\",\"run\":\"\",\"host\":\"n1\",\"program\":\"train.py\",\"result\":\"stopped\""));
    assert_non_null(strstr(json, "\"reason\":\"n2 was lost\""));
    free(json);
    history_select(&h, "k");
    assert_int_equal(h.n_runs, 0);
    history_finish(&h);
}

static void marks_are_counted(void **state)
{
    static const char *const lines[] = {
        AT("00") "\"event\":\"mark\",\"rank\":1,\"line\":\"of no run\"}",
        START("01", "7", "0", "0"),
        AT("02") "\"event\":\"mark\",\"rank\":1,\"line\":\"epoch 1\"}",
        AT("03") "\"event\":\"mark\",\"rank\":2,\"line\":\"epoch\\u001b 2\"}",
        START("04", "7", "1", "1"),
        AT("05") "\"event\":\"mark\",\"rank\":\"x\",\"line\":7}",
    };
    struct history h = {0};

    (void)state;
    add_all(&h, lines, ARRAY_SIZE(lines));
    char *text = history_text(&h.runs[h.n_runs - 1], 0, format_seconds);
    assert_non_null(
        strstr(text, "\n            lines marked: 2, the last one by rank 2: epoch? 2\n         1  @4"));
    assert_non_null(strstr(text, "\n            lines marked: 1, the last one by rank -1: \n"));
    free(text);
    char *json = history_to_json(&h.runs[h.n_runs - 1]);
    assert_non_null(strstr(json, "\"marks\":2"));
    assert_non_null(strstr(json, "\"mark_rank\":2,\"mark\":\"epoch"));
    free(json);
    history_finish(&h);
}

/* A crun that was killed wrote no end; the next one of that name is another run. */
static void a_killed_run_is_not_continued(void **state)
{
    static const char *const lines[] = {
        START("01", "7", "0", "0"),
        START("20", "8", "0", "0"),
        AT("30") "\"event\":\"end\",\"result\":\"succeeded\",\"exit_code\":0}",
    };
    struct history h = {0};

    (void)state;
    add_all(&h, lines, ARRAY_SIZE(lines));
    assert_int_equal(h.n_runs, 2);
    assert_string_equal(h.runs[0].result, "");
    assert_int_equal(h.runs[1].n_generations, 1);
    assert_string_equal(h.runs[h.n_runs - 1].result, "succeeded");
    char *text = history_text(&h.runs[0], 40, format_seconds);
    assert_non_null(strstr(text, "j on n1: train.py, has not ended, or crun was killed\n"));
    free(text);
    h.runs[0].life = HISTORY_LIFE_RUNS;
    text = history_text(&h.runs[0], 0, format_seconds);
    assert_non_null(strstr(text, "j on n1: train.py, runs\n"));
    assert_non_null(strstr(text, "         0  @1                          runs     2 "));
    free(text);
    h.runs[0].life = HISTORY_LIFE_KILLED;
    text = history_text(&h.runs[0], 0, format_seconds);
    assert_non_null(strstr(text, "j on n1: train.py, crun was killed\n"));
    assert_null(strstr(text, "runs"));
    free(text);
    char *json = history_to_json(&h.runs[0]);
    assert_non_null(strstr(json, "\"runs\":false"));
    free(json);
    history_finish(&h);
}

#define OF_RUN(second, name, run)                                                                            \
    "{\"time\":\"2026-11-22T08:00:" second ".5Z\",\"run_id\":\"" name "\",\"run\":\"" run                    \
    "\",\"host\":\"n1\","
#define BEGIN_RUN "\"event\":\"start\",\"crun_pid\":1,\"generation\":0,\"program\":\"train.py\"}"

/* Two at once, and a third with the process number of the first, which was killed: as in containers. */
static void runs_of_one_name_stay_apart(void **state)
{
    static const char *const lines[] = {
        OF_RUN("01", "j", "a") BEGIN_RUN,
        OF_RUN("02", "j", "b") BEGIN_RUN,
        OF_RUN("03", "j", "a") "\"event\":\"restart\",\"reason\":\"of a\"}",
        OF_RUN("04", "j", "b") "\"event\":\"end\",\"result\":\"failed\",\"exit_code\":7,\"reason\":\"of b\"}",
        OF_RUN("05", "j", "c") BEGIN_RUN,
        OF_RUN("06", "j", "c") "\"event\":\"end\",\"result\":\"succeeded\"}",
    };
    struct history h = {0};

    (void)state;
    add_all(&h, lines, ARRAY_SIZE(lines));
    assert_int_equal(h.n_runs, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(h.runs[i].n_generations, 1);
    assert_string_equal(h.runs[0].generations[0].reason, "of a");
    assert_string_equal(h.runs[0].result, "");
    assert_string_equal(h.runs[1].generations[0].reason, "of b");
    assert_int_equal(h.runs[1].exit_code, 7);
    assert_string_equal(h.runs[2].result, "succeeded");
    assert_string_equal(h.runs[2].start.run, "c");
    history_finish(&h);
}

/* The end of an older crun, which has no identity, is no run. */
static void run_without_a_generation_has_its_reason(void **state)
{
    static const char *const lines[] = {
        AT("01") "\"event\":\"end\",\"result\":\"failed\",\"exit_code\":1}",
        OF_RUN("09", "j", "1795334401000000000-4711") "\"event\":\"peer\",\"reason\":\"no nodes\"}",
        OF_RUN(
            "09", "j",
            "1795334401000000000-4711") "\"event\":\"end\",\"program\":\"train.py\",\"result\":\"failed\",\"exit_code\":1,\"reason\":\"no nodes\"}",
    };
    struct history h = {0};

    (void)state;
    add_all(&h, lines, ARRAY_SIZE(lines));
    assert_int_equal(h.n_runs, 1);
    assert_int_equal(h.runs[0].start.crun_pid, 4711);
    char *text = history_text(&h.runs[0], 0, format_seconds);
    assert_non_null(strstr(text, "j on n1: train.py, failed with exit code 1 after 8 s: no nodes\n"));
    free(text);
    history_finish(&h);
}

static void whole_name_comes_before_its_beginning(void **state)
{
    static const char *const lines[] = {
        OF_RUN("01", "job", "a") BEGIN_RUN,
        OF_RUN("02", "job-2", "b") BEGIN_RUN,
        OF_RUN("03", "other", "c") BEGIN_RUN,
        OF_RUN("04", "job", "d") BEGIN_RUN,
    };
    static const struct {
        const char *asked;
        const char *runs; /* those that are kept */
    } rows[] = {{NULL, "abcd"}, {"job", "ad"}, {"jo", "abd"}, {"job-", "b"}, {"nope", ""}};

    (void)state;
    for (size_t r = 0; r < ARRAY_SIZE(rows); r++) {
        struct history h = {0};
        char kept[8] = "";

        add_all(&h, lines, ARRAY_SIZE(lines));
        history_select(&h, rows[r].asked);
        for (size_t i = 0; i < h.n_runs; i++)
            (void)strcat(kept, h.runs[i].start.run);
        assert_string_equal(kept, rows[r].runs);
        history_finish(&h);
    }
}

static void texts_of_the_log_are_made_printable(void **state)
{
    static const char *const lines[] = {
        START("01", "7", "0", "0"),
        AT("02") "\"event\":\"end\",\"result\":\"failed\",\"reason\":\"a\\u001b[2Jb\"}",
    };
    struct history h = {0};

    (void)state;
    add_all(&h, lines, ARRAY_SIZE(lines));
    char *text = history_text(&h.runs[h.n_runs - 1], 0, format_seconds);
    assert_null(strchr(text, '\033'));
    assert_non_null(strstr(text, "a?[2Jb"));
    free(text);
    history_finish(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generations_have_durations_and_reasons),
        cmocka_unit_test(marks_are_counted),
        cmocka_unit_test(a_killed_run_is_not_continued),
        cmocka_unit_test(runs_of_one_name_stay_apart),
        cmocka_unit_test(run_without_a_generation_has_its_reason),
        cmocka_unit_test(whole_name_comes_before_its_beginning),
        cmocka_unit_test(texts_of_the_log_are_made_printable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
