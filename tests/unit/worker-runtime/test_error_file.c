/* The error file of a worker: what torchrun's @record would have written. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker-runtime/base/error.h"

#include "tests/support/c/cmocka_fixed.h"

static char folder[] = "/tmp/test_error_file_XXXXXX", path[64];

static int set_up(void **state)
{
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/error.json", folder);
    return setenv("TORCHELASTIC_ERROR_FILE", path, 1);
}

static int tear_down(void **state)
{
    (void)unlink(path);
    return rmdir(folder);
}

/* The file's text up to the time, which is checked to be a number. The file is gone afterwards. */
static void expect_file(const char *before_time)
{
    char text[1024];
    int fd = open(path, O_RDONLY);
    ssize_t n;
    char *end;

    assert_true(fd >= 0);
    n = read(fd, text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_int_equal(close(fd), 0);
    assert_memory_equal(text, before_time, strlen(before_time));
    assert_true(strtoll(text + strlen(before_time), &end, 10) > 1700000000);
    assert_string_equal(end, "\"}}}");
    assert_int_equal(unlink(path), 0);
}

static void test_schema(void **state)
{
    assert_int_equal(crw_error_record("no data"), 0);
    expect_file(
        "{\"message\": {\"message\": \"no data\", \"extraInfo\": {\"py_callstack\": \"no data\", \"timestamp\": \"");
}

static void test_the_last_failure_is_the_default(void **state)
{
    (void)crw_fail(CRW_E_DATA, "%s ends early", "x");
    assert_int_equal(crw_error_record(NULL), 0);
    expect_file(
        "{\"message\": {\"message\": \"x ends early\", \"extraInfo\": {\"py_callstack\": \"x ends early\", "
        "\"timestamp\": \"");
}

static void test_any_text_becomes_json(void **state)
{
    assert_int_equal(crw_error_record("a \"b\"\\\n\x1b \xc3\xa9 \xff\xc3"), 0);
    expect_file(
        "{\"message\": {\"message\": \"a \\\"b\\\"\\\\\\u000a\\u001b \xc3\xa9 ??\", \"extraInfo\": {\"py_callstack\": \""
        "a \\\"b\\\"\\\\\\u000a\\u001b \xc3\xa9 ??\", \"timestamp\": \"");
}

static void test_the_first_reason_stays(void **state)
{
    assert_int_equal(crw_error_record("first"), 0);
    assert_int_equal(crw_error_record("second"), 0);
    expect_file(
        "{\"message\": {\"message\": \"first\", \"extraInfo\": {\"py_callstack\": \"first\", \"timestamp\": \"");
}

static void test_endless_text_is_cut(void **state)
{
    char *endless = malloc(1 << 20);

    assert_non_null(endless);
    memset(endless, 1, 1 << 20);
    endless[(1 << 20) - 1] = '\0';
    assert_int_equal(crw_error_record(endless), 0);
    free(endless);
    assert_int_equal(unlink(path), 0);
}

static void test_nobody_asks(void **state)
{
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", "", 1), 0);
    assert_int_equal(crw_error_record("x"), 0);
    assert_int_equal(unsetenv("TORCHELASTIC_ERROR_FILE"), 0);
    assert_int_equal(crw_error_record("x"), 0);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_no_place(void **state)
{
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", "/no/such/folder/error.json", 1), 0);
    assert_int_equal(crw_error_record("x"), -ENOENT);
    assert_non_null(strstr(crw_error_message(), "cannot write the error file /no/such/folder/error.json"));
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", path, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_the_last_failure_is_the_default),
        cmocka_unit_test(test_any_text_becomes_json),
        cmocka_unit_test(test_endless_text_is_cut),
        cmocka_unit_test(test_no_place),
        cmocka_unit_test(test_nobody_asks),
    };
    const struct CMUnitTest first[] = {cmocka_unit_test(test_the_first_reason_stays)};

    return cmocka_run_group_tests(first, set_up, NULL) + cmocka_run_group_tests(tests, NULL, tear_down);
}
