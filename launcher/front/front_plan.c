#include "launcher/front/front_plan.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/strbuf.h"
#include "launcher/cli/job_impl.h"
#include "launcher/front/channel_frame.h"
#include "launcher/util/envp.h"

static_assert((int)FRONT_ERROR_SIZE == JOB_ERROR_SIZE, "job_check_nodes() writes the same error");

struct plan_maker {
    struct front_plan *plan;
    const struct options *options;
    const struct front_machine *machine;
    struct job job; /* only the numbers of nodes are set */
    char *error;
};

__attribute__((format(printf, 2, 3))) static int front_refuse(struct plan_maker *m, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(m->error, FRONT_ERROR_SIZE, format, args); /* a cut sentence is still the best we have */
    va_end(args);
    return 1;
}

/* NULL: not given, or empty. */
static const char *front_text(const struct plan_maker *m, enum option_id id)
{
    const struct option_value *value = &m->options->value[id];

    return value->set && value->text && value->text[strspn(value->text, " \t\r\n")] ? value->text : NULL;
}

bool front_plan_is_wanted(const struct options *options)
{
    return options->value[OPTION_HOSTS].set || options->value[OPTION_HOSTFILE].set;
}

/* ---- options without a meaning for hosts ---- */

static const struct {
    enum option_id id;
    const char *reason;
} refused[] = {
    {OPTION_STANDALONE, "a standalone job has one node, this one"},
    {OPTION_NODE_RANK, "hosts are numbered in the order of their list"},
    {OPTION_MASTER_ADDR, "hosts meet at this crun, or at a crund (--rdzv-endpoint)"},
    {OPTION_MASTER_PORT, "hosts meet at this crun, or at a crund (--rdzv-endpoint)"},
    {OPTION_LOCAL_ADDR, "each host finds its own address"},
    {OPTION_AGENT_FD, "an agent that is another program runs on its own host"},
    {OPTION_ON_LINE, "rules act where a worker's lines are read, which is not the worker's host"},
    {OPTION_CHECK_NODE, "it checks this node; on the hosts --health-check=builtin checks"},
};

static int refuse_with_hosts(struct plan_maker *m, enum option_id id, const char *reason)
{
    char pet[OPTION_NAME_SIZE];

    option_spell_pet(id, pet);
    return m->options->value[id].pet
               ? front_refuse(m, "%s in the environment cannot be used with --hosts: %s", pet, reason)
               : front_refuse(m, "--%s cannot be used with --hosts: %s", options_table[id].name, reason);
}

static int check_combination(struct plan_maker *m)
{
    const char *backend = front_text(m, OPTION_RDZV_BACKEND);

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        const struct option_value *value = &m->options->value[refused[i].id];
        if (value->set && (options_table[refused[i].id].kind != OPTION_FLAG || value->flag))
            return refuse_with_hosts(m, refused[i].id, refused[i].reason);
    }
    if (backend && strcmp(backend, "c10d") != 0)
        return refuse_with_hosts(m, OPTION_RDZV_BACKEND, "hosts meet by c10d");
    if (m->plan->hosts_rendezvous && m->options->value[OPTION_TLS_CERT].set)
        return refuse_with_hosts(m, OPTION_TLS_CERT,
                                 "this crun makes a secret; certificates are for a crund (--rdzv-endpoint)");
    if (m->plan->is_open && m->options->value[OPTION_SECRET_FILE].set)
        return refuse_with_hosts(m, OPTION_SECRET_FILE, "--security=open uses no secret");
    return 0;
}

/* ---- hosts ---- */

static int read_hosts(struct plan_maker *m)
{
    const char *list = m->options->value[OPTION_HOSTS].text, *path = m->options->value[OPTION_HOSTFILE].text;
    const struct host_files *files = &m->machine->files;
    _cleanup_free_ char *text = NULL;
    char error[HOSTS_ERROR_SIZE];
    int r;

    if (list && path)
        return front_refuse(m, "--hosts and --hostfile both name the hosts: leave one of them out");
    if (list)
        r = strcmp(list, "auto") == 0
                ? host_list_from_scheduler(&m->plan->list, m->machine->environment, files, error)
                : host_list_parse(&m->plan->list, list, error);
    else {
        r = files->read(files->data, path, &text);
        if (r < 0)
            return front_refuse(m, "--hostfile=%s: %s", path, strerror(-r));
        r = host_list_parse_file(&m->plan->list, text, error);
    }
    if (r < 0)
        return list ? front_refuse(m, "--hosts: %s", error)
                    : front_refuse(m, "--hostfile=%s: %s", path, error);
    return 0;
}

static int count_nodes(struct plan_maker *m)
{
    struct job_builder builder = {.job = &m->job, .options = m->options, .error = m->error};
    struct front_plan *plan = m->plan;
    int n = (int)plan->list.n;

    plan->min_nodes = plan->max_nodes = n;
    if (!m->options->value[OPTION_NNODES].set)
        return 0;
    if (job_check_nodes(&builder) != 0)
        return 1;
    plan->min_nodes = m->job.min_nodes;
    plan->max_nodes = m->job.max_nodes;
    const char *text = m->options->value[OPTION_NNODES].text;
    if (n < plan->min_nodes)
        return front_refuse(m, "--nnodes=%s needs %d hosts, and %d are named", text, plan->min_nodes, n);
    if (plan->max_nodes == 1 && n > 1)
        return front_refuse(m, "--nnodes=%s: a job of one node has no spare hosts, and %d are named", text,
                            n);
    if (plan->hosts_rendezvous && plan->max_nodes > n)
        plan->max_nodes = n; /* no other host can come: nothing waits for more */
    return 0;
}

/* ---- arguments of the agents ---- */

/* Options of the front, and options that add_agent() writes anew; OPTION_COUNT closes the list. */
static const enum option_id of_front[] = {OPTION_HOSTS,
                                          OPTION_HOSTFILE,
                                          OPTION_LAUNCH,
                                          OPTION_EXPORT,
                                          OPTION_CHDIR,
                                          OPTION_NO_COPY,
                                          OPTION_NNODES,
                                          OPTION_NPROC_PER_NODE,
                                          OPTION_RDZV_BACKEND,
                                          OPTION_RDZV_ENDPOINT,
                                          OPTION_RDZV_ID,
                                          OPTION_RDZV_CONF,
                                          OPTION_STANDALONE,
                                          OPTION_SECRET_FILE,
                                          OPTION_LOG_DIR,
                                          OPTION_REDIRECTS,
                                          OPTION_TEE,
                                          OPTION_LOG_LINE_PREFIX_TEMPLATE,
                                          OPTION_LINE_PREFIX,
                                          OPTION_FOLD_OUTPUT,
                                          OPTION_LOCAL_RANKS_FILTER,
                                          OPTION_DUPLICATE_STDOUT_FILTERS,
                                          OPTION_DUPLICATE_STDERR_FILTERS,
                                          OPTION_COUNT};

static void add_meeting(struct plan_maker *m, struct strlist *out)
{
    const char *endpoint = front_text(m, OPTION_RDZV_ENDPOINT), *conf = front_text(m, OPTION_RDZV_CONF);

    strlist_add(out, "--nnodes=%d:%d", m->plan->min_nodes, m->plan->max_nodes);
    strlist_add(out, "--rdzv-backend=c10d");
    strlist_add(out, "--rdzv-id=%s", m->plan->job_id);
    if (m->plan->hosts_rendezvous)
        strlist_add(out, "--rdzv-conf=%s%sis_host=0", conf ? conf : "", conf ? "," : "");
    else if (conf)
        strlist_add(out, "--rdzv-conf=%s", conf);
    if (endpoint)
        strlist_add(out, "--rdzv-endpoint=%s", endpoint);
    if (m->plan->hosts_rendezvous && !m->plan->is_open && !m->options->value[OPTION_WORKER_STORE].set)
        strlist_add(out, "--worker-store=local"); /* other users of the hosts get no keys */
}

/* On the command line --nproc-per-node is for all hosts; else the slots of the host count. 0: no slots count. */
static int valid_slots(const struct plan_maker *m, size_t i)
{
    const struct option_value *n_workers = &m->options->value[OPTION_NPROC_PER_NODE];

    return !n_workers->set || n_workers->pet ? m->plan->list.hosts[i].slots : 0;
}

static void count_ranks(struct plan_maker *m)
{
    const struct option_value *n_workers = &m->options->value[OPTION_NPROC_PER_NODE];
    struct front_plan *plan = m->plan;
    long long n_each = 0;

    if (!options_int(n_workers->text, &n_each) || n_each > JOB_WORKERS_MAX)
        n_each = 0;
    for (size_t i = 0; i < plan->list.n && (int)i < plan->max_nodes; i++) {
        int n = valid_slots(m, i) ? valid_slots(m, i) : (int)n_each;

        plan->n_ranks = n > 0 ? plan->n_ranks + n : 0;
        if (n <= 0)
            return;
    }
}

static void add_agent(struct plan_maker *m, size_t i, struct strlist *out)
{
    const struct option_value *n_workers = &m->options->value[OPTION_NPROC_PER_NODE];
    int slots = valid_slots(m, i);

    add_meeting(m, out);
    if (slots)
        strlist_add(out, "--nproc-per-node=%d", slots);
    else if (n_workers->set)
        strlist_add(out, "--nproc-per-node=%s", n_workers->text);
    if ((int)i < m->plan->max_nodes && m->plan->max_nodes > 1)
        strlist_add(out, "--node-rank=%zu", i);
    options_render(m->options, of_front, out);
    strlist_add_copy(out, "--");
    strlist_add_copy(out, m->options->program);
    for (char *const *arg = m->options->program_args; *arg; arg++)
        strlist_add_copy(out, *arg);
}

/* ---- the launch command ---- */

/* Known programs: options to add behind the name of the program, and the host, to add at the end unless the user has named {host}. */
static const struct {
    const char *program, *options, *host;
} launchers[] = {
    [FRONT_LAUNCH_SSH] = {"ssh", "-T -o BatchMode=yes", "{host}"},
    /* Without --unbuffered srun holds output back until a newline comes. Without --cpu-bind=none a step of one task may get one CPU. */
    [FRONT_LAUNCH_SRUN] =
        {"srun",
         "--nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --unbuffered --cpu-bind=none --input=all",
         "--nodelist={host}"},
};

/* The command with all its words, {host} and {command} or {script} among them. */
static char *complete_command(const char *command, enum front_launch launch)
{
    size_t n = strcspn(command, " \t");
    bool is_known = launch != FRONT_LAUNCH_COMMAND, is_ssh = launch == FRONT_LAUNCH_SSH;
    struct strbuf out = {0};

    strbuf_add(&out, "%.*s %s", (int)n, command, is_known ? launchers[launch].options : "");
    if (is_ssh && !strcasestr(command, "ConnectTimeout"))
        strbuf_add(&out, " -o ConnectTimeout=10");
    if (is_ssh &&
        !strcasestr(command, "ServerAlive")) /* a network that breaks before the first frame of crun */
        strbuf_add(&out, " -o ServerAliveInterval=7");
    strbuf_add(&out, "%s %s", command + n,
               is_known && !strstr(command, "{host}") ? launchers[launch].host : "");
    if (!strstr(command, "{command}"))
        strbuf_add(&out, is_ssh ? " exec {command}" : " /bin/sh -c {script}");
    return strbuf_steal(&out);
}

static enum front_launch find_launch(const char *command)
{
    size_t n = strcspn(command, " \t");
    const char *slash = memrchr(command, '/', n), *name = slash ? slash + 1 : command;

    n -= (size_t)(name - command);
    if (n == 3 && strncmp(name, "ssh", n) == 0)
        return FRONT_LAUNCH_SSH;
    return n == 4 && strncmp(name, "srun", n) == 0 && !strstr(command, "{host}") ? FRONT_LAUNCH_SRUN
                                                                                 : FRONT_LAUNCH_COMMAND;
}

static char *fill_launch_word(const char *word, const char *script, const char *host)
{
    struct strbuf text = {0};

    if (strcmp(word, "{script}") == 0)
        return strdup(script);
    if (strcmp(word, "{command}") == 0)
        return bootstrap_command(script);
    for (const char *at; (at = strstr(word, "{host}")); word = at + strlen("{host}"))
        strbuf_add(&text, "%.*s%s", (int)(at - word), word, host);
    strbuf_add(&text, "%s", word);
    return strbuf_steal(&text);
}

static int make_launch(struct plan_maker *m, const char *command, size_t i)
{
    const struct host_entry *entry = &m->plan->list.hosts[i];
    struct strlist *out = &m->plan->hosts[i].launch;
    char *rest = NULL;

    if (entry->user && m->plan->launch != FRONT_LAUNCH_SSH)
        return front_refuse(m, "--launch=%s: %s@%s: only ssh takes the name of a user",
                            m->options->value[OPTION_LAUNCH].text, entry->user, entry->name);
    _cleanup_free_ char *words = strdup(command);
    char *host = strbuf_format("%s%s%s", entry->user ? entry->user : "", entry->user ? "@" : "", entry->name);
    m->plan->hosts[i].login = host;
    if (!words || !host)
        return front_refuse(m, "out of memory");
    for (char *word = strtok_r(words, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest))
        strlist_add_owned(out, fill_launch_word(word, m->plan->script, host));
    return 0;
}

static int make_hosts(struct plan_maker *m)
{
    const char *text =
        m->options->value[OPTION_LAUNCH].text + strspn(m->options->value[OPTION_LAUNCH].text, " \t\n");
    struct front_plan *plan = m->plan;
    int r = 0;

    plan->launch = find_launch(text);
    if (plan->launch == FRONT_LAUNCH_COMMAND && !strstr(text, "{host}"))
        return front_refuse(m, "--launch=%s: the command needs the word {host}, as ssh and srun do not",
                            text);
    _cleanup_free_ char *command = complete_command(text, plan->launch);
    plan->hosts = calloc(plan->list.n, sizeof(*plan->hosts));
    if (!command || !plan->hosts)
        return front_refuse(m, "out of memory");
    count_ranks(m);
    for (size_t i = 0; !r && i < plan->list.n; i++) {
        add_agent(m, i, &plan->hosts[i].agent);
        r = make_launch(m, command, i);
        if (!r && (plan->hosts[i].agent.failed || plan->hosts[i].launch.failed))
            r = front_refuse(m, "out of memory");
    }
    return r;
}

/* ---- environment ---- */

/* Whether NAME=VALUE goes to the hosts without --export. */
static bool travels_by_itself(const char *variable)
{
    static const char *const heads[] = {"PATH=", "VIRTUAL_ENV=", "CONDA_", "PYTHON", "CUDA_",
                                        "NCCL_", "TORCH_",       "OMP_",   "HF_"};

    for (size_t i = 0; i < ARRAY_SIZE(heads); i++)
        if (strncmp(variable, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

static bool is_variable_name(const char *name, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

    return n > 0 && strspn(name, letters) >= n && !(*name >= '0' && *name <= '9');
}

/* text: NAME or NAME=VALUE. */
static int export_variable(struct plan_maker *m, const char *text)
{
    size_t n = strcspn(text, "=");
    _cleanup_free_ char *name = strndup(text, n);

    if (!name)
        return front_refuse(m, "out of memory");
    if (!is_variable_name(name, n))
        return front_refuse(m, "--export: '%s' is no name of a variable", name);
    if (strncmp(name, "CRUN_SECRET", strlen("CRUN_SECRET")) == 0)
        return front_refuse(
            m, "--export: %s stays here: the hosts get the job's secret through their channels", name);
    const char *value = text[n] ? text + n + 1 : envp_get(m->machine->environment, name);
    if (!value)
        return front_refuse(m, "--export: %s is not set here; give --export=%s=VALUE", name, name);
    strlist_add(&m->plan->variables, "%s=%s", name, value);
    return 0;
}

/* Two commas stand for a comma in a value. */
static int export_variables(struct plan_maker *m)
{
    const char *text = front_text(m, OPTION_EXPORT);
    int r = 0;

    while (!r && text) {
        struct strbuf entry = {0};
        for (; *text && (*text != ',' || text[1] == ','); text++) {
            text += *text == ',';
            strbuf_add(&entry, "%c", *text);
        }
        text = *text ? text + 1 : NULL;
        _cleanup_free_ char *variable = strbuf_steal(&entry);
        r = variable ? export_variable(m, variable) : front_refuse(m, "out of memory");
    }
    return r;
}

/* srun passes the environment on, and Slurm sets CUDA_VISIBLE_DEVICES for each host. */
static int take_variables(struct plan_maker *m)
{
    struct strlist *variables = &m->plan->variables;
    char *const *e = m->machine->environment;
    int r = export_variables(m);
    size_t n_exported = variables->n_items;

    for (; !r && *e && m->plan->launch != FRONT_LAUNCH_SRUN; e++) {
        size_t n = strcspn(*e, "="), i = 0;
        while (i < n_exported && strncmp(variables->items[i], *e, n + 1) != 0)
            i++;
        if (i == n_exported && travels_by_itself(*e))
            strlist_add_copy(variables, *e);
    }
    if (!r && m->machine->python && !envp_get(m->machine->environment, "PYTHON_EXEC") &&
        !(variables->items && envp_get(variables->items, "PYTHON_EXEC")))
        strlist_add(variables, "PYTHON_EXEC=%s", m->machine->python);
    return variables->failed ? front_refuse(m, "out of memory") : r;
}

/* ---- the whole ---- */

/* Checks the bounds of a channel's header. */
static int check_sizes(struct plan_maker *m, const struct strlist *list, size_t *total)
{
    for (size_t i = 0; i < list->n_items; i++) {
        size_t n = strlen(list->items[i]);
        if (n > CHANNEL_PAYLOAD_MAX || (*total += n + CHANNEL_HEAD) > CHANNEL_HEADER_MAX)
            return front_refuse(
                m, "%.40s: variables and arguments for a host have at most %d bytes each, and %d in all",
                list->items[i], CHANNEL_PAYLOAD_MAX, CHANNEL_HEADER_MAX);
    }
    return 0;
}

static int make_plan(struct plan_maker *m)
{
    const struct front_machine *machine = m->machine;
    const struct bootstrap bootstrap = {.version = machine->version,
                                        .executable = machine->executable,
                                        .builds = machine->builds,
                                        .n_builds = machine->n_builds,
                                        .may_copy = !m->options->value[OPTION_NO_COPY].flag};
    const char *id = front_text(m, OPTION_RDZV_ID), *directory = m->options->value[OPTION_CHDIR].text;
    struct front_plan *plan = m->plan;

    plan->hosts_rendezvous = !front_text(m, OPTION_RDZV_ENDPOINT);
    plan->is_open = strcmp(m->options->value[OPTION_SECURITY].text, "open") == 0;
    plan->job_id = id ? id : machine->random_id;
    plan->directory = directory ? directory : machine->directory;
    if (!*plan->directory || strlen(plan->directory) > CHANNEL_TEXT_MAX)
        return front_refuse(m, "--chdir: a directory has a name of at most %d bytes", CHANNEL_TEXT_MAX);
    plan->script = bootstrap_script(&bootstrap);
    if (!plan->script)
        return front_refuse(m, "out of memory");
    size_t total = CHANNEL_SECRET_MAX + CHANNEL_TEXT_MAX;
    return check_combination(m) || read_hosts(m) || count_nodes(m) || make_hosts(m) || take_variables(m) ||
           check_sizes(m, &plan->variables, &total) || check_sizes(m, &plan->hosts[0].agent, &total);
}

int front_plan_make(struct front_plan *ret, const struct options *options,
                    const struct front_machine *machine, char error[FRONT_ERROR_SIZE])
{
    struct plan_maker m = {.plan = ret, .options = options, .machine = machine, .error = error};

    *ret = (struct front_plan){0};
    if (make_plan(&m) == 0)
        return 0;
    front_plan_finish(ret);
    return 1;
}

void front_plan_finish(struct front_plan *plan)
{
    for (size_t i = 0; plan->hosts && i < plan->list.n; i++) {
        free(plan->hosts[i].login);
        strlist_finish(&plan->hosts[i].launch);
        strlist_finish(&plan->hosts[i].agent);
    }
    free(plan->hosts);
    free(plan->script);
    strlist_finish(&plan->variables);
    host_list_finish(&plan->list);
    *plan = (struct front_plan){0};
}
