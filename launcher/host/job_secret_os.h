#pragma once

/*
 * The secret of this job, from where the user has put it. crun reads it once, before it starts anything, and passes it to
 * no other process: not in arguments, not in an environment, not in a file.
 */

#include "proto/secret_os.h"

/*
 * Looks in this order: file (--secret-file, or NULL), the descriptor in CRUN_SECRET_FD (closed here), the file in CRUN_SECRET_FILE, and
 * crun/secret below XDG_CONFIG_HOME (else ~/.config). The first that is named decides: one that cannot be read is an error
 * and not a reason to go on without. 0, also without any secret (ret->bytes is NULL then); else -errno and a sentence.
 */
int job_secret_find(struct secret *ret, const char *file, char *const *environment,
                    char error[SECRET_ERROR_SIZE]);
