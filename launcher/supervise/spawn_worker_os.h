#pragma once

/* Starting one worker (worker_start.h): the vfork() that the guardian does for it. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct job_cgroup;
struct worker_attributes;
struct worker_start;

/*
 * Raises the limit of open files to the hard limit, for this process and the guardians: a store has a connection
 * for each client. Workers get the former limit. Returns 0 with the limit that holds now, or -errno.
 */
int spawn_raise_open_files(size_t *ret_limit);

/* Ignores a signal in this process and the guardians. Workers start with its default action if restore_default, else
 * with the action that it has now. For main(), at most twice. */
void spawn_ignore_signal(int signal, bool restore_default);

/* For the guardian: starts one worker in the cgroup, NULL or refused by the kernel (job_cgroup_refused()): in the cgroup of
 * its parent. 0 with its pid, or -errno, with no process left. */
int spawn_worker(const struct worker_start *start, struct job_cgroup *cgroup, pid_t *ret_pid);

/* Gives a process of one thread these attributes, NULL: none. pid 0: the calling process. Makes system calls only. 0 or -errno. */
int spawn_set_attributes(pid_t pid, const struct worker_attributes *attributes);
