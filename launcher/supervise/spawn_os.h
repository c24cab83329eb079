#pragma once

/*
 * Starts the processes of a job: crun forks a guardian for each generation, and the guardian starts the workers.
 * (gpu_count_os.c forks a short-lived process that loads the GPU driver's library.)
 */

#include <stddef.h>
#include <sys/types.h>

/* Numbers inside a worker. */
enum {
    SPAWN_NOTICE_FD = 3,
    SPAWN_STATE_FD,
    SPAWN_CACHE_FD,
    SPAWN_FD_END, /* nothing from here on */
};

/*
 * Raises the limit of open files to the hard limit, for this process and the guardians: a store has a connection
 * for each client. Workers get back what it was. Returns 0 with the limit that holds now, or -errno.
 */
int spawn_raise_open_files(size_t *ret_limit);

struct death_notice;
struct logs;
struct numa_cpus;

/* How one worker is started. Descriptors are borrowed; stdio entries of -1 mean: as crun's own, others: none. */
struct spawn_worker {
    const char *file; /* a path; PATH is not searched */
    char *const *argv;
    char *const *environment;
    int stdio[3];
    int notice_fd;
    int state_fd, cache_fd;       /* see proto/worker_memory.h */
    const struct numa_cpus *cpus; /* it runs on these only; NULL: wherever crun may */
};

/*
 * Forks a guardian that starts the workers, and if we are killed says the last word (NULL: none) and removes empty
 * folders of the logs (NULL: none). Returns 0 with the guardian's process id and crun's end of the link to it (see guardian_os.h; non-blocking,
 * close-on-exec), or -errno. The workers' descriptors may be closed afterwards.
 */
int spawn_guardian(const struct spawn_worker *workers, size_t n_workers,
                   const struct death_notice *death_notice, const struct logs *logs, pid_t *ret_pid,
                   int *ret_link);

/* For the guardian: starts one worker. 0 with its pid, or -errno, with nothing left running. */
int spawn_worker(const struct spawn_worker *worker, pid_t *ret_pid);
