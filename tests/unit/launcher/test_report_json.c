/* Error files, as workers write them and as they should not. */

#include <stdlib.h>
#include <string.h>

#include "launcher/report/report_json.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_read(void **state)
{
    static const struct {
        const char *file, *message; /* message NULL: refused */
        int64_t time_s;
    } cases[] = {
        {"{\"message\": {\"message\": \"E: boom\", \"extraInfo\": {\"py_callstack\": \"Trace\\nE: boom\", "
         "\"timestamp\": "
         "\"1700000000\"}}}",
         "Trace\nE: boom", 1700000000},
        {"{\"message\": {\"message\": \"E: boom\", \"extraInfo\": {\"timestamp\": 17}}}", "E: boom", 17},
        {"{\"message\": {\"message\": \"E: boom\"}}", "E: boom", 0},
        {"{\"message\": \"text\", \"timestamp\": 5}", "text", 5},
        {"{\"message\": \"text\"}", "text", 0},
        {"{\"message\": \"text\", \"timestamp\": -5}", "text", 0},
        {"{\"message\": \"text\", \"timestamp\": 1e300}", "text", 0},
        {"{\"message\": 7}", NULL, 0},
        {"{}", NULL, 0},
        {"[]", NULL, 0},
        {"{\"message\": {\"mess", NULL, 0},
        {"", NULL, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *message = NULL;
        int64_t time_s = 0;
        int r = report_json_read(cases[i].file, strlen(cases[i].file), &message, &time_s);
        assert_int_equal(r, cases[i].message ? 0 : REPORT_JSON_E_BAD);
        if (!r)
            assert_string_equal(message, cases[i].message);
        assert_int_equal(time_s, cases[i].time_s);
        free(message);
    }
}

static void test_with_code(void **state)
{
    static const struct {
        const char *file, *answer;
    } cases[] = {
        {"{\"message\":{\"message\":\"m\"}}", "{\"message\":{\"message\":\"m\",\"errorCode\":-9}}"},
        {"{\"message\":\"m\"}", "{\"message\":\"m\"}"},
        {"{", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *answer = report_json_with_code(cases[i].file, strlen(cases[i].file), -9);
        if (cases[i].answer)
            assert_string_equal(answer, cases[i].answer);
        else
            assert_null(answer);
        free(answer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_with_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
