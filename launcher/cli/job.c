#include "launcher/cli/job.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/util/envp.h"
#include "launcher/cli/scheduler_grace.h"
#include "launcher/cli/job_impl.h"
#include "launcher/cli/line_rules.h"
#include "launcher/util/signal_name.h"
#include "base/decimal.h"
#include "base/format.h"
#include "base/strbuf.h"
#include "proto/address.h"
#include "base/cleanup.h"
#include "base/err.h"

enum { DEFAULT_SHUTDOWN_S = 30 };

int job_refuse(struct job_builder *b, const char *format, ...)
{
    (void)format_arguments(b->error, JOB_ERROR_SIZE, format); /* a cut sentence is still the best we have */
    return 1;
}

static int take_agent_fd(struct job_builder *b)
{
    const struct option_value *option = job_value(b, OPTION_AGENT_FD);

    b->job->agent_fd = option->set ? (int)option->number : -1;
    if (option->set && (option->number < 3 || option->number > INT_MAX))
        return job_refuse(b, "--agent-fd=%lld: a descriptor above 2 is needed", option->number);
    return 0;
}

/* Options of a front that starts no agents have no meaning. */
static int check_front_options(struct job_builder *b)
{
    static const enum option_id with_hosts[] = {OPTION_LAUNCH, OPTION_EXPORT, OPTION_CHDIR, OPTION_NO_COPY};

    for (size_t i = 0; i < ARRAY_SIZE(with_hosts); i++)
        if (job_value(b, with_hosts[i])->set && !job_value(b, OPTION_HOSTS)->set &&
            !job_value(b, OPTION_HOSTFILE)->set)
            return job_refuse(b, "--%s is for a job with --hosts or --hostfile",
                              options_table[with_hosts[i]].name);
    return 0;
}

/* ---- workers ---- */

/* GPUs of any maker, else CPUs. */
static int count_accelerators(const struct job_machine *m)
{
    int n = m->count_gpus(m->data);

    if (n <= 0)
        n = m->count_xpus(m->data);
    return n > 0 ? n : m->count_cpus(m->data);
}

static int count_named_workers(struct job_builder *b, const char *text, long long *ret)
{
    const struct job_machine *m = b->machine;

    *ret = strcmp(text, "cpu") == 0    ? m->count_cpus(m->data)
           : strcmp(text, "gpu") == 0  ? m->count_gpus(m->data)
           : strcmp(text, "xpu") == 0  ? m->count_xpus(m->data)
           : strcmp(text, "auto") == 0 ? count_accelerators(m)
                                       : -1;
    if (*ret > 0)
        return 0;
    if (strcmp(text, "gpu") == 0)
        return job_refuse(
            b,
            "--nproc-per-node=gpu: no usable NVIDIA or AMD GPU on this node (Cuda is not available); "
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or at rocm-smi and HIP_VISIBLE_DEVICES, or give "
            "a number, cpu or auto");
    if (strcmp(text, "xpu") == 0)
        return job_refuse(
            b,
            "--nproc-per-node=xpu: no usable Intel GPU on this node (Xpu is not available); look at "
            "/dev/dri and ZE_AFFINITY_MASK, or give a number, cpu or auto");
    return job_refuse(
        b, "--nproc-per-node: Unsupported nproc_per_node value: %s (a number, cpu, gpu, xpu or auto)", text);
}

static int job_count_workers(struct job_builder *b)
{
    const char *text = job_text(b, OPTION_NPROC_PER_NODE);
    long long n;

    if (!options_int(text, &n)) {
        TRY(count_named_workers(b, text, &n));
    } else if (n <= 0 || n > JOB_WORKERS_MAX) {
        return job_refuse(b, "--nproc-per-node=%s: the number of workers must be between 1 and %d", text,
                          JOB_WORKERS_MAX);
    }
    b->job->n_workers = (int)(n > JOB_WORKERS_MAX ? JOB_WORKERS_MAX : n);
    return 0;
}

/* ---- supervision ---- */

static void take_handled_signals(struct job_builder *b)
{
    const char *text = job_text(b, OPTION_SIGNALS_TO_HANDLE);

    b->job->signals_text = text;
    if (!*text)
        strbuf_add(&b->warnings,
                   "crun: --signals-to-handle is empty: crun ends at once by any signal, without a report\n");
    for (const char *name = text; *name; name += *name == ',') {
        const char *from = name, *to = name + strcspn(name, ",");

        name = to;
        job_trim(&from, &to);
        int s = signal_number(from, (size_t)(to - from));
        if (s && s != SIGKILL && s != SIGSTOP && s != SIGCHLD)
            b->job->signals |= UINT64_C(1) << (s - 1);
        else
            strbuf_add(&b->warnings,
                       "crun: --signals-to-handle: no signal '%.*s' that can be handled; ignored\n",
                       (int)(to - from), from);
    }
}

/* A guessed grace does not cut a timeout of the user. */
static int fit_timeout_into_grace(struct job_builder *b, bool is_chosen)
{
    struct scheduler_grace grace;

    if (scheduler_grace_find(b->environment, b->machine->slurm_conf, &grace) != 0)
        return job_refuse(
            b, "CRUN_GRACE_SECONDS='%s' in the environment is not a number of seconds greater than 0",
            envp_get(b->environment, "CRUN_GRACE_SECONDS"));
    int max = scheduler_grace_timeout_max(&grace);
    if (b->job->shutdown_timeout_s <= max || (is_chosen && !grace.is_certain))
        return 0;
    if (is_chosen || grace.is_certain)
        strbuf_add(&b->warnings,
                   "crun: a shutdown timeout of %d s does not fit into %s (%d s); %d s are used\n",
                   b->job->shutdown_timeout_s, grace.source, grace.seconds, max);
    b->job->shutdown_timeout_s = max;
    return 0;
}

static int take_shutdown_timeout(struct job_builder *b)
{
    const struct option_value *option = job_value(b, OPTION_SHUTDOWN_TIMEOUT);
    const char *from_environment = envp_get(b->environment, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    long long seconds = DEFAULT_SHUTDOWN_S;

    if (option->text)
        seconds = option->number;
    else if (from_environment && !options_int(from_environment, &seconds))
        return job_refuse(b,
                          "TORCH_ELASTIC_SHUTDOWN_TIMEOUT='%s' in the environment is not a number of seconds",
                          from_environment);
    if (seconds < 0)
        return job_refuse(b, "--shutdown-timeout: shutdown_timeout must be non-negative, got %lld", seconds);
    b->job->worker_first = strcmp(job_text(b, OPTION_SIGNAL_ORDER), "worker-first") == 0;
    b->job->shutdown_timeout_s = (int)(seconds > INT32_MAX / 1000 ? INT32_MAX / 1000 : seconds);
    return fit_timeout_into_grace(b, option->text || from_environment);
}

static int take_warm(struct job_builder *b)
{
    const char *value = envp_get(b->environment, "CRUN_WARM");

    if (value && *value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return job_refuse(b, "CRUN_WARM='%s' in the environment: it is 1 or 0", value);
    b->job->warm = job_flag(b, OPTION_WARM) || (value && *value == '1');
    return 0;
}

static int take_numbers(struct job_builder *b)
{
    static const struct {
        enum option_id id;
        size_t offset;
        int min, max;
        const char *what;
    } numbers[] = {
        {OPTION_REPLACE_TIMEOUT, offsetof(struct job, replace_timeout_s), 1, 86400, "a number of seconds"},
        {OPTION_RESTART_PAUSE, offsetof(struct job, restart_pause_s), 0, 3600, "a number of seconds"},
        {OPTION_HANG_TIMEOUT, offsetof(struct job, hang_timeout_s), 0, 30 * 86400, "a number of seconds"},
        {OPTION_HEALTH_CHECK_TIMEOUT, offsetof(struct job, health_check_timeout_s), 1, 3600,
         "a number of seconds"},
        {OPTION_NO_REQUEUE_CODE, offsetof(struct job, no_requeue_code), 1, 255, "an exit code"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        const struct option_value *option = job_value(b, numbers[i].id);

        if (option->text && (option->number < numbers[i].min || option->number > numbers[i].max))
            return job_refuse(b, "--%s=%lld: %s from %d to %d", options_table[numbers[i].id].name,
                              option->number, numbers[i].what, numbers[i].min, numbers[i].max);
        int kept = (int)option->number; /* 0: not given */
        memcpy((char *)b->job + numbers[i].offset, &kept, sizeof(kept));
    }
    return 0;
}

static int take_restarts_without_progress(struct job_builder *b)
{
    const struct option_value *option = job_value(b, OPTION_MAX_RESTARTS_WITHOUT_PROGRESS);

    if (!option->text)
        return 0;
    if (option->number < 1)
        return job_refuse(b, "--max-restarts-without-progress=%lld: a number of restarts from 1 on",
                          option->number);
    b->job->max_restarts_without_progress = (int)(option->number > INT32_MAX ? INT32_MAX : option->number);
    return 0;
}

static int take_health_check(struct job_builder *b)
{
    const char *command = job_text(b, OPTION_HEALTH_CHECK);

    if (command && !*command)
        return job_refuse(b, "--health-check= names no command");
    b->job->health_check = command;
    if (command && b->job->agent_fd >= 0)
        return job_refuse(b, "--health-check: an agent that is another program checks its node itself");
    return 0;
}

static int take_supervision(struct job_builder *b)
{
    long long restarts = job_value(b, OPTION_MAX_RESTARTS)->number;

    if (restarts < 0)
        return job_refuse(b, "--max-restarts: max_restarts must be >= 0, got %lld", restarts);
    b->job->max_restarts = (int)(restarts > INT32_MAX ? INT32_MAX : restarts);
    if (!(job_value(b, OPTION_MONITOR_INTERVAL)->seconds > 0))
        return job_refuse(b, "--monitor-interval: must be greater than 0");
    b->job->replace = strcmp(job_text(b, OPTION_RESTART_POLICY), "replace") == 0;
    b->job->hang_action = (enum job_hang_action)job_choice(b, OPTION_HANG_ACTION);
    b->job->debug = job_flag(b, OPTION_DEBUG);
    b->job->debug_file = job_text(b, OPTION_DEBUG);
    if (b->job->debug_file && !*b->job->debug_file)
        return job_refuse(b, "--debug= names no file; give one, or write --debug alone");
    b->job->exit_code_of_worker = strcmp(job_text(b, OPTION_EXIT_CODE), "worker") == 0;
    take_handled_signals(b);
    return take_shutdown_timeout(b);
}

/* ---- program and output ---- */

static int job_take_program(struct job_builder *b)
{
    struct job *job = b->job;

    job->program_name = b->options->program;
    job->program_args = b->options->program_args;
    job->role = job_text(b, OPTION_ROLE);
    job->virtual_local_rank = job_flag(b, OPTION_VIRTUAL_LOCAL_RANK);
    job->numa = (enum numa_mode)(job_choice(b, OPTION_NUMA_BINDING) + 1);
    if (job_flag(b, OPTION_RUN_PATH))
        job->program = JOB_PROGRAM_RUN_PATH;
    else if (job_flag(b, OPTION_NO_PYTHON) && job_flag(b, OPTION_MODULE))
        return job_refuse(b,
                          "Don't use both the '--no-python' flag and the '--module' flag at the same time.");
    else if (job_flag(b, OPTION_NO_PYTHON))
        job->program = JOB_PROGRAM_EXECUTABLE;
    else if (job_flag(b, OPTION_MODULE))
        job->program = JOB_PROGRAM_MODULE;
    return 0;
}

/* RANK:DIGIT at *text; moves behind the pair. */
static bool parse_stream_pair(const char **text, uint8_t *map, int n_workers)
{
    size_t n = strspn(*text, "0123456789");
    const char *digit = *text + n + 1;

    if (n == 0 || n > 9 || (*text)[n] != ':' || *digit < '0' || *digit > '3')
        return false;
    long rank = atol(*text);
    if (rank < n_workers)
        map[rank] = (uint8_t)(*digit - '0');
    *text = digit + 1;
    return true;
}

/* The pattern of torchrun takes a newline at the end as well: a block of YAML leaves a newline. */
static bool is_end_of_map(const char *text)
{
    return !*text || strcmp(text, "\n") == 0;
}

bool job_parse_streams(const char *text, uint8_t *map, int n_workers)
{
    if (*text >= '0' && *text <= '3' && is_end_of_map(text + 1)) {
        memset(map, *text - '0', (size_t)n_workers);
        return true;
    }
    memset(map, 0, (size_t)n_workers);
    for (;;) {
        if (!parse_stream_pair(&text, map, n_workers))
            return false;
        if (is_end_of_map(text))
            return true;
        if (*text++ != ',')
            return false;
    }
}

/* No error, as in torchrun: a command line may be meant for nodes with different numbers of workers. */
static void warn_of_rank(struct job_builder *b, enum option_id id, long long rank)
{
    if (b->job->n_workers == 1)
        strbuf_add(&b->warnings, "crun: --%s: there is no local rank %lld on this node, only 0; ignored\n",
                   options_table[id].name, rank);
    else
        strbuf_add(&b->warnings,
                   "crun: --%s: there is no local rank %lld on this node, only 0 to %d; ignored\n",
                   options_table[id].name, rank, b->job->n_workers - 1);
}

/* text is known to be well-formed. */
static void warn_of_stream_ranks(struct job_builder *b, enum option_id id, const char *text)
{
    for (; text && strchr(text, ':'); text = strchr(text, ',')) {
        text += *text == ',';
        if (atol(text) >= b->job->n_workers)
            warn_of_rank(b, id, atol(text));
    }
}

static int take_stream_map(struct job_builder *b, enum option_id id, uint8_t **map)
{
    *map = calloc((size_t)b->job->n_workers, 1);
    if (!*map)
        return job_refuse(b, "out of memory");
    if (!job_parse_streams(job_text(b, id), *map, b->job->n_workers))
        return job_refuse(b, "--%s: %s does not match: one digit 0 to 3, or RANK:DIGIT,...",
                          options_table[id].name, job_text(b, id));
    warn_of_stream_ranks(b, id, job_text(b, id));
    return 0;
}

bool job_has_logs(const struct job *job)
{
    for (int i = 0; i < job->n_workers; i++)
        if (job->redirects[i] || job->tees[i])
            return true;
    return false;
}

bool job_hides_output(const struct job *job)
{
    for (int i = 0; i < job->n_workers; i++)
        if (job->redirects[i] & ~job->tees[i])
            return true;
    return false;
}

/* A comma separated list of local ranks. */
static int take_listed_ranks(struct job_builder *b)
{
    const char *text = job_text(b, OPTION_LOCAL_RANKS_FILTER);
    struct job *job = b->job;

    if (!*text)
        return 0;
    job->listed = calloc((size_t)job->n_workers, 1);
    if (!job->listed)
        return job_refuse(b, "out of memory");
    for (const char *entry = text;; entry++) {
        size_t n = strcspn(entry, ",");
        char number[32] = "";
        long long rank;

        if (n < sizeof(number))
            memcpy(number, entry, n);
        if (!options_int(number, &rank))
            return job_refuse(b,
                              "--local_ranks_filter must be a comma-separated list of integers e.g. "
                              "--local_ranks_filter=0,1,2");
        if (rank >= 0 && rank < job->n_workers)
            job->listed[rank] = 1;
        else
            warn_of_rank(b, OPTION_LOCAL_RANKS_FILTER, rank);
        entry += n;
        if (!*entry)
            return 0;
    }
}

/* A comma separated list of texts; two commas stand for one in a text. */
static int take_filter_list(struct job_builder *b, enum option_id id, struct strlist *filter)
{
    const char *text = job_text(b, id);
    struct strbuf entry = {0};

    if (!*text)
        return 0;
    for (;; text++) {
        if (*text == ',' && text[1] == ',') {
            strbuf_add(&entry, ",");
            text++;
        } else if (*text && *text != ',') {
            strbuf_add(&entry, "%c", *text);
        } else {
            strlist_add_owned(filter, strbuf_steal(&entry));
            if (!*text)
                return filter->failed ? job_refuse(b, "out of memory") : 0;
        }
    }
}

/* Of --line-prefix: a variable that does not exist stays as text, as with torchrun's templates. */
static void warn_of_variables(struct job_builder *b, const char *prefix)
{
    static const char *const names[] = {"role_name", "local_rank", "rank", "host", "hostname"};

    for (const char *at = strstr(prefix, "${"); at; at = strstr(at + 2, "${")) {
        size_t n = strcspn(at + 2, "}");
        bool is_known = false;

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            is_known = is_known || (strlen(names[i]) == n && strncmp(names[i], at + 2, n) == 0);
        if (!is_known && at[2 + n] == '}')
            strbuf_add(&b->warnings,
                       "crun: --line-prefix: there is no variable ${%.*s}; it stays as it is (there are "
                       "${role_name}, ${local_rank}, ${rank}, ${host})\n",
                       (int)n, at + 2);
    }
}

/* crun's option, else torchrun's option, else torchrun's variable, else NULL. An empty text is none, as in torchrun. */
static const char *find_prefix(struct job_builder *b)
{
    const char *prefix = job_text(b, OPTION_LINE_PREFIX);

    if (!prefix)
        prefix = *job_text(b, OPTION_LOG_LINE_PREFIX_TEMPLATE)
                     ? job_text(b, OPTION_LOG_LINE_PREFIX_TEMPLATE)
                     : envp_get(b->environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    else if (strcmp(prefix, "host") == 0)
        return "[${role_name} ${rank}@${hostname}]: ";
    else if (strcmp(prefix, "torchrun") == 0)
        return NULL;
    else
        warn_of_variables(b, prefix);
    return prefix && *prefix ? prefix : NULL;
}

static int job_take_output(struct job_builder *b)
{
    struct job *job = b->job;
    char metrics_host[64];
    uint16_t metrics_port;

    job->line_prefix = find_prefix(b);

    const char *handler = job_text(b, OPTION_EVENT_LOG_HANDLER);
    job->event_console = strcmp(handler, "console") == 0;
    if (!job->event_console && strcmp(handler, "null") != 0)
        return job_refuse(
            b, "--event-log-handler: event log handler '%s' is not registered; there are null and console",
            handler);
    job->has_timestamps = strcmp(job_text(b, OPTION_TIMESTAMPS), "no") != 0;
    job->event_log = job_text(b, OPTION_EVENT_LOG);
    if (job->event_log && !*job->event_log)
        return job_refuse(b, "--event-log= names no file; give one, or leave the option out");
    job->metrics_addr = job_text(b, OPTION_METRICS_ADDR);
    if (job->metrics_addr && !address_parse_listener(job->metrics_addr, metrics_host, &metrics_port))
        return job_refuse(b, "--metrics-addr %s: not PORT, HOST:PORT or [IPV6]:PORT with a numeric address",
                          job->metrics_addr);
    job->log_dir = job_text_or_none(b, OPTION_LOG_DIR);
    TRY(take_stream_map(b, OPTION_REDIRECTS, &job->redirects));
    TRY(take_stream_map(b, OPTION_TEE, &job->tees));
    TRY(take_listed_ranks(b));
    TRY(take_filter_list(b, OPTION_DUPLICATE_STDOUT_FILTERS, &job->filters[0]));
    return take_filter_list(b, OPTION_DUPLICATE_STDERR_FILTERS, &job->filters[1]);
}

/* PyTorch itself registers the specs "default", which are what crun does. */
static int check_logs_specs(struct job_builder *b)
{
    const char *specs = job_text(b, OPTION_LOGS_SPECS);

    if (!specs || strcmp(specs, "default") == 0)
        return 0;
    return job_refuse(
        b, "--logs-specs=%s is a Python plug-in of torchrun, and crun runs no Python of its own", specs);
}

/* Reports variables that switch on features of torchrun's agent that crun does not have. */
static int warn_of_switches(struct job_builder *b)
{
    static const struct {
        const char *name, *value; /* NULL: anything but 0 */
        const char *consequence;
    } switches[] = {
        {"TORCHELASTIC_ENABLE_FILE_TIMER", "1", "there is no watchdog on a FIFO"},
        {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", NULL,
         "a worker that sits in the kernel is named when it cannot be killed, not before"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(switches); i++) {
        const char *value = envp_get(b->environment, switches[i].name);
        if (value && (switches[i].value ? strcmp(value, switches[i].value) == 0 : strcmp(value, "0") != 0))
            strbuf_add(&b->warnings, "crun: %s=%s has no effect: %s\n", switches[i].name, value,
                       switches[i].consequence);
    }
    return 0;
}

/* Reports at the start why --restart-policy=replace cannot have an effect in this job. */
static int warn_of_replacing(struct job_builder *b)
{
    const struct job *job = b->job;

    if (!job->replace || job->max_restarts == 0)
        return 0;
    if (job->meeting == JOB_STATIC)
        strbuf_add(
            &b->warnings,
            "crun: --restart-policy=replace does not work with a static rendezvous: after a failure all "
            "workers are restarted, as with all; use --rdzv-backend=c10d\n");
    else if (job->worker_has_store)
        strbuf_add(&b->warnings,
                   "crun: --restart-policy=replace needs the store that crun serves; with "
                   "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 all workers are restarted, as with all\n");
    return 0;
}

static int take_certificates(struct job_builder *b)
{
    struct certificate_paths *c = &b->job->certificates;
    unsigned n;

    *c = (struct certificate_paths){.cert = job_text(b, OPTION_TLS_CERT),
                                    .key = job_text(b, OPTION_TLS_KEY),
                                    .ca = job_text(b, OPTION_TLS_CA)};
    n = (c->cert && *c->cert) + (c->key && *c->key) + (c->ca && *c->ca);
    if (!c->cert && !c->key && !c->ca)
        return 0;
    if (n < 3)
        return job_refuse(
            b,
            "--tls-cert, --tls-key and --tls-ca: all three are needed: a certificate, its private "
            "key, and the CAs of the other nodes' certificates");
    if (b->job->security == JOB_SECURITY_OPEN)
        return job_refuse(
            b, "--security=open uses no certificate, and --tls-cert gives one: leave one of them out");
    if (b->job->meeting == JOB_STATIC)
        return job_refuse(
            b,
            "--tls-cert: nodes with a static rendezvous meet in a plain store and cannot prove a "
            "certificate; use --rdzv-backend=c10d with --rdzv-endpoint");
    return 0;
}

static int take_security(struct job_builder *b)
{
    struct job *job = b->job;

    job->secret_file = job_text(b, OPTION_SECRET_FILE);
    job->security = (enum job_security)job_choice(b, OPTION_SECURITY);
    job->local_store = job_flag(b, OPTION_SEAL) || strcmp(job_text(b, OPTION_WORKER_STORE), "local") == 0;
    job->params.local_store = job->local_store;
    if (job->local_store && job->security == JOB_SECURITY_OPEN)
        return job_refuse(b, "--security=open uses no secret, and %s needs one: leave one of them out",
                          job_flag(b, OPTION_SEAL) ? "--seal" : "--worker-store=local");
    if (job->local_store && job->local_addr && !address_is_numeric(job->local_addr))
        return job_refuse(b,
                          "--local-addr=%s is a name, and with %s workers get the address of node 0 as "
                          "CRUN_MASTER_HOST, which is numeric: give --local-addr the address itself",
                          job->local_addr, job_flag(b, OPTION_SEAL) ? "--seal" : "--worker-store=local");
    job->seals = job_flag(b, OPTION_SEAL);
    if (job->seals)
        job->security = JOB_SECURITY_REQUIRE;
    if (job->secret_file && job->security == JOB_SECURITY_OPEN)
        return job_refuse(
            b, "--security=open uses no secret, and --secret-file gives one: leave one of them out");
    if (job->secret_file && !*job->secret_file)
        return job_refuse(b, "--secret-file: names no file");
    if (job->meeting == JOB_STATIC &&
        (job->secret_file || job->security == JOB_SECURITY_REQUIRE || job->local_store))
        return job_refuse(
            b,
            "%s: nodes with a static rendezvous meet in a plain store and cannot prove a secret; "
            "use --rdzv-backend=c10d with --rdzv-endpoint",
            job->secret_file           ? "--secret-file"
            : job_flag(b, OPTION_SEAL) ? "--seal"
            : job->local_store         ? "--worker-store=local"
                                       : "--security=require");
    return take_certificates(b);
}

/* Without -t crun does not see what workers print. */
static bool has_tee(const struct job *job)
{
    for (int i = 0; i < job->n_workers; i++)
        if (job->tees[i])
            return true;
    return false;
}

/* After the streams are known. */
static int take_fold_output(struct job_builder *b)
{
    b->job->fold_output = job_flag(b, OPTION_FOLD_OUTPUT);
    if (b->job->fold_output && !has_tee(b->job))
        return job_refuse(b, "--fold-output folds the lines that -t shows; add -t 3");
    return 0;
}

/* After the streams are known. */
static int take_line_rules(struct job_builder *b)
{
    const struct options *options = b->options;
    char error[LINE_RULE_ERROR_SIZE];

    if (options->n_repeated == 0)
        return 0;
    if (!has_tee(b->job))
        return job_refuse(b, "--on-line looks at the lines that -t shows; add -t 3");
    b->job->line_rules = calloc(1, sizeof(*b->job->line_rules));
    if (!b->job->line_rules)
        return job_refuse(b, "out of memory");
    for (int i = 0; i < options->n_repeated; i++)
        if (!line_rules_add(b->job->line_rules, options->repeated[i], error))
            return job_refuse(b, "%s", error);
    return 0;
}

/* Another process shows the output: -r and -t are for that one. */
static int take_output_fd(struct job_builder *b)
{
    const char *text = envp_get(b->environment, "CRUN_OUTPUT_FD");
    struct job *job = b->job;
    uint64_t fd;

    if (!text || !*text)
        return 0;
    if (!decimal_parse(text, 3, INT_MAX, &fd))
        return job_refuse(b, "CRUN_OUTPUT_FD=%.64s: not the number of a descriptor above 2", text);
    if (job->line_rules)
        return job_refuse(
            b, "--on-line looks at lines that crun shows itself, and CRUN_OUTPUT_FD names another reader");
    job->output_fd = (int)fd;
    const char *admitted = envp_get(b->environment, "CRUN_ADMITTED");
    job->is_admitted = admitted && strcmp(admitted, "1") == 0;
    memset(job->redirects, 0, (size_t)job->n_workers);
    memset(job->tees, 0, (size_t)job->n_workers);
    return 0;
}

static int job_build(struct job_builder *b)
{
    static int (*const steps[])(struct job_builder *) = {
        check_front_options,
        take_agent_fd,
        job_check_nodes,
        take_supervision,
        take_numbers,
        job_count_workers,
        job_take_conf,
        job_take_rendezvous,
        job_take_program,
        job_take_output,
        check_logs_specs,
        warn_of_switches,
        warn_of_replacing,
        take_security,
        take_warm,
        take_health_check,
        take_line_rules,
        take_fold_output,
        take_restarts_without_progress,
        take_output_fd,
    };

    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        TRY(steps[i](b));
    return 0;
}

/* Whether the text has the option's name, and not that of a longer one. */
static bool names_option(const char *text, enum option_id id)
{
    const char *name = options_table[id].name;
    size_t n = strlen(name);

    for (const char *at = strstr(text, "--"); at; at = strstr(at + 2, "--"))
        if (strncmp(at + 2, name, n) == 0 && at[2 + n] != '-' && (at[2 + n] < 'a' || at[2 + n] > 'z'))
            return true;
    return false;
}

/* An option that text names may not be in the command line: then the variable that gives its value is named, too. */
static void name_variables(const struct options *options, const char *text, const char *before,
                           const char *after, struct strbuf *to)
{
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        char variable[OPTION_NAME_SIZE];

        if (!options->value[id].pet || !names_option(text, id))
            continue;
        option_spell_pet(id, variable);
        strbuf_add(to, "%s--%s comes from %s in the environment%s", before, options_table[id].name, variable,
                   after);
    }
}

static void name_variables_of_error(struct job_builder *b)
{
    struct strbuf variables = {0};
    size_t n = strlen(b->error);

    name_variables(b->options, b->error, "; ", "", &variables);
    _cleanup_free_ char *text = strbuf_steal(&variables);
    if (text)
        (void)snprintf(b->error + n, JOB_ERROR_SIZE - n, "%s", text); /* cut at most */
}

/* Malloc'ed, or NULL: there are none. */
static char *finish_warnings(struct job_builder *b)
{
    if (buf_size(&b->warnings.buf) == 0)
        return NULL;
    struct strbuf all = {0};
    _cleanup_free_ char *text = strbuf_steal(&b->warnings);
    strbuf_add(&all, "%s", text ? text : "");
    if (text)
        name_variables(b->options, text, "crun: ", "\n", &all);
    return strbuf_steal(&all);
}

int job_init(struct job *job, const struct options *options, char *const *environment,
             const struct job_machine *machine, char **ret_warnings, char error[JOB_ERROR_SIZE])
{
    struct job_builder b = {
        .job = job, .options = options, .environment = environment, .machine = machine, .error = error};

    *job = (struct job){0};
    int r = job_build(&b);
    if (r) {
        name_variables_of_error(&b);
        strbuf_finish(&b.warnings);
        job_finish(job);
        return r;
    }
    *ret_warnings = finish_warnings(&b);
    return 0;
}

void job_finish(struct job *job)
{
    free(job->master_addr);
    free(job->found_addr);
    for (size_t i = 0; i < job->n_endpoints; i++)
        free(job->endpoints[i].host);
    free(job->redirects);
    free(job->tees);
    free(job->listed);
    free(job->line_rules);
    strlist_finish(&job->filters[0]);
    strlist_finish(&job->filters[1]);
    *job = (struct job){0};
}
