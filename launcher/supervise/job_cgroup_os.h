#pragma once

/*
 * Containment: the processes of a generation in a cgroup (v2) of their own, below the cgroup of crun, where crun may make
 * one. It is killed as a whole, without /proc, and whatever its processes have done to be found by nobody's child list.
 *
 * The keeper is a third small process beside crun and the guardian. It outlives the guardian, however that ends, kills what is
 * left in the cgroup and removes it: so SIGKILL to crun and the guardian in the same instant leaves nothing either.
 *
 * Without such a cgroup a job runs all the same; then the process tree is what contains it (guardian_os.h).
 */

#include <stdbool.h>
#include <sys/types.h>

/*
 * Written by the guardian, read by crun: memory that both share. After the end of the guardian crun sees the keeper as an orphan, and
 * has to leave the keeper alone. A message with the process id could be lost with the guardian.
 */
struct job_cgroup_shared {
    pid_t keeper; /* 0: none was started */
    int error;    /* why the cgroup holds not all workers, errno; 0: it does, or there is none yet */
    bool is_used; /* every worker so far was started in it */
};

enum { JOB_CGROUP_NAME_SIZE = 40 };

struct job_cgroup {
    int parent; /* the folder of crun's own cgroup (O_PATH); -1: no cgroup can be made */
    int folder; /* the one of the generation (O_PATH); -1: there is none */
    int pipe;   /* its end is the end of the guardian, for the keeper; -1: none */
    pid_t keeper;
    char name[JOB_CGROUP_NAME_SIZE]; /* of the folder, in parent */
    struct job_cgroup_shared *shared;
};

/* For crun, before it forks the guardian. Parent and shared are borrowed; parent may be -1. */
void job_cgroup_init(struct job_cgroup *c, int parent, struct job_cgroup_shared *shared);

/* ---- for the guardian, which allocates nothing ---- */

/* Starts the keeper and makes the cgroup. Where that is not possible shared->error has the reason. */
void job_cgroup_make(struct job_cgroup *c);

/* A worker could not be started in it (errno): from here on it does not hold all. */
void job_cgroup_refused(struct job_cgroup *c, int error);

/* Whether all workers were started in it. */
bool job_cgroup_holds_all(const struct job_cgroup *c);

/* SIGKILL to every process in it. */
void job_cgroup_kill(const struct job_cgroup *c);

/* How many processes are in it; 0 without it. */
int job_cgroup_count(const struct job_cgroup *c);

/* The processes have ended: removes it and ends the keeper. Does nothing where there is none. */
void job_cgroup_remove(struct job_cgroup *c);
