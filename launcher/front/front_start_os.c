#include "launcher/front/front_start_os.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "launcher/cli/plan.h"
#include "launcher/front/front_uv.h"
#include "launcher/front/host_files_os.h"
#include "launcher/host/job_secret_os.h"
#include "launcher/host/machine_os.h"
#include "launcher/host/program_os.h"
#include "launcher/output/logs_os.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/util/envp.h"
#include "launcher/util/log_os.h"

enum { END_MARGIN_MS = 10 * 1000 };

/* ---- settings ---- */

static int count_nothing(void *data)
{
    return 0;
}

/* A terminal shows ranks of many hosts. */
static void choose_prefix(struct options *own, char *const *environment)
{
    const char *of_torchrun = envp_get(environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    bool has_template = *own->value[OPTION_LOG_LINE_PREFIX_TEMPLATE].text || (of_torchrun && *of_torchrun);

    if (!own->value[OPTION_LINE_PREFIX].text && !has_template)
        own->value[OPTION_LINE_PREFIX].text = "host";
}

/* A job of one node, with the largest possible number of workers. */
static int init_settings(struct front_start *s)
{
    static char most[] = "--nproc-per-node=4096", program[] = "-";
    static char *const words[] = {most, program, NULL};
    static char *const no_variables[] = {NULL};
    const struct job_machine machine = {.count_cpus = count_nothing,
                                        .count_gpus = count_nothing,
                                        .count_xpus = count_nothing,
                                        .random_id = s->random_id};
    char error[JOB_ERROR_SIZE], *warnings = NULL;
    struct options own;

    int r = options_parse(words, no_variables, &own, error);
    for (enum option_id id = 0; id < OPTION_COUNT; id++)
        if (option_has_side(id, OPTION_SIDE_FRONT))
            own.value[id] = s->options->value[id];
    own.program = s->options->program;
    own.program_args = s->options->program_args;
    choose_prefix(&own, s->environment);
    if (r == 0)
        r = job_init(&s->job, &own, s->environment, &machine, &warnings, error);
    if (r == 0 && warnings)
        log_lines(warnings);
    free(warnings);
    if (r != 0)
        log_line("%s", error);
    return r != 0 ? -1 : 0;
}

int front_start_init(struct front_start *s, const struct options *options, char *const *environment,
                     const char *version)
{
    *s = (struct front_start){.options = options, .environment = environment, .version = version};
    machine_uuid(s->random_id);
    return init_settings(s);
}

/* ---- disks ---- */

static void find_python(struct front_start *s)
{
    struct plan_command command = {0};
    char error[PROGRAM_ERROR_SIZE];

    int r = program_find(&s->job, s->environment, &command, &s->python, error);
    bool is_program = s->job.program == JOB_PROGRAM_EXECUTABLE ||
                      (s->python && strcmp(s->python, s->job.program_name) == 0);
    if (r != 0 || is_program)
        free(steal_ptr(s->python)); /* each host reports missing programs */
    strlist_finish(&command.head);
}

static int make_plan(struct front_start *s)
{
    char error[FRONT_ERROR_SIZE];
    ssize_t n = readlink("/proc/self/exe", s->executable, sizeof(s->executable) - 1);

    s->executable[n > 0 ? n : 0] = 0;
    const struct front_machine machine = {.version = s->version,
                                          .executable = n > 0 ? s->executable : NULL,
                                          .directory = s->directory,
                                          .environment = s->environment,
                                          .python = s->python,
                                          .random_id = s->random_id,
                                          .builds = s->copies.builds,
                                          .n_builds = s->copies.n,
                                          .files = {.read = host_file_read}};
    int r = front_plan_make(&s->plan, s->options, &machine, error);
    if (r != 0)
        log_line("%s", error);
    return r != 0 ? -1 : 0;
}

static int find_launch_file(struct front_start *s)
{
    const char *name = s->plan.hosts[0].launch.items[0];
    int error;

    s->launch_file = program_on_path(name, s->environment, &error);
    if (!s->launch_file)
        log_line("cannot run %s, the command that starts crun on hosts: %s", name, strerror(error));
    return s->launch_file ? 0 : -1;
}

static int make_log_folder(const struct front_start *s)
{
    struct logs logs;
    bool has_folder = job_has_logs(&s->job) && s->job.log_dir;
    int r = has_folder ? logs_init(&logs, s->job.log_dir, true, s->environment, 0) : 0;

    if (has_folder && r == 0 && logs.base) {
        r = logs_make_base(&logs);
        r = r == 0 && access(logs.base, W_OK | X_OK) < 0 ? -errno : r;
        logs_finish(&logs);
    }
    if (r < 0)
        log_line("cannot write log files under %s: %s; choose another place with --log-dir", s->job.log_dir,
                 strerror(-r));
    return r < 0 ? -1 : 0;
}

/* Hosts that the channels admit need a key for their workers and no secret. */
static int find_secret(struct front_start *s)
{
    char error[SECRET_ERROR_SIZE] = "";

    if (s->plan.is_open)
        return 0;
    int r = job_secret_find(&s->secret, s->options->value[OPTION_SECRET_FILE].text, s->environment, error);
    if (r == 0 && s->plan.hosts_rendezvous && (s->plan.admits || !s->secret.bytes)) {
        secret_finish(&s->secret);
        r = secret_make(&s->secret, KEY_SIZE, JOB_WORKERS_KEY_SIZE);
        if (r == 0)
            s->secret.bytes[KEY_SIZE] = '.';
        else
            (void)snprintf(error, sizeof(error), "cannot make a secret for the job: %s", strerror(-r));
    }
    if (r < 0)
        log_line("%s", error);
    return r < 0 ? -1 : 0;
}

int front_start_find(struct front_start *s)
{
    const char *why = "";

    if (!getcwd(s->directory, sizeof(s->directory))) {
        log_line("the working directory is not known: %s", strerror(errno));
        return -1;
    }
    if (front_copies_load(&s->copies, s->environment, &why) < 0) {
        log_line("--hosts: %s", why);
        return -1;
    }
    find_python(s);
    TRY(make_plan(s));
    TRY(find_launch_file(s));
    TRY(make_log_folder(s));
    return find_secret(s);
}

int front_start_run(struct front_start *s, int signal_fd)
{
    const struct front_setup setup = {.plan = &s->plan,
                                      .launch_file = s->launch_file,
                                      .copies = &s->copies,
                                      .secret = &s->secret,
                                      .job = &s->job,
                                      .environment = s->environment,
                                      .signal_fd = signal_fd,
                                      .grace_ms = (unsigned)s->job.shutdown_timeout_s * 1000 + END_MARGIN_MS};

    if (s->job.has_timestamps)
        log_with_times();
    return front_run(&setup);
}

void front_start_finish(struct front_start *s)
{
    front_plan_finish(&s->plan);
    front_copies_finish(&s->copies);
    secret_finish(&s->secret);
    job_finish(&s->job);
    free(s->launch_file);
    free(s->python);
}
