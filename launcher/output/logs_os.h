#pragma once

/*
 * The folders of a job's logs and error files, laid out as torchrun does:
 *   LOG_DIR/RUN_ID_RANDOM/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}
 * Without --log-dir, LOG_DIR is $TMPDIR/torchelastic_RANDOM, removed after success. Touches files only.
 */

#include <stdbool.h>
#include <stddef.h>

struct logs {
    char *base;     /* LOG_DIR; NULL: no files at all */
    char *run;      /* LOG_DIR/RUN_ID_RANDOM; NULL until the first attempt */
    bool temporary; /* base is ours as well */
    int n_attempts;
    int n_workers;
};

/* log_dir: of the option, or NULL; environment: for TMPDIR. Returns 0 or -errno; nothing is created yet. */
int logs_init(struct logs *logs, const char *log_dir, char *const *environment, int n_workers);
void logs_finish(struct logs *logs);

/* Creates the folders of the next attempt. *ret_dir is its malloc'ed path, or NULL when there are no files.
 * Returns 0 or -errno. */
int logs_begin_attempt(struct logs *logs, const char *run_id, int attempt, char **ret_dir);

/* Removes a temporary tree, with the files crun and error handlers put there and nothing else. */
void logs_remove_temporary(struct logs *logs);

/* For the guardian, when crun is gone: of a temporary tree, the folders in which nobody has left anything. Allocates
 * nothing. */
void logs_remove_empty(const struct logs *logs);
