/*
 * crunctl: shows jobs of crun on this node while they run, and their history. See crunctl(1). It only asks: nothing that it
 * does changes a job.
 */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "launcher/ctl/history.h"
#include "launcher/ctl/history_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/query_answer_json.h"
#include "launcher/ctl/job_survey_os.h"
#include "launcher/ctl/new_secret_os.h"
#include "launcher/ctl/other_nodes_sock.h"
#include "launcher/ctl/print_os.h"
#include "launcher/ctl/run_life_os.h"
#include "launcher/ctl/stacks_command_sock.h"
#include "launcher/ctl/status_text.h"
#include "launcher/ctl/top_os.h"
#include "launcher/ctl/top_text.h"
#include "launcher/util/bounded_os.h"
#include "launcher/util/control_path.h"
#include "base/cleanup.h"
#include "base/err.h"

enum { SAMPLE_MS = 200, HISTORY_LINE_MAX = 64 << 10 };

extern char **environ;

struct crunctl {
    const char *job; /* the name of a job or how it begins; NULL: all */
    const char *socket, *endpoint, *secret_file;
    struct certificate_paths certificates;
    bool is_json, is_once, wants_all, wants_help, wants_version;
};

static const char usage[] =
    "usage: crunctl [--json] [--socket PATH] status|top|stacks [JOB]\n"
    "       crunctl [--json] [--all] history [JOB]\n"
    "       crunctl [--json] [--secret-file FILE] --endpoint HOST[:PORT]|PATH[,...]\n"
    "               status|top|history [JOB]\n"
    "       crunctl [--json] [--secret-file FILE] --endpoint HOST[:PORT]|PATH[,...]\n"
    "               stacks JOB\n"
    "       crunctl [--json] --tls-cert FILE --tls-key FILE --tls-ca FILE\n"
    "               --endpoint HOST[:PORT][,...] status|top|history JOB\n"
    "       crunctl [--secret-file FILE] secret new\n";

static int print_json(const struct job_survey *list)
{
    for (size_t i = 0; i < list->n_jobs; i++) {
        _cleanup_free_ char *json = job_status_to_json(&list->jobs[i]);
        if (print_json_line(json) != 0)
            return 1;
    }
    return 0;
}

static struct status_view view_of_terminal(void)
{
    struct status_view view = {.now_s = (int64_t)time(NULL)};
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        view.width = size.ws_col;
    return view;
}

/* 3: the job that was asked for does not run here, or the endpoint does not have it. */
static int result_of(const struct job_survey *look, const struct crunctl *o)
{
    if (!o->job || look->n_jobs > 0)
        return 0;
    if (o->endpoint)
        (void)fprintf(stderr, "crunctl: the rendezvous %s has no job '%s'\n", o->endpoint, o->job);
    else
        (void)fprintf(
            stderr, "crunctl: no job '%s' of yours runs on this node; crunctl history has those that ended\n",
            o->job);
    return 3;
}

static struct survey_options request_of(const struct crunctl *o, struct survey_secret *secret)
{
    return (struct survey_options){.job = o->job,
                                   .socket = o->socket,
                                   .endpoint = o->endpoint,
                                   .secret_file = o->secret_file,
                                   .certificates = o->certificates,
                                   .environment = environ,
                                   .secret = secret};
}

static int take_first_look(struct job_survey *look, const struct crunctl *o,
                           const struct survey_options *request)
{
    return job_survey_take(look, request) == 0 ? result_of(look, o) : 1;
}

static int print_status(const struct job_survey *look, const struct crunctl *o)
{
    const struct status_view view = view_of_terminal();

    if (o->is_json)
        return print_json(look);
    _cleanup_free_ char *text = status_text(look->jobs, look->n_jobs, &view);
    return print_text(text);
}

/* Two looks have shares of CPU, and rates where workers report none. */
static void wait_for_sample(void)
{
    const struct timespec sample = {.tv_nsec = SAMPLE_MS * 1000000L};

    (void)nanosleep(&sample, NULL); /* a signal only shortens it */
}

static int take_second_look(struct job_survey *look, const struct job_survey *before,
                            const struct survey_options *request)
{
    wait_for_sample();
    int r = job_survey_take(look, request);
    job_survey_compare(look, before);
    return r ? 1 : 0;
}

/* For a script once, and at once; a table has the CPU, too. */
static int run_status(const struct crunctl *o)
{
    struct survey_secret secret = {0};
    const struct survey_options request = request_of(o, &secret);
    struct job_survey first, second = {0};
    bool wants_second = !o->is_json;

    int code = take_first_look(&first, o, &request);
    wants_second = wants_second && code == 0 && first.n_jobs > 0;
    if (wants_second)
        code = take_second_look(&second, &first, &request);
    if (code == 0)
        code = print_status(wants_second ? &second : &first, o);
    job_survey_finish(&first);
    job_survey_finish(&second);
    survey_secret_finish(&secret);
    return code;
}

static int print_top(const struct job_survey *look, const struct crunctl *o)
{
    const struct top_view view = {.width = view_of_terminal().width, .now_s = (int64_t)time(NULL)};

    if (o->is_json)
        return print_json(look);
    _cleanup_free_ char *text = top_text(look->jobs, look->n_jobs, &view);
    return print_text(text);
}

static int run_top(const struct crunctl *o)
{
    struct survey_secret secret = {0};
    const struct survey_options request = request_of(o, &secret);
    struct job_survey before, look = {0};

    int code = take_first_look(&before, o, &request);
    if (code == 0 && !o->is_once && !o->is_json && isatty(STDOUT_FILENO)) {
        wait_for_sample();
        code = top_run(&request, &before);
    } else if (code == 0) {
        code = take_second_look(&look, &before, &request);
        if (code == 0)
            code = print_top(&look, o);
    }
    job_survey_finish(&look);
    job_survey_finish(&before);
    survey_secret_finish(&secret);
    return code;
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

static int fail_without_run(const struct crunctl *o, const char *path)
{
    (void)fprintf(stderr, "crunctl: there is no job%s%s%s in %s\n", o->job ? " '" : "", o->job ? o->job : "",
                  o->job ? "'" : "", path);
    return 3;
}

static int print_run(struct history_run *run, const struct crunctl *o)
{
    if (run->host[0])
        run->life = run_life_find(run);
    _cleanup_free_ char *text =
        o->is_json ? history_to_json(run) : history_text(run, view_of_terminal().width, format_local_time);
    return o->is_json ? print_json_line(text) : print_text(text);
}

/* The last run, or all in the order of their starts. */
static int print_runs(const struct history *h, const struct crunctl *o)
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
                      o->job ? " " : "", o->job ? o->job : "") < 0;
    return code;
}

static int ask_for_history(const struct crunctl *o)
{
    struct survey_secret secret = {0};
    struct survey_options request = request_of(o, &secret);
    struct query_answer looked;
    int code = 1;

    request.wants_history = true;
    if (other_nodes_ask(&request, &looked) == 0 && looked.n_jobs > 0)
        (void)fprintf(stderr, "crunctl: %s: the rendezvous is older and keeps no history\n", o->endpoint);
    else if (!looked.is_over)
        code = 1;
    else
        code = looked.history.n_runs > 0 ? print_runs(&looked.history, o) : fail_without_run(o, o->endpoint);
    query_answer_finish(&looked);
    survey_secret_finish(&secret);
    return code;
}

static int run_history(const struct crunctl *o)
{
    char path[CONTROL_PATH_SIZE], old[CONTROL_PATH_SIZE + 2];
    struct history h = {0};

    if (o->endpoint)
        return ask_for_history(o);
    if (!control_history_path(environ, path)) {
        (void)fprintf(stderr, "crunctl: neither XDG_STATE_HOME nor HOME is set, so there is no history\n");
        return 1;
    }
    (void)snprintf(old, sizeof(old), "%s.1", path); /* fits */
    read_history(old, &h);
    read_history(path, &h);
    history_select(&h, o->job);
    int code = h.n_runs > 0 ? print_runs(&h, o) : fail_without_run(o, path);
    history_finish(&h);
    return code;
}

/* ---- secret ---- */

static int run_secret(const struct crunctl *o)
{
    char path[CONTROL_PATH_SIZE];

    if (!o->job || strcmp(o->job, "new") != 0) {
        (void)fprintf(stderr, "%scrunctl: error: secret new is the only command about secrets\n", usage);
        return 2;
    }
    int r = new_secret_write(environ, o->secret_file, path);
    if (r == -EEXIST)
        (void)fprintf(stderr, "crunctl: %s exists; remove it first, and every copy of it on other nodes\n",
                      path);
    else if (r)
        (void)fprintf(stderr, "crunctl: cannot write the secret %s: %s\n", path, strerror(-r));
    return r || printf("%s\n", path) < 0 ? 1 : 0;
}

/* ---- stacks ---- */

static int run_stacks(const struct crunctl *o)
{
    struct survey_secret secret = {0};
    const struct survey_options request = request_of(o, &secret);

    if (!o->endpoint)
        return stacks_command(environ, o->socket, o->job, o->is_json);
    if (!o->job) {
        (void)fprintf(stderr, "%scrunctl: error: stacks with --endpoint needs the name of a job\n", usage);
        return 2;
    }
    int code = stacks_of_endpoint(&request, o->is_json);
    survey_secret_finish(&secret);
    return code;
}

/* ---- command line ---- */

static const struct command {
    const char *name;
    int (*run)(const struct crunctl *o);
} commands[] = {{"status", run_status},
                {"top", run_top},
                {"history", run_history},
                {"stacks", run_stacks},
                {"secret", run_secret}};

static int fail_usage(const char *what, const char *word)
{
    (void)fprintf(stderr, "%scrunctl: error: %s%s\n", usage, what, word);
    return 2;
}

static int print_help(void)
{
    return printf(
               "%s\n"
               "Shows jobs of crun.\n\n"
               "  status [JOB]   nodes and workers, as they are now\n"
               "  top [JOB]      the same with CPU and memory, redrawn each second; q ends it\n"
               "  secret new     make a secret for jobs of several nodes\n"
               "  history [JOB]  generations, how long they lasted and why they ended; also of\n"
               "                 jobs that have ended\n"
               "  stacks [JOB]   has the stacks of the workers taken, and shows where they are\n\n"
               "  --json         one JSON object for each job, in a line\n"
               "  --once         top: once, also on a terminal\n"
               "  --all          history: all runs, and not the last one alone\n"
               "  --socket PATH  ask this socket alone\n"
               "  --endpoint HOST[:PORT]|PATH[,...]\n"
               "                 ask this rendezvous: TCP with a secret, or a unix socket of\n"
               "                 crund; of several the first one that answers and leads\n"
               "  --secret-file FILE\n"
               "                 the secret of the job, or of crund's administrator\n"
               "  --tls-cert FILE, --tls-key FILE, --tls-ca FILE\n"
               "                 certificates as of crun, in place of the secret\n"
               "  --help, --version\n",
               usage) < 0;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* A command, then a job. 0 or 2. */
static int take_word(const char *word, const struct command **command, struct crunctl *o)
{
    if (*word == '-')
        return fail_usage("there is no option ", word);
    if (*command && o->job)
        return fail_usage("one job at most: ", word);
    if (*command)
        o->job = word;
    else
        *command = find_command(word);
    return *command ? 0 : fail_usage("there is no command ", word);
}

/* Where the value of an option of n bytes goes; NULL: there is no such option. */
static const char **find_value(const char *option, size_t n, struct crunctl *o)
{
    const struct {
        const char *name;
        const char **to;
    } values[] = {{"--socket", &o->socket},
                  {"--endpoint", &o->endpoint},
                  {"--secret-file", &o->secret_file},
                  {"--tls-cert", &o->certificates.cert},
                  {"--tls-key", &o->certificates.key},
                  {"--tls-ca", &o->certificates.ca}};

    for (size_t i = 0; i < ARRAY_SIZE(values); i++)
        if (strlen(values[i].name) == n && strncmp(values[i].name, option, n) == 0)
            return values[i].to;
    return NULL;
}

static bool *find_flag(const char *option, struct crunctl *o)
{
    const struct {
        const char *name;
        bool *to;
    } flags[] = {{"--json", &o->is_json},    {"--once", &o->is_once}, {"--all", &o->wants_all},
                 {"--help", &o->wants_help}, {"-h", &o->wants_help},  {"--version", &o->wants_version}};

    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (strcmp(flags[i].name, option) == 0)
            return flags[i].to;
    return NULL;
}

/* Options as --NAME VALUE and --NAME=VALUE; the rest is a command and a job. 0 or 2. */
static int take_arguments(char **argv, const struct command **command, struct crunctl *o)
{
    int r = 0;

    for (; r == 0 && *argv; argv++) {
        size_t n = strcspn(*argv, "=");
        const char **value = find_value(*argv, n, o);
        bool *flag = find_flag(*argv, o);

        if (flag)
            *flag = true;
        else if (!value)
            r = take_word(*argv, command, o);
        else if ((*argv)[n] == '=')
            *value = *argv + n + 1;
        else if (!argv[1])
            r = fail_usage("a value is missing behind ", *argv);
        else
            *value = *++argv;
    }
    return r;
}

int main(int argc, char **argv)
{
    const struct command *command = NULL;
    struct crunctl o = {0};

    int r = argc > 0 ? take_arguments(argv + 1, &command, &o) : 0;
    if (r)
        return r;
    if (o.wants_help)
        return print_end(print_help());
    if (o.wants_version)
        return print_text("crunctl " CRUN_VERSION "\n");
    (void)signal(SIGPIPE, SIG_IGN); /* cannot fail */
    if (!command)
        return fail_usage("a command is missing", "");
    if (!o.certificates.cert != !o.certificates.key || !o.certificates.cert != !o.certificates.ca)
        return fail_usage("--tls-cert, --tls-key and --tls-ca: all three are needed", "");
    r = print_end(command->run(&o));
    if (bounded_is_hung())
        _exit(r); /* a GPU driver does not answer, and a thread waits for it */
    return r;
}
