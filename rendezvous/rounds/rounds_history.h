#pragma once

/*
 * What became of the jobs of a rendezvous: their generations, how long each lasted and why it ended, for crunctl history
 * --endpoint. In memory, from the start of the daemon on: RUNS_MAX instances of jobs, of each the last GENERATIONS_MAX
 * generations. Where there are more, the run that ended first is dropped. Pure; times are seconds since 1970.
 */

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/session/session_message.h"

struct rounds_job;

enum {
    ROUNDS_HISTORY_RUNS_MAX = 1024,
    ROUNDS_HISTORY_GENERATIONS_MAX = 32,
    ROUNDS_HISTORY_REASON_SIZE = 160
};

struct rounds_past_generation {
    int64_t number, started_s, ended_s; /* ended_s: 0 while it runs */
    uint32_t n_nodes, n_workers, restarts;
    char reason[ROUNDS_HISTORY_REASON_SIZE]; /* why it ended; "": not known, or it ended well */
};

struct rounds_past_run {
    char job[SESSION_JOB_SIZE];
    uint64_t instance;
    int64_t started_s, ended_s;              /* ended_s: 0 while it runs */
    const char *result;                      /* "succeeded", "stopped" or "failed"; "" while it runs */
    char reason[ROUNDS_HISTORY_REASON_SIZE]; /* of the end */
    struct rounds_past_generation *generations;
    size_t n_generations;
};

struct rounds_history {
    struct rounds_past_run *runs; /* in the order of their starts */
    size_t n_runs;
};

/* What happened to the job, bits of enum rounds_log_kind. Without memory it is left out. */
void rounds_history_note(struct rounds_history *h, const struct rounds_job *job, unsigned log_kinds,
                         int64_t now_s);

void rounds_history_finish(struct rounds_history *h);
