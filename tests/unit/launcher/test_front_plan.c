/*
 * What command lines with --hosts become: the command for each host, the arguments and variables of its agent, or the sentence
 * that refuses them; and what is made of the standard error of ssh.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "launcher/front/front_plan.h"
#include "launcher/front/front_remedy.h"

#include "tests/support/c/cmocka_fixed.h"

enum { WORDS_MAX = 14 };

struct line {
    const char *words[WORDS_MAX];
    const char *environment[6];
    const char *python;
};

static int read_hosts_file(void *data, const char *path, char **ret_text)
{
    if (strcmp(path, "/hosts") != 0)
        return -ENOENT;
    *ret_text = strdup("a slots=2\nb slots=4\n");
    return 0;
}

static int make(const struct line *line, struct options *options, struct front_plan *plan, char *error)
{
    static const struct bootstrap_build builds[] = {{"x86_64", "cafe"}};
    char *const *environment = (char *const *)(uintptr_t)line->environment;
    const struct front_machine machine = {.version = "1",
                                          .executable = "/opt/crun",
                                          .directory = "/here",
                                          .environment = environment,
                                          .python = line->python,
                                          .random_id = "uuid",
                                          .builds = builds,
                                          .n_builds = 1,
                                          .files = {.read = read_hosts_file}};

    if (options_parse((char *const *)(uintptr_t)line->words, environment, options, error) != 0)
        fail_msg("%s", error);
    assert_true(front_plan_is_wanted(options));
    return front_plan_make(plan, options, &machine, error);
}

/* Words with "|" between them. */
static char *join_words(const struct strlist *list)
{
    struct strbuf out = {0};

    for (size_t i = 0; i < list->n_items; i++)
        strbuf_add(&out, "%s%s", i ? "|" : "", list->items[i]);
    return strbuf_steal(&out);
}

static void expect_words(const struct strlist *list, const char *expected)
{
    char *found = join_words(list);

    assert_string_equal(found, expected);
    free(found);
}

/* ------------------------------------------------------------------ agents */

static const struct agent_row {
    struct line line;
    size_t host;
    const char *agent;
} agent_rows[] = {
    {{{"--hosts=a,b", "x.py", "--lr", "1"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--node-rank=0|--|x.py|--lr|1"},
    {{{"--hosts=a,b:8", "--", "x.py", "--", "y"}},
     1,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--nproc-per-node=8|--node-rank=1|--|x.py|--|y"},
    {{{"--hosts=a", "x"}},
     0,
     "--nnodes=1:1|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--|x"},
    {{{"--hosts=a:8,b", "--nproc-per-node=gpu", "x"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--nproc-per-node=gpu|--node-rank=0|--|x"},
    {{{"--hosts=a:8,b", "x"}, {"PET_NPROC_PER_NODE=3"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--nproc-per-node=8|--node-rank=0|--|x"},
    {{{"--hosts=a:8,b", "x"}, {"PET_NPROC_PER_NODE=3"}},
     1,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--nproc-per-node=3|--node-rank=1|--|x"},
    {{{"--hostfile=/hosts", "x"}},
     1,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--nproc-per-node=4|--node-rank=1|--|x"},
    {{{"--hosts=auto", "x"}, {"LSB_MCPU_HOSTS=a 2 b 4"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--nproc-per-node=2|--node-rank=0|--|x"},
    /* spares; a crund; settings of the rendezvous */
    {{{"--hosts=a,b,c", "--nnodes=1:2", "--rdzv-conf=join_timeout=5", "--rdzv-id=j", "x"}},
     2,
     "--nnodes=1:2|--rdzv-backend=c10d|--rdzv-id=j|--rdzv-conf=join_timeout=5,is_host=0|--worker-store=local|--|x"},
    {{{"--hosts=a,b", "--nnodes=1:9", "x"}},
     0,
     "--nnodes=1:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--node-rank=0|--|x"},
    {{{"--hosts=a,b", "--nnodes=2:9", "--rdzv-endpoint=d:1,e:2", "--rdzv-backend=c10d",
       "--rdzv-conf=join_timeout=5", "x"}},
     1,
     "--nnodes=2:9|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=join_timeout=5|--rdzv-endpoint=d:1,e:2|--node-rank=1|--|x"},
    {{{"--hosts=a,b", "--rdzv-endpoint=d", "--tls-cert=c", "--tls-key=k", "--tls-ca=a", "x"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-endpoint=d|--node-rank=0|--tls-cert=c|--tls-key=k|--tls-ca=a|--|x"},
    /* keys that other users of a host can read: only when asked for */
    {{{"--hosts=a", "--security=open", "x"}},
     0,
     "--nnodes=1:1|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--security=open|--|x"},
    {{{"--hosts=a", "--worker-store=shared", "x"}},
     0,
     "--nnodes=1:1|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=shared|--|x"},
    /* options of the user, but for those of the front and of the output */
    {{{"--hosts=a,b", "-m", "--max_restarts", "3", "--debug", "--lease=2.5", "-r", "3", "-t3", "--log-dir=l",
       "--line-prefix=host", "x"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--node-rank=0|--max-restarts=3|--lease=2.5|--module|"
     "--debug|--|x"},
    {{{"--hosts=a,b", "--launch=ssh", "--export=A=1", "--chdir=/w", "--no-copy", "--debug=/f",
       "--fold-output", "--local-ranks-filter=0", "--duplicate-stdout-filters=x",
       "--duplicate-stderr-filters=y", "--log-line-prefix-template=z", "--secret-file=s", "x"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--node-rank=0|--debug=/f|--|x"},
    {{{"--hosts=a", "--local-addr=10.1.0.0/16", "x"}},
     0,
     "--nnodes=1:1|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--local-addr=10.1.0.0/16|--|x"},
    {{{"--hosts=a,b", "--role=a b", "x"}, {"PET_MAX_RESTARTS=2", "PET_RUN_PATH=1", "PET_STANDALONE=0"}},
     0,
     "--nnodes=2:2|--rdzv-backend=c10d|--rdzv-id=uuid|--rdzv-conf=is_host=0|--worker-store=local|--node-rank=0|--max-restarts=2|--role=a b|--run-path|"
     "--|x"},
};

/* An agent accepts its own words, and finds the program and the arguments of the user. */
static void expect_readable(const struct strlist *agent, const struct options *options)
{
    char error[OPTIONS_ERROR_SIZE], *nothing = NULL;
    struct options again;

    assert_int_equal(options_parse(agent->items, &nothing, &again, error), 0);
    assert_string_equal(again.program, options->program);
    for (size_t i = 0; options->program_args[i] || again.program_args[i]; i++)
        assert_string_equal(again.program_args[i], options->program_args[i]);
}

static void test_agents(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(agent_rows); i++) {
        char error[FRONT_ERROR_SIZE] = "";
        struct options options;
        struct front_plan plan;

        if (make(&agent_rows[i].line, &options, &plan, error) != 0)
            fail_msg("row %zu: %s", i, error);
        expect_words(&plan.hosts[agent_rows[i].host].agent, agent_rows[i].agent);
        expect_readable(&plan.hosts[agent_rows[i].host].agent, &options);
        front_plan_finish(&plan);
    }
}

static void test_ranks(void **state)
{
    static const struct {
        struct line line;
        int n_ranks;
    } rows[] = {
        {{{"--hosts=a,b,c", "x"}}, 3},
        {{{"--hosts=a,b,c", "--nproc-per-node=4", "x"}}, 12},
        {{{"--hosts=a,b,c", "--nnodes=1:2", "--nproc-per-node=4", "x"}}, 8},
        {{{"--hosts=a:8,b", "x"}, {"PET_NPROC_PER_NODE=3"}}, 11},
        {{{"--hosts=a:8,b", "x"}, {"PET_NPROC_PER_NODE=gpu"}}, 0},
        {{{"--hosts=a,b:8", "x"}, {"PET_NPROC_PER_NODE=gpu"}}, 0},
        {{{"--hosts=a,b", "--nproc-per-node=auto", "x"}}, 0},
        {{{"--hosts=a,b", "--nproc-per-node=99999999999", "x"}}, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char error[FRONT_ERROR_SIZE] = "";
        struct options options;
        struct front_plan plan;

        if (make(&rows[i].line, &options, &plan, error) != 0)
            fail_msg("row %zu: %s", i, error);
        if (plan.n_ranks != rows[i].n_ranks)
            fail_msg("row %zu: %d ranks", i, plan.n_ranks);
        front_plan_finish(&plan);
    }
}

/* Each option with a value survives the way through words, but for those of the front. */
static void test_rendered_options(void **state)
{
    struct options options = {.program = "x"}, again;
    struct strlist words = {0};
    char error[OPTIONS_ERROR_SIZE], *nothing = NULL;

    options.repeated[options.n_repeated++] = "a=stop";
    options.repeated[options.n_repeated++] = "=mark";
    for (enum option_id id = 0; id < OPTION_PRINT_COMPLETION; id++) {
        const struct option_spec *spec = &options_table[id];
        bool is_flag = spec->kind == OPTION_FLAG,
             is_number = spec->kind == OPTION_INT || spec->kind == OPTION_SECONDS;
        char *first = spec->choices ? strndup(spec->choices, strcspn(spec->choices, " "))
                                    : strdup(is_number ? "7" : "-a=b, c");
        options.value[id] =
            (struct option_value){.set = true, .flag = is_flag, .text = is_flag ? NULL : first};
        if (is_flag)
            free(first);
    }
    options_render(&options, &words);
    strlist_add_copy(&words, "--");
    strlist_add_copy(&words, "x");
    if (options_parse(words.items, &nothing, &again, error) != 0)
        fail_msg("%s", error);
    for (enum option_id id = 0; id < OPTION_PRINT_COMPLETION; id++) {
        bool is_rendered = option_has_side(id, OPTION_SIDE_AGENTS);
        assert_true(again.value[id].set == is_rendered &&
                    (again.value[id].flag == options.value[id].flag || !is_rendered));
        if (options.value[id].text && !options_table[id].repeats && is_rendered)
            assert_string_equal(again.value[id].text, options.value[id].text);
        free((char *)(uintptr_t)options.value[id].text);
    }
    assert_int_equal(again.n_repeated, 2);
    assert_string_equal(again.repeated[1], "=mark");
    strlist_finish(&words);
}

/* ------------------------------------------------------------------ launch commands */

#define SSH "-T|-o|BatchMode=yes|-o|ConnectTimeout=10|-o|ServerAliveInterval=7|"
#define SRUN                                                                                                 \
    "--quiet|--nodes=1|--ntasks=1|--ntasks-per-node=1|--overlap|--unbuffered|--cpu-bind=none|--input=all|"

/* "$" stands for the bootstrap as a line for a shell, "$$" for "/bin/sh|-c|" and the script. */
static const struct launch_row {
    const char *hosts, *launch, *argv;
    enum front_launch kind;
} launch_rows[] = {
    {"a", NULL, "ssh|" SSH "a|exec|$", FRONT_LAUNCH_SSH},
    {"u@a", "--launch=ssh", "ssh|" SSH "u@a|exec|$", FRONT_LAUNCH_SSH},
    {"u@[fd00::2]:3", "--launch=ssh", "ssh|" SSH "u@fd00::2|exec|$", FRONT_LAUNCH_SSH},
    {"a", "--launch= /usr/bin/ssh  -p 22", "/usr/bin/ssh|" SSH "-p|22|a|exec|$", FRONT_LAUNCH_SSH},
    {"u@a", "--launch=ssh -J gate-{host} {host}", "ssh|" SSH "-J|gate-u@a|u@a|exec|$", FRONT_LAUNCH_SSH},
    {"a", "--launch=ssh -oConnectTimeout=3 -oServerAliveInterval=0",
     "ssh|-T|-o|BatchMode=yes|-oConnectTimeout=3|-oServerAliveInterval=0|a|exec|$", FRONT_LAUNCH_SSH},
    {"a", "--launch=ssh {host} sudo -n {command}", "ssh|" SSH "a|sudo|-n|$", FRONT_LAUNCH_SSH},
    {"a", "--launch=srun", "srun|" SRUN "--nodelist=a|$$", FRONT_LAUNCH_SRUN},
    {"a", "--launch=srun --mpi=none", "srun|" SRUN "--mpi=none|--nodelist=a|$$", FRONT_LAUNCH_SRUN},
    {"a", "--launch=srun -w {host}", "srun|-w|a|$$", FRONT_LAUNCH_COMMAND},
    {"a", "--launch=kubectl exec -i {host} --", "kubectl|exec|-i|a|--|$$", FRONT_LAUNCH_COMMAND},
    {"a", "--launch=rsh {host} {command}", "rsh|a|$", FRONT_LAUNCH_COMMAND},
    {"a", "--launch=x {host}{host}:{host} {commands}", "x|aa:a|{commands}|$$", FRONT_LAUNCH_COMMAND},
};

static void test_launch(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(launch_rows); i++) {
        const struct launch_row *row = &launch_rows[i];
        const struct line line = {.words = {"--hosts", row->hosts, row->launch ? row->launch : "x", "x"}};
        char error[FRONT_ERROR_SIZE] = "", *command;
        struct strbuf expected = {0};
        struct options options;
        struct front_plan plan;

        if (make(&line, &options, &plan, error) != 0)
            fail_msg("%s: %s", row->launch, error);
        command = bootstrap_command(plan.script);
        size_t n = strcspn(row->argv, "$");
        strbuf_add(&expected, "%.*s%s%s", (int)n, row->argv, row->argv[n + 1] ? "/bin/sh|-c|" : "",
                   row->argv[n + 1] ? plan.script : command);
        char *text = strbuf_steal(&expected);
        expect_words(&plan.hosts[0].launch, text);
        assert_int_equal(plan.launch, row->kind);
        free(text);
        free(command);
        front_plan_finish(&plan);
    }
}

/* ------------------------------------------------------------------ variables and the rest */

static const struct variable_row {
    struct line line;
    const char *variables;
} variable_rows[] = {
    {{{"--hosts=a", "x"}, {"PATH=/p", "HOME=/h", "VIRTUAL_ENV=/v", "VIRTUAL_ENV_PROMPT=x"}},
     "PATH=/p|VIRTUAL_ENV=/v"},
    {{{"--hosts=a", "x"}, {"NCCL_DEBUG=INFO", "TORCHELASTIC_X=1", "TORCH_X=1", "CUDA_VISIBLE_DEVICES="}},
     "NCCL_DEBUG=INFO|TORCH_X=1|CUDA_VISIBLE_DEVICES="},
    {{{"--hosts=a", "x"},
      {"CRUN_SECRET=s", "CRUN_SECRET_FILE=f", "OMP_NUM_THREADS=2", "HF_HOME=/f", "CONDA_PREFIX=/c"}},
     "OMP_NUM_THREADS=2|HF_HOME=/f|CONDA_PREFIX=/c"},
    {{{"--hosts=a", "--export=A,B=x=y,,z,PATH=/q", "x"}, {"A=1", "PATH=/p", "PATHS=/r"}},
     "A=1|B=x=y,z|PATH=/q"},
    {{{"--hosts=a", "--export=A=", "x"}, {"A=1"}}, "A="},
    {{{"--hosts=a", "x"}, {"PATH=/p"}, "/p/python3"}, "PATH=/p|PYTHON_EXEC=/p/python3"},
    {{{"--hosts=a", "x"}, {"PYTHON_EXEC=/mine"}, "/p/python3"}, "PYTHON_EXEC=/mine"},
    {{{"--hosts=a", "--export=PYTHON_EXEC=/theirs", "x"}, {"PYTHON_EXEC=/mine"}, "/p/python3"},
     "PYTHON_EXEC=/theirs"},
    {{{"--hosts=a", "--launch=srun", "--export=A=2", "x"}, {"PATH=/p"}, "/p/python3"},
     "A=2|PYTHON_EXEC=/p/python3"},
};

static void test_variables(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(variable_rows); i++) {
        char error[FRONT_ERROR_SIZE] = "";
        struct options options;
        struct front_plan plan;

        if (make(&variable_rows[i].line, &options, &plan, error) != 0)
            fail_msg("row %zu: %s", i, error);
        char words[4096];
        const char *expected = variable_rows[i].variables;
        (void)snprintf(words, sizeof(words), "%s%sCRUN_ADMITTED=1", expected, *expected ? "|" : "");
        expect_words(&plan.variables, words);
        front_plan_finish(&plan);
    }
}

static void test_rest(void **state)
{
    static const struct line lines[] = {
        {{"--hosts=a,b,c", "--nnodes=2:2", "--chdir=/w", "--rdzv-id=j", "--security=open",
          "--rdzv-endpoint=d", "x"}},
        {{"--hosts=a,b", "--no-copy", "x"}},
        {{"--hosts=a,b", "--worker-store=shared", "x"}},
        {{"--hosts=a,b", "--security=open", "x"}},
        {{"--hosts=a,b", "--rdzv-endpoint=d", "x"}},
    };
    char error[FRONT_ERROR_SIZE];
    struct options options;
    struct front_plan plan;

    assert_int_equal(make(&lines[0], &options, &plan, error), 0);
    assert_true(plan.list.n == 3 && plan.min_nodes == 2 && plan.max_nodes == 2 && plan.is_open &&
                !plan.hosts_rendezvous);
    assert_string_equal(plan.directory, "/w");
    assert_string_equal(plan.job_id, "j");
    assert_non_null(strstr(plan.script, "x86_64) h=cafe;;"));
    front_plan_finish(&plan);
    assert_int_equal(make(&lines[1], &options, &plan, error), 0);
    assert_true(plan.min_nodes == 2 && plan.max_nodes == 2 && !plan.is_open && plan.hosts_rendezvous &&
                plan.admits);
    assert_string_equal(plan.directory, "/here");
    assert_null(strstr(plan.script, "CRUN-NEEDS"));
    front_plan_finish(&plan);
    for (size_t i = 2; i < ARRAY_SIZE(lines); i++) { /* agents prove a secret, or nothing */
        assert_int_equal(make(&lines[i], &options, &plan, error), 0);
        assert_false(plan.admits);
        front_plan_finish(&plan);
    }
}

/* ------------------------------------------------------------------ refusals */

static const struct refusal_row {
    struct line line;
    const char *sentence; /* part of it */
} refusal_rows[] = {
    {{{"--hosts=a", "--hostfile=/hosts", "x"}}, "--hosts and --hostfile both name the hosts"},
    {{{"--hosts=a", "--standalone", "x"}}, "--standalone cannot be used with --hosts: "},
    {{{"--hosts=a", "--node-rank=0", "x"}}, "--node-rank cannot be used with --hosts: "},
    {{{"--hosts=a", "x"}, {"PET_NODE_RANK=0"}},
     "PET_NODE_RANK in the environment cannot be used with --hosts: "},
    {{{"--hosts=a", "--master-addr=m", "x"}}, "--master-addr cannot be used with --hosts: "},
    {{{"--hosts=a", "--master-port=1", "x"}}, "--master-port cannot be used with --hosts: "},
    {{{"--hosts=a", "--rdzv-backend=static", "x"}},
     "--rdzv-backend cannot be used with --hosts: hosts meet by c10d"},
    {{{"--hosts=a", "--rdzv-backend=etcd", "x"}}, "hosts meet by c10d"},
    {{{"--hosts=a", "--local-addr=x", "x"}},
     "--local-addr cannot be used with --hosts: an address is of one host; give the network"},
    {{{"--hosts=a", "--agent-fd=5"}}, "--agent-fd cannot be used with --hosts: "},
    {{{"--hosts=a", "--check-node"}}, "--check-node cannot be used with --hosts: "},
    {{{"--hosts=a", "-t3", "--on-line=x=stop", "x"}}, "--on-line cannot be used with --hosts: "},
    {{{"--hosts=a", "--tls-cert=c", "x"}}, "--tls-cert cannot be used with --hosts: "},
    {{{"--hosts=a", "--secret-file=c", "--security=open", "x"}},
     "--secret-file cannot be used with --hosts: "},
    {{{"--hosts=a b", "x"}}, "--hosts: 'a b' is no name of a host"},
    {{{"--hosts=auto", "x"}}, "--hosts=auto: no list of PBS, LSF, SGE or Slurm"},
    {{{"--hostfile=/none", "x"}}, "--hostfile=/none: No such file"},
    {{{"--hosts=a,b", "--nnodes=3", "x"}}, "--nnodes=3 needs 3 hosts, and 2 are named"},
    {{{"--hosts=a,b", "--nnodes=1", "x"}}, "--nnodes=1: a job of one node has no spare hosts"},
    {{{"--hosts=a,b", "--nnodes=x", "x"}}, "is not in \"MIN:MAX\" format"},
    {{{"--hosts=a,b", "--nnodes=0:2", "x"}}, "min_nodes must be > 0"},
    {{{"--hosts=a", "--launch=x", "x"}}, "--launch=x: the command needs the word {host}"},
    {{{"--hosts=a", "--launch=", "x"}}, "--launch=: the command needs"},
    {{{"--hosts=u@a", "--launch=srun", "x"}}, "--launch=srun: u@a: only ssh takes the name of a user"},
    {{{"--hosts=b,u@a", "--launch=x {host}", "x"}}, "u@a: only ssh"},
    {{{"--hosts=a", "--chdir=", "x"}}, "--chdir: a directory has a name"},
    {{{"--hosts=a", "--export=1A=2", "x"}}, "--export: '1A' is no name of a variable"},
    {{{"--hosts=a", "--export==2", "x"}}, "--export: '' is no name of a variable"},
    {{{"--hosts=a", "--export=A B=2", "x"}}, "--export: 'A B' is no name of a variable"},
    {{{"--hosts=a", "--export=NONE", "x"}}, "--export: NONE is not set here"},
    {{{"--hosts=a", "--export=CRUN_SECRET_FILE=f", "x"}}, "--export: CRUN_SECRET_FILE stays here"},
};

static void test_refusals(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(refusal_rows); i++) {
        char error[FRONT_ERROR_SIZE] = "";
        struct options options;
        struct front_plan plan;

        assert_int_equal(make(&refusal_rows[i].line, &options, &plan, error), 1);
        if (!strstr(error, refusal_rows[i].sentence))
            fail_msg("%s: %s", refusal_rows[i].sentence, error);
        assert_true(!plan.hosts && !plan.script && plan.list.n == 0);
    }
}

static void test_too_long(void **state)
{
    struct line line = {.words = {"--hosts=a", "x"}};
    char error[FRONT_ERROR_SIZE] = "";
    struct options options;
    struct front_plan plan;

    char *longer = malloc(70000);
    memset(longer, 'y', 69999);
    longer[69999] = '\0';
    line.words[2] = longer;
    assert_int_equal(make(&line, &options, &plan, error), 1);
    assert_non_null(strstr(error, "have at most 65536 bytes each"));
    free(longer);
}

/* ------------------------------------------------------------------ remedies */

static void test_remedies(void **state)
{
    static const struct {
        const char *printed, *expected; /* NULL: not known */
    } rows[] = {
        {"@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@\nHost key verification failed.\r\n",
         "its host key has changed: if that is expected, remove the old key (ssh-keygen -R n1) and run `ssh u@n1` once"},
        {"No ED25519 host key is known for n1 and you have requested strict checking.\r\nHost key verification failed.\r\n",
         "its host key is unknown: run `ssh u@n1` once"},
        {"u@n1: Permission denied (publickey,password).\r\n", "run `ssh-copy-id u@n1`"},
        {"ssh: Could not resolve hostname n1: Name or service not known\r\n", "its name has no address here"},
        {"ssh: connect to host n1 port 22: Connection refused\r\n", "no ssh server listens"},
        {"ssh: connect to host n1 port 22: Connection timed out\r\n", "it did not answer in time"},
        {"ssh: connect to host n1 port 22: No route to host\r\n", "no route leads to it"},
        {"kex_exchange_identification: Connection closed by remote host\r\n", "MaxStartups"},
        {"bash: line 1: exec: command not found\n", "a command that starts crun is missing on it"},
        {"srun: error: Unable to create step\n", "srun could not start a step on it"},
        {"srun: error: n1: task 0: Exited with exit code 1\n", ""},
        {"Welcome to n1\n", NULL},
        {"", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *remedy = front_remedy(rows[i].printed, "u@n1");
        assert_true(rows[i].expected ? remedy && strstr(remedy, rows[i].expected) : !remedy);
        assert_true(!remedy || !*remedy == !*rows[i].expected);
        free(remedy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agents),   cmocka_unit_test(test_rendered_options),
        cmocka_unit_test(test_launch),   cmocka_unit_test(test_variables),
        cmocka_unit_test(test_rest),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ranks),    cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_remedies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
