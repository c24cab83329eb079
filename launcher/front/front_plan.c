#include "launcher/front/front_plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/strbuf.h"
#include "launcher/cli/job_impl.h"
#include "launcher/front/channel_frame.h"
#include "launcher/util/envp.h"

static_assert((int)FRONT_ERROR_SIZE == JOB_ERROR_SIZE, "job_refuse() writes the sentence");
static_assert((int)FRONT_ERROR_SIZE >= HOSTS_ERROR_SIZE, "host_list_parse() as well");

struct plan_maker {
    struct job_builder b; /* options, environment and sentence */
    struct job job;       /* only the numbers of nodes are set */
    struct front_plan *plan;
    const struct front_machine *machine;
};

/* NULL: not given, or empty. */
static const char *front_text(const struct plan_maker *m, enum option_id id)
{
    const struct option_value *value = job_value(&m->b, id);

    return value->set && value->text && value->text[strspn(value->text, " \t\r\n")] ? value->text : NULL;
}

bool front_plan_is_wanted(const struct options *options)
{
    return options->value[OPTION_HOSTS].set || options->value[OPTION_HOSTFILE].set;
}

/* ---- options without a meaning for hosts ---- */

static int refuse_with_hosts(struct plan_maker *m, enum option_id id, const char *reason)
{
    char name[OPTION_NAME_SIZE];

    option_spell_pet(id, name);
    return job_value(&m->b, id)->pet
               ? job_refuse(&m->b, "%s in the environment cannot be used with --hosts: %s", name, reason)
               : job_refuse(&m->b, "--%s cannot be used with --hosts: %s", options_table[id].name, reason);
}

static int check_combination(struct plan_maker *m)
{
    const char *backend = front_text(m, OPTION_RDZV_BACKEND), *local_addr = front_text(m, OPTION_LOCAL_ADDR);

    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        const struct option_value *value = job_value(&m->b, id);
        bool is_given = value->set && (options_table[id].kind != OPTION_FLAG || value->flag);
        if (is_given && options_table[id].not_with_hosts)
            return refuse_with_hosts(m, id, options_table[id].not_with_hosts);
    }
    if (local_addr && !strchr(local_addr, '/'))
        return refuse_with_hosts(m, OPTION_LOCAL_ADDR,
                                 "an address is of one host; give the network in which each host has one "
                                 "(--local-addr=10.1.0.0/16)");
    if (backend && strcmp(backend, "c10d") != 0)
        return refuse_with_hosts(m, OPTION_RDZV_BACKEND, "hosts meet by c10d");
    if (m->plan->hosts_rendezvous && job_value(&m->b, OPTION_TLS_CERT)->set)
        return refuse_with_hosts(m, OPTION_TLS_CERT,
                                 "this crun makes a secret; certificates are for a crund (--rdzv-endpoint)");
    if (m->plan->is_open && job_value(&m->b, OPTION_SECRET_FILE)->set)
        return refuse_with_hosts(m, OPTION_SECRET_FILE, "--security=open uses no secret");
    return 0;
}

/* ---- hosts ---- */

static int read_hosts(struct plan_maker *m)
{
    const char *hosts = job_text(&m->b, OPTION_HOSTS), *hostfile = job_text(&m->b, OPTION_HOSTFILE);

    if (hosts && hostfile)
        return job_refuse(&m->b, "--hosts and --hostfile both name the hosts: leave one of them out");
    return host_list_read(&m->plan->list, hosts, hostfile, m->b.environment, &m->machine->files, m->b.error) <
           0;
}

static int count_nodes(struct plan_maker *m)
{
    const char *text = job_text(&m->b, OPTION_NNODES);
    struct front_plan *plan = m->plan;
    int n = (int)plan->list.n;

    plan->min_nodes = plan->max_nodes = n;
    if (!job_value(&m->b, OPTION_NNODES)->set)
        return 0;
    if (job_check_nodes(&m->b) != 0)
        return 1;
    plan->min_nodes = m->job.min_nodes;
    plan->max_nodes = m->job.max_nodes;
    if (n < plan->min_nodes)
        return job_refuse(&m->b, "--nnodes=%s needs %d hosts, and %d are named", text, plan->min_nodes, n);
    if (plan->max_nodes == 1 && n > 1)
        return job_refuse(&m->b, "--nnodes=%s: a job of one node has no spare hosts, and %d are named", text,
                          n);
    if (plan->hosts_rendezvous && plan->max_nodes > n)
        plan->max_nodes = n; /* no other host can come: nothing waits for more */
    return 0;
}

/* ---- arguments of the agents ---- */

/* Counts the workers of host i. Hosts that count their CPUs or GPUs leave the number of ranks unknown, which is 0. */
static void count_ranks(struct front_plan *plan, size_t i, const char *n_workers)
{
    long long n = 0;
    bool is_known = options_int(n_workers, &n) && n > 0 && n <= JOB_WORKERS_MAX;

    if ((int)i < plan->max_nodes && (i == 0 || plan->n_ranks > 0))
        plan->n_ranks = is_known ? plan->n_ranks + (int)n : 0;
    plan->hosts[i].n_workers = is_known ? (int)n : JOB_WORKERS_MAX;
}

/* On the command line --nproc-per-node is for all hosts; else the slots of the host count. */
static void add_workers(struct plan_maker *m, size_t i, struct strlist *out)
{
    const struct option_value *n_workers = job_value(&m->b, OPTION_NPROC_PER_NODE);
    int slots = n_workers->set && !n_workers->pet ? 0 : m->plan->list.hosts[i].slots;
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", slots); /* fits */
    count_ranks(m->plan, i, slots ? text : n_workers->text);
    if (slots || n_workers->set)
        strlist_add(out, "--nproc-per-node=%s", slots ? text : n_workers->text);
}

static void add_agent(struct plan_maker *m, size_t i, struct strlist *out)
{
    const char *endpoint = front_text(m, OPTION_RDZV_ENDPOINT), *conf = front_text(m, OPTION_RDZV_CONF);
    const struct front_plan *plan = m->plan;

    strlist_add(out, "--nnodes=%d:%d", plan->min_nodes, plan->max_nodes);
    strlist_add(out, "--rdzv-backend=c10d");
    strlist_add(out, "--rdzv-id=%s", plan->job_id);
    if (conf || !endpoint)
        strlist_add(out, "--rdzv-conf=%s%s%s", conf ? conf : "", conf && !endpoint ? "," : "",
                    endpoint ? "" : "is_host=0");
    if (endpoint)
        strlist_add(out, "--rdzv-endpoint=%s", endpoint);
    else if (!plan->is_open && !job_value(&m->b, OPTION_WORKER_STORE)->set)
        strlist_add(out, "--worker-store=local"); /* other users of the hosts get no keys */
    add_workers(m, i, out);
    if ((int)i < plan->max_nodes && plan->max_nodes > 1)
        strlist_add(out, "--node-rank=%zu", i);
    options_render(m->b.options, out);
    strlist_add_copy(out, "--");
    strlist_add_copy(out, m->b.options->program);
    for (char *const *arg = m->b.options->program_args; *arg; arg++)
        strlist_add_copy(out, *arg);
}

/* ---- the launch command ---- */

/* Added words: options behind the name of a known program, the host unless the user has named {host}, and the words for the host
 * unless the user has named {command}. */
static const struct launcher {
    const char *program, *options, *host, *words;
} launchers[] = {
    [FRONT_LAUNCH_SSH] = {"ssh", "-T -o BatchMode=yes", "{host}", "exec {command}"},
    /* Without --unbuffered srun holds output back until a newline comes. Without --cpu-bind=none a step of one task may get one CPU. */
    [FRONT_LAUNCH_SRUN] =
        {"srun",
         "--quiet --nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --unbuffered --cpu-bind=none --input=all",
         "--nodelist={host}", "/bin/sh -c {script}"},
    [FRONT_LAUNCH_COMMAND] = {"", "", "", "/bin/sh -c {script}"},
};

/* Options of ssh, unless the user has given a part of their name. */
static const char *const ssh_limits[][2] = {
    {"ConnectTimeout", "-o ConnectTimeout=10"},
    {"ServerAlive", "-o ServerAliveInterval=7"}, /* a network that breaks before the first frame of crun */
};

static enum front_launch find_launch(const char *command)
{
    size_t n = strcspn(command, " \t");
    const char *slash = memrchr(command, '/', n), *name = slash ? slash + 1 : command;
    enum front_launch launch = FRONT_LAUNCH_SSH;

    n -= (size_t)(name - command);
    while (launch != FRONT_LAUNCH_COMMAND &&
           (strlen(launchers[launch].program) != n || strncmp(name, launchers[launch].program, n) != 0))
        launch++;
    return launch == FRONT_LAUNCH_SRUN && strstr(command, "{host}") ? FRONT_LAUNCH_COMMAND : launch;
}

/* The command with all its words, {host} and {command} or {script} among them. */
static char *complete_command(const char *command, enum front_launch launch)
{
    const struct launcher *l = &launchers[launch];
    size_t n = strcspn(command, " \t");
    struct strbuf out = {0};

    strbuf_add(&out, "%.*s %s", (int)n, command, l->options);
    for (size_t i = 0; launch == FRONT_LAUNCH_SSH && i < ARRAY_SIZE(ssh_limits); i++)
        if (!strcasestr(command, ssh_limits[i][0]))
            strbuf_add(&out, " %s", ssh_limits[i][1]);
    strbuf_add(&out, "%s %s %s", command + n, strstr(command, "{host}") ? "" : l->host,
               strstr(command, "{command}") ? "" : l->words);
    return strbuf_steal(&out);
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

static int make_host(struct plan_maker *m, const char *command, size_t i)
{
    const struct host_entry *entry = &m->plan->list.hosts[i];
    struct front_host *host = &m->plan->hosts[i];
    _cleanup_free_ char *words = strdup(command);
    char *rest = NULL;

    host->login = entry->user ? strbuf_format("%s@%s", entry->user, entry->name) : strdup(entry->name);
    if (entry->user && m->plan->launch != FRONT_LAUNCH_SSH)
        return job_refuse(&m->b, "--launch=%s: %s@%s: only ssh takes the name of a user",
                          job_text(&m->b, OPTION_LAUNCH), entry->user, entry->name);
    add_agent(m, i, &host->agent);
    if (!words || !host->login)
        return job_refuse(&m->b, "out of memory");
    for (char *word = strtok_r(words, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest))
        strlist_add_owned(&host->launch, fill_launch_word(word, m->plan->script, host->login));
    return host->agent.failed || host->launch.failed ? job_refuse(&m->b, "out of memory") : 0;
}

static int make_hosts(struct plan_maker *m)
{
    const char *given = job_text(&m->b, OPTION_LAUNCH), *text = given + strspn(given, " \t\n");
    struct front_plan *plan = m->plan;
    int r = 0;

    plan->launch = find_launch(text);
    if (plan->launch == FRONT_LAUNCH_COMMAND && !strstr(text, "{host}"))
        return job_refuse(&m->b, "--launch=%s: the command needs the word {host}, as ssh and srun do not",
                          text);
    _cleanup_free_ char *command = complete_command(text, plan->launch);
    plan->hosts = calloc(plan->list.n, sizeof(*plan->hosts));
    if (!command || !plan->hosts)
        return job_refuse(&m->b, "out of memory");
    for (size_t i = 0; !r && i < plan->list.n; i++)
        r = make_host(m, command, i);
    return r;
}

/* ---- environment ---- */

/* Beginnings of the variables that go to the hosts without --export. */
static const char *const travelling[] = {"PATH=", "VIRTUAL_ENV=", "CONDA_", "PYTHON", "CUDA_",
                                         "NCCL_", "TORCH_",       "OMP_",   "HF_",    NULL};

static bool is_variable_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

    return *name && !name[strspn(name, letters)] && !(*name >= '0' && *name <= '9');
}

/* text: NAME or NAME=VALUE, which is cut. */
static int export_variable(struct plan_maker *m, char *text)
{
    char *equals = strchrnul(text, '=');
    const char *value = *equals ? equals + 1 : envp_get(m->b.environment, text);

    *equals = '\0';
    if (!is_variable_name(text))
        return job_refuse(&m->b, "--export: '%s' is no name of a variable", text);
    if (strncmp(text, "CRUN_SECRET", strlen("CRUN_SECRET")) == 0)
        return job_refuse(
            &m->b, "--export: %s stays here: the hosts get the job's secret through their channels", text);
    if (strcmp(text, "CRUN_ADMITTED") == 0)
        return job_refuse(&m->b, "--export: %s is set by crun itself", text);
    if (!value)
        return job_refuse(&m->b, "--export: %s is not set here; give --export=%s=VALUE", text, text);
    strlist_add(&m->plan->variables, "%s=%s", text, value);
    return 0;
}

/* Two commas stand for a comma in a value. */
static int export_variables(struct plan_maker *m)
{
    const char *given = front_text(m, OPTION_EXPORT);
    _cleanup_free_ char *text = given ? strdup(given) : NULL;
    int r = given && !text ? job_refuse(&m->b, "out of memory") : 0;

    for (char *from = text; !r && from;) {
        char *variable = from, *to = from;
        for (; *from && (*from != ',' || from[1] == ','); *to++ = *from++)
            from += *from == ',';
        from = *from ? from + 1 : NULL;
        *to = '\0';
        r = export_variable(m, variable);
    }
    return r;
}

/* srun passes the environment on, and Slurm sets CUDA_VISIBLE_DEVICES for each host. */
static int take_variables(struct plan_maker *m)
{
    struct strlist *variables = &m->plan->variables;
    char *const *e = m->b.environment;
    int r = export_variables(m);
    bool has_python =
        envp_get(e, "PYTHON_EXEC") || envp_has_name_of(variables->items, variables->n_items, "PYTHON_EXEC=");

    for (; !r && *e && m->plan->launch != FRONT_LAUNCH_SRUN; e++)
        if (envp_begins_with(*e, travelling) && !envp_has_name_of(variables->items, variables->n_items, *e))
            strlist_add_copy(variables, *e);
    if (m->machine->python && !has_python)
        strlist_add(variables, "PYTHON_EXEC=%s", m->machine->python);
    if (m->plan->admits)
        strlist_add(variables, "CRUN_ADMITTED=1");
    return variables->failed ? job_refuse(&m->b, "out of memory") : r;
}

/* ---- the whole ---- */

/* Checks the bounds of a channel's header. */
static int check_sizes(struct plan_maker *m, const struct strlist *list, size_t *total)
{
    for (size_t i = 0; i < list->n_items; i++) {
        size_t n = strlen(list->items[i]);
        if (n > CHANNEL_PAYLOAD_MAX || (*total += n + CHANNEL_HEAD) > CHANNEL_HEADER_MAX)
            return job_refuse(
                &m->b, "%.40s: variables and arguments for a host have at most %d bytes each, and %d in all",
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
                                        .may_copy = !job_flag(&m->b, OPTION_NO_COPY)};
    const struct option_value *store = job_value(&m->b, OPTION_WORKER_STORE);
    const char *id = front_text(m, OPTION_RDZV_ID), *directory = job_text(&m->b, OPTION_CHDIR);
    size_t total = CHANNEL_SECRET_MAX + CHANNEL_TEXT_MAX;
    struct front_plan *plan = m->plan;

    plan->hosts_rendezvous = !front_text(m, OPTION_RDZV_ENDPOINT);
    plan->is_open = strcmp(job_text(&m->b, OPTION_SECURITY), "open") == 0;
    plan->admits =
        plan->hosts_rendezvous && !plan->is_open && (!store->set || strcmp(store->text, "local") == 0);
    plan->job_id = id ? id : machine->random_id;
    plan->directory = directory ? directory : machine->directory;
    if (!*plan->directory || strlen(plan->directory) > CHANNEL_TEXT_MAX)
        return job_refuse(&m->b, "--chdir: a directory has a name of at most %d bytes", CHANNEL_TEXT_MAX);
    plan->script = bootstrap_script(&bootstrap);
    if (!plan->script)
        return job_refuse(&m->b, "out of memory");
    return check_combination(m) || read_hosts(m) || count_nodes(m) || make_hosts(m) || take_variables(m) ||
           check_sizes(m, &plan->variables, &total) || check_sizes(m, &plan->hosts[0].agent, &total);
}

int front_plan_make(struct front_plan *ret, const struct options *options,
                    const struct front_machine *machine, char error[FRONT_ERROR_SIZE])
{
    struct plan_maker m = {.b = {.options = options, .environment = machine->environment, .error = error},
                           .plan = ret,
                           .machine = machine};

    m.b.job = &m.job;
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
