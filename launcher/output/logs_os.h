#pragma once

/*
 * The folders of a job's logs and error files, laid out as torchrun does:
 *   LOG_DIR/RUN_ID_RANDOM/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}
 * Without --log-dir, LOG_DIR is torchelastic_RANDOM in the folder for temporary files, which is looked for as Python
 * does. All paths are absolute. Touches files only.
 *
 * Where no output goes to files, and LOG_DIR is temporary, it is flat: error files are expected seldom, and a folder for each worker
 * costs a tenth of the start of four workers on a file system that has a journal.
 *   LOG_DIR/attempt_N.LOCAL_RANK.error.json
 */

#include <stdbool.h>
#include <stddef.h>

struct logs {
    char *base;        /* LOG_DIR; NULL: no files at all, or temporary and not made yet */
    char *run;         /* LOG_DIR/RUN_ID_RANDOM, or LOG_DIR where it is flat; NULL until the first attempt */
    int held;          /* descriptor of a temporary run, with a shared lock; -1: none */
    bool is_temporary; /* base is crun's as well */
    bool
        is_flat; /* names of files have the attempt and the local rank; the folder of an attempt is made for stacks alone */
    char *const *environment; /* borrowed, for a temporary base */
    int n_workers;
};

/* log_dir: of the option, or NULL; has_output: the output of a worker goes to a file; environment must live as long. Returns 0 or
 * -errno; nothing is created yet. */
int logs_init(struct logs *logs, const char *log_dir, bool has_output, char *const *environment,
              int n_workers);
void logs_finish(struct logs *logs);

/* 0 or -ENOMEM. */
int logs_copy(struct logs *ret, const struct logs *from);

/* Creates the folders of the next attempt, and those above it that have been removed meanwhile. *ret_dir is its malloc'ed path, or NULL when there are no files: of a folder, or where it is
 * flat what the names of its files begin with. Returns 0 or -errno. */
int logs_begin_attempt(struct logs *logs, const char *run_id, int attempt, char **ret_dir);

/* Creates LOG_DIR alone. Returns 0 or -errno. */
int logs_make_base(struct logs *logs);

/* The logs of one of many hosts, in the folder LOG_DIR/HOST of `all`. Returns 0 or -errno. */
int logs_begin_host(struct logs *ret, struct logs *all, const char *host);

/* As logs_begin_attempt() for a single folder of the attempt, not flat. *ret_dir is the attempt's. Folders that exist are kept. */
int logs_begin_folder(struct logs *logs, const char *run_id, int attempt, const char *name, char **ret_dir);

/* A file of a worker that was started in this attempt: not the last one where others were replaced since.
 * Malloc'ed; NULL without a run, or without memory. */
char *logs_worker_file(const struct logs *logs, unsigned attempt, int local_rank, const char *name);

/* Appends to a file in the folder base, which is made if it is missing. Returns 0 or -errno. */
int logs_append(const struct logs *logs, const char *name, const char *text, size_t n_bytes);

/* Removes a temporary tree: its empty folders, and with `files` those that crun and error handlers put there. Without malloc():
 * the guardian calls this, too. */
void logs_remove(const struct logs *logs, bool files);
