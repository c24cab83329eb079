#pragma once

/*
 * The report at the end of a job of several nodes, the same on each of them: the root cause that the rendezvous chose, and
 * torchrun's summary table for it. Pure.
 */

#include "rendezvous/session/session_message.h"

struct job_result {
    enum session_verdict kind;
    const struct session_cause *cause;
    const char *title;     /* script, module or command */
    const char *time_text; /* local time, as the table shows it */
    unsigned restarts, max_restarts;
};

/* Lines, each "crun: ...\n", and the table if a worker was the cause. Malloc'ed; NULL without memory, and "" after success. */
char *job_result_compose(const struct job_result *v);

/* crun's exit code; of_worker: --exit-code=worker. */
int job_result_code(const struct job_result *v, bool of_worker);
