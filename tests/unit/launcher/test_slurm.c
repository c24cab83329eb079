/* Slurm's host lists, and what a step's environment means for a command line. */

#include <stdlib.h>
#include <string.h>

#include "launcher/cli/job.h"
#include "launcher/cli/slurm.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

/* ------------------------------------------------------------------ host lists */

/* As `scontrol show hostnames` prints them. */
static void test_lists(void **state)
{
    static const struct {
        const char *list, *names; /* with spaces; NULL: it is none */
    } cases[] = {
        {"n1", "n1"},
        {"n1,n2", "n1 n2"},
        {"n[1-3]", "n1 n2 n3"},
        {"n[001-003,7],login", "n001 n002 n003 n7 login"},
        {"n[8-11]", "n8 n9 n10 n11"},
        {"n[08-11]", "n08 n09 n10 n11"},
        {"n[099-101]", "n099 n100 n101"},
        {"r[0-1]n[0-2]", "r0n0 r0n1 r0n2 r1n0 r1n1 r1n2"},
        {"a[1,3]b[05,07-08]c", "a1b05c a1b07c a1b08c a3b05c a3b07c a3b08c"},
        {"n[1-2]-ib.example.org", "n1-ib.example.org n2-ib.example.org"},
        {"n[0]", "n0"},
        {"n[5-5]", "n5"},
        {"10.0.0.[1-2]", "10.0.0.1 10.0.0.2"},
        {"", NULL},
        {",", NULL},
        {"n1,", NULL},
        {",n1", NULL},
        {"n1,,n2", NULL},
        {"n[", NULL},
        {"n[]", NULL},
        {"n[1", NULL},
        {"n[1-", NULL},
        {"n[1-]", NULL},
        {"n[-1]", NULL},
        {"n[1,]", NULL},
        {"n[3-1]", NULL},
        {"n[1-2-3]", NULL},
        {"n[a]", NULL},
        {"n]1", NULL},
        {"n[[1]]", NULL},
        {"n 1", NULL},
        {"n1;rm", NULL},
        {"n[1-65537]", NULL},
        {"n[0-999999999]", NULL},
        {"n[0-9999999999]", NULL},
        {"n[1-1000]r[1-1000]", NULL},
        {"a[1]b[1]c[1]d[1]e[1]f[1]g[1]h[1]", "a1b1c1d1e1f1g1h1"},
        {"a[1]b[1]c[1]d[1]e[1]f[1]g[1]h[1]i[1]", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char said[1024] = "", name[HOSTLIST_NAME_SIZE];
        struct hostlist_reader r;
        int n = 0;

        print_message("%s\n", cases[i].list);
        assert_int_equal(hostlist_begin(&r, cases[i].list), cases[i].names != NULL);
        if (!cases[i].names) {
            assert_int_equal(hostlist_count(cases[i].list), -1);
            continue;
        }
        for (; hostlist_next(&r, name); n++) {
            strcat(said, n ? " " : "");
            strcat(said, name);
        }
        assert_string_equal(said, cases[i].names);
        assert_int_equal(hostlist_count(cases[i].list), n);
        assert_false(hostlist_next(&r, name));
    }
}

static void test_bounds(void **state)
{
    char name[HOSTLIST_NAME_SIZE], last[HOSTLIST_NAME_SIZE] = "", longest[400];
    struct hostlist_reader r;

    assert_int_equal(hostlist_count("n[1-65536]"), HOSTLIST_MAX);
    assert_int_equal(hostlist_count("n[1-65536],m"), -1);
    assert_true(hostlist_begin(&r, "n[1-256]r[1-256]"));
    while (hostlist_next(&r, name))
        strcpy(last, name);
    assert_string_equal(last, "n256r256");
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(hostlist_count(longest), -1);
    assert_int_equal(hostlist_count(longest + sizeof(longest) - 150), 1);
}

/* ------------------------------------------------------------------ steps */

#define STEP "SLURM_JOB_ID=1234", "SLURM_STEP_ID=2", "SLURM_PROCID=0"

static void test_steps(void **state)
{
    static const struct {
        const char *environment[6];
        int result;
        const char *host;
    } cases[] = {
        {{STEP, "SLURM_STEP_NODELIST=gpu[08-11]"}, 0, "gpu08"},
        {{STEP, "SLURM_JOB_NODELIST=b,a"}, 0, "b"},
        {{STEP, "SLURM_JOB_NODELIST=x[1-2]", "SLURM_STEP_NODELIST=y[1-2]"}, 0, "y1"},
        {{STEP, "SLURM_STEP_NODELIST=one"}, SLURM_E_NONE, NULL},
        {{STEP, "SLURM_STEP_NODELIST=n["}, SLURM_E_BAD, NULL},
        {{STEP}, SLURM_E_NONE, NULL},
        {{"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1-2]"}, SLURM_E_NONE, NULL}, /* an interactive shell */
        {{NULL}, SLURM_E_NONE, NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *variable;
        struct slurm found;

        assert_int_equal(slurm_find((char *const *)(uintptr_t)cases[i].environment, &found, &variable),
                         cases[i].result);
        if (cases[i].result != 0)
            continue;
        assert_string_equal(found.host, cases[i].host);
        assert_string_equal(found.job_id, "1234");
        assert_int_equal(found.port, SLURM_PORT_FIRST + (1234 * 16 + 2) % SLURM_PORTS);
    }
}

static int count(void *data)
{
    return 1;
}

struct outcome {
    struct job job;
    char *warnings;
    char error[JOB_ERROR_SIZE];
    int result;
};

static struct outcome make_job(const char *const *words, const char *const *environment)
{
    const struct job_machine machine = {.count_cpus = count, .count_gpus = count, .random_id = "uuid"};
    char usage[OPTIONS_ERROR_SIZE];
    struct options options;
    struct outcome o = {.result = 0};

    assert_int_equal(options_parse((char *const *)(uintptr_t)words, (char *const *)(uintptr_t)environment,
                                   &options, usage),
                     0);
    o.result =
        job_init(&o.job, &options, (char *const *)(uintptr_t)environment, &machine, &o.warnings, o.error);
    return o;
}

static void part(struct outcome *o)
{
    job_finish(&o->job);
    free(o->warnings);
}

/* srun crun --nnodes=2 ./train */
static void test_default_endpoint(void **state)
{
    static const char *const environment[] = {STEP, "SLURM_STEP_NODELIST=n[1-2]", NULL};
    struct outcome o = make_job((const char *[]){"--nnodes=2", "x", NULL}, environment);

    assert_int_equal(o.result, 0);
    assert_int_equal(o.job.meeting, JOB_ROUNDS);
    assert_string_equal(o.job.endpoints[0].host, "n1");
    assert_int_equal(o.job.endpoints[0].port, SLURM_PORT_FIRST + (1234 * 16 + 2) % SLURM_PORTS);
    assert_int_equal(strcmp(o.job.run_id, "uuid") != 0, 1);
    assert_memory_equal(o.job.run_id, "slurm-1234.2", sizeof("slurm-1234.2"));
    assert_non_null(strstr(o.warnings, "n1:"));
    part(&o);
}

static void test_what_the_user_says_wins(void **state)
{
    static const char *const environment[] = {STEP, "SLURM_STEP_NODELIST=n[1-2]", NULL};
    struct outcome o = make_job((const char *[]){"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:7",
                                                 "--rdzv-id=mine", "x", NULL},
                                environment);

    assert_int_equal(o.result, 0);
    assert_string_equal(o.job.endpoints[0].host, "h");
    assert_int_equal(o.job.endpoints[0].port, 7);
    assert_string_equal(o.job.run_id_text, "mine");
    part(&o);
    o = make_job((const char *[]){"--nnodes=2", "--rdzv-id=mine", "x", NULL}, environment);
    assert_string_equal(o.job.endpoints[0].host, "n1");
    assert_string_equal(o.job.run_id_text, "mine");
    part(&o);
    o = make_job((const char *[]){"--nnodes=2", "--master-addr=h", "--master-port=7", "x", NULL},
                 environment);
    assert_int_equal(o.job.meeting, JOB_STATIC);
    part(&o);
    o = make_job((const char *[]){"--standalone", "x", NULL}, environment);
    assert_int_equal(o.job.meeting, JOB_ALONE);
    part(&o);
    o = make_job((const char *[]){"x", NULL}, environment); /* one node was asked for */
    assert_int_equal(o.job.meeting, JOB_ALONE);
    part(&o);
}

static void test_a_list_that_cannot_be_read(void **state)
{
    static const char *const environment[] = {STEP, "SLURM_STEP_NODELIST=n[1-2", NULL};
    struct outcome o = make_job((const char *[]){"--nnodes=2", "x", NULL}, environment);

    assert_int_equal(o.result, 1);
    assert_non_null(strstr(o.error, "--rdzv-endpoint"));
    part(&o);
}

static void test_socket_of_munge(void **state)
{
    static const struct {
        const char *conf, *socket;
    } cases[] = {
        {"", ""},
        {"AuthInfo=socket=/run/m", "/run/m"},
        {"ClusterName=a\nauthinfo=cred_expire=10,SOCKET=/run/m,ttl=3 # comment\n", "/run/m"},
        {"AuthType=auth/munge AuthInfo=socket=/run/m KillWait=3", "/run/m"},
        {"#AuthInfo=socket=/run/m", ""},
        {"AuthInfo=cred_expire=10", ""},
        {"AuthInfo=socket=", ""},
        {"AuthInfo=socket", ""},
        {"AuthInfo=\nsocket=/run/m", ""},
        {"XAuthInfo=socket=/run/m", ""},
        {"AuthInfo=socket=/run/1\nAuthInfo=socket=/run/2", "/run/2"},
        {"AuthInfo=socket=/a-path-of-more-bytes-than-an-address-of-a-unix-socket-has-room-for-which-is-one-hundred-and-eight/"
         "munge.socket",
         ""},
    };
    char found[MUNGE_SOCKET_SIZE];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        slurm_munge_socket(cases[i].conf, found);
        assert_string_equal(found, cases[i].socket);
    }
    slurm_munge_socket(NULL, found);
    assert_string_equal(found, "");
}

static void test_where_munge_may_be_used(void **state)
{
    static const char *const step[] = {STEP, "SLURM_STEP_NODELIST=n[1-2]", NULL};
    static const char *const no_step[] = {"HOME=/", NULL};
    static const struct {
        const char *const *environment;
        const char *option;
        bool may;
    } cases[] = {
        {step, "--nnodes=2", true},
        {step, "--rdzv-backend=c10d", true},
        {no_step, "--rdzv-backend=c10d", false},
        {step, "--master-port=7", false},
        {step, "--standalone", false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct outcome o = make_job(
            (const char *[]){strcmp(cases[i].option, "--standalone") == 0 ? "--nnodes=1" : "--nnodes=2",
                             cases[i].option, "x", NULL},
            cases[i].environment);
        assert_int_equal(o.result, 0);
        assert_int_equal(o.job.may_use_munge && o.job.meeting == JOB_ROUNDS, cases[i].may);
        part(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_default_endpoint),
        cmocka_unit_test(test_what_the_user_says_wins),
        cmocka_unit_test(test_a_list_that_cannot_be_read),
        cmocka_unit_test(test_socket_of_munge),
        cmocka_unit_test(test_where_munge_may_be_used),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
