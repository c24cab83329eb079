#pragma once

/*
 * The secrets of crund: one for all jobs, or one file for each job in a folder, or both (a job's own file comes first).
 * Read when crund starts and again after SIGHUP, never while it serves.
 */

#include <stddef.h>

#include "proto/secret_os.h"

struct daemon_secrets;

/*
 * file, folder: either may be NULL. The name of a file in the folder is the id of its job; names that begin with a dot are
 * left out. 0; or -errno and a sentence for the first secret that cannot be read.
 */
int daemon_secrets_read(struct daemon_secrets **ret, const char *file, const char *folder,
                        char error[SECRET_ERROR_SIZE]);

/* A secret_key_find(); data: struct daemon_secrets **, so that they can be exchanged. */
int daemon_secrets_find(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret);

size_t daemon_secrets_count(const struct daemon_secrets *s);

/* NULL is fine. */
void daemon_secrets_free(struct daemon_secrets *s);
