#include "launcher/report/job_result.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/report/report.h"
#include "launcher/util/signal_name.h"
#include "base/strbuf.h"

static const char rule[] = "============================================================";
static const char thin_rule[] = "------------------------------------------------------------";

static void add_cause_table(struct strbuf *out, const struct job_result *v)
{
    const struct session_cause *c = v->cause;
    char text[SIGNAL_NAME_SIZE];
    const char *name = c->exit_code < 0 ? signal_name(-c->exit_code, text) : NULL;

    strbuf_add(out, "%s\n%s FAILED\n%s\n", rule, v->title, thin_rule);
    strbuf_add(out, "Root Cause (first observed failure):\n[0]:\n  time      : %s\n  host      : %s\n",
               v->time_text, c->host);
    strbuf_add(out, "  rank      : %d (local_rank: %d)\n", c->rank, c->local_rank);
    strbuf_add(out, "  exitcode  : %d (pid: %lld) %s%s%s\n", c->exit_code, (long long)c->pid,
               name ? " (" : "", name ? name : "", name ? ")" : "");
    strbuf_add(out, "  traceback : ");
    if (c->text[0])
        strbuf_add(out, "%s\n", c->text);
    else if (c->exit_code < 0)
        strbuf_add(out, "Signal %d (%s) received by PID %lld\n", -c->exit_code, name ? name : "<N/A>",
                   (long long)c->pid);
    else
        strbuf_add(out, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n");
    strbuf_add(out, "%s\n", rule);
}

char *job_result_compose(const struct job_result *v)
{
    char what[SESSION_TEXT_SIZE + 256];
    struct strbuf out = {0};

    session_cause_describe(v->cause, what, sizeof(what));
    if (v->kind == SESSION_VERDICT_DRAINED)
        strbuf_add(&out,
                   "crun: all nodes have stopped because %s was asked to; start the job again to go on\n",
                   v->cause->host[0] ? v->cause->host : "one of them");
    else if (v->kind == SESSION_VERDICT_FAILURE)
        strbuf_add(&out, "crun: the job has failed on all nodes: %s\n", what);
    if (v->kind == SESSION_VERDICT_FAILURE && v->max_restarts > 0 && v->restarts >= v->max_restarts &&
        v->cause->kind == SESSION_CAUSE_WORKER)
        strbuf_add(&out,
                   v->max_restarts == 1 ? "crun: the only restart is used\n"
                                        : "crun: all %u restarts are used\n",
                   v->max_restarts);
    if (v->kind == SESSION_VERDICT_FAILURE && v->cause->kind == SESSION_CAUSE_WORKER && v->cause->rank >= 0)
        add_cause_table(&out, v);
    return strbuf_steal(&out);
}

int job_result_code(const struct job_result *v, bool of_worker)
{
    int code = v->cause->exit_code;

    if (v->kind == SESSION_VERDICT_SUCCESS)
        return 0;
    if (!of_worker || v->cause->kind != SESSION_CAUSE_WORKER || code == 0)
        return 1;
    return code < 0 ? 128 - code : code;
}
