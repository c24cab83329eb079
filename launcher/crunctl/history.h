#pragma once

/*
 * The history of a job: its generations, how long each lasted and why it ended, from lines of the event log
 * (control_path.h has the place of the file). One run is one crun on one host: its lines have an identity of their own, since the
 * name of the job and the process number may come again, and lines of several runs alternate. Pure.
 */

#include <stddef.h>

#include "launcher/report/events.h"

enum {
    HISTORY_NAME_SIZE = 256,
    HISTORY_REASON_SIZE = 512,
    HISTORY_WORD_SIZE = 24,
    HISTORY_RUN_SIZE = 48,
    HISTORY_GENERATIONS_MAX = 65536
};

struct history_line {
    enum event_kind kind; /* EVENT_KIND_COUNT: of a newer crun */
    char job[HISTORY_NAME_SIZE], host[HISTORY_NAME_SIZE], program[HISTORY_NAME_SIZE];
    char run[HISTORY_RUN_SIZE]; /* "": of an older crun */
    char reason[HISTORY_REASON_SIZE];
    char mark[HISTORY_NAME_SIZE]; /* MARK: what the rank has printed */
    char result[HISTORY_WORD_SIZE], signal[HISTORY_WORD_SIZE];
    int64_t time_s, crun_pid, generation;
    int32_t restarts, world_size, group_world_size, exit_code, mark_rank;
};

struct history_generation {
    int64_t number, started_s, ended_s; /* ended_s: 0 while it runs, or when crun was killed */
    int32_t restarts, n_nodes, n_workers;
    char reason[HISTORY_REASON_SIZE]; /* "": not known */
    int32_t n_marks, mark_rank;       /* lines that --on-line has a rule for; the rank of the last one */
    char mark[HISTORY_NAME_SIZE];     /* the last one */
};

enum history_life { HISTORY_LIFE_UNKNOWN, HISTORY_LIFE_RUNS, HISTORY_LIFE_KILLED };

struct history_run {
    struct history_line start; /* or of a run without generation what its end shows of its start */
    int64_t ended_s;
    char reason[HISTORY_REASON_SIZE]; /* of the end, where there was no generation */
    char result[HISTORY_WORD_SIZE];   /* "": it has not ended, or crun was killed; see life */
    enum history_life life;           /* of a run without result; the caller knows */
    int32_t exit_code;
    struct history_generation *generations;
    size_t n_generations;
};

struct history {
    struct history_run *runs; /* in the order of their starts */
    size_t n_runs;
};

/* Takes the next line, in the order of the file; lines without a start before them are ignored, but for the end of a run that had no
 * generation. 0 or -ENOMEM. */
int history_add(struct history *h, const struct history_line *line);

/* Keeps the runs of a job alone: those with its whole name; without such a run those with a name that begins so; all when it is
 * NULL. */
void history_select(struct history *h, const char *job);

/* Malloc'ed lines of at most width bytes (0: not cut), or NULL. format_time writes local time. */
char *history_text(const struct history_run *run, int width,
                   void (*format_time)(int64_t seconds, char out[32]));

void history_finish(struct history *h);
