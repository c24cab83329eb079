/*
 * The launch environment: what torchrun sets is understood, and whatever is missing or malformed is
 * refused by a sentence that names the variable.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/base/env_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/c/cmocka_fixed.h"

static const char *const torchrun_variables[][2] = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"},
    {"GROUP_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "node0.example"},
    {"MASTER_PORT", "40123"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"TORCHELASTIC_MAX_RESTARTS", "3"},
    {"TORCHELASTIC_RUN_ID", "job-7"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
};

enum { N_VARIABLES = sizeof(torchrun_variables) / sizeof(torchrun_variables[0]) };

static int launched(void **state)
{
    for (int i = 0; i < N_VARIABLES; i++)
        assert_int_equal(setenv(torchrun_variables[i][0], torchrun_variables[i][1], 1), 0);
    unsetenv("CRUN_NOTICE_FD");
    unsetenv("CRW_TIMEOUT_MS");
    return 0;
}

static void reads_what_torchrun_sets(void **state)
{
    struct crw_env env;

    assert_int_equal(crw_env_read(&env), 0);
    assert_true(env.launched);
    assert_int_equal(env.rank, 5);
    assert_int_equal(env.world_size, 8);
    assert_int_equal(env.local_rank, 1);
    assert_int_equal(env.local_world_size, 4);
    assert_int_equal(env.group_rank, 1);
    assert_int_equal(env.group_world_size, 2);
    assert_int_equal(env.restart_count, 2);
    assert_int_equal(env.max_restarts, 3);
    assert_string_equal(env.master_addr, "node0.example");
    assert_int_equal(env.master_port, 40123);
    assert_string_equal(env.run_id, "job-7");
    assert_int_equal(env.notice_fd, -1);
}

static void reads_the_notice_fd(void **state)
{
    struct crw_env env;

    setenv("CRUN_NOTICE_FD", "17", 1);
    assert_int_equal(crw_env_read(&env), 0);
    assert_int_equal(env.notice_fd, 17);
    assert_int_equal(env.generation, 2); /* the restart count, where there is no other */
    setenv("CRUN_GENERATION", "5", 1);
    assert_int_equal(crw_env_read(&env), 0);
    assert_int_equal(env.generation, 5);
    unsetenv("CRUN_GENERATION");
}

static void is_a_world_of_one_without_rank(void **state)
{
    struct crw_env env;

    unsetenv("RANK");
    setenv("WORLD_SIZE", "nonsense", 1);
    assert_int_equal(crw_env_read(&env), 0);
    assert_false(env.launched);
    assert_int_equal(env.rank, 0);
    assert_int_equal(env.world_size, 1);
    assert_int_equal(env.local_world_size, 1);
    assert_int_equal(env.notice_fd, -1);
}

static void one_rank_needs_no_store(void **state)
{
    struct crw_env env;

    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    setenv("GROUP_RANK", "0", 1);
    setenv("GROUP_WORLD_SIZE", "1", 1);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    assert_int_equal(crw_env_read(&env), 0);
    assert_string_equal(env.master_addr, "");
    assert_int_equal(env.master_port, 0);
}

static void refuses_and_names_the_variable(void **state)
{
    static const struct {
        const char *name;
        const char *value; /* NULL: not set */
    } cases[] = {
        {"RANK", ""},
        {"RANK", "-1"},
        {"RANK", "+1"},
        {"RANK", " 1"},
        {"RANK", "1 "},
        {"RANK", "0x1"},
        {"RANK", "8"},
        {"RANK", "4294967301"},
        {"WORLD_SIZE", NULL},
        {"WORLD_SIZE", "0"},
        {"WORLD_SIZE", "2147483648"},
        {"LOCAL_RANK", NULL},
        {"LOCAL_RANK", "4"},
        {"LOCAL_WORLD_SIZE", NULL},
        {"LOCAL_WORLD_SIZE", "9"},
        {"GROUP_RANK", "2"},
        {"GROUP_WORLD_SIZE", "0"},
        {"MASTER_ADDR", NULL},
        {"MASTER_ADDR", ""},
        {"MASTER_PORT", NULL},
        {"MASTER_PORT", "0"},
        {"MASTER_PORT", "65536"},
        {"MASTER_PORT", "29500/tcp"},
        {"TORCHELASTIC_RESTART_COUNT", "-2"},
        {"TORCHELASTIC_MAX_RESTARTS", "three"},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"CRUN_NOTICE_FD", "-1"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct crw_env env = {.rank = 4711};

        launched(NULL);
        if (cases[i].value)
            setenv(cases[i].name, cases[i].value, 1);
        else
            unsetenv(cases[i].name);
        assert_int_equal(crw_env_read(&env), CRW_E_ENVIRONMENT);
        assert_non_null(strstr(crw_error_message(), cases[i].name));
        assert_int_equal(env.rank, 4711);
    }
}

static void refuses_text_that_does_not_fit(void **state)
{
    struct crw_env env;
    char text[300];

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    setenv("MASTER_ADDR", text, 1);
    assert_int_equal(crw_env_read(&env), CRW_E_ENVIRONMENT);
    setenv("MASTER_ADDR", text + sizeof(text) - sizeof(env.master_addr), 1);
    assert_int_equal(crw_env_read(&env), 0);
    assert_int_equal(strlen(env.master_addr), sizeof(env.master_addr) - 1);
    setenv("TORCHELASTIC_RUN_ID", text, 1);
    assert_int_equal(crw_env_read(&env), CRW_E_ENVIRONMENT);
}

static void reads_the_time_limit(void **state)
{
    int timeout_ms = 0;

    assert_int_equal(env_timeout_ms(&timeout_ms), 0);
    assert_int_equal(timeout_ms, 30 * 60 * 1000);
    setenv("CRW_TIMEOUT_MS", "250", 1);
    assert_int_equal(env_timeout_ms(&timeout_ms), 0);
    assert_int_equal(timeout_ms, 250);
    setenv("CRW_TIMEOUT_MS", "0", 1);
    assert_int_equal(env_timeout_ms(&timeout_ms), CRW_E_ENVIRONMENT);
    setenv("CRW_TIMEOUT_MS", "1s", 1);
    assert_int_equal(env_timeout_ms(&timeout_ms), CRW_E_ENVIRONMENT);
    assert_int_equal(timeout_ms, 250);
}

/* What the user sets counts before what crun does. */
static void reads_whether_to_encrypt(void **state)
{
    static const struct {
        const char *own, *of_crun;
        int result;
        bool encrypts;
    } cases[] = {
        {NULL, NULL, 0, false}, {"1", NULL, 0, true},
        {"0", "1", 0, false},   {NULL, "1", 0, true},
        {"", "1", 0, true},     {NULL, "0", 0, false},
        {"1", "0", 0, true},    {"yes", "1", CRW_E_ENVIRONMENT, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool encrypts = !cases[i].encrypts;

        unsetenv("CRW_ENCRYPT");
        unsetenv("CRUN_SEAL");
        if (cases[i].own)
            setenv("CRW_ENCRYPT", cases[i].own, 1);
        if (cases[i].of_crun)
            setenv("CRUN_SEAL", cases[i].of_crun, 1);
        assert_int_equal(env_encrypt(&encrypts), cases[i].result);
        assert_int_equal(encrypts, cases[i].encrypts);
    }
    unsetenv("CRW_ENCRYPT");
    unsetenv("CRUN_SEAL");
}

static void has_a_version(void **state)
{
    assert_string_equal(crw_version(), CRW_VERSION);
}

static void reads_addresses(void **state)
{
    struct crw_env env;
    char longest[400];

    assert_int_equal(env_from_address("tcp://node0.example:29500", 2, 3, &env), 0);
    assert_string_equal(env.master_addr, "node0.example");
    assert_int_equal(env.master_port, 29500);
    assert_true(!env.launched && env.rank == 2 && env.world_size == 3);
    assert_true(env.local_rank == 2 && env.local_world_size == 3 && env.notice_fd == -1);
    assert_int_equal(env_from_address("tcp://[fe80::1]:65535", 0, 1, &env), 0);
    assert_string_equal(env.master_addr, "fe80::1");
    assert_int_equal(env.master_port, 65535);
    (void)snprintf(longest, sizeof(longest), "tcp://%0255d:123", 0);
    assert_int_equal(env_from_address(longest, 0, 1, &env), 0);
    assert_int_equal(strlen(env.master_addr), 255);
    (void)snprintf(longest, sizeof(longest), "tcp://%0256d:123", 0);
    assert_int_equal(env_from_address(longest, 0, 1, &env), CRW_E_ARGUMENT);
}

static void refuses_other_addresses(void **state)
{
    static const char *const wrong[] = {
        "",
        "tcp://",
        "tcp://host",
        "host:1",
        "tcp://:1",
        "tcp://host:",
        "tcp://h:0",
        "tcp://h:65536",
        "tcp://h:1x",
        "tcp://h:-1",
        "tcp://[]:1",
        "tcp://[::1:1",
        "tcp://::1:1",
        "udp://h:1",
        "TCP://host:1",
        "tcp://[x]y:1",
    };
    struct crw_env env;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (env_from_address(wrong[i], 0, 1, &env) != CRW_E_ARGUMENT)
            fail_msg("\"%s\" was accepted", wrong[i]);
        assert_non_null(strstr(crw_error_message(), "tcp://127.0.0.1:29500"));
    }
    assert_int_equal(env_from_address("tcp://h:1", 1, 1, &env), CRW_E_ARGUMENT);
    assert_int_equal(env_from_address("tcp://h:1", -1, 1, &env), CRW_E_ARGUMENT);
    assert_int_equal(env_from_address("tcp://h:1", 0, 0, &env), CRW_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(reads_what_torchrun_sets, launched),
        cmocka_unit_test_setup(reads_the_notice_fd, launched),
        cmocka_unit_test_setup(is_a_world_of_one_without_rank, launched),
        cmocka_unit_test(reads_addresses),
        cmocka_unit_test(refuses_other_addresses),
        cmocka_unit_test_setup(one_rank_needs_no_store, launched),
        cmocka_unit_test_setup(refuses_and_names_the_variable, launched),
        cmocka_unit_test_setup(refuses_text_that_does_not_fit, launched),
        cmocka_unit_test_setup(reads_the_time_limit, launched),
        cmocka_unit_test(reads_whether_to_encrypt),
        cmocka_unit_test(has_a_version),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
