#include "launcher/report/job_result.h"

#include <stdio.h>
#include <string.h>

#include "launcher/report/report.h"
#include "base/strbuf.h"

static const char rule[] = "============================================================";
static const char thin_rule[] = "------------------------------------------------------------";

static void add_cause_table(struct strbuf *out, const struct job_result *v)
{
    const struct session_cause *c = v->cause;
    struct report_failure f = {.local_rank = c->local_rank,
                               .rank = c->rank,
                               .pid = (int)c->pid,
                               .exit_code = c->exit_code,
                               .message = c->text[0] ? c->text : NULL};

    (void)snprintf(f.time_text, sizeof(f.time_text), "%s", v->time_text); /* fits */
    strbuf_add(out, "%s\n%s FAILED\n%s\nRoot Cause (first observed failure):\n", rule, v->title, thin_rule);
    report_add_failure(out, 0, c->host, &f, NULL);
    strbuf_add(out, "\n%s\n", rule);
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
