#pragma once

/* Starting one worker: how it is described, and the vfork() that the guardian does for it. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct numa_cpus;

/* Numbers inside a worker. */
enum {
    SPAWN_NOTICE_FD = 3,
    SPAWN_STATE_FD,
    SPAWN_IMPORT_FD,
    SPAWN_KEY_FD,
    SPAWN_FD_END, /* no descriptor from here on is open */
};

/* How one worker is started. Descriptors are borrowed; -1 in stdio: crun's own, -1 elsewhere: none. */
struct spawn_worker {
    const char *file; /* a path; PATH is not searched */
    char *const *argv;
    char *const *environment;
    int stdio[3];
    int notice_fd;
    int state_fd, key_fd;         /* see proto/worker_memory.h */
    int import_fd;                /* of the zygote alone: see zygote_launch() */
    const struct numa_cpus *cpus; /* it runs on these only; NULL: on every CPU that crun may use */
};

/*
 * Raises the limit of open files to the hard limit, for this process and the guardians: a store has a connection
 * for each client. Workers get the former limit. Returns 0 with the limit that holds now, or -errno.
 */
int spawn_raise_open_files(size_t *ret_limit);

/* Ignores a signal in this process and the guardians. Workers start with its default action if restore_default, else
 * with the action that it has now. For main(), at most twice. */
void spawn_ignore_signal(int signal, bool restore_default);

/* Where a worker is started, if not in the cgroup of its parent. */
struct spawn_cgroup {
    int folder; /* of a cgroup (v2); -1: none */
    int error; /* set to the errno with which the kernel refused; the worker is in the cgroup of its parent then */
};

/* For the guardian: starts one worker; cgroup may be NULL. 0 with its pid, or -errno, with no process left. */
int spawn_worker(const struct spawn_worker *worker, struct spawn_cgroup *cgroup, pid_t *ret_pid);
