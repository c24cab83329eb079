/* Which messages are of failures that no restart mends. */

#include "base/err.h"
#include "launcher/report/final_error.h"

#include "tests/support/c/cmocka_fixed.h"

static void messages(void **state)
{
    static const struct {
        const char *text;
        bool is_final;
    } rows[] = {
        {"", false},
        {"\n\n", false},
        {"ModuleNotFoundError: No module named 'tortch'", true},
        {"Traceback ...\n  File \"x\"\nImportError: cannot import name 'a'\n", true},
        {"SyntaxError: invalid syntax\r\n", true},
        {"TabError", true},
        {"IndentationError: x", true},
        {"ImportErrorOfMine: x", false},
        {"ImportError: x\nRuntimeError: y", false},
        {"caught ImportError: x", false},
        {"RuntimeError: CUDA error", false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (final_error_is_in(rows[i].text) != rows[i].is_final)
            fail_msg("'%s'", rows[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
