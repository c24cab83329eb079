#pragma once

/*
 * The log lines about a job: each names the job, and lines about a generation its number and the cause of
 * its end.
 */

#include <stdbool.h>

struct rounds_job;

enum { ROUNDS_LOG_SIZE = 1024 };

/* Takes the first bit off *log_kinds (enum rounds_log_kind, in the order in which the events happened) and
 * writes its line; false: none is left. Control characters from the network come out as '?'. */
bool rounds_log_next(const struct rounds_job *job, unsigned *log_kinds, char line[ROUNDS_LOG_SIZE]);
