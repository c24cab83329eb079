#pragma once

/*
 * What happened to a job, as lines for people: each names the job, and what is said about a generation names
 * that, and why.
 */

#include <stdbool.h>
#include <stddef.h>

struct rounds_job;

enum { ROUNDS_LOG_SIZE = 1024 };

/* Takes the first thing off *news (bits of enum rounds_log_kind, in the order in which they happened) and writes
 * its line; false: there is none left. Control characters of strangers come out as '?'. */
bool rounds_log_next(const struct rounds_job *job, unsigned *log_kinds, char line[ROUNDS_LOG_SIZE]);
