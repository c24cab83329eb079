#pragma once

/*
 * The error file of crun itself: a scheduler, or a launcher above this one, sets TORCHELASTIC_ERROR_FILE to learn why crun ended.
 * For a failure of a worker failures_os.c copies the worker's file there; this is for every other end with an exit code.
 */

/* signal: the one that stopped the job, or 0. text: the cause; NULL: the last line that crun logged. Waits for the disk. */
void own_error_write(char *const *environment, int signal, const char *text);
