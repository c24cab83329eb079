#pragma once

/*
 * After a generation has failed: collects how its workers ended, with their error files, and prints the report (report.h).
 * Files are read beside the loop (disk_texts_uv.h) from the end of each worker on. What has not been read in time is missing.
 */

#include <stdbool.h>
#include <stddef.h>

#include "launcher/report/report.h"

struct disk_texts;
struct job;
struct logs;

struct failures_source {
    struct report report; /* without the failures and texts of files, which are collected for each report */
    const struct job *job;
    char *const *environment;
    const struct logs *logs;  /* the place of error files and kept ones */
    struct disk_texts *texts; /* failures_n_texts() */
    int line_worker;          /* local rank that was killed for a line that it printed; -1: none */
    const char *line_cause;   /* the line, as a sentence */
};

struct failures_outcome {
    bool has_files;   /* there are error files or logs to keep, of any generation so far */
    bool is_final;    /* of the last report: neither a restart nor another node can help */
    int root_code;    /* of the worker that failed first in the last report; 0: none */
    char reason[256]; /* of the last report: the root cause in a few words */
};

size_t failures_n_texts(int n_workers);

/* Asks for what a report shows of the files of a worker that has ended; before the group machine learns of that end. */
void failures_want_texts(const struct failures_source *source, int local_rank);

/* The program could not be executed: asks for its first line. */
void failures_want_program(const struct failures_source *source);

/*
 * Prints the report and updates the outcome. When the job is over and TORCHELASTIC_ERROR_FILE is in crun's own
 * environment, the error file of the root cause is copied there.
 */
void failures_tell(const struct failures_source *source, struct failures_outcome *outcome);

/* The last line of the message in the error file of a worker (of a traceback: the exception); "" without one. */
void failures_read_message(const struct failures_source *source, int local_rank, char *ret, size_t size);

/* The end of crun by a signal (else 0), or by what text names (NULL: the last line that crun logged), for the file that
 * TORCHELASTIC_ERROR_FILE names in its environment. */
void failures_record_own(char *const *environment, int signal, const char *text);
