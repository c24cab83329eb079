/*
 * crunctl: shows jobs of crun on this node while they run, and their history. See crunctl(1). It only asks: nothing that it
 * does changes a job.
 */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "launcher/ctl/control_client_sock.h"
#include "launcher/ctl/history.h"
#include "launcher/ctl/history_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/proc_usage_os.h"
#include "launcher/ctl/status_text.h"
#include "launcher/util/control_path.h"
#include "base/cleanup.h"
#include "base/time.h"

enum { SAMPLE_MS = 200, TOP_MS = 1000, HISTORY_LINE_MAX = 64 << 10 };

extern char **environ;

struct crunctl {
    const char *job; /* the name of a job or how it begins; NULL: all */
    const char *socket;
    bool is_json, is_once;
};

struct job_list {
    struct job_status *jobs;
    size_t n_jobs;
    uint64_t sampled_ns; /* when /proc was read */
};

static const char usage[] = "usage: crunctl [--json] [--socket PATH] status|top|history [JOB]\n";

static void free_jobs(struct job_list *list)
{
    for (size_t i = 0; i < list->n_jobs; i++)
        job_status_finish(&list->jobs[i]);
    free(list->jobs);
    *list = (struct job_list){0};
}

static int take_reply(struct job_list *list, const struct crunctl *o, const char *bytes, size_t n)
{
    struct job_status *jobs = reallocarray(list->jobs, list->n_jobs + 1, sizeof(*jobs));

    if (!jobs)
        return -ENOMEM;
    list->jobs = jobs;
    int r = job_status_from_json(bytes, n, &jobs[list->n_jobs]);
    if (r)
        job_status_finish(&jobs[list->n_jobs]);
    else if (o->job && strncmp(o->job, jobs[list->n_jobs].job, strlen(o->job)) != 0)
        job_status_finish(&jobs[list->n_jobs]);
    else
        list->n_jobs++;
    return r;
}

/* A socket that a killed crun left is passed over: the next crun of that name removes it. */
static void ask_one(struct job_list *list, const struct crunctl *o, const char *path)
{
    _cleanup_free_ char *reply = NULL;
    size_t n = 0;

    int r = control_client_ask(path, "status", &reply, &n);
    if (!r)
        r = take_reply(list, o, reply, n);
    if (r && r != -ECONNREFUSED && r != -ENOENT)
        (void)fprintf(stderr, "crunctl: %s: %s\n", path,
                      r == -EBADMSG
                          ? "it is not answered as this crunctl expects; use that of the same release"
                          : strerror(-r));
}

static void read_usage(struct job_list *list)
{
    struct proc_usage usage_now;

    list->sampled_ns = now_ns();
    for (size_t i = 0; i < list->n_jobs; i++)
        for (size_t n = 0; n < list->jobs[i].n_nodes_known; n++)
            for (size_t w = 0; w < list->jobs[i].nodes[n].n_workers; w++) {
                struct worker_status *worker = &list->jobs[i].nodes[n].workers[w];

                worker->has_usage = proc_usage_read(worker->pid, &usage_now);
                worker->cpu_ms = worker->has_usage ? usage_now.cpu_ms : 0;
                worker->rss_kib = worker->has_usage ? usage_now.rss_kib : 0;
            }
}

static int ask_all(struct job_list *list, const struct crunctl *o)
{
    struct strlist sockets = {0};

    if (o->socket)
        strlist_add_copy(&sockets, o->socket);
    else
        control_client_list(environ, &sockets);
    for (size_t i = 0; !sockets.failed && i < sockets.n_items; i++)
        ask_one(list, o, sockets.items[i]);
    bool failed = sockets.failed;
    strlist_finish(&sockets);
    read_usage(list);
    return failed ? -ENOMEM : 0;
}

static const struct worker_status *find_worker(const struct job_list *list, int64_t pid)
{
    for (size_t i = 0; i < list->n_jobs; i++)
        for (size_t n = 0; n < list->jobs[i].n_nodes_known; n++)
            for (size_t w = 0; w < list->jobs[i].nodes[n].n_workers; w++)
                if (list->jobs[i].nodes[n].workers[w].pid == pid)
                    return &list->jobs[i].nodes[n].workers[w];
    return NULL;
}

/* The CPU time between two looks. */
static void compare_usage(struct job_list *list, const struct job_list *before)
{
    int64_t ms = (int64_t)(list->sampled_ns - before->sampled_ns) / 1000000;

    for (size_t i = 0; ms > 0 && i < list->n_jobs; i++)
        for (size_t n = 0; n < list->jobs[i].n_nodes_known; n++)
            for (size_t w = 0; w < list->jobs[i].nodes[n].n_workers; w++) {
                struct worker_status *worker = &list->jobs[i].nodes[n].workers[w];
                const struct worker_status *was = worker->has_usage ? find_worker(before, worker->pid) : NULL;

                if (was && was->has_usage && worker->cpu_ms >= was->cpu_ms)
                    worker->cpu_percent = (int32_t)((worker->cpu_ms - was->cpu_ms) * 100 / ms);
            }
}

static int print_text(const char *text)
{
    if (text && fputs(text, stdout) >= 0 && fflush(stdout) == 0)
        return 0;
    (void)fprintf(stderr, "crunctl: cannot write: %s\n", text ? strerror(errno) : "out of memory");
    return 1;
}

static int print_json(const struct job_list *list)
{
    for (size_t i = 0; i < list->n_jobs; i++) {
        _cleanup_free_ char *json = job_status_to_json(&list->jobs[i]);
        if (print_text(json) != 0 || puts("") < 0)
            return 1;
    }
    return 0;
}

static struct status_view view_of_terminal(void)
{
    struct status_view view = {.now_s = (int64_t)time(NULL)};
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        view.width = size.ws_col;
        view.height = size.ws_row;
    }
    return view;
}

static int print_jobs(const struct job_list *list, const struct crunctl *o)
{
    struct status_view view = view_of_terminal();

    view.height = 0;
    if (o->is_json)
        return print_json(list);
    _cleanup_free_ char *text = status_text(list->jobs, list->n_jobs, &view);
    return print_text(text);
}

/* 3: the job that was asked for does not run here. */
static int result_of(const struct job_list *list, const struct crunctl *o)
{
    if (!o->job || list->n_jobs > 0)
        return 0;
    (void)fprintf(stderr,
                  "crunctl: no job '%s' of yours runs on this node; crunctl history has those that ended\n",
                  o->job);
    return 3;
}

static int run_status(const struct crunctl *o)
{
    struct job_list list = {0};

    int code = ask_all(&list, o) == 0 ? result_of(&list, o) : 1;
    if (code == 0)
        code = print_jobs(&list, o);
    free_jobs(&list);
    return code;
}

/* ---- top ---- */

/* Whether "q" was pressed, or the time is over without it. */
static bool wait_for_quit(int timeout_ms)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;

    if (poll(&input, 1, timeout_ms) <= 0)
        return false;
    return read(STDIN_FILENO, &key, 1) <= 0 || key == 'q';
}

static int redraw(const struct job_list *list, const struct crunctl *o)
{
    struct status_view view = view_of_terminal();

    view.height -= view.height > 1; /* the last line break would scroll the first line away */
    _cleanup_free_ char *text = status_text(list->jobs, list->n_jobs, &view);
    (void)o;
    return print_text("\033[H\033[J") || print_text(text);
}

static int run_top(const struct crunctl *o)
{
    struct job_list before = {0}, list = {0};
    bool is_live = !o->is_once && !o->is_json && isatty(STDOUT_FILENO);
    const struct timespec sample = {.tv_nsec = SAMPLE_MS * 1000000L};

    int code = ask_all(&before, o) == 0 ? result_of(&before, o) : 1;
    if (code == 0)
        (void)nanosleep(&sample, NULL);
    while (code == 0) {
        code = ask_all(&list, o) == 0 ? 0 : 1;
        compare_usage(&list, &before);
        if (code == 0)
            code = is_live ? redraw(&list, o) : print_jobs(&list, o);
        free_jobs(&before);
        before = list;
        list = (struct job_list){0};
        if (!is_live || wait_for_quit(TOP_MS))
            break;
    }
    free_jobs(&before);
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

static int run_history(const struct crunctl *o)
{
    char path[CONTROL_PATH_SIZE], old[CONTROL_PATH_SIZE + 2];
    struct status_view view = view_of_terminal();
    struct history h = {0};

    if (!control_history_path(environ, path)) {
        (void)fprintf(stderr, "crunctl: neither XDG_STATE_HOME nor HOME is set, so there is no history\n");
        return 1;
    }
    (void)snprintf(old, sizeof(old), "%s.1", path); /* fits */
    read_history(old, &h);
    read_history(path, &h);
    const struct history_run *run = history_find(&h, o->job);
    if (!run) {
        (void)fprintf(stderr, "crunctl: there is no job%s%s%s in %s\n", o->job ? " '" : "",
                      o->job ? o->job : "", o->job ? "'" : "", path);
        history_finish(&h);
        return 3;
    }
    _cleanup_free_ char *text =
        o->is_json ? history_to_json(run) : history_text(run, view.width, format_local_time);
    int code = print_text(text);
    if (code == 0 && o->is_json)
        code = puts("") < 0;
    history_finish(&h);
    return code;
}

/* ---- command line ---- */

static const struct command {
    const char *name;
    int (*run)(const struct crunctl *o);
} commands[] = {{"status", run_status}, {"top", run_top}, {"history", run_history}};

static int fail_usage(const char *what, const char *word)
{
    (void)fprintf(stderr, "%scrunctl: error: %s%s\n", usage, what, word);
    return 2;
}

static int print_help(void)
{
    return printf(
               "%s\n"
               "Shows jobs of crun on this node.\n\n"
               "  status [JOB]   nodes and workers, as they are now\n"
               "  top [JOB]      the same with CPU and memory, redrawn each second; q ends it\n"
               "  history [JOB]  generations, how long they lasted and why they ended; also of jobs that have ended\n\n"
               "  --json         one JSON object for each job, in a line\n"
               "  --once         top: once, also on a terminal\n"
               "  --socket PATH  ask this socket alone\n"
               "  --help, --version\n",
               usage) < 0;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
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

int main(int argc, char **argv)
{
    const struct command *command = NULL;
    struct crunctl o = {0};
    int r = 0;

    for (int i = 1; r == 0 && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return print_help();
        if (strcmp(argv[i], "--version") == 0)
            return puts("crunctl " CRUN_VERSION) < 0;
        if (strcmp(argv[i], "--json") == 0)
            o.is_json = true;
        else if (strcmp(argv[i], "--once") == 0)
            o.is_once = true;
        else if (strcmp(argv[i], "--socket") == 0 && i + 1 < argc)
            o.socket = argv[++i];
        else
            r = take_word(argv[i], &command, &o);
    }
    if (r)
        return r;
    (void)signal(SIGPIPE, SIG_IGN); /* cannot fail */
    return command ? command->run(&o) : fail_usage("a command is missing", "");
}
