#pragma once

/*
 * The processes whose parent this process is: born here, or adopted because it is a subreaper.
 *
 * Only they are ever signalled by process id. A child that has ended keeps its id until we wait for it, so
 * between reading the list and sending the signal the id cannot come to mean a stranger - provided that
 * nothing waits in between, which holds for the single-threaded users of this file.
 *
 * No allocation, no libuv: the guardian uses it, and so does crun when the guardian is lost.
 */

#include <stddef.h>
#include <sys/types.h>

/*
 * Fills pids with up to n_max children, the living and those not waited for. Returns how many; a full array
 * may mean that there are more, which show up once these are gone. Negative errno when the kernel tells
 * neither way (no /proc).
 */
int child_processes_list(pid_t *pids, int n_max);

/* Sends a signal to every child but those in except[n_except] (may be none). Returns how many there were. */
int child_processes_signal(int signal, const pid_t *except, size_t n_except);
