#pragma once

/* Forking the guardian (guardian_os.h) of a job. For crun. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct job_cgroup_shared;
struct logs;
struct named_file;
struct worker_start;

/* What the guardians of a job have in common; there is more than one where one is killed. */
struct spawn_guardian_job {
    uint32_t
        group_delay_ms; /* longest time between GUARDIAN_SIGNAL to a worker and to its process group; 0: at once */
    uint32_t grace_ms;               /* after GUARDIAN_RELEASE, between SIGTERM and SIGKILL */
    const struct logs *logs;         /* folders to remove in place of a killed crun; NULL: none */
    const struct named_file *socket; /* the same */
    int cgroup; /* folder in which the guardian makes a cgroup for the workers; -1: none */
    struct job_cgroup_shared *shared; /* the same: see job_cgroup_os.h */
};

/*
 * Forks a guardian that waits for orders to start n_workers, generation after generation; it launches the zygote (NULL: none) at
 * once. If crun is killed, the guardian removes empty folders of the logs, and crun's socket. Returns 0 with the guardian's
 * process id and crun's end of the link to it (see guardian_os.h; non-blocking, close-on-exec), or -errno. The caller may
 * close the zygote's descriptors afterwards.
 */
int spawn_guardian(size_t n_workers, const struct worker_start *zygote, const struct spawn_guardian_job *job,
                   pid_t *ret_pid, int *ret_link);
