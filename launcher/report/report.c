#include "launcher/report/report.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launcher/supervise/worker_group.h"
#include "launcher/util/signal_name.h"
#include "base/minmax.h"
#include "base/strbuf.h"
#include "base/cleanup.h"

enum { NAMED_MAX = 6 }; /* ranks listed by number in a line */

void report_describe_end(const struct report_failure *f, char *out, size_t out_size)
{
    if (f->exit_code >= 0) {
        (void)snprintf(out, out_size, "exit code %d",
                       f->exit_code); /* cut when the caller wants a short text */
        return;
    }
    char text[SIGNAL_NAME_SIZE];
    const char *name = signal_name(-f->exit_code, text);
    (void)snprintf(out, out_size, "killed by signal %d%s%s%s%s", -f->exit_code, name ? " (" : "",
                   name ? name : "", name ? ")" : "", f->core_dumped ? ", core dumped" : "");
}

static bool is_own_failure(const struct report_failure *f)
{
    return !f->stopped || f->error_file;
}

int report_find_root(const struct report_failure *failures, size_t n_failures)
{
    int root = -1;

    for (size_t i = 0; i < n_failures; i++) {
        bool better = root < 0 || failures[i].time_s < failures[root].time_s;
        if (is_own_failure(&failures[i]) && better)
            root = (int)i;
    }
    return root < 0 && n_failures > 0 ? 0 : root;
}

/* ---- lines ---- */

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* Signals without a mistake of the program as their cause. */
static bool is_external_signal(int signal)
{
    return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
           signal == SIGQUIT;
}

static void add_cause_worker(struct strbuf *out, const struct report *r)
{
    const struct report_failure *f = &r->failures[r->root];
    const struct group_worker *w = &r->group->workers[f->local_rank];
    char end[96];

    report_describe_end(f, end, sizeof(end));
    strbuf_add(out, "crun: rank %d (local rank %d, pid %d) failed first, %.3f s after its start: %s\n",
               f->rank, f->local_rank, f->pid, seconds(f->ended_ns - w->started_ns), end);
    if (f->exit_code == -SIGKILL && w->kill_option)
        strbuf_add(out, "crun: that signal came from crun, for %s\n", w->kill_option);
    else if (f->exit_code == -SIGKILL && r->oom_kills > 0)
        strbuf_add(out,
                   "crun: the kernel's OOM killer has killed %ld process%s of this cgroup; rank %d had used "
                   "%.0f MiB\n",
                   r->oom_kills, r->oom_kills == 1 ? "" : "es", f->rank, (double)f->max_rss_kib / 1024);
    else if (is_external_signal(-f->exit_code) && !f->stopped)
        strbuf_add(out, "crun: that signal did not come from crun%s\n",
                   f->exit_code != -SIGKILL ? ""
                   : r->oom_kills == 0 ? ", nor has the kernel's OOM killer killed anything in this cgroup"
                                       : "; whether the kernel's OOM killer sent it cannot be known here");
    if (f->core_dumped && r->core_pattern && *r->core_pattern)
        strbuf_add(out, "crun: its core dump went to %s%s (/proc/sys/kernel/core_pattern)\n",
                   *r->core_pattern == '|' ? "the program " : "",
                   r->core_pattern + (*r->core_pattern == '|'));
}

static const char *exec_hint(int error)
{
    return error == ENOEXEC ? "; the file is neither a program of this machine nor begins with \"#!\""
           : error == EFBIG
               ? "; the environment of a worker is larger than the limit of file size (ulimit -f)"
               : "";
}

static void add_cause_exec(struct strbuf *out, const struct report *r)
{
    const struct group_worker *w = &r->group->workers[r->group->cause_worker];

    int rank = r->rank_base + r->group->cause_worker;
    strbuf_add(out, "crun: rank %d could not be started: ", rank);
    strbuf_add_clean(out, r->program);
    if (r->interpreter) {
        size_t n = strlen(r->interpreter);
        bool has_return = n > 0 && r->interpreter[n - 1] == '\r';
        _cleanup_free_ char *name = strndup(r->interpreter, n - has_return);
        strbuf_add(out, ": its \"#!\" line names ");
        strbuf_add_clean(out, name ? name : "");
        strbuf_add(out, "%s, which cannot be run: %s\n",
                   has_return ? " with a carriage return behind it (the file has the line ends of Windows)"
                              : "",
                   strerror(w->status));
        return;
    }
    strbuf_add(out, ": %s%s\n", strerror(w->status), exec_hint(w->status));
}

static int count_unready(const struct worker_group *g)
{
    int n = 0;

    for (int i = 0; i < g->config.n_workers; i++)
        n += !g->workers[i].ready;
    return n;
}

static void add_root_cause(struct strbuf *out, const struct report *r)
{
    const struct worker_group *g = r->group;

    switch (g->cause) {
    case GROUP_CAUSE_WORKER:
        if (r->root >= 0)
            add_cause_worker(out, r);
        break;
    case GROUP_CAUSE_EXEC:
        add_cause_exec(out, r);
        break;
    case GROUP_CAUSE_REJOIN:
        strbuf_add(
            out,
            "crun: after a failed worker had been replaced, %d of %d workers were not ready within %.0f s\n",
            count_unready(g), g->config.n_workers, seconds(g->cause_ns - g->started_ns));
        break;
    case GROUP_CAUSE_GUARDIAN:
        strbuf_add(out,
                   "crun: the guardian, the parent process of the workers, was killed from outside%s; its "
                   "workers have been killed\n",
                   r->oom_kills > 0 ? " (the kernel's OOM killer was at work in this cgroup)" : "");
        break;
    default:
        break;
    }
    if (g->interrupt) {
        char text[SIGNAL_NAME_SIZE];
        const char *name = signal_name(g->interrupt, text);
        bool is_known = r->sender && *r->sender;
        strbuf_add(out, "crun: stopped by %s%s%s\n", name ? name : "a signal", is_known ? " from " : "",
                   is_known ? r->sender : "");
    }
}

/* "rank 0 (exit code 1), rank 2 (...) and 5 more" of the failures with crun as their cause, or of the others. */
static void add_other_failures(struct strbuf *out, const struct report *r, bool own, const char *what)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_failures; i++) {
        const struct report_failure *f = &r->failures[i];
        char end[96];

        if ((int)i == r->root || is_own_failure(f) != own)
            continue;
        if (n < NAMED_MAX) {
            report_describe_end(f, end, sizeof(end));
            if (n == 0)
                strbuf_add(out, "crun: %s", what);
            strbuf_add(out, "%s rank %d (%s)", n ? "," : "", f->rank, end);
        }
        n++;
    }
    if (n > NAMED_MAX)
        strbuf_add(out, " and %zu more", n - NAMED_MAX);
    if (n > 0)
        strbuf_add(out, "\n");
}

/* Why all workers are restarted, although --restart-policy=replace would keep the workers without a failure. */
static void add_why_not_replaced(struct strbuf *out, const struct report *r)
{
    const struct worker_group *g = r->group;

    if (!g->config.replace || g->cause != GROUP_CAUSE_WORKER)
        return;
    for (int i = 0; i < g->config.n_workers; i++)
        if (i != g->cause_worker && !g->workers[i].can_stay) {
            strbuf_add(
                out,
                "crun: rank %d has not reported that it can stay while another rank is replaced (programs on "
                "libcrw can, and scripts that use crun_launch.worker with PyTorch 2.14 or later); all workers are "
                "restarted\n",
                r->rank_base + i);
            return;
        }
}

static void add_decision(struct strbuf *out, const struct report *r)
{
    const struct worker_group *g = r->group;
    int max = g->config.max_restarts;

    if (g->config.has_rank_assignment)
        return; /* the rendezvous decides */
    if (g->will_replace)
        strbuf_add(out, "crun: %d/%d attempts left; will replace what has failed, the other workers go on\n",
                   max - g->restarts - 1, max);
    else if (g->will_restart) {
        add_why_not_replaced(out, r);
        strbuf_add(out, "crun: %d/%d attempts left; will restart worker group\n", max - g->restarts - 1, max);
    } else if (g->is_final && !g->interrupt && r->final_why && *r->final_why)
        strbuf_add(out, "crun: %s; the job has failed\n", r->final_why);
    else if (g->is_final && !g->interrupt)
        strbuf_add(out, "crun: the rule on that line rules out a restart; the job has failed\n");
    else if (!g->interrupt && g->cause != GROUP_CAUSE_EXEC && max > 0)
        strbuf_add(out,
                   max == 1 ? "crun: the only restart is used; the job has failed\n"
                            : "crun: all %d restarts are used; the job has failed\n",
                   max);
}

static void add_last_lines(struct strbuf *out, const char *lines)
{
    while (lines && *lines) {
        size_t n = strcspn(lines, "\n");
        strbuf_add(out, "crun:   | %.*s\n", (int)n, lines);
        lines += n + (lines[n] == '\n');
    }
}

static void add_report_lines(struct strbuf *out, const struct report *r)
{
    add_root_cause(out, r);
    if (r->group->cause == GROUP_CAUSE_WORKER)
        add_last_lines(out, r->last_lines);
    if (r->python && r->group->cause == GROUP_CAUSE_WORKER)
        strbuf_add(out, "crun: the Python of the workers is %s (PYTHON_EXEC selects another one)\n",
                   r->python);
    if (r->group->cause == GROUP_CAUSE_WORKER) {
        add_other_failures(out, r, true, "failed after that:");
        add_other_failures(out, r, false, "ended after crun had asked them to stop:");
    }
    if (r->gave_up)
        strbuf_add(
            out, "crun: not everything could be killed, see above; end it before you start the job again\n");
    else if (r->group->escalated && r->group->cause != GROUP_CAUSE_GUARDIAN)
        strbuf_add(out, r->group->hurried
                            ? "crun: a second signal came; what was left has been killed\n"
                            : "crun: not everything had ended in time; what was left has been killed\n");
    if (r->log_dir && !r->group->will_restart) {
        strbuf_add(out, "crun: error files and logs are kept in ");
        strbuf_add_clean(out, r->log_dir);
        strbuf_add(out, "\n");
    }
    add_decision(out, r);
}

/* ---- table ---- */

/* Characters of the longest line, counting UTF-8 as Python counts it. */
static size_t longest_line(const char *text)
{
    size_t longest = 0, n = 0;

    for (; *text; text++) {
        n = *text == '\n' ? 0 : n + (((unsigned char)*text & 0xC0) != 0x80);
        if (n > longest)
            longest = n;
    }
    return longest;
}

/* text, with every further line indented by two spaces. */
static void add_indented(struct strbuf *out, const char *text)
{
    for (;;) {
        size_t n = strcspn(text, "\n");
        strbuf_add(out, "%.*s", (int)n, text);
        if (!text[n])
            return;
        strbuf_add(out, "\n  ");
        text += n + 1;
    }
}

void report_add_failure(struct strbuf *out, size_t number, const char *host, const struct report_failure *f,
                        const char *error_file)
{
    char text[SIGNAL_NAME_SIZE];
    const char *name = f->exit_code < 0 ? signal_name(-f->exit_code, text) : NULL;

    strbuf_add(out, "[%zu]:\n  time      : %s\n  host      : %s\n  rank      : %d (local_rank: %d)\n", number,
               f->time_text, host, f->rank, f->local_rank);
    strbuf_add(out, "  exitcode  : %d (pid: %d) %s%s%s\n", f->exit_code, f->pid, name ? " (" : "",
               name ? name : "", name ? ")" : "");
    if (error_file)
        strbuf_add(out, "  error_file: %s\n", error_file);
    strbuf_add(out, "  traceback : ");
    if (f->message)
        add_indented(out, f->message);
    else if (f->exit_code < 0)
        strbuf_add(out, "Signal %d (%s) received by PID %d", -f->exit_code, name ? name : "<N/A>", f->pid);
    else
        strbuf_add(out, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html");
}

static void add_failure_table(struct strbuf *out, const struct report *r)
{
    static const char rule[] = "============================================================";
    static const char thin_rule[] = "------------------------------------------------------------";
    struct strbuf root_block = {0}, other_blocks = {0};

    for (size_t i = 0; i < r->n_failures; i++) {
        const struct report_failure *f = &r->failures[i];
        struct strbuf *block = (int)i == r->root ? &root_block : &other_blocks;

        report_add_failure(block, i, r->host, f, f->error_file ? f->error_file : "<N/A>");
        strbuf_add(block, "\n");
    }
    _cleanup_free_ char *root = strbuf_steal(&root_block),
                        *others = r->n_failures > 1 ? strbuf_steal(&other_blocks) : NULL;
    size_t width = max_size(longest_line(r->title) + strlen(" FAILED"), longest_line(root ? root : ""));
    int n = (int)min_size(max_size(width, longest_line(others ? others : "")), sizeof(rule) - 1);

    strbuf_add(out, "%.*s\n%s FAILED\n%.*s\nFailures:\n%s", n, rule, r->title, n, thin_rule,
               r->n_failures == 1 ? "  <NO_OTHER_FAILURES>\n"
               : others           ? others
                                  : "");
    strbuf_add(out, "%.*s\nRoot Cause (first observed failure):\n%s%.*s\n", n, thin_rule,
               root ? root : "out of memory\n", n, rule);
}

char *report_compose(const struct report *r)
{
    struct strbuf out = {0};

    add_report_lines(&out, r);
    bool over = !r->group->will_restart && !r->group->config.has_rank_assignment && r->root >= 0;
    if (over && (r->group->cause == GROUP_CAUSE_WORKER || r->group->cause == GROUP_CAUSE_GUARDIAN ||
                 r->group->cause == GROUP_CAUSE_REJOIN))
        add_failure_table(&out, r);
    return strbuf_steal(&out);
}
