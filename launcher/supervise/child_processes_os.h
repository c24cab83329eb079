#pragma once

/*
 * The children of this process: forked by it, or adopted because it is a subreaper.
 *
 * Only they are ever signalled by process id. A child that has ended keeps its id until it is reaped, so between
 * reading the list and sending the signal the id cannot be given to another process - provided that nothing reaps in
 * between, which holds for the single-threaded users of this file.
 *
 * No allocation, no libuv: the guardian uses it, and so does crun when the guardian is lost.
 */

#include <sys/types.h>

/*
 * Fills pids with up to n_max children, running or not yet reaped. Returns how many; when the array is full there may be
 * more, which appear in later lists when these have been reaped. A negative errno without /proc.
 */
int child_processes_list(pid_t *pids, int n_max);

/* The same from a file of numbers separated by spaces or lines. */
int child_processes_read(int fd, pid_t *pids, int n_max);
