#pragma once

/*
 * Finds the program of a job before anything is started, so that what cannot work is refused with a
 * sentence instead of failing once for each worker. Looks at files; starts nothing.
 */

struct job;
struct plan_command;

#define PROGRAM_ERROR_SIZE 1024

/*
 * Fills *ret_command (its strings are owned by it or borrowed from job and environment) and *ret_file, the
 * malloc'ed path to execute. 0, or 1 with a sentence in error.
 */
int program_find(const struct job *job, char *const *environment, struct plan_command *ret_command,
                 char **ret_file, char error[PROGRAM_ERROR_SIZE]);

/* The path execvp() would take: name itself with a slash in it, else the first executable file on PATH. Malloc'ed; NULL: *ret_error is the
 * reason. */
char *program_on_path(const char *name, char *const *environment, int *ret_error);
