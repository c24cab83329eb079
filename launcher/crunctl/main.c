/*
 * crunctl: shows the running jobs of crun on the own node, and their history. See crunctl(1). crunctl only asks and never
 * changes a job.
 */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "launcher/crunctl/history.h"
#include "launcher/crunctl/history_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/crunctl/job_survey_os.h"
#include "launcher/crunctl/new_secret_os.h"
#include "launcher/crunctl/print_os.h"
#include "launcher/crunctl/stacks_command_sock.h"
#include "launcher/crunctl/status_text.h"
#include "launcher/crunctl/top_os.h"
#include "launcher/crunctl/top_text.h"
#include "launcher/util/side_thread_os.h"
#include "launcher/util/control_path.h"
#include "launcher/util/proc_stat_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/option_answer_os.h"
#include "base/time.h"

enum { SAMPLE_MS = 200, HISTORY_LINE_MAX = 64 << 10, CLOCK_SLACK_S = 5 };

extern char **environ;

struct crunctl {
    int (*run)(struct crunctl *o); /* the command; NULL: none is given */
    struct survey_options ask;
    bool is_json, is_once, wants_all, is_top;
};

static int fail_usage(const char *why);

static int print_json(const struct job_survey *list)
{
    for (size_t i = 0; i < list->n_jobs; i++) {
        _cleanup_free_ char *json = job_status_to_json(&list->jobs[i]);
        if (print_json_line(json) != 0)
            return 1;
    }
    return 0;
}

/* 0: no terminal. */
static int terminal_width(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* 3: the job in o does not run here, or the endpoint does not have the job. */
static int result_of(const struct job_survey *look, struct crunctl *o)
{
    if (!o->ask.job || look->n_jobs > 0)
        return 0;
    if (o->ask.endpoint)
        (void)fprintf(stderr, "crunctl: the rendezvous %s has no job '%s'\n", o->ask.endpoint, o->ask.job);
    else
        (void)fprintf(
            stderr, "crunctl: no job '%s' of yours runs on this node; crunctl history has those that ended\n",
            o->ask.job);
    return 3;
}

/* Two looks have shares of CPU, and rates where workers report none. */
static int take_second_look(struct job_survey *look, const struct job_survey *before, struct crunctl *o)
{
    int r = job_survey_take(look, &o->ask);

    job_survey_compare(look, before);
    return r ? 1 : 0;
}

static int print_survey(const struct job_survey *look, const struct crunctl *o)
{
    const struct top_view view = {.width = terminal_width(), .now_s = (int64_t)time(NULL)};

    if (o->is_json)
        return print_json(look);
    _cleanup_free_ char *text = o->is_top ? top_text(look->jobs, look->n_jobs, &view)
                                          : status_text(look->jobs, look->n_jobs, view.width, view.now_s);
    return print_text(text);
}

/* For a script once, and at once; a table has the CPU, too. */
static int run_survey(struct crunctl *o)
{
    bool is_live = o->is_top && !o->is_once && !o->is_json && isatty(STDOUT_FILENO);
    _cleanup_(job_survey_finish) struct job_survey first, second = {0};
    int code = job_survey_take(&first, &o->ask) == 0 ? result_of(&first, o) : 1;
    bool wants_second = code == 0 && (o->is_top || (!o->is_json && first.n_jobs > 0));

    if (wants_second)
        sleep_ns(SAMPLE_MS * UINT64_C(1000000)); /* a signal only shortens the sleep */
    if (wants_second)
        code = is_live ? top_run(&o->ask, &first) : take_second_look(&second, &first, o);
    if (code == 0 && !is_live)
        code = print_survey(wants_second ? &second : &first, o);
    return code;
}

static int run_top(struct crunctl *o)
{
    o->is_top = true;
    return run_survey(o);
}

/* ---- history ---- */

static void format_local_time(int64_t seconds, char out[32])
{
    time_t t = (time_t)seconds;
    struct tm local;

    if (!localtime_r(&t, &local) || strftime(out, 32, "%Y-%m-%d %H:%M:%S", &local) == 0)
        (void)snprintf(out, 32, "%lld", (long long)seconds);
}

static void read_history(const char *path, struct history *h)
{
    static char line[HISTORY_LINE_MAX];
    FILE *file = fopen(path, "re");
    struct history_line parsed;

    while (file && fgets(line, sizeof(line), file)) /* a longer line is none of crun's */
        if (history_line_from_json(line, strlen(line), &parsed))
            (void)history_add(h, &parsed); /* without memory the rest is left out */
    if (file)
        (void)fclose(file);
}

static int fail_without_run(struct crunctl *o, const char *path)
{
    (void)fprintf(stderr, "crunctl: there is no job%s%s%s in %s\n", o->ask.job ? " '" : "",
                  o->ask.job ? o->ask.job : "", o->ask.job ? "'" : "", path);
    return 3;
}

/* Since 1970. */
static int64_t start_of_process(const struct proc_stat *stat)
{
    int64_t boot_s = (int64_t)((clock_read_ns(CLOCK_REALTIME) - boot_ns()) / 1000000000);

    return boot_s + (int64_t)(stat->start_ticks / (uint64_t)sysconf(_SC_CLK_TCK));
}

/* A run without an end still runs where crun_pid is a crun as old as the run. On another host the life is unknown. */
static enum history_life find_life(const struct history_run *run)
{
    char host[HISTORY_NAME_SIZE];
    struct proc_stat stat;

    if (gethostname(host, sizeof(host)) != 0 || strcmp(host, run->start.host) != 0)
        return HISTORY_LIFE_UNKNOWN;
    if (run->start.crun_pid > INT32_MAX || !proc_stat_read((pid_t)run->start.crun_pid, &stat))
        return HISTORY_LIFE_KILLED;
    bool is_crun = strncmp(stat.name, "crun", strlen("crun")) == 0;
    return is_crun && start_of_process(&stat) <= run->start.time_s + CLOCK_SLACK_S ? HISTORY_LIFE_RUNS
                                                                                   : HISTORY_LIFE_KILLED;
}

static int print_run(struct history_run *run, struct crunctl *o)
{
    run->life = find_life(run);
    _cleanup_free_ char *text =
        o->is_json ? history_to_json(run) : history_text(run, terminal_width(), format_local_time);
    return o->is_json ? print_json_line(text) : print_text(text);
}

/* The last run, or all in the order of their starts. */
static int print_runs(const struct history *h, struct crunctl *o)
{
    size_t first = o->wants_all ? 0 : h->n_runs - 1;
    int code = 0;

    for (size_t i = first; code == 0 && i < h->n_runs; i++) {
        if (i > first && !o->is_json)
            code = print_text("\n");
        if (code == 0)
            code = print_run(&h->runs[i], o);
    }
    if (code == 0 && first > 0 && !o->is_json)
        code = printf("%zu earlier run%s: crunctl history --all%s%s\n", first, first == 1 ? "" : "s",
                      o->ask.job ? " " : "", o->ask.job ? o->ask.job : "") < 0;
    return code;
}

static int run_history(struct crunctl *o)
{
    char path[CONTROL_PATH_SIZE], old[CONTROL_PATH_SIZE + 2];
    _cleanup_(history_finish) struct history h = {0};

    if (o->ask.endpoint)
        return fail_usage(
            "--endpoint: a rendezvous keeps no history any more; crunctl history on the first node of the job has it");
    if (!control_history_path(environ, path)) {
        (void)fprintf(stderr, "crunctl: neither XDG_STATE_HOME nor HOME is set, so there is no history\n");
        return 1;
    }
    (void)snprintf(old, sizeof(old), "%s.1", path); /* fits */
    read_history(old, &h);
    read_history(path, &h);
    history_select(&h, o->ask.job);
    return h.n_runs > 0 ? print_runs(&h, o) : fail_without_run(o, path);
}

/* ---- secret ---- */

static int run_secret(struct crunctl *o)
{
    char path[CONTROL_PATH_SIZE];

    if (!o->ask.job || strcmp(o->ask.job, "new") != 0)
        return fail_usage("secret new is the only command about secrets");
    int r = new_secret_write(environ, o->ask.secret_file, path);
    if (r == -EEXIST)
        (void)fprintf(stderr, "crunctl: %s exists; remove it first, and every copy of it on other nodes\n",
                      path);
    else if (r)
        (void)fprintf(stderr, "crunctl: cannot write the secret %s: %s\n", path, strerror(-r));
    return r || printf("%s\n", path) < 0 ? 1 : 0;
}

/* ---- stacks ---- */

static int run_stacks(struct crunctl *o)
{
    o->ask.wants_stacks = true;
    if (o->ask.endpoint && !o->ask.job)
        return fail_usage("stacks with --endpoint needs the name of a job");
    return stacks_command(&o->ask, o->is_json);
}

/* ---- command line ---- */

#define COMMANDS "status top history stacks secret"

static int (*const commands[])(struct crunctl *o) = {run_survey, run_top, run_history, run_stacks,
                                                     run_secret};

/* A command, then a job. */
static int take_word(void *to, const char *word, char *error, size_t n)
{
    struct crunctl *o = to;
    int command = option_choice(COMMANDS, word, strlen(word));

    if (o->ask.job)
        (void)snprintf(error, n, "one job at most: %s", word);
    else if (!o->run && command < 0)
        (void)snprintf(error, n, "there is no command %s; there are " COMMANDS, word);
    else if (o->run)
        o->ask.job = word;
    else
        o->run = commands[command];
    return *error ? OPTIONS_E_USAGE : 0;
}

#define AT(member) OPTION_AT(struct crunctl, member)

static const struct option_spec specs[] = {
    {"json", OPTION_FLAG, AT(is_json), .help = "one JSON object for each job, in a line"},
    {"once", OPTION_FLAG, AT(is_once), .help = "top: once, also on a terminal"},
    {"all", OPTION_FLAG, AT(wants_all), .help = "history: all runs, and not the last one alone"},
    {"socket", OPTION_TEXT, AT(ask.socket), .placeholder = "PATH", .help = "ask this socket alone"},
    {"endpoint", OPTION_TEXT, AT(ask.endpoint), .placeholder = "HOST[:PORT]|PATH[,...]",
     .help =
         "ask this rendezvous: TCP with a secret, or a unix socket of crund; of several the first one that answers "
         "and leads"},
    {"secret-file", OPTION_TEXT, AT(ask.secret_file), .placeholder = "FILE",
     .help = "the secret of the job, or of crund's administrator"},
    {"tls-cert", OPTION_TEXT, AT(ask.certificates.cert), .placeholder = "FILE",
     .help = "certificate as of crun, in place of the secret; with --tls-key and --tls-ca"},
    {"tls-key", OPTION_TEXT, AT(ask.certificates.key), .placeholder = "FILE", .help = "its private key"},
    {"tls-ca", OPTION_TEXT, AT(ask.certificates.ca), .placeholder = "FILE",
     .help = "CAs that have signed the certificate of the rendezvous"},
    OPTION_ROWS_OF_ALL,
};

static const struct option_word word_rows[] = {
    {"  status [JOB]", "nodes and workers, as they are now"},
    {"  top [JOB]", "the same with CPU and memory, redrawn each second; q ends it"},
    {"  history [JOB]", "generations, how long they lasted and why they ended; also of jobs that have ended"},
    {"  stacks [JOB]", "has the stacks of the workers taken, and shows where they are"},
    {"  secret new", "make a secret for jobs of several nodes"},
    {0},
};

static const struct option_table table = {
    .commands = "crunctl",
    .page = "crunctl(1)",
    .specs = specs,
    .n = ARRAY_SIZE(specs),
    .words = COMMANDS,
    .take_word = take_word,
    .usage =
        "usage: crunctl [options] status|top|history|stacks [JOB]\n"
        "       crunctl [--secret-file FILE] secret new\n",
    .about = "Shows jobs of crun: those of this node, or with --endpoint those of a rendezvous.",
    .word_rows = word_rows,
    .ending = "See crunctl(1).",
};

static int fail_usage(const char *why)
{
    return option_answer(&table, OPTIONS_E_USAGE, why, NULL);
}

int main(int argc, char **argv)
{
    struct crunctl o = {.ask = {.environment = environ}};
    char error[512];

    int r = option_table_parse(&table, argv, &o, error, sizeof(error));
    if (r)
        return option_answer(&table, r, error, CRUN_VERSION);
    (void)signal(SIGPIPE, SIG_IGN); /* cannot fail */
    if (!o.run)
        return fail_usage("a command is missing; there are " COMMANDS);
    if (!o.ask.certificates.cert != !o.ask.certificates.key ||
        !o.ask.certificates.cert != !o.ask.certificates.ca)
        return fail_usage("--tls-cert, --tls-key and --tls-ca: all three are needed");
    r = print_end(o.run(&o));
    survey_secret_finish(&o.ask.secret);
    if (side_thread_is_any_hung())
        _exit(r); /* a thread waits for a GPU driver without answer */
    return r;
}
