/* The lines between crun --agent-fd and its agent. */

#include <stdlib.h>
#include <string.h>

#include "launcher/agent/foreign_lines_json.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_commands(void **state)
{
    static const struct {
        const char *line;
        enum foreign_command_kind kind; /* FOREIGN_COMMAND_COUNT: refused */
        bool is_fatal;
        const char *text; /* or what is wrong */
    } cases[] = {
        {"{\"do\":\"ready\"}", FOREIGN_READY, false, ""},
        {"{\"do\":\"failed\",\"fatal\":true,\"text\":\"a\\nb\"}", FOREIGN_FAILED, true, "a b"},
        {"{\"do\":\"done\",\"new\":[1]}", FOREIGN_DONE, false, ""},
        {"{\"do\":\"leave\",\"text\":\"gone\"}", FOREIGN_LEAVE, false, "gone"},
        {"{\"do\":\"dance\"}", FOREIGN_COMMAND_COUNT, false, "'do'"},
        {"{}", FOREIGN_COMMAND_COUNT, false, "'do'"},
        {"[]", FOREIGN_COMMAND_COUNT, false, "no JSON object"},
        {"{\"do\":\"rea", FOREIGN_COMMAND_COUNT, false, "no JSON object"},
        {"{\"do\":\"failed\",\"fatal\":1}", FOREIGN_COMMAND_COUNT, false, "'fatal'"},
        {"", FOREIGN_COMMAND_COUNT, false, "no JSON object"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct foreign_command command;
        char fault[FOREIGN_FAULT_SIZE] = "";
        bool is_read = foreign_command_read(cases[i].line, strlen(cases[i].line), &command, fault);

        assert_int_equal(is_read, cases[i].kind != FOREIGN_COMMAND_COUNT);
        if (!is_read) {
            assert_non_null(strstr(fault, cases[i].text));
            continue;
        }
        assert_int_equal(command.kind, cases[i].kind);
        assert_int_equal(command.is_fatal, cases[i].is_fatal);
        assert_string_equal(command.text, cases[i].text);
    }
}

static void expect_line(char *line, const char *expected)
{
    assert_non_null(line);
    assert_string_equal(line, expected);
    free(line);
}

static void test_events(void **state)
{
    const struct rank_assignment assignment = {
        .group_rank = 1, .group_world_size = 3, .master_addr = "10.0.0.1", .master_port = 7};

    expect_line(
        foreign_start_line(4, &assignment, "node \"b\" was lost"),
        "{\"event\":\"start\",\"generation\":4,\"group_rank\":1,\"group_world_size\":3,\"master_addr\":"
        "\"10.0.0.1\",\"master_port\":7,\"cause\":\"node \\\"b\\\" was lost\"}\n");
    expect_line(foreign_end_line("stop", NULL, "x"), "{\"event\":\"stop\",\"cause\":\"x\"}\n");
    expect_line(foreign_end_line("end", &(int){1}, ""),
                "{\"event\":\"end\",\"exit_code\":1,\"cause\":\"\"}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_events),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
