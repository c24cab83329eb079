#pragma once

/*
 * --max-restarts-without-progress: whether restarts bring a job further, by the highest step that its workers have reported.
 * Pure.
 *
 * Each node looks at its own workers, at the end of each generation that a failed worker of any node has ended, and decides
 * about the failures of its own: nodes exchange nothing for it. A node that joins a job later counts from there.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct restart_progress {
    int limit;     /* restarts in a row; 0: any number */
    bool has_best; /* a step was reported */
    int64_t best;  /* the highest one */
    int n_without; /* restarts in a row that have not got beyond it */
};

/* A generation has failed. step: the highest one of its workers and of those before, -1: none was reported yet.
 * is_restart: it was not the first of the job. */
void restart_progress_note(struct restart_progress *p, int64_t step, bool is_restart);

/* No further restart. */
bool restart_progress_is_used_up(const struct restart_progress *p);

/* Why not, as the beginning of a sentence. */
void restart_progress_describe(const struct restart_progress *p, char *out, size_t out_size);
