/*
 * Command lines, said and answered: what argparse does with torchrun's parser, and what crun must do.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/oci_call.h"
#include "launcher/cli/options.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

enum { WORDS_MAX = 12 };

struct said {
    const char *words[WORDS_MAX];
    const char *environment[4];
};

static int parse(const struct said *said, struct options *options, char error[OPTIONS_ERROR_SIZE])
{
    error[0] = '\0';
    return options_parse((char *const *)(uintptr_t)said->words, (char *const *)(uintptr_t)said->environment,
                         options, error);
}

/* ------------------------------------------------------------------ accepted */

struct accepted {
    struct said said;
    enum option_id id;
    const char *text; /* expected value; "on" and "off" for flags */
    const char *program;
    const char *args[4];
};

static const struct accepted accepted[] = {
    /* spellings */
    {{{"--nproc-per-node", "4", "x.py"}}, OPTION_NPROC_PER_NODE, "4", "x.py"},
    {{{"--nproc_per_node", "4", "x.py"}}, OPTION_NPROC_PER_NODE, "4", "x.py"},
    {{{"--nproc-per-node=4", "x.py"}}, OPTION_NPROC_PER_NODE, "4", "x.py"},
    {{{"--nproc_per_node=gpu", "x.py"}}, OPTION_NPROC_PER_NODE, "gpu", "x.py"},
    {{{"--nproc-per", "4", "x.py"}}, OPTION_NPROC_PER_NODE, "4", "x.py"},
    {{{"--standal", "x.py"}}, OPTION_STANDALONE, "on", "x.py"},
    {{{"--master-p=7", "x.py"}}, OPTION_MASTER_PORT, "7", "x.py"},
    {{{"--modul", "x"}}, OPTION_MODULE, "on", "x"},
    /* letters */
    {{{"-r", "3", "x.py"}}, OPTION_REDIRECTS, "3", "x.py"},
    {{{"-r3", "x.py"}}, OPTION_REDIRECTS, "3", "x.py"},
    {{{"-r=3", "x.py"}}, OPTION_REDIRECTS, "3", "x.py"},
    {{{"-mt", "3", "x"}}, OPTION_TEE, "3", "x"},
    {{{"-mt3", "x"}}, OPTION_TEE, "3", "x"},
    {{{"-mt3", "x"}}, OPTION_MODULE, "on", "x"},
    {{{"-t0:1,1:2", "x"}}, OPTION_TEE, "0:1,1:2", "x"},
    /* the last one wins */
    {{{"--role", "a", "--role=b", "x.py"}}, OPTION_ROLE, "b", "x.py"},
    {{{"--rdzv-conf", "a=1", "--rdzv_conf", "b=2", "x.py"}}, OPTION_RDZV_CONF, "b=2", "x.py"},
    /* values */
    {{{"--max-restarts", "-1", "x.py"}}, OPTION_MAX_RESTARTS, "-1", "x.py"},
    {{{"--rdzv-id=-x", "x.py"}}, OPTION_RDZV_ID, "-x", "x.py"},
    {{{"--rdzv-id", "", "x.py"}}, OPTION_RDZV_ID, "", "x.py"},
    {{{"--rdzv-id=", "x.py"}}, OPTION_RDZV_ID, "", "x.py"},
    {{{"--rdzv-id", "-a b", "x.py"}}, OPTION_RDZV_ID, "-a b", "x.py"},
    {{{"--rdzv-id", "-", "x.py"}}, OPTION_RDZV_ID, "-", "x.py"},
    {{{"--rdzv-conf", "a=b=c", "x.py"}}, OPTION_RDZV_CONF, "a=b=c", "x.py"},
    {{{"--log-l", "${rank}", "x.py"}}, OPTION_LOG_LINE_PREFIX_TEMPLATE, "${rank}", "x.py"},
    {{{"--monitor-interval", "1e-3", "x.py"}}, OPTION_MONITOR_INTERVAL, "1e-3", "x.py"},
    /* end of options */
    {{{"x.py", "--standalone", "-r", "3"}}, OPTION_STANDALONE, "off", "x.py", {"--standalone", "-r", "3"}},
    {{{"x.py", "--nproc", "3"}}, OPTION_STANDALONE, "off", "x.py", {"--nproc", "3"}},
    {{{"x.py", "--", "a", "--"}}, OPTION_STANDALONE, "off", "x.py", {"a", "--"}},
    {{{"x.py", "a", "--", "b"}}, OPTION_STANDALONE, "off", "x.py", {"a", "--", "b"}},
    {{{"--standalone", "--", "x.py", "--", "a"}}, OPTION_STANDALONE, "on", "x.py", {"--", "a"}},
    {{{"--", "-m", "mod"}}, OPTION_MODULE, "off", "-m", {"mod"}},
    {{{"-5", "a"}}, OPTION_MODULE, "off", "-5", {"a"}},
    {{{"-"}}, OPTION_MODULE, "off", "-"},
    /* PET_ */
    {{{"x.py"}, {"PET_NPROC_PER_NODE=3"}}, OPTION_NPROC_PER_NODE, "3", "x.py"},
    {{{"--nproc-per-node=2", "x.py"}, {"PET_NPROC_PER_NODE=3"}}, OPTION_NPROC_PER_NODE, "2", "x.py"},
    {{{"x.py"}, {"PET_NNODES="}}, OPTION_NNODES, "", "x.py"},
    {{{"x.py"}, {"PET_STANDALONE=1"}}, OPTION_STANDALONE, "on", "x.py"},
    {{{"x.py"}, {"PET_STANDALONE=0"}}, OPTION_STANDALONE, "off", "x.py"},
    {{{"--standalone", "x.py"}, {"PET_STANDALONE=0"}}, OPTION_STANDALONE, "on", "x.py"},
    {{{"x"}, {"PET_MODULE= 2 "}}, OPTION_MODULE, "on", "x"},
    {{{"x.py"}, {"PET_REDIRECTS=2"}}, OPTION_REDIRECTS, "2", "x.py"},
    {{{"x.py"}, {"PET_START_METHOD=odd"}}, OPTION_START_METHOD, "odd", "x.py"}, /* choices bind words only */
    {{{"x.py"}, {"PET_LOGS_SPECS=a"}}, OPTION_LOGS_SPECS, NULL, "x.py"},
    {{{"--max-restarts", "1", "x.py"}, {"PET_MAX_RESTARTS=bad"}},
     OPTION_MAX_RESTARTS,
     "1",
     "x.py"}, /* never read */
    /* defaults */
    {{{"x.py"}}, OPTION_NNODES, "1:1", "x.py"},
    {{{"x.py"}}, OPTION_RDZV_ID, "none", "x.py"},
    {{{"x.py"}}, OPTION_MASTER_PORT, NULL, "x.py"},
    {{{"x.py"}}, OPTION_SHUTDOWN_TIMEOUT, NULL, "x.py"},
    {{{"--exit-code=worker", "x.py"}}, OPTION_EXIT_CODE, "worker", "x.py"},
};

static void check_accepted(const struct accepted *a)
{
    struct options options;
    char error[OPTIONS_ERROR_SIZE];

    int r = parse(&a->said, &options, error);
    if (r)
        fail_msg("%s ...: refused: %s", a->said.words[0], error);
    const struct option_value *value = &options.value[a->id];
    if (options_table[a->id].kind == OPTION_FLAG)
        assert_string_equal(value->flag ? "on" : "off", a->text);
    else if (a->text)
        assert_string_equal(value->text, a->text);
    else
        assert_null(value->text);
    assert_string_equal(options.program, a->program);
    for (size_t i = 0; i < ARRAY_SIZE(a->args) && a->args[i]; i++)
        assert_string_equal(options.program_args[i], a->args[i]);
}

static void test_accepted(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(accepted); i++)
        check_accepted(&accepted[i]);
}

/* ------------------------------------------------------------------ refused */

static const struct {
    struct said said;
    int result;
    const char *error; /* part of the sentence */
} refused[] = {
    {{{NULL}},
     OPTIONS_E_USAGE,
     "the following arguments are required: training_script, training_script_args (no program is given)"},
    {{{"--standalone"}}, OPTIONS_E_USAGE, "the following arguments are required"},
    {{{"--"}}, OPTIONS_E_USAGE, "the following arguments are required"},
    {{{"--nproc", "2", "x.py"}},
     OPTIONS_E_USAGE,
     "ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node; they are one option: write it out"},
    {{{"--nproc=2", "x.py"}}, OPTIONS_E_USAGE, "ambiguous option: --nproc=2 could match"},
    {{{"--rdzv", "x.py"}}, OPTIONS_E_USAGE, "ambiguous option"},
    {{{"--role", "--standalone", "x.py"}}, OPTIONS_E_USAGE, "argument --role: expected one argument"},
    {{{"--rdzv-id", "-x", "x.py"}}, OPTIONS_E_USAGE, "argument --rdzv-id/--rdzv_id: expected one argument"},
    {{{"--rdzv-id", "--", "x.py"}}, OPTIONS_E_USAGE, "expected one argument"},
    {{{"-r"}}, OPTIONS_E_USAGE, "argument -r/--redirects: expected one argument"},
    {{{"--standalone=1", "x.py"}}, OPTIONS_E_USAGE, "argument --standalone: ignored explicit argument '1'"},
    {{{"-m3", "x"}}, OPTIONS_E_USAGE, "argument -m/--module: ignored explicit argument '3'"},
    {{{"--max-restarts", "x", "x.py"}},
     OPTIONS_E_USAGE,
     "argument --max-restarts/--max_restarts: invalid int value: 'x'"},
    {{{"--max-restarts", "1.5", "x.py"}}, OPTIONS_E_USAGE, "invalid int value: '1.5'"},
    {{{"--monitor-interval", "soon", "x.py"}}, OPTIONS_E_USAGE, "invalid float value: 'soon'"},
    {{{"--start-method", "odd", "x.py"}}, OPTIONS_E_USAGE, "invalid choice: 'odd'"},
    {{{"--start-method", "", "x.py"}}, OPTIONS_E_USAGE, "invalid choice: ''"},
    {{{"--exit-code=me", "x.py"}}, OPTIONS_E_USAGE, "invalid choice: 'me'"},
    {{{"x.py"}, {"PET_MASTER_PORT="}}, OPTIONS_E_USAGE, "invalid int value: ''"},
    {{{"x.py"}, {"PET_MAX_RESTARTS=two"}},
     OPTIONS_E_USAGE,
     "invalid int value: 'two'; it comes from PET_MAX_RESTARTS in the environment"},
    {{{"x.py"}, {"PET_STANDALONE=true"}}, OPTIONS_E_PET, "PET_STANDALONE='true'"},
    {{{"x.py"}, {"PET_STANDALONE="}}, OPTIONS_E_PET, "PET_STANDALONE=''"},
    {{{"--nope", "x.py"}}, OPTIONS_E_USAGE, "unrecognized arguments: --nope"},
    {{{"--nope", "-q", "x.py"}}, OPTIONS_E_USAGE, "unrecognized arguments: --nope -q"},
    {{{"--nope"}}, OPTIONS_E_USAGE, "the following arguments are required"},
    {{{"--hlep"}},
     OPTIONS_E_USAGE,
     "(no program is given); unrecognized arguments: --hlep; did you mean --help?"},
    {{{"--lr", "0.1", "x.py"}},
     OPTIONS_E_USAGE,
     "unrecognized arguments: --lr; options of the program stand behind its name"},
    {{{"-np", "2", "x.py"}}, OPTIONS_E_USAGE, "unrecognized arguments: -np; did you mean --nproc-per-node?"},
    {{{"-n", "2", "x.py"}}, OPTIONS_E_USAGE, "unrecognized arguments: -n; did you mean --nproc-per-node?"},
    {{{"--gpus=2", "x.py"}},
     OPTIONS_E_USAGE,
     "unrecognized arguments: --gpus=2; did you mean --nproc-per-node?"},
    {{{"-v"}}, OPTIONS_E_USAGE, "unrecognized arguments: -v; did you mean --version?"},
    {{{"--use_env", "x.py"}}, OPTIONS_E_USAGE, "--use_env; LOCAL_RANK is always in the environment"},
    {{{"--max-restart=1", "--maxrestarts=1", "x.py"}}, OPTIONS_E_USAGE, "did you mean --max-restarts?"},
    {{{"--nprco", "3", "x.py"}}, OPTIONS_E_USAGE, "did you mean --nproc-per-node?"},
    {{{"--exit", "worker", "x.py"}},
     OPTIONS_E_USAGE,
     "unrecognized arguments: --exit"}, /* ours has no prefixes */
    {{{"-h"}}, OPTIONS_E_HELP, ""},
    {{{"--help", "--nope"}}, OPTIONS_E_HELP, ""},
    {{{"-mh"}}, OPTIONS_E_HELP, ""},
    {{{"--version"}}, OPTIONS_E_VERSION, ""},
    {{{"--print-completion", "tcsh"}}, OPTIONS_E_COMPLETION, ""},
    {{{"--print_completion=fish", "--nope"}}, OPTIONS_E_COMPLETION, ""},
    {{{"--print-completion", "ksh"}}, OPTIONS_E_USAGE, "invalid choice: 'ksh'"},
    {{{"--log", "3", "x"}}, OPTIONS_E_USAGE, "ambiguous option: --log could match --log-dir,"},
};

static void test_refused(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        struct options options;
        char error[OPTIONS_ERROR_SIZE];

        int r = parse(&refused[i].said, &options, error);
        if (r != refused[i].result || !strstr(error, refused[i].error))
            fail_msg("case %zu: expected %d '%s', got %d '%s'", i, refused[i].result, refused[i].error, r,
                     error);
    }
}

/* ------------------------------------------------------------------ numbers and help */

static void test_int(void **state)
{
    static const struct {
        const char *text;
        bool fine;
        long long value;
    } cases[] = {
        {"7", true, 7},
        {" 7\n", true, 7},
        {"+7", true, 7},
        {"-7", true, -7},
        {"1_000", true, 1000},
        {"007", true, 7},
        {"", false},
        {"_1", false},
        {"1_", false},
        {"1__0", false},
        {"0x10", false},
        {"- 7", false},
        {"7a", false},
        {" ", false},
        {"9223372036854775807", true, INT64_MAX},
        {"9223372036854775808", false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        long long value = 0;
        bool fine = options_int(cases[i].text, &value);
        if (fine != cases[i].fine || value != cases[i].value)
            fail_msg("'%s': %d %lld", cases[i].text, fine, value);
    }
}

static void test_help_names_every_option(void **state)
{
    char *help = options_help(80);

    assert_non_null(help);
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "--%s", options_table[id].name);
        assert_non_null(options_table[id].help);
        assert_non_null(strstr(help, name));
    }
    for (const char *line = help; *line; line += strcspn(line, "\n") + 1)
        assert_in_range(strcspn(line, "\n"), 0, 80);
    assert_true(strstr(help, "--nnodes") < strstr(help, "\nSupervision:\n"));
    assert_true(strstr(help, "\nSupervision:\n") < strstr(help, "--max-restarts"));
    assert_true(strstr(help, "--version") <
                strstr(help, "\nWithout effect, for compatibility with torchrun:\n"));
    assert_non_null(strstr(strstr(help, "\nWithout effect"), "--monitor-interval"));
    free(help);
}

static void test_oci_calls(void **state)
{
    static const struct {
        const char *words[4];
        bool exists, answer;
    } cases[] = {
        {{"--root", "/run/crun", "state"}, false, true},
        {{"--root=/run/crun", "create"}, false, true},
        {{"--log", "/x", "delete"}, false, true},
        {{"--log=/x", "--log-format=json"}, false, true},
        {{"--log", "logs", "probe.py"}, false, false},
        {{"--lo", "x", "run"}, false, false},
        {{"--log-format=json"}, false, true},
        {{"--systemd-cgroup", "create"}, false, true},
        {{"--debug", "--root", "x"}, false, true},
        {{"delete", "--force", "id"}, false, true},
        {{"features"}, false, true},
        {{"run"}, false, true},
        {{"run", "x"}, true, false}, /* a script called run */
        {{"run.py"}, false, false},
        {{"./run"}, false, false},
        {{"--standalone", "run"}, false, false},
        {{"--no-python", "start"}, false, false},
        {{"--log-dir", "x", "run"}, false, false},
        {{"--log-dir=x"}, false, false},
        {{"--debug", "run"}, false, false},
        {{"--debug"}, false, false},
        {{"--nproc-per-node=2", "--log", "x"},
         false,
         false}, /* a prefix of two options: the error names them */
        {{"--rootless"}, false, false},
        {{"--"}, false, false},
        {{"-"}, false, false},
        {{NULL}, false, false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *words[4];

        memcpy(words, cases[i].words, sizeof(words));
        if (oci_call_is(words, cases[i].exists) != cases[i].answer)
            fail_msg("case %zu: %s", i, words[0] ? words[0] : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_int),       cmocka_unit_test(test_help_names_every_option),
        cmocka_unit_test(test_oci_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
